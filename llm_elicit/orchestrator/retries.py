"""What a failure means, and how long to wait: the one place that decides whether to ask again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Literal

from tenacity import AsyncRetrying, RetryCallState, wait_exponential

from llm_elicit.backends.failures import Failure
from llm_elicit.errors import ElicitError, InputError, JudgeError
from llm_elicit.orchestrator.rate_limit_headers import retry_after

Kind = Literal["no", "transient", "rate limited", "backend is down", "question is poisoned"]

_NO_CREDIT = "insufficient_quota"
"""OpenAI's code, which comes with 429; its message stands in ordinary rate limits too."""

_STOPS: dict[int, tuple[type[ElicitError], str]] = {
    **dict.fromkeys(
        range(300, 400), (InputError, "redirects are not followed; set base_url to the new address")
    ),
    401: (InputError, "the key is not accepted"),
    402: (JudgeError, "no credit left"),
    403: (InputError, "the key is not accepted"),
    **dict.fromkeys((404, 405, 410), (InputError, "no such model or address")),
    407: (InputError, "the proxy wants a login"),
}
"""The statuses that stop a judge, with the error and its words."""

_TRANSIENT = frozenset({408, 409, 425})
_LASTING = frozenset({501, 505, 511})
"""Server errors that another attempt does not mend."""

_MAYBE_PAID = frozenset({504, 524})
"""A gateway gave up waiting for a provider that may have answered."""


@dataclass(frozen=True)
class Decision:
    """What to do about a failure.

    Attributes:
        kind: "no": not to be asked again in this run. "transient": ask again after a
            growing pause. "rate limited": ask again when the provider allows. "backend is down":
            nothing more can be had from this judge. "question is poisoned": give this question
            up and go on with the others.
        reason: one line, for the journal and the user.
        wait: seconds the provider asks to wait; None where it says nothing.
        stops: the error to stop the judge with; None where only this question is concerned.
        maybe_paid: whether the provider may have answered, and charged, all the same.
    """

    kind: Kind
    reason: str
    wait: float | None = None
    stops: type[ElicitError] | None = None
    maybe_paid: bool = False


@dataclass(frozen=True)
class Patience:
    """Ceilings of waiting, in seconds, and of trying.

    Attributes:
        base: the first pause after a transient failure; it doubles with each attempt.
        longest: the ceiling of those pauses.
        provider: the ceiling of a wait that a provider asks for.
        total: how long one question is tried, all waits included.
        stall_timeout: how long a judge is asked without a single answer before it counts as down.
        poison: so many equal server errors on one question, others being answered meanwhile,
            mean that it is the question.
        down: so many questions given up in a row, with no answer between, mean that the judge
            is down.
        lease: how long a worker that shares a journal may be silent before others take over.
    """

    base: float = 0.5
    longest: float = 30.0
    provider: float = 120.0
    total: float = 1800.0
    stall_timeout: float = 900.0
    poison: int = 3
    down: int = 5
    lease: float = 120.0

    def pause(self, decision: Decision, attempt: int, rng: random.Random) -> float:
        """Seconds before the next attempt, `attempt` requests having failed so far."""
        growing = wait_exponential(multiplier=self.base, max=self.longest)(_attempt(attempt))
        jittered = growing * rng.uniform(0.5, 1.0)
        if decision.wait is None:
            return jittered
        # Jitter on top, so that all do not come back in the same instant.
        return min(decision.wait, self.provider) + min(jittered, self.base)


def _attempt(number: int) -> RetryCallState:
    """The library's record of an attempt; its own loop would keep a waiting question's slot."""
    state = RetryCallState(AsyncRetrying(), None, (), {})
    state.attempt_number = number
    return state


@dataclass
class History:
    """One question's failures in this run.

    Attributes:
        began: the clock at its first request.
        attempts: requests that failed, those that a rate limit refused left out.
        refusals: those in a row that a rate limit refused.
        strikes: how often each server error came (by status: messages name the request) while
            other questions were answered.
    """

    began: float
    attempts: int = 0
    refusals: int = 0
    strikes: dict[int, int] = field(default_factory=dict)
    _answered: int | None = None

    def add(self, decision: Decision, failure: Failure, answered: int) -> None:
        """One more failure, when so many questions of the judge were answered in this run."""
        if decision.kind == "rate limited":
            self.refusals += 1
            return
        self.refusals = 0
        self.attempts += 1
        # A server that is down fails every question: that is no question's fault.
        alive = self._answered is None or answered > self._answered
        self._answered = answered
        if alive and failure.status is not None and failure.status >= 500:
            self.strikes[failure.status] = self.strikes.get(failure.status, 0) + 1


def classify(failure: Failure) -> Decision:
    """What one failed request means, taken by itself.

    Example:
        >>> decision = classify(Failure("status", "slow down", 429, headers={"retry-after": "3"}))
        >>> decision.kind, decision.wait
        ('rate limited', 3.0)
    """
    said = failure.said
    match failure.what:
        case "status":
            return _status(failure)
        case "timeout":
            return Decision("transient", said, maybe_paid=True)
        case "refused":
            return Decision("transient", f"connection failed ({said})")
        case "connection":
            return Decision("transient", f"connection failed ({said})", maybe_paid=True)
        case "malformed":
            return Decision("transient", f"malformed answer ({said})", maybe_paid=True)
        case "unusable":
            return Decision("backend is down", said, stops=JudgeError)


def _status(failure: Failure) -> Decision:
    status, said = failure.status or 0, failure.said
    if _NO_CREDIT in failure.code.split():
        status = 402
    if status in _STOPS:
        error, reason = _STOPS[status]
        return Decision("backend is down", f"{reason}: {said}", stops=error)
    wait = retry_after(failure.headers)
    if status == 429:
        return Decision("rate limited", f"rate limited: {said}", wait)
    if status in _TRANSIENT or (status >= 500 and status not in _LASTING):
        reason = f"server error {status}: {said}"
        return Decision("transient", reason, wait, maybe_paid=status in _MAYBE_PAID)
    return Decision("no", f"request refused: {said}")


def weigh(
    decision: Decision, history: History, attempts: int, patience: Patience, now: float
) -> Decision:
    """The decision in the light of what the question has been through.

    Args:
        decision: what the last failure means by itself.
        history: the question's failures, the last one included.
        attempts: the ceiling of requests.
        patience: the ceilings of time.
        now: the clock that `history.began` was read from.
    """
    if decision.kind not in ("transient", "rate limited"):
        return decision
    times = max(history.strikes.values(), default=0)
    if history.attempts >= attempts:
        return _given_up(decision, f"given up after {history.attempts} attempts")
    if times >= patience.poison:
        reason = f"the same error {times} times: {decision.reason}"
        return replace(decision, kind="question is poisoned", reason=reason)
    if now - history.began >= patience.total:
        return _given_up(decision, f"given up after {now - history.began:.0f} s")
    return decision


def _given_up(decision: Decision, why: str) -> Decision:
    """Not again in this run; the next one may have more luck."""
    return replace(decision, kind="no", reason=f"{why}: {decision.reason}")
