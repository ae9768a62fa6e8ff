"""The report of a fit: its sampler, its bounds, and the error of its log-density."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from llm_elicit.baselines.flow import FlowSettings
from llm_elicit.density import (
    BeliefDensity,
    Empirical,
    GaussianMixture,
    Noise,
    Uniform,
    fit_belief,
    fit_warnings,
)
from llm_elicit.density.methods import effective_size, near_bounds, rescale_level
from tests.density.conftest import BRIEF, QUICK
from tests.density.targets import Array, anneal_two_modes, ask

LINE = Uniform([-1.0], [1.0])
FLOW = FlowSettings(members=2, affine_steps=100, short_steps=10, steps=25, width=8)
VARIANTS = {
    "utility": ("utility", QUICK),
    "auto": ("auto", QUICK),
    "score": ("score", BRIEF),
    "score-constant": ("score-constant", BRIEF),
    "flow": ("flow", replace(QUICK, external=FLOW)),
}


@pytest.fixture(scope="module", params=list(VARIANTS))
def belief(request: pytest.FixtureRequest, line_judge: tuple[Array, Array]) -> BeliefDensity:
    method, settings = VARIANTS[request.param]
    return fit_belief(*line_judge, sampling=LINE, method=method, seed=3, settings=settings)


def test_every_method_reports_the_same_keys_as_json(belief: BeliefDensity) -> None:
    notes = json.loads(json.dumps(belief.diagnostics, allow_nan=False))
    assert notes["coin_log_likelihood"] < notes["held_out_log_likelihood"] < 0
    sampler, bounds, error = notes["sampler"], notes["bounds"], notes["log_prob_error"]
    assert 0.5 * sampler["draws"] < sampler["effective"] <= sampler["draws"]
    assert sampler["genealogies"] <= sampler["draws"]
    assert bounds["each"] == [bounds["any"]]
    assert 0 <= bounds["any"] < 0.02
    parts = [error[k] for k in ("log_normalizer", "evaluation")]
    assert error["total"] == pytest.approx(np.linalg.norm(parts))
    assert error["log_normalizer"] == notes["log_normalizer_se"]
    if notes["method"] == "flow":
        assert sampler["effective"] == sampler["draws"]
        assert error["total"] == 0.0


def test_the_density_integrates_to_one_within_the_stated_error(belief: BeliefDensity) -> None:
    # Midpoints: a flow's density may have an integrable pole at a bound.
    middle = (np.arange(4000) + 0.5) / 2000 - 1
    total = np.exp(belief.log_prob(middle[:, None])).mean() * 2
    assert abs(np.log(total)) < 4 * belief.diagnostics["log_prob_error"]["total"] + 1e-3


def test_effective_size_of_genealogies_with_a_common_part() -> None:
    """Genealogies of m draws with correlation ρ: n/(1 + (m − 1)ρ) effective draws."""
    generator = torch.Generator().manual_seed(0)
    count, m, rho = 4000, 5, 0.3
    common = torch.randn(count, 1, generator=generator).repeat_interleave(m, 0)
    own = torch.randn(count * m, 1, generator=generator)
    values = rho**0.5 * common + (1 - rho) ** 0.5 * own
    genealogies = torch.arange(count).repeat_interleave(m)
    expected = count * m / (1 + (m - 1) * rho)
    assert effective_size(genealogies, values) == pytest.approx(expected, rel=0.06)
    assert effective_size(torch.zeros(20_000), values) == 1.0


def test_effective_size_predicts_the_spread_of_a_mode_s_weight_over_runs() -> None:
    """No move crosses between the modes: the weight's variance is p(1 − p)/effective size."""
    shares, sizes = [], []
    for seed in range(60):
        draws = anneal_two_modes(600, seed).draws
        left = (draws.points[:, :1] < 0).double()
        shares.append(float(left.mean()))
        sizes.append(effective_size(draws.genealogies, left))
    assert np.mean(shares) == pytest.approx(0.8, abs=0.02)
    actual = 0.8 * 0.2 / np.var(shares)
    assert actual < 300  # far fewer than the 600 particles
    assert 0.5 < np.mean(sizes) / actual < 1.5


def test_effective_size_grows_with_the_particles() -> None:
    sizes = []
    for n in (500, 2000, 8000):
        draws = anneal_two_modes(n, seed=1).draws
        sizes.append(effective_size(draws.genealogies, draws.points))
    assert sizes[0] < sizes[1] < sizes[2]
    assert sizes[2] / sizes[0] == pytest.approx(16, rel=0.6)


def test_mass_at_a_bound_is_reported() -> None:
    """p ∝ exp(6x) on [−1, 1] has 1 − exp(−0.12) of its mass in the last hundredth."""
    winners, losers = ask(lambda x: 6.0 * x[:, 0], LINE, 2000, seed=9)
    found = fit_belief(winners, losers, sampling=LINE, method="utility", settings=QUICK)
    expected = 1 - np.exp(-6 * 0.02)
    assert found.diagnostics["bounds"]["any"] == pytest.approx(expected, abs=0.025)
    x = found.sample(8000, seed=1)
    assert near_bounds(LINE, x).mean() == pytest.approx(expected, abs=0.025)


def test_mass_beyond_the_compared_points_is_reported() -> None:
    """A judge who prefers the outskirts of λ; a judge who prefers its middle."""
    sampling = GaussianMixture([1.0], [[0.0, 0.0]], [np.eye(2)])
    beyond = {}
    for sign in (-1.0, 0.5):
        judge = ask(lambda x, sign=sign: sign * (x**2).sum(1), sampling, 600, seed=3)
        found = fit_belief(*judge, sampling=sampling, method="utility", settings=QUICK)
        assert found.diagnostics["bounds"]["each"] == [None, None]
        assert found.diagnostics["bounds"]["any"] is None
        beyond[sign] = found.diagnostics["bounds"]["beyond_comparisons"]
    assert beyond[-1.0] < 0.001
    assert beyond[0.5] > 0.1


def test_bounds_on_one_side_and_on_none_of_an_empirical_sampling_density() -> None:
    rng = np.random.default_rng(0)
    data = np.stack([rng.gamma(2.0, size=2000), rng.standard_normal(2000)], axis=1)
    sampling = Empirical(data, low=[0.0, -np.inf])
    near = near_bounds(sampling, np.array([[0.01, 0.0], [1.0, 0.0]]))
    assert near[:, 0].tolist() == [1.0, 0.0]
    assert np.isnan(near[:, 1]).all()


def test_at_another_level_the_report_is_rescaled_and_the_original_kept() -> None:
    """Levels and position effects are in nats; a likelihood that needs the choices is left out."""
    place = {"place": 0, "nats": 0.4, "se": 0.1}
    judge = {"level": 0.5, "log_level_se": 0.2, "order_bias": {"2": [place]}}
    report = {
        "noise": {"family": "gumbel", "level": 1.0, "ties": 0.0},
        "held_out_log_likelihood": -0.5,
        "null_models": {"random choices": -0.69, "sampling density": -0.6},
        "utility": {"judging": {"judges": {"one": judge}, "ties": None}},
    }
    original = copy.deepcopy(report)
    other = rescale_level(report, Noise(level=2.0), Noise(level=1.0))
    assert report == original
    assert other["noise"]["level"] == 2.0
    assert other["null_models"] == {"random choices": -0.69}
    assert other["held_out_log_likelihood"] == -0.5
    judged = other["utility"]["judging"]["judges"]["one"]
    assert judged["level"] == 1.0
    assert judged["log_level_se"] == 0.2
    assert judged["order_bias"]["2"] == [{"place": 0, "nats": 0.8, "se": 0.2}]


def test_log_odds_alone_leave_the_sharpness_open_and_say_so() -> None:
    """The density of log-odds of half the judge's utility was too wide, and nothing said so."""
    rng = np.random.default_rng(0)
    a, b = LINE.sample(30, rng), LINE.sample(30, rng)
    found = fit_belief(a, b, log_odds=(a - b)[:, 0], sampling=LINE)
    assert repr(found).endswith("sharpness open)")
    (line,) = fit_warnings(found.diagnostics)
    assert "log-odds do not determine the sharpness" in line
    assert "fit_power" in line
    assert "tempered" in line
    assert "Log-odds do not determine the sharpness" in found._repr_html_()
    assert "held-out R²" in found._repr_html_()
    known = found.tempered(2.0)
    assert fit_warnings(known.diagnostics) == []
    assert "sharpness" not in repr(known) + known._repr_html_()
    assert fit_warnings(found.diagnostics, quality=False) == []


def test_choices_of_a_coin_are_warned_of() -> None:
    rng = np.random.default_rng(0)
    found = fit_belief(
        LINE.sample(40, rng), LINE.sample(40, rng), sampling=LINE, method="utility", settings=QUICK
    )
    assert found.diagnostics["held_out_log_likelihood"] < np.log(0.5)
    (line,) = fit_warnings(found.diagnostics)
    assert "no better than by random choices (-0.69" in line
    assert "no better than by random choices" in found._repr_html_()
    winners, losers = ask(lambda x: 6.0 * x[:, 0], LINE, 100, seed=9)
    sure = fit_belief(winners, losers, sampling=LINE, method="utility", settings=QUICK)
    assert not any("no better" in line for line in fit_warnings(sure.diagnostics))


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (
            {"held_out_log_likelihood": -0.6, "null_models": {"position": -0.5}},
            ["no better than by the position alone (-0.600 against -0.500"],
        ),
        ({"held_out_log_likelihood": -0.4, "null_models": {"position": -0.5}}, []),
        ({"response": {"scale": "choices", "held_out_r2": -0.1}}, ["none of the variation"]),
        ({"response": {"scale": "choices", "held_out_r2": 0.1}}, []),
        ({"response": {"scale": "choices", "held_out_r2": None}}, []),
    ],
)
def test_predictions_no_better_than_chance_are_warned_of(report: dict, said: list[str]) -> None:
    lines = fit_warnings(report)
    assert len(lines) == len(said)
    assert all(words in line for words, line in zip(said, lines, strict=True))
