"""`status`, `export`, `pause`, `resume`, `cancel`, `bundle` and `serve`: runs of any process."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

from rich.live import Live
from rich.table import Table

from llm_elicit._util.settings import to_yaml
from llm_elicit._util.text import visible
from llm_elicit.cli import options as cli
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import InputError
from llm_elicit.orchestrator import judgments
from llm_elicit.orchestrator.journal import control as journal
from llm_elicit.orchestrator.journal.schema import Totals
from llm_elicit.pipeline import exchange, run_folder
from llm_elicit.pipeline.run_folder import Run

T = TypeVar("T")

_WATCH_SECONDS = 1.0
"""Seconds between two updates of a status that is watched."""


def status_command(
    run: Annotated[
        str | None,
        cli.argument("Run folder, run name or campaign; without it, --service lists runs.", "RUN"),
    ] = None,
    watch: Annotated[bool, cli.flag("--watch", "Update until the run ends.")] = False,
    service: cli.ServiceAddress = None,
    as_json: cli.AsJson = False,
) -> None:
    """Show the progress of each judge, even while the run works."""
    if service is not None:
        if watch:
            raise InputError("--service and --watch cannot be combined; repeat the command")
        from llm_elicit.cli.remote import show_status  # with the client

        show_status(service, run, as_json)
        return
    if run is None:
        raise InputError("name a run, or list those of a service with --service URL")
    cells = run_folder.open_runs(run)
    if as_json and watch:
        raise InputError(
            "--json and --watch cannot be combined; repeat the command with --json instead"
        )
    if as_json:
        cli.print_json({"runs": [_facts(cell, alone=len(cells) == 1) for cell in cells]})
        return
    if not watch:
        cli.print_lines([_status_table(cells), *_notes(cells)])
        return
    with Live(_status_table(cells), console=cli.out) as live:
        while any(journal.is_active(cell.location) for cell in cells):
            time.sleep(_WATCH_SECONDS)
            live.update(_status_table(cells))
    if not cli.out.is_terminal:
        cli.out.line()  # Rich ends the table's last line on terminals only
    cli.print_lines(_notes(cells))


def _state(cell: Run) -> str:
    """Return a run's state in a word; "-" if unknown."""
    control = journal.read_control(cell.location)
    return "-" if control is None else journal.visible_state(control)


_WAYS_OUT = {
    "failed": "given up: llm-elicit run {} asks {} again",
    "quarantined": "set aside: llm-elicit run {} --retry-failed asks {} again",
}


def _notes(cells: Sequence[Run]) -> Iterator[str]:
    """Yield which models answered, why questions have no answer, and how to ask them again."""
    for cell in cells:
        for judge, answers in _answers(cell).items():
            models = answers.models_line() if answers.models else None
            origin = answers.origin_line() or models
            lines = answers.log_odds.line, origin, answers.unusable_line()
            yield from (f"{judge}: {line}" for line in lines if line)
        for change in _read(judgments.version_changes, cell) or ():
            yield f"{', '.join(change.judges)}: {change.line}"
        for judge, groups in (_read(judgments.unanswered, cell) or {}).items():
            for group in groups:
                noun, them = ("question", "it") if group.count == 1 else ("questions", "them")
                way_out = _WAYS_OUT[group.state].format(cell.folder, them)
                reason = visible(group.reason)
                yield f"{judge}: {group.count:,} {noun} {way_out} ({reason})"
        if _state(cell) == "interrupted":
            yield f"{cell.campaign.name}: interrupted; llm-elicit run {cell.folder} resumes it"


def _read(read: Callable[[Path, Campaign], T], cell: Run) -> T | None:
    """Return what a function reads of a run's journal; None before the run was started."""
    try:
        return read(cell.folder, cell.campaign)
    except InputError:
        return None


def _answers(cell: Run) -> dict[str, judgments.AnswerSummary]:
    """Return summaries of the answers of a run's models."""
    summaries = _read(judgments.answer_summaries, cell) or {}
    return {name: s for name, s in summaries.items() if name not in cell.campaign.people}


def _facts(cell: Run, alone: bool) -> dict[str, Any]:
    """Return what --json prints of a run."""
    reasons, answers = _read(judgments.unanswered, cell) or {}, _answers(cell)
    judges = {
        judge: asdict(line)
        | {"planned": line.planned, "unanswered": [asdict(g) for g in reasons.get(judge, ())]}
        | {"models": answers[judge].models if judge in answers else {}}
        | {"log_odds": answers[judge].log_odds.line if judge in answers else ""}
        for judge, line in _totals(cell, alone).items()
    }
    changes = [
        asdict(change) | {"line": change.line}
        for change in _read(judgments.version_changes, cell) or ()
    ]
    return cli.run_facts(cell) | {
        "state": _state(cell),
        "judges": judges,
        "version_changes": changes,
    }


def _status_table(cells: Sequence[Run]) -> Table:
    states, rows = ("done", "failed", "planned", "in flight", "submitted", "quarantined"), []
    for cell in cells:
        for judge, totals in _totals(cell, alone=len(cells) == 1).items():
            counts = [getattr(totals, state.replace(" ", "_")) for state in states]
            tokens = totals.prompt_tokens + totals.completion_tokens
            numbers = [f"{count:,}" for count in (*counts, tokens)]
            numbers += [f"{totals.cost:.4f}", totals.last or "-"]
            rows.append((cell, [judge, *numbers, _state(cell)]))
    return cli.cell_table(["judge", *states, "tokens", "cost USD", "last answer", "run"], rows)


def _totals(cell: Run, alone: bool) -> dict[str, Totals]:
    """Return a run's counts, zero before the start of a grid's cell."""
    if alone:
        return judgments.status(cell.folder, cell.campaign)
    return _read(judgments.status, cell) or cell.empty_totals


def export_command(
    run: cli.RunName,
    path: Annotated[
        Path,
        cli.argument("File to write (.parquet, .jsonl or .csv); with --format, a folder.", "FILE"),
    ],
    format_: Annotated[
        exchange.Format | None,
        cli.option("Write a folder for another tool.", None, "--format"),
    ] = None,
    license_: Annotated[
        str | None, cli.option("Licence of the data (croissant).", "ID", "--license")
    ] = None,
    thinking: Annotated[bool, cli.flag("--thinking", "Add a column with the reasoning.")] = False,
    force: Annotated[bool, cli.flag("--force", "Overwrite an existing file.")] = False,
    service: cli.ServiceAddress = None,
) -> None:
    """Export the answers as a table, or the run for Inspect and others."""
    if service is not None and (format_ is not None or thinking):
        raise InputError("--service cannot be combined with --format and --thinking")
    if format_ is not None:
        for written in exchange.export_run(run_folder.Run.open(run), path, format_, license_):
            cli.out.print(written)
        return
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file in it")
    if path.exists() and not force:
        raise InputError(f"{path} exists; use --force to overwrite it")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}; create it, or name another")
    if service is not None:
        from llm_elicit.cli.remote import export_there  # with the client

        export_there(service, run, path)
        return
    study = run_folder.Run.open(run).study
    cli.out.print(judgments.write_judgments(study, path, thinking=thinking))


_POLL_SECONDS = 0.2
"""Seconds between two reads of the run's state."""


def pause_command(
    run: cli.RunName, service: cli.ServiceAddress = None, as_json: cli.AsJson = False
) -> None:
    """Pause a run of another process, after the answers in flight."""
    _change(run, service, "paused", as_json)


def resume_command(
    run: cli.RunName,
    max_cost: cli.MaxCost = None,
    concurrency: Annotated[
        int | None, cli.option("Concurrent requests of each judge.", "N", min=1, max=1000)
    ] = None,
    service: cli.ServiceAddress = None,
    as_json: cli.AsJson = False,
) -> None:
    """Resume a paused run of another process, or change its limits."""
    _change(run, service, "running", as_json, max_cost=max_cost, concurrency=concurrency)


def cancel_command(
    run: cli.RunName, service: cli.ServiceAddress = None, as_json: cli.AsJson = False
) -> None:
    """End a run of another process; every answer received is kept."""
    _change(run, service, "cancelled", as_json)


def _change(
    run: str, service: str | None, state: journal.Wanted, as_json: bool, **limits: Any
) -> None:
    """Change a run of another process, or one on a service; wait until it is made, and report it.

    Raises:
        InputError: there is no such run, no process works on it, or a limit is out of its range.
    """
    if service is not None:
        from llm_elicit.cli.remote import change_there  # with the client

        change_there(service, run, state, as_json, **limits)
        return
    result = run_folder.Run.open(run)
    control = journal.read_control(result.location)
    if control is None or not control.at_work:
        raise InputError(
            f"{result.folder}: no process is working on this run; `llm-elicit run {run}` resumes it"
        )
    if limits:
        from llm_elicit.pipeline import run_control  # with the price list, which `status` needs not

        run_control.check_limits(result.campaign, **limits)
    journal.request(result.location, state, **limits)
    while (control := journal.read_control(result.location)) is not None:
        if control.state == state or control.state in journal.ENDED:
            break
        if not control.at_work:
            raise InputError(
                f"{result.folder}: no process works on this run any more; `llm-elicit run` resumes "
                "it"
            )
        time.sleep(_POLL_SECONDS)
    assert control is not None
    counts = judgments.status(result.folder, result.campaign).values()
    done, total = sum(count.done for count in counts), sum(count.total for count in counts)
    label, facts = str(result.folder), cli.run_facts(result)
    cli.show_change(label, facts, control.state, done, total, as_json)


def serve_command(
    host: Annotated[
        str | None, cli.option("Address to listen on; 127.0.0.1 by default.", "HOST")
    ] = None,
    port: Annotated[
        int | None,
        cli.option("Port to listen on; 8642 by default, 0 for a free one.", min=0, max=65535),
    ] = None,
    runs: Annotated[Path | None, cli.option("Folder of the runs.", "FOLDER")] = None,
    config: Annotated[
        Path | None,
        cli.option("Server configuration: judges and limits that clients may use.", "FILE"),
    ] = None,
    journal: Annotated[
        str | None,
        cli.option("Database of all journals: postgresql://USER@HOST/DATABASE.", "ADDRESS"),
    ] = None,
    start: Annotated[
        list[str] | None, cli.option("Campaign to start; may be repeated.", "CAMPAIGN")
    ] = None,
) -> None:
    """Serve campaigns over HTTP; Ctrl-C waits for answers in flight."""
    options: dict[str, Any] = {"host": host, "port": port, "runs": runs, "journal": journal}
    gc.disable()  # modules are no garbage; to look through them takes a fifth of their import
    try:
        from llm_elicit.service import server, settings
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed; run: pip install 'llm-elicit[service]'"
        ) from None
    finally:
        gc.enable()
    read = settings.ServerSettings() if config is None else settings.ServerSettings.load(config)
    stated = {name: value for name, value in options.items() if value is not None}
    server.serve(read.changed(stated), cli.out.print, start or ())


def bundle_command(
    run: cli.RunName,
    path: Annotated[
        Path | None,
        cli.argument("File to write; page.html in the run folder by default.", "OUT.html"),
    ] = None,
) -> None:
    """Write the live page of a run, finished or not, as one HTML file."""
    from llm_elicit.pipeline import live, snapshot  # with PyTorch, which the others do without
    from llm_elicit.service import responses

    cells = run_folder.open_runs(run)
    if len(cells) > 1:
        names = ", ".join(cell.campaign.name for cell in cells)
        raise InputError(f"{run} is a grid of several runs; name one of {names}")
    cell = cells[0]
    written = path or cell.folder / "page.html"
    view = live.live_view(cell)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    record = snapshot.stored_snapshot(cell).model_copy(update={"updated": now})
    about = to_yaml(cell.campaign.shareable())
    try:
        responses.write_bundle(record, view, written, cell.space.title, about)
    except OSError as error:
        raise InputError(f"{written}: cannot be written ({error.strerror or error})") from None
    cli.out.print(written, soft_wrap=True)
