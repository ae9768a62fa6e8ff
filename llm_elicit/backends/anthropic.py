"""Claude models, through the anthropic SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from llm_elicit._util.packages import LazyModule
from llm_elicit.backends import wire
from llm_elicit.backends.base import Capabilities, Reply, Request
from llm_elicit.backends.batches import (
    BatchClient,
    BatchLimits,
    BatchRequest,
    BatchResult,
    BatchState,
    Options,
)
from llm_elicit.backends.chat_completions import split_thinking
from llm_elicit.backends.failures import error_fields, one_line, refuses_prompt
from llm_elicit.backends.sdk import SDKBackend
from llm_elicit.config.judges import AnthropicJudge

if TYPE_CHECKING:
    import anthropic
else:
    anthropic = LazyModule("anthropic")

SAMPLING_VERSION = "2023-06-01"
"""The last version of the API that takes a temperature, which older models understand."""


class AnthropicBackend(SDKBackend):
    """A Claude model behind the Messages API.

    A temperature is sent with an older API version that accepts one. A model without temperatures
    answers 400, which stops the judge with the provider's message.
    """

    capabilities = Capabilities(temperature=True, structured=True, batch=True, text=True)
    _judge: AnthropicJudge

    def __init__(self, judge: AnthropicJudge) -> None:
        super().__init__(judge, anthropic, "v1/messages", _headers(judge))

    def body(self, request: Request) -> dict[str, Any]:
        """Return the Messages body that `ask` would send."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.token_limit(
                self._judge.max_tokens, self._judge.least_tokens, self._judge.thinking_room
            ),
            "messages": [{"role": m.role, "content": m.content} for m in request.prompt.turns],
        }
        if request.prompt.system:
            body["system"] = request.prompt.system
        return self._with_settings(body, request)

    async def ask(self, request: Request) -> Reply:
        """Ask one question once."""
        body = self.body(request)
        return await self._send(body, partial(read_message, body=body))


def _headers(judge: AnthropicJudge) -> dict[str, str]:
    """Return what states the version of the API, if a judge needs an older one."""
    return {} if judge.temperature is None else {"anthropic-version": SAMPLING_VERSION}


def read_message(answer: object, body: dict[str, Any]) -> Reply:
    """Return the reply in a message, given as JSON or as the SDK's object.

    Raises:
        MalformedReplyError: it is not an answer of the Messages API.
        UpstreamError: it is an error, or was interrupted.
    """
    message = wire.read_answer(wire.Message, answer)
    usage = message.usage or wire.MessageUsage()
    cached = usage.cache_read_input_tokens or 0
    written = usage.cache_creation_input_tokens or 0
    # The tokens read from the cache alone are not the count of a prompt.
    prompt = 0 if usage.input_tokens is None else usage.input_tokens + cached + written
    text, thinking, refusal = wire.read_content(message.content, "content", message.stop_reason)
    text, thinking = split_thinking(text, thinking)
    finish = "refusal" if refusal else wire.finish_of(message.stop_reason, text or thinking)
    return Reply(
        text=text or refusal,
        finish=finish,
        model=message.model,
        prompt_tokens=prompt,
        completion_tokens=usage.output_tokens or 0,
        cached_tokens=cached,
        body=body,
        thinking=thinking,
    )


class AnthropicBatchClient(BatchClient):
    """Anthropic's Message Batches, without metadata: a lost batch is recognized by its results."""

    limits = BatchLimits(count=100_000, size=256_000_000)
    tagged = False
    _row = wire.AnthropicRow
    _client: anthropic.AsyncAnthropic

    def __init__(self, judge: AnthropicJudge) -> None:
        super().__init__(judge, anthropic, _headers(judge))

    async def submit(self, requests: Sequence[BatchRequest], tag: str) -> str:
        """Create the batch."""
        del tag  # the custom ids begin with it
        rows: list[Any] = [
            {"custom_id": request.custom_id, "params": request.body} for request in requests
        ]
        return wire.validate_answer(wire.Created, await self._batches.create(requests=rows)).id

    def results(self, batch: str, options: Options) -> AsyncIterator[BatchResult]:
        """Yield the results of a batch that ended."""
        return self._results(self._batches.with_streaming_response.results(batch), options)

    @property
    def _batches(self) -> Any:
        return self._client.messages.batches

    def _state(self, raw: object) -> BatchState:
        batch = wire.validate_answer(wire.AnthropicBatch, raw)
        counts = batch.request_counts
        done = counts.succeeded + counts.errored + counts.canceled + counts.expired
        return BatchState(
            id=batch.id,
            ended=batch.processing_status == "ended",
            status=self._clean(batch.processing_status),
            total=done + counts.processing,
            done=done,
            created=batch.created_at.timestamp(),
        )

    def _outcome(self, row: wire.AnthropicRow, options: Options) -> BatchResult:
        del options
        name, result = row.custom_id, row.result
        if result.type == "succeeded":
            return BatchResult(name, reply=read_message(result.message, {}))
        if result.type != "errored":
            return BatchResult(name, reason=result.type)
        error = error_fields(result.error)
        kind = str(error.get("type") or result.type)
        message = one_line(error.get("message") or "no message")
        refused = kind in ("invalid_request_error", "not_found_error")
        return BatchResult(
            name,
            reason=f"{kind}: {message}",
            refused=refused,
            prompt_refused=refused and refuses_prompt(400, kind, message),
        )
