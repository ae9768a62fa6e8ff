"""The questions in a journal: write the plan, claim, record answers, and count.

Every transition names the state and the worker that it expects, so that a worker that was
suspended, or whose answer comes after another worker asked again, cannot undo later changes. An
answered question stays done. The plan has a row for each question, and the pairs of each later
round. A journal may be read while a run writes it.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy import BigInteger, bindparam, case, func, insert, literal, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.compiler import SQLCompiler

from llm_elicit.comparisons.table import JudgeSpan, VersionSpan, version_of
from llm_elicit.config.campaign import Limits
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal.connection import JournalLocation, RunLock, check_version
from llm_elicit.orchestrator.journal.schema import (
    DONE,
    IN_FLIGHT,
    PLANNED,
    SUBMITTED,
    Change,
    Kind,
    Totals,
    Unanswered,
    answers,
    clock,
    meta,
    people,
    questions,
    rounds,
    workers,
)
from llm_elicit.planning.pairs import Plan, Query
from llm_elicit.planning.rounds import Pairs

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


def _transition(expected: sa.ColumnElement[bool], **values: Any) -> sa.Update:
    condition = (_columns.id == bindparam("question")) & expected
    return update(questions).where(condition).values(**values)


_TRANSITIONS: dict[Kind, sa.Update] = {
    "intent": _transition(_UNSENT, state=IN_FLIGHT, **_RESERVED_NOW),
    "submitted": _transition(
        _UNSENT, state=SUBMITTED, batch=bindparam("new_batch"), worker=None, **_RESERVED_NOW
    ),
    # Without a condition on the worker: an answer that was paid is always kept.
    "answered": _transition(_UNANSWERED, state=DONE, worker=None, error=None, **_NOTHING),
    "missed": _transition(_SENT, state=PLANNED, **_LOST, **_NOTHING),
    "failed": _transition(
        _UNSENT | _SENT, state="failed", worker=None, error=bindparam("new_error"), **_NOTHING
    ),
    "quarantined": _transition(
        _UNSENT | _SENT, state="quarantined", worker=None, error=bindparam("new_error"), **_NOTHING
    ),
}

_CHARGE = update(questions).where(_columns.id == bindparam("question")).values(**_LOST)
"""Charge a question without changing its state."""

_has_lease = workers.c.expires > 0

RENEW = (
    update(workers)
    .where(workers.c.id == _ME)
    .values(
        expires=case((_has_lease, clock() + bindparam("lease")), else_=0.0),
        written=bindparam("number"),
        spent=workers.c.spent + case((_has_lease, bindparam("new_spent")), else_=bindparam("late")),
        tokens=workers.c.tokens
        + case((_has_lease, bindparam("new_tokens")), else_=bindparam("late_tokens")),
    )
    .returning(workers.c.expires)
)
"""Renew a worker's lease and add what it spent; after its lease, only its late answers count."""

QUESTION_COLUMNS = [
    _columns[name] for name in ("id", "pair", "form", "replicate", "attempts", "judge")
]
"""The columns of a `Question`, in order."""

IN_PLAN = (_columns.pair < bindparam("known")) | _columns.form.not_in(("ab", "ba"))
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
                IN_PLAN,
            )
            .order_by(_columns.id)
            .limit(bindparam("count"))
            .with_for_update(skip_locked=True)
            .cte("unclaimed")
            .select()
        )
    )
    .values(worker=_ME)
    # SQLite 3.40 returns true for IS NOT NULL beside a first column NOT NULL.
    .returning(*QUESTION_COLUMNS, _columns.error)
)

OPEN_AFTER = (
    select(*QUESTION_COLUMNS)
    .where(_columns.judge == bindparam("of_judge"), _columns.state == PLANNED, IN_PLAN)
    .where(_columns.id > bindparam("after"))
    .order_by(_columns.id)
    .limit(256)
)

_RESERVED = select(func.sum(_columns.reserved), func.sum(_columns.reserved_tokens))

IN_FLIGHT_AMOUNTS = _RESERVED.where(_columns.state == IN_FLIGHT)
"""USD and tokens that the requests in flight may take, all workers together."""

BATCH_AMOUNTS = _RESERVED.where(_columns.state == SUBMITTED)
"""USD and tokens that questions in batches may take; an answer may take a day."""

SPENT = select(func.sum(workers.c.spent), func.sum(workers.c.tokens))
"""USD and tokens spent, as the workers counted it: one row per worker."""


def amounts(db: sa.Connection, sums: sa.Select[Any]) -> tuple[float, int]:
    """Return the USD and tokens that a query of sums selects."""
    usd, tokens = db.execute(sums).one()
    return float(usd or 0.0), int(tokens or 0)


def intents_over_caps(db: sa.Connection, intents: Sequence[Change], limits: Limits) -> list[Change]:
    """Return the intents that exceed the caps together with the amounts spent and reserved."""
    caps = (limits.max_cost, limits.max_tokens)
    if caps == (None, None):
        return []
    # One worker at a time, or two could take the same remainder.
    db.execute(select(meta.c.key).with_for_update())
    used: Sequence[float] = spent_or_reserved(db)
    refused = []
    for change in intents:
        needed = change.values["reserved"], change.values["tokens"]
        if all(_fits(t, a, cap) for t, a, cap in zip(used, needed, caps, strict=True)):
            used = [t + a for t, a in zip(used, needed, strict=True)]
        else:
            refused.append(change)
    return refused


def _fits(used: float, needed: float, cap: float | None) -> bool:
    """Return whether a cap has room, up to rounding; a request for nothing always fits."""
    return cap is None or not needed or used + needed <= cap * (1.0 + 1e-12)


def worst_case(db: sa.Connection, judge: str) -> tuple[int, int]:
    """Return the smallest numbers of prompt and answer tokens to reserve for a judge's requests."""
    key = meta.c.key == f"worst case of {judge}"
    value = db.execute(select(meta.c.value).where(key)).scalar() or "0 0"
    prompt, completion = map(int, value.split())
    return prompt, completion


def raise_worst_case(db: sa.Connection, judge: str, prompt: int, completion: int) -> None:
    """Raise the least tokens to reserve for a judge's requests."""
    worst = worst_case(db, judge)
    value = f"{max(prompt, worst[0])} {max(completion, worst[1])}"
    db.execute(sa.delete(meta).where(meta.c.key == f"worst case of {judge}"))
    db.execute(insert(meta).values(key=f"worst case of {judge}", value=value))


def insert_or_ignore(table: sa.Table, dialect: str) -> sa.Insert:
    """Return an insert into a table that leaves existing rows unchanged."""
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
        if _execute(db, _TRANSITIONS[kind], parameters) != len(parameters):
            raise UnexpectedError
    _insert_answers(db, changes)
    return []


def apply_each(db: sa.Connection, changes: Sequence[Change], me: str) -> list[Change]:
    """Write changes one by one, in order.

    Returns:
        The changes that did not apply; only their cost is counted.
    """
    not_applied = []
    for change in changes:
        if db.execute(_TRANSITIONS[change.kind], _parameters(change, me)).rowcount:
            _insert_answers(db, [change])
            continue
        not_applied.append(change)
        if change.spent or change.tokens:
            paid = {"new_lost": change.spent, "new_tokens": change.tokens}
            db.execute(_CHARGE, {"question": change.question, **paid})
    return not_applied


def _parameters(change: Change, me: str) -> dict[str, Any]:
    row = {f"new_{name}": value for name, value in change.values.items()}
    return {**row, "question": change.question, "me": me}


def _insert_answers(db: sa.Connection, changes: Sequence[Change]) -> None:
    """Write the answers of changes."""
    if rows := [change.answer for change in changes if change.answer is not None]:
        _execute(db, _INSERT_ANSWER, rows)


_INSERT_ANSWER = insert(answers)


def _execute(
    db: sa.Connection, statement: sa.Update | sa.Insert, rows: Sequence[dict[str, Any]]
) -> int:
    """Execute a statement for many rows; return how many it changed.

    The rows are passed to the driver directly: SQLAlchemy's own processing of each row would take
    half of a commit's processor time.
    """
    compiled = _compiled(statement, db.dialect, tuple(rows[0]))
    order, constants = compiled.positiontup, compiled.params
    filled = [{**constants, **row} for row in rows]
    parameters: Any = (
        filled if order is None else [tuple(map(r.__getitem__, order)) for r in filled]
    )
    return db.exec_driver_sql(str(compiled), parameters).rowcount


@lru_cache(maxsize=64)
def _compiled(
    statement: sa.Update | sa.Insert, dialect: sa.Dialect, names: tuple[str, ...]
) -> SQLCompiler:
    compiled = statement.compile(dialect=dialect, column_keys=list(names))
    assert isinstance(compiled, SQLCompiler)
    return compiled


_ROWS_PER_INSERT = 5_000
"""Number of rows that are written in one statement."""

WITHDRAWN = "asked no more"
"""The recorded reason of questions that left the plan after they had cost money."""


def write_plan(db: sa.Connection, judge: str, plan: Plan) -> None:
    """Add the judge's questions that are not in the journal yet, in the plan's order."""
    of_pairs = questions.c.form.in_(("ab", "ba"))
    count = select(func.count()).where(questions.c.judge == judge, of_pairs)
    missing = db.execute(count).scalar() != plan.count(judge) - len(plan.direct)
    if missing and plan.presentations is not None:
        add = insert_or_ignore(questions, db.dialect.name)
        queries = iter(plan.by_presentation(judge))
        while part := [_row(judge, query) for query in islice(queries, _ROWS_PER_INSERT)]:
            db.execute(add, part)
    elif missing:
        per_pair, rows = len(plan.orders) * plan.replicates, _rows(plan)
        columns = list(rows.selected_columns.keys())
        add = insert_or_ignore(questions, db.dialect.name).from_select(columns, rows)
        for pairs in plan.spans(judge):
            span = {"first": pairs.start, "rows": len(pairs) * per_pair}
            db.execute(add, {"of_judge": judge, **span})
    # Whatever their number: direct questions of an earlier plan may be there already.
    direct = [_row(judge, query) for query in plan.direct]
    if direct:
        db.execute(insert_or_ignore(questions, db.dialect.name), direct)


def _row(judge: str, query: Query) -> dict[str, object]:
    """Return the row of a question."""
    return {
        "judge": judge, "pair": query.pair, "form": query.order, "replicate": query.replicate
    }  # fmt: skip


def _rows(plan: Plan) -> sa.Select[tuple[object, ...]]:
    """Return a query of the rows of successive pairs, in every order and replicate.

    Its parameters are the judge, the number of the first pair, and the number of rows.
    """
    orders, replicates = len(plan.orders), plan.replicates
    rows = bindparam("rows", type_=BigInteger)
    numbers = select(literal(0, BigInteger).label("row")).cte("numbers", recursive=True)
    numbers = numbers.union_all(select(numbers.c.row + 1).where(numbers.c.row + 1 < rows))
    row = numbers.c.row
    return select(
        bindparam("of_judge", type_=sa.Text).label("judge"),
        (bindparam("first", type_=BigInteger) + row // (orders * replicates)).label("pair"),
        case(dict(enumerate(plan.orders)), value=row % orders).label("form"),
        (row // orders % replicates).label("replicate"),
        # With a condition: SQLite would take the insert's ON CONFLICT for that of a join.
    ).where(row < rows)


def withdraw(db: sa.Connection, judge: str, plan: Plan) -> None:
    """Delete direct questions that are no longer in the plan; set aside those that cost money."""
    c = questions.c
    idle = c.state.in_(("planned", "failed")) & c.worker.is_(None)
    direct = select(c.id, c.lost, c.lost_tokens, c.pair, c.form, c.replicate).where(
        c.judge == judge, c.form.not_in(("ab", "ba")), idle
    )
    planned = {(q.pair, q.order, q.replicate) for q in plan.direct}
    withdrawn = [row for row in db.execute(direct).all() if tuple(row[3:]) not in planned]
    by_id = c.id == bindparam("withdrawn")
    aside = update(questions).where(by_id).values(state="quarantined", error=WITHDRAWN)
    for paid, step in ((False, sa.delete(questions).where(by_id)), (True, aside)):
        rows = [
            {"withdrawn": row.id} for row in withdrawn if bool(row.lost or row.lost_tokens) == paid
        ]
        if rows:
            db.execute(step, rows)


def planned_rounds(location: JournalLocation) -> dict[tuple[str, int], Pairs]:
    """Return the rounds planned so far, by judge and number.

    Raises:
        InputError: the journal cannot be read, or a round was changed by hand.
    """
    with location.reading() as db:
        rows = [] if db is None else db.execute(sa.select(rounds)).all()
    for row in rows:
        if row.digest != _digest(row.judge, row.number, row.pairs):
            raise InputError(
                f"{location.name}: the pairs of round {row.number} have changed since they were "
                "planned; restore a copy of the journal, or move the run folder away and run "
                "again"
            )
    # JSON keeps floats exactly.
    return {(row.judge, row.number): Pairs(*map(np.array, json.loads(row.pairs))) for row in rows}


def record_rounds(location: JournalLocation, planned: Mapping[tuple[str, int], Pairs]) -> None:
    """Record rounds, except those that another worker recorded first.

    Raises:
        InputError: the journal cannot be written, or another process works on the run.
    """
    rows = [
        {"judge": judge, "number": number, "pairs": pairs, "digest": _digest(judge, number, pairs)}
        for (judge, number), points in planned.items()
        for pairs in (json.dumps([points.a.tolist(), points.b.tolist()]),)
    ]
    with (
        RunLock(location.folder, shared=location.shared),
        location.guarded(),
        location.writable().connect() as db,
        db.begin(),
    ):
        db.execute(insert_or_ignore(rounds, db.dialect.name), rows)


def _digest(judge: str, number: int, pairs: str) -> str:
    """Return SHA-256 over a round."""
    return hashlib.sha256(f"{judge} {number} {pairs}".encode()).hexdigest()


@contextmanager
def reading(location: JournalLocation) -> Iterator[sa.Connection]:
    """Open a connection to a run's journal, with a consistent view of it.

    Raises:
        InputError: there is no journal, or it cannot be read.
    """
    with location.reading() as db:
        if db is None:
            name = location.name if location.shared else location.folder
            raise InputError(f"{name}: no journal here; run the campaign first")
        check_version(db, location)
        yield db


def totals(db: sa.Connection, judge: str) -> Totals:
    """Return a judge's questions by state, and what they cost."""
    row = db.execute(TOTALS.where(questions.c.judge == judge)).one_or_none()
    return Totals() if row is None else totals_of(row._asdict())


def totals_of(row: Mapping[str, Any]) -> Totals:
    """Return the counts of a row of `TOTALS`."""
    counts: dict[str, int] = {name: int(row[name] or 0) for name in ("total", *_SUMS)}
    amounts: dict[str, Any] = {name: float(row[name] or 0.0) for name in _AMOUNTS}
    return Totals(**counts, **amounts, last=row["last"] or "")


_SUMS: dict[str, sa.ColumnElement[Any]] = {
    **{
        state.replace(" ", "_"): case((questions.c.state == state, 1), else_=0)
        for state in ("done", "failed", "quarantined", "submitted", "in flight")
    },
    "cached": answers.c.cached,
    "requests": questions.c.attempts,
    "prompt_tokens": answers.c.prompt_tokens,
    "completion_tokens": answers.c.completion_tokens,
}
_AMOUNTS: dict[str, sa.ColumnElement[Any]] = {"cost": answers.c.cost, "lost": questions.c.lost}

TOTALS = (
    select(
        questions.c.judge,
        func.count().label("total"),
        func.max(answers.c.asked_at).label("last"),
        *(func.sum(column).label(name) for name, column in (_SUMS | _AMOUNTS).items()),
    )
    .select_from(questions.outerjoin(answers, answers.c.question == questions.c.id))
    .group_by(questions.c.judge)
)
"""The query of every judge's questions by state, and of what they cost."""


CHOICES = (
    select(
        questions.c.judge,
        answers.c.unscored,
        func.count().label("number"),
        func.max(answers.c.settings).label("settings"),
    )
    .join_from(questions, answers, answers.c.question == questions.c.id)
    .where(answers.c.format == "letter", answers.c.verdict.in_(("A", "B")))
    .group_by(questions.c.judge, answers.c.unscored)
)
"""The query of every judge's choices, by why they have no log-odds."""


def choices_of(db: sa.Connection, judge: str) -> list[dict[str, Any]]:
    """Return the rows of `CHOICES` of a judge."""
    return [row._asdict() for row in db.execute(CHOICES.where(questions.c.judge == judge))]


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


_VERSION = (questions.c.judge, answers.c.model_answered, answers.c.fingerprint)

VERSIONS = (
    select(*_VERSION, func.count().label("answers"))
    .add_columns(func.min(answers.c.asked_at).label("first"))
    .add_columns(func.max(answers.c.asked_at).label("last"))
    .select_from(questions.join(answers, answers.c.question == questions.c.id))
    .group_by(*_VERSION)
)
"""The query of the versions that answered each judge's questions."""


def version_span(row: Mapping[str, Any]) -> JudgeSpan:
    """Return a row of `VERSIONS`."""
    version = version_of(row["model_answered"], row["fingerprint"])
    return row["judge"], VersionSpan(version, row["answers"], row["first"], row["last"])


def versions_answered(db: sa.Connection) -> list[JudgeSpan]:
    """Return the versions of models that have answered, by judge."""
    return [version_span(row._asdict()) for row in db.execute(VERSIONS)]


def spent(db: sa.Connection) -> tuple[float, int]:
    """Return the USD and tokens spent, with what failed requests may have cost."""
    return amounts(db, SPENT)


def spent_or_reserved(db: sa.Connection) -> tuple[float, int]:
    """Return the USD and tokens spent or reserved, for requests in flight and in batches."""
    parts = (amounts(db, part) for part in (SPENT, IN_FLIGHT_AMOUNTS, BATCH_AMOUNTS))
    usd, tokens = zip(*parts, strict=True)
    return sum(usd), sum(tokens)


def spent_in(location: JournalLocation) -> tuple[float, int]:
    """Return the USD and the tokens that a run spent or reserved; 0 without a journal."""
    if not is_begun(location):
        return 0.0, 0
    with reading(location) as db:
        return spent_or_reserved(db)


def is_open(judge: str | sa.BindParameter[str]) -> sa.ColumnElement[bool]:
    """Return the condition of a judge's questions about pairs that wait for an answer."""
    c = questions.c
    settled = c.state.in_(("done", "quarantined"))
    return (c.judge == judge) & ~settled & c.form.in_(("ab", "ba"))


def open_questions(db: sa.Connection, judge: str, *conditions: sa.ColumnElement[bool]) -> int:
    """Return how many questions of a judge about pairs are neither done nor set aside."""
    return int(db.execute(select(func.count()).where(is_open(judge), *conditions)).scalar_one())


def answered_by_kind(db: sa.Connection, judge: str) -> dict[str, int]:
    """Return how many questions of a judge are answered, by form."""
    c = questions.c
    done = select(c.form, func.count()).where(c.judge == judge, c.state == "done")
    return {row[0]: int(row[1]) for row in db.execute(done.group_by(c.form))}


def settled(location: JournalLocation, judge: str) -> bool:
    """Return whether every planned question of a judge is answered or set aside."""
    with reading(location) as db:
        return open_questions(db, judge) == 0


def is_begun(location: JournalLocation) -> bool:
    """Return whether there is a journal that holds questions."""
    with location.reading() as db:
        return db is not None and db.execute(select(questions.c.id).limit(1)).first() is not None


def stored_identity(location: JournalLocation) -> dict[str, str]:
    """Return the identity with which the run was started."""
    with reading(location) as db:
        return {row.key: row.value for row in db.execute(select(meta.c.key, meta.c.value))}


def stored_answers(location: JournalLocation) -> int:
    """Return the number of answers in the journal, of all judges; 0 without a journal.

    People's answers to repeats and attention questions are included, and an answer that a person
    has undone counts twice, so that every change raises the number.
    """
    done = select(func.count()).where(questions.c.state == "done")
    of_people = select(
        func.count().filter(people.c.state == "answered", people.c.kind != "question"),
        func.count().filter(people.c.state == "undone"),
    )
    with location.reading() as db:
        if db is None:
            return 0
        additional, undone = db.execute(of_people).one()
        return int(db.execute(done).scalar_one()) + int(additional) + 2 * int(undone)
