"""The servers of the profiles, as data: which fields of a request each takes, how it refuses one,
where it puts the model's thinking, and how it words its errors.

Fields and places are what the documentation, the SDK or the source code of the provider states.
The words of a refusal are the provider's where they are known, and otherwise of the same kind.
A request with a field that is not listed is refused, as by the strictest of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llm_elicit.testing.provider import Error, error_body

_COMMON = frozenset({"model", "messages", "temperature", "top_p", "stop", "response_format"})
_CHAT = _COMMON | {"seed", "logprobs", "top_logprobs", "max_tokens", "reasoning_effort"}
_MESSAGES = frozenset(
    {"model", "messages", "system", "max_tokens", "temperature", "thinking", "output_config"}
)
_TEMPLATE = frozenset({"chat_template_kwargs"})


def _openai(fails: Error) -> Any:
    return error_body(fails, anthropic=False)


def _anthropic(fails: Error) -> Any:
    return error_body(fails, anthropic=True)


def _google(fails: Error) -> Any:
    error = {"code": fails.status, "message": fails.message, "status": "INVALID_ARGUMENT"}
    return [{"error": error}]


def _azure(fails: Error) -> Any:
    error = {"message": fails.message, "type": None, "param": fails.param, "code": fails.code}
    return {"error": {**error, "status": fails.status}}


def _detail(fails: Error) -> Any:
    detail = [{"type": "extra_forbidden", "loc": ["body"], "msg": fails.message}]
    return {"object": "error", "message": {"detail": detail}, "type": "invalid_request_error"}


def _numbered(fails: Error) -> Any:
    return {"error": {"code": fails.status, "message": fails.message}}


def _bare(fails: Error) -> Any:
    return {"object": "error", "message": fails.message, "type": "BadRequestError", "code": 400}


def _text(fails: Error) -> Any:
    return {"error": fails.message, "error_type": "validation"}


def _aws(fails: Error) -> Any:
    return {"message": fails.message}


@dataclass(frozen=True)
class Server:
    """What a provider's server does.

    Attributes:
        fields: the fields of a request that it takes.
        path: the path of a request, below the loopback server's address; empty for any.
        below: the path of the base URL.
        thinking_in: the places of the model's thinking.
        error: the body of its error responses.
        refusal: the status and the message with which it refuses log-probabilities.
        too_many: the message with which it refuses so many alternatives.
        columns: whether it sends log-probabilities as lists.
        overloaded: the status of an overload.
    """

    fields: frozenset[str] = _CHAT
    path: str = "/v1/chat/completions"
    below: str = "/v1"
    thinking_in: tuple[str, ...] = ("reasoning_content",)
    error: Callable[[Error], Any] = _openai
    refusal: tuple[int, str] = (400, "logprobs is not supported")
    too_many: str = "top_logprobs must be between 0 and 5"
    columns: bool = False
    overloaded: int = 503


SERVERS = {
    "openai": Server(
        fields=_CHAT - {"max_tokens"} | {"max_completion_tokens"},
        thinking_in=(),
        refusal=(403, "You are not allowed to request logprobs from this model"),
    ),
    "azure": Server(
        fields=_CHAT - {"max_tokens"} | {"max_completion_tokens"},
        path="/openai/deployments/m/chat/completions?api-version=2024-10-21",
        below="",
        thinking_in=(),
        error=_azure,
        refusal=(400, "This model does not support the parameter logprobs."),
    ),
    "gemini": Server(
        path="/v1beta/openai/chat/completions",
        below="/v1beta/openai",
        thinking_in=(),
        error=_google,
        refusal=(400, "Logprobs is not enabled for models/m"),
        too_many="top_logprobs must be in the range [0, 5]",
    ),
    "mistral": Server(
        fields=_CHAT - {"seed", "logprobs", "top_logprobs"} | {"random_seed"},
        thinking_in=("parts",),
        error=_detail,
        refusal=(422, "logprobs: Extra inputs are not permitted"),
    ),
    "deepseek": Server(
        fields=_CHAT - {"seed"} | {"thinking"},
        path="/chat/completions",
        below="",
        refusal=(400, "deepseek-reasoner does not support the parameter `logprobs`"),
        too_many="Invalid top_logprobs value, the valid range of top_logprobs is [0, 5]",
    ),
    "openrouter": Server(
        fields=_CHAT - {"reasoning_effort"} | {"reasoning"},
        path="/api/v1/chat/completions",
        below="/api/v1",
        thinking_in=("reasoning",),
        error=_numbered,
        refusal=(404, "No endpoints found that support logprobs"),
    ),
    "together": Server(
        fields=_CHAT - {"top_logprobs"} | {"reasoning"},
        thinking_in=("reasoning", "reasoning_content"),
        refusal=(400, "logprobs is not available for this model"),
        too_many="logprobs must be less than or equal to 5",
        columns=True,
    ),
    "groq": Server(
        fields=_CHAT - {"logprobs", "top_logprobs"},
        path="/openai/v1/chat/completions",
        below="/openai/v1",
        thinking_in=("reasoning", "tags"),
        refusal=(400, "property 'logprobs' is unsupported"),
    ),
    "vllm": Server(
        fields=_CHAT | _TEMPLATE | {"thinking_token_budget", "logprob_token_ids"},
        thinking_in=("reasoning", "reasoning_content", "tags"),
        too_many="Requested sample logprobs of 20, which is greater than max allowed: 5",
    ),
    "sglang": Server(
        fields=_CHAT | _TEMPLATE, thinking_in=("reasoning_content", "tags"), error=_bare
    ),
    "llama.cpp": Server(
        fields=_CHAT - {"reasoning_effort"} | _TEMPLATE,
        thinking_in=("reasoning_content", "tags"),
        error=_numbered,
    ),
    "ollama": Server(thinking_in=("reasoning",)),
    "lmstudio": Server(
        fields=_COMMON | {"max_tokens", "seed"},
        thinking_in=("tags",),
        error=_text,
        refusal=(400, "'logprobs' is not supported"),
    ),
    "tgi": Server(
        fields=_CHAT - {"reasoning_effort"},
        thinking_in=("tags",),
        error=_text,
        refusal=(422, "Input validation error: `logprobs` is not supported"),
        too_many="Input validation error: `top_n_tokens` must be >= 0 and <= 2. Given: 5",
    ),
    "anthropic": Server(
        fields=_MESSAGES,
        path="/v1/messages",
        below="",
        thinking_in=("block",),
        error=_anthropic,
        overloaded=529,
    ),
    "bedrock": Server(
        fields=_MESSAGES - {"model"} | {"anthropic_version"},
        path="/model/m/invoke",
        below="",
        thinking_in=("block",),
        error=_aws,
    ),
    "vertex": Server(
        fields=_MESSAGES - {"model"} | {"anthropic_version"},
        path="/projects/p/locations/us-east5/publishers/anthropic/models/m:rawPredict",
        below="",
        thinking_in=("block",),
        error=_anthropic,
        overloaded=529,
    ),
}
"""The server of each profile. The profile `compatible` is any of them."""
