"""Question cards: what a person sees of a question, and what each choice means."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, cast

from llm_elicit.config.base_model import StrictModel
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal import Answer, Question, digest_of, now
from llm_elicit.orchestrator.journal.people import CardRow
from llm_elicit.spaces.features import FeatureSpace, Floats

Choice = Literal["a", "b", "equal", "cannot say"]
"""What an expert may choose: the first card shown, the second, or neither."""

_VERDICTS: dict[Choice, tuple[str, float | None]] = {
    "a": ("A", 1.0), "b": ("B", 0.0), "equal": ("tie", 0.5), "cannot say": ("refusal", None),
}  # fmt: skip
"""The verdict of each choice, as of models, and P(first shown)."""

HUMAN = "human"
"""The model that answers of people name, and the endpoint."""


class Card(StrictModel):
    """A question on an expert's screen.

    Attributes:
        id: its number, with which it is answered.
        judge, expert: who has it.
        number: 1 for the expert's first card, and so on.
        title, subject, setting: of the feature space.
        a, b: what is shown as A and as B: labels and worded values.
        instruction: what an attention question asks to choose, in a sentence; else empty.
        choice: what the expert had chosen before it was undone; else None.
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


def card_of(
    row: CardRow, space: FeatureSpace, shown: tuple[Floats, Floats], *, number: int
) -> Card:
    """Return a card as the expert sees it.

    Args:
        row: the card in the journal.
        space: the feature space.
        shown: the points that are shown as A and as B.
        number: 1 for the expert's first card, and so on.
    """
    expected = "" if row.expected is None else row.expected.upper()
    return Card(
        id=row.id,
        judge=row.judge,
        expert=row.expert,
        number=number,
        title=space.title,
        subject=space.subject,
        setting=space.setting,
        a=tuple(space.word(shown[0])),
        b=tuple(space.word(shown[1])),
        instruction=expected and f"This card checks attention: choose {expected}.",
        choice=cast("Choice | None", row.choice),
    )


def check_values(choice: str, confidence: float | None, seconds: float | None) -> None:
    """Check what an expert has sent.

    Raises:
        InputError: a value is not allowed.
    """
    if choice not in _VERDICTS:
        raise InputError(f"choice {choice!r}: choose one of {', '.join(_VERDICTS)}")
    if confidence is not None and not 0.0 <= confidence <= 1.0:
        raise InputError(f"confidence {confidence}: give a number from 0 to 1, or none")
    if seconds is not None and not 0.0 <= seconds < math.inf:
        raise InputError(f"seconds {seconds}: give a number from 0, or none")


def is_open(row: CardRow, choice: Choice) -> bool:
    """Return whether a card waits for its answer; False if it has this answer already.

    Raises:
        InputError: it is settled otherwise.
    """
    if row.state == "released":
        raise given_away(row.id)
    if row.state == "undone":
        raise InputError(f"card {row.id}: its answer was undone; answer the card shown now")
    if row.state == "answered" and row.choice != choice:
        raise InputError(
            f"card {row.id}: answered with {row.choice!r} already; undo that to change it"
        )
    return row.state == "leased"


def given_away(card: int) -> InputError:
    """Return the error for an answer that comes too late."""
    return InputError(
        f"card {card}: it was not answered in time and has been given to someone else; answer the "
        "card shown now"
    )


def answer_of(
    question: Question, expert: str, choice: Choice, seconds: float, prompt: tuple[str, str]
) -> Answer:
    """Return a person's answer as a row of the journal's table of answers.

    Args:
        question: the question.
        expert: who answers.
        choice: what is chosen.
        seconds: the response time.
        prompt: the identity of the template and the hash of the question as models get it.
    """
    verdict, first = _VERDICTS[choice]
    if first is not None and question.order == "ba":
        first = 1.0 - first
    answer = Answer(
        template=prompt[0], prompt_hash=prompt[1], endpoint=HUMAN, settings="{}",
        model_asked=HUMAN, model_answered=expert, reply=choice, finish="stop",
        verdict=verdict, first=None, letter_mass=None, probability=first, prompt_tokens=0,
        completion_tokens=0, cached_tokens=0, cost=0.0, latency=seconds, cached=False,
        asked_at=now(),
    )  # fmt: skip
    return replace(answer, digest=digest_of(question, answer))
