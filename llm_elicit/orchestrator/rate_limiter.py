"""The rate at which one account may ask one model: a pure state machine, with time as an argument.

A request waits for the strictest of three limits: fixed limits, the remaining amounts in the
provider's headers, and a measured rate and window, which follow from refused requests:

- **A few random refusals are not a limit.** Congestion is declared by a test (Page's CUSUM) of the
  share of refused requests against the background share, which is refused at any rate.
- **At congestion the measured goodput is taken as the provider's rate.** The limiter then asks for
  slightly less, and keeps at most goodput times latency requests in flight (Little's law), so that
  limits on rate and on concurrency are handled alike, and a false alarm costs little.
- **The rate then grows as in CUBIC:** it approaches the measured rate, stays near it, and probes
  beyond it at an increasing pace. Growth counts answers, not seconds, so that probing costs the
  same share of refusals at any rate.
- **If every request is refused, single probes follow**, at growing intervals; the first answer
  restores the former rate with a slow start. If a provider refuses everything a second time, the
  rate is what it accepted between the two, pauses included, so that quotas per minute or hour are
  met as well.

Reading a header never raises. The pace is proportional to what the headers say is left: requests
slow down before any is refused. At a token bucket the pace settles at the bucket's refill rate; a
fixed window is used up just as it ends.
"""

from __future__ import annotations

import email.utils
import math
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

Kind = Literal["requests", "tokens", "input-tokens", "output-tokens"]

_KINDS: tuple[Kind, ...] = ("requests", "tokens", "input-tokens", "output-tokens")
_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_MIN_TIMESTAMP = 1e9
"""A number of seconds from this on is a time since 1970, not a wait."""

_MIN_TIMESTAMP_MS = 1e11


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
    if value >= _MIN_TIMESTAMP_MS:
        return value / 1e3 - moment.timestamp()
    return value - moment.timestamp() if value >= _MIN_TIMESTAMP else value


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
    """Return the seconds that a refusal asks to wait; None if it states none.

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
        if limit not in headers:
            continue
        values = [_count(headers.get(name, "")) for name in (limit, remaining)]
        seconds = seconds_until(headers.get(reset, ""), moment)
        if values[0] is not None and values[1] is not None and seconds is not None:
            return Allowance(kind, values[0], values[1], seconds)
    return None


def _count(text: str) -> float | None:
    try:
        value = float(text)
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


_MIN_OBSERVATION = 5.0
"""Seconds after which a window can be distinguished from a bucket."""

_GAIN = 19.0
"""Gain of the control: a bucket or sliding window settles with 1 / (1 + gain) remaining."""

_ROUNDING = 0.5
"""Smallest number of seconds until a partly used limit is whole: reset times are rounded."""


@dataclass
class _LimitState:
    """The state of one limit: the newest headers, less the requests sent since.

    Attributes:
        former_time, former_full_at: an earlier time and `full_at` then, to distinguish windows from
            buckets.
        limit, remaining: in units of the limit; `remaining` may be negative.
        full_at: the time when the limit is whole again.
        as_of: the time when the request of the newest headers was sent.
        window: whether the limit is a fixed window that ends at `full_at`. The `full_at` of a
            bucket or a sliding window recedes while it is used; that of a fixed window does not.
    """

    former_time: float
    former_full_at: float
    limit: float = 0.0
    remaining: float = 0.0
    full_at: float = 0.0
    as_of: float = -math.inf
    window: bool = False

    def update(self, now: float, header: Allowance, reserved: float, sent_at: float) -> None:
        """Update the state from headers of a request that was sent at `sent_at`."""
        self.limit, self.remaining = header.limit, header.remaining - reserved
        reset = max(header.reset, _ROUNDING) if header.remaining < header.limit else header.reset
        self.full_at, self.as_of = now + reset, sent_at
        elapsed = now - self.former_time
        if elapsed >= _MIN_OBSERVATION:
            # Reset times are rounded to a second.
            self.window = self.full_at - self.former_full_at < 1.1 + 0.2 * elapsed
        if now >= self.former_full_at or (elapsed >= 2.0 * _MIN_OBSERVATION and not self.window):
            self.former_time, self.former_full_at = now, self.full_at

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
        self._states: dict[str, _LimitState] = {}
        self.cost: dict[str, float] = {"requests": 1.0}

    def gap(self, now: float) -> float:
        """Return the seconds between requests by the strictest limit; 0 if none is known."""
        gaps = (limit.gap(now, self.cost.get(kind, 0.0)) for kind, limit in self._states.items())
        return max(gaps, default=0.0)

    def record_sent(self, tokens: float) -> None:
        """Count a request that is sent; `tokens` is an estimate, used until the first answer."""
        self.cost.setdefault("tokens", tokens)
        for kind, limit in self._states.items():
            limit.remaining -= self.cost.get(kind, 0.0)

    def record_usage(self, prompt: float, completion: float) -> None:
        """Update the mean cost by the tokens of an answer."""
        self._update_mean("input-tokens", prompt)
        self._update_mean("output-tokens", completion)
        self._update_mean("tokens", prompt + completion)

    def _update_mean(self, kind: str, tokens: float) -> None:
        mean = self.cost.get(kind)
        self.cost[kind] = tokens if not mean else mean + 0.1 * (tokens - mean)

    def learn(
        self, now: float, sent_at: float, allowances: tuple[Allowance, ...], in_flight: int
    ) -> None:
        """Update the limits from the headers of a request that was sent at `sent_at`."""
        for allowance in allowances:
            state = _LimitState(now, now + allowance.reset)
            state = self._states.setdefault(allowance.kind, state)
            if sent_at >= state.as_of:  # else older than the newest headers
                # Requests in flight may not be counted yet: subtract them.
                reserved = in_flight * self.cost.get(allowance.kind, 0.0)
                state.update(now, allowance, reserved, sent_at)


_SLACK = 0.25
"""Seconds of delay that later requests may make up for, since timers are not exact."""

_REDUCED_SHARE = 0.95
"""The share of the measured rate used after congestion."""

_MAX_HOLD = 500
"""Number of answers after which the measured rate is reached again and growth accelerates."""

_INITIAL_BACKGROUND, _BACKGROUND_OUTCOMES, _CALM_SHARE = 0.02, 100.0, 0.25
"""The background share: its initial value, the number of outcomes that it is averaged over, and the
first part of the hold, in which it is updated, since the rate is then clearly below the measured
one."""

_MAX_BACKGROUND = 0.08
"""Largest background share; just after a burst, at a rate still too high, many are refused."""

_LARGE_DROP = 0.8
"""If congestion lowers the measured rate below this part of it, the rate was too high until then,
and its refusals do not count as background."""

_ADDITIONAL_SHARE, _MIN_LOG_RATIO = 0.1, 6.0
"""The test: the additional refused share to detect, and the log of the likelihood ratio needed."""

_GOODPUT_ANSWERS = 128
"""Number of answers over which goodput is measured."""

_MIN_ANSWERS = 16
"""Smallest number of answers from which a rate is measured over a pause."""

_PROBE_RATE, _PROBE_DECAY = 5.0, 0.6
"""Initial rate of probes per second if nothing is admitted; it falls from step to step."""

_MAX_PROBE_INTERVAL = 30.0
"""Seconds between two probes at most, where the provider asks for no longer wait."""

_MAX_IDLE = 0.5
"""Longer times without anything to send are excluded from the measured rate."""


class RateLimiter:
    """The pace of one account at one model.

    Args:
        now: the clock, in seconds; every other `now` is read from the same one.
        window: requests in flight at the start.

    Examples:
        >>> limiter = RateLimiter(now=0.0)
        >>> limiter.set_limits(requests=10.0, tokens=None)
        >>> for _ in range(4): limiter.record_sent(0.0)
        >>> round(limiter.delay(0.0), 3)
        0.15
    """

    def __init__(self, now: float, window: float = 32.0) -> None:
        self._headers = HeaderLimits()
        self._max_rate = math.inf
        self._max_token_rate = math.inf
        self._in_flight = 0
        self._next_at = now - _SLACK
        self._last_at = now
        self._resume_at = now
        # The rate and the mean number in flight that the provider let through.
        self._measured_rate = math.inf
        self._measured_in_flight = math.inf
        self._slow_start_window = window
        self._background = self._earlier_background = _INITIAL_BACKGROUND
        # Since the last congestion:
        self._congested_at = -math.inf
        self._score = 0.0
        self._grown = 0.0
        self._hold = float(_MAX_HOLD)
        self._answers: deque[float] = deque(maxlen=_GOODPUT_ANSWERS)
        self._latency, self._latency_count = 0.0, 0
        # While nothing gets through:
        self._blocked_steps = 0
        self._blocked_at = now
        self._answers_since_block = 0

    @property
    def rate(self) -> float:
        """The measured rate in requests per second; infinite until there is a limit."""
        if self._blocked_steps:
            first = min(self._measured_rate, _PROBE_RATE)
            return max(first * _PROBE_DECAY ** (self._blocked_steps - 1), 1.0 / _MAX_PROBE_INTERVAL)
        return self._measured_rate * self._growth()

    @property
    def in_flight(self) -> int:
        """The number of requests in flight."""
        return self._in_flight

    def _growth(self) -> float:
        """Return the factor of CUBIC: slightly below 1, then near it, then above."""
        return 1.0 + (1.0 - _REDUCED_SHARE) * (self._grown / self._hold - 1.0) ** 3

    def scale(self, factor: float) -> None:
        """Scale the measured rate and window, when other workers join or leave."""
        self._measured_rate *= factor
        self._measured_in_flight *= factor

    def set_limits(self, requests: float | None, tokens: float | None) -> None:
        """Set fixed limits on requests and tokens per second; None for none."""
        self._max_rate = requests or math.inf
        self._max_token_rate = tokens or math.inf

    def pause_until(self, until: float) -> None:
        """Send nothing before a time."""
        self._resume_at = max(self._resume_at, until)

    def delay(self, now: float) -> float:
        """Return the seconds until a request may be sent; infinity if it waits for an answer."""
        window = 1.0  # while every request is refused
        if not self._blocked_steps:
            window = self._measured_in_flight * self._growth()
            window = math.ceil(window) if math.isfinite(window) else window
            window = max(min(self._slow_start_window, window), 1.0)
        if self._in_flight >= window:
            return math.inf
        return max(self._free_at(now) - now, 0.0)

    def _free_at(self, now: float) -> float:
        """Return the time when a request may be sent, apart from the window."""
        by_headers = self._last_at + self._headers.gap(now)
        return max(self._resume_at, self._next_at, by_headers)

    def record_sent(self, now: float, tokens: float = 0.0) -> None:
        """Count a request that is sent; `tokens` is an estimate, used until the first answer."""
        idle = now - max(self._last_at, self._free_at(now))
        if idle > _MAX_IDLE and not self._in_flight:
            # Nothing was sent meanwhile: this is not the provider's rate.
            self._answers.clear()
            self._blocked_at += idle
        self._headers.record_sent(tokens)
        gap = 1.0 / min(self.rate, self._max_rate)
        gap = max(gap, self._headers.cost["tokens"] / self._max_token_rate)
        self._next_at = max(self._next_at, now - _SLACK) + gap
        self._last_at = now
        self._in_flight += 1

    def record_answer(
        self,
        now: float,
        sent_at: float,
        limits: tuple[Allowance, ...] = (),
        tokens: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """Count an answer.

        Args:
            now, sent_at: the times of the answer and of its request.
            limits: the limits in its headers.
            tokens: tokens of the prompt and of the answer.
        """
        self._in_flight -= 1
        self._headers.record_usage(*tokens)
        self._headers.learn(now, sent_at, limits, self._in_flight)
        self._answers_since_block += 1
        self._slow_start_window += 1.0
        if sent_at < self._congested_at:
            return  # sent before the last congestion
        if self._blocked_steps:  # return to the former rate with a slow start
            self._blocked_steps = 0
            self._slow_start_window = 2.0
            self._next_at = now
        self._answers.append(now)
        self._latency_count = min(self._latency_count + 1, _GOODPUT_ANSWERS)
        self._latency += (now - sent_at - self._latency) / self._latency_count
        self._grown += 1.0
        self._update_test(refused=False)

    def record_refusal(
        self,
        now: float,
        sent_at: float,
        wait: float | None = None,
        limits: tuple[Allowance, ...] = (),
        limit: bool = True,
    ) -> None:
        """Count a request that the provider refused or could not serve.

        Args:
            now, sent_at: the times of the refusal and of its request.
            wait: seconds that the provider asks to wait, used while every request is refused.
            limits: the limits in its headers.
            limit: whether the refusal names a rate limit.
        """
        self._in_flight -= 1
        self._headers.learn(now, sent_at, limits, self._in_flight)
        if sent_at < self._congested_at:
            return
        self._update_test(refused=True)
        if self._score >= _MIN_LOG_RATIO:
            self._handle_congestion(now, limit)
        if self._blocked_steps and wait is not None:
            self.pause_until(now + wait)

    def record_failure(self) -> None:
        """Count a request that failed for reasons other than the rate."""
        self._in_flight -= 1

    def _update_test(self, refused: bool) -> None:
        """Update the test and the background share by one outcome."""
        usual = min(self._background + 0.01, 0.5)
        raised = 2.0 * usual + _ADDITIONAL_SHARE
        change = math.log(raised / usual) if refused else math.log((1 - raised) / (1 - usual))
        self._score = max(self._score + change, 0.0)
        if (
            self._grown <= _CALM_SHARE * self._hold
            and math.isfinite(self._measured_rate)
            and not self._blocked_steps
        ):
            background = self._background + (refused - self._background) / _BACKGROUND_OUTCOMES
            self._background = min(background, _MAX_BACKGROUND)

    def _handle_congestion(self, now: float, limit: bool) -> None:
        """Handle congestion: measure the rate, or probe if every request is refused."""
        early, previous_rate = self._grown <= _CALM_SHARE * self._hold, self._measured_rate
        if self._blocked_steps:
            self._blocked_steps += 1
        elif self._answers:
            self._measure_rate(now)
        else:  # every request is refused
            if limit:
                count, span = self._answers_since_block, max(now - self._blocked_at, 1e-3)
                if count >= _MIN_ANSWERS:
                    self._measured_rate = min(self._measured_rate, count / span)
                    self._hold = _hold(count)
                self._blocked_at, self._answers_since_block = now, 0
            self._blocked_steps = 1
        if early and self._measured_rate < _LARGE_DROP * previous_rate:
            # The rate was still too high: the limit caused the refusals meanwhile.
            self._background = self._earlier_background
        self._earlier_background = self._background
        self._congested_at, self._score, self._grown = now, 0.0, 0.0
        self._answers.clear()
        self._next_at = max(self._next_at, now + 1.0 / self.rate)

    def _measure_rate(self, now: float) -> None:
        """Take the measured goodput as the provider's rate."""
        count, span = len(self._answers), now - self._answers[0]
        goodput = (count - 1) / span if count > 1 else 1.0 / (span + self._latency)
        share = 1.0 - min(self._background, 1.0 - _REDUCED_SHARE)
        self._measured_rate = min(goodput / share, self.rate)
        self._hold = _hold(count)
        self._measured_in_flight = goodput * self._latency / share


def _hold(count: int) -> float:
    """Return the hold: a rate measured from few answers is exceeded soon."""
    return min(8.0 * count, float(_MAX_HOLD))
