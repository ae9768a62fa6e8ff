"""What the stages of a run report, kept for snapshots and recorded as events."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from llm_elicit.config.judges import Judge
from llm_elicit.orchestrator import Tally, Totals
from llm_elicit.pipeline.event_log import EventLog
from llm_elicit.pipeline.snapshot import JudgeSnapshot

_WINDOW = 10.0
"""Seconds over which the pace is measured."""

_THROTTLED = "rate limited"
"""The kind of failure of requests that were refused for their rate."""


@dataclass
class JudgeCounts:
    """The counts of one judge.

    Attributes:
        tally: the counts, which the engine changes in place.
        rate: answers per second over the last seconds.
        reported: the numbers that the last events gave.
    """

    judge: Judge
    tally: Tally = field(default_factory=Tally)
    rate: float = 0.0
    reported: dict[str, float] = field(default_factory=dict)
    _pace: deque[tuple[float, int]] = field(default_factory=deque)

    def measure(self) -> None:
        """Measure the pace; call it regularly."""
        now = time.monotonic()
        self._pace.append((now, self.tally.done))
        while now - self._pace[0][0] > _WINDOW:
            self._pace.popleft()
        began, done = self._pace[0]
        self.rate = max(self.tally.done - done, 0) / (now - began) if now > began else 0.0

    def growth(self, name: str, value: float) -> float:
        """Return how far a number has grown since it was last reported, and keep it."""
        before = self.reported.get(name, 0.0)
        self.reported[name] = value
        return value - before

    def snapshot(self) -> JudgeSnapshot:
        """Return the counts now."""
        tally = self.tally
        return JudgeSnapshot(
            backend=self.judge.backend,
            model=getattr(self.judge, "model", None) or "",
            total=tally.total,
            done=tally.done,
            failed=tally.failed,
            cached=tally.cached,
            requests=tally.requests,
            errors=tally.errors,
            failures=dict(tally.failures),
            throttled=tally.failures.get(_THROTTLED, 0),
            rate=self.rate,
            cost=tally.cost,
        )


class RunProgress:
    """A progress that keeps what is reported, and adds it to the events of the run.

    Args:
        judges: the judges by name.
        log: receives the events.

    Attributes:
        counts: the judges' counts by name.
        step: what a stage does, in a few words.
    """

    def __init__(self, judges: Mapping[str, Judge], log: EventLog) -> None:
        self.counts = {name: JudgeCounts(judge) for name, judge in judges.items()}
        self.step = ""
        self._log = log

    @property
    def done(self) -> int:
        """The number of answers of all judges."""
        return sum(counts.tally.done for counts in self.counts.values())

    def resume(self, judge: str, totals: Totals) -> None:
        """Take over the counts of earlier processes, which need not be reported again."""
        counts = self.counts[judge]
        priced = counts.tally.cost is not None
        counts.tally = replace(
            counts.tally,
            total=totals.total,
            done=totals.done,
            failed=totals.failed,
            cost=totals.cost if priced else None,
        )
        counts.reported = {"answered": totals.done, "failed": totals.failed, "cost": totals.cost}

    def tally(self, judge: str, tally: Tally) -> None:
        """Keep a judge's counts."""
        self.counts[judge].tally = tally

    def stage(self, label: str, step: str, done: int, total: int) -> None:
        """Keep the progress of a stage."""
        self.step = f"{label}: {step} {done}/{total}"

    def note(self, judge: str, line: str) -> None:
        """Add a line that the user should read to the events."""
        self._log.add("note", judge, line=line)

    def tell(self) -> None:
        """Add events for what was counted since the last time."""
        for name, counts in self.counts.items():
            counts.measure()
            tally = counts.tally
            if answered := counts.growth("answered", tally.done):
                self._log.add("answered", name, count=answered, done=tally.done, total=tally.total)
            if throttled := counts.growth("throttled", tally.failures.get(_THROTTLED, 0)):
                self._log.add("throttled", name, count=throttled)
            others = {kind: n for kind, n in tally.failures.items() if kind != _THROTTLED}
            if counts.growth("failed", sum(others.values()) + tally.failed):
                self._log.add("failed", name, kinds=others, given_up=tally.failed)
            if tally.cost is not None and counts.growth("cost", tally.cost):
                self._log.add("cost", name, usd=tally.cost)
