"""What a run does at one moment: its state, and the counts of its judges.

The snapshots of all runs in a folder, for lists: neither spaces nor plans nor beliefs are read.

A run at which no process is at work stays as it is until one of its files changes. Its snapshot is
kept in memory, and in a file for the next start.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from llm_elicit._util.settings import StrictModel
from llm_elicit.config.campaign import Campaign
from llm_elicit.config.judges import Judge
from llm_elicit.errors import ElicitError, InputError
from llm_elicit.orchestrator.journal.connection import FILE as JOURNAL
from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.journal.control import (
    ENDED,
    Control,
    JournalSummary,
    RunState,
    read_summary,
    visible_state,
)
from llm_elicit.orchestrator.journal.schema import Totals
from llm_elicit.orchestrator.prices import price_of
from llm_elicit.pipeline.manifest import write_atomically
from llm_elicit.pipeline.run_folder import CAMPAIGN, REPORT, Run, find, run_folders

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
        state, stage: see `llm_elicit.orchestrator.journal.control.Control`; "unreadable" if a
            list cannot say.
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
        updated=max((counts.last for counts in totals.values()), default=""),
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


_LOG = f"{JOURNAL}-wal"
_FILES = (CAMPAIGN, REPORT, JOURNAL, _LOG)

_NONE = (0, 0, -1)
"""The state of a file that is not there."""

_SETTLED = 2.0
"""Seconds after which a change of a file is sure to have changed its time."""

_SETTLED_ELSEWHERE = 60.0
"""The same of a run whose journal is on a server: its start changes its campaign's file first."""

State = tuple[tuple[int, int, int], ...]
"""What changes with the files of a run."""


class _Entry(StrictModel):
    """A snapshot, and the state of the files that it was read from."""

    files: State
    run: RunSnapshot


class RunIndex:
    """The snapshots of the runs in a folder. Its methods block.

    Args:
        folder: the folder of the runs.
        store: a folder for what is known of them; created if necessary.
    """

    def __init__(self, folder: Path, store: Path) -> None:
        self._folder, self._store = folder, store
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()

    def snapshots(self, left_out: Collection[str] = ()) -> list[RunSnapshot]:
        """Return what the runs do, or did last; one that cannot be read says why.

        Args:
            left_out: names of runs that are not looked at.
        """
        with self._lock:
            folders = [path for path in run_folders(self._folder) if path.name not in left_out]
            names = {path.name for path in folders}
            for name in self._entries.keys() - names - set(left_out):
                del self._entries[name]  # it was deleted
                with contextlib.suppress(OSError):
                    self._path(name).unlink(missing_ok=True)
            runs = [self._snapshot(path) for path in folders]
        return [run for run in runs if run is not None]

    def _snapshot(self, folder: Path) -> RunSnapshot | None:
        """Return the snapshot of one run; None if it was deleted, or is a grid of others."""
        files = _state(folder)
        entry = self._entries.get(folder.name)
        with contextlib.suppress(OSError, ValueError):  # what an earlier process knew of it
            entry = entry or _Entry.model_validate_json(self._path(folder.name).read_bytes())
        if entry is not None and entry.files == files:
            self._entries[folder.name] = entry
            return entry.run
        try:
            campaign = find(folder)[0]
            if campaign.grid is not None:
                return None
            run = read_snapshot(folder, campaign, lambda: _empty(folder, campaign))
        except (ElicitError, OSError) as error:
            if not (folder / CAMPAIGN).is_file():
                return None
            run = RunSnapshot.unreadable(folder, str(error))
            if not getattr(error, "passes", False):
                self._entries[folder.name] = _Entry(files=files, run=run)
            return run
        if _stays(run, files, shared=campaign.journal is not None):
            self._keep(_Entry(files=files, run=run))
        return run

    def _keep(self, entry: _Entry) -> None:
        self._entries[entry.run.name] = entry
        with contextlib.suppress(InputError, OSError):  # it is only faster
            self._store.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._path(entry.run.name), entry.model_dump_json())

    def _path(self, name: str) -> Path:
        return self._store / f"{name}.json"


def _empty(folder: Path, campaign: Campaign) -> dict[str, Totals]:
    """Return the counts before the first question; only direct questions depend on the space."""
    if campaign.direct is not None:
        return Run.open(folder).empty_totals
    total = Totals(total=campaign.design.questions)
    return {judge.name: total for judge in campaign.judges}


def _state(folder: Path) -> State:
    states = dict.fromkeys(_FILES, _NONE)
    for name in _FILES:
        with contextlib.suppress(OSError):
            stat = (folder / name).stat()
            if name != _LOG or stat.st_size:  # reading a journal makes an empty log beside it
                states[name] = stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size
    return tuple(states.values())


def _stays(run: RunSnapshot, files: State, *, shared: bool) -> bool:
    """Whether a snapshot holds until one of the files changes."""
    settled = _SETTLED_ELSEWHERE if shared else _SETTLED
    changed = max(max(stat[:2]) for stat in files) / 1e9
    is_over = run.state in ENDED if shared else run.state in (*ENDED, "interrupted")
    return is_over and time.time() - changed > settled
