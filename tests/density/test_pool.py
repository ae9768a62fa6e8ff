"""Pools of beliefs: beliefs like any other, with weights from points."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from llm_elicit.density import (
    BeliefDensity,
    DensityError,
    GaussianMixture,
    fit_belief,
    fit_pool_weights,
    fit_power,
    pool_beliefs,
    winner_density,
)
from llm_elicit.density.pool import PoolKind
from tests.density.targets import QUADRATIC, Array

_STEP = 0.06
_GRID = np.stack(np.meshgrid(*[np.arange(-3 + _STEP / 2, 3, _STEP)] * 2), -1).reshape(-1, 2)


def _integral(density: Array) -> float:
    return float(density.sum() * _STEP**2)


@pytest.mark.parametrize("kind", ["linear", "logarithmic"])
def test_a_pool_is_a_belief_like_any_other(
    moon_utility: BeliefDensity, moon_score: BeliefDensity, kind: PoolKind, tmp_path: Path
) -> None:
    pool = pool_beliefs([moon_utility, moon_score], kind, weights=[1, 3])
    densities = [belief.pdf(_GRID) for belief in (moon_utility, moon_score)]
    expected = 0.25 * densities[0] + 0.75 * densities[1]
    if kind == "logarithmic":
        expected = densities[0] ** 0.25 * densities[1] ** 0.75
        expected /= _integral(expected)
    assert np.abs(pool.pdf(_GRID) - expected).max() < 0.03 * expected.max()
    draws = pool.sample(4000, seed=1)
    mean = (expected[:, None] * _GRID).sum(0) * _STEP**2
    assert np.abs(draws.mean(0) - mean).max() < 0.1
    assert np.abs(pool.mean() - mean).max() < 0.1

    sharper = pool.tempered(2.0)
    assert sharper.power == 2.0
    assert _integral(sharper.pdf(_GRID)) == pytest.approx(1.0, abs=0.03)
    squared = expected**2 / _integral(expected**2)
    assert np.abs(sharper.pdf(_GRID) - squared).max() < 0.04 * squared.max()
    np.testing.assert_allclose(
        sharper.tempered(0.5).log_prob(_GRID), pool.log_prob(_GRID), atol=0.03
    )

    for number, saved in enumerate((pool, sharper)):
        saved.save(tmp_path / str(number))
        same = BeliefDensity.load(tmp_path / str(number))
        assert (same.sample(50, seed=2) == saved.sample(50, seed=2)).all()
        assert (same.log_prob(_GRID) == saved.log_prob(_GRID)).all()
    assert same.diagnostics["pool"] == {"weights": [0.25, 0.75], "points": 0}
    assert "pool" in pool._repr_html_()
    assert pool.plot(n=500).axes
    nested = pool_beliefs([pool, moon_utility])
    expected = 0.5 * pool.pdf(_GRID) + 0.5 * densities[0]
    np.testing.assert_allclose(nested.pdf(_GRID), expected, rtol=1e-4)


def test_weights_find_the_good_judge_and_what_two_know_together() -> None:
    """Scores are at points that the weights were not fitted to."""
    rng = np.random.default_rng(0)
    points, draws = rng.normal(0.0, 1.0, (2000, 2)), rng.uniform(-6.0, 6.0, (9000, 2))

    def judge(sds: tuple[float, float], x: Array) -> Array:
        return norm.logpdf(x, scale=sds).sum(axis=1)

    def fit(kind: PoolKind, *judges: tuple[float, float]) -> tuple[Array, Array]:
        parts = [rng.normal(0.0, sds, (len(draws) // len(judges), 2)) for sds in judges]
        at_points, at_draws = (
            np.column_stack([judge(sds, x) for sds in judges])
            for x in (points, np.concatenate(parts))
        )
        pool = fit_pool_weights(kind, at_points[:1000], at_draws)
        scores = [*at_points[1000:].mean(0), pool.log_density(at_points[1000:]).mean()]
        return pool.weights, np.array(scores)

    for kind in ("linear", "logarithmic"):
        weights, _ = fit(kind, (1.0, 1.0), (3.0, 3.0))
        assert weights[0] > 0.9
    # Each knows one feature. Their product, with equal weights, has the variance 1.8 in both.
    weights, scores = fit("logarithmic", (1.0, 3.0), (3.0, 1.0))
    assert np.abs(weights - 0.5).max() < 0.1
    assert scores[2] > scores[:2].max() + 0.1
    precision = weights @ np.array([[1.0, 1 / 9], [1 / 9, 1.0]])
    truth = norm.logpdf(points[1000:], scale=precision**-0.5).sum(axis=1).mean()
    assert scores[2] == pytest.approx(truth, abs=0.02)


def test_what_cannot_be_pooled_is_refused_in_one_line(moon_utility: BeliefDensity) -> None:
    rng = np.random.default_rng(0)
    wide = GaussianMixture([1.0], [[0.0, 0.0]], [np.eye(2)])
    a, b = rng.normal(size=(2, 30, 2))
    other = fit_belief(a, b, sampling=wide, method="utility", settings=QUADRATIC)
    two = [moon_utility, moon_utility]
    with pytest.raises(DensityError, match="two or more"):
        pool_beliefs(two[:1])
    with pytest.raises(DensityError, match="different λ"):
        pool_beliefs([moon_utility, other])
    with pytest.raises(DensityError, match="at least 0 and not all 0"):
        pool_beliefs(two, weights=[1.0, -1.0])
    with pytest.raises(DensityError, match="weights, points or"):
        pool_beliefs(two, weights=[1.0, 1.0], points=[[0.0, 0.0]])
    with pytest.raises(DensityError, match="outside the support"):
        pool_beliefs(two, points=[[9.0, 0.0]])
    with pytest.raises(DensityError, match="kind = 'geometric'"):
        pool_beliefs(two, "geometric")  # type: ignore[arg-type]
    pool = pool_beliefs(two)
    for ask in (pool.draws, lambda: pool.noise, lambda: fit_power(pool, points=[[0.0, 0.0]] * 9)):
        with pytest.raises(DensityError, match="linear pool"):
            ask()
    with pytest.raises(DensityError, match="linear pool"):
        winner_density(pool)
