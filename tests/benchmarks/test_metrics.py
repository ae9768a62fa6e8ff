"""Distances with known values, and their floors."""

import numpy as np
import pytest
from scipy.stats import norm

from llm_elicit.benchmarks.metrics import BINS, distances, floor, mmtv, wasserstein
from llm_elicit.benchmarks.targets import find
from llm_elicit.errors import InputError


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


def test_an_early_end_of_the_network_simplex_does_not_change_the_value():
    from llm_elicit.audit import distances

    x, y = np.random.default_rng(3).normal(size=(2, 300, 2))
    with pytest.warns(UserWarning, match="numItermax"):
        stopped = distances.wasserstein(x, y, iterations=10)
    assert stopped == pytest.approx(wasserstein(x, y))


@pytest.mark.parametrize("apart", [0.5, 1.0, 2.0])
def test_mmtv_of_shifted_normals_is_the_closed_form(apart):
    """½∫|φ(x) − φ(x − δ)| = 2Φ(δ/2) − 1 for the first feature, 0 for the second."""
    x, y = np.random.default_rng(4).normal(size=(2, 100_000, 2))
    x[:, 0] += apart
    expected = (2 * norm.cdf(apart / 2) - 1) / 2
    assert mmtv(x, y) == pytest.approx(expected, abs=0.02)


def test_mmtv_counts_what_lies_outside_the_true_sample():
    y = np.random.default_rng(5).normal(size=(10_000, 1))
    x = np.where(np.arange(10_000) < 3000, 1e6, y[:, 0])[:, None]
    assert mmtv(x, y) == pytest.approx(0.3, abs=0.02)


def test_the_floor_of_mmtv_is_below_its_bound():
    for name in ("Onemoon2D", "Gaussian16D"):
        chance = floor(find([name])[0], 25_000, 100, np.random.default_rng(6)).mmtv
        assert 0.01 < chance < 1.1 * np.sqrt(BINS / (np.pi * 25_000))


def test_the_floor_falls_with_points_and_a_perfect_estimate_meets_it():
    ring = find(["Ring2D"])[0]
    rng = np.random.default_rng(7)
    small, large = (floor(ring, 5000, points, rng).w1 for points in (100, 1600))
    assert large < small / 2
    perfect = distances(ring.sample(5000, rng), ring.sample(5000, rng), 1600)
    assert perfect.w1 < 1.6 * large


def test_samples_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match=r"\(5, 2\) and \(6, 2\)"):
        wasserstein(np.zeros((5, 2)), np.zeros((6, 2)))
    with pytest.raises(InputError, match="features must agree"):
        mmtv(np.zeros((5, 2)), np.zeros((5, 3)))
