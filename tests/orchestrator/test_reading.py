"""What is read of a journal: every count and every sum, of one judge among two."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal import questions as sql
from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.journal.questions import (
    WITHDRAWN,
    answered_by_kind,
    is_begun,
    open_questions,
    reading,
    settled,
    spent_in,
    spent_or_reserved,
    stored_answers,
    stored_identity,
    totals,
    unanswered,
)
from llm_elicit.orchestrator.journal.schema import (
    Totals,
    record_answer,
    record_failure,
    record_loss,
    record_quarantine,
    record_sending,
    record_submission,
)
from llm_elicit.orchestrator.journal.store import Journal
from llm_elicit.orchestrator.judgments import summarize
from llm_elicit.planning.pairs import Query
from orchestrator.test_journal import ANSWER, _accounts_agree, _open, _plan

LATE = "2026-02-03T00:00:00.000+00:00"
PLAN = replace(_plan(6), direct=(Query(0, "sample", 0), Query(0, "sample", 1)))


@pytest.fixture
def journal(location: JournalLocation) -> Journal:
    """A journal with questions in every state: 14 of "expert", and others of "other"."""
    journal = _open(location)
    journal.prepare(["expert", "other"], PLAN)
    q = [question.id for question in journal.claim("expert", 14)]
    others = [question.id for question in journal.claim("other", 3)]
    journal.commit([record_sending(number, 0.5, 20) for number in (*q[:5], q[12], others[0])])
    journal.commit([
        record_answer(q[0], ANSWER),
        record_answer(q[1], replace(ANSWER, cost=0.5, asked_at=LATE, prompt_tokens=100)),
        # From the cache: it costs nothing, and its tokens were not used now.
        record_answer(q[2], replace(ANSWER, cost=None, cached=True)),
        record_loss(q[3], 0.125, 7), record_failure(q[4], "no"), record_quarantine(q[5], "no"),
        record_submission(q[6], 0.25, 10, "tag"), record_submission(q[7], 0.25, 10, "tag"),
        record_answer(q[12], ANSWER), record_answer(others[0], ANSWER),
        record_failure(others[1], "no"),
    ])  # fmt: skip
    journal.commit([record_sending(q[8], 1.0, 40), record_sending(others[2], 2.0, 80)])
    return journal


def test_every_count_and_sum_of_a_judge(journal: Journal) -> None:
    expected = Totals(
        total=14, done=4, failed=1, quarantined=1, submitted=2, in_flight=1, cached=1, requests=9,
        prompt_tokens=10 + 100 + 10 + 10, completion_tokens=8, cost=1.0, lost=0.125, last=LATE,
    )  # fmt: skip
    with reading(journal.location) as db:
        assert totals(db, "expert") == expected
        assert expected.planned == 5
        assert totals(db, "nobody") == Totals()
        assert answered_by_kind(db, "expert") == {"ab": 2, "ba": 1, "sample": 1}
        assert open_questions(db, "expert") == 12 - 3 - 1, "pairs that may yet be answered"
    journal.close()


def test_what_answers_are_worth_and_why_there_are_none(location: JournalLocation) -> None:
    journal = _open(location)
    journal.prepare(["expert", "other"], PLAN)
    q = [question.id for question in journal.claim("expert", 14)]
    settings = '{"max_tokens": 16}'
    cut = replace(ANSWER, verdict="truncated", probability=None, reply="", settings=settings)
    text = replace(ANSWER, verdict="text", probability=None, reply="4", model_answered="m-2")
    journal.commit([
        record_answer(q[0], ANSWER), record_answer(q[1], cut), record_answer(q[2], cut),
        record_answer(q[3], replace(cut, reply="Let", settings='{"max_tokens": 8}')),
        record_answer(q[4], replace(cut, verdict="refusal", reply="no")),
        record_answer(q[5], replace(cut, verdict="unparsable", reply="ba  nana")),
        record_answer(q[12], text), record_answer(q[13], replace(text, reply=" ", finish="length")),
        record_failure(q[6], "no"), record_failure(q[7], "no"), record_failure(q[8], "other"),
        record_quarantine(q[9], "no"),
        record_quarantine(q[10], WITHDRAWN),
    ])  # fmt: skip
    with reading(location) as db:
        summary = summarize(db, "expert")
        groups = unanswered(db, "expert")
        assert summarize(db, "other").total == 0
    assert summary.counts == {
        "usable": 2, "truncated": 4, "refusal": 1, "unparsable": 1
    }  # fmt: skip
    assert (summary.empty, summary.limit, summary.example) == (3, 8, "ba  nana")
    assert summary.models == {ANSWER.model_answered: 6, "m-2": 2}
    assert summary.oldest == ANSWER.asked_at
    assert summary.unusable_line() == (
        "6 of 8 answers are unusable: 4 of 8 truncated at max_tokens=8 before any visible text, "
        "1 of 8 refused, 1 of 8 unparsable (such as 'ba nana'); raise the judge's max_tokens, or "
        "lower its effort: its thinking used them up"
    )
    assert [(g.state, g.reason, g.count) for g in groups] == [
        ("failed", "no", 2), ("quarantined", "no", 1), ("failed", "other", 1)
    ]  # fmt: skip
    for retry_failed, open_ in ((False, 4), (True, 5)):
        journal.prepare(["expert", "other"], PLAN, retry_failed=retry_failed)
        with reading(location) as db:
            assert totals(db, "expert").planned == open_
    journal.close()


def test_what_is_spent_and_what_may_be(journal: Journal) -> None:
    spent = (0.25 + 0.5 + 0.25 + 0.25 + 0.125, 12 + 102 + 12 + 12 + 7)
    assert journal.read(sql.spent) == spent
    _accounts_agree(journal)
    assert journal.read(sql.amounts, sql.IN_FLIGHT_AMOUNTS) == (3.0, 120)
    with reading(journal.location) as db:
        assert spent_or_reserved(db) == (spent[0] + 3.0 + 0.5, spent[1] + 120 + 20)
    assert spent_in(journal.location)[0] == spent[0] + 3.5
    assert stored_answers(journal.location) == 5
    assert stored_identity(journal.location)["fingerprint"] == "x"
    journal.close()


def test_a_judge_is_settled_when_its_pairs_are(location: JournalLocation) -> None:
    """Direct questions do not hold up the next round of pairs, nor does another judge."""
    journal = _open(location)
    journal.prepare(["expert", "other"], PLAN)
    q = [question.id for question in journal.claim("expert", 12)]
    journal.commit([record_answer(number, ANSWER) for number in q[:10]])
    journal.commit([record_quarantine(q[10], "no"), record_failure(q[11], "no")])
    assert not settled(location, "expert")
    journal.commit([record_answer(q[11], ANSWER)])
    assert settled(location, "expert")
    assert not settled(location, "other")
    journal.close()


def test_a_run_that_is_not_begun(tmp_path: Path) -> None:
    location = JournalLocation(tmp_path)
    for _ in range(2):
        assert not is_begun(location)
        assert spent_in(location) == (0.0, 0)
        assert stored_answers(location) == 0
        _open(location).close()  # a journal without questions
    journal = _open(location)
    journal.prepare(["expert"], PLAN)
    assert is_begun(location)
    assert journal.read(sql.spent) == (0.0, 0)
    journal.close()
    with (
        pytest.raises(InputError, match="no journal here; run the campaign first"),
        reading(JournalLocation(tmp_path / "else")),
    ):
        pass
