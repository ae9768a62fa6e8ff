"""The simulated expert against what random utility models promise."""

import asyncio
import math

import numpy as np
import pytest
from scipy.stats import norm

from llm_elicit.backends import Request, SimulatedBackend, open_backend
from llm_elicit.campaign import SimulatedJudge
from llm_elicit.errors import InputError
from llm_elicit.features import FeatureSpace
from llm_elicit.questions import Message, Prompt

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
    expert = _expert(space, noise=noise, level=level)
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
    bare = space.model_copy(update={"table": None})
    with pytest.raises(InputError, match="no reference table"):
        _expert(bare)
    assert _expert(bare, belief="uniform").capabilities.seed
