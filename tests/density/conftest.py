"""Beliefs that several tests look at, fitted once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from llm_elicit.density import (
    BeliefDensity,
    FitSettings,
    GaussianMixture,
    MixtureSettings,
    PosteriorSettings,
    ScoreSettings,
    SmoothSettings,
    Uniform,
    UtilitySettings,
    fit_belief,
)
from tests.density.targets import Array, ask, onemoon

# For beliefs whose bands are not used.
QUICK = FitSettings(
    utility=UtilitySettings(
        folds=4,
        mixture=MixtureSettings(counts=(2,), starts=4, search_steps=8, steps=10),
        smooth=SmoothSettings(frequencies=32),
        posterior=PosteriorSettings(draws=0),
    ),
    score=ScoreSettings(networks=3, steps=200, passes=1.0, width=32, batch=128),
)

# For beliefs that need not be accurate.
BRIEF = replace(QUICK, score=ScoreSettings(networks=2, steps=50, passes=1.0, width=16, batch=64))


def _fit_moon(method: str) -> BeliefDensity:
    box = Uniform([-3.0, -3.0], [3.0, 3.0])
    winners, losers = ask(onemoon, box, 2000, seed=11)
    settings = FitSettings(
        utility=replace(QUICK.utility, smooth=SmoothSettings()),
        score=replace(QUICK.score, steps=400, batch=256),
    )
    return fit_belief(winners, losers, sampling=box, method=method, seed=11, settings=settings)


@pytest.fixture(scope="session")
def moon_utility() -> BeliefDensity:
    return _fit_moon("utility")


@pytest.fixture(scope="session")
def moon_score() -> BeliefDensity:
    return _fit_moon("score")


def _standard_normal(x: Array) -> Array:
    return -0.5 * (x**2).sum(axis=1)


@pytest.fixture(scope="session", params=["utility", "score", "score-constant"])
def normal_under_normal(request: pytest.FixtureRequest) -> BeliefDensity:
    """Belief N(0, 1) asked under λ = N(0, variance 3)."""
    sampling = GaussianMixture([1.0], [[0.0]], [[[3.0]]])
    winners, losers = ask(_standard_normal, sampling, 6000, seed=21)
    return fit_belief(winners, losers, sampling=sampling, method=request.param, settings=QUICK)


@pytest.fixture(scope="session")
def line_judge() -> tuple[Array, Array]:
    """A small 1-D judge for cheap fits: 120 comparisons, belief N(0.3, 0.2²) on [−1, 1]."""
    return ask(lambda x: -0.5 * ((x[:, 0] - 0.3) / 0.2) ** 2, Uniform([-1.0], [1.0]), 120, seed=5)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(1234)
