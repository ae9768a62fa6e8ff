"""Files of stages, and the search path of templates, feature spaces and example campaigns.

A stage's file that cannot be read is an error of one line. The user's own folder (`./prompts`,
`./datasets`, `./examples`) comes before what the package ships, so that a file can be overridden by
copying and editing it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from llm_elicit._util.packages import pd
from llm_elicit._util.text import visible
from llm_elicit.errors import InputError, UnknownNameError, did_you_mean

T = TypeVar("T")


_WAY_OUT = "delete the file and rerun the stage that writes it"


def read_parquet(
    path: Path, columns: Sequence[str] = (), *, only: list[str] | None = None
) -> pd.DataFrame:
    """Read a Parquet file.

    Args:
        path: the file.
        columns: columns that the file must have.
        only: the columns to read; None for all.

    Raises:
        InputError: the file is not a complete Parquet file, or a column is missing.
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
        InputError: the file cannot be read, lacks a column, has an incomplete group of points, or a
            cell that is not a finite number.
    """
    table = read_parquet(path, names or ())
    table = table if names is None else table[list(names)]
    try:
        points = table.to_numpy(np.float64)
    except (ValueError, TypeError):
        points = np.full((1, 1), np.nan)
    if not len(points) or len(points) % multiple:
        groups = f" in groups of {multiple}" if multiple > 1 else ""
        raise InputError(f"{path}: {len(points)} rows, expected points{groups}; {_WAY_OUT}")
    if not np.isfinite(points).all():
        raise InputError(f"{path}: a cell is not a finite number; {_WAY_OUT}")
    return points


def read_json(path: Path, read: Callable[[bytes], T]) -> T:
    """Read a JSON file with the function `read`.

    Raises:
        InputError: the file cannot be read, or `read` raises an error.
    """
    try:
        return read(path.read_bytes())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:100]
        raise InputError(f"{path}: cannot be read ({reason}); {_WAY_OUT}") from None


def unfinished(path: Path) -> Path:
    """Return a new hidden path beside a file, to write to before renaming.

    It differs at each call: threads, and work that goes on after its caller was cancelled, must not
    write to the same path.

    Examples:
        >>> unfinished(Path("a.txt")) == unfinished(Path("a.txt"))
        False
    """
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")


_NOUNS = {"examples": "campaign", "prompts": "template", "datasets": "feature space"}
_PACKAGE = Path(__file__).parents[1]


def search_path(folder: str) -> list[Path]:
    """Return the folders that are searched for `folder`, in order.

    An installed wheel carries the files under `_data`; a checkout has them beside the package.
    """
    candidates = [Path.cwd() / folder, _PACKAGE / "_data" / folder, _PACKAGE.parent / folder]
    return [path for path in dict.fromkeys(candidates) if path.is_dir()]


def find(folder: str, name: str, suffix: str) -> Path:
    """Return the path of a file, given its path or its name in `folder`.

    Args:
        folder: "examples", "prompts" or "datasets".
        name: the path or name.
        suffix: the suffix of the file, such as ".yaml".

    Raises:
        InputError: there is no such file; the message lists the available names.

    Examples:
        >>> find("datasets", "california_housing", ".yaml").name
        'california_housing.yaml'
    """
    direct = Path(name)
    if direct.suffix == suffix and direct.is_file():
        return direct
    bare = name.removesuffix(suffix).removeprefix(f"{folder}/")
    for root in search_path(folder):
        path = root / f"{bare}{suffix}"
        if path.is_file():
            return path
    names = ", ".join(available(folder, suffix)) or "none"
    noun, quoted = _NOUNS.get(folder, folder), visible(repr(name), 200)
    if direct.is_dir():
        raise InputError(f"{quoted} is a folder; a {noun} is a {suffix} file")
    if direct.is_file():
        raise InputError(f"{quoted} is not a {noun}; name a {suffix} file")
    local_files = [path.name for path in Path().glob(f"*{suffix}")]
    candidates = [visible(file) for file in (*local_files, *available(folder, suffix))]
    guess = did_you_mean(name, candidates)
    raise UnknownNameError(
        f"no {noun} {quoted}: no {suffix} file of this name in this folder or in the package; "
        f"{guess}known: {names}"
    )


def available(folder: str, suffix: str) -> list[str]:
    """Return the names in `folder` that `find` accepts, sorted.

    Examples:
        >>> "penguins" in available("datasets", ".yaml")
        True
    """
    return sorted(
        {
            path.relative_to(root).with_suffix("").as_posix()
            for root in search_path(folder)
            for path in root.rglob(f"*{suffix}")
        }
    )
