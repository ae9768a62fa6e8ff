"""Send one request: reserve its worst case, wait for the rate limiter, record, send, settle."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from logging import WARNING

from llm_elicit.backends import Reply, Request
from llm_elicit.backends.base import AdaptedError
from llm_elicit.backends.failures import Failure
from llm_elicit.config.judges import Judge
from llm_elicit.errors import ElicitError
from llm_elicit.orchestrator import tokens
from llm_elicit.orchestrator.budget import Amount, Budget
from llm_elicit.orchestrator.cache import Identity, RunCache
from llm_elicit.orchestrator.journal.schema import intent, missed
from llm_elicit.orchestrator.log import event, span
from llm_elicit.orchestrator.progress import Progress, Tally
from llm_elicit.orchestrator.rate_limit_headers import allowances
from llm_elicit.orchestrator.rate_sharing import RunLimiters
from llm_elicit.orchestrator.request_builder import RequestBuilder
from llm_elicit.orchestrator.retries import Decision, History, Patience, classify
from llm_elicit.orchestrator.retry_queue import QueuedRequest
from llm_elicit.orchestrator.tokens import known
from llm_elicit.orchestrator.writer import Writer
from llm_elicit.planning.pairs import Plan
from llm_elicit.questions import DirectWording, Template
from llm_elicit.spaces.features import FeatureSpace

_ENOUGH, _SLOW, _LATENCIES = 100, 2.0, 500
"""A request is slow if it takes longer than `_SLOW` seconds and ten times the 99th percentile of
the last `_LATENCIES` answers; at least `_ENOUGH` answers are needed to tell."""

_STALLED = 1.5
"""Longer times between two checks, which come every second, show that this process itself was
stalled: answers may be there and not read yet."""


@dataclass
class RunContext:
    """What the judges of a run share.

    Attributes:
        deadline: a time of `clock`.
        unusable: see `llm_elicit.config.campaign.Limits`.
    """

    space: FeatureSpace
    plan: Plan
    template: Template
    direct: DirectWording
    writer: Writer
    cache: RunCache
    budget: Budget
    progress: Progress
    patience: Patience
    deadline: float = math.inf
    unusable: int | None = None
    clock: Callable[[], float] = time.monotonic
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    in_flight: dict[Identity, asyncio.Future[Reply | None]] = field(default_factory=dict)
    limiters: RunLimiters = field(default_factory=RunLimiters)


class RequestFailedError(Exception):
    """A request failed."""

    def __init__(self, decision: Decision, failure: Failure) -> None:
        super().__init__(decision.reason)
        self.decision = decision
        self.failure = failure


class HaltedError(Exception):
    """The request was not sent: the run or judge stops, or another worker has the question."""


class _DearerError(Exception):
    """The worst case of a request rose while it waited, so more must be reserved for it."""


class RequestSender:
    """Sends one judge's requests, each once.

    Args:
        judge: the judge.
        builder: builds requests and knows their price.
        context: what the judges of the run share.
        tally: the judge's counts, updated here.
        halt: once it is set, nothing more is sent; call `wake` after setting it.
    """

    def __init__(
        self,
        judge: Judge,
        builder: RequestBuilder,
        context: RunContext,
        tally: Tally,
        halt: asyncio.Event,
    ) -> None:
        self._judge = judge
        self._builder = builder
        self._backend = builder.backend
        self._context = context
        self._tally = tally
        self._halt = halt
        self._limiter = context.limiters.of(judge, builder.backend)
        self._latencies: deque[float] = deque(maxlen=_LATENCIES)
        self._first_attempts: dict[asyncio.Timeout, float] = {}
        self._cut = 0
        self._checked = math.inf

    def cut_slow(self) -> None:
        """Cancel first attempts that take far longer than others, so that a hang costs seconds.

        They may have been answered, so their worst case counts as spent. The question is asked
        again with the judge's full timeout. Only a small share of requests is cancelled, so that a
        provider that became slow is not asked everything twice. Call it once a second.
        """
        now = asyncio.get_running_loop().time()
        stalled, self._checked = now - self._checked > _STALLED, now
        if stalled or self._tally.answered < _ENOUGH:
            return
        usual = sorted(self._latencies)[int(0.99 * len(self._latencies))] if self._latencies else 0
        longest = max(_SLOW, 10.0 * usual)
        for limit, began in list(self._first_attempts.items()):
            if now - began < longest or self._cut >= 5 + 0.02 * self._tally.requests:
                return
            del self._first_attempts[limit]
            self._cut += 1
            limit.reschedule(now)

    def wake(self) -> None:
        """Let requests that wait for the rate limiter check whether to stop."""
        self._limiter.wake()

    async def send(self, queued: QueuedRequest) -> tuple[Reply, float]:
        """Send a request once; return the reply and its latency in seconds.

        Raises:
            RequestFailedError: the request failed.
            HaltedError: it was not sent.
            AdaptedError: the server refused a setting that can be omitted.
            CapError: the campaign's cap leaves no room for it.
        """
        while True:
            try:
                return await self._reserved(queued)
            except _DearerError:
                continue

    async def _reserved(self, queued: QueuedRequest) -> tuple[Reply, float]:
        """Reserve the worst case, send, and replace the reservation by what was paid."""
        question, request = queued.question.id, queued.prepared.request
        worst = self._worst(queued)
        await self._context.budget.reserve(worst)
        paid = Amount()
        try:
            sent_at = await self._limiter.enter(self._halt, tokens.most(request.prompt))
            if sent_at is None:
                raise HaltedError
            queued.history = queued.history or History(began=sent_at)
            try:
                reply = await self._under_way(queued, worst, sent_at)
            except AdaptedError:
                await self._context.writer.write(missed(question, 0.0))
                raise
            except RequestFailedError as error:
                paid = self._maybe_paid(queued, error.decision)
                await self._missed(question, error.decision, paid)
                raise
            except (HaltedError, _DearerError, ElicitError):
                raise
            except Exception:
                # A bug between sending and reading: the request may have been answered.
                paid = worst
                await self._context.writer.write(missed(question, worst.usd, worst.tokens))
                raise
            except asyncio.CancelledError:
                # The request may have been answered.
                paid = self._worst(queued)
                raise
            paid = self._builder.paid(reply)
            return reply, self._context.clock() - sent_at
        finally:
            self._context.budget.settle(worst, paid)

    def _worst(self, queued: QueuedRequest) -> Amount:
        """Return the worst case of a request, as known now."""
        return self._builder.worst(queued.prepared.request, queued.prepared.body)

    def _maybe_paid(self, queued: QueuedRequest, decision: Decision) -> Amount:
        """Return what a failed request may have cost."""
        if decision.kind == "prompt refused":
            return self._builder.worst_prompt(queued.prepared.request)  # filters may be charged
        return self._worst(queued) if decision.maybe_paid else Amount()

    async def _under_way(self, queued: QueuedRequest, worst: Amount, sent_at: float) -> Reply:
        """Send, wait for the answer, and report the outcome to the rate limiter."""
        limiter, reported = self._limiter, False
        question, request = queued.question.id, queued.prepared.request
        try:
            if worst != self._worst(queued):
                raise _DearerError
            reserved = intent(question, worst.usd, worst.tokens)
            if not await self._context.writer.write(reserved):
                raise HaltedError
            self._tally.requests += 1
            history = queued.history
            reply = await self._asked(request, first=history is not None and not history.attempts)
            self._latencies.append(self._context.clock() - sent_at)
            limiter.answered(sent_at, left=allowances(reply.headers), tokens=known(reply))
            reported = True
            return await self._counted(request, reply)
        except (AdaptedError, _DearerError):
            raise
        except Exception as error:
            failure = self._backend.failure(error)
            if failure is None:
                raise
            decision = classify(failure)
            reported = self._refused(sent_at, decision, failure)
            reason = self._backend.scrub(decision.reason)
            raise RequestFailedError(replace(decision, reason=reason), failure) from None
        finally:
            if not reported:
                limiter.lost()

    def _refused(self, sent_at: float, decision: Decision, failure: Failure) -> bool:
        """Report a failure to the rate limiter; return whether it was about the rate at all."""
        limited = decision.kind == "rate limited"
        if not limited and (decision.kind != "transient" or failure.what == "malformed"):
            return False
        wait = (
            None if decision.wait is None else min(decision.wait, self._context.patience.provider)
        )
        self._limiter.refused(sent_at, wait=wait, left=allowances(failure.headers), limit=limited)
        return True

    async def _counted(self, request: Request, reply: Reply) -> Reply:
        """Return the reply with the tokens charged; record a worst case that rose."""
        usage = self._builder.usage
        before = usage.raised
        counted = self._builder.counted(request, reply)
        if usage.raised != before:
            most = usage.raised
            await self._context.writer.raise_worst(self._judge.name, most.prompt, most.completion)
        return counted

    async def _asked(self, request: Request, first: bool) -> Reply:
        """Send the request within its span and its timeout."""
        model = self._backend.model
        with span(f"chat {model}", {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": model,
            "elicit.judge": self._judge.name,
        }) as current:  # fmt: skip
            # The SDK's timeout is for each read: a slow trickle of bytes would never time out.
            async with asyncio.timeout(self._judge.timeout) as limit:
                if first:
                    self._first_attempts[limit] = asyncio.get_running_loop().time()
                try:
                    reply = await self._backend.ask(request)
                finally:
                    self._first_attempts.pop(limit, None)
            answered_by = self._backend.scrub(reply.model)
            current.set_attribute("gen_ai.response.model", answered_by)
            current.set_attribute("gen_ai.usage.input_tokens", reply.prompt_tokens)
            current.set_attribute("gen_ai.usage.output_tokens", reply.completion_tokens)
        return reply

    async def _missed(self, question: int, decision: Decision, lost: Amount) -> None:
        await self._context.writer.write(missed(question, lost.usd, lost.tokens))
        if decision.kind == "prompt refused":
            return  # the runner records it as an answer
        self._tally.errors += 1
        self._tally.failures[decision.kind] = self._tally.failures.get(decision.kind, 0) + 1
        event("request failed", WARNING, judge=self._judge.name, question=question,
              kind=decision.kind, reason=decision.reason)  # fmt: skip
