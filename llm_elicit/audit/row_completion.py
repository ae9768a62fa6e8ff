"""Does the judge have the table by heart? Rows whose beginning it is shown, and how it goes on.

The row-completion test of Bordt et al. 2024, "Elephants never forget: memorization and learning of
tabular data in large language models". A belief that agrees with a table which the judge can recite
is no evidence of calibration. A judge that knows the subject but not the table is right by chance
now and then, the more often the better it knows it; so what it said is also held against the rows
whose beginnings are most like the one it was shown.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.spatial import cKDTree
from scipy.stats import rankdata

from llm_elicit.audit.inference import Interval, wilson
from llm_elicit.comparisons.row_completion import RowCompletion
from llm_elicit.config.base_model import StrictModel
from llm_elicit.spaces.features import Floats

NEIGHBOURS = 20
"""Rows that an answer is held against besides its own."""

_DIGITS = 4
_LEVEL = 0.01


class Recited(StrictModel):
    """What a judge knows of the table by heart.

    Attributes:
        feature: the place in the space of the feature whose values were asked for.
        rows: how many rows were asked for and answered, readably or not.
        read: how many of the answers could be read.
        share: how many of them were recited exactly, with Wilson's interval: at the precision the
            table prints, or at four digits where it prints more.
        chance: the same of the rows with the most similar beginnings.
        p_value: how often as many are right if the row's own value is put among those of its
            neighbours at random.
        found: whether that is less than 1 %: one lucky answer is never enough.
    """

    feature: int
    rows: int
    read: int
    share: Interval
    chance: float
    p_value: float
    found: bool


def measure_recited(
    completion: RowCompletion,
    rows: Sequence[int],
    recited: Floats,
    draws: int,
    rng: np.random.Generator,
) -> Recited:
    """From the values `(m,)` that the judge went on with; NaN for what could not be read."""
    cells = completion.hidden
    decimals = max(len(cell.partition(".")[2]) if "." in cell else 0 for cell in cells)
    values = np.array([float(cell) for cell in cells])
    asked = np.array(rows, dtype=np.int64)
    others = _neighbours(completion.shown, asked)
    hits = same(recited, values[asked], decimals)
    beside = same(recited[:, None], values[others], decimals)
    # The row's own value is one of those in a bag with its neighbours'; any may be drawn.
    odds = (hits + beside.sum(axis=1)) / (1 + others.shape[1])
    drawn = (rng.random((draws, len(asked))) < odds).sum(axis=1)
    p_value = float((1 + (drawn >= hits.sum()).sum()) / (1 + draws))
    return Recited(
        feature=completion.feature,
        rows=len(asked),
        read=int(np.isfinite(recited).sum()),
        share=wilson(float(hits.mean()), len(asked)),
        chance=float(beside.mean()),
        p_value=p_value,
        found=p_value < _LEVEL,
    )


def same(said: Floats, printed: Floats, decimals: int) -> np.ndarray:
    """Whether numbers are those of a table that prints so many decimals, to four digits at most.

    Example:
        >>> same(np.array([3.46, 3.5, np.nan, 98761.0]), np.array([3.5, 3.5, 3.5, 98765.0]), 1)
        array([ True,  True, False,  True])
    """
    leading = np.floor(np.log10(np.maximum(np.abs(printed), 1e-300)))
    grid = 10.0 ** np.minimum(decimals, _DIGITS - 1 - leading)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.rint(said * grid) == np.rint(printed * grid))


def _neighbours(shown: Floats, asked: np.ndarray) -> np.ndarray:
    """For each row `asked` those with the most similar beginnings, by the ranks of their values."""
    n, columns = shown.shape
    count = min(NEIGHBOURS, n - 1)
    if not columns:
        return np.asarray((asked[:, None] + np.arange(1, count + 1)) % n)
    ranks = np.stack([rankdata(column, nan_policy="omit") for column in shown.T], axis=1) / n
    ranks = np.where(np.isfinite(ranks), ranks, 0.5)
    found = cKDTree(ranks).query(ranks[asked], k=range(1, count + 2))[1]
    # A row with twins is not always its own nearest.
    rows = zip(asked, np.atleast_2d(found), strict=True)
    return np.array([[j for j in row if j != i][:count] for i, row in rows], dtype=np.int64)
