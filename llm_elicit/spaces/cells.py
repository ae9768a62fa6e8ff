"""Cells of a table as numbers, days, or codes of categories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_elicit._util.packages import LazyModule
from llm_elicit._util.sanitize import visible
from llm_elicit.errors import InputError
from llm_elicit.spaces.csv_files import Dialect
from llm_elicit.spaces.feature import Feature

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = LazyModule("pandas")

MISSING = frozenset(
    ("", "na", "n/a", "n.a.", "#n/a", "<na>", "nan", "null", "none", "nil", ".", "-", "?", "..")
)
"""What stands for no value in a column of numbers or dates, in lower case."""

ISO = "%Y-%m-%d"
_TIME = r"[ T]\d{1,2}:\d{2}.*$"
_SIGNS = r"[\s\u00a0\u202f'$€£¥₹%]|(?:USD|EUR|GBP|CHF)"


def as_text(cells: pd.Series[Any]) -> pd.Series[str]:
    """Return cells as text without blanks around them; missing ones are empty.

    Example:
        >>> as_text(pd.Series([4.0, None, 2.5])).tolist()
        ['4', '', '2.5']
    """
    if pd.api.types.is_float_dtype(cells.dtype):
        whole = cells.notna() & (cells == np.rint(cells)) & (cells.abs() < 1e15)
        written = cells.astype(str)
        written[whole] = cells[whole].astype("int64").astype(str)
    else:
        written = cells.astype(str)
    return written.where(cells.notna(), "").astype(str).str.strip()


def is_missing(text: pd.Series[str]) -> pd.Series[bool]:
    """Return which cells of a column of numbers or dates hold no value."""
    return text.str.lower().isin(MISSING)


def to_numbers(cells: pd.Series[Any], dialect: Dialect) -> pd.Series[float]:
    """Return cells as floats, NaN where they are not numbers.

    Currency signs, per cent signs and thousands separators are left out.

    Example:
        >>> to_numbers(pd.Series(["$1,200", "3.5 %", "", "two"]), Dialect()).tolist()
        [1200.0, 3.5, nan, nan]
    """
    if pd.api.types.is_numeric_dtype(cells.dtype) or pd.api.types.is_bool_dtype(cells.dtype):
        return cells.astype("float64")
    return _of_unique(as_text(cells), partial(_numbers, dialect=dialect))


def _of_unique(
    text: pd.Series[str], convert: Callable[[pd.Series[str]], pd.Series[float]]
) -> pd.Series[float]:
    """Return converted cells; each text is converted once."""
    codes, unique = pd.factorize(text)
    values = convert(pd.Series(unique, dtype=text.dtype)).to_numpy()
    return pd.Series(values[codes], index=text.index, name=text.name)


def _numbers(text: pd.Series[str], dialect: Dialect) -> pd.Series[float]:
    plain = _english(text, dialect) if dialect.decimal == "," else text
    numbers = pd.to_numeric(plain, errors="coerce").astype("float64")
    odd = numbers.isna() & ~is_missing(text)
    if odd.any():
        numbers[odd] = pd.to_numeric(_cleaned(plain[odd]), errors="coerce").astype("float64")
    return numbers


def _english(text: pd.Series[str], dialect: Dialect) -> pd.Series[str]:
    """Return numbers with a decimal comma as English ones."""
    grouped = text.str.contains(".", regex=False)
    if dialect.thousands and not text.str.contains(r"\.(?!\d{3}(?:\D|$))").any():
        text = text.where(~grouped, text.str.replace(".", "", regex=False))
    return text.str.replace(",", ".", regex=False)


def _cleaned(text: pd.Series[str]) -> pd.Series[str]:
    """Return numbers without signs of currency and separators of thousands."""
    bare = text.str.replace("\u2212", "-").str.replace(_SIGNS, "", regex=True)
    grouped = bare.str.fullmatch(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
    return bare.where(~grouped, bare.str.replace(",", "", regex=False))


def to_days(cells: pd.Series[Any], date_format: str = ISO) -> pd.Series[float]:
    """Return dates as days since 1970, NaN where they are none; times of day are left out.

    Example:
        >>> to_days(pd.Series(["2020-03-14", "1969-12-31 23:50", ""])).tolist()
        [18335.0, -1.0, nan]
    """
    if not pd.api.types.is_datetime64_any_dtype(cells.dtype):
        return _of_unique(as_text(cells), partial(_days, date_format=date_format))
    return _days_since(cells)


def _days(text: pd.Series[str], date_format: str) -> pd.Series[float]:
    bare = text.str.replace(_TIME, "", regex=True)
    return _days_since(pd.to_datetime(bare, format=date_format, errors="coerce"))


def _days_since(cells: pd.Series[Any]) -> pd.Series[float]:
    days = cells.dt.tz_localize(None).dt.normalize() - pd.Timestamp("1970-01-01")
    found: pd.Series[float] = days.dt.days.astype("float64")
    return found


def to_values(
    cells: pd.Series[Any],
    feature: Feature,
    dialect: Dialect,
    words: Mapping[str, str],
    date_format: str,
    where: str,
    cuts: Sequence[float] = (),
) -> pd.Series[float]:
    """Return a column's values as the feature has them in arrays; NaN for missing ones.

    Args:
        cells: the column, as text or typed.
        feature: the feature.
        dialect: how its numbers are written.
        words: the categories of cells that are not written as their category.
        date_format: how its dates are written.
        where: the file, for messages.
        cuts: of categories that are ranges of numbers, where they start but the first.

    Raises:
        InputError: a cell holds no such value; the message names column and line.
    """
    text = as_text(cells)
    if cuts:
        numbers = to_numbers(cells, dialect)
        ranges = np.searchsorted(np.asarray(cuts), numbers.to_numpy(), side="right")
        values = pd.Series(ranges, numbers.index, dtype="float64").where(numbers.notna())
        if "" in words:
            values[is_missing(text)] = feature.code(words[""])
        rule, way_out = "not a number", "; correct the cell"
    elif feature.categories:
        codes = {word: float(code) for code, word in enumerate(feature.categories)}
        values = text.map(codes | {cell: feature.code(word) for cell, word in words.items()})
        rule, way_out = f"none of its categories; known: {', '.join(feature.categories)}", ""
    elif feature.kind == "date":
        values = to_days(cells, date_format)
        rule, way_out = "not a date", "; correct the cell or leave the column out"
    else:
        values = to_numbers(cells, dialect)
        rule, way_out = "not a number", "; correct the cell or leave the column out"
    values = values.astype("float64")
    bad = values.isna() & ~is_missing(text)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"{where}: column {cells.name!r}, line {row + 2}: {visible(text.iloc[row], 100)!r} is "
            f"{rule}{way_out}"
        )
    return values
