"""CSV files: their separator, decimal mark and encoding, and their cells as text."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from llm_elicit._util.packages import LazyModule
from llm_elicit._util.sanitize import visible
from llm_elicit.config.base_model import StrictModel
from llm_elicit.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = LazyModule("pandas")  # a process that only asks questions does without

_BITS = 1000
"""Bits of a whole number that a float can nearly hold."""

_SAMPLE = 64_000
"""The characters from which the separator is found."""

Separator = Literal[",", ";", "\t", "|"]
_SEPARATORS: tuple[Separator, ...] = (",", ";", "\t", "|")


class Dialect(StrictModel):
    """How a CSV file is written.

    Attributes:
        sep: what separates cells.
        decimal: the decimal mark.
        thousands: the thousands separator; groups of three digits after commas are read anyway
            where the decimal mark is a point.
        encoding: the encoding of its text.
    """

    sep: Separator = ","
    decimal: Literal[".", ","] = "."
    thousands: Literal["", "."] = ""
    encoding: Literal["utf-8", "utf-16", "cp1252", "latin-1"] = "utf-8"


def read_text(path: Path, encoding: str | None = None) -> tuple[str, str]:
    """Return the text of a file, also compressed, and its encoding.

    Args:
        path: the file; .gz, .bz2, .xz, or a .zip of one file.
        encoding: its encoding; if None, UTF-8 or else the Western European one of Windows.

    Raises:
        InputError: it cannot be read, or is not text.
    """
    try:
        content = _content(path)
        if encoding is None:
            encoding = _encoding(content)
        text = content.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from None
    if not text.strip():
        raise InputError(f"{path}: not a CSV that can be read: it is empty")
    if "\0" in text:
        raise InputError(f"{path}: not a CSV that can be read: it is not text")
    return text, encoding


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix in _UNPACK:
        return _UNPACK[path.suffix](content)
    if path.suffix != ".zip":
        return content
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        if len(names) != 1:
            raise InputError(f"{path}: holds {len(names)} files; unpack it and name one")
        return archive.read(names[0])


_UNPACK = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}


def _encoding(content: bytes) -> str:
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    for encoding in ("utf-8", "cp1252"):
        try:
            content.decode(encoding)
        except UnicodeDecodeError:
            continue
        return encoding
    return "latin-1"


def separator_of(text: str) -> Separator:
    r"""Return the separator with which most lines have as many cells as the first.

    Example:
        >>> separator_of("a;b\n1,5;2,5\n"), separator_of("a\tb\n1\t2\n"), separator_of("a\n1\n")
        (';', '\t', ',')
    """
    lines = text[:_SAMPLE].splitlines()[: -1 if len(text) > _SAMPLE else None]

    def consistent(sep: Separator) -> tuple[bool, float, int]:
        try:
            rows = [row for row in csv.reader(lines, delimiter=sep) if row]
        except csv.Error:
            return False, 0.0, 0
        if not rows:
            return False, 0.0, 0
        width = len(rows[0])
        return width > 1, sum(len(row) == width for row in rows) / len(rows), width

    return max(_SEPARATORS, key=consistent)


def read_csv(path: Path, sep: str = ",", text: str | None = None, **options: Any) -> pd.DataFrame:
    """Read a CSV with a header line.

    Args:
        path: the file, also compressed.
        sep: what separates cells.
        text: its text, if it was read before; else it is read as UTF-8.
        options: passed to `pandas.read_csv`.

    Raises:
        InputError: it cannot be read, a row has more or fewer cells than the header line, two
            columns have one name, or it holds a number of hundreds of digits.
    """
    if text is None:
        text, encoding = read_text(path)
        if encoding != "utf-8":
            raise InputError(f"{path}: is not in UTF-8; save it again in that encoding")
    try:
        frame: pd.DataFrame = pd.read_csv(io.StringIO(text), sep=sep, **options)
        header = next((row for row in csv.reader(io.StringIO(text), delimiter=sep) if row), [])
    except (ValueError, csv.Error) as error:
        raise _unreadable(path, error) from None
    if not isinstance(frame.index, pd.RangeIndex):
        # Without a name for each cell, pandas takes the first ones for names of rows.
        raise InputError(
            f"{path}: rows have more cells than the header line has names; give each column a "
            "name, or delete a separator at the end of rows"
        )
    check_distinct([name.strip() for name in header], str(path))
    _check_short_rows(path, text, sep, frame)
    _check_integers(path, frame)
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


def _unreadable(path: Path, error: Exception) -> InputError:
    if isinstance(error, InputError):
        return error
    line = visible(" ".join(str(error).split()), 300)
    return InputError(f"{path}: not a CSV that can be read: {line}")


def _check_short_rows(path: Path, text: str, sep: str, frame: pd.DataFrame) -> None:
    """Refuse rows with fewer cells than the header line.

    Raises:
        InputError: there is one; the message names its line.
    """
    last = frame.iloc[:, -1]
    if not len(frame) or not (last.isna() | (last.astype(str) == "")).any():
        return
    reader = csv.reader(io.StringIO(text), delimiter=sep)
    try:
        for row in reader:
            if row and len(row) < frame.shape[1]:
                raise InputError(
                    f"{path}: line {reader.line_num} has {len(row)} cells, where the header line "
                    f"has {frame.shape[1]} names; add the missing cells, which may be empty"
                )
    except csv.Error:
        return  # a cell longer than the module's limit; pandas has read it


def _check_integers(path: Path, frame: pd.DataFrame) -> None:
    """Refuse whole numbers of hundreds of digits, which pandas keeps as Python's.

    Raises:
        InputError: there is one, which no float can hold.
    """
    for name in frame.columns[frame.dtypes == np.dtype("O")]:
        huge = frame[name].map(lambda cell: type(cell) is int and cell.bit_length() > _BITS)
        if huge.any():
            raise InputError(
                f"{path}: column {name!r} holds a whole number of too many digits; correct it, or "
                "give the column in a larger unit"
            )


def read_cells(path: Path, dialect: Dialect) -> list[list[str]]:
    """Read a CSV's cells as they are printed, the header line first, without blank lines."""
    text, _ = read_text(path, dialect.encoding)
    return [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=dialect.sep) if row]


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
