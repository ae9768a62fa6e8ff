"""Chat completions: the reply, and P(first option) from the log-probabilities of its letter."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from llm_elicit.backends import wire
from llm_elicit.backends.base import Reply

_FINISH = {"content_filter": "refusal", "stop": "stop", "length": "length"}

LEAST_MASS = 0.05
"""Letters that hold less of the first token's probability than this do not make a judgment soft."""

LARGEST_DOUBT = 0.01
"""How uncertain P(first) may be for a letter that is not among the listed tokens."""


def soft_choice(
    listed: Sequence[tuple[str, float]], options: tuple[str, str]
) -> tuple[float | None, float]:
    """P(first option), and the mass of both letters together.

    The masses of all tokens that read as a letter ("A", " A", "(A", "**A") are summed. A letter
    that is not listed can have at most the mass of the least listed token; where that bound is
    too loose, the letters have too little mass together, or a log-probability is no number (NaN),
    there is no soft choice.

    Args:
        listed: the first token's alternatives as (token, natural log-probability).
        options: the letters of the first and the second option.

    Example:
        >>> import math
        >>> soft_choice([("A", math.log(0.6)), (" B", math.log(0.2)), ("To", -3.0)], ("A", "B"))
        (0.75, 0.8)
    """
    mass = dict.fromkeys(options, 0.0)
    seen: set[str] = set()
    least = 1.0
    known = [(token, logprob) for token, logprob in listed if not math.isnan(logprob)]
    for token, logprob in known:
        probability = math.exp(min(logprob, 0.0))
        least = min(least, probability)
        letter = token.strip(" \t\n\u2581\u0120*_([\"'.)]:")
        if letter in mass and token not in seen:
            seen.add(token)
            mass[letter] += probability
    first, second = mass[options[0]], mass[options[1]]
    total = min(first + second, 1.0)
    if total < LEAST_MASS or len(known) < len(listed):
        return None, total
    if first == 0.0 or second == 0.0:
        if least / (first + second + least) > LARGEST_DOUBT:
            return None, total
        first, second = first or least, second or least
    return round(first / (first + second), 12), round(total, 12)


def read_completion(answer: object, body: dict[str, Any], options: tuple[str, str]) -> Reply:
    """A chat completion, as JSON or as the SDK's object, as a reply.

    Raises:
        MalformedReplyError: it is not a chat completion with a choice.
    """
    completion = wire.read(wire.Completion, answer)
    choice = completion.choices[0]
    first, mass = None, None
    if choice.logprobs is not None and choice.logprobs.content:
        token = _deciding(choice.logprobs.content)
        if token is not None:
            first, mass = soft_choice(_listed(token), options)
    usage = completion.usage or wire.CompletionUsage()
    details = usage.prompt_tokens_details
    refusal = choice.message.refusal
    text, thinking = _apart(choice.message)
    finish = str(choice.finish_reason)
    return Reply(
        text=text or refusal or "",
        finish="refusal" if refusal else _FINISH.get(finish, finish),
        model=completion.model,
        first=first,
        letter_mass=mass,
        prompt_tokens=usage.prompt_tokens or 0,
        completion_tokens=usage.completion_tokens or 0,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
        body=body,
        thinking=thinking,
    )


def _apart(message: wire.Turn) -> tuple[str, str]:
    """What a message says, and what it shows of the model's thinking.

    Servers put the thinking in a field of its own, by one of two names, or before the answer.
    """
    shown = (message.reasoning_content, message.reasoning)
    thinking = next((text for text in shown if isinstance(text, str) and text), "")
    text = message.content or ""
    thought, closed, answer = text.partition("</think>")
    if closed:
        return answer.strip(), thought.replace("<think>", "", 1).strip()
    if text.lstrip().startswith("<think>"):
        return "", text.replace("<think>", "", 1).strip()  # cut off before it came to an answer
    return text, thinking


def _deciding(tokens: list[wire.Token]) -> wire.Token | None:
    """The token that holds the letter: the first, or in a JSON answer the first of the value."""
    if not tokens[0].token.lstrip().startswith(("{", "<")):
        return tokens[0]
    text = ""
    for token in tokens:
        if re.search(r'"choice"\s*:\s*"?$', text) and token.token.strip(' ":'):
            return token
        text += token.token
    return None


def _listed(token: wire.Token) -> list[tuple[str, float]]:
    """The alternatives of a token; servers exist that leave them out."""
    return [(item.token, item.logprob) for item in token.top_logprobs or ()]
