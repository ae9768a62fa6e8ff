"""The stages that compare beliefs with the data (`audit`) and judges (`compare`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from llm_elicit import density
from llm_elicit import report as report_package
from llm_elicit._util.files import read_json, read_parquet
from llm_elicit._util.packages import installed_versions
from llm_elicit.audit import belief_power, consistency, summaries
from llm_elicit.audit.calibration import data_levels
from llm_elicit.audit.direct_answers import DirectEvidence
from llm_elicit.audit.judge_comparison import JudgeBelief, JudgeComparison, compare_judges
from llm_elicit.audit.people import PeopleEvidence
from llm_elicit.audit.record import JudgeEvidence, audit_run
from llm_elicit.audit.reference import Reference
from llm_elicit.audit.utility import utility_of
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.progress import Progress
from llm_elicit.pipeline.manifest import digest_of, digest_of_file
from llm_elicit.pipeline.run_folder import (
    AUDIT,
    BANDS,
    BELIEF,
    DRAWS,
    PEOPLE,
    POWER,
    POWERS,
    SAMPLES,
    Run,
)  # fmt: skip
from llm_elicit.planning.rounds import schedule_of
from llm_elicit.spaces.features import FeatureSpace, Floats

T = TypeVar("T")


def make(run: Run, progress: Progress, goal: str) -> None:
    """Compare each belief with the data and with the sampling density; write audit.json.

    Points of the beliefs at other powers are written beside them.
    """
    if goal == "report":
        progress.note(run.campaign.name, f"report: {AUDIT} or one of its inputs was changed; "
                      "it is made again")  # fmt: skip
    samples = read_samples(run)
    rows = None if samples.data is None else run.space.table_rows()
    reference = Reference(run.space, samples.sampling, samples.data, rows)
    table = run.comparisons
    names = [judge.name for judge in run.campaign.judges if judge.name in table.judges]
    evidence = [_evidence(run, table, name, samples) for name in names]
    method = run.campaign.fit.methods[0]
    written = [run.folder / AUDIT]
    for part in evidence:
        if part.powers is not None:
            written.append(run.belief_folder(part.judge, method) / POWERS)
            belief_power.write_powers(part.powers, run.space, written[-1])
    show = partial(progress.stage, "audit", "distances and tests")
    cards, seed = run.people_cards, run.campaign.seed
    people = None if cards is None else PeopleEvidence(table, cards)
    numbers = audit_run(evidence, reference, seed, show, people=people)
    numbers.save(written[0])
    run.manifest.record("audit", _read_by_audit(run) | _shown_by_audit(run), written)


def _read_by_audit(result: Run) -> dict[str, str]:
    """Return digests of all that an audit depends on and that may change between resumes."""
    judges = [judge.name for judge in result.campaign.judges]
    settings = [judges, result.campaign.fit.model_dump(mode="json")]
    beliefs = {
        f"belief {judge} {method}": digest_of(
            {name: digest_of_file(result.belief_folder(judge, method) / name) for name in BELIEF}
        )
        for judge in judges
        for method in result.campaign.fit.methods
    }
    cards = result.folder / PEOPLE
    people = {"people": digest_of_file(cards)} if cards.is_file() else {}
    return {"settings": digest_of(settings), "tables": result.tables_digest, **people, **beliefs}


def _shown_by_audit(result: Run) -> dict[str, str]:
    """Return what no number of an audit depends on, but what another audit would show."""
    space = digest_of(result.space.model_dump(mode="json"))
    return {"space": space, "versions": digest_of(installed_versions())}


def is_stale(run: Run, *, exactly: bool = False) -> bool:
    """Return whether the audit on disk was changed or made from other files than the present.

    Args:
        run: the run.
        exactly: whether the words of its feature space and the packages' versions count too, and an
            audit of which nothing was recorded is stale.
    """
    entry = run.manifest.entry("audit")
    if entry is None:
        return exactly
    display = _shown_by_audit(run)
    before = entry.read if exactly else entry.read | display
    return before != _read_by_audit(run) | display or bool(run.manifest.changed("audit"))


def compare_runs(runs: Sequence[Run], progress: Progress) -> JudgeComparison:
    """Compare the judges of one or several runs; see `llm_elicit.audit.judge_comparison`.

    A judge is called by its name, or `run/judge` if two runs have judges of that name.

    Raises:
        InputError: feature spaces that differ, fewer than two judges, or a belief that has no
            draws.
    """
    spaces = [run.space for run in runs]
    for run, space in zip(runs, spaces, strict=True):
        if space.features != spaces[0].features:
            raise InputError(
                f"compare: {run.folder} asks about {space.name} and {runs[0].folder} about "
                f"{spaces[0].name}; judges are compared over the same features and ranges"
            )
    names = [judge.name for run in runs for judge in run.campaign.judges]
    sides = []
    for run in runs:
        table, beliefs, verdicts = run.comparisons, run.beliefs, _verdicts(run, progress)
        reference = Reference(run.space, _points_of_sampling(run), _data(run))
        for judge in run.campaign.judges:
            name = judge.name
            full = name if names.count(name) == 1 else f"{run.campaign.name}/{name}"
            belief = beliefs.get(name)
            verdict = verdicts.get(name, "no answers")
            sides.append(JudgeBelief(full, verdict, table.choices(name), belief, reference))
    seed = min((run.campaign.seed for run in runs), default=0)
    return compare_judges(sides, seed, partial(progress.stage, "compare"))


def _verdicts(run: Run, progress: Progress) -> dict[str, str]:
    """Return the verdicts on a run's judges by name; the audit is made if it is not up to date."""
    if not ((run.folder / AUDIT).is_file() and not is_stale(run)):
        make(run, progress, "compare")
    return {judge.name: judge.verdict for judge in run.audit.judges}


def _points_of_sampling(run: Run) -> Floats:
    rng = np.random.default_rng([run.campaign.seed, 0xA0D17])
    return run.space.sample(run.campaign.fit.samples, rng)


def _data(run: Run) -> Floats | None:
    return run.space.table_points() if run.space.table else None


def read_samples(result: Run) -> report_package.Samples:
    """Read points of the data, of λ and of every judge's belief."""
    space, method = result.space, result.campaign.fit.methods[0]
    folders = {
        judge.name: result.belief_folder(judge.name, method) for judge in result.campaign.judges
    }

    def read(read_folder: Callable[[Path], T | None]) -> dict[str, T]:
        values = {name: read_folder(folder) for name, folder in folders.items()}
        return {name: value for name, value in values.items() if value is not None}

    return report_package.Samples(
        space=space,
        sampling=_points_of_sampling(result),
        data=_data(result),
        beliefs=read(lambda folder: _read_points(folder, space)),
        bands=read(_read_bands),
        draws=read(lambda folder: summaries.read_draws(folder / DRAWS)),
        at_powers=read(lambda folder: belief_power.read_powers(folder / POWERS)),
    )


def _read_points(folder: Path, space: FeatureSpace) -> Floats | None:
    """Read a belief's samples; None if it was not fitted."""
    path = folder / SAMPLES
    if not path.is_file():
        return None
    table = read_parquet(path, space.names)
    try:
        return space.points_of(table)
    except (InputError, ValueError, TypeError) as error:
        raise InputError(
            f"{path}: not all of its rows are points ({error}); run the fit again"
        ) from None


def _read_bands(folder: Path) -> summaries.BeliefBands | None:
    """Read a belief's bands; None if its method has none."""
    path = folder / BANDS
    if not path.is_file():
        return None
    return read_json(path, summaries.BeliefBands.model_validate_json)


def _read_power(folder: Path) -> density.Power | None:
    """Read the power that a judge's direct answers imply; None without such answers."""
    path = folder / POWER
    if not path.is_file():
        return None
    return read_json(path, lambda text: belief_power.power_of(json.loads(text)))


def _evidence(
    result: Run, comparisons: Comparisons, judge: str, samples: report_package.Samples
) -> JudgeEvidence:
    """Gather what the audit of one judge is based on.

    Args:
        result: the run.
        comparisons: its judgments.
        judge: the judge's name.
        samples: the points of the beliefs by the first method.
    """
    seed, space = result.campaign.seed, result.space
    triads = consistency.find_triads(comparisons, judge)
    direct = DirectEvidence.read(result.direct, judge, space, seed)
    schedule = schedule_of(judge, result.campaign)
    evidence = JudgeEvidence(judge, comparisons, triads=triads, direct=direct, schedule=schedule)
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
        draws=samples.draws.get(judge),
        levels=data_levels(belief, space, points),
        utility=utility_of(belief, space, samples.data, seed),
        powers=belief_power.at_powers(belief, space, points, samples.data, seed, pinned)
        if belief.has_noise_levels
        else None,
        triad_predictions=consistency.predict_triads(belief, triads, seed),
        direct=direct.with_noise_levels(belief, space, points, seed)
        if direct is not None and belief.has_noise_levels
        else direct,
    )
