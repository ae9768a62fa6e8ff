"""Files of the table of judgments: its columns, reading with checks, and writing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_elicit._util.packages import LazyModule
from llm_elicit._util.sanitize import guard, unguard, visible
from llm_elicit.errors import InputError
from llm_elicit.spaces.csv_files import read_csv

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow
    from pyarrow import parquet
else:
    pd, pyarrow, parquet = (
        LazyModule("pandas"),
        LazyModule("pyarrow"),
        LazyModule("pyarrow.parquet"),
    )

VERDICTS = ("A", "B", "tie", "refusal", "truncated", "unparsable")

COLUMNS = {
    "judge": "string",
    "pair": "int64",
    "order": "string",
    "replicate": "int64",
    "template": "string",
    "prompt_hash": "string",
    "model_asked": "string",
    "model_answered": "string",
    "reply": "string",
    "verdict": "string",
    "probability": "float64",
    "soft": "bool",
    "letter_mass": "float64",
    "prompt_tokens": "int64",
    "completion_tokens": "int64",
    "cached_tokens": "int64",
    "cost": "float64",
    "latency": "float64",
    "attempts": "int64",
    "cached": "bool",
    "asked_at": "string",
}
OPTIONAL = {"thinking": "string", "format": "string"}
_TYPES = {**COLUMNS, **OPTIONAL}


def read_frame(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Read and check a table.

    Returns:
        The table and the names of its features.

    Raises:
        InputError: no such file, another suffix, or not a comparison log.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; run the campaign first")
    if path.suffix not in (".parquet", ".jsonl", ".csv"):
        raise InputError(f"{path}: unknown format; use .parquet, .jsonl or .csv")
    try:
        frame = _read(path)
    except (OSError, ValueError, TypeError, AttributeError, pyarrow.ArrowException) as error:
        reason = visible(" ".join(str(error).split()), 200)
        raise InputError(
            f"{path}: not a table that can be read: {reason}; write it again, by the stage "
            "`ask` or by `llm-elicit export`"
        ) from None
    features = [str(name)[2:] for name in frame.columns if str(name).startswith("a_")]
    _check_cells(frame, features, path)
    return frame, features


def _read(path: Path) -> pd.DataFrame:
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    if path.suffix == ".jsonl":
        return pd.read_json(path, lines=True, dtype=False)
    # Text stays text: a reply "NA" is not missing, and a hash of digits is not a number.
    text = {name: "string" for name, kind in _TYPES.items() if kind == "string"}
    gaps = {name: [""] for name in ("probability", "letter_mass", "cost")}
    return _each_text(read_csv(path, dtype=text, keep_default_na=False, na_values=gaps), unguard)


def _check_cells(frame: pd.DataFrame, features: list[str], path: Path) -> None:
    """Check that every cell has the type of its column.

    Raises:
        InputError: a column is missing, or a cell holds something else; the message names the
            first, with its row, counted from 1 below the header.
    """
    points = [f"{side}_{name}" for side in "ab" for name in features]
    missing = [name for name in [*COLUMNS, *points] if name not in frame.columns]
    if missing or not features:
        named = repr(missing[0]) if missing else "of a feature (a_...)"
        raise InputError(f"{path}: no column {named}; is this a table of comparisons?")
    for name in points:
        _check_column(frame[name], "float64", path)
        _refuse(frame[name], ~np.isfinite(frame[name].to_numpy(np.float64)), path, "no number")
    for name, kind in _TYPES.items():
        if name in frame.columns:
            _check_column(frame[name], kind, path)
    for name, known in {"order": ("ab", "ba"), "verdict": VERDICTS}.items():
        _refuse(frame[name], ~frame[name].isin(known), path, f"none of {', '.join(known)}")
    p = frame["probability"]
    _refuse(p, p.notna() & ~p.between(0, 1), path, "no probability between 0 and 1")
    question = ["judge", "pair", "order", "replicate", *frame.columns.intersection(["format"])]
    again = frame.duplicated(question)
    _refuse(frame["pair"], again, path, "answered twice by one judge in one order and replicate")


def _check_column(column: pd.Series[Any], kind: str, path: Path) -> None:
    """Check that the cells of a column are of its type."""
    if kind == "string":
        needed = column.name in ("judge", "order", "verdict", "template")
        if not pd.api.types.is_string_dtype(column):
            text = column.map(lambda cell: isinstance(cell, str)).to_numpy(bool)
            _refuse(column, ~text & (column.notna() | needed), path, "no text")
        _refuse(column, column.isna() & needed, path, "no text")
    elif kind == "bool":
        # One bad cell turns a whole column into text; that cell is reported first.
        for known in ((True, False, "True", "False"), (True, False)):
            _refuse(column, ~column.isin(known), path, "neither true nor false")
    else:
        numbers = pd.to_numeric(column, errors="coerce")
        _refuse(column, numbers.isna() & column.notna(), path, "no number")
        if kind == "int64":
            _refuse(column, ~(numbers % 1 == 0), path, "no whole number")


def _refuse(column: pd.Series[Any], bad: Any, path: Path, rule: str) -> None:
    """Raise the error of the first bad cell of a column, if there is any."""
    rows = np.flatnonzero(np.asarray(bad, dtype=bool))
    if rows.size:
        cell = visible(repr(column.iloc[rows[0]]), 100)
        more = f" ({rows.size:,} such cells)" if rows.size > 1 else ""
        raise InputError(
            f"{path}: column {column.name!r}, row {rows[0] + 1}: {cell} is {rule}{more}; correct "
            "it, or have the run write the table again"
        )


def write_frames(frames: Iterable[pd.DataFrame], path: Path) -> Path:
    """Write a table to a file, part by part, so that only one part is in memory at a time.

    Args:
        frames: successive rows of the table; at least one part, which may be empty.
        path: the file, replaced only when the table is complete. Its suffix gives the format.

    Raises:
        InputError: another suffix, or the file cannot be written.
    """
    ways = {".parquet": _write_parquet, ".jsonl": _write_jsonl, ".csv": _write_csv}
    if path.suffix not in ways:
        raise InputError(f"{path}: unknown format; use .parquet, .jsonl or .csv")
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")  # other processes write theirs
    try:
        ways[path.suffix](frames, unfinished)
        unfinished.replace(path)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror or error}); check the path, its "
            "permissions and the disk's space"
        ) from None
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return path


def _write_parquet(frames: Iterable[pd.DataFrame], path: Path) -> None:
    tables = (pyarrow.Table.from_pandas(frame, preserve_index=False) for frame in frames)
    first = next(tables)
    with parquet.ParquetWriter(path, first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table)


def _write_jsonl(frames: Iterable[pd.DataFrame], path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for frame in frames:
            if len(frame):  # pandas writes an empty line for an empty table
                frame.to_json(file, orient="records", lines=True, force_ascii=False)


def _write_csv(frames: Iterable[pd.DataFrame], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        for number, frame in enumerate(frames):
            _each_text(frame, guard).to_csv(file, index=False, header=number == 0)


def _each_text(frame: pd.DataFrame, change: Callable[[str], str]) -> pd.DataFrame:
    """Return the table with a function applied to every text."""
    texts = [name for name, kind in _TYPES.items() if kind == "string" and name in frame.columns]
    return frame.assign(**{name: frame[name].map(change, na_action="ignore") for name in texts})
