"""A backend for llm-elicit: chat completions over plain HTTP, without any SDK."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import httpx
from pydantic import Field

from llm_elicit.backends import (
    Capabilities,
    MalformedReplyError,
    Reply,
    Request,
    WithoutKey,
    limit_headers,
    read_completion,
    read_key,
    scrub_secrets,
)
from llm_elicit.config.judges import PluginJudge
from llm_elicit.spaces.features import FeatureSpace


class PlainBackend(WithoutKey):
    """A model behind any server that speaks chat completions."""

    capabilities = Capabilities(temperature=True, text=True)
    cacheable = True

    class Settings(PluginJudge):
        """What a campaign may say of such a judge, besides what it says of every judge."""

        base_url: str
        api_key_env: str | None = "PLAIN_API_KEY"
        temperature: Annotated[float, Field(ge=0, le=2)] | None = None

    def __init__(self, judge: Settings, space: FeatureSpace) -> None:
        del space  # only a backend that simulates a judge has a use for it
        self._judge = judge
        self._key = read_key(judge.api_key_env, judge.name) if judge.api_key_env else ""
        self.model = judge.model
        self.endpoint = judge.base_url.rstrip("/")
        self.account = f"{hash(self._key):x}" if self._key else ""
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._http = httpx.AsyncClient(headers=headers, timeout=judge.timeout)

    def body(self, request: Request) -> dict[str, Any]:
        """The request body: all that decides an answer, and nothing that does not."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": m.role, "content": m.content} for m in request.prompt.messages],
            "max_tokens": request.max_tokens,
        }
        temperature = request.temperature(self._judge.temperature)
        if temperature is not None:
            body["temperature"] = temperature
        return body

    async def ask(self, request: Request) -> Reply:
        """Put one question, once; whatever goes wrong is raised as it is."""
        body = self.body(request)
        answer = await self._http.post(f"{self.endpoint}/chat/completions", json=body)
        answer.raise_for_status()
        try:
            content = answer.json()
        except ValueError as error:
            raise MalformedReplyError(f"not JSON: {error}") from None
        # Without log-probabilities in the request a judgment is a letter.
        reply = read_completion(content, body, request.options)
        return replace(reply, headers=limit_headers(answer.headers))

    def scrub(self, text: str) -> str:
        """`text` without the key."""
        return scrub_secrets(text, self._key)

    async def __aexit__(self, *error: object) -> None:
        await self._http.aclose()
