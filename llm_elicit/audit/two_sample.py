"""Two-sample distances over all features jointly, besides Wasserstein-1.

Each is a pure function of two samples of equal size, `(n, d)` each, of standardized features. They
detect differences that marginals do not show.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist, pdist

from llm_elicit.spaces.features import Floats

_PROJECTIONS = 256
_REFERENCES = 50


def measure_joint(x: Floats, y: Floats, rng: np.random.Generator) -> dict[str, float]:
    """Return all four by name: sliced, energy, classifier, pqmass.

    Args:
        x, y: samples of equal size, rows in random order.
        rng: draws the projections.
    """
    return {
        "sliced": sliced_wasserstein(x, y, rng),
        "energy": energy_distance(x, y),
        "classifier": classifier_accuracy(x, y),
        "pqmass": pqmass(x, y),
    }


def joint_of_draws(
    draws: Iterable[Floats], others: Sequence[Floats], rng: np.random.Generator
) -> dict[str, Floats]:
    """Return sliced Wasserstein-1 and energy distance of each of many samples, `(S,)` each.

    Args:
        draws: S samples `(n, d)`.
        others: samples `(n, d)` that the draws are compared with in turn.
        rng: draws the projections, the same for all.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> here, there = np.zeros((4, 2)), np.full((4, 2), [2.0, 0.0])
        >>> joint_of_draws([here, there], [here], rng)["energy"].tolist()
        [0.0, 2.0]
    """
    directions = _directions(others[0].shape[1], rng)
    projected = [_projected(other, directions) for other in others]
    within = [mean_distance(other) for other in others]
    sliced, energy = [], []
    for i, drawn in enumerate(draws):
        j = i % len(others)
        sliced.append(float(np.abs(_projected(drawn, directions) - projected[j]).mean()))
        energy.append(energy_between(drawn, others[j], within[j]))
    return {"sliced": np.array(sliced), "energy": np.array(energy)}


def _directions(d: int, rng: np.random.Generator) -> Floats:
    """Return random unit vectors `(d, 256)`."""
    directions = rng.normal(size=(d, _PROJECTIONS))
    return np.asarray(directions / np.linalg.norm(directions, axis=0))


def _projected(points: Floats, directions: Floats) -> Floats:
    """Return the sorted projections `(256, n)` of points `(n, d)`."""
    return np.sort(directions.T @ points.T, axis=1)


def sliced_wasserstein(x: Floats, y: Floats, rng: np.random.Generator) -> float:
    """Return Wasserstein-1 of the samples' projections, averaged over 256 random directions.

    It never exceeds Wasserstein-1 (Bonneel et al. 2015, "Sliced and Radon Wasserstein barycenters
    of measures"). POT's `ot.sliced` gives the same and takes ten times as long for samples of equal
    size.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> points = rng.normal(size=(100, 3))
        >>> round(sliced_wasserstein(points, points + [3.0, 4.0, 0.0], rng), 1)  # 5 E|u|, u on S²
        2.5
    """
    directions = _directions(x.shape[1], rng)
    return float(np.abs(_projected(x, directions) - _projected(y, directions)).mean())


def energy_distance(x: Floats, y: Floats) -> float:
    """Return √(2 E|X − Y| − E|X − X'| − E|Y − Y'|), the energy distance of two samples.

    Székely and Rizzo 2013, "Energy statistics: a class of statistics based on distances".

    Example:
        >>> energy_distance(np.zeros((4, 2)), np.full((4, 2), [2.0, 0.0]))
        2.0
    """
    return energy_between(x, y, mean_distance(y))


def energy_between(x: Floats, y: Floats, within_y: float) -> float:
    """Return the energy distance, with `mean_distance(y)` known."""
    squared = 2.0 * float(cdist(x, y).mean()) - mean_distance(x) - within_y
    return math.sqrt(max(squared, 0.0))


def mean_distance(x: Floats) -> float:
    """Return E|X − X'| within a sample `(n, d)`, including X = X'.

    Example:
        >>> mean_distance(np.array([[0.0], [1.0]]))
        0.5
    """
    return 2.0 * float(pdist(x).sum()) / len(x) ** 2


def classifier_accuracy(x: Floats, y: Floats) -> float:
    """Return the accuracy of a nearest-neighbour classifier that separates two samples.

    A classifier two-sample test (Lopez-Paz and Oquab 2017, "Revisiting classifier two-sample
    tests"), two-fold cross-validated: each half of both samples classifies the other, with an odd
    number of neighbours near the root of its size. Equal densities give 1/2 on average, identical
    samples exactly 1/2, disjoint samples 1. Leave-one-out would not: a point's own sample has one
    vote fewer, which biases the accuracy of equal densities below 1/2.

    Args:
        x, y: samples of equal size, rows in random order: the halves are the first and the last.

    Example:
        >>> points = np.random.default_rng(0).normal(size=(100, 2))
        >>> classifier_accuracy(points, points), classifier_accuracy(points, points + 9.0)
        (0.5, 1.0)
    """
    half = len(x) // 2
    if half == 0:
        return 0.5
    first, last = (x[:half], y[:half]), (x[half:], y[half:])
    return (_correct(first, last) + _correct(last, first)) / (2 * len(x))


def _correct(train: tuple[Floats, Floats], test: tuple[Floats, Floats]) -> int:
    """Return how many points of `test` the neighbours in `train` assign to the right sample."""
    points, first = np.concatenate(train), len(train[0])
    neighbours = int(np.sqrt(len(points))) | 1
    _, found = cKDTree(points).query(np.concatenate(test), k=range(1, neighbours + 1))
    assigned_second = (found >= first).sum(axis=1) > neighbours // 2
    is_second = np.repeat([False, True], [len(side) for side in test])
    return int((assigned_second == is_second).sum())


def pqmass(x: Floats, y: Floats) -> float:
    """Return χ² per degree of freedom of the samples' counts in random cells.

    The first rows of both, one in twenty and at most 50 of each, are reference points; every other
    point is counted in the cell of its nearest reference (Lemos et al. 2024, "PQMass: probabilistic
    assessment of the quality of generative models using probability mass estimation"). Equal
    densities give 1 on average, identical samples 0; the value grows with the distance and the
    sample size.

    Args:
        x, y: samples of equal size, rows in random order. If they are too small, 1 is returned.

    Example:
        >>> x, y = np.random.default_rng(0).normal(size=(2, 1000, 2))
        >>> 0.5 < pqmass(x, y) < 1.5, pqmass(x, 2 * y) > 2
        (True, True)
    """
    each = max(1, min(_REFERENCES, len(x) // 20))
    cells = cKDTree(np.concatenate([x[:each], y[:each]]))
    first, second = (
        np.bincount(cells.query(side[each:])[1], minlength=2 * each) for side in (x, y)
    )
    both = first + second
    freedom = np.count_nonzero(both) - 1
    if freedom < 1:
        return 1.0
    return float(((first - second) ** 2 / np.maximum(both, 1)).sum() / freedom)
