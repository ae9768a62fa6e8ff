"""Run campaigns from their YAML to their reports: one, a grid, or several at the same time.

A `Runtime` holds what several runs in one process share: a cap, rate limiters, the cache and the
processes that fit.

If a service dies, another service takes over its runs that have not ended, after `SILENCE` seconds
without a heartbeat. If a run's journal is in its folder, the folder's lock must be free as well,
since a process that was only suspended still holds it. If the journal is a shared database, the
database decides which of several services takes the run over.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from llm_elicit.config.campaign import Campaign, Limits
from llm_elicit.errors import CapError, ElicitError, InputError
from llm_elicit.orchestrator.budget import Amount, Budget
from llm_elicit.orchestrator.cache import CacheUse
from llm_elicit.orchestrator.journal.connection import AT_WORK, JournalLocation, RunLock
from llm_elicit.orchestrator.journal.control import ENDED, SILENCE, read_control, take_over
from llm_elicit.orchestrator.open_run import in_thread
from llm_elicit.orchestrator.progress import Display, Progress
from llm_elicit.orchestrator.rate_sharing import RateLimiters
from llm_elicit.pipeline.ask import AskOptions, ask, ask_in_batches
from llm_elicit.pipeline.campaign_run import CampaignRun, Sharing
from llm_elicit.pipeline.cluster import Workers, make_beforehand, workers_at
from llm_elicit.pipeline.repeats import asked_in_batches, plan_repeats
from llm_elicit.pipeline.run_control import START, Turns
from llm_elicit.pipeline.run_folder import Run, find, run_folders
from llm_elicit.pipeline.run_index import RunIndex, State, spent_by, state_of
from llm_elicit.pipeline.stages import plan_grid

_LOCK_POLL = 0.05
"""Seconds between two attempts to lock a folder in which another call is at work."""

_locks: dict[Path, threading.Lock] = {}
"""The locks of the calls of this process, by the folder of the run."""

_RESCAN_EVERY = 10
"""Runs with a shared journal that could not be taken over are examined at every tenth scan only."""


class Recovery:
    """Finds the runs of a folder whose service has died, and takes them over.

    Its methods block; call them in a thread, one at a time.

    Args:
        folder: the folder of the runs.
        index: the index of these runs; without it, each call examines all folders.
    """

    def __init__(self, folder: Path, index: RunIndex | None = None) -> None:
        self._folder, self._index = folder, index
        self._skipped: dict[Path, tuple[State, bool]] = {}
        self._sort_keys: dict[Path, tuple[bool, float]] = {}
        self._scans = 0

    def take_over(self, names: set[str], active: Collection[str] = ()) -> tuple[list[Run], bool]:
        """Take over abandoned runs; the caller should begin to work on them at once.

        Args:
            names: names of runs to leave out.
            active: those of them that this process works on.

        Returns:
            The runs taken over: first those that were at work, then the others in the order in
            which they waited. And whether there are further runs whose service may have died.
        """
        runs, unsure = [], False
        self._scans += 1
        index, folder = self._index, self._folder
        for path in run_folders(folder) if index is None else index.sweep(active):
            if path.name in names:
                continue
            try:
                abandoned = self._is_abandoned(path)
                # Opened before it is taken over: a run that cannot be opened must not look busy.
                run = Run.open(path) if abandoned else None
            except (ElicitError, OSError):
                continue  # the run is being written or deleted, or cannot be read
            is_taken_over = False
            if run is not None:
                location = run.location
                with (
                    suppress(ElicitError),  # a process holds its lock or has taken it over
                    RunLock(location.folder, shared=location.shared, name=AT_WORK),
                ):
                    is_taken_over = take_over(location)
            if run is not None and is_taken_over:
                runs.append(run)
            elif abandoned is not False:
                unsure = True
        return sorted(runs, key=lambda run: self._sort_keys[run.folder]), unsure

    def _is_abandoned(self, path: Path) -> bool | None:
        """Return whether a service's run has no heartbeat; None if it has one, maybe its last."""
        state = state_of(path)
        skipped_at = self._skipped.get(path)
        if skipped_at == (state, False) or (
            skipped_at == (state, True) and self._scans % _RESCAN_EVERY
        ):
            return False
        location = JournalLocation(path, find(path)[0].journal)
        control = read_control(location)
        if control is None or control.owner != "service" or control.state in ENDED:
            self._skipped[path] = state, location.shared
            return False
        self._sort_keys[path] = control.state != "running", control.queued
        return None if control.at_work else True


class Runtime:
    """Runs campaigns side by side, and owns what they share.

    Its runs share a cap in USD, the processes that fit, the cache of answers, and the rate limiter
    of each provider, key and model. Two runtimes share nothing: each keeps within a provider's
    limit, and both together may exceed it. As a library it sets no signal handler and prints
    nothing.

    Its runs belong to the event loop in which it is entered. After it was exited, it may be entered
    in another event loop, and keeps the measured rates. Its `limiters` may be used from several
    threads and event loops at the same time, also by `llm_elicit.run(..., limiters=...)`. Its
    `unreadable` names the runs that could not be read, so that `max_cost` does not count them.

    Args:
        folder: the folder of the runs.
        max_cost: a cap in USD for all runs of the folder together, earlier ones included.
        fits: number of fits at the same time, each in a separate process.
        at_once: number of runs at work at the same time; None for all. Others wait in the order in
            which they were started. A paused run is not at work.
        journal: a PostgreSQL address for the journals of campaigns that do not name one.
        live_every: seconds between two live views of a run; None for no live views.
        index: the index of the folder's runs, which `recover` and `keep_recovering` update.
        cluster: address of a Dask scheduler, whose workers fit and audit in place of processes of
            this machine.

    Example (`tests/pipeline/test_runtime.py` runs it)::

        async with le.Runtime() as runtime:
            job = runtime.start("examples/simulated.yaml")
            await job.pause()
            await job.resume()
            run = await job.wait()
    """

    def __init__(  # noqa: PLR0913 - every resource that its runs share
        self,
        folder: Path = Path("runs"),
        *,
        max_cost: float | None = None,
        fits: int = 1,
        at_once: int | None = None,
        journal: str | None = None,
        live_every: float | None = None,
        index: RunIndex | None = None,
        cluster: str | None = None,
    ) -> None:
        if fits < 1:
            raise InputError(f"fits = {fits}; it must be at least 1")
        if at_once is not None and at_once < 1:
            raise InputError(f"at_once = {at_once}; it must be at least 1")
        self.folder = folder
        self._max_cost, self.unreadable = max_cost, list[str]()
        self._journal = journal
        self.limiters = RateLimiters()
        self._fits = fits
        self._at_once = at_once
        self._live_every = live_every
        self._cluster = cluster
        self._open = ExitStack()
        self._sharing = self._new_sharing()
        self._runs: dict[str, CampaignRun] = {}
        self._index = index
        self._recovery = Recovery(folder, index)

    async def __aenter__(self) -> Self:
        self._runs.clear()  # those of another event loop
        self._sharing = self._new_sharing()
        if self._max_cost is not None:
            index, folder = self._index, self.folder
            spent = index.spent if index else lambda: spent_by(run_folders(folder))
            usd, self.unreadable = await in_thread(spent)
            limits = Limits(max_cost=self._max_cost)
            budget = Budget(limits, Amount(usd=usd), uncounted=self.unreadable)
            self._sharing = replace(self._sharing, budget=budget)
        if self._cluster is not None:
            enter = partial(self._open.enter_context, Workers(self._cluster))
            self._sharing = replace(self._sharing, workers=await in_thread(enter))
        return self

    def _new_sharing(self) -> Sharing:
        """Return the resources that the runs of one event loop share."""
        fits, turns = asyncio.Semaphore(self._fits), Turns(self._at_once)
        return Sharing(fits, live_every=self._live_every, turns=turns)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the runs after the answers in flight; `recover` resumes them."""
        await asyncio.gather(*(run.stop() for run in self._runs.values()))
        await in_thread(self._open.close)

    @property
    def runs(self) -> Mapping[str, CampaignRun]:
        """The runs of this process by the campaign's name, including those that ended.

        Runs on which another process works are left out.
        """
        return {name: run for name, run in self._runs.items() if not run.elsewhere}

    def start(
        self,
        campaign: str | Path | Campaign | Run,
        *,
        max_cost: float | None = None,
        cache: CacheUse = "reuse",
        paused: bool = False,
        owner: str = "process",
        retry_failed: bool = False,
    ) -> CampaignRun:
        """Start or resume a campaign, and return at once.

        Args:
            campaign: a path, a name from examples/, a `Campaign`, or a run.
            max_cost: a cap in USD that replaces the campaign's own.
            cache: "reuse" answers of earlier runs, ask "fresh" and replace them, or "off".
            paused: whether the run waits for `resume`.
            owner: "service" if `recover` resumes the run after a restart.
            retry_failed: whether to ask questions again that were set aside.

        Raises:
            InputError: a setting or a file cannot be used, it is a grid of several runs, or the
                campaign runs here already.
        """
        state = "paused" if paused else "running"
        start = START | {"wanted": state, "owner": owner, "max_cost": max_cost}
        return self._add(campaign, start, cache=cache, retry_failed=retry_failed)

    def _add(
        self,
        campaign: str | Path | Campaign | Run,
        start: dict[str, Any],
        **asking: Unpack[AskOptions],
    ) -> CampaignRun:
        run = campaign if isinstance(campaign, Run) else Run.open(campaign)
        if self._journal is not None and run is not campaign and run.campaign.journal is None:
            run = Run.open(run.campaign.model_copy(update={"journal": self._journal}))
        name = run.campaign.name
        earlier = self.runs.get(name)
        if earlier is not None and earlier.state not in ENDED:
            raise InputError(
                f"{name}: this Runtime already has a run of this name ({earlier.state}); wait for "
                "it to end, or rename one"
            )
        asking["limiters"] = self.limiters
        self._runs[name] = added = CampaignRun(run, self._sharing, start, **asking)
        return added

    async def recover(self) -> list[CampaignRun]:
        """Take over the runs of services that have died, in the state they were in.

        If a service may have died just now, this waits some seconds for its heartbeat. A run that
        cannot be opened is skipped.
        """
        runs, unsure = await self._take_over()
        if unsure:
            await asyncio.sleep(SILENCE)
            runs += (await self._take_over())[0]
        return runs

    async def keep_recovering(self) -> None:
        """Take over the runs of services that have died, every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(SILENCE / 2)
            await self._take_over()

    async def _take_over(self) -> tuple[list[CampaignRun], bool]:
        active = {name for name, run in self.runs.items() if run.state not in ENDED}
        take_over = partial(self._recovery.take_over, set(self.runs), active)
        runs, unsure = await in_thread(take_over)
        free = [run for run in runs if run.campaign.name not in self.runs]
        return [self._add(run, {"error": None}) for run in free], unsure

    async def delete(self, name: str, to: Path | None = None) -> None:
        """Cancel a run, and remove its folder and its journal.

        Args:
            name: the campaign's name.
            to: a folder to which the run's folder is moved instead.

        Raises:
            InputError: this runtime has no run of this name.
        """
        run = self._runs.get(name)
        if run is None:
            raise InputError(f"{name}: this Runtime has no run of this name; start it first")
        await run.delete(to)
        if self._runs.get(name) is run:
            del self._runs[name]


def run(
    campaign: str | Path | Campaign | Run,
    *,
    max_cost: float | None = None,
    progress: Progress | None = None,
    cache: CacheUse = "reuse",
    limiters: RateLimiters | None = None,
    retry_failed: bool = False,
    strict_version: bool = False,
) -> Run:
    """Run a campaign from its YAML to its report, or resume it. Blocks until it is done.

    Args:
        campaign: a path, a name from examples/, a `Campaign`, or a run that is planned already.
        max_cost: a cap in USD that replaces the campaign's own, resumes included.
        progress: receives every change; by default a display on standard error. `Silent()`
            shows nothing.
        cache: "reuse" answers of earlier runs, ask "fresh" and replace them, or leave it "off".
        limiters: rate limiters shared with other runs, such as `Runtime.limiters`; by default new
            ones, which keep the limits of this campaign only.
        retry_failed: whether to ask questions again that were set aside, see `llm-elicit status`.
        strict_version: whether a judge stops once its answers are of several versions of its model.

    Raises:
        InputError: a setting or a file cannot be used.
        JudgeError: no judge could be asked. If some could, `Run.problems` has the errors of the
            others.
        KeyboardInterrupt: the user stopped it. While questions are asked, the first Ctrl-C waits
            for the answers in flight; every answer received is kept.

    Example (`examples/run_campaign.py` is run by a test)::

        result = le.run("examples/simulated.yaml")
        result.beliefs["expert"].sample(1000, seed=1)  # (1000, 4), natural units
    """
    if _inside_event_loop():
        raise InputError("run() was called inside an event loop; use `await arun(...)` there")
    return asyncio.run(
        arun(
            campaign, max_cost=max_cost, progress=progress, cache=cache, limiters=limiters,
            retry_failed=retry_failed, strict_version=strict_version,
        )
    )  # fmt: skip


def repeat(
    run: str | Path | Campaign,
    name: str | None = None,
    *,
    progress: Progress | None = None,
    **options: Unpack[AskOptions],
) -> Run:
    """Ask the same pairs of the same judges again, past the cache; fit, audit and report.

    The repeat is a run of its own, linked to the first, with its limits, its batch mode and its
    copies of the feature space, the table and the template. Called again, it resumes.

    Args:
        run: the run to repeat: its folder, name or campaign.
        name: the name of the repeat; by default that of the first run with a number.
        progress, options: as in `run`, except `cache`.

    Raises:
        InputError: the run has no answers, is a grid, or its files were changed.
        JudgeError: no judge could be asked.
    """
    planned = plan_repeats(run, name)
    if len(planned) > 1:
        raise InputError(f"{run} is a grid; repeat its cells, or use `llm-elicit repeat`")
    return ask_repeat(planned[0], progress=progress, **options)


def ask_repeat(
    planned: Run, *, progress: Progress | None = None, **options: Unpack[AskOptions]
) -> Run:
    """Run a planned repeat, in batches first if its run was asked in batches."""
    if asked_in_batches(planned):
        with _display(progress) as display:
            asyncio.run(ask_in_batches(planned, "wait", progress=display, **options))
    return run(planned, progress=progress, **options)


def ask_beforehand(
    cells: Sequence[Run],
    progress: Progress | None = None,
    cluster: str | None = None,
    **options: Unpack[AskOptions],
) -> None:
    """Ask all cells of a grid, then fit and audit them side by side.

    So the first fit of several conditions has all answers. Errors of asking are ignored here, since
    `run` asks the unanswered questions again. A campaign without a grid is asked here only if there
    is a cluster.
    """
    if len(cells) == 1 and cluster is None:
        return
    with workers_at(cluster) as workers, _display(progress) as display:
        for cell in cells:
            with suppress(ElicitError):
                asyncio.run(ask(cell, progress=display, **options))
        make_beforehand(cells, "run", workers, display)


def _display(progress: Progress | None) -> AbstractContextManager[Progress]:
    """Return a progress, or a display on standard error by default."""
    return Display() if progress is None else nullcontext(progress)


def _inside_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def arun(
    campaign: str | Path | Campaign | Run,
    *,
    progress: Progress | None = None,
    **options: Unpack[AskOptions],
) -> Run:
    """Run a campaign as `run` does, in a notebook or a service with an event loop.

    It does not change signal handlers or the garbage collector. If the task is cancelled while
    questions are asked, it waits for the answers in flight; cancelling it again drops them. In
    other stages it ends after the current step. Calls with the same folder run one after the other.

    Args:
        campaign, progress: as in `run`.
        options: `max_cost`, `cache`, `limiters`, `retry_failed` and `strict_version`, as of `run`.
    """
    result = campaign if isinstance(campaign, Run) else await in_thread(partial(Run.open, campaign))
    async with alone_in(result.folder):
        with _display(progress) as display:
            sharing = Sharing(asyncio.Semaphore(1), progress=display, here=True)
            return await CampaignRun(result, sharing, dict(START), **options).end()


def run_grid(
    campaign: str | Path | Campaign,
    *,
    progress: Progress | None = None,
    cluster: str | None = None,
    **options: Unpack[AskOptions],
) -> dict[str, Run]:
    """Ask every cell of a grid, fit and audit all, or resume it. Caps apply to all together.

    A cell without a judge that could be asked is left out of the result, and the others go on. A
    campaign without a grid is its only cell.

    Args:
        campaign, progress: as in `run`.
        cluster: address of a Dask scheduler whose workers fit and audit; by default, and if Dask is
            installed, this machine's cores do if there is much to fit.
        options: `max_cost`, `cache`, `limiters`, `retry_failed` and `strict_version`, as of `run`.

    Returns:
        The cells' runs by name.

    Raises:
        CapError: a cap of the grid is reached.
        JudgeError, InputError: no cell could be asked; the first cell's reason.
        KeyboardInterrupt: the user stopped it; every answer received is kept.
    """
    from llm_elicit.pipeline.results import write_conditions  # with PyTorch

    if _inside_event_loop():
        raise InputError("run_grid() was called inside an event loop; call it in a separate thread")
    results: dict[str, Run] = {}
    stopped: ElicitError | None = None
    cells = plan_grid(campaign)
    options["limiters"] = options.get("limiters") or RateLimiters()
    ask_beforehand(cells, progress, cluster, **options)
    for cell in cells:
        try:
            results[cell.campaign.name] = run(cell, progress=progress, **options)
        except CapError:
            raise
        except ElicitError as error:
            stopped = stopped or error
    if stopped is not None and not results:
        raise stopped
    write_conditions(list(results.values()))
    return results


@asynccontextmanager
async def alone_in(folder: Path) -> AsyncIterator[None]:
    """Wait, without blocking the event loop, until no other call works in this folder."""
    lock = _locks.setdefault(folder.resolve(), threading.Lock())
    while not lock.acquire(blocking=False):
        await asyncio.sleep(_LOCK_POLL)
    try:
        yield
    finally:
        lock.release()
