"""What a column of numbers becomes: its kind, its range and its scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from llm_elicit.spaces.feature import Floats

LOW, HIGH = 0.01, 0.99
"""The quantiles that a range spans."""

_SKEWED = 1.0
_LARGEST, _SMALLEST, _NARROWEST = 1e25, 1e-25, 1e-11
_FEW = 12
"""Whole numbers over a range of at most so many are all asked about."""

_MOST_DIGITS = 4
_CIRCLES: dict[str, tuple[tuple[int, int], ...]] = {
    "hour": ((0, 23), (1, 24)), "hr": ((0, 23), (1, 24)), "month": ((1, 12), (0, 11)),
    "mon": ((1, 12),), "minute": ((0, 59),), "weekday": ((0, 6), (1, 7)),
    "dow": ((0, 6), (1, 7)), "week": ((1, 52), (1, 53)), "yday": ((1, 366), (0, 365)),
}  # fmt: skip
"""The values of columns that go around a circle, by the last word of their heading."""

_ANGLES = {"direction", "dir", "bearing", "azimuth", "heading", "aspect", "hue"}
_IDENTIFIERS = {"id", "index", "idx", "rownames", "rowid", "nr", "uid", "zip", "zipcode", "phone"}


class UnusableColumnError(Exception):
    """A column that cannot be a feature; the message says why."""


def draft_numbers(values: Floats, words: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Return the settings of a feature of numbers, and what it is kept as in words.

    Args:
        values: the column's numbers.
        words: the words of its heading.

    Raises:
        UnusableColumnError: it cannot be a feature; the message says why.

    Example:
        >>> draft_numbers(np.arange(100.0) % 12 + 1, ["month"])[0]
        {'kind': 'integer', 'low': 1, 'high': 12, 'periodic': True}
    """
    _check(values, words)
    whole = bool(np.all(values == np.round(values))) and float(np.abs(values).max()) < 2.0**53
    circle = _circle(values, whole, words)
    if circle is not None:
        return circle, "a circle"
    if whole and _is_year(values, words):
        low, high = _ends(values, True)
        locale = {"thousands": ""}
        return {"kind": "integer", "low": low, "high": high, "digits": 4, "locale": locale}, "years"
    low, high = _ends(values, whole)
    log = low > 0 and _is_skewed(values)
    settings: dict[str, Any] = {
        "kind": "integer" if whole else "continuous",
        "scale": "log" if log else "linear",
        "low": low,
        "high": high,
    }
    digits = len(str(int(high - low)))
    if whole and not log and 3 < digits <= _MOST_DIGITS:
        settings["digits"] = digits
    return settings, "whole numbers" if whole else "numbers"


def _check(values: Floats, words: Sequence[str]) -> None:
    """Refuse numbers that cannot be asked about.

    Raises:
        UnusableColumnError: with the reason.
    """
    if not np.isfinite(values).all():
        raise UnusableColumnError("it holds an infinite value; correct it to keep the column")
    low, high = float(values.min()), float(values.max())
    if low == high:
        raise UnusableColumnError(f"constant: every number is {low:g}")
    largest = max(abs(low), abs(high))
    if largest > _LARGEST:
        raise UnusableColumnError(f"it holds a value beyond {_LARGEST:g}; use a larger unit")
    if high - low < _SMALLEST:
        raise UnusableColumnError(
            f"its values differ by less than {_SMALLEST:g}; use a smaller unit"
        )
    if high - low < _NARROWEST * largest:
        raise UnusableColumnError(
            f"its values from {low:.17g} to {high:.17g} are too near for floats; subtract a "
            "constant"
        )
    if len(values) > 2 and bool(np.all(np.diff(values) == 1)):
        raise UnusableColumnError("it numbers the rows")
    whole = bool(np.all(values == np.round(values)))
    if whole and len(values) > 2 and words[-1:] and words[-1] in _IDENTIFIERS:
        raise UnusableColumnError("an identifier, by its name")


def _circle(values: Floats, whole: bool, words: Sequence[str]) -> dict[str, Any] | None:
    """Return the settings of a periodic feature; None if the column is none."""
    last = words[-1] if words else ""
    if _ANGLES & set(words) and values.min() >= 0 and 180 < values.max() <= 360:
        return {"kind": "continuous", "low": 0, "high": 360, "periodic": True}
    for low, high in _CIRCLES.get(last, ()) if whole else ():
        # Months of the summer alone are no circle.
        if values.min() == low and values.max() == high:
            return {"kind": "integer", "low": low, "high": high, "periodic": True}
    return None


def _is_year(values: Floats, words: Sequence[str]) -> bool:
    named = any(word in ("year", "yr", "years", "vintage") for word in words)
    return named and values.min() >= 1000 and values.max() <= 2200


def _ends(values: Floats, whole: bool) -> tuple[float, float]:
    """Return the 1 % and 99 % quantiles, rounded outwards to three digits of their distance.

    If they coincide, and for whole numbers of a small range, the extremes are used.
    """
    low, high = np.quantile(values, [LOW, HIGH])
    if low == high or (whole and values.max() - values.min() <= _FEW):
        low, high = values.min(), values.max()
    grid = 10.0 ** (np.floor(np.log10(high - low)) - 2)
    if whole:
        grid = max(1.0, grid)
    edges = np.floor(low / grid) * grid, np.ceil(high / grid) * grid
    bottom, top = (float(f"{edge:.12g}") for edge in edges)
    # A positive range stays positive: rounding 0.004 down to 0 would rule out the log scale.
    if low > 0 >= edges[0]:
        bottom = float(f"{low:.3g}")
        bottom = bottom if 0 < bottom <= low else float(low)
    return (int(np.floor(bottom)) or (1 if low > 0 else 0), int(top)) if whole else (bottom, top)


def _is_skewed(values: Floats) -> bool:
    """Whether a long right tail becomes shorter on the logarithm."""
    raw, logarithmic = float(stats.skew(values)), float(stats.skew(np.log(values[values > 0])))
    return raw > _SKEWED and abs(logarithmic) < abs(raw)


def align_scales(columns: Sequence[tuple[Sequence[str], dict[str, Any]]]) -> set[int]:
    """Give alike columns alike scales, that of most of them; return those that were changed.

    Columns are alike if they share half of the words of their headings, or have a letter each for
    a heading, and their ranges are within a factor of 30.

    Args:
        columns: the words of the heading and the settings, which are changed, of each.

    Example:
        >>> log, line = ({"kind": "continuous", "scale": s, "low": 1, "high": 9}
        ...              for s in ("log", "linear"))
        >>> align_scales([(["x"], dict(line)), (["y"], log), (["z"], line)]), log["scale"]
        ({1}, 'linear')
    """
    group = list(range(len(columns)))
    for j, one in enumerate(columns):
        for i in range(j):
            if group[i] != group[j] and _alike(columns[i], one):
                group = [group[i] if number == group[j] else number for number in group]
    changed: set[int] = set()
    for number in set(group):
        members = [k for k, each in enumerate(group) if each == number]
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


def _alike(
    one: tuple[Sequence[str], dict[str, Any]], other: tuple[Sequence[str], dict[str, Any]]
) -> bool:
    if any("scale" not in settings for _, settings in (one, other)):
        return False
    first, second = set(one[0]), set(other[0])
    letters = all(len(words) == 1 and len(next(iter(words))) == 1 for words in (first, second))
    shared = len(first & second) >= max(len(first), len(second)) / 2
    sizes = [max(abs(each[1]["low"]), abs(each[1]["high"])) for each in (one, other)]
    near = max(sizes) <= 30 * min(sizes)
    return (letters or (shared and bool(first & second))) and near
