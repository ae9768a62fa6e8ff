"""The pace in simulated time, against limits as providers enforce them."""

import heapq
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fakes.provider import Action, Fails, Provider, Says
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_elicit.orchestrator import Patience, Silent, Tally
from llm_elicit.orchestrator.headers import Allowance, allowances, retry_after, seconds_until
from llm_elicit.orchestrator.pace import Pace, PaceSettings
from llm_elicit.testing.meters import Gate, Limit
from orchestrator.conftest import claude, gpt
from orchestrator.running import campaign, run, starved

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


def _cases() -> Iterator[Any]:
    """Limit, headers, Retry-After, latency; what must be used and may be refused."""
    for name, limit in LIMITS.items():
        for dialect in ("openai", "anthropic"):
            yield pytest.param(limit, dialect, True, 0.05, (0.9, 0.01), id=f"{name}-{dialect}")
            yield pytest.param(limit, dialect, False, 1.5, (0.8, 0.01), id=f"{name}-{dialect}-slow")
        yield pytest.param(limit, "none", True, 0.05, (0.9, 0.01), id=f"{name}-silent")
        # Who says nothing, answers late and asks for no wait, is found out by trying.
        yield pytest.param(limit, "none", False, 1.5, (0.8, 0.03), id=f"{name}-silent-slow")


@pytest.mark.parametrize(("limit", "dialect", "says_wait", "latency", "bar"), list(_cases()))
def test_an_unknown_limit_is_found_and_used(
    limit: Limit, dialect: Any, says_wait: bool, latency: float, bar: tuple[float, float]
) -> None:
    """The bar: 600 requests a minute, nine tenths of them used, under one in a hundred refused."""
    minutes = 20
    gate = Gate(limit, dialect=dialect, says_wait=says_wait, started=START)
    outcome = simulate(gate, PaceSettings(), minutes, latency=latency)
    assert outcome.answered / (600 * minutes) >= bar[0]
    assert outcome.share_refused() < bar[1]


@pytest.mark.parametrize("believed", [250.0, 30.0, 2000.0])
def test_a_token_limit_is_found_however_the_provider_counts(believed: float) -> None:
    """250 tokens a request by the provider's count, of 100,000 a minute: 400 requests."""
    gate = Gate(tokens=Limit(100_000), dialect="openai", started=START)
    outcome = simulate(gate, PaceSettings(), 20, believed=believed)
    assert outcome.answered / (400 * 20) >= 0.9
    assert outcome.share_refused() < 0.01


def test_a_fixed_limit_is_kept_and_never_refused() -> None:
    settings_ = PaceSettings(requests=10.0)
    outcome = simulate(Gate(Limit(660, burst=11), dialect="none"), settings_, 5)
    assert outcome.refused == 0
    assert outcome.answered == pytest.approx(10 * 300, rel=0.02)
    outcome = simulate(Gate(dialect="none"), PaceSettings(tokens=1000.0), 5, tokens=250.0)
    assert outcome.answered == pytest.approx(4 * 300, rel=0.02)


@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from(["requests", "tokens"]))
def test_a_worker_keeps_to_its_part_of_a_fixed_limit(before: int, after: int, kind: str) -> None:
    """At 12 a second for all, in steady state, whoever comes or goes."""
    limit = PaceSettings(requests=12.0) if kind == "requests" else PaceSettings(tokens=120.0)
    pace = Pace(limit, 0.0, random.Random(0))
    pace.share(before)
    pace.share(after)
    now, left = 0.0, 0
    while now < 60.0:
        now += max(pace.delay(now), 1e-9)
        pace.sent(now, tokens=10.0)
        pace.answered(now, now, tokens=(6.0, 4.0))
        left += 1
    assert left == pytest.approx(60.0 * 12.0 / after, abs=4)


def test_who_joins_others_waits_only_where_there_is_a_limit_to_keep() -> None:
    held, free = (Pace(PaceSettings(requests=n), 0.0, random.Random(0)) for n in (10.0, None))
    for pace in (held, free):
        pace.hold(4.0)
    assert held.delay(1.0) == pytest.approx(3.0)
    assert free.delay(1.0) == 0.0


def test_a_limit_that_is_not_there_costs_nothing() -> None:
    outcome = simulate(Gate(dialect="none"), PaceSettings(), 0.5)
    assert outcome.answered > 0.9 * 30 * 32 / 0.05


@pytest.mark.parametrize("low", [1.0, 8.0])
def test_a_low_start_rises_with_every_answer(low: float) -> None:
    pace = Pace(PaceSettings(window=low), 0.0, random.Random(0))
    widths = []
    for round_ in range(5):
        sent = 0
        while pace.delay(float(round_)) == 0.0:
            pace.sent(float(round_))
            sent += 1
        widths.append(sent)
        for _ in range(sent):
            pace.answered(float(round_) + 0.5, float(round_))
    assert widths == [low * 2**n for n in range(5)]


def _fill(pace: Pace, now: float) -> int:
    sent = 0
    while pace.delay(now) == 0.0:
        pace.sent(now)
        sent += 1
    return sent


def test_a_crowded_server_gets_half_and_chance_changes_nothing() -> None:
    pace = Pace(PaceSettings(window=32.0), 0.0, random.Random(0))
    assert _fill(pace, 0.0) == 32
    pace.lost(crowded=True)
    pace.answered(1.0, 0.0)
    pace.lost(crowded=True)
    assert _fill(pace, 1.0) == 3 + 1
    pace.lost(crowded=True)
    pace.lost(crowded=True)
    # Two with no answer between: half of what was in flight may be.
    assert _fill(pace, 1.0) == 0
    for _ in range(pace.in_flight):
        pace.lost()
    assert 14 <= _fill(pace, 1.0) <= 17


def test_refusals_by_chance_are_not_taken_for_a_limit() -> None:
    """Two in a hundred are refused whatever the rate: it must not sink to nothing."""
    rng, now, answered = random.Random(5), 0.0, 0
    pace = Pace(PaceSettings(), 0.0, random.Random(6))
    for _ in range(5000):
        now += max(pace.delay(now), 0.0)
        pace.sent(now)
        sent_at, now = now, now + 0.003
        if rng.random() < 0.02:
            pace.refused(now, sent_at, wait=0.1)
        else:
            answered += 1
            pace.answered(now, sent_at)
    assert answered / now > 25.0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["answer", "refuse", "crowd", "lose"]),
            st.none() | st.floats(0, 1e8),
            st.floats(0, 50),
        ),
        max_size=80,
    ),
    st.integers(0, 1000),
)
def test_no_wait_is_without_end(events: list[tuple[str, float | None, float]], seed: int) -> None:
    """Whatever happens, the next request may leave within the ceiling once nothing is in flight."""
    pace = Pace(PaceSettings(longest=120.0), 0.0, random.Random(seed))
    now = 0.0
    for what, wait, step in events:
        now += step + pace.delay(now)
        pace.sent(now, 100.0)
        if what == "answer":
            left = (Allowance("requests", 100.0, wait % 100.0, 60.0),) if wait else ()
            pace.answered(now + 0.1, now, left, (50.0, 2.0))
        elif what == "refuse":
            pace.refused(now + 0.1, now, wait)
        else:
            pace.lost(what == "crowd")
        assert pace.in_flight == 0
        assert 0.0 <= pace.delay(now + 0.1) <= 120.0 + 1e-6


ALLOWANCES = [
    ({}, ()),
    (
        {
            "x-ratelimit-limit-tokens": "150000",
            "x-ratelimit-remaining-tokens": "149984",
            "x-ratelimit-reset-tokens": "6m0s",
        },
        (Allowance("tokens", 150000.0, 149984.0, 360.0),),
    ),
    (
        {
            "anthropic-ratelimit-input-tokens-limit": "80000",
            "anthropic-ratelimit-input-tokens-remaining": "79000",
            "anthropic-ratelimit-input-tokens-reset": "2026-01-02T03:04:35Z",
        },
        (Allowance("input-tokens", 80000.0, 79000.0, 30.0),),
    ),
    ({"x-ratelimit-limit-requests": "600"}, ()),
    (
        {
            "x-ratelimit-limit-requests": "nan",
            "x-ratelimit-remaining-requests": "5",
            "x-ratelimit-reset-requests": "1s",
        },
        (),
    ),
]


@pytest.mark.parametrize(("headers", "expected"), ALLOWANCES)
def test_what_the_headers_say_is_left(headers: dict[str, str], expected: Any) -> None:
    assert allowances(headers, START) == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("12ms", 0.012),
        ("1h2m3s", 3723.0),
        ("1.5s", 1.5),
        ("6m", 360.0),
        (str(START.timestamp() + 60), 60.0),
        (str((START.timestamp() + 60) * 1000), 60.0),
        ("2026-01-02T03:05:05+00:00", 60.0),
        ("Fri, 02 Jan 2026 03:05:05 GMT", 60.0),
        ("6m0", None),
        ("inf", None),
        ("", None),
    ],
)
def test_every_form_of_a_reset_is_read(text: str, seconds: float | None) -> None:
    found = seconds_until(text, START)
    assert found == (pytest.approx(seconds) if seconds is not None else None)


@given(st.dictionaries(st.sampled_from(sorted({k for h, _ in ALLOWANCES for k in h})), st.text()))
def test_no_header_can_break_the_reading(headers: dict[str, str]) -> None:
    for one in allowances(headers, START):
        assert one.limit >= 0
        assert one.reset >= 0


@pytest.mark.parametrize("make", [claude, gpt])
@pytest.mark.parametrize("dialect", ["own", "none"])
def test_a_real_run_keeps_below_a_real_limit(make: Any, dialect: str, tmp_path: Path) -> None:
    """The short form of the bar on real sockets: 1,200 a minute and a burst of forty."""
    own = "anthropic" if make is claude else "openai"
    gate = Gate(Limit(1200, burst=40), dialect=own if dialect == "own" else "none")
    with Provider(lambda n, body: Says("A", delay=0.05), gate) as provider:
        study = campaign([make(provider.url, concurrency=32)], pairs=100)
        # Time that a busy machine gave to others is not the pace's.
        began = time.monotonic() - starved()
        summary = run(study, tmp_path / "try", patience=Patience())
        elapsed = time.monotonic() - starved() - began
    assert summary.complete
    assert gate.admitted == 200
    # A burst of 40, then 160 at 20 a second: eight seconds, and the start of the run besides.
    assert elapsed < 8.0 / 0.7 + 4.0
    if dialect == "own":
        # One wave of what is in flight, not two: where the machine is busy, the headers that slow
        # the pace may be read after it has left. The one per cent is shown in simulated time.
        assert gate.refused <= 32


def test_judges_of_one_account_share_a_cool_down(tmp_path: Path) -> None:
    """The second's request is out when the first is refused; its next waits all the same."""
    times: list[float] = []
    refused = threading.Event()

    class Watch(Silent):
        def tally(self, judge: str, tally: Tally) -> None:
            if tally.errors:
                refused.set()

    def behave(number: int, body: dict[str, Any]) -> Action:
        times.append(time.monotonic())
        if number == 1:
            return Fails(429, headers=(("retry-after", "2"),))
        # The second judge is free again as soon as the refusal is known, and not before.
        assert refused.wait(60)
        return Says()

    with Provider(behave) as provider:
        one = claude(provider.url, concurrency=1)
        other = claude(provider.url, name="other", concurrency=1, temperature=0.5)
        study, patience = campaign([one, other], pairs=4), Patience(base=0.01, longest=0.05)
        assert run(study, tmp_path / "try", Watch(), patience).complete
    # The wait begins when the refusal is read, which is later than when it was sent.
    assert all(moment - times[0] >= 2.0 for moment in times[2:])
    assert len(times) == 17
