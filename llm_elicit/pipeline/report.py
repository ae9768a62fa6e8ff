"""The stage that reports: a page, its figures and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from llm_elicit import report as report_package
from llm_elicit._util.packages import installed_versions
from llm_elicit.config.campaign import axis_word
from llm_elicit.orchestrator.progress import Progress
from llm_elicit.pipeline.manifest import digest_of, digest_of_file
from llm_elicit.pipeline.run_folder import AUDIT, Run
from llm_elicit.pipeline.samples import read_samples
from llm_elicit.questions import Template, render


def reads(result: Run, *, exactly: bool = False) -> dict[str, dict[str, str]]:
    """Return digests of all that a report shows; the audit's are those of the beliefs' files."""
    del exactly
    campaign = result.campaign.model_dump(mode="json")
    contents = [campaign, result.questions, installed_versions()]
    audited = result.manifest.entry("audit")
    read = {
        AUDIT: digest_of_file(result.folder / AUDIT),
        "inputs": digest_of({} if audited is None else audited.read),
        "shown": digest_of(contents),
    }
    return {"report": read}


def make(result: Run, progress: Progress, goal: str) -> None:
    """Write report.html, its figures and its tables, and record them."""
    del goal
    template = Template.load(result.campaign.design.template)
    prompts = (render(result.space, *result.plan.shown(query), template) for query in result.plan)
    study = report_package.Study(
        audit=result.audit,
        campaign=result.campaign,
        comparisons=result.comparisons,
        samples=read_samples(result),
        versions=installed_versions(),
        prompts={prompt.hash: prompt.text for prompt in prompts},
        missing=result.missing,
        questions=result.questions,
        created=datetime.now(UTC).isoformat(timespec="minutes"),
    )
    progress.stage("report", "figures", 0, 1)
    page = report_package.write_report(study, result.folder)
    figures = sorted((result.folder / "figures").iterdir())
    tables = report_package.write_tables(study.audit, result.folder / "tables")
    result.manifest.record("report", reads(result)["report"], [page, *figures, *tables])
    progress.stage("report", "figures", 1, 1)


def write_conditions(runs: Sequence[Run]) -> list[Path]:
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
                "; ".join(fixed.worded for fixed in run.space.fixed),
                "; ".join(fixed.feature.word(fixed.value) for fixed in run.space.fixed),
                run.audit,
                f"../{run.folder.name}/{run.report_path.name}",
            )
            for run in group
        ]
        written.append(report_package.write_conditions(group[0].space.title, conditions, path))
    return written
