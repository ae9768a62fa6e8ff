"""How a request may end, whether it is sent again, and after which pause."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import re
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Literal

from llm_elicit.backends import Reply
from llm_elicit.backends.failures import Failure, refuses_prompt
from llm_elicit.errors import ElicitError, InputError, JudgeError
from llm_elicit.orchestrator.progress import Tally
from llm_elicit.orchestrator.rate_limiter import retry_after

Kind = Literal[
    "no", "transient", "rate limited", "prompt refused", "backend is down", "question is set aside"
]

_MAX_DOUBLINGS = 60
"""Largest number of times that a pause doubles; more would overflow."""

_NO_CREDIT = "insufficient_quota"
"""OpenAI's code, sent with status 429; its message also appears in ordinary rate limits."""

_STOPS: dict[int, tuple[type[ElicitError], str]] = {
    **dict.fromkeys(
        range(300, 400), (InputError, "redirects are not followed; set base_url to the new address")
    ),
    401: (InputError, "the key is not accepted"),
    402: (JudgeError, "no credit left"),
    403: (InputError, "the key is not accepted"),
    **dict.fromkeys((404, 405, 410), (InputError, "no such model or address")),
    407: (InputError, "the proxy requires a login"),
}
"""The statuses that stop a judge, with the error and its message."""

_TRANSIENT = frozenset({408, 409, 425})
_LASTING = frozenset({501, 505, 511})
"""Server errors that a retry does not resolve."""

_OVERLOADED = frozenset({503, 529})
"""Errors of an overloaded server, which say nothing about the question."""

_MAYBE_PAID = frozenset({504, 524})
"""Statuses of a gateway that timed out: the provider may have answered."""


_MIN_ANSWERS, _SLOW, _LATENCIES = 100, 2.0, 500
"""A request is slow if it takes longer than `_SLOW` seconds and ten times the 99th percentile of
the last `_LATENCIES` answers; at least `_MIN_ANSWERS` answers are needed to tell."""

_STALLED = 1.5
"""Seconds between two checks, due every second, above which this process itself was stalled, so
that answers may have arrived and not been read."""


@dataclass(frozen=True)
class Decision:
    """What to do about a failure.

    Attributes:
        kind: "no": do not ask again in this run. "transient": ask again after a growing pause.
            "rate limited": ask again when the provider allows. "prompt refused": the prompt's
            content was refused, which is an answer. "backend is down": stop this judge. "question
            is set aside": ask it again only on request; continue with others.
        reason: one line, for the journal and the user.
        wait: seconds that the provider asks to wait; None if it does not say.
        stops: the error that stops the judge; None if only this question is affected.
        maybe_paid: whether the provider may have answered, and charged, nevertheless.
    """

    kind: Kind
    reason: str
    wait: float | None = None
    stops: type[ElicitError] | None = None
    maybe_paid: bool = False


@dataclass(frozen=True)
class Answered:
    """A request was answered, after some seconds."""

    reply: Reply
    latency: float


@dataclass(frozen=True)
class Failed:
    """A request failed; the decision is about this failure alone."""

    decision: Decision
    failure: Failure


@dataclass(frozen=True)
class SettingDropped:
    """The server refused a setting, which the backend leaves out from now on."""

    change: str


@dataclass(frozen=True)
class NotSent:
    """A request was not sent: the run or judge stops, or another worker has the question."""


@dataclass(frozen=True)
class RetryPolicy:
    """Limits on pauses, in seconds, and on attempts.

    Attributes:
        base: the first pause after a transient failure; it doubles with each attempt.
        longest: the longest such pause.
        provider: the longest wait that a provider may ask for.
        total: the longest time that one question is tried, pauses included.
        stall_timeout: the longest time without any answer before the judge counts as down.
        same_refusals: number of requests refused in the same words, before any answer, after
            which the judge stops: a setting is at fault, not the questions.
        same_malformed: number of times that a question may get the same malformed answer while
            other questions are answered.
        max_consecutive: number of questions given up in a row, without an answer between, after
            which the judge counts as down.
        lease: time without a sign of life after which other workers take a worker's questions.
    """

    base: float = 0.5
    longest: float = 30.0
    provider: float = 120.0
    total: float = 1800.0
    stall_timeout: float = 900.0
    same_refusals: int = 3
    same_malformed: int = 3
    max_consecutive: int = 5
    lease: float = 120.0

    def pause(self, decision: Decision, attempt: int, rng: random.Random) -> float:
        """Return the pause before the next attempt, in seconds, after `attempt` failures."""
        doubled = self.base * 2.0 ** min(attempt - 1, _MAX_DOUBLINGS)
        jittered = min(doubled, self.longest) * rng.uniform(0.5, 1.0)
        if decision.wait is None:
            return jittered
        # With jitter, so that the requests do not all return in the same instant.
        return min(decision.wait, self.provider) + min(jittered, self.base)


@dataclass
class History:
    """One question's failures in this run.

    Attributes:
        began: the time of its first request.
        attempts: failed requests, without those counted as `refusals`.
        refusals: consecutive requests refused by a rate limit, or by an overloaded server.
        malformed: number of times that it got the same malformed answer, while other questions
            were answered.
    """

    began: float
    attempts: int = 0
    refusals: int = 0
    malformed: int = 0
    _last_malformed: tuple[str, int] | None = None

    def add(self, decision: Decision, failure: Failure, answered: int) -> None:
        """Add a failure; `answered` is the judge's number of answers in this run.

        An overload costs an attempt only before the judge's first answer, so that an address where
        nobody serves is noticed.
        """
        overloaded = failure.status in _OVERLOADED and answered > 0
        if decision.kind == "rate limited" or overloaded:
            self.refusals += 1
        else:
            self.refusals = 0
            self.attempts += 1
        if failure.kind == "malformed":
            message, answered_before = self._last_malformed or (failure.message, -1)
            # If nothing else was answered meanwhile, it may be an outage.
            self.malformed += failure.message == message and answered > answered_before
            self._last_malformed = failure.message, answered


def classify(failure: Failure) -> Decision:
    """Return what to do about one failed request, without its history.

    Examples:
        >>> decision = classify(Failure("status", "slow down", 429, headers={"retry-after": "3"}))
        >>> decision.kind, decision.wait
        ('rate limited', 3.0)
    """
    message = failure.message
    match failure.kind:
        case "status":
            return _status(failure)
        case "timeout":
            return Decision("transient", message, maybe_paid=True)
        case "refused":
            return Decision("transient", f"connection failed ({message})")
        case "connection":
            return Decision("transient", f"connection failed ({message})", maybe_paid=True)
        case "malformed":
            return Decision("transient", f"malformed answer ({message})", maybe_paid=True)
        case "unusable":
            return Decision("backend is down", message, stops=JudgeError)


def _status(failure: Failure) -> Decision:
    status, message = failure.status or 0, failure.message
    if refuses_prompt(status, failure.code, message):
        return Decision("prompt refused", f"prompt refused: {message}")
    if _NO_CREDIT in failure.code.split():
        status = 402
    if status in _STOPS:
        error, reason = _STOPS[status]
        return Decision("backend is down", f"{reason}: {message}", stops=error)
    wait = retry_after(failure.headers)
    if status == 429:
        return Decision("rate limited", f"rate limited: {message}", wait)
    if status in _TRANSIENT or (status >= 500 and status not in _LASTING):
        reason = f"server error {status}: {message}"
        maybe_paid = failure.in_answer or status in _MAYBE_PAID
        return Decision("transient", reason, wait, maybe_paid=maybe_paid)
    return Decision("no", f"request refused: {message}")


def decide(
    decision: Decision, history: History, attempts: int, policy: RetryPolicy, now: float
) -> Decision:
    """Return the decision, given all failures of the question.

    Args:
        decision: the decision for the last failure alone.
        history: the question's failures, including the last one.
        attempts: the most requests for one question.
        policy: the limits on time.
        now: the current time, by the clock of `history.began`.
    """
    if decision.kind not in ("transient", "rate limited"):
        return decision
    if history.malformed >= policy.same_malformed:
        return _give_up(decision, f"the same failure {history.malformed} times")
    if history.attempts >= attempts:
        return _give_up(decision, f"given up after {history.attempts} attempts")
    if now - history.began >= policy.total:
        return _give_up(decision, f"given up after {now - history.began:.0f} s")
    return decision


def _give_up(decision: Decision, reason: str) -> Decision:
    """Return the decision not to ask again in this run."""
    return replace(decision, kind="no", reason=f"{reason}: {decision.reason}")


def strip_numbers(reason: str) -> str:
    """Return a reason without numbers and identifiers, in which equal refusals may differ.

    Examples:
        >>> strip_numbers("8,191 tokens (req_0a1)"), strip_numbers("8,200 tokens (req_2)")
        ('# tokens (#)', '# tokens (#)')
    """
    return re.sub(r"\b\w*\d[\w,.-]*", "#", reason)


class SlowRequests:
    """Cancels first attempts that take far longer than others, so that a hang costs seconds.

    They may have been answered, so their worst case counts as spent. The question is asked again
    with the judge's full timeout. Only a small share of requests is cancelled, so that a provider
    that became slow is not asked everything twice.

    Attributes:
        latencies: seconds of the last answers.
    """

    def __init__(self) -> None:
        self.latencies: deque[float] = deque(maxlen=_LATENCIES)
        self._first_attempts: dict[asyncio.Timeout, float] = {}
        self._cancelled = 0
        self._checked = math.inf

    @contextlib.asynccontextmanager
    async def timeout(self, seconds: float, *, first: bool) -> AsyncIterator[None]:
        """Limit the time of a request; a first attempt may be cancelled earlier."""
        async with asyncio.timeout(seconds) as limit:
            if first:
                self._first_attempts[limit] = asyncio.get_running_loop().time()
            try:
                yield
            finally:
                self._first_attempts.pop(limit, None)

    def cancel_slow(self, tally: Tally) -> None:
        """Cancel the first attempts that take too long; to be called once a second."""
        now = asyncio.get_running_loop().time()
        stalled, self._checked = now - self._checked > _STALLED, now
        if stalled or tally.answered < _MIN_ANSWERS:
            return
        usual = sorted(self.latencies)[int(0.99 * len(self.latencies))] if self.latencies else 0
        longest = max(_SLOW, 10.0 * usual)
        for limit, began in list(self._first_attempts.items()):
            if now - began < longest or self._cancelled >= 5 + 0.02 * tally.requests:
                return
            del self._first_attempts[limit]
            self._cancelled += 1
            limit.reschedule(now)
