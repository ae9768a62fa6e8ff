"""Is a belief shaped like the data: do features hang together alike, are the tails as heavy?

Correlations are Pearson's, each feature on its scale; of a categorical feature, of having each of
its categories, 1 or 0. Tails are of numbers alone. The belief's stand beside their credible band,
which is of its posterior, the data's beside an interval for the sampling error of the rows. One
pair in ten lies outside its band by chance, even where the judge believes what is so.

Where belief and data differ most: boxes with equal shares of the data, and the belief's in each.

All rows are halved at the median of the feature that scatters most among them, each half again in
the same way: a k-d tree (Bentley 1975, "Multidimensional binary search trees used for associative
searching"). At a categorical feature the most frequent categories make one half, as many as come
nearest to it, the others the other; it is passed over where one of them had less than a quarter of
the rows, or less than 50. Which boxes there are follows from the data alone, so beliefs can be
compared by them.
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
from llm_elicit.audit.scales import Standard, shares_of
from llm_elicit.audit.summaries import (
    Band,
    BeliefBands,
    CategoryBands,
    FeatureBands,
    Pair,
    associable,
    correlation_matrix,
    pairs_of,
    standardized,
)
from llm_elicit.config.base_model import StrictModel
from llm_elicit.density import band
from llm_elicit.spaces.features import FeatureSpace, Floats


class Correlation(Pair):
    """The correlation of two features in the belief, the data and λ.

    Attributes:
        belief: of the belief's samples.
        band: the belief's 90 % credible band, where its method has one.
        data: with its 95 % interval over rows; None without data.
        sampling: of λ's samples.
        outside: whether the data's lies outside the belief's band; None without either.
        difference: the belief's less the data's, with a 90 % interval for what both leave open;
            see `correlation_difference`. None without a band or data.
    """

    belief: float
    band: Band | None
    data: Interval | None
    sampling: float
    outside: bool | None
    difference: Interval | None = None

    @property
    def gap(self) -> float:
        """How far belief and data are apart; from 0, without data."""
        return abs(self.belief - (0.0 if self.data is None else self.data.value))


class Tails(StrictModel):
    """Shares of the data's rows in the tails of the belief, 5 % each if the two were equal.

    Attributes:
        name: the feature.
        below, above: the share under the belief's 5 % quantile, and over its 95 % quantile, with
            Wilson's 95 % interval over rows.
        below_band, above_band: the same at the ends of the quantile's 90 % credible band.
    """

    name: str
    below: Interval
    above: Interval
    below_band: Band | None
    above_band: Band | None


class Shape(StrictModel):
    """A belief's shape beside the data's.

    Attributes:
        correlations: every two features once, in the order of the space, those of categories
            once a category.
        tails: number by number; None without data.
    """

    correlations: list[Correlation]
    tails: list[Tails] | None

    @property
    def outside(self) -> list[Correlation]:
        """The pairs whose correlation in the data lies outside the belief's band."""
        return [pair for pair in self.correlations if pair.outside]

    def furthest(self, count: int) -> list[Correlation]:
        """At most `count` pairs, those where belief and data differ most first."""
        return sorted(self.correlations, key=lambda pair: -pair.gap)[:count]


def measure_shape(belief: Floats, reference: Reference, bands: BeliefBands | None) -> Shape:
    """A belief's samples `(m, d)`, natural units, and its bands beside the data and λ."""
    space, data = reference.space, reference.data
    drawn, sampling = (
        correlation_matrix(associable(space, points)) for points in (belief, reference.sampling)
    )
    rows = None if data is None else associable(space, data)
    known = {} if bands is None else {b.sides: b.correlation for b in bands.correlations}
    correlations = []
    for i, j, pair in pairs_of(space):
        band = known.get(pair.sides)
        found = None if rows is None else correlation_interval(rows[:, i], rows[:, j])
        correlations.append(
            Correlation(
                **pair.model_dump(),
                belief=float(drawn[i, j]),
                band=band,
                data=found,
                sampling=float(sampling[i, j]),
                outside=outside_band(band, found),
                difference=None
                if rows is None or band is None
                else correlation_difference(
                    float(drawn[i, j]), band, correlation_interval(rows[:, i], rows[:, j], 0.9)
                ),
            )
        )
    tails = None
    if data is not None:
        tails = [
            _tails(belief[:, j], data[:, j], space.names[j], _of_number(bands, j))
            for j in space.numeric
        ]
    return Shape(correlations=correlations, tails=tails)


def correlation_difference(belief: float, band: Band, data: Interval) -> Interval:
    """A belief's correlation less the data's, from the intervals of both, of one level.

    Each end is as far from the difference as the two ends that make it are from theirs, by
    Pythagoras (Zou 2007, "Toward using confidence intervals to compare correlations"): the
    belief and the rows do not depend on each other, and neither interval need be symmetric.

    Example:
        >>> found = correlation_difference(0.5, (0.2, 0.7), Interval(value=0.1, low=-0.3, high=0.5))
        >>> [round(end, 3) for end in (found.low, found.value, found.high)]
        [-0.1, 0.4, 0.847]
    """
    value = belief - data.value
    # A belief that leans on networks may lie outside the band, which knows none.
    low = math.hypot(max(belief - band[0], 0.0), data.high - data.value)
    high = math.hypot(max(band[1] - belief, 0.0), data.value - data.low)
    return Interval(value=value, low=value - low, high=value + high)


def correlation_interval(x: Floats, y: Floats, level: float = 0.95) -> Interval:
    """Pearson's correlation of two columns `(n,)` with an interval, of whatever law.

    Fisher's z, its standard error from the rows' influences instead of normal theory's 1/√n,
    which is too small where tails are heavy (Hawkins 1989, "Using U statistics to derive the
    asymptotic distribution of Fisher's Z statistic"). Of normal columns the two agree.

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


def outside_band(band: Band | None, found: Interval | None) -> bool | None:
    """Whether what was found in the data lies outside a belief's band; None without either."""
    return None if band is None or found is None else not band[0] <= found.value <= band[1]


def _of_number(bands: BeliefBands | None, column: int) -> FeatureBands | None:
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


_DEEPEST = 4
_ROWS = 50
_LEAST = 0.25


class Side(StrictModel):
    """A box's range of one feature, natural units: over `low`, up to `high`; None where open.

    Of a categorical feature, the words of the `categories` in it; None of a number.
    """

    name: str
    low: float | None
    high: float | None
    categories: list[str] | None = None


class Box(StrictModel):
    """A box, and how much of data and belief it holds.

    Attributes:
        sides: the features that bound it; the others are free.
        data: the share of the rows, with Wilson's 95 % interval over rows.
        belief: the share of the belief.
        band: its 90 % credible band, where the belief has draws.
        outside: whether the data's share lies outside the band; None without one.
    """

    sides: list[Side]
    data: Interval
    belief: float
    band: Band | None
    outside: bool | None

    @property
    def gap(self) -> float:
        """How far belief and data are apart."""
        return abs(self.belief - self.data.value)


def measure_boxes(
    belief: Floats, reference: Reference, draws: Floats | None = None
) -> list[Box] | None:
    """At most 16 boxes of 50 rows or more, those first where belief and data differ most.

    Args:
        belief: its samples, `(m, d)`, natural units.
        reference: the space and the data.
        draws: points of what else the answers allow, `(S, k, d)`.

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
    depth = min(_DEEPEST, int(np.log2(len(data) / _ROWS)))
    found = []
    for cell in _halved(data, reference.standard, _Cell.whole(space), depth):
        held = wilson(float(cell.holds(data).mean()), len(data))
        ends = None if draws is None else _band(cell.holds(draws).mean(axis=1))
        found.append(
            Box(
                sides=cell.sides(space),
                data=held,
                belief=float(cell.holds(belief).mean()),
                band=ends,
                outside=outside_band(ends, held),
            )
        )
    return sorted(found, key=lambda box: -box.gap)


@dataclass(frozen=True)
class _Cell:
    """A box: over `low`, up to `high`, `(d,)` each; and which codes of categories are in it."""

    low: Floats
    high: Floats
    codes: Mapping[int, frozenset[int]]

    @classmethod
    def whole(cls, space: FeatureSpace) -> _Cell:
        """All there is."""
        return cls(np.full(space.dimension, -np.inf), np.full(space.dimension, np.inf), {})

    def up_to(self, feature: int, at: float) -> _Cell:
        """The part with a number at most `at`."""
        high = self.high.copy()
        high[feature] = min(high[feature], at)
        return replace(self, high=high)

    def over(self, feature: int, at: float) -> _Cell:
        """The other part."""
        low = self.low.copy()
        low[feature] = max(low[feature], at)
        return replace(self, low=low)

    def of(self, feature: int, codes: frozenset[int]) -> _Cell:
        """The part with one of some categories."""
        return replace(self, codes={**self.codes, feature: codes})

    def holds(self, points: Floats) -> NDArray[np.bool_]:
        """Whether points (..., d) lie in it."""
        inside = ((points > self.low) & (points <= self.high)).all(axis=-1)
        for feature, codes in self.codes.items():
            inside &= np.isin(points[..., feature], list(codes))
        return np.asarray(inside)

    def sides(self, space: FeatureSpace) -> list[Side]:
        """The features that bound it."""
        return [
            Side(
                name=feature.name,
                low=_end(self.low[j]),
                high=_end(self.high[j]),
                categories=[feature.categories[code] for code in sorted(self.codes[j])]
                if j in self.codes
                else None,
            )
            for j, feature in enumerate(space.features)
            if np.isfinite(self.low[j]) or np.isfinite(self.high[j]) or j in self.codes
        ]


def _halved(data: Floats, standard: Standard, cell: _Cell, depth: int) -> Iterator[_Cell]:
    """The boxes that the rows `(n, d)` of a box fall into."""
    # Categories may make halves of unequal size, so that the smaller is no more to be halved.
    enough = len(data) >= 2 * _ROWS or not cell.codes
    parts = _cut(data, standard, cell) if depth and enough else None
    if parts is None:
        yield cell
        return
    for part in parts:
        yield from _halved(data[part.holds(data)], standard, part, depth - 1)


def _cut(data: Floats, standard: Standard, cell: _Cell) -> tuple[_Cell, _Cell] | None:
    """Halves, as nearly as can be, at the feature that scatters most."""
    spreads = [np.sqrt(part.var(axis=0).sum()) for part in standard.parts(data)]
    for feature in np.argsort(-np.array(spreads), kind="stable").tolist():
        found = (
            _by_category(data[:, feature], standard.space, cell, feature)
            if standard.space.categorical[feature]
            else _by_number(data[:, feature], cell, feature)
        )
        if found is not None:
            return found
    return None


def _by_number(values: Floats, cell: _Cell, feature: int) -> tuple[_Cell, _Cell] | None:
    values = np.sort(values)
    steps = np.flatnonzero(np.diff(values))
    if not len(steps):
        return None
    step = steps[np.abs(steps + 1 - len(values) / 2).argmin()]
    at = float(values[step : step + 2].mean())
    return cell.up_to(feature, at), cell.over(feature, at)


def _by_category(
    values: Floats, space: FeatureSpace, cell: _Cell, feature: int
) -> tuple[_Cell, _Cell] | None:
    shares = shares_of(values, space.features[feature])
    order = np.argsort(-shares, kind="stable")
    held = np.cumsum(shares[order])
    count = 1 + int(np.abs(held - 0.5).argmin())
    if min(held[count - 1], 1.0 - held[count - 1]) < max(_LEAST, _ROWS / len(values)):
        return None
    frequent = frozenset(order[:count].tolist())
    others = cell.codes.get(feature, frozenset(range(len(shares)))) - frequent
    return cell.of(feature, frequent), cell.of(feature, others)


def _band(shares: Floats) -> Band:
    low, high = band(shares)
    return float(low), float(high)


def _end(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
