"""OpenAI's models, and other servers of chat completions, through the openai SDK."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from llm_elicit._util.packages import LazyModule
from llm_elicit.backends import wire
from llm_elicit.backends.base import (
    THINKING_ROOM,
    AdaptedError,
    Capabilities,
    Reply,
    Request,
    answer_schema,
    bare_url,
    limit_headers,
    read_key,
    server_url,
)
from llm_elicit.backends.batches import (
    TAG,
    BatchLimits,
    BatchRequest,
    BatchResult,
    BatchState,
    Options,
    SDKBatchClient,
    each_listed,
    malformed,
)
from llm_elicit.backends.chat_completions import read_completion
from llm_elicit.backends.failures import (
    MalformedReplyError,
    complaint,
    one_line,
    refuses_prompt,
)
from llm_elicit.backends.sdk import Keyed, Sender, opening
from llm_elicit.config.judges import OpenAIJudge

if TYPE_CHECKING:
    import httpx2
    import openai
else:
    openai = LazyModule("openai")

TOP = 20
"""Number of log-probabilities requested for the first token: the API's maximum."""

_JSON_ROOM = 32
"""Tokens of a letter in JSON, with any tokenizer."""

_OFFICIAL = "api.openai.com"
_URL_VARIABLE = "OPENAI_BASE_URL"

_UNSUPPORTED = {
    "temperature": r"o[1-9]|gpt-5(-mini|-nano|-pro|-codex)?(-20\d\d-\d\d-\d\d)?$",
    "logprobs": r"o[1-9]|gpt-5(-mini|-nano|-pro|-codex)?(-20\d\d-\d\d-\d\d)?$",
    "structured": r"o1-(mini|preview)|gpt-3|gpt-4(-turbo|-32k|-vision|-0|-1106|$)",
}

_VOCABULARIES = (
    ("o200k_base", re.compile(r"(gpt-4o|gpt-4\.[15]|gpt-5|o[134]\b|chatgpt-4o)")),
    ("cl100k_base", re.compile(r"(gpt-4|gpt-3\.5)(-|$)")),
)

_REFUSALS = (400, 403, 422)
_SETTINGS = ("logprobs", "max_tokens", "max_completion_tokens")
_BAD_VALUES = ("invalid_value", "integer_above_max_value", "integer_below_min_value")
_ENDED = frozenset({"completed", "failed", "expired", "cancelled"})


class OpenAIBackend(Keyed):
    """A model behind chat completions.

    Two settings are changed for the rest of the run if the server refuses them: log-probabilities
    are dropped (judgments are then hard), and the token limit is sent under its other name
    (`max_completion_tokens` at OpenAI, `max_tokens` elsewhere). A temperature or seed that the user
    set is never dropped.

    Raises:
        InputError: the key's environment variable is not set, or no client can be made of the
            environment.
    """

    capabilities = Capabilities(
        temperature=True, seed=True, logprobs=True, structured=True, batch=True, text=True
    )
    cacheable = True

    def __init__(self, judge: OpenAIJudge) -> None:
        self._judge = judge
        self.model = judge.model
        with opening(judge.name):
            http = openai.DefaultAioHttpClient()
            self._client, key = open_client(judge, http, judge.timeout)
            super().__init__(self._client, key)
            self.endpoint = bare_url(str(self._client.base_url))
            address = str(self._client.base_url.join("chat/completions"))
            self._sender = Sender(openai, self._client, http, address, judge.timeout)
        official = self._client.base_url.host == _OFFICIAL
        names = ("max_completion_tokens", "max_tokens")
        self._limits = names if official else names[::-1]
        self._limit = self._limits[0]
        self._room = THINKING_ROOM if official else _JSON_ROOM if judge.structured else 0
        self._logprobs = judge.logprobs

    def body(self, request: Request) -> dict[str, Any]:
        """Return the chat completions body that `ask` would send now."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": m.role, "content": m.content} for m in request.prompt.messages],
            self._limit: request.room(self._judge.max_tokens, self._room),
        }
        temperature = request.temperature(self._judge.temperature)
        if temperature is not None:
            body["temperature"] = temperature
        if self._judge.seed is not None:
            # Replicates with the same seed would be equal.
            body["seed"] = self._judge.seed + request.replicate
        schema = answer_schema(request) if self._judge.structured else None
        if schema is not None:
            named = {"name": "choice", "strict": True, "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        if self._logprobs and request.answer == "letter":
            body["logprobs"], body["top_logprobs"] = True, TOP
        return body

    async def ask(self, request: Request) -> Reply:
        """Ask one question once."""
        body = self.body(request)
        try:
            answer = await self._sender.send(body)
        except openai.APIStatusError as error:
            if error.status_code in _REFUSALS:
                self._adapt(error, body)
            raise
        reply = read_completion(answer.content, body, request.options)
        return replace(reply, headers=limit_headers(answer.headers))

    def _adapt(self, error: openai.APIStatusError, body: dict[str, Any]) -> None:
        """Drop the setting that the server refuses, if it is optional."""
        said = complaint(error.body)
        refused = _refused_settings(said, str(error))
        if "logprobs" in body and refused & {"logprobs", "top_logprobs"}:
            self._logprobs = False
            raise AdaptedError(
                f"{self.model}: the server refuses logprobs; judgments are hard"
            ) from None
        sent = self._limits[0]
        # If the code refers to the value, the name is correct and the user must change the value.
        if sent in body and sent in refused and said.get("code") not in _BAD_VALUES:
            self._limit = self._limits[1]
            raise AdaptedError(
                f"{self.model}: the server takes {self._limit}, not {sent}"
            ) from None


def unsupported(judge: OpenAIJudge) -> dict[str, str] | None:
    """Return patterns of OpenAI's models that do not take a setting; None for other servers."""
    official = judge.base_url is None or _OFFICIAL in judge.base_url
    return _UNSUPPORTED if official else None


def price_list(judge: OpenAIJudge) -> dict[str, str]:
    """Return the arguments that find a judge's model in the price list."""
    url = judge.base_url or os.environ.get(_URL_VARIABLE)
    return {"provider_api_url": url} if url else {"provider_id": "openai"}


def vocabulary(judge: OpenAIJudge) -> str | None:
    """Return the name of the tokenizer of OpenAI's own models; None for others."""
    if judge.base_url:
        return None
    return next((name for name, models in _VOCABULARIES if models.match(judge.model)), None)


def open_client(
    judge: OpenAIJudge, http: httpx2.AsyncClient, timeout: float
) -> tuple[openai.AsyncOpenAI, str | None]:
    """Return the SDK's client for a judge, without retries, and the judge's key.

    Raises:
        InputError: the key or the address is missing or cannot be one.
    """
    key = read_key(judge.api_key_env, judge.name) if judge.api_key_env else None
    url = server_url(judge.base_url, _URL_VARIABLE, judge.name)
    client = openai.AsyncOpenAI(
        api_key=key or "none", base_url=url, timeout=timeout, max_retries=0, http_client=http
    )
    return client, key


def _refused_settings(said: Mapping[str, Any], text: str) -> set[str]:
    """Return the refused settings: the `param` of the error, or else those that its text names.

    The question is then asked again without the setting, or with its other name.
    """
    param = said.get("param")
    if isinstance(param, str) and param:
        return {param.partition(".")[0]}
    return {name for name in _SETTINGS if name in text}


class OpenAIBatchClient(SDKBatchClient[OpenAIJudge, "openai.AsyncOpenAI"]):
    """OpenAI's Batch API: a file of requests, and files of answers and errors."""

    limits = BatchLimits(count=50_000, size=200_000_000)
    tagged = True

    def __init__(self, judge: OpenAIJudge) -> None:
        super().__init__(judge, openai, open_client)

    async def submit(self, requests: Sequence[BatchRequest], tag: str) -> str:
        """Upload the requests, then create the batch. Only the second step costs anything."""
        url: Literal["/v1/chat/completions"] = "/v1/chat/completions"
        rows = (
            {"custom_id": request.custom_id, "method": "POST", "url": url, "body": request.body}
            for request in requests
        )
        content = io.BytesIO("\n".join(json.dumps(row) for row in rows).encode())
        file = wire.read(
            wire.Created,
            await self._client.files.create(file=(f"{tag}.jsonl", content), purpose="batch"),
        )
        batch = await self._client.batches.create(
            input_file_id=file.id, endpoint=url, completion_window="24h", metadata={TAG: tag}
        )
        return wire.read(wire.Created, batch).id

    async def state(self, batch: str) -> BatchState:
        """Return the state of a batch."""
        return self._state(await self._client.batches.retrieve(batch))

    async def recent(self) -> AsyncIterator[BatchState]:
        """Yield the account's batches, the newest first."""
        async for batch in each_listed(self._client.batches.list(limit=100)):
            yield self._state(batch)

    async def results(self, batch: str, options: Options) -> AsyncIterator[BatchResult]:
        """Yield the results of a batch that ended, including requests that expired."""
        found = wire.read(wire.OpenAIBatch, await self._client.batches.retrieve(batch))
        for file in (found.output_file_id, found.error_file_id):
            if file is None:
                continue
            async with self._client.files.with_streaming_response.content(file) as content:
                async for text in content.iter_lines():
                    if text.strip():
                        yield _openai_result(text, options)

    def _state(self, said: object) -> BatchState:
        batch = wire.read(wire.OpenAIBatch, said)
        counts = batch.request_counts or wire.OpenAICounts()
        problems = (batch.errors and batch.errors.data) or []
        return BatchState(
            id=batch.id,
            ended=batch.status in _ENDED,
            status=self._clean(batch.status),
            total=counts.total,
            done=counts.completed + counts.failed,
            created=batch.created_at,
            tag=(batch.metadata or {}).get(TAG),
            error=self._clean("; ".join(str(p.message) for p in problems[:3])) or None,
        )


def _openai_result(text: str, options: Options) -> BatchResult:
    name = ""
    try:
        row = wire.read(wire.OpenAIRow, wire.parsed(text))
        name, response = row.custom_id, row.response
        if response is None:
            error = complaint(row.error)
            reason = str(error.get("message") or error.get("code") or "no answer")
            return BatchResult(name, reason=one_line(reason))
        if response.status_code == 200:
            return BatchResult(name, reply=read_completion(response.body, {}, options(name)))
    except MalformedReplyError:
        return malformed(name)
    status, named = response.status_code, complaint(response.body)
    said = one_line(f"error {status}: {named.get('message', 'no message')}")
    code = f"{named.get('code')} {named.get('type')}"
    return BatchResult(
        name, reason=said, refused=_refused(status),
        prompt_refused=refuses_prompt(status, code, said),
    )  # fmt: skip


def _refused(status: int) -> bool:
    """Return whether an error is due to the request itself."""
    return 400 <= status < 500 and status not in (408, 409, 425, 429)
