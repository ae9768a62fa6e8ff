"""Which card an expert is given: leases, panels beside each other, and replicates in turn."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa

from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.journal.people import Expert, Shuffle, count_left, next_question
from llm_elicit.orchestrator.journal.questions import reading
from llm_elicit.orchestrator.journal.schema import people as table_of_people
from llm_elicit.orchestrator.journal.schema import questions
from orchestrator.test_people import (
    ADA,
    PANEL,
    expire,
    finish,
    given_cards,
    opened,
    prepare,
    study_of,
)

TWO = {**PANEL, "experts": ["ben", "cleo"]}


def test_an_expert_of_two_panels_has_a_card_in_each(location: JournalLocation) -> None:
    """People are known by their judge and their name: two may share a name."""
    study = study_of({**TWO, "name": "one"}, {**TWO, "name": "two"}, pairs=4, both_orders=False)
    with opened(location, study) as people:
        first = people.next("one", "ben")
        second = people.next("two", "ben")
        assert first is not None
        assert second is not None
        assert first.id != second.id
        assert people.next("one", "ben") == first
        people.answer("one", "ben", first.id, "a")
        assert people.progress("one", "ben").answered == 1
        assert people.progress("two", "ben").answered == 0
        assert people.undo("two", "ben") is None
        assert len(finish(people, "two", "ben")) == 4
    rows = [(row.judge, row.state) for row in given_cards(location)]
    assert rows.count(("two", "answered")) == 4
    assert rows.count(("one", "answered")) == 1


def test_a_question_comes_back_once_the_others_have_had_it(tmp_path: Path) -> None:
    """Also while it is on another's screen, but not after that one left it."""
    location = JournalLocation(tmp_path)
    study = study_of(TWO, pairs=4, both_orders=False, replicates=4)
    with opened(location, study) as people:
        assert len(finish(people, "panel", "ben")) == 4
        theirs = people.next("panel", "cleo")
        assert theirs is not None
        expire(location, "cleo")
        assert people.next("panel", "ben") is None
        assert people.next("panel", "cleo") == theirs
        again = people.next("panel", "ben")
        assert again is not None
        assert (again.a, again.b) == (theirs.a, theirs.b)


def test_a_card_that_is_shown_again_is_held_for_as_long_again(location: JournalLocation) -> None:
    with opened(location, study_of(TWO, pairs=4, both_orders=False)) as people:
        card = people.next("panel", "ben")
        assert card is not None
        expire(location)
        cards = table_of_people
        with location.writable().connect() as db, db.begin():
            db.execute(sa.update(cards).values(shown=1.0))
        assert people.next("panel", "ben") == card
        (row,) = given_cards(location)
        assert row.shown > 1.0, "the time that the answer takes begins anew"
        assert row.expires == pytest.approx(row.shown + 300.0, abs=1.0)
        assert len(finish(people, "panel", "cleo")) == 3
        people.answer("panel", "ben", card.id, "a")


def test_people_are_given_pairs_that_may_yet_be_answered(tmp_path: Path) -> None:
    """None that is set aside: nobody would wait for that in vain."""
    location = JournalLocation(tmp_path)
    with opened(location, study_of(ADA, pairs=4)) as people:
        with location.writable().connect() as db, db.begin():
            aside = sa.update(questions).where(questions.c.id == 1)
            db.execute(aside.values(state="quarantined"))
        assert people.progress("ada", "ada").left == 7
        assert len(finish(people, "ada", "ada")) == 7
        assert people.progress("ada", "ada").left == 0


def test_panels_do_not_take_turns_with_each_other(tmp_path: Path) -> None:
    """What another panel has been asked says nothing of who had a question in this one."""
    panels = [{**TWO, "name": name} for name in ("one", "two")]
    study = study_of(*panels, pairs=4, both_orders=False, replicates=4)
    with opened(JournalLocation(tmp_path), study) as people:
        assert len(finish(people, "two", "cleo")) == 4
        assert len(finish(people, "one", "ben")) == 4


def test_a_repeat_is_no_turn(tmp_path: Path) -> None:
    """Or who was asked one would not be asked the question's later replicate."""
    location = JournalLocation(tmp_path)
    study = study_of({**TWO, "repeats": 0.5}, pairs=12, both_orders=False, replicates=4)
    with opened(location, study) as people:
        for name in ("ben", "cleo", "ben"):
            finish(people, "panel", name)
    cards = given_cards(location)
    assert sum(row.kind == "repeat" for row in cards) > 10
    turns = Counter((row.pair, row.expert) for row in cards if row.kind == "question")
    assert len(turns) == 24
    assert set(turns.values()) == {2}


def test_every_question_is_asked_before_any_is_asked_again(tmp_path: Path) -> None:
    location = JournalLocation(tmp_path)
    with opened(location, study_of(ADA, pairs=4, replicates=2)) as people:
        finish(people, "ada", "ada")
    asked = [(row.pair, row.form) for row in given_cards(location)]
    assert sorted(asked[:8]) == sorted(asked[8:]) == sorted(set(asked))


def test_pairs_of_a_round_that_is_not_known_yet_are_not_given(tmp_path: Path) -> None:
    location = JournalLocation(tmp_path)
    prepare(location, study_of(ADA, pairs=4))
    ada = Expert("ada", "ada", Shuffle.of(1), 1, spread=False)
    with reading(location) as db:
        for known in range(5):
            found = next_question(db, ada, known)
            assert (found is None) == (known == 0)
            assert found is None or found[1] < known
            assert count_left(db, ada, known) == 2 * known
