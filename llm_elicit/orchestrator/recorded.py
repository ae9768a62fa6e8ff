"""The rounds of an adaptive campaign, as the journal holds them: planned once, asked as planned."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import sqlalchemy as sa

from llm_elicit.orchestrator.journal import Place, open_questions, reading
from llm_elicit.orchestrator.journal.door import FILE
from llm_elicit.orchestrator.journal.schema import rounds
from llm_elicit.orchestrator.journal.statements import ignoring
from llm_elicit.orchestrator.lock import RunLock
from llm_elicit.rounds import Pairs


def planned_rounds(place: Place) -> dict[tuple[str, int], Pairs]:
    """The rounds planned so far, by judge and number; none before the first question is asked."""
    if not place.shared and not (place.folder / FILE).is_file():
        return {}
    engine = place.readable()
    with place.guarded(), engine.connect() as db, db.begin():
        if not sa.inspect(db).has_table("rounds"):
            return {}
        rows = db.execute(sa.select(rounds)).all()
    return {(row.judge, row.number): _pairs(row.pairs) for row in rows}


def record_rounds(place: Place, planned: Mapping[tuple[str, int], Pairs]) -> None:
    """Put rounds on record; those that another worker recorded first stay as they are.

    Raises:
        InputError: the journal cannot be written, or another process is at work on the run.
    """
    rows = [
        {"judge": judge, "number": number, "pairs": json.dumps([some.a.tolist(), some.b.tolist()])}
        for (judge, number), some in planned.items()
    ]
    with (
        RunLock(place.folder, shared=place.shared),
        place.guarded(),
        place.writable().connect() as db,
        db.begin(),
    ):
        db.execute(ignoring(rounds, db.dialect.name), rows)


def settled(place: Place, judge: str) -> bool:
    """Whether every question of a judge that is planned has its answer, or was set aside."""
    with reading(place) as db:
        return open_questions(db, judge) == 0


def _pairs(text: str) -> Pairs:
    """Floats come back from JSON as they went in, bit for bit."""
    a, b = json.loads(text)
    return Pairs(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))
