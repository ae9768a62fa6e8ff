"""Running small campaigns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import pytest

from llm_elicit.comparisons.table import Comparisons
from llm_elicit.config.campaign import Campaign
from llm_elicit.orchestrator import engine
from llm_elicit.orchestrator.cache import CacheUse
from llm_elicit.orchestrator.engine import AskSummary, ask
from llm_elicit.orchestrator.judgments import comparisons
from llm_elicit.orchestrator.open_run import Study
from llm_elicit.orchestrator.progress import Progress, Silent
from llm_elicit.orchestrator.rate_sharing import RateLimiters
from llm_elicit.orchestrator.retries import RetryPolicy
from llm_elicit.orchestrator.reuse import RunContext
from llm_elicit.planning.pairs import Plan, direct_queries, make_plan
from llm_elicit.spaces.features import FeatureSpace
from orchestrator.conftest import SWIFT


class Notes(Silent):
    """A progress that stores what it receives."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, judge: str, line: str) -> None:
        self.lines.append(f"{judge}: {line}")


def campaign(judges: list[dict[str, Any]], pairs: int = 10, **rest: Any) -> Campaign:
    return Campaign.model_validate(
        {
            "name": "try",
            "space": "penguins",
            "design": {"pairs": pairs},
            "judges": judges,
            **rest,
        }
    )


@cache
def _space(name: str, sampling: Literal["uniform", "empirical"]) -> FeatureSpace:
    return FeatureSpace.load(name).with_sampling(sampling)


def space_of(study: Campaign) -> FeatureSpace:
    """The feature space of a campaign without a condition, read once a process."""
    assert not study.given
    return _space(str(study.space), study.design.sampling)


def plan_of(study: Campaign) -> Plan:
    space = space_of(study)
    first = make_plan(space, study.design, study.seed)
    direct = direct_queries(study.direct, space, study.seed, len(first.a))
    return replace(first, direct=direct)


def run(
    study: Campaign,
    folder: Path,
    progress: Progress | None = None,
    patience: RetryPolicy = SWIFT,
    reuse: CacheUse = "reuse",
    limiters: RateLimiters | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> AskSummary:
    """Ask a campaign; by the clock the runner tells when a retry is due."""
    asked = Study(study, space_of(study), plan_of(study), folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "RunContext", partial(RunContext, clock=clock))
        return asyncio.run(ask(asked, progress, patience, reuse, limiters=limiters))


def stopped_clock(began: Sequence[float], over: Callable[[], bool]) -> Callable[[], float]:
    """A clock that stands still from the first of some times until a condition is true.

    No stall of the machine makes a retry due meanwhile. It goes on after a minute in any case.
    """

    def clock() -> float:
        now = time.monotonic()
        return began[0] if began and not over() and now < began[0] + 60.0 else now

    return clock


def starved(threads: str = "self/task/*") -> float:
    """Seconds so far that threads, by their paths in /proc, were ready and others had the cores."""
    try:
        waits = [(path / "schedstat").read_text() for path in Path("/proc").glob(threads)]
        return sum(int(wait.split()[1]) for wait in waits) / 1e9
    except (OSError, IndexError):
        return 0.0  # another system than Linux, or a thread that ended meanwhile


def undisturbed() -> float:
    """A clock in seconds, which stands still while others have the core of this thread."""
    return time.monotonic() - starved("thread-self")


def table(study: Campaign, folder: Path, thinking: bool = False) -> Comparisons:
    return comparisons(Study(study, space_of(study), plan_of(study), folder), thinking=thinking)


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for children or the server to bring something about."""
    latest = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < latest, "what is waited for does not come about"
        time.sleep(0.005)
