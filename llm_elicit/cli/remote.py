"""What `run`, `status` and `export` do with `--service`: runs of a service, through its client."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from llm_elicit.cli.options import Outcome, out, print_json, print_lines, show
from llm_elicit.client import Client, ServiceConflictError, ServiceRun
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import InputError
from llm_elicit.pipeline.snapshot import RunSnapshot

_FOLDER = Path("runs")


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
                out.print(f"{run.name}: {event.data['stage'] or event.data['state']}")
        snapshot = run.wait()
        outcome = _fetch(run, snapshot)
    show({"run": run.name} | outcome.facts, outcome.text, as_json)


def _fetch(run: ServiceRun, snapshot: RunSnapshot) -> Outcome:
    """Write the report of a run, and return its verdicts."""
    _FOLDER.mkdir(exist_ok=True)
    path = _FOLDER / f"{run.name}.html"
    path.write_text(run.report(), encoding="utf-8")
    verdicts = {judge["name"]: judge["preference"]["verdict"] for judge in run.audit()["judges"]}
    lines = [f"{name}: {verdict}" for name, verdict in verdicts.items()]
    facts = {"verdicts": verdicts, "report": path, "problems": snapshot.problems}
    return Outcome([*lines, f"report: {path}", *snapshot.problems], facts)


def show_status(address: str, name: str, as_json: bool) -> None:
    """Print the state of a run on a service."""
    with Client(address) as client:
        snapshot = client.run(name).snapshot()
    if as_json:
        print_json(snapshot)
        return
    table = Table("judge", "done", "failed", "planned", "cost USD", "run", box=None)
    for judge, line in snapshot.judges.items():
        cost = "-" if line.cost is None else f"{line.cost:.4f}"
        counts = [f"{n:,}" for n in (line.done, line.failed, line.total - line.done - line.failed)]
        table.add_row(judge, *counts, cost, snapshot.state)
    out.print(table)
    print_lines(snapshot.problems)


def export_there(address: str, name: str, path: Path) -> None:
    """Write the judgments of a run on a service to a file.

    Raises:
        InputError: the file has another suffix than those that are known.
    """
    with Client(address) as client:
        export = client.run(name).export
        match path.suffix:
            case ".parquet":
                content = export("parquet")
            case ".csv":
                content = export("csv")
            case ".jsonl":
                content = export("jsonl")
            case _:
                raise InputError(f"{path}: name a file that ends in .parquet, .jsonl or .csv")
    path.write_bytes(content)
    out.print(path)
