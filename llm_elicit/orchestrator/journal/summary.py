"""What a list of runs shows of a journal, read from a file at one glance."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from llm_elicit.orchestrator.journal.changes import Totals
from llm_elicit.orchestrator.journal.control import (
    CONTROL,
    Control,
    RunEvent,
    control_of,
    event_of,
    latest_events,
    latest_of,
    read_control,
)
from llm_elicit.orchestrator.journal.interface import FILE, JournalLocation, in_sqlite
from llm_elicit.orchestrator.journal.reading import TOTALS, is_begun, reading, totals, totals_of

_COUNTED = ("failed", "throttled")
"""The kinds of events that say how many requests failed."""


@dataclass(frozen=True)
class JournalSummary:
    """What a list of runs shows of a journal.

    Attributes:
        control: what the run should do and does; None if nobody has recorded it.
        totals: the counts of the judges that were asked, by name.
        counted: the latest events that say how many requests of a judge failed.
    """

    control: Control | None
    totals: dict[str, Totals]
    counted: list[RunEvent]


def read_summary(location: JournalLocation, judges: Sequence[str]) -> JournalSummary:
    """Return the summary of a journal; an empty one without a journal.

    Args:
        location: the run's journal.
        judges: the names of its judges.

    Raises:
        JournalError: the journal cannot be read.
    """
    if not location.shared:
        if not (location.folder / FILE).is_file():
            return JournalSummary(None, {}, [])
        try:
            return _of_file(location)
        except sqlite3.Error as error:
            if "no such" not in str(error):  # else it has no tables yet
                raise location.explained(error) from None
    begun = {}
    if is_begun(location):
        with reading(location) as db:
            begun = {judge: totals(db, judge) for judge in judges}
    return JournalSummary(read_control(location), begun, latest_events(location, _COUNTED))


def _of_file(location: JournalLocation) -> JournalSummary:
    control, sums, latest = _statements()
    with location.glance() as db:
        now = [control_of(dict(row)) for row in db.execute(control)]
        return JournalSummary(
            now[0] if now else None,
            {row["judge"]: totals_of(dict(row)) for row in db.execute(sums)},
            [event_of(dict(row)) for row in db.execute(latest)],
        )


@cache
def _statements() -> list[str]:
    return [in_sqlite(query) for query in (CONTROL, TOTALS, latest_of(_COUNTED))]
