"""Fit and audit runs side by side, on Dask workers of this machine or of a cluster.

A belief is a task, and so is the audit of a run once its beliefs are there. A task holds what its
stage reads: campaign, feature space, table of answers, and for an audit the beliefs. So a worker
needs this package, but no disk in common with this process, no journal and no key. It returns the
files that the stage wrote, which this process writes into the run's folder, with their entries of
the manifest. `llm_elicit.pipeline.stages.make` then finds them up to date.

Fits use one thread, so beliefs are the same bit for bit as on one machine, if its processor and its
versions are the same. Dask gives the tasks of a worker that died to others.

`python -m llm_elicit.pipeline.cluster ADDRESS COUNT` starts workers that end with its standard
input. Unlike Dask's `LocalCluster` it does not run the script again that called `run_grid`.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from multiprocessing import forkserver
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from llm_elicit._util.packages import LazyModule, installed_versions
from llm_elicit.comparisons.table import sampling_of
from llm_elicit.errors import ElicitError, InputError
from llm_elicit.orchestrator.progress import SILENT, Progress, Silent
from llm_elicit.pipeline import run_folder
from llm_elicit.pipeline.manifest import FILE as MANIFEST
from llm_elicit.pipeline.manifest import Entry
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.pipeline.stage_process import StageFailedError, end_with_parent
from llm_elicit.pipeline.stages import check_files

if TYPE_CHECKING:
    from llm_elicit import density
else:
    density = LazyModule("llm_elicit.density")  # PyTorch, which asking does not need

Job = TypeVar("Job")
Result = TypeVar("Result")

_CONNECT_SECONDS, _START_SECONDS = 15, 300
_POLL_SECONDS = 0.5  # between two looks at whether the call was stopped
_WORTHWHILE = 40.0  # seconds of fits above which workers save more time than their start takes
_ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}


@dataclass(frozen=True)
class Outcome(Generic[Job, Result]):
    """The outcome of a job: its result, or the error that prevented it."""

    job: Job
    result: Result | None = None
    error: BaseException | None = None


class Workers:
    """Dask workers, until the end of a `with` block.

    Args:
        cluster: address of a Dask scheduler, `tcp://host:8786`, whose workers are used; anyone who
            reaches it can run code on them. None for processes of this machine.
        count: the number of processes of this machine.

    Raises:
        InputError: the count is less than 1, Dask is not installed, or no worker answers.

    Example (`tests/pipeline/test_cluster.py` runs it)::

        with Workers(count=2) as workers:
            make_beforehand(stages.plan_grid("grid"), "run", workers)
    """

    def __init__(self, cluster: str | None = None, count: int = 1) -> None:
        if count < 1:
            raise InputError(f"workers = {count}; at least 1 is needed")
        self._address, self._count = cluster, count
        self._open = ExitStack()
        self._client: Any = None

    def __enter__(self) -> Self:
        try:
            self._dask = import_module("distributed")
        except ModuleNotFoundError as error:
            raise InputError(
                f"{error.name} is not installed; run: pip install 'llm-elicit[cluster]'"
            ) from None
        with self._open:
            address = self._start() if self._address is None else self._address
            try:
                self._client = self._open.enter_context(
                    self._dask.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
                )
            except (OSError, ValueError) as error:
                reason = " ".join(str(error).split())
                raise InputError(f"no Dask scheduler answers at {address}: {reason}") from None
            here = self._address is None
            count, seconds = (self._count, _START_SECONDS) if here else (1, _CONNECT_SECONDS)
            try:
                self._client.wait_for_workers(count, timeout=seconds)
            except TimeoutError:
                raise InputError(
                    f"the Dask scheduler at {address} has no workers; start one for each core with "
                    f"`dask worker {address} --nthreads 1`"
                ) from None
            self._open = self._open.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _start(self) -> str:
        """Start a scheduler in this process and workers beside it; return its address."""
        folder = self._open.enter_context(TemporaryDirectory(ignore_cleanup_errors=True))
        scheduler = self._open.enter_context(
            self._dask.LocalCluster(
                n_workers=0, host="127.0.0.1", protocol="tcp://", local_directory=folder,
                dashboard_address="127.0.0.1:0", silence_logs=logging.CRITICAL,
            )
        )  # fmt: skip
        address = str(scheduler.scheduler_address)
        path = {"PYTHONPATH": os.pathsep.join(sys.path), "DASK_TEMPORARY_DIRECTORY": folder}
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, address, str(self._count)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, **_ONE_THREAD, **path},
            start_new_session=True,  # Ctrl-C reaches only this process, which ends its workers
        )  # fmt: skip
        self._open.callback(process.wait)
        self._open.callback(process.kill)
        return address

    @property
    def address(self) -> str:
        """The address of the scheduler."""
        return str(self._client.scheduler.address)

    @property
    def number(self) -> int:
        """The number of workers that answer now."""
        with self._answering():
            return len(self._client.nthreads())

    def run(
        self,
        function: Callable[[Job], Result],
        jobs: Iterable[Job],
        on_result: Callable[[Outcome[Job, Result]], Iterable[Job] | None],
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        """Call `function(job)` for every job, on any worker.

        Args:
            function: a function that workers can import.
            jobs: the jobs.
            on_result: called in this thread once for every job when it ends; it may return
                further jobs.
            on_wait: called about twice a second; what it raises stops the jobs.

        Raises:
            StageFailedError: the scheduler has ended.
        """
        pending: dict[Any, Job] = {}

        def submit(added: Iterable[Job]) -> None:
            with self._answering():
                for job in added:
                    pending[self._client.submit(function, job, pure=False)] = job

        def completed() -> list[Outcome[Job, Result]]:
            with self._answering(), self._client.as_current():
                with suppress(TimeoutError):
                    self._dask.wait(
                        list(pending), timeout=_POLL_SECONDS, return_when="FIRST_COMPLETED"
                    )
                ended = [future for future in pending if future.done()]
                return [self._outcome(pending.pop(future), future) for future in ended]

        try:
            submit(jobs)
            while pending:
                on_wait()
                for outcome in completed():
                    submit(on_result(outcome) or ())
        finally:
            with suppress(Exception):  # of a scheduler that has ended
                self._client.cancel(list(pending))

    def _outcome(self, job: Job, future: Any) -> Outcome[Job, Any]:
        error = future.exception()
        if isinstance(error, self._dask.KilledWorker):
            deaths = error.allowed_failures + 1
            error = StageFailedError(f"{deaths} workers died of it (out of memory?)")
        result = None if error else future.result()
        # A future lives until cycles of references are collected; until then the scheduler keeps
        # its result on the worker, and computes it again if that dies.
        future.release()
        return Outcome(job, result, error)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Turn errors of the connection inside the block into one of a line.

        Raises:
            StageFailedError: the scheduler does not answer.
        """
        try:
            yield
        except (OSError, CancelledError) as error:
            raise StageFailedError(
                f"the Dask scheduler at {self.address} has ended; run again to resume"
            ) from error


@contextmanager
def workers_at(cluster: str | None) -> Iterator[Workers | None]:
    """Yield the workers of a cluster; None without an address."""
    with nullcontext() if cluster is None else Workers(cluster) as workers:
        yield workers


def describe(error: BaseException) -> str:
    """Return an error in one line.

    Examples:
        >>> describe(ValueError("so many\\nlines"))
        'ValueError: so many lines'
    """
    text = " ".join(str(error).split())
    return text if isinstance(error, ElicitError) else f"{type(error).__name__}: {text}"


@dataclass(frozen=True)
class StageTask:
    """The fit of a belief, or the audit of a run, with all that it reads.

    Attributes:
        entry: the name in the manifest of the belief or the audit.
        runs: the run, or the runs that are fitted together.
        files: contents of their files, by path below the folder of the runs.
        versions: versions of the packages here, which a worker must have.
        details: for a fit the feature space, the judge, the method, and the index of the run whose
            belief is stale; for an audit how points were shown.
    """

    entry: str
    runs: tuple[Run, ...]
    files: Mapping[Path, bytes]
    versions: Mapping[str, str]
    details: tuple[Any, ...]

    @classmethod
    def of(cls, entry: str, runs: Sequence[Run], beliefs: Collection[Path], *details: Any) -> Self:
        """Read the files of a task, with those of beliefs by path below a run's folder."""
        for space in (run.space for run in runs if run.space.table is not None):
            if entry == "audit" or space.sampling != "uniform":
                space.table_points()  # a space has its rows with it once they were read
        names = [MANIFEST, run_folder.COMPARISONS, run_folder.DIRECT, run_folder.PEOPLE]
        paths = [Path(name) for name in (*names, run_folder.PLAN)]
        paths += [path / name for path in beliefs for name in run_folder.BELIEF]
        files = {
            Path(run.folder.name) / path: (run.folder / path).read_bytes()
            for run in runs
            for path in paths
            if (run.folder / path).is_file()
        }
        # Copies without the cached properties of a run, such as templates, which are not sent.
        plain = tuple(replace(run) for run in runs)
        return cls(entry, plain, files, installed_versions(), details)

    @property
    def label(self) -> str:
        """The name of the run and of what is made."""
        return f"{self.runs[0].folder.name}: {self.entry}"


@dataclass(frozen=True)
class StageFiles:
    """The files that a stage wrote.

    Attributes:
        entries: the manifest's entry of each run, in order; None where nothing was made.
        contents: contents of the files of each run, by path below the run's folder.
        notes: lines on judges.
    """

    entries: tuple[Entry | None, ...]
    contents: tuple[Mapping[str, bytes], ...]
    notes: tuple[tuple[str, str], ...]


class _Notes(Silent):
    """A progress that collects the notes and shows nothing."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def note(self, judge: str, line: str) -> None:
        """Collect a line."""
        self.lines.append((judge, line))


def make_files(task: StageTask) -> StageFiles:
    """Make a belief or an audit, in a temporary folder.

    Raises:
        InputError: a package here has another version.
    """
    from llm_elicit.pipeline import fit, results

    for package, version in task.versions.items():
        if installed_versions().get(package) != version:
            raise InputError(
                f"a worker has {package} {installed_versions().get(package)}, and this machine "
                f"{version}, so their results could differ; install the same version"
            )
    notes = _Notes()
    with TemporaryDirectory() as parent:
        for path, content in task.files.items():
            (Path(parent) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(parent) / path).write_bytes(content)
        runs = tuple(replace(run, folder=Path(parent) / run.folder.name) for run in task.runs)
        if task.entry == "audit":
            results.make_audit(runs[0], notes, "audit", *task.details)
        else:
            fit.fit_together(notes, runs, *task.details)
        entries = tuple(run.manifest.entry(task.entry) for run in runs)
        contents = tuple(
            {name: (run.folder / name).read_bytes() for name in entry.written} if entry else {}
            for run, entry in zip(runs, entries, strict=True)
        )
    return StageFiles(entries, contents, tuple(notes.lines))


def _write_files(task: StageTask, made: StageFiles, progress: Progress) -> None:
    """Write the files of a stage into the folders of the runs, and record them."""
    for line in made.notes:
        progress.note(*line)
    for run, entry, contents in zip(task.runs, made.entries, made.contents, strict=True):
        if entry is None:
            continue
        earlier = run.manifest.entry(task.entry) or Entry()
        for name in earlier.written.keys() - contents.keys():
            (run.folder / name).unlink(missing_ok=True)
        for name, content in contents.items():
            (run.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (run.folder / name).write_bytes(content)
        run.manifest.record(task.entry, entry.read, [run.folder / name for name in contents])


def add_fits(tasks: dict[tuple[object, ...], StageTask], run: Run, *, new: bool) -> None:
    """Add the fits of a run's stale beliefs to `tasks`; if `new`, also of beliefs not yet fitted.

    The keys of `tasks` are the folders of the runs that are fitted together, and the entry.
    """
    from llm_elicit.pipeline import fit

    due = run.manifest.stale(fit.reads(run), unknown=new)
    for together, judge, methods in fit.parts(run, due):
        space = fit.space_of(together)
        for method in methods:
            entry = run_folder.fit_of(judge, method)
            key = (*(item.folder for item in together), entry)
            if key not in tasks:
                belief = run.belief_folder(judge, method).relative_to(run.folder)
                details = space, judge, method, together.index(run)
                tasks[key] = StageTask.of(entry, together, [belief], *details)


def _audit_task(run: Run) -> StageTask:
    from llm_elicit.pipeline import results

    pairs = product((judge.name for judge in run.campaign.judges), run.campaign.fit.methods)
    beliefs = [run.belief_folder(*pair).relative_to(run.folder) for pair in pairs]
    return StageTask.of("audit", [run], beliefs, results.shown_text(run))


def make_beforehand(
    runs: Sequence[Run], goal: str, workers: Workers | None, progress: Progress = SILENT
) -> bool:
    """Fit and audit runs on workers, so that `make` finds their files up to date.

    Runs without answers, and errors of a fit or an audit, are left to `make`.

    Args:
        runs: the runs.
        goal: the stage that is to be made afterwards: "fit", "audit" or "report"; or "run", for
            which beliefs that were never fitted are fitted, too.
        workers: the workers; by default one for each core of this machine, if Dask is installed and
            they are worth their start.
        progress: receives every change; what it raises stops the work.

    Returns:
        Whether there were workers.

    Raises:
        StageFailedError: the workers of a task died; all others were done.
    """
    usable: list[Run] = []
    tasks: dict[tuple[object, ...], StageTask] = {}
    for run in runs:
        with suppress(ElicitError):
            check_files(run, goal, progress)
            if (run.folder / run_folder.COMPARISONS).is_file():
                add_fits(tasks, run, new=goal in ("fit", "run"))
                usable.append(run)
    fits, audited = list(tasks.values()), usable
    if goal == "fit":
        audited = []
    elif goal != "audit":
        from llm_elicit.pipeline.results import audit_reads

        fitted = {run.folder for task in fits for run in task.runs}
        audited = [
            run
            for run in usable
            if run.folder in fitted or run.manifest.stale(audit_reads(run), unknown=True)
        ]
    count = 0 if workers else _local_count(fits)
    if workers is None and count < 2:
        return False
    with nullcontext(workers) if workers else Workers(count=count) as available:
        _make_tasks(fits, audited, available, progress)
    return True


def _make_tasks(
    fits: Sequence[StageTask], audited: Sequence[Run], workers: Workers, progress: Progress
) -> None:
    """Run fits, and the audit of each run once its beliefs are there."""
    missing = Counter(run.folder for task in fits for run in task.runs)
    done, deaths = 0, []

    def audits_of(candidates: Iterable[Run]) -> list[StageTask]:
        return [_audit_task(run) for run in candidates if not missing[run.folder]]

    def take(outcome: Outcome[StageTask, StageFiles]) -> Iterable[StageTask]:
        nonlocal done
        done += 1
        task, error = outcome.job, outcome.error
        if outcome.result is not None:
            _write_files(task, outcome.result, progress)
            if task.entry != "audit":
                folders = [run.folder for run in task.runs]
                missing.subtract(folders)
                return audits_of(run for run in audited if run.folder in folders)
        elif isinstance(error, StageFailedError):
            deaths.append(f"{task.label}: {error}")
        return ()

    def show() -> None:
        label = "fits and audits" if audited else "fits"
        step = f"{workers.number} worker{'' if workers.number == 1 else 's'}"
        progress.stage(label, step, done, len(fits) + len(audited))

    workers.run(make_files, [*fits, *audits_of(audited)], take, show)
    if deaths:
        raise StageFailedError("; ".join(deaths))


def _local_count(fits: Sequence[StageTask]) -> int:
    """Return how many workers of this machine are worth their start; 0 without Dask."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    if cores < 2 or len(fits) < 2 or find_spec("distributed") is None:
        return 0
    seconds = 0.0
    for task in fits:
        space, judge, *_ = task.details
        answers = sum(run.judgments.get(judge, 0) for run in task.runs)
        seconds += density.estimate_seconds(answers // 2, sampling_of(space))
    return min(cores, len(fits)) if seconds > _WORTHWHILE else 0


async def _serve(address: str, count: int) -> None:
    """Run workers of a scheduler, each in a process that is started again if it dies.

    On Linux they are forks of one process, which imports what fits and audits need, once.
    """
    nanny = import_module("distributed").Nanny
    if sys.platform == "linux":
        import_module("dask").config.set(
            {"distributed.worker.multiprocessing-method": "forkserver"}
        )
        multiprocessing.set_forkserver_preload(
            ["distributed", "llm_elicit.pipeline.fit", "llm_elicit.pipeline.results"]
        )
        forkserver.ensure_running()
    nannies = [nanny(address, nthreads=1, memory_limit=None) for _ in range(count)]
    await asyncio.gather(*nannies)
    await asyncio.gather(*(worker.finished() for worker in nannies))


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
