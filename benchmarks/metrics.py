"""Distances between samples of an estimate and true samples, and between two true samples.

The distances are those of the audit (`llm_elicit.audit.distances`), with the paper's sample sizes
and the bins described here.

**Wasserstein** is W1 with Euclidean cost, exact: POT's network simplex with its limit raised to
10 million iterations, or the assignment problem if that does not converge. Memory is about 40
bytes per pair of points, and time grows a little faster: 0.6 GiB and 5 to 15 s with 4000 points in
each sample, 2.5 GiB and a minute with 8000, about 9 GiB and several minutes with the paper's
15,000, twice for each row, since the floor is measured too.

**MMTV**, the mean marginal total variation, is the mean over features of ½∫|p − q| between
histograms on common bins: 100 equal ones between the 0.1 % and 99.9 % quantiles of the
true sample, with values beyond them in the outermost. The paper does not state how it estimates
densities. Two samples of n points of the same density differ by about √(bins/(πn)) or
less: 0.036 for n = 25,000, which `floor` measures. A kernel estimate would have a lower
floor but blur narrow modes, and with them the difference to be measured.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.targets import Target
from llm_elicit.audit.distances import total_variation, wasserstein

Array = npt.NDArray[np.float64]
BINS = 100
_TAIL = 0.001


class Distances(NamedTuple):
    """Wasserstein-1 in natural units and MMTV in [0, 1]."""

    w1: float
    mmtv: float


def mmtv(x: Array, truth: Array) -> float:
    """Return the mean of ½∫|p − q| over features, for samples (n, d) and true ones (m, d).

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> x, y, far = rng.normal(size=(3, 25_000, 2)) + np.array([0, 0, 50])[:, None, None]
        >>> mmtv(x, y) < 0.04, mmtv(far, y) > 0.99
        (True, True)
    """
    low, high = np.quantile(truth, [_TAIL, 1 - _TAIL], axis=0)
    edges = np.linspace(low, high, BINS + 1)
    columns = zip(x.T, truth.T, edges.T, strict=True)
    return float(np.mean([total_variation(*column) for column in columns]))


def distances(x: Array, truth: Array, points: int) -> Distances:
    """Return both distances: Wasserstein between the first `points` of each, MMTV between all."""
    return Distances(wasserstein(x[:points], truth[:points]), mmtv(x, truth))


def floor(target: Target, size: int, points: int, rng: np.random.Generator) -> Distances:
    """Return both distances between two independent true samples, as for a perfect estimate.

    Examples:
        >>> from benchmarks.targets import find
        >>> ring = find(["Ring2D"])[0]
        >>> floor(ring, 5000, 500, np.random.default_rng(0)).w1 < 0.3
        True
    """
    return distances(target.sample(size, rng), target.sample(size, rng), points)
