"""The cards of people in the journal by themselves: their order, leases, answers and repeats."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from llm_elicit.orchestrator.journal import people as cards
from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.journal.people import CardKind, CardRow, Expert, Shuffle
from llm_elicit.orchestrator.journal.schema import Question, answers, questions, record_answer
from llm_elicit.orchestrator.journal.store import Journal
from orchestrator.test_journal import ANSWER
from orchestrator.test_people import PANEL, prepare, study_of

BEN, CLEO = (
    Expert("panel", name, Shuffle.of(1, name), 2, spread=False) for name in ("ben", "cleo")
)
OTHER = replace(BEN, judge="other")


@contextmanager
def _opened(
    location: JournalLocation, pairs: int = 4, replicates: int = 1
) -> Iterator[sa.Connection]:
    """A transaction on the journal of two panels with the same experts."""
    prepare(
        location, study_of(PANEL, {**PANEL, "name": "other"}, pairs=pairs, replicates=replicates)
    )
    with location.writable().connect() as db, db.begin():
        yield db


def _settled(
    db: sa.Connection, expert: Expert, kind: CardKind, question: int | None, pair: int = 0
) -> CardRow:
    """An answered card; its question stays open."""
    row = cards.lease(db, expert, 60.0, kind, (question, pair, "ab"))
    assert cards.settle(db, row, "a", 1.0)
    return row


def _set_aside(db: sa.Connection, which: sa.ColumnElement[bool]) -> None:
    db.execute(sa.update(questions).where(which).values(state="quarantined"))


def test_an_experts_order_is_the_same_in_every_version() -> None:
    """A run that is resumed after an upgrade goes on in its order, with its attention questions."""
    assert Shuffle.of(2, "panel", "cleo").numbers == (
        1451300563, 1006334373, 710938273, 609051360, 1556151059, 1543255332,
    )  # fmt: skip


def test_questions_follow_the_polynomials_of_the_expert(location: JournalLocation) -> None:
    """The largest coefficients exceed 32 bits in every product."""
    numbers = (2**31 - 2, 2**31 - 3, 7, 2**31 - 5, 2**31 - 6, 11)
    expert = replace(BEN, shuffle=Shuffle(numbers))

    def value(first: int, pair: int) -> int:
        a, b, c = numbers[first : first + 3]
        return (a * pair**2 + b * pair + c) % (2**31 - 1)

    with _opened(location, pairs=5, replicates=2) as db:
        c = questions.c
        rows = db.execute(
            sa.select(c.id, c.pair, c.form, c.replicate).where(c.judge == "panel")
        ).all()
        expected = sorted(
            rows,
            key=lambda row: (
                row.replicate,
                ((row.form == "ba") + value(3, row.pair)) % 2,
                value(0, row.pair),
            ),
        )
        assert len(rows) == 20
        for row in expected:
            assert cards.next_question(db, expert, 5) == tuple(row)[:3]
            _set_aside(db, c.id == row.id)
        assert cards.next_question(db, expert, 5) is None


def test_a_card_is_returned_as_it_is_kept(location: JournalLocation) -> None:
    with _opened(location) as db:
        question = cards.lease(db, BEN, 60.0, "question", (1, 0, "ab"), choice="equal")
        assert cards.held_card(db, BEN) == cards.read_card(db, question.id) == question
        assert (question.kind, question.state, question.choice) == ("question", "leased", "equal")
        assert (question.judge, question.expert, question.expected) == ("panel", "ben", None)
        assert question.shown > 1e9
        attention = cards.lease(db, CLEO, 60.0, "attention", (None, 3, "ba"), expected="b")
        assert cards.read_card(db, attention.id) == attention
        assert (attention.question, attention.pair, attention.form) == (None, 3, "ba")
        assert (attention.kind, attention.expected, attention.choice) == ("attention", "b", None)
        assert cards.held_card(db, OTHER) is None


def test_what_may_be_asked_again(tmp_path: Path) -> None:
    """Answered questions but for the latest, each once; nobody else's, and none that was undone."""
    with _opened(JournalLocation(tmp_path)) as db:
        for question in (3, 1, 5):
            _settled(db, BEN, "question", question)
        cards.reopen(db, _settled(db, BEN, "question", 4))
        _settled(db, BEN, "attention", None)
        _settled(db, CLEO, "question", 6)
        _settled(db, OTHER, "question", 9)
        _settled(db, BEN, "question", 2)
        cards.lease(db, BEN, 60.0, "question", (7, 3, "ab"))
        for gap, expected in ((0, [3, 1, 5, 2]), (1, [3, 1, 5]), (3, [3]), (4, []), (9, [])):
            assert [row.question for row in cards.repeatable(db, BEN, gap)] == expected
        cards.release(db, cards.held_card(db, BEN))  # type: ignore[arg-type]
        _settled(db, BEN, "repeat", 1)
        assert [row.question for row in cards.repeatable(db, BEN, 1)] == [3, 5]


def test_a_question_that_is_settled_otherwise_keeps_its_answer(tmp_path: Path) -> None:
    location = JournalLocation(tmp_path)
    with _opened(location) as db:
        row = cards.lease(db, BEN, 60.0, "question", (1, 0, "ab"))
    journal = Journal(location, {"key": "x"})
    journal.commit([record_answer(1, ANSWER)])
    journal.close()
    with location.writable().connect() as db, db.begin():
        late = replace(ANSWER, reply="b", cost=0.0)
        assert not cards.settle(db, row, "b", 1.0, answer=late)
        assert cards.held_card(db, BEN) == row
        assert db.execute(sa.select(answers.c.reply)).scalars().all() == ["A"]


def test_a_card_that_is_not_leased_takes_no_answer(tmp_path: Path) -> None:
    with _opened(JournalLocation(tmp_path)) as db:
        row = cards.lease(db, BEN, 60.0, "repeat", (1, 0, "ab"))
        cards.release(db, row)
        assert not cards.settle(db, row, "a", 1.0)
        assert cards.answered_cards(db, BEN) == {}


def test_the_question_of_a_card(tmp_path: Path) -> None:
    with _opened(JournalLocation(tmp_path), replicates=2) as db:
        c = questions.c
        known = sa.select(c.id).where(c.judge == "other", c.pair == 2, c.form == "ba")
        first, second = db.execute(known.order_by(c.replicate)).scalars()
        for replicate, number in enumerate((first, second)):
            row = cards.lease(db, OTHER, 60.0, "question", (number, 2, "ba"))
            assert cards.question_of(db, row) == Question(number, 2, "ba", replicate, 0, "other")
            cards.release(db, row)


def test_what_waits_of_a_round(tmp_path: Path) -> None:
    c = questions.c
    with _opened(JournalLocation(tmp_path)) as db:
        assert cards.count_waiting(db, "panel", range(4)) == 8
        assert cards.count_waiting(db, "panel", range(1, 3)) == 4
        _set_aside(db, (c.judge == "panel") & (c.pair == 1))
        assert cards.count_waiting(db, "panel", range(1, 3)) == 2
        assert cards.count_waiting(db, "panel", range(2, 4)) == 4
        assert cards.count_waiting(db, "other", range(1, 3)) == 4


@pytest.mark.parametrize("spread", [False, True])
def test_what_an_expert_may_still_answer(tmp_path: Path, spread: bool) -> None:
    """Of the pairs that are known, without what is set aside; a replicate of two is another's."""
    ben, c = replace(BEN, spread=spread), questions.c
    with _opened(JournalLocation(tmp_path), replicates=2) as db:
        for known in range(5):
            assert cards.count_left(db, ben, known) == (2 if spread else 4) * known
        _set_aside(db, (c.judge == "panel") & (c.pair == 1))
        assert cards.count_left(db, ben, 4) == (6 if spread else 12)


def test_one_judges_cards_are_changed_by_one_transaction(postgres: str, tmp_path: Path) -> None:
    """Those of another judge or run are not waited for."""
    location, other = (JournalLocation(tmp_path / name, postgres) for name in ("one", "two"))
    engine = location.writable()
    with engine.connect() as first, first.begin(), engine.connect() as second, second.begin():
        second.exec_driver_sql("SET LOCAL lock_timeout = '20ms'")
        cards.lock_cards(first, location, "panel")
        cards.lock_cards(second, location, "other")
        cards.lock_cards(second, other, "panel")
        with pytest.raises(OperationalError, match="lock timeout"):
            cards.lock_cards(second, location, "panel")
