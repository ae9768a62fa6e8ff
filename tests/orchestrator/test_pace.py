"""The rate limiter in simulated time, against limits and faults as providers have them."""

import asyncio
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.provider_process import Gate, Limit
from llm_elicit.orchestrator.judgments import status
from llm_elicit.orchestrator.progress import Tally
from llm_elicit.orchestrator.rate_limiter import Allowance, RateLimiter, allowances, seconds_until
from llm_elicit.orchestrator.rate_sharing import RateLimiters, SharedLimiter
from llm_elicit.orchestrator.retries import RetryPolicy, SlowRequests
from llm_elicit.testing.provider import Action, Answer, Error, Hangs, Provider
from orchestrator import simulation as sim
from orchestrator.conftest import claude, gpt
from orchestrator.running import campaign, run, starved, stopped_clock, undisturbed
from orchestrator.simulation import simulate

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SEEDS = range(5)
CLEAN = simulate(sim.chance()).seconds

SPORADIC: dict[str, Callable[[int], sim.Provider]] = {
    "429 every 50th": lambda seed: sim.chance(seed, every=50),
    "429 every 50th, no wait named": lambda seed: sim.chance(seed, every=50, wait=0),
    "429 .5 %": lambda seed: sim.chance(seed, limited=0.005),
    "429 5 %": lambda seed: sim.chance(seed, limited=0.05),
    "429 5 %, no wait named": lambda seed: sim.chance(seed, limited=0.05, wait=0),
    "500 every 70th": lambda seed: sim.chance(seed, errors=1 / 70),
    "429 and 500": lambda seed: sim.chance(seed, limited=0.02, errors=1 / 70),
}


@pytest.mark.parametrize("provider", SPORADIC.values(), ids=SPORADIC.keys())
def test_sporadic_faults_cost_no_more_than_the_clean_run_again(
    provider: Callable[[int], sim.Provider],
) -> None:
    for seed in SEEDS:
        outcome = simulate(provider(seed), seed=seed)
        assert outcome.answered == 3000
        assert outcome.seconds <= 2.0 * CLEAN


LIMITS: dict[str, tuple[float, Callable[[bool], sim.Provider]]] = {
    "50/s, small burst": (50, lambda w: sim.limit(Limit(50, 1.0, burst=5), w)),
    "10/s, burst 600": (10, lambda w: sim.limit(Limit(600), w)),
    "10/s, burst 10": (10, lambda w: sim.limit(Limit(600, burst=10), w)),
    "50 in each second": (50, lambda w: sim.limit(Limit(50, 1.0, "window"), w)),
    "600 in each minute": (10, lambda w: sim.limit(Limit(600, 60.0, "window"), w)),
    "600 in any minute": (10, lambda w: sim.limit(Limit(600, 60.0, "sliding"), w)),
}


@pytest.mark.parametrize("says_wait", [True, False])
@pytest.mark.parametrize(("rate", "provider"), LIMITS.values(), ids=LIMITS.keys())
def test_a_limit_that_nobody_tells_is_found_and_used(
    rate: float, provider: Callable[[bool], sim.Provider], says_wait: bool
) -> None:
    """At least 90 % of it from the start, and later at most 2 % refused."""
    minutes = 10 if rate > 10 else 20
    outcome = simulate(provider(says_wait), questions=None, seconds=60.0 * minutes)
    assert outcome.rate() >= 0.9 * rate
    assert outcome.share_refused(since=300.0) <= 0.02


def test_refusals_after_a_burst_are_not_taken_for_chance() -> None:
    """A bucket of a second's requests: what is refused while it empties says nothing of later."""
    provider = sim.limit(Limit(50, 1.0, burst=50))
    outcome = simulate(provider, processor=0.001)
    assert outcome.rate() >= 0.9 * 50
    assert outcome.share_refused(since=10.0) <= 0.025


def test_a_rate_measured_by_few_answers_is_soon_corrected() -> None:
    """3,000 questions at ten at once take 15 s; a false rate from the start must not last."""
    assert simulate(sim.concurrent(10), processor=0.001).seconds <= 22.0


@pytest.mark.parametrize(("spread", "bar"), [(0.0, 0.9), (0.5, 0.9)])
def test_a_limit_on_concurrency_is_found_and_used(spread: float, bar: float) -> None:
    """Ten at once, answers after 50 ms on average, alike or lognormal: 200 a second."""
    for seed in (0, 1):
        provider = sim.concurrent(10, seed, spread)
        outcome = simulate(provider, questions=None, seconds=120.0, seed=seed)
        assert outcome.rate() >= bar * 200.0
        assert outcome.share_refused(since=20.0) <= 0.02


def test_a_limit_that_changes_is_followed() -> None:
    """50 a second, a quarter of that, and back, and four times as much: soon after, most of it."""
    rates = (50.0, 12.5, 50.0, 200.0)
    outcome = simulate(sim.changing(rates, every=200.0), questions=None, seconds=800.0)
    for number, rate in enumerate(rates):
        until = 200.0 * (number + 1)
        assert outcome.rate(until - 50.0, until) >= 0.7 * rate, number
    assert outcome.share_refused() <= 0.02


DOWN = {"503": (503, 0.002), "slow 503": (503, 0.05), "429": (429, 0.05)}


@pytest.mark.parametrize(("status", "latency"), DOWN.values(), ids=DOWN.keys())
def test_a_provider_that_is_down_is_probed(status: int, latency: float) -> None:
    """Down for 20 seconds: a few dozen requests find out, and full pace is back within five."""
    provider = sim.down(3.0, 20.0, status, latency)
    outcome = simulate(provider, questions=None, seconds=35.0)
    assert sum(3.0 <= at < 23.0 for at in outcome.sent_at) <= 130
    assert sum(8.0 <= at < 23.0 for at in outcome.sent_at) <= 15
    assert outcome.rate(28.0, 30.0) >= 0.9 * outcome.rate(1.0, 3.0)


def test_a_provider_that_always_refuses_is_probed_ever_more_rarely() -> None:
    outcome = simulate(sim.chance(limited=1.0, wait=0), questions=None, seconds=900.0)
    assert len(outcome.sent_at) <= 120
    assert outcome.longest_gap() <= 31.0


def _told() -> Iterator[Any]:
    limits = {
        "bucket": Limit(600),
        "small bucket": Limit(600, burst=10),
        "window": Limit(600, style="window"),
        "sliding": Limit(600, style="sliding"),
    }
    for name, limit in limits.items():
        for dialect in ("openai", "anthropic"):
            # Moments are rounded to a second, in which a small bucket is filled.
            most = 0.02 if name == "small bucket" else 0.01
            yield pytest.param(limit, dialect, 0.05, 0.9, most, id=f"{name}-{dialect}")
            yield pytest.param(limit, dialect, 1.5, 0.8, most, id=f"{name}-{dialect}-slow")


@pytest.mark.parametrize(("limit", "dialect", "latency", "bar", "most"), list(_told()))
def test_a_limit_that_headers_tell_is_kept(
    limit: Limit, dialect: Any, latency: float, bar: float, most: float
) -> None:
    """600 requests a minute: nine tenths used, at most one in a hundred refused."""
    rng = random.Random(0)
    gate = Gate(limit, dialect=dialect, started=sim.START)
    provider = sim.gated(gate, lambda: latency * rng.uniform(0.5, 1.5))
    # The first minute of a sliding limit is half lost: its share of ten is too much.
    seconds = 1200.0 if limit.style == "sliding" else 600.0
    outcome = simulate(provider, questions=None, seconds=seconds, slots=32)
    assert outcome.rate() >= bar * 10.0
    assert outcome.share_refused(since=300.0 if most > 0.01 else 0.0) <= most


@pytest.mark.parametrize("believed", [250.0, 30.0, 2000.0])
def test_a_token_limit_is_found_however_the_provider_counts(believed: float) -> None:
    """250 tokens a request by the provider's count, of 100,000 a minute: 400 requests."""
    gate = Gate(tokens=Limit(100_000), dialect="openai", started=sim.START)
    outcome = simulate(
        sim.gated(gate), questions=None, seconds=600.0, slots=32, tokens=(believed, believed)
    )
    assert outcome.rate() >= 0.9 * 400 / 60
    assert outcome.share_refused() < 0.01


def test_a_fixed_limit_is_kept_and_never_refused() -> None:
    limiter = RateLimiter(0.0)
    limiter.set_limits(requests=10.0, tokens=None)
    provider = sim.limit(Limit(660, burst=11))
    outcome = simulate(provider, limiter, questions=None, seconds=300.0)
    assert outcome.refused == 0
    assert outcome.rate() == pytest.approx(10.0, rel=0.02)
    limiter = RateLimiter(0.0)
    limiter.set_limits(requests=None, tokens=1000.0)
    outcome = simulate(sim.chance(), limiter, questions=None, seconds=300.0)
    assert outcome.rate() == pytest.approx(4.0, rel=0.02)


@pytest.mark.parametrize("window", [1.0, 8.0])
def test_a_low_start_rises_with_every_answer(window: float) -> None:
    limiter = RateLimiter(0.0, window)
    widths = []
    for round_ in range(5):
        widths.append(_fill(limiter, float(round_)))
        for _ in range(widths[-1]):
            limiter.record_answer(round_ + 0.5, float(round_))
    assert widths == [window * 2**n for n in range(5)]


def _fill(limiter: RateLimiter, now: float) -> int:
    sent = 0
    while limiter.delay(now) == 0.0:
        limiter.record_sent(now)
        sent += 1
    return sent


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["answer", "refuse", "fail", "lose"]),
            st.none() | st.floats(0, 100),
            st.floats(0, 50),
        ),
        max_size=80,
    )
)
def test_no_wait_is_without_end(events: list[tuple[str, float | None, float]]) -> None:
    """Whatever happens, the next request may leave within the longest wait that was asked for."""
    limiter = RateLimiter(0.0)
    now = 0.0
    for what, wait, step in events:
        now += step + limiter.delay(now)
        limiter.record_sent(now, 100.0)
        if what == "answer":
            left = (Allowance("requests", 100.0, wait, 60.0),) if wait else ()
            limiter.record_answer(now + 0.1, now, left, (50.0, 2.0))
        elif what == "lose":
            limiter.record_failure()
        else:
            limiter.record_refusal(now + 0.1, now, wait, limit=what == "refuse")
        assert limiter.in_flight == 0
        assert 0.0 <= limiter.delay(now + 0.1) <= 120.0


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
    # The pace is that of the best of three runs: a machine that stalls makes one of them late.
    for number in range(3):
        gate = Gate(Limit(1200, burst=40), dialect=own if dialect == "own" else "none")
        elapsed = _paced(make, gate, tmp_path / str(number) / "try")
        # Two waves of what is in flight: where the machine is busy, the headers that slow the
        # pace may be read after it has left. The shares are shown in simulated time.
        assert dialect == "none" or gate.refused <= 64
        # A burst of 40, then 160 at 20 a second: eight seconds, and the start of the run besides.
        if in_time := elapsed < 8.0 / 0.7 + 4.0:
            break
    assert in_time


def _paced(make: Any, gate: Gate, folder: Path) -> float:
    """Ask 200 questions of a provider with a limit; return the seconds that it took."""
    with Provider(lambda n, body: Answer("A", delay=0.05), gate) as provider:
        study = campaign([make(provider.url, concurrency=32)], pairs=100)
        # Time that a busy machine gave to others is not the pace's.
        began = time.monotonic() - starved()
        summary = run(study, folder, patience=RetryPolicy())
        elapsed = time.monotonic() - starved() - began
    assert summary.complete
    assert gate.admitted == 200
    return elapsed


def test_one_refusal_holds_back_its_own_question(tmp_path: Path) -> None:
    times: list[float] = []
    first = ""

    def behave(number: int, body: dict[str, Any]) -> Action:
        nonlocal first
        question = str(body["messages"][-1]["content"])
        first = first or question
        if question == first:
            times.append(time.monotonic())
        return Error(429, headers=(("retry-after", "1"),)) if number == 1 else Answer()

    with Provider(behave) as provider:
        study = campaign([claude(provider.url, concurrency=1)], pairs=10)
        clock = stopped_clock(times, lambda: len(provider.seen) >= 20)
        patience = RetryPolicy(base=0.01)
        assert run(study, tmp_path / "try", patience=patience, clock=clock).complete
        questions = [seen.question for seen in provider.seen]
    assert times[1] - times[0] >= 1.0
    assert questions.count(first) == 2
    assert len(questions) == 21
    assert questions[-1] == first, "the others did not wait for it"


def test_a_hang_costs_seconds_and_its_worst_case(tmp_path: Path) -> None:
    """Two of 162 are never answered: with a timeout of a minute, that was the run's last minute."""
    hung = Hangs(seconds=60.0)
    began = undisturbed()
    with Provider(lambda n, body: hung if n in {3, 150} else Answer()) as provider:
        study = campaign([claude(provider.url, concurrency=8)], pairs=80)
        summary = run(study, tmp_path / "try")
        assert len(provider.seen) == 162
    assert summary.complete
    assert undisturbed() - began < 30.0
    totals = status(tmp_path / "try", study)["claude"]
    assert totals.lost > 0.0
    assert summary.spent == pytest.approx(totals.cost + totals.lost)


def test_after_a_stall_of_this_process_no_answer_counts_as_late() -> None:
    """It may be there and only not read yet: the next check tells."""
    slow, tally = SlowRequests(), Tally(answered=100)
    request = Mock()
    slow._first_attempts[request] = 0.0

    async def go() -> list[bool]:
        cut = []
        with pytest.MonkeyPatch.context() as patch:
            for now in (1.0, 6.0, 7.0):
                patch.setattr(asyncio.get_running_loop(), "time", lambda now=now: now)
                slow.cancel_slow(tally)
                cut.append(request.reschedule.called)
        return cut

    assert asyncio.run(go()) == [False, False, True]


def test_runs_in_different_threads_share_a_fixed_limit(tmp_path: Path) -> None:
    """Two runs at 600 a minute make ten a second together, whatever event loop they are in."""
    limiters = RateLimiters()
    with Provider(lambda n, body: Answer()) as provider:
        judge = claude(provider.url, requests_per_minute=600)
        began = time.monotonic()

        def ask(name: str) -> None:
            study = campaign([judge], pairs=8, seed=len(name))
            assert run(study, tmp_path / name / "try", limiters=limiters).complete

        threads = [threading.Thread(target=ask, args=(name,)) for name in ("one", "other")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        elapsed = time.monotonic() - began
        assert len(provider.seen) == 32
    # The first four may leave at once, to make up for timers; the others at ten a second.
    assert elapsed >= 2.7


def test_the_next_run_keeps_to_the_pace_that_was_found() -> None:
    """200 requests that are refused in part find the limit; the next keep to it at once."""
    limiter = RateLimiter(0.0, window=8.0)
    provider = sim.limit(Limit(100, 1.0, burst=5), says_wait=False)
    first = simulate(provider, limiter, questions=200, slots=32)
    other = simulate(provider, limiter, questions=200, slots=32, began=first.seconds + 10.0)
    assert first.refused > 0.05 * 200
    assert other.refused <= 0.05 * 200


def test_the_next_run_starts_at_the_pace_that_was_found(tmp_path: Path) -> None:
    """On real sockets: it has the limiter of the run before, if it is given the same ones."""
    gate = Gate(Limit(20, period=1.0, burst=5), dialect="none", says_wait=False)
    limiters, paces = RateLimiters(), []

    def behave(number: int, body: dict[str, Any]) -> Action:
        (shared,) = limiters._limiters.values()
        paces.append(shared._limiter.rate)
        return Answer()

    firsts = []
    with Provider(behave, gate) as provider:
        for name, pairs in (("one", 30), ("other", 4)):
            study = campaign([claude(provider.url, concurrency=32)], pairs=pairs, seed=len(name))
            firsts.append(len(paces))
            assert run(study, tmp_path / name / "try", limiters=limiters).complete
    assert gate.refused > 0
    assert [paces[number] < math.inf for number in firsts] == [False, True]


def test_a_waiter_of_another_event_loop_is_woken() -> None:
    """One request at a time: the second waits in its own thread until the first is answered."""
    shared = SharedLimiter(RateLimiter(time.monotonic(), window=1.0))
    entered = asyncio.run(shared.enter(asyncio.Event(), 0.0))
    assert entered is not None
    second: list[float | None] = []
    thread = threading.Thread(
        target=lambda: second.append(asyncio.run(shared.enter(asyncio.Event(), 0.0)))
    )
    thread.start()
    time.sleep(0.1)
    assert not second
    shared.record_answer(entered)
    thread.join(60)
    assert len(second) == 1
