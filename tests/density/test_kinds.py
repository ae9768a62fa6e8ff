"""A contract over every kind of feature: λ, its law, the belief's density and its draws."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from llm_elicit.density import (
    BeliefDensity,
    DensityError,
    LinearConstraint,
    Noise,
    PolygonConstraint,
    Uniform,
    fit_belief,
    simulate_choices,
    suggest_pairs,
)
from llm_elicit.density.belief import read_sampling
from llm_elicit.density.design import _coordinates
from llm_elicit.density.latent import BoxLatent, make_latent
from llm_elicit.density.methods import near_bounds
from tests.density.conftest import QUICK
from tests.density.targets import QUADRATIC, Array

TRIANGLE = [[0.0, 1.0], [4.0, 1.0], [4.0, 100.0]]
KINDS = {
    "number": Uniform([-2.0], [3.0]),
    "log": Uniform([1.0], [1000.0], log=[True]),
    "flag": Uniform([0.0], [1.0], integer=[True]),
    "ordered": Uniform([1.0], [4.0], integer=[True]),
    "count": Uniform([0.0], [29.0], integer=[True]),
    "log count": Uniform([1.0], [200.0], log=[True], integer=[True]),
    "hour": Uniform([0.0], [23.0], integer=[True], periodic=[True]),
    "direction": Uniform([0.0], [360.0], periodic=[True]),
    "category": Uniform([0.0], [4.0], categorical=[True]),
}
PAIRS = {
    "flag and number": Uniform([0.0, -1.0], [1.0, 1.0], integer=[True, False]),
    "two kinds": Uniform([0.0, 1.0], [360.0, 4.0], integer=[False, True], periodic=[True, False]),
    "ordered prices": Uniform(
        [0.0, 1.0], [4.0, 100.0], log=[False, True], constraints=[LinearConstraint([1, -1], 0)]
    ),
    "map": Uniform(
        [0.0, 1.0],
        [4.0, 100.0],
        log=[False, True],
        constraints=[PolygonConstraint((0, 1), TRIANGLE)],
    ),
    "ordered counts": Uniform(
        [1.0, 1.0], [9.0, 9.0], integer=[True, True], constraints=[LinearConstraint([1, -1], 0)]
    ),
}  # fmt: skip
EVERY = KINDS | PAIRS


def _axis(box: Uniform, j: int, fine: int) -> tuple[Array, Array]:
    """Values of one feature and the natural width that each stands for."""
    if box.discrete[j]:
        whole = np.arange(box.low[j], box.high[j] + 1.0)
        return whole, np.ones(len(whole))
    low, high = box.scale_low[j], box.scale_high[j]
    edges = low + (high - low) * np.arange(fine + 1) / fine
    edges = np.exp(edges) if box.log[j] else edges
    return 0.5 * (edges[1:] + edges[:-1]), np.diff(edges)


def _quadrature(box: Uniform, fine: int) -> tuple[Array, Array]:
    """Points (n, d) of a grid over the box, and the natural volume of each (n,)."""
    axes, widths = zip(*(_axis(box, j, fine) for j in range(box.dimension)), strict=True)
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, box.dimension)
    volume = np.stack(np.meshgrid(*widths, indexing="ij"), -1).reshape(-1, box.dimension)
    return grid, volume.prod(1)


def _log_density(box: Uniform, x: Array) -> Array:
    """A judge's utility: one smooth hill in the columns, sharper where there are more."""
    t = make_latent(box).features(torch.from_numpy(make_latent(box).to_latent(x))).numpy()
    # A category's columns may be rotated; with those of today the hill would be one word alone.
    sharpness = 0.6 if box.categorical.any() else 1.2
    return np.asarray(-sharpness * np.square(t - 0.5).sum(1))


@functools.cache
def _fitted(name: str) -> BeliefDensity:
    box, rng = EVERY[name], np.random.default_rng(0)
    a, b = box.sample(500, rng), box.sample(500, rng)
    wins = simulate_choices(_log_density(box, a), _log_density(box, b), Noise(), rng)[:, None]
    winners, losers = np.where(wins, a, b), np.where(wins, b, a)
    return fit_belief(winners, losers, sampling=box, method="auto", settings=QUICK)


@pytest.fixture(scope="module", params=list(EVERY))
def kind(request: pytest.FixtureRequest) -> tuple[Uniform, BeliefDensity]:
    return EVERY[request.param], _fitted(request.param)


@pytest.mark.parametrize("name", list(KINDS))
def test_draws_of_the_sampling_density_follow_its_law(name: str) -> None:
    box, rng = KINDS[name], np.random.default_rng(7)
    x = box.sample(20_000, rng)
    assert box.contains(x).all()
    if box.discrete[0]:
        values = np.arange(box.low[0], box.high[0] + 1.0)
        chances = np.exp(box.log_prob(values[:, None]))
        assert chances.sum() == pytest.approx(1.0, abs=1e-12)
        counts = np.bincount((x[:, 0] - box.low[0]).astype(int), minlength=len(values))
        assert stats.chisquare(counts, 20_000 * chances).pvalue > 1e-3
        assert box.log_prob([[box.low[0] + 0.5]])[0] == -np.inf
    else:
        assert stats.kstest(box.to_cube(x)[:, 0], "uniform").pvalue > 1e-3


@pytest.mark.parametrize("name", list(PAIRS))
def test_draws_under_constraints_keep_them_and_are_uniform(name: str) -> None:
    box, rng = PAIRS[name], np.random.default_rng(8)
    x = box.sample(20_000, rng)
    assert box.contains(x).all()
    latent = make_latent(box)
    g = latent.draw(20_000, torch.Generator().manual_seed(0))
    for points in (x, latent.from_latent(g.numpy())):
        assert box.contains(points).all()
        grid, volume = _quadrature(box, 400)
        mass = np.exp(box.log_prob(grid)) * volume
        assert mass.sum() == pytest.approx(1.0, abs=4e-3)
        for j in range(2):
            middle = np.median(grid[:, j])
            assert np.mean(points[:, j] < middle) == pytest.approx(
                mass[grid[:, j] < middle].sum(), abs=0.015
            )


@pytest.mark.parametrize("name", list(KINDS))
def test_columns_have_unit_variance_and_slopes_are_theirs(name: str) -> None:
    box = KINDS[name]
    latent = make_latent(box)
    g = torch.from_numpy(stats.norm.ppf((np.arange(100_000) + 0.5) / 100_000))[:, None]
    t = latent.features(g)
    np.testing.assert_allclose(t.mean(0), 0.0, atol=2e-3)
    np.testing.assert_allclose(t.T @ t / len(t), np.eye(t.shape[1]), atol=4e-3)
    if not box.discrete[0]:
        v, point = torch.ones_like(t[:50]), g[50_000:50_050].clone().requires_grad_()
        (expected,) = torch.autograd.grad(latent.features(point).sum(), point)
        np.testing.assert_allclose(
            latent.gradient_from_features(point.detach(), v), expected, atol=1e-10
        )
    again = latent.features(torch.from_numpy(latent.to_latent(latent.from_latent(g.numpy()))))
    np.testing.assert_allclose(again, t, atol=1e-9)


def test_the_belief_sums_to_one_and_is_that_of_the_judge(
    kind: tuple[Uniform, BeliefDensity],
) -> None:
    box, belief = kind
    grid, volume = _quadrature(box, 1000 if box.dimension == 1 else 200)
    mass = np.exp(belief.log_prob(grid)) * volume
    assert mass.sum() == pytest.approx(1.0, abs=0.03)
    inside = box.contains(grid)
    scale = np.where(inside, box.log_scale_derivative(grid), 0.0)
    truth = np.where(inside, np.exp(_log_density(box, grid) + scale), 0.0) * volume
    assert 0.5 * np.abs(mass - truth / truth.sum()).sum() < 0.2


def test_draws_of_the_belief_follow_its_density(kind: tuple[Uniform, BeliefDensity]) -> None:
    box, belief = kind
    x = belief.sample(20_000, seed=3)
    assert box.contains(x).all()
    grid, volume = _quadrature(box, 1000 if box.dimension == 1 else 200)
    mass = np.exp(belief.log_prob(grid)) * volume
    for j in range(box.dimension):
        for cut in np.quantile(grid[:, j], [0.2, 0.4, 0.6, 0.8]):
            share = mass[grid[:, j] <= cut].sum() / mass.sum()
            assert np.mean(x[:, j] <= cut) == pytest.approx(share, abs=0.03)


def test_the_mode_is_the_highest_point(kind: tuple[Uniform, BeliefDensity]) -> None:
    box, belief = kind
    grid, _ = _quadrature(box, 1000 if box.dimension == 1 else 200)
    mode = belief.mode()[None]
    assert box.contains(mode).all()
    assert belief.log_prob(mode)[0] >= belief.log_prob(grid).max() - 1e-3


def test_a_belief_of_every_kind_is_read_back(
    kind: tuple[Uniform, BeliefDensity], tmp_path: Path
) -> None:
    box, belief = kind
    belief.save(tmp_path / "belief")
    again = BeliefDensity.load(tmp_path / "belief")
    x = box.sample(50, np.random.default_rng(0))
    np.testing.assert_array_equal(again.log_prob(x), belief.log_prob(x))
    np.testing.assert_array_equal(again.sample(20, seed=4), belief.sample(20, seed=4))
    assert repr(again.sampling) == repr(box)
    assert repr(read_sampling(box.to_dict())) == repr(box)


def test_fifty_categories_are_found_without_mixtures_which_would_take_minutes() -> None:
    """Beside two numbers, from 2000 comparisons: shares are half as far as with no answer."""
    box = Uniform([0.0, -4.0, -4.0], [49.0, 4.0, 4.0], categorical=[True, False, False])
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(50))
    shares = (shares + 0.002) / 1.1

    def log_density(x: Array) -> Array:
        near = x[:, 1] - np.where(x[:, 0] < 25, -1.0, 1.0)
        return np.asarray(np.log(shares[x[:, 0].astype(int)]) - near**2 - 0.5 * x[:, 2] ** 2)

    a, b = box.sample(2000, rng), box.sample(2000, rng)
    wins = simulate_choices(log_density(a), log_density(b), Noise(), rng)[:, None]
    winners, losers = np.where(wins, a, b), np.where(wins, b, a)
    belief = fit_belief(winners, losers, sampling=box)
    assert not any("mixture" in form for form in belief.diagnostics["utility"]["held_out"])
    found = np.bincount(belief.sample(20_000)[:, 0].astype(int), minlength=50) / 20_000
    no_answer = np.abs(1 / 50 - shares).sum()
    assert np.abs(found - shares).sum() < 0.55 * no_answer


def test_suggested_pairs_are_points_of_the_support() -> None:
    """Of whole numbers, circles and constraints, with draws of the posterior for the bands."""
    box = Uniform(
        [0.0, 1.0, 1.0], [23.0, 9.0, 9.0], integer=[True, True, False],
        periodic=[True, False, False], constraints=[LinearConstraint([0, 1, -1], 0)],
    )  # fmt: skip
    rng = np.random.default_rng(0)
    a, b = box.sample(150, rng), box.sample(150, rng)
    wins = (_log_density(box, a) > _log_density(box, b))[:, None]
    sides = np.where(wins, a, b), np.where(wins, b, a)
    belief = fit_belief(*sides, sampling=box, settings=QUADRATIC)
    assert box.contains(np.concatenate(suggest_pairs(belief, 40, seed=1))).all()
    draws = belief.draws()
    assert all(box.contains(points).all() for points in draws.points)
    shares = draws.shares(0)
    assert shares.shape == (len(draws), 24)
    np.testing.assert_allclose(shares.sum(1), 1.0)
    assert belief.diagnostics["bounds"]["each"][:2] == [None, None]
    conditional = belief.given({1: 5.0})
    x = conditional.sample(500, seed=1)
    assert (x[:, 1] >= 5.0).all()
    assert conditional.sampling.periodic.tolist() == [True, False]


@pytest.mark.parametrize(
    ("name", "given"), [("two kinds", {1: 2.0}), ("map", {0: 3.0}), ("ordered counts", {0: 4.0})]
)
def test_a_conditional_belief_is_the_belief_s_own_slice(name: str, given: dict[int, float]) -> None:
    box, belief = EVERY[name], _fitted(name)
    conditional = belief.given(given)
    grid, volume = _quadrature(conditional.sampling, 1000)
    mass = np.exp(conditional.log_prob(grid)) * volume
    assert mass.sum() == pytest.approx(1.0, abs=0.03)
    ((at, value),) = given.items()
    slices = np.insert(grid, at, value, axis=1)
    joint = np.exp(belief.log_prob(slices)) * volume
    assert (box.contains(slices) == conditional.sampling.contains(grid)).all()
    np.testing.assert_allclose(mass, joint / joint.sum(), atol=0.03 * mass.max())
    x = conditional.sample(20_000, seed=2)[:, 0]
    for cut in np.quantile(grid[mass > 0], [0.25, 0.5, 0.75]):
        assert np.mean(x <= cut) == pytest.approx(mass[grid[:, 0] <= cut].sum(), abs=0.04)


@pytest.mark.parametrize("name", ["two kinds", "ordered counts", "hour"])
def test_log_odds_find_a_belief_of_every_kind(name: str) -> None:
    box, rng = EVERY[name], np.random.default_rng(5)
    a, b = box.sample(150, rng), box.sample(150, rng)
    log_odds = _log_density(box, a) - _log_density(box, b) + rng.normal(0, 0.3, 150)
    belief = fit_belief(a, b, log_odds=log_odds, sampling=box)
    grid, volume = _quadrature(box, 200)
    inside = box.contains(grid)
    truth = np.where(inside, np.exp(_log_density(box, grid)), 0.0) * volume
    mass = np.exp(belief.log_prob(grid)) * volume
    assert 0.5 * np.abs(mass - truth / truth.sum()).sum() < 0.06


def test_a_circle_has_no_cut() -> None:
    box = Uniform([0.0, 0.0], [24.0, 24.0], periodic=[True, False])
    latent = make_latent(box)
    ends = torch.from_numpy(latent.to_latent(np.array([[0.0, 1.0], [24.0, 1.0], [12.0, 1.0]])))
    t = latent.features(ends)
    np.testing.assert_allclose(t[0], t[1], atol=1e-9)
    assert float((t[0] - t[2]).norm()) == pytest.approx(2 * np.sqrt(2.0))
    apart = torch.cdist(*[_coordinates(np.array([[1.0, 0], [23.0, 0], [12.0, 0]]), box)] * 2)
    assert apart[0, 1] < apart[0, 2] / 3
    assert np.isnan(near_bounds(box, np.array([[0.0, 0.0]]))).tolist() == [[True, False]]
    assert isinstance(latent, BoxLatent)
    assert latent.from_features(t) is None


def test_a_constraint_given_values_is_one_on_the_other_features() -> None:
    corners = [[0.0, 0.0], [4.0, 0.0], [4.0, 4.0], [2.0, 1.0], [0.0, 4.0]]
    box = Uniform(
        [0.0, 0.0, 0.0], [4.0, 4.0, 1.0], constraints=[PolygonConstraint((0, 1), corners)]
    )
    x = np.linspace(0.05, 3.95, 79)
    for at, value in ((1, 2.0), (1, 0.5), (0, 1.0)):
        slices = np.zeros((79, 3))
        slices[:, at], slices[:, 1 - at] = value, x
        rest = box.condition({at: value})
        np.testing.assert_array_equal(
            rest.contains(np.delete(slices, at, axis=1)), box.contains(slices)
        )
    assert box.condition({2: 0.5}).box_share == pytest.approx(box.box_share)
    assert box.condition({0: 1.0, 1: 0.5}).constraints == ()
    with pytest.raises(DensityError, match="violates"):
        box.condition({0: 2.0, 1: 3.0})


def test_a_box_counts_whole_numbers_with_their_cells() -> None:
    box = Uniform([1.0, 0.0], [4.0, 2.0], integer=[True, False], categorical=[False, False])
    inside = np.array([[[2.0, 3.0], [-np.inf, np.inf]], [[-np.inf, np.inf], [0.5, 1.0]]])
    np.testing.assert_allclose(box.box_to_cube(inside)[0], [[0.25, 0.75], [0.0, 1.0]])
    np.testing.assert_allclose(box.box_to_cube(inside)[1], [[0.0, 1.0], [0.25, 0.5]])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"low": [0.5], "high": [2.0], "integer": [True]}, "both bounds must be whole"),
        ({"low": [0.0], "high": [2.0], "integer": [True], "log": [True]}, "positive lower bound"),
        ({"low": [1.0], "high": [2.0], "periodic": [True], "log": [True]}, "periodic and log"),
        ({"low": [0.0], "high": [2.0], "periodic": [True], "categorical": [True]}, "periodic and"),
        ({"low": [0.0], "high": [2.0], "integer": [True], "categorical": [True]}, "integer and"),
        ({"low": [0.0], "high": [1.0], "integer": [True], "periodic": [True]}, "two whole numbers"),
        ({"low": [1.0], "high": [1e16], "integer": [True]}, r"2\*\*52"),
        ({"low": [0.0], "high": [1.0], "constraints": [LinearConstraint([1.0], -1)]}, "0.1%"),
        ({"low": [0.0], "high": [1.0], "constraints": [LinearConstraint([1, 1], 1)]}, "one for"),
        ({"low": [0.0], "high": [1.0], "constraints": ["x < 1"]}, "'x < 1'"),
        (
            {"low": [0.0], "high": [1.0], "categorical": [True],
             "constraints": [LinearConstraint([1.0], 1)]},
            "needs an order",
        ),
    ],
)  # fmt: skip
def test_kinds_that_exclude_each_other_are_refused(arguments: dict, said: str) -> None:
    with pytest.raises(DensityError, match=said):
        Uniform(**arguments)


@pytest.mark.parametrize("name", ["count", "hour", "direction", "map"])
def test_methods_for_continuous_numbers_refuse_other_kinds(name: str) -> None:
    box = EVERY[name]
    points = box.sample(4, np.random.default_rng(0))
    with pytest.raises(DensityError, match="takes only numbers"):
        fit_belief(points[:2], points[2:], sampling=box, method="score")


def test_whole_numbers_have_no_gradient() -> None:
    belief = _fitted("count")
    with pytest.raises(DensityError, match="whole numbers, which have no gradient"):
        belief.as_prior().logpdf_and_gradient([[1.0]])


def test_polygons_and_coefficients_of_another_shape_are_refused() -> None:
    with pytest.raises(DensityError, match="three corners"):
        PolygonConstraint((0, 1), [[0.0, 0.0], [1.0, 1.0]])
    with pytest.raises(DensityError, match="two different"):
        PolygonConstraint((1, 1), TRIANGLE)
    with pytest.raises(DensityError, match="not all of them 0"):
        LinearConstraint([0.0, 0.0], 1.0)
