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
"""

from __future__ import annotations

import math
from collections import deque

from llm_elicit.orchestrator.rate_limit_headers import Allowance, HeaderLimits

_SLACK = 0.25
"""Seconds of delay that may be made up for, since timers are not exact."""

_BELOW = 0.95
"""The share of the measured rate used after congestion."""

_HOLD = 500
"""Number of answers after which the measured rate is reached again and growth accelerates."""

_BACKGROUND, _MEMORY, _CALM = 0.02, 100.0, 0.25
"""The background share: its initial value, the number of outcomes it is averaged over, and the part
of the hold, where the rate is clearly below the measured one, in which it is updated."""

_MOST_BACKGROUND = 0.08
"""Largest background share; just after a burst, at a rate still too high, many are refused."""

_LOWER = 0.8
"""If congestion lowers the measured rate below this part of it, the rate was too high until then,
and its refusals do not count as background."""

_MORE, _EVIDENCE = 0.1, 6.0
"""The test: the additional refused share to detect, and the log of the likelihood ratio needed."""

_MEASURED = 128
"""Number of answers over which goodput is measured."""

_FEW = 16
"""Fewer answers than this measure nothing over a pause."""

_PROBE, _RARER = 5.0, 0.6
"""Initial rate of probes per second if nothing is admitted; it falls from step to step."""

_RAREST = 30.0
"""Seconds between two probes at most, where the provider asks for no longer wait."""

_IDLE = 0.5
"""Longer times without anything to send are excluded from the measured rate."""


class RateLimiter:
    """The pace of one account at one model.

    Args:
        now: the clock, in seconds; every other `now` is read from the same one.
        window: requests in flight at the start.

    Examples:
        >>> limiter = RateLimiter(now=0.0)
        >>> limiter.fix(requests=10.0, tokens=None)
        >>> for _ in range(4): limiter.sent(0.0)
        >>> round(limiter.delay(0.0), 3)
        0.15
    """

    def __init__(self, now: float, window: float = 32.0) -> None:
        self._headers = HeaderLimits()
        self._most = math.inf
        self._most_tokens = math.inf
        self._in_flight = 0
        self._next_at = now - _SLACK
        self._last_at = now
        self._resume_at = now
        # What was found: the rate and the mean in flight that the provider let through.
        self._found_rate = math.inf
        self._found_flight = math.inf
        self._start = window
        self._background = self._earlier_background = _BACKGROUND
        # Since the last congestion:
        self._cut_at = -math.inf
        self._score = 0.0
        self._grown = 0.0
        self._hold = float(_HOLD)
        self._answers: deque[float] = deque(maxlen=_MEASURED)
        self._latency, self._measured = 0.0, 0
        # While nothing gets through:
        self._closed = 0
        self._shut_at = now
        self._since_shut = 0

    @property
    def rate(self) -> float:
        """The measured rate in requests per second; infinite until there is a limit."""
        if self._closed:
            first = min(self._found_rate, _PROBE)
            return max(first * _RARER ** (self._closed - 1), 1.0 / _RAREST)
        return self._found_rate * self._growth()

    @property
    def in_flight(self) -> int:
        """The number of requests in flight."""
        return self._in_flight

    def _growth(self) -> float:
        """Return the factor of CUBIC: slightly below 1, then near it, then above."""
        return 1.0 + (1.0 - _BELOW) * (self._grown / self._hold - 1.0) ** 3

    def _window(self) -> float:
        """Return how many requests may be in flight; 1 while every request is refused."""
        if self._closed:
            return 1.0
        window = self._found_flight * self._growth()
        return max(min(self._start, math.ceil(window) if math.isfinite(window) else window), 1.0)

    def scale(self, factor: float) -> None:
        """Scale the measured rate and window, when other workers join or leave."""
        self._found_rate *= factor
        self._found_flight *= factor

    def fix(self, requests: float | None, tokens: float | None) -> None:
        """Set fixed limits on requests and tokens per second; None for none."""
        self._most = requests or math.inf
        self._most_tokens = tokens or math.inf

    def hold(self, until: float) -> None:
        """Send nothing before a time."""
        self._resume_at = max(self._resume_at, until)

    def delay(self, now: float) -> float:
        """Return the seconds until a request may be sent; infinity if it waits for an answer."""
        if self._in_flight >= self._window():
            return math.inf
        return max(self._free_at(now) - now, 0.0)

    def _free_at(self, now: float) -> float:
        """Return the time when a request may be sent, apart from the window."""
        by_headers = self._last_at + self._headers.gap(now)
        return max(self._resume_at, self._next_at, by_headers)

    def sent(self, now: float, tokens: float = 0.0) -> None:
        """Count a request that is sent; `tokens` is an estimate, used until the first answer."""
        idle = now - max(self._last_at, self._free_at(now))
        if idle > _IDLE and not self._in_flight:
            # Nothing was sent meanwhile: this is not the provider's rate.
            self._answers.clear()
            self._shut_at += idle
        self._headers.sent(tokens)
        gap = 1.0 / min(self.rate, self._most)
        gap = max(gap, self._headers.cost["tokens"] / self._most_tokens)
        self._next_at = max(self._next_at, now - _SLACK) + gap
        self._last_at = now
        self._in_flight += 1

    def answered(
        self,
        now: float,
        sent_at: float,
        left: tuple[Allowance, ...] = (),
        tokens: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """Count an answer.

        Args:
            now, sent_at: the times of the answer and of its request.
            left: the limits in its headers.
            tokens: tokens of the prompt and of the answer.
        """
        self._in_flight -= 1
        self._headers.used(*tokens)
        self._headers.learn(now, sent_at, left, self._in_flight)
        self._since_shut += 1
        self._start += 1.0
        if sent_at < self._cut_at:
            return  # sent before the last congestion
        if self._closed:
            self._open(now)
        self._answers.append(now)
        self._measured = min(self._measured + 1, _MEASURED)
        self._latency += (now - sent_at - self._latency) / self._measured
        self._grown += 1.0
        self._weigh(refused=False)

    def refused(
        self,
        now: float,
        sent_at: float,
        wait: float | None = None,
        left: tuple[Allowance, ...] = (),
        limit: bool = True,
    ) -> None:
        """Count a request that the provider refused or could not serve.

        Args:
            now, sent_at: the times of the refusal and of its request.
            wait: seconds that the provider asks to wait, used while every request is refused.
            left: the limits in its headers.
            limit: whether the refusal names a rate limit.
        """
        self._in_flight -= 1
        self._headers.learn(now, sent_at, left, self._in_flight)
        if sent_at < self._cut_at:
            return
        self._weigh(refused=True)
        if self._score >= _EVIDENCE:
            self._congested(now, limit)
        if self._closed and wait is not None:
            self.hold(now + wait)

    def lost(self) -> None:
        """Count a request that failed for reasons other than the rate."""
        self._in_flight -= 1

    def _weigh(self, refused: bool) -> None:
        """Update the test and the background share by one outcome."""
        usual = min(self._background + 0.01, 0.5)
        more = 2.0 * usual + _MORE
        change = math.log(more / usual) if refused else math.log((1 - more) / (1 - usual))
        self._score = max(self._score + change, 0.0)
        if (
            self._grown <= _CALM * self._hold
            and math.isfinite(self._found_rate)
            and not self._closed
        ):
            background = self._background + (refused - self._background) / _MEMORY
            self._background = min(background, _MOST_BACKGROUND)

    def _congested(self, now: float, limit: bool) -> None:
        """Handle congestion: measure the rate, or probe if every request is refused."""
        early, before = self._grown <= _CALM * self._hold, self._found_rate
        if self._closed:
            self._closed += 1
        elif not self._answers:
            self._shut(now, limit)
        else:
            self._cut(now)
        if early and self._found_rate < _LOWER * before:
            # The rate was still too high: the limit caused the refusals meanwhile.
            self._background = self._earlier_background
        self._earlier_background = self._background
        self._cut_at, self._score, self._grown = now, 0.0, 0.0
        self._answers.clear()
        self._next_at = max(self._next_at, now + 1.0 / self.rate)

    def _cut(self, now: float) -> None:
        """Take the measured goodput as the provider's rate."""
        count, span = len(self._answers), now - self._answers[0]
        goodput = (count - 1) / span if count > 1 else 1.0 / (span + self._latency)
        share = 1.0 - min(self._background, 1.0 - _BELOW)
        self._found_rate = min(goodput / share, self.rate)
        self._hold = _hold(count)
        self._found_flight = goodput * self._latency / share

    def _shut(self, now: float, limit: bool) -> None:
        """Start probing: every request is refused."""
        if limit:
            count, span = self._since_shut, max(now - self._shut_at, 1e-3)
            if count >= _FEW:
                self._found_rate = min(self._found_rate, count / span)
                self._hold = _hold(count)
            self._shut_at, self._since_shut = now, 0
        self._closed = 1

    def _open(self, now: float) -> None:
        """Return to the former rate with a slow start."""
        self._closed = 0
        self._start = 2.0
        self._next_at = now


def _hold(count: int) -> float:
    """Return the hold: a rate measured from few answers is exceeded soon."""
    return min(8.0 * count, float(_HOLD))
