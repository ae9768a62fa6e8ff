"""The data and λ that every judge of a run is compared with, and how finely an audit measures.

Features are put on common scales: standardized columns for distances, axes for histograms. A number
is put on its feature's scale (the logarithm where that is logarithmic), centred on the reference
data's mean and divided by their standard deviation: a distance of 1 is one standard deviation of
the data.

A category is a vertex of a regular simplex, K categories in K − 1 columns, so that any two are
equally far apart and their codes have no influence. The edge is √2 / √(1 − Σ p²), p the shares in
the data: rows of the data then have a variance of 1 over these columns together, as over a number.
Two categories give one column, the standardized indicator of one of them.

A periodic feature is a circle in two columns, so that its ends are the same point; its standard
deviation is that of `llm_elicit.spaces.circles`, and the variance of the data over both columns
together is 1. Its marginal distances are along the circle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike
from pydantic import Field
from scipy.linalg import helmert
from scipy.spatial.distance import cdist
from scipy.stats import wasserstein_distance

from llm_elicit._util.settings import StrictModel
from llm_elicit._util.text import brief_repr
from llm_elicit.density.feature_axis import FeatureAxis
from llm_elicit.errors import InputError
from llm_elicit.spaces.circles import Circle
from llm_elicit.spaces.features import Feature, FeatureSpace, Floats, TableRows


@dataclass(frozen=True)
class Standardizer:
    """Maps natural units to standardized features, by the mean and sd of a sample on the scale.

    A feature that never varies keeps its unit (its sd counts as 1).

    Attributes:
        space: the feature space.
        mean, sd: mean and standard deviation of each feature, `(d,)`; 0 and √(1 − Σ p²) for a
            categorical one.
        vertices: vertices of the simplex of each categorical feature, `(K, K − 1)`, by its index.
        circles: the circle of each periodic feature, by its index.

    Examples:
        >>> space = FeatureSpace.load("california_housing")
        >>> points = space.sample(100, np.random.default_rng(0))
        >>> bool(np.allclose(Standardizer.of(space, points)(points).std(axis=0), 1))
        True
    """

    space: FeatureSpace
    mean: Floats
    sd: Floats
    vertices: Mapping[int, Floats] = field(default_factory=dict)
    circles: Mapping[int, Circle] = field(default_factory=dict)

    @classmethod
    def of(cls, space: FeatureSpace, points: Floats) -> Standardizer:
        """Return the standardizer of points `(n, d)`, natural units."""
        scaled = space.to_scale(points)
        mean, sd = scaled.mean(axis=0), scaled.std(axis=0)
        categorical = np.flatnonzero(space.categorical).tolist()
        shares = {j: category_shares(points[:, j], space.features[j]) for j in categorical}
        for j, share in shares.items():
            mean[j], sd[j] = 0.0, math.sqrt(max(0.0, 1.0 - float(share @ share)))
        periodic = np.flatnonzero(space.periodic).tolist()
        circles = {j: Circle.of(space.features[j]) for j in periodic}
        for j, circle in circles.items():
            mean[j], sd[j] = circle.mean(points[:, j]), circle.sd(points[:, j])
        # Rounding leaves a constant column a sd of a few ulps instead of 0.
        constant = sd <= 1e-12 * np.maximum(1.0, np.abs(mean))
        sd = np.where(constant, 1.0, sd)
        vertices: dict[int, Floats] = {}
        for j, share in shares.items():  # of a simplex with edges of √2, their mean over shares 0
            simplex = helmert(len(share)).T
            vertices[j] = (simplex - share @ simplex) / sd[j]
        return cls(space, mean, sd, vertices, circles)

    def __call__(self, points: Floats) -> Floats:
        """Return all columns `(..., p)` of points `(..., d)`; p = d for numbers alone."""
        if not self.vertices and not self.circles:
            return self.standardize_numbers(points)
        return np.concatenate(self.columns_by_feature(points), axis=-1)

    def columns_by_feature(self, points: Floats) -> list[Floats]:
        """Return each feature's columns.

        `(..., 1)` of a number, `(..., K − 1)` of K categories, `(..., 2)` of a periodic feature.
        """
        numbers = self.standardize_numbers(points)
        columns: list[Floats] = []
        for j in range(self.space.dimension):
            if j in self.vertices:
                columns.append(self.vertices[j][np.rint(points[..., j]).astype(int)])
            elif j in self.circles:
                circle = self.circles[j]
                scale = circle.radius / float(self.sd[j])
                columns.append(circle.vectors(points[..., j]) * scale)
            else:
                columns.append(numbers[..., j : j + 1])
        return columns

    def standardize_numbers(self, points: Floats) -> Floats:
        """Return one column per feature, `(..., d)`; NaN where it is categorical or periodic."""
        scaled = (self.space.to_scale(points) - self.mean) / self.sd
        return np.where(self.space.categorical | self.space.periodic, np.nan, scaled)

    def marginal_distance(self, j: int, x: Floats, y: Floats) -> float:
        """Return Wasserstein-1 of one feature between samples `(n,)` and `(m,)`, natural units.

        The unit is standard deviations. Distances of a periodic feature are along the circle; the
        result is NaN for categories without an order.
        """
        if j in self.vertices:
            return math.nan
        if j in self.circles:
            return self.circles[j].distance(x, y) / float(self.sd[j])
        if self.space.log[j]:
            x, y = np.log(x), np.log(y)
        return float(wasserstein_distance(x, y)) / float(self.sd[j])

    @property
    def column_features(self) -> npt.NDArray[np.int64]:
        """The index of the feature of each column, `(p,)`."""
        widths = [
            self.vertices[j].shape[1] if j in self.vertices else 2 if j in self.circles else 1
            for j in range(self.space.dimension)
        ]
        return np.repeat(np.arange(len(widths)), widths)

    def category_distance(self, feature: int) -> float:
        """Return the distance between any two categories of a feature."""
        return math.sqrt(2.0) / float(self.sd[feature])


def category_shares(codes: Floats, feature: Feature) -> Floats:
    """Return the share of each category `(K,)` among codes `(n,)`.

    Examples:
        >>> names = ["a", "b", "c"]
        >>> kind = Feature(name="kind", label="kind", kind="categorical", categories=names)
        >>> category_shares(np.array([0.0, 2.0, 2.0, 2.0]), kind).tolist()
        [0.25, 0.0, 0.75]
    """
    counts = np.bincount(np.rint(codes).astype(int), minlength=len(feature.categories))
    return np.asarray(counts / counts.sum())


def feature_axis(feature: Feature) -> FeatureAxis:
    """Return the axis of a feature's whole range, for figures and for the bins of histograms.

    Examples:
        >>> rooms = Feature(name="rooms", label="rooms", kind="integer", low=1, high=9)
        >>> feature_axis(rooms).edges(3).tolist()
        [0.5, 3.5, 6.5, 9.5]
    """
    return FeatureAxis(
        axis_label(feature),
        feature.lowest,
        feature.highest,
        log=feature.scale == "log",
        whole=feature.whole,
        periodic=feature.periodic,
        categories=feature.categories,
        factor=feature.factor,
        date=feature.kind == "date",
    )


def axis_label(feature: Feature) -> str:
    """Return the feature's label with its unit."""
    unit = feature.unit or feature.prefix.strip()
    return f"{feature.label} ({unit})" if unit else feature.label


def has_few_values(feature: Feature) -> bool:
    """Return whether a feature's values are so few that each has its own share.

    Examples:
        >>> rooms = Feature(name="rooms", label="rooms", kind="integer", low=1, high=9)
        >>> has_few_values(rooms), has_few_values(rooms.model_copy(update={"kind": "continuous"}))
        (True, False)
    """
    return feature_axis(feature).is_discrete


class AuditSettings(StrictModel):
    """How finely an audit measures. The defaults take about ten seconds per judge.

    Attributes:
        size: number of points on each side of a Wasserstein distance.
        marginal_size: number of points on each side of a one-dimensional distance.
        repeats: number of subsamples on which each distance is measured.
        bins: number of histogram bins per feature, for total variation.
        flips: number of random sign flips of each randomization test.
        level: significance level of the tests that verdicts depend on.
    """

    size: Annotated[int, Field(ge=2, le=20_000)] = 1000
    marginal_size: Annotated[int, Field(ge=2)] = 10_000
    repeats: Annotated[int, Field(ge=2, le=1000)] = 5
    bins: Annotated[int, Field(ge=2, le=1000)] = 30
    flips: Annotated[int, Field(ge=99)] = 1999
    level: Annotated[float, Field(gt=0, lt=1)] = 0.05


@dataclass(frozen=True)
class Reference:
    """The data and λ, with which every judge of a run is compared.

    Attributes:
        space: the feature space.
        sampling: draws from the sampling density λ, `(k, d)`, natural units.
        data: the reference table's points, `(n, d)`; None for a space without a table.
        table_rows: number of rows of the table, and why some are not used.

    Raises:
        InputError: if points have the wrong shape, number fewer than two, are NaN, are not
            positive on a logarithmic scale, or are not the code of a category.
    """

    space: FeatureSpace
    sampling: Floats
    data: Floats | None = None
    table_rows: TableRows | None = None

    __repr__ = brief_repr

    def __post_init__(self) -> None:
        points = {"sampling": (self.sampling, "λ samples"), "data": (self.data, "reference data")}
        for field_name, (table, name) in points.items():
            if table is not None:
                object.__setattr__(self, field_name, validate_points(table, self.space, name))

    @property
    def standardizer(self) -> Standardizer:
        """Standardization by the data, or by λ if there are none."""
        return Standardizer.of(self.space, self.sampling if self.data is None else self.data)


def validate_points(points: ArrayLike, space: FeatureSpace, name: str) -> Floats:
    """Return `points` as finite `(n, d)` floats that fit the space's scales, n at least 2.

    Categories are given by their codes.

    Raises:
        InputError: if the shape is wrong or a value does not fit; the message starts with `name`
            and states the row, from 1, and the feature.
    """
    array = np.asarray(points, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != space.dimension:
        raise InputError(
            f"{name}: shape {array.shape}; give (n, {space.dimension}), a column for each of "
            + ", ".join(space.names)
        )
    if len(array) < 2:
        raise InputError(f"{name}: it has {len(array)} point(s); give at least 2")
    codes = (array == np.rint(array)) & (array >= space.low) & (array <= space.high)
    for invalid in (~np.isfinite(space.to_scale(array)), space.categorical & ~codes):
        for row, column in np.argwhere(invalid)[:1].tolist():
            rule = "finite and positive (its scale is log)" if space.log[column] else "finite"
            if np.isfinite(array[row, column]) and space.categorical[column]:
                rule = f"the code of a category, 0 to {space.high[column]:g}"
            value = f"{space.names[column]} = {array[row, column]:g}"
            raise InputError(f"{name}: row {row + 1}, {value}; it must be {rule}; correct it")
    return array


_BANDWIDTH_FACTORS = (0.25, 0.4, 0.6, 0.8, 1.0, 1.3)
"""Bandwidths tried, as multiples of Scott's (1992)."""


class KernelDensity:
    """Log kernel density of the data `(n, d)`: leave-one-out at its rows, and at draws from λ."""

    def __init__(self, standardizer: Standardizer, rows: Floats, sampling: Floats) -> None:
        space = standardizer.space
        x, y = standardizer(space.round(rows)), standardizer(space.round(sampling))
        n, d = x.shape
        # Rounded values and categories may leave a direction without any variance.
        covariance = np.cov(x, rowvar=False).reshape(d, d) + 1e-3 * np.eye(d)
        whitening = np.linalg.inv(np.linalg.cholesky(covariance)).T
        scott = n ** (-1.0 / (d + 4))
        squared_distances = cdist(x @ whitening, x @ whitening, "sqeuclidean")
        np.fill_diagonal(squared_distances, np.inf)
        nearest = squared_distances.min(axis=1)
        exponents_from_nearest = nearest[:, None] - squared_distances

        def log_kernels(scale: float) -> Floats:
            exponents = 0.5 * exponents_from_nearest / scale**2
            return np.asarray(np.log(np.exp(exponents).sum(axis=1)) - 0.5 * nearest / scale**2)

        scales = [scott * factor for factor in _BANDWIDTH_FACTORS]
        log_densities = {scale: log_kernels(scale) - d * np.log(scale) for scale in scales}
        best_scale = max(log_densities, key=lambda scale: float(log_densities[scale].mean()))
        # A row has one kernel fewer than a draw from λ.
        self.log_density_at_rows = log_densities[best_scale] + np.log(n / (n - 1))
        logs = -0.5 * cdist(y @ whitening, x @ whitening, "sqeuclidean") / best_scale**2
        self._highest = logs.max(axis=1)
        self._kernels = np.exp(logs - self._highest[:, None])
        at_sampling = self.evaluate_at_sampling(np.ones((1, n)))[0]
        self.log_density_at_sampling = at_sampling - d * np.log(best_scale)

    def standardized_ranks(self) -> tuple[Floats, Floats]:
        """Return ranks of the density at rows and draws, with mean 0 and variance 1 over λ."""
        ordered = np.sort(self.log_density_at_sampling)
        rows, sampling = (
            math.sqrt(12.0) * (np.searchsorted(ordered, logs) / len(ordered) - 0.5)
            for logs in (self.log_density_at_rows, self.log_density_at_sampling)
        )
        return rows, sampling

    def evaluate_at_sampling(self, weights: Floats) -> Floats:
        """Return log densities `(S, k)` at the k draws from λ, up to a constant for each S.

        `weights` `(S, n)` are the weights of the rows' kernels.
        """
        with np.errstate(divide="ignore"):
            logs = self._highest + np.log(weights @ self._kernels.T)
        smallest = np.where(np.isfinite(logs), logs, np.inf).min(axis=1, initial=0.0)
        return np.asarray(np.maximum(logs, smallest[:, None] - 1.0))
