"""`llm-elicit pause`, `resume` and `cancel`: runs that another process works on."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from llm_elicit.cli.options import AsJson, MaxCost, RunName, out, print_json, run_facts
from llm_elicit.errors import InputError
from llm_elicit.orchestrator import judgments
from llm_elicit.orchestrator.journal import control as journal
from llm_elicit.pipeline import run_control, run_folder
from llm_elicit.pipeline.run_folder import Run

_LOOK = 0.2
"""Seconds between two looks at the run."""


def pause_command(run: RunName, as_json: AsJson = False) -> None:
    """Pause a run that another process asks, and wait for the answers in flight."""
    result = _worked_on(run)
    journal.request(result.location, "paused")
    _wait(result, "paused", as_json)


def resume_command(
    run: RunName,
    max_cost: MaxCost = None,
    concurrency: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=1000, help="Concurrent requests of each judge."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let a paused run go on, or give a running one other limits."""
    result = _worked_on(run)
    run_control.check_limits(result.campaign, max_cost, concurrency)
    journal.request(result.location, "running", max_cost=max_cost, concurrency=concurrency)
    _wait(result, "running", as_json)


def cancel_command(run: RunName, as_json: AsJson = False) -> None:
    """End a run that another process asks; every answer received is kept."""
    result = _worked_on(run)
    journal.request(result.location, "cancelled")
    _wait(result, "cancelled", as_json)


def _worked_on(name: str) -> Run:
    """Open a run that a process works on.

    Raises:
        InputError: there is no such run, or no process works on it.
    """
    result = run_folder.Run.open(name)
    control = journal.read_control(result.location)
    if control is None or not control.at_work:
        raise InputError(
            f"{result.folder}: no process works on this run; `llm-elicit run {name}` goes on with "
            "it"
        )
    return result


def _wait(result: Run, state: str, as_json: bool) -> None:
    """Wait until a run does as asked, and say so."""
    while True:
        control = journal.read_control(result.location)
        assert control is not None
        if control.state == state or control.state in journal.ENDED:
            break
        if not control.at_work:
            raise InputError(f"{result.folder}: the process at work on this run ended")
        time.sleep(_LOOK)
    totals = judgments.status(result.folder, result.campaign).values()
    done, total = (
        sum(judge_status.done for judge_status in totals),
        sum(judge_status.total for judge_status in totals),
    )
    if as_json:
        print_json(run_facts(result) | {"state": control.state, "done": done, "total": total})
        return
    out.print(f"{result.folder}: {control.state}; {done:,} of {total:,} questions are answered")
