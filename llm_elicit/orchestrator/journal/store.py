"""The journal: intents are written before requests are sent, answers before they are counted.

A commit that returned is on the disk. Every claimed question belongs to a worker, and every worker
has a lease that it renews with each commit; the questions of a dead worker become claimable. With
SQLite there is one worker at a time, so that the next process takes over immediately; with
PostgreSQL the lease must expire first.
"""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial, wraps
from typing import Concatenate, Literal, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy import func, insert, or_, select, update

from llm_elicit.config.campaign import Limits
from llm_elicit.errors import ElicitError, InputError
from llm_elicit.orchestrator.journal import questions as sql
from llm_elicit.orchestrator.journal.connection import (
    LEASE,
    JournalError,
    JournalLocation,
    Transactions,
    UnsavedAnswers,
    check_identity,
    prepare_schema,
)
from llm_elicit.orchestrator.journal.schema import (
    IN_FLIGHT,
    PLANNED,
    Change,
    Question,
    Refusal,
    batches,
    clock,
    meta,
    now,
    questions,
    storable,
    workers,
)
from llm_elicit.planning.pairs import Plan

StoredBatchState = Literal["intended", "submitted", "collected", "refused", "released"]


@dataclass(frozen=True)
class BatchRow:
    """One batch.

    Attributes:
        tag: its tag, with which its requests' custom ids begin.
        judge: the judge's name.
        batch: the provider's id; None until known.
        state: `intended` until the batch is known to have arrived, then `submitted`, then
            `collected`; `refused` by the provider; `released` if it never arrived.
        made: seconds since 1970 when it was intended.
        note: a remark, such as the provider's error.
    """

    tag: str
    judge: str
    batch: str | None
    state: StoredBatchState
    made: float
    note: str = ""


def batch_rows(
    db: sa.Connection, judge: str, state: StoredBatchState | None = None
) -> list[BatchRow]:
    """Return a judge's batches, oldest first, optionally only those of one state."""
    query = select(batches).where(batches.c.judge == judge).order_by(batches.c.made, batches.c.tag)
    if state is not None:
        query = query.where(batches.c.state == state)
    return [BatchRow(**row._mapping) for row in db.execute(query)]


def questions_in(db: sa.Connection, tag: str) -> list[Question]:
    """Return the questions that wait for a batch, in the plan's order."""
    c = questions.c
    waiting = select(*sql.QUESTION_COLUMNS).where(c.batch == tag, c.state == "submitted")
    return [Question(*row) for row in db.execute(waiting.order_by(c.id))]


_NO_LIMITS = Limits()

T = TypeVar("T")
P = ParamSpec("P")


def _in_transaction(
    work: Callable[Concatenate[Journal, P], T],
) -> Callable[Concatenate[Journal, P], T]:
    """Make a method one transaction, which is committed exactly once."""

    @wraps(work)
    def run(journal: Journal, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return journal._transactions.run_once(lambda: work(journal, *args, **kwargs))

    return run


Write = Callable[[sa.Connection, Sequence[Change], str], list[Change]]
"""Write changes for a worker; return those that did not apply."""


class Journal:
    """A run's journal, open for writing.

    Args:
        location: where the journal is; created if necessary.
        identity: what must be equal whenever the run is resumed.
        limits: the caps for all workers together.
        lease: the lease of this worker, in seconds.

    Raises:
        InputError: the journal cannot be written, or holds the run of another campaign.
    """

    def __init__(
        self,
        location: JournalLocation,
        identity: dict[str, str],
        limits: Limits = _NO_LIMITS,
        lease: float = LEASE,
    ) -> None:
        self.location = location
        self.lease = lease
        self._limits = limits
        self._me = uuid.uuid4().hex
        self._known: dict[str, int] = {}
        with location.guarded():
            self._transactions = Transactions(location, self._me, lease)
            self._db = self._transactions.db
            try:
                with self._db.begin():
                    prepare_schema(self._db, location)
                    check_identity(self._db, identity, location.folder)
                    rows = [{"key": key, "value": value} for key, value in identity.items()]
                    self._db.execute(sql.insert_or_ignore(meta, self._db.dialect.name), rows)
                    self._unsaved = UnsavedAnswers(location.folder, self._name())
                    name = f"{socket.gethostname()}:{os.getpid()}"
                    expires = clock() + lease
                    worker = workers.insert().values(id=self._me, name=name, expires=expires)
                    self._db.execute(worker.values(began=now()))
                if not location.shared:
                    # It cannot be switched on within a transaction.
                    with contextlib.closing(self._db.connection.cursor()) as cursor:
                        cursor.execute("PRAGMA foreign_keys = ON")
            except BaseException:
                self._transactions.close()
                raise

    def _name(self) -> str:
        """Return the id of this journal, unique even among journals of one campaign."""
        row = {"key": "journal", "value": uuid.uuid4().hex}
        self._db.execute(sql.insert_or_ignore(meta, self._db.dialect.name), row)
        query = select(meta.c.value).where(meta.c.key == "journal")
        return str(self._db.execute(query).scalar_one())

    def prepare(self, judges: Iterable[str], plan: Plan, *, retry_failed: bool = False) -> int:
        """Write the plan, and reopen the questions that dead workers had in flight.

        Questions that an earlier run gave up are open again; those that are set aside only with
        `retry_failed`. From then on only questions of this plan are claimed.

        Returns:
            The number of requests that were in flight, whose answers are lost.
        """
        names = list(judges)
        self._known = {judge: plan.end(judge) for judge in names}

        def work() -> int:
            lost = self._reclaim()
            for judge in names:
                sql.withdraw(self._db, judge, plan)
                sql.write_plan(self._db, judge, plan)
            again = questions.c.state == "failed"
            if retry_failed:
                not_withdrawn = questions.c.error.is_distinct_from(sql.WITHDRAWN)
                again = again | ((questions.c.state == "quarantined") & not_withdrawn)
            self._db.execute(update(questions).where(again).values(state=PLANNED))
            late = self._unsaved.answers()
            sql.apply_each(self._db, late, self._me)
            self._renew(sum(change.spent for change in late), sum(change.tokens for change in late))
            return lost

        lost = self._transactions.run_once(work)
        self._unsaved.clear()
        return lost

    def _reclaim(self) -> int:
        """Reopen the questions of dead workers; requests they had in flight count as paid."""
        gone = update(workers).where(workers.c.id != self._me, workers.c.expires > 0)
        if self.location.shared:
            gone = gone.where(workers.c.expires <= clock())
        # A worker that was only suspended sees this in its row and commits nothing more.
        ids = list(self._db.execute(gone.values(expires=0).returning(workers.c.id)).scalars())
        if not ids:
            return 0
        c = questions.c
        theirs = c.worker.in_(ids)
        in_flight = theirs & (c.state == IN_FLIGHT)
        # Locked, since a late answer may come between this query and the update.
        held = select(c.reserved, c.reserved_tokens).where(in_flight).with_for_update()
        rows = self._db.execute(held).all()
        lost = {"lost": c.lost + c.reserved, "lost_tokens": c.lost_tokens + c.reserved_tokens}
        back = update(questions).where(in_flight)
        self._db.execute(back.values(state=PLANNED, reserved=0.0, reserved_tokens=0, **lost))
        self._db.execute(update(questions).where(theirs, c.state == PLANNED).values(worker=None))
        self._renew(sum(row.reserved for row in rows), sum(row.reserved_tokens for row in rows))
        return len(rows)

    def _renew(self, usd: float = 0.0, tokens: int = 0, late: Sequence[Change] = ()) -> bool:
        """Renew this worker's lease and add what it spent.

        Args:
            usd, tokens: USD and tokens.
            late: what counts instead if the lease has expired.

        Returns:
            Whether the lease had not expired.
        """
        values = {
            "me": self._me, "lease": self.lease, "number": self._transactions.number,
            "new_spent": usd, "new_tokens": tokens,
            "late": sum(change.spent for change in late),
            "late_tokens": sum(change.tokens for change in late),
        }  # fmt: skip
        return bool(self._db.execute(sql.RENEW, values).scalar_one() > 0)

    @_in_transaction
    def claim(self, judge: str, count: int) -> list[Question]:
        """Claim up to `count` open questions of a judge for this worker, in the plan's order.

        Questions of rounds that other workers planned since are not claimed.
        """
        if self._transactions.failure is not None:
            raise self._transactions.failure
        if not self._renew():
            raise self._lease_error()
        values = {"of_judge": judge, "count": count, "me": self._me, "known": self._known[judge]}
        rows = sorted(self._db.execute(sql.CLAIM, values).all())
        return [replace(Question(*row[:-1]), given_up=row.error is not None) for row in rows]

    @_in_transaction
    def open_after(self, judge: str, number: int) -> list[Question]:
        """Return the next open questions of a judge after a number, those of other workers, too."""
        values = {"of_judge": judge, "after": number, "known": self._known[judge]}
        return [Question(*row) for row in self._db.execute(sql.OPEN_AFTER, values)]

    @_in_transaction
    def held_elsewhere(self, judge: str) -> int:
        """Reopen the questions of dead workers; return how many are open beside this worker's.

        These are the ones that other workers hold, and the ones that were reopened.
        """
        if not self._renew():
            raise self._lease_error()
        self._reclaim()
        open_ = or_(questions.c.state == PLANNED, questions.c.state == IN_FLIGHT)
        others = select(func.count()).where(
            questions.c.judge == judge,
            open_,
            sql.IN_PLAN,
            questions.c.worker.is_distinct_from(self._me),
        )
        return int(self._db.execute(others, {"known": self._known[judge]}).scalar_one())

    def commit(self, changes: Sequence[Change]) -> dict[Change, Refusal]:
        """Write changes of different questions, all of them or none.

        A change that no longer applies, since another worker took the question over, changes
        nothing; only its cost is counted.

        Returns:
            The changes that were not written, with the reason; answers and costs always are.

        Raises:
            JournalError: the disk is full, or the journal is damaged or cannot be written. The
                answers are saved in a file beside it, for the next run.
            InputError: the lease expired and another worker took over; answers were kept.
        """
        try:
            try:
                done = self._transactions.run_once(partial(self._commit, changes, sql.apply))
            except sql.UnexpectedError:
                done = self._transactions.run_once(partial(self._commit, changes, sql.apply_each))
        except JournalError as error:
            lost = self._unsaved.save(changes) if any(c.answer for c in changes) else 0
            if lost:
                error = JournalError(f"{error}; {lost:,} answers could not be saved")
            raise error from None
        if done is None:
            raise self._lease_error()
        return done

    def _commit(self, changes: Sequence[Change], write: Write) -> dict[Change, Refusal] | None:
        """Write changes with `write`; return None if this worker's lease has expired."""
        usd, tokens = sum(c.spent for c in changes), sum(c.tokens for c in changes)
        late = [change for change in changes if change.answer is not None]
        if not self._renew(usd, tokens, late):
            # Only answers are still written: they are paid, whichever worker asked.
            write(self._db, late, self._me)
            return None
        intents = [change for change in changes if change.kind in ("intent", "submitted")]
        refused: dict[Change, Refusal] = {}
        if self._transactions.failure is not None:
            refused = dict.fromkeys(intents, "journal failed")
        elif intents:
            refused = dict.fromkeys(
                sql.intents_over_caps(self._db, intents, self._limits), "no room"
            )
        accepted = [change for change in changes if change not in refused]
        for change in write(self._db, accepted, self._me):
            if change.kind not in ("answered", "missed"):
                refused[change] = "settled elsewhere"
        return refused

    @property
    def failure(self) -> JournalError | None:
        """Why nothing more may be sent; None unless the disk is full."""
        return self._transactions.failure

    def give_up(self) -> None:
        """Stop waiting for an unreachable server; may be called from another thread."""
        self._transactions.give_up()

    @_in_transaction
    def workers(self) -> int:
        """Return the number of live workers, this one included."""
        living = or_(workers.c.id == self._me, workers.c.expires > clock())
        return int(self._db.execute(select(func.count()).where(living)).scalar_one())

    @_in_transaction
    def open_batch(self, row: BatchRow) -> None:
        """Insert a new batch."""
        self._renew()
        self._db.execute(insert(batches).values(**asdict(row)))

    @_in_transaction
    def set_batch(
        self, tag: str, state: StoredBatchState, batch: str | None = None, note: str = ""
    ) -> None:
        """Update the state of a batch; a known provider id is kept."""
        self._renew()
        values = {"state": state, "note": storable(note), **({"batch": batch} if batch else {})}
        self._db.execute(update(batches).where(batches.c.tag == tag).values(**values))

    def read(
        self, query: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return the result of a query, such as those of `journal.questions`."""
        return self._transactions.run_once(lambda: query(self._db, *args, **kwargs))

    def raise_worst(self, judge: str, prompt: int, completion: int) -> None:
        """Record that a judge's requests take more tokens than their limit."""
        with self.location.guarded(), self._db.begin():
            sql.raise_worst_case(self._db, judge, prompt, completion)

    def close(self) -> None:
        """Release claimed questions that were not sent, and close."""
        mine = workers.c.id == self._me
        unsent = (questions.c.worker == self._me) & (questions.c.state == PLANNED)
        # If the disk is full, the next run reopens these questions.
        with contextlib.suppress(ElicitError), self.location.guarded(), self._db.begin():
            self._db.execute(update(questions).where(unsent).values(worker=None))
            # Not 0: the next worker reopens what is still in flight.
            self._db.execute(update(workers).where(mine, workers.c.expires > 0).values(expires=1))
        self._transactions.close()

    def _lease_error(self) -> InputError:
        return InputError(f"{self.location.name}: this process lost its lease; run again to rejoin")
