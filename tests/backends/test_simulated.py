"""The simulated expert against what random utility models promise."""

import asyncio
import itertools
import math
import time

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm

from llm_elicit.backends import Request, SimulatedBackend, open_backend
from llm_elicit.config.judges import SimulatedJudge
from llm_elicit.density import Noise
from llm_elicit.errors import InputError
from llm_elicit.questions.template import Message, Prompt
from llm_elicit.spaces.features import FeatureSpace

LEVEL = {"gumbel": math.sqrt(6) / math.pi, "exponential": 1.0, "normal": 1.0}


def _expert(space: FeatureSpace, **settings: object) -> SimulatedBackend:
    judge = SimulatedJudge.model_validate({"name": "e", "backend": "simulated", **settings})
    backend = open_backend(judge, space)
    assert isinstance(backend, SimulatedBackend)
    return backend


def _answers(expert: SimulatedBackend, a: np.ndarray, b: np.ndarray, n: int) -> float:
    """The share of `n` different questions about one pair in which the first is preferred."""

    async def go() -> int:
        won = 0
        for i in range(n):
            prompt = Prompt((Message("user", f"question {i}"),))
            won += (await expert.ask(Request(prompt, (a, b)))).text == "A"
        return won

    return asyncio.run(go()) / n


def _law(noise: str, difference: float, level: float) -> float:
    """P(first preferred) for a difference in utility."""
    if noise == "gumbel":
        return 1 / (1 + math.exp(-difference / level))
    if noise == "normal":
        return float(norm.cdf(difference / (math.sqrt(2) * level)))
    tail = 0.5 * math.exp(-level * abs(difference))
    return 1 - tail if difference > 0 else tail


@pytest.mark.parametrize("noise", ["gumbel", "exponential", "normal"])
@pytest.mark.parametrize("level", [None, 0.5])
def test_choices_follow_the_noises_law(
    noise: str, level: float | None, space: FeatureSpace
) -> None:
    expert = _expert(space, noise=noise, noise_level=level)
    points = expert.sample(40, np.random.default_rng(1))
    log_p = expert.log_belief(points)
    # A pair about one unit of utility apart tells the laws from each other.
    gaps = np.abs(np.abs(log_p[:, None] - log_p[None, :]) - 1.0)
    i, j = np.unravel_index(np.argmin(gaps), gaps.shape)
    difference = float(log_p[i] - log_p[j])
    expected = _law(noise, difference, level or LEVEL[noise])
    n = 600
    share = _answers(expert, points[i], points[j], n)
    assert share == pytest.approx(expected, abs=4 * math.sqrt(0.25 / n))


@pytest.mark.parametrize("noise", ["gumbel", "exponential", "normal"])
def test_stated_probabilities_follow_the_noises_law(noise: str, space: FeatureSpace) -> None:
    """As the density core has it, which the judge does without."""
    expert = _expert(space, noise=noise, noise_level=2.0)
    points = expert.sample(30, np.random.default_rng(1))
    utilities = expert.log_belief(points)
    prompt = Prompt((Message("user", "how likely?"),))
    for i, j in itertools.pairwise(range(len(points))):
        request = Request(prompt, (points[i], points[j]), answer="probability")
        stated = asyncio.run(expert.ask(request)).text
        difference = torch.as_tensor(utilities[i] - utilities[j])
        expected = float(Noise(noise, 2.0).log_cdf(difference).exp())
        assert float(stated.removesuffix(" %")) == pytest.approx(100.0 * expected, abs=0.5001)


def test_an_answer_depends_on_the_question_alone(space: FeatureSpace, request_: Request) -> None:
    async def ask(expert: SimulatedBackend, requests: list[Request]) -> list[str]:
        return [(await expert.ask(request)).text for request in requests]

    points = space.sample(60, np.random.default_rng(3))
    requests = [
        Request(Prompt((Message("user", str(i)),)), (points[i], points[i + 1])) for i in range(59)
    ]
    forward = asyncio.run(ask(_expert(space), requests))
    backward = asyncio.run(ask(_expert(space), requests[::-1]))[::-1]
    assert forward == backward
    assert asyncio.run(ask(_expert(space, seed=1), requests)) != forward
    assert {"A", "B"} == set(forward)


def test_replicates_are_drawn_anew(space: FeatureSpace, request_: Request) -> None:
    expert = _expert(space, belief="uniform")

    async def go() -> set[str]:
        requests = [Request(request_.prompt, request_.points, replicate=r) for r in range(20)]
        return {(await expert.ask(request)).text for request in requests}

    assert asyncio.run(go()) == {"A", "B"}


def test_a_uniform_belief_prefers_nothing(space: FeatureSpace) -> None:
    expert = _expert(space, belief="uniform")
    a, b = space.sample(2, np.random.default_rng(0))
    assert np.ptp(expert.log_belief(np.stack([a, b]))) == 0.0
    assert _answers(expert, a, b, 600) == pytest.approx(0.5, abs=0.09)


def test_the_belief_is_a_density_of_the_table(space: FeatureSpace) -> None:
    expert = _expert(space)
    rng = np.random.default_rng(0)
    drawn = expert.sample(4000, rng)
    assert space.contains(drawn).all()
    table = space.to_scale(space.table_points())
    spread = table.std(axis=0)
    gap = np.abs(space.to_scale(drawn).mean(axis=0) - table.mean(axis=0)) / spread
    assert (gap < 0.15).all()
    # Its integral over the range, by Monte Carlo under λ, is the mass the range holds.
    low, high = space.to_scale(space.low), space.to_scale(space.high)
    uniform = space.from_scale(low + rng.random((20_000, space.dimension)) * (high - low))
    integral = np.exp(expert.log_belief(uniform)).mean() * np.prod(high - low)
    assert 0.75 < integral <= 1.05


def test_a_space_without_a_table_cannot_have_its_belief(space: FeatureSpace) -> None:
    space.table_points()  # read and kept: the copy must not answer from it
    bare = space.model_copy(update={"table": None})
    with pytest.raises(InputError, match="no reference table"):
        _expert(bare)
    assert _expert(bare, belief="uniform").capabilities.seed


def test_an_answer_takes_its_latency_which_is_no_part_of_its_identity(space: FeatureSpace) -> None:
    judge = SimulatedJudge(name="slow", backend="simulated", latency=0.2)
    prompt = Prompt((Message("user", "a or b"),))
    a, b = space.sample(2, np.random.default_rng(0))
    began = time.monotonic()
    asyncio.run(SimulatedBackend(judge, space).ask(Request(prompt, (a, b))))
    assert time.monotonic() - began >= 0.2
    assert judge.identity() == judge.model_copy(update={"latency": 0.0}).identity()


def _log_odds(expert: SimulatedBackend, pairs: np.ndarray, replicate: int = 0) -> np.ndarray:
    """log P(first) / P(second) of pairs `(n, 2, d)`; each is a question of its own."""

    async def go() -> list[float]:
        found = []
        for a, b in pairs:
            text = f"{a.tolist()} or {b.tolist()}"
            reply = await expert.ask(Request(Prompt((Message("user", text),)), (a, b), replicate))
            assert reply.first is not None
            assert reply.text == ("A" if reply.first >= 0.5 else "B")
            found.append(math.log(reply.first / (1.0 - reply.first)))
        return found

    return np.array(asyncio.run(go()))


SOFT = {"gain": 0.05, "noise": 0.03, "position_mean": 0.2, "position_sd": 0.1}


def test_log_odds_are_gain_times_log_density_plus_position_plus_noise(space: FeatureSpace) -> None:
    expert = _expert(space, log_odds=SOFT)
    pairs = space.sample(1200, np.random.default_rng(5)).reshape(600, 2, -1)
    difference = np.diff(expert.log_belief(pairs.reshape(1200, -1)).reshape(600, 2))[:, 0]
    one, other = _log_odds(expert, pairs), _log_odds(expert, pairs[:, ::-1])
    half, position = (one - other) / 2, (one + other) / 2
    gain = float(half @ -difference / (difference @ difference))
    assert gain == pytest.approx(0.05, rel=0.02)
    # The position effect is the same in both orders, so half differences have the noise alone.
    assert np.std(half + gain * difference) == pytest.approx(0.03 / math.sqrt(2), rel=0.12)
    assert position.mean() == pytest.approx(0.2, abs=0.02)
    assert position.std() == pytest.approx(math.hypot(0.1, 0.03 / math.sqrt(2)), rel=0.12)


def test_replicates_of_log_odds_differ_by_the_noise_alone(space: FeatureSpace) -> None:
    expert = _expert(space, log_odds=SOFT)
    pairs = space.sample(600, np.random.default_rng(6)).reshape(300, 2, -1)
    first, again = _log_odds(expert, pairs), _log_odds(expert, pairs, replicate=1)
    assert np.std(first - again) == pytest.approx(0.03 * math.sqrt(2), rel=0.15)
    assert (_log_odds(_expert(space, log_odds=SOFT), pairs) == first).all()
    assert not (_log_odds(_expert(space, log_odds=SOFT, seed=1), pairs) == first).any()


def test_a_judge_without_gain_has_no_content(space: FeatureSpace) -> None:
    expert = _expert(space, log_odds={"gain": 0, "noise": 0.1})
    pairs = space.sample(600, np.random.default_rng(7)).reshape(300, 2, -1)
    difference = np.diff(expert.log_belief(pairs.reshape(600, -1)).reshape(300, 2))[:, 0]
    assert abs(np.corrcoef(_log_odds(expert, pairs), difference)[0, 1]) < 0.2


def test_log_odds_are_part_of_what_a_simulated_judge_is() -> None:
    judge = SimulatedJudge(name="e", backend="simulated")
    assert judge.identity()["log_odds"] is None
    soft = SimulatedJudge.model_validate({"name": "e", "backend": "simulated", "log_odds": {}})
    assert soft.identity()["log_odds"]["gain"] == 0.04


def test_the_noise_of_choices_does_not_go_with_log_odds() -> None:
    with pytest.raises(ValueError, match=r"noise_level 0\.5 applies to choices.*log_odds\.noise"):
        SimulatedJudge.model_validate(
            {"name": "e", "backend": "simulated", "log_odds": {}, "noise_level": 0.5}
        )


def test_a_large_table_costs_no_more_time_than_a_small_one():
    """A question about a table of 50,000 rows once took an eighth of a second."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(5, 1, 50_000), "b": rng.normal(1, 2, 50_000)})
    space = FeatureSpace.from_frame(frame, name="large")
    expert = SimulatedBackend(SimulatedJudge(name="expert", backend="simulated"), space)
    points = space.sample(1000, rng)
    found = expert.log_belief(points)
    expected = norm.logpdf(points, [5, 1], [1, 2]).sum(axis=1)
    assert np.corrcoef(found, expected)[0, 1] > 0.99
    began = time.process_time()
    expert.log_belief(points[:50])
    assert time.process_time() - began < 2.0
