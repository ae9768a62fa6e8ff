"""What is known before a campaign: its requests, tokens and cost, and what one answer shows.

An estimate sends nothing. A check asks a judge one question: about its server, its log-odds and its
cost.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice
from operator import add
from types import MappingProxyType
from typing import Any

from llm_elicit.backends import Request, open_backend, provider_of
from llm_elicit.backends.base import Notify, SettingDroppedError, ignore_note, without_key
from llm_elicit.backends.providers import expected_thinking
from llm_elicit.config.campaign import Campaign, Limits
from llm_elicit.config.judges import THINKING_ROOM, Judge
from llm_elicit.errors import JudgeError
from llm_elicit.orchestrator.budget import Amount, Price, cached_prefix_tokens, counter, price_of
from llm_elicit.orchestrator.judgments import MeasuredTokens
from llm_elicit.orchestrator.log_odds import LogOdds, unscored_because
from llm_elicit.orchestrator.open_run import wording_of
from llm_elicit.orchestrator.rate_limiter import Allowance, allowances
from llm_elicit.orchestrator.retries import classify
from llm_elicit.planning.pairs import FORMS, Plan
from llm_elicit.questions.numbers import LEVELS
from llm_elicit.questions.parse import read_answer
from llm_elicit.questions.presentation import Presentation, presentations_of
from llm_elicit.questions.template import Prompt, Template
from llm_elicit.spaces.features import FeatureSpace

Answered = Mapping[str, Mapping[str, int]]
"""Number of questions each judge has answered, by form."""

_NUMBER_TOKENS = 4
"""Tokens of one number in an answer of several, with its separator."""

_THINKING_RESERVE_FACTOR = 4
"""The tokens reserved for thinking are assumed to be this many times those that are used."""

_MAX_CHANGES = 5
"""Largest number of settings that may be dropped before the check gives up."""


@dataclass(frozen=True)
class JudgeEstimate:
    """The estimate for one judge.

    Attributes:
        judge, model: the judge's name and its model.
        requests: number of questions still to be asked.
        prompt_tokens: tokens of all prompts.
        cached_tokens: tokens of the prompts that the provider will bill as cached.
        completion_tokens: tokens of all answers, with their thinking.
        exact: whether the prompts were counted by the provider's own tokenizer.
        measured: the number of answers whose tokens the provider counted, on which the estimate
            rests, those to a pilot's other templates included; 0 if the tokens of an answer are
            assumed.
        cost: USD for these tokens; None if the price is unknown.
        low, high: a 95 % interval of `cost` if tokens were measured; else from no thinking to all
            that is reserved for it. None if the price is unknown.
        most: USD if every answer reached its token limit and nothing were cached; None if the
            price is unknown.
        batch: `cost` in the provider's batch mode; None if it has none.
    """

    judge: str
    model: str
    requests: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    exact: bool = False
    measured: int = 0
    cost: float | None = 0.0
    low: float | None = 0.0
    high: float | None = 0.0
    most: float | None = 0.0
    batch: float | None = None

    def __add__(self, other: JudgeEstimate) -> JudgeEstimate:
        """Return the sum of two estimates of one judge; unknown if either is unknown."""
        sums: dict[str, Any] = {}
        for name in _SUMMED:
            first, second = getattr(self, name), getattr(other, name)
            sums[name] = None if first is None or second is None else first + second
        return replace(self, **sums)


_SUMMED = (
    "requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost", "low", "high",
    "most", "batch",
)  # fmt: skip


def example_prompts(campaign: Campaign, space: FeatureSpace, plan: Plan) -> list[Prompt]:
    """Return three questions about pairs and one of each other kind, in their final wording.

    Raises:
        InputError: a template does not exist or cannot be filled in.
    """
    by_presentation = list(_prompts_by_presentation(campaign, space, plan, 3).values())
    has_several = len(by_presentation) > 1
    prompts = (
        [prompts[0] for prompts in by_presentation][:3] if has_several else by_presentation[0][:3]
    )
    wording = wording_of(campaign, space, plan)
    first_of_kind = {query.kind: query for query in reversed(plan.direct)}
    return prompts + [wording.question(query).prompt for query in first_of_kind.values()]


def _prompts_by_presentation(
    campaign: Campaign, space: FeatureSpace, plan: Plan, count: int
) -> dict[Presentation, list[Prompt]]:
    """Return the first questions of the plan as they will be sent, by presentation.

    At least `count`, and so many that every presentation occurs among them.

    Raises:
        InputError: a template does not exist or cannot be filled in.
    """
    presentations = presentations_of(campaign.design, space, campaign.seed)
    prompts: dict[Presentation, list[Prompt]] = {}
    for query in islice(plan, max(count, 8 * len(presentations) * plan.replicates)):
        presentation = presentations[plan.presentation(query.pair)]
        prompt = presentation.render(*plan.points_in_order(query))
        prompts.setdefault(presentation, []).append(prompt)
    return prompts


def estimate(
    campaign: Campaign,
    space: FeatureSpace,
    plan: Plan,
    answered: Answered = MappingProxyType({}),
    measured: Mapping[str, MeasuredTokens] = MappingProxyType({}),
    samples: int = 20,
) -> list[JudgeEstimate]:
    """Estimate each judge's requests, tokens and cost; sends nothing and needs no key.

    Args:
        campaign: the judges and the design.
        space: the feature space that words the points.
        plan: the questions.
        answered: number of questions each judge has answered, by form.
        measured: tokens expected of each judge's answers, by those so far.
        samples: number of questions of each kind that are rendered to measure their length.

    Raises:
        InputError: the template does not exist or cannot be filled in, or a judge's model does not
            exist.

    Examples:
        >>> from llm_elicit.planning.pairs import make_plan
        >>> campaign = Campaign.model_validate({
        ...     "name": "try", "space": "penguins", "design": {"pairs": 5},
        ...     "judges": [{"name": "expert", "backend": "simulated"}]})
        >>> space = campaign.load_space()
        >>> plan = make_plan(space, campaign.design, campaign.seed)
        >>> [(e.requests, e.cost) for e in estimate(campaign, space, plan, {"expert": {"ab": 3}})]
        [(7, 0.0)]
    """
    for judge in campaign.judges:
        provider_of(judge).check(judge)
    prompts_by_presentation = _prompts_by_presentation(campaign, space, plan, samples)
    template = next(iter(prompts_by_presentation)).template
    kinds = [
        _Kind(
            ("ab", "ba"),
            campaign.design.questions,
            tuple(prompts_by_presentation.values()),
            template,
        )
    ]
    wording = wording_of(campaign, space, plan)
    for kind, form in wording.templates.items():
        queries = [query for query in plan.direct if query.kind == kind]
        direct_prompts = [wording.question(query).prompt for query in queries[:samples]]
        numbers = {"quantiles": len(LEVELS), "sample": space.dimension}.get(kind, 1)
        words = None if form.answer == "letter" else _NUMBER_TOKENS * numbers
        words = 1 if kind == "likelihood" else words
        kinds.append(_Kind(FORMS[kind], len(queries), (direct_prompts,), form, words))
    return [
        reduce(
            add,
            (
                _estimate_judge(judge, kind, answered.get(judge.name, {}), measured.get(judge.name))
                for kind in kinds
            ),
        )
        for judge in campaign.judges
    ]


def cap_note(judges: Sequence[JudgeEstimate], limits: Limits, spent: Amount) -> str | None:
    """Return a line on the caps that the expected costs exceed; None if there are none.

    Args:
        judges: the estimates of all judges, of a grid those of all cells.
        limits: the caps.
        spent: what was spent before.

    Examples:
        >>> judge = JudgeEstimate("gpt", "m", requests=200, prompt_tokens=9_000, cost=0.5)
        >>> cap_note([judge], Limits(max_cost=0.1, max_tokens=9_000), Amount())
        'cap of 0.1 USD: about 40 of 200 questions can be asked within it'
    """
    total = sum(line.requests for line in judges)
    notes: dict[int, str] = {}
    for cap, used, unit, needs in (
        (limits.max_cost, spent.usd, "USD", [line.cost or 0.0 for line in judges]),
        (
            limits.max_tokens, spent.tokens, "tokens",
            [line.prompt_tokens + line.completion_tokens for line in judges],
        ),
    ):  # fmt: skip
        if cap is None or sum(needs) <= max(cap - used, 0.0):
            continue
        share = max(cap - used, 0.0) / sum(needs)
        counts = zip((line.requests for line in judges), needs, strict=True)
        questions = int(sum(count * (share if need else 1.0) for count, need in counts))
        so_far = f", {used:.4g} of it spent" if used else ""
        notes[questions] = (
            f"cap of {cap:,.10g} {unit}{so_far}: about {questions:,} of {total:,} questions can "
            "be asked within it"
        )
    return notes[min(notes)] if notes else None


@dataclass(frozen=True)
class _Kind:
    """Questions of one template.

    Attributes:
        forms: their forms.
        count: number of questions.
        examples: a sample of them, rendered, by presentation.
        template: the template.
        answer: tokens of an answer; None for a letter.
    """

    forms: tuple[str, ...]
    count: int
    examples: Sequence[Sequence[Prompt]]
    template: Template
    answer: int | None = None


def _estimate_judge(
    judge: Judge, kind: _Kind, answered: Mapping[str, int], measured: MeasuredTokens | None
) -> JudgeEstimate:
    done = sum(answered.get(form, 0) for form in kind.forms)
    is_about_pairs = "ab" in kind.forms
    if measured is not None and is_about_pairs:
        done = max(done, measured.questions)  # those of a pilot are read from the cache
    requests, examples = max(kind.count - done, 0), kind.examples
    provider = provider_of(judge)
    if not provider.language_model:
        return JudgeEstimate(judge.name, provider.name, requests)
    count, exact = counter(judge)
    number = sum(map(len, examples))
    length = round(sum(count(prompt) for prompts in examples for prompt in prompts) / number)
    prefixes = (len(prompts) * cached_prefix_tokens(prompts, judge, count) for prompts in examples)
    cached = round(sum(prefixes) / number)
    answer = kind.answer or provider.letter_tokens
    if kind.answer is None and kind.template.answer != "letter":
        answer = _NUMBER_TOKENS
    thinking = expected_thinking(judge)
    low, high = answer * requests, (answer + thinking) * requests
    total = (answer + thinking // _THINKING_RESERVE_FACTOR) * requests
    if measured is not None and is_about_pairs:
        if measured.questions:
            length, cached, exact = round(measured.prompt), round(measured.cached), True
        total = round(measured.completion * requests)
        factor = measured.factor(requests)
        low, high = round(total / factor), round(total * factor)
    # The first request of all fills the provider's cache, the others read it.
    cached_requests = max(requests - 1, 0)
    request = Request(
        Prompt(()), (), max_tokens=kind.template.max_tokens, answer=kind.template.answer
    )
    limit = request.token_limit(
        getattr(judge, "max_tokens", None),
        getattr(judge, "least_tokens", THINKING_ROOM),  # plug-ins need not state one
        getattr(judge, "thinking_room", 0),
    )
    price, cheaper = price_of(judge), price_of(judge, batch=True)

    def cost(price: Price | None, completion: int) -> float | None:
        if price is None:
            return None
        prompt = price.cost(length, 0)
        warm = price.cost(length, 0, cached) * cached_requests
        return (
            prompt * (requests - cached_requests) + warm + price.cost(length, completion) - prompt
        )

    return JudgeEstimate(
        judge=judge.name,
        model=judge.model_name,
        requests=requests,
        prompt_tokens=requests * length,
        cached_tokens=cached_requests * cached,
        completion_tokens=total,
        exact=exact,
        measured=measured.answers if measured is not None and is_about_pairs else 0,
        cost=cost(price, total),
        low=cost(price, low),
        high=cost(price, high),
        most=price.cost(length, limit) * requests if price else None,
        batch=cost(cheaper, total) if judge.has_batches else None,
    )


@dataclass(frozen=True)
class ModelCheck:
    """What one answer shows about a judge's server, its log-odds and its cost.

    Attributes:
        judge: the judge's name.
        endpoint: the address, without credentials.
        model: the model asked.
        version: the model that answered, as the server reports it.
        fingerprint: the version of the serving system, if the server reports one.
        verdict: how the answer was read: a letter, "refusal", "truncated" or the like.
        log_odds: whether choices have log-odds, in one line; empty if the answer was no choice.
        prompt_tokens, cached_tokens: tokens of the prompt, and how many were read from a cache.
        thinking_tokens, answer_tokens: tokens of the thinking (0: not reported) and of the answer.
        seconds: time from the request to the answer.
        cost: USD; None if the price is unknown.
        limits: the rate limits in the response's headers.
        changes: the settings that the server refused, each with its replacement.
    """

    judge: str
    endpoint: str
    model: str
    version: str
    fingerprint: str
    verdict: str
    log_odds: str
    prompt_tokens: int
    cached_tokens: int
    thinking_tokens: int
    answer_tokens: int
    seconds: float
    cost: float | None
    limits: Sequence[Allowance]
    changes: Sequence[str]


async def check_model(
    judge: Judge, space: FeatureSpace, request: Request, notify: Notify = ignore_note
) -> ModelCheck:
    """Ask a judge one question, and return what its answer shows; nothing is stored.

    Args:
        judge: the judge.
        space: the feature space.
        request: the question, about a pair.
        notify: called with one line before anything slow, such as fetching weights.

    Raises:
        InputError: the settings, the key or the address are not accepted.
        JudgeError: there is no answer.
    """
    changes: list[str] = []
    async with open_backend(judge, space, notify) as backend:
        while True:
            body = backend.body(request)
            started = time.monotonic()
            try:
                reply = await asyncio.wait_for(backend.ask(request), judge.timeout)
                break
            except SettingDroppedError as change:
                changes.append(str(change))
                if len(changes) > _MAX_CHANGES:
                    raise JudgeError(
                        f"judge {judge.name!r}: too many settings refused: {change}"
                    ) from None
            except Exception as error:
                failure = backend.failure(error)
                if failure is None:
                    raise
                decision = classify(failure)
                reason = f"judge {judge.name!r}: {decision.reason}"
                raise (decision.stops or JudgeError)(reason) from None
        seconds = time.monotonic() - started
        limits = allowances(reply.headers)
        reply = without_key(reply, backend.scrub)
        offered = backend.capabilities.logprobs
    verdict = read_answer(reply.text, request.answer, request.options, reply.finish).verdict
    log_odds = LogOdds.of(judge)
    letters = request.answer == "letter" and verdict in ("A", "B")
    if letters and provider_of(judge).language_model:
        log_odds.add(unscored_because(judge, reply, body, offered=offered), json.dumps(body))
    price = price_of(judge)
    used = (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens)
    return ModelCheck(
        judge=judge.name,
        endpoint=backend.endpoint,
        model=backend.model,
        version=reply.model,
        fingerprint=reply.fingerprint,
        verdict=verdict,
        log_odds=log_odds.line,
        prompt_tokens=reply.prompt_tokens,
        cached_tokens=reply.cached_tokens,
        thinking_tokens=reply.thinking_tokens,
        answer_tokens=max(reply.completion_tokens - reply.thinking_tokens, 0),
        seconds=seconds,
        cost=price.cost(*used) if price else None,
        limits=limits,
        changes=changes,
    )
