"""The journal by itself, where only whole runs tried it: batches, workers, caps and full disks."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal import questions as sql
from llm_elicit.orchestrator.journal import store
from llm_elicit.orchestrator.journal.connection import JournalError, JournalLocation
from llm_elicit.orchestrator.journal.questions import reading
from llm_elicit.orchestrator.journal.schema import (
    Change,
    clock,
    questions,
    record_answer,
    record_failure,
    record_loss,
    record_quarantine,
    record_sending,
    record_submission,
    workers,
)
from llm_elicit.orchestrator.journal.store import BatchRow, Journal, batch_rows, questions_in
from orchestrator.test_journal import ANSWER, _accounts_agree, _open, _plan, _states

FREE = replace(ANSWER, cost=0.0)


def _claimed(journal: Journal, count: int = 100, judge: str = "expert") -> list[int]:
    return [question.id for question in journal.claim(judge, count)]


def _lapse(journal: Journal) -> None:
    """The worker's lease is over."""
    with journal._db.begin():
        mine = workers.c.id == journal._me
        journal._db.execute(update(workers).where(mine).values(expires=1.0))


def test_a_batch_keeps_what_is_known_of_it(location: JournalLocation) -> None:
    journal = _open(location)
    first = BatchRow("b", "expert", None, "intended", 1.0)
    second = BatchRow("a", "expert", None, "intended", 2.0)
    for row in (second, replace(second, tag="c", judge="other"), first):
        journal.open_batch(row)
    assert journal.read(batch_rows, "expert") == [first, second]
    assert journal.read(batch_rows, "nobody") == []
    journal.set_batch("b", "submitted", "id-7")
    assert journal.read(batch_rows, "expert", "submitted") == [
        replace(first, batch="id-7", state="submitted")
    ]
    journal.set_batch("b", "refused", note="no\0")
    refused = replace(first, batch="id-7", state="refused", note="no\ufffd")
    assert journal.read(batch_rows, "expert") == [refused, second]
    assert journal.read(batch_rows, "expert", "intended") == [second]
    assert journal.read(batch_rows, "other") == [replace(second, tag="c", judge="other")]
    journal.close()
    again = _open(location)
    assert again.read(batch_rows, "expert", "refused") == [refused]
    again.close()


def test_what_is_in_a_batch_waits_for_its_outcome(location: JournalLocation) -> None:
    journal = _open(location)
    journal.prepare(["expert"], _plan())
    asked = journal.claim("expert", 4)
    q = [question.id for question in asked]
    journal.commit([record_submission(number, 0.5, 10, "one") for number in reversed(q[:3])])
    journal.commit([record_submission(q[3], 0.5, 10, "two")])
    assert journal.read(questions_in, "one") == [
        replace(question, attempts=1) for question in asked[:3]
    ]
    assert journal.read(questions_in, "three") == []
    assert journal.read(sql.amounts, sql.IN_FLIGHT_AMOUNTS) == (0.0, 0), "requests in flight alone"
    assert not set(q) & set(_claimed(journal))
    journal.close()
    # The outcome comes to another process than the one that handed it in.
    other = _open(location)
    assert other.prepare(["expert"], _plan()) == 0
    assert not set(q) & set(_claimed(other))
    changes = [
        record_answer(q[0], ANSWER),
        record_loss(q[1], 0.125, 5),
        record_failure(q[2], "no"),
    ]
    assert other.commit(changes) == {}
    assert other.read(questions_in, "one") == []
    assert _states(location)[:4] == ["done", "planned", "failed", "submitted"]
    assert _claimed(other) == [q[1]], "it belongs to nobody, and is asked again"
    _accounts_agree(other)
    other.close()


def test_a_cap_counts_what_is_in_batches_and_with_other_workers(location: JournalLocation) -> None:
    journal = _open(location, max_cost=1.0)
    journal.prepare(["expert"], _plan())
    q = _claimed(journal)
    assert (
        journal.commit([record_submission(q[0], 0.5, 10, "tag"), record_sending(q[1], 0.25, 10)])
        == {}
    )
    too_much = [record_submission(q[2], 0.5, 10, "tag"), record_sending(q[3], 0.375, 10)]
    assert journal.commit(too_much) == dict.fromkeys(too_much, "no room")
    assert journal.commit([record_sending(q[4], 0.25, 10)]) == {}, "to the cap exactly"
    # Spent is more than the cap: what costs nothing goes on, and nothing else.
    journal.commit([record_answer(q[1], replace(ANSWER, cost=2.0))])
    dear = record_sending(q[5], 0.001)
    assert journal.commit([dear, record_sending(q[6], 0.0, 10)]) == {dear: "no room"}
    journal.close()


def test_workers_know_of_each_other(location: JournalLocation) -> None:
    one, two, three = (_open(location) for _ in range(3))
    assert one.workers() == two.workers() == three.workers() == 3
    three.close()
    assert one.workers() == 2, "and no other was closed with it"
    _lapse(two)
    assert one.workers() == 1
    assert two.workers() == 2, "itself included"
    two.close()
    one.close()
    three = _open(location)
    assert three.workers() == 1
    three.close()


def test_only_questions_of_ones_own_plan_are_claimed_or_waited_for(
    location: JournalLocation,
) -> None:
    """Another worker has planned a further round; this one does not know its pairs."""
    other = _open(location)
    other.prepare(["expert", "second"], _plan(10))
    taken = _claimed(other, 3)
    other.commit(
        [
            record_sending(taken[0], 0.0),
            record_answer(taken[1], FREE),
            record_quarantine(taken[2], "no"),
        ]
    )
    other.close()
    worker = _open(location)
    assert worker.prepare(["expert"], _plan(4)) == 1
    mine = _claimed(worker, 2)
    assert mine == [1, 4]
    assert worker.held_elsewhere("expert") == 4
    assert _claimed(worker) == [5, 6, 7, 8]
    assert worker.held_elsewhere("expert") == 0
    worker.commit([record_sending(1, 0.0), record_failure(4, "no")])
    assert worker.held_elsewhere("expert") == 0
    worker.close()


def test_what_others_at_work_hold_is_waited_for(postgres: str, tmp_path: Path) -> None:
    location = JournalLocation(tmp_path, postgres)
    other, worker = _open(location), _open(location)
    for journal in (other, worker):
        journal.prepare(["expert", "second"], _plan(4))
    first, second, third = _claimed(other, 3)
    other.commit([record_sending(first, 0.0)])
    assert len(_claimed(worker)) == 5
    assert worker.held_elsewhere("expert") == 3
    other.commit(
        [record_answer(first, FREE), record_sending(second, 0.0), record_quarantine(third, "no")]
    )
    assert worker.held_elsewhere("expert") == 1
    worker.close()
    other.close()


def test_questions_of_a_dead_worker_are_reopened_beside_ones_own(
    postgres: str, tmp_path: Path
) -> None:
    location = JournalLocation(tmp_path, postgres)
    worker, other = _open(location), _open(location)
    for journal in (worker, other):
        assert journal.prepare(["expert"], _plan(4)) == 0
    assert not list(tmp_path.glob("journal*")), "no space is reserved for a server's disk"
    mine, theirs = _claimed(worker, 2), _claimed(other)
    worker.commit([record_sending(mine[0], 0.5, 7)])
    other.commit([record_sending(theirs[0], 0.25, 3)])
    assert worker.held_elsewhere("expert") == 6
    _lapse(other)
    assert worker.held_elsewhere("expert") == 6, "not any more, but not held here either"
    c = questions.c
    with reading(location) as db:
        rows = db.execute(select(c.id, c.state, c.worker, c.reserved, c.lost).order_by(c.id)).all()
    assert [tuple(row) for row in rows] == [
        (mine[0], "in flight", worker._me, 0.5, 0.0),
        (mine[1], "planned", worker._me, 0.0, 0.0),
        (theirs[0], "planned", None, 0.0, 0.25),
        *((number, "planned", None, 0.0, 0.0) for number in theirs[1:]),
    ]
    assert worker.read(sql.spent) == (0.25, 3)
    assert _claimed(worker) == theirs
    worker.close()
    other.close()


def test_a_commit_of_ones_own_questions_is_one_statement_a_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Question by question only where one does not apply, which would be too slow for all."""
    journal = _open(JournalLocation(tmp_path))
    journal.prepare(["expert"], _plan())
    q = _claimed(journal)
    monkeypatch.delattr(store.sql, "apply_each")
    journal.commit([record_sending(number, 0.5) for number in q[:4]])
    journal.commit([record_submission(q[4], 0.5, 10, "tag")])
    journal.commit([record_answer(q[0], ANSWER), record_loss(q[1], 0.25),
                    record_failure(q[2], "no"),
                    record_quarantine(q[3], "no")])  # fmt: skip
    assert _states(journal.location)[:5] == [
        "done",
        "planned",
        "failed",
        "quarantined",
        "submitted",
    ]
    journal.close()


def test_a_worker_whose_lease_is_over_takes_and_waits_for_nothing(
    location: JournalLocation,
) -> None:
    asleep = _open(location)
    asleep.prepare(["expert"], _plan(4))
    _lapse(asleep)
    other = _open(location)
    other.prepare(["expert"], _plan(4))
    for late in (lambda: asleep.claim("expert", 1), lambda: asleep.held_elsewhere("expert")):
        with pytest.raises(InputError, match="lost its lease"):
            late()
    assert len(_claimed(other)) == 8
    asleep.close()
    assert other.workers() == 1
    other.close()


def test_a_lease_that_ran_out_unnoticed_is_renewed(location: JournalLocation) -> None:
    journal = _open(location)
    journal.prepare(["expert"], _plan(4))
    _lapse(journal)
    assert journal.workers() == 1
    assert journal.prepare(["expert"], _plan(4)) == 0
    assert len(_claimed(journal)) == 8
    with journal._db.begin():
        lives = select(workers.c.expires > clock()).where(workers.c.id == journal._me)
        assert journal._db.execute(lives).scalar_one()
    journal.close()


def test_a_closed_worker_lets_go_of_what_it_did_not_send(location: JournalLocation) -> None:
    journal = _open(location)
    journal.prepare(["expert"], _plan(4))
    sent, *_ = _claimed(journal, 3)
    journal.commit([record_sending(sent, 0.5, 7)])
    journal.close()
    with reading(location) as db:
        rows = db.execute(select(questions.c.state, questions.c.worker).order_by(questions.c.id))
        assert [tuple(row) for row in rows][1:] == [("planned", None)] * 7
    again = _open(location)
    assert again.prepare(["expert"], _plan(4)) == 1, "its request in flight is lost"
    assert again.read(sql.spent) == (0.5, 7)
    with reading(location) as db:
        reserved = select(questions.c.reserved, questions.c.reserved_tokens)
        assert {tuple(row) for row in db.execute(reserved)} == {(0.0, 0)}
    assert _claimed(again) == list(range(1, 9))
    again.close()


def test_the_least_to_reserve_only_rises(location: JournalLocation) -> None:
    journal = _open(location)
    assert journal.read(sql.worst_case, "expert") == (0, 0)
    journal.raise_worst("expert", 10, 5)
    journal.raise_worst("expert", 7, 20)
    journal.raise_worst("other", 1, 2)
    assert (journal.read(sql.worst_case, "expert"), journal.read(sql.worst_case, "other")) == (
        (10, 20),
        (1, 2),
    )
    journal.close()
    again = _open(location)
    assert again.read(sql.worst_case, "expert") == (10, 20)
    again.close()


def _fill(journal: Journal) -> None:
    """Let the journal's file not grow any more."""
    with closing(journal._db.connection.cursor()) as db:
        db.execute("PRAGMA max_page_count = 1")


def _long(number: int) -> Change:
    """An answer that needs further pages."""
    return record_answer(number, replace(ANSWER, reply="A" * 100_000))


def test_answers_that_a_full_disk_refuses_are_kept_for_the_next_run(tmp_path: Path) -> None:
    location, file = JournalLocation(tmp_path), tmp_path / "unsaved.jsonl"
    journal = _open(location)
    journal.prepare(["expert"], _plan())
    q = _claimed(journal, 4)
    journal.commit([record_sending(number, 0.25, 10) for number in q[:3]])
    _fill(journal)
    changes = [_long(q[0]), _long(q[1]), record_loss(q[2], 0.25)]
    with pytest.raises(JournalError, match="the disk is full") as caught:
        journal.commit(changes)
    assert "could not be kept" not in str(caught.value)
    assert [json.loads(line)["answer"]["question"] for line in file.read_text().splitlines()] == q[
        :2
    ]
    journal.close()
    assert _states(location)[:3] == ["in flight"] * 3
    with file.open("a") as lines:
        lines.write('["another", 1]\n{"journal": "another", "answer": {}}\n{"journal": "cut')
    again = _open(location)
    assert again.prepare(["expert"], _plan()) == 3
    assert _states(location)[:3] == ["done", "done", "planned"]
    # What was reserved counts as well, since the answers were not known to arrive.
    assert again.read(sql.spent) == (3 * 0.25 + 2 * 0.25, 3 * 10 + 2 * 12)
    _accounts_agree(again)
    assert not file.exists()
    again.close()


def test_unsaved_answers_are_those_of_one_journal(tmp_path: Path) -> None:
    """Row numbers mean other questions in a journal that was begun anew."""
    old = _open(JournalLocation(tmp_path))
    old.prepare(["expert"], _plan())
    _fill(old)
    with pytest.raises(JournalError):
        old.commit([_long(1)])
    old.close()
    for path in tmp_path.glob("journal.*"):
        path.unlink()
    new = _open(JournalLocation(tmp_path))
    new.prepare(["expert"], _plan())
    assert new.read(sql.totals, "expert").done == 0
    new.close()


def test_answers_that_can_be_kept_nowhere_are_counted(tmp_path: Path) -> None:
    journal = _open(JournalLocation(tmp_path))
    journal.prepare(["expert"], _plan())
    _claimed(journal)
    _fill(journal)
    with pytest.raises(JournalError) as caught:
        journal.commit([record_failure(1, "no" * 100_000)])
    assert "could not be kept" not in str(caught.value)
    assert not (tmp_path / "unsaved.jsonl").exists(), "there was no answer"
    (tmp_path / "unsaved.jsonl").mkdir()
    with pytest.raises(JournalError, match=r"disk is full.*; 2 answers could not be saved$"):
        journal.commit([_long(2), _long(3), record_failure(4, "no")])
    journal.close()


def test_what_no_room_helps_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reserve stays, and the journal may be written again."""
    journal = _open(JournalLocation(tmp_path))
    journal.prepare(["expert"], _plan())
    (first,) = _claimed(journal, 1)
    tried: list[int] = []

    def broken(connection: Any) -> None:
        tried.append(len(tried))
        connection.rollback()  # as SQLite does itself
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(journal._db.dialect, "do_commit", broken)
        with pytest.raises(JournalError, match="disk I/O error"):
            journal.commit([record_sending(first, 0.25)])
    assert len(tried) == 1
    assert journal.failure is None
    assert (tmp_path / "journal.reserve").exists()
    assert journal.commit([record_sending(first, 0.25)]) == {}
    journal.close()
    assert not (tmp_path / "journal.reserve").exists()


def test_a_full_disk_is_tried_three_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reserve, without it, and to see whether it was committed after all."""
    journal = _open(JournalLocation(tmp_path))
    journal.prepare(["expert"], _plan())
    q = _claimed(journal, 4)
    tried: list[int] = []
    commit = journal._db.dialect.do_commit

    def full(connection: Any) -> None:
        tried.append(len(tried))
        connection.rollback()
        raise _full()

    def full_once(connection: Any) -> None:
        monkeypatch.setattr(journal._db.dialect, "do_commit", commit)
        full(connection)

    def committed_all_the_same(connection: Any) -> None:
        monkeypatch.setattr(journal._db.dialect, "do_commit", commit)
        commit(connection)
        raise _full()

    monkeypatch.setattr(journal._db.dialect, "do_commit", full)
    with pytest.raises(JournalError, match="the disk is full"):
        journal.commit([record_answer(q[0], ANSWER)])
    assert len(tried) == 3
    for number, once in ((q[1], full_once), (q[2], committed_all_the_same)):
        monkeypatch.setattr(journal._db.dialect, "do_commit", once)
        unsent = record_sending(q[3], 0.25)
        assert journal.commit([record_answer(number, ANSWER), unsent]) == {unsent: "journal failed"}
    assert journal.read(sql.totals, "expert").done == 2
    assert journal.read(sql.spent) == (0.5, 24)
    _accounts_agree(journal)
    journal.close()


def test_a_journal_is_closed_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its questions stay claimed then, and the next run reopens them."""
    journal = _open(JournalLocation(tmp_path))
    journal.prepare(["expert"], _plan(4))
    assert len(_claimed(journal)) == 8

    def full(connection: Any) -> None:
        connection.rollback()
        raise _full()

    with monkeypatch.context() as patch:
        patch.setattr(journal._db.dialect, "do_commit", full)
        journal.close()
    assert journal._db.closed
    assert not (tmp_path / "journal.reserve").exists()
    again = _open(JournalLocation(tmp_path))
    assert again.prepare(["expert"], _plan(4)) == 0
    assert len(_claimed(again)) == 8
    again.close()


def _full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error
