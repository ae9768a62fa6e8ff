"""Transactions that happen once, whatever becomes of the database meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    sleep_using_event,
    wait_none,
    wait_random_exponential,
)

from llm_elicit.orchestrator.journal.failures import JournalError, is_full, passes
from llm_elicit.orchestrator.journal.full_disk import Reserve
from llm_elicit.orchestrator.journal.interface import JournalLocation
from llm_elicit.orchestrator.journal.schema import workers

T = TypeVar("T")

_TIMES = 3
"""So often is a transaction tried on a full disk: as it is, with the reserve, and to see whether
what was reported as failed (a checkpoint after it, say) is there all the same."""


class Transactions:
    """One worker's transactions on a journal.

    Each has a number, which it leaves with the worker's row. If the connection is lost on the way,
    so that nobody knows whether it was committed, the number tells.

    A server that is away is waited for as long as the worker's lease lasts, counted from its last
    commit; after that each transaction is tried once. On a disk that is full the reserve is given
    back and the transaction tried again; `failure` says from then on why nothing more may be sent.

    Args:
        location: where the journal is.
        me: the worker.
        lease: seconds for which it need not be heard of.
    """

    def __init__(self, location: JournalLocation, me: str, lease: float) -> None:
        self.location = location
        self.failure: JournalError | None = None
        self._me = me
        self._lease = lease
        self._number = 0
        self._reserve = None if location.shared else Reserve(location.folder)
        self._heard = time.monotonic()
        self._given_up = threading.Event()
        try:
            self.db = location.writable(lease).connect()
        except BaseException:
            self._release()
            raise
        self._patient = Retrying(
            retry=retry_if_exception(self._worth_another),
            stop=self._enough,
            wait=wait_random_exponential(0.1, max=2.0) if location.shared else wait_none(),
            sleep=sleep_using_event(self._given_up),
            reraise=True,
        )

    @property
    def number(self) -> int:
        """The running transaction's."""
        return self._number

    def once(self, work: Callable[[], T]) -> T:
        """The result of `work`, done in one transaction and committed once.

        Where the work changes anything, it writes the number to the worker's row as well.

        Raises:
            JournalError: the database cannot be used.
        """
        self._number += 1
        results: list[T] = []

        def attempt() -> T:
            with self.db.begin():
                if not results or not self._written():
                    results.append(work())
            return results[-1]

        with self.location.guarded():
            result = self._patient(attempt)
        self._heard = time.monotonic()
        return result

    def _written(self) -> bool:
        mine = sa.select(workers.c.written).where(workers.c.id == self._me)
        return self.db.execute(mine).scalar() == self._number

    def _worth_another(self, error: BaseException) -> bool:
        if self.location.shared:
            return passes(error)
        if not is_full(error):
            return False
        if self.failure is None and isinstance(error, SQLAlchemyError):
            self.failure = self.location.explained(error)
        self._release()
        return True

    def _enough(self, state: RetryCallState) -> bool:
        if not self.location.shared:
            return state.attempt_number >= _TIMES
        return self._given_up.is_set() or time.monotonic() > self._heard + self._lease

    def give_up(self) -> None:
        """Wait for nothing any more; may be called from another thread."""
        self._given_up.set()

    def _release(self) -> None:
        if self._reserve is not None:
            self._reserve.release()

    def close(self) -> None:
        """Let go of the connection and of the reserve."""
        self.db.close()
        self._release()
