"""A sampling density learned from data: its maps, its density and beliefs under it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from llm_elicit.baselines.flow import FlowSettings
from llm_elicit.density import (
    AnnealingSettings,
    BeliefDensity,
    DensityError,
    Empirical,
    fit_belief,
)
from llm_elicit.density.belief import read_sampling
from llm_elicit.density.latent import Latent, make_latent
from llm_elicit.density.methods import UtilityDensity
from llm_elicit.density.utility_function import Utility
from tests.density.conftest import QUICK
from tests.density.targets import Array, ask


def _three_features(n: int, seed: int) -> Array:
    """A two-humped feature, a Gamma(2) and a Beta(2, 5), tied by a Gaussian copula."""
    rng = np.random.default_rng(seed)
    low = np.linalg.cholesky([[1.0, 0.7, -0.4], [0.7, 1.0, 0.1], [-0.4, 0.1, 1.0]])
    h = rng.standard_normal((n, 3)) @ low.T
    u = stats.norm.cdf(h)
    humps = np.where(u[:, 0] < 0.4, -3 + stats.norm.ppf(u[:, 0] / 0.4) * 0.7, 0.0)
    second = 2 + stats.norm.ppf(np.clip((u[:, 0] - 0.4) / 0.6, 1e-9, 1)) * 0.7
    humps = np.where(u[:, 0] < 0.4, humps, second)
    return np.stack([humps, stats.gamma.ppf(u[:, 1], 2), stats.beta.ppf(u[:, 2], 2, 5)], 1)


LOW, HIGH = [-np.inf, 0.0, 0.0], [np.inf, np.inf, 1.0]
DATA = _three_features(4000, seed=1)
MIXED = Empirical(DATA, LOW, HIGH)
CAPPED = Empirical(1.5 - DATA[:, [1]], high=[1.5])
BOXED = Empirical(
    np.stack([1 / (1 + np.exp(-0.5 * DATA[:, 0])), DATA[:, 2]], 1), [0.0, 0.0], [1.0, 1.0]
)
LOGGED = Empirical(
    np.stack([np.exp(DATA[:, 0]), np.exp(DATA[:, 1]), DATA[:, 2]], 1),
    [1e-3, -np.inf, 0.0], [1e3, np.inf, 1.0], log=[True, True, False],
)  # fmt: skip
DENSITIES = {"mixed": MIXED, "capped": CAPPED, "boxed": BOXED, "logged": LOGGED}


@pytest.fixture(params=list(DENSITIES))
def density(request: pytest.FixtureRequest) -> Empirical:
    return DENSITIES[request.param]


_POINT = st.tuples(*[st.floats(0.0005, 0.9995)] * 3)


@given(cube=st.lists(_POINT, min_size=5, max_size=5))
@settings(max_examples=12, deadline=None)
def test_to_cube_inverts_from_cube(cube: list[tuple[float, float, float]]) -> None:
    for density in DENSITIES.values():
        rows = np.array(cube)[:, : density.dimension]
        x = density.from_cube(rows)
        assert density.contains(x).all()
        np.testing.assert_allclose(density.to_cube(x), rows, atol=1e-7)


def test_draws_have_the_marginals_and_rank_correlations_of_the_data() -> None:
    fresh, drawn = _three_features(8000, seed=2), MIXED.sample(8000, np.random.default_rng(3))
    for j in range(3):
        # Two samples of one law differ by about 0.02 here; a wrong law by far more.
        assert stats.ks_2samp(fresh[:, j], drawn[:, j]).statistic < 0.04
    expected, found = stats.spearmanr(fresh).statistic, stats.spearmanr(drawn).statistic
    np.testing.assert_allclose(found, expected, atol=0.05)


def test_draws_are_uniform_on_the_cube(density: Empirical) -> None:
    cube = density.to_cube(density.sample(4000, np.random.default_rng(4)))
    for column in cube.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-3


def test_log_prob_integrates_to_one() -> None:
    edges = np.linspace(-24, 1.5, 20_001)
    middle = 0.5 * (edges[1:] + edges[:-1])
    total = np.exp(CAPPED.log_prob(middle[:, None])).sum() * (edges[1] - edges[0])
    assert total == pytest.approx(1.0, abs=1e-3)
    pair = Empirical(DATA[:, :2], LOW[:2], HIGH[:2])
    first, second = np.linspace(-9, 9, 151), np.linspace(0, 25, 251)[1:] - 0.05
    points = np.stack(np.meshgrid(first, second, indexing="ij"), -1).reshape(-1, 2)
    step = (first[1] - first[0]) * (second[1] - second[0])
    assert np.exp(pair.log_prob(points)).sum() * step == pytest.approx(1.0, abs=5e-3)


def test_a_logarithmic_scale_is_the_linear_one_of_logarithms() -> None:
    x = LOGGED.sample(200, np.random.default_rng(11))
    linear = Empirical(np.log(np.exp(DATA[:, [0]])), [np.log(1e-3)], [np.log(1e3)])
    alone = Empirical(np.exp(DATA[:, [0]]), [1e-3], [1e3], log=[True])
    per_scale = alone.log_prob(x[:, [0]]) + np.log(x[:, 0])
    np.testing.assert_allclose(per_scale, linear.log_prob(np.log(x[:, [0]])), atol=1e-9)
    latent = make_latent(LOGGED, x)
    value = latent.to_latent(x)
    step = 1e-6 * x[0, 0]
    moved = x[:1] + np.array([step, 0.0, 0.0])

    def log_volume(points: Array) -> float:
        """f + log|dz/dx| for a function f of the latent coordinates."""
        g = latent.to_latent(points)
        return float(g.sum() + LOGGED.log_scale_derivative(points)[0])

    found = latent.gradient_per_unit(value[:1], np.ones((1, 3)))[0, 0]
    assert found == pytest.approx((log_volume(moved) - log_volume(x[:1])) / step, rel=1e-3)


def test_the_density_is_near_the_one_the_data_came_from() -> None:
    """Normal data: the mean of log λ − log N over fresh draws is minus a small divergence."""
    rng = np.random.default_rng(5)
    density = Empirical(rng.standard_normal((4000, 1)))
    x = rng.standard_normal((4000, 1))
    divergence = (stats.norm.logpdf(x[:, 0]) - density.log_prob(x)).mean()
    assert -0.002 < divergence < 0.02


def test_the_support_is_kept(density: Empirical) -> None:
    low, high = density.low, density.high
    assert density.contains(density.sample(500, np.random.default_rng(6))).all()
    middle = density.from_cube(np.full((1, density.dimension), 0.5))[0]
    for j in range(density.dimension):
        for bound, beyond in ((low[j], -1e-6), (high[j], 1e-6)):
            point = middle.copy()
            point[j] = bound + beyond
            if np.isfinite(bound):
                assert density.log_prob([point])[0] == -np.inf


def test_dictionary_round_trip(density: Empirical) -> None:
    again = read_sampling(json.loads(json.dumps(density.to_dict())))
    x = density.sample(50, np.random.default_rng(7))
    np.testing.assert_array_equal(again.log_prob(x), density.log_prob(x))
    assert repr(again) == repr(density)


def test_tied_and_bound_data_still_have_a_density() -> None:
    """Whole numbers, a tenth of them on the bound: finite everywhere and in order."""
    rng = np.random.default_rng(8)
    ages = np.minimum(rng.poisson(30, (3000, 1)) + 0.0, 38.0)
    density = Empirical(ages, low=[0.0], high=[38.0])
    cube = np.linspace(0.001, 0.999, 999)[:, None]
    x = density.from_cube(cube)
    assert (np.diff(x[:, 0]) > 0).all()
    assert np.isfinite(density.log_prob(x)).all()
    assert abs(np.median(density.sample(4000, rng)) - 30) < 1.0
    assert np.isfinite(make_latent(density).to_latent(np.array([[0.0], [38.0]]))).all()


def test_latent_density_is_that_of_mapped_draws(density: Empirical) -> None:
    """log λ_g(g) = log λ(x) − log|dz/dx| + log|dz/dg|, with the inverse exact."""
    latent = make_latent(density)
    x = density.sample(200, np.random.default_rng(9))
    g = torch.from_numpy(latent.to_latent(x))
    np.testing.assert_allclose(latent.from_latent(g.numpy()), x, rtol=1e-7, atol=1e-7)
    expected = density.log_prob(x) - density.log_scale_derivative(x) + latent.log_volume(g).numpy()
    np.testing.assert_allclose(latent.log_sampling(g).numpy(), expected, atol=1e-6)


def test_latent_slopes_match_automatic_differentiation(density: Empirical) -> None:
    d = density.dimension
    latent = make_latent(density)
    latent.radius = 1.5
    g = torch.randn(30, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 1.6
    v = torch.linspace(1.3, -0.4, d, dtype=torch.float64)
    point = g.clone().requires_grad_()
    (pulled,) = torch.autograd.grad((latent.features(point) @ v).sum(), point)
    np.testing.assert_allclose(latent.gradient_from_features(g, v.expand_as(g)), pulled, atol=1e-10)
    (volume,) = torch.autograd.grad(latent.log_volume(point).sum(), point)
    np.testing.assert_allclose(latent.log_volume_gradient(g), volume, atol=1e-10)
    (taper,) = torch.autograd.grad((latent.taper(point) + 0 * point.sum(1)).sum(), point)
    np.testing.assert_allclose(latent.taper_gradient(g), taper, atol=1e-12)


def test_features_are_standardized_and_bounded(density: Empirical) -> None:
    latent = make_latent(density, density.sample(500, np.random.default_rng(1)))
    draws = torch.randn(
        20_000, density.dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    features = latent.features(draws)
    np.testing.assert_allclose(features.mean(0), 0.0, atol=0.05)
    np.testing.assert_allclose(features.std(0), 1.0, atol=0.1)
    assert torch.equal(latent.features(1e3 * draws).isfinite().all(), torch.tensor(True))


def _normal(x: Array) -> Array:
    return -0.5 * (x**2).sum(axis=1)


@pytest.fixture(scope="module")
def wide() -> Empirical:
    """λ from 20,000 draws of N(0, variance 3)."""
    return Empirical(np.sqrt(3.0) * np.random.default_rng(10).standard_normal((20_000, 1)))


@pytest.mark.parametrize("method", ["utility", "flow"])
def test_no_tilt_by_an_empirical_sampling_density(wide: Empirical, method: str) -> None:
    """Belief N(0, 1) asked under N(0, 3): the standard deviation is 1, not 0.866."""
    winners, losers = ask(_normal, wide, 4000, seed=21)
    external = FlowSettings(members=1, affine_steps=400, short_steps=25, steps=100, width=16)
    settings = replace(QUICK, external=external)
    belief = fit_belief(winners, losers, sampling=wide, method=method, seed=11, settings=settings)
    assert belief.sample(8000, seed=1).std() == pytest.approx(1.0, abs=0.06)
    grid = np.linspace(-8, 8, 1601)
    total = np.exp(belief.log_prob(grid[:, None])).sum() * (grid[1] - grid[0])
    assert total == pytest.approx(1.0, abs=0.03)


def _indifferent(density: Empirical, points: Array) -> tuple[BeliefDensity, Latent]:
    """The belief of a judge without preferences who was asked about ``points``."""
    d, latent = density.dimension, make_latent(density, points)
    nothing = Utility(torch.zeros(d), torch.zeros(d, d))
    generator = torch.Generator().manual_seed(0)
    model, found = UtilityDensity(latent, nothing, AnnealingSettings()).normalize(generator)
    return BeliefDensity(latent, model, found.draws.points, {}), latent


def test_a_judge_without_preferences_is_uniform_where_pairs_were_asked(wide: Empirical) -> None:
    """Unbounded support: flat within the compared points' radius, a normal factor beyond."""
    belief, latent = _indifferent(wide, wide.sample(500, np.random.default_rng(1)))
    g = np.linspace(-latent.radius, latent.radius, 50)[:, None] * 0.999
    inside = belief.log_prob(latent.from_latent(g))
    assert np.ptp(inside) < 1e-9
    far = belief.log_prob(latent.from_latent(np.array([[2.0 * latent.radius]])))[0]
    assert far == pytest.approx(inside[0] - 1.5 * latent.radius**2, abs=1e-6)
    ends = latent.from_latent(np.array([[-latent.radius], [latent.radius]]))[:, 0]
    x = belief.sample(3000, seed=1)[:, 0]
    kept = x[(x > ends[0]) & (x < ends[1])]
    assert len(kept) > 2000
    assert stats.kstest((kept - ends[0]) / np.ptp(ends), "uniform").statistic < 0.05


def test_a_judge_without_preferences_on_a_bounded_support(tmp_path: Path) -> None:
    """Uniform, not λ, where pairs were asked; normalized; drawn from as it says; and saved."""
    belief, latent = _indifferent(BOXED, BOXED.sample(500, np.random.default_rng(2)))
    middle = (np.arange(100) + 0.5) / 100
    points = np.stack(np.meshgrid(middle, middle, indexing="ij"), -1).reshape(-1, 2)
    logs = belief.log_prob(points)
    assert np.exp(logs).mean() == pytest.approx(1.0, abs=0.05)
    asked = np.linalg.norm(latent.to_latent(points), axis=1) < latent.radius
    assert asked.mean() > 0.5
    assert np.ptp(logs[asked]) < 1e-9
    x = belief.sample(4000, seed=1)
    corner = np.exp(logs[(points < 0.5).all(axis=1)]).sum() / 100**2
    assert (x < 0.5).all(axis=1).mean() == pytest.approx(corner, abs=0.04)
    belief.save(tmp_path)
    again = BeliefDensity.load(tmp_path)
    np.testing.assert_array_equal(again.sample(20, seed=3), belief.sample(20, seed=3))
    np.testing.assert_array_equal(again.log_prob(x), belief.log_prob(x))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Empirical(np.zeros(30)), r"shape \(30,\); they must be \(n, d\)"),
        (lambda: Empirical(DATA[:19]), "at least 20 rows"),
        (lambda: Empirical(np.full((30, 1), np.nan)), r"points\[0, 0\] is nan"),
        (lambda: Empirical(np.ones((30, 1))), "feature 0 is 1.0 in every row"),
        (lambda: Empirical(DATA, log=[True, False, False]), "on a logarithmic scale"),
        (lambda: Empirical(DATA, low=[0.0]), "one number for each of the 3"),
        (lambda: Empirical(DATA[:, [2]], [1.0], [0.0]), r"low\[0\] = 1.0 is not below"),
        (lambda: Empirical(DATA[:, [2]], [0.5], [1.0]), r"lies outside \[0.5, 1.0\]"),
        (lambda: MIXED.log_prob([1.0, 2.0]), r"must be \(n, 3\)"),
    ],
)
def test_bad_data_are_named(build: object, words: str) -> None:
    with pytest.raises(DensityError, match=words):
        build()  # type: ignore[operator]
