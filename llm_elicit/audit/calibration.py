"""Calibration of the belief against the data, by level and by box, and of its predictions.

*Data coverage.* The level of a row of the data is the belief's mass in the highest-density region
that ends at the row. If the data were drawn from the belief, levels would be uniform on [0, 1],
whatever the dimension: the share of rows within each region against its mass is the diagonal. Below
it the belief is too narrow or in the wrong place, above it too wide.

*Predictive check.* Choices that were held out of the fit, against the predicted probabilities and
against simpler models.

*Boxes* of the feature space have nearly equal shares of the data: all rows are split at the median
of the feature with the largest variance, each half again in the same way, as in a k-d tree (Bentley
1975, "Multidimensional binary search trees used for associative searching"). A categorical feature
is split into its most frequent categories, which together hold as nearly half of the rows as
possible, and the rest; it is skipped if one side had less than a quarter of the rows, or fewer
than 50. The circle of a
periodic feature is opened opposite the circular mean of the data, and its boxes are arcs. The boxes
depend on the data only, so different beliefs can be compared on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from llm_elicit import density
from llm_elicit._util.settings import StrictModel
from llm_elicit.audit import inference
from llm_elicit.audit.inference import Band, Interval, normal_interval, wilson_interval
from llm_elicit.audit.reference import Reference, Standardizer, category_shares
from llm_elicit.spaces.circles import Circle
from llm_elicit.spaces.features import FeatureSpace, Floats

MASSES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
"""Masses of the highest-density regions that a report shows."""
_CURVE_POINTS = 51
"""Masses at which the coverage curve is evaluated."""
_MAX_ROWS = 4000
"""Largest number of rows, and of draws, whose densities are compared."""


class Region(StrictModel):
    """The highest-density region of a mass, and the share of the data in it (Wilson's interval)."""

    mass: float
    data_share: Interval


class DataCoverage(StrictModel):
    """The data against the belief's highest-density regions.

    Attributes:
        rows: number of rows of the data used.
        regions: some of the regions.
        curve: the share of the data in regions of mass 0, 0.02, ..., 1.
        error: mean |share − mass| over the curve; 0 for a perfect belief.
        p_value: p-value of uniform levels, by the two-sample Kolmogorov–Smirnov test, because the
            belief is known by its draws only.
    """

    rows: int
    regions: list[Region]
    curve: list[float]
    error: float
    p_value: float


@dataclass(frozen=True)
class DataLevels:
    """Levels `(n,)` of rows of the data, from this number of draws of the belief."""

    values: Floats
    draws: int


def evaluate_data_levels(
    belief: density.BeliefDensity, space: FeatureSpace, points: Floats
) -> DataLevels | None:
    """Return levels of at most 4000 of the table's rows under a belief with samples `(m, d)`.

    Densities are per unit of each feature's scale. None for a space without a table.
    """
    if space.table is None:
        return None
    rng = np.random.default_rng(0xC0FE)
    slope = belief.sampling.log_scale_derivative

    def log_density(points: Floats) -> Floats:
        rows = rng.permutation(points)[:_MAX_ROWS]
        return belief.log_prob(rows) - slope(rows)

    belief_log_density = log_density(points)
    values = rank_by_density(log_density(space.table_points()), belief_log_density, rng)
    return DataLevels(values, len(belief_log_density))


def rank_by_density(data: Floats, belief: Floats, rng: np.random.Generator) -> Floats:
    """Return each row's level `(n,)`: the share of belief draws with a higher density.

    Among draws of the same density, to five decimals, the row's rank is drawn at random: in a flat
    belief the highest-density region is not unique.

    Args:
        data, belief: log densities of the belief at rows of the data `(n,)` and at its own draws.
        rng: breaks ties.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> rank_by_density(np.array([0.0, -9.0]), np.array([-1.0, -2.0, 1.0, -3.0]), rng).tolist()
        [0.25, 1.0]
    """
    data, ordered, count = np.round(data, 5), np.sort(np.round(belief, 5)), len(belief)
    not_lower, higher = (count - np.searchsorted(ordered, data, side) for side in ("left", "right"))
    return np.asarray((higher + rng.uniform(size=len(data)) * (not_lower - higher)) / count)


def measure_data_coverage(levels: DataLevels) -> DataCoverage:
    """Measure coverage from the levels of the data's rows.

    Examples:
        >>> uniform = measure_data_coverage(DataLevels((np.arange(400) + 0.5) / 400, 4000))
        >>> narrow = measure_data_coverage(DataLevels(np.full(400, 0.97), 4000))
        >>> uniform.error < 0.01, narrow.error > 0.4
        (True, True)
    """
    masses, values, rows = np.linspace(0.0, 1.0, _CURVE_POINTS), levels.values, len(levels.values)
    shares = np.searchsorted(np.sort(values), masses, side="right") / rows
    # Rows and draws both vary, as much as one sample of n m / (n + m) does alone.
    size = max(1, round(rows * levels.draws / (rows + levels.draws)))
    return DataCoverage(
        rows=rows,
        regions=[
            Region(mass=mass, data_share=wilson_interval(float((values <= mass).mean()), rows))
            for mass in MASSES
        ],
        curve=shares.tolist(),
        error=float(np.abs(shares - masses).mean()),
        p_value=float(stats.kstwo.sf(stats.kstest(values, "uniform").statistic, size)),
    )


class NullModel(StrictModel):
    """A simpler model: its log-likelihood, and the belief's gain over it.

    Attributes:
        name: "random choices"; "sampling density" (λ as the belief), if that differs; "position",
            if the fit knew positions; "quadratic".
        log_likelihood: nats per comparison.
        gain: the belief's minus this one's, with its 95 % interval over pairs; None if the two
            were not compared by pairs, or are the same.
    """

    name: str
    log_likelihood: float
    gain: Interval | None = None


class CalibrationBin(StrictModel):
    """Held-out choices whose likelier side was predicted with about the same probability.

    Attributes:
        share: share of all held-out choices that are in this bin.
        predicted: the mean predicted probability.
        observed: how often that side was chosen.
    """

    share: float
    predicted: float
    observed: float


class PredictiveCheck(StrictModel):
    """How well choices held out of the fit are predicted.

    Attributes:
        log_likelihood: log-likelihood of the belief, nats per comparison.
        null_models: simpler models.
        calibration: predicted and observed frequencies, by bins of the predicted probability.
        calibration_error: mean |observed − predicted|.
    """

    log_likelihood: float
    null_models: list[NullModel]
    calibration: list[CalibrationBin]
    calibration_error: float


def read_predictive_check(diagnostics: Mapping[str, Any]) -> PredictiveCheck | None:
    """Return the predictive check in a fit's diagnostics; None if they have none (a flow)."""
    utility, nulls = diagnostics.get("utility"), diagnostics.get("null_models")
    if not utility or not nulls or "calibration" not in utility:
        return None
    nulls, constant = dict(nulls), "position"
    if "judging" not in utility:
        constant = "random choices"
        nulls.pop("position", None)
    if abs(nulls.get("sampling density", np.inf) - nulls["random choices"]) <= 1e-9:
        del nulls["sampling density"]
    gains = {constant: utility["gains"]["constant"], "quadratic": utility["gains"].get("quadratic")}
    intervals = {
        name: normal_interval(gain["mean"], gain["se"]) for name, gain in gains.items() if gain
    }
    return PredictiveCheck(
        log_likelihood=diagnostics["held_out_log_likelihood"],
        null_models=[
            NullModel(name=name, log_likelihood=value, gain=intervals.get(name))
            for name, value in nulls.items()
        ],
        calibration=[CalibrationBin(**row) for row in utility["calibration"]["bins"]],
        calibration_error=utility["calibration"]["error"],
    )


_MAX_DEPTH = 4
"""Largest number of times that a box is halved."""
_MIN_ROWS = 50
"""Smallest number of rows in a box."""
_MIN_SHARE = 0.25
"""Smallest share of a box's rows on one side of a split by categories."""


class BoxBound(StrictModel):
    """A box's range of one feature, natural units: above `low`, up to `high`; None if unbounded.

    Bounds of whole features are whole. An arc of a periodic feature has both, and goes around the
    end of the range where `low` is above `high`.
    For a categorical feature, its `categories` in the box; None for a number.
    """

    name: str
    low: float | None
    high: float | None
    categories: list[str] | None = None


class Box(StrictModel):
    """A box and the shares of data and belief in it.

    Attributes:
        bounds: ranges of the features that bound the box; other features are unrestricted.
        data: share of the data's rows in the box, with Wilson's 95 % interval over rows.
        belief: mass of the belief in the box.
        band: 90 % credible band of this mass, if the belief has draws.
        outside_band: whether the data's share lies outside the band; None without one.
    """

    bounds: list[BoxBound]
    data: Interval
    belief: float
    band: Band | None
    outside_band: bool | None

    @property
    def gap(self) -> float:
        """The absolute difference of belief and data."""
        return abs(self.belief - self.data.value)


def measure_boxes(
    belief: Floats, reference: Reference, draws: Floats | None = None
) -> list[Box] | None:
    """Return at most 16 boxes of 50 rows or more, those where belief and data differ most first.

    Args:
        belief: samples of the belief, `(m, d)`, natural units.
        reference: the space and the data.
        draws: samples of the posterior's draws, `(S, k, d)`.

    Returns:
        The boxes; None without data, or with fewer than 100 rows.

    Examples:
        >>> from llm_elicit.spaces.features import FeatureSpace
        >>> space = FeatureSpace.load("penguins")
        >>> data = space.table_points()
        >>> reference = Reference(space, space.sample(100, np.random.default_rng(0)), data)
        >>> boxes = measure_boxes(data, reference)
        >>> len(boxes), max(box.gap for box in boxes)
        (4, 0.0)
    """
    data, space = reference.data, reference.space
    if data is None or len(data) < 2 * _MIN_ROWS:
        return None
    depth = min(_MAX_DEPTH, int(np.log2(len(data) / _MIN_ROWS)))
    starts = {}  # of the circles of periodic features, opposite the mean of the data
    for j, circle in reference.standardizer.circles.items():
        start = float(reference.standardizer.mean[j]) + circle.period / 2.0
        start = round(start) if space.features[j].whole else start
        starts[j] = float(circle.opened(np.asarray(start), circle.low))
    data, belief = (_open_circles(points, space, starts) for points in (data, belief))
    draws = None if draws is None else _open_circles(draws, space, starts)
    boxes = []
    for cell in _split_cell(data, reference.standardizer, _Cell.unrestricted(space), depth):
        share = wilson_interval(float(cell.contains(data).mean()), len(data))
        band = None if draws is None else inference.credible_band(cell.contains(draws).mean(axis=1))
        box = Box(
            bounds=cell.bounds(space, starts),
            data=share,
            belief=float(cell.contains(belief).mean()),
            band=band,
            outside_band=inference.is_outside_band(band, share),
        )
        boxes.append(box)
    return sorted(boxes, key=lambda box: -box.gap)


def _open_circles(points: Floats, space: FeatureSpace, starts: Mapping[int, float]) -> Floats:
    """Return points (..., d) with the values of periodic features from their starts on."""
    points = points.copy() if starts else points
    for j, start in starts.items():
        points[..., j] = Circle.of(space.features[j]).opened(points[..., j], start)
    return points


@dataclass(frozen=True)
class _Cell:
    """A box: above `low`, up to `high`, `(d,)` each, and the codes of categories in it."""

    low: Floats
    high: Floats
    codes: Mapping[int, frozenset[int]]

    @classmethod
    def unrestricted(cls, space: FeatureSpace) -> _Cell:
        return cls(np.full(space.dimension, -np.inf), np.full(space.dimension, np.inf), {})

    def contains(self, points: Floats) -> NDArray[np.bool_]:
        """Return whether points (..., d) lie in it."""
        inside = ((points > self.low) & (points <= self.high)).all(axis=-1)
        for feature, codes in self.codes.items():
            inside &= np.isin(points[..., feature], list(codes))
        return np.asarray(inside)

    def bounds(self, space: FeatureSpace, starts: Mapping[int, float]) -> list[BoxBound]:
        bounds = []
        for j, feature in enumerate(space.features):
            ends = np.array([self.low[j], self.high[j]])
            if j in self.codes:
                names = [feature.categories[code] for code in sorted(self.codes[j])]
                bounds.append(BoxBound(name=feature.name, low=None, high=None, categories=names))
            elif np.isfinite(ends).any():
                if j in starts:  # an arc has both ends
                    circle, first = Circle.of(feature), starts[j] - (1.0 if feature.whole else 0.0)
                    ends = circle.opened(np.clip(ends, first, first + circle.period), circle.low)
                low, high = map(inference.finite_or_none, ends)
                bounds.append(BoxBound(name=feature.name, low=low, high=high))
        return bounds


def _split_cell(
    data: Floats, standardizer: Standardizer, cell: _Cell, depth: int
) -> Iterator[_Cell]:
    """Yield the boxes that a cell with rows `(n, d)` is split into."""
    # Categories may give unequal halves, so that the smaller one has too few rows to split.
    has_enough_rows = len(data) >= 2 * _MIN_ROWS or not cell.codes
    halves = _halve_cell(data, standardizer, cell) if depth and has_enough_rows else None
    if halves is None:
        yield cell
        return
    for half in halves:
        yield from _split_cell(data[half.contains(data)], standardizer, half, depth - 1)


def _halve_cell(
    data: Floats, standardizer: Standardizer, cell: _Cell
) -> tuple[_Cell, _Cell] | None:
    """Return two halves, as equal as possible, split at the feature with the largest variance."""
    space = standardizer.space
    sds = [np.sqrt(columns.var(axis=0).sum()) for columns in standardizer.columns_by_feature(data)]
    for feature in np.argsort(-np.array(sds), kind="stable").tolist():
        values = np.sort(data[:, feature])
        if space.categorical[feature]:
            shares = category_shares(values, space.features[feature])
            order = np.argsort(-shares, kind="stable")
            cumulative = np.cumsum(shares[order])
            count = 1 + int(np.abs(cumulative - 0.5).argmin())
            smaller = min(cumulative[count - 1], 1.0 - cumulative[count - 1])
            if smaller >= max(_MIN_SHARE, _MIN_ROWS / len(values)):
                frequent = frozenset(order[:count].tolist())
                rare = cell.codes.get(feature, frozenset(range(len(shares)))) - frequent
                codes = ({**cell.codes, feature: side} for side in (frequent, rare))
                first, second = (replace(cell, codes=side) for side in codes)
                return first, second
        elif len(steps := np.flatnonzero(np.diff(values))):
            step = steps[np.abs(steps + 1 - len(values) / 2).argmin()]
            low, high = cell.low.copy(), cell.high.copy()
            middle = values[step] if space.integer[feature] else values[step : step + 2].mean()
            low[feature] = high[feature] = middle
            return replace(cell, high=high), replace(cell, low=low)
    return None
