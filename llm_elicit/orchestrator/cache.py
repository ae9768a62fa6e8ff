"""The cache of answers across runs: the same request to the same model is not paid twice.

Answers are stored under the SHA-256 digest of the request's identity (canonical JSON, RFC 8785, of
all that decides its answer) and the version that answered: the model's name as the provider
reported it. A provider may change the version behind a name, which is known once it has answered;
from then on only answers of that version are reused. The identity is stored as well, so that
entries can be read, compared and verified.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import rfc8785
import sqlalchemy as sa
from sqlalchemy import select
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import SQLAlchemyError

from llm_elicit.backends import Reply
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal.connection import sqlite_engine
from llm_elicit.orchestrator.journal.schema import now, storable

SCHEMA = 3
"""Part of every key; incremented when replies change their meaning: old ones are not read then."""

_MAX_EXACT = 2**53
"""JSON carries whole numbers below this exactly."""

_encode = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True)
class Identity:
    """All that decides an answer, as canonical JSON, and the SHA-256 of that text."""

    key: str
    text: str = field(compare=False, repr=False)


def identify(
    endpoint: str,
    model: str,
    body: dict[str, Any],
    replicate: int,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Identity:
    """Return the identity of a request.

    Args:
        endpoint: the URL it is sent to.
        model: the model asked.
        body: the request body.
        replicate: the number of the replicate; replicates are asked separately by design.
        headers: further headers as the campaign states them, without the values of variables.

    Raises:
        InputError: the body holds a number that JSON cannot carry exactly.

    Examples:
        >>> a = identify("e", "m", {"x": 1, "y": 2}, 0)
        >>> a == identify("e", "m", {"y": 2, "x": 1.0}, 0), a == identify("e", "m", {"x": 1}, 0)
        (True, False)
    """
    fields: Any = {
        "schema": SCHEMA,
        "endpoint": endpoint,
        "model": model,
        "body": body,
        "replicate": replicate,
        **({"headers": dict(headers)} if headers else {}),
    }
    try:
        canonical = b""
        if _is_canonical(fields):  # json writes the same then, and is faster
            with suppress(UnicodeEncodeError):
                canonical = _encode(fields).encode()
        canonical = canonical or rfc8785.dumps(fields)
    except rfc8785.CanonicalizationError as error:
        raise InputError(
            f"{model}: the request has no canonical JSON ({error}); whole numbers such as seeds "
            "must be below 2^53, and text must be valid Unicode"
        ) from None
    return Identity(hashlib.sha256(canonical).hexdigest(), canonical.decode())


def _is_canonical(value: Any) -> bool:
    """Return whether JSON has one way to write a value, but for the order of its keys.

    A key beyond ASCII is left to RFC 8785, which sorts by UTF-16.
    """
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return bool(abs(value) < _MAX_EXACT)
    if kind is list:
        return all(map(_is_canonical, value))
    # A loop: a generator would take as long again, for each dictionary of each question.
    for key, inner in value.items() if kind is dict else ():
        if type(key) is not str or not key.isascii() or not _is_canonical(inner):
            return False
    return kind is dict


def differences(old: Any, new: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Return where two JSON values differ: (path, old, new); a missing value is None.

    Examples:
        >>> differences({"a": [1, 2], "b": 3}, {"a": [1, 5]})
        [('a[1]', 2, 5), ('b', 3, None)]
    """
    if isinstance(old, dict) and isinstance(new, dict):
        names = list(dict.fromkeys([*old, *new]))
        parts = [(f"{path}.{name}".lstrip("."), old.get(name), new.get(name)) for name in names]
        return [d for at, a, b in parts for d in differences(a, b, at)]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{path}[{i}]")]
    same = type(old) is type(new) and old == new
    return [] if same else [(path, old, new)]


FILE = "cache.sqlite"
_OF_IDENTITY = frozenset({"schema", "endpoint", "model", "body", "replicate"})
"""The fields of an identity."""

_OTHER_KEY = "the key does not match its request"
_VERIFY = "`llm-elicit cache verify` lists the entry, `llm-elicit cache prune --key` deletes it"

T = TypeVar("T")

_METADATA = sa.MetaData()
_entries = sa.Table(
    "replies",
    _METADATA,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("version", sa.Text, primary_key=True),
    sa.Column("identity", sa.Text, nullable=False),
    sa.Column("reply", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("kept_at", sa.Text, nullable=False),
    sqlite_strict=True,
)

_SELECT_ANSWERS = str(
    select(_entries.c.version, _entries.c.reply, _entries.c.digest, _entries.c.kept_at)
    .where(_entries.c.key == sa.bindparam("key"), _entries.c.kept_at >= sa.bindparam("since"))
    .order_by(_entries.c.kept_at)
    .compile(dialect=sqlite.dialect(paramstyle="qmark"))
)
"""Select the answers of a key; used before each request, and so without SQLAlchemy's overhead."""

_LOCK_TIMEOUT = 2.0
"""Seconds to wait for another process's lock: a longer wait costs more than an answer saves."""

CacheUse = Literal["reuse", "fresh", "off"]
"""How a run uses the cache: read and write, replace every answer, or not at all."""


def is_reusable(reply: Reply, verdict: str) -> bool:
    """Return whether an answer may be reused: it has a verdict, or is complete."""
    return verdict in ("A", "B", "tie", "refusal") or reply.finish == "stop"


class Cache:
    """A SQLite file of answers, shared by the runs beside it.

    `put` and `flush` may be called in different threads.

    Args:
        path: the file; created if necessary.
        since: answers stored before this time (ISO 8601) are not read, and are replaced.

    Raises:
        InputError: the file cannot be opened or written.
    """

    def __init__(self, path: Path, since: str = "") -> None:
        self.path = path
        self._since = since
        self._waiting: dict[str, dict[str, dict[str, str]]] = {}  # by key and version
        self._lock = threading.Lock()
        with self._guarded(), ExitStack() as stack:
            writing = sqlite_engine(
                str(path), begin="BEGIN IMMEDIATE", synchronous="NORMAL", busy=_LOCK_TIMEOUT
            )
            self._writing = stack.enter_context(closing(writing.connect()))
            with self._writing.begin():
                _METADATA.create_all(self._writing)
            reading = sqlite_engine(str(path), begin=None, synchronous="NORMAL", busy=_LOCK_TIMEOUT)
            self._reading = stack.enter_context(closing(reading.connect()))
            self._cursor = stack.enter_context(closing(self._reading.connection.cursor()))
            self._resources = stack.pop_all()

    def get(self, identity: Identity, version: str | None = None) -> Reply | None:
        """Return the answer stored for a request, by a version or the newest; None without one."""
        with self._lock:
            waiting = list(self._waiting.get(identity.key, {}).values())
        for row in reversed(waiting):
            if version in (None, row["version"]):
                return _reply(row["reply"], row["kept_at"])
        with self._guarded():
            rows = self._cursor.execute(_SELECT_ANSWERS, (identity.key, self._since)).fetchall()
        stored = [row[1:] for row in rows if version in (None, row[0])]
        return self._checked_reply(*stored[-1]) if stored else None

    def get_all(
        self, identities: Sequence[Identity], version: str | None = None
    ) -> dict[str, Reply]:
        """Return the answers stored for requests by key: of a version, or the newest."""
        keys = {identity.key for identity in identities}
        columns = (_entries.c.key, _entries.c.reply, _entries.c.digest, _entries.c.kept_at)
        query = select(*columns).where(*self._conditions(keys)).order_by(_entries.c.kept_at)
        if version is not None:
            query = query.where(_entries.c.version == version)
        with self._lock:
            waiting = [row for key in keys for row in self._waiting.get(key, {}).values()]
        with self._guarded():
            rows = self._reading.execute(query).all()
        replies = {key: self._checked_reply(*row) for key, *row in rows}
        unwritten = (row for row in waiting if version in (None, row["version"]))
        return replies | {row["key"]: _reply(row["reply"], row["kept_at"]) for row in unwritten}

    def versions(self, identities: Sequence[Identity]) -> dict[str, dict[str, str]]:
        """Return the versions with an answer to each request, and when it was stored, by key."""
        query = select(_entries.c.key, _entries.c.version, _entries.c.kept_at)
        with self._guarded():
            rows = self._reading.execute(
                query.where(*self._conditions({i.key for i in identities}))
            ).all()
        stored: dict[str, dict[str, str]] = {identity.key: {} for identity in identities}
        for key, version, kept_at in rows:
            stored[key][version] = kept_at
        return stored

    def _conditions(self, keys: Collection[str]) -> tuple[sa.ColumnElement[bool], ...]:
        """Return the conditions that select the answers to requests that may be read."""
        return _entries.c.key.in_(keys), _entries.c.kept_at >= self._since

    def _checked_reply(self, text: str, digest: str, kept_at: str) -> Reply:
        """Return a stored reply after checking its digest.

        Raises:
            InputError: the reply was changed.
        """
        if _digest(text) != digest:
            raise InputError(f"{self.path}: an answer has changed since it was saved; {_VERIFY}")
        return _reply(text, kept_at)

    def put(self, identity: Identity, reply: Reply, kept_at: str) -> None:
        """Store an answer at the next flush; until then it is served from memory.

        The journal has it already, so that after a crash it is only not reused.
        """
        # The identity contains the body already, and its row the time.
        fields = {name: value for name, value in vars(reply).items() if name != "kept_at"}
        text = storable(json.dumps({**fields, "body": {}}, ensure_ascii=False))
        row = {
            "key": identity.key,
            "version": storable(reply.model),
            "identity": identity.text,
            "reply": text,
            "digest": _digest(text),
            "kept_at": kept_at,
        }
        with self._lock:
            self._waiting.setdefault(identity.key, {}).setdefault(row["version"], row)

    def flush(self) -> None:
        """Write waiting answers."""
        with self._lock:
            if not self._waiting:
                return
            add = insert(_entries)
            updated = {
                name: add.excluded[name] for name in ("identity", "reply", "digest", "kept_at")
            }
            # Replace only answers older than `since`.
            add = add.on_conflict_do_update(
                index_elements=["key", "version"],
                set_=updated,
                where=_entries.c.kept_at < self._since,
            )
            with self._guarded(), self._writing.begin():
                rows = [row for versions in self._waiting.values() for row in versions.values()]
                self._writing.execute(add, rows)
            self._waiting = {}

    def close(self) -> None:
        """Write waiting answers and close the file."""
        try:
            self.flush()
        finally:
            with self._guarded():
                self._resources.close()

    def entries(self, prefix: str = "") -> Iterator[Entry]:
        """Yield the entries whose keys begin with `prefix`, in order of insertion."""
        has_prefix = _entries.c.key.startswith(prefix, autoescape=True)
        query = select(_entries).where(has_prefix).order_by(sa.text("rowid"))
        with self._guarded():
            rows = self._reading.execution_options(yield_per=500).execute(query)
            for row in rows:
                yield Entry(**row._mapping)

    def find(self, prefix: str) -> Entry:
        """Return the newest entry of the only key that begins with `prefix`.

        Raises:
            InputError: no key begins with it, or several do.
        """
        entries = {entry.key: entry for entry in self.entries(prefix)}
        if len(entries) != 1:
            raise InputError(
                f"{self.path}: {'no key begins' if not entries else 'several keys begin'} with "
                f"{prefix!r}; `llm-elicit cache list` shows them"
            )
        return next(iter(entries.values()))

    def remove(self, keys: Iterable[str]) -> int:
        """Delete entries; return their number."""
        deleted = [{"deleted": key} for key in keys]
        with self._guarded():
            with self._writing.begin():
                if deleted:
                    statement = sa.delete(_entries).where(_entries.c.key == sa.bindparam("deleted"))
                    self._writing.execute(statement, deleted)
            self._reading.exec_driver_sql("VACUUM")
        return len(deleted)

    def integrity_error(self) -> str | None:
        """Return the first fault that SQLite's integrity check finds; None if there is none."""
        with self._guarded():
            report = self._reading.exec_driver_sql("PRAGMA integrity_check(1)").scalar_one()
        return None if report == "ok" else " ".join(str(report).split())

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error, UnicodeDecodeError, OSError) as error:
            reason = " ".join(str(getattr(error, "orig", None) or error).split())
            raise InputError(
                f"{self.path}: the answer cache cannot be used ({reason}); check the disk's "
                "space and permissions, or move the file away: only saved answers are lost"
            ) from None


class RunCache:
    """The cache of a run: on the first error it warns once, and the run continues without it.

    Args:
        path: the file.
        use: how to use it.
        warn: called with the error.
    """

    def __init__(self, path: Path, use: CacheUse, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._cache: Cache | None = None
        self._broken = False
        if use == "off":
            return
        try:
            self._cache = Cache(path, since=now() if use == "fresh" else "")
        except InputError as error:
            self._give_up(error)

    def get(self, identity: Identity, version: str | None = None) -> Reply | None:
        """Return the answer stored for a request, of a version or the newest, if there is one."""
        return self._try(lambda cache: cache.get(identity, version), None)

    def get_all(
        self, identities: Sequence[Identity], version: str | None = None
    ) -> dict[str, Reply]:
        """Return the answers stored for requests by key: of a version, or the newest."""
        return self._try(lambda cache: cache.get_all(identities, version), {})

    def versions(self, identities: Sequence[Identity]) -> dict[str, dict[str, str]]:
        """Return the versions with an answer to each request, and when it was stored, by key."""
        return self._try(lambda cache: cache.versions(identities), {})

    def put(self, identity: Identity, reply: Reply, kept_at: str) -> None:
        """Store an answer at the next flush."""
        self._try(lambda cache: cache.put(identity, reply, kept_at), None)

    def flush(self) -> None:
        """Write waiting answers."""
        self._try(Cache.flush, None)

    def close(self) -> None:
        """Write waiting answers and close the file."""
        self._try(Cache.flush, None)
        if self._cache is not None:
            with suppress(InputError):
                self._cache.close()

    def _try(self, work: Callable[[Cache], T], otherwise: T) -> T:
        if self._cache is None or self._broken:
            return otherwise
        try:
            return work(self._cache)
        except InputError as error:
            self._give_up(error)
            return otherwise

    def _give_up(self, error: InputError) -> None:
        # The reading and the writing thread may both meet the same error.
        if not self._broken:
            self._broken = True
            self._warn(f"{error}; the run continues without the cache")


@dataclass(frozen=True)
class Entry:
    """One stored answer.

    Attributes:
        key: SHA-256 of `identity`.
        version: the model that answered, as the provider reported it.
        identity: the request's canonical JSON.
        reply: the answer, as JSON; `digest` is its SHA-256.
        kept_at: the time it was stored, UTC, ISO 8601.
    """

    key: str
    version: str
    identity: str
    reply: str
    digest: str
    kept_at: str

    @property
    def request(self) -> dict[str, Any]:
        """The identity's fields: schema, endpoint, model, body, replicate.

        Raises:
            InputError: the identity is damaged.
        """
        try:
            fields: dict[str, Any] = json.loads(self.identity)
            if not (isinstance(fields, dict) and fields.keys() >= _OF_IDENTITY):
                raise ValueError
        except ValueError:
            raise InputError(f"cache entry {self.key[:16]}: {_OTHER_KEY}; {_VERIFY}") from None
        return fields

    def fault(self) -> str | None:
        """Return why the entry is invalid; None if it is valid."""
        if _digest(self.identity) != self.key:
            return _OTHER_KEY
        if _digest(self.reply) != self.digest:
            return "the answer has changed since it was saved"
        return None


def _reply(text: str, kept_at: str) -> Reply:
    return Reply(**json.loads(text) | {"kept_at": kept_at})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
