"""Snapshots of runs: their state, the counts of their judges, and the summary of their beliefs.

Neither the space nor the plan is read. The summary of beliefs is read from the run's folder without
the libraries that computed it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from llm_elicit._util.files import read_json
from llm_elicit._util.settings import StrictModel
from llm_elicit.comparisons.table import VersionLog
from llm_elicit.config.campaign import Campaign
from llm_elicit.config.judges import Judge
from llm_elicit.orchestrator.budget import price_of
from llm_elicit.orchestrator.journal import control as journal
from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.journal.schema import Totals
from llm_elicit.orchestrator.log_odds import LogOdds
from llm_elicit.orchestrator.progress import Tally
from llm_elicit.pipeline.run_folder import REPORT, Run

THROTTLED = "rate limited"
"""The kind of failure of requests that were refused for their rate."""


class JudgeSnapshot(StrictModel):
    """The counts of one judge, those of earlier processes included.

    Attributes:
        backend, model: the backend and the model of the judge.
        total, done: questions of the campaign, and those answered.
        failed: questions given up.
        cached: answers taken from the cache.
        requests, errors: requests sent, and those that failed.
        failures: failed requests by kind.
        throttled: requests that were refused for their rate.
        rate: answers per second over the last ten seconds.
        cost: USD; None if the price is unknown.
        log_odds: whether its choices have log-odds, in one line; empty before the first.
        change: the line on a change of the version that answers; empty without one.
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
    log_odds: str = ""
    change: str = ""

    @classmethod
    def of(
        cls, judge: Judge, counts: Tally | Totals, failures: Mapping[str, int], **more: Any
    ) -> JudgeSnapshot:
        """Return the counts of a judge; `more` are the fields that differ between the callers."""
        return cls(
            backend=judge.backend, model=judge.model_name, total=counts.total, done=counts.done,
            failed=counts.failed, errors=sum(failures.values()), failures=dict(failures),
            throttled=failures.get(THROTTLED, 0), **more,
        )  # fmt: skip


class RunSnapshot(StrictModel):
    """The state of a run at one moment.

    Attributes:
        name: the campaign's name.
        state, stage: see `llm_elicit.orchestrator.journal.control.Control`; "unreadable" in a list
            if the run cannot be read.
        step: the current step of the stage in words; empty if the stage reports none.
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
    state: journal.RunState | Literal["unreadable"]
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
        control: journal.Control,
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

    @property
    def done(self) -> int:
        """The number of answers of all judges."""
        return sum(judge.done for judge in self.judges.values())

    @property
    def total(self) -> int:
        """The number of questions to all judges."""
        return sum(judge.total for judge in self.judges.values())

    @classmethod
    def unreadable(cls, folder: Path, reason: str) -> RunSnapshot:
        """Return the snapshot of a run that cannot be read, with the reason."""
        return cls(
            name=folder.name, state="unreadable", stage="", step="", judges={}, cost=None,
            max_cost=None, concurrency=None, problems=(reason,), live=0, seq=0, updated="",
            report=False,
        )  # fmt: skip


def failures_of(summary: journal.JournalSummary) -> dict[str, dict[str, int]]:
    """Return the numbers of failed requests by judge and kind, from the events of a run."""
    failures: dict[str, dict[str, int]] = defaultdict(dict)
    for event in summary.counted:
        if event.judge is not None:
            counted = {THROTTLED: event.data.get("total", 0)}
            failures[event.judge] |= event.data["kinds"] if event.kind == "failed" else counted
    return failures


def stored_snapshot(run: Run) -> RunSnapshot:
    """Return the current or last state of a run of another process, from its journal."""
    return read_snapshot(run.folder, run.campaign, lambda: run.empty_totals)


def read_snapshot(
    folder: Path, campaign: Campaign, empty: Callable[[], dict[str, Totals]]
) -> RunSnapshot:
    """Return the current or last state of a run, from its campaign and its journal.

    Args:
        folder: the run's folder.
        campaign: the campaign of the run.
        empty: returns the counts before the first question.
    """
    names = [judge.name for judge in campaign.judges]
    summary = journal.read_summary(JournalLocation(folder, campaign.journal))
    totals, failures = summary.totals, failures_of(summary)
    if not all(name in totals and totals[name].total for name in names):
        totals = empty() | {name: counts for name, counts in totals.items() if counts.total}
    changes = {
        name: change.line
        for change in VersionLog(campaign.aliases, summary.versions).changes
        for name in change.judges
    }
    judges = {}
    for judge in campaign.judges:
        counts = totals[judge.name]
        # Answers whose price is unknown are recorded without a cost.
        cost = counts.cost if counts.cost or price_of(judge) is not None else None
        judges[judge.name] = JudgeSnapshot.of(
            judge, counts, failures[judge.name], cached=counts.cached, requests=counts.requests,
            cost=cost, log_odds=LogOdds.of(judge, summary.choices).line,
            change=changes.get(judge.name, ""),
        )  # fmt: skip
    control = summary.control
    if control is None:
        state: journal.RunState = "done" if (folder / REPORT).is_file() else "planned"
        control = journal.Control(state=state, at_work=True)
    return RunSnapshot.of(
        folder,
        campaign,
        control,
        judges,
        state=journal.visible_state(control),
        step="",
        problems=tuple((control.error or "").splitlines()),
        live=0,
        seq=0,
        updated=max((counts.last for counts in totals.values()), default=""),
    )


LIVE = "live.json"
"""The file of the live view in a run's folder."""


class LiveInterval(StrictModel):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, estimate: object | None) -> LiveInterval | None:
        """Return the value and the ends of an estimate of the audit; None without one."""
        return None if estimate is None else cls.model_validate(estimate, from_attributes=True)


class LiveShape(StrictModel):
    """A part of a chart: an SVG path, or a text, in CSS pixels.

    Attributes:
        kind: "data", "sampling", "band", "belief" or "axis"; determines its colour.
        path: the SVG outline; empty for a text.
        width: line width; 0 if the shape is filled.
        text, x, y, angle: the text and the position of its middle (of its end, if rotated).
    """

    kind: str
    path: str = ""
    width: float = 0.0
    text: str = ""
    x: float = 0.0
    y: float = 0.0
    angle: float = 0.0


class LiveBin(StrictModel):
    """A part of a feature's axis, with what lies in it.

    Attributes:
        x, width: its position in the chart, in CSS pixels.
        values: the values in words.
        shares: the shares of the belief, the data and the questions in words.
        low, high: the lowest and the highest value, as a filter of answers takes them.
    """

    x: float
    width: float
    values: str
    shares: str
    low: str
    high: str


class LiveChart(StrictModel):
    """A chart of one feature.

    Attributes:
        title: the feature with its unit.
        words: the content of the chart in words.
        width, height: in CSS pixels.
        shapes: the shapes of the figure.
        feature: the feature's name.
        bins: the parts of its axis.
    """

    title: str
    words: str
    width: int
    height: int
    shapes: tuple[LiveShape, ...]
    feature: str = ""
    bins: tuple[LiveBin, ...] = ()


class LiveJudge(StrictModel):
    """One judge while it is asked; None where its answers do not allow a measurement yet.

    Attributes:
        judgments: number of answers so far.
        pairs: pairs with at least one choice.
        agreement: share of pairs asked in both orders whose answers pick the same point.
        retest: share of repeated questions answered alike.
        position_effect: P(option A) − 1/2 over pairs asked in both orders.
        charts: the belief, one chart for each feature; empty without one.
        used: the number of pairs of a quick fit; 0 if the belief is that of the run's stage.
        reason: why there is no belief; empty if there is one.
        verdict: the report's sentence on the judge; empty before there is a report.
        reliability: the reliability in the report.
    """

    judgments: int
    pairs: int
    agreement: LiveInterval | None = None
    retest: LiveInterval | None = None
    position_effect: LiveInterval | None = None
    charts: tuple[LiveChart, ...] = ()
    used: int = 0
    reason: str = ""
    verdict: str = ""
    reliability: LiveInterval | None = None


class LiveView(StrictModel):
    """The beliefs of a run at one moment.

    Attributes:
        created: the UTC time, ISO 8601.
        data: whether there is a table to compare with.
        judges: the judges by name, in the campaign's order.
        first, last: the UTC times of the first and the last answer, ISO 8601; empty without one.
    """

    created: str
    data: bool
    judges: dict[str, LiveJudge] = Field(default_factory=dict)
    first: str = ""
    last: str = ""

    @classmethod
    def read(cls, folder: Path) -> LiveView | None:
        """Read the view in a run's folder; None before the first.

        Raises:
            InputError: the file was changed by hand.
        """
        path = folder / LIVE
        return read_json(path, cls.model_validate_json) if path.is_file() else None
