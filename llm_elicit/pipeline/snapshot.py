"""What a run does at one moment: its state, and the counts of its judges."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from pydantic import Field

from llm_elicit import orchestrator
from llm_elicit.config.base_model import StrictModel
from llm_elicit.orchestrator import Control, RunState
from llm_elicit.orchestrator.prices import price_of
from llm_elicit.pipeline.run_folder import Run

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
        state, stage: see `llm_elicit.orchestrator.Control`.
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
    state: RunState
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
        cls, run: Run, control: Control, judges: dict[str, JudgeSnapshot], **more: Any
    ) -> RunSnapshot:
        """Return the snapshot of a run; `more` are the fields that its process knows."""
        costs = [judge.cost for judge in judges.values() if judge.cost is not None]
        limits = run.campaign.limits
        return cls(
            name=run.campaign.name,
            stage=control.stage,
            judges=judges,
            cost=sum(costs) if len(costs) == len(judges) else None,
            max_cost=limits.max_cost if control.max_cost is None else control.max_cost,
            concurrency=control.concurrency,
            report=run.report_path.is_file(),
            **more,
        )


def recorded_failures(run: Run) -> dict[str, dict[str, int]]:
    """Return the numbers of failed requests by judge and kind, by the events of a run."""
    failures: dict[str, dict[str, int]] = defaultdict(dict)
    for event in orchestrator.latest_events(run.location, ("failed", "throttled")):
        if event.judge is not None:
            counted = {THROTTLED: event.data.get("total", 0)}
            failures[event.judge] |= event.data["kinds"] if event.kind == "failed" else counted
    return failures


def stored_snapshot(run: Run) -> RunSnapshot:
    """Return what a run of another process does, or did last, by its journal."""
    control = orchestrator.read_control(run.location)
    totals = (
        orchestrator.status(run.folder, run.campaign)
        if orchestrator.is_begun(run.location)
        else run.empty_totals
    )
    judges, failures = {}, recorded_failures(run)
    for judge in run.campaign.judges:
        counts, kinds = totals[judge.name], failures[judge.name]
        judges[judge.name] = JudgeSnapshot(
            backend=judge.backend,
            model=getattr(judge, "model", None) or "",
            total=counts.total or run.empty_totals[judge.name].total,
            done=counts.done,
            failed=counts.failed,
            cached=counts.cached,
            requests=counts.requests,
            errors=sum(kinds.values()),
            failures=kinds,
            throttled=kinds.get(THROTTLED, 0),
            # Answers whose price is unknown are recorded without a cost.
            cost=counts.cost if counts.cost or price_of(judge) is not None else None,
        )
    if control is None:
        state: RunState = "done" if run.report_path.is_file() else "planned"
        control = Control(state=state, at_work=True)
    return RunSnapshot.of(
        run,
        control,
        judges,
        state=orchestrator.visible_state(control),
        step="",
        problems=(control.error,) if control.error else (),
        live=0,
        seq=0,
        updated=max((one.last for one in totals.values()), default=""),
    )
