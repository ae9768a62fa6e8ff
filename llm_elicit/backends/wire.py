"""Answers as providers send them: what a reply is made of, and nothing else.

Every other field is left alone, so that a provider may add or leave out what it likes.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from llm_elicit.backends.failures import MalformedReplyError


class _Part(BaseModel):
    """A part of an answer, from JSON or from an SDK's object of the same shape."""

    model_config = ConfigDict(extra="ignore", from_attributes=True, protected_namespaces=())


class Alternative(_Part):
    """One token that might have stood there."""

    token: str
    logprob: float


class Token(_Part):
    """One token of an answer; servers exist that leave the alternatives out."""

    token: str
    top_logprobs: list[Alternative] | None = None


class Logprobs(_Part):
    """The tokens of an answer."""

    content: list[Token] | None = None


class Turn(_Part):
    """What the model said; servers name its thinking in one of two ways."""

    content: str | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None


class Choice(_Part):
    """One answer of a chat completion."""

    message: Turn
    finish_reason: str | None = None
    logprobs: Logprobs | None = None


class PromptDetails(_Part):
    """How the prompt's tokens were billed."""

    cached_tokens: int | None = None


class CompletionUsage(_Part):
    """The tokens of a chat completion."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None


class Completion(_Part):
    """A chat completion."""

    choices: Annotated[list[Choice], Field(min_length=1)]
    model: str = ""
    usage: CompletionUsage | None = None


class Block(_Part):
    """A part of a Claude model's message."""

    type: str
    text: str = ""
    thinking: str = ""


class MessageUsage(_Part):
    """The tokens of a message; those read from and written to the cache are counted apart."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class Message(_Part):
    """An answer of the Messages API."""

    content: list[Block]
    usage: MessageUsage
    model: str = ""
    stop_reason: str | None = None


def parsed(content: bytes | str) -> object:
    """JSON, parsed.

    Raises:
        MalformedReplyError: it is none, or nested too deep, or has a number too long.

    Example:
        >>> parsed(b'{"a": 1}')
        {'a': 1}
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise MalformedReplyError(f"not JSON: {error}") from None


Answer = TypeVar("Answer", Completion, Message)


def read(kind: type[Answer], answer: object) -> Answer:
    """An answer as the provider sent it, in the shape that is expected.

    Args:
        kind: that shape.
        answer: parsed JSON, or an SDK's object.

    Raises:
        MalformedReplyError: it has another shape.

    Example:
        >>> answer = read(Completion, {"choices": [{"message": {"content": "A"}}]})
        >>> answer.choices[0].message.content
        'A'
    """
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the answer"
        raise MalformedReplyError(f"{place}: {first['msg']}") from None
