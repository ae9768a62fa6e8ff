"""Files as they lie on a disk: compressed, in an archive, or named as another format."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import PurePath

from llm_elicit._util.sanitize import visible
from llm_elicit.errors import InputError
from llm_elicit.spaces.csv_files import unreadable

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
"""The suffixes of files by how they begin."""

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
"""Whose format a suffix names that is not read."""

_SIDE_FILES = ("thumbs.db", "desktop.ini")
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


def unpacked(content: bytes, where: str) -> UnpackedFile:
    """Return a table's file without what it is packed in.

    Args:
        content: the bytes of the file.
        where: its name.

    Raises:
        InputError: it is damaged or of a format that is not read, or an archive of several tables.
    """
    suffix = PurePath(where).suffix.lower()
    if suffix in _UNREAD:
        raise _unread(where, suffix)
    started = next((of for start, of in _STARTS.items() if content.startswith(start)), "")
    try:
        if started in _UNPACK:
            inner = where.removesuffix(PurePath(where).suffix) if suffix in _UNPACK else where
            if PurePath(inner).suffix.lower() == ".tar":
                raise _unread(where, ".tar")
            return unpacked(_UNPACK[started](content), inner)
        if started == ".zip" and _is_archive(content):
            return _from_zip(content, where)
        if suffix in _UNPACK or suffix == ".zip":
            raise InputError(f"{where}: not a CSV that can be read: it is no {suffix[1:]} file")
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zipfile.BadZipFile,
            NotImplementedError, RuntimeError) as error:  # fmt: skip
        raise unreadable(where, error) from None
    if started and suffix not in READERS:
        return UnpackedFile(content, ".xlsx" if started == ".zip" else started)
    if suffix in (".xls", ".xlsx") and not started and b"\n" in content:  # text, named so
        return UnpackedFile(_text(content, where), "")
    if suffix in READERS:
        return UnpackedFile(content, suffix)
    return UnpackedFile(_text(content, where), "")


def _text(content: bytes, where: str) -> bytes:
    """Return the bytes of a text file that may be a CSV.

    Raises:
        InputError: it is a web page, or holds JSON.
    """
    start = content[:1000].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<table")):
        raise _unread(where, ".html")
    if re.match(rb'\[?\s*\{\s*"', start):
        raise InputError(f"{where}: holds JSON; save it as CSV, or name it .json")
    return content


def _unread(where: str, suffix: str) -> InputError:
    return InputError(
        f"{where}: {suffix} is {_UNREAD[suffix]} format, which is not read; save the table as CSV "
        "or Parquet"
    )


def _is_archive(content: bytes) -> bool:
    """Whether a zip is an archive, not a workbook of Excel or LibreOffice."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
    return "[Content_Types].xml" not in names and "mimetype" not in names


def _from_zip(content: bytes, where: str) -> UnpackedFile:
    """Return the one table of an archive; side files of systems and notes about it do not count.

    Raises:
        InputError: it holds no table, or several.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = [name for name in archive.namelist() if not _is_side_file(name)]
        known = [name for name in names if _is_table(name)]
        chosen = known if len(known) == 1 else names
        if len(chosen) != 1:
            listed = visible(", ".join(names), 200) or "none"
            raise InputError(f"{where}: holds {len(names)} files; unpack it and name one: {listed}")
        file = unpacked(archive.read(chosen[0]), chosen[0])
    return UnpackedFile(file.content, file.suffix, chosen[0] if len(names) > 1 else "")


def _is_side_file(name: str) -> bool:
    path = PurePath(name)
    hidden = path.name.startswith(".") or path.name.lower() in _SIDE_FILES
    return name.endswith("/") or hidden or "__MACOSX" in path.parts


def _is_table(name: str) -> bool:
    path = PurePath(name.lower())
    about = path.stem.startswith(("readme", "licen", "metadata", "about", "codebook"))
    return not about and path.suffix in _TABLES | set(READERS) | set(_UNPACK)
