"""The stages that compare beliefs with the data (`audit`) and judges (`compare`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from llm_elicit import density
from llm_elicit import report as report_package
from llm_elicit._util.files import read_json
from llm_elicit._util.packages import installed_versions
from llm_elicit.audit import belief_power, consistency
from llm_elicit.audit.calibration import data_levels
from llm_elicit.audit.direct_answers import DirectEvidence
from llm_elicit.audit.judge_comparison import JudgeBelief, JudgeComparison, compare_judges
from llm_elicit.audit.people import PeopleEvidence
from llm_elicit.audit.record import JudgeEvidence, audit_run
from llm_elicit.audit.reference import Reference
from llm_elicit.audit.utility import utility_of
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.orchestrator.progress import Progress
from llm_elicit.pipeline.manifest import digest_of, digest_of_file
from llm_elicit.pipeline.run_folder import (
    AUDIT,
    BELIEF,
    PEOPLE,
    POWER,
    POWERS,
    Run,
)  # fmt: skip
from llm_elicit.pipeline.samples import data_points, points_of_sampling, read_points, read_samples
from llm_elicit.planning.rounds import schedule_of
from llm_elicit.spaces.features import Floats

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
    run.manifest.record("audit", reads(run, exactly=True)["audit"], written)


def reads(result: Run, *, exactly: bool = False) -> dict[str, dict[str, str]]:
    """Return digests of all that an audit depends on and that may change between resumes.

    Args:
        result: the run.
        exactly: whether to add those of what no number depends on, but what another audit would
            show: the words of the feature space and the packages' versions.
    """
    judges = [judge.name for judge in result.campaign.judges]
    settings = [judges, result.campaign.fit.model_dump(mode="json")]
    read = {
        f"belief {judge} {method}": digest_of(
            {name: digest_of_file(result.belief_folder(judge, method) / name) for name in BELIEF}
        )
        for judge in judges
        for method in result.campaign.fit.methods
    }
    read |= {"settings": digest_of(settings), "tables": result.tables_digest}
    read["people"] = digest_of_file(result.folder / PEOPLE)
    if exactly:
        read["space"] = digest_of(result.space.model_dump(mode="json"))
        read["versions"] = digest_of(installed_versions())
    return {"audit": read}


def compare_runs(runs: Sequence[Run], progress: Progress) -> JudgeComparison:
    """Compare the judges of runs of one feature space, which have audits."""
    names = [judge.name for run in runs for judge in run.campaign.judges]
    sides = []
    for run in runs:
        table, beliefs = run.comparisons, run.beliefs
        verdicts = {judge.name: judge.verdict for judge in run.audit.judges}
        reference = Reference(run.space, points_of_sampling(run), data_points(run))
        for judge in run.campaign.judges:
            name = judge.name
            full = name if names.count(name) == 1 else f"{run.campaign.name}/{name}"
            belief = beliefs.get(name)
            verdict = verdicts.get(name, "no answers")
            sides.append(JudgeBelief(full, verdict, table.choices(name), belief, reference))
    seed = min((run.campaign.seed for run in runs), default=0)
    return compare_judges(sides, seed, partial(progress.stage, "compare"))


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
        drawn = read_points(folder, space)
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
