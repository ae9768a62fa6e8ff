"""The stage that plans: the campaign, its identity and its pairs, written to the run's folder."""

from __future__ import annotations

from pathlib import Path

from llm_elicit.config.base_model import to_yaml
from llm_elicit.config.campaign import Campaign
from llm_elicit.pipeline.manifest import Manifest, write_atomically
from llm_elicit.pipeline.run_folder import CAMPAIGN, Run, find, open_runs


def plan(campaign: str | Path | Campaign) -> Run:
    """Validate a campaign, draw its pairs and write both to the run's folder.

    Raises:
        InputError: the campaign breaks a rule, is a grid of several, or the folder holds another
            campaign's run.
    """
    return plan_run(Run.open(campaign))


def plan_grid(campaign: str | Path | Campaign) -> tuple[Run, ...]:
    """Plan every cell of a grid; a campaign without a grid is its only cell."""
    cells = tuple(plan_run(cell) for cell in open_runs(campaign))
    whole, folder = find(campaign)
    if whole.grid is not None and folder != cells[0].folder:
        folder.mkdir(parents=True, exist_ok=True)
        _write_campaign(whole, folder / CAMPAIGN)
        Manifest(folder).record("plan", {}, [folder / CAMPAIGN])
    return cells


def _write_campaign(campaign: Campaign, path: Path) -> None:
    """Write a run's copy of a campaign; of a grid, only the settings that were given."""
    grid = campaign.grid is not None
    data = campaign.model_dump(mode="json", exclude={"runs"}, exclude_unset=grid)
    data["runs"] = str(campaign.runs)
    write_atomically(path, to_yaml(data))


def plan_run(result: Run) -> Run:
    """Write a campaign and its pairs to the run's folder.

    Raises:
        InputError: the folder holds another campaign's run.
    """
    identity = result.identity  # this reads the templates, before anything is written
    if result.started:
        result.check_identity()
    result.folder.mkdir(parents=True, exist_ok=True)
    result.write_pairs()
    before = result.recorded_identity if result.started else {}
    result.manifest.record_identity(before | identity)
    _write_campaign(result.campaign, result.folder / CAMPAIGN)
    result.manifest.record("plan", {}, [result.folder / CAMPAIGN])
    return result
