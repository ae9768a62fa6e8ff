"""Adaptive rounds: planned from answers, on record before they are asked, the same after a kill."""

import asyncio
import hashlib
import os
import sys
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from fakes.batches import BatchProvider
from fakes.fits import fit_quickly, report_quickly
from fakes.warm import WarmPopen

from llm_elicit import density
from llm_elicit._util.settings import validate
from llm_elicit.audit.randomization import RandomizationTest
from llm_elicit.audit.reference import AuditSettings
from llm_elicit.audit.responses import build_response
from llm_elicit.comparisons.table import Choices
from llm_elicit.config.campaign import Campaign
from llm_elicit.config.design import Stop
from llm_elicit.density import Noise
from llm_elicit.errors import IncompleteError, InputError
from llm_elicit.orchestrator.journal.questions import settled
from llm_elicit.pipeline import stages
from llm_elicit.pipeline.ask import _answers
from llm_elicit.planning.rounds import Informative, Pairs, schedule_of
from llm_elicit.report.page import caveats
from llm_elicit.spaces.features import FeatureSpace
from llm_elicit.testing.provider import Answer, Error, Provider

SPACE = FeatureSpace.load("penguins")
EXPERT = {"name": "expert", "backend": "simulated"}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")


@dataclass(frozen=True)
class Told:
    """A design that needs no fit: its points follow from every answer so far."""

    space: FeatureSpace = SPACE

    def plan(self, round: int, judgments: Sequence[Choices], seed: int, size: int) -> Pairs:
        said = b"".join(one.preference.tobytes() + one.a.tobytes() for one in judgments)
        digest = hashlib.sha256(said + bytes([round, seed])).digest()
        points = self.space.sample(2 * size, np.random.default_rng(list(digest)))
        return Pairs(points[:size], points[size:])


def _letter(body: dict[str, Any]) -> str:
    return "AB"[hashlib.sha256(str(body["messages"][-1]).encode()).digest()[0] % 2]


def _gpt(url: str, name: str = "gpt", **rest: Any) -> dict[str, Any]:
    judge = {"name": name, "backend": "openai", "model": name, "base_url": f"{url}/v1"}
    return {**judge, "logprobs": False, "concurrency": 4, "attempts": 2, **rest}


def _plan(folder: Path, judges: list[dict[str, Any]], shared: bool = True, **rest: Any) -> Any:
    data = {
        "name": "try", "space": "penguins", "judges": judges, "runs": str(folder),
        "design": {"pairs": 14, "rounds": {"count": 3, "shared": shared}}, **rest,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump(data))
    return stages.plan(path)


def _ask(folder: Path, judges: list[dict[str, Any]], shared: bool = True) -> Any:
    return asyncio.run(stages.ask(_plan(folder, judges, shared), design=Told()))


def test_every_round_is_asked_once_and_depends_on_what_was_said(tmp_path: Path) -> None:
    result = _ask(tmp_path / "one", [EXPERT])
    assert not result.problems
    assert not result.missing
    frame = result.comparisons.frame
    assert Counter(frame["pair"]) == dict.fromkeys(range(14), 2)
    assert result.campaign.design.sizes == (6, 4, 4)
    assert len(result.plan) == result.campaign.design.questions == 28
    again = _ask(tmp_path / "one", [EXPERT])
    assert again.comparisons.frame.equals(frame)
    other = _ask(tmp_path / "two", [{**EXPERT, "seed": 5, "noise_level": 9.0}])
    assert np.array_equal(other.plan.a[:6], result.plan.a[:6])
    assert not np.array_equal(other.plan.a[6:], result.plan.a[6:])


CHILD = """
import sys
from pathlib import Path
from planning.test_rounds import _ask, _gpt
_ask(Path(sys.argv[1]), [_gpt(sys.argv[2])])
"""


def test_killed_in_the_middle_of_the_second_round_it_asks_the_same(tmp_path: Path) -> None:
    first, answered = 12, 3  # of the second round's eight, three are answered before the kill
    slow = 300.0

    def behave(number: int, body: dict[str, Any]) -> Answer:
        return Answer(_letter(body), delay=slow if number > first + answered else 0.0)

    with Provider(behave) as provider:
        child = WarmPopen(
            [sys.executable, "-c", CHILD, str(tmp_path / "killed"), provider.url],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
        )
        until = time.monotonic() + 280
        while len(provider.seen) < first + answered + 3:
            assert child.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        child.kill()
        child.wait()
        before = [seen.question for seen in provider.seen]
        assert len(before) < first + 8
        slow = 0.0
        result = _ask(tmp_path / "killed", [_gpt(provider.url)])
        assert not result.problems
        killed = [seen.question for seen in provider.seen]
        assert len(set(killed)) == 28
        assert len(killed) <= 28 + 4, "only what was in flight is asked again"
        assert set(before) <= set(killed)
        whole = _ask(tmp_path / "whole", [_gpt(provider.url)])
        assert {seen.question for seen in provider.seen[len(killed) :]} == set(killed)
        assert np.array_equal(whole.plan.a, result.plan.a)
        assert np.array_equal(whole.plan.b, result.plan.b)


def test_judges_share_a_round_and_wait_for_each_other(tmp_path: Path) -> None:
    fails = {"on": True}

    def behave(_number: int, body: dict[str, Any]) -> Answer | Error:
        return Error(400, "no") if fails["on"] and body["model"] == "b" else Answer(_letter(body))

    with Provider(behave) as provider:
        judges = [_gpt(provider.url, "a"), _gpt(provider.url, "b")]
        stopped = _ask(tmp_path, judges)
        assert any("'b'" in str(problem) for problem in stopped.problems)
        waits = [problem for problem in stopped.problems if isinstance(problem, IncompleteError)]
        assert any("16 of 28 questions to 'a' are in rounds that wait" in str(w) for w in waits)
        assert stopped.missing["a"] == 16
        fails["on"] = False
        assert not _ask(tmp_path, judges).problems
    by_model = {
        model: {seen.question for seen in provider.seen if seen.body["model"] == model}
        for model in "ab"
    }
    assert by_model["a"] == by_model["b"]
    assert len(by_model["a"]) == 28


def test_judges_may_have_rounds_of_their_own(tmp_path: Path) -> None:
    def answer(_number: int, body: Any) -> Answer | Error:
        return Error(402) if body["model"] == "c" else Answer(body["model"].upper())

    with Provider(answer) as provider:
        result = _ask(tmp_path, [_gpt(provider.url, name) for name in "abc"], shared=False)
    assert type(result.problems[0]).__name__ == "JudgeError"
    assert result.missing == {"c": 28}, "the others did not wait"
    frame = result.comparisons.frame
    pairs = {judge: set(frame[frame["judge"] == judge]["pair"]) for judge in "ab"}
    assert pairs["a"] & pairs["b"] == set(range(6))
    assert len(pairs["a"]) == len(pairs["b"]) == 14
    # The points in the table are those that the judge was shown.
    own = frame[(frame["judge"] == "b") & (frame["pair"] >= 6)]
    for column, name in enumerate(result.space.names):
        assert (own[f"a_{name}"] == result.plan.a[own["pair"], column]).all()
    assert settled(result.location, "a")
    assert not settled(result.location, "c")


def test_batches_go_round_by_round(tmp_path: Path) -> None:
    with BatchProvider(lambda body: Answer(_letter(body))) as provider:
        result = _plan(tmp_path, [_gpt(provider.url)])
        for size in (12, 8):
            asyncio.run(stages.ask_in_batches(result, "submit"))
            assert len(provider.batches[-1].requests) == size
            provider.end()
            (problem,) = asyncio.run(stages.ask_in_batches(result, "collect")).problems
            assert isinstance(problem, IncompleteError)
            result = stages.plan(tmp_path / "c.yaml")
        asyncio.run(stages.ask_in_batches(result, "submit"))
        provider.end()
        last = stages.plan(tmp_path / "c.yaml")
        assert not asyncio.run(stages.ask_in_batches(last, "collect")).problems
        assert len(provider.batches) == 3
        assert len(set(provider.submitted)) == 28
    assert not last.missing


def test_informative_pairs_lie_where_the_belief_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    fit_quickly(monkeypatch)
    rng = np.random.default_rng(0)
    a, b = SPACE.sample(60, rng), SPACE.sample(60, rng)
    middle = 0.5 * (SPACE.low[3] + SPACE.high[3])
    nearer = (abs(a[:, 3] - middle) < abs(b[:, 3] - middle)).astype(float)  # one feature alone
    answers = Choices(a, b, nearer, np.arange(60))
    design = Informative(SPACE, Noise())
    pairs, again = (design.plan(2, [answers], 7, 100) for _ in range(2))
    assert np.array_equal(pairs.a, again.a)
    assert np.array_equal(pairs.b, again.b)
    without = design.plan(2, [], 7, 100)
    for some in (pairs, without):
        assert SPACE.contains(some.a).all()
        assert np.array_equal(some.a, SPACE.round(some.a)), "as they are worded"
        assert (some.a != some.b).any(axis=1).all()
    far, at_random = (
        np.abs(np.concatenate([some.a, some.b])[:, 3] - middle).mean() for some in (pairs, without)
    )
    assert far < 0.85 * at_random
    assert not np.array_equal(design.plan(3, [answers], 7, 100).a, pairs.a)


def test_judges_who_share_a_round_each_have_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fit_quickly(monkeypatch)
    rng = np.random.default_rng(0)
    a, b = SPACE.sample(60, rng), SPACE.sample(60, rng)
    low, high = (
        Choices(a, b, p, np.arange(60)) for p in (1.0 * (a < b)[:, 3], 1.0 * (a > b)[:, 3])
    )
    design = Informative(SPACE, Noise())
    middle = 0.5 * (SPACE.low[3] + SPACE.high[3])
    share = [
        float((np.concatenate([pairs.a, pairs.b])[:, 3] > middle).mean())
        for pairs in (design.plan(2, given, 7, 60) for given in ([low], [low, high], [high]))
    ]
    assert share[0] < share[1] < share[2]


def test_adaptive_is_short_for_rounds() -> None:
    data = {"name": "try", "space": "penguins", "judges": [EXPERT], "design": "adaptive"}
    assert validate(Campaign, data, "c.yaml").design.sizes == (40, 40, 40, 40, 40)


def test_methods_that_take_pairs_for_draws_are_refused() -> None:
    data = {
        "name": "try", "space": "penguins", "judges": [EXPERT],
        "design": {"pairs": 14, "rounds": {"count": 3}}, "fit": {"methods": ["utility", "score"]},
    }  # fmt: skip
    with pytest.raises(InputError, match=r"'score' needs pairs drawn independently .* use util"):
        validate(Campaign, data, "c.yaml")
    data["fit"] = {"methods": ["auto"]}
    data["design"] = {"pairs": 10, "rounds": {"count": 4}}
    assert validate(Campaign, data, "c.yaml").design.sizes == (4, 2, 2, 2)
    data["design"] = {"pairs": 3, "rounds": {"count": 4}}
    with pytest.raises(InputError, match="4 rounds of 3 pairs"):
        validate(Campaign, data, "c.yaml")


@dataclass(frozen=True)
class Enough(Told):
    """A design that has heard enough after two rounds."""

    def plan(self, round: int, judgments: Sequence[Choices], seed: int, size: int) -> Pairs:
        return super().plan(round, judgments, seed, size if round < 3 else 0)


@pytest.mark.parametrize("shared", [True, False])
def test_a_round_without_pairs_is_the_last(tmp_path: Path, shared: bool) -> None:
    for _ in range(2):  # begun, and run again
        result = asyncio.run(stages.ask(_plan(tmp_path, [EXPERT], shared), design=Enough()))
        assert not result.problems
        assert not result.missing
        assert result.questions == {"expert": 20}
        assert len(result.comparisons) == len(result.plan) == 20


def _choices(preference: Any, a: Any, b: Any) -> list[Choices]:
    return [Choices(a, b, np.asarray(preference, dtype=float), np.arange(len(a)))]


def test_a_judge_is_not_asked_beyond_what_the_rule_says(monkeypatch: pytest.MonkeyPatch) -> None:
    fit_quickly(monkeypatch)
    rng = np.random.default_rng(3)
    a, b = SPACE.sample(60, rng), SPACE.sample(60, rng)
    random = _choices(rng.uniform(size=60) < 0.5, a, b)
    # Not certain of them: where choices follow a rule without fail the draws take long to make.
    heavy = _choices(1 / (1 + np.exp(-(a - b)[:, 3] / 500.0)), a, b)

    # The same answers are fitted with the same seed under several rules.
    beliefs: dict[tuple[int, int], density.BeliefDensity] = {}
    fit = Informative._fit

    def fit_once(design: Informative, choices: Choices, seed: int) -> density.BeliefDensity:
        key = id(choices), seed
        if key not in beliefs:
            beliefs[key] = fit(design, choices, seed)
        return beliefs[key]

    monkeypatch.setattr(Informative, "_fit", fit_once)

    def size(answers: list[Choices], **rule: Any) -> int:
        return len(Informative(SPACE, Noise(), Stop(**rule)).plan(2, answers, 7, 10).a)

    assert size(random, no_signal_after=50) == 0
    assert size(heavy, no_signal_after=50, max_band_width=1e-3) == 10
    assert size(heavy, max_band_width=50.0) == 0
    assert size(random + heavy, no_signal_after=50) == 10, "all are for the judge with a signal"


def test_a_rule_that_says_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="give max_band_width or no_signal_after"):
        validate(
            Campaign,
            {
                "name": "try", "space": "penguins", "judges": [EXPERT],
                "design": {"rounds": {"count": 2, "stop": {}}},
            },
            "c.yaml",
        )  # fmt: skip


@pytest.mark.parametrize("shared", [True, False])
def test_the_test_of_a_preference_goes_round_by_round(
    tmp_path: Path, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit_quickly(monkeypatch)
    report_quickly(monkeypatch)
    judges = [EXPERT, {"name": "random", "backend": "simulated", "noise_level": 1e6}]
    result = _ask(tmp_path, judges, shared)
    assert not result.problems
    stages.audit(result)
    stages.report(result)
    audit, settings = result.audit, AuditSettings()
    whose = {name: schedule_of(name, result.campaign) for name in ("random", "expert")}
    for name, schedule in whose.items():
        choices = result.comparisons.choices(name)
        asked = [len(set(some) & set(choices.pair)) for some in schedule.pairs]
        assert asked == [6, 4, 4]
        rng = np.random.default_rng([audit.seed, 2, zlib.crc32(name.encode())])
        test = RandomizationTest(build_response(result.comparisons, name), SPACE, schedule)
        assert audit.of(name).preference.p_value == test.run(settings.flips, rng).p_value
        assert audit.of(name).preference.sample_size is None
    page = " ".join(result.report_path.read_text(encoding="utf-8").split())
    assert "approximate" not in page
    assert "done round by round" in page
    ending = "A rule could end the rounds early"
    assert ending not in page
    design = result.campaign.design
    rounds = design.rounds.model_copy(update={"stop": Stop(max_band_width=0.1)})
    stopping = result.campaign.model_copy(
        update={"design": design.model_copy(update={"rounds": rounds})}
    )
    said = dict(caveats(audit, stopping, {}, {}))
    assert ending in said["Test of a consistent preference"]


def test_every_pair_of_a_judge_is_in_one_round() -> None:
    data = {
        "name": "try", "space": "penguins", "judges": [{**EXPERT, "name": n} for n in "ab"],
        "design": {"pairs": 14, "rounds": {"count": 3, "stop": {"max_band_width": 1.0}}},
    }  # fmt: skip
    shared = validate(Campaign, data, "c.yaml")
    assert schedule_of("a", shared) == schedule_of("b", shared)
    assert schedule_of("a", shared).may_end
    data["design"]["rounds"] = {"count": 3, "shared": False}
    apart = validate(Campaign, data, "c.yaml")
    pairs = {judge: schedule_of(judge, apart).pairs for judge in "ab"}
    assert pairs["a"] == (range(6), range(6, 10), range(14, 18))
    assert pairs["b"] == (range(6), range(10, 14), range(18, 22))
    assert not schedule_of("a", apart).may_end
    del data["design"]["rounds"]
    assert schedule_of("a", validate(Campaign, data, "c.yaml")).pairs == (range(14),)


SOFT = {"name": "soft", "backend": "simulated", "log_odds": {"gain": 0.04, "noise": 0.05}}


def test_log_odds_and_what_tells_their_scale_reach_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read as choices, faint log-odds would be random choices."""
    fit_quickly(monkeypatch)
    judges, direct = [SOFT, {**EXPERT, "name": "hard"}], {"ratios": 6}
    run = _plan(tmp_path, judges, design={"pairs": 40}, direct=direct)
    run = asyncio.run(stages.ask(run))
    soft, hard = _answers(run, ["soft", "hard"])
    assert len(soft) == len(hard) == 40
    assert len(soft.evidence.measurements) == 80
    assert hard.evidence is None
    seen: list[density.BeliefDensity] = []

    def scale(belief: density.BeliefDensity) -> density.BeliefDensity:
        seen.append(soft.scale(belief))
        return seen[-1]

    pairs = Informative(SPACE, density.Noise()).plan(2, [replace(soft, scale=scale)], 1, 20)
    assert pairs.a.shape == (20, 4)
    (belief,) = seen
    assert belief.diagnostics["power"]["source"] == "ratios"
    assert belief.diagnostics["response"]["held_out_r2"] > 0.3
