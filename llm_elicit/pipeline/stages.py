"""The stages of a run, in order.

A run lives in a folder (`runs/<campaign>`). Every stage reads what the stage before wrote and can
be run alone, again, or in another process. Running a campaign again resumes it: answered questions
are not asked twice, and beliefs, audit and report are computed again only if their inputs or the
version changed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from llm_elicit._util import files
from llm_elicit._util.settings import read_yaml, to_yaml
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.estimates import example_prompts
from llm_elicit.orchestrator.journal.connection import FILE as JOURNAL
from llm_elicit.orchestrator.progress import SILENT, Progress, span
from llm_elicit.pipeline.ask import ask, ask_in_batches, export, write_tables
from llm_elicit.pipeline.manifest import Manifest, digest_of_file, write_atomically
from llm_elicit.pipeline.run_folder import (
    AUDIT,
    CAMPAIGN,
    COMPARISONS,
    INPUTS,
    PLAN,
    Run,
    find,
    open_runs,
)

__all__ = [
    "ask", "ask_in_batches", "audit", "compare", "compare_repeats", "export", "fit", "make",
    "panel", "plan", "plan_grid", "plan_run", "report",
]  # fmt: skip

if TYPE_CHECKING:
    from llm_elicit.audit.judge_comparison import JudgeComparison
    from llm_elicit.audit.panel import Panel
    from llm_elicit.audit.repeats import RepeatComparison


BEFORE: dict[str, tuple[str, ...]] = {"fit": (), "audit": ("fit",), "report": ("fit", "audit")}
"""The stages after asking, in order, each with those whose files it reads."""


class _Stage(NamedTuple):
    """The inputs of a stage, and the function that writes its files.

    Attributes:
        reads: returns digests of the inputs, which the manifest stores with those of the files
            written.
        make: writes the files; its last argument is the stage that the user asked for.
        ignoring: inputs whose change matters only if the user asked for this stage itself.
    """

    reads: Callable[[Run], dict[str, dict[str, str]]]
    make: Callable[[Run, Progress, str], None]
    ignoring: Collection[str] = ()


def _stage(name: str) -> _Stage:
    from llm_elicit.pipeline import fit, results  # these import PyTorch, which asking does not need

    return {
        "fit": _Stage(fit.reads, fit.make),
        "audit": _Stage(results.audit_reads, results.make_audit, results.SHOWN),
        "report": _Stage(results.report_reads, results.make_report),
    }[name]


def make(run: Run, goal: str, progress: Progress = SILENT, *, force: bool = True) -> None:
    """Make the files of a stage, after updating the stale files that it reads.

    Args:
        run: the run.
        goal: the stage.
        progress: receives every change.
        force: whether to make the files even if they are up to date; beliefs that are up to date
            are never fitted again.
    """
    with span(goal):
        check_files(run, goal, progress)
        _update(run, BEFORE[goal], goal, progress)
        warn_of_gaps(run, goal, progress)
        stage = _stage(goal)
        if force or run.manifest.stale(stage.reads(run), unknown=True):
            stage.make(run, progress, goal)


def _update(run: Run, stages: Sequence[str], goal: str, progress: Progress) -> None:
    """Make the files of those stages again that are stale."""
    for stage in map(_stage, stages):
        if run.manifest.stale(stage.reads(run), ignoring=stage.ignoring):
            stage.make(run, progress, goal)


def fit(run: Run, progress: Progress = SILENT) -> None:
    """Estimate every judge's belief by every method of the campaign, with samples and bands."""
    make(run, "fit", progress)


def audit(run: Run, progress: Progress = SILENT) -> None:
    """Compare each belief with the data and with the sampling density; write audit.json."""
    make(run, "audit", progress)


def report(run: Run, progress: Progress = SILENT) -> None:
    """Write report.html, its figures and its tables."""
    make(run, "report", progress)


def compare(runs: Sequence[Run], progress: Progress = SILENT) -> JudgeComparison:
    """Compare the judges of one or several runs; see `llm_elicit.audit.judge_comparison`.

    A judge is called by its name, or `run/judge` if two runs have judges of that name.

    Raises:
        InputError: feature spaces that differ, fewer than two judges, or a belief that has no
            draws.
    """
    from llm_elicit.pipeline.results import compare_runs

    for run in runs:
        if not isinstance(run, Run):
            raise InputError(
                f"compare: takes runs, such as le.Run.open('simulated'), got {type(run).__name__}"
            )
        if run.space.features != runs[0].space.features:
            raise InputError(
                f"compare: the features or ranges of {run.folder} ({run.space.name}) are not those "
                f"of {runs[0].folder} ({runs[0].space.name}); name runs over the same ones"
            )
    _update_audits(runs, "compare", progress)
    return compare_runs(runs, progress)


def panel(
    runs: Sequence[Run], page: str | Path | None = None, progress: Progress = SILENT
) -> Panel:
    """Return the judges of runs over any feature spaces with what their beliefs are worth.

    Judges of one space are pooled, too; see `llm_elicit.audit.panel`. A judge is called by its
    name, or `run/judge` if two runs of a space have judges of that name.

    Args:
        runs: the runs.
        page: a file for the panel as one HTML page.
        progress: receives every change.

    Raises:
        InputError: no runs, or a file that cannot be written.
    """
    from llm_elicit.pipeline.results import measure_panel, panel_page

    distinct = list({run.folder.resolve(): run for run in runs}.values())
    if not distinct:
        raise InputError("panel: no runs; name one or more, such as le.Run.open('simulated')")
    _update_audits(distinct, "panel", progress)
    if page is None:
        return measure_panel(distinct, progress)[0]
    measured, text = panel_page(distinct, progress)
    with writing(Path(page)):
        Path(page).write_text(text, encoding="utf-8")
    return measured


def _update_audits(runs: Sequence[Run], goal: str, progress: Progress) -> None:
    """Make the audits of runs that are stale or missing."""
    for run in runs:
        check_files(run, goal, progress)
        _update(run, ["fit", "audit"], goal, progress)
        if not (run.folder / AUDIT).is_file():
            _stage("audit").make(run, progress, goal)


def compare_repeats(runs: Sequence[Run], progress: Progress = SILENT) -> RepeatComparison:
    """Compare the runs of a series of repeats, the oldest first; see `llm_elicit.audit.repeats`.

    Raises:
        InputError: a judge has no question in common, or a file was changed.
    """
    from llm_elicit.pipeline.results import compare_series

    for run in runs:
        for stage in ("fit", "audit"):
            make(run, stage, progress, force=False)
    return compare_series(runs)


def check_files(run: Run, stage: str, progress: Progress) -> None:
    """Check a run's identity and files; rebuild changed pairs and tables of answers.

    Args:
        run: the run.
        stage: the next stage, for messages.
        progress: receives a note for every rebuilt file.

    Raises:
        InputError: the campaign, its space or a template was changed; a table was changed and
            there is no journal to make it from; or the pairs of later rounds are lost with it.
    """
    run.check_identity()
    manifest, name = run.manifest, run.campaign.name
    is_stored = run.location.shared or (run.folder / JOURNAL).is_file()
    journal, rounds = is_stored and not run.campaign.imported, run.campaign.design.rounds
    if rounds is not None and not journal and manifest.entry("ask") is not None:
        raise InputError(
            f"{run.folder}: the journal, which holds the pairs of later rounds, is missing; "
            "restore it"
        )
    if run.renamed and journal:
        progress.note(name, f"{stage}: a feature was renamed; {COMPARISONS} and {PLAN} are rebuilt")
        run.write_pairs()
        write_tables(run)
    if not manifest.as_written("pairs", PLAN):
        progress.note(name, f"{stage}: {PLAN} is missing or changed; it is rebuilt")
        run.write_pairs()
    tables = manifest.changed("ask")
    if not tables:
        return
    files = " and ".join(tables)
    if not journal:
        raise InputError(
            f"{run.folder}: {files} was changed since it was written, and there is no journal to "
            "rebuild it from; restore it or the journal, or fit your own table with "
            "llm_elicit.density.fit_belief"
        )
    progress.note(name, f"{stage}: {files} is missing or changed; rebuilt from the journal")
    write_tables(run)


def warn_of_gaps(run: Run, stage: str, progress: Progress) -> None:
    """Add a note for every judge whose questions are not all answered."""
    if not (run.folder / COMPARISONS).is_file():
        return  # the stage itself reports the missing file
    counts = run.questions
    for judge, gap in run.missing.items():
        of_all = f"{gap:,} of {counts[judge]:,} questions have no answer"
        progress.note(judge, f"{stage}: {of_all}; the result uses the other answers")


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
    parent, folder = find(campaign)
    if parent.grid is not None and folder != cells[0].folder:
        folder.mkdir(parents=True, exist_ok=True)
        _write_campaign(parent, folder / CAMPAIGN)
        Manifest(folder).record("plan", {}, [folder / CAMPAIGN])
    return cells


def _write_campaign(campaign: Campaign, path: Path) -> None:
    """Write a run's copy of a campaign; for a grid, only the settings in its file."""
    grid = campaign.grid is not None
    data = campaign.model_dump(mode="json", exclude={"runs"}, exclude_unset=grid)
    data["runs"] = str(campaign.runs)
    write_atomically(path, to_yaml(data))


def plan_run(result: Run) -> Run:
    """Write a campaign and its pairs to the run's folder.

    Raises:
        InputError: the folder holds another campaign's run, or a later stage could not be done.
    """
    check_run(result)
    identity = result.identity
    with writing(result.folder):
        result.folder.mkdir(parents=True, exist_ok=True)
        result.write_pairs()
    recorded = result.recorded_identity if result.started else {}
    result.manifest.record_identity(recorded | identity)
    _write_campaign(result.campaign, result.folder / CAMPAIGN)
    result.manifest.record("plan", {}, [result.folder / CAMPAIGN])
    entry = result.manifest.entry("inputs")
    if entry is None or entry.read not in ({}, _sources(result)):
        copy_inputs(result, renew=True)
    return result


def check_run(run: Run) -> None:
    """Check, before the first question, the files that asking and the later stages read.

    Raises:
        InputError: the folder holds another campaign's run or has lost answers, a question cannot
            be worded, the reference table is not what the feature space says, or no row of it lies
            in the range.
    """
    _ = run.identity  # this reads the templates
    if run.started:
        run.check_identity()
        run.check_journal()
    if run.space.table is not None and not len(run.space.table_points()):
        raise InputError(
            f"{run.space.folder / run.space.table.file}: there is nothing to compare beliefs with: "
            f"{run.space.table_rows()}; widen the ranges of {run.space.name}, or leave out `table:`"
        )
    example_prompts(run.campaign, run.space, run.plan)


def _find_inputs(run: Run) -> tuple[Path, list[Path], list[Path]]:
    """Return the files of a campaign's feature space, of its templates and worked examples."""
    names, facets = run.campaign.design.templates, run.campaign.design.presentations
    templates = [files.find("prompts", name, ".md") for name in names]
    examples = [facets.example_path()] if facets is not None and facets.examples else []
    return files.find("datasets", run.campaign.space, ".yaml"), templates, examples


def _sources(run: Run) -> dict[str, str]:
    """Return digests of the files that a run's copies are made from."""
    space, templates, examples = _find_inputs(run)
    table = [] if run.space.table is None else [run.space.folder / run.space.table.file]
    return {path.name: digest_of_file(path) for path in (space, *templates, *examples, *table)}


def copy_inputs(run: Run, *, renew: bool = False) -> tuple[str, list[str], str | None]:
    """Copy a run's feature space, its table, templates and worked examples into its folder.

    Nothing is done if it has copies.

    Args:
        run: the run.
        renew: whether to copy them anew.

    Returns:
        The paths of the space, of the templates and of worked examples below the run's folder.

    Raises:
        InputError: a copy was changed, or a file cannot be read or written.
    """
    folder, stage = run.folder / INPUTS, "inputs"
    space, templates, examples = _find_inputs(run)
    # `template.md`, and further ones by number.
    names = [f"template{f'-{n}' if n else ''}.md" for n in range(len(templates))]
    names += ["examples.yaml"] * len(examples)
    written = [folder / "space.yaml", *(folder / name for name in names)]
    space_copy, *others = [f"{INPUTS}/{path.name}" for path in written]
    copies = space_copy, others[: len(templates)], others[-1] if examples else None
    if run.manifest.entry(stage) is not None and not renew:
        if changed := run.manifest.changed(stage):
            raise InputError(
                f"{run.folder / changed[0]}: the run's copy of this file was changed; restore it, "
                f"or delete {folder} to copy the files again"
            )
        return copies
    with writing(folder):
        folder.mkdir(exist_ok=True)
        data = read_yaml(space)
        if isinstance(data.get("table"), dict) and "file" in data["table"]:
            table = space.parent / data["table"]["file"]
            data["table"] = {**data["table"], "file": table.name}
            written.append(folder / table.name)
            shutil.copyfile(table, written[-1])
        write_atomically(written[0], to_yaml(data))
        for source, copy in zip((*templates, *examples), written[1:], strict=False):
            shutil.copyfile(source, copy)
    run.manifest.record(stage, _sources(run), written)
    return copies


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say in one line that a folder cannot be written.

    Raises:
        InputError: it cannot.
    """
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be written ({error.strerror or error}); check it"
        ) from None
