"""Every step of a question names the state and the worker it expects: in any order of events, a
question with an answer is done and stays so, and no money is left out of the sums."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from sqlalchemy import func, select, update

from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.journal.questions import SPENT, amounts, reading
from llm_elicit.orchestrator.journal.schema import (
    Change,
    answers,
    questions,
    record_answer,
    record_failure,
    record_loss,
    record_quarantine,
    record_sending,
    record_submission,
    workers,
)
from llm_elicit.orchestrator.journal.store import Journal
from llm_elicit.planning.pairs import Plan
from orchestrator.conftest import EXPERT
from orchestrator.running import campaign, plan_of
from orchestrator.test_journal import ANSWER

PLAN: Plan = plan_of(campaign([EXPERT], pairs=4))


def _open(location: JournalLocation) -> Journal:
    journal = Journal(location, {"fingerprint": "x"})
    journal.prepare(["expert"], PLAN)
    return journal


def _gone(journal: Journal) -> None:
    """The worker's lease is over, as if it had been stopped for so long."""
    with journal._db.begin():
        journal._db.execute(update(workers).where(workers.c.id == journal._me).values(expires=1.0))


def _rows(location: JournalLocation) -> list[Any]:
    c = questions.c
    with reading(location) as db:
        return list(
            db.execute(
                select(c.state, c.worker, c.attempts, c.lost, answers.c.cost)
                .select_from(questions.outerjoin(answers, answers.c.question == c.id))
                .order_by(c.id)
            )
        )


def _counted(location: JournalLocation) -> tuple[float, int]:
    with reading(location) as db:
        return amounts(db, SPENT)


def _added_up(location: JournalLocation) -> tuple[float, int]:
    used = answers.c.prompt_tokens + answers.c.completion_tokens
    with reading(location) as db:
        paid = db.execute(select(func.sum(answers.c.cost), func.sum(used))).one()
        c = questions.c
        lost = db.execute(select(func.sum(c.lost), func.sum(c.lost_tokens))).one()
    return float(paid[0] or 0) + float(lost[0] or 0), int(paid[1] or 0) + int(lost[1] or 0)


BEFORE = {
    "attempts": 2, "reserved": 0.5, "reserved_tokens": 20, "lost": 0.125, "lost_tokens": 5,
    "error": "before", "batch": "tag",
}  # fmt: skip
NOTHING = {"reserved": 0.0, "reserved_tokens": 0}
RESERVED = {"attempts": 3, "reserved": 0.75, "reserved_tokens": 30, "error": None}

MINE = {("planned", "me")}
SENT = {("in flight", "me"), *(("submitted", owner) for owner in ("me", "other", None))}
OWNERS: tuple[str | None, ...] = ("me", "other", None)
STATES = ("planned", "in flight", "submitted", "done", "failed", "quarantined")
UNANSWERED = {(state, owner) for state in STATES if state != "done" for owner in OWNERS}


@pytest.mark.parametrize(
    ("change", "allowed", "after"),
    [
        (record_sending(1, 0.75, 30), MINE, {"state": "in flight", **RESERVED}),
        (
            record_submission(1, 0.75, 30, "new"), MINE,
            {"state": "submitted", "worker": None, "batch": "new", **RESERVED},
        ),
        (
            record_answer(1, ANSWER), UNANSWERED,
            {"state": "done", "worker": None, "error": None, **NOTHING},
        ),
        (
            record_loss(1, 0.25, 10), SENT,
            {"state": "planned", "lost": 0.375, "lost_tokens": 15, **NOTHING},
        ),
        (
            record_failure(1, "no"), MINE | SENT,
            {"state": "failed", "worker": None, "error": "no", **NOTHING},
        ),
        (
            record_quarantine(1, "no"), MINE | SENT,
            {"state": "quarantined", "worker": None, "error": "no", **NOTHING},
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Change) else "",
)  # fmt: skip
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another change"])
def test_a_step_applies_in_its_states_alone(
    change: Change, allowed: set[Any], after: dict[str, Any], beside: bool, tmp_path: Path
) -> None:
    """In every other state, or of another owner, the step changes only the cost."""
    location = JournalLocation(tmp_path)
    other, journal = _open(location), _open(location)
    ids = {"me": journal._me, "other": other._me, None: None}
    more = [record_quarantine(8, "no")] if beside else []  # which never applies
    for case in [(state, owner) for state in STATES for owner in OWNERS]:
        before = {"state": case[0], "worker": ids[case[1]], **BEFORE}
        with journal._db.begin():
            journal._db.execute(answers.delete())
            journal._db.execute(update(questions).where(questions.c.id == 1).values(**before))
        refused = journal.commit([change, *more])
        with journal._db.begin():
            c = questions.c
            found = select(*(c[name] for name in before)).where(c.id == 1)
            row = dict(journal._db.execute(found).one()._mapping)
            kept = journal._db.execute(select(func.count()).select_from(answers)).scalar_one()
        paid = {"lost": 0.125 + change.spent, "lost_tokens": 5 + change.tokens}
        assert row == before | (after if case in allowed else paid), case
        assert kept == (change.answer is not None and case in allowed)
        says = case not in allowed and change.kind not in ("answered", "missed")
        assert refused == dict.fromkeys([change] * says + more, "settled elsewhere")
    journal.close()
    other.close()


def test_a_late_answer_is_kept_and_nothing_undoes_it(location: JournalLocation) -> None:
    """One worker sleeps for longer than its lease, another asks again, both are answered."""
    asleep = _open(location)
    (question,) = asleep.claim("expert", 1)
    asleep.commit([record_sending(question.id, 0.5)])
    _gone(asleep)
    other = _open(location)
    assert question in [replace(q, attempts=0) for q in other.claim("expert", 8)]
    assert other.commit([record_sending(question.id, 0.5)]) == {}
    with pytest.raises(InputError, match="lost its lease"):
        asleep.commit([record_answer(question.id, ANSWER)])
    assert _rows(location)[0][0] == "done"
    # The request of the other comes to nothing, is put again, given up, or answered after all.
    assert other.commit([record_loss(question.id, 0.125)]) == {}
    again = record_sending(question.id, 0.5)
    assert other.commit([again]) == {again: "settled elsewhere"}
    for change in (record_failure(question.id, "no"), record_quarantine(question.id, "no")):
        assert other.commit([change]) == {change: "settled elsewhere"}
    other.commit([record_answer(question.id, replace(ANSWER, reply="B"))])
    state, worker, attempts, lost, cost = _rows(location)[0]
    assert (state, worker, attempts, cost) == ("done", None, 2, 0.25)
    # Set aside for the sleeper, the time-out, and the second answer.
    assert lost == pytest.approx(0.5 + 0.125 + 0.25)
    assert _counted(location) == pytest.approx(_added_up(location))
    with reading(location) as db:
        assert db.execute(select(answers.c.reply)).scalars().all() == ["A"]
    asleep.close()
    other.close()


def test_a_worker_that_was_taken_for_gone_changes_no_others_question(
    location: JournalLocation,
) -> None:
    asleep = _open(location)
    first, second, third = asleep.claim("expert", 3)
    asleep.commit([record_sending(first.id, 0.5), record_sending(second.id, 0.5)])
    _gone(asleep)
    other = _open(location)
    other.claim("expert", 8)
    other.commit([record_sending(first.id, 0.5)])
    before = _rows(location)
    changes = [
        record_loss(first.id, 0.1),
        record_failure(second.id, "no"),
        record_sending(third.id, 0.5),
    ]
    with pytest.raises(InputError, match="lost its lease"):
        asleep.commit(changes)
    assert _rows(location) == before
    assert _counted(location) == pytest.approx(_added_up(location))
    asleep.close()
    other.close()


class Workers(RuleBasedStateMachine):
    """Two workers on one journal, in any order of events; each may be taken for gone."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.location = JournalLocation(Path(self._folder.name))
        self.journals = [_open(self.location), _open(self.location)]
        self.done: set[int] = set()

    @rule(who=st.integers(0, 1))
    def claims(self, who: int) -> None:
        try:
            self.journals[who].claim("expert", 2)
        except InputError:
            self._comes_back(who)

    @rule(who=st.integers(0, 1), kinds=st.lists(st.integers(0, 4), min_size=1, max_size=3),
          first=st.integers(1, 6))  # fmt: skip
    def commits(self, who: int, kinds: list[int], first: int) -> None:
        makes = (
            lambda q: record_sending(q, 0.5, 20), lambda q: record_answer(q, ANSWER),
            lambda q: record_loss(q, 0.125, 5), lambda q: record_failure(q, "no"),
            lambda q: record_quarantine(q, "no"),
        )  # fmt: skip
        changes: list[Change] = [makes[kind](first + n) for n, kind in enumerate(kinds)]
        try:
            refused = self.journals[who].commit(changes)
            assert all(change.kind not in ("answered", "missed") for change in refused)
        except InputError:
            self._comes_back(who)
        self.done |= {change.question for change in changes if change.answer}

    @rule(who=st.integers(0, 1))
    def is_taken_for_gone(self, who: int) -> None:
        self.journals[1 - who].held_elsewhere("expert") if self._lives(1 - who) else None

    def _lives(self, who: int) -> bool:
        journal = self.journals[who]
        with journal._db.begin():
            lives = select(workers.c.expires > 0).where(workers.c.id == journal._me)
            return bool(journal._db.execute(lives).scalar_one())

    def _comes_back(self, who: int) -> None:
        self.journals[who].close()
        self.journals[who] = _open(self.location)

    @invariant()
    def an_answer_means_done_and_money_adds_up(self) -> None:
        rows = _rows(self.location)
        for number, (state, worker, _, _, cost) in enumerate(rows, 1):
            assert (state == "done") == (cost is not None) == (number in self.done)
            assert (worker is None) or state in ("planned", "in flight")
        assert _counted(self.location) == pytest.approx(_added_up(self.location))

    def teardown(self) -> None:
        for journal in self.journals:
            journal.close()
        self._folder.cleanup()


TestWorkers = Workers.TestCase
TestWorkers.settings = settings(max_examples=10, stateful_step_count=15, deadline=None)
