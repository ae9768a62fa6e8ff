"""Whether a belief varies over two features by more than the noise of its estimate.

The variation of a density p relative to λ is ∑ (p − λ)² / λ over cells of a coarse grid, less what
finite numbers of points add to it. It is set against two noises of the same kind: that of the draws
of the posterior around their mean (what the answers leave open) and that of the smoothed histogram
that is drawn. Where the variation is below either, contour lines would show noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from llm_elicit.audit.distance import bin_edges
from llm_elicit.spaces.features import Feature, Floats

CELLS = 36
"""Bins of a drawn panel along a number."""
_COARSE = 6
_TIMES = 4.0
_USUAL = 25_000
_WIDTH, _WIDEST = 1.6, 3.0


def smoothing(count: int) -> float:
    """Return the standard deviation, in bins, of the kernel for a panel of `count` points.

    Example:
        >>> smoothing(25_000), round(smoothing(4_000), 1)
        (1.6, 2.2)
    """
    return float(min(_WIDTH * (_USUAL / count) ** (1 / 6), _WIDEST))


@dataclass(frozen=True)
class Pair:
    """Two features and their columns among the points."""

    features: tuple[Feature, Feature]
    columns: tuple[int, int]

    def shares(self, points: Floats) -> Floats:
        """Return the shares of points `(n, d)` in the cells of a coarse grid, flattened."""
        edges = [bin_edges(feature, _COARSE) for feature in self.features]
        x, y = (
            np.clip(points[:, column], edge[0], edge[-1])
            for column, edge in zip(self.columns, edges, strict=True)
        )
        counts: Floats = np.histogram2d(x, y, bins=edges)[0]
        return counts.ravel() / len(points)


def is_flat(pair: Pair, points: Floats, sampling: Floats) -> bool:
    """Return whether points vary by less than four times the noise of their drawn histogram."""
    noise = CELLS**2 / (len(points) * 4 * math.pi * smoothing(len(points)) ** 2)
    return _variation(pair, points, sampling) < _TIMES * noise


def is_uncertain(pair: Pair, points: Floats, sampling: Floats, draws: Floats) -> bool:
    """Return whether a belief varies by less than its posterior's draws `(S, m, d)` do around it.

    Multiplying the utility by a constant multiplies both by the constant's square, to first order.
    """
    flat = pair.shares(sampling)
    asked = flat > 0
    shares = np.stack([pair.shares(draw) for draw in draws])[:, asked]
    spread = shares.var(axis=0, ddof=1) - _scatter(shares.mean(axis=0), draws.shape[1])
    return _variation(pair, points, sampling) < float((spread / flat[asked]).sum())


def _variation(pair: Pair, points: Floats, sampling: Floats) -> float:
    p, flat = pair.shares(points), pair.shares(sampling)
    asked = flat > 0
    p, flat = p[asked], flat[asked]
    chance = _scatter(p, len(points)) + _scatter(flat, len(sampling))
    return float((((p - flat) ** 2 - chance) / flat).sum())


def _scatter(shares: Floats, count: int) -> Floats:
    """Return the variance of a share of `count` points."""
    return shares * (1.0 - shares) / count
