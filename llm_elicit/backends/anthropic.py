"""Claude models, through the anthropic SDK."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from llm_elicit.backends.base import (
    THINKING_ROOM,
    Capabilities,
    Reply,
    Request,
    bare_url,
    choice_schema,
    limit_headers,
    read_key,
)
from llm_elicit.backends.failures import MalformedReplyError
from llm_elicit.backends.sdk import Keyed
from llm_elicit.campaign import AnthropicJudge
from llm_elicit.later import Later

if TYPE_CHECKING:
    import anthropic
else:
    anthropic = Later("anthropic")

SAMPLING_VERSION = "2023-06-01"
"""The last version of the API that takes a temperature, which older models understand."""

_FINISH = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length"}


class AnthropicBackend(Keyed):
    """A Claude model behind the Messages API.

    A temperature is sent under the older API version that still takes one; a model that has
    none answers 400, which stops the judge with the provider's own words.

    Raises:
        InputError: the key's environment variable is not set.
    """

    capabilities = Capabilities(temperature=True, structured=True, batch=True)
    cacheable = True

    def __init__(self, judge: AnthropicJudge) -> None:
        key = read_key(judge.api_key_env, judge.name)
        self._judge = judge
        self.model = judge.model
        self._client = anthropic.AsyncAnthropic(
            api_key=key, base_url=judge.base_url, timeout=judge.timeout, max_retries=0
        )
        super().__init__(self._client, key)
        self.endpoint = bare_url(str(self._client.base_url))

    async def __aenter__(self) -> Self:
        # The SDK imports this part when it is first touched: not on a request's time.
        _ = self._client.messages.with_raw_response
        return await super().__aenter__()

    def body(self, request: Request) -> dict[str, Any]:
        """The Messages body that `ask` would send."""
        limit = self._judge.max_tokens or max(request.max_tokens, THINKING_ROOM)
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": limit,
            "messages": [{"role": m.role, "content": m.content} for m in request.prompt.turns],
        }
        if request.prompt.system:
            body["system"] = request.prompt.system
        if self._judge.structured:
            schema = choice_schema(request.options)
            body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        if self._judge.temperature is not None:
            body["temperature"] = self._judge.temperature
        return body

    async def ask(self, request: Request) -> Reply:
        """Put one question, once."""
        body = self.body(request)
        sent = {key: value for key, value in body.items() if key != "temperature"}
        extra: dict[str, Any] = {}
        if "temperature" in body:
            extra["extra_body"] = {"temperature": body["temperature"]}
            extra["extra_headers"] = {"anthropic-version": SAMPLING_VERSION}
        answer = await self._client.messages.with_raw_response.create(**sent, **extra)
        reply = read_message(await answer.parse(), body)
        return replace(reply, headers=limit_headers(answer.headers))


def read_message(answer: object, body: dict[str, Any]) -> Reply:
    """The SDK's message as a reply; the SDK hands unexpected JSON on without checking it."""
    if (
        not isinstance(answer, anthropic.types.Message)
        or not isinstance(answer.content, list)
        or not answer.usage
    ):
        raise MalformedReplyError("the answer is not a Messages response")
    usage = answer.usage
    cached = usage.cache_read_input_tokens or 0
    written = usage.cache_creation_input_tokens or 0
    stop = answer.stop_reason or "unknown"
    return Reply(
        text="".join(block.text for block in answer.content if block.type == "text"),
        finish=_FINISH.get(stop, stop),
        model=str(answer.model),
        first=None,
        letter_mass=None,
        prompt_tokens=usage.input_tokens + cached + written,
        completion_tokens=usage.output_tokens,
        cached_tokens=cached,
        body=body,
        thinking="".join(block.thinking for block in answer.content if block.type == "thinking"),
    )
