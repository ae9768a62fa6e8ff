"""`llm-elicit serve` and `bundle`: campaigns over HTTP, and a campaign's page as one file."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from llm_elicit._util.settings import to_yaml
from llm_elicit.cli.options import RunName, out
from llm_elicit.errors import InputError
from llm_elicit.pipeline import run_folder, snapshot


def serve_command(
    host: Annotated[
        str | None, typer.Option(metavar="HOST", help="Address to listen on; 127.0.0.1 by default.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port to listen on; 8642 by default, 0 for a free one."
        ),
    ] = None,
    runs: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder of the runs.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Server configuration: judges and limits that clients may use."
        ),
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Database of all journals: postgresql://USER@HOST/DATABASE."
        ),
    ] = None,
    start: Annotated[
        list[str] | None,
        typer.Option(metavar="CAMPAIGN", help="Campaign to start; may be repeated."),
    ] = None,
) -> None:
    """Serve campaigns over HTTP; Ctrl-C waits for answers in flight."""
    options: dict[str, Any] = {"host": host, "port": port, "runs": runs, "journal": journal}
    try:
        from llm_elicit.service import server, settings

        read = settings.ServerSettings() if config is None else settings.ServerSettings.load(config)
        stated = {name: value for name, value in options.items() if value is not None}
        server.serve(read.changed(stated), out.print, start or ())
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed; run: pip install 'llm-elicit[service]'"
        ) from None


def bundle_command(
    run: RunName,
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="OUT.html", help="File to write; page.html in the run folder by default."
        ),
    ] = None,
) -> None:
    """Write the live page of a run, finished or not, as one HTML file."""
    from llm_elicit.pipeline import live  # with PyTorch, which a service needs not
    from llm_elicit.service import responses

    cells = run_folder.open_runs(run)
    if len(cells) > 1:
        names = ", ".join(cell.campaign.name for cell in cells)
        raise InputError(f"{run} is a grid of several runs; name one of {names}")
    cell = cells[0]
    written = path or cell.folder / "page.html"
    view = live.live_view(cell)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    record = snapshot.stored_snapshot(cell).model_copy(update={"updated": now})
    about = to_yaml(cell.campaign.shareable())
    try:
        responses.write_bundle(record, view, written, cell.space.title, about)
    except OSError as error:
        raise InputError(f"{written}: cannot be written ({error.strerror or error})") from None
    out.print(written, soft_wrap=True)
