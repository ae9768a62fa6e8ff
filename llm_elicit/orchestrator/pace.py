"""How fast one account may ask one model: a pure state machine over the clock it is given.

Three things hold a request back, and the strictest of them counts:

- **What the provider says is left.** The pace is in proportion to it, over the time until the limit
  is whole again: it shrinks as what is left shrinks, before anything is refused. A token bucket
  settles where requests leave as fast as it fills, a fixed window is spent as it ends.
- **A rate of its own**, where nothing is said: unlimited until the first refusal. Between two
  refusals, what was let through over the time it took is the provider's rate; a little less than
  that is asked for, and additive steps, which widen with the time since, look for more.
- **A window** of requests in flight, as TCP has one: a low start, one more for each answer, half
  of it when the server is crowded.

A refusal also starts a cool-down for all: as long as the provider asks, or else doubling pauses.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from llm_elicit.orchestrator.headers import Allowance

_SLACK = 0.25
"""Seconds of lateness that may be caught up with: timers are not exact."""

_BELOW = 0.96
"""The share of a measured rate that is asked for after a refusal."""

_STEP = 0.0008
"""The additive step: this share of the rate at the last refusal, each second ..."""

_WIDEN = 45.0
"""... and as much again for every so many seconds since."""

_ENOUGH = 8
"""So many answers between two refusals make a rate measured."""

_DROP = 0.9
"""A rate that held for long falls no faster than to this share of itself."""

_SOON, _SELDOM = 15.0, 100
"""Refusals fewer seconds and fewer answers apart than this come soon after each other."""

_TRIED, _FREEZE = 4, 1000
"""After so many lower rates that did not make them rarer, so many answers pass without another."""

_PROBES = (1.0, 10.0)
"""The first and the longest cool-down, in seconds, where the provider asks for none."""

_LOOK = 5.0
"""Seconds after which a window can be told from a bucket."""

_GAIN = 19.0
"""How eagerly what is left is spent: a bucket or sliding window settles at 1 / (1 + gain) left."""


@dataclass(frozen=True)
class PaceSettings:
    """Where a pace starts and what it never passes.

    Attributes:
        window: requests in flight at the start.
        requests: a fixed limit of requests a second; None to find it.
        tokens: a fixed limit of tokens a second; None to find it.
        longest: the ceiling of every wait, in seconds.
    """

    window: float = 32.0
    requests: float | None = None
    tokens: float | None = None
    longest: float = 120.0


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
        self.full_at, self.as_of = now + one.reset, sent_at
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


class Pace:
    """The pace of one account at one model.

    Args:
        settings: where it starts.
        now: the clock, in seconds; every other `now` is read from the same one.
        rng: for jitter.

    Example:
        >>> pace = Pace(PaceSettings(requests=10.0), now=0.0, rng=random.Random(0))
        >>> for _ in range(4): pace.sent(0.0)
        >>> round(pace.delay(0.0), 3)
        0.15
    """

    def __init__(self, settings: PaceSettings, now: float, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self._workers = 1
        self._most = settings.requests or math.inf
        self._rate = self._most
        self._base = self._rate
        self._window = settings.window
        self._widest = math.inf
        self._in_flight = 0
        self._crowded = 0
        self._next_at = now - _SLACK
        self._last_at = now
        self._resume_at = now
        self._refused_at = -math.inf
        self._measured_from = now
        self._grown_at = now
        self._let_through = 0
        self._refusals = 0
        self._measuring = False
        self._found = False
        self._soon = 0
        self._frozen = 0
        self._before = self._rate
        self._calm = 0.0
        self._pressed = False
        self._left: dict[str, _Left] = {}
        self._cost: dict[str, float] = {"requests": 1.0}

    @property
    def rate(self) -> float:
        """The rate of its own, requests a second; infinite until something was refused."""
        return self._rate

    @property
    def in_flight(self) -> int:
        """Requests that are under way."""
        return self._in_flight

    def share(self, workers: int) -> None:
        """So many workers keep to the fixed limits together, this one to its part."""
        if workers == self._workers or not self._fixed:
            return
        free = self._rate == self._most
        self._workers = workers
        self._most = self._settings.requests / workers if self._settings.requests else math.inf
        self._rate = self._most if free else min(self._rate, self._most)

    def hold(self, until: float) -> None:
        """Nothing leaves before that, if there is a fixed limit to keep."""
        if self._fixed:
            self._resume_at = max(self._resume_at, until)

    @property
    def _fixed(self) -> bool:
        return bool(self._settings.requests or self._settings.tokens)

    def delay(self, now: float) -> float:
        """Seconds until the next request may leave; 0 for now, infinity for after an answer."""
        if self._in_flight >= self._room():
            return math.inf
        own = self._next_at - now
        self._pressed = self._pressed or own > 0.0
        return max(self._resume_at - now, own, self._last_at + self._gap(now) - now, 0.0)

    def _room(self) -> float:
        # While refusals go on, one at a time finds out whether they are over.
        return 1.0 if self._refusals > 1 else max(self._window, 1.0)

    def _gap(self, now: float) -> float:
        """Seconds between requests, by what the provider says is left."""
        gaps = (left.gap(now, self._cost.get(kind, 0.0)) for kind, left in self._left.items())
        return max(gaps, default=0.0)

    def sent(self, now: float, tokens: float = 0.0) -> None:
        """A request leaves; `tokens` is a guess, used until answers tell what one takes."""
        self._cost.setdefault("tokens", tokens)
        gap = 1.0 / self._rate
        if self._settings.tokens:
            gap = max(gap, self._workers * self._cost["tokens"] / self._settings.tokens)
        for kind, left in self._left.items():
            left.remaining -= self._cost.get(kind, 0.0)
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
        self._crowded = 0
        self._let_through += 1
        self._frozen = max(self._frozen - 1, 0)
        if sent_at > self._refused_at:
            self._refusals = 0
        if self._window < self._widest:
            self._window += 1.0
        else:
            self._window += 1.0 / self._window
        prompt, completion = tokens
        self._weigh("input-tokens", prompt)
        self._weigh("output-tokens", completion)
        self._weigh("tokens", prompt + completion)
        self._learn(now, sent_at, left)
        self._grow(now)

    def _weigh(self, kind: str, tokens: float) -> None:
        before = self._cost.get(kind)
        self._cost[kind] = tokens if not before else before + 0.1 * (tokens - before)

    def _learn(self, now: float, sent_at: float, left: tuple[Allowance, ...]) -> None:
        for one in left:
            known = self._left.get(one.kind)
            if known is not None and sent_at < known.as_of:
                continue  # an older word than the one we have
            # Whether those in flight are counted already is not known: they are taken off.
            spoken_for = self._in_flight * self._cost.get(one.kind, 0.0)
            if known is None:
                full = now + one.reset
                known = _Left(one.limit, one.remaining, full, sent_at, since=now, full_then=full)
                self._left[one.kind] = known
            known.renew(now, one, spoken_for, sent_at)

    def _grow(self, now: float) -> None:
        """One additive step, if the rate is what holds requests back."""
        elapsed, self._grown_at = now - self._grown_at, now
        if not self._pressed or not math.isfinite(self._rate):
            return
        self._pressed = False
        step = _STEP * (1.0 + (now - self._measured_from) / _WIDEN)
        self._rate = min(self._rate + self._base * step * elapsed, self._most)

    def refused(
        self,
        now: float,
        sent_at: float,
        wait: float | None = None,
        left: tuple[Allowance, ...] = (),
    ) -> None:
        """The provider refused a request for being too fast; `wait` is what it asks for."""
        self._in_flight -= 1
        self._learn(now, sent_at, left)
        if sent_at > self._refused_at:
            # Those that left before the last refusal tell nothing new.
            self._refusals += 1
            if self._refusals == 1:
                self._cut(now)
            self._refused_at = now
        pause = self._pause() if wait is None else min(wait, self._settings.longest)
        jitter = self._rng.uniform(0.0, 0.1 * pause + 0.05)
        self._resume_at = max(self._resume_at, now + min(pause + jitter, self._settings.longest))

    def _cut(self, now: float) -> None:
        """Fall back to a little less than what was let through since the last refusal."""
        if self._frozen > 0:
            return
        elapsed = max(now - self._measured_from, 1e-3)
        if self._measuring:
            rate = self._after(elapsed)
            if elapsed < _SOON and self._let_through < _SELDOM:
                rate = self._unless_noise(rate)
            elif elapsed >= _SOON:
                self._soon, self._calm = 0, 0.0
            self._rate = self._base = min(max(rate, 1.0 / self._settings.longest), self._most)
            self._next_at = max(self._next_at, now + 1.0 / self._rate)
        else:
            # A first refusal tells nothing of the rate: a bucket may have been full. It starts
            # the measure, and lets fewer run into the next.
            self._measuring = True
            self._window = max(min(self._window, self._in_flight + 1.0) / 2.0, 1.0)
        self._let_through, self._measured_from = 0, now

    def _after(self, elapsed: float) -> float:
        """The rate that a refusal suggests, `elapsed` seconds after the last one."""
        measured = self._let_through / elapsed
        if math.isfinite(self._rate) and self._let_through < _ENOUGH:
            return 0.5 * self._rate
        # A rate that held for long is not far off, even if a window's edges blur this measure.
        held = elapsed >= _SOON and self._found
        self._found = True
        return _BELOW * max(min(self._rate, measured), _DROP * self._rate if held else 0.0)

    def _unless_noise(self, rate: float) -> float:
        """Refusals that come as soon at lower and lower rates have nothing to do with the rate."""
        if self._soon == 0:
            self._before = rate
        self._soon += 1
        if self._soon <= _TRIED:
            return rate
        self._soon, self._frozen = 0, _FREEZE
        self._calm = max(self._calm, self._before)
        return self._calm

    def _pause(self) -> float:
        """The cool-down where the provider asks for none: it doubles while refusals go on."""
        shortest, longest = _PROBES
        first = max(2.0 / self._rate, shortest)
        doubled = min(first * 2.0 ** min(max(self._refusals, 1) - 1, 30), max(first, longest))
        return min(doubled, self._settings.longest)

    def lost(self, crowded: bool = False) -> None:
        """A request came to nothing for another reason; `crowded` if fewer at once would help.

        One such sign among answers is chance; two with no answer between halve the window.
        """
        self._in_flight -= 1
        self._crowded = self._crowded + 1 if crowded else self._crowded
        if self._crowded > 1:
            self._crowded = 0
            self._window = self._widest = max(1.0, min(self._window, self._in_flight + 1) / 2.0)
