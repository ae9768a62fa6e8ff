"""Journals that cannot be used: one line each, with what is wrong and the way out."""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal import connection
from llm_elicit.orchestrator.journal.connection import FILE
from llm_elicit.orchestrator.judgments import status
from orchestrator.conftest import EXPERT
from orchestrator.running import campaign, run, table

STUDY = campaign([EXPERT], pairs=5)


def _text(journal: Path) -> None:
    journal.write_bytes(b"not a database at all, but text" * 500)


def _cut(journal: Path) -> None:
    whole = journal.read_bytes()
    journal.write_bytes(whole[: len(whole) // 2 + 100])


def _garbled(journal: Path) -> None:
    data = bytearray(journal.read_bytes())
    data[200:] = bytes(byte ^ 0x5A for byte in data[200:])
    journal.write_bytes(data)


def _folder(journal: Path) -> None:
    journal.unlink()
    journal.mkdir()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_text, r"not a database\): the file is damaged; restore a copy"),
        (_cut, r"malformed\): the file is damaged; restore a copy"),
        (_garbled, r"the file is damaged; restore a copy"),
        (_folder, r"it cannot be opened; check"),
    ],
)
def test_a_journal_that_is_none_any_more(
    tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    run(STUDY, tmp_path / "try")
    damage(tmp_path / "try" / FILE)
    for use in (run, status if damage is not _folder else run):
        arguments = (STUDY, tmp_path / "try") if use is run else (tmp_path / "try", STUDY)
        with pytest.raises(InputError, match=said) as caught:
            use(*arguments)  # type: ignore[operator]
        assert "\n" not in str(caught.value)
        assert "space" not in str(caught.value)


def test_a_text_with_flipped_bits(tmp_path: Path) -> None:
    run(STUDY, tmp_path / "try")
    with sqlite3.connect(tmp_path / "try" / FILE) as db:
        db.execute("UPDATE answers SET asked_at = CAST(x'ff' AS TEXT) WHERE question = 3")
    for use in (lambda: status(tmp_path / "try", STUDY), lambda: table(STUDY, tmp_path / "try")):
        with pytest.raises(InputError, match="the file is damaged"):
            use()


def test_a_file_that_another_program_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_LOCK_TIMEOUT", 0.1)
    run(STUDY, tmp_path / "try")
    other = sqlite3.connect(tmp_path / "try" / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(
        InputError, match=r"locked\): another program has locked the file"
    ) as caught:
        run(STUDY, tmp_path / "try")
    assert "\n" not in str(caught.value)
    other.close()


@pytest.fixture
def owned() -> Iterator[Path]:
    """A folder with a run that is somebody else's; what is done inside is done by nobody."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user to be refused")
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    run(STUDY, folder / "try")
    os.seteuid(65534)
    try:
        yield folder / "try"
    finally:
        os.seteuid(0)
        shutil.rmtree(folder)


def test_a_run_that_may_only_be_read_can_be_read(owned: Path) -> None:
    assert status(owned, STUDY)["expert"].done == 10
    assert len(table(STUDY, owned)) == 10
    with pytest.raises(InputError, match=r"cannot be written .*check its permissions") as caught:
        run(STUDY, owned)
    assert "\n" not in str(caught.value)


def test_a_journal_that_may_only_be_read_in_a_folder_that_may_be_written(owned: Path) -> None:
    os.seteuid(0)
    owned.parent.chmod(0o777)
    owned.chmod(0o777)
    (owned / ".lock").chmod(0o666)
    (owned / "log.jsonl").chmod(0o666)
    os.seteuid(65534)
    with pytest.raises(InputError, match=r"readonly.*it is read-only; check") as caught:
        run(STUDY, owned)
    assert "\n" not in str(caught.value)
