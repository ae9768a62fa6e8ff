"""Cells of a table as numbers or days."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from llm_elicit._util.text import visible
from llm_elicit.spaces.csv_files import Dialect

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
_UNIT = r"^[-+]?[\d.,'’\s]*\d(?:\s+|(?!(?:s|th)$))([^\d\s.,:/()-][^\d\s]{0,9})$"
"""A number with a unit; "1980s" and "4th" have none."""

_TIME = r"[ T]\d{1,2}:\d{2}.*$"
_SIGNS = re.compile(r"[\s'’ʼ´`$€£¥₹%]|USD|EUR|GBP|CHF")
_NUMBER = re.compile(r"[-+(]*(?P<digits>[.,]?\d[\d.,]*)\)?[^\d\s.,]{0,10}")
"""A number with a unit, without `_SIGNS`."""

_UNCLEAR = r"[1-9]\d{0,2}%(m)s\d{3}"
_DECIMAL = (
    r"(?:\d+|\d{1,3}(?:%(o)s\d{3})+)%(m)s(?:\d{1,2}|\d{4,})|0?%(m)s\d+|"
    r"(?:\d{4,}|\d{1,3}(?:%(o)s\d{3})+)%(m)s\d{3}"
)
_ANY_GROUPS = r"[1-9]\d{0,2}(?:%(m)s\d{3})+(?:%(o)s\d+)?|[1-9]\d?(?:%(m)s\d{2})+%(m)s\d{3}"
_GROUPS = (
    r"[1-9]\d{0,2}(?:%(m)s\d{3})+%(o)s\d+|[1-9]\d{0,2}(?:%(m)s\d{3}){2,}|"
    r"[1-9]\d?(?:%(m)s\d{2})+%(m)s\d{3}"
)
"""Numbers in which a mark m separates thousands, where o is the other mark; also lakhs, crores."""


def as_text(cells: pd.Series[Any]) -> pd.Series[str]:
    """Return cells as text without blanks around them; missing cells and errors become empty.

    Examples:
        >>> as_text(pd.Series([4.0, None, 2.5])).tolist()
        ['4', '', '2.5']
        >>> as_text(pd.Series([" Oslo", "#REF!", "#NV"])).tolist()
        ['Oslo', '', '']
    """
    if pd.api.types.is_float_dtype(cells.dtype):
        is_whole = cells.notna() & (cells == np.rint(cells)) & (cells.abs() < 1e15)
        texts = cells.astype(str)
        texts[is_whole] = cells[is_whole].astype("int64").astype(str)
    else:
        texts = cells.astype(str)
    missing = cells.isna()
    text = (texts.mask(missing, "").astype(str) if missing.any() else texts).str.strip()
    if pd.api.types.is_numeric_dtype(cells.dtype):
        return text
    may_be_error = text.str.startswith(("#", "Err:"))
    return text.mask(may_be_error & text.str.fullmatch(_ERROR), "") if may_be_error.any() else text


def is_missing(text: pd.Series[str]) -> pd.Series[bool]:
    """Return whether each cell of a column of numbers or dates is missing."""
    return text.str.lower().isin(NO_VALUE)


def to_numbers(cells: pd.Series[Any], dialect: Dialect) -> pd.Series[float]:
    """Return cells as floats, NaN where they are not numbers.

    Currency signs, per cent signs, thousands separators and a unit that nearly all cells have are
    ignored. Numbers in parentheses are negative; durations become seconds.

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
    text = as_text(cells)
    if not (dialect.thousands and pd.api.types.is_object_dtype(cells.dtype)):
        return _convert_unique(text, partial(_numbers, dialect=dialect))
    # Numbers of a workbook have no marks.
    numeric = cells.map(lambda cell: isinstance(cell, (int, float)))
    numbers = _convert_unique(text.mask(numeric, ""), partial(_numbers, dialect=dialect))
    return numbers.mask(numeric, pd.to_numeric(cells.where(numeric)).astype("float64"))


def _convert_unique(
    text: pd.Series[str], convert: Callable[[pd.Series[str]], pd.Series[float]]
) -> pd.Series[float]:
    """Return converted cells; each text is converted once."""
    codes, unique = pd.factorize(text)
    values = convert(pd.Series(unique, dtype=text.dtype)).to_numpy()
    return pd.Series(values[codes], index=text.index, name=text.name)


def _numbers(text: pd.Series[str], dialect: Dialect) -> pd.Series[float]:
    pointed = _use_decimal_point(text, dialect) if dialect.decimal == "," else text
    numbers = pd.to_numeric(pointed, errors="coerce").astype("float64")
    if numbers.notna().all():
        return numbers
    present = ~is_missing(text)
    for strip in (_strip_signs, _strip_unit):
        bad = numbers.isna() & present
        if not bad.any() or (strip is _strip_unit and bad.sum() < _MIN_UNIT_SHARE * present.sum()):
            break
        numbers[bad] = pd.to_numeric(strip(pointed[bad]), errors="coerce").astype("float64")
    return numbers


def _strip_unit(text: pd.Series[str]) -> pd.Series[str]:
    unit = unit_of(text)
    return _strip_signs(text.str.removesuffix(unit)) if unit else text


def unit_of(text: pd.Series[str]) -> str:
    """Return the unit that follows the number in nearly all cells; empty if there is none.

    Examples:
        >>> unit_of(pd.Series(["170 cm", "165.5cm"])), unit_of(pd.Series(["12A", "13", "14"]))
        ('cm', '')
    """
    units = text.str.extract(_UNIT, expand=False).dropna()
    if len(units) < max(2.0, _MIN_UNIT_SHARE * len(text)):
        return ""
    return str(units.iloc[0]) if units.nunique() == 1 else ""


def _use_decimal_point(text: pd.Series[str], dialect: Dialect) -> pd.Series[str]:
    """Return numbers with a decimal point in place of a decimal comma."""
    has_point = text.str.contains(".", regex=False)
    if dialect.thousands and _Marks.of(text[has_point], ".").are_groups:
        text = text.where(~has_point, text.str.replace(".", "", regex=False))
    return text.str.replace(",", ".", regex=False)


def _strip_signs(text: pd.Series[str]) -> pd.Series[str]:
    """Return numbers without signs of currency and separators of thousands."""
    plain = text.str.replace("\u2212", "-").str.replace(_SIGNS, "", regex=True)
    plain = plain.str.replace(r"^\(([\d.,]+)\)$", r"-\1", regex=True)
    has_groups = plain.str.fullmatch(r"[-+]?\d{1,3}(?:(?:,\d{3})+|(?:,\d{2})+,\d{3})(?:\.\d+)?")
    return plain.where(~has_groups, plain.str.replace(",", "", regex=False))


@dataclass(frozen=True)
class _Marks:
    """How the numbers of a column use a mark, the comma or the point.

    Attributes:
        decimals: how many numbers use it as the decimal mark for certain: 2.5, 0.125, 1,234.567.
        groups: how many numbers use it between thousands for certain: 1.234.567, 1.234,5.
        unclear: a number that can be read in both ways, such as 1.234; empty if there is none.
        are_groups: whether some number has it, and in all of these it can separate thousands.
        beside_small: whether there are whole numbers without it, all below 1000.
        padded: whether an unclear number ends with 0, unlike a decimal fraction.
    """

    decimals: int
    groups: int
    unclear: str
    are_groups: bool
    beside_small: bool
    padded: bool

    @classmethod
    def of(cls, cells: Iterable[str], mark: str) -> _Marks:
        """Return how cells use a mark; cells that are not numbers are ignored."""
        plain = (_SIGNS.sub("", cell.replace("\u2212", "")) for cell in set(cells))
        numbers = sorted({match["digits"] for match in map(_NUMBER.fullmatch, plain) if match})
        other_mark = re.escape("." if mark == "," else ",")
        whole_numbers = [number for number in numbers if number.isdigit()]
        marks = {"m": re.escape(mark), "o": other_mark}
        marked = [number for number in numbers if mark in number]
        ambiguous = [number for number in marked if re.fullmatch(_UNCLEAR % marks, number)]
        return cls(
            sum(re.fullmatch(_DECIMAL % marks, number) is not None for number in marked),
            sum(re.fullmatch(_GROUPS % marks, number) is not None for number in marked),
            ambiguous[0] if ambiguous else "",
            bool(marked) and all(re.fullmatch(_ANY_GROUPS % marks, n) for n in marked),
            bool(whole_numbers) and all(len(number) < 4 for number in whole_numbers),
            any(number.endswith("0") for number in ambiguous),
        )

    @property
    def surely_groups(self) -> bool:
        """Whether the mark separates thousands, judged by this column alone."""
        return self.are_groups and (bool(self.groups) or (self.beside_small and self.padded))


@dataclass(frozen=True)
class NumberMarks:
    """The marks of a table's numbers.

    Attributes:
        decimal: the decimal mark.
        thousands: the thousands separator; empty unless it is a point.
        guesses: by column, a number whose reading is a guess.
        known: whether other numbers make the decimal mark certain.
    """

    decimal: str
    thousands: str
    guesses: Mapping[str, str]
    known: bool

    @property
    def note(self) -> str:
        """A note on numbers that can be read in two ways, with a remedy."""
        (name, number), *others = self.guesses.items()
        mark = "," if "," in number else "."
        without_mark, as_decimal = number.replace(mark, ""), number.replace(mark, ".")
        reading, alternative = (
            (as_decimal, without_mark) if mark == self.decimal else (without_mark, as_decimal)
        )
        listed = visible(", ".join(column for column, _ in others), 60)
        more = f" (so are numbers of {listed})" if others else ""
        option = mark if alternative == as_decimal else {",": ".", ".": ","}[mark]
        way_out = f'give the decimal mark: --decimal "{option}"'
        if self.known:
            way_out = f"write it as {as_decimal.replace('.', self.decimal)} in the file"
        return (
            f"{visible(name, 60)}: {number!r} is read as {reading}, a guess{more}; if it means "
            f"{alternative}, {way_out}"
        )


def number_marks(columns: Mapping[str, Sequence[str]], sep: str) -> NumberMarks:
    """Return the decimal mark and the thousands separator of the numbers of a table.

    Numbers such as "1.234" can be read in two ways. If other numbers of the table have decimal
    commas, "1.234" is 1234 unless its own column contradicts. A column of "2.620", "1.225" and
    "973" has thousands separators, too; "1.234" alone is read with a decimal point. "1,234" alone
    is a decimal number if semicolons separate cells.

    Args:
        columns: some cells of every column of text.
        sep: what separates cells.

    Examples:
        >>> number_marks({"a": ["1.234,5", "2,25"]}, ";")
        NumberMarks(decimal=',', thousands='.', guesses={}, known=True)
        >>> number_marks({"a": ["1,234.5", "2.25"], "b": ["1.125"]}, ",")
        NumberMarks(decimal='.', thousands='', guesses={}, known=True)
        >>> number_marks({"a": ["2.709", "973", "1.225"], "b": ["1.125"], "c": ["2,5"]}, ";")
        NumberMarks(decimal=',', thousands='.', guesses={'b': '1.125'}, known=True)
    """
    commas = {name: _Marks.of(cells, ",") for name, cells in columns.items()}
    points = {name: _Marks.of(cells, ".") for name, cells in columns.items()}
    comma_decimals = sum(marks.decimals for marks in commas.values())
    comma_groups = sum(marks.groups for marks in commas.values())
    point_decimals = sum(marks.decimals for marks in points.values())
    is_known = comma_decimals > comma_groups
    groups_by_points = any(marks.surely_groups and (marks.groups or not point_decimals)
                    for marks in points.values())  # fmt: skip
    groups_by_commas = any(marks.surely_groups for marks in commas.values())
    has_unclear = any(marks.unclear for marks in commas.values()) and not (
        point_decimals or groups_by_commas
    )
    if is_known or (not comma_groups and (groups_by_points or (has_unclear and sep == ";"))):
        groups = any(marks.are_groups for marks in points.values())
        guesses = {name: marks.unclear for name, marks in points.items() if marks.are_groups
                   and not marks.groups and not (is_known and marks.beside_small)}  # fmt: skip
        if not is_known and not any(marks.groups for marks in points.values()):
            guesses |= {name: marks.unclear for name, marks in commas.items() if marks.unclear}
        return NumberMarks(",", "." if groups else "", guesses, is_known)
    if point_decimals or comma_groups:
        return NumberMarks(".", "", {}, True)
    guesses = {name: marks.unclear for side in (points, commas) for name, marks in side.items()
               if marks.are_groups and marks.unclear and not (side is commas
                                                              and marks.surely_groups)}  # fmt: skip
    return NumberMarks(".", "", guesses, False)


_SAMPLE_CELLS = 1000
"""Number of cells of a column from which the marks are detected."""


def marks_of_frame(frame: pd.DataFrame, sep: str) -> NumberMarks:
    """Return the marks of the numbers in a frame's columns of text; see `number_marks`."""
    columns = {
        name: frame[name]
        for name in frame.columns
        if pd.api.types.is_object_dtype(frame[name].dtype)
        or pd.api.types.is_string_dtype(frame[name].dtype)
    }
    samples = {
        name: [cell for cell in column.iloc[:_SAMPLE_CELLS] if isinstance(cell, str)]
        for name, column in columns.items()
    }
    marks = number_marks(samples, sep)
    if marks.decimal == "," and not marks.thousands:  # which may begin further below
        for name, column in columns.items():
            below = [cell for cell in column.iloc[_SAMPLE_CELLS:].unique() if isinstance(cell, str)]
            grouped = [cell for cell in below if re.search(r"\d\.\d{3}", cell)]
            samples[name] += grouped[:_SAMPLE_CELLS]
        marks = number_marks(samples, sep)
    return marks


def to_days(cells: pd.Series[Any], date_format: str = ISO) -> pd.Series[float]:
    """Return dates as days since 1970, NaN for cells without a date; times of day are ignored.

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
