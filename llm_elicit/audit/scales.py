"""Features on common scales: standardized columns for distances, and bins for histograms.

A number is put on its feature's scale (the logarithm where that is logarithmic), centred on the
reference data's mean and divided by their standard deviation: a distance of 1 is one standard
deviation of the data.

A category is a vertex of a regular simplex, K categories in K − 1 columns, so that any two are
equally far apart and their codes have no influence. The edge is √2 / √(1 − Σ p²), p the shares in
the data: rows of the data then have a variance of 1 over these columns together, as over a number.
Two categories give one column, the standardized indicator of one of them.
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
class Standardizer:
    """Maps natural units to standardized features, by the mean and sd of a sample on the scale.

    A feature that never varies keeps its unit (its sd counts as 1).

    Attributes:
        space: the feature space.
        mean, sd: of each feature, `(d,)`; of a categorical one 0 and √(1 − Σ p²).
        vertices: `(K, K − 1)` of each categorical feature, by its index.

    Example:
        >>> space = FeatureSpace.load("california_housing")
        >>> points = space.sample(100, np.random.default_rng(0))
        >>> bool(np.allclose(Standardizer.of(space, points)(points).std(axis=0), 1))
        True
    """

    space: FeatureSpace
    mean: Floats
    sd: Floats
    vertices: Mapping[int, Floats] = field(default_factory=dict)

    @classmethod
    def of(cls, space: FeatureSpace, points: Floats) -> Standardizer:
        """Return the standardizer of points `(n, d)`, natural units."""
        scaled = space.to_scale(points)
        mean, sd = scaled.mean(axis=0), scaled.std(axis=0)
        categorical = np.flatnonzero(space.categorical).tolist()
        shares = {j: category_shares(points[:, j], space.features[j]) for j in categorical}
        for j, share in shares.items():
            mean[j], sd[j] = 0.0, _category_sd(share)
        # Rounding leaves a constant column a sd of a few ulps instead of 0.
        constant = sd <= 1e-12 * np.maximum(1.0, np.abs(mean))
        sd = np.where(constant, 1.0, sd)
        vertices = {j: _simplex(share) / sd[j] for j, share in shares.items()}
        return cls(space, mean, sd, vertices)

    def __call__(self, points: Floats) -> Floats:
        """Return all columns `(..., p)` of points `(..., d)`; p = d without categories."""
        if not self.vertices:
            return self.numbers(points)
        return np.concatenate(self.by_feature(points), axis=-1)

    def by_feature(self, points: Floats) -> list[Floats]:
        """Return each feature's columns: `(..., 1)` of a number, `(..., K − 1)` of K categories."""
        numbers = self.numbers(points)
        return [
            self.vertices[j][np.rint(points[..., j]).astype(int)]
            if j in self.vertices
            else numbers[..., j : j + 1]
            for j in range(self.space.dimension)
        ]

    def numbers(self, points: Floats) -> Floats:
        """Return one column per feature, `(..., d)`; NaN where it is categorical."""
        scaled = (self.space.to_scale(points) - self.mean) / self.sd
        return np.where(self.space.categorical, np.nan, scaled) if self.vertices else scaled

    @property
    def owners(self) -> npt.NDArray[np.int64]:
        """The index of the feature of each column, `(p,)`."""
        widths = [
            self.vertices[j].shape[1] if j in self.vertices else 1
            for j in range(self.space.dimension)
        ]
        return np.repeat(np.arange(len(widths)), widths)

    def edge(self, feature: int) -> float:
        """Return the distance between any two categories of a feature."""
        return math.sqrt(2.0) / float(self.sd[feature])


def category_shares(codes: Floats, feature: Feature) -> Floats:
    """Return the share of each category `(K,)` among codes `(n,)`.

    Example:
        >>> names = ["a", "b", "c"]
        >>> kind = Feature(name="kind", label="kind", kind="categorical", categories=names)
        >>> category_shares(np.array([0.0, 2.0, 2.0, 2.0]), kind).tolist()
        [0.25, 0.0, 0.75]
    """
    counts = np.bincount(np.rint(codes).astype(int), minlength=len(feature.categories))
    return np.asarray(counts / counts.sum())


def _category_sd(shares: Floats) -> float:
    """Return √(1 − Σ p²), the root of the probability that two draws differ."""
    return math.sqrt(max(0.0, 1.0 - float(shares @ shares)))


def _simplex(shares: Floats) -> Floats:
    """Return vertices `(K, K − 1)` of a simplex with edges of √2, their mean over shares 0."""
    vertices = helmert(len(shares)).T
    return np.asarray(vertices - shares @ vertices)


def bin_edges(feature: Feature, bins: int) -> Floats:
    """Return edges of about `bins` equal bins over a feature's range, natural units.

    Bins are equal on the feature's scale. On a linear scale, every bin of a whole-numbered feature
    holds the same number of values; every category has its own bin, whatever `bins`.
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


def bin_widths(feature: Feature, edges: Floats) -> Floats:
    """Return widths of bins between edges (natural units), in units of the feature's scale.

    For whole-numbered features, the number of values in each bin: the last may hold fewer.
    """
    if feature.kind == "integer" and feature.scale == "linear":
        edges = np.minimum(edges, np.ceil(feature.high) + 0.5)
    return np.asarray(np.diff(np.log(edges) if feature.scale == "log" else edges))
