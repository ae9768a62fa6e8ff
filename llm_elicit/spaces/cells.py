"""Cells of a table as numbers, days, or codes of categories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from llm_elicit._util.text import visible
from llm_elicit.errors import InputError
from llm_elicit.spaces.csv_files import Dialect
from llm_elicit.spaces.feature import Feature

MISSING = frozenset(
    ("", "na", "n/a", "n.a.", "#n/a", "<na>", "nan", "null", "none", "nil", ".", "-", "?", "..")
)
"""Markers of an empty cell in a column of numbers or dates, in lower case."""

ISO = "%Y-%m-%d"
_ERROR = r"(?i)#[¡¿]?[\w./]+[!?]|#n/?[advk]\.?|#н/д|#getting_data|err:\d{3}"
"""An error of a spreadsheet's formula, also in other languages, as #WERT! and #¡VALOR!."""

_NO_ANSWER = frozenset(
    ("refused", "unknown", "not stated", "no answer", "missing", "not available", "not applicable",
     "don't know", "prefer not to say", "k.a.", "keine angabe")
)  # fmt: skip
NO_VALUE = MISSING | _NO_ANSWER
"""`MISSING` and answers such as "refused", in lower case."""

_MIN_UNIT_SHARE = 0.9
_UNIT = r"^[-+]?[\d.,\s]*\d(?:\s+|(?!(?:s|th)$))([^\d\s.,:/()-][^\d\s]{0,9})$"
"""A number with a unit; "1980s" and "4th" have none."""

_TIME = r"[ T]\d{1,2}:\d{2}.*$"
_SIGNS = r"[\s\u00a0\u202f'$€£¥₹%]|(?:USD|EUR|GBP|CHF)"


def as_text(cells: pd.Series[Any]) -> pd.Series[str]:
    """Return cells as text without blanks around them; missing ones are empty, as errors are.

    Examples:
        >>> as_text(pd.Series([4.0, None, 2.5])).tolist()
        ['4', '', '2.5']
        >>> as_text(pd.Series([" Oslo", "#REF!", "#NV"])).tolist()
        ['Oslo', '', '']
    """
    if pd.api.types.is_float_dtype(cells.dtype):
        whole = cells.notna() & (cells == np.rint(cells)) & (cells.abs() < 1e15)
        written = cells.astype(str)
        written[whole] = cells[whole].astype("int64").astype(str)
    else:
        written = cells.astype(str)
    text = written.where(cells.notna(), "").astype(str).str.strip()
    if pd.api.types.is_numeric_dtype(cells.dtype):
        return text
    suspect = text.str.startswith(("#", "Err:"))
    return text.mask(suspect & text.str.fullmatch(_ERROR), "") if suspect.any() else text


def is_missing(text: pd.Series[str]) -> pd.Series[bool]:
    """Return which cells of a column of numbers or dates hold no value."""
    return text.str.lower().isin(NO_VALUE)


def to_numbers(cells: pd.Series[Any], dialect: Dialect) -> pd.Series[float]:
    """Return cells as floats, NaN where they are not numbers.

    Currency signs, per cent signs, thousands separators and a unit that nearly all cells show are
    left out; numbers in parentheses are negative; durations are seconds.

    Examples:
        >>> to_numbers(pd.Series(["$1,200", "3.5 %", "(2)", "", "two"]), Dialect()).tolist()
        [1200.0, 3.5, -2.0, nan, nan]
        >>> to_numbers(pd.Series(["170 cm", "165 cm"]), Dialect()).tolist()
        [170.0, 165.0]
    """
    if pd.api.types.is_timedelta64_dtype(cells.dtype):
        seconds: pd.Series[float] = cells.dt.total_seconds()
        return seconds
    if pd.api.types.is_numeric_dtype(cells.dtype) or pd.api.types.is_bool_dtype(cells.dtype):
        return cells.astype("float64")
    return _convert_unique(as_text(cells), partial(_numbers, dialect=dialect))


def _convert_unique(
    text: pd.Series[str], convert: Callable[[pd.Series[str]], pd.Series[float]]
) -> pd.Series[float]:
    """Return converted cells; each text is converted once."""
    codes, unique = pd.factorize(text)
    values = convert(pd.Series(unique, dtype=text.dtype)).to_numpy()
    return pd.Series(values[codes], index=text.index, name=text.name)


def _numbers(text: pd.Series[str], dialect: Dialect) -> pd.Series[float]:
    present = ~is_missing(text)
    plain = _use_decimal_point(text, dialect) if dialect.decimal == "," else text
    numbers = pd.to_numeric(plain, errors="coerce").astype("float64")
    for bare in (_strip_signs, _strip_unit):
        odd = numbers.isna() & present
        if not odd.any() or (bare is _strip_unit and odd.sum() < _MIN_UNIT_SHARE * present.sum()):
            break
        numbers[odd] = pd.to_numeric(bare(plain[odd]), errors="coerce").astype("float64")
    return numbers


def _strip_unit(text: pd.Series[str]) -> pd.Series[str]:
    unit = unit_of(text)
    return _strip_signs(text.str.removesuffix(unit)) if unit else text


def unit_of(text: pd.Series[str]) -> str:
    """Return the unit that nearly all cells have behind their number; empty if they have none.

    Examples:
        >>> unit_of(pd.Series(["170 cm", "165.5cm"])), unit_of(pd.Series(["12A", "13", "14"]))
        ('cm', '')
    """
    units = text.str.extract(_UNIT, expand=False).dropna()
    if len(units) < max(2.0, _MIN_UNIT_SHARE * len(text)):
        return ""
    return str(units.iloc[0]) if units.nunique() == 1 else ""


def _use_decimal_point(text: pd.Series[str], dialect: Dialect) -> pd.Series[str]:
    """Return numbers that have a decimal comma with a decimal point."""
    grouped = text.str.contains(".", regex=False)
    if dialect.thousands and not text.str.contains(r"\.(?!\d{3}(?:\D|$))|(?<!\d)0\.").any():
        text = text.where(~grouped, text.str.replace(".", "", regex=False))
    return text.str.replace(",", ".", regex=False)


def _strip_signs(text: pd.Series[str]) -> pd.Series[str]:
    """Return numbers without signs of currency and separators of thousands."""
    bare = text.str.replace("\u2212", "-").str.replace(_SIGNS, "", regex=True)
    bare = bare.str.replace(r"^\(([\d.,]+)\)$", r"-\1", regex=True)
    grouped = bare.str.fullmatch(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
    return bare.where(~grouped, bare.str.replace(",", "", regex=False))


def to_days(cells: pd.Series[Any], date_format: str = ISO) -> pd.Series[float]:
    """Return dates as days since 1970, NaN for cells without a date; times of day are left out.

    Examples:
        >>> to_days(pd.Series(["2020-03-14", "1969-12-31 23:50", ""])).tolist()
        [18335.0, -1.0, nan]
    """
    if not pd.api.types.is_datetime64_any_dtype(cells.dtype):

        def days(text: pd.Series[str]) -> pd.Series[float]:
            bare = text.str.replace(_TIME, "", regex=True)
            return _days_since(pd.to_datetime(bare, format=date_format, errors="coerce"))

        return _convert_unique(as_text(cells), days)
    return _days_since(cells)


def _days_since(cells: pd.Series[Any]) -> pd.Series[float]:
    intervals = cells.dt.tz_localize(None).dt.normalize() - pd.Timestamp("1970-01-01")
    days: pd.Series[float] = intervals.dt.days.astype("float64")
    return days


def to_values(
    cells: pd.Series[Any],
    feature: Feature,
    dialect: Dialect,
    words: Mapping[str, str],
    date_format: str,
    source: str,
    cuts: Sequence[float] = (),
) -> pd.Series[float]:
    """Return a column as numbers: codes of categories, days since 1970; NaN for missing cells.

    Args:
        cells: the column, as text or typed.
        feature: the feature.
        dialect: how its numbers are written.
        words: the categories of cells that are not written as their category; empty for cells that
            hold no value.
        date_format: how its dates are written.
        source: the file, for messages.
        cuts: if the categories are ranges of numbers, the lower bounds of all but the first.

    Raises:
        InputError: a cell is not a value of the feature; the message names column and line.
    """
    text = as_text(cells)
    blank = text.isin([cell for cell, word in words.items() if not word])
    if blank.any():
        text, cells = text.mask(blank, ""), cells.mask(blank)
        words = {cell: word for cell, word in words.items() if word}
    if cuts:
        numbers = to_numbers(cells, dialect)
        ranges = np.searchsorted(np.asarray(cuts), numbers.to_numpy(), side="right")
        values = pd.Series(ranges, numbers.index, dtype="float64").where(numbers.notna())
        if "" in words:
            stated = ~is_missing(text) & ~text.isin(words)
            values = values.where(stated, feature.code(words[""]))
        rule, way_out = "not a number", "; correct the cell"
    elif feature.categories:
        codes = {word: float(code) for code, word in enumerate(feature.categories)}
        values = text.map(codes | {cell: feature.code(word) for cell, word in words.items()})
        rule = f"not one of its categories ({', '.join(feature.categories)})"
        way_out = "; correct the cell, or add the category to the feature space"
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
        line = int(text.index[row]) + 2
        raise InputError(
            f"{source}: column {cells.name!r}, line {line}: {visible(text.iloc[row], 100)!r} is "
            f"{rule}{way_out}"
        )
    return values
