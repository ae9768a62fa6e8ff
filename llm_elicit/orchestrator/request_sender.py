"""One request: money set aside, its turn come, intent on the disk, sent, and what came of it."""

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
from llm_elicit.orchestrator import journal, tokens
from llm_elicit.orchestrator.budget import Amount, Budget
from llm_elicit.orchestrator.cache import RunCache
from llm_elicit.orchestrator.log import event, span
from llm_elicit.orchestrator.progress import Progress, Tally
from llm_elicit.orchestrator.rate_limit_headers import allowances
from llm_elicit.orchestrator.rate_sharing import RunLimiters
from llm_elicit.orchestrator.request_builder import RequestBuilder
from llm_elicit.orchestrator.request_identity import Identity
from llm_elicit.orchestrator.retries import Decision, History, Patience, classify
from llm_elicit.orchestrator.retry_queue import QueuedRequest
from llm_elicit.orchestrator.usage import known
from llm_elicit.orchestrator.writer import Writer
from llm_elicit.planning.pairs import Plan
from llm_elicit.questions import DirectWording, Template
from llm_elicit.spaces.features import FeatureSpace

_ENOUGH, _SLOW, _LATENCIES = 100, 2.0, 500
"""After so many answers a request is slow that takes longer than so many seconds and than ten times
the 99th percentile of the last so many."""


@dataclass
class RunContext:
    """What the judges of a run share. `deadline` is by `clock`, as everything here is."""

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
    clock: Callable[[], float] = time.monotonic
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    flying: dict[Identity, asyncio.Future[Reply | None]] = field(default_factory=dict)
    limiters: RunLimiters = field(default_factory=RunLimiters)


class RequestFailedError(Exception):
    """A request that failed, with what that means by itself."""

    def __init__(self, decision: Decision, failure: Failure) -> None:
        super().__init__(decision.reason)
        self.decision = decision
        self.failure = failure


class HaltedError(Exception):
    """The run, or the judge, was stopped before this request left, or the question is settled."""


class _DearerError(Exception):
    """While a request waited for its turn, others proved that more must be set aside for it."""


class RequestSender:
    """Sends one judge's requests, each once.

    Args:
        judge: who is asked.
        builder: knows the backend and what requests cost.
        context: what the run shares.
        tally: counts what is sent and what fails.
        halt: nothing more leaves once it is set; call `wake` as well.
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

    def cut_slow(self) -> None:
        """Give up first attempts that take far longer than others: a hang costs seconds.

        They may have been answered, so their worst case counts; the question is asked again, with
        the whole of the judge's timeout. A small share of requests is cut at most: a provider that
        has become slow is not asked twice for everything.
        """
        if self._tally.answered < _ENOUGH:
            return
        usual = sorted(self._latencies)[int(0.99 * len(self._latencies))] if self._latencies else 0
        now, longest = asyncio.get_running_loop().time(), max(_SLOW, 10.0 * usual)
        for limit, began in list(self._first_attempts.items()):
            if now - began < longest or self._cut >= 5 + 0.02 * self._tally.requests:
                return
            del self._first_attempts[limit]
            self._cut += 1
            limit.reschedule(now)

    def wake(self) -> None:
        """Let those who wait for their turn look whether to go on."""
        self._limiter.wake()

    async def send(self, queued: QueuedRequest) -> tuple[Reply, float]:
        """Ask once; returns the reply and how long it took, in seconds.

        Raises:
            RequestFailedError: it came to nothing.
            HaltedError: it was not sent.
            AdaptedError: the server refused a setting that can be done without.
            CapError: the campaign's cap leaves no room for it.
        """
        while True:
            try:
                return await self._reserved(queued)
            except _DearerError:
                continue

    async def _reserved(self, queued: QueuedRequest) -> tuple[Reply, float]:
        """Set the worst case aside, send, and turn it into what was paid."""
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
                await self._context.writer.write(journal.missed(question, 0.0))
                raise
            except RequestFailedError as error:
                paid = self._worst(queued) if error.decision.maybe_paid else Amount()
                await self._missed(question, error.decision, paid)
                raise
            except (HaltedError, _DearerError, ElicitError):
                raise
            except Exception:
                # A defect between sending and reading: it may have been answered.
                paid = worst
                await self._context.writer.write(journal.missed(question, worst.usd, worst.tokens))
                raise
            except asyncio.CancelledError:
                # Nobody will know whether it was answered.
                paid = self._worst(queued)
                raise
            paid = self._builder.paid(reply)
            return reply, self._context.clock() - sent_at
        finally:
            await self._context.budget.settle(worst, paid)

    def _worst(self, queued: QueuedRequest) -> Amount:
        """The most that a request can take, by all that is known now."""
        return self._builder.worst(queued.prepared.request, queued.prepared.body)

    async def _under_way(self, queued: QueuedRequest, worst: Amount, sent_at: float) -> Reply:
        """Send, wait for the answer, and tell the pace how it went."""
        limiter, told = self._limiter, False
        question, request = queued.question.id, queued.prepared.request
        try:
            if worst != self._worst(queued):
                raise _DearerError
            intent = journal.intent(question, worst.usd, worst.tokens)
            if not await self._context.writer.write(intent):
                raise HaltedError
            self._tally.requests += 1
            history = queued.history
            reply = await self._asked(request, first=history is not None and not history.attempts)
            self._latencies.append(self._context.clock() - sent_at)
            limiter.answered(sent_at, left=allowances(reply.headers), tokens=known(reply))
            told = True
            return await self._counted(request, reply)
        except (AdaptedError, _DearerError):
            raise
        except Exception as error:
            failure = self._backend.failure(error)
            if failure is None:
                raise
            decision = classify(failure)
            told = self._refused(sent_at, decision, failure)
            reason = self._backend.scrub(decision.reason)
            raise RequestFailedError(replace(decision, reason=reason), failure) from None
        finally:
            if not told:
                limiter.lost()

    def _refused(self, sent_at: float, decision: Decision, failure: Failure) -> bool:
        """Tell the limiter of a failure; returns whether it says anything of the pace."""
        limited = decision.kind == "rate limited"
        if not limited and (decision.kind != "transient" or failure.what == "malformed"):
            return False
        wait = (
            None if decision.wait is None else min(decision.wait, self._context.patience.provider)
        )
        self._limiter.refused(sent_at, wait=wait, left=allowances(failure.headers), limit=limited)
        return True

    async def _counted(self, request: Request, reply: Reply) -> Reply:
        """The reply with what it is charged; what that says of further ones is on record."""
        usage = self._builder.usage
        before = usage.raised
        counted = self._builder.counted(request, reply)
        if usage.raised != before:
            most = usage.raised
            await self._context.writer.raise_worst(self._judge.name, most.prompt, most.completion)
        return counted

    async def _asked(self, request: Request, first: bool) -> Reply:
        """One request under its span and its deadline."""
        model = self._backend.model
        with span(f"chat {model}", {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": model,
            "elicit.judge": self._judge.name,
        }) as current:  # fmt: skip
            # The SDK's timeout is for each read; a server that trickles would hold a slot.
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
        self._tally.errors += 1
        await self._context.writer.write(journal.missed(question, lost.usd, lost.tokens))
        event("request failed", WARNING, judge=self._judge.name, question=question,
              kind=decision.kind, reason=decision.reason)  # fmt: skip
