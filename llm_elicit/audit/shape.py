"""Is a belief shaped like the data: do features hang together alike, are the tails as heavy?

Correlations are Pearson's, each feature on its scale; of a categorical feature, of having each of
its categories, 1 or 0. Tails are of numbers alone. The belief's stand beside their credible band,
which is of its posterior, the data's beside an interval for the sampling error of the rows. One
pair in ten lies outside its band by chance, even where the judge believes what is so.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
from scipy.stats import norm

from llm_elicit.audit.consistency import Interval, wilson
from llm_elicit.audit.evidence import Reference
from llm_elicit.audit.summary import Band, BeliefBands, CategoryBands, FeatureBands, Pair
from llm_elicit.config.base_model import StrictModel
from llm_elicit.spaces.features import FeatureSpace, Floats

_TINY = 1e-12
_Column = tuple[int, str | None]


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


def pairs_of(space: FeatureSpace) -> list[tuple[int, int, Pair]]:
    """Every two of the columns of `associable` that are of different features, and their names."""
    return [
        (i, j, _pair(space, one, other))
        for (i, one), (j, other) in combinations(enumerate(_columns(space)), 2)
        if one[0] != other[0]
    ]


def associable(space: FeatureSpace, points: Floats) -> Floats:
    """Columns `(n, c)` of points `(n, d)`: numbers on their scale, 1 or 0 for each category.

    Two categories have one column, of the second: the first is had where it is not.
    """
    scaled = space.to_scale(points)
    return np.column_stack([
        scaled[:, place]
        if category is None
        else (points[:, place] == space.features[place].code(category)).astype(np.float64)
        for place, category in _columns(space)
    ])  # fmt: skip


def _pair(space: FeatureSpace, one: _Column, other: _Column) -> Pair:
    (first, first_category), (second, second_category) = one, other
    return Pair(
        first=space.names[first],
        first_category=first_category,
        second=space.names[second],
        second_category=second_category,
    )


def _columns(space: FeatureSpace) -> list[_Column]:
    """The place of the feature, and the category if it has them, of each column."""
    return [
        (place, category)
        for place, feature in enumerate(space.features)
        for category in feature.categories[len(feature.categories) == 2 :] or (None,)
    ]


def correlation_matrix(points: Floats, weights: Floats | None = None) -> Floats:
    """Pearson's correlations `(d, d)` of points `(m, d)` with weights `(m,)` that sum to one.

    A feature that never varies hangs together with none: its correlations are 0.

    Example:
        >>> points = np.array([[0.0, 0.0, 7.0], [1.0, 2.0, 7.0], [5.0, -4.0, 7.0]])
        >>> correlation_matrix(points, np.array([0.5, 0.5, 0.0]))[0].tolist()
        [1.0, 1.0, 0.0]
    """
    weights = np.full(len(points), 1.0 / len(points)) if weights is None else weights
    z = _standardized(points, weights)
    return np.clip((weights[:, None] * z).T @ z, -1.0, 1.0)


def _standardized(points: Floats, weights: Floats) -> Floats:
    """Columns of mean 0 and variance 1, or of zeros where they never vary."""
    mean = weights @ points
    centred = points - mean
    sd = np.sqrt(weights @ centred**2)
    # Rounding leaves a constant column a sd of some ulps, not 0.
    return np.asarray(centred / np.where(sd > _TINY * np.maximum(1.0, np.abs(mean)), sd, np.inf))


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
    u, v = _standardized(np.column_stack([x, y]), np.full(len(x), 1.0 / len(x))).T
    r = float(u @ v) / len(x)
    if abs(r) > 1.0 - _TINY:
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
