"""What one cell of a grid may spend: the cap is the grid's, and the other cells have spent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llm_elicit.config.base_model import read_yaml
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal import FILE, JournalLocation, committed, reading
from llm_elicit.orchestrator.lock import RunLock


@contextmanager
def allowed(campaign: Campaign, folder: Path) -> Iterator[Campaign]:
    """The campaign under what its grid's caps leave it; other cells wait outside meanwhile.

    A campaign that is in no grid, or has no cap, is as it is.

    Args:
        campaign: a cell, with the caps of the whole grid.
        folder: the cell's run; the others' lie beside it.

    Raises:
        InputError: another process asks for a cell of this grid, or may do so elsewhere.
    """
    limits = campaign.limits
    if campaign.part_of is None or (limits.max_cost is None and limits.max_tokens is None):
        yield campaign
        return
    if campaign.journal is not None:
        raise InputError(
            f"{campaign.part_of}: a cap over the cells of a grid holds on one machine alone; "
            "leave out `journal`, or the cap"
        )
    with RunLock(folder.parent / campaign.part_of):
        usd, tokens = _spent_beside(campaign.part_of, folder)
        left = {
            "max_cost": None if limits.max_cost is None else max(limits.max_cost - usd, 0.0),
            "max_tokens": None if limits.max_tokens is None else max(limits.max_tokens - tokens, 0),
        }
        yield campaign.model_copy(update={"limits": limits.model_copy(update=left)})


def _spent_beside(grid: str, folder: Path) -> tuple[float, int]:
    """USD and tokens of a grid's other cells: spent, set aside, and handed in.

    Cells that the grid names no more count as well: what they spent is spent.
    """
    usd, tokens = 0.0, 0
    for journal in sorted(folder.parent.glob(f"{grid}.*/{FILE}")):
        beside = journal.parent
        if beside == folder or read_yaml(beside / "campaign.yaml").get("part_of") != grid:
            continue
        with reading(JournalLocation(beside)) as db:
            some, more = committed(db)
        usd, tokens = usd + some, tokens + more
    return usd, tokens
