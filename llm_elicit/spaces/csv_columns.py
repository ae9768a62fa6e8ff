"""CSV files: checked tables, columns of numbers, and columns of words as codes."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_elicit._util.packages import LazyModule
from llm_elicit._util.sanitize import visible
from llm_elicit.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = LazyModule("pandas")  # a process that only asks questions does without


_BITS = 1000
"""Bits of a whole number that a float can nearly hold."""


def read_csv(path: Path, **options: Any) -> pd.DataFrame:
    """Read a CSV with a header line.

    Args:
        path: the file, also gzipped.
        options: passed to `pandas.read_csv`.

    Raises:
        InputError: it cannot be read, a row has more or fewer cells than the header line, two
            columns have one name, or cells are not separated by commas.
    """
    try:
        frame: pd.DataFrame = pd.read_csv(path, **options)
        header = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False)
        short = _first_short_row(path, header.shape[1])
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not in UTF-8; save it again in that encoding") from None
    except (ValueError, OSError, EOFError, zlib.error) as error:
        line = visible(" ".join(str(error).split()), 300)
        raise InputError(f"{path}: not a CSV that can be read: {line}") from None
    if not isinstance(frame.index, pd.RangeIndex):
        # Without a name for each cell, pandas takes the first ones for names of rows.
        raise InputError(
            f"{path}: rows have more cells than the header line has names; give each column a "
            "name, or delete a comma at the end of rows"
        )
    names = [name.strip() for name in header.iloc[0]]
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice:
        raise InputError(
            f"{path}: two columns are called {twice[0]!r}; give each a name of its own"
        )
    if len(names) == 1 and re.search("[;\t]", names[0]):
        raise InputError(
            f"{path}: one column, {visible(names[0], 100)!r}; save it with commas between cells"
        )
    if short is not None:
        raise InputError(
            f"{path}: line {short[0]} has {short[1]} cells, where the header line has "
            f"{len(names)} names; add the missing cells, which may be empty"
        )
    for name in frame.columns[frame.dtypes == np.dtype("O")]:
        # pandas keeps whole numbers of hundreds of digits as Python's, which no float can hold.
        huge = frame[name].map(lambda cell: type(cell) is int and cell.bit_length() > _BITS)
        if huge.any():
            raise InputError(
                f"{path}: column {name!r} holds a whole number of too many digits; correct it, or "
                "give the column in a larger unit"
            )
    return frame


def read_cells(path: Path) -> list[list[str]]:
    """Read a CSV's cells as they are printed, the header line first, without blank lines.

    Args:
        path: the file, also gzipped.
    """
    return [row for _, row in _rows(path)]


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """Read the rows of a CSV, each with the number of its last line."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    reader = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""))
    return [(reader.line_num, row) for row in reader if row]


def _first_short_row(path: Path, width: int) -> tuple[int, int] | None:
    """Return the line and the length of the first row with fewer cells than `width`."""
    if path.suffix not in (".csv", ".gz"):
        return None
    try:
        rows = _rows(path)
    except csv.Error:
        return None  # a cell longer than the module's limit; pandas has read it
    return next(((line, len(row)) for line, row in rows if len(row) < width), None)


def read_columns(path: Path, columns: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Read columns of a CSV as floats; empty cells are NaN.

    Args:
        path: the file, also gzipped.
        columns: the words that each column may hold, by its name; the index of a word is its
            code. Columns of numbers have none.

    Raises:
        InputError: a column is missing, a column of numbers holds text, or a column of words
            holds another word; the message names column and line.
    """
    frame = read_csv(path)
    numbers = [name for name, words in columns.items() if not words]
    found = numeric_columns(frame, numbers, str(path))
    words = {name: some for name, some in columns.items() if some}
    _check_present(frame, list(words), str(path))
    if words:
        # As text: "4" must not become 4.0, and "NA" may stand for North America.
        written = read_csv(path, usecols=list(words), dtype=str, keep_default_na=False)
        for name, some in words.items():
            found[name] = word_codes(written[name], frame[name].isna(), some, str(path))
    return found[list(columns)]


def numeric_columns(frame: pd.DataFrame, names: list[str], where: str) -> pd.DataFrame:
    """Return the columns `names` as floats.

    Raises:
        InputError: a column is missing, or a cell holds text; the message names column and line.
    """
    _check_present(frame, names, where)
    out = {}
    for name in names:
        column = pd.to_numeric(frame[name], errors="coerce")
        bad = column.isna() & frame[name].notna()
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise InputError(
                f"{where}: column {name!r}, line {row + 2}: {frame[name].iloc[row]!r} is not a "
                "number; correct the cell or leave the column out"
            )
        out[name] = column.astype(float)
    return pd.DataFrame(out, index=frame.index)


def word_codes(
    written: pd.Series[str], empty: pd.Series[bool], words: Sequence[str], where: str
) -> pd.Series[float]:
    """Return the index of each cell among `words`, ignoring blanks around it; NaN if `empty`.

    Raises:
        InputError: a cell that is not empty holds no such word; the message names column and line.

    Example:
        >>> cells = pd.Series([" 4", "8", "", "4"], name="cylinders")
        >>> word_codes(cells, cells == "", ["4", "6", "8"], "cars.csv").tolist()
        [0.0, 2.0, nan, 0.0]
    """
    stripped = written.str.strip()
    codes = stripped.map({word: float(code) for code, word in enumerate(words)})
    bad = codes.isna() & ~empty & (stripped != "")
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"{where}: column {written.name!r}, line {row + 2}: {stripped.iloc[row]!r} is none "
            f"of its categories; known: {', '.join(words)}"
        )
    return codes.astype(float)


def _check_present(frame: pd.DataFrame, names: list[str], where: str) -> None:
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise InputError(f"{where}: no column {missing[0]!r}; it has {', '.join(frame.columns)}")
