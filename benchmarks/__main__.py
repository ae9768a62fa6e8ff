"""`python -m benchmarks`: the paper's tables, the rate of asking, and campaigns under faults."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from rich.table import Table as RichTable

from benchmarks import TABLES, measure, run, service, tables
from benchmarks.asking import bars
from benchmarks.faults import table as fault_table
from llm_elicit.cli.main import CommandGroup, run_app
from llm_elicit.cli.options import out as console_out
from llm_elicit.errors import InputError
from llm_elicit.orchestrator import progress as displays
from llm_elicit.pipeline.cluster import Workers

app = typer.Typer(
    cls=CommandGroup,
    help="Benchmarks: the paper's tables, and measurements of asking.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Targets = Annotated[str, typer.Option(help="Names, or: paper, tuning.")]
Seeds = Annotated[str, typer.Option(help="Such as 1-10 or 1,3,5.")]
Methods = Annotated[str, typer.Option(help="Of table1 and runtime: names; all by default.")]
Variants = Annotated[
    str,
    typer.Option(
        help="Of the ablation (all but the slow by default), coverage, power or low-amplitude."
    ),
]
PairsPerFeature = Annotated[
    int | None, typer.Option(help="1000 by default, as in the paper; low-amplitude has 50.")
]
Points = Annotated[
    int, typer.Option(help="Of a Wasserstein distance; the paper has 15000 (minutes, 9 GiB).")
]
Folder = Annotated[Path, typer.Option(help="The folder of the finished rows.")]
Processes = Annotated[int, typer.Option(help="Jobs in parallel on this machine.")]
Cluster = Annotated[
    str | None, typer.Option(help="Address of a Dask scheduler; start its workers in this folder.")
]
Markdown = Annotated[Path | None, typer.Option(help="Write the tables to this file, too.")]
Full = Annotated[bool, typer.Option("--full", help="All measurements.")]
Many = Annotated[int | None, typer.Option(min=10, help="Questions; 200000 with --full.")]
FaultRows = Annotated[str, typer.Option(help="Rows, such as 429,SIGKILL; all by default.")]
Questions = Annotated[int, typer.Option(min=20, help="Questions of the rows on rates.")]


def table_command(
    context: typer.Context,
    targets: Targets = "",
    seeds: Seeds = "1-10",
    methods: Methods = "",
    variants: Variants = "",
    comparisons_per_feature: PairsPerFeature = None,
    points: Points = 4000,
    out: Folder = Path("runs/bench"),
    workers: Processes = 1,
    cluster: Cluster = None,
    markdown: Markdown = None,
) -> None:
    """Run the table that the command is named after, or resume it, and print it."""
    request = run.Request(
        str(context.info_name),
        run.parse_names(targets),
        run.parse_seeds(seeds),
        run.parse_names(methods),
        run.parse_names(variants),
        comparisons_per_feature,
        points,
    )
    try:
        with displays.Display() as progress:
            several = cluster is not None or workers != 1
            place = Workers(cluster, workers) if several else None
            done = run.run_table(request, out, progress, place)
    except KeyboardInterrupt:
        sys.stderr.write(f"stopped; finished rows are in {out}: run again to resume\n")
        raise typer.Exit(130) from None
    _print(tables.make_tables(request.table, done), markdown, _failures(done))


for _name, _help in TABLES.items():
    app.command(_name, help=f"{_help} Run again to resume.")(table_command)


@app.command("orchestrator")
def orchestrator_command(full: Full = False, many: Many = None, markdown: Markdown = None) -> None:
    """The rate of asking, and what a kill costs, against a loopback server."""
    size = bars.FULL if full else bars.SHORT
    size = replace(size, many=many or size.many)
    with displays.Display() as progress:
        made = bars.run_bars(size, partial(progress.note, "orchestrator"))
    _print([made], markdown)


@app.command("faults")
def faults_command(
    rows: FaultRows = "", questions: Questions = 3_000, markdown: Markdown = None
) -> None:
    """Campaigns whose provider, disk, database or process fails (a quarter of an hour)."""
    with displays.Display() as progress:
        note = partial(progress.note, "faults")
        wanted = run.parse_names(rows)
        made = fault_table.run_faults(fault_table.FULL, note, wanted, questions)
    _print([made], markdown)


@app.command("service")
def service_command(
    runs: Annotated[int, typer.Option(min=100, help="Stored runs.")] = 10_000,
    answers: Annotated[int, typer.Option(min=100, help="Answers of one run.")] = 1_000_000,
    pages: Annotated[int, typer.Option(min=1, help="Pages open while it asks.")] = 50,
    markdown: Markdown = None,
) -> None:
    """The service with many runs, many answers and many open pages (ten minutes)."""
    with displays.Display() as progress:
        size = service.Size(runs, answers, pages)
        made = service.run_service(size, partial(progress.note, "service"))
    _print([made], markdown)


def _print(made: list[tables.Table], markdown: Path | None, lines: Sequence[str] = ()) -> None:
    for each in made:
        console_out.print(_shown(each))
    for line in lines:
        console_out.print(line)
    if markdown:
        _write_markdown(made, markdown)
        console_out.print(markdown)


def _shown(table: tables.Table) -> RichTable:
    shown = RichTable(title=table.title, box=None, title_justify="left")
    for place, column in enumerate(table.columns):
        shown.add_column(column, no_wrap=place == 0, justify="left" if place < 2 else "right")
    for row in table.rows:
        shown.add_row(*row)
    return shown


def _failures(rows: pd.DataFrame) -> list[str]:
    failed = rows[rows["error"].notna()] if len(rows) else rows
    return [
        f"failed: {row.target} {row.method} {row.variant} seed {row.seed}: {row.error}"
        for row in failed.itertuples()
    ]


def _write_markdown(made: list[tables.Table], path: Path) -> None:
    try:
        command = " ".join(["python -m benchmarks", *sys.argv[1:]])
        date = datetime.now(UTC).date().isoformat()
        head = f"`{command}`, {date}, {measure.machine()}, one thread per job."
        path.write_text(
            "\n\n".join([head, *(table.markdown() for table in made)]) + "\n", encoding="utf-8"
        )
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def main() -> None:
    """Run the command line: one clear line and an exit code for every error."""
    sys.exit(run_app(app))


if __name__ == "__main__":
    main()
