"""Writing a plan down: the database itself counts out the rows of the pairs."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import BigInteger, bindparam, case, func, literal, select

from llm_elicit.orchestrator.journal.schema import questions
from llm_elicit.orchestrator.journal.statements import ignoring
from llm_elicit.planning.pairs import Plan

_NEW = {"state": "planned", "attempts": 0, "reserved": 0.0, "lost": 0.0}


def write_plan(db: sa.Connection, judge: str, plan: Plan) -> None:
    """Add those of the judge's questions that are not there yet, in the plan's order."""
    known = select(func.count()).where(questions.c.judge == judge)
    if db.execute(known).scalar() == plan.count(judge):
        return
    each = len(plan.orders) * plan.replicates
    rows = _rows(plan)
    add = ignoring(questions, db.dialect.name).from_select(list(rows.selected_columns.keys()), rows)
    for pairs in plan.spans(judge):
        db.execute(add, {"of_judge": judge, "first": pairs.start, "rows": len(pairs) * each})
    direct = [
        {**_NEW, "judge": judge, "pair": q.pair, "presentation": q.order, "replicate": q.replicate}
        for q in plan.direct
    ]
    if direct:
        db.execute(ignoring(questions, db.dialect.name), direct)


def _rows(plan: Plan) -> sa.Select[tuple[object, ...]]:
    """The questions about successive pairs: every replicate of one, in every order, then the next.

    Its parameters are the judge, the number of the first pair, and how many rows there are.
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
        *(literal(value).label(name) for name, value in _NEW.items()),
    ).where(row < rows)
