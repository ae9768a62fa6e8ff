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
"""More seconds than this are no wait but a moment, counted from 1970."""

_EPOCH_MS = 1e11


@dataclass(frozen=True)
class Allowance:
    """What a provider says is left of one of its limits.

    Attributes:
        kind: what is counted.
        limit: how much there is when nothing is used.
        remaining: how much is left.
        reset: seconds until all of it is there again.
    """

    kind: Kind
    limit: float
    remaining: float
    reset: float


def seconds_until(text: str, now: datetime) -> float | None:
    """Seconds from `now` that a header means: every form that providers use.

    Read are seconds ("7", "0.5"), durations ("6m0s", "12ms"), moments (seconds or milliseconds
    since 1970, RFC 3339, an HTTP date). None where it is none of them; never negative.

    Example:
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


def _number(text: str, now: datetime) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    if value >= _EPOCH_MS:
        return value / 1e3 - now.timestamp()
    return value - now.timestamp() if value >= _EPOCH else value


def _duration(text: str, now: datetime) -> float | None:
    del now
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _moment(text: str, now: datetime) -> float | None:
    for read in (datetime.fromisoformat, email.utils.parsedate_to_datetime):
        try:
            moment = read(text)
        except (ValueError, TypeError, OverflowError, IndexError):
            continue
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        try:
            return (moment - now).total_seconds()
        except OverflowError:
            return None
    return None


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds that a refusal asks to wait, or None.

    Retry-After-Ms and Retry-After come first, then a plain reset. What is said of a single
    limit is an `Allowance`: full again is later than enough again.

    Example:
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
    """What is left of each limit that the headers speak of: x-ratelimit-*, anthropic-ratelimit-*.

    Example:
        >>> allowances({"x-ratelimit-limit-requests": "600",
        ...             "x-ratelimit-remaining-requests": "599",
        ...             "x-ratelimit-reset-requests": "100ms"})
        (Allowance(kind='requests', limit=600.0, remaining=599.0, reset=0.1),)
    """
    if not headers:
        return ()
    moment = _clock(headers, now)
    found = (_allowance(headers, kind, moment) for kind in _KINDS)
    return tuple(allowance for allowance in found if allowance is not None)


def _allowance(headers: Mapping[str, str], kind: Kind, now: datetime) -> Allowance | None:
    for limit, remaining, reset in (
        (f"x-ratelimit-limit-{kind}", f"x-ratelimit-remaining-{kind}", f"x-ratelimit-reset-{kind}"),
        (
            f"anthropic-ratelimit-{kind}-limit",
            f"anthropic-ratelimit-{kind}-remaining",
            f"anthropic-ratelimit-{kind}-reset",
        ),
    ):
        values = [_count(headers.get(name)) for name in (limit, remaining)]
        seconds = seconds_until(headers.get(reset, ""), now)
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
    """The server's clock where it tells it, since its moments are by that clock."""
    if now is not None:
        return now
    try:
        date = email.utils.parsedate_to_datetime(headers["date"])
    except (KeyError, ValueError, TypeError, IndexError, OverflowError):
        return datetime.now(UTC)
    return date if date.tzinfo else date.replace(tzinfo=UTC)


_LOOK = 5.0
"""Seconds after which a window can be told from a bucket."""

_GAIN = 19.0
"""How eagerly what is left is spent: a bucket or sliding window settles at 1 / (1 + gain) left."""

_ROUNDING = 0.5
"""Seconds at least until a limit is whole of which something is used: moments come rounded."""


@dataclass
class _Left:
    """What is left of one limit, by the newest word of it and what has left since.

    Attributes:
        limit, remaining: units; `remaining` may be below zero.
        full_at: when all of it is there again.
        as_of: when the request left whose response said so.
        since, full_then: the clock and `full_at` some time ago, to tell windows from buckets.
        window: whether the limit starts anew at `full_at`. A bucket's, or a sliding window's,
            moment of being full recedes while it is used; a window's end stays where it is.
    """

    limit: float
    remaining: float
    full_at: float
    as_of: float
    since: float
    full_then: float
    window: bool = False

    def renew(self, now: float, one: Allowance, spoken_for: float, sent_at: float) -> None:
        """Newer word came, of a request that left at `sent_at`."""
        self.limit, self.remaining = one.limit, one.remaining - spoken_for
        reset = max(one.reset, _ROUNDING) if one.remaining < one.limit else one.reset
        self.full_at, self.as_of = now + reset, sent_at
        elapsed = now - self.since
        if elapsed >= _LOOK:
            # Moments come rounded to a second.
            self.window = self.full_at - self.full_then < 1.1 + 0.2 * elapsed
        if now >= self.full_then or (elapsed >= 2.0 * _LOOK and not self.window):
            self.since, self.full_then = now, self.full_at

    def gap(self, now: float, cost: float) -> float:
        """Seconds from one request to the next, at `cost` units each; 0 for no limit."""
        time = self.full_at - now
        if time <= 0.0 or cost <= 0.0:
            return 0.0
        if self.remaining >= cost:
            return time * cost / self.remaining / (1.0 if self.window else _GAIN)
        if self.window:
            return time
        # There is enough again sooner than all; twice that, to be sure.
        used = max(self.limit - self.remaining, cost)
        return min(time, 2.0 * time * cost / used)


class HeaderLimits:
    """What is left of each limit that a provider speaks of.

    Attributes:
        cost: what a request takes of each kind, as answers tell.
    """

    def __init__(self) -> None:
        self._left: dict[str, _Left] = {}
        self.cost: dict[str, float] = {"requests": 1.0}

    def gap(self, now: float) -> float:
        """Seconds between requests, by the strictest limit; 0 where none is known."""
        gaps = (left.gap(now, self.cost.get(kind, 0.0)) for kind, left in self._left.items())
        return max(gaps, default=0.0)

    def sent(self, tokens: float) -> None:
        """A request leaves; `tokens` is a guess, used until answers tell what one takes."""
        self.cost.setdefault("tokens", tokens)
        for kind, left in self._left.items():
            left.remaining -= self.cost.get(kind, 0.0)

    def used(self, prompt: float, completion: float) -> None:
        """An answer took so many tokens."""
        self._weigh("input-tokens", prompt)
        self._weigh("output-tokens", completion)
        self._weigh("tokens", prompt + completion)

    def _weigh(self, kind: str, tokens: float) -> None:
        before = self.cost.get(kind)
        self.cost[kind] = tokens if not before else before + 0.1 * (tokens - before)

    def learn(
        self, now: float, sent_at: float, left: tuple[Allowance, ...], in_flight: int
    ) -> None:
        """A response to a request that left at `sent_at` says what is left."""
        for one in left:
            known = self._left.get(one.kind)
            if known is not None and sent_at < known.as_of:
                continue  # an older word than the one we have
            # Whether those in flight are counted already is not known: they are taken off.
            spoken_for = in_flight * self.cost.get(one.kind, 0.0)
            if known is None:
                full = now + one.reset
                known = _Left(one.limit, one.remaining, full, sent_at, since=now, full_then=full)
                self._left[one.kind] = known
            known.renew(now, one, spoken_for, sent_at)
