"""Where belief and data differ most: boxes with equal shares of the data, and the belief's in each.

All rows are halved at the median of the feature that scatters most among them, each half again in
the same way: a k-d tree (Bentley 1975, "Multidimensional binary search trees used for associative
searching"). Which boxes there are follows from the data alone, so beliefs can be compared by them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from llm_elicit.audit.consistency import Interval, wilson
from llm_elicit.audit.evidence import Reference
from llm_elicit.audit.shape import outside_band
from llm_elicit.audit.summary import Band
from llm_elicit.density import band
from llm_elicit.features import Floats, Strict

_DEEPEST = 4
_ROWS = 50


class Side(Strict):
    """A box's range of one feature, natural units: over `low`, up to `high`; None where open."""

    name: str
    low: float | None
    high: float | None


class Box(Strict):
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
        >>> from llm_elicit.features import FeatureSpace
        >>> space = FeatureSpace.load("penguins")
        >>> data = space.table_points()
        >>> reference = Reference(space, space.sample(100, np.random.default_rng(0)), data)
        >>> boxes = measure_boxes(data, reference)
        >>> len(boxes), max(box.gap for box in boxes)
        (4, 0.0)
    """
    data, names = reference.data, reference.space.names
    if data is None or len(data) < 2 * _ROWS:
        return None
    depth = min(_DEEPEST, int(np.log2(len(data) / _ROWS)))
    found = []
    for low, high in _halved(data, reference.standard(data), depth):
        held = wilson(float(_inside(data, low, high).mean()), len(data))
        ends = None if draws is None else _band(_inside(draws, low, high).mean(axis=1))
        found.append(
            Box(
                sides=[
                    Side(name=name, low=_end(low[j]), high=_end(high[j]))
                    for j, name in enumerate(names)
                    if np.isfinite(low[j]) or np.isfinite(high[j])
                ],
                data=held,
                belief=float(_inside(belief, low, high).mean()),
                band=ends,
                outside=outside_band(ends, held),
            )
        )
    return sorted(found, key=lambda box: -box.gap)


def _halved(data: Floats, standard: Floats, depth: int) -> Iterator[tuple[Floats, Floats]]:
    """The lower and upper ends `(d,)` of the boxes of rows `(n, d)`."""
    d = data.shape[1]
    cut = _cut(data, standard) if depth else None
    if cut is None:
        yield np.full(d, -np.inf), np.full(d, np.inf)
        return
    feature, at = cut
    under = data[:, feature] <= at
    for low, high in _halved(data[under], standard[under], depth - 1):
        high[feature] = min(high[feature], at)
        yield low, high
    for low, high in _halved(data[~under], standard[~under], depth - 1):
        low[feature] = max(low[feature], at)
        yield low, high


def _cut(data: Floats, standard: Floats) -> tuple[int, float] | None:
    """The feature that scatters most, and where the rows are halved as nearly as they can be."""
    for feature in np.argsort(-standard.std(axis=0), kind="stable"):
        values = np.sort(data[:, feature])
        steps = np.flatnonzero(np.diff(values))
        if len(steps):
            step = steps[np.abs(steps + 1 - len(values) / 2).argmin()]
            return int(feature), float(values[step : step + 2].mean())
    return None


def _inside(points: Floats, low: Floats, high: Floats) -> NDArray[np.bool_]:
    """Whether points (..., d) lie in a box."""
    return np.asarray(((points > low) & (points <= high)).all(axis=-1))


def _band(shares: Floats) -> Band:
    low, high = band(shares)
    return float(low), float(high)


def _end(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
