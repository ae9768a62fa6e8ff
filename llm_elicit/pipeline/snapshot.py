"""What a run does at one moment: its state, and the counts of its judges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from llm_elicit.config.base_model import StrictModel
from llm_elicit.config.campaign import Campaign
from llm_elicit.config.judges import Judge
from llm_elicit.orchestrator.journal import (
    Control,
    JournalLocation,
    JournalSummary,
    RunState,
    Totals,
    read_summary,
    visible_state,
)
from llm_elicit.orchestrator.prices import price_of
from llm_elicit.pipeline.run_folder import REPORT, Run

THROTTLED = "rate limited"
"""The kind of failure of requests that were refused for their rate."""


class JudgeSnapshot(StrictModel):
    """The counts of one judge, those of earlier processes included.

    Attributes:
        backend, model: who is asked.
        total, done: questions of the campaign, and those answered.
        failed: questions given up.
        cached: answers taken from the cache.
        requests, errors: requests sent, and those that failed.
        failures: failed requests by kind.
        throttled: requests that were refused for their rate.
        rate: answers per second over the last ten seconds.
        cost: USD; None if the price is unknown.
    """

    backend: str
    model: str
    total: int = 0
    done: int = 0
    failed: int = 0
    cached: int = 0
    requests: int = 0
    errors: int = 0
    failures: dict[str, int] = Field(default_factory=dict)
    throttled: int = 0
    rate: float = 0.0
    cost: float | None = 0.0


class RunSnapshot(StrictModel):
    """What a run does at one moment.

    Attributes:
        name: the campaign's name.
        state, stage: see `llm_elicit.orchestrator.Control`; "unreadable" if a list cannot say.
        step: what the stage does, in a few words; empty if it does not say.
        judges: the judges' counts by name.
        cost: USD; None if the price of a judge is unknown.
        max_cost, concurrency: the limits in force; None for none, or for the judges' own.
        problems: errors that stopped a judge or the run, each in one line.
        live: the number of the newest live view; 0 before the first.
        seq: the number of the last event.
        updated: the UTC time, ISO 8601.
        report: whether there is a report.
    """

    name: str
    state: RunState | Literal["unreadable"]
    stage: str
    step: str
    judges: dict[str, JudgeSnapshot]
    cost: float | None
    max_cost: float | None
    concurrency: int | None
    problems: tuple[str, ...]
    live: int
    seq: int
    updated: str
    report: bool

    @classmethod
    def of(
        cls,
        folder: Path,
        campaign: Campaign,
        control: Control,
        judges: dict[str, JudgeSnapshot],
        **more: Any,
    ) -> RunSnapshot:
        """Return the snapshot of a run; `more` are the fields that its process knows."""
        costs = [judge.cost for judge in judges.values() if judge.cost is not None]
        limits = campaign.limits
        return cls(
            name=folder.name,
            stage=control.stage,
            judges=judges,
            cost=sum(costs) if len(costs) == len(judges) else None,
            max_cost=limits.max_cost if control.max_cost is None else control.max_cost,
            concurrency=control.concurrency,
            report=(folder / REPORT).is_file(),
            **more,
        )

    @classmethod
    def unreadable(cls, folder: Path, why: str) -> RunSnapshot:
        """Return the snapshot of a run of which only this is known."""
        return cls(
            name=folder.name, state="unreadable", stage="", step="", judges={}, cost=None,
            max_cost=None, concurrency=None, problems=(why,), live=0, seq=0, updated="",
            report=False,
        )  # fmt: skip


def failures_of(summary: JournalSummary) -> dict[str, dict[str, int]]:
    """Return the numbers of failed requests by judge and kind, by the events of a run."""
    failures: dict[str, dict[str, int]] = defaultdict(dict)
    for event in summary.counted:
        if event.judge is not None:
            counted = {THROTTLED: event.data.get("total", 0)}
            failures[event.judge] |= event.data["kinds"] if event.kind == "failed" else counted
    return failures


def stored_snapshot(run: Run) -> RunSnapshot:
    """Return what a run of another process does, or did last, by its journal."""
    return read_snapshot(run.folder, run.campaign, lambda: run.empty_totals)


def read_snapshot(
    folder: Path, campaign: Campaign, empty: Callable[[], dict[str, Totals]]
) -> RunSnapshot:
    """Return what a run does, or did last, by its campaign and its journal.

    Args:
        folder: the run's folder.
        campaign: its campaign.
        empty: returns the counts before the first question.
    """
    names = [judge.name for judge in campaign.judges]
    summary = read_summary(JournalLocation(folder, campaign.journal), names)
    totals, failures = summary.totals, failures_of(summary)
    if not all(name in totals and totals[name].total for name in names):
        totals = empty() | {name: counts for name, counts in totals.items() if counts.total}
    judges = {
        judge.name: _judge_snapshot(judge, totals[judge.name], failures[judge.name])
        for judge in campaign.judges
    }
    control = summary.control
    if control is None:
        state: RunState = "done" if (folder / REPORT).is_file() else "planned"
        control = Control(state=state, at_work=True)
    return RunSnapshot.of(
        folder,
        campaign,
        control,
        judges,
        state=visible_state(control),
        step="",
        problems=tuple((control.error or "").splitlines()),
        live=0,
        seq=0,
        updated=max((one.last for one in totals.values()), default=""),
    )


def _judge_snapshot(judge: Judge, counts: Totals, failures: dict[str, int]) -> JudgeSnapshot:
    return JudgeSnapshot(
        backend=judge.backend,
        model=judge.model_name,
        total=counts.total,
        done=counts.done,
        failed=counts.failed,
        cached=counts.cached,
        requests=counts.requests,
        errors=sum(failures.values()),
        failures=failures,
        throttled=failures.get(THROTTLED, 0),
        # Answers whose price is unknown are recorded without a cost.
        cost=counts.cost if counts.cost or price_of(judge) is not None else None,
    )
