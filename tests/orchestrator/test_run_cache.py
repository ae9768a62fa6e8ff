"""A run and its cache: what it is used for, and what happens when it cannot be used."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_elicit.orchestrator.cache import FILE
from llm_elicit.orchestrator.progress import Silent, Tally
from llm_elicit.testing.provider import Answer, Provider
from orchestrator.conftest import claude
from orchestrator.running import campaign, run, table

PAIRS = 10
QUESTIONS = 2 * PAIRS


class Notes(Silent):
    """Stores the notes to the user, and does something after so many answers."""

    def __init__(self, after: int = 0, do: Callable[[], None] | None = None) -> None:
        self.lines: list[str] = []
        self._after = after
        self._do = do

    def note(self, judge: str, line: str) -> None:
        self.lines.append(f"{judge}: {line}")

    def tally(self, judge: str, tally: Tally) -> None:
        if self._do is not None and tally.done >= self._after:
            do, self._do = self._do, None
            do()


def _text(path: Path) -> None:
    path.write_bytes(b"no database at all, but text" * 100)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 100])


def _zeros(path: Path) -> None:
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:4096] + bytes(size - 4096))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _lacks_a_column(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE replies DROP COLUMN digest")


def _other_answer(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE replies SET reply = replace(reply, '\"A\"', '\"B\"')")


DAMAGE = [_text, _cut, _zeros, _folder, _lacks_a_column, _other_answer]


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-none")


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_one_warning(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    with Provider(lambda n, body: Answer("A")) as provider:
        study = campaign([claude(provider.url)], pairs=PAIRS)
        run(study, tmp_path / "before")
        (tmp_path / f"{FILE}-wal").unlink(missing_ok=True)
        damage(tmp_path / FILE)
        notes = Notes()
        summary = run(study, tmp_path / "after", notes)
        assert summary.complete
        assert len(provider.seen) == 2 * QUESTIONS
        (line,) = notes.lines
        assert line.startswith(f"cache: {tmp_path / FILE}: ")
        assert line.endswith("; the run continues without the cache")
        assert set(table(study, tmp_path / "after").frame["verdict"]) == {"A"}


def test_a_locked_cache_is_one_warning(tmp_path: Path) -> None:
    with Provider(lambda n, body: Answer("A")) as provider:
        study = campaign([claude(provider.url)], pairs=PAIRS)
        run(study, tmp_path / "before")
        holder = sqlite3.connect(tmp_path / FILE, isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        notes = Notes()
        assert run(study, tmp_path / "after", notes).complete
        assert len(notes.lines) == 1
        assert "locked" in notes.lines[0]
        holder.close()


def test_a_cache_that_breaks_midway_is_one_warning(tmp_path: Path) -> None:
    def drop() -> None:
        with sqlite3.connect(tmp_path / FILE) as db:
            db.execute("DROP TABLE replies")

    with Provider(lambda n, body: Answer("A", delay=0.01)) as provider:
        study = campaign([claude(provider.url, concurrency=2)], pairs=30)
        notes = Notes(10, drop)
        assert run(study, tmp_path / "run", notes).complete
        assert len(notes.lines) == 1
        assert "no such table" in notes.lines[0]
        assert len(provider.seen) == 60


@pytest.mark.skipif(os.name == "nt", reason="permissions")
def test_a_cache_in_a_full_filesystem_is_one_warning(tmp_path: Path) -> None:
    """Linux has a file that is always full."""
    (tmp_path / FILE).symlink_to("/dev/full")
    with Provider(lambda n, body: Answer("A")) as provider:
        study = campaign([claude(provider.url)], pairs=PAIRS)
        notes = Notes()
        assert run(study, tmp_path / "run", notes).complete
        assert len(notes.lines) == 1


def test_fresh_asks_anew_and_replaces(tmp_path: Path) -> None:
    said = "A"
    with Provider(lambda n, body: Answer(said)) as provider:
        study = campaign([claude(provider.url)], pairs=PAIRS)
        run(study, tmp_path / "one")
        said = "B"
        assert run(study, tmp_path / "two", reuse="fresh").complete
        assert len(provider.seen) == 2 * QUESTIONS
        assert run(study, tmp_path / "three").complete
        assert len(provider.seen) == 2 * QUESTIONS, "served from the cache"
        assert set(table(study, tmp_path / "three").frame["verdict"]) == {"B"}


def test_off_neither_reads_nor_writes(tmp_path: Path) -> None:
    with Provider(lambda n, body: Answer("A")) as provider:
        study = campaign([claude(provider.url)], pairs=PAIRS)
        run(study, tmp_path / "one", reuse="off")
        assert not (tmp_path / FILE).exists()
        run(study, tmp_path / "two")
        run(study, tmp_path / "three", reuse="off")
        assert len(provider.seen) == 3 * QUESTIONS
