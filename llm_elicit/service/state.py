"""What the routes of one service share: its workers, its counts, and its runs.

Work that would block the event loop is done in processes of its own with a limit on its time.
Drafting a space, planning a campaign and evaluating a belief import PyTorch and pandas and compute
for seconds, in part without releasing Python's lock, so threads would not do. A process that takes
too long is killed.

The counts are what Prometheus reads at `/metrics`: requests, watchers, and the running campaigns.

The runs are those of this process, and the others in its folder. Runs of other processes, such as
those of `llm-elicit run` or of another service with the same folder, can be watched and asked to
pause, to go on and to stop through their journals.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sys
import threading
import time
from collections import Counter as Tally
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from functools import lru_cache, partial
from importlib import import_module
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import anyio
from anyio import BrokenWorkerProcess, to_process
from fastapi import Depends, Request
from fastapi import Path as InPath
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from llm_elicit.errors import ConflictError, ElicitError, InputError
from llm_elicit.orchestrator.journal import control as journal
from llm_elicit.orchestrator.journal.control import Wanted, is_active
from llm_elicit.orchestrator.people import People
from llm_elicit.pipeline.run_control import check_limits
from llm_elicit.pipeline.run_folder import CAMPAIGN, Run, remove_unreadable
from llm_elicit.pipeline.run_index import NAME, RunIndex, RunPage, RunQuery
from llm_elicit.pipeline.runtime import Runtime
from llm_elicit.pipeline.snapshot import RunSnapshot, stored_snapshot
from llm_elicit.service.auth import ActionLog, Keys, Links, LoginThrottle, Sessions, open_table
from llm_elicit.service.responses import ProblemError, logger
from llm_elicit.service.settings import ServerSettings

if TYPE_CHECKING:
    from llm_elicit.pipeline.campaign_run import CampaignRun

P = ParamSpec("P")
T = TypeVar("T")

_NICENESS = 5
_MAX_WAITING, _MAX_WAITING_READERS = 32, 16
_MAX_PER_READER = 3
_SPARE_SECONDS = 120.0
_MODULES = ("llm_elicit.service.campaigns", "llm_elicit.service.results")
"""What a process imports before it can work, which takes a second or more."""

READER: ContextVar[str | None] = ContextVar("READER", default=None)
"""The address that sent the present request, if its user is read-only."""


class Workers:
    """Processes that work for requests.

    One worker is reserved for users with write access, and a spare process is kept alive for it, so
    that read-only users never make them wait. A process opens a large run before its answers are
    asked for.

    Args:
        count: how many there are.
        seconds: the limit on the time of a call.
    """

    def __init__(self, count: int, seconds: float) -> None:
        self._slots, self._seconds = asyncio.Semaphore(count), seconds
        self._limiter: anyio.CapacityLimiter | None = None
        self._reader_slots = asyncio.Semaphore(max(count - 1, 1))
        self._count = count
        self._calls: Tally[str | None] = Tally()  # by reader; None for those with write access
        self._prepared, self._spare_tasks = dict[Any, float](), set[asyncio.Task[None]]()

    async def call(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Return the result of a function of a module, called in another process.

        Raises:
            ProblemError: too many calls wait, or the call took too long or too much memory.
            Exception: the function's own.
        """
        call, reader, later = partial(work, *args, **named), READER.get(), {"retry-after": "5"}
        if reader is None:
            is_busy = self._calls[None] >= _MAX_WAITING
        elif self._calls[reader] >= _MAX_PER_READER:
            why = f"{_MAX_PER_READER} of your requests are running; wait for one to end"
            raise ProblemError(429, why, later)
        else:
            is_busy = self._calls.total() - self._calls[None] >= _MAX_WAITING_READERS
        if is_busy:
            raise ProblemError(503, "the service is busy; try again", later)
        self._calls[reader] += 1
        if reader is not None:
            self.prepare(_import_modules)
        try:
            async with nullcontext() if reader is None else self._reader_slots, self._slots:
                return await self._run(call)
        finally:
            self._calls[reader] -= 1
            self._calls += Tally()  # forget readers without a call

    def prepare(self, work: Callable[..., Any], *args: Any) -> None:
        """Call a function ahead, whose imports later calls find, unless that was done just now."""

        async def call() -> None:
            with suppress(ElicitError, ProblemError):
                async with self._slots:
                    await self._run(partial(work, *args))

        key = (work, *args)
        if self._count < 2 or time.monotonic() - self._prepared.get(key, -inf) < _SPARE_SECONDS:
            return
        if len(self._prepared) >= 100:
            self._prepared.clear()
        self._prepared[key] = time.monotonic()
        task = asyncio.create_task(call())
        self._spare_tasks.add(task)
        task.add_done_callback(self._spare_tasks.discard)

    async def _run(self, work: Callable[[], T]) -> T:
        limiter = self._limiter = self._limiter or anyio.CapacityLimiter(self._count)
        try:
            with anyio.fail_after(self._seconds):
                return await to_process.run_sync(_work, work, cancellable=True, limiter=limiter)
        except TimeoutError:
            why = f"the computation took more than {self._seconds:g} s, the server's limit"
        except BrokenWorkerProcess:
            why = "the process of the computation ended, most likely for want of memory"
        raise ProblemError(422, f"{why}; ask for fewer points, pairs or rows")


def _import_modules() -> None:
    """Import what other calls need."""
    for name in _MODULES:
        import_module(name)


_prepared = False


def _work(work: Callable[[], T]) -> T:
    """Call a function in the process of a worker."""
    global _prepared  # noqa: PLW0603 - a process is prepared once
    if not _prepared:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service
        if hasattr(os, "nice"):
            os.nice(_NICENESS)
        _prepared = True
    try:
        return work()
    except ValueError as error:
        core = sys.modules.get("llm_elicit.density.errors")
        if core is None or not isinstance(error, core.DensityError):
            raise
        # The service could not read an error of the core without importing it.
        raise InputError(str(error)) from None


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)


class Metrics:
    """The counts of one service.

    Args:
        runs: returns the runs of this process.
        watching: returns the number of event streams that are open.

    Examples:
        >>> metrics = Metrics(dict, lambda: 0)
        >>> metrics.observe("GET", "/health", 200, 0.001)
        >>> 'llm_elicit_http_requests_total{method="GET",route="/health"' in metrics.text().decode()
        True
    """

    def __init__(
        self, runs: Callable[[], Mapping[str, CampaignRun]], watching: Callable[[], float]
    ) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "llm_elicit_http_requests",
            "Requests by method, route and status.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "llm_elicit_http_request_seconds",
            "Seconds from a request to the end of its answer, by route.",
            ("route",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        about = "Event streams that are open."
        Gauge("llm_elicit_watchers", about, registry=self._registry).set_function(watching)
        self._runs = runs
        self._registry.register(self)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Return all counts in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Return the counts of the campaigns of this process, read from their snapshots."""
        runs = self._runs()
        states = GaugeMetricFamily("llm_elicit_campaigns", "Campaigns by state.", labels=["state"])
        for state, count in Tally(run.state for run in runs.values()).items():
            states.add_metric([state], count)
        labels = ["campaign", "judge"]
        answers = GaugeMetricFamily(
            "llm_elicit_questions", "Questions by state.", labels=[*labels, "state"]
        )
        requests = CounterMetricFamily(
            "llm_elicit_requests", "Requests to providers.", labels=labels
        )
        errors = CounterMetricFamily("llm_elicit_errors", "Requests that failed.", labels=labels)
        cost = CounterMetricFamily("llm_elicit_cost_usd", "USD spent.", labels=labels)
        for name, run in runs.items():
            for judge, line in run.snapshot().judges.items():
                at = [name, judge]
                for part in ("total", "done", "failed"):
                    answers.add_metric([*at, part], getattr(line, part))
                requests.add_metric(at, line.requests)
                errors.add_metric(at, line.errors)
                if line.cost is not None:
                    cost.add_metric(at, line.cost)
        return states, answers, requests, errors, cost


_KEY_SECONDS = 86_400.0
_CREATED_TABLE = """
CREATE TABLE IF NOT EXISTS created (
    key TEXT PRIMARY KEY, digest TEXT NOT NULL, name TEXT NOT NULL, at REAL NOT NULL
)
"""


class CreationKeys:
    """The `Idempotency-Key` of each request that created a run, for a day.

    A client that got no answer repeats its request, and gets the run that the first one made.
    Several processes may use the same folder.

    Examples:
        >>> import tempfile
        >>> keys = CreationKeys(Path(tempfile.mkdtemp()))
        >>> keys.run_of("5f2c", b"name: birds"), keys.add("5f2c", b"name: birds", "birds")
        (None, None)
        >>> keys.run_of("5f2c", b"name: birds")
        'birds'
    """

    def __init__(self, folder: Path) -> None:
        self._open = partial(open_table, folder / "created.sqlite", _CREATED_TABLE)

    def run_of(self, key: str, request: bytes) -> str | None:
        """Return the name of the run that a request with this key created; None if none did.

        Raises:
            ProblemError: the key came with another request.
        """
        with self._open() as db:
            query = "SELECT digest, name FROM created WHERE key = ?"
            digest, name = db.execute(query, (key,)).fetchone() or (None, None)
        if digest is not None and digest != hashlib.sha256(request).hexdigest():
            raise ProblemError(
                422,
                f"Idempotency-Key: {key[:100]!r} came with another request, which created "
                f"{name!r}; send a new key",
            )
        return name

    def add(self, key: str, request: bytes, name: str) -> None:
        """Record what a request created, and remove the records of the day before."""
        row = (key, hashlib.sha256(request).hexdigest(), name, time.time())
        with self._open() as db:
            db.execute("DELETE FROM created WHERE at < ?", (time.time() - _KEY_SECONDS,))
            db.execute("INSERT OR REPLACE INTO created VALUES (?, ?, ?, ?)", row)


class OpenPanels:
    """The journals of runs that people judge, opened when the first expert comes.

    Its methods block; the service calls them in threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, People] = {}

    def of(self, run: Run) -> People:
        """Return the `People` of a run, which give its questions to people.

        Raises:
            InputError: the journal cannot be written.
            ProblemError: the run was deleted.
        """
        with self._lock:
            if not run.folder.is_dir():
                raise ProblemError(404, f"no campaign {run.campaign.name!r}")
            people = self._open.get(run.campaign.name)
            if people is None:
                people = People(run.location, run.campaign, run.space, run.plan)
                self._open[run.campaign.name] = people
            return people

    def forget(self, name: str) -> None:
        """Close the journal of a run that is deleted."""
        with self._lock:
            people = self._open.pop(name, None)
        if people is not None:
            people.close()

    def close(self) -> None:
        """Close all journals."""
        for name in list(self._open):
            self.forget(name)


_DELETED = ".deleted"
"""The folder of deleted runs within that of the runs; each is in a folder named by the time of its
deletion, in nanoseconds since 1970."""

KEPT_DAYS = 30
"""Days after which a deleted run is removed."""

CampaignName = Annotated[str, InPath(pattern=NAME, description="The campaign's name.")]


class Service:
    """What the routes of one service share.

    Attributes:
        settings: the settings of the server.
        keys: the tokens, and the secret that signs links and sessions.
        runtime: runs the campaigns of this process.
        index: the list of all runs in the folder.
        sessions: the sessions of browsers.
        links: the links of people who judge.
        experts: the open journals of runs that people judge.
        actions: who did what.
        attempts: counts failed logins, and refuses more after too many.
        metrics: the counts for Prometheus.
        watching: the number of event streams that are open.
        workers: the processes that work for requests.
        document: the OpenAPI document, once it was asked for.
        examples: the text of the examples that campaigns may begin with, once they are read.
        creation_keys: the keys of requests that created runs.
        creating: held while a request with such a key is answered.
        parts: the parts of campaigns' pages that are being made or were made just now.
        panels: the last panels as HTML, by the digest of their runs.
        closing: set when the service stops, so that streams end.
        tasks: work that continues after its request was answered.
    """

    def __init__(
        self, settings: ServerSettings, keys: Keys, runtime: Runtime, index: RunIndex
    ) -> None:
        self.settings, self.keys, self.runtime, self.index = settings, keys, runtime, index
        self.sessions = Sessions(keys, settings.own_folder, settings.session)
        self.links = Links(settings.own_folder, keys.secret)
        self.actions = ActionLog(settings.own_folder)
        self.experts, self.attempts = OpenPanels(), LoginThrottle()
        self.metrics = Metrics(lambda: runtime.runs, lambda: self.watching)
        self.workers = Workers(2, settings.bounds.seconds)
        self.watching = 0
        self.document, self.examples = dict[str, Any](), dict[str, str]()
        self.creation_keys, self.creating = CreationKeys(settings.own_folder), asyncio.Lock()
        self.parts = dict[tuple[Any, ...], asyncio.Task[Any]]()
        self.panels = dict[str, str]()
        self.closing = asyncio.Event()
        self.tasks = set[asyncio.Task[None]]()

    def local_run(self, name: str) -> CampaignRun | None:
        """Return a run of this process; None if there is none of that name."""
        return self.runtime.runs.get(name)

    def exists(self, name: str) -> bool:
        """Return whether there is a run of that name."""
        return name in self.runtime.runs or (self.runtime.folder / name).exists()

    async def run(self, name: str) -> Run:
        """Return the run of a campaign.

        Raises:
            ProblemError: no run has that name.
        """
        job = self.local_run(name)
        return job.run if job else await asyncio.to_thread(_open, self.runtime.folder, name)

    async def snapshot(self, name: str) -> RunSnapshot:
        """Return the present state of a run.

        Raises:
            ProblemError: no run has that name.
        """
        job = self.local_run(name)
        if job is not None:
            return job.snapshot()
        run = await self.run(name)
        stored = await asyncio.to_thread(self.index.snapshot, name)
        return await asyncio.to_thread(stored_snapshot, run) if stored is None else stored

    async def page(self, query: RunQuery) -> RunPage:
        """Return a page of the list of runs, in their present state."""
        jobs = self.runtime.runs.items()
        active = {name: run.snapshot() for name, run in jobs if run.state not in journal.ENDED}
        return await asyncio.to_thread(self.index.page, query, active)

    async def request(
        self,
        name: str,
        state: Wanted | None = None,
        max_cost: float | None = None,
        concurrency: int | None = None,
    ) -> None:
        """Ask a run that is not of this process to do something, or to have other limits.

        Raises:
            ConflictError: the run is not running.
        """
        run = await self.run(name)

        def ask() -> None:
            if not is_active(run.location):
                raise ConflictError(f"{name}: the campaign is not running; start it first")
            check_limits(run.campaign, max_cost, concurrency)
            journal.request(run.location, state, max_cost=max_cost, concurrency=concurrency)

        await asyncio.to_thread(ask)

    def deleted(self, name: str = "*") -> list[Path]:
        """Return the folders of deleted runs, the last deleted first."""
        folders = self.runtime.folder.glob(f"{_DELETED}/*/{name}")
        return sorted(folders, key=lambda folder: int(folder.parent.name), reverse=True)

    def remove_deleted(self, name: str = "*", days: float = KEPT_DAYS) -> None:
        """Remove the runs for good that were deleted `days` ago or earlier."""
        for folder in self.deleted(name):
            if time.time_ns() - int(folder.parent.name) >= days * 86_400e9:
                with suppress(ElicitError):  # it is tried again
                    remove_unreadable(folder)
                    folder.parent.rmdir()

    def restore(self, name: str) -> None:
        """Bring the run back that was last deleted under a name.

        Raises:
            ProblemError: no deleted run has that name, or another run has it now.
        """
        folders = self.deleted(name)
        if not folders:
            raise ProblemError(404, f"no deleted campaign {name!r}")
        if self.exists(name):
            raise ProblemError(
                409, f"a campaign {name!r} was created meanwhile; delete it before you restore this"
            )
        folders[0].rename(self.runtime.folder / name)
        folders[0].parent.rmdir()

    async def delete(self, name: str, *, purge: bool = False) -> None:
        """Cancel a run and remove its links, and move its folder to those of deleted runs.

        If it is refused, all stay.

        Args:
            name: the run.
            purge: whether its folder and its journal are removed, too.

        Raises:
            ConflictError: another process is running it.
        """
        to = None if purge else self.runtime.folder / _DELETED / str(time.time_ns())
        await asyncio.to_thread(self.experts.forget, name)
        if self.local_run(name) is not None:
            await self.runtime.delete(name, to)
        else:
            await asyncio.to_thread(_delete, self.runtime.folder, name, to)
        await asyncio.to_thread(self.links.forget, name)
        # An expert may have opened the journal again; a new campaign must not get the old one.
        await asyncio.to_thread(self.experts.forget, name)

    async def wait_for(self, seconds: float, work: Coroutine[Any, Any, None]) -> bool:
        """Wait some seconds for work, which continues afterwards; return whether it is done."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done:
            task.add_done_callback(_log_failure)
            return False
        task.result()
        return True


def _log_failure(task: asyncio.Task[None]) -> None:
    """Log why a task failed after its request was answered."""
    if not task.cancelled() and task.exception() is not None:
        logger.error("work for a request failed after its answer: %s", task.exception())


def service_of(request: Request) -> Service:
    """Return the service that a request came to."""
    service: Service = request.app.state.service
    return service


async def _shared(request: Request) -> Service:
    """Return the service that a request came to; a dependency."""
    return service_of(request)


Shared = Annotated[Service, Depends(_shared)]


async def _named_run(name: CampaignName, service: Shared) -> Run:
    """Return the run that the path of a request names; a dependency."""
    return await service.run(name)


NamedRun = Annotated[Run, Depends(_named_run)]


def _open(folder: Path, name: str) -> Run:
    path = folder / name / CAMPAIGN
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        raise ProblemError(404, f"no campaign {name!r}") from None
    return _open_cached(path.parent, changed)


@lru_cache(maxsize=256)
def _open_cached(folder: Path, changed: int) -> Run:
    """Open a run; again if its campaign was changed."""
    del changed
    return Run.open(folder)


def _delete(folder: Path, name: str, to: Path | None) -> None:
    try:
        run = _open(folder, name)
        active = is_active(run.location)
    except (ElicitError, OSError):
        remove_unreadable(folder / name, to)
        return
    if active:
        raise ConflictError(f"{name}: another process is running this campaign; cancel it first")
    run.remove(to)
