"""Before a later stage: is the run the one that was begun, and are its files as they were written?

What can be made again is, with one line that says so; what cannot is refused with one.
"""

from __future__ import annotations

from llm_elicit.errors import InputError
from llm_elicit.orchestrator import JOURNAL, Progress
from llm_elicit.pipeline.ask import write_tables
from llm_elicit.pipeline.run_folder import PLAN, Run


def check_files(result: Run, stage: str, progress: Progress) -> None:
    """Refuse another campaign's run; make the pairs and the tables of answers again if need be.

    Args:
        result: the run.
        stage: what is about to begin, for messages.
        progress: told what was made again.

    Raises:
        InputError: the campaign, its space or a template was changed, or a table was and there is
            no journal to make it from, or to read the pairs of later rounds from.
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
    """Say, before a later stage begins, that it rests on a part of the answers."""
    asked = result.questions
    for judge, gap in result.missing.items():
        of_all = f"{gap:,} of {asked[judge]:,} questions have no answer"
        progress.note(judge, f"{stage}: {of_all}; the result rests on the others")
