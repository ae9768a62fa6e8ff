"""Reports of a run: its progress on a display, its log, and OpenTelemetry spans.

The package logs through Python's `logging`, under the logger `llm_elicit`; an application may
attach handlers of its own. While a campaign is asked, a handler of this module writes what that
campaign logs to `log.jsonl` in the run's folder, one JSON object a line. Keys are removed from
every line, tracebacks included.

Only the interface of OpenTelemetry is used, which does nothing until a program sets up its SDK
(`pip install 'llm-elicit[otel]'`). Attributes follow OpenTelemetry's names for generative models;
they hold neither texts nor keys.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, Self

from opentelemetry import trace
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from llm_elicit._util.text import visible
from llm_elicit.backends.base import scrub_secrets, secrets_of
from llm_elicit.backends.failures import UpstreamError
from llm_elicit.config.campaign import Campaign
from llm_elicit.orchestrator.journal.schema import Totals
from llm_elicit.orchestrator.log_odds import LogOdds

_REDRAW = 0.1
"""Seconds between two redraws of a line: drawing takes longer than counting an answer."""

_FIRST_INTERVAL = 2.0
"""Seconds from the first plain line to the second; the interval then doubles."""

_INTERVAL = 30.0
"""Longest interval between plain lines, and that between the lines of the log, in seconds."""

_STEPS = {
    "utility": "learning the preferences from the answers",
    "score": "training the score network",
    "draws": "sampling the beliefs that the answers allow",
    "power": "estimating the sharpness",
    "done": "belief written",
}
"""The steps of a fit in words, by the names that the density core reports."""


@dataclass
class Tally:
    """One judge's counts.

    Attributes:
        total, done: questions of the campaign, and those answered, earlier runs included.
        cached: answers of this run taken from the cache.
        answered: answers of this run.
        failed: questions given up in this run.
        errors: requests of this run that failed.
        failures: the same by kind, see `llm_elicit.orchestrator.retries.Decision`.
        requests: requests sent in this run.
        prompt_tokens, completion_tokens: token counts, earlier runs included.
        cost: USD, earlier runs included; None if the price is unknown.
        began: the monotonic clock at the judge's first question.
        log_odds: whether the judge's choices have log-odds, earlier runs included.
        change: a line about another version of the model that answers now; empty without one.
    """

    total: int = 0
    done: int = 0
    cached: int = 0
    answered: int = 0
    failed: int = 0
    errors: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = 0.0
    began: float = 0.0
    log_odds: LogOdds = field(default_factory=LogOdds)
    change: str = ""

    @classmethod
    def of(cls, totals: Totals) -> Tally:
        """Return the counts of all runs together."""
        return cls(
            total=totals.total, done=totals.done, cached=totals.cached, failed=totals.failed,
            requests=totals.requests, prompt_tokens=totals.prompt_tokens,
            completion_tokens=totals.completion_tokens, cost=totals.cost,
        )  # fmt: skip

    def rate(self, clock: float) -> float:
        """Return the answers per second in this run."""
        elapsed = clock - self.began
        return self.answered / elapsed if self.began and elapsed > 0 else 0.0


class Progress(Protocol):
    """The interface that the engine calls; every call returns immediately."""

    def tally(self, judge: str, tally: Tally) -> None:
        """Report a judge's counts."""

    def stage(self, label: str, step: str, done: int, total: int) -> None:
        """Report other work: `done` of `total` in a step of `label`."""

    def note(self, judge: str, line: str) -> None:
        """Report one line that the user should read."""


class Silent:
    """A `Progress` that reports nothing."""

    def tally(self, judge: str, tally: Tally) -> None:
        """Do nothing."""

    def stage(self, label: str, step: str, done: int, total: int) -> None:
        """Do nothing."""

    def note(self, judge: str, line: str) -> None:
        """Do nothing."""


SILENT = Silent()


class Display:
    """One line a judge: questions, rate, errors, tokens, cost, time left.

    On a terminal the lines are updated in place; elsewhere a plain line is written occasionally.

    Args:
        console: where to write; standard error by default.

    Examples:
        >>> import io
        >>> with Display(Console(file=io.StringIO())) as display:
        ...     display.tally("expert", Tally(total=10, done=10))
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stderr)
        self._live = self._console.is_terminal
        self._tasks: dict[str, TaskID] = {}
        self._last_lines: dict[str, tuple[float, float]] = {}
        self._with_errors: set[str] = set()
        self._tallies: dict[str, Tally] = {}
        self._stale: dict[str, float] = {}
        self._lock = threading.Lock()
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=self._console,
            disable=not self._live,
            refresh_per_second=4,
        )

    def tally(self, judge: str, tally: Tally) -> None:
        """Show a judge's counts, at most ten times a second."""
        now = time.monotonic()
        if self._live:
            self._tallies[judge] = tally
            if now >= self._stale.get(judge, 0.0):
                self._stale[judge] = now + _REDRAW
                self._show_counts(judge, tally, now)
        elif self._is_due(judge, tally.done + tally.failed >= tally.total, tally.errors > 0):
            self._write(f"{judge}: {tally.done}/{tally.total}, {_detail(tally, now)}")

    def _show_counts(self, judge: str, tally: Tally, now: float) -> None:
        self._update_bar(judge, tally.done, tally.total, _detail(tally, now))

    def stage(self, label: str, step: str, done: int, total: int) -> None:
        """Show the progress of other work."""
        words = _STEPS.get(step, step)
        if self._live:
            self._update_bar(label, done, total, words)
        elif self._is_due(label, is_last=False):
            self._write(f"{label}: {words}, {done} of {total} done")

    def _update_bar(self, name: str, done: int, total: int, detail: str) -> None:
        with self._lock:
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(
                    escape(name), total=total, completed=done, detail=detail
                )
        self._bars.update(self._tasks[name], total=total, completed=done, detail=detail)

    def _is_due(self, name: str, is_last: bool, errors: bool = False) -> bool:
        """Return whether a plain line is due.

        The first is due at once, later ones at growing intervals, one at the first error, and
        one at the end.
        """
        clock = time.monotonic()
        last, wait = self._last_lines.get(name, (-math.inf, 0.0))
        is_first_error = errors and name not in self._with_errors
        if clock < last + wait and not is_first_error and not (is_last and math.isfinite(last)):
            return False
        if errors:
            self._with_errors.add(name)
        self._last_lines[name] = (
            math.inf if is_last else clock,
            min(max(2.0 * wait, _FIRST_INTERVAL), _INTERVAL),
        )
        return True

    def note(self, judge: str, line: str) -> None:
        """Write a line above the bars."""
        self._write(f"{judge}: {line}")

    def _write(self, line: str) -> None:
        self._console.print(visible(line), markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        for judge, tally in self._tallies.items():
            self._show_counts(judge, tally, time.monotonic())
        self._bars.stop()


def _detail(tally: Tally, clock: float) -> str:
    """Return rate, errors, tokens and cost in a few words."""
    words = [f"{tally.rate(clock):.1f}/s"]
    if tally.cached:
        words.append(f"{tally.cached} cached")
    words.append(f"{tally.errors} errors")
    if tally.failed:
        words.append(f"{tally.failed} failed")
    tokens = tally.prompt_tokens + tally.completion_tokens
    words.append(f"{_abbreviate(tokens)} tokens")
    words.append("price unknown" if tally.cost is None else f"${tally.cost:.4f}")
    return ", ".join(words)


def _abbreviate(count: int) -> str:
    """Return a count in about five characters: 950, 12.3k, 4.56M."""
    for size, suffix in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.3g}{suffix}"
    return str(count)


LOG = "log.jsonl"

_ROOT = logging.getLogger("llm_elicit")
_ROOT.addHandler(logging.NullHandler())  # a library logs nowhere by default
if _ROOT.level == logging.NOTSET:
    _ROOT.setLevel(logging.INFO)
_FOLDER: ContextVar[Path | None] = ContextVar("run folder", default=None)
"""The run of the current task: one process may ask two campaigns at the same time."""


def log_event(name: str, level: int = logging.INFO, error: BaseException | None = None,
          **fields: Any) -> None:  # fmt: skip
    """Log an event of the current run."""
    _ROOT.log(level, name, extra={"fields": fields}, exc_info=error)


@contextmanager
def logging_to(folder: Path, campaign: Campaign) -> Iterator[None]:
    """Write events logged inside to the folder's log; log exceptions with their traceback."""
    handler = _LogFile(folder, _keys(campaign))
    token = _FOLDER.set(folder)
    _ROOT.addHandler(handler)
    try:
        yield
    except BaseException as error:
        log_event("run failed", logging.ERROR, error)
        raise
    finally:
        _ROOT.removeHandler(handler)
        _FOLDER.reset(token)
        handler.close()


class LoggingProgress:
    """A progress that is also logged: every note, and counts at intervals.

    Args:
        progress: receives every call, too.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._due: dict[str, float] = {}

    def tally(self, judge: str, tally: Tally) -> None:
        """Pass a judge's counts on."""
        self._progress.tally(judge, tally)
        if time.monotonic() >= self._due.get(judge, 0.0):
            self._due[judge] = time.monotonic() + _INTERVAL
            log_tally(judge, tally)

    def stage(self, label: str, step: str, done: int, total: int) -> None:
        """Pass a stage's progress on."""
        self._progress.stage(label, step, done, total)

    def note(self, judge: str, line: str) -> None:
        """Pass a note on."""
        self._progress.note(judge, line)
        log_event("note", logging.WARNING, judge=judge, line=line)


def log_tally(judge: str, tally: Tally) -> None:
    """Log a judge's counts."""
    counts = asdict(replace(tally, log_odds=LogOdds()))
    del counts["began"]  # a monotonic clock says nothing outside its process
    counts["log_odds"] = tally.log_odds.line
    log_event("counts", judge=judge, **counts)


def _keys(campaign: Campaign) -> list[str]:
    """Return the judges' secrets."""
    return list({secret for judge in campaign.judges for secret in secrets_of(judge)})


class _LogFile(logging.FileHandler):
    """Writes one run's records as JSON lines."""

    def __init__(self, folder: Path, keys: Sequence[str]) -> None:
        super().__init__(folder / LOG, encoding="utf-8")
        self._folder = folder
        self._keys = keys

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is of this run."""
        return _FOLDER.get() == self._folder and bool(super().filter(record))

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line of JSON without keys."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = logging.Formatter().formatException(record.exc_info)
        return scrub_secrets(json.dumps(line, ensure_ascii=False, default=str), *self._keys)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Ignore errors: a log that cannot be written must not end a paid run."""


Attributes = Mapping[str, str | int | float | bool]


@contextmanager
def span(name: str, attributes: Attributes | None = None) -> Iterator[trace.Span]:
    """Open a span; an exception is recorded by its type alone.

    Args:
        name: the name of the operation.
        attributes: attributes of the span.

    Examples:
        >>> with span("fit", {"elicit.judge": "expert"}) as current:
        ...     isinstance(current, trace.Span)
        True
    """
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        yield trace.INVALID_SPAN  # spans are not collected: skip the cost for each request
        return
    with trace.get_tracer("llm_elicit").start_as_current_span(
        name, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield current
        except BaseException as error:
            # A provider's message may repeat what was sent to it.
            kind = error.kind if isinstance(error, UpstreamError) else type(error).__name__
            current.set_status(trace.StatusCode.ERROR, kind)
            raise
