"""The stage that reports: a page, its figures and its tables."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from llm_elicit._util.packages import LazyModule, installed_versions
from llm_elicit.orchestrator import Progress, Silent
from llm_elicit.orchestrator.log import span
from llm_elicit.pipeline.audit import audit_is_current, read_samples, write_audit
from llm_elicit.pipeline.file_checks import check_files, warn_of_gaps
from llm_elicit.pipeline.fit import refit_changed
from llm_elicit.pipeline.manifest import digest_of_file
from llm_elicit.pipeline.run_folder import AUDIT, Run
from llm_elicit.questions import Template, render

if TYPE_CHECKING:
    from llm_elicit import report as report_package
else:
    report_package = LazyModule("llm_elicit.report")

_SILENT = Silent()


@span("report")
def report(result: Run, progress: Progress = _SILENT) -> None:
    """Write report.html, its figures and its tables."""
    check_files(result, "report", progress)
    refit_changed(result, "report", progress)
    if not audit_is_current(result):
        progress.note(result.campaign.name, f"report: {AUDIT} or one of its inputs was changed; "
                      "it is made again")  # fmt: skip
        write_audit(result, progress)
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
    warn_of_gaps(result, "report", progress)
    progress.stage("report", "figures", 0, 1)
    page = report_package.write_report(study, result.folder)
    report_package.write_tables(study.audit, result.folder / "tables")
    result.manifest.record("report", {AUDIT: digest_of_file(result.folder / AUDIT)}, [page])
    progress.stage("report", "figures", 1, 1)


def _prompts(result: Run) -> dict[str, str]:
    """Return the text of every question of the plan, by its hash."""
    template = Template.load(result.campaign.design.template)
    prompts = (render(result.space, *result.plan.shown(query), template) for query in result.plan)
    return {prompt.hash: prompt.text for prompt in prompts}
