"""How far two samples are apart over all features together, four ways beside Wasserstein-1.

Each is a pure function of two samples of one size, `(n, d)` each, of standardized features. They
see what marginals hide: two densities of equal marginals can differ in every one of them.
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
    """All four by name: sliced, energy, classifier, pqmass.

    Args:
        x, y: samples of one size, rows in random order.
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
    """Sliced Wasserstein-1 and energy distance of many samples, one by one: each `(S,)`.

    Args:
        draws: S samples `(n, d)`.
        others: samples `(n, d)`, which stand beside the draws in turn.
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
    for place, drawn in enumerate(draws):
        at = place % len(others)
        sliced.append(float(np.abs(_projected(drawn, directions) - projected[at]).mean()))
        squared = 2.0 * float(cdist(drawn, others[at]).mean()) - mean_distance(drawn) - within[at]
        energy.append(math.sqrt(max(squared, 0.0)))
    return {"sliced": np.array(sliced), "energy": np.array(energy)}


def _directions(d: int, rng: np.random.Generator) -> Floats:
    """Random unit vectors `(d, 256)`."""
    directions = rng.normal(size=(d, _PROJECTIONS))
    return np.asarray(directions / np.linalg.norm(directions, axis=0))


def _projected(points: Floats, directions: Floats) -> Floats:
    """The sorted projections `(256, n)` of points `(n, d)`."""
    return np.sort(directions.T @ points.T, axis=1)


def sliced_wasserstein(x: Floats, y: Floats, rng: np.random.Generator) -> float:
    """Wasserstein-1 of the samples' projections, averaged over 256 random directions.

    Never more than Wasserstein-1 itself (Bonneel et al. 2015, "Sliced and Radon Wasserstein
    barycenters of measures"). The same as POT's `ot.sliced`, which for samples of equal sizes
    takes ten times as long as the two sorts that do.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> points = rng.normal(size=(100, 3))
        >>> round(sliced_wasserstein(points, points + [3.0, 4.0, 0.0], rng), 1)  # 5 E|u|, u on S²
        2.5
    """
    directions = _directions(x.shape[1], rng)
    return float(np.abs(_projected(x, directions) - _projected(y, directions)).mean())


def energy_distance(x: Floats, y: Floats) -> float:
    """√(2 E|X - Y| - E|X - X'| - E|Y - Y'|), a metric of the two samples as measures.

    Székely and Rizzo 2013, "Energy statistics: a class of statistics based on distances".

    Example:
        >>> energy_distance(np.zeros((4, 2)), np.full((4, 2), [2.0, 0.0]))
        2.0
    """
    squared = 2.0 * float(cdist(x, y).mean()) - mean_distance(x) - mean_distance(y)
    return math.sqrt(max(squared, 0.0))


def mean_distance(x: Floats) -> float:
    """E|X - X'| within a sample `(n, d)`, with X = X' counted, as for a measure.

    Example:
        >>> mean_distance(np.array([[0.0], [1.0]]))
        0.5
    """
    return 2.0 * float(pdist(x).sum()) / len(x) ** 2


def classifier_accuracy(x: Floats, y: Floats) -> float:
    """How often the nearest neighbours of a point tell which sample it came from.

    A classifier two-sample test (Lopez-Paz and Oquab 2017, "Revisiting classifier two-sample
    tests"). Half of both samples votes on the other half and the other way round, an odd number
    of neighbours near the root of theirs: equal densities give 1/2 on average, equal samples 1/2
    exactly, samples apart 1. Leaving out one point at a time would not: a point's own sample
    has one vote fewer, which pulls the accuracy of equal densities below 1/2.

    Args:
        x, y: samples of one size, rows in random order: the halves are the first and the last.

    Example:
        >>> points = np.random.default_rng(0).normal(size=(100, 2))
        >>> classifier_accuracy(points, points), classifier_accuracy(points, points + 9.0)
        (0.5, 1.0)
    """
    half = len(x) // 2
    if half == 0:
        return 0.5
    first, last = (x[:half], y[:half]), (x[half:], y[half:])
    return (_hits(first, last) + _hits(last, first)) / (2 * len(x))


def _hits(told: tuple[Floats, Floats], asked: tuple[Floats, Floats]) -> int:
    """How many points of `asked` the neighbours among `told` put into the right sample."""
    points, voters = np.concatenate(told), len(told[0])
    neighbours = int(np.sqrt(len(points))) | 1
    _, found = cKDTree(points).query(np.concatenate(asked), k=range(1, neighbours + 1))
    says_second = (found >= voters).sum(axis=1) > neighbours // 2
    is_second = np.repeat([False, True], [len(side) for side in asked])
    return int((says_second == is_second).sum())


def pqmass(x: Floats, y: Floats) -> float:
    """Do the samples fill space alike? χ² a degree of freedom of their counts in random cells.

    The first rows of both, one in twenty and at most 50 of each, are reference points; each other
    point counts into the cell of the reference nearest to it (Lemos et al. 2024, "PQMass:
    probabilistic assessment of the quality of generative models using probability mass
    estimation"). Equal densities give 1 on average, equal samples 0; the farther apart and the
    larger the samples, the larger.

    Args:
        x, y: samples of one size, rows in random order. Of samples too small to count: 1.

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
