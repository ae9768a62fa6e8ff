"""One run as an object: started, paused, resumed, retuned, cancelled and watched."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from llm_elicit.errors import CancelledRunError, ConflictError, ElicitError
from llm_elicit.orchestrator.budget import Budget
from llm_elicit.orchestrator.journal import control as journal
from llm_elicit.orchestrator.journal.connection import FILE as JOURNAL
from llm_elicit.orchestrator.journal.connection import RunInUseError
from llm_elicit.orchestrator.journal.schema import now
from llm_elicit.orchestrator.open_run import in_thread
from llm_elicit.orchestrator.progress import SILENT, Progress
from llm_elicit.pipeline.ask import AskOptions, ask_under
from llm_elicit.pipeline.cluster import Workers, make_beforehand
from llm_elicit.pipeline.run_control import RunControl, Turn, Turns, check_limits
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.pipeline.run_progress import INTERVAL, EventLog, RunProgress
from llm_elicit.pipeline.snapshot import RunSnapshot, failures_of
from llm_elicit.pipeline.stage_process import LIVE, make_views, run_stages, run_to_end, run_until
from llm_elicit.pipeline.stages import BEFORE, make, plan_run

AFTER_ASKING = tuple(BEFORE)
_EVENT_OF = {"fit": "fitted", "audit": "audited", "report": "reported"}


@dataclass(frozen=True)
class Sharing:
    """The resources that the runs of a `Runtime` share.

    Attributes:
        fits: limits how many processes fit at the same time.
        budget: the budget of all runs together; None for none.
        live_every: seconds between two live views of a run; None for no live views.
        views: limits how many processes make live views at the same time, so that none waits for
            the fits of another run.
        turns: limits how many runs are at work at the same time.
        progress: receives every change.
        workers: those of a cluster, which fit and audit; None without one.
        here: whether the stages after asking run in threads of this process, not in another one.
    """

    fits: asyncio.Semaphore
    budget: Budget | None = None
    live_every: float | None = None
    views: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    turns: Turns = field(default_factory=Turns)
    progress: Progress = SILENT
    workers: Workers | None = None
    here: bool = False


class CampaignRun:
    """A run of one campaign, made by `Runtime.start`.

    The journal holds the requested state and the events of the run, so that it can be recovered
    after its process was killed. This class sets no signal handler and prints nothing.

    Attributes:
        run: the run's folder and what its stages wrote there.
        elsewhere: whether another process works on the run; this object can then do nothing.
    """

    def __init__(
        self, run: Run, sharing: Sharing, start: dict[str, Any], **asking: Unpack[AskOptions]
    ) -> None:
        self.run = run
        self._sharing = sharing
        self._start = start
        self._asking = asking
        self._log = EventLog(run.location)
        self.elsewhere = False
        self._removal: asyncio.Task[None] | None = None
        self._now = journal.Control(wanted=start.get("wanted", "running"), at_work=True)
        judges = {judge.name: judge for judge in run.campaign.judges}
        self._progress = RunProgress(judges, self._log, sharing.progress)
        self._control: RunControl | None = None
        self._problems: tuple[str, ...] = ()
        self._live = 0
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._begun = asyncio.Event()
        self._turn = Turn(sharing.turns)
        if self._now.wanted == "running":
            self._turn.join()  # in the order in which runs were started
        self._task = asyncio.create_task(self._work())

    @property
    def name(self) -> str:
        """The campaign's name."""
        return self.run.campaign.name

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.run.folder

    @property
    def state(self) -> journal.RunState:
        """The current step of the run."""
        return journal.visible_state(self._now)

    @property
    def stage(self) -> str:
        """The stage that it is in: "plan", "ask", "fit", "audit" or "report"."""
        return self._now.stage

    def snapshot(self) -> RunSnapshot:
        """Return the current step of the run."""
        judges = {name: counts.snapshot() for name, counts in self._progress.counts.items()}
        return RunSnapshot.of(
            self.folder,
            self.run.campaign,
            self._now,
            judges,
            state=self.state,
            step=self._waiting() or self._progress.step,
            problems=self._problems,
            live=self._live,
            seq=self._log.last,
            updated=now(),
        )

    def _waiting(self) -> str:
        """Return how many campaigns are ahead in the queue, in words; empty for none."""
        ahead = self._turn.ahead
        return f"{ahead} {'campaign is' if ahead == 1 else 'campaigns are'} ahead" if ahead else ""

    def events(self, since: int = 0) -> AsyncIterator[journal.RunEvent]:
        """Return an iterator over all events after number `since`, which ends when the run ends.

        Events of a kind are collected for a quarter of a second. They are replayed from the
        journal, also after the process was killed.
        """
        return self._log.events(since)

    async def wait(self) -> Run:
        """Wait for the end, and return the run.

        Raises:
            CancelledRunError: it was cancelled.
            ElicitError: it failed.
        """
        await asyncio.shield(self._task)
        return await self.end()

    async def end(self) -> Run:
        """Wait for the end as `wait` does; cancelling it cancels the work."""
        await self._task
        if self._error is not None:
            raise self._error
        return self.run

    async def pause(self) -> None:
        """Send nothing more, and return when the answers in flight have arrived.

        It returns early if the run is resumed while it waits.

        Raises:
            ConflictError: the run has ended.
        """
        self._check_kept()
        if self._task.done():
            raise ConflictError(f"{self.name}: the run is {self.state} and cannot be paused")
        await self._request("paused")
        while self._now.wanted == "paused" and self.state not in ("paused", *journal.ENDED):
            if self._task.done():
                break
            changed = self._changed
            await changed.wait()

    async def resume(self, *, retry_failed: bool = False) -> None:
        """Resume a paused run, or restart one that has ended where it stopped.

        Args:
            retry_failed: whether to ask again the questions that were given up or set aside, if
                the run has ended or is done without some answers.

        Raises:
            ConflictError: the run is done, or is being deleted.
        """
        self._check_kept()
        if self.state in journal.ENDED:
            await asyncio.wait([self._task])  # it still records what happened
        self._asking["retry_failed"] = retry_failed
        if self.state == "done" and not (retry_failed and self._problems):
            raise ConflictError(f"{self.name}: the run is done; there is nothing to resume")
        if self._task.done():
            # The journal still has the state in which it ended.
            self._start = {"wanted": "running", "state": "planned", "stage": "plan", "error": None}
            self._error, self._problems = None, ()
            self._now = replace(self._now, **self._start)
            self._begun.clear()
            self._turn.join()
            self._task = asyncio.create_task(self._work())
        else:
            await self._request("running")

    async def cancel(self, drain: bool = True) -> None:
        """End the run, and return when it has ended. Every answer received is kept.

        Args:
            drain: whether to wait for the answers in flight, which are paid. Without, they are
                dropped, and caps count their worst case.
        """
        if not self._task.done():
            await self._request("cancelled")
            if not drain:
                await self.stop(drain=False)
                cancel = partial(journal.write_control, self.run.location, state="cancelled")
                self._adopt(await in_thread(cancel))
        await asyncio.wait([self._task])

    async def retune(
        self, *, concurrency: int | None = None, max_cost: float | None = None
    ) -> None:
        """Change the limits of a run while it asks; they hold in half a second.

        Args:
            concurrency: concurrent requests of each judge, at least 1.
            max_cost: a cap in USD over all resumes, above 0.

        Raises:
            InputError: a limit is out of its range, or the price of a judge is unknown, so that a
                cap cannot be held.
            ConflictError: the run is being deleted.
        """
        self._check_kept()
        await in_thread(partial(check_limits, self.run.campaign, max_cost, concurrency))
        await self._request(None, concurrency=concurrency, max_cost=max_cost)
        self._log.add("retuned", concurrency=concurrency, max_cost=max_cost)

    async def delete(self, to: Path | None = None) -> None:
        """Cancel the run, and remove its folder and its journal; nothing else can be done then.

        Args:
            to: a folder to which the run's folder is moved instead.

        Raises:
            InputError: the files of the run cannot be removed.
        """

        async def remove() -> None:
            await self.cancel()
            await in_thread(partial(self.run.remove, to))

        if self._removal is None:
            self._removal = asyncio.create_task(remove())
        removal = self._removal
        try:
            await asyncio.shield(removal)
        finally:
            if removal.done() and (removal.cancelled() or removal.exception()):
                self._removal = None

    async def stop(self, drain: bool = True) -> None:
        """End this process's work on the run, which `Runtime.recover` takes up again."""
        for _ in range(1 if drain else 2):
            self._task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([self._task])

    def _check_kept(self) -> None:
        if self._removal is not None:
            raise ConflictError(f"{self.name}: the run is being deleted")

    async def _request(self, state: journal.Wanted | None, **limits: Any) -> None:
        await self._begun.wait()  # what is wanted at the start is recorded first
        control = await in_thread(partial(journal.request, self.run.location, state, **limits))
        self._adopt(control)
        if self._control is not None:
            self._control.adopt(control)

    def _adopt(self, control: journal.Control) -> None:
        """Adopt the recorded state of the run, and add an event if state or stage changed."""
        # This process is at work, whether or not it could say so in the last seconds.
        previous, self._now = (self.state, self.stage), replace(control, at_work=True)
        if previous != (self.state, self.stage):
            self._log.add("state", state=self.state, stage=self.stage, error=control.error)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _work(self) -> None:
        """Do the work of the run until it ends, and keep the error for `wait`."""

        async def record_events() -> None:
            while True:
                await asyncio.sleep(INTERVAL)
                self._progress.add_events()
                await self._log.record()

        self._log.begin()
        recorder = asyncio.create_task(record_events())
        try:
            await self._stages()
        except Exception as error:
            self._error, line = error, str(error)
            if not isinstance(error, ElicitError):
                line = f"{self.name}: unexpected {type(error).__name__}: {error}"
            self.elsewhere = isinstance(error, RunInUseError)
            if not isinstance(error, CancelledRunError):
                self._problems = (line,)
                if self.state not in journal.ENDED:  # it may not have begun in its journal
                    self._adopt(replace(self._now, state="failed", error=line))
        finally:
            recorder.cancel()
            self._turn.leave()
            self._control = None
            self._begun.set()
            try:
                await asyncio.wait([recorder])
                self._progress.add_events()
                location = self.run.location
                # A run that was refused does not make a journal, nor write into that of another.
                if not self.elsewhere and (location.shared or (self.folder / JOURNAL).is_file()):
                    await self._log.record()
            finally:  # also if it is cancelled a second time
                self._log.end()
                self._wake()

    async def _stages(self) -> None:
        run = self.run
        await run_to_end(lambda _: plan_run(run), self._progress)
        if run.space.note:
            self._progress.note(run.campaign.name, run.space.note)
        await in_thread(run.check_journal)
        earlier = await in_thread(partial(journal.read_summary, run.location))
        failures, judges = failures_of(earlier), await in_thread(lambda: run.empty_totals)
        for name, empty in judges.items():  # take over the counts of earlier processes
            totals = earlier.totals.get(name, empty)
            totals = replace(totals, total=totals.total or empty.total)
            self._progress.resume(name, totals, failures[name], earlier.choices)
        async with RunControl(
            run.location, self._progress, ceiling=self._sharing.budget, on_change=self._adopt,
            start=self._start, turn=self._turn,
        ) as control:  # fmt: skip
            self._control = control
            self._begun.set()
            planned = {name: judge.tally.total for name, judge in self._progress.counts.items()}
            self._log.add("planned", judges=planned)
            await control.until_running()
            await control.record(stage="ask")
            live = asyncio.create_task(self._live_views())
            try:
                self.run = await ask_under(control, run, self._progress, **self._asking)
                for remark in self.run.remarks:
                    self._log.add("note", "run", line=remark)
                self._problems = tuple(" ".join(str(x).split()) for x in self.run.problems)
                if self._problems:
                    await control.record(error="\n".join(self._problems))
                await self._after_asking(control)
            finally:
                live.cancel()
                await asyncio.wait([live])  # its process writes into the run's folder

    async def _after_asking(self, control: RunControl) -> None:
        """Fit, audit and report, in a process or in threads; not while the run is paused."""
        is_made = self._sharing.workers is None
        while not is_made:
            await control.until_running()
            await control.record(stage=AFTER_ASKING[0])
            beforehand = partial(make_beforehand, [self.run], "run", self._sharing.workers)
            is_made = await run_to_end(beforehand, self._progress, control.stopping)
        stages_left = [*AFTER_ASKING, *([] if self._sharing.live_every is None else [LIVE])]
        while stages_left:
            await control.until_running()
            if self._sharing.here:
                await control.record(stage=stages_left[0])
                work = partial(make, self.run, stages_left[0], force=False)
                if await run_to_end(work, self._progress, control.stopping):
                    self._log.add(_EVENT_OF[stages_left.pop(0)])
            else:
                await run_until(control.stopping, self._run_stages(stages_left, control))
        self._progress.step = ""

    async def _run_stages(self, stages_left: list[str], control: RunControl) -> None:
        """Run the remaining stages in another process, and record their progress as events."""
        stages = contextlib.aclosing(run_stages(self.folder, tuple(stages_left)))
        async with self._sharing.fits, stages as lines:
            async for message in lines:
                if "began" in message and message["began"] in _EVENT_OF:
                    await control.record(stage=message["began"])
                elif "ended" in message:
                    stages_left.remove(message["ended"])
                    if message["ended"] in _EVENT_OF:
                        self._log.add(_EVENT_OF[message["ended"]])
                    else:
                        self._count_view()
                elif "note" in message:
                    self._progress.note(message["label"], message["note"])
                elif "step" in message:
                    self._progress.stage(**message)

    def _count_view(self) -> None:
        self._live += 1
        self._log.add("live", number=self._live)

    async def _live_views(self) -> None:
        """Make a live view every so often, while questions are asked."""

        def answers() -> int | None:
            asks = self.state == "running" and self.stage == "ask"
            return self._progress.done if asks else None

        interval = self._sharing.live_every
        if interval is not None:
            async for _ in make_views(self.folder, interval, self._sharing.views, answers):
                self._count_view()
