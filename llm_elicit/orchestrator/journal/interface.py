"""Opening a journal's database: a SQLite file in the run's folder, or a PostgreSQL schema."""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal.failures import JournalError, explained

FILE = "journal.sqlite"

LEASE = 120.0
"""Seconds after which a worker that has not been heard of is taken for gone."""

_BUSY = 30.0
"""Seconds to wait for another process's lock on the file."""

_IDLE = 5.0
"""Seconds at least that a transaction may pause."""

_SILENCE = {
    "connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}  # fmt: skip
"""A server that is gone without a word is noticed in half a minute."""


@dataclass(frozen=True)
class JournalLocation:
    """Where a run's journal is.

    Attributes:
        folder: the run's folder; its name is the run's.
        address: `postgresql://...` of a server that several machines share; None for the
            embedded default, a file in the folder.
    """

    folder: Path
    address: str | None = None

    @property
    def shared(self) -> bool:
        """Whether several processes may work on it at once."""
        return self.address is not None

    @property
    def name(self) -> str:
        """What error messages call it; it holds no password."""
        return (
            str(self.folder / FILE) if self.address is None else f"{self.address} ({self.schema})"
        )

    @property
    def schema(self) -> str:
        """The PostgreSQL schema of this run: its name, cut to what PostgreSQL allows."""
        name = re.sub(r"[^A-Za-z0-9._-]", "_", self.folder.resolve().name)
        tail = hashlib.sha256(name.encode()).hexdigest()[:8]
        return f"elicit_{name}" if len(name) <= 50 else f"elicit_{name[:40]}_{tail}"

    def writable(self, lease: float = LEASE) -> sa.Engine:
        """An engine that may write; the run's tables may not be there yet.

        Args:
            lease: seconds; a worker that stops in the middle of a transaction loses its locks
                after so many.
        """
        if self.address is not None:
            return _postgresql(self.address, self.schema, lease)
        return sqlite_engine(
            str(self.folder / FILE), begin="BEGIN IMMEDIATE", synchronous="FULL", busy=_BUSY
        )

    def readable(self) -> sa.Engine:
        """An engine that only reads, while another process may be writing.

        Raises:
            InputError: there is no journal in the folder.
        """
        if self.address is not None:
            return _postgresql(self.address, self.schema, LEASE)
        path = self.folder / FILE
        if not path.is_file():
            raise InputError(f"{self.folder}: no journal here; run the campaign first")
        mode = "mode=ro&immutable=1" if _archived(path) else "mode=ro"
        return sqlite_engine(f"{path.resolve().as_uri()}?{mode}", begin="BEGIN")

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn whatever the database raises into one clear line.

        Raises:
            JournalError: the disk is full, it cannot be written or reached, or it is damaged.
        """
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error, UnicodeDecodeError) as error:
            raise self.explained(error) from None

    def explained(self, error: Exception) -> JournalError:
        """What the database raised, in one clear line."""
        return explained(error, self.name, shared=self.shared)


def _archived(path: Path) -> bool:
    """Whether nobody writes a journal, and its folder takes no file that readers would share."""
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


def sqlite_engine(
    target: str,
    *,
    begin: str | None,
    synchronous: Literal["FULL", "NORMAL"] | None = None,
    busy: float = _BUSY,
) -> sa.Engine:
    """An engine on a file.

    Args:
        target: a path, or a `file:` URI.
        begin: what opens a transaction, since the driver's own are lazy; None for none.
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
