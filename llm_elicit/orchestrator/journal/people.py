"""The cards that people are given, in the journal: leases, answers, and answers that were undone.

A card is one question on one expert's screen. All functions are called within a transaction that
`alone` has begun with, so that no two of them run at the same time for one judge. The unique
indexes of the table hold the two rules as well: a question is with one person, and a person has one
card.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import BigInteger, bindparam, case, func, select, update

from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.journal.questions import apply_each
from llm_elicit.orchestrator.journal.schema import (
    ANSWERED,
    LEASED,
    PLANNED,
    QUESTION,
    Answer,
    Question,
    answered,
    answers,
    clock,
    now,
    people,
    questions,
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
        judge, expert: who has the card.
        kind: a question of the plan, a repeat of one, or an attention question.
        question: the row of `questions`; None for an attention question.
        pair, presentation: what is shown; `pair` is the number of an attention question.
        state: "leased" until it is answered; "undone" if the answer was undone; "released" if the
            question was given to someone else.
        choice: what was chosen; for a leased card, what had been chosen before it was undone.
        expected: what an attention question asks to choose.
        shown: when it was last shown, in seconds of the database's clock.
    """

    id: int
    judge: str
    expert: str
    kind: CardKind
    question: int | None
    pair: int
    presentation: Order
    state: CardState
    choice: str | None
    expected: str | None
    shown: float


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

    def parameters(self) -> dict[str, int]:
        """Return the parameters of the query `_NEXT`."""
        return {f"number_{place}": number for place, number in enumerate(self.numbers)}


def _polynomial(first: int) -> sa.ColumnElement[int]:
    a, b, c = (bindparam(f"number_{first + i}", type_=BigInteger) for i in range(3))
    pair = questions.c.pair
    return ((pair * pair) % _PRIME * a + pair * b + c) % _PRIME


_LIVE = (people.c.state == ANSWERED) | ((people.c.state == LEASED) & (people.c.expires > clock()))
_HERE = (people.c.judge == bindparam("of_judge")) & (people.c.expert == bindparam("of_expert"))

_COLUMNS = [people.c[field.name] for field in fields(CardRow)]
_ROW = select(*_COLUMNS)

_CARD = _ROW.where(people.c.id == bindparam("card"))
_HELD = _ROW.where(_HERE, people.c.state == LEASED)
_LATEST = _ROW.where(_HERE, people.c.state == ANSWERED).order_by(people.c.id.desc()).limit(1)
_RENEW = (
    update(people)
    .where(people.c.id == bindparam("card"))
    .values(expires=clock() + bindparam("lease"), shown=clock())
)
_RELEASE = (
    update(people)
    .where(
        people.c.question == bindparam("of"), people.c.kind == QUESTION, people.c.state == LEASED
    )
    .values(state="released")
)
_LEASE = (
    people.insert()
    .values(
        judge=bindparam("of_judge"), expert=bindparam("of_expert"), kind=bindparam("new_kind"),
        question=bindparam("new_question"), pair=bindparam("new_pair"),
        presentation=bindparam("new_presentation"), state=LEASED,
        expires=clock() + bindparam("lease"), shown=clock(),
        choice=bindparam("new_choice"), expected=bindparam("new_expected"),
    )
    .returning(*_COLUMNS)
)  # fmt: skip
_COUNTS = (
    select(people.c.kind, func.count())
    .where(_HERE, people.c.state == ANSWERED)
    .group_by(people.c.kind)
)
_SETTLE = (
    update(people)
    .where(people.c.id == bindparam("card"), people.c.state == LEASED)
    .values(
        state=ANSWERED, choice=bindparam("new_choice"), seconds=bindparam("new_seconds"),
        confidence=bindparam("new_confidence"), answered_at=bindparam("new_time"),
    )
)  # fmt: skip
_REPLICATE = select(questions.c.replicate).where(questions.c.id == bindparam("of"))

_OPEN = (
    (questions.c.judge == bindparam("of_judge"))
    & questions.c.state.not_in(("done", "quarantined"))
    & questions.c.presentation.in_(("ab", "ba"))
)
"""Questions of a judge that wait for an answer."""

_FREE = ~(
    select(people.c.id)
    .where(
        people.c.question == questions.c.id,
        people.c.kind == QUESTION,
        people.c.state == LEASED,
        people.c.expires > clock(),
    )
    .exists()
)


def _times(*of: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
    """Return how often a question is answered or leased in all replicates, by the cards `of`."""
    count = select(func.count()).where(
        people.c.judge == questions.c.judge,
        people.c.pair == questions.c.pair,
        people.c.presentation == questions.c.presentation,
        people.c.kind == QUESTION,
        _LIVE,
        *of,
    )
    return count.correlate(questions).scalar_subquery()


_MINE, _EXPERTS = people.c.expert == bindparam("of_expert"), bindparam("experts", type_=BigInteger)
_FEWEST = _times(_MINE) * _EXPERTS <= _times()
"""Whether no other expert had a question, in any replicate, less often than this one."""
_FEWEST_ANSWERED = _times(_MINE, people.c.state == ANSWERED) * _EXPERTS <= _times()
"""The same, and true of the question that this expert has now."""

_NEXT = (
    select(questions.c.id, questions.c.pair, questions.c.presentation)
    .where(
        _OPEN,
        questions.c.state == PLANNED,
        questions.c.pair < bindparam("known", type_=BigInteger),
        _FREE,
    )
    .order_by(
        questions.c.replicate,
        (case((questions.c.presentation == "ba", 1), else_=0) + _polynomial(3)) % 2,
        _polynomial(0),
        questions.c.id,
    )
    .limit(1)
)
_NEXT_SPREAD = _NEXT.where(_FEWEST)


@dataclass(frozen=True)
class Expert:
    """Who asks for a card.

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
    def key(self) -> dict[str, str]:
        """The parameters that name the expert."""
        return {"of_judge": self.judge, "of_expert": self.name}


def alone(db: sa.Connection, location: JournalLocation, judge: str) -> None:
    """Wait until no other transaction works on a judge's cards; in SQLite none ever does."""
    if location.shared:
        name = f"people of {judge} in {location.schema}"
        db.execute(select(func.pg_advisory_xact_lock(func.hashtext(name))))


def card(db: sa.Connection, number: int) -> CardRow | None:
    """Return a card by its number."""
    return _row(db, _CARD, {"card": number})


def _row(db: sa.Connection, query: sa.Select[Any], values: Mapping[str, Any]) -> CardRow | None:
    row = db.execute(query, values).one_or_none()
    return None if row is None else CardRow(**row._mapping)


def held(db: sa.Connection, expert: Expert) -> CardRow | None:
    """Return the card that an expert has; only its answer settles the question meanwhile."""
    return _row(db, _HELD, expert.key)


def question_of(db: sa.Connection, row: CardRow) -> Question:
    """Return the question of a card that is no attention question."""
    assert row.question is not None
    replicate = int(db.execute(_REPLICATE, {"of": row.question}).scalar_one())
    return Question(row.question, row.pair, row.presentation, replicate, 0, row.judge)


def renew(db: sa.Connection, row: CardRow, lease: float) -> None:
    """Renew a card's lease as it is shown again."""
    db.execute(_RENEW, {"card": row.id, "lease": lease})


def release(db: sa.Connection, row: CardRow) -> None:
    """Take a card back without an answer."""
    db.execute(update(people).where(people.c.id == row.id).values(state="released"))


def next_question(db: sa.Connection, expert: Expert, end: int) -> tuple[int, int, Order] | None:
    """Return the row, the pair and the presentation of an expert's next question.

    Args:
        db: the journal.
        expert: the expert.
        end: the number that follows the last pair of the plan.
    """
    order = expert.shuffle.parameters()
    values = {**expert.key, **order, "known": end, "experts": expert.experts}
    row = db.execute(_NEXT_SPREAD if expert.spread else _NEXT, values).one_or_none()
    return None if row is None else (row.id, row.pair, row.presentation)


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
    """Give a card to an expert, and return it; an expired lease of the question ends.

    Args:
        db: the journal.
        expert: the expert.
        seconds: the lease.
        kind: the kind of card.
        content: the row of the question, the pair and the presentation.
        expected: what an attention question asks to choose.
        choice: what had been chosen before it was undone.
    """
    question, pair, presentation = content
    if kind == "question":
        db.execute(_RELEASE, {"of": question})
    values = {
        **expert.key, "lease": seconds, "new_kind": kind, "new_question": question,
        "new_pair": pair, "new_presentation": presentation, "new_choice": choice,
        "new_expected": expected,
    }  # fmt: skip
    return CardRow(**db.execute(_LEASE, values).one()._mapping)


def answered_cards(db: sa.Connection, expert: Expert) -> dict[CardKind, int]:
    """Return how many cards of each kind an expert has answered."""
    return {row[0]: int(row[1]) for row in db.execute(_COUNTS, expert.key)}


def repeatable(db: sa.Connection, expert: Expert, gap: int) -> list[CardRow]:
    """Return the questions that an expert may be asked again, in the order of their answers.

    They were answered before the last `gap` questions, and not repeated yet.
    """
    query = _ROW.where(_HERE, people.c.state == ANSWERED).order_by(people.c.id)
    cards = [CardRow(**row._mapping) for row in db.execute(query, expert.key)]
    repeated = {card.question for card in cards if card.kind == "repeat"}
    first = [card for card in cards if card.kind == "question"]
    return [card for card in first[: max(len(first) - gap, 0)] if card.question not in repeated]


def settle(
    db: sa.Connection,
    row: CardRow,
    choice: str,
    seconds: float,
    *,
    confidence: float | None = None,
    answer: Answer | None = None,
) -> bool:
    """Keep the answer to a card.

    Args:
        db: the journal.
        row: the card, which is leased.
        choice: what was chosen.
        seconds: the time that the expert took.
        confidence: how sure the expert is, 0 to 1.
        answer: the answer of the journal, for a question of the plan.

    Returns:
        False if the question is settled already; nothing is kept then.
    """
    if answer is not None:
        assert row.question is not None
        if apply_each(db, [answered(row.question, answer)], row.expert):
            return False
    values = {
        "card": row.id, "new_choice": choice, "new_seconds": seconds,
        "new_confidence": confidence, "new_time": now(),
    }  # fmt: skip
    return bool(db.execute(_SETTLE, values).rowcount)


def last_answered(db: sa.Connection, expert: Expert) -> CardRow | None:
    """Return the card that an expert answered last."""
    return _row(db, _LATEST, expert.key)


def waiting(db: sa.Connection, judge: str, pairs: range) -> int:
    """Return how many questions about some pairs wait for an answer of a judge."""
    of_them = select(func.count()).where(_OPEN, questions.c.pair.between(pairs.start, pairs[-1]))
    return int(db.execute(of_them, {"of_judge": judge}).scalar_one())


def reopen(db: sa.Connection, row: CardRow) -> None:
    """Undo the answer to a card: it leaves the table of answers and stays on the card."""
    if row.kind == "question":
        db.execute(answers.delete().where(answers.c.question == row.question))
        open_again = update(questions).where(questions.c.id == row.question)
        db.execute(open_again.values(state="planned"))
    db.execute(update(people).where(people.c.id == row.id).values(state="undone"))


def left(db: sa.Connection, expert: Expert, end: int) -> int:
    """Return how many questions wait for an answer that this expert may give."""
    count = select(func.count()).where(_OPEN, questions.c.pair < bindparam("known"))
    values = {**expert.key, "known": end, "experts": expert.experts}
    if expert.spread:
        distinct = select(questions.c.pair, questions.c.presentation).distinct()
        may = distinct.where(_OPEN, questions.c.pair < bindparam("known"), _FEWEST_ANSWERED)
        count = select(func.count()).select_from(may.subquery())
    return int(db.execute(count, values).scalar_one())
