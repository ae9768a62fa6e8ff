"""The journal's tables: strict ones in SQLite, the same in PostgreSQL."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import (
    CheckConstraint,
    Column,
    Connection,
    Double,
    ForeignKey,
    Identity,
    Index,
    MetaData,
    Text,
    UniqueConstraint,
    func,
    literal_column,
    select,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal.interface import JournalLocation

VERSION = "1"
"""The version of these tables, which every journal records. It changes with each table, column or
constraint."""

METADATA = MetaData()
# The only names of types that SQLite's strict tables know.
_INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_REAL: sa.types.TypeEngine[float] = Double().with_variant(sa.REAL(), "sqlite")


def _table(name: str, *columns: sa.schema.SchemaItem) -> sa.Table:
    return sa.Table(name, METADATA, *columns, sqlite_strict=True)


def _required(name: str, kind: Any, default: str | None = None) -> Column[Any]:
    return Column(name, kind, nullable=False, server_default=default)


def _index(name: str, *columns: str, where: str | None = None, unique: bool = False) -> Index:
    condition = None if where is None else sa.text(where)
    return Index(name, *columns, unique=unique, sqlite_where=condition, postgresql_where=condition)


meta = _table(
    "meta",
    Column("key", Text, primary_key=True),
    _required("value", Text),
)

workers = _table(
    "workers",
    Column("id", Text, primary_key=True),
    _required("name", Text),
    _required("began", Text),
    _required("expires", _REAL),
    _required("spent", _REAL, "0"),
    _required("tokens", _INTEGER, "0"),
    _required("written", _INTEGER, "0"),  # the number of its last transaction
)

questions = _table(
    "questions",
    Column("id", _INTEGER, Identity(always=True), primary_key=True),
    _required("judge", Text),
    _required("pair", _INTEGER),
    _required("presentation", Text),
    _required("replicate", _INTEGER),
    _required("state", Text, "planned"),
    _required("attempts", _INTEGER, "0"),
    _required("reserved", _REAL, "0"),
    _required("lost", _REAL, "0"),
    Column("error", Text),
    Column("worker", Text),
    _required("reserved_tokens", _INTEGER, "0"),
    _required("lost_tokens", _INTEGER, "0"),
    Column("batch", Text),
    CheckConstraint(
        "presentation IN "
        "('ab', 'ba', 'quantiles', 'sample', 'row', 'range-ab', 'range-ba', 'ratio')"
    ),
    CheckConstraint(
        "state IN ('planned', 'in flight', 'submitted', 'done', 'failed', 'quarantined')"
    ),
    UniqueConstraint("judge", "pair", "presentation", "replicate"),
    _index("unclaimed", "judge", "id", where="state = 'planned' AND worker IS NULL"),
    _index("held", "worker", where="state = 'in flight'"),
    _index("submitted", "batch", where="state = 'submitted'"),
)

batches = _table(
    "batches",
    Column("tag", Text, primary_key=True),
    _required("judge", Text),
    Column("batch", Text),
    _required("fate", Text),
    _required("made", _REAL),
    _required("note", Text),
    CheckConstraint("fate IN ('intended', 'submitted', 'collected', 'refused', 'released')"),
)

rounds = _table(
    "rounds",
    Column("judge", Text, primary_key=True),
    Column("number", _INTEGER, primary_key=True, autoincrement=False),
    _required("pairs", Text),
    _required("digest", Text),
)

answers = _table(
    "answers",
    Column(
        "question",
        _INTEGER,
        ForeignKey("questions.id"),
        primary_key=True,
        autoincrement=False,
    ),
    _required("template", Text),
    _required("prompt_hash", Text),
    _required("endpoint", Text),
    _required("settings", Text),
    _required("model_asked", Text),
    _required("model_answered", Text),
    _required("reply", Text),
    _required("finish", Text),
    _required("verdict", Text),
    Column("first", _REAL),
    Column("letter_mass", _REAL),
    Column("probability", _REAL),
    _required("prompt_tokens", _INTEGER),
    _required("completion_tokens", _INTEGER),
    _required("cached_tokens", _INTEGER),
    Column("cost", _REAL),
    _required("latency", _REAL),
    _required("cached", _INTEGER),
    _required("asked_at", Text),
    _required("thinking", Text),
    _required("format", Text),
    _required("censored", _INTEGER),  # the log-odds are a bound: a letter was not listed
    _required("digest", Text),
)

people = _table(
    "people",
    Column("id", _INTEGER, Identity(always=True), primary_key=True),
    _required("judge", Text),
    _required("expert", Text),
    _required("kind", Text),
    Column("question", _INTEGER, ForeignKey("questions.id")),
    _required("pair", _INTEGER),
    _required("presentation", Text),
    _required("state", Text),
    _required("expires", _REAL),
    _required("shown", _REAL),
    Column("choice", Text),
    Column("expected", Text),
    Column("confidence", _REAL),
    Column("seconds", _REAL),
    Column("answered_at", Text),
    CheckConstraint("kind IN ('question', 'repeat', 'attention')"),
    CheckConstraint("presentation IN ('ab', 'ba')"),
    CheckConstraint("state IN ('leased', 'answered', 'undone', 'released')"),
    # Nobody has two cards, and no question is with two people.
    _index("one_card_of_an_expert", "judge", "expert", where="state = 'leased'", unique=True),
    _index(
        "one_expert_of_a_question",
        "question",
        where="kind = 'question' AND state IN ('leased', 'answered')",
        unique=True,
    ),
    _index("people_by_expert", "judge", "expert", "state"),
    _index("people_by_pair", "judge", "pair"),
)

control = _table(
    "control",
    Column("id", _INTEGER, primary_key=True, autoincrement=False),
    _required("wanted", Text),
    _required("state", Text),
    _required("stage", Text),
    _required("owner", Text),
    Column("error", Text),
    Column("max_cost", _REAL),
    Column("concurrency", _INTEGER),
    _required("changed", _REAL),
    _required("alive", _REAL),
    _required("takeovers", _INTEGER, "0"),
    CheckConstraint("id = 1"),
    CheckConstraint("wanted IN ('running', 'paused', 'cancelled')"),
)

events = _table(
    "events",
    Column("seq", _INTEGER, primary_key=True, autoincrement=False),
    _required("at", Text),
    _required("kind", Text),
    Column("judge", Text),
    _required("data", Text),
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


def prepare_schema(db: Connection, location: JournalLocation) -> None:
    """Create the run's tables within a transaction, unless they exist.

    Raises:
        InputError: the tables are those of another version.
    """
    if location.shared:
        # Two processes that start together must not both create the tables.
        db.execute(select(func.pg_advisory_xact_lock(func.hashtext(location.schema))))
        db.execute(sa.schema.CreateSchema(location.schema, if_not_exists=True))
    if not sa.inspect(db).has_table("meta"):
        METADATA.create_all(db, checkfirst=False)
        db.execute(meta.insert().values(key="version", value=VERSION))
    check_version(db, location)


def check_version(db: Connection, location: JournalLocation) -> None:
    """Check that a journal has these tables.

    Raises:
        InputError: it has those of another version.
    """
    version = db.execute(select(meta.c.value).where(meta.c.key == "version")).scalar()
    if version != VERSION:
        raise InputError(
            f"{location.name}: the journal has version {version or '(none)'}, and this version of "
            f"llm-elicit reads version {VERSION}; use the one that wrote it"
        )
