"""Batches in the journal: the tag, provider id and state of each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

import sqlalchemy as sa
from sqlalchemy import insert, select, update

from llm_elicit.orchestrator.journal.changes import Question
from llm_elicit.orchestrator.journal.schema import batches, questions

BatchFate = Literal["intended", "submitted", "collected", "refused", "released"]


@dataclass(frozen=True)
class BatchRow:
    """One batch.

    Attributes:
        tag: its tag, with which its requests' custom ids begin.
        judge: the judge's name.
        batch: the provider's id; None until known.
        fate: `intended` until the batch is known to have arrived, then `submitted`, then
            `collected`; `refused` by the provider; `released` if it never arrived.
        made: seconds since 1970 when it was intended.
        note: a remark, such as the provider's error.
    """

    tag: str
    judge: str
    batch: str | None
    fate: BatchFate
    made: float
    note: str = ""


def add_batch(db: sa.Connection, row: BatchRow) -> None:
    """Insert a new batch."""
    db.execute(insert(batches).values(**asdict(row)))


def set_batch(db: sa.Connection, tag: str, fate: BatchFate, batch: str | None, note: str) -> None:
    """Update the state of a batch; a known provider id is kept."""
    values = {"fate": fate, "note": note, **({"batch": batch} if batch else {})}
    db.execute(update(batches).where(batches.c.tag == tag).values(**values))


def batch_rows(db: sa.Connection, judge: str, fate: BatchFate | None = None) -> list[BatchRow]:
    """Return a judge's batches, oldest first, optionally only those of one state."""
    found = select(batches).where(batches.c.judge == judge).order_by(batches.c.made, batches.c.tag)
    if fate is not None:
        found = found.where(batches.c.fate == fate)
    return [BatchRow(**row._mapping) for row in db.execute(found)]


def batch_questions(db: sa.Connection, tag: str) -> list[Question]:
    """Return the questions that wait for a batch, in the plan's order."""
    c = questions.c
    waiting = (
        select(c.id, c.pair, c.presentation, c.replicate, c.attempts, c.judge)
        .where(c.batch == tag, c.state == "submitted")
        .order_by(c.id)
    )
    return [Question(*row) for row in db.execute(waiting)]
