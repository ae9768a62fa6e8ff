"""The plan in the journal by itself: which questions are added, kept and taken back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from llm_elicit.errors import InputError
from llm_elicit.orchestrator import record_rounds
from llm_elicit.orchestrator.journal import (
    Journal,
    JournalLocation,
    RunLock,
    answered,
    failed,
    intent,
    missed,
    quarantined,
    reading,
)
from llm_elicit.orchestrator.journal.schema import questions
from llm_elicit.planning.pairs import Plan, Query
from llm_elicit.planning.rounds import ALL_JUDGES, Pairs
from orchestrator.test_journal import ANSWER, _open, _plan


def _samples(*numbers: int) -> tuple[Query, ...]:
    return tuple(Query(0, "sample", number) for number in numbers)


def _quantiles(*features: int) -> tuple[Query, ...]:
    return tuple(Query(feature, "quantiles", 0) for feature in features)


def _rows(location: JournalLocation, judge: str = "expert") -> list[tuple[Any, ...]]:
    c = questions.c
    found = select(c.pair, c.presentation, c.replicate, c.state, c.error).where(c.judge == judge)
    with reading(location) as db:
        return [tuple(row) for row in db.execute(found.order_by(c.id))]


def _prepared(location: JournalLocation, plan: Plan, *judges: str) -> Journal:
    journal = _open(location)
    journal.prepare(judges or ["expert"], plan)
    return journal


def test_as_many_other_direct_questions_are_asked_too(location: JournalLocation) -> None:
    """Answered ones stay, so that the journal has as many rows as the new plan has questions."""
    journal = _prepared(location, replace(_plan(4), direct=_samples(0, 1, 2)))
    journal.commit([answered(question.id, ANSWER) for question in journal.claim("expert", 100)])
    journal.close()
    journal = _prepared(location, replace(_plan(4), direct=_quantiles(0, 1, 99)))
    asked = [(q.order, q.pair) for q in journal.claim("expert", 100)]
    assert asked == [("quantiles", 0), ("quantiles", 1), ("quantiles", 99)]
    journal.close()


def test_direct_questions_that_are_not_asked_any_more(location: JournalLocation) -> None:
    """Those that cost something stay with their cost, those that are settled as they are."""
    plan = replace(_plan(4), direct=_samples(0, 1, 2, 3, 4, 5))
    journal = _prepared(location, plan, "expert", "other")
    numbers = [q.id for q in journal.claim("expert", 100) if q.order == "sample"]
    done, dear, used, given_up, aside, _untouched = numbers
    journal.commit([answered(done, ANSWER), quarantined(aside, "boom"), failed(given_up, "no")])
    for number, lost, tokens in ((dear, 0.25, 0), (used, 0.0, 9)):
        journal.commit([intent(number, 0.5, 10)])
        journal.commit([missed(number, lost, tokens)])
    spent = journal.spent()
    journal.close()
    journal = _prepared(location, replace(plan, direct=()))
    left = [(row[2], *row[3:]) for row in _rows(location) if row[1] == "sample"]
    assert left == [
        (0, "done", None),
        (1, "quarantined", "asked no more"),
        (2, "quarantined", "asked no more"),
        (4, "quarantined", "boom"),
    ]
    assert Counter(row[1] for row in _rows(location)) == {"ab": 4, "ba": 4, "sample": 4}
    assert len(_rows(location, "other")) == 8 + 6, "of another judge, whose plan is unchanged"
    assert journal.spent() == spent
    journal.close()


def test_rounds_are_not_recorded_beside_a_process_at_work(tmp_path: Path) -> None:
    location = JournalLocation(tmp_path)
    _open(location).close()
    pairs = Pairs(*np.random.default_rng(0).normal(size=(2, 3, 4)))
    with RunLock(tmp_path), pytest.raises(InputError, match="another process is at work"):
        record_rounds(location, {(ALL_JUDGES, 2): pairs})
