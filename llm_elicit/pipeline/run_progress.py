"""What the stages of a run report, kept for snapshots and recorded as events."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_elicit.config.judges import Judge
from llm_elicit.orchestrator.journal import Totals
from llm_elicit.orchestrator.progress import Tally
from llm_elicit.pipeline.event_log import EventLog
from llm_elicit.pipeline.snapshot import THROTTLED, JudgeSnapshot

_WINDOW = 10.0
"""Seconds over which the pace is measured."""


@dataclass
class JudgeCounts:
    """The counts of one judge.

    Attributes:
        tally: the counts, which the engine changes in place. Those of requests and of answers from
            the cache begin at 0 whenever asking begins.
        requests, cached, failures: the same before this tally.
        rate: answers per second over the last seconds.
        reported: the numbers that the last events gave.
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
        """Return how far a number has grown since it was last reported, and keep it."""
        before = self.reported.get(name, 0.0)
        self.reported[name] = value
        return value - before

    def snapshot(self) -> JudgeSnapshot:
        """Return the counts now."""
        tally, failures = self.tally, self.all_failures
        return JudgeSnapshot(
            backend=self.judge.backend,
            model=self.judge.model_name,
            total=tally.total,
            done=tally.done,
            failed=tally.failed,
            cached=self.cached + tally.cached,
            requests=self.requests + tally.requests,
            errors=failures.total(),
            failures=dict(failures),
            throttled=failures[THROTTLED],
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

    def resume(self, judge: str, totals: Totals, failures: Mapping[str, int]) -> None:
        """Take over the counts of earlier processes, which need not be reported again.

        Args:
            judge: the judge's name.
            totals: its counts by the journal.
            failures: its failed requests by kind.
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
        )
        failed = counts.failures.total() - counts.failures[THROTTLED] + totals.failed
        counts.reported = {
            "answered": totals.done,
            "failed": failed,
            "throttled": counts.failures[THROTTLED],
            "cost": totals.cost,
        }

    def tally(self, judge: str, tally: Tally) -> None:
        """Keep a judge's counts."""
        self.counts[judge].begin(tally)

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
