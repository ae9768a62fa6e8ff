"""What commands share: arguments and options, the cells of a grid, and tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from llm_elicit._util.sanitize import visible
from llm_elicit.errors import ElicitError

if TYPE_CHECKING:
    from llm_elicit.audit.inference import Interval
    from llm_elicit.pipeline.run_folder import Run

RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's folder or name, or a campaign.")
]
CampaignName = Annotated[str, typer.Argument(metavar="CAMPAIGN", help="A path, or an example.")]
MaxCost = Annotated[
    float | None, typer.Option(metavar="USD", min=0.0, help="Cap on the total cost in USD.")
]
CacheUse = Annotated[
    Literal["reuse", "fresh", "off"],
    typer.Option(help="Reuse answers of earlier runs, ask anew and replace them, or neither."),
]

_UNBOUNDED = 100_000


def _console() -> Console:
    """Return a console on standard output that prints text without markup.

    Without a terminal (a pipe, a file, CI), tables get the width that they need, so that nothing
    in them is cut or wrapped.

    Example:
        >>> _console().width >= 200 or sys.stdout.isatty()
        True
    """
    width = None if sys.stdout.isatty() else _UNBOUNDED
    return Console(highlight=False, markup=False, soft_wrap=True, width=width)


out = _console()
"""Standard output of every command."""


def for_each(cells: Sequence[Run], work: Callable[[Run], None]) -> None:
    """Call a function for a run, or for every cell of a grid.

    An error in one cell does not stop the others; the first error decides the exit code.
    """
    errors: list[ElicitError] = []
    for cell in cells:
        if len(cells) > 1:
            out.print(f"{cell.campaign.name}", style="bold")
        try:
            work(cell)
        except ElicitError as error:
            if len(cells) == 1:
                raise
            sys.stderr.write(f"{cell.campaign.name}: {visible(str(error), 9999)}\n")
            errors.append(error)
    if errors:
        raise errors[0]


def cell_table(cells: Sequence[Run], *columns: str) -> Table:
    """Return an empty table; of a grid's cells, with their names as the first column."""
    return Table(*(("cell",) if len(cells) > 1 else ()), *columns, box=None)


def cell_name(cells: Sequence[Run], cell: Run) -> list[str]:
    """Return the first cell of a row of `cell_table`."""
    return [cell.campaign.name] if len(cells) > 1 else []


def interval(found: Interval | None, digits: int = 2) -> str:
    """Return a value with its interval as text."""
    if found is None:
        return "-"
    return f"{found.value:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"
