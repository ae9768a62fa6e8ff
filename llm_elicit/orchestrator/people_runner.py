"""Wait for people: the part of a run that asks a judge of the backend `human`."""

from __future__ import annotations

import asyncio
import contextlib
import time

from llm_elicit.config.judges import Judge
from llm_elicit.errors import ElicitError, JudgeError
from llm_elicit.orchestrator.journal import JournalError, JournalLocation, Totals, reading, totals
from llm_elicit.orchestrator.open_run import in_thread
from llm_elicit.orchestrator.progress import Tally
from llm_elicit.orchestrator.request_sender import RunContext

_TICK = 1.0
"""Seconds between two readings of the journal."""


class PeopleRunner:
    """Reports how far people are, until all their questions are settled or the run stops.

    It sends nothing: people answer at the pages of a service (`llm_elicit.orchestrator.people`),
    which may be another process.
    """

    def __init__(self, judge: Judge, location: JournalLocation, context: RunContext) -> None:
        self._judge = judge
        self._location = location
        self._context = context
        self._before = 0
        self.tally = Tally()

    def begin(self, so_far: Totals, models: object = ()) -> None:
        """Add the counts of earlier runs; people are no models."""
        del models
        self._before = so_far.done
        self._count(so_far)

    async def run(self) -> ElicitError | None:
        """Wait for the answers; return the error that ended the wait early, if any."""
        context, tally = self._context, self.tally
        tally.began = time.monotonic()
        if tally.done < tally.total:
            experts: tuple[str, ...] = getattr(self._judge, "experts", ())
            context.progress.note(
                self._judge.name,
                f"{', '.join(experts)}: answer at the pages of llm-elicit serve; "
                f"waiting for {tally.total - tally.done:,} answers",
            )
        while True:
            context.progress.tally(self._judge.name, tally)
            left = context.deadline - context.clock()
            if tally.done + tally.failed >= tally.total or context.stopping.is_set():
                return None
            if left <= 0.0:
                return JudgeError(
                    f"judge {self._judge.name!r}: limits.deadline is over; its answers so far are "
                    "kept: run again to go on"
                )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(context.stopping.wait(), min(left, _TICK))
            try:
                self._count(await in_thread(self._totals))
            except JournalError as error:
                if not error.passes:
                    return error

    def _totals(self) -> Totals:
        with reading(self._location) as db:
            return totals(db, self._judge.name)

    def _count(self, now: Totals) -> None:
        tally = self.tally
        tally.total, tally.done, tally.failed = now.total, now.done, now.quarantined
        tally.answered = now.done - self._before
