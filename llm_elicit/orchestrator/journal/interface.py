"""Where a run's journal is, how its database is opened, and the lock of the run's folder.

A journal is a SQLite file in the run's folder, or a schema of a PostgreSQL database.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from llm_elicit.errors import ConflictError, InputError
from llm_elicit.orchestrator.journal.failures import JournalError, explained

FILE = "journal.sqlite"

ASKING, AT_WORK = ".lock", ".at-work"
"""The locks of a run's folder: while its questions are asked, and while a process works on it."""

LEASE = 120.0
"""Seconds without a sign of life after which a worker counts as dead."""

_BUSY = 30.0
"""Seconds to wait for another process's lock on the file."""

_IDLE = 5.0
"""Least idle timeout of a transaction, in seconds."""

_SILENCE = {
    "connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}  # fmt: skip
"""Connection settings that detect an unreachable server within half a minute."""


class RunInUseError(ConflictError):
    """Another process works on a run, or has taken it over."""


@dataclass(frozen=True)
class JournalLocation:
    """Where a run's journal is.

    Attributes:
        folder: the run's folder, whose name is the name of the run.
        address: `postgresql://...` of a server that several machines share; None for the
            default, a SQLite file in the folder.
    """

    folder: Path
    address: str | None = None

    @property
    def shared(self) -> bool:
        """Whether several processes may work on it at the same time."""
        return self.address is not None

    @property
    def name(self) -> str:
        """The name of the journal in messages, without a password."""
        return (
            str(self.folder / FILE) if self.address is None else f"{self.address} ({self.schema})"
        )

    @property
    def schema(self) -> str:
        """The PostgreSQL schema of this run: its name, shortened to what PostgreSQL allows."""
        name = re.sub(r"[^A-Za-z0-9._-]", "_", self.folder.resolve().name)
        tail = hashlib.sha256(name.encode()).hexdigest()[:8]
        return f"elicit_{name}" if len(name) <= 50 else f"elicit_{name[:40]}_{tail}"

    def writable(self, lease: float = LEASE) -> sa.Engine:
        """Return an engine that can write; the run's tables may not exist yet.

        Args:
            lease: seconds after which a worker that stops within a transaction loses its locks.
        """
        if self.address is not None:
            return _postgresql(self.address, self.schema, lease)
        return sqlite_engine(
            str(self.folder / FILE), begin="BEGIN IMMEDIATE", synchronous="FULL", busy=_BUSY
        )

    def readable(self) -> sa.Engine:
        """Return an engine that only reads, possibly while another process writes.

        Raises:
            InputError: there is no journal in the folder.
        """
        if self.address is not None:
            return _postgresql(self.address, self.schema, LEASE)
        if not (self.folder / FILE).is_file():
            raise InputError(f"{self.folder}: no journal here; run the campaign first")
        return sqlite_engine(self.only_read, begin="BEGIN")

    @property
    def only_read(self) -> str:
        """The address of the SQLite file for a connection that only reads."""
        path = self.folder / FILE
        mode = "mode=ro&immutable=1" if _archived(path) else "mode=ro"
        return f"{path.resolve().as_uri()}?{mode}"

    @contextmanager
    def glance(self) -> Iterator[sqlite3.Connection]:
        """Open a connection to the file in the folder, for queries that `in_sqlite` has compiled.

        SQLAlchemy compiles each anew for every engine, which takes longer than most of them.
        """
        opened = sqlite3.connect(self.only_read, timeout=1.0, isolation_level=None, uri=True)
        with closing(opened) as db:
            db.row_factory = sqlite3.Row
            db.execute("BEGIN")
            yield db

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn the database's exceptions into a `JournalError`.

        Raises:
            JournalError: the disk is full, it cannot be written or reached, or it is damaged.
        """
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error, UnicodeDecodeError) as error:
            raise self.explained(error) from None

    def explained(self, error: Exception) -> JournalError:
        """Return an exception of the database, explained in one line."""
        return explained(error, self.name, shared=self.shared)


def _archived(path: Path) -> bool:
    """Return whether a journal is not being written and its folder is read-only."""
    effective = os.access in os.supports_effective_ids
    writable = os.access(path.parent, os.W_OK, effective_ids=effective)
    return not writable and not path.with_name(f"{path.name}-wal").exists()


def _postgresql(address: str, schema: str, lease: float) -> sa.Engine:
    url: URL = make_url(address).set(drivername="postgresql+psycopg")
    idle = round(1000 * max(lease, _IDLE))
    options = (
        f'-csearch_path="{schema}" -csynchronous_commit=on '
        f"-cidle_in_transaction_session_timeout={idle}"
    )
    try:
        return sa.create_engine(
            url, poolclass=NullPool, connect_args={"options": options, **_SILENCE}
        )
    except ModuleNotFoundError:
        raise InputError(
            "a journal on PostgreSQL needs its driver: pip install 'llm-elicit[postgresql]'"
        ) from None


def in_sqlite(query: sa.Select[Any]) -> str:
    """Return a query without parameters as SQLite's SQL."""
    options = {"literal_binds": True}
    return str(query.compile(dialect=sqlite.dialect(), compile_kwargs=options))


def sqlite_engine(
    target: str,
    *,
    begin: str | None,
    synchronous: Literal["FULL", "NORMAL"] | None = None,
    busy: float = _BUSY,
) -> sa.Engine:
    """Return an engine on a SQLite file.

    Args:
        target: a path, or a `file:` URI.
        begin: the statement that starts a transaction, since the driver's own start late; None
            for none.
        synchronous: how durable a commit is, in WAL mode; None for files that are only read.
        busy: seconds to wait for another process's lock on the file.
    """

    def connect() -> sqlite3.Connection:
        db = sqlite3.connect(
            target,
            timeout=busy,
            check_same_thread=False,
            isolation_level=None,
            uri=target.startswith("file:"),
        )
        if synchronous is not None:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA synchronous = {synchronous}")
        return db

    engine = sa.create_engine("sqlite+pysqlite://", creator=connect, poolclass=NullPool)
    if begin is not None:

        @sa.event.listens_for(engine, "begin")
        def _begin(connection: Any) -> None:
            connection.exec_driver_sql(begin)

    return engine


class RunLock:
    """A lock on a run's folder, held while inside `with`.

    It is the operating system's lock on a file, taken by SQLite, so that it behaves alike on every
    system and is released when the process ends, however it ends.

    Args:
        folder: the run's folder; created if necessary.
        shared: whether the lock is shared, for several processes with one journal on a server.
        name: the name of the lock's file.

    Raises:
        RunInUseError: another process works on the folder.
        InputError: it cannot be written.
    """

    def __init__(self, folder: Path, *, shared: bool = False, name: str = ASKING) -> None:
        self._folder = folder
        self._path = folder / name
        self._shared = shared
        self._db: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # SQLite would open a file without write access for reading, and "lock" that.
            self._path.open("ab").close()
            self._db = sqlite3.connect(self._path, timeout=0.0, isolation_level=None)
            if self._shared:
                # A reader's lock: many may hold it, and none while one works alone.
                self._db.execute("BEGIN").execute("SELECT COUNT(*) FROM sqlite_schema").fetchall()
            else:
                self._db.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            if self._db is not None:
                self._db.close()
            if "locked" in str(error):
                raise RunInUseError(
                    f"{self._folder}: another process is at work on this run; wait for it to end, "
                    "or stop it"
                ) from None
            raise self._unwritable(f"{self._path.name}: {error}") from None
        except OSError as error:
            raise self._unwritable(error.strerror or str(error)) from None
        return self

    def _unwritable(self, reason: str) -> InputError:
        return InputError(f"{self._folder}: cannot be written ({reason}); check its permissions")

    def __exit__(self, *error: object) -> None:
        if self._db is not None:
            self._db.close()
