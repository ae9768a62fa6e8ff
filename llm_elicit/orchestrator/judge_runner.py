"""Ask one judge all of its questions.

Two functions serve a question. `_attempt` takes its answer from the cache or from an equal request
in flight, or else calls `_request`, which reserves the worst case, waits for the rate limiter,
records in the journal that it is about to send, sends, and settles what was paid. It returns how
the request ended: `Answered`, `Failed`, `SettingDropped` or `NotSent`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from logging import ERROR, WARNING

from llm_elicit.backends import Reply, Request
from llm_elicit.backends.base import SettingDroppedError
from llm_elicit.backends.failures import Failure, describe, shorten
from llm_elicit.comparisons.table import version_of
from llm_elicit.config.judges import without_folders
from llm_elicit.errors import ElicitError, IncompleteError, JudgeError
from llm_elicit.orchestrator import retries
from llm_elicit.orchestrator.budget import Amount, Tokens, max_prompt_tokens, plausible_tokens
from llm_elicit.orchestrator.cache import is_reusable
from llm_elicit.orchestrator.journal.questions import worst_case
from llm_elicit.orchestrator.journal.schema import (
    Answer,
    Question,
    Totals,
    record_answer,
    record_failure,
    record_loss,
    record_quarantine,
    record_sending,
)
from llm_elicit.orchestrator.judgments import AnswerSummary, usability
from llm_elicit.orchestrator.log_odds import LogOdds
from llm_elicit.orchestrator.progress import Tally, log_event, span
from llm_elicit.orchestrator.rate_limiter import allowances
from llm_elicit.orchestrator.request_builder import (
    PreparedQuestion,
    RequestBuilder,
    refusal_reply,
    several_versions_error,
)
from llm_elicit.orchestrator.reuse import FIRST_ANSWER_TIMEOUT, CacheReader, RunContext
from llm_elicit.orchestrator.writer import RequestQueue

_TICK = 1.0
"""Seconds between two checks of the clock, and at most between two reports of the counts."""


class JudgeRunner:
    """Asks one judge's questions with as many concurrent requests as the judge takes.

    A question that waits for its next attempt goes back into the queue and takes no slot.

    Args:
        builder: builds the judge's requests.
        context: what the judges of the run share.
        so_far: the counts of the run so far.
        log_odds: which of the choices so far have log-odds.
    """

    def __init__(
        self, builder: RequestBuilder, context: RunContext, so_far: Totals, log_odds: LogOdds
    ) -> None:
        self._judge = builder.judge
        self._backend = builder.backend
        self._builder = builder
        self._context = context
        self._rng = random.Random()
        self._halt = asyncio.Event()
        self._slow = retries.SlowRequests()
        self._consecutive_failures = 0
        self._equal_refusals: Counter[str] = Counter()
        self._summary = AnswerSummary()
        self._pending_error: ElicitError | None = None
        self._last_answer = context.clock()
        self._last_failure: str | None = None
        self._was_readable = False
        self._malformed: dict[str, int] = {}
        self._adaptations: set[str] = set()
        self._unscored = log_odds.unscored
        self._first_answer = asyncio.Event()
        self._reuse = CacheReader(builder, context, self._first_answer)
        self._stopped: ElicitError | None = None
        self.tally = Tally(
            total=so_far.total, done=so_far.done, prompt_tokens=so_far.prompt_tokens,
            completion_tokens=so_far.completion_tokens,
            cost=so_far.cost if builder.price else None, log_odds=log_odds,
        )  # fmt: skip

    async def run(self) -> ElicitError | None:
        """Ask all questions; return the error that stopped the judge early, if any."""
        self._check_version()
        self._show()
        if (
            self._stopped is not None
            or self.tally.done == self.tally.total
            or self._context.stopping.is_set()
        ):
            return self._stopped
        try:
            writer = self._context.writer
            worst = await writer.read(worst_case, self._judge.name)
            self._builder.usage.raised = Tokens(*worst)
            async with self._backend:
                version = getattr(self._backend, "weights_version", None)
                if isinstance(version, str):  # of weights on this machine
                    self._reuse.learn(version)
                await self._ask_all()
        except ElicitError as error:
            self._stopped = error
        self._show()
        log_odds = self.tally.log_odds
        if log_odds.scored and log_odds.unscored > self._unscored:
            self._context.progress.note(self._judge.name, log_odds.line)
        if isinstance(self._stopped, IncompleteError):
            self._stopped = self._unusable_error()  # with the answers that were in flight
        if self._stopped is not None:
            self._context.progress.note(self._judge.name, str(self._stopped))
        return self._stopped

    async def _ask_all(self) -> None:
        self.tally.began = time.monotonic()
        context = self._context
        self._last_answer = context.clock()
        self._queue = RequestQueue(
            context.writer, self._judge.name, self._serve, context.stopping, context.clock
        )
        self._limiter = context.limiters.of(self._judge, self._backend)
        workers = min(self._judge.concurrency, self.tally.total - self.tally.done)
        watch = asyncio.create_task(self._watch())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._work())
                if getattr(self._judge, "logprobs", False):
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._first_answer.wait(), FIRST_ANSWER_TIMEOUT)
                for _ in range(workers - 1):
                    group.create_task(self._work())
        finally:
            watch.cancel()
            self._queue.close()

    async def _watch(self) -> None:
        """Report the counts, and halt on the user's request, at the deadline, or on a stall."""
        context = self._context
        while not context.stopping.is_set() and self._stopped is None:
            if error := context.deadline_error(self._judge.name):
                self._stopped = error
                break
            silent = context.clock() - self._last_answer
            if self._last_failure is not None and silent >= context.retry_policy.stall_timeout:
                self._stopped = self._stop_error(
                    f"no answer for {silent:.0f} s: {self._last_failure}"
                )
                break
            self._show()
            self._slow.cancel_slow(self.tally)
            await context.wait_for_stop(_TICK)
        self._close()

    def _close(self) -> None:
        """Send no more requests; the answers in flight are awaited."""
        self._halt.set()
        self._queue.close()
        self._limiter.wake()

    async def _work(self) -> None:
        try:
            while (queued := await self._queue.next_request()) is not None:
                due: float | None = None
                try:
                    due = await self._attempt(queued)
                except ElicitError as error:
                    # The other answers in flight are awaited.
                    self._stop(error)
                except Exception as defect:
                    await self._give_up_after_defect(queued.question, defect)
                finally:
                    self._first_answer.set()
                    if self._builder.study.probing:
                        self._close()  # the other questions stay open
                    if due is None:
                        self._queue.finish()
                    else:
                        self._queue.put_back(queued, due)
                    if self._pending_error is not None and self._queue.idle:
                        self._stop(self._pending_error)
                self._show()
        except ElicitError as error:
            self._stop(error)
        except Exception as defect:
            log_event("judge stopped", ERROR, defect, judge=self._judge.name)
            self._stop(self._stop_error(f"unexpected {shorten(describe(defect))}"))
        finally:
            self._first_answer.set()

    async def _give_up_after_defect(self, question: Question, defect: Exception) -> None:
        """End one question after an unexpected exception; the others continue."""
        log_event("unexpected error", ERROR, defect, judge=self._judge.name, question=question.id)
        decision = retries.Decision("no", f"unexpected {shorten(describe(defect))}")
        await self._give_up(question, decision, refused=False)

    def _stop_error(self, reason: str, error: type[ElicitError] = JudgeError) -> ElicitError:
        """Return the error that stops the judge."""
        return error(
            f"judge {self._judge.name!r} ({self._builder.model_name}): {reason}; "
            "its answers so far are kept: correct this and run again"
        )

    def _unusable_error(self) -> ElicitError:
        """Return the error that stops a judge whose answers are hardly usable."""
        return IncompleteError(
            f"judge {self._judge.name!r} ({self._builder.model_name}): "
            f"{self._summary.unusable_line()}, and rename the campaign to ask anew; or set "
            "limits.unusable: null to continue"
        )

    def _stop(self, error: ElicitError) -> None:
        self._stopped = self._stopped or error
        if self.tally.began:  # else nothing is under way
            self._close()

    async def _serve(self, questions: list[Question]) -> list[PreparedQuestion]:
        """Answer questions from the cache, which takes no slot; return the others.

        Those that cannot be rendered are given up.
        """
        prepared = []
        for question in questions:
            try:
                prepared.append(self._reuse.prepare(question))
            except ElicitError:
                raise
            except Exception as defect:
                await self._give_up_after_defect(question, defect)
            if self._halt.is_set():
                break  # the others stay open
        page, replies = await self._reuse.replies(prepared)
        answers = {
            item.question.id: self._builder.answer(item, replies[item.key.key], None)
            for item in page
            if item.key and item.key.key in replies
        }
        await self._context.writer.write_all([record_answer(*item) for item in answers.items()])
        for answer in answers.values():
            self._count(answer)
        self._show()
        return [item for item in page if item.question.id not in answers]

    async def _attempt(self, queued: PreparedQuestion) -> float | None:
        """Answer a question from the cache, by an equal request in flight, or by asking.

        Returns:
            The time of the question's next attempt; None if there is none.
        """
        context = self._context
        while True:
            self._builder.renew(queued)
            key = queued.key
            equal = context.in_flight.get(key) if key else None
            if equal is not None:
                await equal.done.wait()
                reply = equal.reply
                if reply is None:
                    continue  # that request failed
            else:
                reply = await self._reuse.reply(key) if key else None
            if reply is not None:
                await self._record(queued, reply, latency=None)
                return None
            self._reuse.has_sent = True
            with context.sharing(key) as shared:
                ending = await self._request(queued)
                if isinstance(ending, retries.Answered):
                    reply = shared.reply = ending.reply
                    self._reuse.learn(reply.model)
                    answer = await self._record_paid(queued, reply, ending.latency)
                    # Another request may have made the backend drop a setting meanwhile.
                    if key and reply.body == queued.body and is_reusable(reply, answer.verdict):
                        context.cache.put(key, reply, answer.asked_at)
            match ending:
                case retries.SettingDropped(change):
                    if change not in self._adaptations:  # several in flight learn it
                        self._adaptations.add(change)
                        context.progress.note(self._judge.name, change)
                case retries.Failed():
                    return await self._schedule_retry(queued, ending)
                case _:
                    return None  # answered, or it stays open

    async def _request(
        self, queued: PreparedQuestion
    ) -> retries.Answered | retries.Failed | retries.SettingDropped | retries.NotSent:
        """Reserve the worst case of a request, send it once, and settle the cost.

        Raises:
            CapError: the campaign's cap leaves no room for it.
        """
        context, question, request = self._context, queued.question.id, queued.request
        while True:
            worst = self._builder.worst_case(queued)
            await context.budget.reserve(worst)
            # `reported`: whether the rate limiter knows how the request ended.
            paid, sent_at, reported = Amount(), None, True
            try:
                sent_at = await self._limiter.enter(self._halt, max_prompt_tokens(request.prompt))
                if sent_at is None:
                    return retries.NotSent()
                reported = False
                history = queued.history = queued.history or retries.History(began=sent_at)
                if worst != self._builder.worst_case(queued):
                    continue  # it rose while the request waited, so more must be reserved
                paid = worst  # until it is known: the request may have been answered
                if not await context.writer.write(record_sending(question, *worst)):
                    paid = Amount()
                    return retries.NotSent()
                self.tally.requests += 1
                reply = await self._ask(request, first=not history.attempts)
                self._slow.latencies.append(context.clock() - sent_at)
                self._limiter.record_answer(
                    sent_at, limits=allowances(reply.headers), tokens=plausible_tokens(reply)
                )
                reported = True
                reply = await self._charge_tokens(queued, reply)
                paid = self._builder.amount_of(reply)
                return retries.Answered(reply, context.clock() - sent_at)
            except SettingDroppedError as change:
                ending: retries.Failed | retries.SettingDropped = retries.SettingDropped(
                    str(change)
                )
                paid = Amount()
            except Exception as error:
                failure = self._backend.failure(error)
                if failure is None or sent_at is None:
                    if isinstance(error, ElicitError):
                        paid = Amount()
                    elif sent_at is not None:  # a bug between sending and reading
                        await context.writer.write(record_loss(question, *worst))
                    raise
                decision = retries.classify(failure)
                reported = self._report_failure(sent_at, decision, failure)
                ending = retries.Failed(
                    replace(decision, reason=self._backend.scrub(decision.reason)), failure
                )
                paid = self._possible_cost(queued, decision)
            finally:
                if not reported:
                    self._limiter.record_failure()
                context.budget.settle(worst, paid)
            await context.writer.write(record_loss(question, *paid))
            return ending

    async def _ask(self, request: Request, *, first: bool) -> Reply:
        """Send a request within a span, and limit its time."""
        model = self._builder.model_name
        with span(f"chat {model}", {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": model,
            "elicit.judge": self._judge.name,
        }) as current:  # fmt: skip
            # The SDK's timeout is for each read: a slow trickle of bytes would never time out.
            async with self._slow.timeout(self._judge.timeout, first=first):
                reply = await self._backend.ask(request)
            if current.is_recording():
                answered_by = without_folders(self._backend.scrub(reply.model))
                current.set_attribute("gen_ai.response.model", answered_by)
                current.set_attribute("gen_ai.usage.input_tokens", reply.prompt_tokens)
                current.set_attribute("gen_ai.usage.output_tokens", reply.completion_tokens)
        return reply

    def _possible_cost(self, queued: PreparedQuestion, decision: retries.Decision) -> Amount:
        """Return what a failed request may have cost; the worst case if that is unknown."""
        if decision.kind == "prompt refused":
            return self._builder.worst_prompt_case(queued.request)  # filters may be charged
        return self._builder.worst_case(queued) if decision.maybe_paid else Amount()

    def _report_failure(self, sent_at: float, decision: retries.Decision, failure: Failure) -> bool:
        """Report a failure to the rate limiter; return False if it does not depend on the rate."""
        is_limit = decision.kind == "rate limited"
        if not is_limit and (decision.kind != "transient" or failure.kind == "malformed"):
            return False
        wait = (
            None
            if decision.wait is None
            else min(decision.wait, self._context.retry_policy.provider)
        )
        self._limiter.record_refusal(
            sent_at, wait=wait, limits=allowances(failure.headers), limit=is_limit
        )
        return True

    async def _charge_tokens(self, queued: PreparedQuestion, reply: Reply) -> Reply:
        """Return the reply with the tokens charged; record a worst case that rose."""
        usage = self._builder.usage
        previous = usage.raised
        charged = self._builder.with_charges(queued, reply)
        if usage.raised != previous:
            writer = self._context.writer
            await writer.call(writer.journal.raise_worst, self._judge.name, *usage.raised)
        return charged

    async def _schedule_retry(
        self, queued: PreparedQuestion, ending: retries.Failed
    ) -> float | None:
        """Return the time of the question's next attempt; None if it is answered or given up."""
        history, context = queued.history, self._context
        assert history is not None
        if ending.decision.kind == "prompt refused":
            reply = refusal_reply(ending.decision.reason, queued.body)
            await self._record(queued, reply, latency=0.0)
            return None
        kind = ending.decision.kind
        self.tally.errors += 1
        self.tally.failures[kind] = self.tally.failures.get(kind, 0) + 1
        log_event("request failed", WARNING, judge=self._judge.name, question=queued.question.id,
              kind=kind, reason=ending.decision.reason)  # fmt: skip
        self._check_malformed(queued.question, ending)
        history.add(ending.decision, ending.failure, self.tally.answered)
        now = context.clock()
        decision = retries.decide(
            ending.decision, history, self._judge.attempts, context.retry_policy, now
        )
        self._last_failure = decision.reason
        if decision.kind in ("transient", "rate limited"):
            failures = history.refusals or history.attempts
            # Only this question waits; the rate limiter decides about others.
            return now + context.retry_policy.pause(decision, max(failures, 1), self._rng)
        if self._halt.is_set() and ending.decision.kind in ("transient", "rate limited"):
            return None  # interrupted, not given up: the next run asks it
        is_lasting = ending.decision.kind == "no" or ending.failure.kind == "malformed"
        if is_lasting and decision.kind == "no" and queued.question.given_up and self.tally.done:
            reason = f"in two runs: {decision.reason}"
            decision = replace(decision, kind="question is set aside", reason=reason)
        await self._give_up(queued.question, decision, refused=ending.decision.kind == "no")
        return None

    def _check_malformed(self, question: Question, ending: retries.Failed) -> None:
        """Stop the judge after two answers malformed in the same way, if none was readable.

        The stop waits for the requests in flight, and a readable answer revokes it. Nothing is done
        after a readable answer of this run, since then a proxy may be answering during an outage.
        If earlier runs have answers, the two must be to different questions, since one question
        may be at fault.
        """
        if ending.failure.kind != "malformed" or self._was_readable:
            return
        first = self._malformed.get(ending.failure.message)
        self._malformed.setdefault(ending.failure.message, question.id)
        if first is not None and (first != question.id or not self.tally.done):
            reason = f"the same failure twice: {ending.decision.reason}"
            self._pending_error = self._pending_error or self._stop_error(reason)
            self._queue.paused = self._queue.retries_paused = True

    async def _give_up(self, question: Question, decision: retries.Decision, refused: bool) -> None:
        """Give a question up; stop the judge if all its questions end so.

        Args:
            question: the question.
            decision: why.
            refused: whether the request was refused. That takes less time than an answer, so the
                outcome of the other requests in flight is awaited first.
        """
        set_aside = decision.kind == "question is set aside"
        change = record_quarantine if set_aside else record_failure
        if not await self._context.writer.write(change(question.id, decision.reason)):
            return  # another worker has answered it or asks it now
        self.tally.failed += 1
        log_event("question given up", WARNING, judge=self._judge.name, question=question.id,
              kind=decision.kind, reason=decision.reason)  # fmt: skip
        self._consecutive_failures += 1
        policy, reason = self._context.retry_policy, retries.strip_numbers(decision.reason)
        self._equal_refusals[reason] += refused and not self.tally.answered
        if decision.stops is not None:
            self._stop(self._stop_error(decision.reason, decision.stops))
        elif (
            self._consecutive_failures >= policy.max_consecutive
            or self._equal_refusals[reason] >= policy.same_refusals
        ):
            if not refused:
                self._stop(self._stop_error(decision.reason))
            elif self._pending_error is None:
                self._pending_error, self._queue.paused = self._stop_error(decision.reason), True

    async def _record_paid(
        self, prepared: PreparedQuestion, reply: Reply, latency: float
    ) -> Answer:
        """Record an answer that was paid; if it cannot be recorded, record its cost."""
        try:
            return await self._record(prepared, reply, latency)
        except ElicitError:
            raise
        except Exception:
            change = record_loss(prepared.question.id, *self._builder.amount_of(reply))
            await self._context.writer.write(change)
            raise

    async def _record(
        self, prepared: PreparedQuestion, reply: Reply, latency: float | None
    ) -> Answer:
        """Commit the answer, then count it; `latency` is None if nothing was sent."""
        question = prepared.question
        self._was_readable |= latency is not None
        answer = self._builder.answer(prepared, reply, latency)
        await self._context.writer.write(record_answer(question.id, answer))
        self._count(answer)
        return answer

    def _count(self, answer: Answer) -> None:
        tally = self.tally
        self._consecutive_failures = 0
        if self._pending_error is not None:
            self._pending_error = None
            self._queue.paused = self._queue.retries_paused = False
            self._queue.wake()
        self._last_answer, self._last_failure = self._context.clock(), None
        tally.done += 1
        tally.answered += 1
        tally.cached += answer.cached
        tally.prompt_tokens += answer.prompt_tokens
        tally.completion_tokens += answer.completion_tokens
        if tally.cost is not None:
            tally.cost += answer.cost or 0.0
        self._check(answer)

    def _check(self, answer: Answer) -> None:
        """Report a new version or a lack of log-odds; stop the judge if that is not allowed."""
        version = version_of(answer.model_answered, answer.fingerprint)
        change = self._context.versions.add(self._judge.name, version, answer.asked_at)
        if change is not None:
            self._context.progress.note(self._judge.name, change.line)
        self._check_version()
        note = partial(self._context.progress.note, self._judge.name)
        required = self._context.require is not None
        missing = self.tally.log_odds.take(answer, note, required=required)
        if missing is not None:
            self._stop(self._stop_error(missing))
        value = usability(answer.verdict, answer.probability, answer.reply, answer.finish)
        self._summary.add(value, answer.reply, answer.settings)
        if self._stopped is None and self._summary.mostly_unusable(self._context.unusable):
            self._stop(self._unusable_error())

    def _check_version(self) -> None:
        """Report a change of the version; stop the judge if `strict_version` is set."""
        change = self._context.versions.change(self._judge.name)
        if change is None:
            return
        self.tally.change = change.line
        if self._builder.study.strict_version:
            self._stop(several_versions_error(self._builder, change))

    def _show(self) -> None:
        self._context.progress.tally(self._judge.name, self.tally)
