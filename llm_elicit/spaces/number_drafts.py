"""Draft a feature from a column of numbers: its kind, its range and its scale.

Columns that are shares of a whole, such as the votes of each party, sum to 1 or to 100.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats
from scipy.sparse.csgraph import connected_components

from llm_elicit.spaces.feature import Floats

LOW, HIGH = 0.01, 0.99
"""The quantiles that a range spans."""

_SKEWED = 1.0
"""Skewness above which a logarithmic scale is tried."""

_MAX_VALUE, _MIN_WIDTH, _MIN_RELATIVE_WIDTH = 1e25, 1e-25, 1e-11
_SMALL_TABLE = 300
"""Rows from which 1 % quantiles set the range; smaller tables have too few rows in their tails."""

_MAX_TAIL = 0.15
"""In small tables, a range ends at an extreme within this share of the range from a quantile."""

_MIN_LOG_RATIO = 4.0
"""Smallest ratio of the ends of a range on a logarithmic scale; narrower ones hardly differ."""

MAX_LEVELS = 12
"""Largest range of whole numbers that is used completely, extremes included."""

_MAX_DIGITS = 4
_PERIOD_PARTS = 6
"""A periodic column has no gap above one sixth of its period."""

_PERIODS: dict[str, tuple[tuple[int, int], ...]] = {
    "hour": ((0, 23), (1, 24)), "hr": ((0, 23), (1, 24)), "month": ((1, 12), (0, 11)),
    "mon": ((1, 12),), "minute": ((0, 59),), "weekday": ((0, 6), (1, 7)),
    "dow": ((0, 6), (1, 7)), "week": ((1, 52), (1, 53)), "yday": ((1, 366), (0, 365)),
}  # fmt: skip
"""The values of periodic columns, by the last word of their heading."""

_YEARS = {"year", "yr", "years", "vintage"}
_ANGLES = {"direction", "dir", "bearing", "azimuth", "heading", "aspect", "hue"}
_IDENTIFIERS = {"id", "index", "idx", "rownames", "rowid", "nr", "uid", "zip", "zipcode", "phone"}


class UnusableColumnError(Exception):
    """A column that cannot be a feature; the message says why."""


def draft_numbers(values: Floats, heading_words: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Return the settings of a feature of numbers, and its kind in words.

    Args:
        values: the column's numbers.
        heading_words: the words of its heading.

    Raises:
        UnusableColumnError: the column cannot be a feature; the message says why.

    Examples:
        >>> draft_numbers(np.arange(100.0) % 12 + 1, ["month"])[0]
        {'kind': 'integer', 'low': 1, 'high': 12, 'periodic': True}
    """
    _check_usable(values, heading_words)
    is_whole = bool(np.all(values == np.round(values))) and float(np.abs(values).max()) < 2.0**53
    periodic = _periodic_settings(values, is_whole, heading_words)
    if periodic is not None:
        return periodic, "periodic numbers"
    if is_whole and _YEARS & set(heading_words) and values.min() >= 1000 and values.max() <= 2200:
        low, high = _ends(values, True, log=False)
        locale = {"thousands": ""}
        return {"kind": "integer", "low": low, "high": high, "digits": 4, "locale": locale}, "years"
    # A logarithmic scale, if it shortens a long right tail over a wide range.
    ends, log = np.quantile(values, [LOW, HIGH]), False
    if 0 < _MIN_LOG_RATIO * ends[0] < ends[1] and not (is_whole and np.ptp(values) <= MAX_LEVELS):
        skewness, log_skewness = (
            float(stats.skew(x)) for x in (values, np.log(values[values > 0]))
        )
        log = skewness > _SKEWED and abs(log_skewness) < abs(skewness)
    low, high = _ends(values, is_whole, log=log)
    settings: dict[str, Any] = {
        "kind": "integer" if is_whole else "continuous",
        "scale": "log" if log else "linear",
        "low": low,
        "high": high,
    }
    digits = len(str(int(high - low)))
    if is_whole and not log and 3 < digits <= _MAX_DIGITS:
        settings["digits"] = digits
    return settings, "whole numbers" if is_whole else "numbers"


def _check_usable(values: Floats, words: Sequence[str]) -> None:
    """Check that a column of numbers can be a feature.

    Raises:
        UnusableColumnError: the column cannot be a feature; the message says why.
    """
    if not np.isfinite(values).all():
        raise UnusableColumnError("it holds an infinite value; correct it to keep the column")
    low, high = float(values.min()), float(values.max())
    if low == high:
        raise UnusableColumnError(f"constant: every number is {low:g}")
    largest = max(abs(low), abs(high))
    if largest > _MAX_VALUE:
        raise UnusableColumnError(f"it holds a value beyond {_MAX_VALUE:g}; use a larger unit")
    if high - low < _MIN_WIDTH:
        raise UnusableColumnError(
            f"its values differ by less than {_MIN_WIDTH:g}; use a smaller unit"
        )
    if high - low < _MIN_RELATIVE_WIDTH * largest:
        raise UnusableColumnError(
            f"its values from {low:.17g} to {high:.17g} are too close together for "
            "floating-point numbers; subtract a constant"
        )
    is_row_number = len(values) > 2 and bool(np.all(np.diff(values) == 1))
    if is_row_number and not _YEARS & set(words):
        raise UnusableColumnError(
            f"it is a row number ({low:g}, {low + 1:g}, ...), which says nothing about a row"
        )
    is_whole = bool(np.all(values == np.round(values)))
    if is_whole and len(values) > 2 and words[-1:] and words[-1] in _IDENTIFIERS:
        raise UnusableColumnError(
            "its name suggests an identifier; rename the column if it is a quantity"
        )


def _periodic_settings(
    values: Floats, is_whole: bool, words: Sequence[str]
) -> dict[str, Any] | None:
    """Return the settings of a periodic feature; None if the column is not periodic."""
    last = words[-1] if words else ""
    if _ANGLES & set(words) and values.min() >= 0 and 180 < values.max() <= 360:
        return {"kind": "continuous", "low": 0, "high": 360, "periodic": True}
    for low, high in _PERIODS.get(last, ()) if is_whole else ():
        if values.min() >= low and values.max() <= high:
            # Months of the summer alone are not periodic; every third hour is.
            steps = np.diff(np.unique(values))
            step_over_end = values.min() + (high - low + 1) - values.max()
            if step_over_end > max(float(steps.max()), (high - low + 1) / _PERIOD_PARTS):
                return None
            return {"kind": "integer", "low": low, "high": high, "periodic": True}
    return None


def _ends(values: Floats, is_whole: bool, *, log: bool) -> tuple[float, float]:
    """Return the 1 % and 99 % quantiles, rounded outwards to three digits of their distance.

    Extremes replace the quantiles in three cases: in small tables if they are near, so that these
    tables keep their rows; if the quantiles coincide; and for whole numbers of a small range.
    """
    low, high = _span(values, log=log)
    if low == high or (is_whole and values.max() - values.min() <= MAX_LEVELS):
        low, high = float(values.min()), float(values.max())
    grid = 10.0 ** (np.floor(np.log10(high - low)) - 2)
    if is_whole:
        grid = max(1.0, grid)
    edges = np.floor(low / grid) * grid, np.ceil(high / grid) * grid
    bottom, top = (float(f"{edge:.12g}") for edge in edges)
    # A positive range stays positive: rounding 0.004 down to 0 would rule out the log scale.
    if low > 0 >= edges[0]:
        step = 10.0 ** (np.floor(np.log10(low)) - 2)
        bottom = float(f"{np.floor(low / step) * step:.12g}")
    return (int(np.floor(bottom)) or (1 if low > 0 else 0), int(top)) if is_whole else (bottom, top)


def _span(values: Floats, *, log: bool) -> tuple[float, float]:
    """Return the 1 % and 99 % quantiles; in small tables, extremes that are near replace them."""
    low, high = (float(end) for end in np.quantile(values, [LOW, HIGH]))
    if len(values) >= _SMALL_TABLE:
        return low, high
    smallest, largest = float(values.min()), float(values.max())
    ends = np.array([smallest, low, high, largest])
    scaled = np.log(np.maximum(ends, _MIN_WIDTH)) if log else ends
    tolerance = _MAX_TAIL * (scaled[2] - scaled[1])
    keeps_least = scaled[1] - scaled[0] <= tolerance and not (log and smallest <= 0)
    return smallest if keeps_least else low, largest if scaled[3] - scaled[2] <= tolerance else high


def align_scales(columns: Sequence[tuple[Sequence[str], dict[str, Any]]]) -> set[int]:
    """Set the scale of similar columns to that of their majority; return the changed columns.

    Columns are similar if they share half of the words of their headings, or a single letter as
    heading, and their ranges are within a factor of 30.

    Args:
        columns: for each column, the words of its heading, and its settings, which are changed.

    Returns:
        The places of the columns whose scale was changed.

    Examples:
        >>> log, line = ({"kind": "continuous", "scale": s, "low": 1, "high": 9}
        ...              for s in ("log", "linear"))
        >>> align_scales([(["x"], dict(line)), (["y"], log), (["z"], line)]), log["scale"]
        ({1}, 'linear')
    """
    similar = [[_are_alike(a, b) for a in columns] for b in columns]
    similarity = np.reshape(similar, (len(columns), len(columns)))
    group = connected_components(similarity, directed=False)[1]
    changed: set[int] = set()
    for number in set(group.tolist()):
        members = np.flatnonzero(group == number).tolist()
        scales = [columns[k][1].get("scale") for k in members]
        log = 2 * scales.count("log") > len(scales) and all(
            columns[k][1]["low"] > 0 for k in members
        )
        for k in members if "log" in scales else ():
            scale = "log" if log else "linear"
            if columns[k][1]["scale"] != scale:
                columns[k][1]["scale"] = scale
                changed.add(k)
    return changed


def _are_alike(
    a: tuple[Sequence[str], dict[str, Any]], b: tuple[Sequence[str], dict[str, Any]]
) -> bool:
    if any("scale" not in settings for _, settings in (a, b)):
        return False
    first, second = set(a[0]), set(b[0])
    letters = all(len(words) == 1 and len(next(iter(words))) == 1 for words in (first, second))
    shared = len(first & second) >= max(len(first), len(second)) / 2
    sizes = [max(abs(column[1]["low"]), abs(column[1]["high"])) for column in (a, b)]
    is_similar = max(sizes) <= 30 * min(sizes)
    return (letters or (shared and bool(first & second))) and is_similar


_MIN_COLUMNS = 3
"""Smallest number of columns that sum to a whole."""

_ROUNDING = 0.011
"""Largest deviation of a sum of rounded shares from the whole, as a share of it."""

_MIN_ROW_SHARE = 0.99
"""Smallest share of rows in which columns sum to the whole."""


def find_shares(columns: Sequence[Floats]) -> tuple[range, float] | None:
    """Return the first run of three or more columns that sum to 1 or to 100, and that sum.

    Args:
        columns: the numbers of neighbouring columns, with NaN for missing ones.

    Examples:
        >>> rows = np.array([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]])
        >>> find_shares([np.array([3.0, 4.0]), *rows.T])
        (range(1, 4), 1.0)
    """
    for total_value in (1.0, 100.0):
        present = [values[~np.isnan(values)] for values in columns]
        possible = [
            len(cells) and cells.min() >= 0.0 and cells.max() <= total_value for cells in present
        ]
        for start in range(len(columns)):
            total = np.zeros_like(columns[start])
            for stop in range(start, len(columns)):
                if not possible[stop]:
                    break
                total = total + columns[stop]
                sums = total[~np.isnan(total)]
                if stop - start + 1 < _MIN_COLUMNS or len(sums) < 2:
                    continue
                if np.mean(np.abs(sums - total_value) <= _ROUNDING * total_value) >= _MIN_ROW_SHARE:
                    return range(start, stop + 1), total_value
    return None
