"""Follow the control requests for a run, record its state, and let runs wait for their turn.

`llm-elicit pause`, `resume`, `cancel` and the service write requests into the run's journal
(`llm_elicit.orchestrator.journal.control`). The process that works on the run reads them about
twice a second. To pause, it sends nothing more and waits for the answers in flight; to resume, it
asks the open questions, as after a restart.

A process at work on a run holds the lock `AT_WORK` of the run's folder and renews its heartbeat
every other second. The lock excludes other processes unless they share a journal. After `SILENCE`
seconds without a heartbeat, a service may take the run over. A process that was only suspended
then notices the takeover and stops.

The number of runs that work at the same time in a process is limited; the others wait in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import CancelledRunError, ElicitError, InputError
from llm_elicit.orchestrator.budget import Budget, check_cap, price_of
from llm_elicit.orchestrator.journal.connection import (
    AT_WORK,
    JournalLocation,
    RunInUseError,
    RunLock,
)
from llm_elicit.orchestrator.journal.control import (
    Control,
    begin_control,
    read_control,
    record_heartbeat,
    write_control,
)
from llm_elicit.orchestrator.open_run import in_thread
from llm_elicit.orchestrator.progress import SILENT, Progress

MAX_CONCURRENT = 1_000
"""The most concurrent requests of a judge."""

HEARTBEAT_SECONDS = 2.0
"""Seconds between two heartbeats."""

POLL_SECONDS = 0.4
"""Seconds between two reads of the control requests."""

START: dict[str, Any] = {
    "wanted": "running", "state": "planned", "stage": "plan", "owner": "process", "error": None,
    "max_cost": None, "concurrency": None,
}  # fmt: skip
"""Recorded of a run when a process begins to work on it."""


class Turns:
    """The queue of the runs of one event loop; a limited number of them works at the same time.

    Args:
        at_once: the number of runs that work at the same time; None for all.
    """

    def __init__(self, at_once: int | None = None) -> None:
        self.at_once = at_once
        self.queue: dict[Turn, None] = {}

    def call(self) -> None:
        """Call the runs whose turn it is."""
        for turn in list(self.queue)[: self.at_once]:
            turn.called.set()


class Turn:
    """The place of one run in the queue: it joins, is called, and leaves.

    Attributes:
        called: set while it is the run's turn.
        joined: seconds since 1970 at which it last joined the queue.

    Examples:
        >>> turns = Turns(1)
        >>> first, second = Turn(turns), Turn(turns)
        >>> first.join(), second.join()
        (None, None)
        >>> first.ahead, second.ahead, second.called.is_set()
        (0, 1, False)
        >>> first.leave()
        >>> second.called.is_set()
        True
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.called = asyncio.Event()
        self.joined = 0.0

    def join(self) -> None:
        """Join the end of the queue, or keep the place in it."""
        if self not in self._turns.queue:
            self._turns.queue[self] = None
            self.joined = time.time()
        self._turns.call()

    def leave(self) -> None:
        """Leave the queue or end the turn, so that the next run is called."""
        self._turns.queue.pop(self, None)
        self.called.clear()
        self._turns.call()

    @property
    def ahead(self) -> int:
        """How many runs have to end or pause before this one is called."""
        if self.called.is_set() or self not in self._turns.queue:
            return 0
        return list(self._turns.queue).index(self) + 1 - (self._turns.at_once or 0)


def check_limits(campaign: Campaign, max_cost: float | None, concurrency: int | None) -> None:
    """Check limits requested for a run; limits that cannot be kept would end the run.

    Raises:
        InputError: one is out of its range, or there is a cap and a judge of unknown price.
    """
    if concurrency is not None and not 1 <= concurrency <= MAX_CONCURRENT:
        raise InputError(f"concurrency = {concurrency}; it must be 1 to {MAX_CONCURRENT:,}")
    if max_cost is None:
        return
    if not 0.0 < max_cost < float("inf"):
        raise InputError(f"max_cost = {max_cost:g}; it must be above 0 USD")
    prices = {judge.name: price_of(judge) for judge in campaign.judges}
    check_cap(campaign.limits.model_copy(update={"max_cost": max_cost}), prices)


class RunControl:
    """The requested and the actual state of a run, for the process that works on it.

    Args:
        location: the run's journal.
        progress: receives a note when the run is paused and when it goes on.
        ceiling: the common budget of several runs.
        on_change: called with every change of the requested or the actual state.
        start: the fields of `Control` to record at the start; by default, that the run is at the
            stage "ask".
        turn: the run's place in the queue of its process, which it leaves while it is paused.

    Raises:
        RunInUseError: on entering, if another process is at work on the run.
    """

    def __init__(
        self,
        location: JournalLocation,
        progress: Progress = SILENT,
        *,
        ceiling: Budget | None = None,
        on_change: Callable[[Control], None] | None = None,
        start: dict[str, Any] | None = None,
        turn: Turn | None = None,
    ) -> None:
        self.ceiling = ceiling
        self.now = Control()
        self.stopping = asyncio.Event()
        self._location = location
        self._progress = progress
        self._turn = turn or Turn(Turns())
        self._on_change = on_change or (lambda _: None)
        self._start = START | {"state": "running", "stage": "ask"} if start is None else start
        self._lock = RunLock(location.folder, shared=location.shared, name=AT_WORK)
        self._takeover_error: RunInUseError | None = None
        self._applied_limits: tuple[float | None, int | None] = (None, None)
        self._control_changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._lock)
            start = self._start | {"queued": self._turn.joined}
            self.adopt(await in_thread(partial(begin_control, self._location, **start)))
            stack.pop_all()
        self._tasks = [
            asyncio.create_task(work()) for work in (self._follow_requests, self._send_heartbeats)
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.wait(self._tasks)
            with contextlib.suppress(ElicitError):
                if changes := _final_changes(error, shared=self._location.shared):
                    await self.record(**changes)
        finally:
            self._lock.__exit__()
            self._turn.leave()

    @property
    def interrupts(self) -> bool:
        """Whether to stop sending: the requested state or limits changed, or the run was lost."""
        limits = self.now.max_cost, self.now.concurrency
        return (
            self._takeover_error is not None
            or self.now.wanted != "running"
            or limits != self._applied_limits
        )

    async def until_running(self) -> float:
        """Wait while the run is paused or it is not its turn; return the seconds waited.

        Raises:
            CancelledRunError: the run should be cancelled.
            RunInUseError: another process has taken the run over.
        """
        began = time.monotonic()
        while True:
            if self.now.wanted == "paused":
                await self.record(state="paused")
                self._progress.note("run", "paused; `llm-elicit resume` continues")
            while self.now.wanted == "paused" and self._takeover_error is None:
                self._control_changed.clear()
                await self._control_changed.wait()
            if self._takeover_error is not None:
                raise self._takeover_error
            if self.now.wanted == "cancelled":
                raise CancelledRunError(
                    f"{self._location.folder}: cancelled; every answer received is kept: run "
                    "again to continue"
                )
            if self.now.wanted == "running" and await self._wait_for_turn():
                break
        if self.now.state != "running":
            await self.record(state="running")
        self._applied_limits = self.now.max_cost, self.now.concurrency
        self.stopping = asyncio.Event()
        return time.monotonic() - began

    async def _wait_for_turn(self) -> bool:
        """Wait for the run's turn or a control request; return whether the run may work."""
        recorded = self.now.state == "planned" and self.now.queued == self._turn.joined
        if not self._turn.called.is_set() and not recorded:
            await self.record(state="planned", queued=self._turn.joined)
        self._control_changed.clear()
        if not self._turn.called.is_set() and self.now.wanted == "running":
            waits = [
                asyncio.ensure_future(x.wait()) for x in (self._turn.called, self._control_changed)
            ]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in waits:
                task.cancel()
        return (
            self._turn.called.is_set()
            and self.now.wanted == "running"
            and self._takeover_error is None
        )

    def limited(self, campaign: Campaign) -> Campaign:
        """Return the campaign with the limits that control requests changed."""
        max_cost, concurrency = self._applied_limits
        changes: dict[str, Any] = {}
        if max_cost is not None:
            changes["limits"] = campaign.limits.model_copy(update={"max_cost": max_cost})
        if concurrency is not None:
            changes["judges"] = tuple(
                judge.model_copy(update={"concurrency": concurrency}) for judge in campaign.judges
            )
        return campaign.model_copy(update=changes)

    async def record(self, **changes: Any) -> None:
        """Record changes of the actual or the requested state.

        Raises:
            RunInUseError: another process has taken the run over.
        """
        write = partial(write_control, self._location, takeovers=self.now.takeovers, **changes)
        self.adopt(await in_thread(write))

    async def _follow_requests(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            # The journal's writer reports a failure; the next read may succeed.
            with contextlib.suppress(ElicitError):
                control = await in_thread(partial(read_control, self._location))
                mine = control is not None and control.takeovers == self.now.takeovers
                if control is not None and mine and control.changed >= self.now.changed:
                    self.adopt(control)

    async def _send_heartbeats(self) -> None:
        while True:
            try:
                # In a thread that is awaited: no write may follow the end of the run, since the
                # run may be deleted then.
                await in_thread(partial(record_heartbeat, self._location, self.now.takeovers))
            except RunInUseError as error:
                self._takeover_error = error
                self.stopping.set()
                self._control_changed.set()
                return
            except ElicitError:
                pass  # the next write may succeed
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def adopt(self, control: Control) -> None:
        """Adopt a recorded state, and stop sending if it requests something else."""
        previous, self.now = self.now, control
        if control.wanted == "running":
            self._turn.join()  # the queue keeps the order in which runs were resumed
        elif control.state in ("paused", "planned"):
            self._turn.leave()
        if self.interrupts and not self.stopping.is_set():
            self.stopping.set()
        self._control_changed.set()
        if control != previous:
            self._on_change(control)


def _final_changes(error: BaseException | None, *, shared: bool) -> dict[str, Any]:
    """Return the changes to record when a run ends, with or without an error."""
    if isinstance(error, RunInUseError):
        return {}  # the other process records the state
    if isinstance(error, asyncio.CancelledError):
        # The process ends; the recorded state says how the run continues. If the journal is shared,
        # other processes may be at work on it.
        return {} if shared else {"alive": 0.0}
    if error is None:
        return {"state": "done"}
    if isinstance(error, CancelledRunError):
        return {"state": "cancelled"}
    is_expected = isinstance(error, ElicitError)
    return {"state": "failed", "error": str(error) if is_expected else f"defect: {error!r}"}
