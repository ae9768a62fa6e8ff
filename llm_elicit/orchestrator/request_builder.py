"""What is the same for a question however it is sent: its request, its price, its record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llm_elicit.backends import Backend, Reply, Request, provider_of
from llm_elicit.backends.base import token_limit, without_key
from llm_elicit.config.campaign import Limits
from llm_elicit.config.judges import Judge
from llm_elicit.errors import InputError
from llm_elicit.orchestrator import journal, tokens
from llm_elicit.orchestrator.budget import Amount
from llm_elicit.orchestrator.journal import Answer, Question
from llm_elicit.orchestrator.judgments import judge_reply, settings_of
from llm_elicit.orchestrator.prices import Price
from llm_elicit.orchestrator.request_identity import Identity, identify
from llm_elicit.orchestrator.usage import Tokens, UsageCheck
from llm_elicit.planning.pairs import Plan, Query
from llm_elicit.questions import DirectWording, Template, render
from llm_elicit.spaces.features import FeatureSpace


@dataclass(frozen=True)
class Prepared:
    """A question ready to be put.

    Attributes:
        question: which one.
        request: it, worded.
        body: what would be sent for it.
        key: what its answer is kept under across runs; None where it is not worth keeping.
    """

    question: Question
    request: Request
    body: dict[str, Any]
    key: Identity | None


@dataclass(frozen=True)
class RequestBuilder:
    """One judge's paperwork.

    Attributes:
        space, plan, template: what is asked.
        backend: who is asked.
        price: what it costs; None where that is unknown.
        direct: words the questions that are not about pairs.
        usage: what its replies may take, and took.
    """

    space: FeatureSpace
    plan: Plan
    template: Template
    backend: Backend
    price: Price | None
    direct: DirectWording
    usage: UsageCheck = field(default_factory=UsageCheck)

    def prepared(self, question: Question) -> Prepared:
        """A question, ready to be put."""
        request = self.request(question)
        return self._prepared(question, request, self.backend.body(request))

    def renewed(self, before: Prepared) -> Prepared:
        """The same question as it would be put now: a backend may have given up a setting."""
        body = self.backend.body(before.request)
        if body == before.body:
            return before
        return self._prepared(before.question, before.request, body)

    def _prepared(self, question: Question, request: Request, body: dict[str, Any]) -> Prepared:
        return Prepared(question, request, body, self._key(request, body))

    def request(self, question: Question) -> Request:
        """The request for a question."""
        query = Query(question.pair, question.order, question.replicate)
        if query.direct:
            asked = self.direct.question(query)
            return Request(
                prompt=asked.prompt, points=asked.points, replicate=query.replicate,
                options=asked.template.options, max_tokens=asked.template.max_tokens,
                direct=asked, answer=asked.template.answer,
            )  # fmt: skip
        first, second = self.plan.shown(query)
        replicate = question.replicate
        if not len(self.space.numeric):
            # Few points differ in categories alone. A pair that is drawn again is asked anew: one
            # answer, looked up each time, would count as many.
            replicate += self.plan.replicates * self.plan.asked_before(query)
        return Request(
            prompt=render(self.space, first, second, self.template),
            points=(first, second),
            replicate=replicate,
            options=self.template.options,
            max_tokens=self.template.max_tokens,
            answer=self.template.answer,
        )

    def options(self, question: Question) -> tuple[str, str]:
        """The letters of a question's options."""
        kind = Query(question.pair, question.order, question.replicate).kind
        return (self.template if kind is None else self.direct.templates[kind]).options

    def key(self, request: Request) -> Identity | None:
        """What the answer is kept under across runs; None where it is not worth keeping."""
        return self._key(request, self.backend.body(request))

    def _key(self, request: Request, body: dict[str, Any]) -> Identity | None:
        if not self.backend.cacheable:
            return None
        return identify(self.backend.endpoint, self.backend.model, body, request.replicate)

    def worst(self, request: Request, body: dict[str, Any] | None = None) -> Amount:
        """The most that the request can take; `body` is what it is sent as, if that is known."""
        bound = self._bound(request, body or self.backend.body(request))
        if bound is None:
            return Amount()  # a judge that is no language model
        most = self.usage.worst(bound)
        usd = self.price.most(most.prompt, most.completion) if self.price else 0.0
        return Amount(usd, most.prompt + most.completion)

    @staticmethod
    def _bound(request: Request, body: dict[str, Any]) -> Tokens | None:
        """What a request takes at most, if it is counted rightly and its limit kept."""
        answer = token_limit(body)
        return None if answer is None else Tokens(tokens.most(request.prompt), answer)

    def counted(self, request: Request, reply: Reply) -> Reply:
        """The reply with the tokens that it is charged, and without the judge's key."""
        whole = without_key(reply, self.backend.scrub)
        return self.usage.counted(whole, self._bound(request, self._body(request, reply)))

    def _body(self, request: Request, reply: Reply) -> dict[str, Any]:
        """What was sent for a reply; those from batches do not hold it."""
        return reply.body or self.backend.body(request)

    def paid(self, reply: Reply) -> Amount:
        """What the reply took."""
        used = reply.prompt_tokens + reply.completion_tokens
        return Amount(self.cost(reply) or 0.0, used)

    def cost(self, reply: Reply) -> float | None:
        """USD of the reply; None where no price is known."""
        if self.price is None:
            return None
        return self.price.cost(reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens)

    def answer(
        self, question: Question, request: Request, reply: Reply, latency: float | None
    ) -> Answer:
        """The row to keep. No latency means that nothing was sent for it."""
        template = request.direct.template if request.direct else self.template
        judgment = judge_reply(reply, request, question.order)
        cached = latency is None
        answer = Answer(
            template=template.id,
            prompt_hash=request.prompt.hash,
            endpoint=self.backend.endpoint,
            settings=settings_of(self._body(request, reply)),
            model_asked=self.backend.model,
            model_answered=reply.model,
            reply=reply.text,
            finish=reply.finish,
            verdict=judgment.verdict,
            first=judgment.first,
            letter_mass=reply.letter_mass,
            probability=judgment.probability,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            cached_tokens=reply.cached_tokens,
            cost=0.0 if cached else self.cost(reply),
            latency=latency or 0.0,
            cached=cached,
            asked_at=journal.now(),
            thinking=reply.thinking,
            format=request.answer,
        )
        return Answer(**vars(answer) | {"digest": journal.digest_of(question, answer)})


def check_worst(limits: Limits, judge: Judge, builder: RequestBuilder) -> None:
    """Refuse a cap where a plug-in's requests do not say how long an answer may get.

    Raises:
        InputError: there is a cap, and the worst case of a request cannot be known.
    """
    capped = limits.max_cost is not None or limits.max_tokens is not None
    if not capped or provider_of(judge).free:
        return
    first = Question(id=0, pair=0, order="ab", replicate=0, attempts=0, judge=judge.name)
    if not builder.worst(builder.request(first)).tokens:
        raise InputError(
            f"limits: judge {judge.name!r}: the requests of backend {judge.backend!r} set no limit "
            "on an answer's tokens, so a cap cannot be held; remove the cap or that judge"
        )


def check_direct(plan: Plan, judge: Judge, backend: Backend) -> None:
    """Refuse direct questions to a backend that knows of pairs alone.

    Raises:
        InputError: there are some, and the backend does not say that it answers in words.
    """
    if plan.direct and not backend.capabilities.text:
        raise InputError(
            f"direct: judge {judge.name!r}: backend {judge.backend!r} does not say that it answers "
            "direct questions (capabilities.text); leave out direct, or that judge"
        )
