"""Disks that are full: what is in flight is kept all the same, and nothing more is sent."""

import contextlib
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event

from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal import connection
from llm_elicit.orchestrator.journal import questions as sql
from llm_elicit.orchestrator.journal.connection import JournalError, JournalLocation
from llm_elicit.orchestrator.journal.schema import (
    record_answer,
    record_loss,
    record_sending,
)
from llm_elicit.orchestrator.journal.store import Journal
from llm_elicit.testing.provider import Answer, Provider
from orchestrator.chaos import Nursery, study
from orchestrator.conftest import EXPERT
from orchestrator.running import campaign, plan_of, run, table
from orchestrator.test_journal import ANSWER


class Disk:
    """A small disk, in memory."""

    def __init__(self, where: Path) -> None:
        self.where = where

    def size(self, kilobytes: int, *more: str) -> None:
        options = ",".join([*more, f"size={kilobytes}k"])
        command = ["mount", "-t", "tmpfs", "-o", options, "none", str(self.where)]
        subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    small = Disk(tmp_path / "disk")
    small.where.mkdir()
    try:
        small.size(64)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this system lets nobody mount a disk; see the test of SQLite's own limit")
    try:
        yield small
    finally:
        subprocess.run(["umount", str(small.where)], check=True)


@pytest.mark.parametrize("room", [200, 500, 800])
def test_a_full_disk_keeps_what_is_in_flight(disk: Disk, room: int) -> None:
    """From no room for the plan to none for the middle of the run; the cache is there too."""
    disk.size(connection.RESERVE_BYTES // 1024 + room, "remount")
    folder = disk.where / "try"
    with Nursery() as nursery, Provider(lambda n, body: Answer("A", delay=0.01)) as provider:
        what = study(provider.url, 200)
        said = nursery.end(nursery.start(what, folder))
        assert "the disk is full; make room" in said
        assert "journal" in said
        assert "\n" not in said
        sent = len(provider.seen)
        assert sent < 400
        assert not (folder / "journal.reserve").exists()
        disk.size(100_000, "remount")
        if sent:
            assert len(table(what, folder)) == sent
        again = run(what, folder)
        assert again.complete
        assert again.lost_in_flight == 0
        asked = Counter(request.question for request in provider.seen)
        assert set(asked.values()) == {1}
        assert len(asked) == 400


def test_a_disk_without_room_for_the_reserve_is_refused(disk: Disk) -> None:
    with Provider(lambda n, body: Answer("A")) as provider:
        with pytest.raises(JournalError, match=r"No space left.*8 MB in reserve.*make room"):
            run(study(provider.url, 5), disk.where / "try")
        assert not provider.seen


def test_when_a_file_cannot_grow_the_reserve_is_given_back_once(tmp_path: Path) -> None:
    """SQLite's own limit of pages, which the reserve lifts as it would a disk's."""
    location = JournalLocation(tmp_path)
    plan = plan_of(campaign([EXPERT], pairs=10))
    journal = Journal(location, {"fingerprint": "x"})
    journal.prepare(["expert"], plan)
    first, second, third = journal.claim("expert", 3)
    journal.commit([record_sending(first.id, 0.25), record_sending(second.id, 0.25)])
    with contextlib.closing(journal._db.connection.cursor()) as db:
        db.execute("PRAGMA max_page_count = 1")
    kept = tmp_path / "journal.reserve"

    @event.listens_for(journal._db.engine, "begin")
    def _lift(connection: object) -> None:
        if not kept.exists():
            connection.exec_driver_sql("PRAGMA max_page_count = 100000")  # type: ignore[attr-defined]

    long = [record_answer(q.id, ANSWER) for q in (first, second)]
    for change in long:
        assert change.answer is not None
        change.answer["reply"] = "A" * 100_000
    unsent = record_sending(third.id, 0.25)
    assert kept.stat().st_size == connection.RESERVE_BYTES
    assert journal.commit([*long, unsent]) == {unsent: "journal failed"}
    assert not kept.exists()
    assert journal.read(sql.totals, "expert").done == 2
    for refused in (lambda: journal.claim("expert", 1), lambda: _raise(journal.failure)):
        with pytest.raises(InputError, match="the disk is full"):
            refused()
    journal.close()
    again = Journal(location, {"fingerprint": "x"})
    assert again.prepare(["expert"], plan) == 0
    assert again.read(sql.spent) == (pytest.approx(0.5), 24)
    again.close()


def _raise(error: Exception | None) -> None:
    assert error is not None
    raise error


def test_a_folder_that_cannot_be_written_has_no_reserve(tmp_path: Path) -> None:
    with pytest.raises(JournalError) as caught:
        connection.reserve_space(tmp_path / "gone")
    assert str(caught.value) == (
        f"{tmp_path / 'gone'}: cannot be written (No such file or directory): a run keeps 8 MB in "
        "reserve for the answers in flight; make room, check its permissions, and run again"
    )


def test_unsaved_answers_come_back_with_their_cost(tmp_path: Path) -> None:
    """A cached answer used no tokens, and one without a price cost nothing that is known."""
    unsaved = connection.UnsavedAnswers(tmp_path, "this")
    changes = [
        record_answer(3, ANSWER),
        record_loss(4, 0.5),
        record_answer(5, replace(ANSWER, cached=True, reply="\u2028 é")),
        record_answer(6, replace(ANSWER, cost=None)),
    ]
    assert unsaved.save(changes) == 0
    assert connection.UnsavedAnswers(tmp_path, "another").answers() == []
    found = unsaved.answers()
    assert [(c.kind, c.question, c.spent, c.tokens) for c in found] == [
        ("answered", 3, 0.25, 12),
        ("answered", 5, 0.25, 0),
        ("answered", 6, 0.0, 12),
    ]
    assert [c.answer for c in found] == [c.answer for c in changes if c.answer is not None]
    unsaved.clear()
    assert unsaved.answers() == []
    unsaved.clear()


def test_answers_after_an_incomplete_line_are_kept(tmp_path: Path) -> None:
    """The disk was full within a line, and had room again later."""
    unsaved = connection.UnsavedAnswers(tmp_path, "this")
    unsaved.save([record_answer(1, ANSWER)])
    with (tmp_path / "unsaved.jsonl").open("ab") as file:
        file.write('{"journal": "this", "answer": {"reply": "é'.encode()[:-1])
    unsaved.save([record_answer(2, ANSWER), record_answer(3, ANSWER)])
    assert [change.question for change in unsaved.answers()] == [1, 2, 3]
