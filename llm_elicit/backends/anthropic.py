"""Claude models, through the anthropic SDK."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llm_elicit._util.lazy_module import LazyModule
from llm_elicit.backends import wire
from llm_elicit.backends.base import (
    THINKING_ROOM,
    Capabilities,
    Reply,
    Request,
    answer_schema,
    bare_url,
    limit_headers,
    read_key,
    server_url,
)
from llm_elicit.backends.sdk import Keyed, Sender, opening
from llm_elicit.config.judges import AnthropicJudge

if TYPE_CHECKING:
    import anthropic
    import httpx2
else:
    anthropic = LazyModule("anthropic")

SAMPLING_VERSION = "2023-06-01"
"""The last version of the API that takes a temperature, which older models understand."""

_FINISH = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length"}


class AnthropicBackend(Keyed):
    """A Claude model behind the Messages API.

    A temperature is sent under the older API version that still takes one; a model that has
    none answers 400, which stops the judge with the provider's own words.

    Raises:
        InputError: the key's environment variable is not set, or no client can be made of the
            environment.
    """

    capabilities = Capabilities(temperature=True, structured=True, batch=True, text=True)
    cacheable = True

    def __init__(self, judge: AnthropicJudge) -> None:
        self._judge = judge
        self.model = judge.model
        older = judge.temperature is not None
        version = {"anthropic-version": SAMPLING_VERSION} if older else None
        with opening(judge.name):
            http = anthropic.DefaultAioHttpClient()
            self._client, key = open_client(judge, http, judge.timeout, version)
            super().__init__(self._client, key)
            self.endpoint = bare_url(str(self._client.base_url))
            address = str(self._client.base_url.join("v1/messages"))
            self._sender = Sender(anthropic, self._client, http, address, judge.timeout)

    def body(self, request: Request) -> dict[str, Any]:
        """The Messages body that `ask` would send."""
        temperature = request.temperature(self._judge.temperature)
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.room(self._judge.max_tokens, THINKING_ROOM),
            "messages": [{"role": m.role, "content": m.content} for m in request.prompt.turns],
        }
        if request.prompt.system:
            body["system"] = request.prompt.system
        schema = answer_schema(request) if self._judge.structured else None
        if schema is not None:
            body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        if temperature is not None:
            body["temperature"] = temperature
        return body

    async def ask(self, request: Request) -> Reply:
        """Put one question, once."""
        body = self.body(request)
        answer = await self._sender.send(body)
        reply = read_message(answer.content, body)
        return replace(reply, headers=limit_headers(answer.headers))


def open_client(
    judge: AnthropicJudge,
    http: httpx2.AsyncClient,
    timeout: float,
    headers: dict[str, str] | None = None,
) -> tuple[anthropic.AsyncAnthropic, str]:
    """The SDK's client for a judge, without retries, and the judge's key.

    Raises:
        InputError: the key or the address is missing or cannot be one.
    """
    key = read_key(judge.api_key_env, judge.name)
    client = anthropic.AsyncAnthropic(
        api_key=key,
        base_url=server_url(judge.base_url, "ANTHROPIC_BASE_URL", judge.name),
        timeout=timeout,
        max_retries=0,
        default_headers=headers,
        http_client=http,
    )
    return client, key


def read_message(answer: object, body: dict[str, Any]) -> Reply:
    """A message, as JSON or as the SDK's object, as a reply.

    Raises:
        MalformedReplyError: it is not an answer of the Messages API.
    """
    message = wire.read(wire.Message, answer)
    usage = message.usage or wire.MessageUsage()
    cached = usage.cache_read_input_tokens or 0
    written = usage.cache_creation_input_tokens or 0
    # What was read from the cache is no whole count of a prompt by itself.
    prompt = 0 if usage.input_tokens is None else usage.input_tokens + cached + written
    stop = message.stop_reason or "unknown"
    return Reply(
        text="".join(block.text for block in message.content if block.type == "text"),
        finish=_FINISH.get(stop, stop),
        model=message.model,
        first=None,
        letter_mass=None,
        prompt_tokens=prompt,
        completion_tokens=usage.output_tokens or 0,
        cached_tokens=cached,
        body=body,
        thinking="".join(block.thinking for block in message.content if block.type == "thinking"),
    )
