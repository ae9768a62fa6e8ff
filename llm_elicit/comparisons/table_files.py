"""Files of the table of judgments: its columns, reading with checks, and writing."""

from __future__ import annotations

import csv
import datetime
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_elicit._util.files import unfinished
from llm_elicit._util.packages import LazyModule, pd
from llm_elicit._util.text import guard, unguard, visible
from llm_elicit.errors import InputError
from llm_elicit.spaces.csv_files import check_distinct, decode

if TYPE_CHECKING:
    import pyarrow
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    from llm_elicit.spaces.features import FeatureSpace
else:
    pyarrow = LazyModule("pyarrow")
    arrow_csv, parquet = LazyModule("pyarrow.csv"), LazyModule("pyarrow.parquet")

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
OPTIONAL = {
    "thinking": "string", "format": "string", "censored": "int64", "fingerprint": "string",
    "presentation": "string",
}  # fmt: skip
TYPES = {**COLUMNS, **OPTIONAL}
"""The types of the columns, but for those of the points."""


def read_frame(path: Path, space: FeatureSpace | None = None) -> tuple[pd.DataFrame, list[str]]:
    """Read and check a table.

    Args:
        path: the file.
        space: the feature space of its words and dates.

    Returns:
        The table and the names of its features.

    Raises:
        InputError: no such file, another suffix, not a comparison log, or not of this space.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; run the campaign first")
    readers: dict[str, Callable[[Path], pd.DataFrame]] = {
        ".parquet": pd.read_parquet, ".jsonl": _read_jsonl, ".csv": _read_csv,
    }  # fmt: skip
    if path.suffix not in readers:
        raise InputError(f"{path}: unknown format; use .parquet, .jsonl or .csv")
    try:
        frame = readers[path.suffix](path)
    except (OSError, ValueError, TypeError, AttributeError, pyarrow.ArrowException) as error:
        reason = visible(" ".join(str(error).split()), 200)
        raise InputError(
            f"{path}: cannot be read as a table: {reason}; write it again with `llm-elicit ask` "
            "or `llm-elicit export`"
        ) from None
    features = [str(name)[2:] for name in frame.columns if str(name).startswith("a_")]
    features = features if space is None else space.names
    points = check_columns(frame, features, str(path))
    worded = (
        {}
        if space is None
        else {
            f"{side}_{feature.name}": feature
            for side in "ab"
            for feature in space.features
            if feature.categories or feature.kind == "date"
        }
    )
    words = [name for name, feature in worded.items() if feature.categories]
    for name, kind in (TYPES | dict.fromkeys(points, "point")).items():
        if kind != "string" and name in frame.columns and name not in words:
            column = frame[name]
            if column.dtype == object or pd.api.types.is_string_dtype(column):
                frame[name] = _parse_column(column, kind)
    try:
        for name, feature in worded.items():  # which get the types of the feature space
            frame[name] = feature.read_column(frame[name])
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    _check_cells(frame, points, path)
    return frame, features


def check_columns(frame: pd.DataFrame, features: Sequence[str], source: str) -> list[str]:
    """Return the columns of the points, after checking that no column is missing.

    Raises:
        InputError: a column is missing, or there are no features.
    """
    points = [f"{side}_{name}" for side in "ab" for name in features]
    missing = [repr(name) for name in [*COLUMNS, *points] if name not in frame.columns]
    if missing or not features:
        column = [*missing, "of a feature (a_...)"][0]
        has = visible(", ".join(map(str, frame.columns)), 300)
        raise InputError(f"{source}: no column {column}; it has {has}; give a table of comparisons")
    return points


def _read_jsonl(path: Path) -> pd.DataFrame:
    # Not by pandas, which rounds numbers, and turns text into dates by the name of its column.
    with path.open(encoding="utf-8", newline="\n") as file:
        return pd.DataFrame([dict(json.loads(line)) for line in file if line.strip()])


def _read_csv(path: Path) -> pd.DataFrame:
    """Read every cell as text; empty cells without quotes are missing."""
    text, _ = decode(path.read_bytes(), str(path), "utf-8")
    names = next(csv.reader(io.StringIO(text, newline="")), [])
    check_distinct(names, str(path))
    content = text.encode()
    table = arrow_csv.read_csv(
        io.BytesIO(content),
        arrow_csv.ReadOptions(block_size=max(len(content), 1) + 1),
        arrow_csv.ParseOptions(newlines_in_values=True),
        arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pyarrow.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    return pd.DataFrame({
        name: pd.Series([None if cell is None else unguard(cell) for cell in cells], dtype=object)
        for name, cells in columns.items()
    })  # fmt: skip


def _parse_column(column: pd.Series[Any], kind: str) -> pd.Series[Any]:
    """Return a column of text as the values it spells, if every cell spells one."""
    for read in _READERS[kind]:
        with suppress(ValueError, TypeError, KeyError):
            return column.map(read, na_action="ignore").infer_objects()
    return column


_READERS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "bool": (lambda cell: {"true": True, "false": False}[str(cell).lower()],),
    "int64": (int, float),
    "float64": (float,),
    "point": (float, lambda cell: np.datetime64(datetime.date.fromisoformat(cell), "s")),
}


def _check_cells(frame: pd.DataFrame, points: Sequence[str], path: Path) -> None:
    """Check that every cell has the type of its column.

    Raises:
        InputError: a cell holds something else; the message names the first, with its row, counted
            from 1 below the header.
    """
    for name in points:
        if is_worded(frame[name]):
            _refuse(frame[name], frame[name].isna(), path, "missing")
            continue
        _check_column(frame[name], "float64", path)
        _refuse(frame[name], ~np.isfinite(frame[name].to_numpy(np.float64)), path, "not a number")
    for name, kind in TYPES.items():
        if name in frame.columns:
            _check_column(frame[name], kind, path)
    for name, values in {"order": ("ab", "ba"), "verdict": VERDICTS}.items():
        _refuse(frame[name], ~frame[name].isin(values), path, f"none of {', '.join(values)}")
    if "censored" in frame.columns:
        _refuse(frame["censored"], ~frame["censored"].isin((-1, 0, 1)), path, "none of -1, 0, 1")
    p = frame["probability"].astype(np.float64)
    _refuse(p, p.notna() & ~p.between(0, 1), path, "not a probability between 0 and 1")
    optional = frame.columns.intersection(["format", "presentation"])
    is_repeated = frame.duplicated(["judge", "pair", "order", "replicate", *optional])
    rule = "a second answer of one judge to the same pair, order and replicate"
    _refuse(frame["pair"], is_repeated, path, rule)


def is_worded(column: pd.Series[Any]) -> bool:
    """Return whether a point's column holds words or dates: any but numbers."""
    if column.dtype.kind in "iuf":
        return False
    if isinstance(column.dtype, pd.CategoricalDtype) or column.dtype.kind == "M":
        return True
    return bool(pd.to_numeric(column, errors="coerce").isna().all())


def _check_column(column: pd.Series[Any], kind: str, path: Path) -> None:
    """Check that the cells of a column are of its type."""
    if kind == "string":
        is_required = column.name in ("judge", "order", "verdict", "template")
        if not pd.api.types.is_string_dtype(column):
            text = column.map(lambda cell: isinstance(cell, str)).to_numpy(bool)
            _refuse(column, ~text & (column.notna() | is_required), path, "not text")
        if is_required:
            _refuse(column, column.isna(), path, "not text")
    elif column.dtype == kind:
        return
    elif kind == "bool":
        # One bad cell turns a whole column into text; that cell is reported first.
        for allowed in ((True, False, "True", "False"), (True, False)):
            _refuse(column, ~column.isin(allowed), path, "neither true nor false")
    else:
        numbers = pd.to_numeric(column, errors="coerce")
        _refuse(column, numbers.isna() & column.notna(), path, "not a number")
        if kind == "int64":
            _refuse(column, ~(numbers % 1 == 0), path, "not a whole number")


def _refuse(column: pd.Series[Any], bad: Any, path: Path, rule: str) -> None:
    """Check that a column has no bad cell.

    Raises:
        InputError: it has; the message names the first one.
    """
    rows = np.flatnonzero(np.asarray(bad, dtype=bool))
    if rows.size:
        value = column.iloc[rows[0]]
        # The number itself, and not the name of its NumPy type.
        cell = visible(repr(value.item() if isinstance(value, np.generic) else value), 100)
        more = f" ({rows.size:,} such cells)" if rows.size > 1 else ""
        raise InputError(
            f"{path}: column {column.name!r}, row {rows[0] + 1}: {cell} is {rule}{more}; correct "
            "the cell, or write the table again with `llm-elicit ask` or `llm-elicit export`"
        )


def write_frames(frames: Iterable[pd.DataFrame], path: Path) -> Path:
    """Write a table to a file, part by part, so that only one part is in memory at a time.

    Args:
        frames: successive rows of the table; at least one part, which may be empty.
        path: the file, replaced only when the table is complete. Its suffix gives the format.

    Raises:
        InputError: another suffix, or the file cannot be written.
    """
    writers = {".parquet": _write_parquet, ".jsonl": _write_jsonl, ".csv": _write_csv}
    if path.suffix not in writers:
        raise InputError(f"{path}: unknown format; use .parquet, .jsonl or .csv")
    temporary = unfinished(path)
    try:
        writers[path.suffix](frames, temporary)
        temporary.replace(path)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror or error}); check the path, its "
            "permissions and the disk's space"
        ) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return path


def _write_parquet(frames: Iterable[pd.DataFrame], path: Path) -> None:
    tables = (pyarrow.Table.from_pandas(frame, preserve_index=False) for frame in frames)
    first = next(tables)
    with parquet.ParquetWriter(path, first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table)


def _write_jsonl(frames: Iterable[pd.DataFrame], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for frame in frames:
            file.writelines(f"{row}\n" for row in json_rows(frame))


def json_rows(frame: pd.DataFrame) -> Iterator[str]:
    """Yield each row as JSON, with all digits of numbers; missing cells are null.

    Examples:
        >>> import pandas as pd
        >>> list(json_rows(pd.DataFrame({"x": [1.72e-11], "kind": pd.Series(["é"])})))
        ['{"x": 1.72e-11, "kind": "é"}']
    """
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    columns = [plain_cells(column) for _, column in frame.items()]
    for row in zip(*columns, strict=True):
        yield encode(dict(zip(frame.columns, row, strict=True)))


def plain_cells(column: pd.Series[Any]) -> list[Any]:
    """Return the cells of a column as JSON has them: words, dates as text, numbers, None."""
    cells = _without_times(column).astype(object)
    return cells.where(cells.notna(), None).tolist()


def _without_times(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column of dates as text, and any other as it is."""
    if column.dtype.kind != "M":
        return column
    return pd.Series(column.to_numpy("datetime64[D]").astype(str), index=column.index)


def _write_csv(frames: Iterable[pd.DataFrame], path: Path) -> None:
    """Write text in quotes, so that an empty text is not a missing one; no text is a formula."""

    def guarded(column: pd.Series[Any]) -> pd.Series[Any]:
        column = _without_times(column)
        if column.dtype.kind in "iufb":
            return column
        return column.astype(object).map(guard, na_action="ignore").astype("string")

    cells = (
        pd.DataFrame({name: guarded(column) for name, column in frame.items()}) for frame in frames
    )
    tables = (pyarrow.Table.from_pandas(frame, preserve_index=False) for frame in cells)
    first = next(tables)
    with arrow_csv.CSVWriter(path, first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table.cast(first.schema))
