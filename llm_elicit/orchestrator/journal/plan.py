"""The plan in the journal: a row for each question, and the pairs of each later round."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import numpy as np
import sqlalchemy as sa
from sqlalchemy import BigInteger, bindparam, case, func, literal, select, update

from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal.interface import FILE, JournalLocation, RunLock
from llm_elicit.orchestrator.journal.schema import questions, rounds
from llm_elicit.orchestrator.journal.statements import ignoring
from llm_elicit.planning.pairs import Plan
from llm_elicit.planning.rounds import Pairs

WITHDRAWN = "asked no more"
"""Why a question that is no longer in the plan is set aside."""


def write_plan(db: sa.Connection, judge: str, plan: Plan) -> None:
    """Add the judge's questions that are not in the journal yet, in the plan's order."""
    of_pairs = questions.c.presentation.in_(("ab", "ba"))
    known = select(func.count()).where(questions.c.judge == judge, of_pairs)
    if db.execute(known).scalar() != plan.count(judge) - len(plan.direct):
        _add_pairs(db, judge, plan)
    # Always: as many others, which are no longer asked, may be there already.
    direct = [
        {"judge": judge, "pair": q.pair, "presentation": q.order, "replicate": q.replicate}
        for q in plan.direct
    ]
    if direct:
        db.execute(ignoring(questions, db.dialect.name), direct)


def _add_pairs(db: sa.Connection, judge: str, plan: Plan) -> None:
    each = len(plan.orders) * plan.replicates
    rows = _rows(plan)
    add = ignoring(questions, db.dialect.name).from_select(list(rows.selected_columns.keys()), rows)
    for pairs in plan.spans(judge):
        db.execute(add, {"of_judge": judge, "first": pairs.start, "rows": len(pairs) * each})


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
        case(dict(enumerate(plan.orders)), value=row % orders).label("presentation"),
        (row // orders % replicates).label("replicate"),
        # With a condition: SQLite would take the insert's ON CONFLICT for that of a join.
    ).where(row < rows)


def withdraw(db: sa.Connection, judge: str, plan: Plan) -> None:
    """Delete direct questions that are no longer in the plan; set aside those that cost money."""
    c = questions.c
    idle = c.state.in_(("planned", "failed")) & c.worker.is_(None)
    direct = select(c.id, c.lost, c.lost_tokens, c.pair, c.presentation, c.replicate).where(
        c.judge == judge, c.presentation.not_in(("ab", "ba")), idle
    )
    asked = {(q.pair, q.order, q.replicate) for q in plan.direct}
    gone = [row for row in db.execute(direct).all() if tuple(row[3:]) not in asked]
    mine = c.id == bindparam("gone")
    aside = update(questions).where(mine).values(state="quarantined", error=WITHDRAWN)
    for paid, step in ((False, sa.delete(questions).where(mine)), (True, aside)):
        rows = [{"gone": row.id} for row in gone if bool(row.lost or row.lost_tokens) == paid]
        if rows:
            db.execute(step, rows)


def planned_rounds(location: JournalLocation) -> dict[tuple[str, int], Pairs]:
    """Return the rounds planned so far, by judge and number.

    Raises:
        InputError: the journal cannot be read, or a round was changed by hand.
    """
    if not location.shared and not (location.folder / FILE).is_file():
        return {}
    engine = location.readable()
    with location.guarded(), engine.connect() as db, db.begin():
        if not sa.inspect(db).has_table("rounds"):
            return {}
        rows = db.execute(sa.select(rounds)).all()
    for row in rows:
        if row.digest != _digest(row.judge, row.number, row.pairs):
            raise InputError(
                f"{location.name}: the pairs of round {row.number} are not as they were planned; "
                "put a copy of the journal back, or move the run's folder away and run again"
            )
    return {(row.judge, row.number): _pairs(row.pairs) for row in rows}


def record_rounds(location: JournalLocation, planned: Mapping[tuple[str, int], Pairs]) -> None:
    """Record rounds; those that another worker recorded first are kept.

    Raises:
        InputError: the journal cannot be written, or another process works on the run.
    """
    rows = [
        {"judge": judge, "number": number, "pairs": pairs, "digest": _digest(judge, number, pairs)}
        for (judge, number), some in planned.items()
        for pairs in (json.dumps([some.a.tolist(), some.b.tolist()]),)
    ]
    with (
        RunLock(location.folder, shared=location.shared),
        location.guarded(),
        location.writable().connect() as db,
        db.begin(),
    ):
        db.execute(ignoring(rounds, db.dialect.name), rows)


def _digest(judge: str, number: int, pairs: str) -> str:
    """Return SHA-256 over a round."""
    return hashlib.sha256(f"{judge} {number} {pairs}".encode()).hexdigest()


def _pairs(text: str) -> Pairs:
    """Read the pairs of a round; floats survive JSON exactly."""
    a, b = json.loads(text)
    return Pairs(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))
