"""`llm-elicit space`: feature spaces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llm_elicit._util.lazy_module import LazyModule
from llm_elicit.cli.options import out
from llm_elicit.errors import InputError

if TYPE_CHECKING:
    from llm_elicit.pipeline import manifest
    from llm_elicit.spaces import drafting
else:
    drafting = LazyModule("llm_elicit.spaces.drafting")
    manifest = LazyModule("llm_elicit.pipeline.manifest")

space_app = typer.Typer(help="Feature spaces.", no_args_is_help=True)


@space_app.command("init")
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
    out.print(f"{path}: {count} features; edit it, then name it as `space:` in a campaign")
