"""Explain the errors of a database, each in one sentence with the way out."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from llm_elicit.errors import InputError


class JournalError(InputError):
    """A run's journal cannot be used; what was committed before is kept.

    Attributes:
        passes: whether a retry may succeed later, for instance after a restart of the server.
    """

    passes = False


_FILE = {
    sqlite3.SQLITE_FULL: "the disk is full; make room and run again",
    sqlite3.SQLITE_IOERR: "the disk refuses to be read or written; check its space, its quota and "
    "its health, and run again",
    sqlite3.SQLITE_READONLY: "it may only be read; check the permissions of the file and of its "
    "folder",
    sqlite3.SQLITE_PERM: "it may not be opened; check the permissions of the file and of its "
    "folder",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check that its folder exists and the "
    "permissions of both",
    sqlite3.SQLITE_BUSY: "another program holds the file (a database browser, a backup); close "
    "that and run again",
}
_FILE[sqlite3.SQLITE_LOCKED] = _FILE[sqlite3.SQLITE_BUSY]
_FILE[sqlite3.SQLITE_CORRUPT] = _FILE[sqlite3.SQLITE_NOTADB] = (
    "the file is damaged; put a copy of it back, or move it away and run again: the answers that "
    "the cache has are not asked for again"
)

# By SQLSTATE, which the driver does not report for what a server refuses a connection for.
_SERVER = {
    "42501": "this user may not do that; the journal needs the right to make a schema in the "
    "database",
    "25006": "the server only lets itself be read; give the address of its primary",
    "53100": "the server's disk is full; make room there and run again",
}
_REFUSED = (
    "check that the server runs, that it has this database and a connection left, and that it lets "
    "this user in (PGPASSWORD, ~/.pgpass)"
)


def explained(error: Exception, name: str, *, shared: bool) -> JournalError:
    """Return an error of the database, explained in one line.

    Args:
        error: the database's exception.
        name: the name of the journal in messages.
        shared: whether the journal is on a server.
    """
    reason = " ".join(str(getattr(error, "orig", None) or error).split())
    way_out = (
        _SERVER.get(_state(error), _REFUSED)
        if shared
        else _FILE.get(_code(error), "see the reason")
    )
    explained = JournalError(
        f"{name}: the journal cannot be used ({reason[:300]}): {way_out}; "
        "what was committed before is kept"
    )
    explained.passes = shared and passes(error)
    return explained


def is_full(error: BaseException) -> bool:
    """Return whether the disk is full."""
    return isinstance(error, DBAPIError) and _code(error) == sqlite3.SQLITE_FULL


def passes(error: BaseException) -> bool:
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
