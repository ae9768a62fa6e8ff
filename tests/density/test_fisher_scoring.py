"""Fisher scoring of mixtures: derivatives against automatic differentiation, and convergence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from llm_elicit.density import GaussianMixture, MixturePrior, Noise, Uniform
from llm_elicit.density.likelihood import Response
from llm_elicit.density.utility.cross_validation import ChoiceData, CrossValidation
from llm_elicit.density.utility.mixture import draw_starts
from llm_elicit.density.utility.model import Mixture, MixturePosterior, log_prior, maximize
from llm_elicit.density.utility_function import Tail
from tests.density.targets import ask, check_judgments


def _mixture(generator: torch.Generator, count: int = 3, d: int = 2) -> Mixture:
    whiten = torch.eye(d) + 0.2 * torch.randn(count, d, d, generator=generator)
    offset = torch.randn(count, d, generator=generator)
    return Mixture(whiten, offset, torch.randn(count, generator=generator))


def _posterior(generator: torch.Generator, noise: Noise, prior: MixturePrior) -> MixturePosterior:
    points = torch.randn(60, 2, generator=generator)
    return MixturePosterior(
        points, torch.rand(30, generator=generator) + 0.5, Response(noise), prior
    )


@pytest.mark.parametrize("tail", [Tail(), Tail(4.0, 0.0), Tail(0.5, 0.3)])
@pytest.mark.parametrize("family", ["gumbel", "exponential", "normal"])
@pytest.mark.parametrize(("width_uncertainty", "size_power"), [(0.0, 0.0), (0.4, 1.4)])
def test_gradient_is_that_of_the_log_posterior_along_a_step(
    family: str, width_uncertainty: float, size_power: float, tail: Tail
) -> None:
    generator = torch.Generator().manual_seed(0)
    prior = MixturePrior(1.5, 0.8, 0.6, 0.3, width_uncertainty, size_power)
    posterior = _posterior(generator, Noise(family), prior)
    mixture = replace(_mixture(generator), tail=tail)
    gradient, curvature = posterior.derivatives(mixture)

    def along(step: torch.Tensor) -> torch.Tensor:
        moved = mixture.take_step(step)
        winners, losers = moved(posterior.points).chunk(2)
        choices = posterior.response.log_cdf(winners - losers) * posterior.weights
        return choices.sum() + log_prior(posterior.prior, moved)

    step = torch.zeros(len(gradient), requires_grad=True)
    (expected,) = torch.autograd.grad(along(step), step)
    np.testing.assert_allclose(gradient, expected, atol=2e-3, rtol=1e-3)
    # Never negative, and flat only where f is raised everywhere alike.
    lowest = torch.linalg.eigvalsh(curvature.double())[:2]
    assert abs(float(lowest[0])) < 1e-5
    assert lowest[1] > 1e-2


@pytest.mark.parametrize("width_uncertainty", [1e-4, 0.1, 1.0])
def test_a_width_in_doubt_is_integrated_out(width_uncertainty: float) -> None:
    """Thin against round, by quadrature over the gamma variable that the squared width is given."""
    strength, width, d = 0.8, 0.6, 2
    prior = MixturePrior(0.0, strength, width, 0.0, width_uncertainty)
    whiten = torch.stack([torch.diag(torch.tensor([20.0, 3.0])), torch.eye(2)])

    def by_quadrature(w: np.ndarray) -> float:
        trace, half = width**2 * np.trace(w.T @ w), 0.5 / width_uncertainty
        log_widths = np.linspace(
            -12 * np.sqrt(width_uncertainty), 12 * np.sqrt(width_uncertainty), 20_001
        )
        scale = np.exp(log_widths)
        # A gamma's density with respect to its logarithm, the constants left out.
        law = half * (log_widths - scale) + 0.5 * strength * (d * log_widths - scale * trace)
        return float(strength * np.linalg.slogdet(w)[1] + logsumexp(law))

    found = [log_prior(prior, Mixture(w[None], torch.zeros(1, 2), torch.zeros(1))) for w in whiten]
    thin, round_ = (by_quadrature(w.numpy().astype(float)) for w in whiten)
    assert float(found[0] - found[1]) == pytest.approx(thin - round_, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("size_power", [0.0, 1.0, 2.0])
def test_the_thinner_of_two_components_is_expected_to_hold_less_mass(
    size_power: float,
) -> None:
    """By quadrature over the ratio of masses: its middle, and that no size becomes less likely."""
    sizes = torch.tensor([0.05, 0.8])
    whiten = torch.eye(3) / sizes[:, None, None]
    half_log_precision = -3.0 * sizes.log()
    log_ratios = torch.linspace(-40.0, 40.0, 4001)

    def density(prior: MixturePrior) -> torch.Tensor:
        log_masses = torch.stack([log_ratios, torch.zeros_like(log_ratios)], -1)
        heights = log_masses + half_log_precision
        many = Mixture(whiten.expand(4001, 2, 3, 3), torch.zeros(4001, 2, 3), heights)
        return log_prior(prior, many).double().exp()

    of_ratios = density(MixturePrior(0.5, 0.3, 0.5, 0.1, 0.2, size_power))
    plain = density(MixturePrior(0.5, 0.3, 0.5, 0.1, 0.2))
    assert float(of_ratios.sum() / plain.sum()) == pytest.approx(1.0, rel=1e-3)
    middle = float(of_ratios @ log_ratios.double() / of_ratios.sum())
    assert middle == pytest.approx(size_power * float((sizes[0] / sizes[1]).log()), abs=0.01)


def test_curvature_is_the_fisher_information_of_the_choices() -> None:
    """Its definition: Σ F(1 − F)/s² ∇δ ∇δᵀ for Bradley–Terry, with ∇δ by differentiation."""
    generator = torch.Generator().manual_seed(1)
    flat = MixturePrior(0.0, 0.0, 1.0, 0.0)
    posterior, mixture = _posterior(generator, Noise(), flat), _mixture(generator)

    def differences(step: torch.Tensor) -> torch.Tensor:
        winners, losers = mixture.take_step(step)(posterior.points).chunk(2)
        return winners - losers

    size = len(posterior.derivatives(mixture)[0])
    slopes = torch.autograd.functional.jacobian(differences, torch.zeros(size))
    win = torch.sigmoid(differences(torch.zeros(size)) / Noise().level)
    information = posterior.weights * win * (1 - win) / Noise().level ** 2
    expected = slopes.T @ (slopes * information[:, None])
    np.testing.assert_allclose(posterior.derivatives(mixture)[1], expected, atol=2e-3)


def test_predictions_spread_as_the_posterior_does() -> None:
    """√(∇δ H⁻¹ ∇δᵀ) with ∇δ by differentiation, H without the height that no choice tells."""
    generator = torch.Generator().manual_seed(2)
    posterior, mixture = _posterior(generator, Noise(), MixturePrior()), _mixture(generator)
    points = torch.randn(8, 2, generator=generator)

    def differences(step: torch.Tensor) -> torch.Tensor:
        winners, losers = mixture.take_step(step)(points).chunk(2)
        return winners - losers

    _, curvature = posterior.derivatives(mixture)
    slopes = torch.autograd.functional.jacobian(differences, torch.zeros(len(curvature)))
    inverse = torch.linalg.pinv(curvature.double(), rtol=1e-6)
    expected = (slopes.double() @ inverse * slopes).sum(1).sqrt()
    difference, spread = posterior.predict(mixture, points)
    np.testing.assert_allclose(difference, differences(torch.zeros(len(curvature))), atol=1e-5)
    np.testing.assert_allclose(spread, expected, rtol=1e-2)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4))
def test_fisher_scoring_never_descends(seed: int, steps: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    posterior = _posterior(generator, Noise(), MixturePrior())
    start = _mixture(generator)
    found, value = maximize(posterior, start, steps)
    assert value >= posterior.value(start)
    assert value == pytest.approx(posterior.value(found))
    assert bool(torch.isfinite(found(posterior.points)).all())


def test_starts_find_ridges_that_cross() -> None:
    """Two ridges through one centre in 5-D, which clusters by distance cannot tell apart."""
    sides = np.ones(5), np.array([1.0, 1.0, -1.0, -1.0, -1.0])
    covariances = [0.1 * np.eye(5) + 0.9 * np.outer(side, side) for side in sides]
    law = GaussianMixture([0.5, 0.5], np.zeros((2, 5)), covariances)
    box = Uniform(np.full(5, -2.0), np.full(5, 2.0))
    winners, losers = ask(law.log_prob, box, 3000, seed=31)
    judgments = check_judgments(winners, losers, None, box)
    data = ChoiceData(judgments.winners, judgments.losers, judgments.weights, judgments.pairs)
    validation = CrossValidation(data, Response(Noise()), 8, np.random.default_rng(0))
    posterior = MixturePosterior(
        validation.points, validation.weights, validation.response, MixturePrior()
    )
    maximized = [maximize(posterior, start, 20) for start in draw_starts(validation, 2, 8)]
    best = max(maximized, key=lambda found: found[1])[0]
    # The flattest direction of each component is its ridge.
    precision = best.whiten @ best.whiten.transpose(1, 2)
    ridges = torch.linalg.eigh(precision).eigenvectors[:, :, 0].numpy()
    along = np.abs(ridges @ np.stack(sides).T) / np.sqrt(5)
    assert sorted(along.argmax(1)) == [0, 1]
    assert along.max(1).min() > 0.95
