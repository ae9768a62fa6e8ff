"""The log of a run, and OpenTelemetry spans.

The package logs through Python's `logging`, under the logger `llm_elicit`; an application may
attach handlers of its own. While a campaign is asked, a handler of this module writes what that
campaign logs to `log.jsonl` in the run's folder, one JSON object a line. Keys are removed from
every line, tracebacks included.

Of OpenTelemetry only the interface is used, which does nothing until a program sets up its SDK
(`pip install 'llm-elicit[otel]'`). Attributes follow OpenTelemetry's names for generative models;
they hold neither texts nor keys.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opentelemetry import trace

from llm_elicit.backends.base import scrubbed, secrets_of
from llm_elicit.config.campaign import Campaign
from llm_elicit.orchestrator.progress import Progress, Tally

FILE = "log.jsonl"

_ROOT = logging.getLogger("llm_elicit")
_ROOT.addHandler(logging.NullHandler())  # a library logs nowhere by default
if _ROOT.level == logging.NOTSET:
    _ROOT.setLevel(logging.INFO)
_FOLDER: ContextVar[Path | None] = ContextVar("run folder", default=None)
"""The run of the current task: one process may ask two campaigns at the same time."""


def event(name: str, level: int = logging.INFO, error: BaseException | None = None,
          **fields: Any) -> None:  # fmt: skip
    """Log an event of the current run."""
    _ROOT.log(level, name, extra={"fields": fields}, exc_info=error)


@contextmanager
def logged(folder: Path, campaign: Campaign) -> Iterator[None]:
    """Write events logged inside to the folder's log; log exceptions with their traceback."""
    handler = _LogFile(folder, _keys(campaign))
    token = _FOLDER.set(folder)
    _ROOT.addHandler(handler)
    try:
        yield
    except BaseException as error:
        event("run failed", logging.ERROR, error)
        raise
    finally:
        _ROOT.removeHandler(handler)
        _FOLDER.reset(token)
        handler.close()


class LoggingProgress:
    """A progress that is also logged: every note, and counts at intervals.

    Args:
        shown: the progress to pass every call on to.
        every: seconds between two log lines of one judge's counts.
    """

    def __init__(self, progress: Progress, every: float = 30.0) -> None:
        self._progress = progress
        self._every = every
        self._due: dict[str, float] = {}

    def tally(self, judge: str, tally: Tally) -> None:
        """Pass a judge's counts on."""
        self._progress.tally(judge, tally)
        if time.monotonic() >= self._due.get(judge, 0.0):
            self._due[judge] = time.monotonic() + self._every
            counted(judge, tally)

    def stage(self, label: str, step: str, done: int, total: int) -> None:
        """Pass a stage's progress on."""
        self._progress.stage(label, step, done, total)

    def note(self, judge: str, line: str) -> None:
        """Pass a note on."""
        self._progress.note(judge, line)
        event("note", logging.WARNING, judge=judge, line=line)


def counted(judge: str, tally: Tally) -> None:
    """Log a judge's counts."""
    counts = asdict(tally)
    del counts["began"]  # a monotonic clock says nothing outside its process
    event("counts", judge=judge, **counts)


def _keys(campaign: Campaign) -> list[str]:
    """Return the judges' secrets."""
    return list({secret for judge in campaign.judges for secret in secrets_of(judge)})


class _LogFile(logging.FileHandler):
    """Writes one run's records as JSON lines."""

    def __init__(self, folder: Path, keys: Sequence[str]) -> None:
        super().__init__(folder / FILE, encoding="utf-8")
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
        return scrubbed(json.dumps(line, ensure_ascii=False, default=str), *self._keys)

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
            current.set_status(trace.StatusCode.ERROR, type(error).__name__)
            raise
