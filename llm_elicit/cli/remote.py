"""What commands do with `--service`: runs of a service, through its client."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llm_elicit.cli import options as cli
from llm_elicit.client import Client, ServiceConflictError, ServiceRun
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal.control import ENDED, Wanted
from llm_elicit.pipeline.snapshot import RunSnapshot

_FOLDER = Path("runs")

_MOST_RUNS = 200
"""Largest number of runs in a list."""

_POLL_SECONDS = 0.2
"""Seconds between two reads of the run's state."""


def run_there(address: str, campaign: str, retry_failed: bool, as_json: bool) -> None:
    """Start a campaign on a service or resume it, follow it, and fetch its report.

    Raises:
        ServiceError: the service refuses the campaign, or cannot be reached.
    """
    with Client(address) as client:
        try:
            run = client.start(campaign)
        except ServiceConflictError:
            run = client.run(Campaign.load(campaign).name)
            if run.snapshot().state != "done" or retry_failed:
                run.start(retry_failed=retry_failed)
        for event in run.events(run.snapshot().seq):
            if event.kind == "state" and not as_json:
                cli.out.print(f"{run.name}: {event.data['stage'] or event.data['state']}")
        snapshot = run.wait()
        outcome = _fetch(run, snapshot)
    cli.show({"run": run.name} | outcome.facts, outcome.text, as_json)


def _fetch(run: ServiceRun, snapshot: RunSnapshot) -> cli.Outcome:
    """Write the report of a run, and return its verdicts."""
    _FOLDER.mkdir(exist_ok=True)
    path = _FOLDER / f"{run.name}.html"
    path.write_text(run.report(), encoding="utf-8")
    verdicts = {judge["name"]: judge["preference"]["verdict"] for judge in run.audit()["judges"]}
    lines = [f"{name}: {verdict}" for name, verdict in verdicts.items()]
    facts = {"verdicts": verdicts, "report": path, "problems": snapshot.problems}
    return cli.Outcome([*lines, f"report: {path}", *snapshot.problems], facts)


def show_status(address: str, name: str | None, as_json: bool) -> None:
    """Print the state of a run on a service, or a list of its runs, active ones first."""
    with Client(address) as client:
        if name is None:
            _show_list(client, address, as_json)
            return
        snapshot = client.run(name).snapshot()
    columns, rows = ("judge", "done", "failed", "planned", "cost USD", "run"), []
    for judge, line in snapshot.judges.items():
        counts = [f"{n:,}" for n in (line.done, line.failed, line.total - line.done - line.failed)]
        rows.append([judge, *counts, _usd(line.cost), snapshot.state])
    cli.show(snapshot, [cli.table_of(columns, rows), *snapshot.problems], as_json)


def _show_list(client: Client, address: str, as_json: bool) -> None:
    page = client.runs(limit=_MOST_RUNS)
    columns, rows = ("run", "state", "done", "planned", "cost USD", "created"), []
    for run in page.runs:
        counts = f"{run.done:,}", f"{run.total - run.done:,}"
        rows.append([run.name, run.state, *counts, _usd(run.cost), run.created[:10]])
    more = page.total - len(page.runs)
    notes = [f"{more:,} more are at {address}"] if more > 0 else []
    cli.show(page, [cli.table_of(columns, rows), *notes], as_json)


def _usd(cost: float | None) -> str:
    return "-" if cost is None else f"{cost:.4f}"


def change_there(address: str, name: str, state: Wanted, as_json: bool, **limits: Any) -> None:
    """Change a run on a service, wait until it is in a state or has ended, and report it.

    Raises:
        ServiceError: the service refuses the change, or cannot be reached.
    """
    with Client(address) as client:
        run = client.run(name)
        changes: dict[Wanted, Callable[[], RunSnapshot]]
        changes = {"paused": run.pause, "running": run.resume, "cancelled": run.cancel}
        if any(limit is not None for limit in limits.values()):
            run.retune(**limits)
        snapshot = changes[state]()
        while snapshot.state not in (state, "interrupted", *ENDED):
            time.sleep(_POLL_SECONDS)
            snapshot = run.snapshot()
    done, total = snapshot.done, snapshot.total
    cli.show_change(name, {"run": name}, snapshot.state, done, total, as_json)


def export_there(address: str, name: str, path: Path) -> None:
    """Write the judgments of a run on a service to a file.

    Raises:
        InputError: the file has another suffix than those that are known.
    """
    with Client(address) as client:
        if path.suffix not in (".parquet", ".jsonl", ".csv"):
            raise InputError(f"{path}: name a file that ends in .parquet, .jsonl or .csv")
        form: Any = path.suffix[1:]
        path.write_bytes(client.run(name).export(form))
    cli.out.print(path)
