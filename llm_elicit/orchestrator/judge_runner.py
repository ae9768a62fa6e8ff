"""Ask one judge all its questions."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from logging import ERROR, WARNING

from llm_elicit.backends import Backend, Reply
from llm_elicit.backends.base import AdaptedError, Unscored
from llm_elicit.config.judges import Judge
from llm_elicit.errors import ElicitError, IncompleteError, JudgeError
from llm_elicit.orchestrator.cache import worth_keeping
from llm_elicit.orchestrator.journal.schema import (
    Answer,
    Question,
    Totals,
    answered,
    failed,
    missed,
    quarantined,
)
from llm_elicit.orchestrator.judgments import AnswerSummary, worth
from llm_elicit.orchestrator.log import event
from llm_elicit.orchestrator.prices import Price
from llm_elicit.orchestrator.progress import Tally, unscored_notes
from llm_elicit.orchestrator.request_builder import Prepared, RequestBuilder, refusal
from llm_elicit.orchestrator.request_sender import (
    HaltedError,
    RequestFailedError,
    RequestSender,
    RunContext,
)
from llm_elicit.orchestrator.retries import Decision, weigh, wording
from llm_elicit.orchestrator.retry_queue import QueuedRequest, RetryQueue
from llm_elicit.orchestrator.tokens import Tokens, UsageCheck
from llm_elicit.orchestrator.writer import Claims

_TICK = 1.0
"""Seconds between two checks of the clock, and at most between two reports of the counts."""


class JudgeRunner:
    """Asks one judge's questions with as many concurrent requests as the judge takes.

    A question that waits for its next attempt goes back into the queue and takes no slot.
    """

    def __init__(
        self, judge: Judge, backend: Backend, price: Price | None, context: RunContext
    ) -> None:
        self._judge = judge
        self._backend = backend
        self._context = context
        self._rng = random.Random()
        self._halt = asyncio.Event()
        self._in_a_row = 0
        self._refused_alike: Counter[str] = Counter()
        self._worth = AnswerSummary()
        self._models: set[str] = set()
        self._suspicion: ElicitError | None = None
        self._last_answer = context.clock()
        self._last_failure: str | None = None
        self._was_readable = False
        self._malformed: dict[str, int] = {}
        self._adaptations: set[str] = set()
        self._unscored: Counter[Unscored] = Counter()
        self._stopped: ElicitError | None = None
        self.tally = Tally(cost=0.0 if price else None)
        self._usage = UsageCheck(partial(context.progress.note, judge.name))
        self._builder = RequestBuilder(
            context.space,
            context.plan,
            context.template,
            backend,
            price,
            context.direct,
            self._usage,
        )

    def begin(self, so_far: Totals, models: Iterable[str] = ()) -> None:
        """Add the counts of earlier runs, and the models that answered in them."""
        self._models.update(filter(None, models))
        self.tally.total, self.tally.done = so_far.total, so_far.done
        self.tally.prompt_tokens = so_far.prompt_tokens
        self.tally.completion_tokens = so_far.completion_tokens
        if self.tally.cost is not None:
            self.tally.cost = so_far.cost

    async def run(self, claims: Claims) -> ElicitError | None:
        """Ask all questions; return the error that stopped the judge early, if any."""
        self._show()
        if self.tally.done == self.tally.total or self._context.stopping.is_set():
            return None
        try:
            self._usage.raised = Tokens(*await self._context.writer.worst(self._judge.name))
            async with self._backend:
                await self._ask_all(claims)
        except ElicitError as error:
            self._stopped = error
        self._show()
        for note in unscored_notes(self._unscored):
            self._context.progress.note(self._judge.name, note)
        if isinstance(self._stopped, IncompleteError):
            self._stopped = self._unusable()  # with the answers that were in flight
        if self._stopped is not None:
            self._context.progress.note(self._judge.name, str(self._stopped))
        return self._stopped

    async def _ask_all(self, claims: Claims) -> None:
        self.tally.began = time.monotonic()
        self._last_answer = self._context.clock()
        self._queue = RetryQueue(claims, self._context.clock)
        self._sender = RequestSender(
            self._judge, self._builder, self._context, self.tally, self._halt
        )
        workers = min(self._judge.concurrency, self.tally.total - self.tally.done)
        watch = asyncio.create_task(self._watch())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._work())
        finally:
            watch.cancel()
            self._queue.close()

    async def _watch(self) -> None:
        """Report the counts, and halt on the user's request, at the deadline, or on a stall."""
        context = self._context
        while not context.stopping.is_set() and self._stopped is None:
            left = context.deadline - context.clock()
            if left <= 0.0:
                self._stopped = JudgeError(
                    f"judge {self._judge.name!r}: limits.deadline is over; its answers so far are "
                    "kept: run again to go on"
                )
                break
            if (why := self._stalled()) is not None:
                self._stopped = self._ended(why)
                break
            self._show()
            self._sender.cut_slow()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(context.stopping.wait(), min(left, _TICK))
        self._close()

    def _stalled(self) -> str | None:
        """Return why the judge counts as down: requests fail and none was answered for too long."""
        silent = self._context.clock() - self._last_answer
        if self._last_failure is None or silent < self._context.patience.stall_timeout:
            return None
        return f"no answer for {silent:.0f} s: {self._last_failure}"

    def _close(self) -> None:
        """Send nothing more; answers in flight are still waited for."""
        self._halt.set()
        self._queue.close()
        self._sender.wake()

    async def _work(self) -> None:
        try:
            while (queued := await self._queue.take()) is not None:
                due: float | None = None
                try:
                    due = await self._attempt(queued)
                except ElicitError as error:
                    # The other answers in flight are still waited for.
                    self._stop(error)
                except Exception as defect:
                    await self._broken(queued.question, defect)
                finally:
                    if due is None:
                        self._queue.finish()
                    else:
                        self._queue.put_back(queued, due)
                    if self._suspicion is not None and self._queue.idle:
                        self._stop(self._suspicion)
                self._show()
        except ElicitError as error:
            self._stop(error)
        except Exception as defect:
            event("judge stopped", ERROR, defect, judge=self._judge.name)
            self._stop(self._ended(_said(defect)))

    async def _broken(self, question: Question, defect: Exception) -> None:
        """End one question after an unexpected exception; the others continue."""
        event("unexpected error", ERROR, defect, judge=self._judge.name, question=question.id)
        await self._give_up(question, Decision("no", _said(defect)), refused=False)

    def _ended(self, reason: str, error: type[ElicitError] = JudgeError) -> ElicitError:
        """Return the error that stops the judge."""
        return error(
            f"judge {self._judge.name!r} ({self._backend.model}): {reason}; "
            "its answers so far are kept: correct this and run again"
        )

    def _unusable(self) -> ElicitError:
        """Return the error that stops a judge whose answers are hardly usable."""
        return IncompleteError(
            f"judge {self._judge.name!r} ({self._backend.model}): {self._worth.unusable_line()} "
            "(this needs another name of the campaign), or set limits.unusable: null to ask on"
        )

    def _stop(self, error: ElicitError) -> None:
        self._stopped = self._stopped or error
        self._close()

    async def serve(self, questions: list[Question]) -> list[Prepared]:
        """Answer questions from the cache, which takes no slot; return the others."""
        page = await self._prepared(questions)
        known = self._context.cache.get_all([one.key for one in page if one.key])
        hits = [
            (
                one.question,
                self._builder.answer(one.question, one.request, known[one.key.key], None),
            )
            for one in page
            if one.key and one.key.key in known
        ]
        await self._context.writer.write_all(
            [answered(question.id, answer) for question, answer in hits]
        )
        for _, answer in hits:
            self._count(answer)
        self._show()
        return [one for one in page if one.key is None or one.key.key not in known]

    async def _prepared(self, questions: list[Question]) -> list[Prepared]:
        """Return the questions with their requests; give up those that cannot be rendered."""
        page = []
        for question in questions:
            try:
                page.append(self._builder.prepared(question))
            except ElicitError:
                raise
            except Exception as defect:
                await self._broken(question, defect)
            if self._halt.is_set():
                break  # the others stay open
        return page

    async def _attempt(self, queued: QueuedRequest) -> float | None:
        """Ask a question; return the time of its retry, or None if there is none."""
        try:
            await self._answer(queued)
        except RequestFailedError as error:
            return await self._failed(queued, error)
        except HaltedError:
            pass  # it was not sent and stays open
        return None

    async def _answer(self, queued: QueuedRequest) -> None:
        """Answer one question: from the cache, by an equal request in flight, or by asking."""
        while True:
            queued.prepared = prepared = self._builder.renewed(queued.prepared)
            key = prepared.key
            equal = self._context.in_flight.get(key) if key else None
            if equal is not None:
                reply = await asyncio.shield(equal)
                if reply is None:
                    continue  # that request failed
            else:
                reply = self._context.cache.get(key) if key else None
            if reply is not None:
                await self._record(prepared, reply, latency=None)
                return
            try:
                await self._send(queued)
            except AdaptedError as change:
                self._note_adaptation(str(change))
                continue
            return

    def _note_adaptation(self, change: str) -> None:
        """Note once what several requests in flight have learned."""
        if change not in self._adaptations:
            self._adaptations.add(change)
            self._context.progress.note(self._judge.name, change)

    async def _send(self, queued: QueuedRequest) -> None:
        """Ask, record the answer, and share it with equal requests."""
        prepared, key = queued.prepared, queued.prepared.key
        landed: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        reply: Reply | None = None
        if key:
            self._context.in_flight[key] = landed
        try:
            reply, latency = await self._sender.send(queued)
            answer = await self._paid(prepared, reply, latency)
            # Another request may have made the backend drop a setting meanwhile.
            if key and reply.body == prepared.body and worth_keeping(reply, answer.verdict):
                self._context.cache.put(key, reply, answer.asked_at)
        finally:
            if key:
                del self._context.in_flight[key]
            landed.set_result(reply)

    async def _failed(self, queued: QueuedRequest, error: RequestFailedError) -> float | None:
        """Return the time of the question's next attempt, or None if there is none."""
        history, context = queued.history, self._context
        assert history is not None
        if error.decision.kind == "prompt refused":
            reply = refusal(error.decision.reason, queued.prepared.body)
            await self._record(queued.prepared, reply, latency=0.0)
            return None
        self._suspect_malformed(queued.question, error)
        history.add(error.decision, error.failure, self.tally.answered)
        now = context.clock()
        decision = weigh(error.decision, history, self._judge.attempts, context.patience, now)
        self._last_failure = decision.reason
        if decision.kind in ("transient", "rate limited"):
            failures = history.refusals or history.attempts
            # Only this question waits; the rate limiter decides about others.
            return now + context.patience.pause(decision, max(failures, 1), self._rng)
        if self._halt.is_set() and error.decision.kind in ("transient", "rate limited"):
            return None  # interrupted, not given up: the next run asks it
        lasting = error.decision.kind == "no" or error.failure.what == "malformed"
        if lasting and decision.kind == "no" and queued.question.given_up and self.tally.done:
            reason = f"in two runs: {decision.reason}"
            decision = replace(decision, kind="question is set aside", reason=reason)
        await self._give_up(queued.question, decision, refused=error.decision.kind == "no")
        return None

    def _suspect_malformed(self, question: Question, error: RequestFailedError) -> None:
        """Stop the judge after the second equal malformed answer, unless one in flight is readable.

        After a readable answer of this run it may be an outage, in which a proxy answers; if
        earlier runs have answers, it may be the question.
        """
        if error.failure.what != "malformed" or self._was_readable:
            return
        first = self._malformed.get(error.failure.said)
        self._malformed.setdefault(error.failure.said, question.id)
        if first is not None and (first != question.id or not self.tally.done):
            reason = f"twice the same {error.decision.reason}"
            self._suspicion = self._suspicion or self._ended(reason)
            self._queue.held = self._queue.retries_held = True

    async def _give_up(self, question: Question, decision: Decision, refused: bool) -> None:
        """Give a question up; stop the judge if all its questions end so.

        Args:
            question: the question.
            decision: why.
            refused: whether the request was refused. That takes less time than an answer, so the
                outcome of the other requests in flight is awaited first.
        """
        set_aside = decision.kind == "question is set aside"
        change = quarantined if set_aside else failed
        if not await self._context.writer.write(change(question.id, decision.reason)):
            return  # another worker has answered it or asks it now
        self.tally.failed += 1
        event("question given up", WARNING, judge=self._judge.name, question=question.id,
              kind=decision.kind, reason=decision.reason)  # fmt: skip
        self._in_a_row += 1
        patience, alike = self._context.patience, wording(decision.reason)
        self._refused_alike[alike] += refused and not self.tally.answered
        if decision.stops is not None:
            self._stop(self._ended(decision.reason, decision.stops))
        elif (
            self._in_a_row >= patience.down or self._refused_alike[alike] >= patience.same_refusals
        ):
            if not refused:
                self._stop(self._ended(decision.reason))
            elif self._suspicion is None:
                self._suspicion, self._queue.held = self._ended(decision.reason), True

    async def _paid(self, prepared: Prepared, reply: Reply, latency: float) -> Answer:
        """Record an answer that was paid; if it cannot be recorded, record its cost."""
        try:
            return await self._record(prepared, reply, latency)
        except ElicitError:
            raise
        except Exception:
            paid = self._builder.paid(reply)
            change = missed(prepared.question.id, paid.usd, paid.tokens)
            await self._context.writer.write(change)
            raise

    async def _record(self, prepared: Prepared, reply: Reply, latency: float | None) -> Answer:
        """Commit the answer, then count it; `latency` is None if nothing was sent."""
        question = prepared.question
        self._unscored[reply.unscored] += 1
        self._was_readable |= latency is not None
        answer = self._builder.answer(question, prepared.request, reply, latency)
        await self._context.writer.write(answered(question.id, answer))
        self._count(answer)
        return answer

    def _count(self, answer: Answer) -> None:
        tally = self.tally
        self._in_a_row = 0
        if self._suspicion is not None:
            self._suspicion = None
            self._queue.held = self._queue.retries_held = False
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
        """Say if another model answers; stop the judge if hardly any answer is usable."""
        model = answer.model_answered
        if model and model not in self._models:
            if self._models:
                before = ", ".join(sorted(self._models))
                line = f"answers now come from {model!r}, so far from {before}"
                self._context.progress.note(self._judge.name, line)
            self._models.add(model)
        value = worth(answer.verdict, answer.probability, answer.reply, answer.finish)
        self._worth.add(value, answer.reply, answer.settings)
        if self._stopped is None and self._worth.hardly_usable(self._context.unusable):
            self._stop(self._unusable())

    def _show(self) -> None:
        self._context.progress.tally(self._judge.name, self.tally)


def _said(defect: Exception) -> str:
    """Return an unexpected exception on one line."""
    said = " ".join(str(defect).split())[:200]
    return f"unexpected {type(defect).__name__}: {said}" if said else type(defect).__name__
