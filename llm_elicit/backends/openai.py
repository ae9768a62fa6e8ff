"""OpenAI's models, and other servers of chat completions, through the openai SDK."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from llm_elicit._util.packages import LazyModule
from llm_elicit.backends import wire
from llm_elicit.backends.base import (
    THINKING_ROOM,
    Capabilities,
    Reply,
    Request,
    SettingDroppedError,
    answer_schema,
    extended,
)
from llm_elicit.backends.batches import (
    TAG,
    BatchClient,
    BatchLimits,
    BatchRequest,
    BatchResult,
    BatchState,
    Options,
    due_to_request,
)
from llm_elicit.backends.chat_completions import read_completion
from llm_elicit.backends.failures import UpstreamError, complaint, one_line, refuses_prompt
from llm_elicit.backends.sdk import SDKBackend
from llm_elicit.config.judges import OpenAIJudge

if TYPE_CHECKING:
    import openai
else:
    openai = LazyModule("openai")

TOP = 20
"""Number of log-probabilities requested for each token: the API's maximum."""

_FEWER = (5, 1, 0)
"""Numbers to try where a server allows fewer and does not say how many."""

_JSON_ROOM = 32
"""Tokens of a letter in JSON, with any tokenizer."""

_OFFICIAL = "api.openai.com"

_UNSUPPORTED = {
    "temperature": r"o[1-9]|gpt-5(-mini|-nano|-pro|-codex)?(-20\d\d-\d\d-\d\d)?$",
    "logprobs": r"o[1-9]|gpt-5(-mini|-nano|-pro|-codex)?(-20\d\d-\d\d-\d\d)?$",
    "structured": r"o1-(mini|preview)|gpt-3|gpt-4(-turbo|-32k|-vision|-0|-1106|$)",
}

_VOCABULARIES = (
    ("o200k_base", re.compile(r"(gpt-4o|gpt-4\.[15]|gpt-5|o[134]\b|chatgpt-4o)")),
    ("cl100k_base", re.compile(r"(gpt-4|gpt-3\.5)(-|$)")),
)

_REFUSALS, _OTHERS = (400, 403, 422), (404, 500, 501)
"""Statuses of servers that refuse a setting; with the others their message has to say so."""

_LOGPROBS = frozenset({"logprobs", "top_logprobs"})
_SETTINGS = frozenset({*_LOGPROBS, "max_tokens", "max_completion_tokens"})
_PARAMETERS = frozenset({
    "model", "messages", "temperature", "top_p", "seed", "stop", "stream", "n", "response_format",
    "presence_penalty", "frequency_penalty", "logit_bias", "reasoning_effort", *_SETTINGS,
})  # fmt: skip
_UNKNOWN = re.compile(
    r"(?:n't|\bnot|\bnever) (?:\w+ )?(?:support|allow|permit|accept|recogni|available|implement|"
    r"enabled)|\bunsupported|\bunrecogni|\bunknown|\bunexpected|\bextra|\bno endpoints|\bcannot be",
    re.IGNORECASE,
)
"""Words for a setting that a server does not take at all."""

_MOST = re.compile(
    r"(?:most|max\w*|limit\w*|less than|up to|exceed\w*|greater than|more than|between|range\w*|"
    r"above|below|lower|smaller|fewer|<|\u2264|\[)",
    re.IGNORECASE,
)
"""Words for a value that is too large."""

_BAD_VALUES = ("invalid_value", "integer_above_max_value", "integer_below_min_value")
_ENDED = frozenset({"completed", "failed", "expired", "cancelled"})


class OpenAIBackend(SDKBackend):
    """A model behind chat completions.

    Three settings are changed for the rest of the run if the server refuses them: fewer
    alternatives of a token are asked for, log-probabilities are dropped (judgments are then hard),
    and the token limit is sent under its other name (`max_completion_tokens` at OpenAI,
    `max_tokens` elsewhere). A temperature or seed that the user set is never dropped.
    """

    capabilities = Capabilities(
        temperature=True, seed=True, logprobs=True, structured=True, batch=True, text=True
    )
    _judge: OpenAIJudge

    def __init__(self, judge: OpenAIJudge) -> None:
        super().__init__(judge, openai, "chat/completions")
        official = self._client.base_url.host == _OFFICIAL
        names = ("max_completion_tokens", "max_tokens")
        self._limits = names if official else names[::-1]
        self._limit = self._limits[0]
        self._room = THINKING_ROOM if official else _JSON_ROOM if judge.structured else 0
        self._top = TOP if judge.logprobs else 0

    def body(self, request: Request) -> dict[str, Any]:
        """Return the chat completions body that `ask` would send now."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": m.role, "content": m.content} for m in request.prompt.messages],
            self._limit: request.room(
                self._judge.max_tokens, self._room, self._judge.thinking_room
            ),
        }
        if self._judge.effort is not None:
            body["reasoning_effort"] = self._judge.effort
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
        if self._top and request.answer == "letter":
            body["logprobs"], body["top_logprobs"] = True, self._top
        return extended(body, self._judge.extra_body)

    async def ask(self, request: Request) -> Reply:
        """Ask one question once."""
        body = self.body(request)
        try:
            return await self._send(
                body, partial(read_completion, body=body, options=request.options)
            )
        except openai.APIStatusError as error:
            self._adapt(error.status_code, complaint(error.body), str(error), body)
            raise
        except UpstreamError as error:
            self._adapt(error.failure.status, {}, error.failure.said, body)
            raise

    def _adapt(
        self, status: int | None, error: Mapping[str, Any], text: str, body: dict[str, Any]
    ) -> None:
        """Change the setting that the server refuses, if it is optional.

        Raises:
            SettingDroppedError: it was changed, now or by another request meanwhile.
        """
        if status not in _REFUSALS and not (status in _OTHERS and _UNKNOWN.search(text)):
            return
        # A `param` that names no setting, such as "None", says nothing.
        refused = set(re.findall(r"\w+", str(error.get("param")))) & (body.keys() | _PARAMETERS)
        refused = refused or {name for name in _SETTINGS if re.search(rf"\b{name}\b", text)}
        if "logprobs" in body and refused & _LOGPROBS:
            if body["top_logprobs"] == self._top:
                self._top = _allowed(error, text, self._top)
            if self._top:
                raise SettingDroppedError(
                    f"{self.model}: the server returns {self._top} log-probabilities per token, "
                    f"not {TOP}"
                ) from None
            raise SettingDroppedError(
                f"{self.model}: the server returns no log-probabilities; answers count as choices"
            ) from None
        sent = self._limits[0]
        # If the code refers to the value, the name is correct and the user must change the value.
        if sent in body and sent in refused and error.get("code") not in _BAD_VALUES:
            self._limit = self._limits[1]
            raise SettingDroppedError(
                f"{self.model}: the server accepts {self._limit}, not {sent}"
            ) from None


def unsupported(judge: OpenAIJudge) -> dict[str, str] | None:
    """Return patterns of OpenAI's models that do not take a setting; None for other servers."""
    official = judge.base_url is None or _OFFICIAL in judge.base_url
    return _UNSUPPORTED if official else None


def price_list(judge: OpenAIJudge) -> dict[str, str]:
    """Return the arguments that find a judge's model in the price list."""
    url = judge.base_url or os.environ.get("OPENAI_BASE_URL")
    return {"provider_api_url": url} if url else {"provider_id": "openai"}


def vocabulary(judge: OpenAIJudge) -> str | None:
    """Return the name of the tokenizer of OpenAI's own models; None for others."""
    if judge.base_url:
        return None
    return next((name for name, models in _VOCABULARIES if models.match(judge.model)), None)


def _allowed(error: Mapping[str, Any], text: str, sent: int) -> int:
    """Return how many alternatives a server allows that refused `sent`; 0 for none at all.

    Examples:
        >>> _allowed({}, "top_logprobs must be between 0 and 5, got 20", 20)
        5
        >>> _allowed({}, "m3 does not support logprobs", 20), _allowed({}, "bad top_logprobs", 20)
        (0, 5)
    """
    numbers = [int(number) for number in re.findall(r"(?<![\w.-])\d{1,4}(?![\w-]|\.\d)", text)]
    smaller = [number for number in numbers if number < sent]
    if smaller and _MOST.search(text):
        return max(smaller)
    words = f"{error.get('code')} {error.get('type')} {text}".replace("_", " ")
    return 0 if _UNKNOWN.search(words) else next((number for number in _FEWER if number < sent), 0)


class OpenAIBatchClient(BatchClient):
    """OpenAI's Batch API: a file of requests, and files of answers and errors."""

    limits = BatchLimits(count=50_000, size=200_000_000)
    tagged = True
    _row = wire.OpenAIRow
    _client: openai.AsyncOpenAI

    def __init__(self, judge: OpenAIJudge) -> None:
        super().__init__(judge, openai)

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
        batch = await self._batches.create(
            input_file_id=file.id, endpoint=url, completion_window="24h", metadata={TAG: tag}
        )
        return wire.read(wire.Created, batch).id

    async def results(self, batch: str, options: Options) -> AsyncIterator[BatchResult]:
        """Yield the results of a batch that ended, including requests that expired."""
        record = wire.read(wire.OpenAIBatch, await self._batches.retrieve(batch))
        for file in (record.output_file_id, record.error_file_id):
            if file is not None:
                content = self._client.files.with_streaming_response.content(file)
                async for result in self._results(content, options):
                    yield result

    @property
    def _batches(self) -> Any:
        return self._client.batches

    def _state(self, raw: object) -> BatchState:
        batch = wire.read(wire.OpenAIBatch, raw)
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

    def _outcome(self, row: wire.OpenAIRow, options: Options) -> BatchResult:
        name, response = row.custom_id, row.response
        if response is None:
            error = complaint(row.error)
            reason = str(error.get("message") or error.get("code") or "no answer")
            return BatchResult(name, reason=one_line(reason))
        if response.status_code == 200:
            return BatchResult(name, reply=read_completion(response.body, {}, options(name)))
        status, named = response.status_code, complaint(response.body)
        reason = one_line(f"error {status}: {named.get('message', 'no message')}")
        code = f"{named.get('code')} {named.get('type')}"
        return BatchResult(
            name, reason=reason, refused=due_to_request(status),
            prompt_refused=refuses_prompt(status, code, reason),
        )  # fmt: skip
