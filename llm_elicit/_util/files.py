"""Files of stages: reading those of earlier ones, and where new ones are written.

A file that cannot be read is an error of one line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from llm_elicit._util.packages import LazyModule
from llm_elicit.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = LazyModule("pandas")
import uuid

T = TypeVar("T")


_WAY_OUT = "delete it and run the stage that writes it again"


def read_parquet(
    path: Path, columns: Sequence[str] = (), *, only: list[str] | None = None
) -> pd.DataFrame:
    """Read a Parquet file.

    Args:
        path: the file.
        columns: columns that it must have.
        only: the columns to read; None for all.

    Raises:
        InputError: it is not a complete Parquet file, or a column is missing.
    """
    import pyarrow as pa  # noqa: PLC0415 - asking does not need it

    try:
        table = pd.read_parquet(path, columns=only)
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:100]
        raise InputError(f"{path}: cannot be read ({reason}); {_WAY_OUT}") from None
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise InputError(f"{path}: no column {missing[0]!r}; {_WAY_OUT}")
    return table


def read_points(
    path: Path, names: Sequence[str] | None = None, multiple: int = 1
) -> NDArray[np.float64]:
    """Read points `(n, d)` from a Parquet file with one column per feature.

    Args:
        path: the file.
        names: the features; None for all columns.
        multiple: the size of the groups of points.

    Raises:
        InputError: it cannot be read, lacks a column, or does not hold complete groups of points.
    """
    table = read_parquet(path, names or ())
    table = table if names is None else table[list(names)]
    try:
        points = table.to_numpy(np.float64)
    except (ValueError, TypeError):
        points = np.full((1, 1), np.nan)
    if not len(points) or len(points) % multiple or not np.isfinite(points).all():
        raise InputError(f"{path}: holds {len(points)} rows, not all of them points; {_WAY_OUT}")
    return points


def read_json(path: Path, read: Callable[[bytes], T]) -> T:
    """Read a JSON file with the function `read`.

    Raises:
        InputError: it cannot be read, or `read` refuses it.
    """
    try:
        return read(path.read_bytes())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:100]
        raise InputError(f"{path}: cannot be read ({reason}); {_WAY_OUT}") from None


def unfinished(path: Path) -> Path:
    """Return a hidden path beside a file, another one at each call.

    Threads of one process, and work that goes on after its caller was cancelled, write theirs.

    Examples:
        >>> unfinished(Path("a.txt")) == unfinished(Path("a.txt"))
        False
    """
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
