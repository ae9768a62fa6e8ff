"""Read a journal, possibly while a run writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import case, func, select

from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal.changes import Totals, Unanswered
from llm_elicit.orchestrator.journal.interface import FILE, JournalLocation
from llm_elicit.orchestrator.journal.plan import WITHDRAWN
from llm_elicit.orchestrator.journal.schema import answers, check_version, meta, people, questions
from llm_elicit.orchestrator.journal.statements import HANDED_IN, HELD, amounts


@contextmanager
def reading(location: JournalLocation) -> Iterator[sa.Connection]:
    """Open a connection to a run's journal, with a consistent view of it.

    Raises:
        InputError: there is no journal, or it cannot be read.
    """
    engine = location.readable()
    with location.guarded(), engine.connect() as db, db.begin():
        if location.shared and not sa.inspect(db).has_table("questions"):
            raise InputError(f"{location.name}: no journal here; run the campaign first")
        check_version(db, location)
        yield db


def totals(db: sa.Connection, judge: str) -> Totals:
    """Return a judge's questions by state, and what they cost."""
    row = db.execute(TOTALS.where(questions.c.judge == judge)).one_or_none()
    return Totals() if row is None else totals_of(row._asdict())


def totals_of(row: Mapping[str, Any]) -> Totals:
    """Return the counts of a row of `TOTALS`."""
    counts: dict[str, int] = {name: int(row[name] or 0) for name in ("total", *_SUMS)}
    amounts: dict[str, Any] = {name: float(row[name] or 0.0) for name in _MONEY}
    return Totals(**counts, **amounts, last=row["last"] or "")


def _count(state: str) -> sa.ColumnElement[int]:
    """Return an expression that is 1 for questions in a state, else 0."""
    return case((questions.c.state == state, 1), else_=0)


_SUMS: dict[str, sa.ColumnElement[Any]] = {
    "done": _count("done"),
    "failed": _count("failed"),
    "quarantined": _count("quarantined"),
    "submitted": _count("submitted"),
    "in_flight": _count("in flight"),
    "cached": answers.c.cached,
    "requests": questions.c.attempts,
    "prompt_tokens": answers.c.prompt_tokens,
    "completion_tokens": answers.c.completion_tokens,
}
_MONEY: dict[str, sa.ColumnElement[Any]] = {"cost": answers.c.cost, "lost": questions.c.lost}

TOTALS = (
    select(
        questions.c.judge,
        func.count().label("total"),
        func.max(answers.c.asked_at).label("last"),
        *(func.sum(column).label(name) for name, column in (_SUMS | _MONEY).items()),
    )
    .select_from(questions.outerjoin(answers, answers.c.question == questions.c.id))
    .group_by(questions.c.judge)
)
"""The query of every judge's questions by state, and of what they cost."""


def unanswered(db: sa.Connection, judge: str) -> list[Unanswered]:
    """Return the questions of a judge that were given up or set aside, the commonest reason first.

    Questions that are no longer in the plan are left out.
    """
    c, number = questions.c, func.count().label("number")
    query = (
        select(c.state, func.coalesce(c.error, "").label("reason"), number)
        .where(c.judge == judge, c.state.in_(("failed", "quarantined")))
        .where(c.error.is_distinct_from(WITHDRAWN))
        .group_by(c.state, c.error)
        .order_by(number.desc(), c.error)
    )
    return [Unanswered(row.state, row.reason, row.number) for row in db.execute(query)]


def models_answered(db: sa.Connection, judge: str) -> list[str]:
    """Return the models that have answered a judge's questions."""
    of_judge = questions.join(answers, answers.c.question == questions.c.id)
    query = select(answers.c.model_answered).select_from(of_judge)
    return list(db.execute(query.where(questions.c.judge == judge).distinct()).scalars())


def spent(db: sa.Connection) -> tuple[float, int]:
    """Return the USD and tokens spent, with what failed requests may have cost."""
    used = answers.c.prompt_tokens + answers.c.completion_tokens
    fresh = case((answers.c.cached == 0, used), else_=0)
    paid = db.execute(select(func.sum(answers.c.cost), func.sum(fresh))).one()
    lost = db.execute(select(func.sum(questions.c.lost), func.sum(questions.c.lost_tokens))).one()
    return float(paid[0] or 0.0) + float(lost[0] or 0.0), int(paid[1] or 0) + int(lost[1] or 0)


def committed(db: sa.Connection) -> tuple[float, int]:
    """Return the USD and tokens spent or reserved, for requests in flight and in batches."""
    parts = (spent(db), amounts(db, HELD), amounts(db, HANDED_IN))
    return sum(usd for usd, _ in parts), sum(tokens for _, tokens in parts)


def spent_in(location: JournalLocation) -> float:
    """Return the USD that a run spent or reserved; 0 without a journal."""
    if not is_begun(location):
        return 0.0
    with reading(location) as db:
        return committed(db)[0]


def open_questions(db: sa.Connection, judge: str) -> int:
    """Return how many of a judge's pairs are neither done nor set aside."""
    c = questions.c
    waiting = select(func.count()).where(
        c.judge == judge,
        c.state.not_in(("done", "quarantined")),
        c.presentation.in_(("ab", "ba")),
    )
    return int(db.execute(waiting).scalar_one())


def answered_by_kind(db: sa.Connection, judge: str) -> dict[str, int]:
    """Return how many questions of a judge are answered, by presentation."""
    c = questions.c
    done = select(c.presentation, func.count()).where(c.judge == judge, c.state == "done")
    return {row[0]: int(row[1]) for row in db.execute(done.group_by(c.presentation))}


def settled(location: JournalLocation, judge: str) -> bool:
    """Return whether every planned question of a judge is answered or set aside."""
    with reading(location) as db:
        return open_questions(db, judge) == 0


def is_begun(location: JournalLocation) -> bool:
    """Return whether there is a journal that holds questions."""
    if not location.shared and not (location.folder / FILE).is_file():
        return False
    with location.guarded(), location.readable().connect() as db, db.begin():
        known = sa.inspect(db).has_table("questions")
        return known and db.execute(select(questions.c.id).limit(1)).first() is not None


def kept_identity(location: JournalLocation) -> dict[str, str]:
    """Return the identity with which the run was started."""
    with reading(location) as db:
        return {row.key: row.value for row in db.execute(select(meta.c.key, meta.c.value))}


def kept_answers(location: JournalLocation) -> int:
    """Return the number of answers in the journal, of all judges; 0 without a journal.

    People's answers to repeats and attention questions are included, and an answer that a person
    has undone counts twice, so that every change raises the number.
    """
    if not location.shared and not (location.folder / FILE).is_file():
        return 0
    done = select(func.count()).where(questions.c.state == "done")
    of_people = select(
        func.count().filter(people.c.state == "answered", people.c.kind != "question"),
        func.count().filter(people.c.state == "undone"),
    )
    with location.guarded(), location.readable().connect() as db, db.begin():
        tables = sa.inspect(db)
        if not tables.has_table("questions"):
            return 0
        additional, undone = db.execute(of_people).one()
        return int(db.execute(done).scalar_one()) + int(additional) + 2 * int(undone)
