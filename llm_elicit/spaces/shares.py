"""Columns that are shares of a whole, such as the votes of each party: they sum to 1, or to 100."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from llm_elicit.spaces.feature import Floats

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LEAST = 3
_ROUNDING = 0.011
"""How far sums are from the whole where shares are rounded, as a part of it."""

_MOST_ROWS = 0.99


def shares_of_a_whole(columns: Sequence[Floats]) -> tuple[range, float] | None:
    """Return the first run of three or more columns that sum to 1 or to 100, and which.

    Args:
        columns: the numbers of neighbouring columns, with NaN for missing ones.

    Example:
        >>> rows = np.array([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]])
        >>> shares_of_a_whole([np.array([3.0, 4.0]), *rows.T])
        (range(1, 4), 1.0)
    """
    for whole in (1.0, 100.0):
        possible = [_within(each, whole) for each in columns]
        for start in range(len(columns)):
            total = np.zeros_like(columns[start])
            for stop in range(start, len(columns)):
                if not possible[stop]:
                    break
                total = total + columns[stop]
                if stop - start + 1 >= _LEAST and _are(total, whole):
                    return range(start, stop + 1), whole
    return None


def _within(values: Floats, whole: float) -> bool:
    known = values[~np.isnan(values)]
    return bool(len(known) and known.min() >= 0.0 and known.max() <= whole)


def _are(total: Floats, whole: float) -> bool:
    known = total[~np.isnan(total)]
    near: NDArray[np.bool_] = np.abs(known - whole) <= _ROUNDING * whole
    return bool(len(known) > 1 and near.mean() >= _MOST_ROWS)
