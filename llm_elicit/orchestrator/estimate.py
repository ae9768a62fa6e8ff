"""What a campaign will take, before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from llm_elicit.backends.base import THINKING_ROOM
from llm_elicit.campaign import (
    AnthropicJudge,
    Campaign,
    Judge,
    LocalJudge,
    OpenAIJudge,
    SimulatedJudge,
)
from llm_elicit.features import FeatureSpace
from llm_elicit.orchestrator.prices import Price, price_of
from llm_elicit.orchestrator.tokens import cached_beginning, counter
from llm_elicit.plan import Plan
from llm_elicit.questions import Prompt, Template, render

_NOTHING: Mapping[str, int] = {}


@dataclass(frozen=True)
class JudgeEstimate:
    """What asking one judge will take.

    Attributes:
        judge, model: who is asked.
        requests: how many questions are still to be asked.
        prompt_tokens: of all of them.
        cached_tokens: those of the prompts' tokens that the provider will bill as cached.
        completion_tokens: of all answers, if the model answers as it is told; one that thinks
            before it answers takes more.
        exact: whether the prompts were counted by the provider's own tokenizer.
        cost: USD for these tokens; None where no price is known.
        most: USD if each answer used up its token limit and nothing were cached; None where no
            price is known.
        batch: what `cost` would be in the provider's batch mode; None where there is none.
    """

    judge: str
    model: str
    requests: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    exact: bool = False
    cost: float | None = 0.0
    most: float | None = 0.0
    batch: float | None = None


def prompts(space: FeatureSpace, plan: Plan, template: Template, count: int) -> list[Prompt]:
    """The first `count` questions of the plan as they will be sent.

    Raises:
        InputError: the template cannot be filled in.
    """
    return [render(space, *plan.shown(query), template) for query in islice(plan, count)]


def estimate(
    campaign: Campaign,
    space: FeatureSpace,
    plan: Plan,
    answered: Mapping[str, int] = _NOTHING,
    samples: int = 20,
) -> list[JudgeEstimate]:
    """Estimate each judge's requests, tokens and cost; sends nothing and needs no key.

    Args:
        campaign: whom to ask.
        space: the feature space that words the points.
        plan: the questions.
        answered: how many questions each judge has answered already.
        samples: how many questions are rendered to measure their length.

    Raises:
        InputError: the template does not exist or cannot be filled in.

    Example:
        >>> from llm_elicit.plan import make_plan
        >>> campaign = Campaign.model_validate({
        ...     "name": "try", "space": "penguins", "design": {"pairs": 5},
        ...     "judges": [{"name": "expert", "backend": "simulated"}]})
        >>> space = campaign.load_space()
        >>> plan = make_plan(space, campaign.design, campaign.seed)
        >>> [(e.requests, e.cost) for e in estimate(campaign, space, plan, {"expert": 3})]
        [(7, 0.0)]
    """
    template = Template.load(campaign.design.template)
    some = prompts(space, plan, template, samples)
    return [
        _of(judge, campaign.design.questions - answered.get(judge.name, 0), some, template)
        for judge in campaign.judges
    ]


def _of(judge: Judge, requests: int, some: Sequence[Prompt], template: Template) -> JudgeEstimate:
    if isinstance(judge, SimulatedJudge):
        return JudgeEstimate(judge.name, "simulated", requests)
    count, exact = counter(judge)
    length = round(sum(count(prompt) for prompt in some) / len(some))
    cached = cached_beginning(some, judge, count)
    answer = 1 if judge.backend == "local" else 2
    batched = isinstance(judge, AnthropicJudge | OpenAIJudge)
    # The first request of all fills the provider's cache, the others read it.
    hits = max(requests - 1, 0)
    price, cheaper = price_of(judge), price_of(judge, batch=True)

    def cost(price: Price) -> float:
        cold = price.cost(length, answer) * (requests - hits)
        return cold + price.cost(length, answer, cached) * hits

    return JudgeEstimate(
        judge=judge.name,
        model=judge.model,
        requests=requests,
        prompt_tokens=requests * length,
        cached_tokens=hits * cached,
        completion_tokens=requests * answer,
        exact=exact,
        cost=cost(price) if price else None,
        most=price.cost(length, _limit(judge, template)) * requests if price else None,
        batch=cost(cheaper) if cheaper and batched else None,
    )


def _limit(judge: Judge, template: Template) -> int:
    """The token limit of an answer."""
    if isinstance(judge, SimulatedJudge | LocalJudge):
        return 1
    stated: int | None = getattr(judge, "max_tokens", None)
    return stated or max(template.max_tokens, THINKING_ROOM)
