"""CSV files: their separator, decimal mark and encoding, and their cells as text."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from llm_elicit._util.packages import LazyModule
from llm_elicit._util.sanitize import visible
from llm_elicit._util.settings import StrictModel
from llm_elicit.errors import InputError
from llm_elicit.spaces.encodings import charset, encoding_of

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = LazyModule("pandas")  # a process that only asks questions does without

_SAMPLE = 64_000
"""The characters from which the separator is found."""

Separator = Literal[",", ";", "\t", "|"]
_SEPARATORS: tuple[Separator, ...] = (",", ";", "\t", "|")


def _increasing_lines(lines: tuple[int, ...]) -> tuple[int, ...]:
    """Return numbers of lines, which must increase.

    Raises:
        ValueError: they do not.
    """
    if any(later <= line for line, later in pairwise((0, *lines))):
        raise ValueError("numbers of lines are whole, from 1, and increase; sort them")
    return lines


Lines = Annotated[tuple[int, ...], AfterValidator(_increasing_lines)]
_FIRST: Lines = (1,)


class Dialect(StrictModel):
    """How a table's file is written.

    Attributes:
        sep: what separates the cells of a CSV.
        decimal: the decimal mark.
        thousands: the thousands separator; groups of three digits after commas are read anyway
            where the decimal mark is a point.
        encoding: the encoding of a CSV's text, by a name that Python knows.
        header: the line with the names, counted from 1; of two lines, the second completes the
            names of the first. Lines above are no part of the table.
        left_out: lines below that are no cases, such as a total.
    """

    sep: Separator = ","
    decimal: Literal[".", ","] = "."
    thousands: Literal["", "."] = ""
    encoding: Annotated[str, AfterValidator(charset)] = "utf-8"
    header: Annotated[Lines, Field(min_length=1, exclude_if=lambda lines: lines == _FIRST)] = _FIRST
    left_out: Lines = Field(default=(), exclude_if=lambda lines: not lines)


def decoded(content: bytes, where: str, encoding: str = "") -> tuple[str, str]:
    """Return the text of a file and its encoding.

    Args:
        content: its bytes, not compressed.
        where: its name, for messages.
        encoding: its encoding; if empty, it is found from the bytes.

    Raises:
        InputError: its encoding is not clear, or it is no text.
    """
    try:
        encoding = charset(encoding) if encoding else encoding_of(content, where)
        text = content.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except ValueError as error:
        raise unreadable(where, error) from None
    if not text.strip():
        raise InputError(f"{where}: not a CSV that can be read: it is empty")
    if "\0" in text:
        raise InputError(f"{where}: not a CSV that can be read: it is not text")
    return text, encoding


def separator_of(text: str) -> Separator:
    r"""Return the separator with which most lines have as many cells as the first.

    Example:
        >>> separator_of("a;b\n1,5;2,5\n"), separator_of("a\tb\n1\t2\n"), separator_of("a\n1\n")
        (';', '\t', ',')
    """
    lines = text[:_SAMPLE].splitlines()[: -1 if len(text) > _SAMPLE else None]
    stated = stated_separator(text)
    if stated:
        return stated

    def consistent(sep: Separator) -> tuple[bool, float, int]:
        try:
            widths = Counter(len(row) for row in csv.reader(lines, delimiter=sep) if row)
        except csv.Error:
            return False, 0.0, 0
        if not widths:
            return False, 0.0, 0
        width, count = widths.most_common(1)[0]
        return width > 1, count / widths.total(), width

    return max(_SEPARATORS, key=consistent)


def stated_separator(text: str) -> Separator | None:
    r"""Return the separator that a first line for Excel states, None if there is no such line.

    Raises:
        InputError: it states one that is not read.

    Example:
        >>> stated_separator("sep=;\na;b\n"), stated_separator("a;b\n")
        (';', None)
    """
    stated = re.match(r'"?sep=(\t|[^\n"]*)"?[,;\t|]*\n', text, re.IGNORECASE)
    if stated is None:
        return None
    for sep in _SEPARATORS:
        if stated[1] in (sep, {"\t": "\\t"}.get(sep)) or (not stated[1] and sep in stated[0]):
            return sep
    raise InputError(
        f"the first line states the separator {stated[1]!r}; use a comma, a semicolon, a tab or |"
    )


def parse_csv(where: str, text: str, dialect: Dialect, **options: Any) -> pd.DataFrame:
    """Return the rows below the header line of a CSV.

    Args:
        where: its name, for messages.
        text: its text.
        dialect: how it is written; rows that it leaves out are there.
        options: passed to `pandas.read_csv`.

    Raises:
        InputError: it cannot be read, or a row has more cells than the header line.
    """
    above = dialect.header[0] - 1
    try:
        below = text.split("\n", above)[above]
        frame: pd.DataFrame = pd.read_csv(io.StringIO(below), sep=dialect.sep, **options)
    except IndexError:
        raise InputError(f"{where}: no line {above + 1}; correct dialect.header") from None
    except (ValueError, csv.Error) as error:
        line = re.sub(r"(?<=in line )\d+", lambda digits: str(int(digits[0]) + above), str(error))
        raise unreadable(where, line) from None
    if not isinstance(frame.index, pd.RangeIndex):
        # Without a name for each cell, pandas takes the first ones for names of rows.
        raise InputError(
            f"{where}: rows have more cells than the header line has names; give each column a "
            "name, or delete a separator at the end of rows"
        )
    return frame


def check_distinct(names: Iterable[str], where: str) -> None:
    """Refuse columns of one name.

    Raises:
        InputError: there are two.
    """
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise InputError(
            f"{where}: two columns are called {visible(twice, 100)!r}; give each a name of its own"
        )


def unreadable(where: str, error: Exception | str) -> InputError:
    """Return what to raise if a file cannot be read."""
    if isinstance(error, InputError):
        return error
    line = visible(" ".join(str(error).split()), 300)
    return InputError(f"{where}: not a CSV that can be read: {line}")


def check_short_rows(
    where: str, text: str, dialect: Dialect, frame: pd.DataFrame, left_out: Collection[int] = ()
) -> None:
    """Refuse rows with fewer cells than the header line.

    Args:
        where: the file's name, for messages.
        text: its text.
        dialect: how it is written.
        frame: its rows.
        left_out: lines that may be short.

    Raises:
        InputError: there is one; the message names its line.
    """
    last = frame.iloc[:, -1]
    if not len(frame) or not (last.isna() | (last.astype(str) == "")).any():
        return
    above = dialect.header[0] - 1
    reader = csv.reader(io.StringIO(text.split("\n", above)[above]), delimiter=dialect.sep)
    try:
        for number, row in enumerate(reader, dialect.header[0]):
            filled = any(cell.strip() for cell in row)
            if filled and len(row) < frame.shape[1] and number not in left_out:
                raise InputError(
                    f"{where}: line {above + reader.line_num} has {len(row)} cells, where the "
                    f"header line has {frame.shape[1]} names; add the missing cells, which may be "
                    "empty"
                )
    except csv.Error:
        return  # a cell longer than the module's limit; pandas has read it


_DECIMAL_COMMA = re.compile(r"[-+]?(?:\d+|\d{1,3}(?:\.\d{3})+),(?:\d{1,2}|\d{4,})|[-+]?0,\d+")
_GROUPS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+\.\d+|[-+]?\d{1,3}(?:,\d{3}){2,}")
_UNCLEAR = re.compile(r"[-+]?\d{1,3},\d{3}")
_POINT_GROUPS = re.compile(r"[-+]?\d{1,3}(?:\.\d{3})+(?:,\d+)?")


def decimal_of(columns: Sequence[Sequence[str]], sep: str) -> dict[str, str]:
    """Return the decimal mark and the thousands separator of the numbers of a table.

    Where "1,234" can mean both, it is a decimal number if semicolons separate cells.

    Args:
        columns: some cells of every column of text.
        sep: what separates cells.

    Example:
        >>> decimal_of([["1.234,5", "2,25"], ["a", "b"]], ";")
        {'decimal': ',', 'thousands': '.'}
        >>> decimal_of([["1,234.5", "2.25"]], ",")
        {'decimal': '.', 'thousands': ''}
    """
    comma = point = unclear = groups = 0
    for cells in columns:
        plain = [re.sub(r"[^\d.,+-]", "", cell) for cell in cells if re.search(r"\d", cell)]
        comma += sum(_DECIMAL_COMMA.fullmatch(cell) is not None for cell in plain)
        point += sum(_GROUPS.fullmatch(cell) is not None for cell in plain)
        unclear += sum(_UNCLEAR.fullmatch(cell) is not None for cell in plain)
        groups += sum(_POINT_GROUPS.fullmatch(cell) is not None for cell in plain)
    if comma <= point and not (unclear and not point and sep == ";"):
        return {"decimal": ".", "thousands": ""}
    return {"decimal": ",", "thousands": "." if groups else ""}
