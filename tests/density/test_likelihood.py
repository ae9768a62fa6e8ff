"""Random utility models against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from llm_elicit.density import DensityError, Noise, simulate_choices
from llm_elicit.density.likelihood import FAMILIES, choice_log_likelihood

DIFFERENCES = torch.tensor([-700.0, -30.0, -2.0, -0.1, 0.0, 0.3, 5.0, 40.0], dtype=torch.float64)
REFERENCE = {
    "gumbel": stats.logistic(scale=0.7),
    "exponential": stats.laplace(scale=1 / 0.7),  # the level of this family is a rate
    "normal": stats.norm(scale=0.7 * np.sqrt(2.0)),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_log_cdf_and_log_pdf_match_scipy(family: str) -> None:
    noise, law = Noise(family, 0.7), REFERENCE[family]
    t = DIFFERENCES.numpy()
    np.testing.assert_allclose(noise.log_cdf(DIFFERENCES).numpy(), law.logcdf(t), rtol=1e-9)
    np.testing.assert_allclose(noise.log_pdf(DIFFERENCES).numpy(), law.logpdf(t), rtol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_log_cdf_has_finite_gradients_in_both_tails(family: str) -> None:
    t = torch.tensor([-1e4, -1.0, 0.0, 1.0, 1e4], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(Noise(family).log_cdf(t).sum(), t)
    assert torch.isfinite(gradient).all()
    assert (gradient[:4] > 0).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("gap", [-1.0, 0.4])
def test_simulated_choices_have_the_frequency_of_the_cdf(
    family: str, gap: float, rng: np.random.Generator
) -> None:
    noise, n = Noise(family, 1.3), 40_000
    wins = simulate_choices(np.full(n, gap), np.zeros(n), noise, rng)
    expected = float(noise.log_cdf(torch.tensor(gap, dtype=torch.float64)).exp())
    assert abs(wins.mean() - expected) < 4 * np.sqrt(expected * (1 - expected) / n)


def test_equal_utilities_score_log_half() -> None:
    score = choice_log_likelihood(torch.zeros(3), torch.ones(3), Noise())
    assert float(score) == pytest.approx(np.log(0.5))


def test_default_noise_has_unit_variance() -> None:
    assert Noise().level == pytest.approx(np.sqrt(6) / np.pi)
    assert Noise().draw((200_000,), np.random.default_rng(0)).var() == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("level", [0.0, -1.0, float("nan"), float("inf")])
def test_noise_level_must_be_positive(level: float) -> None:
    with pytest.raises(DensityError, match=r"level = .* it must be a finite number above"):
        Noise("gumbel", level)


def test_unknown_noise_family_lists_the_known_ones() -> None:
    with pytest.raises(DensityError, match="gumbel, exponential, normal"):
        Noise("cauchy")


@pytest.mark.parametrize("spread", [0.0, 0.3, 2.0])
def test_moderated_choices_match_quadrature(spread: float) -> None:
    """E F(d + s z): in closed form for normal noise, by quadrature for Bradley–Terry."""
    difference = torch.tensor([-6.0, -1.0, 0.0, 2.0, 5.0], dtype=torch.float64)
    spreads = torch.full_like(difference, spread)
    found = Noise("normal", 0.7).moderated_log_cdf(difference, spreads).numpy()
    wider = stats.norm(scale=np.sqrt(2 * 0.7**2 + spread**2))
    np.testing.assert_allclose(found, wider.logcdf(difference.numpy()), atol=0.05)
    noise, law = Noise("gumbel", 0.7), REFERENCE["gumbel"]
    z = np.linspace(-9, 9, 4001)
    mean = law.cdf(difference.numpy()[:, None] + spread * z) @ stats.norm.pdf(z) * (z[1] - z[0])
    found = noise.moderated_log_cdf(difference, spreads).numpy()
    np.testing.assert_allclose(found, np.log(mean), atol=0.05)


@pytest.mark.parametrize("family", FAMILIES)
def test_information_is_the_variance_of_the_score(family: str) -> None:
    noise, d = Noise(family, 0.7), torch.linspace(-5, 5, 21, dtype=torch.float64)
    win, slope = noise.log_cdf(d).exp(), noise.log_pdf(d).exp()
    variance = win * (slope / win) ** 2 + (1 - win) * (slope / (1 - win)) ** 2
    np.testing.assert_allclose(noise.information(d), variance, rtol=1e-6)
