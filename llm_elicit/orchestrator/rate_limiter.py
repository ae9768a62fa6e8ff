"""How fast one account may ask one model: a pure state machine over the clock it is given.

The strictest of three things holds a request back: fixed limits, what the provider's headers say
is left, and a rate and a window of its own, which follow from what is refused:

- **Refusals by chance are no limit.** Congestion is declared by a test (Page's CUSUM) of the
  refused share against the share that is refused at any rate. One refusal tells nothing.
- **On congestion the goodput just measured is the provider's rate.** A little less than that is
  asked for, and at most as many requests are in flight as goodput times latency (Little's law),
  so that a limit on rate and one on concurrency are met alike, and a false alarm costs little.
- **Then the rate grows as CUBIC does:** it approaches the measured rate, stays there a while, and
  looks beyond it faster and faster. Growth counts answers, not seconds, so that looking costs the
  same share of refusals at any rate.
- **Where nothing gets through, probes follow one by one**, ever rarer; the first answer brings the
  former rate back, over a slow start. If a provider refuses everything for a second time, the rate
  is what it let through from the first time to the second, pauses included: so is a quota an hour
  or a minute met.
"""

from __future__ import annotations

import math
from collections import deque

from llm_elicit.orchestrator.rate_limit_headers import Allowance, HeaderLimits

_SLACK = 0.25
"""Seconds of lateness that may be caught up with: timers are not exact."""

_BELOW = 0.95
"""The share of the measured rate that is asked for after congestion."""

_HOLD = 500
"""After so many answers the measured rate is reached again, and growth turns upwards."""

_BACKGROUND, _MEMORY, _CALM = 0.02, 100.0, 0.25
"""The share refused at any rate: its first value, over how many outcomes it is averaged, and for
which part of the hold, while the rate is clearly below the measured one."""

_MOST_BACKGROUND = 0.08
"""More than this is a limit: refusals just after a burst, at a rate still too high, are many."""

_LOWER = 0.8
"""A congestion that lowers the measured rate to less than this part of it shows that the rate was
too high until then, and that its refusals were no background."""

_MORE, _EVIDENCE = 0.1, 6.0
"""The test: so much more than is refused anyway; odds of e to this against chance."""

_MEASURED = 128
"""Goodput is measured over so many answers."""

_FEW = 16
"""Fewer answers than this measure nothing over a pause."""

_PROBE, _RARER = 5.0, 0.6
"""Probes a second at first where nothing gets through; each next step of them is rarer."""

_RAREST = 30.0
"""Seconds between two probes at most, where the provider asks for no longer wait."""

_IDLE = 0.5
"""A longer time without anything to send is left out of what is measured."""


class RateLimiter:
    """The pace of one account at one model.

    Args:
        now: the clock, in seconds; every other `now` is read from the same one.
        window: requests in flight at the start.

    Example:
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
        """Requests a second that may leave by what was found; infinite until there is a limit."""
        if self._closed:
            first = min(self._found_rate, _PROBE)
            return max(first * _RARER ** (self._closed - 1), 1.0 / _RAREST)
        return self._found_rate * self._growth()

    @property
    def in_flight(self) -> int:
        """Requests that are under way."""
        return self._in_flight

    def _growth(self) -> float:
        """CUBIC: from a little below what was found, along it, and beyond."""
        return 1.0 + (1.0 - _BELOW) * (self._grown / self._hold - 1.0) ** 3

    def _window(self) -> float:
        """Requests that may be in flight; one at a time where nothing gets through."""
        if self._closed:
            return 1.0
        found = self._found_flight * self._growth()
        return max(min(self._start, math.ceil(found) if math.isfinite(found) else found), 1.0)

    def scale(self, factor: float) -> None:
        """From now on this part of what was found is ours: others joined, or left."""
        self._found_rate *= factor
        self._found_flight *= factor

    def fix(self, requests: float | None, tokens: float | None) -> None:
        """Keep to so many requests and tokens a second; None for no fixed limit."""
        self._most = requests or math.inf
        self._most_tokens = tokens or math.inf

    def hold(self, until: float) -> None:
        """Nothing leaves before that."""
        self._resume_at = max(self._resume_at, until)

    def delay(self, now: float) -> float:
        """Seconds until the next request may leave; 0 for now, infinity for after an answer."""
        if self._in_flight >= self._window():
            return math.inf
        return max(self._free_at(now) - now, 0.0)

    def _free_at(self, now: float) -> float:
        """The clock when a request may leave, by all but the window."""
        by_headers = self._last_at + self._headers.gap(now)
        return max(self._resume_at, self._next_at, by_headers)

    def sent(self, now: float, tokens: float = 0.0) -> None:
        """A request leaves; `tokens` is a guess, used until answers tell what one takes."""
        idle = now - max(self._last_at, self._free_at(now))
        if idle > _IDLE and not self._in_flight:
            # Nobody asked meanwhile: that is no pace of the provider's.
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
        """An answer came.

        Args:
            now, sent_at: when it came and when its request left.
            left: what the provider says is left.
            tokens: of the prompt and of the answer.
        """
        self._in_flight -= 1
        self._headers.used(*tokens)
        self._headers.learn(now, sent_at, left, self._in_flight)
        self._since_shut += 1
        self._start += 1.0
        if sent_at < self._cut_at:
            return  # it left before the last congestion: it tells nothing new
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
        """The provider refused a request, or could not serve it.

        Args:
            now, sent_at: when that was known and when the request left.
            wait: seconds that the provider asks for; they count while nothing gets through.
            left: what it says is left.
            limit: whether it says that a limit was passed.
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
        """A request came to nothing in a way that tells nothing of the pace."""
        self._in_flight -= 1

    def _weigh(self, refused: bool) -> None:
        """One more outcome for the test, and for what is refused at any rate."""
        usual = min(self._background + 0.01, 0.5)
        more = 2.0 * usual + _MORE
        change = math.log(more / usual) if refused else math.log((1 - more) / (1 - usual))
        self._score = max(self._score + change, 0.0)
        if (
            self._grown <= _CALM * self._hold
            and math.isfinite(self._found_rate)
            and not self._closed
        ):
            found = self._background + (refused - self._background) / _MEMORY
            self._background = min(found, _MOST_BACKGROUND)

    def _congested(self, now: float, limit: bool) -> None:
        """The test declares congestion: learn the rate, or probe where nothing gets through."""
        early, before = self._grown <= _CALM * self._hold, self._found_rate
        if self._closed:
            self._closed += 1
        elif not self._answers:
            self._shut(now, limit)
        else:
            self._cut(now)
        if early and self._found_rate < _LOWER * before:
            # The rate was still too high: what was refused meanwhile was refused for the limit.
            self._background = self._earlier_background
        self._earlier_background = self._background
        self._cut_at, self._score, self._grown = now, 0.0, 0.0
        self._answers.clear()
        self._next_at = max(self._next_at, now + 1.0 / self.rate)

    def _cut(self, now: float) -> None:
        """Take what is let through for the provider's rate."""
        count, span = len(self._answers), now - self._answers[0]
        goodput = (count - 1) / span if count > 1 else 1.0 / (span + self._latency)
        share = 1.0 - min(self._background, 1.0 - _BELOW)
        self._found_rate = min(goodput / share, self.rate)
        self._hold = _hold(count)
        self._found_flight = goodput * self._latency / share

    def _shut(self, now: float, limit: bool) -> None:
        """Nothing gets through."""
        if limit:
            count, span = self._since_shut, max(now - self._shut_at, 1e-3)
            if count >= _FEW:
                self._found_rate = min(self._found_rate, count / span)
                self._hold = _hold(count)
            self._shut_at, self._since_shut = now, 0
        self._closed = 1

    def _open(self, now: float) -> None:
        """Something gets through again: back to the former rate, over a slow start."""
        self._closed = 0
        self._start = 2.0
        self._next_at = now


def _hold(count: int) -> float:
    """A rate that few answers measured is soon looked beyond."""
    return min(8.0 * count, float(_HOLD))
