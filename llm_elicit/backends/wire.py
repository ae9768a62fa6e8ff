"""Models of the providers' answers, with only the fields that a reply needs.

Other fields are ignored, so that a provider may add or omit them.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)  # fmt: skip

from llm_elicit.backends.failures import MalformedReplyError, complaint


class _Part(BaseModel):
    """A part of an answer, from JSON or from an SDK's object of the same shape."""

    model_config = ConfigDict(extra="ignore", from_attributes=True, protected_namespaces=())


class Alternative(_Part):
    """One alternative of a token."""

    token: str
    logprob: float


class Token(_Part):
    """One token of an answer; some servers omit the alternatives."""

    token: str
    top_logprobs: list[Alternative] | None = None


class Logprobs(_Part):
    """The tokens of an answer."""

    content: list[Token] | None = None


class Turn(_Part):
    """The message of the model; servers use one of two names for its thinking."""

    content: str | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None


class Choice(_Part):
    """One answer of a chat completion."""

    message: Turn
    finish_reason: str | None = None
    logprobs: Logprobs | None = None


def _count(value: object) -> int | None:
    """Return a number of tokens; None if the provider sent something else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _or_none(value: object, read: ValidatorFunctionWrapHandler) -> Any:
    """Return None if an optional part has another form, so that the answer is not lost."""
    try:
        return read(value)
    except ValidationError:
        return None


Count = Annotated[int | None, BeforeValidator(_count)]
Lenient = WrapValidator(_or_none)


class PromptDetails(_Part):
    """How the prompt's tokens were billed."""

    cached_tokens: Count = None


class CompletionUsage(_Part):
    """The tokens of a chat completion."""

    prompt_tokens: Count = None
    completion_tokens: Count = None
    prompt_tokens_details: Annotated[PromptDetails | None, Lenient] = None


class Completion(_Part):
    """A chat completion."""

    choices: Annotated[list[Choice], Field(min_length=1)]
    model: str = ""
    usage: Annotated[CompletionUsage | None, Lenient] = None


class Block(_Part):
    """A part of a Claude model's message."""

    type: str
    text: str = ""
    thinking: str = ""


class MessageUsage(_Part):
    """The tokens of a message; those read from and written to the cache are counted apart."""

    input_tokens: Count = None
    output_tokens: Count = None
    cache_read_input_tokens: Count = None
    cache_creation_input_tokens: Count = None


class Message(_Part):
    """An answer of the Messages API."""

    content: list[Block]
    usage: Annotated[MessageUsage | None, Lenient] = None
    model: str = ""
    stop_reason: str | None = None


def parsed(content: bytes | str) -> object:
    """Return parsed JSON.

    Raises:
        MalformedReplyError: it is not JSON, is nested too deeply, or has too long a number.

    Example:
        >>> parsed(b'{"a": 1}')
        {'a': 1}
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise MalformedReplyError(f"not JSON: {error}") from None


class OpenAIResponse(_Part):
    """The response to one request of a batch at OpenAI."""

    status_code: int
    body: Any = None


class OpenAIRow(_Part):
    """A line of a batch's results at OpenAI."""

    custom_id: str
    response: OpenAIResponse | None = None
    error: Any = None


class Created(_Part):
    """A new object at a provider, with its id."""

    id: Annotated[str, Field(min_length=1)]


class OpenAICounts(_Part):
    """The requests of a batch at OpenAI."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Problem(_Part):
    """A reason why a batch was rejected."""

    message: str | None = None


class Problems(_Part):
    """The reasons why a batch was rejected."""

    data: list[Problem] | None = None


class OpenAIBatch(_Part):
    """A batch at OpenAI."""

    id: str
    status: str
    created_at: float
    output_file_id: str | None = None
    error_file_id: str | None = None
    request_counts: Annotated[OpenAICounts | None, Lenient] = None
    errors: Annotated[Problems | None, Lenient] = None
    metadata: Annotated[dict[str, str] | None, Lenient] = None


class AnthropicResult(_Part):
    """The result of one request of a batch at Anthropic."""

    type: str
    message: Any = None
    error: Any = None


class AnthropicRow(_Part):
    """A line of a batch's results at Anthropic."""

    custom_id: str
    result: AnthropicResult


class AnthropicCounts(_Part):
    """The requests of a batch at Anthropic."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class AnthropicBatch(_Part):
    """A batch at Anthropic."""

    id: str
    processing_status: str
    created_at: datetime
    request_counts: AnthropicCounts


Part = TypeVar("Part", bound=_Part)


def read(kind: type[Part], answer: object) -> Part:
    """Validate an answer of a provider, and return it as a model.

    Args:
        kind: the model.
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
        # Some gateways answer 200 with an error instead of an answer.
        failed = isinstance(answer, dict) and "error" in answer
        if failed and (said := complaint(answer).get("message")):
            raise MalformedReplyError(f"an error in the place of an answer: {said}") from None
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the answer"
        raise MalformedReplyError(f"{place}: {first['msg']}") from None
