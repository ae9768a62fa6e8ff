"""Distances between two samples with their floors, the distances that chance alone produces.

The joint distances are functions of two samples of equal size, `(n, d)` each, of standardized
features; they detect differences that marginals do not show. Total variation is measured from
histograms on common bins; MMTV is its mean over the features (Acerbi 2020, "Variational Bayesian
Monte Carlo with noisy likelihoods"). For a categorical feature it is that of the shares, and the
only distance of its marginal unless the categories are ordered; over all features jointly,
categories are vertices of a simplex (`llm_elicit.audit.reference`). Between finite samples of one
density no distance is 0, so each is read relative to its *floor*: the same distance between two
disjoint samples of the same density, of the same size. `Marginals` compares beliefs, by all draws
of their posteriors, feature by feature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import ot
from scipy.optimize import linear_sum_assignment
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist, pdist

from llm_elicit import density
from llm_elicit._util.settings import StrictModel
from llm_elicit.audit.inference import Band, credible_band
from llm_elicit.audit.reference import AuditSettings, Standardizer, category_shares, feature_axis
from llm_elicit.spaces.circles import share_distance
from llm_elicit.spaces.features import FeatureSpace, Floats

_MAX_ITERATIONS = 10_000_000
"""Largest number of iterations of the network simplex."""
_PROJECTIONS = 256
"""Random directions of the sliced distance."""
_MAX_REFERENCE_POINTS = 50
"""Largest number of reference points of PQMass from each sample."""
_QUANTILE_LEVELS = (np.arange(200) + 0.5) / 200
"""Levels of the quantiles that represent a marginal."""
_PERIODIC_BINS = 120
"""Bins of a periodic feature that is not whole."""


def wasserstein(x: Floats, y: Floats, max_iterations: int = _MAX_ITERATIONS) -> float:
    """Return Wasserstein-1 with Euclidean cost between samples of equal size, `(n, d)` each.

    By POT's network simplex, whose convergence is checked (it only warns if it stops early). If it
    has not converged, the assignment problem is solved instead: for equal sizes it has the same
    optimum and no iteration limit, and takes about twice as long.

    Examples:
        >>> points = np.random.default_rng(0).normal(size=(100, 2))
        >>> round(wasserstein(points, points + [3.0, 4.0]), 6)
        5.0
    """
    cost = cdist(x, y)
    value, log = ot.emd2([], [], cost, numItermax=max_iterations, log=True, return_matrix=False)
    if log["warning"] is None:
        return float(value)
    return float(cost[linear_sum_assignment(cost)].mean())


def total_variation(x: Floats, y: Floats, edges: Floats) -> float:
    """Return ½∫|p − q| between histograms of two one-dimensional samples, in [0, 1].

    Values beyond the edges count in the outermost bins.

    Examples:
        >>> total_variation(np.array([0.1, 0.2]), np.array([0.1, 0.9]), np.linspace(0, 1, 11))
        0.5
    """
    p, q = (
        np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / len(values)
        for values in (x, y)
    )
    return float(0.5 * np.abs(p - q).sum())


def measure_joint(x: Floats, y: Floats, rng: np.random.Generator) -> dict[str, float]:
    """Return the four joint distances by name: sliced, energy, classifier, pqmass.

    Args:
        x, y: samples of equal size, rows in random order.
        rng: draws the projections.
    """
    sliced, energy = sliced_wasserstein(x, y, rng), energy_distance(x, y)
    accuracy, ratio = classifier_accuracy(x, y), pqmass(x, y)
    return {"sliced": sliced, "energy": energy, "classifier": accuracy, "pqmass": ratio}


def measure_joint_of_draws(
    draws: Iterable[Floats], samples: Sequence[Floats], rng: np.random.Generator
) -> dict[str, Floats]:
    """Return sliced Wasserstein-1 and energy distance of each of many samples, `(S,)` each.

    Args:
        draws: S samples `(n, d)`.
        samples: `(n, d)` each; draw i is compared with sample i, modulo their number.
        rng: draws the projections, the same for all.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> here, there = np.zeros((4, 2)), np.full((4, 2), [2.0, 0.0])
        >>> measure_joint_of_draws([here, there], [here], rng)["energy"].tolist()
        [0.0, 2.0]
    """
    directions = _random_directions(samples[0].shape[1], rng)
    projected = [_sorted_projections(sample, directions) for sample in samples]
    mean_distances = [mean_distance(sample) for sample in samples]
    sliced, energy = [], []
    for i, draw in enumerate(draws):
        j = i % len(samples)
        sliced.append(float(np.abs(_sorted_projections(draw, directions) - projected[j]).mean()))
        energy.append(energy_distance(draw, samples[j], mean_distances[j]))
    return {"sliced": np.array(sliced), "energy": np.array(energy)}


def _random_directions(d: int, rng: np.random.Generator) -> Floats:
    """Return random unit vectors `(d, 256)`."""
    directions = rng.normal(size=(d, _PROJECTIONS))
    return np.asarray(directions / np.linalg.norm(directions, axis=0))


def _sorted_projections(points: Floats, directions: Floats) -> Floats:
    """Return the sorted projections `(256, n)` of points `(n, d)`."""
    return np.sort(directions.T @ points.T, axis=1)


def sliced_wasserstein(x: Floats, y: Floats, rng: np.random.Generator) -> float:
    """Return Wasserstein-1 of the samples' projections, averaged over 256 random directions.

    It never exceeds Wasserstein-1 (Bonneel et al. 2015, "Sliced and Radon Wasserstein barycenters
    of measures"). POT's `ot.sliced` gives the same and takes ten times as long for samples of equal
    size.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> points = rng.normal(size=(100, 3))
        >>> round(sliced_wasserstein(points, points + [3.0, 4.0, 0.0], rng), 1)  # 5 E|u|, u on S²
        2.5
    """
    directions = _random_directions(x.shape[1], rng)
    first, second = (_sorted_projections(side, directions) for side in (x, y))
    return float(np.abs(first - second).mean())


def energy_distance(x: Floats, y: Floats, mean_distance_y: float | None = None) -> float:
    """Return √(2 E|X − Y| − E|X − X'| − E|Y − Y'|), the energy distance of two samples.

    Székely and Rizzo 2013, "Energy statistics: a class of statistics based on distances". The
    `mean_distance` of y may be given, where y is compared with many samples.

    Examples:
        >>> energy_distance(np.zeros((4, 2)), np.full((4, 2), [2.0, 0.0]))
        2.0
    """
    within_y = mean_distance(y) if mean_distance_y is None else mean_distance_y
    squared = 2.0 * float(cdist(x, y).mean()) - mean_distance(x) - within_y
    return math.sqrt(max(squared, 0.0))


def mean_distance(x: Floats) -> float:
    """Return E|X − X'| within a sample `(n, d)`, including X = X'.

    Examples:
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

    Examples:
        >>> points = np.random.default_rng(0).normal(size=(100, 2))
        >>> classifier_accuracy(points, points), classifier_accuracy(points, points + 9.0)
        (0.5, 1.0)
    """
    half = len(x) // 2
    if half == 0:
        return 0.5
    first, last = (x[:half], y[:half]), (x[half:], y[half:])
    return (_count_correct(first, last) + _count_correct(last, first)) / (2 * len(x))


def _count_correct(train: tuple[Floats, Floats], test: tuple[Floats, Floats]) -> int:
    """Return how many points of `test` the neighbours in `train` assign to the right sample."""
    points, first = np.concatenate(train), len(train[0])
    neighbours = int(np.sqrt(len(points))) | 1
    _, nearest = cKDTree(points).query(np.concatenate(test), k=range(1, neighbours + 1))
    assigned_second = (nearest >= first).sum(axis=1) > neighbours // 2
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

    Examples:
        >>> x, y = np.random.default_rng(0).normal(size=(2, 1000, 2))
        >>> 0.5 < pqmass(x, y) < 1.5, pqmass(x, 2 * y) > 2
        (True, True)
    """
    size = max(1, min(_MAX_REFERENCE_POINTS, len(x) // 20))
    cells = cKDTree(np.concatenate([x[:size], y[:size]]))
    first, second = (
        np.bincount(cells.query(side[size:])[1], minlength=2 * size) for side in (x, y)
    )
    total = first + second
    freedom = np.count_nonzero(total) - 1
    if freedom < 1:
        return 1.0
    return float(((first - second) ** 2 / np.maximum(total, 1)).sum() / freedom)


@dataclass(frozen=True)
class Marginals:
    """Marginals of a sample, or of every draw of a belief (S, ...), standardized.

    Attributes:
        standardizer: standardizes the features.
        quantiles: at even levels (..., L, d); NaN for a categorical or periodic feature.
        shares: shares of the categories (..., K) of each categorical feature, by its index.
        periodic_shares: shares in equal bins (..., K) of each periodic feature, by its index.
    """

    standardizer: Standardizer
    quantiles: Floats
    shares: Mapping[int, Floats]
    periodic_shares: Mapping[int, Floats]

    @classmethod
    def from_draws(cls, draws: density.BeliefDraws, standardizer: Standardizer) -> Marginals:
        """Return the marginals of every draw of a belief."""
        natural = draws.quantile(_QUANTILE_LEVELS)
        quantiles = np.stack([standardizer.standardize_numbers(values) for values in natural])
        shares = {j: draws.shares(j) for j in standardizer.vertices}
        edges = _periodic_bin_edges(standardizer)
        circles = {j: draws.marginal(j, values) for j, values in edges.items()}
        return cls(standardizer, quantiles, shares, circles)

    @classmethod
    def from_points(cls, points: Floats, standardizer: Standardizer) -> Marginals:
        """Return the marginals of a sample (n, d), natural units."""
        features = standardizer.space.features
        shares = {j: category_shares(points[:, j], features[j]) for j in standardizer.vertices}
        numbers = standardizer.standardize_numbers(points)
        quantiles = np.asarray(np.quantile(numbers, _QUANTILE_LEVELS, axis=0))
        edges = _periodic_bin_edges(standardizer)
        circles = {j: np.histogram(points[:, j], e)[0] / len(points) for j, e in edges.items()}
        return cls(standardizer, quantiles, shares, circles)

    def pairwise_distances(self, other: Marginals) -> Floats:
        """Return the distances (n, d) of all pairs of draws, one of each.

        For a belief compared with itself, the mean is the average distance between two of its
        draws. For two beliefs, the mean is at least half the sum of these averages, since
        differences of quantiles and of shares are of negative type (Székely and Rizzo 2013).
        """
        return np.concatenate([self.distance(other[k : k + 1]) for k in range(len(other))])

    def __getitem__(self, rows: slice) -> Marginals:
        """Return the marginals of some of the draws."""
        shares = {j: values[rows] for j, values in self.shares.items()}
        circles = {j: values[rows] for j, values in self.periodic_shares.items()}
        return replace(self, quantiles=self.quantiles[rows], shares=shares, periodic_shares=circles)

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
        distances = np.abs(self.quantiles - other.quantiles).mean(-2)
        for j, shares in self.shares.items():
            edge = self.standardizer.category_distance(j)
            distances[..., j] = 0.5 * edge * np.abs(shares - other.shares[j]).sum(-1)
        for j, edges in _periodic_bin_edges(self.standardizer).items():
            arc = float(np.diff(edges)[0] / self.standardizer.sd[j])
            shares = self.periodic_shares[j]
            distances[..., j] = arc * share_distance(shares, other.periodic_shares[j])
        return np.asarray(distances)

    def resultant(self, feature: int) -> Floats:
        """Return the mean unit vector (S, 2) of a periodic feature, of every draw."""
        shares = self.periodic_shares[feature]
        angles = 2.0 * np.pi * (np.arange(shares.shape[-1]) + 0.5) / shares.shape[-1]
        return np.asarray(shares @ np.stack([np.cos(angles), np.sin(angles)], axis=-1))


def _periodic_bin_edges(standardizer: Standardizer) -> dict[int, Floats]:
    """Return the edges of equal bins of each periodic feature."""
    edges = {}
    for j in standardizer.circles:
        feature = standardizer.space.features[j]
        half = 0.5 if feature.whole else 0.0
        count = round(feature.period) if feature.whole else _PERIODIC_BINS
        edges[j] = np.linspace(feature.lowest - half, feature.highest + half, count + 1)
    return edges


def distance_between_halves(data: Floats, standardizer: Standardizer, seed: int) -> float:
    """Return the mean distance of the marginals of two random halves of the data."""
    order = np.random.default_rng([seed, 0xDA7A]).permutation(len(data))
    half = len(data) // 2
    first, second = (
        Marginals.from_points(data[rows], standardizer) for rows in (order[:half], order[half:])
    )
    return float(first.distance(second).mean())


class Estimate(StrictModel):
    """Mean and standard deviation of a number over repeated subsamples."""

    mean: float
    sd: float


class FeatureDistance(StrictModel):
    """The distance between two marginals of one feature.

    Attributes:
        name: the feature.
        wasserstein: Wasserstein-1 in standard deviations of the data, on the feature's scale; for
            ordered categories, between their codes; for a periodic feature, along the circle. None
            for categories without an order.
        total_variation: ½∫|p − q|, or ½Σ|p − q| between shares, from 0 (equal) to 1 (disjoint).
    """

    name: str
    wasserstein: Estimate | None
    total_variation: Estimate


class JointDistance(StrictModel):
    """Joint distances of two samples, measured on the same subsamples as `Distance.wasserstein`.

    Attributes:
        sliced: Wasserstein-1 of projections, averaged over random directions.
        energy: the energy distance, at most the root of twice Wasserstein-1.
        classifier: held-out accuracy of a nearest-neighbour classifier; 1/2 for equal densities.
        pqmass: χ² per degree of freedom of counts in random cells; 1 for equal densities.
    """

    sliced: Estimate
    energy: Estimate
    classifier: Estimate
    pqmass: Estimate


class JointIntervals(StrictModel):
    """90 % credible intervals of a belief's distances, over draws of its posterior.

    They include the sampling variation of the subsamples.

    Attributes:
        sliced, energy: intervals of the distances of `JointDistance`.
    """

    sliced: Band
    energy: Band


class Distance(StrictModel):
    """All distances between two samples.

    Attributes:
        wasserstein: Wasserstein-1, Euclidean, between standardized features.
        joint: other joint distances, measured on the same points.
        intervals: posterior uncertainty of the joint distances, if the belief has draws.
        size: number of points on each side of the joint distances.
        mmtv: mean marginal total variation, in [0, 1].
        marginal_size: number of points on each side of the one-dimensional distances.
        features: distances between the marginals, in the order of the space.
    """

    wasserstein: Estimate
    joint: JointDistance
    intervals: JointIntervals | None = None
    size: int
    mmtv: Estimate
    marginal_size: int
    features: list[FeatureDistance]


def common_size(max_size: int, *samples: Floats) -> int:
    """Return the sample size of all distances of an audit: at most half of the smallest sample.

    With half of it, every floor can be measured between two disjoint samples of this size.
    """
    return max(1, min(max_size, *(len(points) // 2 for points in samples)))


@dataclass(frozen=True)
class DistanceEstimator:
    """Estimates distances between samples of one space, always with the same sizes.

    Points are first rounded as the questions state them. Otherwise a table of whole numbers and a
    continuous belief would differ by the rounding alone.

    Attributes:
        standardizer: standardizes the features.
        settings: repeats and bins.
        size: number of points on each side of a Wasserstein distance.
        marginal_size: number of points on each side of a one-dimensional distance.
    """

    standardizer: Standardizer
    settings: AuditSettings
    size: int
    marginal_size: int

    @property
    def space(self) -> FeatureSpace:
        return self.standardizer.space

    def estimate_distance(
        self, x: Floats, y: Floats, rng: np.random.Generator, draws: Floats | None = None
    ) -> Distance:
        """Estimate the distance between samples `(n, d)` and `(m, d)`, natural units.

        `draws` `(S, k, d)` are samples of the posterior's draws of x. There are no intervals
        without them, or if k is below the size of the distances.
        """
        x, y = self.space.round(x), self.space.round(y)

        def pick(size: int) -> tuple[Floats, Floats]:
            first, second = (rng.choice(len(side), size, replace=False) for side in (x, y))
            return x[first], y[second]

        distance = self._estimate(pick, rng)
        if draws is None or draws.shape[1] < self.size:
            return distance
        (child,) = rng.spawn(1)

        def subsample(points: Floats) -> Floats:
            rows = child.choice(len(points), self.size, replace=False)
            return self.standardizer(self.space.round(points[rows]))

        samples = [subsample(y) for _ in range(self.settings.repeats)]
        distances = measure_joint_of_draws(map(subsample, draws), samples, child)
        bands = {name: credible_band(values) for name, values in distances.items()}
        return distance.model_copy(update={"intervals": JointIntervals(**bands)})

    def estimate_floor(self, x: Floats, rng: np.random.Generator) -> Distance:
        """Estimate the distance between disjoint subsamples of one sample."""
        x = self.space.round(x)

        def pick(size: int) -> tuple[Floats, Floats]:
            rows = rng.permutation(len(x))[: 2 * size]
            return x[rows[:size]], x[rows[size:]]

        return self._estimate(pick, rng)

    def _estimate(
        self, pick: Callable[[int], tuple[Floats, Floats]], rng: np.random.Generator
    ) -> Distance:
        # A child generator leaves the subsamples that `rng` draws as they are.
        (child,) = rng.spawn(1)
        edges = [feature_axis(feature).edges(self.settings.bins) for feature in self.space.features]
        joint_w, joint, marginal_w, marginal_tv = [], [], [], []
        for _ in range(self.settings.repeats):
            x, y = (self.standardizer(side) for side in pick(self.size))
            joint_w.append(wasserstein(x, y))
            joint.append(measure_joint(x, y, child))
            x, y = pick(self.marginal_size)
            columns = zip(x.T, y.T, edges, strict=True)
            marginal_tv.append([total_variation(*column) for column in columns])
            pairs = enumerate(zip(x.T, y.T, strict=True))
            marginal_w.append([self.standardizer.marginal_distance(j, *pair) for j, pair in pairs])
        tv, features = np.array(marginal_tv), []
        for name, w_of_feature, tv_of_feature in zip(
            self.space.names, np.array(marginal_w).T, tv.T, strict=True
        ):
            w1 = None if np.isnan(w_of_feature).any() else estimate_from_repeats(w_of_feature)
            variation = estimate_from_repeats(tv_of_feature)
            features.append(FeatureDistance(name=name, wasserstein=w1, total_variation=variation))
        by_name = {name: estimate_from_repeats([row[name] for row in joint]) for name in joint[0]}
        return Distance(
            wasserstein=estimate_from_repeats(joint_w),
            joint=JointDistance(**by_name),
            size=self.size,
            mmtv=estimate_from_repeats(tv.mean(axis=1)),
            marginal_size=self.marginal_size,
            features=features,
        )


def estimate_from_repeats(values: list[float] | Floats) -> Estimate:
    """Return mean and standard deviation of a number over repeats."""
    return Estimate(mean=float(np.mean(values)), sd=float(np.std(values, ddof=1)))
