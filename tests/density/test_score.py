"""The score method: networks, calibration, and a belief that shares no part with others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from llm_elicit.density import (
    DensityError,
    Evidence,
    FitSettings,
    GaussianMixture,
    Noise,
    ScoreSettings,
    fit_belief,
)
from llm_elicit.density import fit as fit_module
from llm_elicit.density.errors import Index
from llm_elicit.density.likelihood import merge
from llm_elicit.density.methods import Problem
from llm_elicit.density.score import Calibration, ScoreUtility, Tempering
from llm_elicit.density.score_network import (
    ScoreNetworks,
    _Trainer,
    fit_initial_form,
    train_networks,
)
from tests.density.conftest import BRIEF
from tests.density.targets import Array, ask, assert_close

pytestmark = pytest.mark.usefixtures("few_particles")

NORMAL = GaussianMixture([1.0], [[0.0]], [[[1.0]]])
SMALL = ScoreSettings(networks=2, width=32, steps=200, passes=1.0)


def _networks(count: int = 3) -> ScoreNetworks:
    networks = ScoreNetworks(count, 2, 16, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    for parameter in networks.parameters():
        parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return networks


def test_the_slope_is_the_derivative_of_the_mean_utility() -> None:
    networks, h = _networks().double(), 1e-5
    t = torch.tensor([[0.3, -0.8], [1.1, 0.4]], dtype=torch.float64)
    slope = networks.mean(t, 0.1)[1]
    for axis in range(2):
        step = h * torch.eye(2, dtype=torch.float64)[axis]
        up, down = networks.mean(t + step, 0.1)[0], networks.mean(t - step, 0.1)[0]
        np.testing.assert_allclose(slope[:, axis], (up - down) / (2 * h), atol=1e-6)


def test_the_constant_s_slope_is_that_of_its_value() -> None:
    of_sampling = np.random.default_rng(0).normal(size=500)
    ends = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    table = Tempering.tabulate(of_sampling, Noise())
    calibration = Calibration(ends, 2.0 * ends)
    tempered = ScoreUtility(_networks().double(), calibration, 0.1, table, 1.7)
    t = torch.tensor([[0.3, -0.8]], dtype=torch.float64)
    slope = tempered.value_and_gradient(t)[1]
    for axis in range(2):
        step = 1e-2 * torch.eye(2, dtype=torch.float64)[axis]
        change = (tempered(t + step) - tempered(t - step)) / 2e-2
        assert slope[0, axis].item() == pytest.approx(change.item(), rel=0.02)


def test_the_mean_is_over_the_networks_asked_for() -> None:
    networks, t = _networks(), torch.randn(7, 2, generator=torch.Generator().manual_seed(2))
    each = [networks.mean(t, 0.2, slice(k, k + 1))[0] for k in range(3)]
    assert_close(networks.mean(t, 0.2)[0], torch.stack(each).mean(0))


def _normal_pairs(n: int, settings: ScoreSettings) -> tuple[Problem, Index]:
    """A judge who prefers large values, x with u = 2x, and λ = N(0, 1); and the pairs' folds."""
    judgments = merge(Evidence.choices(*ask(lambda x: 2.0 * x[:, 0], NORMAL, n, seed=4)))
    problem = Problem(judgments, NORMAL, Noise(), 0, FitSettings(score=settings))
    return problem, np.arange(judgments.size) % 2


def test_calibrated_networks_recover_a_utility() -> None:
    problem, folds = _normal_pairs(3000, SMALL)
    trained = train_networks(problem, folds)
    calibration = Calibration.fit((trained.winners, trained.losers), problem.weights, Noise(), 6)
    t = torch.linspace(-1.5, 1.5, 7, dtype=torch.float64)[:, None]
    found = calibration.utility(trained.networks.mean(t, trained.sigma)[0])
    np.testing.assert_allclose(found - found.mean(), 2.0 * t[:, 0], atol=0.4)


def test_denoising_finds_the_utility() -> None:
    """Itself, and not only a monotone function of it: training starts far below."""
    trainer = _Trainer(*_normal_pairs(3000, replace(SMALL, outcome_weight=0.0, steps=400)))
    for start in (trainer.networks.linear, trainer.networks.quadratic):
        start.data.zero_()
    for step in range(1, 401):
        trainer.step(step)
    t = torch.linspace(-1.5, 1.5, 7, dtype=torch.float64)[:, None]
    utility = Noise().scale * trainer.networks.mean(t, 0.05)[0]
    np.testing.assert_allclose(utility - utility.mean(), 2.0 * t[:, 0], atol=0.6)


@pytest.mark.parametrize(
    ("form", "utility"),
    [
        ("constant", lambda x: 0.0 * x[:, 0]),
        ("linear", lambda x: 3.0 * x[:, 0]),
        ("quadratic", lambda x: -3.0 * (x[:, 0] - x[:, 1]) ** 2),
    ],
)
def test_training_starts_from_the_form_that_predicts_held_out_choices(
    form: str, utility: Callable[[Array], Array]
) -> None:
    plane = GaussianMixture([1.0], [[0.0, 0.0]], [np.eye(2)])
    sides = (torch.from_numpy(side) for side in ask(utility, plane, 600, seed=3))
    ones, folds = torch.ones(600, dtype=torch.float64), np.arange(600) % 3
    start = fit_initial_form((next(sides), next(sides)), ones, folds, Noise(), np.array([-1, -1]))
    assert start.form == form
    assert start.log_likelihood >= math.log(0.5)
    if form == "quadratic":
        expected = -3.0 / Noise().scale * np.array([[1.0, -1.0], [-1.0, 1.0]])
        np.testing.assert_allclose(start.curvature.mean(0), expected, atol=0.8)


def test_held_out_pairs_are_judged_by_networks_that_never_saw_them() -> None:
    problem, folds = _normal_pairs(400, BRIEF.score)
    trained = train_networks(problem, folds)
    for fold in range(2):
        rows = folds == fold
        t = problem.latent.features(problem.winners[rows])
        expected = trained.networks.mean(t, trained.sigma, slice(fold, fold + 1))[0]
        assert_close(trained.winners[rows], expected)


@pytest.mark.parametrize("knots", [2, 5])
def test_the_calibration_is_recovered_from_choices(knots: int) -> None:
    """u = 2L below 0 and u = L above; one constant lies between."""
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-3, 3, (2, 20_000))

    def utility(log_odds: Array) -> Array:
        return np.where(log_odds < 0, 2 * log_odds, log_odds)

    chance = 1 / (1 + np.exp(-(utility(a) - utility(b)) / Noise().scale))
    first = rng.random(len(a)) < chance
    sides = np.where(first, a, b), np.where(first, b, a)
    log_odds = torch.from_numpy(sides[0]), torch.from_numpy(sides[1])
    ones = torch.ones(len(a), dtype=torch.float64)
    calibration = Calibration.fit(log_odds, ones, Noise(), knots)
    found = calibration.slope(torch.tensor([-2.0, 2.0], dtype=torch.float64))
    if knots == 2:
        assert found[0] == found[1]
        assert 1.0 < float(found[0]) < 2.0
    else:
        np.testing.assert_allclose(found, [2.0, 1.0], rtol=0.1)


def test_weights_count_in_the_calibration() -> None:
    log_odds = torch.tensor([1.0, -1.0]).double(), torch.tensor([-1.0, 1.0]).double()
    slopes = []
    for against in (0.1, 0.4):
        weights = torch.tensor([1.0 - against, against]).double()
        calibration = Calibration.fit(log_odds, 1000 * weights, Noise(), 2)
        slopes.append(float(calibration.slope(torch.zeros(1).double())))
    # P(first) = 0.9 at a difference of 2 in the log-odds.
    assert slopes[0] == pytest.approx(0.5 * Noise().scale * np.log(9), rel=0.01)
    assert slopes[1] < slopes[0]


def test_a_flat_calibration_where_all_points_have_the_same_utility() -> None:
    same = torch.zeros(5).double()
    calibration = Calibration.fit((same, same), torch.ones(5).double(), Noise(), 6)
    assert calibration.utility(torch.tensor([-1.0, 4.0]).double()).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("method", ["score", "score-constant"])
def test_no_part_of_the_fitted_utility_is_used(
    monkeypatch: pytest.MonkeyPatch, line_judge: tuple[Array, Array], method: str
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the score method fitted a utility")

    monkeypatch.setattr(fit_module, "fit_utility", refuse)
    belief = fit_belief(*line_judge, sampling=NORMAL, method=method, settings=BRIEF)
    assert not belief.has_draws
    with pytest.raises(DensityError, match="fitted without draws"):
        belief.draws()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"networks": 1}, "networks = 1"),
        ({"knots": 1}, "knots = 1"),
        ({"steps": 0}, "steps = 0"),
        ({"passes": 0.0}, "passes = 0.0"),
        ({"sigmas": ()}, "sigmas"),
        ({"sigmas": (0.1, -1.0)}, "sigmas = -1.0"),
        ({"sigma_min": 3.0}, "sigma_min = 3.0 is not below sigma_max"),
    ],
)
def test_bad_settings_are_named(changes: dict[str, float], words: str) -> None:
    with pytest.raises(DensityError, match=words):
        ScoreSettings(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["score", "score-constant"])
def test_an_unbounded_belief_is_integrable_also_where_the_utility_rises_outwards(
    method: str,
) -> None:
    winners, losers = ask(lambda x: x[:, 0] ** 2, NORMAL, 200, seed=2)
    belief = fit_belief(winners, losers, sampling=NORMAL, method=method, settings=BRIEF)
    grid = np.linspace(-20.0, 20.0, 4001)[:, None]
    total = np.trapezoid(np.exp(belief.log_prob(grid)), grid[:, 0])
    assert total == pytest.approx(1.0, abs=4 * belief.diagnostics["log_normalizer_se"] + 0.02)
    assert np.abs(belief.sample(500, seed=1)).max() < 15.0
