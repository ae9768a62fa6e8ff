"""The location of a journal, its database connections, their errors, and the lock of a run.

A journal is a SQLite file in the run's folder, or a schema of a PostgreSQL database. Transactions
are committed exactly once, even if the connection is lost. When the disk is full, reserved space
and a file of unsaved answers keep the answers in flight.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    sleep_using_event,
    stop_after_delay,
    wait_none,
    wait_random_exponential,
)

from llm_elicit.config.campaign import check_same
from llm_elicit.errors import ConflictError, InputError
from llm_elicit.orchestrator.journal.schema import METADATA, VERSION, Change, meta, workers

T = TypeVar("T")


class JournalError(InputError):
    """A run's journal cannot be used; committed answers are kept.

    Attributes:
        is_transient: whether a retry may succeed later, for instance after a restart of the server.
    """

    is_transient = False


_FILE = {
    sqlite3.SQLITE_FULL: "the disk is full; make room and run again",
    sqlite3.SQLITE_IOERR: "the disk cannot be read or written; check its space, its quota and its "
    "health, and run again",
    sqlite3.SQLITE_READONLY: "it is read-only; check the permissions of the file and of its folder",
    sqlite3.SQLITE_PERM: "access is denied; check the permissions of the file and of its folder",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check that its folder exists and the "
    "permissions of both",
    sqlite3.SQLITE_BUSY: "another program has locked the file (a database browser, a backup); "
    "close it and run again",
}
_FILE[sqlite3.SQLITE_LOCKED] = _FILE[sqlite3.SQLITE_BUSY]
_FILE[sqlite3.SQLITE_CORRUPT] = _FILE[sqlite3.SQLITE_NOTADB] = (
    "the file is damaged; restore a copy, or move it away and run again: answers in the cache "
    "are not requested again"
)

# By SQLSTATE. The driver reports none if the server refused the connection, see `_REFUSED`.
_SERVER = {
    "42501": "the user lacks a privilege; the journal needs the right to create a schema in the "
    "database",
    "25006": "the server is read-only; give the address of its primary",
    "53100": "the server's disk is full; make room there and run again",
}
_REFUSED = (
    "check that the server runs, has this database and a free connection, and accepts this user "
    "(PGPASSWORD, ~/.pgpass)"
)


def is_full(error: BaseException) -> bool:
    """Return whether the disk is full."""
    return isinstance(error, DBAPIError) and _code(error) == sqlite3.SQLITE_FULL


def is_transient(error: BaseException) -> bool:
    """Return whether a retry may succeed later, for instance after a restart of the server."""
    if not isinstance(error, DBAPIError) or _state(error) == "53100":
        return False
    return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)


def _code(error: Exception) -> int:
    """Return SQLite's primary result code; 0 if there is none."""
    if isinstance(error, UnicodeDecodeError) or "Could not decode" in str(error):
        return sqlite3.SQLITE_CORRUPT  # a text with flipped bits
    code = getattr(getattr(error, "orig", None) or error, "sqlite_errorcode", None)
    return (code or 0) & 0xFF


def _state(error: Exception) -> str:
    """Return PostgreSQL's SQLSTATE; empty if there is none."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) or ""


FILE = "journal.sqlite"

ASKING, AT_WORK = ".lock", ".at-work"
"""The locks of a run's folder: while its questions are asked, and while a process works on it."""

LEASE = 120.0
"""Seconds without a sign of life after which a worker counts as dead."""

_LOCK_TIMEOUT = 30.0
"""Seconds to wait for another process's lock on the file."""

_MIN_IDLE_TIMEOUT = 5.0
"""Smallest idle timeout of a transaction, in seconds."""

_TIMEOUTS = {
    "connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}  # fmt: skip
"""Connection settings that detect an unreachable server within half a minute."""


def retry_transient(work: Callable[[], T], seconds: float) -> T:
    """Call `work`, and repeat it for so long while the journal's server cannot be reached."""
    retrying = Retrying(
        retry=retry_if_exception(
            lambda e: is_transient(e) or (isinstance(e, JournalError) and e.is_transient)
        ),
        stop=stop_after_delay(seconds),
        wait=wait_random_exponential(0.1, max=2.0),
        reraise=True,
    )
    return retrying(work)


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
            str(self.folder / FILE), begin="BEGIN IMMEDIATE", synchronous="FULL", busy=_LOCK_TIMEOUT
        )

    def readable(self) -> sa.Engine:
        """Return an engine that only reads, possibly while another process writes."""
        if self.address is not None:
            return _postgresql(self.address, self.schema, LEASE)
        return sqlite_engine(self.read_only_address, begin="BEGIN")

    @contextmanager
    def reading(self) -> Iterator[sa.Connection | None]:
        """Open a connection with a consistent view of the journal; None while there is none.

        Raises:
            JournalError: it cannot be read.
        """
        if self.address is None and not (self.folder / FILE).is_file():
            yield None
            return
        with self.guarded(), self.readable().connect() as db, db.begin():
            yield db if sa.inspect(db).has_table("meta") else None

    @property
    def read_only_address(self) -> str:
        """The address of the SQLite file for a connection that only reads."""
        path = self.folder / FILE
        effective = os.access in os.supports_effective_ids
        writable = os.access(path.parent, os.W_OK, effective_ids=effective)
        # In a read-only folder, nobody writes to a file without a write-ahead log. SQLite has to
        # know this, since it cannot create that log in order to read the file.
        archived = not writable and not path.with_name(f"{path.name}-wal").exists()
        mode = "mode=ro&immutable=1" if archived else "mode=ro"
        return f"{path.resolve().as_uri()}?{mode}"

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn the database's exceptions into a `JournalError`.

        Raises:
            JournalError: the disk is full, it cannot be written or reached, or it is damaged.
        """
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error, UnicodeDecodeError) as error:
            raise self.explain_error(error) from None

    def explain_error(self, error: Exception) -> JournalError:
        """Return an exception of the database, explained in one line."""
        reason = " ".join(str(getattr(error, "orig", None) or error).split())
        way_out = (
            _SERVER.get(_state(error), _REFUSED)
            if self.shared
            else _FILE.get(_code(error), "correct what the reason names")
        )
        explained = JournalError(
            f"{self.name}: the journal cannot be used ({reason[:300]}): {way_out}; committed "
            "answers are kept"
        )
        explained.is_transient = self.shared and is_transient(error)
        return explained


@lru_cache(maxsize=32)  # without connections, but with its compiled statements
def _postgresql(address: str, schema: str, lease: float) -> sa.Engine:
    url: URL = make_url(address).set(drivername="postgresql+psycopg")
    idle = round(1000 * max(lease, _MIN_IDLE_TIMEOUT))
    options = (
        f'-csearch_path="{schema}" -csynchronous_commit=on '
        f"-cidle_in_transaction_session_timeout={idle}"
    )
    try:
        return sa.create_engine(
            url, poolclass=NullPool, connect_args={"options": options, **_TIMEOUTS}
        )
    except ModuleNotFoundError:
        raise InputError(
            "a journal on PostgreSQL needs its driver: pip install 'llm-elicit[postgresql]'"
        ) from None


@cache
def _sqlite() -> sa.Engine:
    """Return an engine that knows SQLite and keeps statements, for the engines of all files.

    To compile the statements takes twice as long as what they do.
    """
    statements: sa.util.LRUCache[Any, Any] = sa.util.LRUCache(500)
    engine = sa.create_engine(
        "sqlite+pysqlite://", poolclass=NullPool, execution_options={"compiled_cache": statements}
    )
    with engine.connect():
        return engine


def sqlite_engine(
    target: str,
    *,
    begin: str | None,
    synchronous: Literal["FULL", "NORMAL"] | None = None,
    busy: float = _LOCK_TIMEOUT,
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

    shared = _sqlite()
    pool = NullPool(cast("Any", connect), dialect=shared.dialect)
    options = shared.get_execution_options()
    engine = sa.Engine(pool, shared.dialect, shared.url, execution_options=options)
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
                    f"{self._folder}: another process is running this campaign; wait for it to "
                    "end, or stop it"
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


@lru_cache(maxsize=32)
def _statements(dialect: sa.Dialect) -> list[str]:
    """Return the statements that create the tables; to compile them takes longer than to run."""
    tables = METADATA.sorted_tables
    ddl: list[sa.schema.ExecutableDDLElement] = [sa.schema.CreateTable(table) for table in tables]
    ddl += [sa.schema.CreateIndex(index) for table in tables for index in table.indexes]
    return [str(statement.compile(dialect=dialect)) for statement in ddl]


def prepare_schema(db: sa.Connection, location: JournalLocation) -> None:
    """Create the run's tables within a transaction, unless they exist.

    Raises:
        InputError: the tables are those of another version.
    """
    if location.shared:
        # Two processes that start together must not both create the tables.
        db.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(location.schema))))
        db.execute(sa.schema.CreateSchema(location.schema, if_not_exists=True))
    if not sa.inspect(db).has_table("meta"):
        for statement in _statements(db.dialect):
            db.exec_driver_sql(statement)
        db.execute(meta.insert().values(key="version", value=VERSION))
    check_version(db, location)


def check_identity(db: sa.Connection, identity: Mapping[str, str], folder: Path) -> None:
    """Check that a journal is that of a campaign.

    Raises:
        InputError: its identity is another; the message names the difference.
    """
    stored = dict(db.execute(sa.select(meta.c.key, meta.c.value)).all())
    check_same(stored, identity, folder)


def check_version(db: sa.Connection, location: JournalLocation) -> None:
    """Check that a journal has these tables.

    Raises:
        InputError: it has those of another version.
    """
    version = db.execute(sa.select(meta.c.value).where(meta.c.key == "version")).scalar()
    if version != VERSION:
        raise InputError(
            f"{location.name}: the journal has version {version or '(none)'}, and this version "
            f"of llm-elicit reads version {VERSION}; use the version that wrote it"
        )


RESERVE_BYTES = 8 * 2**20
"""Bytes of the reserve: some thousand answers, with SQLite's overhead."""


def reserve_space(folder: Path) -> Path:
    """Return a file in a run's folder that reserves space, to be deleted when the disk is full.

    Raises:
        JournalError: the disk does not have that much space.
    """
    path = folder / "journal.reserve"
    try:
        path.write_bytes(bytes(RESERVE_BYTES))
    except OSError as error:
        path.unlink(missing_ok=True)
        raise JournalError(
            f"{folder}: cannot be written ({error.strerror or error}): a run keeps "
            f"{RESERVE_BYTES // 2**20} MB in reserve for the answers in flight; make room, "
            "check its permissions, and run again"
        ) from None
    return path


class UnsavedAnswers:
    """A file of answers that the journal did not accept, written by the next run.

    Args:
        folder: the run's folder.
        journal: the journal's own id: row numbers are valid for that journal alone.
    """

    def __init__(self, folder: Path, journal: str) -> None:
        self._path = folder / "unsaved.jsonl"
        self._journal = journal

    def save(self, changes: Sequence[Change]) -> int:
        """Save the answers among changes; return how many could not be saved either."""
        rows = [change.answer for change in changes if change.answer is not None]
        try:
            with self._path.open("a", encoding="utf-8") as file:
                if file.tell():
                    file.write("\n")  # the disk may have been full within the line before
                for row in rows:
                    file.write(json.dumps({"journal": self._journal, "answer": row}) + "\n")
        except OSError:
            return len(rows)
        return 0

    def answers(self) -> list[Change]:
        """Return the saved answers of this journal; incomplete lines are skipped."""
        if not self._path.is_file():
            return []
        changes = []
        for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
                row = record["answer"]
                tokens = 0 if row["cached"] else row["prompt_tokens"] + row["completion_tokens"]
                change = Change("answered", row["question"], {}, row, row["cost"] or 0.0, tokens)
            except (ValueError, KeyError, TypeError):
                continue
            if record.get("journal") == self._journal:
                changes.append(change)
        return changes

    def clear(self) -> None:
        """Delete the file, once its answers are in the journal."""
        self._path.unlink(missing_ok=True)


_MAX_ATTEMPTS = 3
"""Attempts of a transaction on a full disk: the first, one after the reserve is released, and one
to check whether a commit reported as failed (by a checkpoint, say) is there after all."""


class Transactions:
    """One worker's transactions on a journal.

    Each writes its number to the worker's row. If the connection is lost during a commit, the
    number shows whether it was committed.

    An unreachable server is retried until the worker's lease expires, counted from its last commit;
    after that each transaction is tried once. On a full disk the reserve is released and the
    transaction retried; from then on `failure` says why nothing more may be sent.

    Args:
        location: where the journal is.
        me: the worker's id.
        lease: the worker's lease, in seconds.

    Attributes:
        number: the number of the current transaction.
    """

    def __init__(self, location: JournalLocation, me: str, lease: float) -> None:
        self.location = location
        self.failure: JournalError | None = None
        self._me = me
        self._lease = lease
        self.number = 0
        self._reserve = None if location.shared else reserve_space(location.folder)
        self._committed_at = time.monotonic()
        self._given_up = threading.Event()
        try:
            self.db = location.writable(lease).connect()
        except BaseException:
            self._release()
            raise
        self._retrying = Retrying(
            retry=retry_if_exception(self._is_worth_retrying),
            stop=self._should_stop,
            wait=wait_random_exponential(0.1, max=2.0) if location.shared else wait_none(),
            sleep=sleep_using_event(self._given_up),
            reraise=True,
        )

    def run_once(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, committed exactly once in one transaction.

        If the work changes anything, it must write the number to the worker's row as well.

        Raises:
            JournalError: the database cannot be used.
        """
        self.number += 1
        results: list[T] = []
        written = sa.select(workers.c.written).where(workers.c.id == self._me)

        def attempt() -> T:
            with self.db.begin():
                if not results or self.db.execute(written).scalar() != self.number:
                    results.append(work())
            return results[-1]

        with self.location.guarded():
            result = self._retrying(attempt)
        self._committed_at = time.monotonic()
        return result

    def _is_worth_retrying(self, error: BaseException) -> bool:
        if self.location.shared:
            return is_transient(error)
        if not is_full(error):
            return False
        if self.failure is None and isinstance(error, SQLAlchemyError):
            self.failure = self.location.explain_error(error)
        self._release()
        return True

    def _should_stop(self, state: RetryCallState) -> bool:
        if not self.location.shared:
            return state.attempt_number >= _MAX_ATTEMPTS
        return self._given_up.is_set() or time.monotonic() > self._committed_at + self._lease

    def give_up(self) -> None:
        """Stop retrying; may be called from another thread."""
        self._given_up.set()

    def _release(self) -> None:
        if self._reserve is not None:
            self._reserve.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the connection and release the reserve."""
        self.db.close()
        self._release()
