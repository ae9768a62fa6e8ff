"""The values of the journal's interface: questions, and changes of their state."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from llm_elicit.planning.pairs import Presentation

Kind = Literal["intent", "submitted", "answered", "missed", "failed", "quarantined"]

Refusal = Literal["no room", "settled elsewhere", "journal failed"]
"""Why a change was not written: a cap leaves no room for an intent at the moment; another worker
has the question; or the journal accepts only the outcomes of requests in flight."""


@dataclass(frozen=True)
class Question:
    """A row of the plan in the journal.

    Attributes:
        id: the number of the row.
        pair, order, replicate: the question, see `Query`.
        attempts: requests already sent for it, earlier runs included.
        judge: the judge's name.
        given_up: whether an earlier run gave it up.
    """

    id: int
    pair: int
    order: Presentation
    replicate: int
    attempts: int
    judge: str
    given_up: bool = False


@dataclass(frozen=True)
class Answer:
    """An answer as stored: the columns of the table `answers` except the question.

    `digest` is over all other columns, see `digests`.
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
    censored: int = 0
    digest: str = ""


@dataclass(frozen=True)
class Totals:
    """One judge's questions by state, and what they cost.

    Attributes:
        submitted: questions in submitted batches.
        lost: USD that may have been charged for requests that failed.
        last: time of the last answer, ISO 8601; empty before the first.
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
        """The number of questions that have not been asked yet."""
        settled = self.done + self.failed + self.quarantined
        return self.total - settled - self.submitted - self.in_flight


@dataclass(frozen=True)
class Unanswered:
    """Questions of a judge that were given up or set aside for one reason.

    Attributes:
        state: "failed" if the next run asks them again, "quarantined" if they are set aside until
            that is asked for.
        reason: the reason in one line.
        count: their number.
    """

    state: Literal["failed", "quarantined"]
    reason: str
    count: int


@dataclass(frozen=True, eq=False)
class Change:
    """A state transition of one question.

    Attributes:
        kind: the transition.
        question: the number of its row.
        values: further parameters of the transition's statement.
        answer: the row of `answers`, if there is one.
        spent, tokens: USD and tokens spent by this transition.
    """

    kind: Kind
    question: int
    values: dict[str, Any] = field(default_factory=dict)
    answer: dict[str, Any] | None = None
    spent: float = 0.0
    tokens: int = 0


def intent(question: int, reserved: float, tokens: int = 0) -> Change:
    """Return the change before a request is sent; its worst case is `reserved` USD, `tokens`."""
    return Change("intent", question, {"reserved": reserved, "tokens": tokens})


def submitted(question: int, reserved: float, tokens: int, batch: str) -> Change:
    """Return the change before a question is submitted in a batch.

    It is not asked again before the outcome of the batch is known. `reserved` USD and `tokens` are
    its worst case.
    """
    values = {"reserved": reserved, "tokens": tokens, "batch": batch}
    return Change("submitted", question, values)


def answered(question: int, answer: Answer) -> Change:
    """Return the change that stores an answer."""
    # A JSON string may hold characters that a database does not accept.
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
    """Return the change after a failed request; `lost` USD and `tokens` may have been charged."""
    return Change("missed", question, {"lost": lost, "tokens": tokens}, spent=lost, tokens=tokens)


def failed(question: int, reason: str) -> Change:
    """Return the change that gives a question up; the next run tries it again."""
    return Change("failed", question, {"error": storable(reason)})


def quarantined(question: int, reason: str) -> Change:
    """Return the change that sets a question aside: it is asked again only on request."""
    return Change("quarantined", question, {"error": storable(reason)})


def storable(text: str) -> str:
    """Return `text` without what a database refuses: NUL and unpaired surrogates.

    Example:
        >>> storable("a" + chr(0) + "b") == "a" + chr(0xFFFD) + "b"
        True
    """
    if text.isascii() and "\0" not in text:
        return text
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\0", "\ufffd")


def now() -> str:
    """Return the UTC time, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
