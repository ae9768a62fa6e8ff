"""The power of a belief: direct answers as its sources, and the scale that a belief is kept at."""

import asyncio
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from fakes.fits import fit_quickly

from llm_elicit.config.design import Design
from llm_elicit.density import BeliefDensity, Evidence, Power, Ranges, Uniform, fit_evidence
from llm_elicit.orchestrator.progress import Silent
from llm_elicit.pipeline import stages
from llm_elicit.pipeline.power_sources import (
    PowerSources,
    estimate_power,
    is_identified,
    read_sources,
    scale_to_power,
)
from llm_elicit.pipeline.run_folder import POWER, Run, fit_of
from llm_elicit.planning.direct_questions import range_pairs
from llm_elicit.planning.pairs import make_plan
from llm_elicit.spaces.features import FeatureSpace

SPACE = FeatureSpace.load("penguins")
PLAN = make_plan(SPACE, Design(pairs=30), 1)
LINE = Uniform([-3.0], [3.0])
GAIN = 0.1


def _row(kind: str, number: int, reply: str, order: str = "", **cells: Any) -> dict[str, Any]:
    given = {"verdict": "A", "first": np.nan, "template": f"v1/{kind}", "replicate": 0}
    return {
        "judge": "j", "kind": kind, "number": number, "order": order, "reply": reply,
        "finish": "stop", **given, **cells,
    }  # fmt: skip


def _read(rows: list[dict[str, Any]]) -> PowerSources:
    return read_sources(pd.DataFrame(rows), "j", SPACE, 1, PLAN)


def test_ranges_are_read_back_in_the_order_they_were_shown() -> None:
    rows = [
        _row("range", i, "A", order, first=0.6 if order == "ab" else 0.3)
        for i in range(6)
        for order in ("ab", "ba")
    ]
    ranges = _read(rows).ranges
    first, second = range_pairs(SPACE, 6, 1)
    assert np.array_equal(ranges.first[::2], first)
    assert np.array_equal(ranges.first[1::2], second)
    assert np.array_equal(ranges.second[1::2], first)
    assert ranges.log_odds[0] == pytest.approx(np.log(0.6 / 0.4))
    assert ranges.log_odds[1] == pytest.approx(np.log(0.3 / 0.7))


def test_a_stated_probability_of_a_range_is_known_to_a_per_cent() -> None:
    template = "v1/range-probability"
    rows = [_row("range", i, "100 %", "ab", first=1.0, template=template) for i in range(6)]
    assert _read(rows).ranges.log_odds == pytest.approx(np.log(0.995 / 0.005))


def test_ratios_are_of_the_pairs_that_they_were_asked_of() -> None:
    said = ["3", "1/4", "0.5", "2x", "10 times", "many"]
    rows = [_row("ratio", 2 * i, reply) for i, reply in enumerate(said)]
    a, b, logs = _read(rows).ratios
    assert np.array_equal(a, PLAN.a[[0, 2, 4, 6, 8]])
    assert np.array_equal(b, PLAN.b[[0, 2, 4, 6, 8]])
    assert logs == pytest.approx(np.log([3, 0.25, 0.5, 2, 10]))


def test_quantiles_are_the_medians_of_what_was_stated_of_a_feature() -> None:
    said = ["35; 38; 44; 48; 52", "36; 39; 45; 49; 53", "37; 40; 46; 50; 54"]
    rows = [_row("quantiles", 0, reply, replicate=i) for i, reply in enumerate(said)]
    rows += [_row("quantiles", 1, "14; 14; 17; 18; 20"), _row("quantiles", 3, "1; 2; 3; 4; 5")]
    found = _read(rows)
    assert found.quantiles == {0: {0.05: 36, 0.25: 39, 0.5: 45, 0.75: 49, 0.95: 53}}
    (line,) = found.notes
    assert line.startswith("quantiles of bill_depth_mm, body_mass_g do not increase within")


def test_the_least_and_the_largest_whole_number_can_be_quantiles() -> None:
    found = _read([_row("quantiles", 2, "178; 190; 200; 215; 230")])
    assert found.quantiles == {2: {0.05: 178, 0.25: 190, 0.5: 200, 0.75: 215, 0.95: 230}}


def test_points_outside_the_range_are_left_out() -> None:
    inside = ["40; 17; 200; 4200"] * 6
    rows = [_row("sample", 0, reply) for reply in [*inside, "4; 17; 200; 4200"]]
    assert _read(rows).points.shape == (6, 4)
    few = _read(rows[-3:])
    assert few.points is None
    assert few.notes == ("points: 2 of 3 lie in the range asked about; at least 5 are needed",)


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([_row("range", i, "A", "ab") for i in range(9)], "letters without probabilities"),
        ([_row("range", i, "A", "ab", first=0.6) for i in range(4)], "4 pairs answered; at least"),
        ([_row("ratio", i, "many") for i in range(9)], "0 could be read; at least 5 are needed"),
    ],
)
def test_what_cannot_be_used_is_left_out_with_a_line(rows: list[Any], line: str) -> None:
    found = _read(rows)
    assert not found.available
    assert len(found.notes) == 1
    assert line in found.notes[0]


def test_nothing_asked_is_no_source() -> None:
    assert read_sources(None, "j", SPACE, 1, PLAN) == PowerSources()
    other = pd.DataFrame([_row("ratio", 0, "3")]).assign(judge="another")
    assert read_sources(other, "j", SPACE, 1, PLAN) == PowerSources()


def test_equal_answers_have_equal_arrays_and_others_do_not() -> None:
    def flat(rows: list[dict[str, Any]]) -> bytes:
        return b"".join(np.ascontiguousarray(x).tobytes() for x in _read(rows).arrays())

    rows = [_row("ratio", i, "3") for i in range(6)]
    assert flat(rows) == flat(rows)
    assert flat(rows) != flat([*rows[:-1], _row("ratio", 5, "4")])
    assert flat(rows) != flat(rows[:-1])


def _power(low: float, high: float, above_flat: float) -> Power:
    return Power((low * high) ** 0.5, low, high, "ranges", 0.3, above_flat=above_flat)


def test_a_power_is_known_if_it_excludes_the_flattest_and_is_not_too_wide() -> None:
    assert is_identified(_power(2.0, 8.0, 5.0))
    assert not is_identified(_power(2.0, 8.0, 1.0))
    assert not is_identified(_power(1.0, 11.0, 5.0))


@pytest.fixture(scope="module")
def faint() -> BeliefDensity:
    """Fitted to a tenth of the log density of N(0, 1/2), up to noise."""
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-3, 3, (2, 60, 1))
    log_odds = GAIN * (b**2 - a**2)[:, 0] + 0.02 * rng.standard_normal(60)
    return fit_evidence(Evidence.log_odds(a, b, log_odds), sampling=LINE, seed=0)


def _ratios(count: int, gain: float = 1.0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(5)
    a, b = rng.uniform(-2, 2, (2, count, 1))
    return a, b, gain * (b**2 - a**2)[:, 0] + 0.1 * rng.standard_normal(count)


def test_a_belief_is_kept_at_the_power_that_answers_tell(faint: BeliefDensity) -> None:
    pinned = estimate_power(faint, PowerSources(ratios=_ratios(20)), 0)
    assert pinned.used
    assert pinned.power.low < 1 / GAIN < pinned.power.high
    kept = scale_to_power(faint, pinned, measured=True, seed=0)
    assert kept.diagnostics["power"] == {
        "value": pinned.power.value, "log_sd": pinned.power.log_sd, "source": "ratios"
    }  # fmt: skip
    assert kept.sample(4000, seed=1).std() == pytest.approx(0.5**0.5, rel=0.12)


def test_log_odds_without_a_scale_have_one_nat_by_convention(faint: BeliefDensity) -> None:
    kept = scale_to_power(faint, estimate_power(faint, PowerSources(), 0), measured=True, seed=0)
    assert kept.diagnostics["power"]["source"] == "convention"
    points = LINE.sample(4000, np.random.default_rng(3))
    assert kept.utility(points).std() == pytest.approx(1.0, rel=0.05)
    # Whatever all log-odds are multiplied by, the belief is the same.
    fainter = faint.tempered(0.01)
    again = scale_to_power(fainter, estimate_power(faint, PowerSources(), 0), measured=True, seed=0)
    x = np.linspace(-2.9, 2.9, 30)[:, None]
    assert again.log_prob(x) == pytest.approx(kept.log_prob(x), abs=0.05)


def chosen(sharpness: float) -> BeliefDensity:
    """A belief from 40 choices with standard noise between points of a judge who likes zero."""
    rng = np.random.default_rng(1)
    a, b = rng.uniform(-3, 3, (2, 40, 1))
    gap = sharpness * (b**2 - a**2)[:, 0] + rng.logistic(0.0, 0.78, 40)
    evidence = Evidence.comparisons(a, b, (gap > 0) * 1.0)
    return fit_evidence(evidence, sampling=LINE, method="utility", seed=0)


def test_choices_that_bound_the_sharpness_from_below_have_one_nat_by_convention() -> None:
    belief = chosen(1e6)
    assert belief.diagnostics["separation"]["complete"]
    kept = scale_to_power(belief, estimate_power(belief, PowerSources(), 0), measured=False, seed=0)
    assert kept.diagnostics["power"]["source"] == "convention"
    points = LINE.sample(4000, np.random.default_rng(3))
    assert kept.utility(points).std() == pytest.approx(1.0, rel=0.05)


def test_choices_keep_the_assumed_noise_level() -> None:
    belief = chosen(0.5)
    assert belief.diagnostics["separation"] is None
    kept = scale_to_power(belief, estimate_power(belief, PowerSources(), 0), measured=False, seed=0)
    assert kept.diagnostics["power"] == {
        "value": 1.0, "log_sd": 0.0, "source": "assumed noise level"
    }  # fmt: skip
    assert (kept.sample(50, seed=2) == belief.sample(50, seed=2)).all()


def test_a_source_that_cannot_be_used_leaves_the_others(faint: BeliefDensity) -> None:
    outside = Ranges([[(-9.0, -8.0)]] * 6, [[(0.0, 1.0)]] * 6, np.zeros(6))
    pinned = estimate_power(faint, PowerSources(ratios=_ratios(20), ranges=outside), 0)
    assert pinned.used
    assert pinned.power.source == "ratios"
    (line,) = pinned.notes
    assert line.startswith("ranges: ")
    assert "outside the range asked about" in line


def test_ratios_of_a_judge_who_says_nothing_by_them_tell_no_power(faint: BeliefDensity) -> None:
    pinned = estimate_power(faint, PowerSources(ratios=_ratios(20, gain=0.0)), 0)
    assert not pinned.used
    kept = scale_to_power(faint, pinned, measured=True, seed=0)
    assert kept.diagnostics["power"]["source"] == "convention"


class _Notes(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, about: str, line: str) -> None:
        self.lines.append(line)


def _campaign(folder: Path, **more: Any) -> Path:
    soft = {"gain": 0.04, "noise": 0.05, "position_mean": 0.1, "position_sd": 0.05}
    judges = [
        {"name": "holder", "backend": "simulated", "log_odds": soft},
        {"name": "flat", "backend": "simulated", "log_odds": {**soft, "ignores_width": True}},
    ]
    data = {
        "name": "try", "space": "penguins", "seed": 5, "design": {"pairs": 60}, "judges": judges,
        "runs": str(folder / "runs"), "fit": {"method": "auto", "samples": 500}, **more,
    }  # fmt: skip
    path = folder / "campaign.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def test_ranges_pin_a_run_and_tell_who_ignores_their_width(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit_quickly(monkeypatch)
    run = asyncio.run(stages.ask(stages.plan(_campaign(tmp_path))))
    stages.fit(run)
    stated = {name: run.beliefs[name].diagnostics["power"] for name in ("holder", "flat")}
    assert {one["source"] for one in stated.values()} == {"convention"}
    stamps = _stamps(run)
    before = {name: _folder(run, name) / "samples.parquet" for name in stated}
    kept = {name: path.read_bytes() for name, path in before.items()}

    run = asyncio.run(stages.ask(stages.plan(_campaign(tmp_path, direct={"ranges": 40}))))
    notes = _Notes()
    stages.fit(run, notes)
    assert all(_stamps(run)[name] != stamps[name] for name in stated)
    holder = run.beliefs["holder"].diagnostics["power"]
    text = json.loads((_folder(run, "holder") / POWER).read_text())
    assert holder == {"value": text["value"], "log_sd": text["log_sd"], "source": "ranges"}
    assert text["coherence"]["p_value"] > 0.01
    assert text["low"] < text["value"] < text["high"]
    assert {name: text["sources"][0][name] for name in ("value", "low", "high")} == {
        name: text[name] for name in ("value", "low", "high")
    }
    assert kept["holder"] != before["holder"].read_bytes()
    # The other one's answers are kept as a finding, and its belief as it was.
    assert run.beliefs["flat"].diagnostics["power"] == stated["flat"]
    assert json.loads((_folder(run, "flat") / POWER).read_text())["coherence"]["p_value"] < 0.05
    assert any("do not depend on width" in line for line in notes.lines)
    times = {name: path.stat().st_mtime_ns for name, path in before.items()}
    stages.fit(run)
    assert {name: path.stat().st_mtime_ns for name, path in before.items()} == times


def test_forty_points_of_four_features_tell_a_power(tmp_path: Path) -> None:
    """Averaged over draws to second order it ran to the sharpest power looked at."""
    run = asyncio.run(stages.ask(stages.plan(_campaign(tmp_path, direct={"samples": 40}))))
    run = replace(run, campaign=run.campaign.model_copy(update={"judges": run.campaign.judges[:1]}))
    stages.fit(run)
    power = json.loads((_folder(run, "holder") / POWER).read_text())
    assert 3.0 < power["value"] < 40.0
    assert power["high"] < 10 * power["low"]


def _folder(run: Run, judge: str) -> Path:
    return run.belief_folder(judge, "auto")


def _stamps(run: Run) -> dict[str, str]:
    entries = {name: run.manifest.entry(fit_of(name, "auto")) for name in ("holder", "flat")}
    return {name: entry.read["answers"] for name, entry in entries.items() if entry is not None}


def test_a_power_is_written_as_it_is_read() -> None:
    power = replace(_power(2.0, 8.0, 5.0), sources=(_power(2.0, 8.0, 5.0),), agreement=0.3)
    assert json.loads(json.dumps(asdict(power)))["sources"][0]["source"] == "ranges"
