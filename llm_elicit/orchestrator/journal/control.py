"""What a run should do and does, and its numbered events, in its journal.

Any process may ask a run to pause, to go on, to be cancelled, or to have another limit; the process
at work on the run reads the request within half a second. Both survive the process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

import sqlalchemy as sa
from pydantic import Field
from sqlalchemy import func, insert, select, update

from llm_elicit.config.base_model import StrictModel
from llm_elicit.orchestrator.journal.changes import now, storable
from llm_elicit.orchestrator.journal.interface import FILE, JournalLocation
from llm_elicit.orchestrator.journal.schema import clock, control, events, prepare_schema

Wanted = Literal["running", "paused", "cancelled"]
"""What a run should do."""

RunState = Literal[
    "planned", "running", "pausing", "paused", "cancelling", "cancelled", "done", "failed"
]
"""What a run does. "pausing" and "cancelling" wait for requests in flight."""

ENDED: tuple[RunState, ...] = ("cancelled", "done", "failed")
"""The states in which nothing more happens by itself."""

SILENCE = 6.0
"""Seconds without a sign of life after which no process works on a run."""

_PAGE = 1_000
"""The number of events that are read at a time."""

T = TypeVar("T")


@dataclass(frozen=True)
class Control:
    """What a run should do and does.

    Attributes:
        wanted: what it should do.
        state: what it does, as the process that works on it last wrote.
        stage: the stage that it is in.
        owner: "service" if a service takes the run up again after a restart, else "process".
        error: why it failed, in one line; None if it did not.
        max_cost, concurrency: a cap in USD and a number of concurrent requests of each judge that
            replace the campaign's; None for the campaign's own.
        changed: seconds since 1970 of the last change, by the database's clock.
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
    at_work: bool = False


def visible_state(control: Control) -> RunState:
    """Return the state of a run; one that waits for requests in flight is "pausing"."""
    if control.state == "running" and control.wanted == "paused":
        return "pausing"
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


_WRITTEN = [one.name for one in fields(Control) if one.name != "at_work"]
_COLUMNS = [
    *(control.c[name] for name in _WRITTEN),
    (clock() - control.c.alive < SILENCE).label("at_work"),
]


def read_control(location: JournalLocation) -> Control | None:
    """Return what a run should do and does; None if nobody has recorded it.

    Raises:
        JournalError: the journal cannot be read.
    """
    if not location.shared and not (location.folder / FILE).is_file():
        return None
    with location.guarded(), location.readable().connect() as db, db.begin():
        if not sa.inspect(db).has_table("control"):
            return None  # of an earlier version
        row = db.execute(select(*_COLUMNS)).one_or_none()
        return None if row is None else _read(row)


def _read(row: sa.Row[Any]) -> Control:
    return Control(**{**row._mapping, "at_work": bool(row.at_work)})


def is_active(location: JournalLocation) -> bool:
    """Return whether a process works on a run that has not ended.

    Raises:
        JournalError: the journal cannot be read.
    """
    control = read_control(location)
    return control is not None and control.at_work and control.state not in ENDED


def write_control(location: JournalLocation, **changes: Any) -> Control:
    """Change some attributes of what a run should do and does; return all of them.

    The journal is created if necessary.

    Raises:
        JournalError: the journal cannot be written.
    """

    def write(db: sa.Connection) -> Control:
        if not db.execute(select(control.c.id)).all():
            first = {name: getattr(Control(), name) for name in _WRITTEN}
            db.execute(insert(control).values(id=1, alive=0.0, **first))
        db.execute(update(control).values(**changes, changed=clock()))
        return _read(db.execute(select(*_COLUMNS)).one())

    return _written(location, write)


def sign_of_life(location: JournalLocation) -> None:
    """Record that a process works on the run; it counts as dead `SILENCE` seconds later.

    Raises:
        JournalError: the journal cannot be written.
    """
    with _writing(location) as db:
        db.execute(update(control).values(alive=clock()))


def request(
    location: JournalLocation,
    wanted: Wanted | None = None,
    *,
    max_cost: float | None = None,
    concurrency: int | None = None,
) -> Control:
    """Ask a run to pause, to go on or to be cancelled, or to have other limits.

    Arguments that are None leave what was asked before.

    Raises:
        JournalError: the journal cannot be written.
    """
    asked = {"wanted": wanted, "max_cost": max_cost, "concurrency": concurrency}
    return write_control(location, **{key: to for key, to in asked.items() if to is not None})


def record_events(location: JournalLocation, happened: Sequence[RunEvent]) -> list[RunEvent]:
    """Record events and return them with their numbers.

    Raises:
        JournalError: the journal cannot be written.
    """

    def write(db: sa.Connection) -> list[RunEvent]:
        if location.shared:  # two processes must not take the same number
            db.exec_driver_sql("LOCK TABLE events IN EXCLUSIVE MODE")
        last = int(db.execute(select(func.max(events.c.seq))).scalar() or 0)
        numbered = [
            one.model_copy(update={"seq": last + place})
            for place, one in enumerate(happened, start=1)
        ]
        db.execute(
            insert(events),
            [one.model_dump() | {"data": storable(json.dumps(one.data))} for one in numbered],
        )
        return numbered

    return _written(location, write) if happened else []


def read_events(location: JournalLocation, since: int = 0, most: int = _PAGE) -> list[RunEvent]:
    """Return the recorded events with numbers above `since`, at most `most` of them.

    Raises:
        JournalError: the journal cannot be read.
    """
    if not location.shared and not (location.folder / FILE).is_file():
        return []
    with location.guarded(), location.readable().connect() as db, db.begin():
        if not sa.inspect(db).has_table("events"):
            return []
        found = select(events).where(events.c.seq > since).order_by(events.c.seq).limit(most)
        rows = db.execute(found)
        return [RunEvent(**{**row._mapping, "data": json.loads(row.data)}) for row in rows]


def drop_journal(location: JournalLocation) -> None:
    """Remove a run's journal from a server; in a folder it is removed with the folder.

    Raises:
        JournalError: the server cannot be reached.
    """
    if location.shared:
        with location.guarded(), location.writable().connect() as db, db.begin():
            db.execute(sa.schema.DropSchema(location.schema, cascade=True, if_exists=True))


def _written(location: JournalLocation, write: Callable[[sa.Connection], T]) -> T:
    """Return the result of `write`, in a transaction of its own."""
    with _writing(location) as db:
        return write(db)


@contextmanager
def _writing(location: JournalLocation) -> Iterator[sa.Connection]:
    location.folder.mkdir(parents=True, exist_ok=True)
    with location.guarded(), location.writable().connect() as db, db.begin():
        prepare_schema(db, location)
        yield db
