"""Marginals of beliefs and of data, and Wasserstein distances between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from llm_elicit import density
from llm_elicit.audit.scales import Standardizer, category_shares
from llm_elicit.spaces.circles import share_distance
from llm_elicit.spaces.features import Floats

_LEVELS = (np.arange(200) + 0.5) / 200  # of quantiles
_BINS = 120  # of a circle


@dataclass(frozen=True)
class Marginals:
    """Marginals of a sample, or of every draw of a belief (S, ...), standardized.

    Attributes:
        quantiles: at even levels (..., L, d); NaN for a categorical or periodic feature.
        shares: of each categorical feature's categories (..., K), by its index.
        edges: the distance between any two of its categories.
        circles: shares in equal bins (..., K) of each periodic feature, by its index.
        arcs: the length of one of its bins.
    """

    quantiles: Floats
    shares: Mapping[int, Floats]
    edges: Mapping[int, float]
    circles: Mapping[int, Floats]
    arcs: Mapping[int, float]

    @classmethod
    def of_draws(cls, draws: density.BeliefDraws, standardizer: Standardizer) -> Marginals:
        """Return those of every draw of a belief."""
        natural = draws.quantile(_LEVELS)
        quantiles = np.stack([standardizer.numbers(each) for each in natural])
        shares = {j: draws.shares(j) for j in standardizer.vertices}
        edges, arcs = _bins_of_circles(standardizer)
        circles = {j: draws.marginal(j, each) for j, each in edges.items()}
        return cls(quantiles, shares, {j: standardizer.edge(j) for j in shares}, circles, arcs)

    @classmethod
    def of_points(cls, points: Floats, standardizer: Standardizer) -> Marginals:
        """Return those of a sample (n, d), natural units."""
        features = standardizer.space.features
        shares = {j: category_shares(points[:, j], features[j]) for j in standardizer.vertices}
        quantiles = np.asarray(np.quantile(standardizer.numbers(points), _LEVELS, axis=0))
        edges, arcs = _bins_of_circles(standardizer)
        circles = {j: np.histogram(points[:, j], e)[0] / len(points) for j, e in edges.items()}
        return cls(quantiles, shares, {j: standardizer.edge(j) for j in shares}, circles, arcs)

    def __getitem__(self, some: slice) -> Marginals:
        """Return some of the draws."""
        shares = {j: each[some] for j, each in self.shares.items()}
        circles = {j: each[some] for j, each in self.circles.items()}
        return replace(self, quantiles=self.quantiles[some], shares=shares, circles=circles)

    def __len__(self) -> int:
        return len(self.quantiles)

    @property
    def mean(self) -> Floats:
        """The mean of every draw (S, d)."""
        return np.asarray(self.quantiles.mean(-2))

    @property
    def log_sd(self) -> Floats:
        """The logarithm of the standard deviation of every draw (S, d)."""
        return np.asarray(np.log(self.quantiles.std(-2).clip(min=1e-12)))

    def distance(self, other: Marginals) -> Floats:
        """Return Wasserstein-1 of each feature's marginals (..., d).

        In one dimension it is the mean absolute difference of quantiles.
        """
        found = np.abs(self.quantiles - other.quantiles).mean(-2)
        for j, edge in self.edges.items():
            found[..., j] = 0.5 * edge * np.abs(self.shares[j] - other.shares[j]).sum(-1)
        for j, arc in self.arcs.items():
            found[..., j] = arc * share_distance(self.circles[j], other.circles[j])
        return np.asarray(found)

    def resultant(self, feature: int) -> Floats:
        """Return the mean unit vector (S, 2) of a periodic feature, of every draw."""
        shares = self.circles[feature]
        angles = 2.0 * np.pi * (np.arange(shares.shape[-1]) + 0.5) / shares.shape[-1]
        return np.asarray(shares @ np.stack([np.cos(angles), np.sin(angles)], axis=-1))


def _bins_of_circles(standardizer: Standardizer) -> tuple[dict[int, Floats], dict[int, float]]:
    """Return the edges of equal bins of each periodic feature, and their standardized width."""
    edges = {}
    for j in standardizer.circles:
        feature = standardizer.space.features[j]
        half = 0.5 if feature.whole else 0.0
        count = round(feature.period) if feature.whole else _BINS
        edges[j] = np.linspace(feature.lowest - half, feature.highest + half, count + 1)
    return edges, {j: float(np.diff(e)[0] / standardizer.sd[j]) for j, e in edges.items()}


def half_distance(data: Floats, standardizer: Standardizer, seed: int) -> float:
    """Return the distance between two random halves of the data."""
    order = np.random.default_rng([seed, 0xDA7A]).permutation(len(data))
    half = len(data) // 2
    one, other = (
        Marginals.of_points(data[rows], standardizer) for rows in (order[:half], order[half:])
    )
    return float(one.distance(other).mean())
