"""What a run's journal holds besides answers: its identity, and its rounds, planned once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import numpy as np
import sqlalchemy as sa

from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal import JournalLocation, open_questions, reading
from llm_elicit.orchestrator.journal.interface import FILE
from llm_elicit.orchestrator.journal.schema import meta, questions, rounds
from llm_elicit.orchestrator.journal.statements import ignoring
from llm_elicit.orchestrator.lock import RunLock
from llm_elicit.planning.rounds import Pairs


def planned_rounds(location: JournalLocation) -> dict[tuple[str, int], Pairs]:
    """The rounds planned so far, by judge and number; none before the first question is asked.

    Raises:
        InputError: the journal cannot be read, or a round was changed by hand.
    """
    if not location.shared and not (location.folder / FILE).is_file():
        return {}
    engine = location.readable()
    with location.guarded(), engine.connect() as db, db.begin():
        if not sa.inspect(db).has_table("rounds"):
            return {}
        known = {column["name"] for column in sa.inspect(db).get_columns("rounds")}
        digest = rounds.c.digest if "digest" in known else sa.null().label("digest")
        rows = db.execute(sa.select(rounds.c.judge, rounds.c.number, rounds.c.pairs, digest)).all()
    for row in rows:
        if row.digest not in (None, _digest(row.judge, row.number, row.pairs)):
            raise InputError(
                f"{location.name}: the pairs of round {row.number} are not as they were planned; "
                "put a copy of the journal back, or move the run's folder away and run again"
            )
    return {(row.judge, row.number): _pairs(row.pairs) for row in rows}


def record_rounds(location: JournalLocation, planned: Mapping[tuple[str, int], Pairs]) -> None:
    """Put rounds on record; those that another worker recorded first stay as they are.

    Raises:
        InputError: the journal cannot be written, or another process is at work on the run.
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


def settled(location: JournalLocation, judge: str) -> bool:
    """Whether every question of a judge that is planned has its answer, or was set aside."""
    with reading(location) as db:
        return open_questions(db, judge) == 0


def kept_identity(location: JournalLocation) -> dict[str, str]:
    """What the journal says that its run was begun with."""
    with reading(location) as db:
        return {row.key: row.value for row in db.execute(sa.select(meta.c.key, meta.c.value))}


def kept_answers(location: JournalLocation) -> int:
    """How many answers the journal holds, of whichever judges; none where there is no journal."""
    if not location.shared and not (location.folder / FILE).is_file():
        return 0
    done = sa.select(sa.func.count()).where(questions.c.state == "done")
    with location.guarded(), location.readable().connect() as db, db.begin():
        known = sa.inspect(db).has_table("questions")
        return int(db.execute(done).scalar_one()) if known else 0


def _digest(judge: str, number: int, pairs: str) -> str:
    """SHA-256 over a round as it was planned."""
    return hashlib.sha256(f"{judge} {number} {pairs}".encode()).hexdigest()


def _pairs(text: str) -> Pairs:
    """Floats come back from JSON as they went in, bit for bit."""
    a, b = json.loads(text)
    return Pairs(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))
