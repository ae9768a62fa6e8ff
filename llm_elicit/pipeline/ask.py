"""The stage that asks: open questions, round by round or in batches, and the table of answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypedDict, Unpack

from llm_elicit.comparisons.table import evidence_of
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import CancelledRunError, ElicitError, IncompleteError, UnusableError
from llm_elicit.orchestrator import batches, judgments
from llm_elicit.orchestrator.batches import Step
from llm_elicit.orchestrator.budget import within_grid_caps
from llm_elicit.orchestrator.cache import CacheUse
from llm_elicit.orchestrator.engine import AskSummary
from llm_elicit.orchestrator.engine import ask as ask_questions
from llm_elicit.orchestrator.journal import questions as journal
from llm_elicit.orchestrator.journal.connection import JournalError, retry_transient
from llm_elicit.orchestrator.open_run import Study, in_thread
from llm_elicit.orchestrator.progress import SILENT, Progress
from llm_elicit.orchestrator.rate_sharing import RateLimiters
from llm_elicit.pipeline.manifest import replacing
from llm_elicit.pipeline.registration import changes_of
from llm_elicit.pipeline.run_control import RunControl
from llm_elicit.pipeline.run_folder import ANSWERS, COMPARISONS, DIRECT, PEOPLE, Run
from llm_elicit.planning.rounds import (
    ALL_JUDGES,
    Answers,
    Pairs,
    RoundDesign,
    design_of,
    schedule_of,
    spread_of,
    stopped_round,
)

_MAX_OUTAGE = 60.0
"""Seconds that a journal's server may be unreachable between two rounds."""


class AskOptions(TypedDict, total=False):
    """How a run is asked; the names and defaults are those of `llm_elicit.run`.

    Attributes:
        max_cost: a cap in USD that replaces the campaign's own.
        cache: "reuse" answers of earlier runs, ask "fresh" and replace them, or leave it "off".
        limiters: the rate limiters that it shares with other runs; its own by default.
        retry_failed: whether to ask again what was set aside, see `llm-elicit status`.
        strict_version: whether a judge stops once its answers are of several versions of its model.
    """

    max_cost: float | None
    cache: CacheUse
    limiters: RateLimiters | None
    retry_failed: bool
    strict_version: bool


async def ask(
    result: Run,
    *,
    progress: Progress = SILENT,
    design: RoundDesign | None = None,
    **options: Unpack[AskOptions],
) -> Run:
    """Ask the unanswered questions, round by round, and write the table of judgments.

    Cancelling it once stops sending, waits for the answers in flight and writes the table before
    the cancellation is raised; cancelling it again drops what is in flight. Other processes may
    pause it meanwhile, see `llm_elicit.pipeline.run_control`.

    Args:
        result: the run.
        progress: receives every change.
        design: plans the rounds after the first, if any;
            `llm_elicit.planning.rounds.Informative` by default.
        options: options of asking, see `AskOptions`.

    Returns:
        The run, with the problems that stopped some judges.

    Raises:
        JudgeError, InputError: every judge was stopped, or nothing could be sent.
        CancelledError: it was cancelled; every answer received is kept.
        CancelledRunError: another process cancelled it.
    """
    await in_thread(result.check_journal)
    async with RunControl(result.location, progress) as control:
        return await ask_under(control, result, progress, design=design, **options)


async def ask_under(
    control: RunControl,
    result: Run,
    progress: Progress,
    *,
    design: RoundDesign | None = None,
    **options: Unpack[AskOptions],
) -> Run:
    """Ask as `ask` does, while `control` follows what other processes ask of the run."""
    if result.campaign.imported:
        progress.note(result.campaign.name, "its judgments were imported; nothing is asked")
        return result
    limiters = options.get("limiters") or RateLimiters()  # for all rounds
    retry_failed = options.get("retry_failed", False)
    strict = options.get("strict_version", False)
    for line in await in_thread(partial(changes_of, result)):
        progress.note(result.campaign.name, f"changed since it was registered: {line}")
    result = replace(result, campaign=with_cap(result.campaign, options.get("max_cost")))
    with within_grid_caps(result.campaign, result.folder) as campaign:
        began = time.monotonic()
        while True:
            plan = await in_thread(partial(getattr, result, "plan"))
            try:
                began += await control.until_running()
            except CancelledRunError:
                if result.started:
                    await in_thread(partial(_update_tables, _with_recorded_rounds(result)))
                raise
            limited = control.limited(campaign)
            if campaign.limits.deadline is not None:  # it covers all rounds together
                remaining = max(campaign.limits.deadline - (time.monotonic() - began), 0.001)
                limits = limited.limits.model_copy(update={"deadline": remaining})
                limited = limited.model_copy(update={"limits": limits})
            summary = await ask_questions(
                Study(limited, result.space, plan, result.folder, retry_failed, strict), progress,
                reuse=options.get("cache", "reuse"), stopping=control.stopping,
                ceiling=control.ceiling, limiters=limiters,
            )  # fmt: skip
            retry_failed = False
            if control.interrupts:
                continue
            if summary.interrupted:
                break
            plan_rounds = partial(_next_round, result, design, progress)
            extended = await in_thread(partial(retry_transient, plan_rounds, _MAX_OUTAGE))
            if extended is None:
                break
            result = extended
    return await _finish(result, summary)


def _with_recorded_rounds(result: Run) -> Run:
    """Return the run with all rounds in the journal, also those of other processes."""
    return result if result.campaign.design.rounds is None else replace(result)


def _next_round(result: Run, design: RoundDesign | None, progress: Progress) -> Run | None:
    """Plan the rounds that are due, and return the run with all new rounds; None if there are none.

    A round is planned once all questions that it depends on are answered or set aside, by this
    process or another one that works on the run.
    """
    campaign = result.campaign
    if campaign.design.rounds is None:
        return None
    planned: dict[tuple[str, int], Pairs] = {}
    try:
        for name, number in due_rounds(result):
            judges, label = [name] if name else result.study.judges, name or "all judges"
            progress.note(label, f"planning round {number} of {len(campaign.design.sizes)}")
            answers = _answers(result, judges)
            planner = design or design_of(campaign, result.space)
            pairs = schedule_of(name, campaign).pairs[number - 1]
            spread = spread_of(campaign, result.space, pairs)
            chosen = planner.plan(number, answers, campaign.seed, spread.pairs)
            if len(chosen.a) == spread.pairs:  # some of them are asked in two presentations
                chosen = Pairs(chosen.a[spread.content], chosen.b[spread.content])
            planned[name, number] = chosen
            if not len(chosen.a):
                progress.note(label, "stopping rule met: later rounds are skipped")
    except judgments.StalePlanError:
        planned = {}  # another process planned a round, and it already has answers
    if planned:
        journal.record_rounds(result.location, planned)
    extended = replace(result)
    if not planned and len(extended.plan) == len(result.plan):
        return None
    extended.write_pairs()
    return extended


def _answers(result: Run, judges: Sequence[str]) -> list[Answers]:
    """Return each judge's answers so far, as the planner of rounds takes them."""
    from llm_elicit.pipeline.power_sources import read_sources, scale_by_answers  # with PyTorch

    campaign, space = result.campaign, result.space
    table = judgments.comparisons(result.study)
    direct = judgments.direct_answers(result.study)
    answers = []
    for judge in judges:
        choices = table.choices(judge)
        evidence = evidence_of(table, judge, campaign.fit) if len(choices) else None
        if evidence is not None and not len(evidence.measurements):
            evidence = None
        measured = evidence is not None
        sources = read_sources(direct, judge, space, campaign.seed, result.plan)
        scale = partial(scale_by_answers, sources=sources, measured=measured, seed=campaign.seed)
        usable = scale if measured or sources.available else None
        answers.append(Answers(**vars(choices), evidence=evidence, scale=usable))
    return answers


def due_rounds(result: Run) -> Iterator[tuple[str, int]]:
    """Yield the rounds that can be planned now, by judge (or `ALL_JUDGES`) and number."""
    rounds, names = result.campaign.design.rounds, sorted(j.name for j in result.campaign.judges)
    if rounds is None:
        return
    planned = journal.planned_rounds(result.location)
    groups = {ALL_JUDGES: names} if rounds.shared else {name: [name] for name in names}
    for name, judges in groups.items():
        number = 2 + sum(judge == name for judge, _ in planned)
        is_due = number <= rounds.count and stopped_round(planned, name) is None
        if is_due and all(journal.settled(result.location, judge) for judge in judges):
            yield name, number


async def ask_in_batches(
    result: Run,
    step: Step,
    *,
    every: float = 60.0,
    resend: bool = False,
    progress: Progress = SILENT,
    **options: Unpack[AskOptions],
) -> Run:
    """Ask the open questions through the providers' batch endpoints.

    Args:
        result: the run.
        step: "submit", "collect", or "wait" for both until all is collected.
        every: seconds between polls of the provider.
        resend: whether to submit again the questions of batches that the provider does not list.
        progress: receives notes of what failed.
        options: `max_cost`, `retry_failed` and `strict_version` of `AskOptions`.

    Returns:
        The run, with the problems that stopped some judges; after "submit", nothing else is one.

    Raises:
        JudgeError, InputError: every judge was stopped, or nothing could be sent.
    """
    result.check_journal()
    result, retry_failed = _with_recorded_rounds(result), options.get("retry_failed", False)
    strict = options.get("strict_version", False)
    capped = with_cap(result.campaign, options.get("max_cost"))
    with within_grid_caps(capped, result.folder) as campaign:
        while True:
            folder, plan = result.folder, result.plan
            study = Study(campaign, result.space, plan, folder, retry_failed, strict)
            retry_failed = False
            summary = await batches.ask_in_batches(study, step, progress, every, resend)
            extended = None
            if step != "collect":
                plan_rounds = partial(_next_round, result, None, progress)
                extended = await in_thread(partial(retry_transient, plan_rounds, _MAX_OUTAGE))
            if extended is None:
                break
            result = extended
    if step == "submit":
        return replace(result, problems=tuple(summary.problems))
    return await _finish(result, summary)


def with_cap(campaign: Campaign, max_cost: float | None) -> Campaign:
    """Return the campaign with another cap, if one is given."""
    if max_cost is None:
        return campaign
    limits = campaign.limits.model_copy(update={"max_cost": max_cost})
    return campaign.model_copy(update={"limits": limits})


async def _finish(result: Run, summary: AskSummary) -> Run:
    """Write the tables of answers, and return the run with its problems and remarks.

    Raises:
        JournalError: the journal could not be written.
        CancelledError: the asking was interrupted.
        ElicitError: every judge was stopped, or no answer of any judge is usable.
    """
    result = _with_recorded_rounds(result)
    journal_error = next((p for p in summary.problems if isinstance(p, JournalError)), None)
    try:
        write = partial(_update_tables, result)
        await in_thread(write if journal_error else partial(retry_transient, write, _MAX_OUTAGE))
    except (ElicitError, OSError):
        if journal_error is None:
            raise
    if journal_error is not None:
        raise journal_error  # such as a full disk, which writing the tables would report again
    if summary.interrupted:
        raise asyncio.CancelledError
    if len(summary.problems) == len(summary.judges):
        raise summary.problems[0]
    summaries = await in_thread(partial(judgments.answer_summaries, result.folder, result.campaign))
    unusable = [
        UnusableError(
            f"{result.folder}: judge {name!r}: {answers.unusable_line()}, and rename the campaign "
            "to ask anew"
        )
        for name, answers in summaries.items()
        if answers.total and not answers.usable and summary.judges[name].stopped is None
    ]
    if unusable and not any(judge.usable for judge in summaries.values()):
        raise unusable[0]  # no belief can be fitted without usable answers
    problems = (*summary.problems, *unusable, *_find_gaps(result, summary))
    remarks = [
        f"{name}: {line}"
        for name, answers in summaries.items()
        if name not in result.campaign.people
        for line in (answers.unusable_line() if answers.usable else None, answers.origin_line())
        if line
    ]
    changes = await in_thread(partial(judgments.version_changes, result.folder, result.campaign))
    remarks += [f"{', '.join(change.judges)}: {change.line}" for change in changes]
    return replace(result, problems=problems, remarks=tuple(remarks))


def _update_tables(result: Run) -> None:
    """Write the tables of answers, unless they already agree with the journal."""
    entry = result.manifest.entry("ask")
    if entry is None or result.manifest.changed("ask") or result.renamed:
        return write_tables(result)
    if entry.read.get(ANSWERS) != str(journal.stored_answers(result.location)):
        return write_tables(result)
    return judgments.check_answers(result.study)


def write_tables(result: Run) -> None:
    """Write the tables of judgments, of direct answers and of people's cards from the journal.

    Raises:
        InputError: there is no journal, it holds fewer answers than before, or one in it was
            changed by hand.
    """
    result.check_journal()
    tables = [result.folder / name for name in (COMPARISONS, DIRECT, PEOPLE)]
    export(result, tables[0])
    direct = judgments.direct_answers(result.study)
    further = [(tables[1], direct)] if len(direct) else []
    if result.campaign.people:
        further.append((tables[2], judgments.people_cards(result.study)))
    for path, frame in further:
        with replacing(path) as temporary:
            frame.to_parquet(temporary)
    answers = {ANSWERS: str(journal.stored_answers(result.location))} | result.named
    result.manifest.record("ask", answers, tables)
    summaries = judgments.answer_summaries(result.folder, result.campaign)
    models = {name: summary.models for name, summary in summaries.items()}
    lines = {name: summary.log_odds.line for name, summary in summaries.items()}
    result.manifest.record_answers(models, lines)


_WAYS_OUT = {
    "failed": "given up, asked again by the next run",
    "quarantined": "set aside, asked again with --retry-failed",
}


def _find_gaps(result: Run, summary: AskSummary) -> list[ElicitError]:
    """Return an error for each judge that left questions unanswered without being stopped."""
    gaps: dict[str, str] = {}
    counts, reasons = result.questions, judgments.unanswered(result.folder, result.campaign)
    for name, judge in summary.judges.items():
        questions = counts[name] + len(result.plan.direct)
        total, done = judge.tally.total, judge.tally.done
        if judge.stopped is None and done < total:
            missing, parts = total - done, []
            for state, way_out in _WAYS_OUT.items():
                alike = [group for group in reasons[name] if group.state == state]
                if alike:
                    number = sum(group.count for group in alike)
                    missing -= number
                    parts.append(f"{number:,} {way_out} ({alike[0].reason})")
            if missing > 0:
                parts.append(f"{missing:,} not asked yet, or in a batch; run again")
            gap = f"{total - done:,} of {total:,} questions to {name!r} have no answer"
            gaps[name] = f"{gap}: {'; '.join(parts)}"
        elif judge.stopped is None and total < questions:
            reason = "are in rounds that wait for answers; run again"
            gaps[name] = f"{questions - total:,} of {questions:,} questions to {name!r} {reason}"
    return [IncompleteError(f"{result.folder}: {gap}") for gap in gaps.values()]


def export(result: Run, path: Path, *, thinking: bool = False) -> Path:
    """Write the judgments in the journal as Parquet, JSONL or CSV.

    With `thinking`, the visible reasoning of reasoning models is a separate column.
    """
    return judgments.write_judgments(result.study, path, thinking=thinking)
