"""Progress of a run's stages, kept for snapshots and recorded as events in its journal."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from llm_elicit.config.judges import Judge
from llm_elicit.errors import ElicitError
from llm_elicit.orchestrator.journal import control as journal
from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.journal.schema import Totals
from llm_elicit.orchestrator.log_odds import LogOdds
from llm_elicit.orchestrator.open_run import in_thread
from llm_elicit.orchestrator.progress import Progress, Tally, log_event
from llm_elicit.pipeline.snapshot import THROTTLED, JudgeSnapshot

INTERVAL = 0.25
"""Seconds between two commits of events, which are collected meanwhile."""

_MAX_RECENT = 1_000
"""Number of events in memory, the newest; older ones are read from the journal."""

_READ_SECONDS = 1.0
"""Seconds between two reads of events that other processes recorded."""


class EventLog:
    """The numbered events of one run.

    Any number of watchers may follow; a slow one does not hold up the others.

    Args:
        location: the run's journal.
        here: whether this process works on the run. Of a run of another process, events are only
            read, until its journal says that it has ended.
    """

    def __init__(self, location: JournalLocation, *, here: bool = True) -> None:
        self._location = location
        self._here = here
        self._others = location.shared or not here  # whether other processes write the journal
        self._waiting: list[journal.RunEvent] = []
        self._recent: deque[journal.RunEvent] = deque(maxlen=_MAX_RECENT)
        self._changed = asyncio.Event()
        self._journal = asyncio.Lock()
        self._read_at = -_READ_SECONDS
        self._ended = False

    @property
    def last(self) -> int:
        """The number of the last event that is known here; 0 before the first."""
        return self._recent[-1].seq if self._recent else 0

    def add(self, kind: str, judge: str | None = None, **data: Any) -> None:
        """Add an event; `record` gives it its number."""
        self._waiting.append(journal.RunEvent(kind=kind, judge=judge, data=data))

    async def record(self) -> None:
        """Record the events added since; a journal that cannot be written keeps them waiting."""
        async with self._journal:
            added, self._waiting = self._waiting, []
            if not added:
                return
            try:
                recorded = await in_thread(partial(journal.record_events, self._location, added))
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

    async def events(self, since: int = 0) -> AsyncIterator[journal.RunEvent]:
        """Yield all events with numbers above `since`, and those to come until the run ends.

        Raises:
            JournalError: the journal cannot be read.
        """
        while True:
            # Others record that a run has ended before its last events.
            changed, is_over = self._changed, self._ended
            if self._others:
                await self._read_others()
            page = await self._after(since)
            for event in page:
                yield event
                since = event.seq
            if page:
                continue
            if is_over:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), _READ_SECONDS if self._others else None)

    async def _read_others(self) -> None:
        """Read the events of other processes: once a second, for all watchers together."""
        async with self._journal:
            if time.monotonic() < self._read_at + _READ_SECONDS:
                return
            if not self._here:
                control = await in_thread(partial(journal.read_control, self._location))
                self._ended = control is None or control.state in journal.ENDED
            if self._recent:
                self._recent.extend(await self._read(self.last))
            self._read_at = time.monotonic()

    async def _after(self, seq: int) -> list[journal.RunEvent]:
        """Return events above `seq` without a gap: from memory if all are there."""
        if self._recent and self._recent[0].seq <= seq + 1:
            return list(islice(self._recent, max(seq + 1 - self._recent[0].seq, 0), None))
        return await self._read(seq)

    async def _read(self, seq: int) -> list[journal.RunEvent]:
        return await in_thread(partial(journal.read_events, self._location, seq))


_WINDOW = 10.0
"""Seconds over which the pace is measured."""


@dataclass
class JudgeCounts:
    """The counts of one judge.

    Attributes:
        tally: the counts, which the engine changes in place. Those of requests and of answers from
            the cache begin at 0 whenever asking begins.
        requests, cached, failures: counts before this tally.
        rate: answers per second over the last seconds.
        reported: the numbers in the last events.
    """

    judge: Judge
    tally: Tally = field(default_factory=Tally)
    requests: int = 0
    cached: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    rate: float = 0.0
    reported: dict[str, float] = field(default_factory=dict)
    _pace: deque[tuple[float, int]] = field(default_factory=deque)

    def begin(self, tally: Tally) -> None:
        """Go on with another tally, and keep the counts of the one before."""
        if tally is not self.tally:
            self.requests += self.tally.requests
            self.cached += self.tally.cached
            self.failures.update(self.tally.failures)
            self.tally = tally

    @property
    def all_failures(self) -> Counter[str]:
        """The failed requests by kind."""
        return self.failures + Counter(self.tally.failures)

    def measure(self) -> None:
        """Measure the pace; call it regularly."""
        now = time.monotonic()
        self._pace.append((now, self.tally.done))
        while now - self._pace[0][0] > _WINDOW:
            self._pace.popleft()
        began, done = self._pace[0]
        self.rate = max(self.tally.done - done, 0) / (now - began) if now > began else 0.0

    def growth(self, name: str, value: float) -> float:
        """Return the increase of a number since it was last reported, and store the number."""
        previous = self.reported.get(name, 0.0)
        self.reported[name] = value
        return value - previous

    def snapshot(self) -> JudgeSnapshot:
        """Return the counts now."""
        return JudgeSnapshot.of(
            self.judge, self.tally, self.all_failures, cached=self.cached + self.tally.cached,
            requests=self.requests + self.tally.requests, rate=self.rate, cost=self.tally.cost,
            log_odds=self.tally.log_odds.line,
            change=self.tally.change,
        )  # fmt: skip


class RunProgress:
    """A progress that stores reports, and adds them to the events of the run.

    Args:
        judges: the judges by name.
        log: receives the events.
        progress: receives every change, too.

    Attributes:
        counts: the judges' counts by name.
        step: the current step of the stage, in a few words.
    """

    def __init__(self, judges: Mapping[str, Judge], log: EventLog, progress: Progress) -> None:
        self.counts = {name: JudgeCounts(judge) for name, judge in judges.items()}
        self.step = ""
        self._log = log
        self._progress = progress

    @property
    def done(self) -> int:
        """The number of answers of all judges."""
        return sum(counts.tally.done for counts in self.counts.values())

    def resume(
        self,
        judge: str,
        totals: Totals,
        failures: Mapping[str, int],
        choices: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Take over the counts of earlier processes, which need not be reported again.

        Args:
            judge: the judge's name.
            totals: the judge's counts in the journal.
            failures: the judge's failed requests by kind.
            choices: number of its choices with log-odds, see `LogOdds.of`.
        """
        counts = self.counts[judge]
        counts.requests, counts.cached = totals.requests, totals.cached
        counts.failures = Counter(failures)
        priced = counts.tally.cost is not None
        counts.tally = Tally(
            total=totals.total,
            done=totals.done,
            failed=totals.failed,
            cost=totals.cost if priced else None,
            log_odds=LogOdds.of(counts.judge, choices),
        )
        failed = counts.failures.total() - counts.failures[THROTTLED] + totals.failed
        counts.reported = {
            "answered": totals.done,
            "failed": failed,
            "throttled": counts.failures[THROTTLED],
            "cost": totals.cost,
        }

    def tally(self, judge: str, tally: Tally) -> None:
        """Store a judge's counts."""
        self.counts[judge].begin(tally)
        self._progress.tally(judge, tally)

    def stage(self, label: str, step: str, done: int, total: int) -> None:
        """Store the progress of a stage."""
        self.step = f"{label}: {step} {done}/{total}"
        self._progress.stage(label, step, done, total)

    def note(self, judge: str, line: str) -> None:
        """Add a line that the user should read to the events."""
        self._log.add("note", judge, line=line)
        self._progress.note(judge, line)

    def add_events(self) -> None:
        """Add events for the counts since the last call."""
        for name, counts in self.counts.items():
            counts.measure()
            tally, failures = counts.tally, counts.all_failures
            if answered := counts.growth("answered", tally.done):
                self._log.add("answered", name, count=answered, done=tally.done, total=tally.total)
            if throttled := counts.growth("throttled", failures[THROTTLED]):
                self._log.add("throttled", name, count=throttled, total=failures[THROTTLED])
            others = {kind: n for kind, n in failures.items() if kind != THROTTLED}
            if counts.growth("failed", sum(others.values()) + tally.failed):
                self._log.add("failed", name, kinds=others, given_up=tally.failed)
            if tally.cost is not None and counts.growth("cost", tally.cost):
                self._log.add("cost", name, usd=tally.cost)
