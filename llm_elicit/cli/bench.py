"""`llm-elicit bench`: parse, call, print."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as RichTable

from llm_elicit._util.console import console
from llm_elicit._util.lazy_module import LazyModule
from llm_elicit.benchmarks.names import TABLES
from llm_elicit.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from llm_elicit import orchestrator
    from llm_elicit._util import workers as jobs
    from llm_elicit.benchmarks import measure as measuring
    from llm_elicit.benchmarks import run as running
    from llm_elicit.benchmarks import tables as tabling
    from llm_elicit.benchmarks.asking import bars as barring
    from llm_elicit.benchmarks.faults import table as faulting
else:
    barring = LazyModule("llm_elicit.benchmarks.asking.bars")
    faulting = LazyModule("llm_elicit.benchmarks.faults.table")
    jobs, orchestrator = (
        LazyModule("llm_elicit._util.workers"),
        LazyModule("llm_elicit.orchestrator"),
    )
    measuring = LazyModule("llm_elicit.benchmarks.measure")
    running = LazyModule("llm_elicit.benchmarks.run")
    tabling = LazyModule("llm_elicit.benchmarks.tables")


def bench_command(
    table: Annotated[
        str,
        typer.Argument(metavar="TABLE", help=f"One of {', '.join(TABLES)}, orchestrator, faults."),
    ],
    targets: Annotated[str, typer.Option(help="Names, or: paper, tuning.")] = "",
    seeds: Annotated[str, typer.Option(help="Such as 1-10 or 1,3,5.")] = "1-10",
    methods: Annotated[str, typer.Option(help="Names; all by default.")] = "",
    variants: Annotated[
        str,
        typer.Option(
            help="Of the ablation (all but the slow by default), coverage, power or faint."
        ),
    ] = "",
    comparisons_per_feature: Annotated[
        int | None, typer.Option(help="1000 by default, as in the paper; faint has 50.")
    ] = None,
    points: Annotated[
        int, typer.Option(help="Of a Wasserstein distance; the paper has 15000 (minutes, 9 GiB).")
    ] = 4000,
    out: Annotated[Path, typer.Option(help="Where rows are kept.")] = Path("runs/bench"),
    workers: Annotated[int, typer.Option(help="Jobs side by side on this machine.")] = 1,
    cluster: Annotated[str | None, typer.Option(help="Address of a Dask scheduler.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables here too.")] = None,
    full: Annotated[bool, typer.Option("--full", help="The orchestrator's bars whole.")] = False,
    many: Annotated[
        int | None,
        typer.Option(min=10, help="Of the orchestrator's large campaign; 200000 with --full."),
    ] = None,
    rows: Annotated[
        str, typer.Option(help="Of the faults: names, such as 429,SIGKILL; all by default.")
    ] = "",
    questions: Annotated[int, typer.Option(min=20, help="Of the faults' rows about pace.")] = 3_000,
) -> None:
    """Run one of the paper's tables and print it with the published numbers. Resumes.

    `orchestrator` measures asking against a loopback server instead; `faults` does the same to a
    campaign whose provider, disk, database or process fails (a quarter of an hour).
    """
    if table == "orchestrator":
        _print([_bars(full, many)], markdown)
        return
    if table == "faults":
        _print([_faults(running.parse_names(rows), questions)], markdown)
        return
    request = running.Request(
        table,
        running.parse_names(targets),
        running.parse_seeds(seeds),
        running.parse_names(methods),
        running.parse_names(variants),
        comparisons_per_feature,
        points,
    )
    try:
        with orchestrator.Display() as progress:
            done = running.run_table(request, out, progress, jobs.Workers(workers, cluster))
    except KeyboardInterrupt:
        sys.stderr.write(f"stopped; finished rows are in {out}: run again to resume\n")
        raise typer.Exit(130) from None
    _print(tabling.make_tables(table, done), markdown, _failures(done))


def _bars(full: bool, many: int | None) -> tabling.Table:
    size = barring.FULL if full else barring.SHORT
    size = replace(size, many=many or size.many)
    with orchestrator.Display() as progress:
        return barring.run_bars(size, partial(progress.note, "orchestrator"))


def _faults(rows: Sequence[str], questions: int) -> tabling.Table:
    with orchestrator.Display() as progress:
        note = partial(progress.note, "faults")
        return faulting.run_faults(faulting.FULL, note, rows, questions)


def _print(tables: list[tabling.Table], markdown: Path | None, lines: Sequence[str] = ()) -> None:
    out = console()
    for each in tables:
        out.print(_shown(each))
    for line in lines:
        out.print(line)
    if markdown:
        _write_markdown(tables, markdown)
        out.print(markdown)


def _shown(table: tabling.Table) -> RichTable:
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


def _write_markdown(tables: list[tabling.Table], path: Path) -> None:
    try:
        command = " ".join(["llm-elicit", *sys.argv[1:]])
        date = datetime.now(UTC).date().isoformat()
        head = f"`{command}`, {date}, {measuring.machine()}, one thread a job."
        path.write_text(
            "\n\n".join([head, *(t.markdown() for t in tables)]) + "\n", encoding="utf-8"
        )
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
