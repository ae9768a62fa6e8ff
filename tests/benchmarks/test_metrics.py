"""Distances with known values, and their floors."""

import numpy as np
import pytest
from scipy.stats import norm

from benchmarks.metrics import BINS, distances, floor, mmtv
from benchmarks.targets import find


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
