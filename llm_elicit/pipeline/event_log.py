"""The events of a run: recorded in its journal, and passed on to all who watch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from functools import partial
from itertools import islice
from typing import Any

from llm_elicit.errors import ElicitError
from llm_elicit.orchestrator import JournalLocation, RunEvent, in_thread, read_events, record_events
from llm_elicit.orchestrator.log import event as log_event

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
    """

    def __init__(self, location: JournalLocation) -> None:
        self._location = location
        self._waiting: list[RunEvent] = []
        self._recent: deque[RunEvent] = deque(maxlen=_KEPT)
        self._changed = asyncio.Event()
        self._recording = asyncio.Lock()
        self._ended = False

    @property
    def last(self) -> int:
        """The number of the last event that was recorded here; 0 before the first."""
        return self._recent[-1].seq if self._recent else 0

    def add(self, kind: str, judge: str | None = None, **data: Any) -> None:
        """Add an event; `record` gives it its number."""
        self._waiting.append(RunEvent(kind=kind, judge=judge, data=data))

    async def record(self) -> None:
        """Record the events added since; a journal that cannot be written keeps them waiting."""
        async with self._recording:
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

    async def since(self, seq: int) -> AsyncIterator[RunEvent]:
        """Yield all events with numbers above `seq`, and those to come until the run ends."""
        while True:
            changed, ended = self._changed, self._ended
            page = await self._after(seq)
            for one in page:
                yield one
                seq = one.seq
            if page:
                continue
            if ended:
                return
            try:
                seconds = _LOOK_AGAIN if self._location.shared else None
                await asyncio.wait_for(changed.wait(), seconds)
            except TimeoutError:
                pass

    async def _after(self, seq: int) -> list[RunEvent]:
        """Return events above `seq` without a gap: from memory if all are there."""
        if seq == self.last and self._recent and not self._location.shared:
            return []
        place = seq + 1 - self._recent[0].seq if self._recent else -1
        whole = self.last - seq == len(self._recent) - place
        if place >= 0 and whole:
            return list(islice(self._recent, place, None))
        return await in_thread(partial(read_events, self._location, seq))
