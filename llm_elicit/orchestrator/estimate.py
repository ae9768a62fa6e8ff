"""What a campaign will take, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from llm_elicit.backends.anthropic import THINKING_ROOM
from llm_elicit.campaign import AnthropicJudge, Campaign, Judge, OpenAIJudge
from llm_elicit.features import FeatureSpace
from llm_elicit.orchestrator.budget import price_of
from llm_elicit.plan import Plan
from llm_elicit.questions import Prompt, Template, render

_CHARACTERS_A_TOKEN = 3.0
"""Text full of numbers has fewer characters a token than prose."""

_TOKENS_A_TURN = 5


@dataclass(frozen=True)
class JudgeEstimate:
    """What asking one judge will take. Tokens and money are about right, not exact.

    Attributes:
        judge, model: who is asked.
        requests: how many questions.
        prompt_tokens: of all questions.
        completion_tokens: of all answers, if the model answers as it is told; one that thinks
            before it answers takes more.
        cost: USD for these tokens; None where no price is known.
        most: USD if each answer used up its token limit; None where no price is known.
    """

    judge: str
    model: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    most: float | None


def prompts(space: FeatureSpace, plan: Plan, template: Template, count: int) -> list[Prompt]:
    """The first `count` questions of the plan as they will be sent.

    Raises:
        InputError: the template cannot be filled in.
    """
    return [render(space, *plan.shown(query), template) for query in islice(plan, count)]


def estimate(
    campaign: Campaign, space: FeatureSpace, plan: Plan, samples: int = 20
) -> list[JudgeEstimate]:
    """Estimate each judge's requests, tokens and cost; sends nothing and needs no key.

    Args:
        campaign: whom to ask.
        space: the feature space that words the points.
        plan: the questions.
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
        >>> [(e.requests, e.cost) for e in estimate(campaign, space, plan)]
        [(10, 0.0)]
    """
    template = Template.load(campaign.design.template)
    length = _mean(_tokens(prompt) for prompt in prompts(space, plan, template, samples))
    return [_of(judge, len(plan), round(length), template) for judge in campaign.judges]


def _of(judge: Judge, requests: int, length: int, template: Template) -> JudgeEstimate:
    if judge.backend == "simulated":
        return JudgeEstimate(judge.name, "simulated", requests, 0, 0, 0.0, 0.0)
    price = price_of(judge)
    answer = 1 if judge.backend == "local" else 2
    limit = _limit(judge, template)
    cost = price.cost(requests * length, requests * answer) if price else None
    most = price.cost(requests * length, requests * limit) if price else None
    return JudgeEstimate(
        judge.name, judge.model, requests, requests * length, requests * answer, cost, most
    )


def _limit(judge: Judge, template: Template) -> int:
    """The token limit of an answer."""
    if not isinstance(judge, AnthropicJudge | OpenAIJudge):
        return 1
    return judge.max_tokens or max(template.max_tokens, THINKING_ROOM)


def _tokens(prompt: Prompt) -> float:
    return sum(
        len(message.content) / _CHARACTERS_A_TOKEN + _TOKENS_A_TURN for message in prompt.messages
    )


def _mean(values: Iterable[float]) -> float:
    kept = list(values)
    return sum(kept) / len(kept)
