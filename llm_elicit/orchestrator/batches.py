"""Batch mode: submit, poll and collect the batches of all judges, possibly over several processes.

**Guaranteed:** the intent of a batch is on the disk before it is submitted, and its id after. If a
process is killed between the two, it is unknown whether the batch arrived. It is then searched for
at the provider, and its questions are not sent again unless the user asks for it, since a batch
that is not listed may still have arrived. Results are matched by custom id, in any order.
Questions that a batch leaves unanswered are open again.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from logging import ERROR
from typing import Literal

from llm_elicit._util.text import visible
from llm_elicit.backends.batches import (
    BatchClient,
    BatchLimits,
    BatchRequest,
    BatchResult,
    BatchState,
)
from llm_elicit.backends.failures import shorten
from llm_elicit.backends.providers import open_batch_client
from llm_elicit.comparisons.table import VersionLog, version_of
from llm_elicit.config.judges import Judge
from llm_elicit.errors import CapError, ElicitError, InputError, JudgeError
from llm_elicit.orchestrator import engine
from llm_elicit.orchestrator.budget import Amount, Tokens
from llm_elicit.orchestrator.cache import is_reusable
from llm_elicit.orchestrator.engine import AskSummary, JudgeSummary, builders_of, log_end
from llm_elicit.orchestrator.journal import questions as sql
from llm_elicit.orchestrator.journal.schema import (
    Answer,
    Change,
    Question,
    record_answer,
    record_failure,
    record_loss,
    record_submission,
)
from llm_elicit.orchestrator.journal.store import (
    BatchRow,
    StoredBatchState,
    batch_rows,
    questions_in,
)
from llm_elicit.orchestrator.log_odds import LogOdds
from llm_elicit.orchestrator.open_run import OpenRun, Study, open_run
from llm_elicit.orchestrator.progress import LoggingProgress, Progress, Tally, log_event
from llm_elicit.orchestrator.request_builder import (
    RequestBuilder,
    refusal_reply,
    several_versions_error,
)

LISTING_DELAY = 900.0
"""Seconds after which the provider should list a submitted batch."""

_MAX_CLOCK_SKEW = 86_400.0
"""Largest difference assumed between the provider's clock and this one, in seconds."""

_COMMIT_SIZE = 500
"""Number of answers in one commit."""


@dataclass(frozen=True)
class Entry:
    """A question to submit in a batch, its request, and the most that it can cost."""

    question: Question
    request: BatchRequest
    worst: Amount


class BatchRunner:
    """Submits and collects one judge's batches.

    Args:
        client: the provider's batch client, open.
        builder: builds requests, at the prices of batch mode.
        run: the run.
        progress: receives notes.
        versions: the versions that have answered.
    """

    def __init__(
        self,
        client: BatchClient,
        builder: RequestBuilder,
        run: OpenRun,
        progress: Progress,
        versions: VersionLog,
    ) -> None:
        self._judge = builder.judge.name
        self._versions = versions
        self._client = client
        self._builder = builder
        self._journal = run.journal
        self._cache = run.cache
        self._progress = progress
        choices = run.journal.read(sql.choices_of, self._judge)
        self._log_odds = LogOdds.of(builder.judge, choices)
        # A scored choice, if there is one, was asked with as many alternatives as the server lists.
        settings = min((row["unscored"], row["settings"]) for row in choices)[1] if choices else ""
        if settings and (adopt := getattr(builder.backend, "adopt", None)):  # not of plug-ins
            adopt(json.loads(settings))
        self._required = builder.study.campaign.require is not None
        self._missing_log_odds: str | None = None
        self._version: str | None = None
        builder.usage.raised = Tokens(*run.journal.read(sql.worst_case, self._judge))

    async def submit(self, resend: bool = False) -> int:
        """Submit every open question; return the number of batches.

        Args:
            resend: whether to reopen the questions of batches that the provider does not list.

        Raises:
            JudgeError: the provider refuses, or cannot be reached; or log-odds are required, and it
                is not known yet that there are some, or an answer from the cache has none.
            CapError: the cap leaves no room for another request.
            VersionChangedError: several versions have answered, and `strict_version` is set.
        """
        self._check_version()
        await self.reconcile(resend)
        count, max_batch = 0, self._client.limits.count
        if self._required and not self._log_odds.scored:
            raise JudgeError(
                f"judge {self._judge!r}: require: log_odds: no answer with log-odds was received "
                "yet, so nothing was submitted; run again"
            )
        while questions := self._journal.claim(self._judge, max_batch):
            for group in group_entries(self._entries(questions), self._client.limits):
                self._check_log_odds()
                await self._submit_group(group)
                count += 1
        self._check_log_odds()
        return count

    def _entries(self, questions: Iterable[Question]) -> Iterator[Entry]:
        """Yield the questions to submit; answer those that have a cached answer."""
        changes: list[Change] = []
        reused: Counter[str] = Counter()
        live = self._version
        for question in questions:
            prepared = self._builder.prepare(question)
            reply = self._cache.get(prepared.key, live) if prepared.key else None
            if reply is None:
                # The id gets the batch's tag as a prefix once the batch has one.
                line = BatchRequest(str(question.id), prepared.body)
                yield Entry(question, line, self._builder.worst_case(prepared))
                continue
            answer = self._builder.answer(prepared, reply, latency=None)
            reused[f"{visible(reply.model, 80)}, asked {reply.kept_at[:10]}"] += 1
            changes.append(self._record_answer(question, answer))
            if len(changes) >= _COMMIT_SIZE:
                self._journal.commit(changes)
                changes = []
        self._journal.commit(changes)
        for origin, count in reused.items():
            self._progress.note(
                self._judge,
                f"{count:,} questions are answered from the cache, by {origin}; to ask the judge "
                f"again: llm-elicit repeat {self._builder.study.folder}",
            )

    async def _submit_group(self, group: Sequence[Entry]) -> None:
        """Record the intent, submit the batch, and record its id."""
        tag = uuid.uuid4().hex[:16]
        self._journal.open_batch(BatchRow(tag, self._judge, None, "intended", time.time()))
        changes = [record_submission(e.question.id, *e.worst, tag) for e in group]
        refusals = self._journal.commit(changes)
        refused = {change.question for change in refusals}
        lines = [
            BatchRequest(f"{tag}-{e.question.id}", e.request.body)
            for e in group
            if e.question.id not in refused
        ]
        if lines:
            batch = await self._send(tag, lines)
            self._journal.set_batch(tag, "submitted", batch)
            log_event(
                "batch submitted", judge=self._judge, tag=tag, batch=batch, questions=len(lines)
            )
        else:
            self._journal.set_batch(tag, "released")
        if self._journal.failure is not None:
            raise self._journal.failure
        if "no room" in refusals.values():
            raise CapError(
                f"the cap leaves no room for {len(refused):,} questions to {self._judge!r}; "
                "raise the cap and submit again"
            )

    async def _send(self, tag: str, lines: Sequence[BatchRequest]) -> str:
        """Submit a batch, and return the provider's id."""
        try:
            return await self._client.submit(lines, tag)
        except Exception as error:
            failure = self._client.failure(error)
            if failure is None:
                raise
            if not failure.nothing_sent:
                raise JudgeError(
                    f"judge {self._judge!r}: it is unknown whether batch {tag} arrived "
                    f"({failure.message}); the provider's list is checked before any of it is sent "
                    "again"
                ) from None
            self._requeue(tag, "refused", failure.message)
            raise JudgeError(
                f"judge {self._judge!r}: the batch was refused: {failure.message}"
            ) from None

    async def reconcile(self, resend: bool = False) -> list[BatchRow]:
        """Search for batches that may not have arrived; return those still not known to have."""
        unknown = self._journal.read(batch_rows, self._judge, "intended")
        if not unknown:
            return []
        ids = {row.batch for row in self._journal.read(batch_rows, self._judge)}
        since = min(row.made for row in unknown) - _MAX_CLOCK_SKEW
        # The whole list, since providers do not promise an order by time.
        recent = [state async for state in self._client.recent()]
        listed = [s for s in recent if s.created >= since and s.id not in ids]
        return [row for row in unknown if await self._is_arrival_unknown(row, listed, resend)]

    async def _is_arrival_unknown(
        self, row: BatchRow, listed: Iterable[BatchState], resend: bool
    ) -> bool:
        """Return whether it is still unknown if a batch arrived; record it once it is known."""
        questions = self._journal.read(questions_in, row.tag)
        is_uncertain = False
        for state in listed:
            is_same = await self._is_batch_of(state, row, len(questions))
            if is_same:
                self._journal.set_batch(row.tag, "submitted", state.id)
                log_event("batch found again", judge=self._judge, tag=row.tag, batch=state.id)
                return False
            is_uncertain = is_uncertain or is_same is None
        if not questions:
            self._journal.set_batch(row.tag, "released")
            return False
        if is_uncertain or time.time() < row.made + LISTING_DELAY:
            self._progress.note(
                self._judge,
                f"it is not yet known whether batch {row.tag} ({len(questions):,} questions) "
                "arrived; its questions are not sent again until it is",
            )
            return True
        if resend:
            self._requeue(row.tag, "released", "the provider does not list it; sent again")
        else:
            self._progress.note(
                self._judge,
                f"batch {row.tag} ({len(questions):,} questions) was interrupted during "
                "submission, and the provider does not list it; to send its questions again, "
                "use --batch submit --resend",
            )
        return False

    async def _is_batch_of(self, state: BatchState, row: BatchRow, count: int) -> bool | None:
        """Return whether a provider's batch is that of `row`; None if that cannot be known yet."""
        if self._client.tagged:
            return state.tag == row.tag
        if state.total != count:
            return False
        if not state.ended:
            return None
        async for result in self._client.results(
            state.id, lambda _: self._builder.study.presentations[0].options
        ):
            return result.custom_id.startswith(f"{row.tag}-")
        return False

    async def collect(self) -> int:
        """Collect the results of every batch that ended; return how many have not ended."""
        waiting, unscored = len(await self.reconcile()), self._log_odds.unscored
        for row in self._journal.read(batch_rows, self._judge, "submitted"):
            assert row.batch is not None
            state = await self._client.state(row.batch)
            if state.ended:
                await self._collect_batch(row, state)
            else:
                waiting += 1
        if self._log_odds.scored and self._log_odds.unscored > unscored:
            self._progress.note(self._judge, self._log_odds.line)
        self._check_log_odds()
        self._check_version()
        return waiting

    def _check_log_odds(self) -> None:
        """Check that the answers have log-odds if these are required, before more is submitted.

        Raises:
            JudgeError: an answer has none; the answers collected are kept.
        """
        if self._missing_log_odds is not None:
            raise JudgeError(
                f"judge {self._judge!r}: {self._missing_log_odds}; its answers so far are kept"
            )

    def _record_answer(self, question: Question, answer: Answer) -> Change:
        """Return the change that stores an answer; note its version and whether it has log-odds."""
        version = version_of(answer.model_answered, answer.fingerprint)
        change = self._versions.add(self._judge, version, answer.asked_at)
        if change is not None:
            self._progress.note(self._judge, change.line)
        note = partial(self._progress.note, self._judge)
        missing = self._log_odds.take(answer, note, required=self._required)
        self._missing_log_odds = self._missing_log_odds or missing
        return record_answer(question.id, answer)

    def _check_version(self) -> None:
        """Check that one version has answered, if `strict_version` is set."""
        change = self._versions.change(self._judge) if self._builder.study.strict_version else None
        if change is not None:
            raise several_versions_error(self._builder, change)

    async def _collect_batch(self, row: BatchRow, state: BatchState) -> None:
        """Record the results of a batch; reopen the questions without a result."""
        unanswered = {f"{row.tag}-{q.id}": q for q in self._journal.read(questions_in, row.tag)}
        changes: list[Change] = []
        answered = unreadable = 0
        raised = self._builder.usage.raised

        def options(custom_id: str) -> tuple[str, str]:
            question = unanswered.get(custom_id)
            first = self._builder.study.presentations[0]
            return self._builder.options(question) if question else first.options

        async for result in self._client.results(state.id, options):
            question = unanswered.pop(result.custom_id, None)
            if question is None:
                unreadable += not result.custom_id
                continue  # collected before by a process that was killed
            changes.append(self._change_for(question, result))
            answered += result.reply is not None
            if len(changes) >= _COMMIT_SIZE:
                self._journal.commit(changes)
                changes = []
        self._journal.commit(changes)
        if self._builder.usage.raised != raised:
            self._journal.raise_worst(self._judge, *self._builder.usage.raised)
        self._requeue(row.tag, "collected", state.error or "", unreadable)
        log_event("batch collected", judge=self._judge, tag=row.tag, batch=row.batch,
              status=state.status, answered=answered)  # fmt: skip
        if state.error:
            self._progress.note(self._judge, f"batch {row.batch}: {state.status}: {state.error}")
        if unreadable:
            self._progress.note(
                self._judge,
                f"batch {row.batch}: {unreadable:,} lines of its results cannot be read; they "
                "count as charged, and their questions have no answer",
            )

    def _change_for(self, question: Question, result: BatchResult) -> Change:
        """Return the change to the journal that records the result of a question."""
        prepared = self._builder.prepare(question)
        key, reply = prepared.key, result.reply
        if reply is not None:
            reply = self._builder.with_charges(prepared, reply)
            answer = self._builder.answer(prepared, reply, latency=0.0)
            self._version = reply.model
            if key and is_reusable(reply, answer.verdict):
                self._cache.put(key, reply, answer.asked_at)
            return self._record_answer(question, answer)
        reason = shorten(self._builder.backend.scrub(result.reason))
        log_event("question not answered", judge=self._judge, question=question.id, reason=reason)
        if result.prompt_refused:
            reply = refusal_reply(f"prompt refused: {reason}", prepared.body)
            answer = self._builder.answer(prepared, reply, latency=0.0)
            return record_answer(question.id, answer)
        if result.refused:
            return record_failure(question.id, reason)
        lost = self._builder.worst_case(prepared) if result.billed else Amount()
        return record_loss(question.id, *lost)

    def _requeue(self, tag: str, state: StoredBatchState, note: str, billed: int = 0) -> None:
        """Reopen the unanswered questions of a batch, then record its state.

        After a crash between the two steps, both are repeated. `billed` is the number of answers
        that cannot be matched to a question; that many of the questions count as charged.
        """
        changes = []
        for number, question in enumerate(self._journal.read(questions_in, tag)):
            lost = Amount()
            if number < billed:
                lost = self._builder.worst_case(self._builder.prepare(question))
            changes.append(record_loss(question.id, *lost))
        self._journal.commit(changes)
        self._journal.set_batch(tag, state, note=note)


def group_entries(entries: Iterable[Entry], limits: BatchLimits) -> Iterator[list[Entry]]:
    """Group entries, in order, into as few batches as the provider's limits allow.

    Examples:
        >>> entry = Entry(Question(1, 0, "ab", 0, 0, "x"), BatchRequest("1", {}), Amount())
        >>> [len(group) for group in group_entries([entry] * 5, BatchLimits(count=2, size=10**6))]
        [2, 2, 1]
    """
    group: list[Entry] = []
    size = 0
    for entry in entries:
        if group and (len(group) >= limits.count or size + entry.request.size > limits.size):
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.request.size
    if group:
        yield group


Step = Literal["submit", "collect", "wait"]

_LEASE = 7200.0
"""Longest duration of a step in seconds, uploads and the pause between polls included."""

ROUNDS = 3
"""How many times `wait` submits the questions that batches left unanswered."""


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


def _stopping_error(judge: str, client: BatchClient, error: Exception) -> ElicitError:
    """Return the error that stops a judge after an exception; its batches stay recorded."""
    if isinstance(error, ElicitError):
        return error
    failure = client.failure(error)
    if failure is None:
        log_event("defect", ERROR, error, judge=judge)
        return JudgeError(
            f"judge {judge!r}: internal error ({type(error).__name__}); please report it with "
            "log.jsonl; its batches are recorded"
        )
    return JudgeError(
        f"judge {judge!r}: {failure.message}; its batches are recorded; run the command again"
    )


async def ask_in_batches(
    study: Study, step: Step, progress: Progress, every: float = 60.0, resend: bool = False
) -> AskSummary:
    """Ask the open questions through the providers' batch endpoints.

    Before anything is submitted to a judge that may give log-probabilities, one question is asked
    directly. Its answer shows which settings the server takes, which a batch could not learn.

    Args:
        study: the campaign and its plan.
        step: `submit` submits the open questions, `collect` collects the results of batches that
            ended, and `wait` repeats both until all results are collected.
        progress: receives notes.
        every: seconds between two polls, for `wait`.
        resend: whether to submit again the questions of batches that the provider does not list.

    Raises:
        InputError: no judge has a batch mode, a key is missing, or the folder is in use.
    """
    logged = LoggingProgress(progress)
    stops: dict[str, ElicitError] = {}
    judges = _batch_judges(study, logged)
    builders = builders_of(study, logged, judges, batch=True)
    if unprobed := _unprobed(study, judges) if step != "collect" else []:
        probe = await engine.ask(replace(study, probing=tuple(unprobed)), progress)
        if probe.interrupted:
            raise asyncio.CancelledError
        stops = {name: judge.stopped for name, judge in probe.judges.items() if judge.stopped}
    submitting = [name for name in builders if name not in stops]
    async with AsyncExitStack() as stack:
        clients = {
            judge.name: await stack.enter_async_context(open_batch_client(judge))
            for judge in judges
        }
        # One process at a time submits and collects, wherever the journal is.
        run = await stack.enter_async_context(open_run(study, logged, shared=False, lease=_LEASE))
        versions = VersionLog(study.campaign.aliases, run.journal.read(sql.versions_answered))
        runners = {
            name: BatchRunner(clients[name], builder, run, logged, versions)
            for name, builder in builders.items()
        }

        async def call_each(
            work: Callable[[BatchRunner], Awaitable[int]], names: Iterable[str] = runners
        ) -> int:
            """Call `work` for every judge and return the sum; an error stops its judge alone."""
            total = 0
            for name in names:
                try:
                    total += await work(runners[name])
                except Exception as error:
                    stops[name] = _stopping_error(name, clients[name], error)
            return total

        submit = partial(BatchRunner.submit, resend=resend)
        for _ in range(ROUNDS if step == "wait" else 1):
            sent = await call_each(submit, submitting) if step != "collect" else 0
            waiting = await call_each(BatchRunner.collect) if step != "submit" else 0
            while step == "wait" and waiting and len(stops) < len(runners):
                await asyncio.sleep(min(every, _LEASE / 2))
                waiting = await call_each(BatchRunner.collect)
            if waiting or not sent:
                break
        results = {
            name: JudgeSummary(Tally.of(run.journal.read(sql.totals, name)), stops.get(name))
            for name in study.judges
        }
        usd, _ = run.journal.read(sql.spent)
        summary = AskSummary(results, run.lost, interrupted=False, spent=usd)
        log_end(summary)
    return summary


def _batch_judges(study: Study, progress: Progress) -> list[Judge]:
    """Return the judges that are asked in batches, and note which are not.

    Raises:
        InputError: there are none, or a question cannot be asked in a batch.
    """
    campaign = study.campaign
    judges = [judge for judge in campaign.judges if judge.has_batches]
    if not judges:
        raise InputError(f"{campaign.name}: no judge has a batch mode; ask them without --batch")
    for judge in campaign.judges:
        if judge not in judges:
            progress.note(judge.name, "has no batch mode; ask it without --batch")
    if "likelihood" in study.direct.templates:
        raise InputError(
            "direct.likelihood: rows are not asked in batches; leave likelihood out for the "
            "batches, and add it for a run without --batch"
        )
    return judges


def _unprobed(study: Study, judges: Sequence[Judge]) -> list[Judge]:
    """Return the judges that may give log-probabilities and have made no choice yet."""
    if study.presentations[0].template.answer != "letter":
        return []
    candidates = [judge for judge in judges if not judge.choices_only]
    if not sql.is_begun(study.location):
        return candidates
    with sql.reading(study.location) as db:
        return [judge for judge in candidates if not sql.choices_of(db, judge.name)]


async def batch_statuses(study: Study) -> list[BatchStatus]:
    """Return the status of every batch of a run, as the providers report it; changes nothing.

    Raises:
        InputError: there is no journal in the folder, or a key is missing.
        JudgeError: a provider cannot be asked.
    """
    lines: list[BatchStatus] = []
    with sql.reading(study.location) as db:
        rows = {judge.name: batch_rows(db, judge.name) for judge in study.campaign.judges}
    for judge in study.campaign.judges:
        if not rows[judge.name]:
            continue
        async with open_batch_client(judge) as client:
            for row in rows[judge.name]:
                if row.state != "submitted" or row.batch is None:
                    lines.append(BatchStatus(judge.name, row.batch or row.tag, row.state))
                    continue
                try:
                    state = await client.state(row.batch)
                except Exception as error:
                    raise _stopping_error(judge.name, client, error) from None
                lines.append(
                    BatchStatus(judge.name, state.id, state.status, state.total, state.done)
                )
    return lines
