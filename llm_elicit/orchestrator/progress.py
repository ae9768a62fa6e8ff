"""What the engine tells while it runs, and a display of it."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars


@dataclass
class Tally:
    """One judge's counts.

    Attributes:
        total, done: questions of the campaign, and those answered, in earlier runs too.
        cached: answers of this run that were served from earlier ones.
        answered: answers of this run.
        failed: questions given up in this run.
        errors: requests of this run that failed.
        requests: requests sent in this run.
        prompt_tokens, completion_tokens: in earlier runs too.
        cost: USD, in earlier runs too; None where no price is known.
        began: the monotonic clock when the judge's first question was put.
    """

    total: int = 0
    done: int = 0
    cached: int = 0
    answered: int = 0
    failed: int = 0
    errors: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = 0.0
    began: float = 0.0

    def rate(self, clock: float) -> float:
        """Answers a second in this run."""
        elapsed = clock - self.began
        return self.answered / elapsed if self.began and elapsed > 0 else 0.0


class Progress(Protocol):
    """What the engine calls; every call returns at once."""

    def tally(self, judge: str, tally: Tally) -> None:
        """A judge's counts have changed."""
        ...

    def note(self, judge: str, line: str) -> None:
        """Something the user should read, in one line."""
        ...


class Silent:
    """A progress that shows nothing."""

    def tally(self, judge: str, tally: Tally) -> None:
        """Show nothing."""

    def note(self, judge: str, line: str) -> None:
        """Show nothing."""


class Display:
    """A line a judge: questions, rate, errors, tokens, cost, time left.

    On a terminal the lines are live; elsewhere a plain line is written now and then.

    Args:
        console: where to write; standard error by default.
        every: seconds between plain lines.

    Example:
        >>> import io
        >>> with Display(Console(file=io.StringIO())) as display:
        ...     display.tally("expert", Tally(total=10, done=10))
    """

    def __init__(self, console: Console | None = None, every: float = 30.0) -> None:
        self._console = console or Console(file=sys.stderr)
        self._every = every
        self._live = self._console.is_terminal
        self._tasks: dict[str, TaskID] = {}
        self._said: dict[str, float] = {}
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self._console,
            disable=not self._live,
            refresh_per_second=4,
        )

    def tally(self, judge: str, tally: Tally) -> None:
        """Show a judge's counts."""
        clock = time.monotonic()
        if not self._live:
            self._plain(judge, tally, clock)
            return
        if judge not in self._tasks:
            self._tasks[judge] = self._bars.add_task(
                judge, total=tally.total, completed=tally.done, detail=""
            )
        self._bars.update(
            self._tasks[judge],
            total=tally.total,
            completed=tally.done,
            detail=_detail(tally, clock),
        )

    def _plain(self, judge: str, tally: Tally, clock: float) -> None:
        over = tally.done + tally.failed >= tally.total
        last = self._said.get(judge)
        if last is not None and last != over and clock - last < self._every and not over:
            return
        if last == float("inf"):
            return
        self._said[judge] = float("inf") if over else clock
        self._write(f"{judge}: {tally.done}/{tally.total}, {_detail(tally, clock)}")

    def note(self, judge: str, line: str) -> None:
        """Write a line above the bars."""
        self._write(f"{judge}: {line}")

    def _write(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()


def _detail(tally: Tally, clock: float) -> str:
    """Rate, errors, tokens and cost in a few words."""
    words = [f"{tally.rate(clock):.1f}/s"]
    if tally.cached:
        words.append(f"{tally.cached} cached")
    words.append(f"{tally.errors} errors")
    if tally.failed:
        words.append(f"{tally.failed} failed")
    tokens = tally.prompt_tokens + tally.completion_tokens
    words.append(f"{_short(tokens)} tokens")
    words.append("price unknown" if tally.cost is None else f"{tally.cost:.4f} USD")
    return ", ".join(words)


def _short(count: int) -> str:
    """A count in at most five characters or so: 950, 12.3k, 4.56M."""
    for size, suffix in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.3g}{suffix}"
    return str(count)
