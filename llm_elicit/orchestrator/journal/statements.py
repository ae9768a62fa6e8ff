"""The SQL statements of the journal's state transitions, each for many rows at once.

Every transition names the state and the worker that it expects, so that a worker that was
suspended, or whose answer comes after another worker asked again, cannot undo later changes. An
answered question stays done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import bindparam, case, func, insert, select, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.compiler import SQLCompiler

from llm_elicit._util.packages import LazyModule
from llm_elicit.config.campaign import Limits
from llm_elicit.orchestrator.journal.changes import Change, Kind
from llm_elicit.orchestrator.journal.schema import (
    DONE,
    IN_FLIGHT,
    PLANNED,
    SUBMITTED,
    answers,
    clock,
    meta,
    questions,
    workers,
)

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql
else:
    postgresql = LazyModule("sqlalchemy.dialects.postgresql")  # not needed with SQLite

_ME: sa.BindParameter[str] = bindparam("me")
_columns = questions.c


_MINE = _columns.worker == _ME
_UNSENT = (_columns.state == PLANNED) & _MINE
_SENT = ((_columns.state == IN_FLIGHT) & _MINE) | (_columns.state == SUBMITTED)
_UNANSWERED = _columns.state != DONE

_NOTHING = {"reserved": 0.0, "reserved_tokens": 0}
_LOST = {
    "lost": _columns.lost + bindparam("new_lost"),
    "lost_tokens": _columns.lost_tokens + bindparam("new_tokens"),
}
_RESERVED_NOW = {
    "attempts": _columns.attempts + 1,
    "reserved": bindparam("new_reserved"),
    "reserved_tokens": bindparam("new_tokens"),
    "error": None,
}


def _to(expected: sa.ColumnElement[bool], **values: Any) -> sa.Update:
    which = (_columns.id == bindparam("question")) & expected
    return update(questions).where(which).values(**values)


_STEPS: dict[Kind, sa.Update] = {
    "intent": _to(_UNSENT, state=IN_FLIGHT, **_RESERVED_NOW),
    "submitted": _to(
        _UNSENT, state=SUBMITTED, batch=bindparam("new_batch"), worker=None, **_RESERVED_NOW
    ),
    # Without a condition on the worker: an answer that was paid is always kept.
    "answered": _to(_UNANSWERED, state=DONE, worker=None, error=None, **_NOTHING),
    "missed": _to(_SENT, state=PLANNED, **_LOST, **_NOTHING),
    "failed": _to(
        _UNSENT | _SENT, state="failed", worker=None, error=bindparam("new_error"), **_NOTHING
    ),
    "quarantined": _to(
        _UNSENT | _SENT, state="quarantined", worker=None, error=bindparam("new_error"), **_NOTHING
    ),
}

_CHARGE = update(questions).where(_columns.id == bindparam("question")).values(**_LOST)
"""Charge a question without changing its state."""

_lives = workers.c.expires > 0

RENEW = (
    update(workers)
    .where(workers.c.id == _ME)
    .values(
        expires=case((_lives, clock() + bindparam("lease")), else_=0.0),
        written=bindparam("number"),
        spent=workers.c.spent + case((_lives, bindparam("new_spent")), else_=bindparam("late")),
        tokens=workers.c.tokens
        + case((_lives, bindparam("new_tokens")), else_=bindparam("late_tokens")),
    )
    .returning(workers.c.expires)
)
"""Renew a worker's lease and add what it spent; after its lease, only its late answers count."""

REGISTER = insert(workers).values(
    id=_ME,
    name=bindparam("new_name"),
    began=bindparam("new_began"),
    expires=clock() + bindparam("lease"),
    spent=0.0,
    tokens=0,
    written=0,
)

KNOWN = (_columns.pair < bindparam("known")) | _columns.presentation.not_in(("ab", "ba"))
"""Whether a question belongs to the worker's plan; pairs of later rounds have higher numbers."""

CLAIM = (
    update(questions)
    .where(
        _columns.id.in_(
            select(_columns.id)
            .where(
                _columns.judge == bindparam("of_judge"),
                _columns.state == PLANNED,
                _columns.worker.is_(None),
                KNOWN,
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
        _columns.error,  # SQLite 3.40 returns true for IS NOT NULL beside a first column NOT NULL
    )
)

_RESERVED = select(func.sum(_columns.reserved), func.sum(_columns.reserved_tokens))

HELD = _RESERVED.where(_columns.state == IN_FLIGHT)
"""USD and tokens that the requests in flight may take, all workers together."""

HANDED_IN = _RESERVED.where(_columns.state == SUBMITTED)
"""The same of the questions in batches, which may take a day to be answered."""

SPENT = select(func.sum(workers.c.spent), func.sum(workers.c.tokens))
"""USD and tokens spent, as the workers counted it: one row per worker."""


def amounts(db: sa.Connection, sums: sa.Select[Any]) -> tuple[float, int]:
    """Return USD and tokens by one of the sums."""
    usd, tokens = db.execute(sums).one()
    return float(usd or 0.0), int(tokens or 0)


def over_the_caps(db: sa.Connection, intents: Sequence[Change], limits: Limits) -> list[Change]:
    """Return the intents for which the caps leave no room beside what is spent and reserved."""
    caps = (limits.max_cost, limits.max_tokens)
    if caps == (None, None):
        return []
    # One worker at a time, or two could take the same remainder.
    db.execute(select(meta.c.key).with_for_update())
    sums = (amounts(db, part) for part in (SPENT, HELD, HANDED_IN))
    taken = [sum(kind) for kind in zip(*sums, strict=True)]
    refused = []
    for change in intents:
        asked = change.values["reserved"], change.values["tokens"]
        if all(_fits(t, a, cap) for t, a, cap in zip(taken, asked, caps, strict=True)):
            taken = [t + a for t, a in zip(taken, asked, strict=True)]
        else:
            refused.append(change)
    return refused


def _fits(taken: float, asked: float, cap: float | None) -> bool:
    """Return whether a cap has room, up to rounding; a request for nothing always fits."""
    return cap is None or not asked or taken + asked <= cap * (1.0 + 1e-12)


def worst_case(db: sa.Connection, judge: str) -> tuple[int, int]:
    """Return the least tokens of prompt and answer to reserve for a judge's requests."""
    key = meta.c.key == f"worst case of {judge}"
    value = db.execute(select(meta.c.value).where(key)).scalar() or "0 0"
    prompt, completion = map(int, value.split())
    return prompt, completion


def raise_worst_case(db: sa.Connection, judge: str, prompt: int, completion: int) -> None:
    """Raise the least tokens to reserve for a judge's requests."""
    known = worst_case(db, judge)
    value = f"{max(prompt, known[0])} {max(completion, known[1])}"
    db.execute(sa.delete(meta).where(meta.c.key == f"worst case of {judge}"))
    db.execute(insert(meta).values(key=f"worst case of {judge}", value=value))


def ignoring(table: sa.Table, dialect: str) -> sa.Insert:
    """Return an insert that leaves existing rows unchanged."""
    if dialect == "sqlite":
        return sqlite.insert(table).on_conflict_do_nothing()
    return postgresql.insert(table).on_conflict_do_nothing()


class UnexpectedError(Exception):
    """A question does not have the state or the worker that a change expects."""


def apply(db: sa.Connection, changes: Sequence[Change], me: str) -> list[Change]:
    """Write changes of different questions, one statement for each kind.

    Returns:
        An empty list: all changes applied.

    Raises:
        UnexpectedError: a change does not apply; the caller must roll back.
    """
    rows: dict[Kind, list[dict[str, Any]]] = defaultdict(list)
    for change in changes:
        rows[change.kind].append(_parameters(change, me))
    for kind, parameters in rows.items():
        if _execute(db, _STEPS[kind], parameters) != len(parameters):
            raise UnexpectedError
    _keep(db, changes)
    return []


def apply_each(db: sa.Connection, changes: Sequence[Change], me: str) -> list[Change]:
    """Write changes one by one, in order.

    Returns:
        The changes that did not apply; only their cost is counted.
    """
    others = []
    for change in changes:
        if db.execute(_STEPS[change.kind], _parameters(change, me)).rowcount:
            _keep(db, [change])
            continue
        others.append(change)
        if change.spent or change.tokens:
            paid = {"new_lost": change.spent, "new_tokens": change.tokens}
            db.execute(_CHARGE, {"question": change.question, **paid})
    return others


def _parameters(change: Change, me: str) -> dict[str, Any]:
    row = {f"new_{name}": value for name, value in change.values.items()}
    return {**row, "question": change.question, "me": me}


def _keep(db: sa.Connection, changes: Sequence[Change]) -> None:
    """Write the answers of changes."""
    rows = [change.answer for change in changes if change.answer is not None]
    if rows:
        _execute(db, _KEEP, rows)


_KEEP = insert(answers)


def _execute(
    db: sa.Connection, statement: sa.Update | sa.Insert, rows: Sequence[dict[str, Any]]
) -> int:
    """Execute a statement for many rows; return how many it changed.

    The rows are passed to the driver directly: SQLAlchemy's own processing of each row would take
    half of a commit's processor time.
    """
    compiled = _compiled(statement, db.dialect, tuple(rows[0]))
    order, constants = compiled.positiontup, compiled.params
    named = [{**constants, **row} for row in rows]
    parameters: Any = named if order is None else [tuple(map(r.__getitem__, order)) for r in named]
    return db.exec_driver_sql(str(compiled), parameters).rowcount


@lru_cache(maxsize=64)
def _compiled(
    statement: sa.Update | sa.Insert, dialect: sa.Dialect, names: tuple[str, ...]
) -> SQLCompiler:
    compiled = statement.compile(dialect=dialect, column_keys=list(names))
    assert isinstance(compiled, SQLCompiler)
    return compiled
