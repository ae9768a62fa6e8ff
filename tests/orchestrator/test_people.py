"""People as judges: every question is answered exactly once, even if people leave and come back."""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_elicit.config.campaign import Campaign, identity_of
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.engine import ask
from llm_elicit.orchestrator.estimates import estimate
from llm_elicit.orchestrator.journal import people as cards
from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.journal.people import Shuffle
from llm_elicit.orchestrator.journal.questions import reading, stored_answers
from llm_elicit.orchestrator.journal.schema import people as table_of_people
from llm_elicit.orchestrator.journal.schema import questions
from llm_elicit.orchestrator.journal.store import Journal
from llm_elicit.orchestrator.judgments import people_cards, status
from llm_elicit.orchestrator.open_run import Study
from llm_elicit.orchestrator.people import Card, Choice, People
from orchestrator.running import Notes, campaign, plan_of, space_of, table

PANEL = {"name": "panel", "backend": "human", "experts": ["ben", "cleo", "dan"]}
ADA = {"name": "ada", "backend": "human"}


def study_of(*judges: dict[str, Any], pairs: int = 5, **design: Any) -> Campaign:
    return campaign(list(judges), **{"design": {"pairs": pairs, **design}})


def prepare(location: JournalLocation, study: Campaign) -> None:
    """Write the plan to the journal, as asking does first."""
    location.folder.mkdir(exist_ok=True)
    journal = Journal(location, identity_of(study, space_of(study)))
    journal.prepare([judge.name for judge in study.judges], plan_of(study))
    journal.close()


@contextmanager
def opened(location: JournalLocation, study: Campaign, lease: float = 300.0) -> Iterator[People]:
    prepare(location, study)
    with People(location, study, space_of(study), plan_of(study), lease=lease) as people:
        yield people


def expire(location: JournalLocation, expert: str | None = None) -> None:
    """Let the leases of an expert, or of all, expire."""
    cards = table_of_people
    with location.writable().connect() as db, db.begin():
        ended = sa.update(cards).where(cards.c.state == "leased").values(expires=1.0)
        db.execute(ended if expert is None else ended.where(cards.c.expert == expert))


def given_cards(location: JournalLocation) -> list[Any]:
    with reading(location) as db:
        return list(db.execute(sa.select(table_of_people).order_by(table_of_people.c.id)).all())


def finish(people: People, judge: str, *experts: str, choice: Choice = "a") -> list[Card]:
    """Let experts answer in turn until nothing is left; return the cards."""
    answered = []
    while True:
        before = len(answered)
        for expert in experts:
            card = people.next(judge, expert)
            if card is not None:
                people.answer(judge, expert, card.id, choice, seconds=1.0)
                answered.append(card)
        if len(answered) == before:
            return answered


def test_answers_of_people_are_ordinary_answers(location: JournalLocation) -> None:
    study = study_of(ADA)
    with opened(location, study) as people:
        for choice in ("a", "b", "equal", "cannot say", "a", "b", "equal", "a", "b", "a"):
            card = people.next("ada", "ada")
            assert card is not None
            people.answer("ada", "ada", card.id, choice, confidence=0.8, seconds=2.5)
        assert people.next("ada", "ada") is None
        assert vars(people.progress("ada", "ada")) == {
            "answered": 10,
            "wanted": 10,
            "left": 0,
            "additional": 0,
        }
    study = study.model_copy(update={"journal": location.address})
    frame = table(study, location.folder).frame
    assert sorted(zip(frame["pair"], frame["order"], strict=True)) == [
        (pair, order) for pair in range(5) for order in ("ab", "ba")
    ]
    assert set(frame["model_asked"]) == {"human"}
    assert set(frame["model_answered"]) == {"ada"}
    assert set(frame["latency"]) == {2.5}
    assert frame["cost"].sum() == 0.0
    assert not frame["soft"].any()
    for row in frame.itertuples():
        first = {"A": 1.0, "B": 0.0, "tie": 0.5}.get(row.verdict)
        if first is None:
            assert row.verdict == "refusal"
            assert row.reply == "cannot say"
            assert row.probability != row.probability
        else:
            assert row.probability == (first if row.order == "ab" else 1.0 - first)


def test_a_card_shows_the_points_of_its_side(tmp_path: Path) -> None:
    study, location = study_of(ADA), JournalLocation(tmp_path)
    space, plan = space_of(study), plan_of(study)
    with opened(location, study) as people:
        shown = finish(people, "ada", "ada")
    for card, row in zip(shown, given_cards(location), strict=True):
        first, second = (plan.a, plan.b) if row.form == "ab" else (plan.b, plan.a)
        assert card.a == tuple(space.word(first[row.pair]))
        assert card.b == tuple(space.word(second[row.pair]))
        assert card.number == row.id
    assert {row.form for row in given_cards(location)[:5]} == {"ab", "ba"}


def test_both_orders_of_a_pair_are_far_apart(tmp_path: Path) -> None:
    study, location = study_of(ADA, pairs=30), JournalLocation(tmp_path)
    with opened(location, study) as people:
        finish(people, "ada", "ada")
    asked = [row.pair for row in given_cards(location)]
    assert sorted(asked[:30]) == list(range(30))
    assert asked[:30] == asked[30:] != list(range(30))
    sides = Counter(row.form for row in given_cards(location)[:30])
    assert min(sides.values()) >= 5


def test_every_expert_has_an_order_of_their_own(tmp_path: Path) -> None:
    orders = []
    for name in ("ben", "cleo"):
        study = study_of({**ADA, "name": name}, pairs=30)
        location = JournalLocation(tmp_path / name)
        with opened(location, study) as people:
            finish(people, name, name)
        orders.append([(row.pair, row.form) for row in given_cards(location)])
    assert orders[0] != orders[1]
    assert Shuffle.of(1, "a", "b") == Shuffle.of(1, "a", "b") != Shuffle.of(2, "a", "b")


def test_the_same_card_is_shown_until_it_is_answered(location: JournalLocation) -> None:
    with opened(location, study_of(PANEL)) as people:
        card = people.next("panel", "ben")
        assert card is not None
        assert people.next("panel", "ben") == card
        other = people.next("panel", "cleo")
        assert other is not None
        assert other.id != card.id
        expire(location)
        assert people.next("panel", "ben") == card  # nobody else has taken it


def test_an_expired_card_goes_to_the_next_expert(location: JournalLocation) -> None:
    with opened(location, study_of(PANEL, pairs=4, both_orders=False)) as people:
        late = people.next("panel", "ben")
        assert late is not None
        assert len(finish(people, "panel", "cleo")) == 3
        assert people.progress("panel", "cleo").left == 1
        expire(location)
        assert len(finish(people, "panel", "cleo")) == 1
        with pytest.raises(InputError, match="not answered in time"):
            people.answer("panel", "ben", late.id, "a")
        assert people.next("panel", "ben") is None
    assert status(location.folder, _at(location, study_of(PANEL, pairs=4)))["panel"].done == 4


def test_an_expired_card_that_nobody_took_may_still_be_answered(location: JournalLocation) -> None:
    with opened(location, study_of(PANEL)) as people:
        card = people.next("panel", "ben")
        assert card is not None
        expire(location)
        people.answer("panel", "ben", card.id, "b")
        assert people.progress("panel", "ben").answered == 1


def test_an_answer_sent_twice_is_stored_once(location: JournalLocation) -> None:
    with opened(location, study_of(ADA)) as people:
        card = people.next("ada", "ada")
        assert card is not None
        for _ in range(3):
            people.answer("ada", "ada", card.id, "a")
        with pytest.raises(InputError, match=r"already answered with 'a'.*undo"):
            people.answer("ada", "ada", card.id, "b")
    done = status(location.folder, _at(location, study_of(ADA)))["ada"]
    assert (done.done, done.cost) == (1, 0.0)


def test_an_undone_answer_leaves_no_trace_in_the_answers(location: JournalLocation) -> None:
    with opened(location, study_of(ADA)) as people:
        first = people.next("ada", "ada")
        assert first is not None
        people.answer("ada", "ada", first.id, "a", seconds=3.0)
        second = people.next("ada", "ada")
        assert second is not None
        again = people.undo("ada", "ada")
        assert again is not None
        assert (again.a, again.b, again.choice) == (first.a, first.b, "a")
        assert status(location.folder, _at(location, study_of(ADA)))["ada"].done == 0
        assert people.next("ada", "ada") == again
        for late, error in ((first, "was undone"), (second, "given to someone else")):
            with pytest.raises(InputError, match=error):
                people.answer("ada", "ada", late.id, "a")
        people.answer("ada", "ada", again.id, "b", seconds=1.0)
        follows = people.next("ada", "ada")
        assert follows is not None
        assert follows.a == second.a
    kept = [(row.state, row.choice) for row in given_cards(location)]
    assert kept == [("undone", "a"), ("released", None), ("answered", "b"), ("leased", None)]
    frame = table(_at(location, study_of(ADA)), location.folder).frame
    assert frame["verdict"].tolist() == ["B"]


def test_the_last_answer_of_all_is_not_undone(tmp_path: Path) -> None:
    """The belief may have been fitted to it meanwhile."""
    with opened(JournalLocation(tmp_path), study_of(ADA)) as people:
        assert people.undo("ada", "ada") is None
        assert len(finish(people, "ada", "ada")) == 10
        assert people.undo("ada", "ada") is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"choice": "c"}, "choose one of"),
        ({"confidence": 1.5}, "from 0 to 1"),
        ({"confidence": float("nan")}, "from 0 to 1"),
        ({"seconds": -1.0}, "from 0"),
        ({"seconds": float("inf")}, "from 0"),
        ({"card": 99}, "not shown to ben"),
        ({"expert": "cleo"}, "not shown to cleo"),
        ({"expert": "eve"}, "it has ben, cleo, dan"),
        ({"judge": "nobody"}, r"campaign's people \(panel\)"),
    ],
)
def test_a_wrong_answer_is_refused_in_one_line(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    with opened(JournalLocation(tmp_path), study_of(PANEL)) as people:
        card = people.next("panel", "ben")
        assert card is not None
        sent = {"judge": "panel", "expert": "ben", "card": card.id, "choice": "a", **values}
        with pytest.raises(InputError, match=message) as refused:
            people.answer(**sent)
        assert "\n" not in str(refused.value)
        assert people.progress("panel", "ben").answered == 0


def test_replicates_go_to_different_experts(tmp_path: Path) -> None:
    location, study = JournalLocation(tmp_path), study_of(PANEL, pairs=6, replicates=2)
    with opened(location, study) as people:
        assert len(finish(people, "panel", "ben")) == 12
        assert people.progress("panel", "ben").left == 0
        assert len(finish(people, "panel", "cleo", "dan")) == 12
    asked = Counter((row.pair, row.form, row.expert) for row in given_cards(location))
    assert set(asked.values()) == {1}


def test_the_card_on_the_screen_counts_as_left(tmp_path: Path) -> None:
    location, study = JournalLocation(tmp_path), study_of(PANEL, pairs=6, replicates=2)
    with opened(location, study) as people:
        for number in range(3):
            card = people.next("panel", "ben")
            assert card is not None
            done = people.progress("panel", "ben")
            assert (done.answered, done.wanted, done.left) == (number, 12, 12 - number)
            people.answer("panel", "ben", card.id, "a")


def test_more_replicates_than_experts_come_back_to_them(tmp_path: Path) -> None:
    two = {**PANEL, "experts": ["ben", "cleo"]}
    location, study = JournalLocation(tmp_path), study_of(two, pairs=4, replicates=4)
    with opened(location, study) as people:
        finish(people, "panel", "ben", "cleo")
    asked = Counter((row.pair, row.form, row.expert) for row in given_cards(location))
    assert len(asked) == 16
    assert set(asked.values()) == {2}


def test_repeats_and_attention_questions_are_additional(tmp_path: Path) -> None:
    study = study_of({**ADA, "repeats": 0.2, "attention": 0.1}, pairs=50)
    location, plan = JournalLocation(tmp_path), plan_of(study)
    with opened(location, study) as people:
        shown = finish(people, "ada", "ada", choice="b")
        progress = people.progress("ada", "ada")
    rows = given_cards(location)
    assert (progress.answered, progress.wanted) == (100, 100)
    assert progress.additional == len(rows) - 100
    counts = Counter(row.kind for row in rows)
    assert counts["question"] == 100
    assert counts["repeat"] in (19, 20)
    assert counts["attention"] in (9, 10)
    assert len(table(study, tmp_path)) == 100
    places = {row.question: place for place, row in enumerate(rows) if row.kind == "question"}
    for place, (card, row) in enumerate(zip(shown, rows, strict=True)):
        if row.kind == "attention":
            assert row.expected.upper() in card.instruction
            assert card.a != card.b
            continue
        assert card.instruction == ""
        a, b = (plan.a, plan.b) if row.form == "ab" else (plan.b, plan.a)
        assert card.a == tuple(space_of(study).word(a[row.pair]))
        assert card.b == tuple(space_of(study).word(b[row.pair]))
        if row.kind == "repeat":
            assert place - places[row.question] > 10


def test_an_answer_to_an_additional_question_is_undone_too(tmp_path: Path) -> None:
    study, location = study_of({**ADA, "attention": 1.0}), JournalLocation(tmp_path)
    with opened(location, study) as people:
        while (card := people.next("ada", "ada")) is not None and not card.instruction:
            people.answer("ada", "ada", card.id, "a")
        assert card is not None
        done = people.progress("ada", "ada").answered
        people.answer("ada", "ada", card.id, "b")
        again = people.undo("ada", "ada")
        assert again is not None
        assert (again.a, again.instruction) == (card.a, card.instruction)
        assert people.progress("ada", "ada").answered == done


EXPERTS = ("ben", "cleo", "dan")
STEPS = st.tuples(
    st.sampled_from(["next", "answer", "again", "undo", "expire"]), st.sampled_from(EXPERTS)
)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(STEPS, max_size=60), st.sampled_from([(1, 0.0), (2, 0.0), (2, 0.5)]))
def test_any_interleaving_answers_every_question_exactly_once(
    steps: list[tuple[str, str]], kind: tuple[int, float]
) -> None:
    replicates, additional = kind
    judge = {**PANEL, "repeats": additional, "attention": additional}
    study = study_of(judge, pairs=4, replicates=replicates)
    with tempfile.TemporaryDirectory() as folder:
        location = JournalLocation(Path(folder))
        with opened(location, study) as people:
            for step, expert in steps:
                _do(people, location, step, expert)
                _check(location)
            expire(location)
            finish(people, "panel", *EXPERTS)
            assert people.next("panel", "ben") is None
        _check(location)
        frame = table(study, location.folder).frame  # its digests are checked
        assert len(frame) == 8 * replicates
        settled = Counter(
            row.question
            for row in given_cards(location)
            if (row.kind, row.state) == ("question", "answered")
        )
        assert sorted(settled) == list(range(1, 8 * replicates + 1))
        assert set(settled.values()) == {1}
        said = {
            (row.pair, row.form, row.expert, row.choice)
            for row in given_cards(location)
            if (row.kind, row.state) == ("question", "answered")
        }
        rows = zip(
            frame["pair"], frame["order"], frame["model_answered"], frame["reply"], strict=True
        )
        assert set(rows) == said
        assert len({key[:3] for key in said}) == 8 * replicates  # by different experts


def _do(people: People, location: JournalLocation, step: str, expert: str) -> None:
    if step == "expire":
        expire(location, expert)
    elif step == "undo":
        people.undo("panel", expert)
    elif (card := people.next("panel", expert)) is not None and step != "next":
        choice = random.Random(card.id).choice(["a", "b", "equal", "cannot say"])
        for _ in range(1 + (step == "again")):
            people.answer("panel", expert, card.id, choice)  # type: ignore[arg-type]


def _check(location: JournalLocation) -> None:
    """No question is with two people, and what is answered is what is done."""
    cards = sa.select(table_of_people).where(table_of_people.c.kind == "question")
    with reading(location) as db:
        rows = db.execute(cards).all()
        done = set(db.scalars(sa.select(questions.c.id).where(questions.c.state == "done")))
    held = [row.question for row in rows if row.state in ("leased", "answered")]
    assert len(held) == len(set(held))
    assert done == {row.question for row in rows if row.state == "answered"}


def test_twenty_people_at_once_answer_every_question_once(location: JournalLocation) -> None:
    """Two services with ten people each, in threads; undo and double clicks in between."""
    names = [f"p{number}" for number in range(20)]
    study = _at(location, study_of({**PANEL, "experts": names}, pairs=60))
    errors: list[BaseException] = []

    def work(people: People, expert: str) -> None:
        rng = random.Random(expert)
        try:
            while (card := people.next("panel", expert)) is not None:
                people.answer("panel", expert, card.id, "b", seconds=0.1)
                if rng.random() < 0.1:
                    people.answer("panel", expert, card.id, "b")
                if rng.random() < 0.1:
                    people.undo("panel", expert)
        except BaseException as error:  # shown below
            errors.append(error)

    space, plan = space_of(study), plan_of(study)
    prepare(location, study)
    with People(location, study, space, plan) as one, People(location, study, space, plan) as two:
        threads = [
            threading.Thread(target=work, args=((one, two)[place % 2], name))
            for place, name in enumerate(names)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        finish(one, "panel", *names)  # what somebody had while the others found nothing left
    frame = table(study, location.folder).frame
    assert len(frame) == 120
    assert not frame.duplicated(["pair", "order"]).any()


def _at(location: JournalLocation, study: Campaign) -> Campaign:
    return study.model_copy(update={"journal": location.address})


def test_asking_waits_for_people(tmp_path: Path) -> None:
    study = study_of(ADA, {"name": "expert", "backend": "simulated"})
    space, plan, notes = space_of(study), plan_of(study), Notes()
    location = JournalLocation(tmp_path)

    async def both() -> Any:
        asking = asyncio.create_task(ask(Study(study, space, plan, tmp_path), notes))
        while not notes.lines:
            await asyncio.sleep(0.01)
        with People(location, study, space, plan) as people:
            await asyncio.to_thread(finish, people, "ada", "ada")
        return await asking

    summary = asyncio.run(both())
    assert summary.complete
    assert summary.spent == 0.0
    assert [line for line in notes.lines if "llm-elicit serve" in line] == [
        "ada: waiting for 10 answers by ada on the pages of llm-elicit serve"
    ]
    assert len(table(study, tmp_path)) == 20


def test_asking_people_can_be_interrupted_and_resumed(tmp_path: Path) -> None:
    study = study_of(ADA)
    space, plan, notes = space_of(study), plan_of(study), Notes()

    async def stopped() -> Any:
        asking = asyncio.create_task(ask(Study(study, space, plan, tmp_path), notes))
        while not notes.lines:
            await asyncio.sleep(0.01)
        asking.cancel()
        return await asking

    assert asyncio.run(stopped()).interrupted
    with People(JournalLocation(tmp_path), study, space, plan) as people:
        finish(people, "ada", "ada")
    assert asyncio.run(ask(Study(study, space, plan, tmp_path))).complete


def test_an_undo_counts_as_a_change_of_the_answers(tmp_path: Path) -> None:
    """Tables that were written before it are written again, and the run still goes on."""
    location, counts = JournalLocation(tmp_path), []
    with opened(location, study_of(ADA)) as people:
        for choice in ("a", "b"):
            card = people.next("ada", "ada")
            assert card is not None
            people.answer("ada", "ada", card.id, choice)  # type: ignore[arg-type]
            counts.append(stored_answers(location))
            people.undo("ada", "ada")
            counts.append(stored_answers(location))
    assert counts == [1, 2, 3, 4]


def test_answers_to_additional_questions_count_as_changes_too(tmp_path: Path) -> None:
    """Otherwise the table of cards, which has them, would not be written again."""
    location = JournalLocation(tmp_path)
    with opened(location, study_of({**ADA, "attention": 0.5, "repeats": 1.0}, pairs=8)) as people:
        counts = [0]
        for _ in range(16):
            card = people.next("ada", "ada")
            assert card is not None
            people.answer("ada", "ada", card.id, "a")
            counts.append(stored_answers(location))
            people.undo("ada", "ada")
            counts.append(stored_answers(location))
            people.answer("ada", "ada", people.next("ada", "ada").id, "b")  # type: ignore[union-attr]
            counts.append(stored_answers(location))
    kinds = {row.kind for row in given_cards(location)}
    assert kinds == {"question", "repeat", "attention"}
    assert counts == sorted(set(counts))


def test_people_cost_nothing_and_their_questions_are_counted(tmp_path: Path) -> None:
    study = study_of(ADA)
    (one,) = estimate(study, space_of(study), plan_of(study))
    assert (one.model, one.requests, one.cost) == ("human", 10, 0.0)


def test_another_campaigns_journal_is_refused(tmp_path: Path) -> None:
    with opened(JournalLocation(tmp_path), study_of(ADA)):
        pass
    other = study_of(ADA, pairs=7)
    with pytest.raises(InputError, match="run of another campaign"):
        People(JournalLocation(tmp_path), other, other.load_space(), plan_of(other))


def test_experts_can_be_added_to_a_run(tmp_path: Path) -> None:
    with opened(JournalLocation(tmp_path), study_of(PANEL)) as people:
        people.next("panel", "ben")
    more = study_of({**PANEL, "experts": ["ben", "eve"], "attention": 0.1})
    with opened(JournalLocation(tmp_path), more) as people:
        assert people.next("panel", "eve") is not None


def test_experts_join_and_leave_while_the_run_continues(location: JournalLocation) -> None:
    study = study_of(PANEL, pairs=6)
    with opened(location, study) as people:
        card = people.next("panel", "ben")
        assert card is not None
        people.answer("panel", "ben", card.id, "a")
        held = people.next("panel", "ben")
        assert held is not None
        with pytest.raises(InputError, match="no expert 'eve'; it has ben, cleo, dan"):
            people.next("panel", "eve")
        people.change("panel", "eve")
        people.change("panel", "ben", "dan", removed=True)
        assert people.experts("panel") == ["cleo", "eve"]
        for call in (people.next, people.progress, people.undo, people.last):
            with pytest.raises(InputError, match="no expert 'ben'; it has cleo, eve"):
                call("panel", "ben")
        with pytest.raises(InputError, match="no expert 'ben'"):
            people.answer("panel", "ben", held.id, "a")
        assert len(finish(people, "panel", "cleo", "eve")) == 11  # with the card that ben held
        assert people.progress("panel", "eve").answered > 0
    with People(location, study, space_of(study), plan_of(study)) as again:
        assert again.experts("panel") == ["cleo", "eve"]
        again.change("panel", "ben")
        assert again.experts("panel") == ["ben", "cleo", "eve"]
        assert again.progress("panel", "ben").answered == 1


@pytest.mark.parametrize(
    ("names", "removed", "message"),
    [
        (["<b>"], False, r"judge 'panel'.*experts"),
        (["zoe", "x" * 81], False, "experts"),
        (["zoe"], True, "no expert 'zoe'; it has ben, cleo, dan"),
        (["ben", "cleo", "dan"], True, "no expert would be left; add another first"),
    ],
)
def test_a_wrong_change_of_experts_changes_nothing(
    tmp_path: Path, names: list[str], removed: bool, message: str
) -> None:
    with opened(JournalLocation(tmp_path), study_of(PANEL)) as people:
        with pytest.raises(InputError, match=message):
            people.change("panel", *names, removed=removed)
        assert people.experts("panel") == ["ben", "cleo", "dan"]
        with pytest.raises(InputError, match=r"campaign's people \(panel\)"):
            people.change("nobody", "eve")


def test_confidence_and_a_comment_follow_the_choice_and_change_no_answer(
    location: JournalLocation,
) -> None:
    study = study_of({**ADA, "repeats": 1.0, "attention": 1.0}, pairs=8)
    with opened(location, study) as people:
        assert people.last("ada", "ada") is None
        finish(people, "ada", "ada")
        answers = table(_at(location, study), location.folder).frame
        last = people.last("ada", "ada")
        assert last is not None
        assert (last.choice, last.confidence, last.comment) == ("a", None, "")
        people.remark("ada", "ada", last.id, confidence=0.5)
        people.remark("ada", "ada", last.id, comment="No such bird.\0")
        last = people.last("ada", "ada")
        assert last is not None
        assert (last.confidence, last.comment) == (0.5, "No such bird.\ufffd")
        for error, values in {
            "from 0 to 1": {"confidence": 2.0},
            "write at most 4,000": {"comment": "x" * 4_001},
            "not shown to ada": {"card": 10_000},
        }.items():
            with pytest.raises(InputError, match=error):
                people.remark("ada", "ada", **{"card": last.id, **values})  # type: ignore[arg-type]
    assert table(_at(location, study), location.folder).frame.equals(answers)
    with reading(location) as db:
        checks = cards.count_checks(db)["ada", "ada"]
        (comment,) = cards.comments(db, 10)
    kinds = Counter(row.kind for row in given_cards(location))
    assert (checks.repeats, checks.checks) == (kinds["repeat"], kinds["attention"])
    assert 0 < checks.passed < checks.checks
    assert checks.confidence == 0.5
    assert (comment.expert, comment.text) == ("ada", "No such bird.\ufffd")
    cards_of_run = people_cards(
        Study(_at(location, study), space_of(study), plan_of(study), location.folder)
    )
    assert cards_of_run["comment"].tolist().count("") == len(cards_of_run) - 1


def test_a_repeat_in_the_other_order_is_the_same_answer_if_the_letter_differs(
    tmp_path: Path,
) -> None:
    study, location = study_of({**ADA, "repeats": 1.0}, pairs=12), JournalLocation(tmp_path)
    with opened(location, study) as people:
        finish(people, "ada", "ada")
    rows = given_cards(location)
    forms = {row.question: row.form for row in rows if row.kind == "question"}
    repeats = [row.form == forms[row.question] for row in rows if row.kind == "repeat"]
    with reading(location) as db:
        checks = cards.count_checks(db)["ada", "ada"]
    assert 0 < sum(repeats) < len(repeats)
    assert (checks.same, checks.repeats) == (sum(repeats), len(repeats))
