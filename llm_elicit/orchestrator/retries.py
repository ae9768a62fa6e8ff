"""What a failure means, and how long to wait: decided once, from the SDKs' real exceptions."""

from __future__ import annotations

import email.utils
import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import anthropic
import openai

from llm_elicit.backends.base import MalformedReplyError
from llm_elicit.errors import ElicitError, InputError, JudgeError

Kind = Literal["no", "transient", "rate limited"]

_STATUS = (anthropic.APIStatusError, openai.APIStatusError)
_TIMEOUT = (anthropic.APITimeoutError, openai.APITimeoutError)
_CONNECTION = (anthropic.APIConnectionError, openai.APIConnectionError)
_MALFORMED = (
    MalformedReplyError,
    json.JSONDecodeError,
    UnicodeDecodeError,
    anthropic.APIResponseValidationError,
    openai.APIResponseValidationError,
)
_NO_CREDIT = ("insufficient_quota", "credit balance", "billing", "exceeded your current quota")
_RETRIED = frozenset({408, 409, 425, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})


@dataclass(frozen=True)
class Decision:
    """What to do about a failure.

    Attributes:
        kind: ask again never, after a growing pause, or when the provider allows.
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
    """How long is waited between attempts, in seconds.

    Attributes:
        base: the first pause after a transient failure; it doubles with each attempt.
        longest: the ceiling of those pauses.
        provider: the ceiling of a wait that a provider asks for.
    """

    base: float = 0.5
    longest: float = 30.0
    provider: float = 120.0

    def pause(self, decision: Decision, attempt: int, rng: random.Random) -> float:
        """Seconds before the next attempt, `attempt` requests having failed so far."""
        growing = min(self.longest, self.base * 2.0 ** min(attempt - 1, 30))
        jittered = growing * rng.uniform(0.5, 1.0)
        if decision.wait is None:
            return jittered
        # Jitter on top, so that all do not come back in the same instant.
        return min(decision.wait, self.provider) + min(jittered, self.base)


def classify(error: Exception) -> Decision | None:
    """What a failed request means; None for an exception that is no provider's.

    Example:
        >>> classify(ValueError("a bug")) is None
        True
    """
    if isinstance(error, _STATUS):
        return _status(error)
    if isinstance(error, _TIMEOUT):
        return Decision("transient", "no answer within the timeout", maybe_paid=True)
    if isinstance(error, _CONNECTION):
        cause = error.__cause__
        refused = type(cause).__name__ in ("ConnectError", "ConnectTimeout")
        detail = type(cause).__name__ if cause else "no detail"
        return Decision("transient", f"connection failed ({detail})", maybe_paid=not refused)
    if isinstance(error, _MALFORMED):
        return Decision("transient", f"malformed answer ({_line(error)})", maybe_paid=True)
    if isinstance(error, anthropic.AnthropicError | openai.OpenAIError):
        return Decision("no", f"{type(error).__name__}: {_line(error)}", stops=JudgeError)
    return None


def _status(error: anthropic.APIStatusError | openai.APIStatusError) -> Decision:
    status, said = error.status_code, _line(error)
    codes = f"{getattr(error, 'code', '')} {getattr(error, 'type', '')} {said}".lower()
    if status == 402 or any(word in codes for word in _NO_CREDIT):
        return Decision("no", f"no credit left: {said}", stops=JudgeError)
    if status in (401, 403):
        return Decision("no", f"the key is not accepted: {said}", stops=InputError)
    if status == 404:
        return Decision("no", f"no such model or address: {said}", stops=InputError)
    wait = retry_after(error.response.headers)
    if status == 429:
        return Decision("rate limited", f"rate limited: {said}", wait)
    if status in _RETRIED or status >= 500:
        return Decision("transient", f"server error {status}: {said}", wait)
    return Decision("no", f"request refused: {said}")


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds that a response asks to wait: Retry-After-Ms, or Retry-After in seconds or as a date.

    Returns None where there is no such header or it cannot be read; never raises, never negative.

    Example:
        >>> retry_after({"retry-after": "3"}), retry_after({"retry-after": "soon"})
        (3.0, None)
    """
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        text = headers.get(name)
        if text is None:
            continue
        try:
            seconds = float(text) * unit
        except ValueError:
            seconds = _until(text, now or datetime.now(UTC))
        if not math.isnan(seconds):
            return max(seconds, 0.0)
    return None


def _until(text: str, now: datetime) -> float:
    """Seconds until an HTTP date; NaN where it is none."""
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return math.nan
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - now).total_seconds()


def _line(error: Any) -> str:
    """The error's message on one line of readable length."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."
