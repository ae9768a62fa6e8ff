"""What passes through the journal's door: questions out, changes in."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from llm_elicit.planning.pairs import Presentation

Kind = Literal["intent", "submitted", "answered", "missed", "failed", "quarantined"]

Refusal = Literal["no room", "settled elsewhere", "journal failed"]
"""Why a change was not written: a cap leaves no room for an intent now; the question is not this
worker's any more; or the journal takes no more than what becomes of the requests in flight."""


@dataclass(frozen=True)
class Question:
    """A row of the plan in the journal.

    Attributes:
        id: the row's number.
        pair, order, replicate: which question (see `Query`).
        attempts: requests already sent for it, in earlier runs too.
        judge: who is asked.
    """

    id: int
    pair: int
    order: Presentation
    replicate: int
    attempts: int
    judge: str


@dataclass(frozen=True)
class Answer:
    """What is kept of an answer: the columns of the table `answers` after the question.

    `digest` is over all others, see `digests`.
    """

    template: str
    prompt_hash: str
    endpoint: str
    settings: str
    model_asked: str
    model_answered: str
    reply: str
    finish: str
    verdict: str
    first: float | None
    letter_mass: float | None
    probability: float | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost: float | None
    latency: float
    cached: bool
    asked_at: str
    thinking: str = ""
    format: str = "letter"
    digest: str | None = None


@dataclass(frozen=True)
class Totals:
    """One judge's state in the journal: its questions by state, and what they took.

    Attributes:
        submitted: questions in batches that are out.
        lost: USD that may have been charged for requests that came to nothing.
        last: when the last answer came, ISO 8601; empty before the first.
    """

    total: int = 0
    done: int = 0
    failed: int = 0
    quarantined: int = 0
    submitted: int = 0
    in_flight: int = 0
    cached: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    lost: float = 0.0
    last: str = ""

    @property
    def planned(self) -> int:
        """Questions that nobody has put yet."""
        settled = self.done + self.failed + self.quarantined
        return self.total - settled - self.submitted - self.in_flight


@dataclass(frozen=True, eq=False)
class Change:
    """One step of one question.

    Attributes:
        kind: the step.
        question: the row's number.
        values: what the step's statement takes besides.
        answer: the row of `answers`, where there is one.
        spent, tokens: USD and tokens that this step adds to what is spent.
    """

    kind: Kind
    question: int
    values: dict[str, Any] = field(default_factory=dict)
    answer: dict[str, Any] | None = None
    spent: float = 0.0
    tokens: int = 0


def intent(question: int, reserved: float, tokens: int = 0) -> Change:
    """A request is about to leave; it may take `reserved` USD and so many tokens at most."""
    return Change("intent", question, {"reserved": reserved, "tokens": tokens})


def submitted(question: int, reserved: float, tokens: int, batch: str) -> Change:
    """The question is about to leave in a batch, and is not asked again until it is known how
    that ended; it may take `reserved` USD and so many tokens at most."""
    values = {"reserved": reserved, "tokens": tokens, "batch": batch}
    return Change("submitted", question, values)


def answered(question: int, answer: Answer) -> Change:
    """The question has its answer."""
    # The reply is the provider's: no database need take all that a JSON string may hold.
    row = vars(answer) | {
        "question": question,
        "cached": int(answer.cached),
        "reply": storable(answer.reply),
        "thinking": storable(answer.thinking),
        "finish": storable(answer.finish),
        "model_answered": storable(answer.model_answered),
    }
    tokens = 0 if answer.cached else answer.prompt_tokens + answer.completion_tokens
    return Change("answered", question, answer=row, spent=answer.cost or 0.0, tokens=tokens)


def missed(question: int, lost: float, tokens: int = 0) -> Change:
    """A request came to nothing; `lost` USD and so many tokens may have been charged for it."""
    return Change("missed", question, {"lost": lost, "tokens": tokens}, spent=lost, tokens=tokens)


def failed(question: int, reason: str) -> Change:
    """The question is given up in this run; the next run tries it again."""
    return Change("failed", question, {"error": storable(reason)})


def quarantined(question: int, reason: str) -> Change:
    """The question is set aside: it is set aside, and no run asks it again."""
    return Change("quarantined", question, {"error": storable(reason)})


def storable(text: str) -> str:
    """`text` without what a database refuses: NUL and halves of surrogate pairs.

    Example:
        >>> storable("a" + chr(0) + "b") == "a" + chr(0xFFFD) + "b"
        True
    """
    if text.isascii() and "\0" not in text:
        return text
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\0", "\ufffd")


def now() -> str:
    """The UTC time, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
