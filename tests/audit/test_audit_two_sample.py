"""Distances over all features together: closed forms, laws, and real data against themselves."""

import numpy as np
import ot
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm

from audit.planted import box
from llm_elicit.audit.distances import (
    DistanceEstimator,
    classifier_accuracy,
    energy_distance,
    measure_joint,
    measure_joint_of_draws,
    pqmass,
    sliced_wasserstein,
    wasserstein,
)
from llm_elicit.audit.reference import AuditSettings, Standardizer
from llm_elicit.spaces.features import FeatureSpace

samples = st.integers(1, 25).flatmap(
    lambda n: st.tuples(*[arrays(np.float64, (n, 2), elements=st.floats(-9, 9, width=32))] * 3)
)


def sliced(x, y):
    return sliced_wasserstein(x, y, np.random.default_rng(7))


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
    """Assert that every distance is about as large as its floor."""
    for name in ("sliced", "energy"):
        ours, chance = getattr(distance.joint, name).mean, getattr(floor.joint, name).mean
        assert ours == pytest.approx(chance, rel=0.5), name
    assert distance.wasserstein.mean == pytest.approx(floor.wasserstein.mean, rel=0.1)
    assert distance.joint.classifier.mean == pytest.approx(0.5, abs=0.03)
    assert distance.joint.pqmass.mean == pytest.approx(1.0, abs=0.3)


def test_sliced_wasserstein_is_that_of_pot():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 150, 4)) * [[[1.0]], [[2.0]]]
    directions = np.random.default_rng(7).normal(size=(4, 256))
    directions /= np.linalg.norm(directions, axis=0)
    theirs = ot.sliced.sliced_wasserstein_distance(x, y, p=1, projections=directions)
    assert sliced(x, y) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize(("d", "mean_cosine"), [(1, 1.0), (2, 2 / np.pi), (3, 0.5)])
def test_a_shift_is_seen_shortened_by_the_mean_cosine(d, mean_cosine):
    points = np.random.default_rng(1).normal(size=(50, d))
    shift = np.eye(d)[0] * 4
    assert sliced(points, points + shift) == pytest.approx(4 * mean_cosine, rel=0.1)


@pytest.mark.parametrize("shift", [0.5, 1.0, 3.0])
def test_the_energy_distance_of_two_normals(shift):
    """2 E|Z| - 4/√π with Z normal, mean `shift` and variance 2; quantiles stand for draws."""
    points = norm.ppf((np.arange(2000) + 0.5) / 2000)[:, None]
    folded = 2 / np.sqrt(np.pi) * np.exp(-(shift**2) / 4) + shift * (
        1 - 2 * norm.cdf(-shift / np.sqrt(2))
    )
    exact = np.sqrt(2 * folded - 4 / np.sqrt(np.pi))
    assert energy_distance(points, points + shift) == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("shift", [1.0, 2.0])
def test_the_classifier_is_nearly_as_good_as_bayes(shift):
    x, y = np.random.default_rng(2).normal(size=(2, 4000, 1))
    bayes = norm.cdf(shift / 2)
    assert bayes - 0.04 < classifier_accuracy(x, y + shift) < bayes + 0.015


def test_equal_densities_give_a_half_and_one_on_average():
    """Leaving out one point at a time, the classifier would be right in 0.488 here."""
    rng = np.random.default_rng(3)
    trials = [measure_joint(*rng.normal(size=(2, 60, 2)), rng) for _ in range(600)]
    for name, expected in (("classifier", 0.5), ("pqmass", 1.0)):
        values = np.array([trial[name] for trial in trials])
        error = values.std() / np.sqrt(len(values))
        assert error < 0.03
        assert abs(values.mean() - expected) < 4 * error, name


@given(samples)
@settings(max_examples=80)
def test_laws(three):
    x, y, z = three
    for distance in (sliced, energy_distance):
        assert distance(x, x) == pytest.approx(0.0, abs=1e-6)
        assert distance(x, y) == pytest.approx(distance(y, x), abs=1e-9)
        assert distance(x, z) <= distance(x, y) + distance(y, z) + 1e-6
    moved = wasserstein(x, y)
    assert sliced(x, y) <= moved + 1e-9
    assert energy_distance(x, y) ** 2 <= 2 * moved + 1e-9
    assert classifier_accuracy(x, x) == 0.5
    assert 0 <= classifier_accuracy(x, y) <= 1
    assert pqmass(x, y) >= 0
    if len(np.unique(x, axis=0)) > 2:
        assert pqmass(x, x) in (0.0, 1.0)  # 1 where all the points counted lie in one cell


def test_new_distances_leave_the_subsamples_as_they_were():
    """Numbers of earlier audits stay: the stream of the subsamples is used for nothing else."""
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
    assert torn.joint.sliced.mean > 1.5 * floor.joint.sliced.mean
    assert torn.joint.energy.mean > 1.5 * floor.joint.energy.mean
    assert torn.joint.classifier.mean > 0.65
    assert torn.joint.pqmass.mean > 2


def test_distances_of_many_draws_are_those_of_each():
    rng = np.random.default_rng(3)
    draws, others = rng.normal(size=(5, 40, 3)), list(rng.normal(size=(2, 40, 3)))
    found = measure_joint_of_draws(draws, others, np.random.default_rng(7))
    for place, drawn in enumerate(draws):
        other = others[place % 2]
        assert found["sliced"][place] == pytest.approx(sliced(drawn, other))
        assert found["energy"][place] == pytest.approx(energy_distance(drawn, other))


def test_intervals_are_of_the_distances_that_the_draws_have():
    """Draws shifted by half to one and a half standard deviations, evenly, in two features."""
    rng, space = np.random.default_rng(4), box(2, 8.0)
    data = rng.normal(size=(4000, 2))
    shifts = np.linspace(0.5, 1.5, 41)
    draws = rng.normal(size=(41, 800, 2)) + shifts[:, None, None] * [1.0, 0.0]
    estimator = DistanceEstimator(Standardizer.of(space, data), AuditSettings(repeats=3), 600, 600)
    found = estimator.estimate_distance(rng.normal([1.0, 0.0], 1.0, (4000, 2)), data, rng, draws)
    # A shift s is seen as 2 s/π on average over directions; the band cuts off a twentieth.
    seen = np.array(found.intervals.sliced) * np.pi / 2
    np.testing.assert_allclose(seen, [0.55, 1.45], atol=0.1)
    assert found.intervals.sliced[0] < found.joint.sliced.mean < found.intervals.sliced[1]
    assert found.intervals.energy[0] < found.joint.energy.mean < found.intervals.energy[1]
    few = estimator.estimate_distance(data, data, rng, draws[:, :599])
    assert few.intervals is None
