"""Distances: known effects give bounded scores, laws hold, corner cases do not crash."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from audit.planted import box
from llm_elicit.audit.distances import DistanceEstimator, common_size, total_variation, wasserstein
from llm_elicit.audit.reference import AuditSettings, Standardizer, feature_axis
from llm_elicit.spaces.features import Feature

EDGES = np.linspace(0, 1, 9)
columns = arrays(np.float64, st.integers(1, 30), elements=st.floats(0, 1))


def estimator(space, data, size=300, marginal=2000):
    return DistanceEstimator(Standardizer.of(space, data), AuditSettings(repeats=3), size, marginal)


def normal(rng, shift=0.0, n=4000):
    return rng.normal([shift, 0.0], 1.0, size=(n, 2))


def test_bins_of_whole_numbers_are_as_wide_as_the_values_they_hold():
    feature = Feature(name="x", label="x", kind="integer", low=1, high=52)
    edges = feature_axis(feature).edges(20)
    values = np.arange(1, 53)
    density = np.histogram(values, edges)[0] / feature_axis(feature).widths(edges)
    np.testing.assert_allclose(density, 1.0)


def test_two_halves_of_one_gaussian_lie_at_the_floor():
    rng, space = np.random.default_rng(0), box(2, 8.0)
    data = normal(rng)
    measured = estimator(space, data).estimate_distance(normal(rng), data, rng)
    floor = estimator(space, data).estimate_floor(data, rng)
    assert measured.wasserstein.mean == pytest.approx(floor.wasserstein.mean, rel=0.4)
    assert measured.mmtv.mean == pytest.approx(floor.mmtv.mean, rel=0.4)


def test_a_shift_of_one_sd_is_one_sd_away():
    rng, space = np.random.default_rng(1), box(2, 8.0)
    data = normal(rng)
    measured = estimator(space, data).estimate_distance(normal(rng, 1.0), data, rng)
    assert measured.wasserstein.mean == pytest.approx(1.0, abs=0.15)
    moved, still = measured.features
    assert moved.wasserstein.mean == pytest.approx(1.0, abs=0.08)
    assert moved.total_variation.mean == pytest.approx(0.383, abs=0.04)
    assert still.wasserstein.mean < 0.1
    assert measured.mmtv.mean == pytest.approx(
        (moved.total_variation.mean + still.total_variation.mean) / 2
    )


def test_wasserstein_survives_a_solver_that_stops_early():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(60, 3)), rng.normal(size=(60, 3)) + 1
    with pytest.warns(UserWarning, match="numItermax"):
        stopped = wasserstein(x, y, max_iterations=3)
    assert stopped == pytest.approx(wasserstein(x, y), rel=1e-9)


def test_a_log_feature_is_measured_in_its_logarithm():
    feature = Feature(name="x", label="x", scale="log", low=1, high=1e6, digits=6)
    space = box(1).model_copy(update={"features": (feature,)})
    rng = np.random.default_rng(3)
    data = np.exp(rng.normal(6, 0.5, size=(4000, 1)))
    measured = estimator(space, data).estimate_distance(data * np.exp(0.5), data, rng)
    assert measured.wasserstein.mean == pytest.approx(1.0, abs=0.15)


@given(columns, columns)
@settings(deadline=None, max_examples=60)
def test_total_variation_is_a_bounded_symmetric_distance(x, y):
    value = total_variation(x, y, EDGES)
    assert 0 <= value <= 1 + 1e-12
    assert value == total_variation(y, x, EDGES)
    assert total_variation(x, x, EDGES) == 0


def test_total_variation_of_separate_samples_is_one():
    assert total_variation(np.array([0.1]), np.array([0.9]), EDGES) == 1.0


def test_whole_numbers_fall_alike_into_every_bin():
    feature = Feature(name="x", label="x", kind="integer", low=1, high=52)
    edges = feature_axis(feature).edges(30)
    counts = np.histogram(np.arange(1, 53), edges)[0]
    assert set(counts[:-1]) == {2}
    assert edges[0] < 1
    assert edges[-1] > 52


def test_rounding_alone_makes_no_distance():
    feature = Feature(name="x", label="x", kind="integer", low=0, high=20)
    space = box(1).model_copy(update={"features": (feature,)})
    rng = np.random.default_rng(4)
    continuous = rng.uniform(0, 20, size=(4000, 1))
    measured = estimator(space, continuous).estimate_distance(continuous, np.round(continuous), rng)
    floor = estimator(space, continuous).estimate_floor(np.round(continuous), rng)
    assert measured.mmtv.mean < 1.5 * floor.mmtv.mean


@pytest.mark.parametrize("n", [2, 3, 5])
def test_tiny_and_constant_tables_are_measured(n):
    space = box(2)
    data = np.column_stack([np.arange(n) / n, np.ones(n)])
    size = common_size(1000, data)
    measured = estimator(space, data, size, size).estimate_floor(data, np.random.default_rng(0))
    assert measured.size == size == n // 2
    assert np.isfinite(measured.wasserstein.mean)
    assert measured.features[1].wasserstein.mean == 0
