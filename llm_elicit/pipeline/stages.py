"""Wires the stages: plan, ask, fit, audit, report; each reads what the one before wrote.

A run lives in a folder (`runs/<campaign>`); every stage can be run alone, again, or in another
process. Running the whole again resumes: answered questions are not asked twice, and a belief
whose answers and settings did not change is not fitted again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_elicit._util import versions
from llm_elicit._util.lazy_module import LazyModule
from llm_elicit._util.read_files import read_json, read_points
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.config.base_model import to_yaml
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import CapError, ElicitError, InputError
from llm_elicit.orchestrator import CacheUse, Display, Progress, Silent
from llm_elicit.orchestrator.log import span
from llm_elicit.pipeline.ask import ask, ask_in_batches, export
from llm_elicit.pipeline.file_checks import check_files, warn_of_gaps
from llm_elicit.pipeline.fit import fit, refit_changed
from llm_elicit.pipeline.manifest import Manifest, digest_of, digest_of_file, write_atomically
from llm_elicit.pipeline.run_folder import (
    AUDIT,
    BANDS,
    BELIEF,
    DRAWS,
    FROZEN,
    POWER,
    POWERS,
    SAMPLES,
    Run,
    find,
    open_runs,
)  # fmt: skip
from llm_elicit.planning.rounds import schedule_of
from llm_elicit.questions import Template, render
from llm_elicit.spaces.features import FeatureSpace, Floats

__all__ = [
    "arun", "ask", "ask_in_batches", "audit", "compare", "export", "fit", "plan", "plan_grid",
    "planned", "report", "run", "run_grid",
]  # fmt: skip

if TYPE_CHECKING:
    from llm_elicit import audit as auditing
    from llm_elicit import density
    from llm_elicit import report as reporting
else:
    # PyTorch, SciPy and Matplotlib take seconds to import: asking waits for none of them.
    auditing = LazyModule("llm_elicit.audit")
    density = LazyModule("llm_elicit.density")
    reporting = LazyModule("llm_elicit.report")

_SILENT = Silent()


def run(
    campaign: str | Path | Run,
    *,
    max_cost: float | None = None,
    progress: Progress | None = None,
    cache: CacheUse = "reuse",
) -> Run:
    """Run a campaign from its YAML to its report, or resume it. Blocks until it is done.

    Args:
        campaign: a path, a name from examples/, or a run that is planned already.
        max_cost: a cap in USD that replaces the campaign's own, resumes included.
        progress: told of every change; by default a display on standard error. `Silent()`
            shows nothing.
        cache: "reuse" answers of earlier runs, ask "fresh" and replace them, or leave it "off".

    Raises:
        InputError: something the user gave cannot be used.
        JudgeError: no judge could be asked; where some could, `Run.problems` has the others'.
        KeyboardInterrupt: the user stopped it. While questions are asked, the first Ctrl-C waits
            for the answers in flight; every answer received is kept.

    Example (`examples/run_campaign.py` is run by a test)::

        result = le.run("examples/simulated.yaml")
        result.beliefs["expert"].sample(1000, seed=1)  # (1000, 4), natural units
    """
    if _inside_event_loop():
        raise InputError("run() was called inside an event loop; use `await arun(...)` there")
    with Display() if progress is None else nullcontext(progress) as shown:
        result = campaign if isinstance(campaign, Run) else plan(campaign)
        result = asyncio.run(ask(result, max_cost=max_cost, progress=shown, cache=cache))
        for stage in (fit, audit, report):
            stage(result, shown)
    return result


def _inside_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def arun(
    campaign: str | Path | Run,
    *,
    max_cost: float | None = None,
    progress: Progress | None = None,
    cache: CacheUse = "reuse",
) -> Run:
    """What `run` does, for a notebook or a service, whose event loop goes on meanwhile.

    Neither signals nor the garbage collector are touched: both are the host's. Cancelling it
    while questions are asked waits for the answers in flight; a second time drops them.
    """
    with Display() if progress is None else nullcontext(progress) as shown:
        result = campaign if isinstance(campaign, Run) else await asyncio.to_thread(plan, campaign)
        result = await ask(result, max_cost=max_cost, progress=shown, cache=cache)
        for stage in (fit, audit, report):
            await asyncio.to_thread(stage, result, shown)
    return result


def run_grid(
    campaign: str | Path,
    *,
    max_cost: float | None = None,
    progress: Progress | None = None,
    cache: CacheUse = "reuse",
) -> dict[str, Run]:
    """Run every cell of a grid, one after the other, or resume it; the caps hold over them all.

    A cell of which no judge could be asked is left out of what is returned, and the others go on;
    a plain campaign is its only cell.

    Returns:
        The cells' runs by name.

    Raises:
        CapError: a cap of the grid is reached.
        JudgeError, InputError: no cell could be asked; the first cell's reason.
        KeyboardInterrupt: the user stopped it; every answer received is kept.
    """
    if _inside_event_loop():
        raise InputError("run_grid() was called inside an event loop; use a thread of its own")
    done: dict[str, Run] = {}
    stopped: ElicitError | None = None
    for cell in plan_grid(campaign):
        try:
            done[cell.campaign.name] = run(cell, max_cost=max_cost, progress=progress, cache=cache)
        except CapError:
            raise
        except ElicitError as error:
            stopped = stopped or error
    if stopped is not None and not done:
        raise stopped
    return done


def plan(campaign: str | Path) -> Run:
    """Validate a campaign, draw its pairs and write both to the run's folder.

    Raises:
        InputError: the campaign breaks a rule, is a grid of several, or the folder holds another
            campaign's run.
    """
    return planned(Run.open(campaign))


def plan_grid(campaign: str | Path) -> tuple[Run, ...]:
    """What `plan` does, for each cell of a grid; a plain campaign is its only cell."""
    cells = tuple(planned(cell) for cell in open_runs(campaign))
    whole, folder = find(campaign)
    if whole.grid is not None and folder != cells[0].folder:
        folder.mkdir(parents=True, exist_ok=True)
        _freeze(whole, folder / FROZEN)
        Manifest(folder).record("plan", {}, [folder / FROZEN])
    return cells


def _freeze(campaign: Campaign, path: Path) -> None:
    """Write a campaign down with its run, as it was given where it is a grid."""
    grid = campaign.grid is not None
    data = campaign.model_dump(mode="json", exclude={"runs"}, exclude_unset=grid)
    data["runs"] = str(campaign.runs)
    write_atomically(path, to_yaml(data))


def planned(result: Run) -> Run:
    """Write a campaign and its pairs to the run's folder.

    Raises:
        InputError: the folder holds another campaign's run.
    """
    identity = result.identity  # which reads the templates, before anything is written
    if result.begun:
        result.check_identity()
    result.folder.mkdir(parents=True, exist_ok=True)
    result.write_pairs()
    before = result.begun_with if result.begun else {}
    result.manifest.keep_identity(before | identity)
    _freeze(result.campaign, result.folder / FROZEN)
    result.manifest.record("plan", {}, [result.folder / FROZEN])
    return result


@span("audit")
def audit(result: Run, progress: Progress = _SILENT) -> None:
    """Compare each belief with the data and with the sampling density; write audit.json.

    Points of the beliefs at other powers are written beside them.
    """
    check_files(result, "audit", progress)
    refit_changed(result, "audit", progress)
    warn_of_gaps(result, "audit", progress)
    _write_audit(result, progress)


def _write_audit(result: Run, progress: Progress) -> None:
    """Write audit.json, from files that are as they were written."""
    samples = _samples(result)
    reference = auditing.Reference(result.space, samples.sampling, samples.data)
    table = result.comparisons
    names = [judge.name for judge in result.campaign.judges if judge.name in table.judges]
    evidence = [_evidence(result, table, name, samples) for name in names]
    method = result.campaign.fit.methods[0]
    written = [result.folder / AUDIT]
    for one in evidence:
        if one.powers is not None:
            written.append(result.belief_folder(one.judge, method) / POWERS)
            auditing.write_powers(one.powers, result.space, written[-1])
    shown = partial(progress.stage, "audit", "distances and tests")
    numbers = auditing.audit_run(evidence, reference, result.campaign.seed, shown)
    numbers.save(written[0])
    result.manifest.record("audit", _read_by_audit(result), written)


def _read_by_audit(result: Run) -> dict[str, str]:
    """What an audit depends on that may change while a run goes on."""
    judges = [judge.name for judge in result.campaign.judges]
    settings = [judges, result.campaign.fit.recorded()]
    beliefs = {
        f"belief {judge} {method}": digest_of(
            {name: digest_of_file(result.belief_folder(judge, method) / name) for name in BELIEF}
        )
        for judge in judges
        for method in result.campaign.fit.methods
    }
    return {"settings": digest_of(settings), "tables": result.tables_digest, **beliefs}


def _audit_is_of_these_files(result: Run) -> bool:
    """Whether the audit on disk is as it was written, from what is there now; or nobody knows."""
    entry = result.manifest.entry("audit")
    if entry is None:
        return True
    return entry.read == _read_by_audit(result) and not result.manifest.changed("audit")


def compare(found: Sequence[Run], progress: Progress = _SILENT) -> auditing.Versus:
    """Compare the judges of one or several runs; see `llm_elicit.audit.judge_comparison`.

    A judge is called by its name, or `run/judge` where two runs have judges of that name.

    Raises:
        InputError: feature spaces that differ, fewer than two beliefs, or a belief that has no
            draws.
    """
    for run in found:
        check_files(run, "compare", progress)
        refit_changed(run, "compare", progress)
    spaces = [run.space for run in found]
    for run, space in zip(found, spaces, strict=True):
        if space.features != spaces[0].features:
            raise InputError(
                f"compare: {run.folder} asks about {space.name} and {found[0].folder} about "
                f"{spaces[0].name}; judges are compared over the same features and ranges"
            )
    names = [name for run in found for name in run.beliefs]
    sides = []
    for run in found:
        table = run.comparisons
        for name, belief in run.beliefs.items():
            full = name if names.count(name) == 1 else f"{run.campaign.name}/{name}"
            sides.append(auditing.Side(full, table.choices(name), belief))
    samples = _samples(found[0])
    reference = auditing.Reference(spaces[0], samples.sampling, samples.data)
    shown = partial(progress.stage, "compare")
    return auditing.compare_judges(sides, reference, found[0].campaign.seed, shown)


def _samples(result: Run) -> reporting.Samples:
    """Data, λ and every judge's belief, as points."""
    space, count = result.space, result.campaign.fit.samples
    rng = np.random.default_rng([result.campaign.seed, 0xA0D17])
    method = result.campaign.fit.methods[0]
    beliefs = {
        judge.name: _read_points(result.belief_folder(judge.name, method), space)
        for judge in result.campaign.judges
    }
    return reporting.Samples(
        space=space,
        sampling=space.sample(count, rng),
        data=space.table_points() if space.table else None,
        beliefs={name: points for name, points in beliefs.items() if points is not None},
        bands={
            name: bands
            for name in beliefs
            if (bands := _read_bands(result.belief_folder(name, method))) is not None
        },
        draws={
            name: draws
            for name in beliefs
            if (draws := auditing.read_draws(result.belief_folder(name, method) / DRAWS))
            is not None
        },
        at_powers={
            name: auditing.read_powers(result.belief_folder(name, method) / POWERS)
            for name in beliefs
        },
    )


def _read_points(folder: Path, space: FeatureSpace) -> Floats | None:
    """A belief's samples, if it was fitted."""
    path = folder / SAMPLES
    return read_points(path, space.names) if path.is_file() else None


def _read_bands(folder: Path) -> auditing.BeliefBands | None:
    """A belief's bands, if its method has them."""
    path = folder / BANDS
    if not path.is_file():
        return None
    return read_json(path, auditing.BeliefBands.model_validate_json)


def _read_power(folder: Path) -> density.Power | None:
    """What other answers than comparisons of points say of a belief's power, if there are any."""
    path = folder / POWER
    if not path.is_file():
        return None
    return read_json(path, lambda text: auditing.power_of(json.loads(text)))


def _evidence(
    result: Run, comparisons: Comparisons, judge: str, samples: reporting.Samples
) -> auditing.JudgeEvidence:
    """What is known of one judge; `samples` has what was read of its first method's belief."""
    seed, space = result.campaign.seed, result.space
    triads = auditing.find_triads(comparisons, judge)
    direct = auditing.DirectEvidence.read(result.direct, judge, space, seed)
    schedule = schedule_of(judge, result.campaign)
    evidence = auditing.JudgeEvidence(
        judge, comparisons, triads=triads, direct=direct, schedule=schedule
    )
    if judge not in samples.beliefs:
        return evidence
    first, *others = result.campaign.fit.methods
    belief = density.BeliefDensity.load(result.belief_folder(judge, first))
    points = samples.beliefs[judge]
    pinned = _read_power(result.belief_folder(judge, first))
    beliefs: dict[str, Floats] = {first: points}
    diagnostics: dict[str, dict[str, Any]] = {first: belief.diagnostics}
    for method in others:
        folder = result.belief_folder(judge, method)
        drawn = _read_points(folder, space)
        if drawn is not None:
            beliefs[method] = drawn
            diagnostics[method] = density.BeliefDensity.load(folder).diagnostics
    return replace(
        evidence,
        beliefs=beliefs,
        diagnostics=diagnostics,
        bands=samples.bands.get(judge),
        draws=auditing.read_draws(result.belief_folder(judge, first) / DRAWS),
        levels=auditing.data_levels(belief, space, points),
        utility=auditing.utility_of(belief, space, samples.data, seed),
        powers=auditing.at_powers(belief, space, points, samples.data, seed, pinned)
        if belief.has_noise_levels
        else None,
        foretold=auditing.foretell_triads(belief, triads, seed),
        direct=auditing.at_noise_levels(direct, belief, space, points, seed)
        if belief.has_noise_levels
        else direct,
    )


@span("report")
def report(result: Run, progress: Progress = _SILENT) -> None:
    """Write report.html, its figures and its tables."""
    check_files(result, "report", progress)
    refit_changed(result, "report", progress)
    if not _audit_is_of_these_files(result):
        progress.note(result.campaign.name, f"report: {AUDIT} was changed, or what it rests on; "
                      "it is made again")  # fmt: skip
        _write_audit(result, progress)
    study = reporting.Study(
        audit=result.audit,
        campaign=result.campaign,
        comparisons=result.comparisons,
        samples=_samples(result),
        versions=versions.installed_versions(),
        prompts=_prompts(result),
        missing=result.missing,
        questions=result.questions,
        created=datetime.now(UTC).isoformat(timespec="minutes"),
    )
    warn_of_gaps(result, "report", progress)
    progress.stage("report", "figures", 0, 1)
    page = reporting.write_report(study, result.folder)
    reporting.write_tables(study.audit, result.folder / "tables")
    result.manifest.record("report", {AUDIT: digest_of_file(result.folder / AUDIT)}, [page])
    progress.stage("report", "figures", 1, 1)


def _prompts(result: Run) -> dict[str, str]:
    """Every question of the plan as text, by its hash."""
    template = Template.load(result.campaign.design.template)
    prompts = (render(result.space, *result.plan.shown(query), template) for query in result.plan)
    return {prompt.hash: prompt.text for prompt in prompts}
