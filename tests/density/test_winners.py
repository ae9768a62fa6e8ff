"""The marginal winner density and the tempering field of a belief."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from llm_elicit.density import (
    BeliefDensity,
    DensityError,
    GaussianMixture,
    Noise,
    Uniform,
    fit_belief,
    winner_density,
)
from tests.density.conftest import BRIEF
from tests.density.targets import ask

SAMPLINGS = {
    "uniform": Uniform([-3.0], [3.0]),
    "logarithmic": Uniform([0.2], [5.0], log=[True]),
    "normal": GaussianMixture([1.0], [[0.5]], [[[2.0]]]),
}


CASES = [("uniform", "utility"), ("logarithmic", "score"), ("normal", "score-constant")]


@cache
def _fitted(name: str, method: str) -> BeliefDensity:
    sampling = SAMPLINGS[name]
    winners, losers = ask(lambda x: -2.0 * (x[:, 0] - 1.0) ** 2, sampling, 150, seed=5)
    return fit_belief(winners, losers, sampling=sampling, method=method, settings=BRIEF)


@pytest.fixture(params=CASES)
def belief(request: pytest.FixtureRequest) -> BeliefDensity:
    return _fitted(*request.param)


def test_it_is_a_density_and_its_field_leads_back_to_the_belief(belief: BeliefDensity) -> None:
    """By finite differences of both log-densities, whose ratio to λ is in nats per scale unit."""
    winners, sampling = winner_density(belief), belief.sampling
    low, high = np.quantile(sampling.sample(20_000, np.random.default_rng(0)), [0.0, 1.0])
    grid = np.linspace(low, high, 1001)[:, None]
    assert np.trapezoid(np.exp(winners.log_prob(grid)), grid[:, 0]) == pytest.approx(1, abs=0.01)
    x, h = np.array([[0.6], [1.3], [2.1]]), 1e-3
    of_belief, of_winners = winners.scores(x)

    def slope(log_prob: object) -> np.ndarray:
        assert callable(log_prob)
        return np.asarray(log_prob(x + h) - log_prob(x - h)) / (2 * h)

    single = {"abs": 0.02, "rel": 0.02}  # networks are in single precision
    assert slope(belief.log_prob) == pytest.approx(of_belief[:, 0], **single)
    assert slope(winners.log_prob) == pytest.approx(of_winners[:, 0], **single)
    per_scale, of_sampling = slope(sampling.log_scale_derivative), slope(sampling.log_prob)
    tempered = winners.tempering_field(x) * (of_winners[:, 0] - of_sampling)
    assert tempered == pytest.approx(of_belief[:, 0] - per_scale, **single)


def test_winners_have_that_density(belief: BeliefDensity) -> None:
    """Simulated judges with the belief's utility prefer points of this mean."""
    sampling, rng = belief.sampling, np.random.default_rng(1)
    a, b = (torch.from_numpy(sampling.sample(20_000, rng)) for _ in range(2))
    u = [belief.log_prob(x) - sampling.log_scale_derivative(x.numpy()) for x in (a, b)]
    first = Noise().log_cdf(torch.from_numpy(u[0] - u[1])).exp()[:, None]
    mean = float((first * a + (1.0 - first) * b).mean())
    points = sampling.sample(20_000, rng)
    ratio = np.exp(winner_density(belief).log_prob(points) - sampling.log_prob(points))
    assert float(ratio @ points[:, 0]) / len(points) == pytest.approx(mean, abs=0.03)


def test_points_outside_the_support_are_refused() -> None:
    with pytest.raises(DensityError, match="lies outside"):
        winner_density(_fitted(*CASES[0])).log_prob([[9.0]])
