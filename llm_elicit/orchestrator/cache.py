"""Answers across runs: the same question to the same model is not paid twice."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llm_elicit.backends import Reply
from llm_elicit.errors import InputError

FILE = "cache.sqlite"
SCHEMA = 1
"""Part of every key: a change of what a reply means changes it, and old answers rest."""


def cache_key(endpoint: str, model: str, body: dict[str, Any], replicate: int) -> str:
    """SHA-256 over canonical JSON of all that decides an answer.

    Example:
        >>> a = cache_key("e", "m", {"x": 1, "y": 2}, 0)
        >>> a == cache_key("e", "m", {"y": 2, "x": 1}, 0), a == cache_key("e", "m", {"x": 1}, 0)
        (True, False)
    """
    identity = {
        "schema": SCHEMA,
        "endpoint": endpoint,
        "model": model,
        "body": body,
        "replicate": replicate,
    }
    text = json.dumps(
        identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


def worth_keeping(reply: Reply, verdict: str) -> bool:
    """Whether an answer may stand in for asking again: it holds a verdict, or is complete."""
    return verdict in ("A", "B", "tie", "refusal") or reply.finish == "stop"


class Cache:
    """The answers kept in one SQLite file, shared by the runs beside it.

    Raises:
        InputError: the file cannot be opened or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._db = sqlite3.connect(path, timeout=30.0, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS answers "
                "(key TEXT PRIMARY KEY, reply TEXT NOT NULL, kept_at TEXT NOT NULL) "
                "STRICT, WITHOUT ROWID"
            )
        except sqlite3.Error as error:
            raise self._unusable(error) from None

    def get(self, key: str) -> Reply | None:
        """The answer kept under `key`."""
        try:
            row = self._db.execute("SELECT reply FROM answers WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            raise self._unusable(error) from None
        return Reply(**json.loads(row[0])) if row else None

    def put(self, key: str, reply: Reply, kept_at: str) -> None:
        """Keep an answer. The journal has it already, so a crash here costs a saving at most."""
        # The body is in the key; its text is not kept twice.
        text = json.dumps({**asdict(reply), "body": {}}, ensure_ascii=False)
        try:
            self._db.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?)", (key, text, kept_at))
        except sqlite3.Error as error:
            raise self._unusable(error) from None

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _unusable(self, error: sqlite3.Error) -> InputError:
        return InputError(
            f"{self._path}: the answer cache cannot be used ({error}); check the disk's space and "
            "permissions, or move the file away: only savings are lost with it"
        )
