"""The view of a run while it asks: at any number of answers, of features of every kind."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import InputError
from llm_elicit.pipeline.ask import ask
from llm_elicit.pipeline.live import live_view
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.pipeline.runtime import Runtime
from llm_elicit.pipeline.snapshot import LIVE, LiveView
from llm_elicit.pipeline.stages import plan
from llm_elicit.testing.provider import Answer, Provider

# Here a belief only has to be there.
pytestmark = pytest.mark.usefixtures("quick_fits")

JUDGE = {"name": "expert", "backend": "simulated"}


def campaign(folder: Path, *judges: dict[str, Any], **more: Any) -> Campaign:
    given = {"name": "one", "space": "penguins", "judges": judges or [JUDGE], "runs": str(folder)}
    return Campaign.model_validate({**given, "design": {"pairs": 30}, **more})


def asked(given: Campaign) -> Run:
    return asyncio.run(ask(plan(given)))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """A provider that says A, one answer after the other."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    with Provider(lambda _n, _body: Answer("A", delay=0.02)) as provider:
        yield provider


def paused_after(answers: int, slow: Provider, folder: Path) -> Run:
    """A run of 100 pairs, paused when at least so many questions are answered."""
    says_a = {
        "name": "says-a", "backend": "openai", "model": "gpt-4o-mini",
        "base_url": f"{slow.url}/v1", "concurrency": 1,
    }  # fmt: skip

    async def part() -> Run:
        async with Runtime(folder) as runtime:
            job = runtime.start(campaign(folder, says_a, design={"pairs": 100}))
            while job.snapshot().judges["says-a"].done < answers:
                await asyncio.sleep(0.005)
            await job.pause()
            return job.run

    return asyncio.run(part())


def test_a_run_that_is_paused_half_way(tmp_path: Path, slow: Provider) -> None:
    run = paused_after(60, slow, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "llm_elicit.pipeline.stage_process", str(run.folder), "live"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert '"ended": "live"' in done.stdout
    view = LiveView.read(run.folder)
    assert view is not None
    judge = view.judges["says-a"]
    assert 60 <= judge.judgments < 200
    assert judge.agreement is not None
    assert judge.agreement.value == 0.0
    assert judge.position_effect is not None
    assert judge.position_effect.value == 0.5
    assert len(judge.charts) == run.space.dimension


def test_before_the_first_answer_and_with_few(tmp_path: Path, slow: Provider) -> None:
    run = plan(campaign(tmp_path))
    first = live_view(run)
    assert LiveView.read(run.folder) is None
    assert first.judges["expert"].reason == "no answers yet"
    slow.behave = lambda _n, _body: Answer("A", delay=0.3)  # few come until it is paused
    few = live_view(paused_after(2, slow, tmp_path / "few")).judges["says-a"]
    assert 2 <= few.judgments < 10
    assert re.fullmatch(r"[123] of the 4 pairs that a belief needs are answered", few.reason)
    assert not few.charts


def test_a_judge_that_has_not_answered_yet(tmp_path: Path) -> None:
    run = asked(campaign(tmp_path))
    late = run.campaign.judges[0].model_copy(update={"name": "late"})
    judges = (*run.campaign.judges, late)
    both = Run(run.folder, run.campaign.model_copy(update={"judges": judges}), run.space)
    found = live_view(both).judges
    assert found["late"].judgments == 0
    assert not found["late"].charts
    assert found["expert"].charts


KINDS: dict[str, dict[str, Any]] = {
    "categories": {"space": "penguins_kinds"},
    "no table, a date and a circle": {"space": "when"},
    "by a method that takes too long": {"fit": {"methods": ["score"], "samples": 1000}},
}
WHEN = """
name: when
title: storms
subject: storms
features:
  - {name: day, label: day, kind: date, low: 2020-01-01, high: 2023-12-31}
  - {name: hour, label: hour, kind: integer, low: 0, high: 23, periodic: true}
"""


@pytest.mark.parametrize("kind", KINDS)
def test_features_of_every_kind(tmp_path: Path, kind: str) -> None:
    more = {"space": "penguins", **KINDS[kind]}
    if more["space"] == "when":
        (tmp_path / "when.yaml").write_text(WHEN)
        more["space"] = str(tmp_path / "when.yaml")
        uniform = {**JUDGE, "belief": "uniform"}
        run = asked(campaign(tmp_path, uniform, **more))
    else:
        run = asked(campaign(tmp_path, **more))
    view = live_view(run)
    judge = view.judges["expert"]
    assert view.data == (run.space.table is not None)
    for chart, feature in zip(judge.charts, run.space.features, strict=True):
        assert feature.label in chart.words
        kinds = {shape.kind for shape in chart.shapes}
        assert {"belief", "band", "axis"} <= kinds
        assert ("data" in kinds) == view.data
    assert LiveView.model_validate_json(view.model_dump_json()) == view


def test_a_file_changed_by_hand_is_named(tmp_path: Path) -> None:
    (tmp_path / LIVE).write_text("{")
    with pytest.raises(InputError, match=LIVE):
        LiveView.read(tmp_path)
