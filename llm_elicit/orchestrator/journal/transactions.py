"""Transactions that are committed exactly once, even if the connection is lost."""

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
"""Attempts of a transaction on a full disk: the first, one after the reserve is released, and one
to check whether a commit reported as failed (by a checkpoint, say) is there after all."""


class Transactions:
    """One worker's transactions on a journal.

    Each writes its number to the worker's row. If the connection is lost during a commit, the
    number shows whether it was committed.

    An unreachable server is retried until the worker's lease expires, counted from its last commit;
    after that each transaction is tried once. On a full disk the reserve is released and the
    transaction retried; from then on `failure` says why nothing more may be sent.

    Args:
        location: where the journal is.
        me: the worker's id.
        lease: the worker's lease, in seconds.
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
        """The number of the current transaction."""
        return self._number

    def once(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, committed exactly once in one transaction.

        If the work changes anything, it must write the number to the worker's row as well.

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
        """Stop retrying; may be called from another thread."""
        self._given_up.set()

    def _release(self) -> None:
        if self._reserve is not None:
            self._reserve.release()

    def close(self) -> None:
        """Close the connection and release the reserve."""
        self.db.close()
        self._release()
