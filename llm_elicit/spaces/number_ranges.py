"""Columns of numbers as categories: ranges of the numbers and "not stated", or few numbers.

Rows that lack a number have no place on its scale and are left out. Where a missing value is an
answer of its own (an income that was not stated), the column can be asked about as categories
instead: ranges with about a fifth of the numbers each, and "not stated" for the missing ones. They
are categorical, not ordered: "not stated" is neither below nor above the ranges.

A column with a few numbers far apart, such as rates of 7 and 19 per cent, holds no others: its
numbers are ordered categories, so that nobody is asked about 13 per cent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from llm_elicit.spaces import cells
from llm_elicit.spaces.column_drafts import NOT_STATED, ColumnDraft, share
from llm_elicit.spaces.csv_files import Dialect
from llm_elicit.spaces.feature import Floats
from llm_elicit.spaces.number_drafts import FEW, UnusableColumnError
from llm_elicit.spaces.number_format import ENGLISH, Locale, format_number

_LEVELS = (0.2, 0.4, 0.6, 0.8)
_WAYS = 5
"""The most ways, on average, in which a table writes a number: 7, 7.0, 7 %."""

_ROWS_EACH = 10
"""The least rows for each of few numbers."""

_SMALL = 1000
"""Whole numbers with ranges shorter than this are worded "20 to 44", not "20 to 45"."""


def with_not_stated(
    draft: ColumnDraft, column: pd.Series[Any], dialect: Dialect, unit: str
) -> ColumnDraft:
    """Return the draft of a column of numbers as categories, with "not stated".

    Args:
        draft: what the column becomes otherwise.
        column: its cells.
        dialect: how numbers are written.
        unit: the unit of the numbers.

    Raises:
        UnusableColumnError: it holds no numbers or a circle, or no cell is missing.

    Example:
        >>> from llm_elicit.spaces.column_drafts import draft_column
        >>> income = pd.Series([*np.arange(1000.0, 100_000.0, 1000.0), None], name="income")
        >>> draft = draft_column(income, ["income"], Dialect())
        >>> with_not_stated(draft, income, Dialect(), "USD").settings["categories"][1:4]
        ['21,000 to 41,000 USD', '41,000 to 60,000 USD', '60,000 to 80,000 USD']
    """
    numeric = draft.settings["kind"] in ("continuous", "integer")
    if not numeric or draft.settings.get("periodic"):
        raise UnusableColumnError(f"only numbers become ranges, and this column is {draft.kept}")
    values = cells.to_numbers(column, dialect).mask(cells.as_text(column).isin(draft.words))
    missing = float(values.isna().mean())
    if not missing:
        raise UnusableColumnError("no cell is missing, so nothing is not stated")
    present = np.asarray(values.dropna(), dtype=np.float64)
    cuts = _cuts(present)
    whole = draft.settings["kind"] == "integer"
    locale = Locale.model_validate(draft.settings.get("locale", {}))
    categories = [*_words(cuts, whole, unit, locale), NOT_STATED]
    return ColumnDraft(
        {"kind": "categorical", "categories": categories},
        f"{len(cuts) + 1} ranges, with {share(missing)} {NOT_STATED}",
        words=dict.fromkeys(["", *draft.words], NOT_STATED),
        guesses={"categories": "ranges with about a fifth of the numbers each"},
        cuts=cuts,
    )


def of_few_numbers(
    draft: ColumnDraft, column: pd.Series[Any], dialect: Dialect, unit: str
) -> ColumnDraft:
    """Return the draft of a column as ordered categories if it has few numbers, with gaps.

    Args:
        draft: what the column becomes otherwise.
        column: its cells.
        dialect: how numbers are written.
        unit: the unit of the numbers.

    Example:
        >>> from llm_elicit.spaces.column_drafts import draft_column
        >>> tax = pd.Series([7, 19] * 20, name="tax")
        >>> draft = draft_column(tax, ["tax"], Dialect())
        >>> of_few_numbers(draft, tax, Dialect(), "%").settings
        {'kind': 'ordered', 'categories': ['7 %', '19 %']}
    """
    settings = draft.settings
    plain = settings["kind"] in ("continuous", "integer") and "factor" not in settings
    if not plain or settings.get("periodic") or draft.kept == "years":
        return draft
    if column.nunique() > _WAYS * FEW:  # fast for columns of many numbers
        return draft
    numbers = cells.to_numbers(column, dialect).mask(cells.as_text(column).isin(draft.words))
    values = np.asarray(numbers.dropna(), dtype=np.float64)
    unique = np.unique(values)
    # Counts have gaps among their largest values only.
    dense = settings["kind"] == "integer" and np.median(np.diff(unique)) <= 1
    if dense or len(unique) > FEW or len(values) < _ROWS_EACH * len(unique):
        return draft
    end = f" {unit}" if unit else ""
    short = [float(f"{value:.6g}") for value in unique.tolist()]  # 0.1 of a 32-bit float
    shown = short if len(set(short)) == len(unique) else unique.tolist()
    words = [f"{_written(value, ENGLISH)}{end}" for value in shown]
    return replace(
        draft,
        settings={"kind": "ordered", "categories": words},
        kept=f"{len(words)} numbers, as ordered categories",
        guesses={"categories": "no other numbers are asked about"},
        cuts=unique[1:].tolist(),
    )


def _cuts(values: Floats) -> list[float]:
    """Return where ranges start but the first, rounded quintiles that leave no range empty."""
    quintiles = np.quantile(values, _LEVELS, method="higher")
    extent = float(np.ptp(np.quantile(values, [0.1, 0.9]))) or float(np.ptp(values))
    rounded = {float(f"{round(cut / grid) * grid:.12g}")
               for cut in quintiles.tolist() for grid in [_grid(cut, extent)]}  # fmt: skip
    ends = [-math.inf, *sorted(rounded), math.inf]
    counts = np.histogram(values, ends)[0]
    cuts = [cut for cut, below in zip(ends[1:-1], counts[:-1], strict=True) if below]
    if cuts and not counts[-1]:
        cuts.pop()
    return cuts or [float(values[values > values.min()].min())]  # nearly all are the least one


def _grid(cut: float, extent: float) -> float:
    """Return the step to round to: two digits of the number, or of the extent if smaller."""
    size = min(abs(cut), extent) or extent
    return float(10.0 ** (math.floor(math.log10(size)) - 1))


def _words(cuts: Sequence[float], whole: bool, unit: str, locale: Locale = ENGLISH) -> list[str]:
    """Return the ranges in words; small whole ones go up to the last number below the next.

    Example:
        >>> _words([20, 45], True, "years"), _words([0.5], False, "")
        (['under 20 years', '20 to 44 years', '45 years or more'], ['under 0.5', '0.5 or more'])
    """
    gaps = [later - cut for cut, later in pairwise(cuts)]
    steps = whole and min(gaps, default=abs(cuts[0])) < _SMALL  # otherwise 20,000 to 45,000
    end = f" {unit}" if unit else ""
    starts = [_written(cut, locale) for cut in cuts]
    stops = [_written(cut - 1, locale) for cut in cuts] if steps else starts
    between = (
        f"{start} to {stop}{end}" if start != stop else f"{start}{end}"
        for start, stop in zip(starts, stops[1:], strict=False)
    )
    return [f"under {starts[0]}{end}", *between, f"{starts[-1]}{end} or more"]


def _written(cut: float, locale: Locale) -> str:
    exponent = Decimal(f"{cut:.12g}").as_tuple().exponent
    return format_number(cut, max(0, -int(exponent)), locale)
