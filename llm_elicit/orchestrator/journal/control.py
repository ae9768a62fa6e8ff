"""Control of a run through its journal: its requested and its actual state, and its events.

Any process may ask a run to pause, to resume, to be cancelled, or to have another limit; the
process that works on the run reads the request within half a second. Both survive the process. A
list of runs reads a summary of each journal in one query.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal

import sqlalchemy as sa
from pydantic import Field
from sqlalchemy import func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from llm_elicit._util.settings import StrictModel
from llm_elicit.comparisons.table import JudgeSpan
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal import questions as sql
from llm_elicit.orchestrator.journal.connection import (
    JournalLocation,
    RunInUseError,
    prepare_schema,
)
from llm_elicit.orchestrator.journal.schema import Totals, clock, control, events, now, storable

Wanted = Literal["running", "paused", "cancelled"]
"""What a run should do."""

RunState = Literal[
    "planned", "running", "pausing", "paused", "cancelling", "interrupted", "cancelled", "done",
    "failed",
]  # fmt: skip
"""What a run does. "pausing" and "cancelling" wait for requests in flight; of an "interrupted" one
the process is gone."""

ENDED: tuple[RunState, ...] = ("cancelled", "done", "failed")
"""The states in which nothing more happens by itself."""

SILENCE = 6.0
"""Seconds without a sign of life after which no process works on a run."""

_PAGE = 1_000
"""The number of events that are read at a time."""


@dataclass(frozen=True)
class Control:
    """The requested and the actual state of a run.

    Attributes:
        wanted: what it should do.
        state: what it does, as the process that works on it last wrote.
        stage: the stage that it is in.
        owner: "service" if a service takes the run up again after a restart, else "process".
        error: why it failed, in one line, or what stopped some of its judges, each in one line;
            None for neither.
        max_cost, concurrency: a cap in USD and a number of concurrent requests of each judge that
            replace the campaign's; None for the campaign's own.
        changed: seconds since 1970 of the last change, by the database's clock.
        queued: seconds since 1970 at which the run last joined the queue of its process, by that
            process's clock; a service takes waiting runs up again in this order.
        takeovers: how often another process took the run over since its own was silent.
        at_work: whether a process works on the run, or waits with it while it is paused.
    """

    wanted: Wanted = "running"
    state: RunState = "planned"
    stage: str = "plan"
    owner: str = "process"
    error: str | None = None
    max_cost: float | None = None
    concurrency: int | None = None
    changed: float = 0.0
    queued: float = 0.0
    takeovers: int = 0
    at_work: bool = False


def visible_state(control: Control) -> RunState:
    """Return the state of a run, also while it waits for requests or its process is gone."""
    if control.state in ENDED:
        return control.state
    if not control.at_work:
        return "interrupted"
    if control.state == "running" and control.wanted == "paused":
        return "pausing"
    if control.state == "planned" and control.wanted == "paused":
        return "paused"
    if control.state in ("running", "paused") and control.wanted == "cancelled":
        return "cancelling"
    return control.state


class RunEvent(StrictModel):
    """An event of a run.

    Attributes:
        kind: what happened.
        judge: the judge that it concerns; None for the run.
        data: further values, which JSON can hold.
        seq: its number in the run, from 1 without gaps; 0 before it is recorded.
        at: the UTC time, ISO 8601.
    """

    kind: str
    judge: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)
    seq: int = 0
    at: str = Field(default_factory=now)


_WRITTEN = [field.name for field in fields(Control) if field.name != "at_work"]
_LIVES = clock() - control.c.alive < SILENCE
_GOES_ON = control.c.state.not_in(ENDED)
_COLUMNS = [*(control.c[name] for name in _WRITTEN), _LIVES.label("at_work")]

CONTROL = select(*_COLUMNS)
"""The query of what a run should do and does, with whether it lives."""


def read_control(location: JournalLocation) -> Control | None:
    """Return the requested and the actual state of a run; None if none is recorded.

    Raises:
        JournalError: the journal cannot be read.
    """
    with location.reading() as db:
        rows = [] if db is None else _rows(db, CONTROL)
    return control_of(rows[0]) if rows else None


def control_of(row: Mapping[str, Any]) -> Control:
    """Return the values of a row of `CONTROL`."""
    return Control(**{**row, "at_work": bool(row["at_work"])})


def is_active(location: JournalLocation) -> bool:
    """Return whether a process works on a run that has not ended.

    Raises:
        JournalError: the journal cannot be read.
    """
    control = read_control(location)
    return control is not None and control.at_work and control.state not in ENDED


def begin_control(location: JournalLocation, **start: Any) -> Control:
    """Record that this process begins to work on a run, and return the run's record.

    The journal is created if necessary. A run on which others work already, with a journal that
    they share, is unchanged: its state and its limits stay, except for a new cap.

    Args:
        location: the run's journal.
        start: attributes of `Control` to record.

    Raises:
        JournalError: the journal cannot be written.
    """
    location.folder.mkdir(parents=True, exist_ok=True)
    with _writing(location) as db:
        changes = start
        if location.shared and db.execute(select(_LIVES & _GOES_ON)).scalar_one():
            cap = start.get("max_cost")
            changes = {} if cap is None else {"max_cost": cap}
        return _changed(db, {**changes, "changed": clock(), "alive": clock()})


def write_control(
    location: JournalLocation, *, takeovers: int | None = None, **changes: Any
) -> Control:
    """Change attributes of a run's requested or actual state, and return its record.

    Args:
        location: the run's journal.
        takeovers: how often the run was taken over when the caller began to work on it; None for a
            caller that does not work on it.
        changes: attributes of `Control`.

    Raises:
        RunInUseError: another process has taken the run over; nothing is changed.
        InputError: there is no such run any more.
        JournalError: the journal cannot be written.
    """
    with _writing(location) as db:
        return _changed(db, {**changes, "changed": clock()}, takeovers)


def record_heartbeat(location: JournalLocation, takeovers: int) -> None:
    """Record that a process works on the run; it counts as dead `SILENCE` seconds later.

    Raises:
        RunInUseError, InputError, JournalError: as `write_control`.
    """
    with _writing(location) as db:
        _changed(db, {"alive": clock()}, takeovers)


def take_over(location: JournalLocation) -> bool:
    """Take over a run that a service began, if its process sends no heartbeat any more.

    If several processes try, one succeeds; it should begin to work on the run at once.

    Raises:
        InputError: there is no such run any more.
        JournalError: the journal cannot be written.
    """
    stale = ~_LIVES & _GOES_ON & (control.c.owner == "service")
    values = {"takeovers": control.c.takeovers + 1, "changed": clock(), "alive": clock()}
    with _writing(location) as db:
        return bool(db.execute(update(control).where(stale).values(**values)).rowcount)


def _changed(db: sa.Connection, values: Mapping[str, Any], takeovers: int | None = None) -> Control:
    """Change and return a run's row, unless another process took the run over meanwhile."""
    is_owner = sa.true() if takeovers is None else control.c.takeovers == takeovers
    if not db.execute(update(control).where(is_owner).values(**values)).rowcount:
        raise RunInUseError(
            "this process lost its lease, and another process took over the run; every answer "
            "received is kept: follow the run with llm-elicit status"
        )
    return control_of(db.execute(CONTROL).one()._asdict())


def request(
    location: JournalLocation,
    wanted: Wanted | None = None,
    *,
    max_cost: float | None = None,
    concurrency: int | None = None,
) -> Control:
    """Request that a run pauses, continues or is cancelled, or that its limits change.

    Arguments that are None keep the earlier request.

    Raises:
        InputError: there is no such run any more.
        JournalError: the journal cannot be written.
    """
    values: dict[str, Any] = {"wanted": wanted, "max_cost": max_cost, "concurrency": concurrency}
    return write_control(
        location, **{key: value for key, value in values.items() if value is not None}
    )


def record_events(location: JournalLocation, happened: Sequence[RunEvent]) -> list[RunEvent]:
    """Record events and return them with their numbers.

    Raises:
        InputError: there is no such run any more.
        JournalError: the journal cannot be written.
    """
    if not happened:
        return []
    with _writing(location) as db:
        if location.shared:  # two processes must not take the same number
            db.exec_driver_sql("LOCK TABLE events IN EXCLUSIVE MODE")
        last = int(db.execute(select(func.max(events.c.seq))).scalar() or 0)
        numbered = [
            event.model_copy(update={"seq": last + number})
            for number, event in enumerate(happened, start=1)
        ]
        db.execute(
            insert(events),
            [event.model_dump() | {"data": storable(json.dumps(event.data))} for event in numbered],
        )
        return numbered


def read_events(location: JournalLocation, since: int = 0, limit: int = _PAGE) -> list[RunEvent]:
    """Return the recorded events with numbers above `since`, at most `limit` of them.

    Raises:
        JournalError: the journal cannot be read.
    """
    query = select(events).where(events.c.seq > since).order_by(events.c.seq).limit(limit)
    with location.reading() as db:
        return [] if db is None else [event_of(row._asdict()) for row in db.execute(query)]


def event_of(row: Mapping[str, Any]) -> RunEvent:
    """Return the event of a row."""
    return RunEvent(**{**row, "data": json.loads(row["data"])})


def drop_journal(location: JournalLocation) -> None:
    """Remove a run's journal from a server; in a folder it is removed with the folder.

    Raises:
        JournalError: the server cannot be reached.
    """
    if location.shared:
        with location.guarded(), location.writable().connect() as db, db.begin():
            db.execute(sa.schema.DropSchema(location.schema, cascade=True, if_exists=True))


@contextmanager
def _writing(location: JournalLocation) -> Iterator[sa.Connection]:
    """Open a transaction on a run's journal, in which its row of `control` exists.

    Raises:
        InputError: the run's folder is gone; a late write must not bring it back.
    """
    if not location.folder.is_dir():
        raise InputError(f"{location.folder}: there is no such run")
    with location.guarded(), location.writable().connect() as db, db.begin():
        prepare_schema(db, location)
        if db.execute(select(control.c.id)).first() is None:
            first = {name: getattr(Control(), name) for name in _WRITTEN}
            db.execute(insert(control).values(id=1, alive=0.0, **first))
        yield db


_DIALECTS = {"sqlite": sqlite, "postgresql": postgresql}

_COUNTS = select(events).where(
    events.c.seq.in_(
        select(func.max(events.c.seq))
        .where(events.c.kind.in_(("failed", "throttled")))
        .group_by(events.c.kind, events.c.judge)
    )
)
"""The query of the latest events that say how many requests of a judge failed."""


@dataclass(frozen=True)
class JournalSummary:
    """What a list of runs shows of a journal.

    Attributes:
        control: what the run should do and does; None if nobody has recorded it.
        totals: the counts of the judges that were asked, by name.
        choices: rows of `CHOICES`.
        counted: the latest events that say how many requests of a judge failed.
        versions: the versions of models that have answered, by judge.
    """

    control: Control | None
    totals: dict[str, Totals]
    choices: list[dict[str, Any]]
    counted: list[RunEvent]
    versions: list[JudgeSpan]


def read_summary(location: JournalLocation) -> JournalSummary:
    """Return the summary of a journal; an empty one without a journal.

    Raises:
        JournalError: the journal cannot be read.
    """
    with location.reading() as db:
        if db is None:
            return JournalSummary(None, {}, [], [], [])
        controls = [control_of(row) for row in _rows(db, CONTROL)]
        return JournalSummary(
            controls[0] if controls else None,
            {row["judge"]: sql.totals_of(row) for row in _rows(db, sql.TOTALS)},
            _rows(db, sql.CHOICES),
            [event_of(row) for row in _rows(db, _COUNTS)],
            [sql.version_span(row) for row in _rows(db, sql.VERSIONS)],
        )


def _rows(db: sa.Connection, query: sa.Select[Any]) -> list[dict[str, Any]]:
    """Return the rows of a query without parameters.

    SQLAlchemy compiles each anew for every engine, which takes longer than most of them.
    """
    return [row._asdict() for row in db.exec_driver_sql(_sql(query, db.dialect.name))]


@cache
def _sql(query: sa.Select[Any], dialect: str) -> str:
    options = {"literal_binds": True}
    return str(query.compile(dialect=_DIALECTS[dialect].dialect(), compile_kwargs=options))
