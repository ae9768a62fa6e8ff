"""The statements by which the journal changes, each for many rows at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from llm_elicit.orchestrator.journal.changes import Change, Kind
from llm_elicit.orchestrator.journal.schema import (
    IN_FLIGHT,
    PLANNED,
    SUBMITTED,
    answers,
    clock,
    questions,
    workers,
)

_ME: sa.BindParameter[str] = bindparam("me")
_columns = questions.c


def _to(**values: Any) -> sa.Update:
    return update(questions).where(_columns.id == bindparam("question")).values(**values)


_NOTHING = {"reserved": 0.0, "reserved_tokens": 0}

_STEPS: dict[Kind, sa.Update] = {
    "intent": _to(
        state=IN_FLIGHT,
        attempts=_columns.attempts + 1,
        reserved=bindparam("new_reserved"),
        reserved_tokens=bindparam("new_tokens"),
        error=None,
        worker=_ME,
    ),
    "submitted": _to(
        state="submitted",
        attempts=_columns.attempts + 1,
        reserved=bindparam("new_reserved"),
        reserved_tokens=bindparam("new_tokens"),
        batch=bindparam("new_batch"),
        error=None,
        worker=None,
    ),
    "answered": _to(state="done", worker=None, **_NOTHING),
    "missed": _to(
        state=PLANNED,
        lost=_columns.lost + bindparam("new_lost"),
        lost_tokens=_columns.lost_tokens + bindparam("new_tokens"),
        **_NOTHING,
    ),
    "failed": _to(state="failed", worker=None, error=bindparam("new_error"), **_NOTHING),
    "quarantined": _to(state="quarantined", worker=None, error=bindparam("new_error"), **_NOTHING),
}

RENEW = (
    update(workers)
    .where(workers.c.id == _ME, workers.c.expires > 0)
    .values(
        expires=clock() + bindparam("lease"),
        spent=workers.c.spent + bindparam("new_spent"),
        tokens=workers.c.tokens + bindparam("new_tokens"),
    )
)

REGISTER = insert(workers).values(
    id=_ME,
    name=bindparam("new_name"),
    began=bindparam("new_began"),
    expires=clock() + bindparam("lease"),
    spent=0.0,
    tokens=0,
)

CLAIM = (
    update(questions)
    .where(
        _columns.id.in_(
            select(_columns.id)
            .where(
                _columns.judge == bindparam("of_judge"),
                _columns.state == PLANNED,
                _columns.worker.is_(None),
            )
            .order_by(_columns.id)
            .limit(bindparam("count"))
            .with_for_update(skip_locked=True)
            .cte("unclaimed")
            .select()
        )
    )
    .values(worker=_ME)
    .returning(
        _columns.id,
        _columns.pair,
        _columns.presentation,
        _columns.replicate,
        _columns.attempts,
        _columns.judge,
    )
)

_RESERVED = select(func.sum(_columns.reserved), func.sum(_columns.reserved_tokens))

HELD = _RESERVED.where(_columns.state == IN_FLIGHT)
"""USD and tokens that the requests in flight may take, all workers together."""

HANDED_IN = _RESERVED.where(_columns.state == SUBMITTED)
"""The same of the questions in batches, which may take a day to be answered."""

SPENT = select(func.sum(workers.c.spent), func.sum(workers.c.tokens))
"""USD and tokens spent, as the workers counted it: a row a worker, however many questions."""


def amounts(db: sa.Connection, sums: sa.Select[Any]) -> tuple[float, int]:
    """USD and tokens by one of the sums."""
    usd, tokens = db.execute(sums).one()
    return float(usd or 0.0), int(tokens or 0)


def ignoring(table: sa.Table, dialect: str) -> sa.Insert:
    """An insert that leaves rows as they are which are there already."""
    if dialect == "sqlite":
        return sqlite.insert(table).on_conflict_do_nothing()
    return postgresql.insert(table).on_conflict_do_nothing()


def apply(db: sa.Connection, changes: Sequence[Change], me: str) -> None:
    """Write changes of different questions; a kind's rows go as one statement."""
    rows: dict[Kind, list[dict[str, Any]]] = defaultdict(list)
    replies: list[dict[str, Any]] = []
    for change in changes:
        row = {f"new_{name}": value for name, value in change.values.items()}
        row["question"] = change.question
        if change.kind == "intent":
            row["me"] = me
        rows[change.kind].append(row)
        if change.answer is not None:
            replies.append(change.answer)
    if replies:
        db.execute(ignoring(answers, db.dialect.name), replies)
    for kind, parameters in rows.items():
        db.execute(_STEPS[kind], parameters)
