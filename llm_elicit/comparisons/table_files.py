"""Files of the table of judgments: its columns, checks of what is read, and writing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_elicit._util.files import unfinished
from llm_elicit._util.packages import LazyModule
from llm_elicit._util.text import guard, visible
from llm_elicit.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet
else:
    pd, pyarrow = LazyModule("pandas"), LazyModule("pyarrow")
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


def check_cells(frame: pd.DataFrame, features: Sequence[str], path: Path) -> None:
    """Check the cells of a table that was read from a file.

    Raises:
        InputError: a cell breaks a rule; the message names the first, with its row, counted from 1.
    """
    question = ["judge", "pair", "order", "replicate"]
    question += frame.columns.intersection(["format", "presentation"]).tolist()
    probability = frame["probability"]
    points = [frame[f"{side}_{name}"] for side in "ab" for name in features]
    is_text = pd.api.types.is_string_dtype
    rules = [
        *((p.name, p.isna() | is_text(p.dtype), "no value of its feature") for p in points),
        ("order", ~frame["order"].isin(("ab", "ba")), "none of ab, ba"),
        ("verdict", ~frame["verdict"].isin(VERDICTS), f"none of {', '.join(VERDICTS)}"),
        (
            "probability",
            probability.notna() & ~probability.between(0, 1),
            "not a probability between 0 and 1",
        ),
        (
            "pair",
            frame.duplicated(question),
            "a second answer of one judge to the same pair, order and replicate",
        ),
    ]
    for name, broken, rule in rules:
        rows = np.flatnonzero(broken)
        if rows.size:
            cell = visible(str(frame[name].iloc[rows[0]]), 100)
            raise InputError(
                f"{path}: column {name!r}, row {rows[0] + 1}: {cell} is {rule}; write the table "
                "again with `llm-elicit ask`"
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


def _write_tables(frames: Iterable[pd.DataFrame], path: Path, writer: Any) -> None:
    tables = (pyarrow.Table.from_pandas(frame, preserve_index=False) for frame in frames)
    first = next(tables)
    with writer(path, first.schema) as file:
        for table in chain([first], tables):
            file.write_table(table.cast(first.schema))


def _write_parquet(frames: Iterable[pd.DataFrame], path: Path) -> None:
    _write_tables(frames, path, parquet.ParquetWriter)


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
    _write_tables(cells, path, arrow_csv.CSVWriter)
