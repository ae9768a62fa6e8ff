"""Models of the providers' answers, with only the fields that a reply needs.

Other fields are ignored, so that a provider may add or omit them. Optional fields are read
leniently: in another shape they count as missing. The answer itself is read strictly.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)  # fmt: skip

from llm_elicit.backends.failures import MalformedReplyError, UpstreamError


class _Part(BaseModel):
    """A part of an answer, from JSON or from an SDK's object of the same shape."""

    model_config = ConfigDict(extra="ignore", from_attributes=True, protected_namespaces=())


_MAX_DIGITS = 18


def _count(value: object) -> int | None:
    """Return a number of tokens, also as 8.0 or "8"; None if the provider sent something else."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= _MAX_DIGITS:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _none_if_malformed(value: object, read: ValidatorFunctionWrapHandler) -> Any:
    """Return None for an optional part in an unknown format, so that the answer is kept."""
    try:
        return read(value)
    except ValidationError:
        return None


Count = Annotated[int | None, BeforeValidator(_count)]
Lenient = WrapValidator(_none_if_malformed)


def _text(value: object) -> str:
    """Return a text; empty if the provider sent something else."""
    return value if isinstance(value, str) else ""


def _reason(value: object) -> str:
    """Return the reason why the model stopped; empty if the provider states none."""
    return _text(value.get("type") if isinstance(value, Mapping) else value)


def _log_probability(value: object) -> float:
    """Return a log-probability, also if it is sent as text; NaN for anything else."""
    try:
        return float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return math.nan


def _alternatives(value: object) -> object:
    """Return a mapping of tokens to log-probabilities as a list of alternatives."""
    if not isinstance(value, Mapping):
        return value
    return [{"token": token, "logprob": logprob} for token, logprob in value.items()]


def _logprobs(value: object) -> object:
    """Return log-probabilities in the present format, also from a list or the legacy one."""
    if isinstance(value, Sequence):
        return {"content": value}
    if not isinstance(value, Mapping) or not isinstance(value.get("tokens"), list):
        return value
    columns = [value.get(name) for name in ("tokens", "token_logprobs", "top_logprobs")]
    rows = zip_longest(*(column if isinstance(column, list) else [] for column in columns))
    names = ("token", "logprob", "top_logprobs")
    return {"content": [dict(zip(names, row, strict=True)) for row in rows]}


Text = Annotated[str, BeforeValidator(_text)]
LogProbability = Annotated[float, BeforeValidator(_log_probability)]


class Alternative(_Part):
    """One alternative of a token."""

    token: str
    logprob: LogProbability


class Token(_Part):
    """One token of an answer; some servers omit the alternatives."""

    token: str
    logprob: LogProbability = math.nan
    bytes: Annotated[list[int] | None, Lenient] = None
    top_logprobs: Annotated[list[Alternative] | None, BeforeValidator(_alternatives), Lenient] = (
        None
    )


class Logprobs(_Part):
    """The tokens of an answer."""

    content: list[Token] | None = None


class Turn(_Part):
    """The message of the model; servers use one of two names for its thinking."""

    content: Any = None
    refusal: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None


class Choice(_Part):
    """One answer of a chat completion; some servers send it as a text alone."""

    message: Turn | None = None
    text: str | None = None
    finish_reason: Annotated[str, BeforeValidator(_reason)] = ""
    logprobs: Annotated[Logprobs | None, BeforeValidator(_logprobs), Lenient] = None
    error: Any = None


class PromptDetails(_Part):
    """How the prompt's tokens were billed."""

    cached_tokens: Count = None


class CompletionDetails(_Part):
    """What the tokens of an answer were used for."""

    reasoning_tokens: Count = None


def _count_field(*names: str) -> Any:
    """Return a field of a count that servers send under one of several names."""
    return Field(None, validation_alias=AliasChoices(*names))


class CompletionUsage(_Part):
    """The tokens of a chat completion; DeepSeek has a name of its own for those of the cache."""

    prompt_tokens: Count = _count_field("prompt_tokens", "input_tokens")
    prompt_cache_hit_tokens: Count = None
    completion_tokens: Count = _count_field("completion_tokens", "output_tokens")
    prompt_tokens_details: Annotated[PromptDetails | None, Lenient] = None
    completion_tokens_details: Annotated[CompletionDetails | None, Lenient] = None


class Completion(_Part):
    """A chat completion."""

    choices: list[Choice]
    model: Text = ""
    system_fingerprint: Text = ""
    usage: Annotated[CompletionUsage | None, Lenient] = None
    completion_probabilities: Annotated[Logprobs | None, BeforeValidator(_logprobs), Lenient] = None


def _parts(value: object) -> object:
    """Return the parts of a message as mappings, also an SDK's; null is a part without text."""
    if not isinstance(value, list):
        return [None] if value is None else value
    return [part.model_dump() if isinstance(part, BaseModel) else part for part in value]


class MessageUsage(_Part):
    """The numbers of tokens of a message; tokens read from and written to a cache are separate."""

    input_tokens: Count = None
    output_tokens: Count = None
    cache_read_input_tokens: Count = None
    cache_creation_input_tokens: Count = None


class Message(_Part):
    """An answer of the Messages API."""

    content: Annotated[Any, BeforeValidator(_parts)]
    usage: Annotated[MessageUsage | None, Lenient] = None
    model: Text = ""
    stop_reason: Text = ""


class MessageParts(NamedTuple):
    """The parts of a message: its answer, the model's thinking, and its refusal."""

    text: str = ""
    thinking: str = ""
    refusal: str = ""


_TEXTS = ("text", "output_text")
_THOUGHTS = ("thinking", "redacted_thinking", "reasoning", "reasoning_text")


def read_content(content: object, place: str, reason: str) -> MessageParts:
    """Return the parts of a message's content, which is a text, a list of parts, or nothing.

    Parts of unknown kinds are ignored.

    Args:
        content: the content.
        place: where it stands in the answer.
        reason: why the model stopped; an answer that was cut off or refused needs no part.

    Raises:
        MalformedReplyError: a complete answer has no part of text, thinking or refusal.

    Examples:
        >>> thought, answer = {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "A"}
        >>> read_content([thought, answer], "content", "stop")
        MessageParts(text='A', thinking='hm', refusal='')
    """
    if content is None or isinstance(content, str):
        return MessageParts(content or "")
    texts: dict[str, list[str]] = {"text": [], "thinking": [], "refusal": []}
    parts = content if isinstance(content, list) else [content]
    for part in parts:
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        if kind in _THOUGHTS:
            texts["thinking"].append(_nested_text(part, "thinking", "reasoning", "text", "summary"))
        elif kind == "refusal":
            texts["refusal"].append(_nested_text(part, "refusal"))
        elif kind in _TEXTS:
            text = part.get("text") if isinstance(part, Mapping) else part
            texts["text"] += [text] if isinstance(text, str) else []
    if parts and not any(texts.values()) and _FINISH_OF.get(_word(reason) or "stop") == "stop":
        raise MalformedReplyError(f"{place}: no text part")
    return MessageParts(*("".join(pieces) for pieces in texts.values()))


def _nested_text(part: object, *names: str) -> str:
    """Return the text of a part, which some servers nest: under a name, or in a list."""
    if isinstance(part, list):
        return "".join(_nested_text(inner, *names) for inner in part)
    if isinstance(part, Mapping):
        return next((_nested_text(part[name], *names) for name in names if name in part), "")
    return _text(part)


def _mapping_at(part: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the mapping under a name of a part; empty if there is none."""
    inner = part.get(name)
    return inner if isinstance(inner, Mapping) else {}


_decode = json.JSONDecoder().raw_decode


def parse_json(content: bytes | str) -> object:
    r"""Return parsed JSON, also from within server-sent events, which some servers send unasked.

    Raises:
        MalformedReplyError: it is not JSON, is nested too deeply, or has too long a number.

    Examples:
        >>> parse_json(b'{"a": 1}'), parse_json('data: {"a": 1}\n\ndata: [DONE]\n')
        ({'a': 1}, {'a': 1})
    """
    try:
        if isinstance(content, bytes):
            content = content.decode(json.detect_encoding(content), "surrogatepass")
        text = _COMMENTS.sub("", content.strip("\ufeff \t\r\n"))
        values, end = [], 0
        if not text.startswith(_EVENT):
            value, end = _decode(text)
            values.append(value)
        lines = [line for line in text[end:].splitlines() if line.strip()]
        if not all(line.startswith(_EVENT) for line in lines):
            raise json.JSONDecodeError("Extra data", text, end)
        data = [line[5:].strip() for line in lines if line.startswith("data:")]
        values += [_decode(line)[0] for line in data if line and line != "[DONE]"]
    except (ValueError, RecursionError) as error:
        raise MalformedReplyError(f"not JSON: {error}") from None
    return values[0] if len(values) == 1 else _join_chunks(values)


_COMMENTS = re.compile(r"\A(?::[^\n]*\n\s*)+")
"""Comments with which a server keeps a connection open."""

_EVENT = ("data:", "event:", "id:", "retry:", ":")
"""Beginnings of the lines of server-sent events; a line with a colon alone is a comment."""


_STREAMED = (
    "the server streams its answers although streaming was not requested; turn streaming off at "
    "the server"
)


def _join_chunks(values: Sequence[object]) -> object:
    """Return the chat completion that the chunks of a stream form; the last whole one if any.

    Raises:
        MalformedReplyError: the chunks are not those of a chat completion.
    """
    chunks = [value for value in values if isinstance(value, dict)]
    completion: dict[str, Any] = {}
    message: dict[str, str] = {}
    choice: dict[str, Any] = {"message": message}
    tokens: list[object] = []
    for chunk in chunks:
        names = ("model", "system_fingerprint", "usage", "error")
        completion |= {name: chunk[name] for name in names if chunk.get(name)}
        first = next(iter(chunk.get("choices") or ()), None)
        if not isinstance(first, dict):
            continue
        if isinstance(first.get("message"), dict):
            choice = first
        for name, text in _mapping_at(first, "delta").items():
            message[name] = message.get(name, "") + _text(text)
        choice |= {name: first[name] for name in ("finish_reason", "error") if first.get(name)}
        tokens += _mapping_at(first, "logprobs").get("content") or []
        completion["choices"] = [choice]
    if tokens:
        choice["logprobs"] = {"content": tokens}
    if "choices" not in completion and "error" not in completion:
        raise MalformedReplyError(_STREAMED)
    return completion


class Tokenized(_Part):
    """The tokens of a text, as vLLM names them."""

    tokens: list[int]
    token_strs: list[str]


class OpenAIResponse(_Part):
    """The response to one request of a batch at OpenAI."""

    status_code: int
    body: Any = None


class Row(_Part):
    """A line of a batch's results."""

    custom_id: str


class OpenAIRow(Row):
    """A line of a batch's results at OpenAI."""

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


class AnthropicRow(Row):
    """A line of a batch's results at Anthropic."""

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


def validate_answer(kind: type[Part], answer: object) -> Part:
    """Validate an answer of a provider, and return it as a model.

    Args:
        kind: the model.
        answer: parsed JSON, or an SDK's object.

    Raises:
        MalformedReplyError: it has another shape.

    Examples:
        >>> answer = validate_answer(Completion, {"choices": [{"message": {"content": "A"}}]})
        >>> answer.choices[0].message.content
        'A'
    """
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = ".".join(str(part) for part in first["loc"]) or "the answer"
        raise MalformedReplyError(f"{location}: {first['msg']}") from None


def read_answer(kind: type[Part], answer: object) -> Part:
    """Validate the answer to a question, as `validate_answer`.

    Raises:
        UpstreamError: it reports an error, in place of an answer or beside it.
        MalformedReplyError: it has another shape.
    """
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    check_upstream(answer)
    return validate_answer(kind, answer)


def check_upstream(part: object) -> None:
    """Raise the error that part of an answer reports, although its status is 200.

    Raises:
        UpstreamError: it has an error, or says that the prompt was blocked, which has no answer.
    """
    error = part.get("error") if isinstance(part, Mapping) else getattr(part, "error", None)
    if error:
        raise UpstreamError.of(error)
    if isinstance(part, Mapping):
        if part.get("object") == "error":
            raise UpstreamError.of(part)
        if not part.keys() & {"choices", "content"}:
            errors = part.get("errors") or part.get("detail")
            first = errors[0] if isinstance(errors, list) else errors
            if first or isinstance(part.get("message"), str):
                raise UpstreamError.of(first or part)
        feedback = _mapping_at(part, "promptFeedback") or _mapping_at(part, "prompt_feedback")
        reason = feedback.get("blockReason") or feedback.get("block_reason")
        if reason:
            message = f"the prompt was blocked ({reason})"
            raise UpstreamError.of({"code": "content_filter", "message": message})


_FINISHES = {
    "stop": ("stop", "eos", "eos_token", "end_turn", "stop_sequence", "complete", "completed"),
    "length": (
        "length", "max_tokens", "max_output_tokens", "model_length", "limit", "error_limit",
        "model_context_window_exceeded",
    ),
    "refusal": (
        "refusal", "content_filter", "content_filtered", "safety", "sensitive", "recitation",
        "blocklist", "prohibited_content", "spii", "guardrail_intervened", "error_toxic",
    ),
    "unparsable": ("tool_calls", "tool_use", "function_call"),
}  # fmt: skip
_FINISH_OF = {reason: finish for finish, reasons in _FINISHES.items() for reason in reasons}
_INTERRUPTED = re.compile(
    r"error|abort|fail|insufficient|overload|cancel|interrupt|unavailable|time_?out|timed|"
    r"disconnect|exception|malformed|pause|incomplete|throttl|preempt"
)


def _word(reason: str) -> str:
    """Return the first word of a reason such as "content_filter: PROHIBITED_CONTENT"."""
    return reason.lower().partition(":")[0].strip()


def finish_of(reason: str, answer: str) -> str:
    """Return why the model stopped: "stop", "length", "refusal", or the provider's own words.

    Args:
        reason: the provider's word; empty if it gives none.
        answer: what the model said, thinking included.

    Raises:
        UpstreamError: the server interrupted the answer, or there is none and the reason is
            unknown. An answer with an unknown reason is taken as complete.

    Examples:
        >>> finish_of("max_tokens", "Let me"), finish_of("", "A")
        ('length', 'unknown')
        >>> finish_of("content_filter: PROHIBITED_CONTENT", "")
        'refusal'
    """
    word = _word(reason)
    if word in _FINISH_OF:
        finish = _FINISH_OF[word]
        return reason if finish == "unparsable" else finish
    if not answer or _INTERRUPTED.search(word):
        raise UpstreamError.stopped(reason)
    return reason or "unknown"
