"""The law of a posterior's draws: its slope, walks under it, and what it makes of correlations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from llm_elicit.density import GaussianMixture, Noise, Uniform
from llm_elicit.density.likelihood import Response
from llm_elicit.density.utility.posterior import MixtureLaw, freed
from llm_elicit.density.utility.scoring import (
    Mixture,
    MixturePosterior,
    MixturePrior,
    climb,
    scales_of,
)
from llm_elicit.density.utility.walks import WalkSettings, walk
from tests.density.targets import ask


def test_a_walk_corrects_its_normal_approximation() -> None:
    """A skewed law, Gamma(3, 1) in log-coordinates, from a normal that is a little too narrow."""
    found = walk(
        lambda x: 3.0 * x.squeeze(1) - 3.0 * x.squeeze(1).exp(),
        torch.tensor([[0.5]]),
        4000,
        torch.Generator().manual_seed(0),
    )
    exact = np.log(np.random.default_rng(0).gamma(3.0, 1.0 / 3.0, 100_000))
    levels = [0.1, 0.5, 0.9]
    np.testing.assert_allclose(
        np.quantile(found.numpy(), levels), np.quantile(exact, levels), atol=0.06
    )


def _crowded() -> tuple[MixturePosterior, Mixture]:
    """The posterior of four bumps in five features after 400 choices by one, and its summit."""
    generator = torch.Generator().manual_seed(0)
    box = Uniform([-3.0] * 5, [3.0] * 5)
    rng = np.random.default_rng(0)
    winners, losers = ask(lambda x: -0.5 * (x**2).sum(1), box, 400, rng)
    points = torch.from_numpy(np.concatenate([winners, losers])).float() / 3.0**0.5
    response, prior = Response(Noise()), MixturePrior(concentration=1.0, strength=0.3)
    posterior = MixturePosterior(points, torch.ones(400), response, prior)
    offset = torch.randn(4, 5, generator=generator)
    start = Mixture(2.0 * torch.eye(5).repeat(4, 1, 1), offset, torch.zeros(4))
    return posterior, climb(posterior, start, 60)[0]


def test_walks_under_a_posterior_far_from_normal_come_to_rest() -> None:
    """Draws of its normal approximation lie hundreds of nats too low; the walks' ends do not.

    So many parameters (84) have their log-posterior about half as many nats below the summit, and
    walks with three times as many turns end at about the same height.
    """
    law = MixtureLaw(*_crowded())
    summit = float(law(torch.zeros(1, law.summit.height.numel() * 21)))
    scales = scales_of(law.posterior.derivatives(law.summit)[1])
    generator = torch.Generator().manual_seed(1)
    normal = law(torch.randn(32, scales.shape[1], generator=generator) @ scales.T).mean() - summit
    heights = [
        law(walk(law, scales, 32, generator, WalkSettings(turns=turns), law.near))
        for turns in (6, 18)
    ]
    usual, long = (float(each.mean()) for each in heights)
    # Over 128 walks and three seeds the difference is 5.9; 32 have a standard error of 1.7.
    error = float(sum(each.var() / len(each) for each in heights)) ** 0.5
    assert normal < usual - summit - 50.0
    assert abs(long - usual) < 6.0 + 2.0 * error
    assert usual - summit > -scales.shape[1]


def test_walks_where_choices_are_nearly_all_decided_come_to_rest() -> None:
    """Two ridges that cross, known by the few choices in doubt of 2000.

    Walks of one stage, scaled by the curvature at the summit, are still on their way.
    """
    law = MixtureLaw(*_ridges())
    scales = scales_of(law.posterior.derivatives(law.summit)[1])
    generator = torch.Generator().manual_seed(2)
    settings = WalkSettings(stages=1), WalkSettings(), WalkSettings(turns=24)

    def narrowness(how: WalkSettings) -> torch.Tensor:
        ends = law.summit.moved(walk(law, scales, 32, generator, how, law.near))
        return torch.linalg.slogdet(ends.whiten).logabsdet.sum(1)

    once, usual, long = (narrowness(how) for how in settings)
    error = float(long.std()) * (2.0 / 32) ** 0.5
    assert abs(float(once.mean() - long.mean())) > 3.0 * error
    assert abs(float(usual.mean() - long.mean())) < 3.0 * error


def test_a_law_near_a_place_has_nearly_its_slope() -> None:
    """By fewer choices."""
    law = MixtureLaw(*_ridges())
    steps = 0.02 * torch.randn(4, law.summit.height.numel() * 15, generator=torch.Generator())
    near = law.near(steps)
    steps.requires_grad_()
    slope, nearly = (torch.autograd.grad(of(steps).sum(), [steps])[0] for of in (law, near))
    assert len(near.posterior.weights) < 0.7 * len(law.posterior.weights)
    torch.testing.assert_close(nearly, slope, rtol=0.0, atol=0.05 * float(slope.abs().max()))


def test_a_law_near_a_place_may_have_no_choice_in_doubt() -> None:
    """The prior alone is left."""
    law, start = MixtureLaw(*_ridges()), torch.zeros(1, 30)
    with torch.no_grad():
        gap = _gap(law.summit, law.posterior)
    surest = MixtureLaw(law.posterior.only(gap.argmax()[None]), law.summit).near(start)
    assert len(surest.posterior.weights) == 0
    prior = law.posterior.prior.value(law.summit.moved(start))
    torch.testing.assert_close(surest(start), prior)
    assert torch.isfinite(walk(surest, 0.1 * torch.eye(30), 4, torch.Generator())).all()


def test_a_walk_that_looks_where_rounding_leaves_nothing_goes_back() -> None:
    law = MixtureLaw(*_ridges())
    far = torch.stack([torch.zeros(30), torch.full((30,), 1e12), torch.full((30,), 1e30)])
    near, *gone = law(far.requires_grad_())
    assert torch.isfinite(near)
    assert not any(value > near for value in gone)
    (slope,) = torch.autograd.grad(law(far).sum(), [far])
    assert torch.isfinite(slope[0]).all()


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
    return posterior, climb(posterior, start, 60)[0]


def test_the_likelihoods_slope_is_its_derivative() -> None:
    """Over more rows than are taken at a time."""
    posterior, summit = _crowded()
    often = replace(
        posterior,
        points=torch.cat([side.repeat(4, 1) for side in posterior.points.chunk(2)]),
        weights=posterior.weights.repeat(4),
    )
    steps = 0.05 * torch.randn(3, summit.height.numel() * 21, generator=torch.Generator())
    steps.requires_grad_()
    values = MixtureLaw(often, summit).log_likelihood(summit.moved(steps))
    plain = [often.response.log_cdf(_gap(summit.moved(step), often)).sum() for step in steps]
    torch.testing.assert_close(values, torch.stack(plain))
    found, expected = (
        torch.autograd.grad(total, [steps])[0] for total in (values.sum(), torch.stack(plain).sum())
    )
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def _gap(mixture: Mixture, posterior: MixturePosterior) -> torch.Tensor:
    winners, losers = mixture(posterior.points).chunk(2)
    return winners - losers


def _correlated(count: int) -> tuple[MixturePosterior, Mixture]:
    """The posterior of one bump in six features, each variance 1, after choices by it."""
    shape = 0.5 * np.eye(6) + 0.5
    bump = GaussianMixture([1.0], np.zeros((1, 6)), [shape])
    wide = GaussianMixture([1.0], np.zeros((1, 6)), [3.0 * np.eye(6)])
    winners, losers = ask(bump.log_prob, wide, count, np.random.default_rng(3))
    points = torch.from_numpy(np.concatenate([winners, losers])).float() / 3.0**0.5
    prior = MixturePrior(concentration=0.5, strength=0.3, doubt=2.0 / 42.0)
    posterior = MixturePosterior(points, torch.ones(count), Response(Noise()), prior)
    root = torch.from_numpy(np.linalg.cholesky(np.linalg.inv(shape))).float()
    start = Mixture(3.0**0.5 * root[None], torch.zeros(1, 6), torch.zeros(1))
    return posterior, climb(posterior, start, 60)[0]


def test_bumps_are_not_drawn_wider_for_the_degrees_of_freedom_of_their_correlations() -> None:
    """The invariant measure takes d − 1 of n degrees of freedom, a width's (d − 1)/2n nats.

    Three fifths are given back, at n = 30.
    """
    posterior, summit = _correlated(1500)
    found = freed(posterior, summit)

    def log_width(law: MixtureLaw) -> float:
        scales = scales_of(law.posterior.derivatives(law.summit)[1])
        ends = walk(law, scales, 48, torch.Generator().manual_seed(7), None, law.near)
        inverse = torch.linalg.inv(law.summit.moved(ends).whiten[:, 0])
        return float(inverse.norm(dim=1).log().mean())

    n = float(posterior.told(summit))
    assert found[0].prior.uncorrelated == pytest.approx((1.0 - 12.0 / n,), abs=1e-5)
    narrower = log_width(MixtureLaw(posterior, summit)) - log_width(MixtureLaw(*found))
    assert 0.4 < narrower / (2.5 / n) < 1.6


def test_correlations_of_a_bump_that_is_hardly_told_are_not_freed() -> None:
    posterior, summit = _correlated(60)
    found, same = freed(posterior, summit)
    assert found.prior.uncorrelated == (0.0,)
    assert found.value(same) == pytest.approx(posterior.value(summit), abs=0.1)
