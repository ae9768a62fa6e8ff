"""What a column of a table becomes: a feature of some kind, or nothing, and why."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from llm_elicit._util.sanitize import visible
from llm_elicit.spaces import cells
from llm_elicit.spaces.csv_files import Dialect
from llm_elicit.spaces.feature import Floats
from llm_elicit.spaces.feature_keys import EPOCH
from llm_elicit.spaces.number_drafts import UnusableColumnError, draft_numbers
from llm_elicit.spaces.orders import in_order

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_WORDS = 30
"""The most categories that are all asked about."""

NOT_STATED = "not stated"
"""The category of empty cells."""

_MANY_MISSING = 0.05
"""The share of empty cells above which they are a category of their own."""

_MOSTLY = 0.9
_MOST_OF_SPAN = 0.9
_LOOKED_AT = 500
_BOOLEANS = (("false", "true"), ("f", "t"), ("no", "yes"), ("n", "y"), ("0", "1"))
_DATES = (
    cells.ISO, "%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m/%d/%y", "%d %B %Y",
    "%d %b %Y", "%b %d %Y", "%B %d, %Y", "%b %d, %Y", "%d-%b-%Y", "%d-%b-%y",
)  # fmt: skip
"""The ways to write a date; the first that reads every cell is taken."""


@dataclass(frozen=True)
class ColumnDraft:
    """A column that becomes a feature.

    Attributes:
        settings: the feature's settings, without its name, label and unit.
        kept: what it is kept as, in words.
        words: the categories of cells that are not written as their category.
        dates: how its dates are written; empty if they are ISO dates, or it has none.
        unit: the unit that its cells show, if they do.
        guesses: what was guessed from the values, by key of the settings.
        cuts: where the ranges of its numbers start but the first, if they are its categories.
    """

    settings: dict[str, Any]
    kept: str
    words: dict[str, str] = field(default_factory=dict)
    dates: str = ""
    unit: str = ""
    guesses: Mapping[str, str] = field(default_factory=dict)
    cuts: Sequence[float] = ()


def draft_column(column: pd.Series[Any], words: Sequence[str], dialect: Dialect) -> ColumnDraft:
    """Return what a column becomes.

    Args:
        column: the column, as text or typed.
        words: the words of its heading.
        dialect: how numbers are written.

    Raises:
        UnusableColumnError: it cannot be a feature; the message says why.
    """
    text = cells.as_text(column)
    written = [word for word in text.unique().tolist() if word]
    if not written:
        raise UnusableColumnError("every cell is empty")
    if len(written) == 1:
        raise UnusableColumnError(f"constant: every cell with a value is {_shown(written[0])}")
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return _draft_dates(cells.to_days(column), "")
    ordered = getattr(column.dtype, "ordered", False)
    if ordered or pd.api.types.is_bool_dtype(column.dtype):
        levels = [str(level) for level in column.cat.categories] if ordered else written
        return _draft_words(text, written, [level for level in levels if level in written])
    if not pd.api.types.is_numeric_dtype(column.dtype):
        drafted = _draft_text(text, written, dialect)
        if drafted is not None:
            return drafted
    elif _is_boolean(written):
        return _draft_words(text, written)
    numbers = cells.to_numbers(column, dialect)
    values: Floats = np.asarray(numbers.dropna(), dtype=np.float64)
    settings, kept = draft_numbers(values, words)
    return ColumnDraft(settings, kept, unit=_unit(text))


def _draft_text(text: pd.Series[str], written: list[str], dialect: Dialect) -> ColumnDraft | None:
    """Return what a column of text becomes; None if it holds numbers."""
    if _is_boolean(written):
        return _draft_words(text, written)
    unique = pd.Series(written)
    unique = unique[~cells.is_missing(unique)]
    numeric = cells.to_numbers(unique, dialect).notna()
    if len(unique) > 1 and numeric.all():
        return None
    date_format = _date_format(unique)
    if date_format is not None:
        return _draft_dates(cells.to_days(text, date_format), date_format)
    present = text[text.isin(unique)]
    few = len(written) <= min(MOST_WORDS, len(present) // 2)
    if present.isin(unique[numeric]).mean() >= (_MOSTLY if few else 0.5):
        bad = unique[~numeric]
        row = int(np.flatnonzero(text == bad.iloc[0])[0])
        more = f" and {len(bad) - 1:,} more" if len(bad) > 1 else ""
        raise UnusableColumnError(
            f"line {row + 2}: {_shown(bad.iloc[0])} is not a number{more}; correct it to keep the "
            "column"
        )
    return _draft_words(text, written)


def _is_boolean(written: Sequence[str]) -> bool:
    return len(written) == 2 and tuple(sorted(map(str.casefold, written))) in _BOOLEANS


def _draft_words(
    text: pd.Series[str], written: list[str], levels: Sequence[str] = ()
) -> ColumnDraft:
    """Return a categorical or ordered feature.

    Raises:
        UnusableColumnError: there are too many words, or too few rows for each.
    """
    empty = text == ""
    count = int((~empty).sum())
    if len(written) > max(2, count // 2):
        raise UnusableColumnError(f"text: {len(written):,} different in {count:,} cells")
    if len(written) > MOST_WORDS:
        raise UnusableColumnError(
            f"too many categories: {len(written):,}, and at most {MOST_WORDS} are asked about"
        )
    unreadable = [word for word in written if not word.isprintable()]
    if unreadable:
        raise UnusableColumnError(f"the cell {_shown(unreadable[0])} does not print in one line")
    words: dict[str, str] = {}
    if _is_boolean(written) and not levels:
        levels = ["no", "yes"]
        pairs = zip(sorted(written, key=str.casefold), levels, strict=True)
        words = {cell: word for cell, word in pairs if cell != word}
    share = float(empty.mean())
    order = list(levels) or in_order(written)
    ordered = bool(order) and not words and len(order) > 2
    categories = order or sorted(written)
    kept = "ordered categories" if ordered else "yes or no" if words else "categories"
    guesses = {"categories": "their order is a guess"} if ordered and not levels else {}
    if words:
        guesses = {"categories": f"from {', '.join(sorted(written, key=str.casefold))}"}
    unclear = [word for word in categories if word.casefold() in cells.MISSING]
    if unclear and len(categories) > 2:
        line = f"{unclear[0]} is taken for a category; delete it if it stands for no value"
        guesses = {"categories": line}
    if share > _MANY_MISSING:
        ordered, guesses = False, dict(guesses)
        categories, words = [*categories, NOT_STATED], words | {"": NOT_STATED}
        kept = f"categories, with {share:.0%} {NOT_STATED}"
    settings = {"kind": "ordered" if ordered else "categorical", "categories": categories}
    return ColumnDraft(settings, kept, words, guesses=guesses)


def _date_format(unique: pd.Series[str]) -> str | None:
    """Return how the dates of a column are written; None if it holds none."""
    looked_at = unique.iloc[:_LOOKED_AT]
    if not len(looked_at) or not looked_at.str.contains(r"\d.*[-/. ].*\d").all():
        return None
    for date_format in _DATES:
        if cells.to_days(looked_at, date_format).notna().all():
            found = cells.to_days(unique, date_format)
            if found.notna().all():
                return date_format
    return None


def _draft_dates(days: pd.Series[float], date_format: str) -> ColumnDraft:
    """Return a feature of dates.

    Raises:
        UnusableColumnError: all are one day.
    """
    values = days.dropna().to_numpy(dtype=np.float64)
    if values.min() == values.max():
        raise UnusableColumnError("constant: one day")
    low, high = np.quantile(values, [0.01, 0.99])
    if high - low > _MOST_OF_SPAN * (values.max() - values.min()) or low == high:
        low, high = values.min(), values.max()  # no day is far from the others
    ends = [EPOCH + pd.Timedelta(days=int(end)).to_pytimedelta() for end in (low, high)]
    settings = {"kind": "date", "low": ends[0], "high": ends[1]}
    unclear = date_format in ("%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y")
    first = "the month" if date_format.startswith("%m") else "the day"
    guesses = {"kind": f"{first} is taken to come first"} if unclear else {}
    iso = date_format in ("", cells.ISO)
    return ColumnDraft(settings, "dates", dates="" if iso else date_format, guesses=guesses)


def _unit(text: pd.Series[str]) -> str:
    """Return the unit that the first cells of numbers show, such as "%" or "USD"."""
    shown = {"%": "%", "$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY", "₹": "INR"}
    first = text[text != ""].iloc[:_LOOKED_AT]
    found = {sign for sign in shown if first.str.contains(sign, regex=False).mean() > 0.5}
    return shown[found.pop()] if len(found) == 1 else ""


def _shown(cell: str) -> str:
    return repr(visible(re.sub(r"\s+", " ", cell), 60))
