"""A campaign of several presentations from its file to the report, in rounds, and repeated."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from orchestrator.test_people import finish

from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal.questions import is_begun
from llm_elicit.orchestrator.people import People
from llm_elicit.pipeline import stages
from llm_elicit.pipeline.pilot import candidates, pilot_runs
from llm_elicit.pipeline.repeats import plan_repeats
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.report.sentences import fit_sentences

FACETS = {"wordings": ["v2/typical", "v2/common", "v2/real"], "features": "shuffled"}


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def planned(
    name: str = "first",
    pairs: int = 24,
    facets: Any = None,
    backend: str = "simulated",
    **design: Any,
) -> Run:
    settings = {
        "name": name, "space": "penguins", "judges": [{"name": "expert", "backend": backend}],
        "design": {"pairs": pairs, "presentations": facets or FACETS, **design},
        "fit": {"samples": 300},
    }  # fmt: skip
    Path(f"{name}.yaml").write_text(yaml.safe_dump(settings))
    return stages.plan(f"{name}.yaml")


def check_results(run: Run, pairs: int) -> None:
    """Fit and audit a run of choices, and check what is said of its presentations."""
    stages.fit(run)
    stages.audit(run)
    (judge,) = run.audit.judges
    asked = judge.presentations
    assert asked is not None
    twice = pairs // 6
    assert (len(asked.presentations), asked.pairs, asked.twice) == (6, pairs - twice, twice)
    assert 0.0 < asked.interaction.p_value <= 1.0
    assert asked.over_presentations is not None
    assert asked.common is not None
    assert asked.common.low < asked.common.high == 1.0, "few choices leave it open"
    assert asked.shares is None, "of log-odds"
    assert all(presentation.gain is not None for presentation in asked.presentations)
    assert not any("presentations" in line for line in fit_sentences(judge))


@pytest.mark.usefixtures("quick_fits")
def test_rounds_are_spread_audited_and_repeated_as_they_were_asked() -> None:
    run = asyncio.run(stages.ask(planned(pairs=36, rounds={"count": 2})))
    frame = run.comparisons.frame
    assert len(frame) == 72
    asked = frame.drop_duplicates("pair").sort_values("pair")
    points = [name for name in frame if name[:2] in ("a_", "b_")]
    for round_ in (asked[:18], asked[18:]):
        assert len(round_[points].drop_duplicates()) == 15
        often = round_["presentation"].value_counts()
        assert len(often) == 6
        assert np.ptp(often) <= 2
    repeat = asyncio.run(stages.ask(plan_repeats("first")[0]))
    frame = frame.sort_values(["pair", "order"])
    again = repeat.comparisons.frame.sort_values(["pair", "order"])
    for column in ("pair", "presentation", "prompt_hash", "template"):
        assert again[column].tolist() == frame[column].tolist()
    assert {path.name for path in (run.folder / "inputs").iterdir()} >= {
        "template.md", "template-1.md", "template-2.md"
    }  # fmt: skip
    check_results(run, 36)


@pytest.mark.usefixtures("quick_fits")
def test_people_in_several_presentations_are_fitted_and_audited() -> None:
    run = planned(backend="human")

    async def ask() -> Run:
        asking = asyncio.create_task(stages.ask(run))
        while not is_begun(run.location):
            await asyncio.sleep(0.05)
        with People(run.location, run.campaign, run.space, run.plan) as people:
            await asyncio.to_thread(finish, people, "expert", "expert")
        return await asking

    check_results(asyncio.run(ask()), 24)


def test_a_run_keeps_its_presentations() -> None:
    asyncio.run(stages.ask(planned()))
    with pytest.raises(InputError, match="holds the run of another campaign"):
        planned(facets={**FACETS, "wordings": ["v2/typical", "v2/common", "v2/met"]})


def test_a_pilot_tries_the_wordings_with_the_first_level_of_other_facets() -> None:
    run = planned(facets={**FACETS, "labels": ["X/Y", "A/B"], "examples": ["oven-and-tree"]})
    assert candidates(run.campaign) == ("v2/typical", "v2/common", "v2/real")
    cells = pilot_runs(run.campaign, 10)
    assert [len(cell.study.presentations) for cell in cells] == [1, 1, 1]
    (first, *_) = (cell.study.presentations[0] for cell in cells)
    assert (first.options, len(first.examples), first.label) == (("X", "Y"), 2, "")
    plan = run.plan
    for number in range(5):
        assert (cells[0].plan.a[number] == plan.a[number]).all(), "the campaign's first pairs"
