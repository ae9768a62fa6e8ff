"""What the headers of responses say about rate limits and waits, and the pace that follows.

Reading a header never raises. The pace is proportional to what the headers say is left: requests
slow down before any is refused. At a token bucket the pace settles at the bucket's refill rate; a
fixed window is used up just as it ends.
"""

from __future__ import annotations

import email.utils
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

Kind = Literal["requests", "tokens", "input-tokens", "output-tokens"]

_KINDS: tuple[Kind, ...] = ("requests", "tokens", "input-tokens", "output-tokens")
_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_EPOCH = 1e9
"""A larger number of seconds is a time since 1970, not a wait."""

_EPOCH_MS = 1e11


@dataclass(frozen=True)
class Allowance:
    """The state of one of a provider's limits.

    Attributes:
        kind: what is counted.
        limit: the limit.
        remaining: what remains of it.
        reset: seconds until it is whole again.
    """

    kind: Kind
    limit: float
    remaining: float
    reset: float


def seconds_until(text: str, now: datetime) -> float | None:
    """Return the seconds from `now` that a header states; None if it cannot be read.

    Providers send seconds ("7", "0.5"), durations ("6m0s", "12ms"), and times (seconds or
    milliseconds since 1970, RFC 3339, an HTTP date). The result is never negative.

    Examples:
        >>> now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        >>> seconds_until("1m30s", now), seconds_until("2026-01-02T03:04:35Z", now)
        (90.0, 30.0)
        >>> seconds_until("soon", now) is None
        True
    """
    text = text.strip()
    for read in (_number, _duration, _moment):
        seconds = read(text, now)
        if seconds is not None:
            return max(seconds, 0.0) if math.isfinite(seconds) else None
    return None


def _number(text: str, moment: datetime) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    if value >= _EPOCH_MS:
        return value / 1e3 - moment.timestamp()
    return value - moment.timestamp() if value >= _EPOCH else value


def _duration(text: str, moment: datetime) -> float | None:
    del moment
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _moment(text: str, moment: datetime) -> float | None:
    for read in (datetime.fromisoformat, email.utils.parsedate_to_datetime):
        try:
            date = read(text)
        except (ValueError, TypeError, OverflowError, IndexError):
            continue
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        try:
            return (date - moment).total_seconds()
        except OverflowError:
            return None
    return None


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the seconds that a refusal asks to wait; None if it does not say.

    Retry-After-Ms and Retry-After take precedence over a plain reset. The reset of a single limit
    is not used: enough of it is available before it is whole again.

    Examples:
        >>> retry_after({"retry-after": "3"}), retry_after({"retry-after": "soon"})
        (3.0, None)
    """
    moment = _clock(headers, now)
    for name in ("retry-after-ms", "retry-after", "x-ratelimit-reset", "ratelimit-reset"):
        text = headers.get(name)
        seconds = seconds_until(text, moment) if text is not None else None
        if seconds is not None:
            return seconds * 1e-3 if name == "retry-after-ms" else seconds
    return None


def allowances(headers: Mapping[str, str], now: datetime | None = None) -> tuple[Allowance, ...]:
    """Return the state of each limit in the headers: x-ratelimit-*, anthropic-ratelimit-*.

    Examples:
        >>> allowances({"x-ratelimit-limit-requests": "600",
        ...             "x-ratelimit-remaining-requests": "599",
        ...             "x-ratelimit-reset-requests": "100ms"})
        (Allowance(kind='requests', limit=600.0, remaining=599.0, reset=0.1),)
    """
    if not headers:
        return ()
    moment = _clock(headers, now)
    candidates = (_allowance(headers, kind, moment) for kind in _KINDS)
    return tuple(allowance for allowance in candidates if allowance is not None)


def _allowance(headers: Mapping[str, str], kind: Kind, moment: datetime) -> Allowance | None:
    for limit, remaining, reset in (
        (f"x-ratelimit-limit-{kind}", f"x-ratelimit-remaining-{kind}", f"x-ratelimit-reset-{kind}"),
        (
            f"anthropic-ratelimit-{kind}-limit",
            f"anthropic-ratelimit-{kind}-remaining",
            f"anthropic-ratelimit-{kind}-reset",
        ),
    ):
        values = [_count(headers.get(name)) for name in (limit, remaining)]
        seconds = seconds_until(headers.get(reset, ""), moment)
        if values[0] is not None and values[1] is not None and seconds is not None:
            return Allowance(kind, values[0], values[1], seconds)
    return None


def _count(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _clock(headers: Mapping[str, str], now: datetime | None) -> datetime:
    """Return the server's time if stated, since its other times refer to that clock."""
    if now is not None:
        return now
    try:
        date = email.utils.parsedate_to_datetime(headers["date"])
    except (KeyError, ValueError, TypeError, IndexError, OverflowError):
        return datetime.now(UTC)
    return date if date.tzinfo else date.replace(tzinfo=UTC)


_LOOK = 5.0
"""Seconds after which a window can be distinguished from a bucket."""

_GAIN = 19.0
"""Gain of the control: a bucket or sliding window settles with 1 / (1 + gain) remaining."""

_ROUNDING = 0.5
"""Least seconds until a partly used limit is whole, since reset times are rounded."""


@dataclass
class _Left:
    """The state of one limit: the newest headers, less the requests sent since.

    Attributes:
        limit, remaining: in units of the limit; `remaining` may be negative.
        full_at: the time when the limit is whole again.
        as_of: the time when the request of the newest headers was sent.
        since, full_then: a former time and its `full_at`, to distinguish windows from buckets.
        window: whether the limit is a fixed window that ends at `full_at`. The `full_at` of a
            bucket or a sliding window recedes while it is used; that of a fixed window does not.
    """

    limit: float
    remaining: float
    full_at: float
    as_of: float
    since: float
    full_then: float
    window: bool = False

    def renew(self, now: float, new: Allowance, reserved: float, sent_at: float) -> None:
        """Update the state from headers of a request that was sent at `sent_at`."""
        self.limit, self.remaining = new.limit, new.remaining - reserved
        reset = max(new.reset, _ROUNDING) if new.remaining < new.limit else new.reset
        self.full_at, self.as_of = now + reset, sent_at
        elapsed = now - self.since
        if elapsed >= _LOOK:
            # Reset times are rounded to a second.
            self.window = self.full_at - self.full_then < 1.1 + 0.2 * elapsed
        if now >= self.full_then or (elapsed >= 2.0 * _LOOK and not self.window):
            self.since, self.full_then = now, self.full_at

    def gap(self, now: float, cost: float) -> float:
        """Return the seconds between requests of `cost` units each; 0 for no limit."""
        time = self.full_at - now
        if time <= 0.0 or cost <= 0.0:
            return 0.0
        if self.remaining >= cost:
            return time * cost / self.remaining / (1.0 if self.window else _GAIN)
        if self.window:
            return time
        # Enough is available before all is: wait twice the proportional time, to be safe.
        used = max(self.limit - self.remaining, cost)
        return min(time, 2.0 * time * cost / used)


class HeaderLimits:
    """The states of all limits that a provider's headers mention.

    Attributes:
        cost: mean cost of a request in each kind of unit, as measured from answers.
    """

    def __init__(self) -> None:
        self._left: dict[str, _Left] = {}
        self.cost: dict[str, float] = {"requests": 1.0}

    def gap(self, now: float) -> float:
        """Return the seconds between requests by the strictest limit; 0 if none is known."""
        gaps = (limit.gap(now, self.cost.get(kind, 0.0)) for kind, limit in self._left.items())
        return max(gaps, default=0.0)

    def sent(self, tokens: float) -> None:
        """Count a request that is sent; `tokens` is an estimate, used until the first answer."""
        self.cost.setdefault("tokens", tokens)
        for kind, limit in self._left.items():
            limit.remaining -= self.cost.get(kind, 0.0)

    def used(self, prompt: float, completion: float) -> None:
        """Update the mean cost by the tokens of an answer."""
        self._weigh("input-tokens", prompt)
        self._weigh("output-tokens", completion)
        self._weigh("tokens", prompt + completion)

    def _weigh(self, kind: str, tokens: float) -> None:
        before = self.cost.get(kind)
        self.cost[kind] = tokens if not before else before + 0.1 * (tokens - before)

    def learn(
        self, now: float, sent_at: float, allowances: tuple[Allowance, ...], in_flight: int
    ) -> None:
        """Update the limits from the headers of a request that was sent at `sent_at`."""
        for new in allowances:
            limit = self._left.get(new.kind)
            if limit is not None and sent_at < limit.as_of:
                continue  # older than the newest headers
            # Requests in flight may not be counted yet: subtract them.
            reserved = in_flight * self.cost.get(new.kind, 0.0)
            if limit is None:
                full = now + new.reset
                limit = _Left(new.limit, new.remaining, full, sent_at, since=now, full_then=full)
                self._left[new.kind] = limit
            limit.renew(now, new, reserved, sent_at)
