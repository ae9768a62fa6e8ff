"""Discrimination: known areas, ceilings, intervals; what scale cannot change."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from audit.planted import box
from llm_elicit.audit.reference import Reference
from llm_elicit.audit.utility import (
    UtilityDraws,
    auc,
    level_set_share,
    measure_discrimination,
    spearman,
)

SPACE = box(2)


def _utility(f, rows, sampling, doubt, rng, draws=64):
    """f, and draws about it that differ by linear functions."""

    def values(points):
        slopes = np.random.default_rng(1).normal(0.0, doubt, (draws, points.shape[1]))
        return f(points) + slopes @ points.T

    return UtilityDraws(values(rows), values(sampling), rows, sampling, ())


def _found(f, seed=0, doubt=1e-3, n=400, sd=0.8, explained_share=1.0):
    rng = np.random.default_rng(seed)
    rows = SPACE.round(np.clip(rng.normal(0, sd, (n, 2)), -3, 3))
    sampling = SPACE.sample(2000, rng)
    reference = Reference(SPACE, SPACE.sample(2000, rng), rows)
    utility = _utility(f, rows, sampling, doubt, rng)
    return measure_discrimination(replace(utility, explained_share=explained_share), reference, rng)


def _normal(x):
    return -0.5 * np.square(x / 0.8).sum(1)


def test_the_utility_of_the_data_s_own_density_reaches_the_ceilings():
    found = _found(_normal)
    # P(χ²_2 (0.64) < r²) for r uniform in the square, by simulation.
    rng = np.random.default_rng(9)
    x, y = rng.normal(0, 0.8, (200_000, 2)), rng.uniform(-3, 3, (200_000, 2))
    truth = (np.square(x).sum(1) < np.square(y).sum(1)).mean()
    radius = np.quantile(np.square(y).sum(1), 0.1)
    held = (np.square(x).sum(1) < radius).mean()
    assert found.auc.low < truth < found.auc.high
    assert found.ceiling == pytest.approx(truth, abs=0.03)
    assert found.level_set.low < held < found.level_set.high
    assert found.level_set_ceiling == pytest.approx(held, abs=0.06)
    assert found.rank_correlation.value > 0.9


def test_the_auc_interval_of_an_unrelated_utility_covers_one_half():
    area, correlation = 0, 0
    for seed in range(40):
        found = _found(lambda x: x[:, 0], seed, n=150)
        area += found.auc.low < 0.5 < found.auc.high
        correlation += found.rank_correlation.low < 0.0 < found.rank_correlation.high
    assert min(area, correlation) >= stats.binom.ppf(0.001, 40, 0.95)


def test_the_auc_of_an_opposite_utility_is_below_one_half():
    found = _found(lambda x: -_normal(x))
    assert found.auc.high < 0.2
    assert found.rank_correlation.high < -0.8
    assert found.level_set.value < 0.02


def test_posterior_variance_of_the_utility_widens_every_interval():
    sure, unsure = (_found(_normal, doubt=doubt) for doubt in (1e-3, 2.0))
    for name in ("auc", "rank_correlation", "level_set"):
        narrow, wide = (getattr(each, name) for each in (sure, unsure))
        assert wide.high - wide.low > 1.2 * (narrow.high - narrow.low), name


def test_what_a_fit_leaves_out_widens_every_interval():
    """The fit is linear; the judge also likes a narrow region, which holds the data or none."""
    truth = []
    for centre in (np.zeros(2), np.array([-2.0, 2.0])):
        rng = np.random.default_rng(0)
        data, sampling = rng.normal(0, 0.8, (20_000, 2)), rng.uniform(-3, 3, (20_000, 2))
        of_rows, of_sampling = (
            x[:, 0] + 4.0 * np.exp(-np.square(x - centre).sum(1) / 0.5) for x in (data, sampling)
        )
        truth.append(auc(of_rows, of_sampling))
    exact, wide = (_found(lambda x: x[:, 0], explained_share=share) for share in (1.0, 0.7))
    assert not any(exact.auc.low < area < exact.auc.high for area in truth)
    assert all(wide.auc.low < area < wide.auc.high for area in truth)
    for name in ("rank_correlation", "level_set"):
        narrow, other = (getattr(each, name) for each in (exact, wide))
        assert other.high - other.low > narrow.high - narrow.low
    assert _found(lambda x: x[:, 0], explained_share=0.0) is None


@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_discrimination_does_not_depend_on_the_scale_of_the_utility(scale):
    def faint(x):
        return 0.01 * _normal(x)

    assert _found(faint, doubt=1e-3) == _found(lambda x: scale * faint(x), doubt=scale * 1e-3)


def test_a_constant_utility_has_an_auc_of_one_half():
    found = _found(lambda x: np.zeros(len(x)), doubt=0.0)
    assert (found.auc.value, found.rank_correlation.value) == (0.5, 0.0)
    assert found.level_set.value == pytest.approx(0.1)


def test_ranks_are_those_of_scipy():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 9, 50).astype(float), rng.integers(0, 9, 70).astype(float)
    assert auc(x, y) == pytest.approx(stats.mannwhitneyu(x, y).statistic / (50 * 70))
    assert spearman(x, y[:50]) == pytest.approx(stats.spearmanr(x, y[:50]).statistic)
    assert level_set_share(np.arange(10.0), np.arange(100.0)) == 0.0


def test_there_is_no_discrimination_without_a_table():
    sampling = SPACE.sample(100, np.random.default_rng(0))
    bare = UtilityDraws(None, sampling[None, :, 0], None, sampling, ())
    reference = Reference(SPACE, sampling)
    assert measure_discrimination(bare, reference, np.random.default_rng(0)) is None
