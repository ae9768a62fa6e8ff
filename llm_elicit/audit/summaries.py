"""Marginals, correlations and tails of a belief, with credible bands, beside those of the data.

A band holds the central part of the posterior (`llm_elicit.density.BeliefDraws`) of one number at a
time; all bands together hold the truth less often than each does.

*Correlations* are Pearson's, each feature on its scale, categories dummy-coded. *Tails* are of
numbers with many values only. The belief's values have credible bands, from its posterior; the
data's have intervals for the sampling error of the rows. One pair in ten lies outside its band by
chance, even if the belief is right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import numpy as np
import pandas as pd
from pydantic import Field
from scipy.stats import norm

from llm_elicit import density
from llm_elicit._util.files import read_points
from llm_elicit._util.settings import StrictModel
from llm_elicit.audit.inference import Band, Interval, outside_band, wilson
from llm_elicit.audit.reference import Reference, axis_of, by_value, category_shares
from llm_elicit.density.feature_axis import BINS
from llm_elicit.spaces.circles import Circle
from llm_elicit.spaces.features import Feature, FeatureSpace, Floats

Value = TypeVar("Value", float, Band)
_Column = tuple[int, str | None]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
KEPT = 1000
"""Points stored of each draw: as many as distances between densities are measured on."""


class _Statistics(StrictModel, Generic[Value]):
    """A feature's mean and quantiles, each a number or a band."""

    name: str
    mean: Value
    q05: Value
    q25: Value
    q50: Value
    q75: Value
    q95: Value


class FeatureSummary(_Statistics[float]):
    """One feature of one sample, natural units."""

    sd: float


class CircularSummary(StrictModel):
    """A periodic feature of one sample, natural units; see `llm_elicit.spaces.circles`.

    A circle has no quantiles.
    """

    name: str
    mean: float
    sd: float


class CategorySummary(StrictModel):
    """The shares of a feature's categories in one sample."""

    name: str
    shares: dict[str, float]


Summary = FeatureSummary | CircularSummary | CategorySummary


class FeatureBands(_Statistics[Band]):
    """Bands of one feature's mean and quantiles, natural units."""


class CircularBands(StrictModel):
    """Band of a periodic feature's mean, natural units; it may go over the end of the range."""

    name: str
    mean: Band


class CategoryBands(StrictModel):
    """Bands of the shares of a feature's categories."""

    name: str
    shares: dict[str, Band]


Bands = FeatureBands | CircularBands | CategoryBands


class MarginalBand(StrictModel):
    """Band of one feature's density, per unit of its scale, at `at` (natural units).

    For a categorical feature, band of its shares, at the codes.
    """

    name: str
    at: list[float]
    low: list[float]
    high: list[float]


class FeaturePair(StrictModel):
    """Two columns of `correlation_columns`: numbers on their scale, or indicators of categories.

    Attributes:
        first, second: the features.
        first_category, second_category: the category indicated; None for a number.
    """

    first: str
    second: str
    first_category: str | None = None
    second_category: str | None = None

    @property
    def sides(self) -> tuple[tuple[str, str | None], ...]:
        """Feature and category, of the first and the second."""
        return (self.first, self.first_category), (self.second, self.second_category)


class CorrelationBand(FeaturePair):
    """Band of the correlation of two features."""

    correlation: Band


class BeliefBands(StrictModel):
    """A belief's bands.

    Attributes:
        level: probability that each band holds.
        draws: number of posterior draws they were measured on.
        features, marginals: one per feature, in the order of the space.
        correlations: one per pair of columns (see `correlation_columns`); empty in files that were
            written before correlations were measured.
    """

    level: Annotated[float, Field(gt=0, lt=1)]
    draws: int
    features: list[Bands]
    marginals: list[MarginalBand]
    correlations: tuple[CorrelationBand, ...] = ()


def summarize(points: Floats, space: FeatureSpace) -> list[Summary]:
    """Summarize each feature of a sample `(n, d)`, in the order of the space."""
    quantiles = np.quantile(points, QUANTILES, axis=0)
    summaries: list[Summary] = []
    for column, feature in enumerate(space.features):
        values = points[:, column]
        if feature.categories:
            shares = _by_category(feature, category_shares(values, feature))
            summaries.append(CategorySummary(name=feature.name, shares=shares))
            continue
        if feature.periodic:
            circle = Circle.of(feature)
            mean, sd = circle.mean(values), circle.sd(values)
            summaries.append(CircularSummary(name=feature.name, mean=mean, sd=sd))
            continue
        summaries.append(
            FeatureSummary(
                name=feature.name,
                mean=float(values.mean()),
                sd=float(values.std(ddof=1)),
                **dict(zip(_QUANTILE_KEYS, quantiles[:, column].tolist(), strict=True)),
            )
        )
    return summaries


_QUANTILE_KEYS = [f"q{round(100 * q):02d}" for q in QUANTILES]


def _by_category(feature: Feature, shares: Floats) -> dict[str, float]:
    return dict(zip(feature.categories, shares.tolist(), strict=True))


def summary_table(summaries: Mapping[str, list[Summary]]) -> pd.DataFrame:
    """Return a tidy table with columns feature, sample, mean, sd, q05 ... q95.

    There is one row per feature and sample; that of a periodic feature has no quantiles. A
    categorical feature has one row per category and
    sample instead, with columns category and share.

    Args:
        summaries: by the sample's name ("data", "belief", ...).
    """
    records: list[dict[str, object]] = []
    for sample, rows in summaries.items():
        for row in rows:
            key = {"feature": row.name, "sample": sample}
            if isinstance(row, CategorySummary):
                records += [key | {"category": k, "share": p} for k, p in row.shares.items()]
            else:
                of_circle = isinstance(row, CircularSummary)
                keys = () if of_circle else _QUANTILE_KEYS
                quantiles = {name: getattr(row, name) for name in keys}
                records.append(key | {"mean": row.mean, "sd": row.sd, **quantiles})
    frame = pd.DataFrame(records)
    order = {name: i for i, name in enumerate(dict.fromkeys(frame["feature"]))}
    return frame.sort_values(
        "feature", key=lambda column: column.map(order), kind="stable", ignore_index=True
    )


def measure_bands(
    draws: density.BeliefDraws, space: FeatureSpace, level: float = 0.9
) -> BeliefBands:
    """Measure bands of means, quantiles, marginals and correlations; of shares for categories."""
    marginals = [_marginal(draws, space, column, level) for column in range(space.dimension)]
    means = np.stack(density.band(draws.mean(), level))
    quantiles = np.stack(density.band(draws.quantile(QUANTILES), level))
    features: list[Bands] = []
    for column, (feature, marginal) in enumerate(zip(space.features, marginals, strict=True)):
        if feature.categories:
            ends = zip(marginal.low, marginal.high, strict=True)
            shares = dict(zip(feature.categories, ends, strict=True))
            features.append(CategoryBands(name=feature.name, shares=shares))
            continue
        if feature.periodic:
            ends_of_mean = _circular_band(draws, Circle.of(feature), column, level)
            features.append(CircularBands(name=feature.name, mean=ends_of_mean))
            continue
        features.append(
            FeatureBands(
                name=feature.name,
                mean=_as_band(means[:, column]),
                **{key: _as_band(quantiles[:, k, column]) for k, key in enumerate(_QUANTILE_KEYS)},
            )
        )
    return BeliefBands(
        level=level,
        draws=len(draws),
        features=features,
        marginals=marginals,
        correlations=_correlations(draws, space, level),
    )


def _circular_band(draws: density.BeliefDraws, circle: Circle, column: int, level: float) -> Band:
    """Return a band of the circular mean: that of its offsets from the mean of all draws."""
    weighted = zip(draws.points, draws.weights, strict=True)
    means = np.array([circle.resultant(x[:, column], w) for x, w in weighted])
    middle = float(circle.direction(means.mean(axis=0)))
    ends = np.stack(density.band(circle.offsets(circle.direction(means), middle), level))
    low, high = circle.low + np.mod(middle + ends - circle.low, circle.period)
    return float(low), float(high)


def _as_band(ends: Floats) -> Band:
    return float(ends[0]), float(ends[1])


def _marginal(
    draws: density.BeliefDraws, space: FeatureSpace, column: int, level: float
) -> MarginalBand:
    axis = axis_of(space.features[column])
    edges = axis.edges(BINS)
    widths = 1.0 if axis.by_value else axis.widths(edges)
    curves = axis.smoothed(draws.marginal(column, edges) / widths)
    low, high = density.band(curves, level)
    return MarginalBand(
        name=space.names[column], at=axis.centres.tolist(), low=low.tolist(), high=high.tolist()
    )


def write_draws(draws: density.BeliefDraws, space: FeatureSpace, path: Path) -> None:
    """Write `KEPT` points of each posterior draw as Parquet; see `read_draws`."""
    points = np.concatenate(draws.sample(KEPT))
    pd.DataFrame(points, columns=space.names).to_parquet(path)


def read_draws(path: Path) -> Floats | None:
    """Return points `(S, KEPT, d)`, natural units, of the posterior's draws.

    None if there is no such file: the method has no draws, or the fit is older than they are.
    """
    if not path.is_file():
        return None
    points = read_points(path, multiple=KEPT)
    return points.reshape(-1, KEPT, points.shape[1])


def correlation_columns(space: FeatureSpace, points: Floats) -> Floats:
    """Return columns `(n, c)` of points `(n, d)`: numbers on their scale, categories dummy-coded.

    A feature with two categories has one column, the indicator of the second. Ordered categories
    are their codes. A periodic feature has no column: no line through a circle is its scale.
    """
    scaled = space.to_scale(points)
    columns = [
        scaled[:, index]
        if category is None
        else (points[:, index] == space.features[index].code(category)).astype(np.float64)
        for index, category in _columns(space)
    ]
    return np.column_stack([np.empty((len(points), 0)), *columns])


def correlation_pairs(space: FeatureSpace) -> list[tuple[int, int, FeaturePair]]:
    """Return all pairs of columns of `correlation_columns` that belong to different features."""
    return [
        (
            i,
            j,
            FeaturePair(
                first=space.names[first],
                first_category=first_category,
                second=space.names[second],
                second_category=second_category,
            ),
        )
        for (i, (first, first_category)), (j, (second, second_category)) in combinations(
            enumerate(_columns(space)), 2
        )
        if first != second
    ]


def _columns(space: FeatureSpace) -> list[_Column]:
    """Return the feature's index and the category (None for a number) of each column."""
    return [
        (index, category)
        for index, feature in enumerate(space.features)
        if not feature.periodic
        for category in (
            feature.categories[len(feature.categories) == 2 :]
            if feature.kind == "categorical"
            else (None,)
        )
    ]


def correlation_matrix(points: Floats, weights: Floats | None = None) -> Floats:
    """Return Pearson's correlations `(d, d)` of points `(m, d)`; weights `(m,)` sum to one.

    The correlations of a feature that never varies are 0.

    Example:
        >>> points = np.array([[0.0, 0.0, 7.0], [1.0, 2.0, 7.0], [5.0, -4.0, 7.0]])
        >>> correlation_matrix(points, np.array([0.5, 0.5, 0.0]))[0].tolist()
        [1.0, 1.0, 0.0]
    """
    weights = np.full(len(points), 1.0 / len(points)) if weights is None else weights
    z = standardized(points, weights)
    return np.clip((weights[:, None] * z).T @ z, -1.0, 1.0)


def standardized(points: Floats, weights: Floats) -> Floats:
    """Return columns of mean 0 and variance 1, or of zeros where they never vary."""
    mean = weights @ points
    centred = points - mean
    sd = np.sqrt(weights @ centred**2)
    # Rounding leaves a constant column a sd of a few ulps instead of 0.
    return np.asarray(centred / np.where(sd > 1e-12 * np.maximum(1.0, np.abs(mean)), sd, np.inf))


def _correlations(
    draws: density.BeliefDraws, space: FeatureSpace, level: float
) -> tuple[CorrelationBand, ...]:
    weighted = zip(draws.points, draws.weights, strict=True)
    drawn = np.stack([correlation_matrix(correlation_columns(space, x), w) for x, w in weighted])
    low, high = density.band(drawn, level)
    return tuple(
        CorrelationBand(**pair.model_dump(), correlation=(float(low[i, j]), float(high[i, j])))
        for i, j, pair in correlation_pairs(space)
    )


class Correlation(FeaturePair):
    """The correlation of two features in the belief, the data and λ.

    Attributes:
        belief: of the belief's samples.
        band: the belief's 90 % credible band, if its method has one.
        data: with its 95 % interval over rows; None without data.
        sampling: of λ's samples.
        outside: whether the data's lies outside the belief's band; None without either.
        difference: belief minus data, with a 90 % interval for the uncertainty of both; see
            `correlation_difference`. None without a band or data.
    """

    belief: float
    band: Band | None
    data: Interval | None
    sampling: float
    outside: bool | None
    difference: Interval | None = None

    @property
    def gap(self) -> float:
        """The absolute difference of belief and data; from 0 without data."""
        return abs(self.belief - (0.0 if self.data is None else self.data.value))


class Tails(StrictModel):
    """Shares of the data's rows in the tails of the belief; 5 % each if the two were equal.

    Attributes:
        name: the feature.
        below, above: the share below the belief's 5 % quantile and above its 95 % quantile, with
            Wilson's 95 % interval over rows.
        below_band, above_band: the same at the ends of the quantile's 90 % credible band.
    """

    name: str
    below: Interval
    above: Interval
    below_band: Band | None
    above_band: Band | None


class Shape(StrictModel):
    """A belief's correlations and tails against the data's.

    Attributes:
        correlations: one per pair of columns of `correlation_columns`.
        tails: one per number, but for periodic ones and those with few values, whose quantiles
            hold a share of their own; None without data.
    """

    correlations: list[Correlation]
    tails: list[Tails] | None

    @property
    def outside(self) -> list[Correlation]:
        """The pairs whose correlation in the data lies outside the belief's band."""
        return [pair for pair in self.correlations if pair.outside]

    def largest_gaps(self, count: int) -> list[Correlation]:
        """Return at most `count` pairs, those where belief and data differ most first."""
        return sorted(self.correlations, key=lambda pair: -pair.gap)[:count]


def measure_shape(belief: Floats, reference: Reference, bands: BeliefBands | None) -> Shape:
    """Compare a belief's samples `(m, d)`, natural units, and its bands with the data and λ."""
    space, data = reference.space, reference.data
    of_belief, of_sampling = (
        correlation_matrix(correlation_columns(space, points))
        for points in (belief, reference.sampling)
    )
    rows = None if data is None else _standard_columns(correlation_columns(space, data))
    bands_by_pair = {} if bands is None else {b.sides: b.correlation for b in bands.correlations}
    correlations = []
    for i, j, pair in correlation_pairs(space):
        ends, of_data, difference = bands_by_pair.get(pair.sides), None, None
        if rows is not None:
            of_data, same_level = _intervals(rows[i], rows[j], (0.95, 0.9))
            if ends is not None:
                difference = correlation_difference(float(of_belief[i, j]), ends, same_level)
        correlations.append(
            Correlation(
                **pair.model_dump(),
                belief=float(of_belief[i, j]),
                band=ends,
                data=of_data,
                sampling=float(of_sampling[i, j]),
                outside=outside_band(ends, of_data),
                difference=difference,
            )
        )
    tails = None
    if data is not None:
        tails = [
            _tails(belief[:, j], data[:, j], space.names[j], _number_bands(bands, j))
            for j in space.on_line
            if not by_value(space.features[j])
        ]
    return Shape(correlations=correlations, tails=tails)


def correlation_difference(belief: float, band: Band, data: Interval) -> Interval | None:
    """Return belief minus data, from the intervals of both, of the same level.

    None if the belief lies outside its band, as it may if it has parts that the posterior has not.

    The distance of each end from the difference is the root of the sum of squared distances of the
    corresponding ends (Zou 2007, "Toward using confidence intervals to compare correlations"): the
    belief and the rows are independent, and neither interval needs to be symmetric.

    Example:
        >>> found = correlation_difference(0.5, (0.2, 0.7), Interval(value=0.1, low=-0.3, high=0.5))
        >>> [round(end, 3) for end in (found.low, found.value, found.high)]
        [-0.1, 0.4, 0.847]
    """
    if not band[0] <= belief <= band[1]:
        return None
    value = belief - data.value
    low = math.hypot(belief - band[0], data.high - data.value)
    high = math.hypot(band[1] - belief, data.value - data.low)
    return Interval(value=value, low=value - low, high=value + high)


def correlation_interval(x: Floats, y: Floats, level: float = 0.95) -> Interval:
    """Return Pearson's correlation of columns `(n,)` with a distribution-free interval.

    By Fisher's z, with the standard error from the rows' influence functions: that of normal
    theory, 1/√n, is too small for heavy tails (Hawkins 1989, "Using U statistics to derive the
    asymptotic distribution of Fisher's Z statistic"). For normal columns the two agree.

    Example:
        >>> x, noise = np.random.default_rng(0).normal(size=(2, 400))
        >>> interval = correlation_interval(x, x + noise)
        >>> interval.low < 0.5**0.5 < interval.high
        True
    """
    u, v = _standard_columns(np.column_stack([x, y]))
    return _intervals(u, v, (level,))[0]


def _standard_columns(points: Floats) -> Floats:
    """Return the columns `(c, n)` of points `(n, c)`, each with mean 0 and variance 1."""
    return np.ascontiguousarray(standardized(points, np.full(len(points), 1.0 / len(points))).T)


def _intervals(u: Floats, v: Floats, levels: Sequence[float]) -> list[Interval]:
    """Return the correlation of standard columns `(n,)` with its intervals at some levels."""
    r = float(u @ v) / len(u)
    if abs(r) > 1.0 - 1e-12:
        return [Interval(value=round(r), low=round(r), high=round(r)) for _ in levels]
    influence = u * v - 0.5 * r * (u * u + v * v)
    error = np.sqrt(influence @ influence) / len(u) / (1.0 - r**2)
    halves = [float(norm.ppf(0.5 + 0.5 * level)) * error for level in levels]
    ends = (np.tanh(np.arctanh(r) + np.array([-half, half])).tolist() for half in halves)
    return [Interval(value=r, low=low, high=high) for low, high in ends]


def _number_bands(bands: BeliefBands | None, column: int) -> FeatureBands | None:
    band = None if bands is None else bands.features[column]
    assert band is None or isinstance(band, FeatureBands)
    return band


def _tails(belief: Floats, data: Floats, name: str, bands: FeatureBands | None) -> Tails:
    low, high = np.quantile(belief, (0.05, 0.95))

    def below(end: float) -> float:
        return float((data < end).mean())

    def above(end: float) -> float:
        return float((data > end).mean())

    return Tails(
        name=name,
        below=wilson(below(low), len(data)),
        above=wilson(above(high), len(data)),
        below_band=None if bands is None else (below(bands.q05[0]), below(bands.q05[1])),
        above_band=None if bands is None else (above(bands.q95[1]), above(bands.q95[0])),
    )
