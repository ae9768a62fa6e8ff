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
"""The least probability of both letters together for a soft judgment."""

LARGEST_DOUBT = 0.01
"""The largest uncertainty of P(first) due to a letter that is not among the listed tokens."""


def soft_choice(
    listed: Sequence[tuple[str, float]], options: tuple[str, str]
) -> tuple[float | None, float]:
    """Return P(first option), and the probability of both letters together.

    The probabilities of all tokens that spell a letter ("A", " A", "(A", "**A") are summed. A
    letter that is not listed has at most the probability of the least likely listed token. There
    is no soft choice (None) if that bound is too loose, if the letters together are too unlikely,
    or if a log-probability is NaN.

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
    """Return the reply in a chat completion, given as JSON or as the SDK's object.

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
    """Return the answer in a message, and the model's thinking if it is shown.

    Servers put the thinking in a separate field, under one of two names, or before the answer.
    """
    shown = (message.reasoning_content, message.reasoning)
    thinking = next((text for text in shown if isinstance(text, str) and text), "")
    text = message.content or ""
    thought, closed, answer = text.partition("</think>")
    if closed:
        return answer.strip(), thought.replace("<think>", "", 1).strip()
    if text.lstrip().startswith("<think>"):
        return "", text.replace("<think>", "", 1).strip()  # truncated before the answer
    return text, thinking


def _deciding(tokens: list[wire.Token]) -> wire.Token | None:
    """Return the token of the letter: the first one, or in JSON the first one of the value."""
    if not tokens[0].token.lstrip().startswith(("{", "<")):
        return tokens[0]
    text = ""
    for token in tokens:
        if re.search(r'"choice"\s*:\s*"?$', text) and token.token.strip(' ":'):
            return token
        text += token.token
    return None


def _listed(token: wire.Token) -> list[tuple[str, float]]:
    """Return the alternatives of a token; some servers omit them."""
    return [(item.token, item.logprob) for item in token.top_logprobs or ()]
