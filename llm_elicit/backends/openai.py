"""Models behind OpenAI's chat completions, or a server that speaks them: the openai SDK."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llm_elicit._util.lazy_module import LazyModule
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
from llm_elicit.backends.failures import complaint
from llm_elicit.backends.letters import soft_choice
from llm_elicit.backends.sdk import Keyed, Sender, opening
from llm_elicit.config.judges import OpenAIJudge

if TYPE_CHECKING:
    import httpx2
    import openai
else:
    openai = LazyModule("openai")

TOP = 20
"""How many alternatives of the first token are asked for: the most that the API gives."""

_JSON_ROOM = 32
"""Tokens that a letter takes in JSON, by any tokenizer."""

_OFFICIAL = "api.openai.com"
_REFUSALS = (400, 403, 422)
_SETTINGS = ("logprobs", "max_tokens", "max_completion_tokens")
_BAD_VALUES = ("invalid_value", "integer_above_max_value", "integer_below_min_value")
_FINISH = {"content_filter": "refusal", "stop": "stop", "length": "length"}


class OpenAIBackend(Keyed):
    """A model behind chat completions.

    Two settings are given up, once and for the whole run, if the server says that it does not
    take them: log-probabilities (judgments are then hard), and the name of the token limit
    (`max_completion_tokens` at OpenAI, `max_tokens` elsewhere). A temperature or a seed that
    the user asked for is never dropped.

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
        """The chat completions body that `ask` would send now."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": m.role, "content": m.content} for m in request.prompt.messages],
            self._limit: request.room(self._judge.max_tokens, self._room),
        }
        temperature = request.temperature(self._judge.temperature)
        if temperature is not None:
            body["temperature"] = temperature
        if self._judge.seed is not None:
            # Replicates at one seed would be copies of each other.
            body["seed"] = self._judge.seed + request.replicate
        schema = answer_schema(request) if self._judge.structured else None
        if schema is not None:
            named = {"name": "choice", "strict": True, "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        if self._logprobs and request.answer == "letter":
            body["logprobs"], body["top_logprobs"] = True, TOP
        return body

    async def ask(self, request: Request) -> Reply:
        """Put one question, once."""
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
        """Give up the setting that the server complains of, if it can be done without."""
        said = complaint(error.body)
        refused = _refused_settings(said, str(error))
        if "logprobs" in body and refused & {"logprobs", "top_logprobs"}:
            self._logprobs = False
            raise AdaptedError(
                f"{self.model}: the server refuses logprobs; judgments are hard"
            ) from None
        sent = self._limits[0]
        # A code that names the value leaves the name alone: the user must change the value.
        if sent in body and sent in refused and said.get("code") not in _BAD_VALUES:
            self._limit = self._limits[1]
            raise AdaptedError(
                f"{self.model}: the server takes {self._limit}, not {sent}"
            ) from None


def open_client(
    judge: OpenAIJudge, http: httpx2.AsyncClient, timeout: float
) -> tuple[openai.AsyncOpenAI, str | None]:
    """The SDK's client for a judge, without retries, and the judge's key.

    Raises:
        InputError: the key or the address is missing or cannot be one.
    """
    key = read_key(judge.api_key_env, judge.name) if judge.api_key_env else None
    url = server_url(judge.base_url, "OPENAI_BASE_URL", judge.name)
    client = openai.AsyncOpenAI(
        api_key=key or "none", base_url=url, timeout=timeout, max_retries=0, http_client=http
    )
    return client, key


def _refused_settings(said: Mapping[str, Any], text: str) -> set[str]:
    """The settings that a refusal is about: its `param`, or else those that its text quotes.

    What follows is one more request without that setting, or with it under its other name.
    """
    param = said.get("param")
    if isinstance(param, str) and param:
        return {param.partition(".")[0]}
    return {name for name in _SETTINGS if name in text}


def read_completion(answer: object, body: dict[str, Any], options: tuple[str, str]) -> Reply:
    """A chat completion, as JSON or as the SDK's object, as a reply.

    Raises:
        MalformedReplyError: it is not a chat completion with a choice.
    """
    completion = wire.read(wire.Completion, answer)
    choice = completion.choices[0]
    first, mass = None, None
    if choice.logprobs is not None and choice.logprobs.content:
        token = _deciding(choice.logprobs.content)
        if token is not None:
            first, mass = soft_choice(_listed(token), options)
    usage = completion.usage or wire.CompletionUsage()
    details = usage.prompt_tokens_details
    refusal = choice.message.refusal
    text, thinking = _apart(choice.message)
    finish = str(choice.finish_reason)
    return Reply(
        text=text or refusal or "",
        finish="refusal" if refusal else _FINISH.get(finish, finish),
        model=completion.model,
        first=first,
        letter_mass=mass,
        prompt_tokens=usage.prompt_tokens or 0,
        completion_tokens=usage.completion_tokens or 0,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
        body=body,
        thinking=thinking,
    )


def _apart(message: wire.Turn) -> tuple[str, str]:
    """What a message says, and what it shows of the model's thinking.

    Servers put the thinking in a field of its own, by one of two names, or before the answer.
    """
    shown = (message.reasoning_content, message.reasoning)
    thinking = next((text for text in shown if isinstance(text, str) and text), "")
    text = message.content or ""
    thought, closed, answer = text.partition("</think>")
    if closed:
        return answer.strip(), thought.replace("<think>", "", 1).strip()
    if text.lstrip().startswith("<think>"):
        return "", text.replace("<think>", "", 1).strip()  # cut off before it came to an answer
    return text, thinking


def _deciding(tokens: list[wire.Token]) -> wire.Token | None:
    """The token that holds the letter: the first, or in a JSON answer the first of the value."""
    if not tokens[0].token.lstrip().startswith(("{", "<")):
        return tokens[0]
    text = ""
    for token in tokens:
        if re.search(r'"choice"\s*:\s*"?$', text) and token.token.strip(' ":'):
            return token
        text += token.token
    return None


def _listed(token: wire.Token) -> list[tuple[str, float]]:
    """The alternatives of a token; servers exist that leave them out."""
    return [(item.token, item.logprob) for item in token.top_logprobs or ()]
