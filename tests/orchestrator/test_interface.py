"""Where a run's journal is, and how its database is opened."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal.connection import JournalError, JournalLocation, RunLock
from llm_elicit.orchestrator.journal.questions import reading
from llm_elicit.orchestrator.journal.schema import workers
from orchestrator.test_journal import _open

ADDRESS = "postgresql://me@db.example/runs"


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("try", "elicit_try"),
        ("A.b-c_9", "elicit_A.b-c_9"),
        ("größe 1+x", "elicit_gr__e_1_x"),
        ("x" * 50, "elicit_" + "x" * 50),
        ("x" * 51, "elicit_" + "x" * 40 + "_3ecd502a"),
    ],
)
def test_a_run_has_a_schema_of_its_name(name: str, schema: str) -> None:
    assert JournalLocation(Path("runs") / name, ADDRESS).schema == schema


def test_long_names_that_end_differently_have_schemas_of_their_own() -> None:
    schemas = {JournalLocation(Path("x" * 60 + end), ADDRESS).schema for end in "ab"}
    assert len(schemas) == 2
    assert max(map(len, schemas)) <= 63, "PostgreSQL cuts longer names"


def test_a_journal_is_named_in_messages(tmp_path: Path) -> None:
    assert JournalLocation(tmp_path).name == str(tmp_path / "journal.sqlite")
    assert JournalLocation(tmp_path / "try", ADDRESS).name == f"{ADDRESS} (elicit_try)"


def test_a_folder_without_a_journal_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught, reading(JournalLocation(tmp_path)):
        pass
    assert str(caught.value) == f"{tmp_path}: no journal here; run the campaign first"


def test_a_journal_that_is_read_is_not_written(tmp_path: Path) -> None:
    location = JournalLocation(tmp_path / "what? 100%#")
    location.folder.mkdir()
    _open(location).close()
    with (
        pytest.raises(JournalError, match="it is read-only") as caught,
        location.guarded(),
        location.readable().connect() as db,
        db.begin(),
    ):
        db.exec_driver_sql("DELETE FROM meta")
    assert str(caught.value).startswith(f"{location.name}: the journal cannot be used")


def test_a_reader_has_one_state_in_a_transaction_and_the_newest_in_the_next(tmp_path: Path) -> None:
    """Also if nobody had the journal open when the reader came."""
    location = JournalLocation(tmp_path)
    _open(location).close()
    engine = location.readable()
    with engine.connect() as before, engine.connect() as beside:
        with before.begin(), beside.begin():
            assert _workers(before) == 1
            journal = _open(location)
            assert _workers(before) == 1
            assert _workers(beside) == 2, "its transaction began with its first query"
        with before.begin():
            assert _workers(before) == 2
        journal.close()


def _workers(db: sa.Connection) -> int:
    """Return the number of workers."""
    return int(db.execute(sa.select(sa.func.count()).select_from(workers)).scalar_one())


def test_what_a_run_may_not_be_locked_with_is_one_line(tmp_path: Path) -> None:
    file, damaged, folder = (tmp_path / name for name in ("file", "damaged", "folder"))
    file.touch()
    for path in (damaged, folder / ".lock"):
        path.mkdir(parents=True)
    (damaged / ".lock").write_bytes(b"x" * 1000)
    for run, reason in (
        (file, "File exists"),
        (damaged, ".lock: file is not a database"),
        (folder, "Is a directory"),
    ):
        for shared in (False, True):
            with pytest.raises(InputError) as caught:
                RunLock(run, shared=shared).__enter__()
            assert (
                str(caught.value) == f"{run}: cannot be written ({reason}); check its permissions"
            )


def test_a_connection_to_a_server_has_its_settings(postgres: str, tmp_path: Path) -> None:
    """A worker that stops within a transaction loses its locks with its lease."""
    location = JournalLocation(tmp_path, postgres)
    for engine, idle in (
        (location.writable(60.0), "1min"),
        (location.writable(0.5), "5s"),
        (location.readable(), "2min"),
    ):
        assert isinstance(engine.pool, NullPool)
        with engine.connect() as db:
            for name, value in (
                ("search_path", f'"{location.schema}"'),
                ("synchronous_commit", "on"),
                ("idle_in_transaction_session_timeout", idle),
            ):
                assert db.execute(sa.text(f"SHOW {name}")).scalar_one() == value
            connection = db.connection.driver_connection
            assert connection is not None
            assert connection.info.get_parameters()["tcp_user_timeout"] == "30000"


def test_a_server_needs_its_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InputError) as caught:
        JournalLocation(tmp_path, ADDRESS).writable()
    assert str(caught.value) == (
        "a journal on PostgreSQL needs its driver: pip install 'llm-elicit[postgresql]'"
    )
