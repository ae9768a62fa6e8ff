"""The journal's tables after the newest migration, and how they are brought up to date."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Integer,
    MetaData,
    Table,
    Text,
    func,
    literal_column,
    select,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal.changes import now
from llm_elicit.orchestrator.journal.interface import JournalLocation
from llm_elicit.orchestrator.journal.migrations import MIGRATIONS

_METADATA = MetaData()

meta = Table("meta", _METADATA, Column("key", Text, primary_key=True), Column("value", Text))

workers = Table(
    "workers",
    _METADATA,
    Column("id", Text, primary_key=True),
    Column("name", Text),
    Column("began", Text),
    Column("expires", Double),
    Column("spent", Double),
    Column("tokens", BigInteger),
    Column("written", BigInteger),
)

questions = Table(
    "questions",
    _METADATA,
    Column("id", BigInteger, primary_key=True),
    Column("judge", Text),
    Column("pair", BigInteger),
    Column("presentation", Text),
    Column("replicate", BigInteger),
    Column("state", Text),
    Column("attempts", BigInteger),
    Column("reserved", Double),
    Column("lost", Double),
    Column("error", Text),
    Column("worker", Text),
    Column("reserved_tokens", BigInteger),
    Column("lost_tokens", BigInteger),
    Column("batch", Text),
)

batches = Table(
    "batches",
    _METADATA,
    Column("tag", Text, primary_key=True),
    Column("judge", Text),
    Column("batch", Text),
    Column("fate", Text),
    Column("made", Double),
    Column("note", Text),
)

rounds = Table(
    "rounds",
    _METADATA,
    Column("judge", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("pairs", Text),
    Column("digest", Text),
)

answers = Table(
    "answers",
    _METADATA,
    Column("question", BigInteger, primary_key=True, autoincrement=False),
    Column("template", Text),
    Column("prompt_hash", Text),
    Column("endpoint", Text),
    Column("settings", Text),
    Column("model_asked", Text),
    Column("model_answered", Text),
    Column("reply", Text),
    Column("finish", Text),
    Column("verdict", Text),
    Column("first", Double),
    Column("letter_mass", Double),
    Column("probability", Double),
    Column("prompt_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("cost", Double),
    Column("latency", Double),
    Column("cached", Integer),
    Column("asked_at", Text),
    Column("thinking", Text),
    Column("format", Text),
    Column("censored", Integer),
    Column("digest", Text),
)

people = Table(
    "people",
    _METADATA,
    Column("id", BigInteger, primary_key=True),
    Column("judge", Text),
    Column("expert", Text),
    Column("kind", Text),
    Column("question", BigInteger),
    Column("pair", BigInteger),
    Column("presentation", Text),
    Column("state", Text),
    Column("expires", Double),
    Column("shown", Double),
    Column("choice", Text),
    Column("expected", Text),
    Column("confidence", Double),
    Column("seconds", Double),
    Column("answered_at", Text),
)

control = Table(
    "control",
    _METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("wanted", Text),
    Column("state", Text),
    Column("stage", Text),
    Column("owner", Text),
    Column("error", Text),
    Column("max_cost", Double),
    Column("concurrency", BigInteger),
    Column("changed", Double),
    Column("alive", Double),
    Column("takeovers", BigInteger),
)

events = Table(
    "events",
    _METADATA,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Text),
    Column("kind", Text),
    Column("judge", Text),
    Column("data", Text),
)

# Literals, not parameters: a partial index is used only if the statement contains its condition.
PLANNED = literal_column("'planned'", Text)
IN_FLIGHT = literal_column("'in flight'", Text)
SUBMITTED = literal_column("'submitted'", Text)
DONE = literal_column("'done'", Text)
LEASED = literal_column("'leased'", Text)
ANSWERED = literal_column("'answered'", Text)
QUESTION = literal_column("'question'", Text)


class clock(FunctionElement[float]):  # noqa: N801 - a SQL function
    """The database's time in seconds, since the clocks of several machines differ."""

    type = Double()
    inherit_cache = True


@compiles(clock, "sqlite")
def _sqlite_clock(*_: object, **__: object) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(clock, "postgresql")
def _postgresql_clock(*_: object, **__: object) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"


def migrate(db: Connection) -> None:
    """Bring the schema up to date, inside the caller's transaction: all of it or nothing.

    Raises:
        InputError: the journal was written by a newer version.
    """
    strict = " STRICT" if db.dialect.name == "sqlite" else ""
    db.execute(
        text(
            "CREATE TABLE IF NOT EXISTS migrations "
            f"(name TEXT PRIMARY KEY, at TEXT NOT NULL){strict}"
        )
    )
    applied = set(db.execute(text("SELECT name FROM migrations")).scalars())
    unknown = applied - {migration.name for migration in MIGRATIONS}
    if unknown:
        raise InputError(
            f"the journal was written by a newer version (it has {sorted(unknown)[0]}); "
            "upgrade llm-elicit"
        )
    for migration in MIGRATIONS:
        if migration.name in applied:
            continue
        for statement in migration.statements(db.dialect.name):
            db.exec_driver_sql(statement)
        db.execute(
            text("INSERT INTO migrations VALUES (:name, :at)"),
            {"name": migration.name, "at": now()},
        )


def prepare_schema(db: Connection, location: JournalLocation) -> None:
    """Create the run's tables, or bring them up to date, within a transaction."""
    if location.shared:
        # Two processes that start together must not both create the tables.
        db.execute(select(func.pg_advisory_xact_lock(func.hashtext(location.schema))))
        db.execute(sa.schema.CreateSchema(location.schema, if_not_exists=True))
    migrate(db)
