"""What a journal holds: tables, strict ones in SQLite and the same in PostgreSQL, and values.

Every answer has a digest, which reveals rows that were changed by hand.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isnan
from typing import Any, Literal, get_args, get_type_hints

import sqlalchemy as sa
from sqlalchemy import (
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Identity,
    Index,
    MetaData,
    Text,
    UniqueConstraint,
    literal_column,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from llm_elicit.errors import InputError
from llm_elicit.planning.pairs import Form

VERSION = "9"
"""The version of these tables, which every journal records. It changes with each table, column,
index or constraint."""

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


meta = _table("meta", Column("key", Text, primary_key=True), _required("value", Text))

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
    _required("form", Text),
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
        "form IN ('ab', 'ba', 'quantiles', 'sample', 'row', 'range-ab', 'range-ba', 'ratio', "
        "'likelihood-a', 'likelihood-b', 'likelihood-row')"
    ),
    CheckConstraint(
        "state IN ('planned', 'in flight', 'submitted', 'done', 'failed', 'quarantined')"
    ),
    UniqueConstraint("judge", "pair", "form", "replicate"),
    _index("unclaimed", "judge", "id", where="state = 'planned' AND worker IS NULL"),
    _index("held", "worker", where="state = 'in flight'"),
    _index("submitted", "batch", where="state = 'submitted'"),
)

batches = _table(
    "batches",
    Column("tag", Text, primary_key=True),
    _required("judge", Text),
    Column("batch", Text),
    _required("state", Text),
    _required("made", _REAL),
    _required("note", Text),
    CheckConstraint("state IN ('intended', 'submitted', 'collected', 'refused', 'released')"),
)

rounds = _table(
    "rounds",
    Column("judge", Text, primary_key=True),
    Column("number", _INTEGER, primary_key=True, autoincrement=False),
    _required("pairs", Text),
    _required("digest", Text),
)


@dataclass(frozen=True)
class Answer:
    """An answer as stored: the columns of the table `answers` except the question.

    `censored` says that the log-odds are a bound, since a letter was not listed; `unscored` why a
    choice has none. `presentation` labels how the pair was presented, and is empty in a campaign of
    one presentation. `digest` is over all other columns.
    """

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
    thinking: str = ""
    format: str = "letter"
    censored: int = 0
    unscored: str = ""
    fingerprint: str = ""
    presentation: str = ""
    digest: str = ""


_FIELDS = {name: (get_args(kind) or (kind,)) for name, kind in get_type_hints(Answer).items()}
"""The types of every column of an answer."""

_COLUMNS: dict[type, Any] = {str: Text, int: _INTEGER, bool: _INTEGER, float: _REAL}

UNUSUAL = "verdict NOT IN ('A', 'B', 'text')"
"""The condition of the index of the answers that someone may look for among many."""

answers = _table(
    "answers",
    Column("question", _INTEGER, ForeignKey("questions.id"), primary_key=True, autoincrement=False),
    *(Column(name, _COLUMNS[kinds[0]], nullable=len(kinds) > 1) for name, kinds in _FIELDS.items()),
    _index("unusual", "verdict", "question", where=UNUSUAL),
)

people = _table(
    "people",
    Column("id", _INTEGER, Identity(always=True), primary_key=True),
    _required("judge", Text),
    _required("expert", Text),
    _required("kind", Text),
    Column("question", _INTEGER, ForeignKey("questions.id")),
    _required("pair", _INTEGER),
    _required("form", Text),
    _required("state", Text),
    _required("expires", _REAL),
    _required("shown", _REAL),
    Column("choice", Text),
    Column("expected", Text),
    Column("confidence", _REAL),
    Column("seconds", _REAL),
    Column("answered_at", Text),
    Column("comment", Text),
    CheckConstraint("kind IN ('question', 'repeat', 'attention')"),
    CheckConstraint("form IN ('ab', 'ba')"),
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

experts = _table(
    "experts",  # those who were added or removed after the campaign was planned
    Column("judge", Text, primary_key=True),
    Column("expert", Text, primary_key=True),
    _required("removed", _INTEGER),
    CheckConstraint("removed IN (0, 1)"),
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
    _required("queued", _REAL),
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


Kind = Literal["intent", "submitted", "answered", "missed", "failed", "quarantined"]

Refusal = Literal["no room", "settled elsewhere", "journal failed"]
"""Why a change was not written: the cap leaves no room for an intent at the moment; another worker
has the question; or the journal accepts only the outcomes of requests in flight."""


@dataclass(frozen=True)
class Question:
    """A row of the plan in the journal.

    Attributes:
        id: the number of the row.
        pair, order, replicate: the question, see `Query`.
        attempts: requests already sent for it, earlier runs included.
        judge: the judge's name.
        given_up: whether an earlier run gave it up.
    """

    id: int
    pair: int
    order: Form
    replicate: int
    attempts: int
    judge: str
    given_up: bool = False


@dataclass(frozen=True)
class Totals:
    """One judge's questions by state, and what they cost.

    Attributes:
        submitted: questions in submitted batches.
        lost: USD that may have been charged for requests that failed.
        last: time of the last answer, ISO 8601; empty before the first.
    """

    total: int = 0
    done: int = 0
    failed: int = 0
    quarantined: int = 0
    submitted: int = 0
    in_flight: int = 0
    cached: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    lost: float = 0.0
    last: str = ""

    @property
    def planned(self) -> int:
        """The number of questions that have not been asked yet."""
        settled = self.done + self.failed + self.quarantined
        return self.total - settled - self.submitted - self.in_flight


@dataclass(frozen=True)
class Unanswered:
    """Questions of a judge that were given up or set aside for one reason.

    Attributes:
        state: "failed" if the next run asks them again, "quarantined" if they are set aside until
            that is asked for.
        reason: the reason in one line.
        count: their number.
    """

    state: Literal["failed", "quarantined"]
    reason: str
    count: int


@dataclass(frozen=True, eq=False)
class Change:
    """A state transition of one question.

    Attributes:
        kind: the transition.
        question: the number of its row.
        values: further parameters of the transition's statement.
        answer: the row of `answers`, if there is one.
        spent, tokens: USD and tokens spent by this transition.
    """

    kind: Kind
    question: int
    values: dict[str, Any] = field(default_factory=dict)
    answer: dict[str, Any] | None = None
    spent: float = 0.0
    tokens: int = 0


def record_sending(question: int, reserved: float, tokens: int = 0) -> Change:
    """Return the change before a request is sent; its worst case is `reserved` USD, `tokens`."""
    return Change("intent", question, {"reserved": reserved, "tokens": tokens})


def record_submission(question: int, reserved: float, tokens: int, batch: str) -> Change:
    """Return the change before a question is submitted in a batch.

    It is not asked again before the outcome of the batch is known. `reserved` USD and `tokens` are
    its worst case.
    """
    values = {"reserved": reserved, "tokens": tokens, "batch": batch}
    return Change("submitted", question, values)


def record_answer(question: int, answer: Answer) -> Change:
    """Return the change that stores an answer."""
    # A JSON string may hold characters that a database does not accept.
    row = vars(answer) | {
        "question": question,
        "cached": int(answer.cached),
        "reply": storable(answer.reply),
        "thinking": storable(answer.thinking),
        "finish": storable(answer.finish),
        "model_answered": storable(answer.model_answered),
        "fingerprint": storable(answer.fingerprint),
    }
    tokens = 0 if answer.cached else answer.prompt_tokens + answer.completion_tokens
    return Change("answered", question, answer=row, spent=answer.cost or 0.0, tokens=tokens)


def record_loss(question: int, lost: float, tokens: int = 0) -> Change:
    """Return the change after a failed request; `lost` USD and `tokens` may have been charged."""
    return Change("missed", question, {"lost": lost, "tokens": tokens}, spent=lost, tokens=tokens)


def record_failure(question: int, reason: str) -> Change:
    """Return the change that gives a question up; the next run tries it again."""
    return Change("failed", question, {"error": storable(reason)})


def record_quarantine(question: int, reason: str) -> Change:
    """Return the change that sets a question aside: it is asked again only on request."""
    return Change("quarantined", question, {"error": storable(reason)})


def storable(text: str) -> str:
    """Return `text` without what a database refuses: NUL and unpaired surrogates.

    Examples:
        >>> storable("a" + chr(0) + "b") == "a" + chr(0xFFFD) + "b"
        True
    """
    if text.isascii() and "\0" not in text:
        return text
    valid = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return valid.replace("\0", "\ufffd")


def now() -> str:
    """Return the UTC time, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


_KEY = ("judge", "pair", "form", "replicate")
_TEXTS = [name for name, kinds in _FIELDS.items() if kinds[0] is str and name != "digest"]
_COUNTS = [name for name, kinds in _FIELDS.items() if kinds[0] in (int, bool)]
_NUMBERS = [name for name, kinds in _FIELDS.items() if kinds[0] is float]
_FIRST_NUMBER = len(_KEY) + len(_TEXTS) + len(_COUNTS)
_AT_ONCE = 5_000

_encode = json.JSONEncoder(separators=(",", ":")).encode


def with_digest(question: Question, answer: Answer) -> Answer:
    """Return an answer with the SHA-256 over it as stored, and over its question and judge.

    Row numbers are not included, since they differ between databases.
    """
    key = [question.judge, question.pair, question.order, question.replicate]
    fields = vars(answer)
    texts = [storable(fields[name]) for name in _TEXTS]
    counts = [int(fields[name]) for name in _COUNTS]
    digest = _digest([*key, *texts, *counts, *(fields[name] for name in _NUMBERS)])
    return Answer(**{**fields, "digest": digest})  # `replace` takes twice as long


def check_digests(db: sa.Connection, source: str, *, pairs: bool | None = None) -> None:
    """Check that answers are as they were written.

    Args:
        db: an open journal.
        source: the name of the journal in messages.
        pairs: whether to check only the answers about pairs, or only those to direct questions;
            None for all in one pass.

    Raises:
        InputError: an answer or its question was changed.
    """
    key = [questions.c[name] for name in _KEY]
    columns = [answers.c[name] for name in (*_TEXTS, *_COUNTS, *_NUMBERS)]
    of_pairs = questions.c.form.in_(("ab", "ba"))
    conditions = [] if pairs is None else [of_pairs if pairs else ~of_pairs]
    # Ordered by row and with a column that no index has, so that the rows are read, as for the
    # table of comparisons, and not an index, which may differ in a damaged file.
    rows = db.execute(
        sa.select(questions.c.attempts, answers.c.digest, *key, *columns)
        .outerjoin_from(questions, answers, questions.c.id == answers.c.question)
        .where(sa.or_(answers.c.question.is_not(None), questions.c.state == "done"), *conditions)
        .order_by(questions.c.id),
        execution_options={"yield_per": _AT_ONCE},
    )
    changed = [row[2:6] for row in rows if not _is_as_written(row[1], row[2:])]
    if changed:
        judge, pair, order, replicate = changed[0]
        more = f" (and {len(changed) - 1:,} more)" if len(changed) > 1 else ""
        raise InputError(
            f"{source}: the answer of {judge!r} to question {pair} {order}, replicate "
            f"{replicate}, has changed since it was received{more}; restore a copy of the "
            "journal, or move the run folder away and run again: unchanged answers come from "
            "the cache"
        )


def _is_as_written(digest: str | None, row: Sequence[Any]) -> bool:
    """Return whether an answer exists and matches its digest."""
    try:
        return digest is not None and _digest(row) == digest
    except (TypeError, ValueError, OverflowError):
        return False  # text in place of a number, in a damaged file


def _digest(row: Sequence[Any]) -> str:
    """Return SHA-256 over the values of a row, with numbers as either database returns them."""
    values = list(row)
    for index in range(_FIRST_NUMBER, len(values)):
        value = values[index]
        if value is not None:
            # Not a number is NULL in SQLite, and −0 is 0.
            values[index] = None if isnan(value) else float(value) + 0.0
    return hashlib.sha256(_encode(values).encode()).hexdigest()
