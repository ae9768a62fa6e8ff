"""Checks before a later stage: the campaign is the run's own, and its files are unchanged.

A file that can be made again is, with a note; one that cannot is an error.
"""

from __future__ import annotations

from llm_elicit.errors import InputError
from llm_elicit.orchestrator import JOURNAL, Progress
from llm_elicit.pipeline.ask import write_tables
from llm_elicit.pipeline.run_folder import PLAN, Run


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
