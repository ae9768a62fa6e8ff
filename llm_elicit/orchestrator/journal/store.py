"""The journal: where an intent stands before a request leaves and an answer before it is counted.

What a commit returned for is on the disk. Every question in hand belongs to a worker, and a
worker to a lease that it renews with each commit; when a worker is gone its questions are free
again. On SQLite there is one worker at a time, so whoever opens the file takes over at once; on
PostgreSQL a lease must expire first.
"""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import sqlalchemy as sa
from sqlalchemy import func, or_, select, update

from llm_elicit.campaign import Limits
from llm_elicit.errors import ElicitError, InputError
from llm_elicit.identity import check_same
from llm_elicit.orchestrator.journal.batches import (
    BatchFate,
    BatchRow,
    add_batch,
    batch_questions,
    batch_rows,
    set_batch,
)
from llm_elicit.orchestrator.journal.changes import Change, Question, Totals, now, storable
from llm_elicit.orchestrator.journal.door import Place
from llm_elicit.orchestrator.journal.migrations import migrate
from llm_elicit.orchestrator.journal.reading import spent, totals
from llm_elicit.orchestrator.journal.schema import (
    IN_FLIGHT,
    PLANNED,
    clock,
    meta,
    questions,
    workers,
)
from llm_elicit.orchestrator.journal.statements import (
    CLAIM,
    HANDED_IN,
    HELD,
    REGISTER,
    RENEW,
    SPENT,
    amounts,
    apply,
    ignoring,
)
from llm_elicit.plan import Plan

LEASE = 120.0
"""Seconds after which a worker that has not been heard of is taken for gone."""

_NO_LIMITS = Limits()

_ROWS = 5_000
"""Rows of the plan that are written at once."""


class Journal:
    """A run's journal, open for writing.

    Args:
        place: where it is; made if it is not there.
        identity: what must be the same whenever the run goes on.
        limits: what all workers together may spend.
        lease: seconds for which this worker need not be heard of.

    Raises:
        InputError: the place cannot be written, or holds the run of another campaign.
    """

    def __init__(
        self,
        place: Place,
        identity: dict[str, str],
        limits: Limits = _NO_LIMITS,
        lease: float = LEASE,
    ) -> None:
        self.place = place
        self.lease = lease
        self._limits = limits
        self._me = uuid.uuid4().hex
        with place.guarded():
            self._db = place.writable().connect()
            try:
                self._set_up(identity)
            except BaseException:
                self._db.close()
                raise

    def _set_up(self, identity: dict[str, str]) -> None:
        with self._db.begin():
            if self.place.shared:
                # Two workers that come at once must not both make the tables.
                self._db.execute(
                    select(func.pg_advisory_xact_lock(func.hashtext(self.place.schema)))
                )
                self._db.execute(sa.schema.CreateSchema(self.place.schema, if_not_exists=True))
            migrate(self._db)
            self._same_campaign(identity)
            name = f"{socket.gethostname()}:{os.getpid()}"
            worker = {"me": self._me, "new_name": name, "new_began": now(), "lease": self.lease}
            self._db.execute(REGISTER, worker)
        if not self.place.shared:
            # Off while tables are made anew, and no switch inside a transaction.
            with self._raw() as db:
                db.execute("PRAGMA foreign_keys = ON")

    @contextlib.contextmanager
    def _raw(self) -> Iterator[Any]:
        cursor = self._db.connection.cursor()
        try:
            yield cursor
        finally:
            cursor.close()

    def _same_campaign(self, identity: dict[str, str]) -> None:
        kept = dict(self._db.execute(select(meta.c.key, meta.c.value)).all())
        check_same(kept, identity, self.place.folder)
        rows = [{"key": key, "value": value} for key, value in identity.items()]
        self._db.execute(ignoring(meta, self._db.dialect.name), rows)

    def prepare(self, judges: Iterable[str], plan: Plan) -> int:
        """Write the plan down, and take back what was in flight when a worker was cut off.

        Questions that an earlier run gave up are open again; quarantined ones are not.

        Returns:
            How many requests were in flight: their answers, if any, were lost with that worker.
        """
        with self.place.guarded(), self._db.begin():
            lost = self._reclaim()
            for judge in judges:
                self._withdraw(judge, plan)
                self._write_down(judge, plan)
            again = update(questions).where(questions.c.state == "failed")
            self._db.execute(again.values(state=PLANNED))
            return lost

    def _write_down(self, judge: str, plan: Plan) -> None:
        count = select(func.count()).where(questions.c.judge == judge)
        if self._db.execute(count).scalar() == plan.count(judge):
            return
        add = ignoring(questions, self._db.dialect.name)
        start = {"judge": judge, "state": "planned", "attempts": 0, "reserved": 0.0, "lost": 0.0}
        queries = plan.of(judge)
        while some := list(islice(queries, _ROWS)):
            rows = [
                {**start, "pair": q.pair, "presentation": q.order, "replicate": q.replicate}
                for q in some
            ]
            self._db.execute(add, rows)

    def _withdraw(self, judge: str, plan: Plan) -> None:
        """Forget direct questions that the plan has no more; those paid for are set aside."""
        c = questions.c
        idle = c.state.in_(("planned", "failed")) & c.worker.is_(None)
        direct = select(c.id, c.lost, c.lost_tokens, c.pair, c.presentation, c.replicate).where(
            c.judge == judge, c.presentation.not_in(("ab", "ba")), idle
        )
        asked = {(q.pair, q.order, q.replicate) for q in plan.direct}
        gone = [row for row in self._db.execute(direct).all() if tuple(row[3:]) not in asked]
        mine = c.id == sa.bindparam("gone")
        aside = update(questions).where(mine).values(state="quarantined", error="asked no more")
        for paid, step in ((False, sa.delete(questions).where(mine)), (True, aside)):
            rows = [{"gone": row.id} for row in gone if bool(row.lost or row.lost_tokens) == paid]
            if rows:
                self._db.execute(step, rows)

    def _reclaim(self) -> int:
        """Free the questions of workers that are gone; what they had in flight counts as paid."""
        gone = update(workers).where(workers.c.id != self._me, workers.c.expires > 0)
        if self.place.shared:
            gone = gone.where(workers.c.expires <= clock())
        # Once its row says so, a worker that was only asleep commits nothing more (see commit).
        ids = list(self._db.execute(gone.values(expires=0).returning(workers.c.id)).scalars())
        if not ids:
            return 0
        theirs = questions.c.worker.in_(ids)
        flying = theirs & (questions.c.state == IN_FLIGHT)
        c = questions.c
        sums = select(func.count(), func.sum(c.reserved), func.sum(c.reserved_tokens))
        count, usd, tokens = self._db.execute(sums.where(flying)).one()
        lost = {"lost": c.lost + c.reserved, "lost_tokens": c.lost_tokens + c.reserved_tokens}
        back = update(questions).where(flying)
        self._db.execute(back.values(state=PLANNED, reserved=0.0, reserved_tokens=0, **lost))
        self._db.execute(
            update(questions).where(theirs, questions.c.state == PLANNED).values(worker=None)
        )
        self._renew(float(usd or 0.0), int(tokens or 0))
        return int(count)

    def _renew(self, spent: float = 0.0, tokens: int = 0) -> bool:
        """Say that this worker lives; False if another has taken its questions already."""
        values = {"me": self._me, "new_spent": spent, "new_tokens": tokens, "lease": self.lease}
        renewed = self._db.execute(RENEW, values)
        return bool(renewed.rowcount)

    def claim(self, judge: str, count: int) -> list[Question]:
        """Take up to `count` open questions of a judge, in the plan's order, for this worker."""
        with self.place.guarded(), self._db.begin():
            if not self._renew():
                raise self._lapsed()
            values = {"of_judge": judge, "count": count, "me": self._me}
            rows = sorted(self._db.execute(CLAIM, values).all())
        return [Question(*row) for row in rows]

    def held_elsewhere(self, judge: str) -> int:
        """How many open questions this worker does not hold; frees those of workers gone first."""
        with self.place.guarded(), self._db.begin():
            if not self._renew():
                raise self._lapsed()
            self._reclaim()
            open_ = or_(questions.c.state == PLANNED, questions.c.state == IN_FLIGHT)
            others = select(func.count()).where(
                questions.c.judge == judge, open_, questions.c.worker.is_distinct_from(self._me)
            )
            return int(self._db.execute(others).scalar_one())

    def commit(self, changes: Sequence[Change]) -> list[Change]:
        """Make changes of different questions durable, all of them or none.

        Returns:
            Intents that the cap has no room for now: they were not written, the others were.

        Raises:
            InputError: the disk is full, the journal cannot be written, or it is damaged; or
                this worker was not heard of for so long that another took over its questions.
        """
        with self.place.guarded(), self._db.begin():
            alive = self._renew(sum(c.spent for c in changes), sum(c.tokens for c in changes))
            if alive:
                refused = self._over_the_cap(changes)
                kept = [change for change in changes if change not in refused]
            else:
                # Answers that were paid are worth keeping whoever asked; nothing else is ours.
                kept = [change for change in changes if change.answer is not None]
            apply(self._db, kept, self._me)
        if not alive:
            raise self._lapsed()
        return refused

    def _over_the_cap(self, changes: Sequence[Change]) -> list[Change]:
        """The intents that do not fit under the cap with what all workers hold and spent."""
        caps = (self._limits.max_cost, self._limits.max_tokens)
        intents = [change for change in changes if change.kind in ("intent", "submitted")]
        if caps == (None, None) or not intents:
            return []
        # One worker at a time looks and takes, or two could take the same rest.
        self._db.execute(select(meta.c.key).with_for_update())
        sums = (amounts(self._db, part) for part in (SPENT, HELD, HANDED_IN))
        taken = [sum(kind) for kind in zip(*sums, strict=True)]
        refused = []
        for change in intents:
            asked = change.values["reserved"], change.values["tokens"]
            if all(_fits(t, a, cap) for t, a, cap in zip(taken, asked, caps, strict=True)):
                taken = [t + a for t, a in zip(taken, asked, strict=True)]
            else:
                refused.append(change)
        return refused

    def workers(self) -> int:
        """How many workers live, this one among them."""
        with self.place.guarded(), self._db.begin():
            living = select(func.count()).where(
                or_(workers.c.id == self._me, workers.c.expires > clock())
            )
            return int(self._db.execute(living).scalar_one())

    def held(self) -> tuple[float, int]:
        """USD and tokens set aside for requests in flight, all workers together."""
        with self.place.guarded(), self._db.begin():
            return amounts(self._db, HELD)

    def open_batch(self, row: BatchRow) -> None:
        """Write a new batch down."""
        with self.place.guarded(), self._db.begin():
            add_batch(self._db, row)

    def set_batch(
        self, tag: str, fate: BatchFate, batch: str | None = None, note: str = ""
    ) -> None:
        """What has become of a batch."""
        with self.place.guarded(), self._db.begin():
            set_batch(self._db, tag, fate, batch, storable(note))

    def batches(self, judge: str, fate: BatchFate | None = None) -> list[BatchRow]:
        """A judge's batches, the oldest first; those of one fate alone, if it is given."""
        with self.place.guarded(), self._db.begin():
            return batch_rows(self._db, judge, fate)

    def in_batch(self, tag: str) -> list[Question]:
        """The questions that wait for a batch, in the plan's order."""
        with self.place.guarded(), self._db.begin():
            return batch_questions(self._db, tag)

    def totals(self, judge: str) -> Totals:
        """Where the judge stands."""
        with self.place.guarded(), self._db.begin():
            return totals(self._db, judge)

    def worst(self, judge: str) -> tuple[int, int]:
        """Tokens of prompt and answer that a request must reserve at least (`raise_worst`)."""
        with self.place.guarded(), self._db.begin():
            return self._worst(judge)

    def raise_worst(self, judge: str, prompt: int, completion: int) -> None:
        """Keep for later runs that a judge's requests take more than they ask for."""
        with self.place.guarded(), self._db.begin():
            known = self._worst(judge)
            value = f"{max(prompt, known[0])} {max(completion, known[1])}"
            self._db.execute(sa.delete(meta).where(meta.c.key == f"worst case of {judge}"))
            self._db.execute(sa.insert(meta).values(key=f"worst case of {judge}", value=value))

    def _worst(self, judge: str) -> tuple[int, int]:
        key = meta.c.key == f"worst case of {judge}"
        value = self._db.execute(select(meta.c.value).where(key)).scalar() or "0 0"
        prompt, completion = map(int, value.split())
        return prompt, completion

    def spent(self) -> tuple[float, int]:
        """USD and tokens so far, with what may have been charged for nothing."""
        with self.place.guarded(), self._db.begin():
            return spent(self._db)

    def close(self) -> None:
        """Let go of what was not sent, and close; what was committed is on the disk already."""
        mine = workers.c.id == self._me
        unsent = (questions.c.worker == self._me) & (questions.c.state == PLANNED)
        # A disk that is full has said so before; then the next run takes these questions back.
        with contextlib.suppress(ElicitError), self.place.guarded(), self._db.begin():
            self._db.execute(update(questions).where(unsent).values(worker=None))
            # Not 0: what is still in flight is for the next worker to take back.
            self._db.execute(update(workers).where(mine, workers.c.expires > 0).values(expires=1))
        self._db.close()

    def _lapsed(self) -> InputError:
        return InputError(
            f"{self.place.name}: this process was not heard of for so long that another took over "
            "its questions; run again to join in"
        )


def _fits(taken: float, asked: float, cap: float | None) -> bool:
    """Whether a cap has room, but for the rounding of sums; what asks for nothing always fits."""
    return cap is None or not asked or taken + asked <= cap * (1.0 + 1e-12)
