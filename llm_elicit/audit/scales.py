"""Standardized features: what distances are computed on.

A number is put on its feature's scale (the logarithm where that is logarithmic), less the reference
data's mean, over their standard deviation: a distance of 1 is one standard deviation of the data.

A category becomes a corner of a regular simplex, K categories in K − 1 columns, so that any two are
as far from each other and their codes mean nothing. Its edge is √2 / √(1 − Σ p²), p the shares in
the data: rows of the data then scatter as much as in a number, with a variance of 1 over all of its
columns. Of two categories these are one column, the standardized indicator of either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.linalg import helmert

from llm_elicit.spaces.features import Feature, FeatureSpace, Floats


@dataclass(frozen=True)
class Standard:
    """Natural units to standardized features, by the mean and sd of `points` on the scale.

    A feature that never varies keeps its unit (its sd counts as 1).

    Attributes:
        space: the feature space.
        mean, sd: of each feature, `(d,)`; of a categorical one 0 and √(1 − Σ p²).
        corners: `(K, K − 1)` of each categorical feature, by its place.

    Example:
        >>> space = FeatureSpace.load("california_housing")
        >>> points = space.sample(100, np.random.default_rng(0))
        >>> bool(np.allclose(Standard.of(space, points)(points).std(axis=0), 1))
        True
    """

    space: FeatureSpace
    mean: Floats
    sd: Floats
    corners: Mapping[int, Floats] = field(default_factory=dict)

    @classmethod
    def of(cls, space: FeatureSpace, points: Floats) -> Standard:
        """By points `(n, d)`, natural units."""
        scaled = space.to_scale(points)
        mean, sd = scaled.mean(axis=0), scaled.std(axis=0)
        words = np.flatnonzero(space.categorical).tolist()
        shares = {j: shares_of(points[:, j], space.features[j]) for j in words}
        for j, share in shares.items():
            mean[j], sd[j] = 0.0, spread(share)
        # Rounding leaves a constant column a sd of some ulps, not 0.
        constant = sd <= 1e-12 * np.maximum(1.0, np.abs(mean))
        sd = np.where(constant, 1.0, sd)
        corners = {j: _corners(share) / sd[j] for j, share in shares.items()}
        return cls(space, mean, sd, corners)

    def __call__(self, points: Floats) -> Floats:
        """All columns `(..., p)` of points `(..., d)`, feature by feature; p = d without words."""
        return np.concatenate(self.parts(points), axis=-1) if self.corners else self.numbers(points)

    def parts(self, points: Floats) -> list[Floats]:
        """Each feature's columns, `(..., 1)` of a number, `(..., K − 1)` of K categories."""
        numbers = self.numbers(points)
        return [
            self.corners[j][np.rint(points[..., j]).astype(int)]
            if j in self.corners
            else numbers[..., j : j + 1]
            for j in range(self.space.dimension)
        ]

    def numbers(self, points: Floats) -> Floats:
        """Each feature in one column, `(..., d)`; NaN where it is categorical."""
        found = (self.space.to_scale(points) - self.mean) / self.sd
        return np.where(self.space.categorical, np.nan, found) if self.corners else found

    @property
    def owners(self) -> npt.NDArray[np.int64]:
        """The feature of each column, `(p,)`."""
        widths = [
            self.corners[j].shape[1] if j in self.corners else 1
            for j in range(self.space.dimension)
        ]
        return np.repeat(np.arange(len(widths)), widths)

    def edge(self, feature: int) -> float:
        """How far the categories of a feature are from each other."""
        return math.sqrt(2.0) / float(self.sd[feature])


def shares_of(codes: Floats, feature: Feature) -> Floats:
    """The share of each category `(K,)` among codes `(n,)`.

    Example:
        >>> words = ["a", "b", "c"]
        >>> kind = Feature(name="kind", label="kind", kind="categorical", categories=words)
        >>> shares_of(np.array([0.0, 2.0, 2.0, 2.0]), kind).tolist()
        [0.25, 0.0, 0.75]
    """
    found = np.bincount(np.rint(codes).astype(int), minlength=len(feature.categories))
    return np.asarray(found / found.sum())


def spread(shares: Floats) -> float:
    """√(1 − Σ p²): a category's standard deviation, by how often two draws differ."""
    return math.sqrt(max(0.0, 1.0 - float(shares @ shares)))


def _corners(shares: Floats) -> Floats:
    """Corners `(K, K − 1)` of a regular simplex with edges of √2, their mean over the shares 0."""
    corners = helmert(len(shares)).T
    return np.asarray(corners - shares @ corners)


def bin_widths(feature: Feature, edges: Floats) -> Floats:
    """Widths of bins between edges (natural units), in units of the feature's scale.

    Of whole-numbered features, how many values a bin holds: the last may hold fewer.
    """
    if feature.kind == "integer" and feature.scale == "linear":
        edges = np.minimum(edges, np.ceil(feature.high) + 0.5)
    return np.asarray(np.diff(np.log(edges) if feature.scale == "log" else edges))


def bin_edges(feature: Feature, bins: int) -> Floats:
    """Edges of about `bins` equal bins over a feature's range, natural units.

    Equal on the feature's scale. Where the scale is linear, whole-numbered features get the
    same number of values in every bin; every category has a bin of its own, whatever `bins`.
    """
    if feature.categories:
        return np.arange(-0.5, len(feature.categories))
    if feature.scale == "log":
        return np.exp(np.linspace(np.log(feature.low), np.log(feature.high), bins + 1))
    if feature.kind == "integer":
        low, high = np.floor(feature.low), np.ceil(feature.high)
        width = max(1.0, np.ceil((high - low + 1) / bins))
        return np.asarray(low - 0.5 + width * np.arange(np.ceil((high - low + 1) / width) + 1))
    return np.linspace(feature.low, feature.high, bins + 1)
