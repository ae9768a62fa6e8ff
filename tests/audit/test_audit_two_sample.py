"""Distances over all features together: closed forms, laws, and real data against themselves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm

from audit.planted import box
from llm_elicit.audit.distances import DistanceEstimator, energy_distance, wasserstein
from llm_elicit.audit.reference import AuditSettings, Standardizer
from llm_elicit.spaces.features import FeatureSpace

samples = st.integers(1, 25).flatmap(
    lambda n: st.tuples(*[arrays(np.float64, (n, 2), elements=st.floats(-9, 9, width=32))] * 3)
)


@pytest.mark.parametrize("shift", [[3.0, 4.0], [0.0, 0.1], [-2.0, 0.0]])
def test_a_shift_of_all_points_is_its_length(shift):
    points = np.random.default_rng(0).normal(size=(300, 2))
    assert wasserstein(points, points + shift) == pytest.approx(np.hypot(*shift))


def test_wasserstein_is_symmetric_and_zero_on_itself():
    x, y = np.random.default_rng(1).normal(size=(2, 200, 3))
    assert wasserstein(x, x) == 0
    assert wasserstein(x, y) == pytest.approx(wasserstein(y, x))


def test_wasserstein_in_one_dimension_is_the_distance_of_the_order_statistics():
    x, y = np.random.default_rng(2).exponential(size=(2, 500, 1))
    expected = abs(np.sort(x[:, 0]) - np.sort(y[:, 0])).mean()
    assert wasserstein(x, y) == pytest.approx(expected)


def assert_at_floor(distance, floor):
    """Assert that both distances are about as large as their floors."""
    assert distance.energy.mean == pytest.approx(floor.energy.mean, rel=0.5)
    assert distance.wasserstein.mean == pytest.approx(floor.wasserstein.mean, rel=0.1)


def energy_of_normals(shift):
    """2 E|Z| - 4/√π with Z normal, mean `shift` and variance 2."""
    folded = 2 / np.sqrt(np.pi) * np.exp(-(shift**2) / 4) + shift * (
        1 - 2 * norm.cdf(-shift / np.sqrt(2))
    )
    return np.sqrt(2 * folded - 4 / np.sqrt(np.pi))


@pytest.mark.parametrize("shift", [0.5, 1.0, 3.0])
def test_the_energy_distance_of_two_normals(shift):
    """Quantiles stand for draws."""
    points = norm.ppf((np.arange(2000) + 0.5) / 2000)[:, None]
    assert energy_distance(points, points + shift) == pytest.approx(
        energy_of_normals(shift), rel=0.01
    )


@given(samples)
@settings(max_examples=80)
def test_laws(three):
    x, y, z = three
    assert energy_distance(x, x) == pytest.approx(0.0, abs=1e-6)
    assert energy_distance(x, y) == pytest.approx(energy_distance(y, x), abs=1e-9)
    assert energy_distance(x, z) <= energy_distance(x, y) + energy_distance(y, z) + 1e-6
    assert energy_distance(x, y) ** 2 <= 2 * wasserstein(x, y) + 1e-9


def test_the_stream_of_the_subsamples_is_used_for_nothing_else():
    """Numbers of earlier audits stay."""
    space, rng = box(2, 8.0), np.random.default_rng(4)
    x, y = space.round(rng.normal(size=(2, 200, 2)))
    estimator = DistanceEstimator(Standardizer.of(space, y), AuditSettings(repeats=2), 50, 80)
    measured = estimator.estimate_distance(x, y, np.random.default_rng(5))
    rng, expected = np.random.default_rng(5), []
    for _ in range(2):
        a, b = (p[rng.choice(200, 50, replace=False)] for p in (x, y))
        expected.append(wasserstein(estimator.standardizer(a), estimator.standardizer(b)))
        for _ in (x, y):
            rng.choice(200, 80, replace=False)
    assert measured.wasserstein.mean == pytest.approx(np.mean(expected), rel=1e-12)
    assert measured == estimator.estimate_distance(x, y, np.random.default_rng(5))


@pytest.fixture(scope="module")
def housing():
    space = FeatureSpace.load("california_housing")
    rng = np.random.default_rng(6)
    data = rng.permutation(space.table_points())
    estimator = DistanceEstimator(Standardizer.of(space, data), AuditSettings(repeats=3), 600, 600)
    return data, estimator, estimator.estimate_floor(data, rng), rng


def test_distances_between_two_halves_of_a_table_are_at_the_floor(housing):
    data, estimator, floor, rng = housing
    assert_at_floor(floor, floor)
    half = len(data) // 2
    assert_at_floor(estimator.estimate_distance(data[:half], data[half:], rng), floor)


def test_joint_distances_find_lost_dependence_that_marginals_do_not_show(housing):
    data, estimator, floor, rng = housing
    torn = estimator.estimate_distance(rng.permuted(data, axis=0), data, rng)
    assert torn.mmtv.mean == pytest.approx(floor.mmtv.mean, rel=0.3)
    assert torn.wasserstein.mean > 1.3 * floor.wasserstein.mean
    assert torn.energy.mean > 1.5 * floor.energy.mean


def test_the_interval_is_of_the_distances_that_the_draws_have():
    """Draws shifted by half to one and a half standard deviations, evenly, in one feature."""
    rng, space = np.random.default_rng(4), box(1, 8.0)
    data = rng.normal(size=(4000, 1))
    shifts = np.linspace(0.5, 1.5, 41)
    draws = rng.normal(size=(41, 800, 1)) + shifts[:, None, None]
    estimator = DistanceEstimator(Standardizer.of(space, data), AuditSettings(repeats=3), 600, 600)
    found = estimator.estimate_distance(rng.normal(1.0, 1.0, (4000, 1)), data, rng, draws)
    # The band cuts off a twentieth.
    expected = [energy_of_normals(0.55), energy_of_normals(1.45)]
    np.testing.assert_allclose(found.energy_interval, expected, atol=0.1)
    assert found.energy_interval[0] < found.energy.mean < found.energy_interval[1]
    few = estimator.estimate_distance(data, data, rng, draws[:, :599])
    assert few.energy_interval is None
