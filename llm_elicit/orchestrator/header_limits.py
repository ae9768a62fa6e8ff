"""The pace that a provider's headers ask for: in proportion to what they say is left.

It shrinks as what is left shrinks, before anything is refused. A token bucket settles where
requests leave as fast as it fills; a fixed window is spent as it ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_elicit.orchestrator.headers import Allowance

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
