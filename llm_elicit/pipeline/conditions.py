"""Runs of one grid that differ only in the condition, whose beliefs are fitted together.

The answers of all conditions are one table over the whole feature space, in which both points of a
pair have the condition's values. One utility is fitted to them, and each run's belief is that of
its condition: the conditions share what they have in common, and need fewer questions each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llm_elicit._util.packages import LazyModule
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.config.base_model import read_yaml
from llm_elicit.config.campaign import Campaign
from llm_elicit.pipeline.run_folder import CAMPAIGN, COMPARISONS, Run

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = LazyModule("pandas")

_OWN = {"name", "given", "grid", "limits", "runs"}
"""The settings that may differ between runs that are fitted together."""


def conditions_of(run: Run) -> tuple[Run, ...]:
    """Return the runs that are fitted together with a run, itself among them, in order of folders.

    They are the answered cells of its grid with the same settings but for the values given. Points
    that are drawn from the table have no density over all conditions, so each is fitted alone.
    """
    campaign = run.campaign
    if not campaign.given or campaign.part_of is None or campaign.design.sampling != "uniform":
        return (run,)
    found = {run.folder: run}  # the run itself, not a second reading of it
    for path in sorted(run.folder.parent.glob(f"{campaign.part_of}.*/{CAMPAIGN}")):
        folder = path.parent
        if folder in found or not (folder / COMPARISONS).is_file():
            continue
        other = Campaign.model_validate(read_yaml(path))
        alike = other.given.keys() == campaign.given.keys()
        if alike and other.model_dump(exclude=_OWN) == campaign.model_dump(exclude=_OWN):
            found[folder] = Run(folder, other, other.load_space())
    return tuple(found[folder] for folder in sorted(found))


def joint_table(runs: Sequence[Run], names: list[str]) -> Comparisons:
    """Return the judgments of all runs over the features of the whole space, by their names."""
    frames, before = [], 0
    for run in runs:
        frame = run.comparisons.frame
        held = {f"{side}_{name}": value for name, value in run.space.given.items() for side in "ab"}
        frames.append(frame.assign(pair=frame["pair"] + before, **held))
        before += int(frame["pair"].max()) + 1 if len(frame) else 0
    return Comparisons(pd.concat(frames), names)
