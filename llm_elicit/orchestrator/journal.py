"""The journal: one SQLite file a run, where an intent stands before a request leaves and an
answer before it is counted.

`synchronous=FULL` in WAL mode: what a commit returned for is on the disk. The file may be read
by other processes while a run writes it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llm_elicit.errors import InputError
from llm_elicit.plan import Order, Plan

FILE = "journal.sqlite"

MIGRATIONS: tuple[tuple[str, str], ...] = (
    (
        "0001-questions-and-answers",
        """
        CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
        CREATE TABLE questions (
            id INTEGER PRIMARY KEY,
            judge TEXT NOT NULL,
            pair INTEGER NOT NULL,
            presentation TEXT NOT NULL CHECK (presentation IN ('ab', 'ba')),
            replicate INTEGER NOT NULL,
            state TEXT NOT NULL DEFAULT 'planned'
                CHECK (state IN ('planned', 'in flight', 'done', 'failed')),
            attempts INTEGER NOT NULL DEFAULT 0,
            reserved REAL NOT NULL DEFAULT 0,
            lost REAL NOT NULL DEFAULT 0,
            error TEXT,
            UNIQUE (judge, pair, presentation, replicate)
        ) STRICT;
        CREATE INDEX by_state ON questions (judge, state);
        CREATE TABLE answers (
            question INTEGER PRIMARY KEY REFERENCES questions (id),
            template TEXT NOT NULL,
            prompt_hash TEXT NOT NULL,
            endpoint TEXT NOT NULL,
            settings TEXT NOT NULL,
            model_asked TEXT NOT NULL,
            model_answered TEXT NOT NULL,
            reply TEXT NOT NULL,
            finish TEXT NOT NULL,
            verdict TEXT NOT NULL,
            first REAL,
            letter_mass REAL,
            probability REAL,
            prompt_tokens INTEGER NOT NULL,
            completion_tokens INTEGER NOT NULL,
            cached_tokens INTEGER NOT NULL,
            cost REAL,
            latency REAL NOT NULL,
            cached INTEGER NOT NULL,
            asked_at TEXT NOT NULL
        ) STRICT;
        """,
    ),
)
"""Named, append-only: a migration that has been released is never edited."""


@dataclass(frozen=True)
class Question:
    """A row of the plan in the journal.

    Attributes:
        id: the row's number.
        pair, order, replicate: which question (see `Query`).
        attempts: requests already sent for it, in earlier runs too.
    """

    id: int
    pair: int
    order: Order
    replicate: int
    attempts: int


@dataclass(frozen=True)
class Answer:
    """What is kept of an answer: the columns of the table `answers` after the question."""

    template: str
    prompt_hash: str
    endpoint: str
    settings: str
    model_asked: str
    model_answered: str
    reply: str
    finish: str
    verdict: str
    first: float | None
    letter_mass: float | None
    probability: float | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost: float | None
    latency: float
    cached: bool
    asked_at: str


@dataclass(frozen=True)
class Totals:
    """One judge's state in the journal."""

    total: int = 0
    done: int = 0
    failed: int = 0
    cached: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    lost: float = 0.0


Op = tuple[str, Sequence[Any]]
"""A statement with its parameters."""

_ANSWER_COLUMNS = ", ".join(field.name for field in fields(Answer))
_INSERT_ANSWER = (
    f"INSERT INTO answers (question, {_ANSWER_COLUMNS}) "
    f"VALUES ({', '.join('?' * (len(fields(Answer)) + 1))})"
)


def intent(question: int, reserved: float) -> list[Op]:
    """A request for the question is about to leave; it may cost `reserved` USD at most."""
    sql = (
        "UPDATE questions SET state = 'in flight', attempts = attempts + 1, reserved = ?, "
        "error = NULL WHERE id = ?"
    )
    return [(sql, (reserved, question))]


def answered(question: int, answer: Answer) -> list[Op]:
    """The question has its answer."""
    return [
        (_INSERT_ANSWER, (question, *astuple(answer))),
        ("UPDATE questions SET state = 'done', reserved = 0 WHERE id = ?", (question,)),
    ]


def missed(question: int, lost: float) -> list[Op]:
    """A request came to nothing; `lost` USD may have been charged for it."""
    sql = "UPDATE questions SET state = 'planned', reserved = 0, lost = lost + ? WHERE id = ?"
    return [(sql, (lost, question))]


def failed(question: int, reason: str) -> list[Op]:
    """The question is given up in this run; the next run tries it again."""
    return [
        (
            "UPDATE questions SET state = 'failed', reserved = 0, error = ? WHERE id = ?",
            (reason, question),
        )
    ]


class Journal:
    """A run's journal, open for writing by one process.

    Raises:
        InputError: the folder cannot be written, or holds the run of another campaign.
    """

    def __init__(self, folder: Path, identity: dict[str, str]) -> None:
        self.path = folder / FILE
        self._db = _connect(self.path)
        try:
            _migrate(self._db)
            self._same_campaign(identity)
        except sqlite3.Error as error:
            self._db.close()
            raise _unusable(self.path, error) from None
        except BaseException:
            self._db.close()
            raise

    def _same_campaign(self, identity: dict[str, str]) -> None:
        kept = dict(self._db.execute("SELECT key, value FROM meta"))
        for key, value in identity.items():
            if key in kept and kept[key] != value:
                raise InputError(
                    f"{self.path.parent}: this folder holds the run of another campaign "
                    f"(its {key} differs); give the campaign another name, or move the folder away"
                )
        with self._db:
            self._db.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", identity.items())

    def prepare(self, judges: Iterable[str], plan: Plan) -> int:
        """Write the plan down, and take back what was in flight when the last run ended.

        Returns:
            How many requests were in flight: their answers, if any, were lost with that run.
        """
        with self._db:
            for judge in judges:
                self._db.executemany(
                    "INSERT OR IGNORE INTO questions (judge, pair, presentation, replicate) "
                    "VALUES (?, ?, ?, ?)",
                    ((judge, query.pair, query.order, query.replicate) for query in plan),
                )
            cursor = self._db.execute(
                "UPDATE questions SET state = 'planned', lost = lost + reserved, reserved = 0 "
                "WHERE state = 'in flight'"
            )
            return cursor.rowcount

    def pending(self, judge: str) -> list[Question]:
        """The judge's questions without an answer, in the plan's order."""
        rows = self._db.execute(
            "SELECT id, pair, presentation, replicate, attempts FROM questions "
            "WHERE judge = ? AND state IN ('planned', 'failed') ORDER BY id",
            (judge,),
        )
        return [Question(*row) for row in rows]

    def totals(self, judge: str) -> Totals:
        """Where the judge stands."""
        return totals(self._db, judge)

    def spent(self) -> float:
        """USD paid so far, with what may have been charged for requests that came to nothing."""
        (paid,) = self._db.execute("SELECT COALESCE(SUM(cost), 0) FROM answers").fetchone()
        (lost,) = self._db.execute("SELECT COALESCE(SUM(lost), 0) FROM questions").fetchone()
        return float(paid) + float(lost)

    def commit(self, ops: Iterable[Op]) -> None:
        """Make `ops` durable, all of them or none.

        Raises:
            InputError: the disk is full, the file cannot be written, or it is damaged.
        """
        try:
            with self._db:
                for sql, parameters in ops:
                    self._db.execute(sql, parameters)
        except sqlite3.Error as error:
            raise _unusable(self.path, error) from None

    def close(self) -> None:
        """Close the file; what was committed is on the disk already."""
        self._db.close()


def read_only(folder: Path) -> sqlite3.Connection:
    """The journal of a run, to be read, while another process may be writing it.

    Raises:
        InputError: there is no journal in the folder.
    """
    path = folder / FILE
    if not path.is_file():
        raise InputError(f"{folder}: no journal here; run the campaign first")
    db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=30.0)
    db.row_factory = sqlite3.Row
    return db


def totals(db: sqlite3.Connection, judge: str) -> Totals:
    """Where a judge stands, from an open journal."""
    row = db.execute(
        "SELECT COUNT(*), SUM(q.state = 'done'), SUM(q.state = 'failed'), SUM(a.cached), "
        "SUM(q.attempts), SUM(a.prompt_tokens), SUM(a.completion_tokens), SUM(a.cost), SUM(q.lost) "
        "FROM questions q LEFT JOIN answers a ON a.question = q.id WHERE q.judge = ?",
        (judge,),
    ).fetchone()
    return Totals(*(value or 0 for value in row))


def now() -> str:
    """The UTC time, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _connect(path: Path) -> sqlite3.Connection:
    try:
        db = sqlite3.connect(path, timeout=30.0, check_same_thread=False)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
    except sqlite3.Error as error:
        raise _unusable(path, error) from None
    return db


def _migrate(db: sqlite3.Connection) -> None:
    """Bring the file to the newest schema; each migration is applied once, whole."""
    with db:
        db.execute(
            "CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY, at TEXT NOT NULL) STRICT"
        )
    applied = {name for (name,) in db.execute("SELECT name FROM migrations")}
    unknown = applied - {name for name, _ in MIGRATIONS}
    if unknown:
        raise InputError(
            f"the journal was written by a newer version (it has {sorted(unknown)[0]}); "
            "upgrade llm-elicit"
        )
    for name, script in MIGRATIONS:
        if name not in applied:
            record = f"INSERT INTO migrations VALUES ('{name}', '{now()}');"
            db.executescript(f"BEGIN;{script}{record}COMMIT;")


def _unusable(path: Path, error: sqlite3.Error) -> InputError:
    return InputError(
        f"{path}: the journal cannot be used ({error}); check the disk's space and the folder's "
        "permissions; what was committed before is kept"
    )
