"""Asking in simulated time: the rate limiter and the retries against providers that refuse.

    python -m orchestrator.simulation  # in tests/: 3,000 questions at every kind of provider

A discrete-event simulation with a clock of its own: slots put questions as the limiter lets them,
each takes a little processor time, a provider answers or refuses after a while, and a question
that was refused waits its time before it is put again. A run of minutes takes a fraction of a
second, and is the same for the same seed.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from benchmarks.provider_process import Gate, Limit
from llm_elicit.orchestrator.rate_limiter import RateLimiter, allowances, retry_after
from llm_elicit.orchestrator.retries import Decision, RetryPolicy

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass
class Outcome:
    """How a simulated run went.

    Attributes:
        seconds: until the last answer, or of the run without an end.
        answered, refused: requests; `refused` with those that failed.
        sent_at, answered_at, refused_at: the clock at each.
    """

    seconds: float = 0.0
    sent_at: list[float] = field(default_factory=list)
    answered_at: list[float] = field(default_factory=list)
    refused_at: list[float] = field(default_factory=list)

    @property
    def answered(self) -> int:
        return len(self.answered_at)

    @property
    def refused(self) -> int:
        return len(self.refused_at)

    def share_refused(self, since: float = 0.0) -> float:
        """The share of requests that were refused after a moment."""
        refused, answered = (
            self._after(self.refused_at, since),
            self._after(self.answered_at, since),
        )
        return refused / max(refused + answered, 1)

    def rate(self, since: float = 0.0, until: float = math.inf) -> float:
        """Answers a second between two moments."""
        until = min(until, self.seconds)
        return sum(since < at <= until for at in self.answered_at) / (until - since)

    def longest_gap(self) -> float:
        """The longest time between two requests."""
        return max(b - a for a, b in zip(self.sent_at, self.sent_at[1:], strict=False))

    @staticmethod
    def _after(moments: list[float], since: float) -> int:
        return sum(at > since for at in moments)


@dataclass(frozen=True)
class Response:
    """What a provider does with a request."""

    ok: bool = True
    status: int = 200
    latency: float = 0.05
    headers: dict[str, str] = field(default_factory=dict)


Provider = Callable[[float, int], Response]
"""Of the clock and of how many requests it works on at the moment."""


def simulate(  # noqa: PLR0917
    provider: Provider,
    limiter: RateLimiter | None = None,
    questions: int | None = 3000,
    seconds: float = 3600.0,
    slots: int = 100,
    processor: float = 0.002,
    tokens: tuple[float, float] = (250.0, 250.0),
    window: float = 8.0,
    seed: int = 0,
    began: float = 0.0,
) -> Outcome:
    """Ask until all questions are answered, or for so many seconds.

    Args:
        provider: who is asked.
        limiter: what paces.
        questions: how many; None for as many as can be asked.
        seconds: the end.
        slots: requests in flight at most.
        processor: seconds of the client's processor a request.
        tokens: what a request is guessed to take, and what answers say it took.
        window: requests in flight at first.
        seed: of the jitter of retries.
        began: the clock at the start.
    """
    limiter = limiter or RateLimiter(began, window)
    patience, rng = RetryPolicy(), random.Random(seed)
    now, busy_until, idle, count, serving = began, began, slots, 0, 0
    left = math.inf if questions is None else questions
    later: list[tuple[float, int, int]] = []
    under_way: list[tuple[float, int, float, int, Response]] = []
    outcome = Outcome()
    while now < seconds and (left or later or under_way):
        due = later[0][0] if later else math.inf
        wanted = 0.0 if left else max(due - now, 0.0)
        wait = math.inf
        if idle and wanted < math.inf:
            wait = max(limiter.delay(now), wanted, busy_until - now)
        if wait <= 0.0:
            attempts = 0
            if due <= now:
                _, _, attempts = heapq.heappop(later)
            else:
                left -= 1
            limiter.record_sent(now, tokens[0])
            response = provider(now, serving)
            serving += response.ok
            outcome.sent_at.append(now)
            idle, count, busy_until = idle - 1, count + 1, now + processor
            arrival = (now + response.latency, count, now, attempts, response)
            heapq.heappush(under_way, arrival)
            continue
        arrives = under_way[0][0] if under_way else math.inf
        late = 0.002 if wait > 0.002 else 0.0  # timers are a little late, as real ones are
        now = min(now + wait + late, arrives, seconds)
        if now < arrives:
            continue
        _, _, sent_at, attempts, response = heapq.heappop(under_way)
        idle, serving = idle + 1, serving - response.ok
        moment = START + timedelta(seconds=now)
        said = allowances(response.headers, moment)
        if response.ok:
            outcome.answered_at.append(now)
            limiter.record_answer(now, sent_at, said, (tokens[1], 0.0))
            continue
        outcome.refused_at.append(now)
        named = retry_after(response.headers, moment)
        limited = response.status == 429
        limiter.record_refusal(now, sent_at, named, said, limit=limited)
        decision = Decision("rate limited" if limited else "transient", "", named)
        pause = patience.pause(decision, attempts + 1, rng)
        if questions is not None:
            heapq.heappush(later, (now + pause, count, attempts + 1))
    outcome.seconds = now
    return outcome


# Providers.


def chance(
    seed: int = 0, limited: float = 0.0, errors: float = 0.0, every: int = 0, wait: int = 1
) -> Provider:
    """Refuses by chance, or every so many requests; a `wait` of 0 is not named."""
    rng, count = random.Random(seed), 0
    headers = {"retry-after": str(wait)} if wait else {}

    def act(now: float, serving: int) -> Response:
        nonlocal count
        count += 1
        draw = rng.random()
        if draw < limited or (every and count % every == 0):
            return Response(False, 429, 0.05, headers)
        if draw < limited + errors:
            return Response(False, 500)
        return Response()

    return act


def gated(
    gate: Gate, latency: Callable[[], float] = lambda: 0.05, tokens: float = 250.0
) -> Provider:
    """Keeps to a gate's limits."""

    def act(now: float, serving: int) -> Response:
        ok, headers = gate.admit(now, tokens)
        return Response(ok, 200 if ok else 429, latency(), headers)

    return act


def limit(limits: Limit, says_wait: bool = True) -> Provider:
    """Keeps to a limit of requests and says nothing of it but a Retry-After."""
    return gated(Gate(limits, dialect="none", says_wait=says_wait, started=START))


def concurrent(most: int, seed: int = 0, spread: float = 0.0, mean: float = 0.05) -> Provider:
    """Works on so many at once; latency is lognormal with that spread. Refusals come quickly."""
    rng = random.Random(seed)

    def act(now: float, serving: int) -> Response:
        if serving >= most:
            return Response(False, 429, 0.01)
        return Response(latency=mean * math.exp(rng.gauss(-(spread**2) / 2, spread)))

    return act


def changing(
    rates: tuple[float, ...], every: float, burst: float = 5.0, says_wait: bool = True
) -> Provider:
    """Limits that follow one another."""
    parts = [limit(Limit(rate, period=1.0, burst=burst), says_wait) for rate in rates]
    return lambda now, serving: parts[min(int(now // every), len(parts) - 1)](now, serving)


def down(begins: float, lasts: float, status: int = 503, latency: float = 0.002) -> Provider:
    """Serves nobody for a while."""

    def act(now: float, serving: int) -> Response:
        out = begins <= now < begins + lasts
        return Response(False, status, latency) if out else Response()

    return act


def _table() -> None:
    """Print seconds and refused requests of 3,000 questions at every kind of provider."""
    providers: dict[str, Callable[[int], Provider]] = {
        "clean": chance,
        "429 every 50th": lambda seed: chance(seed, every=50),
        "429 .5 %": lambda seed: chance(seed, limited=0.005),
        "429 5 %": lambda seed: chance(seed, limited=0.05),
        "500 every 70th": lambda seed: chance(seed, errors=1 / 70),
        "429 and 500": lambda seed: chance(seed, limited=0.02, errors=1 / 70),
        "down for 20 s": lambda _: down(3.0, 20.0),
        "50/s, burst 5": lambda _: limit(Limit(50, 1.0, burst=5)),
        "10 at once": lambda seed: concurrent(10, seed, 0.5),
    }
    for name, provider in providers.items():
        for seed in range(3):
            outcome = simulate(provider(seed), seed=seed)
            print(f"{name:16} {outcome.seconds:6.1f} s {outcome.refused:5} refused")  # noqa: T201


if __name__ == "__main__":
    _table()
