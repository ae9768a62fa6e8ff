"""Pages of questions and answers: filters, both orders, and no more work for the last page."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.dialects import sqlite

from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal.connection import FILE as JOURNAL
from llm_elicit.orchestrator.progress import Silent
from llm_elicit.pipeline import answers
from llm_elicit.pipeline.answers import AnswerQuery, page_statement, read_answers
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.pipeline.stages import ask, plan
from llm_elicit.spaces.features import FeatureSpace

PAIRS = 40


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of two judges, some of whose answers are unusual."""
    folder = tmp_path_factory.mktemp("answers")
    judges = [{"name": name, "backend": "simulated"} for name in ("one", "two")]
    settings = {
        "name": "read", "runs": str(folder), "space": "penguins", "design": {"pairs": PAIRS},
        "judges": judges, "direct": {"samples": 2},
    }  # fmt: skip
    planned = plan(Campaign.model_validate(settings))
    asyncio.run(ask(planned, progress=Silent()))
    with sqlite3.connect(planned.folder / JOURNAL) as db:
        change = (
            "UPDATE answers SET verdict = ?, thinking = 'Hm.' WHERE question IN (SELECT id FROM "
            "questions WHERE judge = ? AND pair = ? AND form = ?)"
        )
        for pair in (3, 30):
            for form in ("ab", "ba"):
                db.execute(change, ("refusal", "one", pair, form))
                db.execute(change, ("A", "two", pair, form))
        db.execute(change, ("refusal", "two", 5, "ba"))
        db.execute(change, ("unparsable", "two", 6, "ab"))
    return planned


def pages(run: Run, **query: object) -> list[tuple[str, str, int]]:
    """The questions of all pages, in order."""
    asked, after = [], 0
    for _ in range(200):
        page = read_answers(run.folder, AnswerQuery(**query, after=after))  # type: ignore[arg-type]
        asked += [(item.judge, item.kind, item.pair) for item in page.questions]
        if page.following is None:
            return asked
        after = page.following
    raise AssertionError(asked)


@pytest.mark.parametrize("limit", [3, 20, 1_000])
def test_every_question_is_on_one_page(run: Run, limit: int) -> None:
    asked = pages(run, limit=limit)
    pairs = [(judge, "pair", pair) for judge in ("one", "two") for pair in range(PAIRS)]
    assert [item for item in asked if item[1] == "pair"] == pairs
    assert len(asked) == 2 * (PAIRS + 2)


def test_filters(run: Run) -> None:
    assert pages(run, verdict="refusal", limit=2) == [
        ("one", "pair", 3), ("one", "pair", 30), ("two", "pair", 5),
    ]  # fmt: skip
    assert pages(run, verdict="refusal", judges=("two",)) == [("two", "pair", 5)]
    assert pages(run, verdict="unparsable") == [("two", "pair", 6)]
    assert pages(run, verdict="truncated") == []
    assert {kind for _, kind, _ in pages(run, verdict="text")} == {"sample"}
    differ = [pair for judge, _, pair in pages(run, orders="differ") if judge == "two"]
    assert {3, 30} <= set(differ)
    assert pages(run, pair=30, judges=("two",)) == [("two", "pair", 30)]
    values = run.plan.a[:, 3], run.plan.b[:, 3]
    low, high = 4000.0, 4500.0
    in_range = [
        pair for pair in range(PAIRS) if any(low <= points[pair] <= high for points in values)
    ]
    asked = pages(run, feature="body_mass_g", low="4000", high="4500", judges=("one",))
    assert [pair for _, _, pair in asked] == in_range
    assert 0 < len(in_range) < PAIRS


def test_both_orders_are_side_by_side_as_they_were_sent(run: Run) -> None:
    (question,) = read_answers(run.folder, AnswerQuery(pair=30, judges=("two",))).questions
    assert [answer.order for answer in question.orders] == ["ab", "ba"]
    assert question.orders_agree is False
    first, second = question.orders
    assert first.thinking == "Hm."
    prompts = [answer.prompt[-1].content for answer in (first, second)]
    space = FeatureSpace.load("penguins")
    for point, prompt in zip((run.plan.a[30], run.plan.b[30]), prompts, strict=True):
        option_a = prompt.partition("\n")[0]
        assert all(value in option_a for _, value in space.word(point)), option_a
    assert first.as_sent
    assert second.as_sent
    labels = [label for label, _, _ in question.points]
    assert labels == [feature.label for feature in space.features]
    (sample, *_) = read_answers(run.folder, AnswerQuery(verdict="text")).questions
    assert (sample.kind, sample.points, sample.orders[0].order) == ("sample", (), "")
    assert sample.orders[0].as_sent


def test_a_prompt_that_would_be_worded_otherwise_today_says_so(run: Run, tmp_path: Path) -> None:
    copy = shutil.copytree(run.folder, tmp_path / "read")
    with sqlite3.connect(copy / JOURNAL) as db:
        db.execute("UPDATE answers SET prompt_hash = 'of another wording'")
    page = read_answers(copy, AnswerQuery(limit=1))
    assert [answer.as_sent for answer in page.questions[0].orders] == [False, False]


def test_what_does_not_exist_is_refused(run: Run) -> None:
    for query, words in (
        (AnswerQuery(judges=("three",)), "judge 'three'"),
        (AnswerQuery(feature="mass"), "feature 'mass'"),
        (AnswerQuery(feature="body_mass_g", low="much"), "'much' is not a number"),
    ):
        with pytest.raises(InputError, match=words):
            read_answers(run.folder, query)


def test_a_page_that_takes_long_says_where_to_go_on(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "_WINDOW", 10)
    monkeypatch.setattr(answers, "_SECONDS", 0.0)
    page = read_answers(run.folder, AnswerQuery(feature="body_mass_g", low="1e9"))
    assert (page.questions, page.following, page.complete) == ((), 10, False)
    assert pages(run, limit=7) == pages(run, limit=1_000)
    # An index of unusual verdicts is never examined in parts.
    page = read_answers(run.folder, AnswerQuery(verdict="truncated"))
    assert page.complete


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (AnswerQuery(), "INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        (AnswerQuery(judges=("two",)), "INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        (AnswerQuery(verdict="A"), "INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        (AnswerQuery(orders="differ"), "INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        (AnswerQuery(verdict="refusal"), "INDEX unusual (verdict=? AND question>? AND question<?)"),
        (
            AnswerQuery(verdict="refusal", judges=("two",)),
            "INDEX unusual (verdict=? AND question>? AND question<?)",
        ),
        (AnswerQuery(pair=3, judges=("one", "two")), "(judge=? AND pair=?)"),
    ],
)
def test_no_page_reads_the_answers_before_it(run: Run, query: AnswerQuery, index: str) -> None:
    """The journal is searched from where the page begins, in the order of the page."""
    bounds = {"first": 100, "last": 5_100, "rows": 21}
    options = {"literal_binds": True}
    statement = page_statement(query).params(bounds)
    script = str(statement.compile(dialect=sqlite.dialect(), compile_kwargs=options))
    with sqlite3.connect(run.folder / JOURNAL) as db:
        plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {script}")]
    assert index in plan[0], plan
    assert not any(step.startswith("SCAN") for step in plan), plan
    if query.pair is None:
        assert not any("TEMP B-TREE" in step for step in plan), plan
