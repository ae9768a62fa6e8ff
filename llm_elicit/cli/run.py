"""`llm-elicit run` and the stages that it consists of: plan, ask, fit, audit and report."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from llm_elicit._util.packages import LazyModule
from llm_elicit.cli.estimate import print_estimate, print_examples
from llm_elicit.cli.exit_codes import frozen_gc
from llm_elicit.cli.options import CacheUse, CampaignName, MaxCost, RunName, for_each, out
from llm_elicit.cli.status import print_batches
from llm_elicit.errors import InputError

if TYPE_CHECKING:
    from llm_elicit import orchestrator
    from llm_elicit.pipeline import run_folder, stages
    from llm_elicit.pipeline.run_folder import Run
else:
    orchestrator = LazyModule("llm_elicit.orchestrator")
    run_folder = LazyModule("llm_elicit.pipeline.run_folder")
    stages = LazyModule("llm_elicit.pipeline.stages")


def run_command(
    campaign: CampaignName,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show questions, requests and cost; send nothing.")
    ] = False,
    max_cost: MaxCost = None,
    cache: CacheUse = "reuse",
) -> None:
    """Plan, ask, fit, audit and report. Run it again to resume."""
    if dry_run:
        cells = run_folder.open_runs(campaign)
        print_examples(cells)
        print_estimate(cells)
        return

    def work(cell: Run) -> None:
        with frozen_gc():
            result = stages.run(cell, max_cost=max_cost, cache=cache)
        _print_verdicts(result)
        out.print(f"report: {result.report_path}")
        _raise_problems(result)

    cells = stages.plan_grid(campaign)
    stages.ask_conditions(cells, max_cost=max_cost, cache=cache)
    for_each(cells, work)
    _report_conditions(cells)


def plan_command(campaign: CampaignName) -> None:
    """Validate a campaign and draw its pairs."""
    for cell in stages.plan_grid(campaign):
        design, direct = cell.campaign.design, len(cell.plan.direct)
        asked = f"{design.questions} questions per judge" + (f", {direct} direct" if direct else "")
        out.print(f"{cell.folder}: {design.pairs} pairs, {asked}")


def ask_command(
    run: RunName,
    max_cost: MaxCost = None,
    cache: CacheUse = "reuse",
    batch: Annotated[
        Literal["submit", "status", "collect", "wait"] | None,
        typer.Option(help="Use the providers' batch endpoints, at half the price."),
    ] = None,
    every: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.01, help="Polling interval of --batch wait."),
    ] = 60.0,
    resend: Annotated[
        bool, typer.Option("--resend", help="With --batch: submit lost batches again.")
    ] = False,
) -> None:
    """Ask the questions that have no answer yet."""
    if resend and batch not in ("submit", "wait"):
        raise InputError("--resend goes with --batch submit or --batch wait; nothing else is lost")
    if batch == "status":
        for_each(run_folder.open_runs(run), print_batches)
        return
    cells = stages.plan_grid(run)
    if batch == "wait" and len(cells) > 1:
        raise InputError(
            f"{run} is a grid, whose cells would wait for each other: use --batch submit, and "
            "--batch collect later"
        )

    def work(cell: Run) -> None:
        with orchestrator.Display() as progress:
            if batch is None:
                asking = stages.ask(cell, max_cost=max_cost, progress=progress, cache=cache)
            else:
                asking = stages.ask_in_batches(
                    cell, batch, max_cost=max_cost, every=every, resend=resend, progress=progress
                )
            with frozen_gc():
                result = asyncio.run(asking)
        if batch == "submit":
            print_batches(result)
        else:
            table = result.folder / run_folder.COMPARISONS
            out.print(f"{table}: {sum(result.judgments.values())} judgments")
        _raise_problems(result)

    for_each(cells, work)


def fit_command(run: RunName) -> None:
    """Estimate every judge's belief from its answers."""

    def work(cell: Run) -> None:
        with orchestrator.Display() as progress:
            stages.fit(cell, progress)
        for judge, belief in cell.beliefs.items():
            out.print(f"{judge}: {belief}")

    for_each(run_folder.open_runs(run), work)


def audit_command(run: RunName) -> None:
    """Compare the beliefs with the data."""

    def work(cell: Run) -> None:
        with orchestrator.Display() as progress:
            stages.audit(cell, progress)
        _print_verdicts(cell)

    for_each(run_folder.open_runs(run), work)


def report_command(run: RunName) -> None:
    """Write the report, its figures and its tables."""

    def work(cell: Run) -> None:
        with orchestrator.Display() as progress:
            stages.report(cell, progress)
        out.print(cell.report_path)

    cells = run_folder.open_runs(run)
    for_each(cells, work)
    _report_conditions(cells)


def _report_conditions(cells: Sequence[Run]) -> None:
    """Write and name the pages that compare the conditions of a grid, if it has any."""
    for path in stages.report_conditions(cells):
        out.print(f"conditions: {path}")


def _print_verdicts(result: Run) -> None:
    for judge in result.audit.judges:
        out.print(f"{judge.name}: {judge.verdict}")


def _raise_problems(result: Run) -> None:
    """Raise the first problem of a run, which decides the exit code."""
    if result.problems:
        raise result.problems[0]
