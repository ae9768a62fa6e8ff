"""Differences between the joint shape of a belief and of the data: correlations and tails.

*Correlations* are Pearson's, each feature on its scale, categories dummy-coded. *Tails* are of
numbers with many values only. The belief's values have credible bands, from its posterior; the
data's have intervals for the sampling error of the rows. One pair in ten lies outside its band by
chance, even if the belief is right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import norm

from llm_elicit.audit.inference import Band, Interval, outside_band, wilson
from llm_elicit.audit.reference import Reference
from llm_elicit.audit.scales import by_value
from llm_elicit.audit.summaries import (
    BeliefBands,
    FeatureBands,
    FeaturePair,
    correlation_columns,
    correlation_matrix,
    correlation_pairs,
    standardized,
)
from llm_elicit.config.base_model import StrictModel
from llm_elicit.spaces.features import Floats


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
    found = None if bands is None else bands.features[column]
    assert found is None or isinstance(found, FeatureBands)
    return found


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
