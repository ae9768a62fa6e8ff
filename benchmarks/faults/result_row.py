"""A row of the table: the counts of the provider and of the journal after a fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.faults.trial import Ended, Trial
from benchmarks.provider_process import ServerCounts

COLUMNS = (
    "fault", "injected", "questions", "requests", "answered once", "paid twice", "over the cap",
    "s", "against clean", "must be", "reached",
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """Numbers of questions and of faults.

    Attributes:
        questions, slots: questions and concurrent requests of the rows on rates.
        kills, signals, points, restarts: numbers of SIGKILLs, SIGTERMs, full disks and restarts of
            PostgreSQL.
        down: seconds for which the provider is down.
        lease: lease of a worker, in seconds.
    """

    questions: int = 3_000
    slots: int = 100
    kills: int = 50
    signals: int = 10
    points: int = 20
    restarts: int = 10
    down: float = 20.0
    lease: float = 4.0


SHORT = Size(questions=200, slots=20, kills=1, signals=1, points=1, restarts=1, down=2.0, lease=2.0)


@dataclass(frozen=True)
class ResultRow:
    """One row.

    Attributes:
        fault, injected: the fault, and how often.
        questions: of the campaign, or of all campaigns together.
        counts: the provider's counts.
        seconds: from the first request to the last answer, or of the processes.
        must: the requirement.
        unmet: requirements that are not met.
        over: USD billed beyond the cap; None without a cap.
        clean: seconds of the clean run; None if they cannot be compared.
        bound: answers that may be paid twice, since they were in flight when a process was killed.
    """

    fault: str
    injected: str
    questions: int
    counts: ServerCounts
    seconds: float
    must: str
    unmet: Sequence[str] = ()
    over: float | None = None
    clean: float | None = None
    bound: int = 0

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        counts = self.counts
        twice = f"{counts.answers - counts.answered}"
        return (
            self.fault,
            self.injected,
            f"{self.questions:,}",
            f"{counts.requests:,}",
            f"{counts.answered - counts.twice:,}",
            f"{twice} (at most {self.bound})" if self.bound else twice,
            "" if self.over is None else f"{self.over:.2f}",
            f"{self.seconds:.1f}",
            "" if self.clean is None else f"{self.seconds / self.clean:.2f} ×",
            self.must,
            _short(self.unmet) or "yes",
        )


def _short(unmet: Sequence[str]) -> str:
    """Return the first unmet requirement, and the number of the others."""
    shown = "; ".join(each[:90] for each in unmet[:2])
    return f"{shown}; {len(unmet) - 2} more" if len(unmet) > 2 else shown


def add(counts: Sequence[ServerCounts]) -> ServerCounts:
    """Return the sums of several servers' counts."""
    columns = zip(*(vars(each).values() for each in counts), strict=True)
    return ServerCounts(*(sum(column) for column in columns))


def faults_of(trial: Trial, counts: ServerCounts, ended: Ended, bound: int = 0) -> list[str]:
    """Return how a run breaks the rules of all: nothing lost or paid twice, no traceback.

    Args:
        trial: the campaign.
        counts: the provider's counts.
        ended: how the last process ended.
        bound: answers that may have been paid twice.
    """
    found = []
    if not ended.clean:
        found.append("hung" if "Traceback" not in ended.said else f"traceback: {ended.line}")
    kept, again = trial.totals.done, counts.answers - counts.answered
    if kept > counts.answered:
        found.append(f"{kept - counts.answered} answers are none of the provider's")
    if kept + bound < counts.answered:
        found.append(f"{counts.answered - kept} answers lost")
    if again > bound:
        found.append(f"{again} paid twice")
    return found


def completed(trial: Trial, ended: Ended) -> list[str]:
    """Return what is missing in a run that should have all answers."""
    found = []
    if ended.code != 0:
        found.append(f"exit code {ended.code}: {ended.line[:160]}")
    if (done := trial.totals.done) != trial.questions:
        found.append(f"{trial.questions - done} not answered")
    return found
