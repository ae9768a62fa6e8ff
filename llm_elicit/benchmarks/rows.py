"""Rows on disk, one small Parquet file per job, so that a kill loses only unfinished jobs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from llm_elicit._util.packages import package_version
from llm_elicit.benchmarks import DEFAULT, Job, Row
from llm_elicit.benchmarks.targets import find
from llm_elicit.benchmarks.variants import variant

_FOLDER = "rows"


def key_of(job: Job) -> Row:
    """Return the key of a job's row: the job, its settings and the package's version.

    Example:
        >>> list(key_of(Job("table1", "Ring2D", "utility", seed=11, n=200)))[-2:]
        ['settings', 'version']
    """
    dimension = find([job.target])[0].dimension
    # The variants of these are judges, whose fits are all alike.
    name = DEFAULT if job.table in ("coverage", "faint") else job.variant
    settings = variant(job.method, name).digest(dimension)
    return {**asdict(job), "settings": settings, "version": package_version()}


class Rows:
    """The rows of a table in a folder: `<out>/<table>/rows/*.parquet`.

    A file is written under a temporary name and renamed, so that it is never incomplete. Its name
    has a hash of the job's key, so that the same job has the same file.

    Example:
        >>> import tempfile
        >>> job = Job("table1", "Ring2D", "utility", seed=11, n=200)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rows = Rows(Path(folder), "table1")
        ...     rows.write(job, {"w1": 0.25})
        ...     rows.has(job), rows.read([job])["w1"].tolist()
        (True, [0.25])
    """

    def __init__(self, out: Path, table: str) -> None:
        self.folder = out / table / _FOLDER
        self.folder.mkdir(parents=True, exist_ok=True)
        self.merged = out / f"{table}.parquet"

    def path(self, job: Job) -> Path:
        """Return the file of a job's row."""
        key = json.dumps(key_of(job), sort_keys=True)
        return self.folder / f"{job.name}-{hashlib.sha256(key.encode()).hexdigest()[:10]}.parquet"

    def has(self, job: Job) -> bool:
        """Return whether the job is done; one that failed is not."""
        path = self.path(job)
        return path.is_file() and _error(pd.read_parquet(path, columns=["error"])) is None

    def write(self, job: Job, row: Row, error: str | None = None) -> None:
        """Write a job's row, or its error in one line."""
        frame = pd.DataFrame([{**key_of(job), **row, "error": error}])
        _write(frame, self.path(job))

    def read(self, jobs: Iterable[Job]) -> pd.DataFrame:
        """Return the existing rows of these jobs, in this order."""
        paths = [path for path in map(self.path, jobs) if path.is_file()]
        if not paths:
            return pd.DataFrame()
        return pd.DataFrame([record for path in paths for record in _records(path)])

    def merge(self) -> Path:
        """Write all rows of the table, of these jobs and of others, into one Parquet file."""
        paths = sorted(self.folder.glob("*.parquet"))
        _write(pd.DataFrame([record for path in paths for record in _records(path)]), self.merged)
        return self.merged


def _error(frame: pd.DataFrame) -> str | None:
    value = frame["error"].iloc[0]
    return None if pd.isna(value) else str(value)


def _records(path: Path) -> list[dict[str, Any]]:
    return pd.read_parquet(path).to_dict("records")  # type: ignore[return-value]


def _write(frame: pd.DataFrame, path: Path) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    frame.to_parquet(beside)
    beside.replace(path)
