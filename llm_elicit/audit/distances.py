"""Distances between two samples with their floors, the distances that chance alone produces.

The distances themselves are in `llm_elicit.audit.two_sample`. Total variation is measured from
histograms on common bins; MMTV is its mean over the features (Acerbi 2020, "Variational Bayesian
Monte Carlo with noisy likelihoods"). For a categorical feature it is that of the shares, and the
only distance of its marginal unless the categories are ordered; over all features jointly,
categories are vertices of a simplex (`llm_elicit.audit.scales`). Between finite samples of one
density no distance is 0, so each is read relative to its *floor*: the same distance between two
disjoint samples of the same density, of the same size.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from llm_elicit.audit.inference import Band, credible_band
from llm_elicit.audit.reference import AuditSettings
from llm_elicit.audit.scales import Standardizer, axis_of
from llm_elicit.audit.two_sample import (
    joint_of_draws,
    measure_joint,
    total_variation,
    wasserstein,
)
from llm_elicit.config.base_model import StrictModel
from llm_elicit.spaces.features import FeatureSpace, Floats


class Estimate(StrictModel):
    """Mean and standard deviation of a number over repeated subsamples."""

    mean: float
    sd: float


class FeatureDistance(StrictModel):
    """The distance between two marginals of one feature.

    Attributes:
        name: the feature.
        wasserstein: Wasserstein-1 in standard deviations of the data, on the feature's scale; None
            for categories without an order. Of ordered ones, of their codes; of a periodic feature,
            along the circle.
        total_variation: ½∫|p − q|, from 0 (equal) to 1 (disjoint); for shares ½Σ|p − q|.
    """

    name: str
    wasserstein: Estimate | None
    total_variation: Estimate


class JointDistance(StrictModel):
    """Joint distances of two samples, on the points of the Wasserstein distance.

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


class JointBands(StrictModel):
    """90 % credible intervals of a belief's distances, over draws of its posterior.

    They include the sampling variation of the subsamples.

    Attributes:
        sliced, energy: as in `JointDistance`.
    """

    sliced: Band
    energy: Band


class Distance(StrictModel):
    """Everything measured between two samples.

    Attributes:
        wasserstein: Wasserstein-1, Euclidean, between standardized features.
        joint: other joint distances of the same points; None in audits made before there were any.
        bands: posterior uncertainty of these, if the belief has draws.
        size: points on each side of these.
        mmtv: mean marginal total variation, in [0, 1].
        marginal_size: points on each side of the one-dimensional distances.
        features: the marginals, in the order of the space.
    """

    wasserstein: Estimate
    joint: JointDistance | None = None
    bands: JointBands | None = None
    size: int
    mmtv: Estimate
    marginal_size: int
    features: list[FeatureDistance]


def common_size(wanted: int, *samples: Floats) -> int:
    """Return the size that all distances of an audit share: at most half of the smallest sample.

    Half, so that every floor can be measured between two disjoint samples of that size.
    """
    return max(1, min(wanted, *(len(points) // 2 for points in samples)))


class DistanceEstimator:
    """Estimates distances between samples of one space, always with the same sizes.

    Points are compared as they would be asked, rounded as they are worded: otherwise a table of
    whole numbers and a continuous belief would differ by the rounding alone.

    Args:
        standardizer: standardizes the features.
        settings: repeats and bins.
        size: points on each side of a Wasserstein distance.
        marginal_size: points on each side of a one-dimensional distance.
    """

    def __init__(
        self, standardizer: Standardizer, settings: AuditSettings, size: int, marginal_size: int
    ) -> None:
        self.standardizer = standardizer
        self.settings = settings
        self.size = size
        self.marginal_size = marginal_size
        self.edges = [axis_of(f).edges(settings.bins) for f in self.space.features]

    @property
    def space(self) -> FeatureSpace:
        return self.standardizer.space

    def between(
        self, x: Floats, y: Floats, rng: np.random.Generator, draws: Floats | None = None
    ) -> Distance:
        """Estimate the distance between samples `(n, d)` and `(m, d)`, natural units.

        `draws` `(S, k, d)` are samples of the posterior's draws of x. There are no intervals
        without them, or if k is below the size of the distances.
        """
        x, y = self.space.round(x), self.space.round(y)

        def pick(size: int) -> tuple[Floats, Floats]:
            return (
                x[rng.choice(len(x), size, replace=False)],
                y[rng.choice(len(y), size, replace=False)],
            )

        distance = self._measure(pick, rng)
        if draws is None or draws.shape[1] < self.size:
            return distance
        (child,) = rng.spawn(1)
        return distance.model_copy(update={"bands": self._bands(draws, y, child)})

    def _bands(self, draws: Floats, y: Floats, rng: np.random.Generator) -> JointBands:
        def some(points: Floats) -> Floats:
            rows = rng.choice(len(points), self.size, replace=False)
            return self.standardizer(self.space.round(points[rows]))

        others = [some(y) for _ in range(self.settings.repeats)]
        found = joint_of_draws(map(some, draws), others, rng)
        return JointBands(**{name: credible_band(values) for name, values in found.items()})

    def floor(self, x: Floats, rng: np.random.Generator) -> Distance:
        """Estimate the distance between disjoint subsamples of one sample."""
        x = self.space.round(x)

        def pick(size: int) -> tuple[Floats, Floats]:
            rows = rng.permutation(len(x))[: 2 * size]
            return x[rows[:size]], x[rows[size:]]

        return self._measure(pick, rng)

    def _measure(
        self, pick: Callable[[int], tuple[Floats, Floats]], rng: np.random.Generator
    ) -> Distance:
        # A child generator leaves the subsamples that `rng` draws as they are.
        (child,) = rng.spawn(1)
        joint_w, joint, marginal_w, marginal_tv = [], [], [], []
        for _ in range(self.settings.repeats):
            x, y = (self.standardizer(side) for side in pick(self.size))
            joint_w.append(wasserstein(x, y))
            joint.append(measure_joint(x, y, child))
            x, y = pick(self.marginal_size)
            columns = zip(x.T, y.T, self.edges, strict=True)
            marginal_tv.append([total_variation(*column) for column in columns])
            pairs = enumerate(zip(x.T, y.T, strict=True))
            marginal_w.append([self.standardizer.marginal_distance(j, *pair) for j, pair in pairs])
        w, tv = np.array(marginal_w), np.array(marginal_tv)
        return Distance(
            wasserstein=estimate_of(joint_w),
            joint=JointDistance(
                **{name: estimate_of([one[name] for one in joint]) for name in joint[0]}
            ),
            size=self.size,
            mmtv=estimate_of(tv.mean(axis=1)),
            marginal_size=self.marginal_size,
            features=[
                FeatureDistance(
                    name=feature.name,
                    wasserstein=None if np.isnan(w[:, column]).any() else estimate_of(w[:, column]),
                    total_variation=estimate_of(tv[:, column]),
                )
                for column, feature in enumerate(self.space.features)
            ],
        )


def estimate_of(values: list[float] | Floats) -> Estimate:
    """Return mean and standard deviation of a number over repeats."""
    return Estimate(mean=float(np.mean(values)), sd=float(np.std(values, ddof=1)))
