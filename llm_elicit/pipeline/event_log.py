"""The events of a run: recorded in its journal, and passed on to all who watch."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from functools import partial
from itertools import islice
from typing import Any

from llm_elicit.errors import ElicitError
from llm_elicit.orchestrator.journal import (
    ENDED,
    JournalLocation,
    RunEvent,
    read_control,
    read_events,
    record_events,
)
from llm_elicit.orchestrator.log import event as log_event
from llm_elicit.orchestrator.open_run import in_thread

INTERVAL = 0.25
"""Seconds between two commits of events, which are collected meanwhile."""

_KEPT = 1_000
"""The newest events are kept in memory; older ones are read from the journal."""

_LOOK_AGAIN = 1.0
"""Seconds after which events of other processes are looked for."""


class EventLog:
    """The numbered events of one run.

    Any number of watchers may follow. A slow one holds nothing but its place.

    Args:
        location: the run's journal.
        here: whether this process works on the run. Of a run of another process, events are only
            read, until its journal says that it has ended.
    """

    def __init__(self, location: JournalLocation, *, here: bool = True) -> None:
        self._location = location
        self._here = here
        self._others = location.shared or not here  # who write into the journal
        self._waiting: list[RunEvent] = []
        self._recent: deque[RunEvent] = deque(maxlen=_KEPT)
        self._changed = asyncio.Event()
        self._journal = asyncio.Lock()
        self._looked = -_LOOK_AGAIN
        self._ended = False

    @property
    def last(self) -> int:
        """The number of the last event that is known here; 0 before the first."""
        return self._recent[-1].seq if self._recent else 0

    def add(self, kind: str, judge: str | None = None, **data: Any) -> None:
        """Add an event; `record` gives it its number."""
        self._waiting.append(RunEvent(kind=kind, judge=judge, data=data))

    async def record(self) -> None:
        """Record the events added since; a journal that cannot be written keeps them waiting."""
        async with self._journal:
            added, self._waiting = self._waiting, []
            if not added:
                return
            try:
                recorded = await in_thread(partial(record_events, self._location, added))
            except ElicitError as error:
                # What writes the journal's answers reports the same failure to the user.
                self._waiting = added + self._waiting
                log_event("events not recorded", reason=str(error))
                return
            if recorded[0].seq > self.last + 1:
                self._recent.clear()  # others wrote meanwhile; the journal has theirs, too
            self._recent.extend(recorded)
            self._wake()

    def begin(self) -> None:
        """Let watchers wait for more events."""
        self._ended = False

    def end(self) -> None:
        """Let watchers end after the last event."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def events(self, since: int = 0) -> AsyncIterator[RunEvent]:
        """Yield all events with numbers above `since`, and those to come until the run ends.

        Raises:
            JournalError: the journal cannot be read.
        """
        while True:
            # Others record that a run has ended before its last events.
            changed, ended = self._changed, self._ended
            if self._others:
                await self._look()
            page = await self._after(since)
            for one in page:
                yield one
                since = one.seq
            if page:
                continue
            if ended:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), _LOOK_AGAIN if self._others else None)

    async def _look(self) -> None:
        """Look for events of other processes: once a second, for all watchers together."""
        async with self._journal:
            if time.monotonic() < self._looked + _LOOK_AGAIN:
                return
            if not self._here:
                control = await in_thread(partial(read_control, self._location))
                self._ended = control is None or control.state in ENDED
            if self._recent:
                self._recent.extend(await self._read(self.last))
            self._looked = time.monotonic()

    async def _after(self, seq: int) -> list[RunEvent]:
        """Return events above `seq` without a gap: from memory if all are there."""
        if self._recent and self._recent[0].seq <= seq + 1:
            return list(islice(self._recent, max(seq + 1 - self._recent[0].seq, 0), None))
        return await self._read(seq)

    async def _read(self, seq: int) -> list[RunEvent]:
        return await in_thread(partial(read_events, self._location, seq))
