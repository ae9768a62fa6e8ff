"""`llm-elicit serve`: campaigns over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llm_elicit._util.packages import LazyModule
from llm_elicit.cli.options import out
from llm_elicit.errors import InputError

if TYPE_CHECKING:
    from llm_elicit.service import server, settings
else:
    server = LazyModule("llm_elicit.service.server")
    settings = LazyModule("llm_elicit.service.settings")


def serve_command(
    host: Annotated[
        str | None, typer.Option(metavar="HOST", help="Where to listen; 127.0.0.1 by default.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="8642 by default; 0 for a free one."),
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The folder of the runs.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The server's file, with what campaigns over HTTP may name."
        ),
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="postgresql://USER@HOST/DATABASE for the journals of all runs."
        ),
    ] = None,
    start: Annotated[
        list[str] | None,
        typer.Option(metavar="CAMPAIGN", help="Start this campaign of yours; may be repeated."),
    ] = None,
) -> None:
    """Serve campaigns over HTTP, with a live page. Ctrl-C or SIGTERM drains and stops."""
    given: dict[str, Any] = {"host": host, "port": port, "runs": runs, "journal": journal}
    try:
        read = settings.ServerSettings() if config is None else settings.ServerSettings.load(config)
        stated = {name: value for name, value in given.items() if value is not None}
        server.serve(read.changed(stated), out.print, start or ())
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed; run: pip install 'llm-elicit[service]'"
        ) from None
