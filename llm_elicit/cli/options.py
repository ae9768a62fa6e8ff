"""What commands share: arguments and options, the cells of a grid, and tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
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


def argument(text: str, metavar: str | None = None) -> Any:
    """Return an argument of a command, with its help."""
    return typer.Argument(metavar=metavar, help=text)


def option(text: str, metavar: str | None = None, *names: str, **limits: Any) -> Any:
    """Return an option of a command, with its help; by default it has the parameter's name."""
    return typer.Option(*names, metavar=metavar, help=text, **limits)


def flag(name: str, text: str) -> Any:
    """Return a switch that has no opposite, with its help."""
    return typer.Option(name, help=text)


RunName = Annotated[str, argument("Run folder, run name or campaign.", "RUN")]
CampaignName = Annotated[str, argument("Campaign file, or an example's name.", "CAMPAIGN")]
MaxCost = Annotated[float | None, option("Cap on the cost, with resumes.", "USD", min=0.0)]
CacheUse = Annotated[
    Literal["reuse", "fresh", "off"],
    option("Reuse, replace or skip the cache."),
]
RetryFailed = Annotated[bool, flag("--retry-failed", "Ask again what was set aside.")]
StrictVersion = Annotated[bool, flag("--strict-version", "Stop a judge at a new version.")]
Cluster = Annotated[str | None, option("Fit and audit on a Dask cluster.", "ADDRESS")]
ServiceAddress = Annotated[str | None, option("Service that has the run.", "URL", "--service")]
AsJson = Annotated[bool, flag("--json", "Print JSON.")]

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
    last: Callable[[Sequence[Run]], Outcome] = lambda _: Outcome(),
) -> None:
    """Call a function for a run, or for every cell of a grid, and print the outcomes.

    An error in one cell does not stop the others; the first error decides the exit code.

    Args:
        cells: the run, or the runs of a grid.
        work: the function.
        as_json: print one JSON object instead of text.
        last: called with the cells after them if there was no error.
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
    whole = Outcome() if errors else last(cells)
    show({"runs": records} | whole.facts, whole.text, as_json)
    if errors:
        raise errors[0]


def print_lines(lines: Iterable[RenderableType]) -> None:
    """Print each on a line of its own; nothing, not an empty line, if there is none."""
    for line in lines:
        out.print(line)


def show(record: object, lines: Iterable[RenderableType], as_json: bool) -> None:
    """Print a record as JSON, or lines of text and tables instead."""
    if as_json:
        print_json(record)
    else:
        print_lines(lines)


def show_change(
    label: str, facts: dict[str, Any], state: str, done: int, total: int, as_json: bool
) -> None:
    """Print the state of a run that was changed, and how many of its questions are answered."""
    line = f"{label}: {state}; {done:,} of {total:,} questions are answered"
    show(facts | {"state": state, "done": done, "total": total}, [line], as_json)


def run_facts(cell: Run) -> dict[str, Any]:
    """Return what --json prints of every run first: its name and its folder."""
    return {"run": cell.campaign.name, "folder": cell.folder}


def table_of(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> Table:
    """Return a table with these rows."""
    table = Table(*columns, box=None)
    for row in rows:
        table.add_row(*row)
    return table


def cell_table(columns: Sequence[str], rows: Sequence[tuple[Run, Sequence[str]]]) -> Table:
    """Return a table with rows of runs; if they are a grid's, their names are the first column."""
    if len({run.campaign.name for run, _ in rows}) < 2:
        return table_of(columns, (row for _, row in rows))
    return table_of(["cell", *columns], ([run.campaign.name, *row] for run, row in rows))


def interval(estimate: Interval | None, digits: int = 2) -> str:
    """Return a value with its interval as text."""
    return "-" if estimate is None else estimate.text(digits)
