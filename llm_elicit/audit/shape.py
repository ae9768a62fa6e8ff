"""Differences between the joint shape of a belief and of the data: correlations, tails, boxes.

*Correlations* are Pearson's, each feature on its scale, categories dummy-coded. *Tails* are of
numbers only. The belief's values have credible bands, from its posterior; the data's have intervals
for the sampling error of the rows. One pair in ten lies outside its band by chance, even if the
belief is right.

*Boxes* have nearly equal shares of the data: all rows are split at the median of the feature with
the largest variance, each half again in the same way, as in a k-d tree (Bentley 1975,
"Multidimensional binary search trees used for associative searching"). A categorical feature is
split into its most frequent categories, as near to half of the rows as possible, and the others; it
is skipped if one side had less than a quarter of the rows, or fewer than 50. The boxes depend on
the data only, so different beliefs can be compared on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from llm_elicit.audit.inference import Interval, wilson
from llm_elicit.audit.reference import Reference
from llm_elicit.audit.scales import Standardizer, category_shares
from llm_elicit.audit.summaries import (
    Band,
    BeliefBands,
    CategoryBands,
    FeatureBands,
    FeaturePair,
    correlation_columns,
    correlation_matrix,
    correlation_pairs,
    standardized,
)
from llm_elicit.config.base_model import StrictModel
from llm_elicit.density import band
from llm_elicit.spaces.features import FeatureSpace, Floats

_DEPTH = 4
_ROWS = 50
_LEAST_SHARE = 0.25


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
        tails: one per number; None without data.
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
    rows = None if data is None else correlation_columns(space, data)
    bands_by_pair = {} if bands is None else {b.sides: b.correlation for b in bands.correlations}
    correlations = []
    for i, j, pair in correlation_pairs(space):
        ends, of_data, difference = bands_by_pair.get(pair.sides), None, None
        if rows is not None:
            of_data = correlation_interval(rows[:, i], rows[:, j])
            if ends is not None:
                same_level = correlation_interval(rows[:, i], rows[:, j], 0.9)
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
            for j in space.numeric
        ]
    return Shape(correlations=correlations, tails=tails)


def correlation_difference(belief: float, band: Band, data: Interval) -> Interval:
    """Return belief minus data, from the intervals of both, of the same level.

    The distance of each end from the difference is the root of the sum of squared distances of the
    corresponding ends (Zou 2007, "Toward using confidence intervals to compare correlations"): the
    belief and the rows are independent, and neither interval needs to be symmetric.

    Example:
        >>> found = correlation_difference(0.5, (0.2, 0.7), Interval(value=0.1, low=-0.3, high=0.5))
        >>> [round(end, 3) for end in (found.low, found.value, found.high)]
        [-0.1, 0.4, 0.847]
    """
    value = belief - data.value
    # A belief may lie outside its band if it includes parts that the posterior does not.
    low = math.hypot(max(belief - band[0], 0.0), data.high - data.value)
    high = math.hypot(max(band[1] - belief, 0.0), data.value - data.low)
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
    u, v = standardized(np.column_stack([x, y]), np.full(len(x), 1.0 / len(x))).T
    r = float(u @ v) / len(x)
    if abs(r) > 1.0 - 1e-12:
        return Interval(value=round(r), low=round(r), high=round(r))
    influence = u * v - 0.5 * r * (u**2 + v**2)
    error = np.sqrt((influence**2).mean() / len(x)) / (1.0 - r**2)
    half = float(norm.ppf(0.5 + 0.5 * level)) * error
    low, high = np.tanh(np.arctanh(r) + np.array([-half, half]))
    return Interval(value=r, low=float(low), high=float(high))


def outside_band(band: Band | None, data: Interval | None) -> bool | None:
    """Return whether the data's value lies outside a belief's band; None without either."""
    return None if band is None or data is None else not band[0] <= data.value <= band[1]


def _number_bands(bands: BeliefBands | None, column: int) -> FeatureBands | None:
    found = None if bands is None else bands.features[column]
    assert not isinstance(found, CategoryBands)
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


class BoxBound(StrictModel):
    """A box's range of one feature, natural units: above `low`, up to `high`; None if unbounded.

    For a categorical feature, its `categories` in the box; None for a number.
    """

    name: str
    low: float | None
    high: float | None
    categories: list[str] | None = None


class Box(StrictModel):
    """A box and the shares of data and belief in it.

    Attributes:
        bounds: of the features that bound it; the others are unrestricted.
        data: the share of the rows, with Wilson's 95 % interval over rows.
        belief: the share of the belief.
        band: its 90 % credible band, if the belief has draws.
        outside: whether the data's share lies outside the band; None without one.
    """

    bounds: list[BoxBound]
    data: Interval
    belief: float
    band: Band | None
    outside: bool | None

    @property
    def gap(self) -> float:
        """The absolute difference of belief and data."""
        return abs(self.belief - self.data.value)


def measure_boxes(
    belief: Floats, reference: Reference, draws: Floats | None = None
) -> list[Box] | None:
    """Return at most 16 boxes of 50 rows or more, those where belief and data differ most first.

    Args:
        belief: its samples, `(m, d)`, natural units.
        reference: the space and the data.
        draws: samples of the posterior's draws, `(S, k, d)`.

    Returns:
        The boxes; None without data, or with fewer than 100 rows.

    Example:
        >>> from llm_elicit.spaces.features import FeatureSpace
        >>> space = FeatureSpace.load("penguins")
        >>> data = space.table_points()
        >>> reference = Reference(space, space.sample(100, np.random.default_rng(0)), data)
        >>> boxes = measure_boxes(data, reference)
        >>> len(boxes), max(box.gap for box in boxes)
        (4, 0.0)
    """
    data, space = reference.data, reference.space
    if data is None or len(data) < 2 * _ROWS:
        return None
    depth = min(_DEPTH, int(np.log2(len(data) / _ROWS)))
    boxes = []
    for cell in _split(data, reference.standardizer, _Cell.whole(space), depth):
        share = wilson(float(cell.contains(data).mean()), len(data))
        ends = None if draws is None else _share_band(cell.contains(draws).mean(axis=1))
        boxes.append(
            Box(
                bounds=cell.bounds(space),
                data=share,
                belief=float(cell.contains(belief).mean()),
                band=ends,
                outside=outside_band(ends, share),
            )
        )
    return sorted(boxes, key=lambda box: -box.gap)


@dataclass(frozen=True)
class _Cell:
    """A box: above `low`, up to `high`, `(d,)` each, and the codes of categories in it."""

    low: Floats
    high: Floats
    codes: Mapping[int, frozenset[int]]

    @classmethod
    def whole(cls, space: FeatureSpace) -> _Cell:
        return cls(np.full(space.dimension, -np.inf), np.full(space.dimension, np.inf), {})

    def below(self, feature: int, at: float) -> _Cell:
        high = self.high.copy()
        high[feature] = min(high[feature], at)
        return replace(self, high=high)

    def above(self, feature: int, at: float) -> _Cell:
        low = self.low.copy()
        low[feature] = max(low[feature], at)
        return replace(self, low=low)

    def with_codes(self, feature: int, codes: frozenset[int]) -> _Cell:
        return replace(self, codes={**self.codes, feature: codes})

    def contains(self, points: Floats) -> NDArray[np.bool_]:
        """Return whether points (..., d) lie in it."""
        inside = ((points > self.low) & (points <= self.high)).all(axis=-1)
        for feature, codes in self.codes.items():
            inside &= np.isin(points[..., feature], list(codes))
        return np.asarray(inside)

    def bounds(self, space: FeatureSpace) -> list[BoxBound]:
        return [
            BoxBound(
                name=feature.name,
                low=_finite(self.low[j]),
                high=_finite(self.high[j]),
                categories=[feature.categories[code] for code in sorted(self.codes[j])]
                if j in self.codes
                else None,
            )
            for j, feature in enumerate(space.features)
            if np.isfinite(self.low[j]) or np.isfinite(self.high[j]) or j in self.codes
        ]


def _split(data: Floats, standardizer: Standardizer, cell: _Cell, depth: int) -> Iterator[_Cell]:
    """Yield the boxes that a cell with rows `(n, d)` is split into."""
    # Categories may give unequal halves, so that the smaller one has too few rows to split.
    enough = len(data) >= 2 * _ROWS or not cell.codes
    halves = _halves(data, standardizer, cell) if depth and enough else None
    if halves is None:
        yield cell
        return
    for half in halves:
        yield from _split(data[half.contains(data)], standardizer, half, depth - 1)


def _halves(data: Floats, standardizer: Standardizer, cell: _Cell) -> tuple[_Cell, _Cell] | None:
    """Return two halves, as equal as possible, split at the feature with the largest variance."""
    sds = [np.sqrt(columns.var(axis=0).sum()) for columns in standardizer.by_feature(data)]
    for feature in np.argsort(-np.array(sds), kind="stable").tolist():
        found = (
            _halves_by_category(data[:, feature], standardizer.space, cell, feature)
            if standardizer.space.categorical[feature]
            else _halves_by_number(data[:, feature], cell, feature)
        )
        if found is not None:
            return found
    return None


def _halves_by_number(values: Floats, cell: _Cell, feature: int) -> tuple[_Cell, _Cell] | None:
    values = np.sort(values)
    steps = np.flatnonzero(np.diff(values))
    if not len(steps):
        return None
    step = steps[np.abs(steps + 1 - len(values) / 2).argmin()]
    at = float(values[step : step + 2].mean())
    return cell.below(feature, at), cell.above(feature, at)


def _halves_by_category(
    values: Floats, space: FeatureSpace, cell: _Cell, feature: int
) -> tuple[_Cell, _Cell] | None:
    shares = category_shares(values, space.features[feature])
    order = np.argsort(-shares, kind="stable")
    cumulative = np.cumsum(shares[order])
    count = 1 + int(np.abs(cumulative - 0.5).argmin())
    smaller = min(cumulative[count - 1], 1.0 - cumulative[count - 1])
    if smaller < max(_LEAST_SHARE, _ROWS / len(values)):
        return None
    frequent = frozenset(order[:count].tolist())
    others = cell.codes.get(feature, frozenset(range(len(shares)))) - frequent
    return cell.with_codes(feature, frequent), cell.with_codes(feature, others)


def _share_band(shares: Floats) -> Band:
    low, high = band(shares)
    return float(low), float(high)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
