"""Hamiltonian Monte Carlo under the posterior of mixtures, and the gradient it uses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from llm_elicit.density import GaussianMixture, MixturePrior, Noise, Uniform
from llm_elicit.density.likelihood import Response
from llm_elicit.density.utility.model import (
    FactorMixture,
    Mixture,
    MixturePosterior,
    inverse_root,
    log_prior,
    maximize,
)
from llm_elicit.density.utility.posterior import HmcSettings, MixtureDensity, sample_hmc
from llm_elicit.density.utility.quadratic import Regression
from llm_elicit.density.utility_function import Tail
from tests.density.targets import ask, assert_close


def test_hmc_corrects_its_normal_approximation() -> None:
    """A skewed law, Gamma(3, 1) in log-coordinates, from a normal that is a little too narrow."""
    found = sample_hmc(
        lambda x: 3.0 * x.squeeze(1) - 3.0 * x.squeeze(1).exp(),
        torch.tensor([[0.5]]),
        4000,
        torch.Generator().manual_seed(0),
        lambda _: lambda x: 3.0 - 3.0 * x.exp(),
    )
    exact = np.log(np.random.default_rng(0).gamma(3.0, 1.0 / 3.0, 100_000))
    levels = [0.1, 0.5, 0.9]
    np.testing.assert_allclose(
        np.quantile(found.numpy(), levels), np.quantile(exact, levels), atol=0.06
    )


@functools.cache
def _crowded() -> tuple[MixturePosterior, Mixture]:
    """The posterior of four components in five features after 400 choices by one, and its mode."""
    generator = torch.Generator().manual_seed(0)
    box = Uniform([-3.0] * 5, [3.0] * 5)
    rng = np.random.default_rng(0)
    winners, losers = ask(lambda x: -0.5 * (x**2).sum(1), box, 400, rng)
    points = torch.from_numpy(np.concatenate([winners, losers])).float() / 3.0**0.5
    response, prior = Response(Noise()), MixturePrior(concentration=1.0, strength=0.3)
    posterior = MixturePosterior(points, torch.ones(400), response, prior)
    offset = torch.randn(4, 5, generator=generator)
    start = Mixture(2.0 * torch.eye(5).repeat(4, 1, 1), offset, torch.zeros(4))
    return posterior, maximize(posterior, start, 60)[0]


def test_chains_under_a_posterior_far_from_normal_converge() -> None:
    """Draws of its normal approximation lie hundreds of nats too low; those of chains do not.

    So many parameters (84) have their log-posterior about half as many nats below the mode, and
    chains with three times as many trajectories end at about the same height.
    """
    law = MixtureDensity(*_crowded())
    mode = float(law(torch.zeros(1, law.mode.height.numel() * 21)))
    scales = inverse_root(law.posterior.derivatives(law.mode)[1])
    generator = torch.Generator().manual_seed(1)
    normal = law(torch.randn(32, scales.shape[1], generator=generator) @ scales.T).mean() - mode
    heights = [
        law(
            sample_hmc(
                law,
                scales,
                32,
                generator,
                law.surrogate_gradient,
                HmcSettings(trajectories=trajectories),
            )
        )
        for trajectories in (4, 12)
    ]
    usual, long = (float(each.mean()) for each in heights)
    # Over 128 chains and three seeds the difference is 5.9; 32 have a standard error of 1.7.
    error = float(sum(each.var() / len(each) for each in heights)) ** 0.5
    assert normal < usual - mode - 50.0
    assert abs(long - usual) < 6.0 + 2.0 * error
    assert usual - mode > -scales.shape[1]


def test_chains_converge_where_choices_are_nearly_all_decided() -> None:
    """Two ridges that cross, known by the few choices in doubt of 2000.

    Chains of one window, scaled by the curvature at the mode, have not converged.
    """
    law = MixtureDensity(*_ridges())
    scales = inverse_root(law.posterior.derivatives(law.mode)[1])
    generator = torch.Generator().manual_seed(2)
    settings = HmcSettings(windows=1), HmcSettings(), HmcSettings(trajectories=12)

    def narrowness(how: HmcSettings) -> torch.Tensor:
        ends = law.mode.take_step(
            sample_hmc(law, scales, 32, generator, law.surrogate_gradient, how)
        )
        return torch.linalg.slogdet(ends.whiten).logabsdet.sum(1)

    once, usual, long = (narrowness(how) for how in settings)
    error = float(long.std()) * (2.0 / 32) ** 0.5
    left = abs(float(usual.mean() - long.mean()))
    assert abs(float(once.mean() - long.mean())) > max(3.0 * error, 2.0 * left)
    # The usual chains are short by about two of these errors, over five generators.
    assert left < 4.0 * error


def test_the_surrogate_has_nearly_the_same_gradient() -> None:
    """By fewer choices."""
    law = MixtureDensity(*_ridges())
    steps = 0.02 * torch.randn(4, law.mode.height.numel() * 15, generator=torch.Generator())
    near = law.surrogate(steps)
    slope, nearly = law.gradient(steps), near.gradient(steps)
    assert len(near.posterior.weights) < 0.7 * len(law.posterior.weights)
    assert_close(nearly, slope, rtol=0.0, atol=0.05 * float(slope.abs().max()))


def test_the_surrogate_may_be_left_without_choices() -> None:
    """The prior alone is left."""
    law, start = MixtureDensity(*_ridges()), torch.zeros(1, 30)
    with torch.no_grad():
        gap = _gap(law.mode, law.posterior)
    surest = MixtureDensity(law.posterior.subset(gap.argmax()[None]), law.mode).surrogate(start)
    assert len(surest.posterior.weights) == 0
    prior = log_prior(law.posterior.prior, law.mode.take_step(start))
    assert_close(surest(start), prior)
    root, gradient = 0.1 * torch.eye(30), lambda _: surest.gradient
    assert torch.isfinite(sample_hmc(surest, root, 4, torch.Generator(), gradient)).all()


def test_a_proposal_without_density_is_rejected() -> None:
    law = MixtureDensity(*_ridges())
    far = torch.stack([torch.zeros(30), torch.full((30,), 1e12), torch.full((30,), 1e30)])
    near, *gone = law(far)
    assert torch.isfinite(near)
    assert not any(value > near for value in gone)
    assert torch.isfinite(law.gradient(far)[0]).all()


@functools.cache
def _ridges() -> tuple[MixturePosterior, Mixture]:
    """The posterior of two crossing ridges in four features after 2000 choices by them."""
    ones, signs = np.ones(4), np.array([1.0, -1.0, 1.0, -1.0])
    shapes = [0.1 * np.eye(4) + 0.9 * np.outer(side, side) for side in (ones, signs)]
    belief = GaussianMixture([0.5, 0.5], np.zeros((2, 4)), shapes)
    wide = GaussianMixture([1.0], np.zeros((1, 4)), [3.0 * np.eye(4)])
    winners, losers = ask(belief.log_prob, wide, 2000, np.random.default_rng(0))
    points = torch.from_numpy(np.concatenate([winners, losers])).float() / 3.0**0.5
    prior = MixturePrior(concentration=1.0, strength=0.3)
    posterior = MixturePosterior(points, torch.ones(2000), Response(Noise()), prior)
    roots = np.stack([np.linalg.cholesky(np.linalg.inv(shape)) for shape in shapes])
    whiten = torch.from_numpy(3.0**0.5 * roots).float()
    start = Mixture(whiten, torch.zeros(2, 4), torch.zeros(2))
    return posterior, maximize(posterior, start, 60)[0]


def _in_double(kind: str, tail: Tail) -> MixtureDensity:
    """The posterior of `_crowded` of a kind of mixture, over more rows than are taken at a time."""
    posterior, mode = _crowded()
    points = torch.cat([side.repeat(4, 1) for side in posterior.points.chunk(2)]).double()
    arrays = [part.double() for part in (mode.whiten, mode.offset, mode.height)]
    mixture = Mixture(*arrays)
    if kind != "free":
        near = FactorMixture.approximate(mixture)
        elongated = torch.tensor([True, False, True, False])
        mixture = FactorMixture.of(
            elongated, near.height, near.centre, near.log_scale, near.loading + 0.1
        )
    prior = replace(posterior.prior, width_uncertainty=0.2, size_power=2.0, concentration=0.5)
    effects = torch.linspace(0.5, 2.0, 1600), torch.linspace(-1.0, 1.0, 1600)
    weights = torch.linspace(0.1, 1.0, 1600, dtype=torch.float64)
    of_choices = MixturePosterior(points, weights, Response(Noise(), *effects), prior)
    return MixtureDensity(of_choices, replace(mixture, tail=tail))


@pytest.mark.parametrize(
    ("kind", "tail"),
    [
        ("free", Tail()),
        ("free", Tail(0.1, 1 / 3)),
        ("free", Tail(9.0, 0.0)),
        ("one factor", Tail()),
    ],
)
def test_the_gradient_is_the_derivative(kind: str, tail: Tail) -> None:
    law = _in_double(kind, tail)
    size = 12 if kind == "one factor" else 21
    generator = torch.Generator().manual_seed(0)
    steps = 0.1 * torch.randn(3, 4 * size, generator=generator, dtype=torch.float64)
    expected = _differentiate(law, steps)
    assert_close(law.gradient(steps), expected, rtol=1e-10, atol=1e-10)
    assert_close(
        law.log_likelihood(law.mode.take_step(steps)),
        torch.stack([_log_likelihood(law, step) for step in steps]),
    )


def _differentiate(law: Callable[[torch.Tensor], torch.Tensor], at: torch.Tensor) -> torch.Tensor:
    at = at.clone().requires_grad_()
    return torch.autograd.grad(law(at).sum(), [at])[0]


def _log_likelihood(law: MixtureDensity, step: torch.Tensor) -> torch.Tensor:
    gap = _gap(law.mode.take_step(step), law.posterior)
    return law.posterior.response.log_cdf(gap) @ law.posterior.weights


def _gap(mixture: Mixture, posterior: MixturePosterior) -> torch.Tensor:
    winners, losers = mixture(posterior.points).chunk(2)
    return winners - losers


@pytest.mark.parametrize("family", ["gumbel", "exponential", "normal"])
@pytest.mark.parametrize("gain", [None, 0.4])
def test_slopes_of_a_linear_predictor_are_those_of_its_values(
    family: str, gain: float | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    columns = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    effects = () if gain is None else (torch.full((30,), gain), 0.1 * torch.arange(30.0))
    response = Response(Noise(family), *effects)
    weights = torch.rand(30, generator=generator, dtype=torch.float64)
    law = Regression(columns, weights, response, torch.eye(5, dtype=torch.float64))
    at = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    assert_close(law.gradients(at), _differentiate(law.values, at))
