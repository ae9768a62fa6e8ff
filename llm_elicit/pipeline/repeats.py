"""Repeats of a run: the same questions to the same judges again, in a run that is linked to it.

A repeat has the pairs of its run, and copies of the feature space, the table, the templates and the
worked examples that the run was planned with (`inputs/` in its folder), so that later changes of
these files do not matter. Its answers are not taken from the cache; its own journal makes it
resumable.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from llm_elicit.config.campaign import Campaign, RepeatOf
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal import questions as journal
from llm_elicit.orchestrator.journal.store import Journal
from llm_elicit.pipeline.ask import due_rounds
from llm_elicit.pipeline.manifest import Manifest
from llm_elicit.pipeline.run_folder import (
    CAMPAIGN,
    COMPARISONS,
    INPUTS,
    REPORT,
    Run,
    find,
    open_runs,
    run_folders,
)
from llm_elicit.pipeline.stages import copy_inputs, plan_run


def plan_repeats(where: str | Path | Campaign, name: str | None = None) -> tuple[Run, ...]:
    """Plan a repeat of a run, or of every cell of a grid; continue an unfinished one of that name.

    Args:
        where: the run's folder, name or campaign.
        name: the name of the repeat; by default NAME.repeat-N, after the first run of the series.

    Raises:
        InputError: the run was not asked, its rounds are not complete, its files have changed and
            there are no copies, or another run has the name.
    """
    cells = open_runs(where)
    if len(cells) == 1:
        return (_plan_repeat(cells[0], name or _next_name(cells[0])),)
    grid = cells[0].campaign.part_of or ""
    number = 1
    while name is None:
        name = f"{grid}.repeat-{number}"
        folders = [cell.folder.parent / _cell_name(cell, grid, name) for cell in cells]
        if all((folder / REPORT).is_file() for folder in folders):
            name, number = None, number + 1
    (cells[0].folder.parent / name).mkdir(exist_ok=True)  # the caps of its cells are locked there
    return tuple(_plan_repeat(cell, _cell_name(cell, grid, name), name) for cell in cells)


def _cell_name(cell: Run, grid: str, name: str) -> str:
    """Return the name of a cell's repeat in the repeat of its grid."""
    return name + cell.campaign.name.removeprefix(grid)


def first_of(run: Run) -> str:
    """Return the name of the first run of a series."""
    link = run.campaign.repeat_of
    return run.campaign.name if link is None else link.first


def _plan_repeat(run: Run, name: str, part_of: str | None = None) -> Run:
    campaign = run.campaign
    if campaign.imported:
        raise InputError(
            f"{run.folder}: its judgments were imported, and its judges cannot be asked again; "
            "repeat a run whose judges can"
        )
    if not run.started or not run.answered:
        raise InputError(f"{run.folder}: has no answers yet; `llm-elicit run {run.folder}` asks")
    folder = run.folder.parent / name
    if (folder / CAMPAIGN).is_file():
        repeat = Run.open(folder)
        link = repeat.campaign.repeat_of
        if link is None or link.run != campaign.name:
            raise InputError(
                f"{folder}: this folder holds a run that is not a repeat of {campaign.name}; "
                "choose another name with --as"
            )
        return repeat
    if folder.exists():
        raise InputError(f"{folder}: exists already; choose another name with --as")
    waiting = list(due_rounds(run))
    if waiting:
        raise InputError(
            f"{run.folder}: its adaptive rounds are not complete, so it is not known which pairs "
            f"to repeat; `llm-elicit run {run.folder}` completes them"
        )
    space, templates, examples = copy_inputs(run)
    paths, design = [str(folder / path) for path in templates], campaign.design
    if (facets := design.presentations) is not None and examples is not None:
        facets = facets.model_copy(update={"example_file": str(folder / examples)})
    if facets is not None and facets.wordings is not None:
        facets = facets.model_copy(update={"wordings": tuple(paths)})
    else:
        design = design.model_copy(update={"template": paths[0]})
    design = design.model_copy(update={"presentations": facets})
    repeated = campaign.model_copy(
        update={
            "name": folder.name,
            "runs": folder.parent,
            "space": str(folder / space),
            "design": design,
            "part_of": part_of,
            "repeat_of": RepeatOf(run=campaign.name, first=first_of(run)),
        }
    )
    folder.mkdir(parents=True)
    shutil.copytree(run.folder / INPUTS, folder / INPUTS)
    written = sorted((folder / INPUTS).iterdir())
    Manifest(folder).record("inputs", {}, written)
    repeat = Run(folder, repeated, repeated.load_space())
    recorded, present = run.recorded_identity, repeat.identity
    for part in recorded.keys() & present.keys() - {"design"}:
        if recorded[part] != present[part]:
            raise InputError(
                f"{run.folder}: its {part} was changed since it was asked, and the run has no "
                "copy; restore it and repeat again"
            )
    run.write_pairs(folder)
    repeat = plan_run(replace(repeat))
    if campaign.design.rounds is not None:
        Journal(repeat.location, repeat.study.identity, campaign.limits).close()
        journal.record_rounds(repeat.location, journal.planned_rounds(run.location))
    return replace(repeat)


def _next_name(run: Run) -> str:
    """Return the name of an unfinished repeat of a run, or the next free name."""
    first = first_of(run)
    number = 1
    while (folder := run.folder.parent / f"{first}.repeat-{number}").exists():
        unfinished = not (folder / REPORT).is_file()
        if unfinished and (folder / CAMPAIGN).is_file():
            link = find(folder)[0].repeat_of
            if link is not None and link.run == run.campaign.name:
                break
        number += 1
    return f"{first}.repeat-{number}"


def asked_in_batches(repeat: Run) -> bool:
    """Return whether the run that this one repeats was asked through batch endpoints."""
    link = repeat.campaign.repeat_of
    folder = repeat.folder.parent / (link.run if link else "")
    return link is not None and (folder / CAMPAIGN).is_file() and Run.open(folder).batched


def series_of(runs: Sequence[Run]) -> list[Run] | None:
    """Return runs of one series, the oldest first; for a single run, all runs of its series.

    None if they are not of one series, or there is no repeat.
    """
    first_names = {first_of(run) for run in runs}
    if len(first_names) > 1:
        return None
    if len(runs) == 1:
        runs = list(runs)
        for path in run_folders(runs[0].folder.parent):
            with contextlib.suppress(InputError):  # runs that cannot be read are left out
                campaign = find(path)[0]
                link = campaign.repeat_of
                is_of_series = (campaign.name if link is None else link.first) in first_names
                if is_of_series and campaign.grid is None and (path / COMPARISONS).is_file():
                    runs.append(Run.open(path))
    distinct = {run.folder.resolve(): run for run in runs}
    if len(distinct) < 2:
        return None
    return sorted(distinct.values(), key=lambda run: str(run.comparisons.frame["asked_at"].min()))
