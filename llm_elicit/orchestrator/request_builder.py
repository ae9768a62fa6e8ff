"""Build a question's request, its price and its record, whether sent alone or in a batch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from llm_elicit.backends import Backend, Reply, Request, provider_of
from llm_elicit.backends.base import token_limit, without_key
from llm_elicit.backends.row_likelihood import request_count
from llm_elicit.comparisons.table import VersionChange
from llm_elicit.config.judges import Judge, without_folders
from llm_elicit.errors import InputError, VersionChangedError
from llm_elicit.orchestrator.budget import Amount, Price, Tokens, UsageCheck, max_prompt_tokens
from llm_elicit.orchestrator.cache import Identity, identify
from llm_elicit.orchestrator.journal.schema import Answer, Question, now, with_digest
from llm_elicit.orchestrator.judgments import TEXT
from llm_elicit.orchestrator.log_odds import unscored_because
from llm_elicit.orchestrator.open_run import Study
from llm_elicit.orchestrator.retries import History
from llm_elicit.planning.pairs import Query
from llm_elicit.questions.parse import read_answer

_encode = json.JSONEncoder(sort_keys=True).encode


@dataclass(eq=False)
class PreparedQuestion:
    """A question with its request.

    Attributes:
        question: the question.
        request: its rendered request.
        body: the request body to send.
        key: the key of its answer in the cache; None if answers are not cached.
        history: its failures so far; None before the first request.
    """

    question: Question
    request: Request
    body: dict[str, Any]
    key: Identity | None
    history: History | None = None


@dataclass(frozen=True)
class RequestBuilder:
    """Builds the requests of one judge.

    Attributes:
        study: what is asked.
        judge, backend: who is asked.
        price: the price of its tokens; None if unknown.
        usage: checks the token counts of its replies, and bounds those that are not plausible.
    """

    study: Study
    judge: Judge
    backend: Backend
    price: Price | None
    usage: UsageCheck

    @property
    def model_name(self) -> str:
        """The name of the model asked, without the folders of this machine."""
        return without_folders(self.backend.model)

    def check(self) -> None:
        """Check that the judge's requests can be built, and their worst case is known under a cap.

        Raises:
            InputError: the plan has direct questions, and the backend does not declare that it
                answers them; log-odds are required, and the backend or the template cannot give
                them; or there is a cap, and the requests of a plug-in set no limit on tokens.
        """
        judge, limits = self.judge, self.study.campaign.limits
        if self.study.plan.direct and not self.backend.capabilities.text:
            raise InputError(
                f"direct: judge {judge.name!r}: backend {judge.backend!r} does not declare that it "
                "answers direct questions (capabilities.text); remove `direct`, or that judge"
            )
        if "likelihood" in self.study.direct.templates and not self.backend.capabilities.likelihood:
            raise InputError(
                f"direct.likelihood: judge {judge.name!r}: backend {judge.backend!r} declares "
                "no log-probabilities of a text (capabilities.likelihood); leave "
                "out likelihood, or that judge"
            )
        if self.study.campaign.require and not self.backend.capabilities.logprobs:
            raise InputError(
                f"require: log_odds: judge {judge.name!r}: backend {judge.backend!r} does "
                "not declare that it gives log-probabilities (capabilities.logprobs); remove "
                "`require`, or that judge"
            )
        template = self.study.presentations[0].template
        if self.study.campaign.require and template.answer != "letter":
            raise InputError(
                f"require: log_odds: answers to {template.id} are not letters, so they have no "
                "log-odds; use another design.template, or remove `require`"
            )
        if (limits.max_cost, limits.max_tokens) == (None, None) or provider_of(judge).free:
            return
        first = Question(id=0, pair=0, order="ab", replicate=0, attempts=0, judge=judge.name)
        if not self.worst_case(self.prepare(first)).tokens:
            raise InputError(
                f"limits: judge {judge.name!r}: the requests of backend {judge.backend!r} set no "
                "limit on an answer's tokens, so a cap cannot be held; remove the cap or that judge"
            )

    @property
    def scores(self) -> bool:
        """Whether the backend can give log-probabilities."""
        return self.backend.capabilities.logprobs

    def prepare(self, question: Question) -> PreparedQuestion:
        """Return a question with its request."""
        request = self.request(question)
        body = self.backend.body(request)
        return PreparedQuestion(question, request, body, self._key(request, body))

    def renew(self, prepared: PreparedQuestion) -> None:
        """Prepare a question as it would be sent now: the backend may have dropped a setting."""
        body = self.backend.body(prepared.request)
        if body != prepared.body:
            prepared.body, prepared.key = body, self._key(prepared.request, body)

    def _key(self, request: Request, body: dict[str, Any]) -> Identity | None:
        backend = self.backend
        if not backend.cacheable:
            return None
        headers = getattr(backend, "headers", {})  # plug-ins need not have any
        return identify(backend.endpoint, backend.model, body, request.replicate, headers)

    def request(self, question: Question) -> Request:
        """Return the request of a question."""
        query = Query(question.pair, question.order, question.replicate)
        if query.direct:
            direct = self.study.direct.question(query)
            return Request(
                prompt=direct.prompt, points=direct.points, replicate=query.replicate,
                options=direct.template.options, max_tokens=direct.template.max_tokens,
                direct=direct, answer=direct.template.answer,
            )  # fmt: skip
        plan, presentation = self.study.plan, self.study.presentation(question.pair)
        template, (first, second) = presentation.template, plan.points_in_order(query)
        replicate = question.replicate
        if not len(self.study.space.numeric):
            # Categories alone make few distinct points, so that a pair may be drawn again. It is
            # asked again; otherwise one cached answer would count several times.
            replicate += plan.replicates * plan.asked_before(query)
        return Request(
            prompt=presentation.render(first, second), points=(first, second),
            replicate=replicate, options=presentation.options, max_tokens=template.max_tokens,
            answer=template.answer,
        )  # fmt: skip

    def options(self, question: Question) -> tuple[str, str]:
        """Return the letters of a question's options."""
        kind = Query(question.pair, question.order, question.replicate).kind
        if kind is None:
            return self.study.presentation(question.pair).options
        return self.study.direct.templates[kind].options

    def worst_case(self, prepared: PreparedQuestion) -> Amount:
        """Return what a request may cost at most; 0 if the judge is not a language model."""
        bound = self._token_bound(prepared.request, prepared.body)
        if bound is None:
            return Amount()  # not a language model
        worst = self.usage.worst_case(bound)
        usd = self.price.max_cost(*worst) if self.price else 0.0
        return Amount(usd, sum(worst))

    def worst_prompt_case(self, request: Request) -> Amount:
        """Return the most that a prompt may cost if it is read and not answered."""
        worst = max_prompt_tokens(request.prompt)
        return Amount(self.price.max_cost(worst, 0) if self.price else 0.0, worst)

    @staticmethod
    def _token_bound(request: Request, body: dict[str, Any]) -> Tokens | None:
        """Return the most tokens that a request can take by its own limit; None without one."""
        answer = token_limit(body)
        if answer is None:
            return None
        count = request_count(request, body)
        return Tokens(count * max_prompt_tokens(request.prompt), count * answer)

    def with_charges(self, prepared: PreparedQuestion, reply: Reply) -> Reply:
        """Return the reply with the tokens charged, without the judge's secrets."""
        scrubbed = without_key(reply, self.backend.scrub)
        body = reply.body or prepared.body  # replies from batches do not hold it
        return self.usage.with_charges(scrubbed, self._token_bound(prepared.request, body))

    def amount_of(self, reply: Reply) -> Amount:
        """Return what the reply cost."""
        used = reply.prompt_tokens + reply.completion_tokens
        return Amount(self.cost(reply) or 0.0, used)

    def cost(self, reply: Reply) -> float | None:
        """Return the cost of the reply in USD; None if the price is unknown."""
        if self.price is None:
            return None
        return self.price.cost(reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens)

    def answer(self, prepared: PreparedQuestion, reply: Reply, latency: float | None) -> Answer:
        """Return the row of the journal; `latency` is None if nothing was sent.

        The probability of a choice is from log-probabilities or stated by the judge; without
        either, it is 0 or 1. A tie has probability one half, and any other verdict none. Direct
        questions are parsed later.
        """
        question, request = prepared.question, prepared.request
        if request.direct:
            template, label = request.direct.template, ""
        else:
            presentation = self.study.presentation(question.pair)
            template, label = presentation.template, presentation.label
        cached, body = latency is None, reply.body or prepared.body
        settings = {k: v for k, v in body.items() if k not in ("messages", "system", "prompt")}
        if "model" in settings:
            settings["model"] = without_folders(str(settings["model"]))
        verdict: str = TEXT
        first = probability = None
        if request.answer != "text":
            read = read_answer(
                reply.text, request.answer, request.options, reply.finish, reply.first
            )
            verdict, first, probability = read.verdict, read.first, read.preference
        if probability is not None and question.order.endswith("ba"):
            probability = 1.0 - probability
        answer = Answer(
            template=template.id,
            prompt_hash=request.prompt.hash,
            endpoint=self.backend.endpoint,
            settings=_encode(settings),
            model_asked=self.model_name,
            model_answered=reply.model,
            fingerprint=reply.fingerprint,
            reply=reply.text,
            finish=reply.finish,
            verdict=verdict,
            first=first,
            letter_mass=reply.letter_mass,
            probability=probability,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            cached_tokens=reply.cached_tokens,
            cost=0.0 if cached else self.cost(reply),
            latency=latency or 0.0,
            cached=cached,
            asked_at=reply.kept_at or now(),
            thinking=reply.thinking,
            format=request.answer,
            presentation=label,
            censored=reply.censored if request.answer == "letter" and first is not None else 0,
            unscored=unscored_because(self.judge, reply, body, offered=self.scores)
            if request.answer == "letter" and verdict in ("A", "B")
            else "",
        )
        return with_digest(question, answer)


def refusal_reply(reason: str, body: dict[str, Any]) -> Reply:
    """Return the reply that a refused prompt counts as, with the provider's reason as its text."""
    return Reply(text=reason, finish="refusal", model="", body=body)


def several_versions_error(builder: RequestBuilder, change: VersionChange) -> VersionChangedError:
    """Return the error that stops a judge whose answers have to be of one version."""
    return VersionChangedError(
        f"judge {builder.judge.name!r} ({builder.model_name}): {change.line}; its answers so far "
        "are kept: run again without --strict-version to go on with several versions, or ask all "
        f"of them again with llm-elicit repeat {builder.study.folder}"
    )
