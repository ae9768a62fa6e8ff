"""`llm-elicit status` and `export`: what is known of a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from llm_elicit._util.text import visible
from llm_elicit.cli.options import (
    AsJson,
    RunName,
    cell_name,
    cell_table,
    out,
    print_json,
    run_facts,
)
from llm_elicit.errors import InputError
from llm_elicit.orchestrator import judgments
from llm_elicit.orchestrator.journal import control as journal
from llm_elicit.orchestrator.journal.schema import Totals, Unanswered
from llm_elicit.pipeline import run_folder
from llm_elicit.pipeline.run_folder import Run

_EVERY = 1.0
"""Seconds between two looks at a run that is watched."""


def status_command(
    run: RunName,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again every second until the run ends.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a run's progress by judge; it works from another terminal, too."""
    cells = run_folder.open_runs(run)
    if as_json:
        if watch:
            raise InputError("--json and --watch exclude each other: ask again for each look")
        print_json({"runs": [_facts(cell, alone=len(cells) == 1) for cell in cells]})
        return
    if not watch:
        out.print(_status_table(cells))
        _how_to_go_on(cells)
        return
    with Live(_status_table(cells), console=out) as live:
        while any(journal.is_active(cell.location) for cell in cells):
            time.sleep(_EVERY)
            live.update(_status_table(cells))
    if not out.is_terminal:
        out.line()  # Rich ends the table's last line on terminals only
    _how_to_go_on(cells)


def _state(cell: Run) -> str:
    """Return a run's state in a word; "-" if unknown."""
    control = journal.read_control(cell.location)
    return "-" if control is None else journal.visible_state(control)


_WAYS_OUT = {
    "failed": "given up: llm-elicit run {} asks {} again",
    "quarantined": "set aside: llm-elicit run {} --retry-failed asks {} again",
}


def _how_to_go_on(cells: Sequence[Run]) -> None:
    """Say which models answered, why questions have no answer, and how to go on."""
    for cell in cells:
        for judge, answers in _answers(cell).items():
            named = answers.models_line() if answers.models else None
            lines = (answers.origin_line() or named, answers.unusable_line())
            for line in filter(None, lines):
                out.print(f"{judge}: {line}")
        for judge, groups in _unanswered(cell).items():
            for group in groups:
                noun, them = ("question", "it") if group.count == 1 else ("questions", "them")
                way_out = _WAYS_OUT[group.state].format(cell.folder, them)
                reason = visible(group.reason)
                out.print(f"{judge}: {group.count:,} {noun} {way_out} ({reason})")
        if _state(cell) == "interrupted":
            out.print(f"{cell.campaign.name}: interrupted; llm-elicit run {cell.folder} resumes it")


def _answers(cell: Run) -> dict[str, judgments.AnswerSummary]:
    """Return what the answers of a run's models are worth; none before it was started."""
    try:
        summaries = judgments.answer_summaries(cell.folder, cell.campaign)
    except InputError:
        return {}
    return {name: s for name, s in summaries.items() if name not in cell.campaign.people}


def _unanswered(cell: Run) -> dict[str, list[Unanswered]]:
    """Return a run's questions that were given up or set aside; none before it was started."""
    try:
        return judgments.unanswered(cell.folder, cell.campaign)
    except InputError:
        return {}


def _facts(cell: Run, alone: bool) -> dict[str, Any]:
    """Return what --json prints of a run."""
    reasons, answers = _unanswered(cell), _answers(cell)
    judges = {
        judge: asdict(line)
        | {"planned": line.planned, "unanswered": [asdict(g) for g in reasons.get(judge, ())]}
        | {"models": answers[judge].models if judge in answers else {}}
        for judge, line in _totals(cell, alone).items()
    }
    return run_facts(cell) | {"state": _state(cell), "judges": judges}


def _status_table(cells: Sequence[Run]) -> Table:
    states = ("done", "failed", "planned", "in flight", "submitted", "quarantined")
    table = cell_table(cells, "judge", *states, "tokens", "cost USD", "last answer", "run")
    for cell in cells:
        for judge, line in _totals(cell, alone=len(cells) == 1).items():
            counts = [getattr(line, state.replace(" ", "_")) for state in states]
            tokens = line.prompt_tokens + line.completion_tokens
            numbers = [f"{count:,}" for count in (*counts, tokens)]
            last = [f"{line.cost:.4f}", line.last or "-"]
            table.add_row(*cell_name(cells, cell), judge, *numbers, *last, _state(cell))
    return table


def _totals(cell: Run, alone: bool) -> dict[str, Totals]:
    """Return a run's counts; those of a grid's cell that was not started are zero."""
    try:
        return judgments.status(cell.folder, cell.campaign)
    except InputError:
        if alone:
            raise
        return cell.empty_totals


def export_command(
    run: RunName,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Ends in .parquet, .jsonl or .csv.")],
    thinking: Annotated[
        bool, typer.Option("--thinking", help="Add the visible reasoning of reasoning models.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write the judgments as Parquet, JSONL or CSV."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file in it")
    if path.exists() and not force:
        raise InputError(f"{path} exists; give --force to overwrite it")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}; make it, or name another")
    result = run_folder.Run.open(run)
    out.print(
        judgments.write_judgments(
            result.folder, result.campaign, result.space, result.plan, path, thinking=thinking
        )
    )
