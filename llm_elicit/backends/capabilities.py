"""Settings that a model is known not to take: found before anything is sent.

Nothing is assumed of a model that is not listed, or of a server of one's own: there the server's
own refusal stops the judge, and a refusal costs nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from llm_elicit.config.judges import AnthropicJudge, Judge, OpenAIJudge
from llm_elicit.errors import InputError

_OFFICIAL = "api.openai.com"

_ANTHROPIC_LACKS = {
    # Sampling parameters ended with Opus 4.6, Sonnet 4.6 and Haiku 4.5.
    "temperature": r"claude-(opus-4-[7-9]|(opus|sonnet|haiku)-[5-9]|fable|mythos)",
    # JSON schemas began with Opus 4.1, Sonnet 4.5 and Haiku 4.5.
    "structured": r"claude-(2|3|instant|(opus|sonnet)-4(-0|-2025\d{4}|$))",
}

_OPENAI_LACKS = {
    "temperature": r"o[1-9]|gpt-5(-mini|-nano|-pro|-codex)?(-20\d\d-\d\d-\d\d)?$",
    "logprobs": r"o[1-9]|gpt-5(-mini|-nano|-pro|-codex)?(-20\d\d-\d\d-\d\d)?$",
    "structured": r"o1-(mini|preview)|gpt-3|gpt-4(-turbo|-32k|-vision|-0|-1106|$)",
}


def lacking(judge: Judge) -> list[str]:
    """The settings that the judge asks for and its model is known not to take.

    Example:
        >>> lacking(AnthropicJudge(
        ...     name="opus", backend="anthropic", model="claude-opus-4-7", temperature=0.5))
        ['temperature']
    """
    match judge:
        case AnthropicJudge():
            table = _ANTHROPIC_LACKS
        case OpenAIJudge() if judge.base_url is None or _OFFICIAL in judge.base_url:
            table = _OPENAI_LACKS
        case _:
            return []
    return [
        name
        for name, models in table.items()
        if _asked(judge, name) and re.match(models, judge.model)
    ]


def _asked(judge: Judge, name: str) -> bool:
    """Whether the user gave the setting; a temperature of 0 is one."""
    value = getattr(judge, name, None)
    return name in judge.model_fields_set and value is not None and value is not False


def check_settings(judges: Iterable[Judge]) -> None:
    """Refuse settings that models are known not to take, before the first paid request.

    Raises:
        InputError: it names each setting and all the models that lack it.

    Example:
        >>> from llm_elicit.config.judges import SimulatedJudge
        >>> check_settings([SimulatedJudge(name="expert", backend="simulated")])
    """
    found: dict[str, list[str]] = defaultdict(list)
    for judge in judges:
        for name in lacking(judge):
            found[name].append(f"{getattr(judge, 'model', '')} (judge {judge.name!r})")
    if found:
        lines = [f"{name}: not taken by {', '.join(models)}" for name, models in found.items()]
        raise InputError(f"{'; '.join(lines)}; remove the setting from these judges")
