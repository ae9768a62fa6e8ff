"""Ask a campaign's questions: all models at the same time, and wait for people."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from llm_elicit.backends import open_backend
from llm_elicit.backends.providers import check_settings
from llm_elicit.comparisons.table import VersionLog
from llm_elicit.config.judges import Judge
from llm_elicit.errors import ElicitError, Refusals
from llm_elicit.orchestrator.budget import Amount, Budget, UsageCheck, check_cap, price_of
from llm_elicit.orchestrator.cache import CacheUse
from llm_elicit.orchestrator.journal import questions as sql
from llm_elicit.orchestrator.journal.connection import JournalError
from llm_elicit.orchestrator.journal.schema import Totals
from llm_elicit.orchestrator.judge_runner import JudgeRunner
from llm_elicit.orchestrator.log_odds import LogOdds
from llm_elicit.orchestrator.open_run import OpenRun, Study, in_thread, open_run
from llm_elicit.orchestrator.progress import (
    LoggingProgress,
    Progress,
    Silent,
    Tally,
    log_event,
    log_tally,
    span,
)
from llm_elicit.orchestrator.rate_sharing import RateLimiters, RunLimiters, sharing_limits
from llm_elicit.orchestrator.request_builder import RequestBuilder
from llm_elicit.orchestrator.retries import RetryPolicy
from llm_elicit.orchestrator.reuse import RunContext
from llm_elicit.orchestrator.writer import Writer

_TICK = 1.0
"""Seconds between two readings of the journal."""


class PeopleRunner:
    """Reports the progress of experts until all their questions are settled or the run stops.

    It sends nothing: people answer at the pages of a service (`llm_elicit.orchestrator.people`),
    which may be another process.
    """

    def __init__(self, judge: Judge, context: RunContext, so_far: Totals) -> None:
        self._judge = judge
        self._context = context
        self._before = so_far.done
        self.tally = Tally()
        self._count(so_far)

    async def run(self) -> ElicitError | None:
        """Wait for the answers; return the error that ended the wait early, if any."""
        context, tally = self._context, self.tally
        tally.began = time.monotonic()
        if tally.done < tally.total:
            experts: tuple[str, ...] = getattr(self._judge, "experts", ())
            context.progress.note(
                self._judge.name,
                f"waiting for {tally.total - tally.done:,} answers by {', '.join(experts)} on "
                "the pages of llm-elicit serve",
            )
        while True:
            context.progress.tally(self._judge.name, tally)
            if tally.done + tally.failed >= tally.total or context.stopping.is_set():
                return None
            if deadline_error := context.deadline_error(self._judge.name):
                return deadline_error
            await context.wait_for_stop(_TICK)
            try:
                self._count(await context.writer.read(sql.totals, self._judge.name))
            except JournalError as error:
                if not error.is_transient:
                    return error

    def _count(self, totals: Totals) -> None:
        tally = self.tally
        tally.total, tally.done, tally.failed = totals.total, totals.done, totals.quarantined
        tally.answered = totals.done - self._before


T = TypeVar("T")


@dataclass(frozen=True)
class JudgeSummary:
    """The result of asking one judge.

    Attributes:
        tally: its counts.
        stopped: the error that stopped the judge early; None if there was none.
    """

    tally: Tally
    stopped: ElicitError | None

    @property
    def complete(self) -> bool:
        """Whether every question of the judge is answered."""
        return self.tally.done == self.tally.total


@dataclass(frozen=True)
class AskSummary:
    """The result of asking all judges.

    Attributes:
        judges: a summary for each judge, in the campaign's order.
        lost_in_flight: requests that were in flight when an earlier run was killed.
        interrupted: whether the user stopped the run.
        spent: USD spent on this run folder, earlier runs included.
    """

    judges: dict[str, JudgeSummary]
    lost_in_flight: int
    interrupted: bool
    spent: float

    @property
    def complete(self) -> bool:
        """Whether every question is answered."""
        return all(judge.complete for judge in self.judges.values())

    @property
    def problems(self) -> list[ElicitError]:
        """The errors that stopped judges."""
        return [judge.stopped for judge in self.judges.values() if judge.stopped is not None]


async def ask(
    study: Study,
    progress: Progress | None = None,
    retry_policy: RetryPolicy | None = None,
    reuse: CacheUse = "reuse",
    *,
    stopping: asyncio.Event | None = None,
    ceiling: Budget | None = None,
    limiters: RateLimiters | None = None,
) -> AskSummary:
    """Ask every judge every question of the plan that is not answered yet.

    **Guaranteed:** an answer is on the disk before it is counted, and a question whose answer is
    on the disk is not asked again, however the process ended. **Not guaranteed:** requests that
    were in flight when the process was killed are sent again. They may have been answered, so
    caps count their worst case.

    If a judge cannot continue (bad key, no credit, no such model, server down), it stops and the
    others continue. Cancelling the task once, as `asyncio.run` does on Ctrl-C, stops sending,
    waits for the answers in flight and returns with `interrupted` set; cancelling it twice drops
    them.

    Args:
        study: the judges and limits, the feature space that words the points, the questions, and
            the run's folder; the cache of answers is in its parent.
        progress: called with every change of the counts.
        retry_policy: pauses and ceilings of retries.
        reuse: how to use the cache of answers, see `CacheUse`.
        stopping: once it is set, nothing more is sent; the answers in flight are waited for, and
            the summary says `interrupted`.
        ceiling: the budget of several runs together.
        limiters: the rate limiters that several runs share; its own by default.

    Raises:
        InputError: a key is missing, the folder is in use or holds another campaign's run, or a
            cap cannot be held. Nothing has been sent.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from llm_elicit.config.campaign import Campaign
        >>> from llm_elicit.planning.pairs import make_plan
        >>> campaign = Campaign.model_validate({
        ...     "name": "try", "space": "penguins", "design": {"pairs": 5},
        ...     "judges": [{"name": "expert", "backend": "simulated"}]})
        >>> space = campaign.load_space()
        >>> plan = make_plan(space, campaign.design, campaign.seed)
        >>> with tempfile.TemporaryDirectory() as runs:
        ...     study = Study(campaign, space, plan, Path(runs) / "try")
        ...     summary = asyncio.run(ask(study))
        >>> summary.complete, summary.judges["expert"].tally.done
        (True, 10)
    """
    logged = LoggingProgress(progress or Silent())
    retry_policy = retry_policy or RetryPolicy()
    builders = await in_thread(partial(builders_of, study, logged, study.probing))
    limits = study.campaign.limits
    async with open_run(study, logged, lease=retry_policy.lease, reuse=reuse) as run:
        spent = await in_thread(partial(run.journal.read, sql.spent))
        versions = await in_thread(partial(run.journal.read, sql.versions_answered))
        context = RunContext(
            writer=Writer(run.journal, run.cache.flush), cache=run.cache,
            budget=Budget(limits, Amount(*spent), ceiling),
            progress=logged, retry_policy=retry_policy, stopping=stopping or asyncio.Event(),
            limiters=RunLimiters(limiters), unusable=limits.unusable,
            require=study.campaign.require,
            versions=VersionLog(study.campaign.aliases, versions),
            deadline=time.monotonic() + (limits.deadline or math.inf),
        )  # fmt: skip
        summary = await _ask_all(study, builders, run, context)
        log_end(summary)
    return summary


async def _ask_all(
    study: Study, builders: dict[str, RequestBuilder], run: OpenRun, context: RunContext
) -> AskSummary:
    """Ask all judges within an open run, at the same time.

    Cancelled once, it stops sending and waits for the requests in flight; cancelled again, it drops
    them. The first cancellation is not raised again here.
    """
    campaign = study.campaign
    read = context.writer.read
    async with context.writer:
        runners: dict[str, JudgeRunner | PeopleRunner] = {}
        for judge in study.probing or campaign.judges:
            name = judge.name
            totals = await read(sql.totals, name)
            if name in builders:
                log_odds = LogOdds.of(judge, await read(sql.choices_of, name))
                runners[name] = JudgeRunner(builders[name], context, totals, log_odds)
            else:
                runners[name] = PeopleRunner(judge, context, totals)
        async with sharing_limits(context.writer, context.limiters):
            with span("ask", {"elicit.campaign": campaign.name}):
                stops = await _finish_requests(_run_all(runners), context)
        # Only what is on the disk counts as done.
        done = {name: (await read(sql.totals, name)).done for name in runners}
    judges = {
        name: JudgeSummary(replace(runner.tally, done=done[name]), stops[name])
        for name, runner in runners.items()
    }
    return AskSummary(judges, run.lost, context.stopping.is_set(), context.budget.spent.usd)


async def _run_all(runners: dict[str, JudgeRunner | PeopleRunner]) -> dict[str, ElicitError | None]:
    """Run all judges at the same time; a bug in one (not a judge's failure) ends them all."""
    async with asyncio.TaskGroup() as group:
        tasks = {name: group.create_task(runner.run()) for name, runner in runners.items()}
    return {name: task.result() for name, task in tasks.items()}


async def _finish_requests(work: Coroutine[Any, Any, T], context: RunContext) -> T:
    """Return the result of `work`; if cancelled, stop sending and wait for requests in flight."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        context.stopping.set()
        context.progress.note(
            "stopping", "waiting for the answers in flight; press Ctrl-C again to drop them"
        )
    try:
        return await asyncio.shield(task)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])


def builders_of(
    study: Study, progress: Progress, judges: Sequence[Judge] = (), *, batch: bool = False
) -> dict[str, RequestBuilder]:
    """Check the campaign and return what builds each model's requests, by judge; sends nothing.

    Args:
        study: what is asked.
        progress: receives notes about the judges' replies.
        judges: who is asked; all judges by default.
        batch: whether the prices are those of batch mode.

    Raises:
        InputError: settings cannot be used, keys are missing, a cap cannot be held; all at once.
    """
    campaign = study.campaign
    judges, refusals = judges or campaign.judges, Refusals()
    prices = {judge.name: price_of(judge, batch=batch) for judge in judges}
    builders = {}
    _ = study.presentations, study.direct  # templates that cannot be read are reported first
    with refusals.collected():
        check_settings(campaign.judges)
    with refusals.collected():
        check_cap(campaign.limits, prices)
    for judge in judges:
        if judge.name in campaign.people:
            continue
        with refusals.collected():
            notify = partial(progress.note, judge.name)
            backend = open_backend(judge, study.space, notify)
            builder = RequestBuilder(study, judge, backend, prices[judge.name], UsageCheck(notify))
            builder.check()
            builders[judge.name] = builder
    refusals.check()
    return builders


def check(study: Study) -> None:
    """Check that a campaign could be asked now, as `ask` does before it sends anything.

    Raises:
        InputError: a setting cannot be used, a key is missing, a cap cannot be held.
    """
    builders_of(study, Silent())


def log_end(summary: AskSummary) -> None:
    """Log every judge's counts and the result of the run."""
    for name, judge in summary.judges.items():
        log_tally(name, judge.tally)
    log_event(
        "run ended",
        complete=summary.complete,
        interrupted=summary.interrupted,
        lost_in_flight=summary.lost_in_flight,
        spent=summary.spent,
        problems=[str(problem) for problem in summary.problems],
    )
