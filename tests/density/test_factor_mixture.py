"""Mixtures of components with one factor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_elicit.density import GaussianMixture, MixturePrior, MixtureSettings, Noise
from llm_elicit.density.likelihood import Response
from llm_elicit.density.utility.cross_validation import ChoiceData, CrossValidation
from llm_elicit.density.utility.mixture import fit_mixtures
from llm_elicit.density.utility.model import (
    FactorMixture,
    Mixture,
    MixturePosterior,
    log_prior,
    maximize,
)
from tests.density.targets import ask, assert_close


def _mixture(generator: torch.Generator, count: int = 3, d: int = 4) -> FactorMixture:
    """Elongated and flattened components in turn."""
    height, log_scale = torch.randn(2, count, generator=generator)
    centre, loading = torch.randn(2, count, d, generator=generator)
    return FactorMixture.of(torch.arange(count) % 2 == 0, height, centre, 0.3 * log_scale, loading)


def test_covariances_are_elongated_and_flattened() -> None:
    mixture = _mixture(torch.Generator().manual_seed(0))
    loading = mixture.loading
    shape = torch.eye(4) + loading[:, :, None] * loading[:, None]
    shape = torch.where(mixture.elongated[:, None, None], shape, torch.linalg.inv(shape))
    expected = (2.0 * mixture.log_scale).exp()[:, None, None] * shape
    covariance = torch.linalg.inv(mixture.whiten @ mixture.whiten.mT)
    assert_close(covariance, expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 6))
def test_the_nearest_of_a_factor_mixture_is_itself(seed: int, d: int) -> None:
    mixture = _mixture(torch.Generator().manual_seed(seed), d=d)
    nearest = FactorMixture.approximate(mixture)
    points = torch.randn(20, d, generator=torch.Generator().manual_seed(seed))
    assert_close(nearest(points), mixture(points), rtol=2e-3, atol=2e-3)


def test_derivatives_are_those_along_its_own_steps() -> None:
    generator = torch.Generator().manual_seed(0)
    mixture, points = _mixture(generator), torch.randn(60, 4, generator=generator)
    prior = MixturePrior(1.5, 0.8, 0.6, 0.3, 0.4, 1.4)
    weights = torch.rand(30, generator=generator) + 0.5
    posterior = MixturePosterior(points, weights, Response(Noise()), prior)
    gradient, curvature = posterior.derivatives(mixture)

    def differences(step: torch.Tensor) -> torch.Tensor:
        winners, losers = mixture.take_step(step)(points).chunk(2)
        return winners - losers

    step = torch.zeros(3 * 10, requires_grad=True)
    choices = posterior.response.log_cdf(differences(step)) @ weights
    (choices + log_prior(prior, mixture.take_step(step))).backward()
    assert_close(gradient, step.grad, atol=2e-3, rtol=1e-3)
    # Flat only where f is raised everywhere alike.
    lowest = torch.linalg.eigvalsh(curvature.double())[:2]
    assert abs(float(lowest[0])) < 1e-4 < float(lowest[1])
    slopes = torch.autograd.functional.jacobian(differences, torch.zeros(30)).double()
    inverse = torch.linalg.pinv(curvature.double(), rtol=1e-6)
    _, spread = posterior.predict(mixture, points)
    expected = (slopes @ inverse * slopes).sum(1).sqrt().float()
    assert_close(spread, expected, rtol=1e-2, atol=1e-4)


def test_many_steps_at_once_are_as_many_mixtures() -> None:
    generator = torch.Generator().manual_seed(1)
    mixture, steps = _mixture(generator), 0.2 * torch.randn(5, 30, generator=generator)
    many = mixture.take_step(steps)
    assert isinstance(many, FactorMixture)
    measures = many.log_measure()
    for number, step in enumerate(steps):
        one = mixture.take_step(step)
        assert_close(many.whiten[number], one.whiten)
        assert_close(many.offset[number], one.offset)
        assert_close(measures[number], one.log_measure())
    assert not mixture.log_measure().isclose(torch.tensor(0.0))
    assert Mixture(many.whiten, many.offset, many.height).log_measure().tolist() == [0.0] * 5


def test_intervals_of_a_loadings_length_cover_it() -> None:
    """Of a loading of ten entries, each observed with normal error.

    With a flat measure of its entries fewer than three in four do.
    """
    rng, long, covered = np.random.default_rng(0), np.sqrt(20.0), np.zeros(2)
    truth = np.r_[long, np.zeros(9)]
    one = torch.ones(1, dtype=torch.bool), torch.zeros(1), torch.zeros(1, 10), torch.zeros(1)
    for _ in range(200):
        seen = truth + rng.normal(size=10)
        loadings = torch.from_numpy(seen + rng.normal(size=(4000, 10))).float()
        measure = FactorMixture.of(*one, loadings[:, None]).log_measure().numpy()
        lengths = loadings.norm(dim=1).numpy()
        order = np.argsort(lengths)
        for number, logs in enumerate((np.zeros(4000), measure[order])):
            share = np.cumsum(np.exp(logs - logs.max()))
            low, high = np.interp([0.05, 0.95], share / share[-1], lengths[order])
            covered[number] += low < long < high
    plain, measured = covered / 200
    assert plain < 0.75
    assert measured == pytest.approx(0.9, abs=0.06)


@pytest.mark.parametrize("n", [500, 1500])
def test_comparisons_determine_many_simple_components(n: int) -> None:
    """Four in eight features: 500 choices are too few for four free shapes, 1500 overfit them."""
    rng = np.random.default_rng(3)
    centres = 0.7 * np.kron(np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]]), np.ones(4)) / 2**0.5
    axes = rng.normal(size=(4, 8))
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    shapes = 0.05 * (np.eye(8) + 3.0 * axes[:, :, None] * axes[:, None])
    belief = GaussianMixture(np.full(4, 0.25), centres, shapes)
    wide = GaussianMixture(np.full(4, 0.25), centres, 3.0 * shapes)
    winners, losers = ask(belief.log_prob, wide, n, 7)
    data = ChoiceData(winners, losers, np.ones(n), np.arange(n))
    validation = CrossValidation(data, Response(Noise()), 4, np.random.default_rng(0))
    two, four = fit_mixtures(validation, MixtureSettings(counts=(2, 4)), -np.inf)
    assert isinstance(four.mode, FactorMixture)
    assert four.score > two.score + 0.08
    inverse = torch.linalg.inv(four.mode.whiten)
    found = (four.mode.offset[:, None] @ inverse).squeeze(1).numpy()
    nearest = np.linalg.norm(found[:, None] - centres, axis=2)
    assert sorted(nearest.argmin(1)) == [0, 1, 2, 3]
    assert nearest.min(1).max() < 0.4


def test_fisher_scoring_stays_among_factor_mixtures() -> None:
    generator = torch.Generator().manual_seed(2)
    points = torch.randn(200, 4, generator=generator)
    posterior = MixturePosterior(points, torch.ones(100), Response(Noise()), MixturePrior())
    start = _mixture(generator)
    found, value = maximize(posterior, start, 20)
    assert isinstance(found, FactorMixture)
    assert value > posterior.value(start)
    nearest = FactorMixture.approximate(found)
    assert_close(nearest(points), found(points), rtol=2e-3, atol=2e-3)
