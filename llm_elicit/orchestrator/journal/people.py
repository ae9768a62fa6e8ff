"""The cards of experts in the journal: leases, answers, and answers that were undone.

A card is one question on one expert's screen. Every function is called within a transaction that
begins with `lock_cards`, so that no two of them run at the same time for one judge. The unique
indexes of the table enforce two rules: a question is leased to one expert at a time, and an expert
has one open card at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import sqlalchemy as sa
from sqlalchemy import BigInteger, bindparam, case, func, select, update

from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.journal.questions import apply_each, is_open, open_questions
from llm_elicit.orchestrator.journal.schema import (
    ANSWERED,
    LEASED,
    PLANNED,
    QUESTION,
    Answer,
    Question,
    answers,
    clock,
    experts,
    now,
    people,
    questions,
    record_answer,
)
from llm_elicit.planning.pairs import Order

CardKind = Literal["question", "repeat", "attention"]
CardState = Literal["leased", "answered", "undone", "released"]

_PRIME = 2**31 - 1


@dataclass(frozen=True)
class CardRow:
    """A row of the table `people`.

    Attributes:
        id: the number of the row.
        judge, expert: the judge and the expert who has the card.
        kind: a question of the plan, a repeat of one, or an attention question.
        question: the row of `questions`; None for an attention question.
        pair, form: what is shown; `pair` is the number of an attention question.
        state: "leased" until it is answered; "undone" if the answer was undone; "released" if the
            question was given to someone else.
        choice: the expert's choice; for a leased card, the earlier choice that was undone.
        expected: the choice that an attention question asks for.
        shown: when the card was last shown, in seconds of the database's clock.
        confidence, comment: what the expert said after the choice; None for nothing.
    """

    id: int
    judge: str
    expert: str
    kind: CardKind
    question: int | None
    pair: int
    form: Order
    state: CardState
    choice: str | None
    expected: str | None
    shown: float
    confidence: float | None
    comment: str | None


@dataclass(frozen=True)
class Shuffle:
    """One expert's order of the questions, and which order of a pair comes first.

    Both are computed by the database, from the values of two random polynomials of degree two
    over a prime field. Every pair is asked in one order before any is asked in the other, and in
    all orders and replicates before the next replicate.

    Attributes:
        numbers: the coefficients of both polynomials.
    """

    numbers: tuple[int, ...]

    @classmethod
    def of(cls, *key: object) -> Shuffle:
        """Return the order for a key, such as the seed, the judge and the expert."""
        digest = hashlib.sha256(repr(key).encode()).digest()
        parts = (digest[4 * i : 4 * i + 4] for i in range(6))
        return cls(tuple(1 + int.from_bytes(part) % (_PRIME - 1) for part in parts))


def _polynomial(name: str) -> sa.ColumnElement[int]:
    """Return a polynomial of a question's pair, whose coefficients are parameters."""
    a, b, c = (bindparam(f"{name}{degree}", type_=BigInteger) for degree in (2, 1, 0))
    pair = questions.c.pair
    return ((pair * pair) % _PRIME * a + pair * b + c) % _PRIME


_LEASED = (people.c.state == LEASED) & (people.c.expires > clock())
_LIVE = (people.c.state == ANSWERED) | _LEASED
_FREE = ~(
    select(people.c.id)
    .where(people.c.question == questions.c.id, people.c.kind == QUESTION, _LEASED)
    .exists()
)
_NEXT_QUESTION = (
    select(questions.c.id, questions.c.pair, questions.c.form)
    .where(is_open(bindparam("of")), questions.c.state == PLANNED)
    .where(questions.c.pair < bindparam("end"), _FREE)
    .order_by(questions.c.replicate)
    .order_by((case((questions.c.form == "ba", 1), else_=0) + _polynomial("form")) % 2)
    .order_by(_polynomial("turn"), questions.c.id)
    .limit(1)
)
"""An expert's next question; built once, which takes longer than to run it."""

_COLUMNS = [people.c[field.name] for field in fields(CardRow)]


@dataclass(frozen=True)
class Expert:
    """The expert who asks for a card.

    Attributes:
        judge, name: the judge and the expert.
        shuffle: the expert's order of the questions.
        experts: the number of the judge's experts.
        spread: whether replicates of a question go to different experts.
    """

    judge: str
    name: str
    shuffle: Shuffle
    experts: int
    spread: bool

    @property
    def cards(self) -> sa.ColumnElement[bool]:
        """The SQL condition that selects the expert's cards."""
        return (people.c.judge == self.judge) & (people.c.expert == self.name)

    def fewest(self, *conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        """Return whether this expert had a question at most as often as the average expert.

        Args:
            conditions: select which of this expert's cards count; all by default.
        """
        return _count_cards(people.c.expert == self.name, *conditions) * self.experts <= (
            _count_cards()
        )


def _count_cards(*conditions: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
    """Return the number of answered or leased cards of a question, in all its replicates."""
    count = select(func.count()).where(
        people.c.judge == questions.c.judge,
        people.c.pair == questions.c.pair,
        people.c.form == questions.c.form,
        people.c.kind == QUESTION,
        _LIVE,
        *conditions,
    )
    return count.correlate(questions).scalar_subquery()


def lock_cards(db: sa.Connection, location: JournalLocation, judge: str) -> None:
    """Wait until no other transaction works on a judge's cards; SQLite allows only one anyway."""
    if location.shared:
        name = f"people of {judge} in {location.schema}"
        db.execute(select(func.pg_advisory_xact_lock(func.hashtext(name))))


def experts_of(db: sa.Connection, judge: str, planned: Sequence[str]) -> list[str]:
    """Return a judge's experts: those of its campaign, and those added, without those removed."""
    query = select(experts.c.expert, experts.c.removed).where(experts.c.judge == judge)
    changes = {row.expert: bool(row.removed) for row in db.execute(query)}
    return [name for name in dict.fromkeys([*planned, *changes]) if not changes.get(name)]


def change_expert(db: sa.Connection, judge: str, expert: str, *, removed: bool) -> None:
    """Add an expert to a judge or remove one, who keeps no open card; answers stay."""
    row = (experts.c.judge == judge) & (experts.c.expert == expert)
    if not db.execute(update(experts).where(row).values(removed=int(removed))).rowcount:
        db.execute(experts.insert().values(judge=judge, expert=expert, removed=int(removed)))
    if removed:
        own = (people.c.judge == judge) & (people.c.expert == expert) & (people.c.state == LEASED)
        db.execute(update(people).where(own).values(state="released"))


def read_card(db: sa.Connection, number: int) -> CardRow | None:
    """Return a card by its number."""
    return _newest_card(db, people.c.id == number)


def _newest_card(db: sa.Connection, *conditions: sa.ColumnElement[bool]) -> CardRow | None:
    """Return the newest card that meets the conditions; None if there is none."""
    query = select(*_COLUMNS).where(*conditions).order_by(people.c.id.desc()).limit(1)
    row = db.execute(query).one_or_none()
    return None if row is None else CardRow(**row._mapping)


def held_card(db: sa.Connection, expert: Expert) -> CardRow | None:
    """Return the expert's open card, if any; only this card can be answered."""
    return _newest_card(db, expert.cards, people.c.state == LEASED)


def question_of(db: sa.Connection, row: CardRow) -> Question:
    """Return the planned question of a card, which must not be an attention question."""
    assert row.question is not None
    replicate = select(questions.c.replicate).where(questions.c.id == row.question)
    number = int(db.execute(replicate).scalar_one())
    return Question(row.question, row.pair, row.form, number, 0, row.judge)


def _update(row: CardRow) -> sa.Update:
    return update(people).where(people.c.id == row.id)


def renew(db: sa.Connection, row: CardRow, lease: float) -> None:
    """Renew a card's lease as it is shown again."""
    db.execute(_update(row).values(expires=clock() + lease, shown=clock()))


def release(db: sa.Connection, row: CardRow) -> None:
    """Take a card back without an answer."""
    db.execute(_update(row).values(state="released"))


def next_question(db: sa.Connection, expert: Expert, end: int) -> tuple[int, int, Order] | None:
    """Return the row, the pair and the order of an expert's next question.

    Args:
        db: the journal.
        expert: the expert.
        end: the number that follows the last pair of the plan.
    """
    names = (f"{name}{degree}" for name in ("turn", "form") for degree in (2, 1, 0))
    coefficients = dict(zip(names, expert.shuffle.numbers, strict=True))
    query = _NEXT_QUESTION.where(expert.fewest()) if expert.spread else _NEXT_QUESTION
    row = db.execute(query, {**coefficients, "of": expert.judge, "end": end}).one_or_none()
    return None if row is None else (row.id, row.pair, row.form)


def lease(
    db: sa.Connection,
    expert: Expert,
    seconds: float,
    kind: CardKind,
    content: tuple[int | None, int, Order],
    *,
    expected: str | None = None,
    choice: str | None = None,
) -> CardRow:
    """Give an expert a new card, and return it; an expired lease on its question is released.

    Args:
        db: the journal.
        expert: the expert.
        seconds: the lease.
        kind: the kind of card.
        content: the row of the question, the pair and the order.
        expected: the choice that an attention question asks for.
        choice: the earlier choice that was undone.
    """
    question, pair, form = content
    if kind == "question":
        expired = (people.c.kind == QUESTION) & (people.c.state == LEASED)
        of_question = update(people).where(people.c.question == question, expired)
        db.execute(of_question.values(state="released"))
    card = people.insert().values(
        judge=expert.judge, expert=expert.name, kind=kind, question=question, pair=pair,
        form=form, state=LEASED, expires=clock() + seconds, shown=clock(),
        choice=choice, expected=expected,
    )  # fmt: skip
    return CardRow(**db.execute(card.returning(*_COLUMNS)).one()._mapping)


def answered_cards(db: sa.Connection, expert: Expert) -> dict[CardKind, int]:
    """Return how many cards of each kind an expert has answered."""
    counts = select(people.c.kind, func.count()).where(expert.cards, people.c.state == ANSWERED)
    return {row[0]: int(row[1]) for row in db.execute(counts.group_by(people.c.kind))}


def repeatable(db: sa.Connection, expert: Expert, gap: int) -> list[CardRow]:
    """Return the questions that an expert may be asked again, in the order of their answers.

    The last `gap` answered questions, and those that were repeated already, are left out.
    """
    query = select(*_COLUMNS).where(expert.cards, people.c.state == ANSWERED).order_by(people.c.id)
    cards = [CardRow(**row._mapping) for row in db.execute(query)]
    repeated = {card.question for card in cards if card.kind == "repeat"}
    planned = [card for card in cards if card.kind == "question"]
    earlier = planned[: max(len(planned) - gap, 0)]
    return [card for card in earlier if card.question not in repeated]


def settle(
    db: sa.Connection,
    row: CardRow,
    choice: str,
    seconds: float,
    *,
    confidence: float | None = None,
    answer: Answer | None = None,
) -> bool:
    """Record the answer to a card.

    Args:
        db: the journal.
        row: the card, which is leased.
        choice: the expert's choice.
        seconds: the time that the expert took.
        confidence: how sure the expert is, 0 to 1.
        answer: the answer of the journal, for a question of the plan.

    Returns:
        Whether the answer was recorded; False if the question has another answer already.
    """
    if answer is not None:
        assert row.question is not None
        if apply_each(db, [record_answer(row.question, answer)], row.expert):
            return False
    settled = _update(row).where(people.c.state == LEASED)
    values = {"choice": choice, "seconds": seconds, "confidence": confidence, "answered_at": now()}
    return bool(db.execute(settled.values(state=ANSWERED, **values)).rowcount)


@dataclass(frozen=True)
class ExpertCounts:
    """The repeats and attention questions of an expert, and the stated confidence.

    Attributes:
        repeats, same: repeats with a choice at both times, and those with the same choice.
        checks, passed: attention questions, and those answered as they asked.
        confidence: mean of the stated confidence, 0 to 1; None if none was stated.
    """

    repeats: int
    same: int
    checks: int
    passed: int
    confidence: float | None


def count_checks(db: sa.Connection) -> dict[tuple[str, str], ExpertCounts]:
    """Return the counts of each judge and expert with an answer."""
    c, first = people.c, people.alias().c
    swapped = case({"a": "b", "b": "a"}, value=first.choice, else_=first.choice)
    earlier = case((first.form == c.form, first.choice), else_=swapped)
    chosen = c.choice.in_(("a", "b", "equal")) & first.choice.in_(("a", "b", "equal"))
    sums = [
        func.sum(case((condition, 1), else_=0))
        for condition in (
            chosen, chosen & (earlier == c.choice), c.kind == "attention",
            (c.kind == "attention") & (c.choice == c.expected),
        )
    ]  # fmt: skip
    same_question = (first.question == c.question) & (first.expert == c.expert)
    repeated = (c.kind == "repeat") & (first.kind == QUESTION) & (first.state == ANSWERED)
    query = (
        select(c.judge, c.expert, *sums, func.avg(c.confidence))
        .outerjoin_from(people, first.judge.table, same_question & repeated)
        .where(c.state == ANSWERED)
        .group_by(c.judge, c.expert)
    )
    return {(judge, expert): ExpertCounts(*counts) for judge, expert, *counts in db.execute(query)}


@dataclass(frozen=True)
class Comment:
    """A comment of an expert on a question.

    Attributes:
        judge, expert: who wrote it.
        kind: the kind of the card.
        pair: the number of the pair.
        choice: what the expert chose.
        text: the comment.
        at: the UTC time of the answer, ISO 8601.
    """

    judge: str
    expert: str
    kind: CardKind
    pair: int
    choice: str
    text: str
    at: str


def comments(db: sa.Connection, limit: int) -> list[Comment]:
    """Return the comments on answered cards, the last first."""
    c = people.c
    query = select(c.judge, c.expert, c.kind, c.pair, c.choice, c.comment, c.answered_at)
    query = query.where(c.state == ANSWERED, c.comment != "").order_by(c.id.desc()).limit(limit)
    return [Comment(*row) for row in db.execute(query)]


def choices_about_their_pairs(db: sa.Connection) -> list[sa.Row[tuple[str, str, int, float]]]:
    """Return all judges' choices about the pairs that people have answered.

    Each is the judge, the model or the expert that answered, the pair, and P(point a is chosen).
    """
    q = questions.c
    pairs = select(people.c.pair).where(people.c.state == ANSWERED, people.c.kind == QUESTION)
    query = (
        select(q.judge, answers.c.model_answered, q.pair, answers.c.probability)
        .join_from(questions, answers, q.id == answers.c.question)
        .where(q.pair.in_(pairs), q.form.in_(("ab", "ba")), answers.c.probability.is_not(None))
    )
    return list(db.execute(query))


def remark(db: sa.Connection, row: CardRow, confidence: float | None, comment: str | None) -> None:
    """Record what an expert says about an answered card; None leaves what was said before."""
    stated = {"confidence": confidence, "comment": comment}
    values = {name: value for name, value in stated.items() if value is not None}
    if values:
        db.execute(_update(row).values(**values))


def last_answered(db: sa.Connection, expert: Expert) -> CardRow | None:
    """Return the card that an expert answered last."""
    return _newest_card(db, expert.cards, people.c.state == ANSWERED)


def count_waiting(db: sa.Connection, judge: str, pairs: range) -> int:
    """Return how many questions about some pairs wait for an answer of a judge."""
    return open_questions(db, judge, questions.c.pair.between(pairs.start, pairs[-1]))


def reopen(db: sa.Connection, row: CardRow) -> None:
    """Undo the answer to a card: delete it from the table of answers, and keep it on the card."""
    if row.kind == "question":
        db.execute(answers.delete().where(answers.c.question == row.question))
        open_again = update(questions).where(questions.c.id == row.question)
        db.execute(open_again.values(state="planned"))
    db.execute(_update(row).values(state="undone"))


def count_left(db: sa.Connection, expert: Expert, end: int) -> int:
    """Return the number of open questions that this expert may answer."""
    answerable = is_open(expert.judge) & (questions.c.pair < end)
    count = select(func.count()).where(answerable)
    if expert.spread:
        distinct = select(questions.c.pair, questions.c.form).distinct()
        fewest = expert.fewest(people.c.state == ANSWERED)  # includes the expert's open card
        count = select(func.count()).select_from(distinct.where(answerable, fewest).subquery())
    return int(db.execute(count).scalar_one())
