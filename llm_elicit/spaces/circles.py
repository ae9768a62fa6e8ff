"""Statistics of values on a circle, where the end of the range is its start.

The mean direction and the mean resultant length ρ follow Mardia and Jupp (2000, "Directional
statistics"): ρ is the length of the mean of the unit vectors, 1 if all values are equal. A
standard deviation here is √(1 − ρ²) radii, about the usual one where the values are close
together, and the radius for values all around the circle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from llm_elicit.spaces.feature import Feature, Floats


@dataclass(frozen=True)
class Circle:
    """The circle of a periodic feature, from `low` around to `low + period`, natural units.

    Examples:
        >>> hour = Feature(name="hour", label="hour", low=0, high=24, periodic=True)
        >>> circle = Circle.of(hour)
        >>> round(circle.mean(np.array([23.0, 1.0, 3.0])), 6)
        1.0
        >>> round(circle.distance(np.array([23.5]), np.array([0.5])), 6)
        1.0
    """

    low: float
    period: float

    @classmethod
    def of(cls, feature: Feature) -> Circle:
        """Return a periodic feature's circle."""
        return cls(feature.lowest, feature.period)

    @property
    def radius(self) -> float:
        """The period divided by 2π."""
        return self.period / (2.0 * math.pi)

    def vectors(self, values: Floats) -> Floats:
        """Return unit vectors `(..., 2)` of values `(...)`."""
        angle = (np.asarray(values) - self.low) / self.radius
        return np.stack([np.cos(angle), np.sin(angle)], axis=-1)

    def resultant(self, values: Floats, weights: Floats | None = None) -> Floats:
        """Return the mean of the unit vectors of values `(n,)`, `(2,)`; weights sum to one."""
        return np.asarray(np.average(self.vectors(values), axis=0, weights=weights))

    def direction(self, vectors: Floats) -> Floats:
        """Return the values `(...)` in whose direction vectors `(..., 2)` point."""
        turn = np.arctan2(vectors[..., 1], vectors[..., 0]) * self.radius
        return np.asarray(self.low + np.mod(turn, self.period))

    def mean(self, values: Floats, weights: Floats | None = None) -> float:
        """Return the circular mean of values `(n,)`."""
        return float(self.direction(self.resultant(values, weights)))

    def sd(self, values: Floats) -> float:
        """Return the standard deviation of values `(n,)`, √(1 − ρ²) radii."""
        return self.spread(self.resultant(values))

    def spread(self, resultant: Floats) -> float:
        """Return the standard deviation of values with this mean of unit vectors, `(2,)`."""
        return self.radius * math.sqrt(max(0.0, 1.0 - float(resultant @ resultant)))

    def offsets(self, values: Floats, start: float) -> Floats:
        """Return values minus `start` by the shorter way around, from −period/2 to period/2."""
        half = 0.5 * self.period
        return np.asarray(np.mod(np.asarray(values) - start + half, self.period) - half)

    def opened(self, values: Floats, start: float) -> Floats:
        """Return values from `start` on, once around the circle."""
        return np.asarray(start + np.mod(np.asarray(values) - start, self.period))

    def distance(self, x: Floats, y: Floats) -> float:
        """Return Wasserstein-1 along the circle between samples `(n,)` and `(m,)`.

        See `share_distance`; here the arcs between neighbouring values have different lengths.
        """
        pooled = np.mod(np.concatenate([x, y]) - self.low, self.period)
        order = np.argsort(pooled)
        masses = np.repeat([1.0 / len(x), -1.0 / len(y)], [len(x), len(y)])
        gap = np.cumsum(masses[order])
        arcs = np.diff(pooled[order], append=pooled[order[0]] + self.period)
        ranked = np.argsort(gap)
        middle = int(np.searchsorted(np.cumsum(arcs[ranked]), 0.5 * self.period))
        return float(np.abs(gap - gap[ranked[min(middle, len(gap) - 1)]]) @ arcs)


def share_distance(p: Floats, q: Floats) -> Floats:
    """Return Wasserstein-1 `(...)` along K equal bins of a circle between shares `(..., K)`.

    It is the mean absolute deviation of the difference of the distribution functions from its
    median (Rabin, Delon and Gousseau 2011, "Transportation distances on the circle").

    Examples:
        >>> first, last = np.eye(12)[0], np.eye(12)[11]
        >>> float(share_distance(first, last))
        1.0
    """
    gap = np.cumsum(p - q, axis=-1)
    return np.asarray(np.abs(gap - np.median(gap, axis=-1, keepdims=True)).sum(axis=-1))
