"""The stages after the fit: the audit and the report; and the comparison of judges."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from llm_elicit import density
from llm_elicit import report as report_package
from llm_elicit._util.files import read_json, read_parquet
from llm_elicit._util.packages import installed_versions
from llm_elicit.audit import belief_power, consistency, summaries
from llm_elicit.audit.calibration import evaluate_data_levels
from llm_elicit.audit.direct_answers import DirectEvidence
from llm_elicit.audit.judge_comparison import JudgeBelief, JudgeComparison, compare_judges
from llm_elicit.audit.own_density import OwnDensity
from llm_elicit.audit.panel import Panel, PanelJudge, measure_panel_space
from llm_elicit.audit.people import PeopleEvidence
from llm_elicit.audit.record import Audit, JudgeEvidence, audit_run
from llm_elicit.audit.reference import Reference
from llm_elicit.audit.repeats import RepeatComparison, RepeatedJudge, adjust, measure_repeats
from llm_elicit.audit.surface import ShownText
from llm_elicit.audit.utility import evaluate_utility
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.config.campaign import Campaign, axis_word
from llm_elicit.config.judges import controls_among
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal.control import RunEvent
from llm_elicit.orchestrator.progress import SILENT, Progress
from llm_elicit.pipeline import registration, run_folder
from llm_elicit.pipeline.manifest import Entry, digest_of, digest_of_file
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.planning.rounds import schedule_of
from llm_elicit.questions.presentation import word_point
from llm_elicit.spaces.features import FeatureSpace, Floats

T = TypeVar("T")

_PANEL_DRAWS = 2000
"""Draws from λ that the judges of a panel rank rows among."""

SHOWN = ("space", "versions")
"""What no number of an audit depends on, but what another audit would show: the words of the
feature space and the packages' versions."""


def schemas(reference: str) -> dict[str, Any]:
    """Return the JSON Schemas of campaigns, events, audits and comparisons, by name.

    Args:
        reference: the address of the schemas, to which a name is added.
    """
    named: dict[str, Any] = {}
    parts: dict[str, list[tuple[type[BaseModel], JsonSchemaMode]]] = {
        "audit": [(Audit, "serialization"), (JudgeComparison, "serialization")],
        "run": [(Campaign, "validation"), (RunEvent, "serialization")],
    }
    for prefix, models in parts.items():
        template = f"{reference}{prefix}.{{model}}"
        _, document = models_json_schema(models, ref_template=template)
        named |= {f"{prefix}.{name}": schema for name, schema in document["$defs"].items()}
    return named


def make_audit(run: Run, progress: Progress, goal: str, text: ShownText | None = None) -> None:
    """Compare each belief with the data and with the sampling density; write audit.json.

    Points of the beliefs at other powers are written beside them.

    Args:
        run: the run.
        progress: receives every change.
        goal: the stage that is wanted.
        text: how points were shown; by default as the run's templates say.
    """
    if goal == "report":
        changed = f"{run_folder.AUDIT} or one of its inputs was changed"
        progress.note(run.campaign.name, f"report: {changed}; the audit is rebuilt")
    samples, table, cards = read_samples(run), run.comparisons, run.people_cards
    rows = None if samples.data is None else run.space.table_rows()
    reference = Reference(run.space, samples.sampling, samples.data, rows)
    names = [judge.name for judge in run.campaign.judges if judge.name in table.judges]
    text = text or shown_text(run)
    evidence = [_evidence(run, table, name, samples, text) for name in names]
    written = [run.folder / run_folder.AUDIT]
    for part in evidence:
        if part.powers is not None:
            written.append(run.main_belief(part.judge) / run_folder.POWERS)
            belief_power.write_powers(part.powers, run.space, written[-1])
    show = partial(progress.stage, "audit", "tests and distances of each judge")
    people = None if cards is None else PeopleEvidence(table, cards)
    audit_run(evidence, reference, run.campaign.seed, show, people=people).save(written[0])
    run.manifest.record("audit", audit_reads(run)["audit"], written)


def audit_reads(result: Run) -> dict[str, dict[str, str]]:
    """Return digests of all that an audit depends on and that may change between resumes."""
    judges = [judge.name for judge in result.campaign.judges]
    settings = [judges, result.campaign.fit.model_dump(mode="json")]
    read = {}
    for judge, method in product(judges, result.campaign.fit.methods):
        folder = result.belief_folder(judge, method)
        digests = {name: digest_of_file(folder / name) for name in run_folder.BELIEF}
        read[f"belief {judge} {method}"] = digest_of(digests)
    read |= {"settings": digest_of(settings), "tables": result.tables_digest}
    read["people"] = digest_of_file(result.folder / run_folder.PEOPLE)
    read["space"] = digest_of(result.space.model_dump(mode="json"))
    read["versions"] = digest_of(installed_versions())
    return {"audit": read}


def compare_runs(runs: Sequence[Run], progress: Progress) -> JudgeComparison:
    """Compare the judges of runs of one feature space, which have audits."""
    sides, names = [], _unique_names(runs)
    controls = controls_among([judge for run in runs for judge in run.campaign.judges])
    for run in runs:
        table, beliefs = run.comparisons, run.beliefs
        verdicts = {judge.name: judge.verdict for judge in run.audit.judges}
        reference = Reference(run.space, sampling_points(run), data_points(run))
        design, imported = run.campaign.design, run.campaign.imported
        pair_count = None if imported else design.sizes[0] - 3 * design.triads
        for judge in run.campaign.judges:
            name, rows = judge.name, table.answers_of(judge.name)
            columns = rows.reindex(columns=["template", "presentation"]).astype("string").fillna("")
            presented = frozenset(columns.itertuples(index=False, name=None))
            side = JudgeBelief(
                names[run.folder, name],
                verdicts.get(name, "no answers"),
                table.choices(name),
                beliefs.get(name),
                reference,
                judge in controls,
                presented,
                (table, name),
                people=name in run.campaign.people or imported,
                random_pairs=pair_count,
            )
            sides.append(side)
    seed = min((run.campaign.seed for run in runs), default=0)
    return compare_judges(sides, seed, partial(progress.stage, "compare"))


def _unique_names(runs: Sequence[Run]) -> dict[tuple[Path, str], str]:
    """Return the judges' names by folder and name, with that of the run where one repeats."""
    names = [judge.name for run in runs for judge in run.campaign.judges]
    return {
        (run.folder, judge.name): judge.name
        if names.count(judge.name) == 1
        else f"{run.campaign.name}/{judge.name}"
        for run in runs
        for judge in run.campaign.judges
    }


def next_pairs(runs: Sequence[Run], comparison: JudgeComparison) -> pd.DataFrame:
    """Return the pairs that people should get next, as `import_judgments` reads them.

    Args:
        runs: the runs that were compared.
        comparison: the comparison.

    Returns:
        A row per pair, the next first: its number in the model's run, the points, and `winner`,
        which is empty.

    Raises:
        InputError: there is not one judge of people and one other.
    """
    if len(comparison.people) != 1:
        pairs = ", ".join(f"{pair.people} with {pair.model}" for pair in comparison.people)
        raise InputError(
            f"compare: {pairs or 'no people'}; to write people's next pairs, compare one judge of "
            "people with one other"
        )
    (pair,) = comparison.people
    folder = next(key[0] for key, name in _unique_names(runs).items() if name == pair.model)
    run = next(run for run in runs if run.folder == folder)
    numbers, plan = list(pair.next_pairs), run.plan
    sides = [
        run.space.table_of(points[numbers]).add_prefix(f"{side}_")
        for side, points in (("a", plan.a), ("b", plan.b))
    ]
    return pd.concat([pd.DataFrame({"pair": numbers}), *sides], axis=1).assign(winner="")


def compare_series(runs: Sequence[Run]) -> RepeatComparison:
    """Compare the runs of a series, in time, which have audits."""
    audits = [{judge.name: judge for judge in run.audit.judges} for run in runs]
    tables, first, judges = [run.comparisons for run in runs], runs[0].campaign, []
    for name in (judge.name for judge in first.judges):
        repeated = [
            RepeatedJudge(run.campaign.name, table, audit.get(name))
            for run, table, audit in zip(runs, tables, audits, strict=True)
            if name in table.judges
        ]
        if len(repeated) > 1:
            judges.append(measure_repeats(name, repeated, runs[0].space, first.seed))
    names = tuple(run.campaign.name for run in runs)
    return RepeatComparison(runs=names, judges=adjust(judges, first.controls))


def panel_page(runs: Sequence[Run], progress: Progress = SILENT) -> tuple[Panel, str]:
    """Return the panel of runs, which have audits, and its page."""
    panel, samples = measure_panel(runs, progress)
    return panel, report_package.render_panel(panel, samples)


def measure_panel(
    runs: Sequence[Run], progress: Progress
) -> tuple[Panel, list[report_package.Samples]]:
    """Measure the judges of runs, which have audits, by feature space; with points to draw."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        table = run.space.table and run.space.table.sha256
        features = [feature.model_dump(mode="json") for feature in run.space.features]
        groups.setdefault(digest_of([features, table, run.space.given]), []).append(run)
    spaces, samples = [], []
    for done, group in enumerate(groups.values()):
        space, seed = group[0].space, min(run.campaign.seed for run in group)
        progress.stage("panel", space.name, done, len(groups))
        judges = _panel_judges(group)
        rows, sampling = data_points(group[0]), sampling_points(group[0])
        numbers, pools = measure_panel_space(space, rows, sampling[:_PANEL_DRAWS], judges, seed)
        spaces.append(numbers)
        points = {judge.name: judge.points for judge in judges if judge.points is not None} | pools
        beliefs = {
            entry.judge: points[entry.judge] for entry in numbers.entries if entry.judge in points
        }
        samples.append(report_package.Samples(space, sampling, rows, beliefs))
        progress.stage("panel", space.name, done + 1, len(groups))
    return Panel(spaces=tuple(spaces)), samples


def _panel_judges(runs: Sequence[Run]) -> list[PanelJudge]:
    """Return the judges of runs of one feature space, under different names."""
    judges, names = [], _unique_names(runs)
    controls = controls_among([judge for run in runs for judge in run.campaign.judges])
    for run in runs:
        audits, beliefs = {judge.name: judge for judge in run.audit.judges}, run.beliefs
        for judge in run.campaign.judges:
            points = read_points(run.main_belief(judge.name), run.space)
            audit, belief = audits.get(judge.name), beliefs.get(judge.name)
            name = names[run.folder, judge.name]
            judges.append(PanelJudge(name, audit, belief, points, judge in controls))
    return judges


def _evidence(
    result: Run,
    comparisons: Comparisons,
    judge: str,
    samples: report_package.Samples,
    text: ShownText,
) -> JudgeEvidence:
    """Gather what the audit of one judge is based on.

    Args:
        result: the run.
        comparisons: the judgments of the run.
        judge: the judge's name.
        samples: the points of the beliefs by the first method.
        text: how points were shown.
    """
    seed, space = result.campaign.seed, result.space
    triads = consistency.find_triads(comparisons, judge)
    direct = DirectEvidence.from_table(result.direct, judge, space, seed)
    own_density = OwnDensity.read(result.direct, judge, space, seed, result.first_round)
    if direct is not None:
        direct = replace(direct, own_density=own_density)
    evidence = JudgeEvidence(
        judge,
        comparisons,
        triads=triads,
        direct=direct,
        schedule=schedule_of(judge, result.campaign),
        control=judge in result.campaign.controls,
        text=text,
    )
    points = samples.beliefs.get(judge)
    if points is None:
        return evidence
    first, *others = result.campaign.fit.methods
    belief = density.BeliefDensity.load(result.main_belief(judge))
    power, pinned = result.main_belief(judge) / run_folder.POWER, None  # without direct answers
    if power.is_file():
        pinned = read_json(power, lambda text: belief_power.parse_power(json.loads(text)))
    if direct is not None and own_density is not None:
        direct = replace(direct, own_density=own_density.with_belief(belief), power=pinned)
    beliefs: dict[str, Floats] = {first: points}
    diagnostics: dict[str, dict[str, Any]] = {first: belief.diagnostics}
    for method in others:
        folder = result.belief_folder(judge, method)
        if (points_of_method := read_points(folder, space)) is not None:
            beliefs[method] = points_of_method
            diagnostics[method] = density.BeliefDensity.load(folder).diagnostics
    powers = None
    if belief.has_noise_levels:
        powers = belief_power.evaluate_powers(belief, space, points, samples.data, seed, pinned)
    return replace(
        evidence,
        beliefs=beliefs,
        diagnostics=diagnostics,
        powers=powers,
        bands=samples.bands.get(judge),
        draws=samples.draws.get(judge),
        data_levels=evaluate_data_levels(belief, space, points),
        utility_draws=evaluate_utility(belief, space, samples.data, seed),
        triad_predictions=consistency.predict_triads(belief, triads, seed),
    )


def shown_text(result: Run) -> ShownText:
    """Return how the run's points were shown."""
    facets, varied = result.campaign.design.presentations, set()
    if facets is not None:
        varied = {"units"} if facets.units == "varied" else set()
        varied |= {"digits"} if len(facets.digits) > 1 else set()
    words = {  # of features alone, since compiled templates cannot travel to a worker
        item.label: partial(word_point, item.features, item.order)
        for item in result.study.presentations
    }
    return ShownText(words, frozenset(varied))


def report_reads(result: Run) -> dict[str, dict[str, str]]:
    """Return digests of all that a report shows; the audit's are those of the beliefs' files."""
    campaign, manifest = result.campaign.model_dump(mode="json"), result.manifest
    contents = [campaign, result.questions, installed_versions(), manifest.log_odds]
    read = {
        run_folder.AUDIT: digest_of_file(result.folder / run_folder.AUDIT),
        "inputs": digest_of((manifest.entry("audit") or Entry()).read),
        "shown": digest_of(contents),
    }
    return {"report": read | registration.reads(result)}


def make_report(result: Run, progress: Progress, _: str) -> None:
    """Write report.html, its figures and its tables, and record them."""
    content = report_package.Study(
        audit=result.audit,
        campaign=result.campaign,
        comparisons=result.comparisons,
        samples=read_samples(result),
        versions=installed_versions(),
        prompts={prompt.hash: prompt.text for prompt in result.prompts()},
        missing=result.missing,
        questions=result.questions,
        log_odds=result.manifest.log_odds,
        registered=registration.results_of(result, lambda run: compare_runs([run], progress)),
        created=datetime.now(UTC).isoformat(timespec="minutes"),
    )
    progress.stage("report", "figures", 0, 1)
    page = report_package.write_report(content, result.folder)
    figures = sorted((result.folder / "figures").iterdir())
    tables = report_package.write_tables(content.audit, result.folder / "tables")
    result.manifest.record("report", report_reads(result)["report"], [page, *figures, *tables])
    progress.stage("report", "figures", 1, 1)


def write_conditions(runs: Sequence[Run]) -> list[Path]:
    """Write a page for each group of runs that differ only in their condition.

    It is `conditions.html` in the folder of the grid; for several feature spaces or templates,
    `conditions.SPACE.TEMPLATE.html`. Runs without an audit are left out.
    """
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.campaign.given and (run.folder / run_folder.AUDIT).is_file():
            groups.setdefault((run.campaign.space, run.campaign.design.template), []).append(run)
    written = []
    for (space, template), group in groups.items():
        if len(group) < 2:
            continue
        axes = [axis_word(space), axis_word(template)] if len(groups) > 1 else []
        grid = group[0].campaign.part_of or group[0].campaign.name
        path = group[0].folder.parent / grid / ".".join(["conditions", *axes, "html"])
        conditions = []
        for run in group:
            condition = "; ".join(fixed.worded for fixed in run.space.fixed)
            values = "; ".join(fixed.feature.word(fixed.value) for fixed in run.space.fixed)
            link = f"../{run.folder.name}/{run.report_path.name}"
            conditions.append(report_package.Condition(condition, values, run.audit, link))
        written.append(report_package.write_conditions(group[0].space.title, conditions, path))
    return written


def sampling_points(run: Run) -> Floats:
    """Return points of λ."""
    rng = np.random.default_rng([run.campaign.seed, 0xA0D17])
    return run.space.sample(run.campaign.fit.samples, rng)


def data_points(run: Run) -> Floats | None:
    """Return the points of the table, if there is one."""
    return run.space.table_points() if run.space.table else None


def read_samples(result: Run) -> report_package.Samples:
    """Read points of the data, of λ and of every judge's belief."""
    space, judges = result.space, [judge.name for judge in result.campaign.judges]

    def read(read_folder: Callable[[Path], T | None]) -> dict[str, T]:
        values = {name: read_folder(result.main_belief(name)) for name in judges}
        return {name: value for name, value in values.items() if value is not None}

    def read_bands(folder: Path) -> summaries.BeliefBands | None:
        path, parse = folder / run_folder.BANDS, summaries.BeliefBands.model_validate_json
        return read_json(path, parse) if path.is_file() else None  # its method may have none

    return report_package.Samples(
        space=space,
        sampling=sampling_points(result),
        data=data_points(result),
        beliefs=read(lambda folder: read_points(folder, space)),
        bands=read(read_bands),
        draws=read(lambda folder: summaries.read_draws(folder / run_folder.DRAWS)),
        points_by_factor=read(lambda folder: belief_power.read_powers(folder / run_folder.POWERS)),
    )


def read_points(folder: Path, space: FeatureSpace) -> Floats | None:
    """Read a belief's samples; None if it was not fitted."""
    path = folder / run_folder.SAMPLES
    if not path.is_file():
        return None
    table = read_parquet(path, space.names)
    try:
        return space.points_of(table)
    except (InputError, ValueError, TypeError) as error:
        raise InputError(
            f"{path}: not all of its rows are points ({error}); run the fit again"
        ) from None
