"""Rate limits as providers enforce them, with an explicit clock."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

Style = Literal["bucket", "window", "sliding"]
Dialect = Literal["openai", "anthropic", "none"]


@dataclass(frozen=True)
class Limit:
    """A limit of one thing.

    Attributes:
        amount: the amount per period.
        period: seconds.
        style: a "bucket" refills steadily, a "window" resets each period, or is "sliding".
        burst: capacity of the bucket; the amount by default.
    """

    amount: float
    period: float = 60.0
    style: Style = "bucket"
    burst: float | None = None


class Meter:
    """Counts one thing against one limit.

    Examples:
        >>> meter = Meter(Limit(2, period=60.0))
        >>> [meter.take(now) for now in (0.0, 0.0, 0.0, 30.0)]
        [True, True, False, True]
    """

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._size = limit.burst or limit.amount
        self._left = self._size
        self._at = 0.0
        self._past: deque[tuple[float, float]] = deque()

    def take(self, now: float, cost: float = 1.0) -> bool:
        """Take `cost` if there is enough."""
        self._move(now)
        if self._left < cost - 1e-9:
            return False
        self._left -= cost
        self._past.append((now, cost))
        return True

    def remaining(self, now: float) -> float:
        """Return the amount left."""
        self._move(now)
        return self._left

    def full_in(self, now: float) -> float:
        """Return the seconds until the whole amount is available."""
        self._move(now)
        limit = self._limit
        if limit.style == "bucket":
            return (self._size - self._left) * limit.period / limit.amount
        if limit.style == "window":
            return limit.period - now % limit.period
        return self._past[-1][0] + limit.period - now if self._past else 0.0

    def enough_in(self, now: float, cost: float = 1.0) -> float:
        """Return the seconds until `cost` is available."""
        self._move(now)
        limit = self._limit
        if limit.style == "bucket":
            return max(cost - self._left, 0.0) * limit.period / limit.amount
        if limit.style == "window":
            return self.full_in(now)
        available = self._left
        for at, some in self._past:
            available += some
            if available >= cost:
                return at + limit.period - now
        return limit.period

    def _move(self, now: float) -> None:
        limit = self._limit
        if limit.style == "bucket":
            refilled = (now - self._at) * limit.amount / limit.period
            self._left = min(self._left + refilled, self._size)
            self._past.clear()
        elif limit.style == "window":
            if now // limit.period > self._at // limit.period:
                self._left = self._size
            self._past.clear()
        else:
            while self._past and self._past[0][0] <= now - limit.period:
                self._left += self._past.popleft()[1]
        self._at = now


class Gate:
    """A provider's limits on requests and tokens, with the headers it sends.

    Args:
        requests, tokens: the limits; None for none.
        dialect: the provider whose headers are sent.
        says_wait: whether a refusal has a Retry-After.
        started: the wall time at time 0, for headers with times.
    """

    def __init__(
        self,
        requests: Limit | None = None,
        tokens: Limit | None = None,
        dialect: Dialect = "openai",
        says_wait: bool = True,
        started: datetime | None = None,
    ) -> None:
        self._meters = {
            kind: (Meter(limit), limit)
            for kind, limit in (("requests", requests), ("tokens", tokens))
            if limit is not None
        }
        self._dialect = dialect
        self._says_wait = says_wait
        self._started = (started or datetime.now(UTC)).timestamp()
        self.admitted = 0
        self.refused = 0

    def admit(self, now: float, tokens: float = 0.0) -> tuple[bool, dict[str, str]]:
        """Return whether a request is admitted, and the headers of the response."""
        costs = {"requests": 1.0, "tokens": tokens}
        short = [
            meter.enough_in(now, costs[kind])
            for kind, (meter, _) in self._meters.items()
            if meter.remaining(now) < costs[kind] - 1e-9
        ]
        for kind, (meter, _) in self._meters.items():
            if not short:
                meter.take(now, costs[kind])
        self.admitted += not short
        self.refused += bool(short)
        headers = self.headers(now)
        if short and self._says_wait:
            headers["retry-after"] = f"{max(math.ceil(max(short)), 1)}"
        return not short, headers

    def headers(self, now: float) -> dict[str, str]:
        """Return the headers on limits, in the provider's form."""
        headers: dict[str, str] = {}
        for kind, (meter, limit) in self._meters.items():
            remaining, full = math.floor(meter.remaining(now)), meter.full_in(now)
            if self._dialect == "openai":
                headers[f"x-ratelimit-limit-{kind}"] = f"{limit.amount:.0f}"
                headers[f"x-ratelimit-remaining-{kind}"] = f"{remaining}"
                headers[f"x-ratelimit-reset-{kind}"] = _duration(full)
            elif self._dialect == "anthropic":
                moment = datetime.fromtimestamp(self._started + now + full, UTC)
                headers[f"anthropic-ratelimit-{kind}-limit"] = f"{limit.amount:.0f}"
                headers[f"anthropic-ratelimit-{kind}-remaining"] = f"{remaining}"
                headers[f"anthropic-ratelimit-{kind}-reset"] = f"{moment:%Y-%m-%dT%H:%M:%SZ}"
        return headers


def _duration(seconds: float) -> str:
    """Return seconds in OpenAI's form: 12ms, 1.5s, 6m0s."""
    if seconds < 1.0:
        return f"{seconds * 1000:.0f}ms"
    minutes, seconds = divmod(seconds, 60.0)
    return f"{minutes:.0f}m{seconds:.3f}s" if minutes else f"{seconds:.3f}s"
