"""Campaigns of several presentations are asked, in every way, and the table names each one."""

import asyncio
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.batches import BatchProvider

from llm_elicit.orchestrator.batches import ask_in_batches
from llm_elicit.orchestrator.estimates import estimate, example_prompts
from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.open_run import Study
from llm_elicit.orchestrator.progress import SILENT
from llm_elicit.testing.provider import Answer, Provider
from orchestrator.conftest import gpt
from orchestrator.running import campaign, plan_of, run, space_of, table
from orchestrator.test_people import ADA, finish, opened

LABELS = ("A/B", "1/2", "X/Y")
FACETS = {"wordings": ["v2/typical", "v2/common"], "labels": LABELS, "examples": ["none", "*"]}


def answer(body: dict[str, Any]) -> Answer:
    """Prefer the first of the two labels of the question, 7 to 2; another letter is listed too."""
    first, second = (line[0] for line in body["messages"][-1]["content"].split("\n\n"))
    other = "Z" if first in "A1" else "A"
    shares = {first: 0.7, f" {second}": 0.2, other: 0.05}
    return Answer(first, logprobs={token: math.log(p) for token, p in shares.items()})


def check(frame: Any, pairs: int) -> None:
    """Check what a table of a judge who prefers the first, 7 to 2, has in every presentation."""
    assert len(frame) == 2 * pairs
    assert set(frame.groupby("pair")["presentation"].nunique()) == {1}, "both orders in one"
    soft = np.where(frame["order"] == "ab", 7 / 9, 2 / 9)
    assert frame["probability"].to_numpy() == pytest.approx(soft)
    assert frame["soft"].all()
    assert frame["verdict"].eq("A").all()
    assert frame["letter_mass"].to_numpy() == pytest.approx(0.9)
    # The template's id is that of the wording.
    assert (frame["presentation"].str.split(", ").str[0] == frame["template"]).all()
    asked = frame.drop_duplicates("pair")
    assert asked["presentation"].nunique() == len(set(asked["presentation"]))
    points = [name for name in frame if name[:2] in ("a_", "b_")]
    assert len(asked[points].drop_duplicates()) == pairs - pairs // 6
    twice = asked.groupby(points)["presentation"].agg(["size", "nunique"])
    assert (twice["size"] == twice["nunique"]).all()


def test_log_odds_are_read_at_the_tokens_of_the_labels(tmp_path: Path) -> None:
    with Provider(lambda _n, body: answer(body)) as provider:
        study = campaign([gpt(provider.url)], design={"pairs": 36, "presentations": FACETS})
        assert run(study, tmp_path / "short").complete
        assert len(provider.seen) == 72
        frame = table(study, tmp_path / "short").frame
        check(frame, 36)
        labels = Counter(label for name in frame["presentation"] for label in name.split(", "))
        assert {labels[f"labels {pair}"] for pair in LABELS} == {24}
        wordings = Counter(frame["template"])
        assert wordings == {"v2/typical": 36, "v2/common": 36}
        longer = campaign([gpt(provider.url)], design={"pairs": 42, "presentations": FACETS})
        assert run(longer, tmp_path / "longer").complete
        assert len(provider.seen) == 84, "others are from the cache"


def test_batches_know_the_labels_of_every_question(tmp_path: Path) -> None:
    with BatchProvider(answer, at_once=True) as provider:
        study = campaign([gpt(provider.url)], design={"pairs": 12, "presentations": FACETS})
        whole = Study(study, space_of(study), plan_of(study), tmp_path)
        summary = asyncio.run(ask_in_batches(whole, "wait", SILENT, 0.01, False))
        assert summary.complete
    check(table(study, tmp_path).frame, 12)


def test_people_see_units_and_orders_of_each_pairs_presentation(tmp_path: Path) -> None:
    facets = {**FACETS, "features": "shuffled", "digits": [1, 2]}
    study = campaign([ADA], design={"pairs": 12, "presentations": facets})
    location = JournalLocation(tmp_path)
    with opened(location, study) as people:
        shown = finish(people, "ada", "ada")
    assert {card.question for card in shown} == {
        "Which is more typical?", "Which is more common in the real world?",
    }  # fmt: skip
    assert len({tuple(label for label, _ in card.a) for card in shown}) > 1
    assert {card.labels for card in shown} == {tuple(pair.split("/")) for pair in LABELS}
    frame = table(study, tmp_path).frame
    assert frame["presentation"].str.contains("features 2").any()
    assert set(frame.groupby("pair")["presentation"].nunique()) == {1}


def test_an_estimate_and_examples_are_of_every_presentation(tmp_path: Path) -> None:
    study = campaign(
        [gpt("http://localhost:1", price={"input": 1.0, "output": 1.0})],
        design={"pairs": 24, "presentations": FACETS},
    )
    space, plan = space_of(study), plan_of(study)
    assert len({prompt.system for prompt in example_prompts(study, space, plan)}) == 3
    (line,) = estimate(study, space, plan)
    assert line.requests == 48
    assert line.prompt_tokens > 48 * 100, "with worked examples in most of them"
