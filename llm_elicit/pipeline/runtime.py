"""Run campaigns from their YAML to their reports: one, the cells of a grid, or several at once.

A runtime holds what several runs in one process share: a cap, rate limiters, the cache and fits.

A run whose service has died is taken over by another service if it has not ended and had no
heartbeat for `SILENCE` seconds. If its journal is in its folder, the folder's lock must be free as
well, since a process that was only suspended still holds it. If the journal is a shared database,
that decides which of several services takes the run over.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
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
from llm_elicit.orchestrator.journal.questions import spent_in
from llm_elicit.orchestrator.open_run import in_thread
from llm_elicit.orchestrator.progress import Display, Progress
from llm_elicit.orchestrator.rate_sharing import RateLimiters
from llm_elicit.pipeline.ask import AskOptions, ask
from llm_elicit.pipeline.campaign_run import CampaignRun, Sharing
from llm_elicit.pipeline.run_control import START, Turns
from llm_elicit.pipeline.run_folder import Run, find, run_folders
from llm_elicit.pipeline.snapshot import State, state_of
from llm_elicit.pipeline.stages import plan_grid

_LOOK = 0.05
"""Seconds between two looks at a folder in which another call is at work."""

_locks: dict[Path, threading.Lock] = {}

_RARELY = 10
"""A run on a server that nobody can take over is looked at again so many looks later."""


class Recovery:
    """Finds and takes over the runs of a folder whose service is gone.

    Its methods block; call them in a thread, one at a time.

    Args:
        folder: the folder of the runs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left: dict[Path, tuple[State, bool]] = {}
        self._order: dict[Path, tuple[bool, float]] = {}
        self._looks = 0

    def take(self, names: set[str]) -> tuple[list[Run], bool]:
        """Take over what can be taken over; the caller should begin to work on it at once.

        Args:
            names: names of runs that are left out.

        Returns:
            The runs, those that were at work first and then in the order in which they waited, and
            whether there are others whose service may be gone.
        """
        runs, unsure = [], False
        self._looks += 1
        for path in run_folders(self._folder):
            if path.name in names:
                continue
            try:
                silent = self._is_silent(path)
                # A run that cannot be opened must not look as if someone worked on it.
                run = Run.open(path) if silent else None
            except (ElicitError, OSError):
                continue  # it is being written or deleted, or cannot be read: it is left alone
            if run is not None and self._take(run.location):
                runs.append(run)
            elif silent is not False:
                unsure = True
        return sorted(runs, key=lambda run: self._order[run.folder]), unsure

    def _is_silent(self, path: Path) -> bool | None:
        """Whether a run's service gives no sign of life; None if it does, and may soon not."""
        state = state_of(path)
        left = self._left.get(path)
        if left == (state, False) or (left == (state, True) and self._looks % _RARELY):
            return False
        location = JournalLocation(path, find(path)[0].journal)
        control = read_control(location)
        if control is None or control.owner != "service" or control.state in ENDED:
            self._left[path] = state, location.shared
            return False
        self._order[path] = control.state != "running", control.changed
        return None if control.at_work else True

    def _take(self, location: JournalLocation) -> bool:
        """Take a run over, unless a process holds its lock or another one is faster."""
        try:
            with RunLock(location.folder, shared=location.shared, name=AT_WORK):
                return take_over(location)
        except ElicitError:
            return False


class Runtime:
    """Runs campaigns side by side, and owns what they share.

    Its runs share a cap in USD, the processes that fit, the cache of answers, and the rate limiter
    of each provider, key and model. Two runtimes share nothing: each keeps within a provider's
    limit, and both together may exceed it. As a library it sets no signal handler and prints
    nothing.

    Its runs belong to the event loop in which it is entered; after it was left, it may be entered
    in another, and goes on at the pace that was found. Its `limiters` may be used from any thread
    and event loop at the same time, also by `llm_elicit.run(..., limiters=runtime.limiters)`.

    Args:
        folder: where the runs are.
        max_cost: a cap in USD for all runs of the folder together, earlier ones included.
        fits: fits at the same time, each in a process of its own.
        at_once: runs at work at the same time; others wait for their turn, in the order in which
            they were started. None for all. A run that is paused is not at work.
        journal: a PostgreSQL address for the journals of campaigns that do not name one.
        live_every: seconds between two live views of a run; None for no live views.

    Example (`tests/pipeline/test_runtime.py` runs it)::

        async with le.Runtime() as runtime:
            job = runtime.start("examples/simulated.yaml")
            await job.pause()
            await job.resume()
            run = await job.wait()
    """

    def __init__(
        self,
        folder: Path = Path("runs"),
        *,
        max_cost: float | None = None,
        fits: int = 1,
        at_once: int | None = None,
        journal: str | None = None,
        live_every: float | None = None,
    ) -> None:
        if fits < 1:
            raise InputError(f"fits = {fits}; at least 1 is needed")
        if at_once is not None and at_once < 1:
            raise InputError(f"at_once = {at_once}; at least 1 is needed")
        self.folder = folder
        self._max_cost = max_cost
        self._journal = journal
        self.limiters = RateLimiters()
        self._fits = fits
        self._at_once = at_once
        self._live_every = live_every
        self._sharing = self._shared()
        self._runs: dict[str, CampaignRun] = {}
        self._recovery = Recovery(folder)

    async def __aenter__(self) -> Self:
        self._runs.clear()  # those of another event loop
        self._sharing = self._shared()
        if self._max_cost is not None:
            spent = await in_thread(partial(_spent, self.folder))
            budget = Budget(Limits(max_cost=self._max_cost), Amount(usd=spent))
            self._sharing = replace(self._sharing, budget=budget)
        return self

    def _shared(self) -> Sharing:
        """Return what the runs of one event loop share."""
        fits = asyncio.Semaphore(self._fits)
        turns = Turns(self._at_once)
        return Sharing(fits, live_every=self._live_every, turns=turns)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the answers in flight; `recover` takes the runs up again."""
        await asyncio.gather(*(run.stop() for run in self._runs.values()))

    @property
    def runs(self) -> Mapping[str, CampaignRun]:
        """The runs of this process by the campaign's name, ended ones included.

        Those on which another process works, or that it has taken over, are not among them.
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
        """Start a campaign, or take it up where it stopped, and return at once.

        Args:
            campaign: a path, a name from examples/, a `Campaign`, or a run.
            max_cost: a cap in USD that replaces the campaign's own.
            cache: "reuse" answers of earlier runs, ask "fresh" and replace them, or "off".
            paused: whether it waits for `resume`.
            owner: "service" if `recover` takes it up after a restart.
            retry_failed: whether to ask again what was set aside.

        Raises:
            InputError: a setting or a file cannot be used, it is a grid of several runs, or the
                campaign runs here already.
        """
        wanted = "paused" if paused else "running"
        start = START | {"wanted": wanted, "owner": owner, "max_cost": max_cost}
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
            raise InputError(f"{name}: this Runtime already has it, {earlier.state}")
        asking["limiters"] = self.limiters
        self._runs[name] = added = CampaignRun(run, self._sharing, start, **asking)
        return added

    async def recover(self) -> list[CampaignRun]:
        """Take up the runs of an earlier service, running or paused as they were.

        Runs of a service that lives are left to it. Of one that was killed just now it takes some
        seconds to know. A run that cannot be opened is left alone.
        """
        runs, unsure = await self._take_over()
        if unsure:
            await asyncio.sleep(SILENCE)
            runs += (await self._take_over())[0]
        return runs

    async def keep_recovering(self) -> None:
        """Take up the runs of services that are gone, every few seconds, until it is cancelled."""
        while True:
            await asyncio.sleep(SILENCE / 2)
            await self._take_over()

    async def _take_over(self) -> tuple[list[CampaignRun], bool]:
        runs, unsure = await in_thread(partial(self._recovery.take, set(self.runs)))
        free = [run for run in runs if run.campaign.name not in self.runs]
        return [self._add(run, {"error": None}) for run in free], unsure

    async def delete(self, name: str) -> None:
        """Cancel a run, and remove its folder and its journal.

        Raises:
            InputError: there is no such run here.
        """
        run = self._runs.get(name)
        if run is None:
            raise InputError(f"{name}: there is no such run here")
        await run.delete()
        if self._runs.get(name) is run:
            del self._runs[name]


def _spent(folder: Path) -> float:
    """Return the USD that the runs of a folder spent or reserved."""
    campaigns = [(path, find(path)[0]) for path in run_folders(folder)]
    # A grid's own folder holds its campaign only; the runs of its cells lie beside it.
    runs = [JournalLocation(path, c.journal) for path, c in campaigns if c.grid is None]
    return sum(map(spent_in, runs))


def run(
    campaign: str | Path | Campaign | Run,
    *,
    max_cost: float | None = None,
    progress: Progress | None = None,
    cache: CacheUse = "reuse",
    limiters: RateLimiters | None = None,
    retry_failed: bool = False,
) -> Run:
    """Run a campaign from its YAML to its report, or resume it. Blocks until it is done.

    Args:
        campaign: a path, a name from examples/, a `Campaign`, or a run that is planned already.
        max_cost: a cap in USD that replaces the campaign's own, resumes included.
        progress: receives every change; by default a display on standard error. `Silent()`
            shows nothing.
        cache: "reuse" answers of earlier runs, ask "fresh" and replace them, or leave it "off".
        limiters: the rate limiters that it shares with other runs, such as `Runtime.limiters`; its
            own by default, which keep within the limits of the campaign alone.
        retry_failed: whether to ask again what was set aside, see `llm-elicit status`.

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
            retry_failed=retry_failed,
        )
    )  # fmt: skip


def ask_conditions(
    cells: Sequence[Run], progress: Progress | None = None, **options: Unpack[AskOptions]
) -> None:
    """Ask the cells of a grid that have conditions, so that the first fit has all answers.

    Errors are left to `run`, which asks again what has no answer.
    """
    for cell in cells:
        if cell.campaign.given and len(cells) > 1:
            with _display(progress) as display, suppress(ElicitError):
                asyncio.run(ask(cell, progress=display, **options))


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

    Signal handlers and the garbage collector are left alone. Cancelling the task while questions
    are asked waits for the answers in flight; cancelling it again drops them. In other stages it
    ends with the step at work. Calls with the same folder run one after the other.

    Args:
        campaign, progress: as of `run`.
        options: `max_cost`, `cache`, `limiters` and `retry_failed`, as of `run`.
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
    **options: Unpack[AskOptions],
) -> dict[str, Run]:
    """Run every cell of a grid, one after the other, or resume it. Caps apply to all together.

    A cell without a judge that could be asked is left out of the result, and the others go on. A
    campaign without a grid is its only cell.

    Args:
        campaign, progress: as of `run`.
        options: `max_cost`, `cache`, `limiters` and `retry_failed`, as of `run`.

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
    done: dict[str, Run] = {}
    stopped: ElicitError | None = None
    cells = plan_grid(campaign)
    options["limiters"] = options.get("limiters") or RateLimiters()
    ask_conditions(cells, progress, **options)
    for cell in cells:
        try:
            done[cell.campaign.name] = run(cell, progress=progress, **options)
        except CapError:
            raise
        except ElicitError as error:
            stopped = stopped or error
    if stopped is not None and not done:
        raise stopped
    write_conditions(list(done.values()))
    return done


@asynccontextmanager
async def alone_in(folder: Path) -> AsyncIterator[None]:
    """Wait, without blocking the event loop, until no other call of this process is at work."""
    lock = _locks.setdefault(folder.resolve(), threading.Lock())
    while not lock.acquire(blocking=False):
        await asyncio.sleep(_LOOK)
    try:
        yield
    finally:
        lock.release()
