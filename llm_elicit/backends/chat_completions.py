"""Chat completions: the reply, and P(first option) from the log-probabilities of its letter."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from llm_elicit.backends import wire
from llm_elicit.backends.base import Reply, Unscored
from llm_elicit.backends.failures import MalformedReplyError
from llm_elicit.questions.parse import parse

MIN_MASS = 0.05
"""Smallest probability of both letters together for a soft judgment."""

CLIPPED = -99.0
"""Log-probabilities at most this stand for "not listed": providers send -100, -9999 or -inf."""

MAX_ROUNDING_LOSS = 1e-3
"""Largest error of the sum of all listed probabilities, due to rounding."""

_MIN_SAMPLED_SHARE = 1e-3
"""Smallest share of a letter, of both, with which it was sampled from the listed tokens."""


_TAG = r"(?:\w+:)?(?:think(?:ing)?|thoughts?|reasoning)"
_THINKING_START = re.compile(
    rf"\s*(?:<{_TAG}>|\[THINK\]|\u25c1think\u25b7|<\|channel\|>analysis<\|message\|>)",
    re.IGNORECASE,
)
_THINKING_END = re.compile(
    rf"</{_TAG}>|\[/THINK\]|\u25c1/think\u25b7|<\|channel\|>final<\|message\|>", re.IGNORECASE
)
"""The beginning and the end of thinking in the text of an answer, as models write them."""


class SoftChoice(NamedTuple):
    """A choice by log-probabilities.

    Attributes:
        first: P(first option) among both; None without a soft choice.
        mass: the probability of both letters together.
        censored: 1 if the log-odds of the first option are known only to be at least those of
            `first`, −1 if at most, else 0.
    """

    first: float | None
    mass: float
    censored: int = 0


def soft_choice(listed: Sequence[tuple[str, float]], options: tuple[str, str]) -> SoftChoice:
    """Return the choice in the alternatives of the token of the answer's letter.

    The probabilities of all tokens that spell a letter ("A", " A", "(A", "**A") are summed. A
    letter that is not listed has at most the probability of the least likely listed token, and at
    most what all listed tokens leave: the log-odds are then a bound. There is no soft choice if the
    bound does not say which letter is likelier, if the letters together are too unlikely, or if a
    log-probability is NaN.

    Args:
        listed: the token's alternatives as (token, natural log-probability).
        options: the letters of the first and the second option.

    Examples:
        >>> import math
        >>> soft_choice([("A", math.log(0.6)), (" B", math.log(0.2)), ("To", -3.0)], ("A", "B"))
        SoftChoice(first=0.75, mass=0.8, censored=0)
        >>> soft_choice([("A", math.log(0.75)), ("To", math.log(0.05))], ("A", "B"))
        SoftChoice(first=0.9375, mass=0.75, censored=1)
    """
    # Two tokens may have one text ("A" and " A" in some vocabularies), but a token no two values.
    probabilities = {
        (token, logprob): math.exp(min(logprob, 0.0))
        for token, logprob in listed
        if logprob > CLIPPED
    }
    mass = dict.fromkeys(options, 0.0)
    for (token, _), probability in probabilities.items():
        letter = _only_letters(token)
        if letter in mass:
            mass[letter] += probability
    first, second = mass[options[0]], mass[options[1]]
    total = min(first + second, 1.0)
    if total < MIN_MASS or any(math.isnan(logprob) for _, logprob in listed):
        return SoftChoice(None, total)
    censored = int(second == 0.0) - int(first == 0.0)
    if censored:
        unlisted = max(1.0 - sum(probabilities.values()), 0.0) + MAX_ROUNDING_LOSS
        bound = min(*probabilities.values(), unlisted)
        if bound >= first + second:
            return SoftChoice(None, total)
        first, second = first or bound, second or bound
    return SoftChoice(round(first / (first + second), 12), round(total, 12), censored)


def read_completion(
    answer: object, body: dict[str, Any], options: tuple[str, str], *, named: bool = False
) -> Reply:
    """Return the reply in a chat completion, given as JSON or as the SDK's object.

    Args:
        answer: the chat completion.
        body: the request body.
        options: the letters of the first and the second option.
        named: whether the log-probabilities requested were those of named tokens.

    Raises:
        MalformedReplyError: it is not a chat completion with a choice.
        UpstreamError: it is an error, or was interrupted.
    """
    completion = wire.read_answer(wire.Completion, answer)
    if not completion.choices:
        raise MalformedReplyError(
            "the reply has no choices; the server may have filtered the prompt"
        )
    choice = completion.choices[0]
    wire.check_upstream(choice)
    text, thinking, refusal = _message_parts(choice)
    finish = "refusal" if refusal else wire.finish_of(choice.finish_reason, text or thinking)
    logprobs = choice.logprobs or completion.completion_probabilities  # the latter at llama.cpp
    tokens = logprobs and logprobs.content
    token = deciding_token(text, thinking, tokens, options, finish) if tokens else None
    soft = None if token is None else _soft_choice_of(token, options, named=named)
    unscored: Unscored = ""
    if soft is None and (tokens or body.get("logprobs")) and _chosen_letter(text, options, finish):
        unscored = "another token" if tokens else "none sent"
    usage = completion.usage or wire.CompletionUsage()
    details, used_for = usage.prompt_tokens_details, usage.completion_tokens_details
    return Reply(
        text=text or refusal,
        finish=finish,
        model=completion.model,
        fingerprint=completion.system_fingerprint,
        first=soft and soft.first,
        letter_mass=soft and soft.mass,
        prompt_tokens=usage.prompt_tokens or 0,
        completion_tokens=usage.completion_tokens or 0,
        cached_tokens=(details and details.cached_tokens) or usage.prompt_cache_hit_tokens or 0,
        thinking_tokens=(used_for and used_for.reasoning_tokens) or 0,
        body=body,
        thinking=thinking,
        unscored=unscored,
        censored=soft.censored if soft else 0,
    )


def _message_parts(choice: wire.Choice) -> wire.MessageParts:
    """Return the answer in a choice, the model's thinking if it is shown, and its refusal.

    Servers put the thinking in a separate field, under one of two names, in a part of the content,
    or before the answer.

    Raises:
        UpstreamError: the choice was interrupted and has no message.
        MalformedReplyError: it has none.
    """
    if choice.message is None and choice.text is None:
        wire.finish_of(choice.finish_reason, "nothing")
        raise MalformedReplyError("choices.0.message: Field required")
    message = choice.message or wire.Turn(content=choice.text)
    text, inner, refused = wire.read_content(
        message.content, "choices.0.message.content", choice.finish_reason
    )
    candidates = (message.reasoning_content, message.reasoning, inner)
    thinking = next((text for text in candidates if isinstance(text, str) and text), "")
    refusal = message.refusal if isinstance(message.refusal, str) else ""
    text = text or _call_arguments(message.tool_calls)
    return wire.MessageParts(*split_thinking(text, thinking), refusal or refused)


def split_thinking(text: str, thinking: str) -> tuple[str, str]:
    """Return an answer without the thinking in its text, and the model's thinking.

    Examples:
        >>> split_thinking("<think>B?</think> A", "")
        ('A', 'B?')
    """
    opened, closed = _THINKING_START.match(text), [*_THINKING_END.finditer(text)]
    if not (closed or opened):
        return text, thinking
    end = closed[-1] if closed else None  # None if it was truncated before the answer
    begin = opened.end() if opened else 0
    thinking = text[begin : end.start() if end else None].strip() or thinking
    return text[end.end() :].strip() if end else "", thinking


def _call_arguments(calls: object) -> str:
    """Return the arguments of a call, as which some servers send an answer in JSON."""
    call = calls[0] if isinstance(calls, list) and len(calls) == 1 else None
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    return arguments if isinstance(arguments, str) else ""


def deciding_token(
    text: str,
    thinking: str,
    tokens: Sequence[wire.Token],
    options: tuple[str, str],
    finish: str = "stop",
) -> wire.Token | None:
    """Return the token of the letter that was parsed as the choice; None if there is none.

    The tokens may be those of the thinking as well, with the special tokens between and after. So
    they must end with the text, or be its beginning or end, and the token of the letter must
    consist of that letter.

    Args:
        text: the visible text of the answer.
        thinking: the thinking shown apart from it.
        tokens: the tokens with log-probabilities.
        options: the letters of the first and the second option.
        finish: why the model stopped.

    Examples:
        >>> tokens = [wire.Token(token=token) for token in ("A", " bird", "...", " So", " B", ".")]
        >>> deciding_token("B.", "A bird... So", tokens, ("A", "B")).token
        ' B'
    """
    position = _choice_position(text, options, finish)
    if position is None:
        return None
    pieces = [bytes_of(token) for token in tokens]
    stream, answer = b"".join(pieces), text.encode("utf-8", "replace")
    start = _answer_start(answer, pieces, thinking.encode("utf-8", "replace"))
    if start is None:
        return None
    letter_position = start + len(text[:position].encode("utf-8", "replace"))
    if not 0 <= letter_position < len(stream):
        return None
    index = bisect_right(list(accumulate(map(len, pieces))), letter_position)
    letter = _only_letters(pieces[index].decode("utf-8", "replace"))
    return tokens[index] if letter == text[position] else None


def _chosen_letter(text: str, options: tuple[str, str], finish: str) -> str | None:
    """Return the letter that was parsed as the choice; None without a choice."""
    verdict = parse(text, options, finish)
    return dict(zip("AB", options, strict=True)).get(verdict)


def _choice_position(text: str, options: tuple[str, str], finish: str) -> int | None:
    """Return the position of the letter that makes the choice; None without a choice.

    It is the first one whose exchange for the other letter exchanges the choice, or else ends it
    ("B, clearly B"). The article of "A larger bird ..." does neither.
    """
    letter = _chosen_letter(text, options, finish)
    if letter is None:
        return None
    opposite = options[1] if letter == options[0] else options[0]
    for spelling, replacement in ((letter, opposite), (letter.lower(), opposite.lower())):
        positions = [
            match.start() for match in re.finditer(rf"(?<![^\W_]){spelling}(?![^\W_])", text)
        ]
        exchanged = {
            position: _chosen_letter(
                f"{text[:position]}{replacement}{text[position + 1 :]}", options, finish
            )
            for position in positions
        }
        decisive = [position for position in positions if exchanged[position] == opposite]
        decisive += [position for position in positions if exchanged[position] is None]
        if decisive:
            return decisive[0]
    return None


_SPECIAL = re.compile(rb"(?:\s|<[^<>]*>|\[[^\[\]]*\])*")
"""Blanks, and special tokens such as <|im_end|>, </s> and [EOS]."""


def _answer_start(answer: bytes, pieces: Sequence[bytes], thinking: bytes) -> int | None:
    """Return the position of the answer in the tokens' text, negative if that begins later.

    None if the two do not agree.
    """
    stream, stripped = b"".join(pieces), answer.strip()
    content, indent = stream.strip(), len(answer) - len(answer.lstrip())
    position = stream.rfind(stripped)
    if position >= 0 and _SPECIAL.fullmatch(stream, position + len(stripped)):
        # Tokens of the thinking alone may end with the same letter.
        stripped_thinking = thinking.strip()
        end = (
            stream.rfind(stripped_thinking) + len(stripped_thinking)
            if stripped_thinking and stripped_thinking in stream
            else None
        )
        only_thinking = end is not None and _SPECIAL.fullmatch(stream, end) is not None
        begins = (
            position in accumulate(map(len, pieces), initial=0)
            or not stream[position - 1 : position].isalnum()
        )
        return position - indent if begins and not only_thinking else None
    start = len(stream) - len(stream.lstrip()) - indent
    if thinking or not content:
        return None
    if stripped.startswith(content):
        return start
    return start - (len(stripped) - len(content)) if stripped.endswith(content) else None


def letter_ids(answer: object, options: tuple[str, str]) -> list[int]:
    """Return the ids of the tokens that spell the letters, in spellings that both of them have.

    Args:
        answer: the tokens of a text with both letters.
        options: the letters.

    Raises:
        MalformedReplyError: they are not tokens with their texts.

    Examples:
        >>> tokens = {"tokens": [9, 32, 362, 33], "token_strs": ["To", "A", " A", "B"]}
        >>> letter_ids(tokens, ("A", "B"))
        [32, 33]
    """
    tokenized = wire.validate_answer(wire.Tokenized, answer)
    ids: dict[str, dict[str, int]] = {letter: {} for letter in options}
    for number, text in zip(tokenized.tokens, tokenized.token_strs, strict=False):
        letter = _only_letters(text)
        if letter in ids:
            ids[letter][text.replace(letter, "")] = number
    first, second = ids.values()
    return [spellings[form] for form in first.keys() & second.keys() for spellings in ids.values()]


_BLANKS = str.maketrans({"\u2581": " ", "\u0120": " ", "\u010a": "\n"})
"""Blanks as some servers show those of their vocabulary."""

_BYTES = re.compile(r"bytes:((?:\\x[0-9a-f]{2})+)")
"""A token with a part of a character, as OpenAI's servers print it."""


def bytes_of(token: wire.Token | wire.Alternative) -> bytes:
    """Return the text of a token as bytes, since it may be a part of a character."""
    numbers = getattr(token, "bytes", None)
    if numbers and all(0 <= number < 256 for number in numbers):
        return bytes(numbers)
    part = _BYTES.fullmatch(token.token)
    if part:
        return bytes.fromhex(part[1].replace("\\x", ""))
    return token.token.translate(_BLANKS).encode("utf-8", "replace")


def _only_letters(token: str) -> str:
    """Return a token without blanks and punctuation: "A" for " A", "(A", "**A" and '"A"'."""
    return re.sub(r"[\W_]+", "", token.translate(_BLANKS))


def _soft_choice_of(
    token: wire.Token, options: tuple[str, str], *, named: bool
) -> SoftChoice | None:
    """Return the choice in a token's alternatives; None if they are those of another token.

    They are if the token itself is not among them although it is likelier than one of them, or if
    sampling from them would hardly have led to it. If tokens were named, the other letter in the
    same spelling as the token must be among them.
    """
    # Some servers omit the alternatives, or the token among them.
    listed = [(item.token, item.logprob) for item in token.top_logprobs or ()]
    if listed and token.token not in dict(listed) and not math.isnan(token.logprob):
        if token.logprob > min(logprob for _, logprob in listed):
            return None
        listed.append((token.token, token.logprob))
    letters = _only_letters(token.token)
    first, second = options if letters in options else (letter.lower() for letter in options)
    soft = soft_choice(listed, (first, second))
    opposite = token.token.replace(letters, second if letters == first else first)
    if named and not soft.censored and opposite not in dict(listed):
        return SoftChoice(None, soft.mass)
    if soft.first is None:
        return soft
    share = soft.first if letters == first else 1.0 - soft.first
    return soft if share >= _MIN_SAMPLED_SHARE else None
