"""Faults of the provider: errors, rate limits, wrong usage, and malformed replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.faults.result_row import ResultRow, Size, completed, faults_of
from benchmarks.faults.trial import Ended, Trial
from benchmarks.provider_process import (
    NO_FAULTS,
    NO_RATE,
    TRUE_USAGE,
    Faults,
    ProviderProcess,
    Rate,
    ServerCounts,
    Usage,
)

LATENCY = 0.05
CAPPED, GIVEN_UP = 4, 3
"""Exit codes: the cap is reached; a judge cannot be asked."""

_INPUT, _OUTPUT = 1_000.0, 20.0
"""USD per million tokens, so that a few hundred questions reach a cap."""

Unmet = Callable[[Trial, ServerCounts, Ended], list[str]]


@dataclass(frozen=True)
class Case:
    """One run against one provider.

    Attributes:
        injected: the fault, in words.
        faults, rate, usage: the behaviour of the provider.
        judge, rest, patience: settings of the client that are not the default.
        cap: in USD.
        at_first: whether requests in flight before the first bill may exceed the cap.
        slower: the longest time of the run, given the seconds of the clean run.
        must: the requirement, in words.
        unmet: return which requirements are not met, beyond those of every run.
    """

    injected: str
    faults: Faults = NO_FAULTS
    rate: Rate = NO_RATE
    usage: Usage = TRUE_USAGE
    judge: Mapping[str, Any] = field(default_factory=dict)
    rest: Mapping[str, Any] = field(default_factory=dict)
    patience: Mapping[str, float] = field(default_factory=dict)
    cap: float | None = None
    at_first: bool = False
    slower: Callable[[float], float] | None = None
    must: str = ""
    unmet: Unmet = lambda trial, _counts, ended: completed(trial, ended)


def cases(size: Size) -> dict[str, Case]:
    """Return the cases by name."""
    return {**_paced(size), **_limited(size), **_billed(size), **_broken()}


def _paced(size: Size) -> dict[str, Case]:
    """Return cases with sporadic faults, which must hardly slow the run."""
    hangs = tuple(round(size.questions * (k + 0.5) / 8) for k in range(7))
    sporadic = partial(Case, slower=lambda clean: 2.0 * clean, must="≤ 2 × clean")
    hung = partial(sporadic, slower=lambda clean: 2.0 * clean + 5.0, must="≤ 2 × clean + 5 s")
    return {
        "clean": Case("nothing", must="complete"),
        "429": sporadic("a 429 with Retry-After: 1 every 50th", Faults(limited_every=50)),
        "429-rare": sporadic(".5 % at random", Faults(limited=0.005)),
        "429-often": sporadic("5 % at random", Faults(limited=0.05)),
        "500": sporadic("a 500 every 70th", Faults(error_every=70)),
        "429-500": sporadic("429s and 500s", Faults(limited_every=50, error_every=70)),
        "hangs": hung("7 requests never answered", Faults(hangs=hangs)),
        "all-three": hung(
            "429s, 500s, 7 hangs", Faults(limited_every=50, error_every=70, hangs=hangs)
        ),
    }


def _limited(size: Size) -> dict[str, Case]:
    """Return cases with limits that the client does not know, and a provider that is down."""
    many = size.questions

    def admitted(trial: Trial, counts: ServerCounts, ended: Ended) -> list[str]:
        share = counts.faults / counts.requests
        refused = [f"{share:.1%} refused"] if share > 0.02 else []
        return [*completed(trial, ended), *refused]

    def probed(trial: Trial, counts: ServerCounts, ended: Ended) -> list[str]:
        hammered = (
            [f"{counts.faults} requests while down"] if counts.faults > 3 * size.slots else []
        )
        return [*completed(trial, ended), *hammered]

    def given_up(_trial: Trial, _counts: ServerCounts, ended: Ended) -> list[str]:
        ends = ended.code == GIVEN_UP and "rate limited" in ended.line
        return [] if ends else [f"exit code {ended.code}: {ended.line[:160]}"]

    per_second = Rate(50 * 60.0, burst=50.0)
    return {
        "50-a-second": Case(
            "admits 50 a second", rate=per_second, unmet=admitted,
            slower=lambda clean: max((many - 50.0) / 50.0 / 0.9, 2.0 * clean),
            must="≥ 90 % used, ≤ 2 % refused",
        ),
        "10-at-once": Case(
            "admits 10 at once", rate=Rate(at_once=10), unmet=admitted,
            slower=lambda clean: max(many * LATENCY / 10.0 / 0.9, 2.0 * clean),
            must="≥ 90 % used, ≤ 2 % refused",
        ),
        "down": Case(
            f"503s for {size.down:.0f} s", Faults(down_from=many // 3, down_for=size.down),
            unmet=probed, slower=lambda clean: 2.0 * clean + size.down + 5.0,
            must=f"full pace within 5 s, ≤ {3 * size.slots} requests meanwhile",
        ),
        "429-for-ever": Case(
            "only 429s, given 5 s", Faults(limited=1.0), patience={"stall_timeout": 5.0},
            unmet=given_up, must="one line",
        ),
    }  # fmt: skip


def _billed(size: Size) -> dict[str, Case]:
    """Return cases with wrong usage, under a cap."""
    price = {"price": {"input": _INPUT, "output": _OUTPUT}}

    def capped(trial: Trial, _counts: ServerCounts, ended: Ended) -> list[str]:
        within = ended.code == CAPPED or trial.totals.done == trial.questions
        return [] if within else [f"exit code {ended.code}: {ended.line[:160]}"]

    untrue = partial(Case, judge=price, cap=20.0, unmet=capped, must="0 over the cap")
    beyond = Usage(completion=3_600)
    cheap = {"price": {"input": 1.0, "output": _OUTPUT}}
    # Requests sent before the first bill cannot be cancelled.
    least = size.slots * _bill(beyond, cheap)
    return {
        "cap": untrue("true usage, a cap of 20 USD"),
        "no-usage": untrue("no usage in replies", usage=Usage(states="nothing")),
        "negative-usage": untrue("usage below zero", usage=Usage(states="negative")),
        "huge-usage": untrue("usage of 10^19", usage=Usage(states="huge")),
        "beyond-limit": untrue(
            "3,600 tokens where 16 are the limit", usage=beyond, judge=cheap, cap=5.0,
            at_first=True, must=f"≤ {least:.2f} over the cap: under way at first",
        ),
    }  # fmt: skip


def _broken() -> dict[str, Case]:
    """Return cases with malformed replies."""

    def not_followed(trial: Trial, counts: ServerCounts, ended: Ended) -> list[str]:
        followed = [f"{counts.followed} redirects followed"] if counts.followed else []
        stopped = [] if ended.code else completed(trial, ended)
        return [*stopped, *followed]

    def set_aside(trial: Trial, _counts: ServerCounts, _ended: Ended) -> list[str]:
        totals = trial.totals
        left = trial.questions - totals.done - totals.quarantined
        return [f"{left} neither answered nor set aside"] if left else []

    return {
        "redirects": Case(
            "a 302 on 2 %", Faults(redirect=0.02), unmet=not_followed,
            must="none followed, one line"
        ),
        "resets": Case(
            "connections cut, 2 %; half an answer, 2 %", Faults(reset=0.02, malformed=0.02),
            unmet=set_aside, must="answered, or set aside",
        ),
    }  # fmt: skip


def _bill(usage: Usage, judge: Mapping[str, Any]) -> float:
    """Return the USD of one answer."""
    price = judge["price"]
    return float(usage.prompt * price["input"] + usage.completion * price["output"]) / 1e6


def run_case(name: str, case: Case, size: Size, folder: Path, clean: float | None) -> ResultRow:
    """Run one case.

    Args:
        name, case: the case.
        size: number of questions.
        folder: for the run; it must not exist.
        clean: seconds of the clean run, if it was run.
    """
    rest = dict(case.rest)
    if case.cap is not None:
        rest["limits"] = {"max_cost": case.cap}
    with ProviderProcess(LATENCY, case.faults, case.rate, case.usage) as server:
        trial = Trial(
            folder, server.url, size.questions, size.slots, case.judge, rest, case.patience
        )
        ended = trial.run()
        counts = server.counts()
    over, allowed = None, 1e-9
    if case.cap is not None:
        bill = _bill(case.usage, case.judge)
        over = max(counts.answers * bill - case.cap, 0.0)
        allowed += case.at_first * size.slots * bill
    seconds = counts.seconds or ended.seconds
    unmet = [*faults_of(trial, counts, ended), *case.unmet(trial, counts, ended)]
    if over is not None and over > allowed:
        unmet.append(f"{over:.2f} over the cap")
    if case.slower is not None and clean is not None and seconds > case.slower(clean):
        unmet.append(f"{seconds / clean:.1f} × clean")
    return ResultRow(name, case.injected, trial.questions, counts, seconds, case.must, unmet, over,
                clean if case.slower is not None else None)  # fmt: skip
