"""The pace in simulated time, against limits as providers enforce them."""

import heapq
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from llm_elicit.orchestrator.headers import allowances, retry_after
from llm_elicit.orchestrator.pace import Pace, PaceSettings
from llm_elicit.testing.meters import Gate, Limit

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass
class Outcome:
    """How a simulated run went: answers, refusals, and the longest time between two sends."""

    answered: int
    refused: int
    longest_gap: float

    def share_refused(self) -> float:
        return self.refused / (self.answered + self.refused)


def simulate(  # noqa: PLR0917
    gate: Gate,
    pace: PaceSettings,
    minutes: float,
    slots: int = 32,
    latency: float = 0.05,
    tokens: float = 250.0,
    believed: float | None = None,
    seed: int = 0,
) -> Outcome:
    """So many slots ask without pause; each answer takes `latency`, give or take a half."""
    rng = random.Random(seed)
    state = Pace(pace, 0.0, random.Random(seed + 1))
    now, end, idle = 0.0, 60.0 * minutes, slots
    under_way: list[tuple[float, int, float, bool, dict[str, str]]] = []
    outcome, count, last = Outcome(0, 0, 0.0), 0, 0.0
    while now < end:
        wait = state.delay(now) if idle else float("inf")
        if wait <= 0.0:
            state.sent(now, believed or tokens)
            ok, headers = gate.admit(now, tokens)
            idle, count = idle - 1, count + 1
            outcome.longest_gap = max(outcome.longest_gap, now - last)
            last = now
            arrives = now + latency * rng.uniform(0.5, 1.5)
            heapq.heappush(under_way, (arrives, count, now, ok, headers))
            continue
        arrival = under_way[0][0] if under_way else float("inf")
        # Timers are a little late, as real ones are.
        now = min(now + wait + 0.002, arrival)
        if now < arrival:
            continue
        _, _, sent_at, ok, headers = heapq.heappop(under_way)
        idle += 1
        moment = START + timedelta(seconds=now)
        left = allowances(headers, moment)
        if ok:
            outcome.answered += 1
            state.answered(now, sent_at, left, (believed or tokens, 0.0))
        else:
            outcome.refused += 1
            state.refused(now, sent_at, retry_after(headers, moment), left)
    return outcome


LIMITS = {
    "bucket": Limit(600),
    "small bucket": Limit(600, burst=10),
    "window": Limit(600, style="window"),
    "sliding": Limit(600, style="sliding"),
}


@pytest.mark.parametrize("latency", [0.05, 1.5])
@pytest.mark.parametrize("says_wait", [True, False], ids=["retry-after", "no wait"])
@pytest.mark.parametrize("dialect", ["openai", "anthropic", "none"])
@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_an_unknown_limit_is_found_and_used(
    limit: Limit, dialect: Any, says_wait: bool, latency: float, record_property: Any
) -> None:
    """The bar: 600 requests a minute, nine tenths of them used, under one in a hundred refused."""
    minutes = 20
    gate = Gate(limit, dialect=dialect, says_wait=says_wait, started=START)
    outcome = simulate(gate, PaceSettings(), minutes, latency=latency)
    used = outcome.answered / (600 * minutes)
    assert used >= 0.9
    assert outcome.share_refused() < 0.01
