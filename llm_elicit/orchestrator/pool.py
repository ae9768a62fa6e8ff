"""Asking one judge all its questions."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field, replace
from logging import WARNING

import tenacity

from llm_elicit.backends import Backend, Reply, Request
from llm_elicit.backends.base import AdaptedError
from llm_elicit.campaign import Judge
from llm_elicit.errors import ElicitError, JudgeError
from llm_elicit.features import FeatureSpace
from llm_elicit.orchestrator import journal, tokens
from llm_elicit.orchestrator.budget import Amount, Budget
from llm_elicit.orchestrator.cache import Cache, cache_key, worth_keeping
from llm_elicit.orchestrator.journal import Question, Totals
from llm_elicit.orchestrator.judgments import judge_reply, settings_of
from llm_elicit.orchestrator.log import event
from llm_elicit.orchestrator.prices import Price
from llm_elicit.orchestrator.progress import Progress, Tally
from llm_elicit.orchestrator.retries import Decision, Patience, classify
from llm_elicit.orchestrator.spans import span
from llm_elicit.orchestrator.writer import Claims, Writer
from llm_elicit.plan import Plan, Query
from llm_elicit.questions import Template, render

DOWN_AFTER = 5
"""So many questions given up in a row, with no answer between, mean that the judge is down."""


@dataclass
class Desk:
    """What the judges of a run share."""

    space: FeatureSpace
    plan: Plan
    template: Template
    writer: Writer
    cache: Cache
    budget: Budget
    progress: Progress
    patience: Patience
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    flying: dict[str, asyncio.Future[Reply | None]] = field(default_factory=dict)


class _FailedError(Exception):
    """A request that failed, with what that means."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.reason)
        self.decision = decision


class _HaltedError(Exception):
    """The run, or the judge, was stopped before this request left."""


class Pool:
    """One judge's questions, asked by as many workers as it takes at once."""

    def __init__(self, judge: Judge, backend: Backend, price: Price | None, desk: Desk) -> None:
        self._judge = judge
        self._backend = backend
        self._price = price
        self._desk = desk
        self._rng = random.Random()
        self._resume_at = 0.0
        self._in_a_row = 0
        self._stopped: ElicitError | None = None
        self.tally = Tally(cost=0.0 if price else None)

    def begin(self, so_far: Totals) -> None:
        """Take up the counts of earlier runs."""
        self.tally.total, self.tally.done = so_far.total, so_far.done
        self.tally.prompt_tokens = so_far.prompt_tokens
        self.tally.completion_tokens = so_far.completion_tokens
        if self.tally.cost is not None:
            self.tally.cost = so_far.cost

    async def run(self, claims: Claims) -> ElicitError | None:
        """Ask all of them; returns the error that stopped the judge before the end, if any."""
        self._show()
        if self.tally.done == self.tally.total or self._desk.stopping.is_set():
            return None
        try:
            async with self._backend:
                self.tally.began = time.monotonic()
                workers = min(self._judge.concurrency, self.tally.total - self.tally.done)
                async with asyncio.TaskGroup() as group:
                    for _ in range(workers):
                        group.create_task(self._work(claims))
        except ElicitError as error:
            self._stopped = error
        self._show()
        if self._stopped is not None:
            self._desk.progress.note(self._judge.name, str(self._stopped))
        return self._stopped

    async def _work(self, claims: Claims) -> None:
        while not self._halted:
            try:
                question = await claims.next()
                if question is None or self._halted:
                    return
                await self._see_to(question)
            except ElicitError as error:
                # The other workers' answers are under way: they are waited for, not thrown away.
                self._stopped = self._stopped or error
            self._show()

    async def _see_to(self, question: Question) -> None:
        try:
            await self._put(question)
        except _FailedError as failure:
            await self._give_up(question, failure.decision)
        except _HaltedError:
            return  # it was not sent, so it stays as it was

    @property
    def _halted(self) -> bool:
        """Whether nothing more is to be sent."""
        return self._stopped is not None or self._desk.stopping.is_set()

    async def _put(self, question: Question) -> None:
        """Have one question answered: from the cache, from a twin in flight, or by asking."""
        request = self._request(question)
        while True:
            key = self._key(request)
            twin = self._desk.flying.get(key) if key else None
            if twin is not None:
                reply = await asyncio.shield(twin)
                if reply is None:
                    continue  # the twin came to nothing
            else:
                reply = self._desk.cache.get(key) if key else None
            if reply is not None:
                await self._record(question, request, reply, latency=None)
                return
            try:
                await self._fly(question, request, key)
            except AdaptedError as change:
                self._desk.progress.note(self._judge.name, str(change))
                continue
            return

    async def _fly(self, question: Question, request: Request, key: str | None) -> None:
        """Ask, record the answer, and let twins have it."""
        landed: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        reply: Reply | None = None
        if key:
            self._desk.flying[key] = landed
        try:
            reply, latency = await self._ask(question, request)
            verdict = await self._record(question, request, reply, latency)
            if key and key == self._key(request) and worth_keeping(reply, verdict):
                self._desk.cache.put(key, reply, journal.now())
        finally:
            if key:
                del self._desk.flying[key]
            landed.set_result(reply)

    async def _ask(self, question: Question, request: Request) -> tuple[Reply, float]:
        """Ask until there is an answer or no sense in going on."""
        retrying = tenacity.AsyncRetrying(
            stop=self._enough,
            retry=tenacity.retry_if_exception(self._again),
            wait=self._pause,
            sleep=self._sleep,
            reraise=True,
        )
        answer: tuple[Reply, float] = await retrying(self._send, question, request)
        return answer

    async def _send(self, question: Question, request: Request) -> tuple[Reply, float]:
        """One request: money set aside, intent on the disk, then off it goes."""
        await self._cool_down()
        worst = self._worst(request)
        await self._desk.budget.reserve(worst)
        paid = Amount()
        try:
            if self._halted:
                raise _HaltedError
            await self._desk.writer.write(journal.intent(question.id, worst.usd, worst.tokens))
            self.tally.requests += 1
            began = time.monotonic()
            # Until it is known that nothing was charged, it counts as paid.
            paid = worst
            try:
                reply = await self._asked(request)
            except AdaptedError:
                paid = Amount()
                await self._desk.writer.write(journal.missed(question.id, 0.0))
                raise
            except Exception as error:
                decision = classify(error)
                if decision is None:
                    raise
                paid = worst if decision.maybe_paid else Amount()
                await self._missed(question, paid)
                clean = self._clean(decision)
                event("request failed", WARNING, judge=self._judge.name, question=question.id,
                      kind=clean.kind, reason=clean.reason)  # fmt: skip
                raise _FailedError(clean) from None
            used = reply.prompt_tokens + reply.completion_tokens
            paid = Amount(self._cost(reply) or 0.0, used)
            text = self._backend.scrub(reply.text)
            return replace(reply, text=text), time.monotonic() - began
        finally:
            await self._desk.budget.settle(worst, paid)

    async def _asked(self, request: Request) -> Reply:
        """One request under its span."""
        model = self._backend.model
        with span(f"chat {model}", {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": model,
            "elicit.judge": self._judge.name,
        }) as current:  # fmt: skip
            reply = await self._backend.ask(request)
            current.set_attribute("gen_ai.response.model", reply.model)
            current.set_attribute("gen_ai.usage.input_tokens", reply.prompt_tokens)
            current.set_attribute("gen_ai.usage.output_tokens", reply.completion_tokens)
        return reply

    async def _missed(self, question: Question, lost: Amount) -> None:
        self.tally.errors += 1
        await self._desk.writer.write(journal.missed(question.id, lost.usd, lost.tokens))
        self._show()

    def _clean(self, decision: Decision) -> Decision:
        """The decision with no key in its reason, should a server have echoed it."""
        return replace(decision, reason=self._backend.scrub(decision.reason))

    def _again(self, error: BaseException) -> bool:
        return isinstance(error, _FailedError) and error.decision.kind != "no"

    def _enough(self, state: tenacity.RetryCallState) -> bool:
        return self._halted or state.attempt_number >= self._judge.attempts

    def _pause(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        if not isinstance(error, _FailedError):
            return 0.0
        pause = self._desk.patience.pause(error.decision, state.attempt_number, self._rng)
        if error.decision.kind == "rate limited":
            # The limit is the judge's, not the question's: all workers wait.
            self._resume_at = max(self._resume_at, time.monotonic() + pause)
            return 0.0
        return pause

    async def _cool_down(self) -> None:
        while (left := self._resume_at - time.monotonic()) > 0 and not self._desk.stopping.is_set():
            await self._sleep(left)

    async def _sleep(self, seconds: float) -> None:
        """Sleep, or return at once when the run is asked to stop."""
        try:
            await asyncio.wait_for(self._desk.stopping.wait(), seconds)
        except TimeoutError:
            return

    def _stop(self, decision: Decision) -> ElicitError:
        kind = decision.stops or JudgeError
        return kind(
            f"judge {self._judge.name!r} ({self._backend.model}): {decision.reason}; "
            "its answers so far are kept: correct this and run again"
        )

    async def _give_up(self, question: Question, decision: Decision) -> None:
        if self._desk.stopping.is_set() and decision.kind != "no":
            return  # not given up, only interrupted: the next run asks it
        self.tally.failed += 1
        await self._desk.writer.write(journal.failed(question.id, decision.reason))
        event("question given up", WARNING, judge=self._judge.name, question=question.id,
              reason=decision.reason)  # fmt: skip
        self._in_a_row += 1
        from_the_start = decision.kind == "no" and self.tally.answered == 0
        if decision.stops is not None or from_the_start or self._in_a_row >= DOWN_AFTER:
            self._stopped = self._stopped or self._stop(decision)

    async def _record(
        self, question: Question, request: Request, reply: Reply, latency: float | None
    ) -> str:
        """Commit the answer, then count it. No latency means that nothing was sent for it."""
        verdict, probability = judge_reply(reply, request.options, question.order)
        cached = latency is None
        cost = 0.0 if cached else self._cost(reply)
        answer = journal.Answer(
            template=self._desk.template.id,
            prompt_hash=request.prompt.hash,
            endpoint=self._backend.endpoint,
            settings=settings_of(self._backend.body(request)),
            model_asked=self._backend.model,
            model_answered=reply.model,
            reply=reply.text,
            finish=reply.finish,
            verdict=verdict,
            first=reply.first,
            letter_mass=reply.letter_mass,
            probability=probability,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            cached_tokens=reply.cached_tokens,
            cost=cost,
            latency=latency or 0.0,
            cached=cached,
            asked_at=journal.now(),
        )
        await self._desk.writer.write(journal.answered(question.id, answer))
        self._count(answer)
        return verdict

    def _count(self, answer: journal.Answer) -> None:
        tally = self.tally
        self._in_a_row = 0
        tally.done += 1
        tally.answered += 1
        tally.cached += answer.cached
        tally.prompt_tokens += answer.prompt_tokens
        tally.completion_tokens += answer.completion_tokens
        if tally.cost is not None:
            tally.cost += answer.cost or 0.0

    def _request(self, question: Question) -> Request:
        desk = self._desk
        query = Query(question.pair, question.order, question.replicate)
        first, second = desk.plan.shown(query)
        return Request(
            prompt=render(desk.space, first, second, desk.template),
            points=(first, second),
            replicate=question.replicate,
            options=desk.template.options,
            max_tokens=desk.template.max_tokens,
        )

    def _key(self, request: Request) -> str | None:
        if not self._backend.cacheable:
            return None
        body = self._backend.body(request)
        return cache_key(self._backend.endpoint, self._backend.model, body, request.replicate)

    def _cost(self, reply: Reply) -> float | None:
        if self._price is None:
            return None
        return self._price.cost(reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens)

    def _worst(self, request: Request) -> Amount:
        body = self._backend.body(request)
        answer = int(body.get("max_tokens") or body.get("max_completion_tokens") or 0)
        if not answer:
            return Amount()  # a judge that is no language model
        prompt = tokens.most(request.prompt)
        return Amount(self._price.most(prompt, answer) if self._price else 0.0, prompt + answer)

    def _show(self) -> None:
        self._desk.progress.tally(self._judge.name, self.tally)
