"""People as judges: choose the next card of an expert, and record the answer.

Questions to experts and their answers are rows of the journal, like those of models, so fits and
audits treat both alike. Questions are leased: no two experts have the same question at the same
time, and a card that is not answered in time goes to another expert.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, Self, TypeVar, cast

import numpy as np
import sqlalchemy as sa
from sqlalchemy import select

from llm_elicit._util.settings import StrictModel, validate
from llm_elicit.config.campaign import Campaign, identity_of
from llm_elicit.config.judges import HumanJudge
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal import people as cards
from llm_elicit.orchestrator.journal.connection import (
    JournalLocation,
    check_identity,
    prepare_schema,
    retry_transient,
)
from llm_elicit.orchestrator.journal.people import CardKind, CardRow, Expert, Shuffle
from llm_elicit.orchestrator.journal.questions import planned_rounds
from llm_elicit.orchestrator.journal.schema import Answer, clock, now, storable, with_digest
from llm_elicit.planning.pairs import Order, Plan, Query
from llm_elicit.planning.rounds import ALL_JUDGES, schedule_of, with_rounds
from llm_elicit.questions.presentation import Presentation, presentations_of
from llm_elicit.spaces.features import FeatureSpace, Floats

Choice = Literal["a", "b", "equal", "cannot say"]
"""An expert's choice: the first option shown, the second, or neither."""

_VERDICTS: dict[Choice, tuple[str, float | None]] = {
    "a": ("A", 1.0), "b": ("B", 0.0), "equal": ("tie", 0.5), "cannot say": ("refusal", None),
}  # fmt: skip
"""The verdict of each choice, as of models, and P(first shown)."""

HUMAN = "human"
"""The endpoint and the model asked in the answers of people."""


class Card(StrictModel):
    """A question on an expert's screen.

    Attributes:
        id: its number, with which it is answered.
        judge, expert: the judge and the expert who has the card.
        number: 1 for the expert's first card, and so on.
        title, subject, setting: those of the feature space.
        a, b: labels and worded values of the two options.
        instruction: the sentence that says which option to choose; empty unless the card is an
            attention question.
        choice: the expert's choice of an answered card; else the earlier choice that was undone;
            None without one.
        confidence, comment: what the expert said after the choice; None and empty without.
        question: the question in one line; empty for the usual question.
        labels: the names of the two options.
    """

    id: int
    judge: str
    expert: str
    number: int
    title: str
    subject: str
    setting: str
    a: tuple[tuple[str, str], ...]
    b: tuple[tuple[str, str], ...]
    instruction: str = ""
    choice: Choice | None = None
    confidence: float | None = None
    comment: str = ""
    question: str = ""
    labels: tuple[str, str] = ("A", "B")


T = TypeVar("T")

_ORDERS: tuple[Order, ...] = ("ab", "ba")

_GAP = 10
"""Questions between a question and its repeat, if there are enough."""

MAX_COMMENT = 4_000
"""Largest number of characters of a comment."""

_MAX_OUTAGE = 5.0
"""Seconds that a journal's server may be unreachable."""


class PeopleProgress(StrictModel):
    """The progress of an expert.

    Attributes:
        answered: questions that the expert has answered, without repeats and attention questions.
        wanted: answered questions at the end, if nobody else answers those that are left.
        left: unanswered questions that this expert may answer; other experts may answer them first.
        additional: repeats and attention questions that the expert has answered.
    """

    answered: int
    wanted: int
    left: int
    additional: int


def experts_by_judge(location: JournalLocation, campaign: Campaign) -> dict[str, list[str]]:
    """Return the experts of each judge with backend human, with those added and without removed.

    Raises:
        JournalError: the journal cannot be read.
    """
    with location.reading() as db:
        return {
            name: list(judge.experts) if db is None else cards.experts_of(db, name, judge.experts)
            for name, judge in campaign.people.items()
        }


class People:
    """Gives the questions of a run to experts and records their answers.

    All methods are short, may be called from several threads, and have committed when they return.
    Several processes may have one journal on a server. The caller checks whether the run is asking
    at the moment.

    Args:
        location: the location of the run's journal.
        campaign, space, plan: the campaign, its feature space and the planned pairs.
        lease: seconds for which a card is reserved for the expert who sees it.

    Raises:
        InputError: the journal cannot be written, or holds the run of another campaign.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from llm_elicit.orchestrator.journal.store import Journal
        >>> from llm_elicit.planning.pairs import make_plan
        >>> campaign = Campaign.model_validate({
        ...     "name": "try", "space": "penguins", "design": {"pairs": 5},
        ...     "judges": [{"name": "ada", "backend": "human"}]})
        >>> space = campaign.load_space()
        >>> plan = make_plan(space, campaign.design, campaign.seed)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     location = JournalLocation(Path(folder))
        ...     with People(location, campaign, space, plan) as people:
        ...         journal = Journal(location, identity_of(campaign, space))
        ...         _ = journal.prepare(["ada"], plan)  # as `llm-elicit ask` does
        ...         card = people.next("ada", "ada")
        ...         people.answer("ada", "ada", card.id, "a")
        ...         print(people.progress("ada", "ada"))
        ...         journal.close()
        answered=1 wanted=10 left=9 additional=0
    """

    def __init__(
        self,
        location: JournalLocation,
        campaign: Campaign,
        space: FeatureSpace,
        plan: Plan,
        *,
        lease: float = 300.0,
    ) -> None:
        self._location = location
        self._campaign = campaign
        self._space = space
        self._plan = plan
        self._lease = lease
        self._presentations = presentations_of(campaign.design, space, campaign.seed)
        self._judges = campaign.people
        self._lock = threading.Lock()
        location.folder.mkdir(parents=True, exist_ok=True)
        with location.guarded():
            self._db = location.writable().connect()
            try:
                with self._db.begin():
                    prepare_schema(self._db, location)
                    check_identity(self._db, identity_of(campaign, space), location.folder)
            except BaseException:
                self._db.close()
                raise

    def next(self, judge: str, expert: str) -> Card | None:
        """Return an expert's current card, which stays the same until it is answered.

        Returns:
            The card; None if there is no question now that this expert may answer.

        Raises:
            InputError: there is no such judge or expert, or the journal cannot be written.
        """
        card = self._transact(judge, expert, self._next)
        if card is None and self._extend_plan():
            card = self._transact(judge, expert, self._next)
        return card

    def _next(self, db: sa.Connection, person: Expert) -> Card | None:
        row = cards.held_card(db, person)
        if row is not None:
            cards.renew(db, row, self._lease)
            return self._card(row, person, cards.answered_cards(db, person))
        question = cards.next_question(db, person, self._plan.end(person.judge))
        if question is None:
            return None
        counts = cards.answered_cards(db, person)
        row = self._additional(db, person, counts)
        return self._card(
            row or cards.lease(db, person, self._lease, "question", question), person, counts
        )

    def _additional(
        self, db: sa.Connection, person: Expert, counts: dict[CardKind, int]
    ) -> CardRow | None:
        """Return an attention question or a repeat if one is due, else None."""
        rng = random.Random(repr((person.shuffle, counts)))
        number, settings = counts.get("attention", 0), self._judges[person.judge]
        if self._is_due(settings.attention, "attention", person, counts):
            content, expected = (None, number, rng.choice(_ORDERS)), rng.choice(["a", "b"])
            return cards.lease(db, person, self._lease, "attention", content, expected=expected)
        if self._is_due(settings.repeats, "repeat", person, counts):
            share = self._plan.count(person.judge) // person.experts
            candidates = cards.repeatable(db, person, max(min(_GAP, share // 3), 1))
            if candidates:
                chosen = rng.choice(candidates)
                order = rng.choice(self._plan.orders)
                repeat = (chosen.question, chosen.pair, order)
                return cards.lease(db, person, self._lease, "repeat", repeat)
        return None

    @staticmethod
    def _is_due(share: float, kind: CardKind, person: Expert, counts: dict[CardKind, int]) -> bool:
        """Return whether another additional question is due, after a random start."""
        start = random.Random(repr((person.shuffle, kind))).random()
        return counts.get(kind, 0) < math.floor(share * counts.get("question", 0) + start)

    def answer(
        self,
        judge: str,
        expert: str,
        card: int,
        choice: Choice,
        *,
        confidence: float | None = None,
        seconds: float | None = None,
    ) -> None:
        """Record the answer to a card; recording the same answer again changes nothing.

        Args:
            judge, expert: the judge, and the expert who answers.
            card: the card's number.
            choice: what is chosen: "a", "b", "equal" or "cannot say".
            confidence: how sure the expert is, 0 to 1.
            seconds: the time that the expert took; since the card was last shown, by default.

        Raises:
            InputError: the card is not this expert's, or is settled otherwise; a value is not
                allowed; or the journal cannot be written.
        """
        if choice not in _VERDICTS:
            raise InputError(f"choice {choice!r}: choose one of {', '.join(_VERDICTS)}")
        _check_confidence(confidence)
        if seconds is not None and not 0.0 <= seconds < math.inf:
            raise InputError(f"seconds {seconds}: give a number from 0, or none")
        late = (
            f"card {card}: it was not answered in time and has been given to someone else; answer "
            "the card shown now"
        )

        def work(db: sa.Connection, person: Expert) -> None:
            row = _own_card(db, person, card)
            if row.state == "released":
                raise InputError(late)
            if row.state == "undone":
                raise InputError(f"card {card}: its answer was undone; answer the card shown now")
            if row.state == "answered" and row.choice != choice:
                raise InputError(
                    f"card {card}: already answered with {row.choice!r}; undo it to change it"
                )
            if row.state == "answered":
                return
            duration = seconds
            if duration is None:
                duration = max(float(db.execute(select(clock())).scalar_one()) - row.shown, 0.0)
            is_question = row.kind == "question"
            answer = self._answer(db, row, person, choice, duration) if is_question else None
            if not cards.settle(db, row, choice, duration, confidence=confidence, answer=answer):
                raise InputError(late)

        self._transact(judge, expert, work)

    def remark(
        self,
        judge: str,
        expert: str,
        card: int,
        *,
        confidence: float | None = None,
        comment: str | None = None,
    ) -> None:
        """Record what an expert says about an answer, which no fit reads.

        Args:
            judge, expert: the judge, and the expert who answered.
            card: the number of a card that the expert has answered.
            confidence: how sure the expert is, 0 to 1; None leaves it as it was.
            comment: a comment on the question; None leaves it as it was.

        Raises:
            InputError: the card has no answer of this expert, a value is not allowed, or the
                journal cannot be written.
        """
        _check_confidence(confidence)
        if comment is not None and len(comment) > MAX_COMMENT:
            raise InputError(f"comment: {len(comment):,} characters; write at most {MAX_COMMENT:,}")

        def work(db: sa.Connection, person: Expert) -> None:
            row = _own_card(db, person, card)
            if row.state != "answered":
                raise InputError(f"card {card}: it has no answer; answer the card shown now")
            cards.remark(db, row, confidence, None if comment is None else storable(comment))

        self._transact(judge, expert, work)

    def last(self, judge: str, expert: str) -> Card | None:
        """Return the card that an expert answered last; None before the first answer.

        Raises:
            InputError: there is no such judge or expert, or the journal cannot be read.
        """

        def work(db: sa.Connection, person: Expert) -> Card | None:
            row = cards.last_answered(db, person)
            return None if row is None else self._card(row, person, {})

        return self._transact(judge, expert, work)

    def undo(self, judge: str, expert: str) -> Card | None:
        """Undo the expert's last answer, and return its card for a new answer.

        Returns:
            None if there is no answer, or if all questions of its round are answered: beliefs may
            have been fitted to it.

        Raises:
            InputError: there is no such judge or expert, or the journal cannot be written.
        """

        def work(db: sa.Connection, person: Expert) -> Card | None:
            last = cards.last_answered(db, person)
            if last is None:
                return None
            if last.kind == "question":
                rounds = self._campaign.design.rounds
                name = ALL_JUDGES if rounds is not None and rounds.shared else judge
                spans = schedule_of(name, self._campaign).pairs
                pairs = next(span for span in spans if last.pair in span)
                if not cards.count_waiting(db, judge, pairs):
                    return None
            current = cards.held_card(db, person)
            if current is not None:
                cards.release(db, current)
            cards.reopen(db, last)
            content = (last.question, last.pair, last.form)
            row = cards.lease(
                db,
                person,
                self._lease,
                last.kind,
                content,
                expected=last.expected,
                choice=last.choice,
            )
            return self._card(row, person, cards.answered_cards(db, person))

        return self._transact(judge, expert, work, again=False)

    def progress(self, judge: str, expert: str) -> PeopleProgress:
        """Return the progress of an expert.

        Raises:
            InputError: there is no such judge or expert, or the journal cannot be read.
        """

        def work(db: sa.Connection, person: Expert) -> PeopleProgress:
            counts = cards.answered_cards(db, person)
            done = counts.pop("question", 0)
            remaining = cards.count_left(db, person, self._plan.end(judge))
            additional = sum(counts.values())
            return PeopleProgress(
                answered=done, wanted=done + remaining, left=remaining, additional=additional
            )

        return self._transact(judge, expert, work)

    def experts(self, judge: str) -> list[str]:
        """Return the experts of a judge, those added included and those removed left out.

        Raises:
            InputError: there is no such judge, or the journal cannot be read.
        """
        planned = self._planned(judge)
        with self._lock, self._location.guarded(), self._db.begin():
            return cards.experts_of(self._db, judge, planned)

    def change(self, judge: str, *experts: str, removed: bool = False) -> None:
        """Add experts to a judge, or remove them; their answers stay, and a fit reads them.

        Raises:
            InputError: there is no such judge or expert, a name is not allowed, nobody would be
                left, or the journal cannot be written.
        """
        planned = self._planned(judge)

        with self._lock, self._location.guarded(), self._db.begin():
            cards.lock_cards(self._db, self._location, judge)
            present = cards.experts_of(self._db, judge, planned)
            for expert in experts:
                if removed:
                    _check_expert(judge, expert, present)
                cards.change_expert(self._db, judge, expert, removed=removed)
            names = cards.experts_of(self._db, judge, planned)
            if not names:
                raise InputError(f"judge {judge!r}: no expert would be left; add another first")
            # The rules of the settings: names, and how many there may be.
            settings = {"name": judge, "backend": HUMAN, "experts": names}
            validate(HumanJudge, settings, f"judge {judge!r}")

    def _planned(self, judge: str) -> tuple[str, ...]:
        """Return the experts of a judge in the campaign.

        Raises:
            InputError: there is no such judge.
        """
        settings = self._judges.get(judge)
        if settings is None:
            names = ", ".join(self._judges) or "none"
            raise InputError(f"judge {judge!r}: not among the campaign's people ({names})")
        return settings.experts

    def _expert(self, db: sa.Connection, judge: str, expert: str) -> Expert:
        """Return an expert with the order of their questions.

        Raises:
            InputError: there is no such expert.
        """
        names = cards.experts_of(db, judge, self._planned(judge))
        _check_expert(judge, expert, names)
        shuffle, spread = Shuffle.of(self._campaign.seed, judge, expert), self._plan.replicates > 1
        return Expert(judge, expert, shuffle, len(names), len(names) > 1 and spread)

    def _card(self, row: CardRow, person: Expert, counts: dict[CardKind, int]) -> Card:
        """Return a card as the expert sees it."""
        space, points, presentation = (
            self._space,
            self._points_of(row, person),
            self._presentation(row),
        )
        labels = dict(zip("ab", presentation.options, strict=True))
        expected = "" if row.expected is None else labels[row.expected]
        return Card(
            id=row.id, judge=row.judge, expert=row.expert, number=sum(counts.values()) + 1,
            title=space.title, subject=space.subject, setting=space.setting,
            a=tuple(presentation.word(points[0])), b=tuple(presentation.word(points[1])),
            instruction=expected and f"This card checks attention: choose {expected}.",
            choice=cast("Choice | None", row.choice), confidence=row.confidence,
            comment=row.comment or "", question=presentation.template.question,
            labels=presentation.options,
        )  # fmt: skip

    def _points_of(self, row: CardRow, person: Expert) -> tuple[Floats, Floats]:
        """Return the points of a card, A first."""
        if row.kind == "attention":
            rng = np.random.default_rng([*person.shuffle.numbers, row.pair])
            first, second = self._space.sample(2, rng)
            return first, second
        if row.pair >= self._plan.end(row.judge):
            self._extend_plan()  # of a round that another process knows already
        return self._plan.points_in_order(Query(row.pair, row.form, 0))

    def _presentation(self, row: CardRow) -> Presentation:
        """Return the presentation of a card; attention questions have the first one."""
        pair = 0 if row.kind == "attention" else row.pair
        return self._presentations[self._plan.presentation(pair)]

    def _extend_plan(self) -> bool:
        """Read rounds that were planned meanwhile, and return whether there are any."""
        if self._campaign.design.rounds is None:
            return False
        plan, fixed = self._plan, slice(self._plan.fixed)
        first = replace(plan, a=plan.a[fixed], b=plan.b[fixed], unshared={})
        extended = with_rounds(first, self._campaign, self._space, planned_rounds(self._location))
        self._plan = extended
        return len(extended) > len(plan)

    def _answer(
        self, db: sa.Connection, row: CardRow, person: Expert, choice: Choice, seconds: float
    ) -> Answer:
        """Return an answer as a row of the journal."""
        points = self._points_of(row, person)
        presentation = self._presentation(row)
        prompt = presentation.render(*points)
        question = cards.question_of(db, row)
        verdict, first = _VERDICTS[choice]
        if first is not None and question.order == "ba":
            first = 1.0 - first
        answer = Answer(
            template=presentation.template.id, prompt_hash=prompt.hash, endpoint=HUMAN,
            settings="{}",
            model_asked=HUMAN, model_answered=row.expert, reply=choice, finish="stop",
            verdict=verdict, first=None, letter_mass=None, probability=first, prompt_tokens=0,
            completion_tokens=0, cached_tokens=0, cost=0.0, latency=seconds, cached=False,
            asked_at=now(), presentation=presentation.label,
        )  # fmt: skip
        return with_digest(question, answer)

    def _transact(
        self,
        judge: str,
        expert: str,
        work: Callable[[sa.Connection, Expert], T],
        *,
        again: bool = True,
    ) -> T:
        """Return the result of `work` for an expert in a transaction; if `again`, it is retried."""
        self._planned(judge)

        def attempt() -> T:
            with self._db.begin():
                cards.lock_cards(self._db, self._location, judge)
                return work(self._db, self._expert(self._db, judge, expert))

        with self._lock, self._location.guarded():
            if again and self._location.shared:
                return retry_transient(attempt, _MAX_OUTAGE)
            return attempt()

    def close(self) -> None:
        """Close the journal."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _check_expert(judge: str, expert: str, names: Sequence[str]) -> None:
    if expert not in names:
        raise InputError(f"judge {judge!r}: no expert {expert!r}; it has {', '.join(names)}")


def _check_confidence(confidence: float | None) -> None:
    if confidence is not None and not 0.0 <= confidence <= 1.0:
        raise InputError(f"confidence {confidence}: give a number from 0 to 1, or none")


def _own_card(db: sa.Connection, person: Expert, number: int) -> CardRow:
    """Return a card of an expert.

    Raises:
        InputError: it is not one of theirs.
    """
    row = cards.read_card(db, number)
    if row is None or (row.judge, row.expert) != (person.judge, person.name):
        raise InputError(f"card {number}: not shown to {person.name}; answer the card shown now")
    return row
