"""Follows what other processes ask of a run, and records what the run does.

`llm-elicit pause`, `resume`, `cancel` and the service write into the run's journal what they want
(`llm_elicit.orchestrator.journal.control`). The process that works on the run reads it twice a
second. To pause, it sends nothing more and waits for the answers in flight; to go on, it asks the
open questions again, as it would after a restart.
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
from llm_elicit.errors import CancelledRunError, ElicitError
from llm_elicit.orchestrator import (
    Budget,
    Control,
    JournalError,
    JournalLocation,
    Progress,
    Silent,
    in_thread,
    read_control,
    sign_of_life,
    write_control,
)

SIGNS = 2.0
"""Seconds between two signs of life."""

POLL = 0.4
"""Seconds between two looks at what is asked of the run."""

_SILENT = Silent()


class RunControl:
    """What a run should do, and what it does, for the process that works on it.

    Args:
        location: the run's journal.
        progress: receives a note when the run is paused and when it goes on.
        ceiling: the budget of several runs together.
        on_change: called with every change of what the run should do or does.
        start: what to record at the start, see `Control`; by default that it runs and asks.
    """

    def __init__(
        self,
        location: JournalLocation,
        progress: Progress = _SILENT,
        *,
        ceiling: Budget | None = None,
        on_change: Callable[[Control], None] | None = None,
        start: dict[str, Any] | None = None,
    ) -> None:
        self.ceiling = ceiling
        self.now = Control()
        self.stopping = asyncio.Event()
        self._location = location
        self._progress = progress
        self._on_change = on_change or (lambda _: None)
        asks = {"wanted": "running", "state": "running", "stage": "ask", "error": None,
                "max_cost": None, "concurrency": None}  # fmt: skip
        self._start = asks if start is None else start
        self._applied: tuple[float | None, int | None] = (None, None)
        self._asked = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.record(**self._start)
        self._poll = asyncio.create_task(self._follow())
        self._lives = asyncio.create_task(self._give_signs())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._poll.cancel()
        self._lives.cancel()
        await asyncio.wait((self._poll, self._lives))
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            return  # the process ends: what is recorded says how the run goes on
        with contextlib.suppress(JournalError):
            await self.record(**_end(error))

    @property
    def interrupts(self) -> bool:
        """Whether what is asked of the run differs from what it does."""
        limits = self.now.max_cost, self.now.concurrency
        return self.now.wanted != "running" or limits != self._applied

    async def until_running(self) -> float:
        """Wait while the run is to be paused; return the seconds waited.

        Raises:
            CancelledRunError: it is to be cancelled.
        """
        began = time.monotonic()
        if self.now.wanted == "paused":
            await self.record(state="paused")
            self._progress.note("run", "paused; `llm-elicit resume` goes on")
            while self.now.wanted == "paused":
                self._asked.clear()
                await self._asked.wait()
        if self.now.wanted == "cancelled":
            raise CancelledRunError(
                f"{self._location.folder}: cancelled; every answer received is kept: run again to "
                "go on"
            )
        if self.now.state != "running":
            await self.record(state="running")
        self._applied = self.now.max_cost, self.now.concurrency
        self.stopping = asyncio.Event()
        return time.monotonic() - began

    def limited(self, campaign: Campaign) -> Campaign:
        """Return the campaign with the limits that were asked for meanwhile."""
        max_cost, concurrency = self._applied
        changes: dict[str, Any] = {}
        if max_cost is not None:
            changes["limits"] = campaign.limits.model_copy(update={"max_cost": max_cost})
        if concurrency is not None:
            changes["judges"] = tuple(
                judge.model_copy(update={"concurrency": concurrency}) for judge in campaign.judges
            )
        return campaign.model_copy(update=changes)

    async def record(self, **changes: Any) -> None:
        """Record what the run does, or ask something of it."""
        self.adopt(await in_thread(partial(write_control, self._location, **changes)))

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(POLL)
            # The journal's writer reports a failure; the next look may succeed.
            with contextlib.suppress(JournalError):
                found = await asyncio.to_thread(read_control, self._location)
                if found is not None and found.changed >= self.now.changed:
                    self.adopt(found)

    async def _give_signs(self) -> None:
        while True:
            with contextlib.suppress(JournalError):
                await asyncio.to_thread(sign_of_life, self._location)
            await asyncio.sleep(SIGNS)

    def adopt(self, found: Control) -> None:
        """Take up what is recorded, and stop sending if something else is asked of the run."""
        before, self.now = self.now, found
        if self.interrupts and not self.stopping.is_set():
            self.stopping.set()
        self._asked.set()
        if found != before:
            self._on_change(found)


def _end(error: BaseException | None) -> dict[str, str | None]:
    """Return what to record of a run that ended, with an error or without."""
    if error is None:
        return {"state": "done", "error": None}
    if isinstance(error, CancelledRunError):
        return {"state": "cancelled", "error": None}
    ours = isinstance(error, ElicitError)
    return {"state": "failed", "error": str(error) if ours else f"defect: {error!r}"}
