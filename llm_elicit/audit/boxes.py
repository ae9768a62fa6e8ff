"""Where belief and data differ most: boxes with equal shares of the data, and the belief's in each.

All rows are halved at the median of the feature that scatters most among them, each half again in
the same way: a k-d tree (Bentley 1975, "Multidimensional binary search trees used for associative
searching"). At a categorical feature the most frequent categories make one half, as many as come
nearest to it, the others the other; it is passed over where one of them had less than a quarter of
the rows, or less than 50. Which boxes there are follows from the data alone, so beliefs can be
compared by them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from llm_elicit.audit.consistency import Interval, wilson
from llm_elicit.audit.evidence import Reference
from llm_elicit.audit.shape import outside_band
from llm_elicit.audit.standard import Standard, shares_of
from llm_elicit.audit.summary import Band
from llm_elicit.config.base_model import StrictModel
from llm_elicit.density import band
from llm_elicit.spaces.features import FeatureSpace, Floats

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
