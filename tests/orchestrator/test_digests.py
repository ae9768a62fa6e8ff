"""Answers and rounds changed by hand are detected."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from timeit import timeit

import numpy as np
import pytest
import sqlalchemy as sa

from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.journal.questions import planned_rounds, record_rounds
from llm_elicit.orchestrator.journal.schema import (
    Answer,
    Question,
    record_answer,
    record_sending,
    with_digest,
)
from llm_elicit.orchestrator.journal.store import Journal
from llm_elicit.orchestrator.judgments import direct_answers
from llm_elicit.orchestrator.open_run import Study
from llm_elicit.planning.rounds import ALL_JUDGES, Pairs
from orchestrator.conftest import EXPERT
from orchestrator.running import campaign, plan_of, run, space_of, table


def _execute(location: JournalLocation, statement: str) -> int:
    with location.writable().connect() as db, db.begin():
        return db.execute(sa.text(statement)).rowcount


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE answers SET probability = 1 - probability WHERE question = 5",
        "UPDATE answers SET reply = reply || ' ' WHERE question = 5",
        "UPDATE answers SET verdict = 'tie' WHERE question = 6",
        "DELETE FROM answers WHERE question = 5",
        "UPDATE questions SET judge = 'other' WHERE id = 5",
        "UPDATE questions SET pair = 9 + id WHERE id = 5",
        "UPDATE answers SET digest = '' WHERE question = 5",
    ],
)
def test_a_changed_answer_is_named(location: JournalLocation, change: str) -> None:
    study = campaign([EXPERT], pairs=4, journal=location.address)
    run(study, location.folder)
    assert len(table(study, location.folder)) == 8
    assert _execute(location, change)
    with pytest.raises(InputError, match=r"answer of '(expert|other)' to question \d+ [ab]{2}"):
        table(study, location.folder)


def test_an_answer_to_a_direct_question_is_named(tmp_path: Path) -> None:
    study = campaign([EXPERT], pairs=4, direct={"samples": 3})
    run(study, tmp_path)
    whole = Study(study, space_of(study), plan_of(study), tmp_path)
    assert len(direct_answers(whole)) == 3
    _execute(
        JournalLocation(tmp_path), "UPDATE answers SET reply = reply || '0' WHERE verdict = 'text'"
    )
    with pytest.raises(InputError, match=r"question 0 sample, replicate 0.*\(and 2 more\)"):
        direct_answers(whole)
    assert len(table(study, tmp_path)) == 8, "the answers about pairs are as they were"


def test_a_changed_round_is_named(location: JournalLocation) -> None:
    Journal(location, {"of": "a test"}).close()
    rng = np.random.default_rng(0)
    record_rounds(location, {(ALL_JUDGES, 2): Pairs(*rng.normal(size=(2, 3, 4)))})
    assert len(planned_rounds(location)) == 1
    _execute(location, "UPDATE rounds SET pairs = replace(pairs, '1', '2')")
    with pytest.raises(InputError, match="pairs of round 2 have changed since they were planned"):
        planned_rounds(location)


@pytest.mark.parametrize("value", [float("nan"), -0.0, 1, None, 1e300, 5e-324])
def test_numbers_come_back_with_the_digest_they_left_with(
    location: JournalLocation, value: float | None
) -> None:
    study = campaign([EXPERT], pairs=4, journal=location.address)
    run(study, location.folder)
    journal = Journal(location, {"of": "a test"})
    _execute(location, "DELETE FROM answers WHERE question = 1")
    _execute(location, "UPDATE questions SET state = 'planned' WHERE id = 1")
    journal.prepare(["expert"], plan_of(study))
    (question,) = journal.claim("expert", 1)
    answer = Answer(
        "t", "h", "e", '{"x": "é\\u0000"}', "m", "m-1 \ud83d", "A\0 “é” \ud83d", "stop", "A",
        0.1, value, 1, 10, 2, 0, 0.25, 0.05, False, "2026-01-01T00:00:00.000+00:00",
    )  # fmt: skip
    answer = with_digest(question, answer)
    journal.commit([record_sending(question.id, 0.0)])
    journal.commit([record_answer(question.id, answer)])
    journal.close()
    assert len(table(study, location.folder)) == 8


def test_digests_stay_those_of_saved_runs() -> None:
    """If they were computed differently, every saved answer would count as changed."""
    answer = Answer(
        "t", "h", "e", '{"x": "é"}', "m", "m-1", "A\0 é", "stop", "A",
        0.1, -0.0, None, 10, 2, 0, float("nan"), 1, False, "2026-01-01T00:00:00.000+00:00",
    )  # fmt: skip
    assert with_digest(Question(7, 3, "ba", 1, 2, "expert"), answer).digest == (
        "d1002b00278f1b0453d694e8fdfb2c4467e1cd5e26e9ef439fa85cdeed8229bb"
    )


def test_a_digest_takes_little_longer_than_json_and_sha256() -> None:
    question = Question(1, 0, "ab", 0, 0, "expert")
    answer = Answer(
        "v1/zero-shot", "h" * 64, "https://api.example/v1", '{"max_tokens": 8}', "m", "m-1", "A",
        "stop", "A", 0.9, 0.99, 0.9, 200, 2, 0, 1e-5, 0.5, False, "2026-01-01T00:00:00.000+00:00",
    )  # fmt: skip
    values = list(vars(answer).values())

    def seconds(work: Callable[[], object]) -> float:
        return timeit(work, time.process_time, number=200)

    # In turns: how long an instruction takes changes with what else the machine does.
    pairs = [
        (
            seconds(lambda: with_digest(question, answer)),
            seconds(lambda: hashlib.sha256(json.dumps(values).encode()).hexdigest()),
        )
        for _ in range(25)
    ]
    assert np.median([digest / plain for digest, plain in pairs]) < 5.0, "it is 2.7"


def test_a_damaged_journal_is_read_as_it_was_or_refused(tmp_path: Path) -> None:
    """One bit of the file at a time. An index that differs from its table must not hide it."""
    study = campaign([EXPERT], pairs=4)
    run(study, tmp_path)
    file = tmp_path / "journal.sqlite"
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    before, whole = table(study, tmp_path).frame, file.read_bytes()
    rng, lines = np.random.default_rng(0), []
    used = np.flatnonzero(np.frombuffer(whole, dtype=np.uint8))
    for offset in rng.choice(used, 100).tolist():
        for rest in tmp_path.glob("journal.sqlite-*"):
            rest.unlink()
        content = bytearray(whole)
        content[offset] ^= 1 << int(rng.integers(8))
        file.write_bytes(content)
        try:
            after = table(study, tmp_path).frame
        except InputError as error:
            lines.append(str(error))
        else:
            # Missing rows are detected by their number, see test_file_checks.
            assert len(after) < len(before) or after.equals(before), f"byte {offset}"
    assert len(lines) > 10
    assert not any("\n" in line for line in lines)
