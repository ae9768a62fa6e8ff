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
from llm_elicit.orchestrator.journal import questions as plan_of_journal
from llm_elicit.orchestrator.journal import questions as sql
from llm_elicit.orchestrator.journal.connection import JournalLocation, RunLock
from llm_elicit.orchestrator.journal.questions import planned_rounds, reading, record_rounds
from llm_elicit.orchestrator.journal.schema import (
    questions,
    record_answer,
    record_failure,
    record_loss,
    record_quarantine,
    record_sending,
)
from llm_elicit.orchestrator.journal.store import Journal
from llm_elicit.planning.pairs import Plan, Query
from llm_elicit.planning.rounds import ALL_JUDGES, Pairs
from orchestrator.test_journal import ANSWER, _open, _plan


def _samples(*numbers: int) -> tuple[Query, ...]:
    return tuple(Query(0, "sample", number) for number in numbers)


def _quantiles(*features: int) -> tuple[Query, ...]:
    return tuple(Query(feature, "quantiles", 0) for feature in features)


def _rows(location: JournalLocation, judge: str = "expert") -> list[tuple[Any, ...]]:
    c = questions.c
    found = select(c.pair, c.form, c.replicate, c.state, c.error).where(c.judge == judge)
    with reading(location) as db:
        return [tuple(row) for row in db.execute(found.order_by(c.id))]


def _prepared(location: JournalLocation, plan: Plan, *judges: str) -> Journal:
    journal = _open(location)
    journal.prepare(judges or ["expert"], plan)
    return journal


def test_a_plan_is_written_in_its_order(location: JournalLocation) -> None:
    """Pairs of one judge alone leave gaps in the numbers of the others."""
    own = {"expert": (1, 5), "other": (4,)}
    plan = replace(_plan(6), replicates=3, unshared=own, direct=_samples(0, 1))
    judges = ("expert", "other", "third")
    journal = _prepared(location, plan, *judges)
    for judge in judges:
        asked = [(q.pair, q.order, q.replicate, "planned", None) for q in plan.of(judge)]
        assert _rows(location, judge) == asked
        assert len(asked) == plan.count(judge) == len(journal.claim(judge, 100))
    journal.close()


def test_pairs_that_are_all_there_are_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan may have millions of them."""
    plan = replace(_plan(4), unshared={"expert": (3,)}, direct=_samples(0))
    location, judges = JournalLocation(tmp_path), ("expert", "other")
    _prepared(location, plan, *judges).close()
    with monkeypatch.context() as patch:
        patch.delattr(plan_of_journal, "_rows")
        _prepared(location, replace(plan, direct=_samples(0, 1)), *judges).close()
    longer = replace(_plan(5), unshared={"expert": (3,)}, direct=_samples(0))
    _prepared(location, longer, *judges).close()
    assert [len(_rows(location, judge)) for judge in judges] == [10 + 1, 8 + 1]


def test_direct_questions_that_are_still_asked_stay(location: JournalLocation) -> None:
    """Also those that failed and cost something: they are asked again under their number."""
    direct = (*_samples(0, 1), *_quantiles(0, 1))
    plan = replace(_plan(4), direct=direct)
    journal = _prepared(location, plan)
    asked = journal.claim("expert", 100)
    for question in (q for q in asked if q.order not in ("ab", "ba")):
        journal.commit([record_sending(question.id, 0.5, 10)])
        journal.commit([record_loss(question.id, 0.25, 5)])
    journal.close()
    journal = _prepared(location, plan)
    again = [replace(question, attempts=0) for question in journal.claim("expert", 100)]
    assert again == [replace(question, attempts=0) for question in asked]
    journal.close()


def test_as_many_other_direct_questions_are_asked_too(location: JournalLocation) -> None:
    """Answered ones stay, so that the journal has as many rows as the new plan has questions."""
    journal = _prepared(location, replace(_plan(4), direct=_samples(0, 1, 2)))
    journal.commit(
        [record_answer(question.id, ANSWER) for question in journal.claim("expert", 100)]
    )
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
    journal.commit(
        [
            record_answer(done, ANSWER),
            record_quarantine(aside, "boom"),
            record_failure(given_up, "no"),
        ]
    )
    for number, lost, tokens in ((dear, 0.25, 0), (used, 0.0, 9)):
        journal.commit([record_sending(number, 0.5, 10)])
        journal.commit([record_loss(number, lost, tokens)])
    spent = journal.read(sql.spent)
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
    assert journal.read(sql.spent) == spent
    journal.close()


def test_rounds_are_not_recorded_beside_a_process_at_work(tmp_path: Path) -> None:
    location = JournalLocation(tmp_path)
    _open(location).close()
    pairs = Pairs(*np.random.default_rng(0).normal(size=(2, 3, 4)))
    with RunLock(tmp_path), pytest.raises(InputError, match="another process is running"):
        record_rounds(location, {(ALL_JUDGES, 2): pairs})


def test_rounds_are_recorded_beside_workers_of_the_same_server(
    postgres: str, tmp_path: Path
) -> None:
    location = JournalLocation(tmp_path, postgres)
    _open(location).close()
    pairs = Pairs(*np.random.default_rng(0).normal(size=(2, 3, 4)))
    with RunLock(tmp_path, shared=True):
        record_rounds(location, {(ALL_JUDGES, 2): pairs})
    assert list(planned_rounds(location)) == [(ALL_JUDGES, 2)]
