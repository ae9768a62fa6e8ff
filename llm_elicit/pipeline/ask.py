"""The stage that asks: what is open, of every judge, now or through batches; and its table."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from llm_elicit import orchestrator
from llm_elicit.comparisons.fit_inputs import evidence_of
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import ElicitError, IncompleteError
from llm_elicit.orchestrator import CacheUse, Progress, Silent, in_thread
from llm_elicit.orchestrator.engine import ask as ask_questions  # not first in an event loop
from llm_elicit.pipeline.manifest import replacing
from llm_elicit.pipeline.power_sources import PowerSources, at_stated_power, pin_power, read_sources
from llm_elicit.pipeline.run_folder import ANSWERS, COMPARISONS, DIRECT, Run
from llm_elicit.planning.rounds import ALL_JUDGES, Answers, Pairs, RoundDesign, design_of, stopped

if TYPE_CHECKING:
    from llm_elicit import density

_SILENT = Silent()
_AWAY = 60.0
"""Seconds that a journal's server may be away between two rounds."""

T = TypeVar("T")


async def ask(
    result: Run,
    *,
    max_cost: float | None = None,
    progress: Progress = _SILENT,
    design: RoundDesign | None = None,
    cache: CacheUse = "reuse",
) -> Run:
    """Ask what is not answered yet, round by round, and write the table of judgments.

    Cancelling it once stops sending, waits for the answers in flight and writes the table, before
    it is raised; a second time drops what is in flight.

    Args:
        result: the run.
        max_cost: a cap in USD that replaces the campaign's own.
        progress: told of every change.
        design: plans the rounds after the first, where the campaign has any; by default
            `llm_elicit.planning.rounds.Informative`.
        cache: "reuse" answers of earlier runs, ask "fresh" and replace them, or leave it "off".

    Returns:
        The run, with the problems that stopped some judges.

    Raises:
        JudgeError, InputError: every judge was stopped, or nothing could be sent.
        CancelledError: it was cancelled; every answer received is kept.
    """
    await in_thread(result.check_journal)
    with orchestrator.within_grid_caps(
        _capped(result.campaign, max_cost), result.folder
    ) as campaign:
        began = time.monotonic()
        while True:
            plan = await in_thread(partial(getattr, result, "plan"))
            summary = await ask_questions(
                _in_time(campaign, began), result.space, plan, result.folder, progress, reuse=cache
            )
            if summary.interrupted:
                break
            longer = await in_thread(
                partial(_there_again, partial(_next_round, result, design, progress))
            )
            if longer is None:
                break
            result = longer
    return await _asked(result, summary)


def _up_to_date(result: Run) -> Run:
    """The run with the rounds that are on record now: other workers may be further."""
    return result if result.campaign.design.rounds is None else replace(result)


def _there_again(work: Callable[[], T]) -> T:
    """The result of `work`, which may be done again; a server that restarts is waited for."""
    patient = Retrying(
        retry=retry_if_exception(lambda e: getattr(e, "passes", False)),
        stop=stop_after_delay(_AWAY),
        wait=wait_random_exponential(0.1, max=2.0),
        reraise=True,
    )
    return patient(work)


def _in_time(campaign: Campaign, began: float) -> Campaign:
    """The campaign with what is left of its deadline: it is for all rounds together."""
    deadline = campaign.limits.deadline
    if deadline is None:
        return campaign
    left = max(deadline - (time.monotonic() - began), 0.001)
    limits = campaign.limits.model_copy(update={"deadline": left})
    return campaign.model_copy(update={"limits": limits})


def _next_round(result: Run, design: RoundDesign | None, progress: Progress) -> Run | None:
    """The run with the rounds that were planned since it was asked; None if there are none.

    A round is planned when all that it depends on is answered or set aside, and not before; by this
    process, or by another one that works on the run.
    """
    if result.campaign.design.rounds is None:
        return None
    try:
        planned = _planned(result, design, progress)
    except orchestrator.OldPlanError:
        planned = {}  # there are answers to another worker's round already
    if planned:
        orchestrator.record_rounds(result.location, planned)
    longer = replace(result)
    if not planned and len(longer.plan) == len(result.plan):
        return None
    longer.write_pairs()
    return longer


def _planned(
    result: Run, design: RoundDesign | None, progress: Progress
) -> dict[tuple[str, int], Pairs]:
    """The pairs of every round that can be planned now."""
    campaign = result.campaign
    planned: dict[tuple[str, int], Pairs] = {}
    for name, number in _due(result):
        judges = [name] if name else [judge.name for judge in campaign.judges]
        progress.note(name or "all judges", f"planning round {number} of {_rounds(result)}")
        answers = _answers(result, judges)
        planned[name, number] = (design or design_of(campaign, result.space)).plan(
            number,
            answers,
            campaign.seed,
            campaign.design.sizes[number - 1],
        )
        if not len(planned[name, number].a):
            progress.note(name or "all judges", "asked enough: the rounds to come are left out")
    return planned


def _answers(result: Run, judges: Sequence[str]) -> list[Answers]:
    """What each judge answered so far."""
    campaign, space = result.campaign, result.space
    table = orchestrator.comparisons(result.folder, campaign, space, result.plan)
    direct = orchestrator.direct_answers(result.folder, campaign, space)
    found = []
    for judge in judges:
        choices = table.choices(judge)
        evidence = evidence_of(table, judge, campaign.fit) if len(choices) else None
        measured = evidence is not None and len(evidence.measured) > 0
        sources = read_sources(
            direct if len(direct) else None, judge, space, campaign.seed, result.plan
        )
        scale = partial(_scaled, sources=sources, measured=measured, seed=campaign.seed)
        found.append(
            Answers(
                **vars(choices),
                evidence=evidence if measured else None,
                scale=scale if measured or sources.given else None,
            )
        )
    return found


def _scaled(
    belief: density.BeliefDensity, sources: PowerSources, measured: bool, seed: int
) -> density.BeliefDensity:
    """A belief at the power that is known of it."""
    pinned = pin_power(belief, sources, seed)
    return at_stated_power(belief, pinned, measured=measured, seed=seed)


def _due(result: Run) -> Iterator[tuple[str, int]]:
    """The rounds that can be planned now, by judge (or `ALL_JUDGES`) and number."""
    rounds, names = result.campaign.design.rounds, sorted(j.name for j in result.campaign.judges)
    if rounds is None:
        return
    known = orchestrator.planned_rounds(result.location)
    groups = {ALL_JUDGES: names} if rounds.shared else {name: [name] for name in names}
    for name, judges in groups.items():
        number = 2 + sum(judge == name for judge, _ in known)
        more = number <= rounds.count and stopped(known, name) is None
        if more and all(orchestrator.settled(result.location, judge) for judge in judges):
            yield name, number


def _rounds(result: Run) -> int:
    return len(result.campaign.design.sizes)


async def ask_in_batches(
    result: Run,
    step: orchestrator.Step,
    *,
    max_cost: float | None = None,
    every: float = 60.0,
    resend: bool = False,
    progress: Progress = _SILENT,
) -> Run:
    """Ask what is not answered yet through the providers' batch endpoints.

    Args:
        result: the run.
        step: "submit", "collect", or "wait" for both until all is collected.
        max_cost: a cap in USD that replaces the campaign's own.
        every: seconds between looks at the provider.
        resend: whether to hand in again what was in batches that the provider does not list.
        progress: told what could not be done.

    Returns:
        The run, with the problems that stopped some judges; after "submit", nothing else is one.

    Raises:
        JudgeError, InputError: every judge was stopped, or nothing could be sent.
    """
    result.check_journal()
    result = _up_to_date(result)
    with orchestrator.within_grid_caps(
        _capped(result.campaign, max_cost), result.folder
    ) as campaign:
        while True:
            study = orchestrator.Study(campaign, result.space, result.plan, result.folder)
            summary = await orchestrator.ask_in_batches(study, step, progress, every, resend)
            longer = None
            if step != "collect":
                longer = await in_thread(
                    partial(_there_again, partial(_next_round, result, None, progress))
                )
            if longer is None:
                break
            result = longer
    if step == "submit":
        return replace(result, problems=tuple(summary.problems))
    return await _asked(result, summary)


def _capped(campaign: Campaign, max_cost: float | None) -> Campaign:
    """The campaign under another cap, if there is one."""
    if max_cost is None:
        return campaign
    limits = campaign.limits.model_copy(update={"max_cost": max_cost})
    return campaign.model_copy(update={"limits": limits})


async def _asked(result: Run, summary: orchestrator.AskSummary) -> Run:
    """The run with its table of judgments, whatever stopped the asking."""
    result = _up_to_date(result)
    broken = next((p for p in summary.problems if isinstance(p, orchestrator.JournalError)), None)
    try:
        write = partial(write_tables, result)
        await in_thread(write if broken else partial(_there_again, write))
    except (ElicitError, OSError):
        if broken is None:
            raise
    if broken is not None:
        raise broken  # a full disk, say, which the tables would only name once more
    if summary.interrupted:
        raise asyncio.CancelledError
    if len(summary.problems) == len(summary.judges):
        raise summary.problems[0]
    return replace(result, problems=(*summary.problems, *_gaps(result, summary)))


def write_tables(result: Run) -> None:
    """Write the table of judgments, and that of direct answers if there are any, from the journal.

    Raises:
        InputError: there is no journal, it holds fewer answers than before, or one in it was
            changed by hand.
    """
    result.check_journal()
    tables = [result.folder / name for name in (COMPARISONS, DIRECT)]
    export(result, tables[0])
    _export_direct(result, tables[1])
    answers = {ANSWERS: str(orchestrator.kept_answers(result.location))}
    result.manifest.record("ask", answers, tables)


def _export_direct(result: Run, path: Path) -> None:
    """Write the answers to direct questions, if there are any."""
    table = orchestrator.direct_answers(result.folder, result.campaign, result.space)
    if len(table):
        with replacing(path) as beside:
            table.to_parquet(beside)


def _gaps(result: Run, summary: orchestrator.AskSummary) -> list[ElicitError]:
    """An error for each judge that was asked to the end and left questions unanswered."""
    gaps: dict[str, str] = {}
    asked = result.questions
    for name, judge in summary.judges.items():
        questions = asked[name] + len(result.plan.direct)
        total, done = judge.tally.total, judge.tally.done
        if judge.stopped is None and done < total:
            why = "have no answer; see log.jsonl for why, and run again"
            gaps[name] = f"{total - done:,} of {total:,} questions to {name!r} {why}"
        elif judge.stopped is None and total < questions:
            why = "are in rounds that wait for answers; run again"
            gaps[name] = f"{questions - total:,} of {questions:,} questions to {name!r} {why}"
    return [IncompleteError(f"{result.folder}: {gap}") for gap in gaps.values()]


def export(result: Run, path: Path, *, thinking: bool = False) -> Path:
    """Write the judgments in the journal as Parquet, JSONL or CSV.

    With `thinking`, what reasoning models showed of theirs is a column of its own.
    """
    return orchestrator.write_judgments(
        result.folder, result.campaign, result.space, result.plan, path, thinking=thinking
    )
