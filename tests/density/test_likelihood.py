"""Random utility models against their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from llm_elicit.density import DensityError, Noise, estimate_level, simulate_choices
from llm_elicit.density.likelihood import FAMILIES, Response, choice_log_likelihood

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


def test_the_choice_log_likelihood_is_a_weighted_mean_per_row_of_differences() -> None:
    differences = torch.tensor([[0.0, 2.0, -1.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    weights = torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)
    found = choice_log_likelihood(differences, weights, Noise("gumbel", 0.7)).numpy()
    logs = REFERENCE["gumbel"].logcdf(differences.numpy())
    np.testing.assert_allclose(found, np.average(logs, axis=1, weights=weights.numpy()))


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


@pytest.mark.parametrize("family", FAMILIES)
def test_the_level_of_a_known_belief_is_estimated(family: str, rng: np.random.Generator) -> None:
    u, v = rng.normal(0, 2, (2, 20_000))
    wins = simulate_choices(u, v, Noise(family, 1.3), rng)
    found = estimate_level(np.where(wins, u - v, v - u), family)
    assert found.family == family
    assert found.level == pytest.approx(1.3, rel=0.05)


def test_a_level_far_below_one_is_estimated_in_its_own_unit() -> None:
    differences = np.array([0.3, 0.5, 0.9, -0.2])
    found, scaled = (estimate_level(differences * unit).level for unit in (1.0, 1e-3))
    assert scaled == pytest.approx(1e-3 * found, rel=1e-4)


@pytest.mark.parametrize("differences", [[0.5, 2.0, 0.0], [-0.5, -2.0, 0.0], [0.0, 0.0]])
def test_no_level_follows_from_choices_that_all_agree_or_all_disagree(
    differences: list[float],
) -> None:
    with pytest.raises(
        DensityError, match=r"^estimate_level: every choice agrees .* closer points"
    ):
        estimate_level(differences)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((np.zeros(2), np.zeros(3), Noise()), "simulate_choices: utility_b"),
        ((["x"], [0.0], Noise()), "simulate_choices: utility_a"),
        ((np.zeros(2), np.zeros(2), 1.0), r"simulate_choices: noise .* pass Noise\(\)"),
    ],
)
def test_choices_are_not_simulated_of_bad_arguments(
    arguments: tuple[Any, Any, Any], said: str
) -> None:
    with pytest.raises(DensityError, match=said):
        simulate_choices(*arguments, np.random.default_rng(0))


def test_choices_are_not_simulated_without_a_generator() -> None:
    said = r"^simulate_choices: rng .* pass numpy\.random\.default_rng\(0\)"
    with pytest.raises(DensityError, match=said):
        simulate_choices(np.zeros(2), np.zeros(2), Noise(), 0)  # type: ignore[arg-type]


class TestResponse:
    """F(g (u − u') + o), row by row, against the noise itself."""

    noise = Noise("gumbel", 0.7)
    gain = torch.tensor([1.0, 0.4, 2.5], dtype=torch.float64)
    offset = torch.tensor([0.0, 1.2, -0.6], dtype=torch.float64)
    difference = torch.tensor([0.3, -1.1, 0.8], dtype=torch.float64)

    @property
    def response(self) -> Response:
        return Response(self.noise, self.gain, self.offset)

    @property
    def law(self) -> Any:
        return stats.logistic(loc=-self.offset / self.gain, scale=0.7 / self.gain)

    def test_log_cdf_and_its_slope(self) -> None:
        d = self.difference.clone().requires_grad_()
        found = self.response.log_cdf(d)
        np.testing.assert_allclose(found.detach(), self.law.logcdf(self.difference), rtol=1e-12)
        (slope,) = torch.autograd.grad(found.sum(), d)
        np.testing.assert_allclose(self.response.slope(self.difference), slope, rtol=1e-9)

    def test_information_is_the_variance_of_the_score(self) -> None:
        win, density = self.law.cdf(self.difference), self.law.pdf(self.difference)
        found = self.response.information(self.difference)
        np.testing.assert_allclose(found, density**2 / (win * (1 - win)), rtol=1e-9)

    def test_moderated_choices_match_quadrature(self) -> None:
        spread = torch.tensor([0.5, 1.0, 0.3], dtype=torch.float64)
        z = np.linspace(-9, 9, 4001)[:, None]
        at = self.difference.numpy() + spread.numpy() * z
        mean = (self.law.cdf(at) * stats.norm.pdf(z)).sum(0) * (z[1] - z[0])
        found = self.response.moderated_log_cdf(self.difference, spread)
        np.testing.assert_allclose(found, np.log(mean), atol=0.005)

    def test_some_of_the_judgments(self) -> None:
        whole = self.response.log_cdf(self.difference)
        rows = torch.tensor([2, 0])
        assert self.response.select(rows).log_cdf(self.difference[rows]).equal(whole[rows])
        last = slice(1, None)
        assert self.response.select(last).log_cdf(self.difference[last]).equal(whole[last])
        plain = Response(self.noise)
        assert plain.select(rows) is plain
        assert plain.log_cdf(self.difference).equal(self.noise.log_cdf(self.difference))
        assert plain.information(self.difference).equal(self.noise.information(self.difference))
        assert plain.scale_sd(self.gain) is self.gain

    def test_several_rows_of_differences_keep_their_type(self) -> None:
        """As of the members of an ensemble, whose networks compute in single precision."""
        response, rows = self.response, torch.stack([self.difference, -self.difference])
        spreads = torch.tensor([0.5, 1.0, 0.3], dtype=torch.float64)
        for found in (
            response.linear_predictor, response.log_cdf, response.slope, response.information,
            response.scale_sd,
            lambda d: response.moderated_log_cdf(d, spreads.to(d).expand_as(d)),
        ):  # fmt: skip
            each = torch.stack([found(row) for row in rows])
            np.testing.assert_allclose(found(rows), each, rtol=1e-12)
            single = found(rows.float())
            assert single.dtype == torch.float32
            np.testing.assert_allclose(single, each, rtol=1e-5)
