"""The list of the runs in a folder, from an index in a SQLite file.

A run without a working process does not change until one of its files does, so its row in the index
holds until then. Neither spaces nor plans nor beliefs are read.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from llm_elicit._util.settings import StrictModel, validate
from llm_elicit.errors import ElicitError, InputError
from llm_elicit.orchestrator.journal import control as journal
from llm_elicit.orchestrator.journal.connection import FILE as JOURNAL
from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.journal.questions import spent_in
from llm_elicit.orchestrator.journal.schema import Totals
from llm_elicit.pipeline.manifest import write_atomically
from llm_elicit.pipeline.run_folder import CAMPAIGN, REPORT, Run, find
from llm_elicit.pipeline.snapshot import RunSnapshot, read_snapshot

LABELS = "labels.json"
"""The file of a run's labels in its folder."""

TAG = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$"
"""The pattern of a tag."""

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"
"""The pattern of the folders that are listed."""


class Labels(StrictModel):
    """How people sort a run.

    Attributes:
        tags: words of their own.
        archived: whether it is left out of the list unless archived runs are asked for.
    """

    tags: Annotated[
        tuple[Annotated[str, Field(pattern=TAG)], ...],
        AfterValidator(lambda tags: tuple(sorted(set(tags)))),
    ] = Field(default=(), max_length=20)
    archived: bool = False

    @classmethod
    def read(cls, folder: Path) -> Labels:
        """Return the labels of a run; none if there is no such file, or it cannot be read."""
        with contextlib.suppress(OSError, ValueError):
            return cls.model_validate_json((folder / LABELS).read_bytes())
        return cls()

    def changed(self, action: str, tags: Sequence[str] = ()) -> Labels:
        """Return the labels after an action: "archive", "unarchive", "tag" or "untag".

        Raises:
            InputError: a tag breaks a rule, or there is none.
        """
        if action in ("archive", "unarchive"):
            return self.model_copy(update={"archived": action == "archive"})
        if not tags:
            raise InputError("type a tag first")
        tags = [tag for tag in self.tags if tag not in tags] + (
            list(tags) if action == "tag" else []
        )
        return validate(Labels, {"tags": tags, "archived": self.archived}, "labels")

    def write(self, folder: Path) -> None:
        """Write the labels of a run.

        Raises:
            InputError: its folder cannot be written.
        """
        with contextlib.suppress(OSError):  # a run that has just begun makes its folder later
            folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / LABELS, self.model_dump_json() + "\n")


class ListedRun(RunSnapshot):
    """The snapshot of a run in a list.

    Attributes:
        created: the UTC time at which its campaign was written, ISO 8601.
        tags, archived: see `Labels`.
    """

    created: str
    tags: tuple[str, ...]
    archived: bool


RunOrder = Literal["active", "created", "updated", "name", "cost"]
"""The order of a list: active runs first, then as "created"; the newest, the last answered, the
first by name, or the most expensive first."""

_ENDED = ", ".join(f"'{state}'" for state in ("", "unreadable", *journal.ENDED))
_ORDERS: dict[str, str] = {
    "active": f"state IN ({_ENDED}), created DESC, name",
    "created": "created DESC, name",
    "updated": "updated DESC, name",
    "name": "name",
    "cost": "cost DESC, name",
}


@dataclass(frozen=True)
class RunQuery:
    """Which runs a list has.

    Attributes:
        text: words that the name or a tag of a run contains, all of them.
        state, tag: the state and a tag of the runs; empty for any.
        since, until: the first and the last day on which they were created, ISO 8601; empty for
            any.
        archived: whether the archived runs are listed, in place of the others.
        sort: their order.
        offset, limit: the number of runs to skip, and the largest number of runs.
    """

    text: str = ""
    state: str = ""
    tag: str = ""
    since: str = ""
    until: str = ""
    archived: bool = False
    sort: RunOrder = "active"
    offset: int = 0
    limit: int = 50

    @property
    def condition(self) -> tuple[str, list[Any]]:
        """The condition on the rows of an index, whatever their state, with its parameters."""
        words = [word.lower() for word in self.text.split()]
        parts = ["archived = ?", *["instr(lower(name) || tags, ?)" for _ in words]]
        values: list[Any] = [self.archived, *words]
        for text, part, value in (
            (self.tag, "instr(tags, ?)", f" {self.tag.lower()} "),
            (self.since, "created >= ?", self.since),
            (self.until, "substr(created, 1, 10) <= ?", self.until),
        ):
            if text:
                parts.append(part)
                values.append(value)
        return " AND ".join(parts), values

    @property
    def statement(self) -> tuple[str, list[Any]]:
        """The statement that reads the rows of the page, with its parameters."""
        condition, values = self.condition
        state = "state = ?" if self.state else f"state <> '{_NOT_LISTED}'"
        order = f"ORDER BY {_ORDERS[self.sort]}"
        # The inner query reads the small index alone, and not the snapshots of all runs.
        names = f"SELECT name FROM runs WHERE {condition} AND {state} {order} LIMIT ? OFFSET ?"
        values += [*filter(None, [self.state]), self.limit, self.offset]
        return f"SELECT name, files, run FROM runs WHERE name IN ({names}) {order}", values


@dataclass(frozen=True)
class RunPage:
    """A page of a list of runs.

    Attributes:
        runs: the runs of the page.
        total: the number of runs in the list.
        states: the number of runs by state, whatever state the list has.
        tags: the number of runs by tag, those that are archived included.
        unread: the number of runs in the folder that have not been read yet, so that only their
            names are known.
    """

    runs: list[ListedRun]
    total: int
    states: dict[str, int]
    tags: dict[str, int]
    unread: int


_LOG = f"{JOURNAL}-wal"
_FILES = (CAMPAIGN, REPORT, JOURNAL, _LOG, LABELS)

_NONE = (0, 0, -1)
"""The state of a file that is not there."""

_SETTLED = 2.0
"""Seconds after which a change of a file is sure to have changed its time."""

_SETTLED_ELSEWHERE = 60.0
"""The same for a run whose journal is on a server: its campaign's file changes first."""

State = tuple[tuple[int, int, int], ...]
"""A fingerprint of the files of a run."""

_VERSION = 3
"""The version of the index; another one is replaced."""

_TABLES = """
CREATE TABLE runs (
    name TEXT PRIMARY KEY, files TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL,
    updated TEXT NOT NULL, cost REAL, tags TEXT NOT NULL, archived INTEGER NOT NULL,
    run TEXT NOT NULL, spent REAL
);
CREATE INDEX listed ON runs (archived, state, created, name, updated, cost, tags);
"""
"""The index. `files` is the fingerprint of the files that a row was read from, empty if the row may
change although they do not; `state` is empty before the run is read, and NOT_LISTED for a grid;
`spent` is the USD that the run had spent or reserved when it was last read, null before that."""

_NOT_LISTED = "grid"

_FULL_SWEEP = 10
"""Every so many times, all runs are examined, and not only those that are new."""

_PUT = """
INSERT INTO runs (name, files, state, created, updated, cost, tags, archived, run, spent)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET files = excluded.files,
state = excluded.state, updated = excluded.updated, cost = excluded.cost, tags = excluded.tags,
archived = excluded.archived, run = excluded.run, spent = COALESCE(excluded.spent, spent)
"""


class RunIndex:
    """The runs in a folder, in a database that is read without their folders. Its methods block.

    A page compares the files of its own runs with those that they were read from; all others are
    examined by `sweep`. The database can be deleted: it is made from the folders.

    Args:
        folder: the folder of the runs.
        path: the file of the database, created if necessary; several processes may share it. If it
            cannot be written, the index is in memory.
    """

    def __init__(self, folder: Path, path: Path) -> None:
        self._folder = folder
        self._lock, self._sweeping = threading.RLock(), threading.Lock()
        self._db = _open_index(path)
        self._listed_at: int | None = None
        self._without_campaign: set[str] = set()
        self._sweeps = 0

    def page(self, query: RunQuery, active: Mapping[str, RunSnapshot] | None = None) -> RunPage:
        """Return a page of the list.

        Args:
            query: which runs it has.
            active: snapshots of runs that this process works on.
        """
        active = active or {}
        condition, values = query.condition
        with self._lock:
            self._find_runs()
            for name, run in active.items():
                self._put(self._folder / name, run)
        rows: list[tuple[str, str, str]] = []
        for _ in range(3):  # what was read again may belong elsewhere in the list
            rows = self._rows(*query.statement)
            fresh = [self._refresh(name, files) for name, files, _ in rows if name not in active]
            if not any(fresh):
                break
        by_state = f"SELECT state, COUNT(*) FROM runs WHERE {condition} GROUP BY state"
        by_tags = "SELECT tags, COUNT(*) FROM runs WHERE tags <> '' GROUP BY tags"
        counts, tags = dict(self._rows(by_state, values)), Counter[str]()
        for names, number in self._rows(by_tags):
            tags.update(dict.fromkeys(names.split(), number))
        counts.pop(_NOT_LISTED, 0)
        return RunPage(
            [ListedRun.model_validate_json(run) for _, _, run in rows if run],
            counts.get(query.state, 0) if query.state else sum(counts.values()),
            {name: number for name, number in sorted(counts.items()) if name},
            dict(sorted(tags.items())),
            counts.get("", 0),
        )

    def sweep(self, active: Collection[str] = (), *, full: bool = False) -> list[Path]:
        """Read runs that are new or have changed; return the folders of those that have not ended.

        Most calls examine only the new ones.

        Args:
            active: names of runs that this process works on, which are not read.
            full: whether all runs are examined.
        """
        with self._sweeping:
            with self._lock:
                self._find_runs()
            new = self._sweeps % _FULL_SWEEP and not full
            condition = " WHERE state = ''" if new else ""
            for name, files in self._rows(f"SELECT name, files FROM runs{condition}"):
                if name not in active:
                    self._refresh(name, files)
            self._sweeps += 1
        statement = f"SELECT name FROM runs WHERE state NOT IN ({_ENDED}, '{_NOT_LISTED}')"
        return [self._folder / name for (name,) in self._rows(statement)]

    def spent(self) -> tuple[float, list[str]]:
        """Return what `spent_by` does of all runs; only runs that may have changed are read.

        Of a run that cannot be read any more, what was read last counts.
        """
        self.sweep(full=True)
        rows = self._rows("SELECT name, files, state, spent FROM runs")
        usd, unreadable = spent_by(self._folder / name for name, files, *_ in rows if not files)
        usd += sum(spent or 0.0 for _, files, _, spent in rows if files)
        return usd, unreadable + [
            name for name, files, state, _ in rows if files and state == "unreadable"
        ]

    def refresh(self, name: str) -> None:
        """Read a run again whose files were changed just now."""
        with self._lock:
            self._find_runs()
        self._refresh(name, "")

    def snapshot(self, name: str) -> RunSnapshot | None:
        """Return the snapshot of a run, which is read again if its files have changed.

        None if it cannot be read, or is not in the index yet.
        """
        for (files,) in self._rows("SELECT files FROM runs WHERE name = ?", [name]):
            self._refresh(name, files)
        query = "SELECT run FROM runs WHERE name = ? AND run <> '' AND state <> 'unreadable'"
        rows = self._rows(query, [name])
        return RunSnapshot.model_validate_json(rows[0][0], extra="ignore") if rows else None

    def _rows(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a statement."""
        with self._lock:
            return self._db.execute(statement, values).fetchall()

    def _find_runs(self) -> None:
        """Add the new runs of the folder, and remove those that are gone."""
        try:
            changed = self._folder.stat().st_mtime_ns
            names = self._without_campaign
            complete = self._listed_at != changed
            if complete:
                with os.scandir(self._folder) as entries:
                    names = {entry.name for entry in entries if re.match(NAME, entry.name)}
                settled = time.time() - changed / 1e9 > _SETTLED
                self._listed_at = changed if settled else None
        except OSError:
            return
        if not (complete or names):
            return
        listed = {name for (name,) in self._db.execute("SELECT name FROM runs")}
        for name in listed - names if complete else ():
            self._db.execute("DELETE FROM runs WHERE name = ?", [name])
        self._without_campaign = set()
        folders = []
        for name in names - listed:
            try:
                created = (self._folder / name / CAMPAIGN).stat().st_mtime
            except OSError:
                self._without_campaign.add(name)
            else:
                folders.append((name, "", "", _time(created), "", None, "", 0, "", None))
        if folders:
            self._db.execute("BEGIN")
            self._db.executemany(
                "INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", folders
            )
            self._db.execute("COMMIT")

    def _refresh(self, name: str, files: str) -> bool:
        """Read a run again if its files are not those of its row; return whether it changed.

        A large journal takes seconds, in which others may use the index.
        """
        state = state_of(f"{self._folder}/{name}")
        if files == str(state):
            return False
        if state[0] == _NONE:  # it was deleted
            with self._lock:
                self._db.execute("DELETE FROM runs WHERE name = ?", [name])
                self._without_campaign.add(name)
            return True
        run, settled, spent = self._read(self._folder / name, state)
        query = "SELECT run, state FROM runs WHERE name = ?"
        with self._lock:
            row = self._db.execute(query, [name]).fetchone()
            if row is None:  # it was deleted meanwhile
                return True
            self._put(self._folder / name, run, str(state) if settled else "", spent)
            return bool(row != self._db.execute(query, [name]).fetchone())

    def _read(self, folder: Path, files: State) -> tuple[RunSnapshot | None, bool, float | None]:
        """Return the snapshot of a run, None for a grid; whether it holds; and what it spent."""
        try:
            campaign = find(folder)[0]
            if campaign.grid is not None:
                return None, True, 0.0
            total = Totals(total=campaign.design.questions)
            plain = dict.fromkeys((judge.name for judge in campaign.judges), total)

            def empty() -> dict[str, Totals]:
                # Only direct questions depend on the space, which is not read otherwise.
                return Run.open(folder).empty_totals if campaign.direct else plain

            run = read_snapshot(folder, campaign, empty)
            shared = campaign.journal is not None
            changed = max(max(stat[:2]) for stat in files) / 1e9
            is_over = run.state in journal.ENDED or (
                not shared and (run.state == "interrupted" or files[_FILES.index(JOURNAL)] == _NONE)
            )
            pause = _SETTLED_ELSEWHERE if shared else _SETTLED
            settled = is_over and time.time() - changed > pause
            spent = spent_in(JournalLocation(folder, campaign.journal))[0] if settled else None
        except (ElicitError, OSError) as error:
            reason = RunSnapshot.unreadable(folder, str(error))
            return reason, not getattr(error, "is_transient", False), None
        return run, settled, spent

    def _put(
        self, folder: Path, run: RunSnapshot | None, files: str = "", spent: float | None = None
    ) -> None:
        """Write the row of a run; None is that of a grid."""
        query = "SELECT created, run FROM runs WHERE name = ?"
        row = self._db.execute(query, [folder.name]).fetchone()
        created, previous = row or (_time(time.time()), "")
        if run is None:
            row = (folder.name, files, _NOT_LISTED, created, "", None, "", 0, "", 0.0)
            self._db.execute(_PUT, row)
            return
        labels = Labels.read(folder)
        listed = ListedRun(**dict(run), created=created, **dict(labels))
        text = listed.model_dump_json()
        if files or text != previous:
            tags = f" {' '.join(labels.tags).lower()} " if labels.tags else ""
            row = (folder.name, files, run.state, created, run.updated, run.cost)
            self._db.execute(_PUT, (*row, tags, labels.archived, text, spent))


def _open_index(path: Path) -> sqlite3.Connection:
    """Open the database of an index, or a new one in place of a damaged or an older one."""
    for database in (path, path, Path(":memory:")):
        try:
            if database.name != ":memory:":
                database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            db = sqlite3.connect(
                database, timeout=10.0, isolation_level=None, check_same_thread=False
            )
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("BEGIN IMMEDIATE")
            if db.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
                db.execute("DROP TABLE IF EXISTS runs")
                for statement in _TABLES.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {_VERSION}")
            db.execute("COMMIT")
            return db
        except (sqlite3.Error, OSError) as error:
            if type(error) is sqlite3.DatabaseError:  # it is damaged
                for suffix in ("", "-wal", "-shm"):
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
    raise AssertionError("SQLite opens a database in memory")


def spent_by(folders: Iterable[Path]) -> tuple[float, list[str]]:
    """Return the USD that runs spent or reserved, and the names of those that cannot be read.

    A grid's are those of its cells.

    Raises:
        JournalError: a database cannot be reached now.
    """
    usd, unreadable = 0.0, []
    for folder in folders:
        try:
            campaign = find(folder)[0]
            if campaign.grid is None:
                usd += spent_in(JournalLocation(folder, campaign.journal))[0]
        except (ElicitError, OSError) as error:
            if getattr(error, "is_transient", False):
                raise
            if folder.exists():  # it was not deleted just now
                unreadable.append(folder.name)
    return usd, unreadable


def _time(seconds: float) -> str:
    """Return a time in seconds since 1970 as ISO 8601, UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def state_of(folder: Path | str) -> State:
    """Return a fingerprint of a run's files, which changes whenever one of them changes."""
    states = []
    for name in _FILES:
        try:
            stat = os.stat(f"{folder}/{name}")  # noqa: PTH116 - a `Path` takes as long as the call
        except OSError:
            states.append(_NONE)
            continue
        if name != _LOG:
            states.append((stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size))
        else:  # to read a journal makes an empty log, or sets the owner of one
            states.append((stat.st_mtime_ns, 0, stat.st_size) if stat.st_size else _NONE)
    return tuple(states)
