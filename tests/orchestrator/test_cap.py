"""Caps: by arithmetic, by the engine against a provider that bills at random, and through kills."""

import asyncio
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.warm import WarmPopen
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_elicit.config.campaign import Limits
from llm_elicit.errors import CapError
from llm_elicit.orchestrator.budget import Amount, Budget
from llm_elicit.testing.provider import Provider
from orchestrator import cap
from orchestrator.cap import Till, Trial, small, spend
from orchestrator.running import run

REQUEST = st.tuples(st.floats(0, 1), st.integers(0, 1000), st.floats(0, 1))
"""A worst case in USD and tokens, and the share of it that is paid."""


def _paid(worst: Amount, share: float) -> Amount:
    return Amount(worst.usd * share, int(worst.tokens * share))


@given(
    st.floats(0.01, 5),
    st.integers(1, 5000),
    st.lists(REQUEST, max_size=40),
    st.randoms(use_true_random=False),
    st.floats(0, 1),
)
def test_no_order_of_reservations_and_settlements_passes_a_cap(
    max_cost: float, max_tokens: int, requests: list, rng, before: float
) -> None:
    limits = Limits(max_cost=max_cost, max_tokens=max_tokens)
    ledger = Budget(limits, Amount(max_cost * before, int(max_tokens * before)))
    held: list[tuple[Amount, float]] = []
    for usd, tokens, share in requests:
        worst = Amount(usd, tokens)
        room = max_cost - ledger.spent.usd - sum(w.usd for w, _ in held)
        left = max_tokens - ledger.spent.tokens - sum(w.tokens for w, _ in held)
        taken = ledger.try_reserve(worst)
        if taken:
            held.append((worst, share))
        elif usd <= room - 1e-9 and tokens <= left:
            pytest.fail("refused, though both caps have room")
        while held and rng.random() < 0.4:
            one, part = held.pop(rng.randrange(len(held)))
            ledger.settle(one, _paid(one, part))
        committed = ledger.spent.usd + sum(w.usd for w, _ in held)
        assert committed <= max_cost + 1e-9
        # What earlier runs spent is rounded to a picodollar.
        assert ledger.spent.usd <= max_cost + 1e-12
        assert ledger.spent.tokens + sum(w.tokens for w, _ in held) <= max_tokens
    for one, part in held:
        ledger.settle(one, _paid(one, part))
    left = Amount(max_cost - ledger.spent.usd - 1e-9, max_tokens - ledger.spent.tokens)
    assert left.usd < 0.0 or ledger.try_reserve(left), "nothing is reserved any more"


@settings(max_examples=40, deadline=None)
@given(st.floats(0.1, 10), st.lists(REQUEST, min_size=1, max_size=30))
def test_waiting_requests_get_what_others_leave(cap_usd: float, requests: list) -> None:
    async def go() -> tuple[float, int]:
        budget = Budget(Limits(max_cost=cap_usd), Amount())
        refused = 0

        async def one(worst: Amount, share: float) -> None:
            nonlocal refused
            try:
                await budget.reserve(worst)
            except CapError:
                refused += 1
                return
            await asyncio.sleep(0)
            budget.settle(worst, _paid(worst, share))

        await asyncio.gather(*(one(Amount(usd, n), share) for usd, n, share in requests))
        return budget.spent.usd, refused

    spent, refused = asyncio.run(go())
    assert spent <= cap_usd
    if sum(usd for usd, _, _ in requests) <= cap_usd - 1e-9:
        assert refused == 0


def test_five_dollars_with_200_in_flight(tmp_path: Path) -> None:
    """The bar for one price; `python -m orchestrator.cap` tries twenty."""
    # Fewer and dearer requests than there: a cap is as near, sooner.
    spent, billed, peak = spend(Trial(0, share=0.004, pairs=750), tmp_path / "try")
    assert 0.95 * 5.0 <= billed <= spent * (1 + 1e-9)
    assert spent <= 5.0
    assert peak >= 100


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10**6), st.floats(0, 0.2), st.floats(0.05, 2), st.floats(0.01, 0.1))
def test_no_price_usage_or_fault_passes_a_cap(
    seed: int, faults: float, cap_usd: float, share: float
) -> None:
    trial = replace(small(seed), cap=cap_usd, faults=faults, share=share)
    with tempfile.TemporaryDirectory() as folder:
        spent, billed, _ = spend(trial, Path(folder) / "try")
    # What may have been billed counts, so that the campaign's own count is never below the bill.
    assert billed <= spent * (1 + 1e-9)
    assert spent <= cap_usd


def test_a_cap_holds_through_kills_and_resumes(tmp_path: Path) -> None:
    trial = small(3)
    till = Till(trial)
    folder = tmp_path / "try"
    with Provider(till) as provider:
        for _ in range(2):
            seen = len(provider.seen)
            child = WarmPopen(
                [sys.executable, cap.__file__, "--child", provider.url, str(folder), "3"],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
            )
            until = time.monotonic() + 120
            while len(provider.seen) < seen + 15 and child.poll() is None:
                assert time.monotonic() < until
                time.sleep(0.002)
            child.kill()
            child.wait()
        summary = run(trial.study(provider.url), folder)
    assert till.billed <= summary.spent <= trial.cap
    assert summary.spent >= 0.9 * trial.cap
    assert isinstance(summary.problems[0], CapError)


def test_a_cap_on_tokens_holds(tmp_path: Path) -> None:
    trial = small(5)
    with Provider(Till(trial)) as provider:
        study = trial.study(provider.url)
        study = study.model_copy(update={"limits": Limits(max_tokens=200_000)})
        summary = run(study, tmp_path / "try")
        used = sum(
            j.tally.prompt_tokens + j.tally.completion_tokens for j in summary.judges.values()
        )
        assert 100_000 < used <= 200_000
        assert "max_tokens of 200,000" in str(summary.problems[0])
        sent = len(provider.seen)
        again = run(study, tmp_path / "try")
        assert len(provider.seen) == sent
        assert isinstance(again.problems[0], CapError)
