"""The journal by itself: tables, group commits, claims, accounts."""

import asyncio
import contextlib
import hashlib
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from llm_elicit.config.campaign import Limits
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal import questions as sql
from llm_elicit.orchestrator.journal.connection import JournalLocation, RunLock
from llm_elicit.orchestrator.journal.questions import (
    planned_rounds,
    reading,
    record_rounds,
    settled,
)
from llm_elicit.orchestrator.journal.schema import (
    METADATA,
    VERSION,
    Answer,
    answers,
    meta,
    now,
    questions,
    record_answer,
    record_failure,
    record_loss,
    record_quarantine,
    record_sending,
    record_submission,
    storable,
)
from llm_elicit.orchestrator.journal.store import Journal
from llm_elicit.orchestrator.writer import Writer
from llm_elicit.planning.pairs import Plan
from llm_elicit.planning.rounds import ALL_JUDGES, Pairs
from orchestrator.conftest import EXPERT
from orchestrator.running import campaign, plan_of, run

ANSWER = Answer(
    "t", "hash", "e", "{}", "m", "m-1", "A", "stop", "A",
    None, None, 1.0, 10, 2, 0, 0.25, 0.05, False, "2026-01-01T00:00:00.000+00:00",
)  # fmt: skip


def _plan(pairs: int = 10) -> Plan:
    return plan_of(campaign([EXPERT], pairs=pairs))


def _open(location: JournalLocation, lease: float = 60.0, **limits: float) -> Journal:
    return Journal(location, {"fingerprint": "x"}, Limits.model_validate(limits), lease)


def _states(location: JournalLocation) -> list[str]:
    with reading(location) as db:
        return list(db.execute(select(questions.c.state).order_by(questions.c.id)).scalars())


def _accounts_agree(journal: Journal) -> None:
    """What the workers counted is what the rows add up to."""
    tokens = (answers.c.prompt_tokens + answers.c.completion_tokens) * (1 - answers.c.cached)
    paid = select(func.sum(answers.c.cost), func.sum(tokens))
    lost = select(func.sum(questions.c.lost), func.sum(questions.c.lost_tokens))
    parts = zip(journal.read(sql.amounts, paid), journal.read(sql.amounts, lost), strict=True)
    assert journal.read(sql.spent) == pytest.approx([sum(part) for part in parts])


def test_the_version_changes_with_the_tables() -> None:
    """Where this fails, give `VERSION` another number and change both values here."""
    script = ""
    for dialect in (sqlite.dialect(), postgresql.dialect()):
        for table in METADATA.sorted_tables:
            parts = [
                CreateTable(table),
                *map(CreateIndex, sorted(table.indexes, key=lambda index: str(index.name))),
            ]
            script += "\n".join(str(part.compile(dialect=dialect)) for part in parts)
    digest = hashlib.sha256(" ".join(script.split()).encode()).hexdigest()[:16]
    assert (VERSION, digest) == ("9", "0ad84721370f3e1a")


def test_a_journal_of_another_version_is_refused(location: JournalLocation) -> None:
    _open(location).close()
    with location.writable().connect() as db, db.begin():
        db.execute(update(meta).where(meta.c.key == "version").values(value="0"))
    with pytest.raises(InputError, match=r"has version 0, and this version .* reads version 9"):
        _open(location)
    with pytest.raises(InputError, match="use the version that wrote it"), reading(location):
        pass


def test_the_journal_is_durable(tmp_path: Path) -> None:
    journal = _open(JournalLocation(tmp_path))
    with contextlib.closing(journal._db.connection.cursor()) as db:
        for pragma, value in (("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1)):
            assert db.execute(f"PRAGMA {pragma}").fetchone() == (value,)
        assert db.execute("PRAGMA busy_timeout").fetchone() == (30_000,)
    journal.close()


def test_a_failed_commit_changes_nothing(location: JournalLocation) -> None:
    journal = _open(location)
    journal.prepare(["expert"], _plan())
    first, second = journal.claim("expert", 2)
    bad = record_sending(second.id, 0.0)
    bad.values["reserved"] = None  # the column takes no NULL: the database itself refuses
    with pytest.raises(InputError, match="journal cannot be used"):
        journal.commit([record_sending(first.id, 0.1), bad])
    assert set(_states(location)) == {"planned"}
    journal.commit([record_sending(first.id, 0.1)])
    assert _states(location)[0] == "in flight"
    journal.close()


def test_a_question_goes_from_state_to_state(location: JournalLocation) -> None:
    journal = _open(location)
    assert journal.prepare(["expert"], _plan()) == 0
    q = [question.id for question in journal.claim("expert", 6)]
    journal.commit([record_sending(number, 0.5) for number in q[:4]])
    assert journal.read(sql.amounts, sql.IN_FLIGHT_AMOUNTS) == (pytest.approx(2.0), 0)
    journal.commit(
        [
            record_answer(q[0], ANSWER), record_loss(q[1], 0.125), record_failure(q[2], "no\0"),
            record_quarantine(q[3], "boom"), record_submission(q[4], 0.5, 7, "tag"),
        ]
    )  # fmt: skip
    assert _states(location)[:6] == [
        "done", "planned", "failed", "quarantined", "submitted", "planned"
    ]  # fmt: skip
    totals = journal.read(sql.totals, "expert")
    assert (totals.done, totals.failed, totals.quarantined, totals.requests) == (1, 1, 1, 5)
    assert journal.read(sql.amounts, sql.IN_FLIGHT_AMOUNTS) == (0.0, 0)
    assert journal.read(sql.spent) == (pytest.approx(0.375), 12)
    _accounts_agree(journal)
    # What this worker holds is not given out again, what it let go of is.
    assert not {question.id for question in journal.claim("expert", 100)} & set(q)
    journal.close()
    again = _open(location)
    assert again.prepare(["expert"], _plan()) == 0
    offered = {question.id for question in again.claim("expert", 100)}
    assert offered == set(range(1, 21)) - {q[0], q[3], q[4]}
    again.close()


def test_an_answer_committed_twice_is_kept_once(location: JournalLocation) -> None:
    journal = _open(location)
    journal.prepare(["expert"], _plan())
    (question,) = journal.claim("expert", 1)
    for _ in range(2):
        journal.commit([record_answer(question.id, ANSWER)])
    assert journal.read(sql.totals, "expert").done == 1
    journal.close()


def test_what_an_answer_costs() -> None:
    """A cached one took no tokens; one without a known price adds nothing to the sums."""
    for answer, spent, tokens in (
        (ANSWER, 0.25, 12),
        (replace(ANSWER, cost=0.0, cached=True), 0.0, 0),
        (replace(ANSWER, cost=None), 0.0, 12),
    ):
        change = record_answer(1, answer)
        assert (change.spent, change.tokens) == (spent, tokens)


def test_times_are_of_utc() -> None:
    assert now().endswith("+00:00")
    assert abs((datetime.fromisoformat(now()) - datetime.now(UTC)).total_seconds()) < 60.0


def test_claims_follow_the_plan_and_never_overlap(location: JournalLocation) -> None:
    journal = _open(location)
    plan = _plan()
    journal.prepare(["expert", "other"], plan)
    taken = []
    while page := journal.claim("expert", 7):
        taken += [(q.pair, q.order, q.replicate) for q in page]
    assert taken == [(q.pair, q.order, q.replicate) for q in plan]
    assert len(journal.claim("other", 100)) == len(plan)
    journal.close()


def test_no_intent_passes_the_cap(location: JournalLocation) -> None:
    journal = _open(location, max_cost=1.0)
    journal.prepare(["expert"], _plan())
    q = [question.id for question in journal.claim("expert", 10)]
    intents = [record_sending(number, 0.3) for number in q[:5]]
    assert list(journal.commit(intents)) == intents[3:]
    assert _states(location)[:5] == ["in flight"] * 3 + ["planned"] * 2
    # Answers that cost less than was set aside make room for one more.
    cheap = replace(ANSWER, cost=0.1)
    journal.commit([record_answer(q[0], cheap), record_answer(q[1], cheap)])
    assert list(journal.commit(intents[3:])) == [intents[4]]
    assert journal.commit([record_sending(q[9], 0.0)]) == {}
    assert journal.read(sql.spent)[0] + journal.read(sql.amounts, sql.IN_FLIGHT_AMOUNTS)[0] <= 1.0
    _accounts_agree(journal)
    journal.close()


def test_no_intent_passes_the_cap_on_tokens(location: JournalLocation) -> None:
    journal = _open(location, max_tokens=100)
    journal.prepare(["expert"], _plan())
    q = [question.id for question in journal.claim("expert", 10)]
    intents = [record_sending(number, 0.0, 40) for number in q[:4]]
    assert list(journal.commit(intents)) == intents[2:]
    journal.commit([record_loss(q[0], 0.0, 40), record_answer(q[1], ANSWER)])
    assert journal.read(sql.spent) == (0.25, 52)
    assert list(journal.commit(intents[2:])) == intents[3:]
    _accounts_agree(journal)
    journal.close()


def test_many_writers_share_a_commit(
    location: JournalLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = _open(location)
    journal.prepare(["expert"], _plan(100))
    commits = 0
    plain = journal.commit

    def counted(changes: Any) -> Any:
        nonlocal commits
        commits += 1
        return plain(changes)

    monkeypatch.setattr(journal, "commit", counted)

    async def go() -> None:
        numbers = [q.id for q in journal.claim("expert", 1000)]
        async with Writer(journal) as writer:
            await asyncio.gather(*(writer.write(record_sending(n, 0.1)) for n in numbers))
            await asyncio.gather(*(writer.write(record_loss(n, 0.1)) for n in numbers[:50]))
            await asyncio.gather(*(writer.write(record_failure(n, "no")) for n in numbers[:10]))

    asyncio.run(go())
    assert commits < 20
    totals = journal.read(sql.totals, "expert")
    assert (totals.requests, totals.failed) == (200, 10)
    assert totals.lost == pytest.approx(5.0)
    journal.close()
    # What is in flight when a run is cut off counts as paid, and is asked again.
    again = _open(location)
    assert again.prepare(["expert"], _plan(100)) == 150
    assert again.read(sql.spent) == (pytest.approx(20.0), 0)
    _accounts_agree(again)
    assert len(again.claim("expert", 1000)) == 200
    again.close()


def test_a_worker_that_was_taken_for_gone_keeps_its_answers_and_sends_no_more(
    location: JournalLocation,
) -> None:
    asleep = _open(location, lease=0.2)
    asleep.prepare(["expert"], _plan())
    paid, unsent = asleep.claim("expert", 2)
    asleep.commit([record_sending(paid.id, 0.25)])
    time.sleep(0.3)
    other = _open(location)
    assert other.prepare(["expert"], _plan()) == 1
    with pytest.raises(InputError, match="lost its lease"):
        asleep.commit([record_answer(paid.id, ANSWER), record_sending(unsent.id, 0.25)])
    with pytest.raises(InputError, match="lost its lease"):
        asleep.claim("expert", 1)
    asleep.close()
    assert _states(location)[:2] == ["done", "planned"]
    assert len(other.claim("expert", 100)) == 19
    other.close()


@given(st.text(st.characters(codec=None, exclude_categories=())) | st.text("\0\ud800\udc00é"))
def test_whatever_a_provider_says_can_be_kept(text: str) -> None:
    kept = storable(text)
    kept.encode()
    assert "\0" not in kept
    if "\0" not in text and not any(0xD800 <= ord(c) < 0xE000 for c in text):
        assert kept == text


def test_an_answer_with_half_a_character_is_kept(location: JournalLocation) -> None:
    journal = _open(location)
    journal.prepare(["expert"], _plan())
    (question,) = journal.claim("expert", 1)
    names = ("reply", "thinking", "finish", "model_answered")
    journal.commit(
        [record_answer(question.id, replace(ANSWER, **dict.fromkeys(names, "B\0 \ud83d")))]
    )
    with reading(location) as db:
        kept = db.execute(select(*(answers.c[name] for name in names))).one()
        assert set(kept) == {"B\ufffd \ufffd"}
    journal.close()


def test_both_processes_refused_or_together(tmp_path: Path) -> None:
    with RunLock(tmp_path), pytest.raises(InputError, match="another process is running"):
        RunLock(tmp_path).__enter__()
    together = RunLock(tmp_path, shared=True), RunLock(tmp_path, shared=True)
    refused = pytest.raises(InputError, match="another process is running")
    with together[0], together[1], refused:
        RunLock(tmp_path).__enter__()
    with RunLock(tmp_path / "runs" / "new"):
        pass
    with RunLock(tmp_path):
        pass


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("mysql://db.example/x", "must start with postgresql://"),
        ("postgresql://me:secret@db.example/x", "set PGPASSWORD"),
        ("postgresql://me@db.example/x?password=secret", "set PGPASSWORD"),
    ],
)
def test_an_address_that_cannot_be_is_refused(address: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        campaign([EXPERT], journal=address)


def test_a_server_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="PostgreSQL's driver psycopg is not installed")
    study = campaign([EXPERT], journal="postgresql://me@127.0.0.1:9/x")
    with pytest.raises(InputError, match=r"cannot be used \(.*refused.*check that the server"):
        run(study, tmp_path / "try")


def test_rounds_stay_as_whoever_planned_them_first_wrote_them(location: JournalLocation) -> None:
    rng = np.random.default_rng(0)
    first, second = (Pairs(*rng.normal(size=(2, 3, 4))) for _ in range(2))
    assert planned_rounds(location) == {} or location.shared
    _open(location).close()
    record_rounds(location, {(ALL_JUDGES, 2): first})
    record_rounds(location, {(ALL_JUDGES, 2): second, ("gpt", 3): second})
    known = planned_rounds(location)
    assert sorted(known) == [("", 2), ("gpt", 3)]
    np.testing.assert_array_equal(known["", 2].a, first.a)
    np.testing.assert_array_equal(known["gpt", 3].b, second.b)


def test_a_round_waits_for_every_question_before_it(location: JournalLocation) -> None:
    journal = _open(location)
    journal.prepare(["expert"], _plan(4))
    for left in range(7, -1, -1):
        assert not settled(location, "expert")
        (question, *_) = journal.claim("expert", 1)
        journal.commit([record_sending(question.id, 0.0)])
        journal.commit([record_answer(question.id, ANSWER)])
        assert settled(location, "expert") is (left == 0)
    journal.close()
