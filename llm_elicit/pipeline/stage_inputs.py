"""What a stage after asking reads: checks that it is unchanged, and tables of runs fitted together.

A file that can be made again is, with a note; one that cannot is an error.

Runs of one grid that differ only in the condition are fitted together. The answers of all
conditions are one table over the whole feature space, in which both points of a pair have the
condition's values. One utility is fitted to them, and each run's belief is that of its condition:
the conditions share what they have in common, and need fewer questions each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from llm_elicit._util.packages import LazyModule
from llm_elicit._util.settings import read_yaml
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal.connection import FILE as JOURNAL
from llm_elicit.orchestrator.progress import Progress
from llm_elicit.pipeline.ask import write_tables
from llm_elicit.pipeline.run_folder import CAMPAIGN, COMPARISONS, PLAN, Run


def check_files(result: Run, stage: str, progress: Progress) -> None:
    """Check a run's identity and files; write changed pairs and tables of answers again.

    Args:
        result: the run.
        stage: the stage that follows, for messages.
        progress: receives a note for every file that is written again.

    Raises:
        InputError: the campaign, its space or a template was changed; a table was changed and
            there is no journal to make it from; or the pairs of later rounds are lost with it.
    """
    result.check_identity()
    manifest, name = result.manifest, result.campaign.name
    asked = manifest.entry("ask") is not None
    journal = result.location.shared or (result.folder / JOURNAL).is_file()
    if asked and not journal and result.campaign.design.rounds is not None:
        raise InputError(
            f"{result.folder}: the journal is gone, in which the pairs of later rounds are; put it "
            "back"
        )
    if not manifest.as_written("pairs", PLAN):
        progress.note(name, f"{stage}: {PLAN} is gone or was changed; it is written again")
        result.write_pairs()
    tables = manifest.changed("ask")
    if not tables:
        return
    which = " and ".join(tables)
    if not journal:
        raise InputError(
            f"{result.folder}: {which} was changed since it was written, and there is no journal "
            "to make it from; put either back, or fit a table of your own by "
            "llm_elicit.density.fit_belief"
        )
    progress.note(name, f"{stage}: {which} is gone or was changed; made again from the journal")
    write_tables(result)


def warn_of_gaps(result: Run, stage: str, progress: Progress) -> None:
    """Add a note for every judge whose questions are not all answered."""
    asked = result.questions
    for judge, gap in result.missing.items():
        of_all = f"{gap:,} of {asked[judge]:,} questions have no answer"
        progress.note(judge, f"{stage}: {of_all}; the result uses the others")


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
        held = {
            f"{side}_{fixed.feature.name}": fixed.feature.column(np.full(len(frame), fixed.value))
            for fixed in run.space.fixed
            for side in "ab"
        }
        frames.append(frame.assign(pair=frame["pair"] + before, **held))
        before += int(frame["pair"].max()) + 1 if len(frame) else 0
    return Comparisons(pd.concat(frames), names)
