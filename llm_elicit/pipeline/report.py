"""The stage that reports: a page, its figures and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from llm_elicit._util.packages import LazyModule, installed_versions
from llm_elicit.config.campaign import axis_word
from llm_elicit.orchestrator.log import span
from llm_elicit.orchestrator.progress import Progress, Silent
from llm_elicit.pipeline.audit import audit_is_current, read_samples, write_audit
from llm_elicit.pipeline.fit import refit_changed
from llm_elicit.pipeline.manifest import digest_of, digest_of_file
from llm_elicit.pipeline.run_folder import AUDIT, Run
from llm_elicit.pipeline.stage_inputs import check_files, warn_of_gaps
from llm_elicit.questions import Template, render

if TYPE_CHECKING:
    from llm_elicit import report as report_package
else:
    report_package = LazyModule("llm_elicit.report")

_SILENT = Silent()


@span("report")
def report(result: Run, progress: Progress = _SILENT, *, anew: bool = True) -> None:
    """Write report.html, its figures and its tables.

    Args:
        result: the run.
        progress: receives every change.
        anew: whether to write them also where they were written from the same files before, by the
            same versions.
    """
    check_files(result, "report", progress)
    refit_changed(result, "report", progress)
    if not audit_is_current(result):
        progress.note(result.campaign.name, f"report: {AUDIT} or one of its inputs was changed; "
                      "it is made again")  # fmt: skip
        write_audit(result, progress)
    if anew or not _is_current(result):
        _write(result, progress)
    warn_of_gaps(result, "report", progress)


def _is_current(result: Run) -> bool:
    """Return whether the page and its files are unchanged and made from the present files."""
    entry = result.manifest.entry("report")
    written = entry is not None and entry.read == _read_by_report(result)
    return written and not result.manifest.changed("report")


def _read_by_report(result: Run) -> dict[str, str]:
    """Return digests of all that a report shows; the audit's are those of the beliefs' files."""
    campaign = result.campaign.model_dump(mode="json")
    shown = [campaign, result.questions, installed_versions()]
    audited = result.manifest.entry("audit")
    return {
        AUDIT: digest_of_file(result.folder / AUDIT),
        "inputs": digest_of({} if audited is None else audited.read),
        "shown": digest_of(shown),
    }


def _write(result: Run, progress: Progress) -> None:
    """Write the page, its figures and its tables, and record them."""
    study = report_package.Study(
        audit=result.audit,
        campaign=result.campaign,
        comparisons=result.comparisons,
        samples=read_samples(result),
        versions=installed_versions(),
        prompts=_prompts(result),
        missing=result.missing,
        questions=result.questions,
        created=datetime.now(UTC).isoformat(timespec="minutes"),
    )
    progress.stage("report", "figures", 0, 1)
    page = report_package.write_report(study, result.folder)
    figures = sorted((result.folder / "figures").iterdir())
    tables = report_package.write_tables(study.audit, result.folder / "tables")
    result.manifest.record("report", _read_by_report(result), [page, *figures, *tables])
    progress.stage("report", "figures", 1, 1)


def report_conditions(runs: Sequence[Run]) -> list[Path]:
    """Write a page for each group of runs that differ only in their condition.

    It is `conditions.html` in the folder of the grid; for several feature spaces or templates,
    `conditions.SPACE.TEMPLATE.html`. Runs without an audit are left out.
    """
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.campaign.given and (run.folder / AUDIT).is_file():
            groups.setdefault((run.campaign.space, run.campaign.design.template), []).append(run)
    written = []
    for (space, template), group in groups.items():
        if len(group) < 2:
            continue
        axes = [axis_word(space), axis_word(template)] if len(groups) > 1 else []
        grid = group[0].campaign.part_of or group[0].campaign.name
        path = group[0].folder.parent / grid / ".".join(["conditions", *axes, "html"])
        conditions = [
            report_package.Condition(
                "; ".join(one.worded for one in run.space.fixed),
                "; ".join(one.feature.word(one.value) for one in run.space.fixed),
                run.audit,
                f"../{run.folder.name}/{run.report_path.name}",
            )
            for run in group
        ]
        written.append(report_package.write_conditions(group[0].space.title, conditions, path))
    return written


def _prompts(result: Run) -> dict[str, str]:
    """Return the text of every question of the plan, by its hash."""
    template = Template.load(result.campaign.design.template)
    prompts = (render(result.space, *result.plan.shown(query), template) for query in result.plan)
    return {prompt.hash: prompt.text for prompt in prompts}
