"""The errors of a database: each is one line with its way out, and some pass."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    InterfaceError,
    InvalidRequestError,
    OperationalError,
    ProgrammingError,
)

from llm_elicit.orchestrator.journal.connection import (
    JournalError,
    JournalLocation,
    is_full,
    is_transient,
)
from llm_elicit.orchestrator.journal.questions import planned_rounds

IN_A_FILE = JournalLocation(Path("try"))
ON_A_SERVER = JournalLocation(Path("try"), "postgresql://host/db")


class _ServerError(Exception):
    """An exception of PostgreSQL's driver; without a connection it has no state."""

    def __init__(self, state: str | None = None) -> None:
        super().__init__("what the server says")
        if state is not None:
            self.sqlstate = state


def _of_file(code: int | None, reason: str = "what SQLite says") -> sqlite3.Error:
    error = sqlite3.OperationalError(reason)
    if code is not None:
        error.sqlite_errorcode = code
    return error


def _wrapped(
    fault: Exception, kind: type[DBAPIError] = OperationalError, invalidated: bool = False
) -> DBAPIError:
    return kind("SELECT 1", {}, fault, connection_invalidated=invalidated)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    ("code", "way_out"),
    [
        (sqlite3.SQLITE_FULL, "the disk is full; make room"),
        (sqlite3.SQLITE_IOERR_WRITE, "the disk cannot be read or written; check its space"),
        (sqlite3.SQLITE_READONLY_DIRECTORY, "it is read-only; check the permissions"),
        (sqlite3.SQLITE_PERM, "access is denied; check the permissions"),
        (sqlite3.SQLITE_CANTOPEN_ISDIR, "it cannot be opened; check that its folder exists"),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, "another program has locked the file"),
        (sqlite3.SQLITE_LOCKED_SHAREDCACHE, "another program has locked the file"),
        (sqlite3.SQLITE_CORRUPT_VTAB, "the file is damaged; restore a copy"),
        (sqlite3.SQLITE_NOTADB, "the file is damaged; restore a copy"),
        (sqlite3.SQLITE_CONSTRAINT, "correct what the reason names"),
        (None, "correct what the reason names"),
    ],
)
def test_a_file_that_cannot_be_used(code: int | None, way_out: str, wrapped: bool) -> None:
    error: Exception = _wrapped(_of_file(code)) if wrapped else _of_file(code)
    said = IN_A_FILE.explain_error(error)
    begins = "try/journal.sqlite: the journal cannot be used (what SQLite says): "
    assert str(said).startswith(begins + way_out)
    assert str(said).endswith("; committed answers are kept")
    assert not said.is_transient
    assert is_full(error) is (wrapped and code == sqlite3.SQLITE_FULL)


@pytest.mark.parametrize(
    "error",
    [
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        _of_file(None, "Could not decode to UTF-8 column 'reply' with text 'x'"),
        _wrapped(_of_file(None, "Could not decode to UTF-8 column 'reply' with text 'x'")),
    ],
)
def test_text_that_is_none_means_a_damaged_file(error: Exception) -> None:
    assert ": the file is damaged; restore a copy" in str(IN_A_FILE.explain_error(error))


def test_a_long_reason_is_one_short_line() -> None:
    said = str(IN_A_FILE.explain_error(_of_file(None, "a\n  b" + "c" * 1000)))
    assert f"({'a b' + 'c' * 297})" in said


@pytest.mark.parametrize(
    ("state", "way_out"),
    [
        ("42501", "the user lacks a privilege; the journal needs the right"),
        ("25006", "the server is read-only; give the address of its primary"),
        ("53100", "the server's disk is full; make room there"),
        ("42601", "check that the server runs"),
        ("", "check that the server runs"),
        (None, "check that the server runs"),
    ],
)
def test_a_server_that_cannot_be_used(state: str | None, way_out: str) -> None:
    said = ON_A_SERVER.explain_error(_wrapped(_ServerError(state)))
    begins = (
        "postgresql://host/db (elicit_try): the journal cannot be used (what the server says): "
    )
    assert str(said).startswith(begins + way_out)


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (_wrapped(_ServerError()), True),
        (_wrapped(_ServerError("53300")), True),
        (_wrapped(_ServerError("53100")), False),
        (_wrapped(_ServerError(), InterfaceError), True),
        (_wrapped(_ServerError("23505"), IntegrityError), False),
        (_wrapped(_ServerError("42P01"), ProgrammingError), False),
        (_wrapped(_ServerError("57P01"), ProgrammingError, invalidated=True), True),
        (_wrapped(_ServerError("53100"), invalidated=True), False),
        (InvalidRequestError("no transaction"), False),
        (ValueError("no database"), False),
    ],
)
def test_what_may_pass(error: Exception, again: bool) -> None:
    assert is_transient(error) is again
    assert ON_A_SERVER.explain_error(error).is_transient is again
    assert not IN_A_FILE.explain_error(error).is_transient, "of a file nothing does"


@pytest.mark.parametrize(
    ("of", "to", "reason"),
    [
        ("/postgres", "/absent", 'database "absent" does not exist'),
        ("elicit@", "nobody@", 'role "nobody" does not exist'),
    ],
)
def test_a_connection_that_a_server_refuses(
    postgres: str, tmp_path: Path, of: str, to: str, reason: str
) -> None:
    assert of in postgres
    with pytest.raises(JournalError) as caught:
        planned_rounds(JournalLocation(tmp_path, postgres.replace(of, to)))
    assert f"{reason}): check that the server runs, has this database" in str(caught.value)
