"""The jobs of a table, running those that are not finished, and their rows on disk.

Each job has a small Parquet file of its own, so that a kill loses only unfinished jobs.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from benchmarks import DEFAULT, TABLES, Job, Row
from benchmarks.adaptive import measure_adaptive
from benchmarks.coverage import KINDS_OF_JUDGES, measure_coverage
from benchmarks.low_amplitude import (
    COHERENCE,
    COHERENCE_TARGETS,
    RESPONSES,
    measure_low_amplitude,
)
from benchmarks.marginal import measure_marginal
from benchmarks.measure import measure, reset_peak
from benchmarks.power import RANDOM_JUDGES, measure_power
from benchmarks.targets import PAPER_TARGETS, find
from benchmarks.variants import VARIANTS, check_names, variant
from llm_elicit._util.packages import package_version
from llm_elicit.density.methods import available_methods
from llm_elicit.errors import InputError
from llm_elicit.pipeline.cluster import Outcome, Workers, describe

_MARGINAL = [("protocol", DEFAULT)]
_WORK = {
    "marginalization": measure_marginal,
    "adaptive": measure_adaptive,
    "coverage": measure_coverage,
    "power": measure_power,
    "low-amplitude": measure_low_amplitude,
}
_PAIRS = {"low-amplitude": 50}
_WANTED = ("auto", "score", "score-constant", "utility", "flow")


class Progress(Protocol):
    """Receiver of the progress of `run_table`."""

    def stage(self, label: str, step: str, done: int, total: int) -> None:
        """Report that `done` of `total` jobs are finished."""
        ...

    def note(self, judge: str, line: str) -> None:
        """Report a message of one line."""
        ...


@dataclass(frozen=True)
class Request:
    """The jobs to run.

    Attributes:
        table: one of `TABLES`.
        targets, methods, variants: names; empty for the table's default.
        seeds: one job per seed.
        comparisons_per_feature: n = this times d; None for the table's own, 1000 as in the paper,
            but 50 for judges of low amplitude.
        points: of each sample of a Wasserstein distance; the paper has 15,000.

    Raises:
        InputError: a name is unknown or a number is out of range.

    Examples:
        >>> request = Request("table1", targets=("Ring2D",), methods=("utility",), seeds=(11, 12))
        >>> [(job.seed, job.n) for job in request.jobs()]
        [(11, 2000), (12, 2000)]
    """

    table: str
    targets: tuple[str, ...] = ()
    seeds: tuple[int, ...] = tuple(range(1, 11))
    methods: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    comparisons_per_feature: int | None = None
    points: int = 4000

    def __post_init__(self) -> None:
        if self.table not in TABLES:
            raise InputError(f"table {self.table!r} is unknown; choose from {', '.join(TABLES)}")
        if not self.seeds or min(self.seeds) < 0:
            raise InputError(f"seeds {self.seeds}; give at least one, none negative")
        if self.comparisons_per_feature is not None and self.comparisons_per_feature < 1:
            raise InputError(
                f"comparisons per feature = {self.comparisons_per_feature}; at least 1"
            )
        if not 2 <= self.points <= 25_000:
            raise InputError(f"points = {self.points}; it must lie in 2 … 25000")
        if self.methods and self.table not in ("table1", "runtime"):
            raise InputError(f"{self.table} has its own methods; leave --methods out")
        known: dict[str, Iterable[str]] = {
            "ablation": VARIANTS, "coverage": KINDS_OF_JUDGES, "power": RANDOM_JUDGES,
            "low-amplitude": RESPONSES,
        }  # fmt: skip
        if self.variants and self.table not in known:
            raise InputError(
                f"variants belong to ablation, coverage, power and low-amplitude; leave them out "
                f"of {self.table}"
            )
        find(self.targets)
        check_names(self.methods, available_methods(), "method")
        check_names(self.variants, known.get(self.table, ()), "variant")

    def jobs(self) -> list[Job]:
        """Return every job of the table, targets in the paper's order unless given."""
        coherence = bool(set(self.variants) & set(COHERENCE))
        of_table = find(COHERENCE_TARGETS) if coherence else list(PAPER_TARGETS)
        targets = find(self.targets) if self.targets else of_table
        each = self.comparisons_per_feature or _PAIRS.get(self.table, 1000)
        points = 0 if self.table == "runtime" else self.points
        return [
            Job(
                self.table,
                target.name,
                method,
                seed,
                each * target.dimension,
                variant,
                points,
            )
            for target in targets
            for method, variant in self._fits()
            for seed in self.seeds
        ]

    def _fits(self) -> list[tuple[str, str]]:
        """Return pairs of a method and a variant."""
        if self.table == "ablation":
            quick = [name for name, each in VARIANTS.items() if not each.slow]
            return [(VARIANTS[name].method, name) for name in self.variants or quick]
        if self.table == "marginalization":
            return _MARGINAL
        if self.table in ("adaptive", "coverage", "power", "low-amplitude"):
            return [("auto", name) for name in self.variants or [DEFAULT]]
        wanted = [name for name in _WANTED if name in available_methods()]
        return [(name, DEFAULT) for name in self.methods or wanted]


def key_of(job: Job) -> Row:
    """Return the key of a job's row: the job, its settings and the package's version.

    Examples:
        >>> list(key_of(Job("table1", "Ring2D", "utility", seed=11, n=200)))[-2:]
        ['settings', 'version']
    """
    dimension = find([job.target])[0].dimension
    # The variants of these are judges, whose fits are all alike.
    name = DEFAULT if job.table in ("coverage", "low-amplitude") else job.variant
    settings = variant(job.method, name).digest(dimension)
    return {**asdict(job), "settings": settings, "version": package_version()}


class Rows:
    """The rows of a table in a folder: `<out>/<table>/rows/*.parquet`.

    A file is written under a temporary name and renamed, so that it is never incomplete. Its name
    has a hash of the job's key, so that the same job has the same file.

    Examples:
        >>> import tempfile
        >>> job = Job("table1", "Ring2D", "utility", seed=11, n=200)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rows = Rows(Path(folder), "table1")
        ...     rows.write(job, {"w1": 0.25})
        ...     rows.has(job), rows.read([job])["w1"].tolist()
        (True, [0.25])
    """

    def __init__(self, out: Path, table: str) -> None:
        self.folder = out / table / "rows"
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


def run_table(
    request: Request, out: Path, progress: Progress, workers: Workers | None = None
) -> pd.DataFrame:
    """Run the unfinished jobs, write each row when it is finished, and return all rows.

    A failed job has a row with an error, and is run again with the table.

    Args:
        request: the table.
        out: the folder of the rows.
        progress: receives every change.
        workers: run the jobs; by default this process runs them one after the other.

    Raises:
        InputError: the workers cannot be reached.
        KeyboardInterrupt: the user stopped it; finished rows are kept.
    """
    jobs = request.jobs()
    rows = Rows(out, request.table)
    open_jobs = [job for job in jobs if not rows.has(job)]
    done = len(jobs) - len(open_jobs)
    progress.stage(request.table, "jobs", done, len(jobs))

    def keep(outcome: Outcome[Job, Row]) -> None:
        nonlocal done
        done += 1
        error = None if outcome.error is None else describe(outcome.error)
        rows.write(outcome.job, outcome.result or {}, error)
        if error:
            progress.note(outcome.job.name, error)
        progress.stage(request.table, outcome.job.name, done, len(jobs))

    try:
        work = partial(_measure, _WORK.get(request.table, measure))
        if workers is None:
            for job in open_jobs:
                try:
                    outcome = Outcome(job, work(job))
                except Exception as error:
                    outcome = Outcome(job, error=error)
                keep(outcome)
        elif open_jobs:
            with workers:
                workers.run(work, open_jobs, keep)
    finally:
        rows.merge()
    return rows.read(jobs)


def _measure(function: Callable[[Job], Row], job: Job) -> Row:
    """Return the row of a job; its peak of memory is its own."""
    reset_peak()
    return function(job)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return seeds from text such as ``"1-3,7"``.

    Raises:
        InputError: the text is not of this form.

    Examples:
        >>> parse_seeds("1-3,7")
        (1, 2, 3, 7)
    """
    found: list[int] = []
    for part in parse_names(text):
        low, dash, high = part.partition("-")
        try:
            found.extend(range(int(low), int(high if dash else low) + 1))
        except ValueError as error:
            raise InputError(f"seeds {text!r}; write them as 1-10 or 1,3,5") from error
    return tuple(dict.fromkeys(found))


def parse_names(text: str) -> tuple[str, ...]:
    """Return names separated by commas or spaces.

    Examples:
        >>> parse_names("score, utility")
        ('score', 'utility')
    """
    return tuple(text.replace(",", " ").split())
