"""Batch mode: submit, poll and collect the batches of all judges."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from logging import ERROR
from typing import Literal

from llm_elicit.backends import open_backend, provider_of
from llm_elicit.backends.batches import BatchClient
from llm_elicit.backends.providers import check_settings, open_batch_client
from llm_elicit.config.judges import Judge
from llm_elicit.errors import ElicitError, InputError, JudgeError, Refusals
from llm_elicit.orchestrator.batch_runner import BatchRunner
from llm_elicit.orchestrator.budget import check_cap
from llm_elicit.orchestrator.engine import AskSummary, JudgeSummary, log_end
from llm_elicit.orchestrator.journal import JournalLocation, batch_rows, reading
from llm_elicit.orchestrator.log import Logged, event
from llm_elicit.orchestrator.open_run import OpenRun, Study, open_run
from llm_elicit.orchestrator.prices import price_of
from llm_elicit.orchestrator.progress import Progress, Tally
from llm_elicit.orchestrator.request_builder import RequestBuilder
from llm_elicit.orchestrator.usage import Tokens, UsageCheck
from llm_elicit.questions import Template

Step = Literal["submit", "collect", "wait"]

_LEASE = 7200.0
"""Longest duration of a step in seconds, uploads and the pause between polls included."""

ROUNDS = 3
"""How many times `wait` submits what batches left unanswered."""


@dataclass(frozen=True)
class BatchStatus:
    """The status of one batch.

    Attributes:
        judge: the judge's name.
        batch: the provider's id, or the tag if there is none yet.
        state: the provider's word for a submitted batch, else the state in the journal.
        total, done: requests in it, and those with an answer or an error; None if the provider
            was not asked.
    """

    judge: str
    batch: str
    state: str
    total: int | None = None
    done: int | None = None


@dataclass
class _BatchRun:
    """The open batches of all judges, and the errors that stopped judges."""

    here: OpenRun
    runners: Mapping[str, BatchRunner]
    clients: Mapping[str, BatchClient]
    stops: dict[str, ElicitError] = field(default_factory=dict)

    async def each(self, work: Callable[[BatchRunner], Awaitable[int]]) -> int:
        """Call `work` for every judge and return the sum; an error stops its judge alone."""
        total = 0
        for name, context in self.runners.items():
            try:
                total += await work(context)
            except ElicitError as error:
                self.stops[name] = error
            except Exception as error:
                self.stops[name] = _stop(name, self.clients[name], error)
        return total

    async def wait(self, every: float, resend: bool) -> None:
        """Submit and collect until every batch has ended."""
        for _ in range(ROUNDS):
            submitted = await self.each(partial(BatchRunner.submit, resend=resend))
            while await self.each(BatchRunner.collect):
                if len(self.stops) == len(self.runners):
                    return
                await asyncio.sleep(min(every, _LEASE / 2))
            if not submitted:
                return


def _stop(judge: str, client: BatchClient, error: Exception) -> JudgeError:
    """Return the error that stops a judge after an exception; its batches are not lost."""
    failure = client.failure(error)
    if failure is None:
        event("defect", ERROR, error, judge=judge)
        return JudgeError(
            f"judge {judge!r}: a defect of this program ({type(error).__name__}), please report "
            "it with log.jsonl; its batches are on record"
        )
    return JudgeError(f"judge {judge!r}: {failure.said}; its batches are on record: run this again")


async def ask_in_batches(
    study: Study, step: Step, progress: Progress, every: float = 60.0, resend: bool = False
) -> AskSummary:
    """Ask the open questions through the providers' batch endpoints.

    Args:
        study: the campaign and its plan.
        step: `submit` submits the open questions, `collect` collects the results of batches that
            ended, `wait` repeats both until all is collected.
        progress: receives notes.
        every: seconds between two polls, for `wait`.
        resend: whether to submit again the questions of batches that the provider does not list.

    Raises:
        InputError: no judge has a batch mode, a key is missing, or the folder is in use.
    """
    async with _open_batch_run(study, Logged(progress)) as batch_run:
        if step == "wait":
            await batch_run.wait(every, resend)
        elif step == "submit":
            await batch_run.each(partial(BatchRunner.submit, resend=resend))
        else:
            await batch_run.each(BatchRunner.collect)
        summary = _summary(study, batch_run)
        log_end(summary)
    return summary


async def batch_statuses(study: Study) -> list[BatchStatus]:
    """Return the status of every batch of a run, asking the providers; changes nothing.

    Raises:
        InputError: there is no journal in the folder, or a key is missing.
        JudgeError: a provider cannot be asked.
    """
    lines: list[BatchStatus] = []
    with reading(JournalLocation(study.folder, study.campaign.journal)) as db:
        rows = {judge.name: batch_rows(db, judge.name) for judge in study.campaign.judges}
    for judge in study.campaign.judges:
        if not rows[judge.name]:
            continue
        async with open_batch_client(judge) as client:
            for row in rows[judge.name]:
                if row.fate != "submitted" or row.batch is None:
                    lines.append(BatchStatus(judge.name, row.batch or row.tag, row.fate))
                    continue
                try:
                    state = await client.state(row.batch)
                except Exception as error:
                    raise _stop(judge.name, client, error) from None
                line = BatchStatus(judge.name, state.id, state.status, state.total, state.done)
                lines.append(line)
    return lines


@asynccontextmanager
async def _open_batch_run(study: Study, progress: Progress) -> AsyncIterator[_BatchRun]:
    """Open the run and every judge's batch client."""
    judges = _judges(study, progress)
    template = Template.load(study.campaign.design.template)
    prices = {judge.name: price_of(judge, batch=True) for judge in judges}
    refusals, backends = Refusals(), {}
    clients: dict[str, BatchClient] = {}
    async with AsyncExitStack() as stack:
        with refusals.collected():
            check_settings(study.campaign.judges)
        with refusals.collected():
            check_cap(study.campaign.limits, prices)
        for judge in judges:
            with refusals.collected():
                client = open_batch_client(judge)
                clients[judge.name] = await stack.enter_async_context(client)
                backends[judge.name] = open_backend(judge, study.space)
        refusals.check()
        # One process at a time submits and collects, wherever the journal is.
        here = await stack.enter_async_context(
            open_run(study, template, progress, shared=False, lease=_LEASE)
        )
        runners = {
            name: BatchRunner(
                name,
                clients[name],
                RequestBuilder(
                    study.space,
                    study.plan,
                    template,
                    backend,
                    prices[name],
                    study.direct,
                    UsageCheck(partial(progress.note, name), Tokens(*here.journal.worst(name))),
                ),
                here.journal,
                here.cache,
                progress,
            )
            for name, backend in backends.items()
        }
        yield _BatchRun(here, runners, clients)


def _judges(study: Study, progress: Progress) -> list[Judge]:
    """Return the judges that have a batch mode."""
    able = [judge for judge in study.campaign.judges if provider_of(judge).open_batches]
    if not able:
        raise InputError(
            f"{study.campaign.name}: no judge has a batch mode; ask them without --batch"
        )
    for judge in study.campaign.judges:
        if judge not in able:
            progress.note(judge.name, "has no batch mode; ask it without --batch")
    return able


def _summary(study: Study, batch_run: _BatchRun) -> AskSummary:
    judges = {}
    for name in study.judges:
        totals = batch_run.here.journal.totals(name)
        tally = Tally(
            total=totals.total,
            done=totals.done,
            cached=totals.cached,
            failed=totals.failed,
            requests=totals.requests,
            prompt_tokens=totals.prompt_tokens,
            completion_tokens=totals.completion_tokens,
            cost=totals.cost,
        )
        judges[name] = JudgeSummary(tally, batch_run.stops.get(name))
    spent, _ = batch_run.here.journal.spent()
    return AskSummary(judges, batch_run.here.lost, interrupted=False, spent=spent)
