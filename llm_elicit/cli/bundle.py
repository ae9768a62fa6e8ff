"""`llm-elicit bundle`: a campaign's page as one file."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llm_elicit._util.packages import LazyModule
from llm_elicit.cli.options import RunName, out
from llm_elicit.errors import InputError

if TYPE_CHECKING:
    from llm_elicit.pipeline import live, run_folder, snapshot
    from llm_elicit.service import campaign_page
else:
    live = LazyModule("llm_elicit.pipeline.live")
    run_folder = LazyModule("llm_elicit.pipeline.run_folder")
    snapshot = LazyModule("llm_elicit.pipeline.snapshot")
    campaign_page = LazyModule("llm_elicit.service.campaign_page")


def bundle_command(
    run: RunName,
    path: Annotated[
        Path | None,
        typer.Argument(metavar="OUT.html", help="The file; page.html in the run's folder."),
    ] = None,
) -> None:
    """Write a run's page as one file, finished or not; it needs no server and no network."""
    cells = run_folder.open_runs(run)
    if len(cells) > 1:
        names = ", ".join(cell.campaign.name for cell in cells)
        raise InputError(f"{run} is a grid of several runs; name one of {names}")
    cell = cells[0]
    written = path or cell.folder / "page.html"
    view = live.live_view(cell)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    found = snapshot.stored_snapshot(cell).model_copy(update={"updated": now})
    copy = cell.folder / run_folder.CAMPAIGN
    about = copy.read_text("utf-8") if copy.is_file() else ""
    try:
        campaign_page.write_bundle(found, view, written, cell.space.title, about)
    except OSError as error:
        raise InputError(f"{written}: cannot be written ({error.strerror or error})") from None
    out.print(written, soft_wrap=True)
