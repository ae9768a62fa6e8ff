"""What commands share: arguments and options, the cells of a grid, and tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic_core
import typer
from rich.console import Console, RenderableType
from rich.table import Table

from llm_elicit._util.text import visible
from llm_elicit.errors import ElicitError

if TYPE_CHECKING:  # `--help` waits for neither
    from llm_elicit.audit.inference import Interval
    from llm_elicit.pipeline.run_folder import Run

RunName = Annotated[str, typer.Argument(metavar="RUN", help="Run folder, run name or campaign.")]
CampaignName = Annotated[
    str, typer.Argument(metavar="CAMPAIGN", help="Campaign file, or the name of an example.")
]
MaxCost = Annotated[
    float | None,
    typer.Option(metavar="USD", min=0.0, help="Cap on the total cost, resumes included."),
]
CacheUse = Annotated[
    Literal["reuse", "fresh", "off"],
    typer.Option(help="Reuse cached answers, ask afresh and replace them, or use no cache."),
]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Ask again the questions that were set aside.")
]
StrictVersion = Annotated[
    bool,
    typer.Option(
        "--strict-version", help="Stop a judge once another version of its model answers."
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Fit and audit on the workers of a Dask scheduler."),
]
ServiceAddress = Annotated[
    str | None,
    typer.Option("--service", metavar="URL", help="Address of the service that has the run."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_UNBOUNDED = 100_000


def _console() -> Console:
    """Return a console on standard output that prints text without markup.

    Without a terminal (a pipe, a file, CI), tables get the width that they need, so that nothing
    in them is cut or wrapped.

    Examples:
        >>> _console().width >= 200 or sys.stdout.isatty()
        True
    """
    width = None if sys.stdout.isatty() else _UNBOUNDED
    return Console(highlight=False, markup=False, soft_wrap=True, width=width)


out = _console()
"""Standard output of every command."""


def print_json(record: object) -> None:
    """Print models, dataclasses, paths, and lists and dictionaries of them as one JSON document.

    Numbers that are not finite are null. The text is ASCII: no answer of a model can send control
    characters to the terminal.
    """
    text = pydantic_core.to_json(record, indent=1, ensure_ascii=True, inf_nan_mode="null")
    out.print(text.decode())


@dataclass(frozen=True)
class Outcome:
    """What a command did with a run.

    Attributes:
        text: what is printed.
        facts: what is printed with --json.
        problems: errors that left questions without an answer or stopped a judge.
    """

    text: Sequence[RenderableType] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    problems: Sequence[ElicitError] = ()


def for_each(
    cells: Sequence[Run],
    work: Callable[[Run], Outcome],
    as_json: bool,
    last: Callable[[], Outcome] = Outcome,
) -> None:
    """Call a function for a run, or for every cell of a grid, and print the outcomes.

    An error in one cell does not stop the others; the first error decides the exit code.

    Args:
        cells: the run, or the runs of a grid.
        work: the function.
        as_json: print one JSON object instead of text.
        last: called after the cells if there was no error.
    """
    errors: list[ElicitError] = []
    records: list[dict[str, Any]] = []
    for cell in cells:
        if len(cells) > 1 and not as_json:
            out.print(cell.campaign.name, style="bold")
        try:
            outcome = work(cell)
        except ElicitError as error:
            outcome = Outcome(problems=[error])
        if not as_json:
            print_lines(outcome.text)
        problems = [visible(str(error), 9999) for error in outcome.problems]
        records.append(run_facts(cell) | outcome.facts | {"problems": problems})
        if len(cells) > 1:
            sys.stderr.writelines(f"{cell.campaign.name}: {line}\n" for line in problems[:1])
        errors += outcome.problems
    whole = Outcome() if errors else last()
    show({"runs": records} | whole.facts, whole.text, as_json)
    if errors:
        raise errors[0]


def print_lines(lines: Sequence[RenderableType]) -> None:
    """Print each on a line of its own; nothing, not an empty line, if there is none."""
    for line in lines:
        out.print(line)


def show(record: object, lines: Sequence[RenderableType], as_json: bool) -> None:
    """Print a record as JSON, or lines of text and tables instead."""
    if as_json:
        print_json(record)
    else:
        print_lines(lines)


def run_facts(cell: Run) -> dict[str, Any]:
    """Return what --json prints of every run first: its name and its folder."""
    return {"run": cell.campaign.name, "folder": cell.folder}


def cell_table(cells: Sequence[Run], *columns: str) -> Table:
    """Return an empty table; of a grid's cells, with their names as the first column."""
    return Table(*(("cell",) if len(cells) > 1 else ()), *columns, box=None)


def cell_name(cells: Sequence[Run], cell: Run) -> list[str]:
    """Return the first cell of a row of `cell_table`."""
    return [cell.campaign.name] if len(cells) > 1 else []


def interval(estimate: Interval | None, digits: int = 2) -> str:
    """Return a value with its interval as text."""
    return "-" if estimate is None else estimate.text(digits)
