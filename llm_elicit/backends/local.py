"""A real small model on this machine: llama.cpp in process, asked through the openai SDK."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import openai

from llm_elicit.backends import weights
from llm_elicit.backends.base import Capabilities, Notify, Reply, Request, silent
from llm_elicit.backends.openai import TOP, read_completion
from llm_elicit.campaign import LocalJudge
from llm_elicit.errors import InputError

_CONTEXT = 4096


class LocalBackend:
    """A GGUF model served in this process.

    The model is held to the two letters by a grammar, and the log-probabilities are those
    before the grammar, so `Reply.letter_mass` tells how much of the model's own probability
    the letters had.

    **Reproducible by construction.** llama.cpp's arithmetic depends on how a prompt is split
    into batches, and with prefix caching the split depends on the question asked before. So
    one question is evaluated at a time, and before each the cache is rewound to the part of
    the prompt that all questions share: every answer is the same in whatever order, after
    whatever interruption. The price is that concurrency gains nothing here.

    Raises:
        InputError: an unknown model, or the engine is not installed.
    """

    capabilities = Capabilities(temperature=True, seed=True, logprobs=True, structured=True)
    cacheable = True

    def __init__(self, judge: LocalJudge, notify: Notify = silent) -> None:
        self._engine = _engine()
        if not judge.model.endswith(".gguf"):
            weights.known(judge.model)
        self._judge = judge
        self._notify = notify
        self.model = judge.model
        self.endpoint = "local"
        self._server: Any = None
        self._client: openai.AsyncOpenAI | None = None
        self._turn = asyncio.Lock()

    def body(self, request: Request) -> dict[str, Any]:
        """The chat completions body that `ask` would send."""
        first, second = request.options
        body: dict[str, Any] = {
            "model": Path(self.model).name,
            "messages": [{"role": m.role, "content": m.content} for m in request.prompt.messages],
            "max_tokens": 1,
            "temperature": self._judge.temperature or 0.0,
            "logprobs": True,
            "top_logprobs": TOP,
            "grammar": f'root ::= "{first}" | "{second}"',
        }
        if self._judge.temperature:
            body["seed"] = request.replicate
        return body

    async def ask(self, request: Request) -> Reply:
        """Put one question, once."""
        if self._client is None:
            raise RuntimeError("the local model is asked inside `async with` only")
        body = self.body(request)
        async with self._turn:
            await self._send(self._client, _rewind(body))
            return read_completion(await self._send(self._client, body), body, request.options)

    @staticmethod
    async def _send(client: openai.AsyncOpenAI, body: dict[str, Any]) -> object:
        sent = dict(body)
        extra = {"grammar": sent.pop("grammar")} if "grammar" in sent else {}
        return await client.chat.completions.create(**sent, extra_body=extra)

    def scrub(self, text: str) -> str:
        """`text`, as it is: there is no key."""
        return text

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._start)
        self._client = openai.AsyncOpenAI(
            api_key="none",
            base_url=f"{self._server.listening_address}/v1",
            timeout=self._judge.timeout,
            max_retries=0,
        )
        return self

    def _start(self) -> None:
        path = weights.find_weights(self._judge.model, self._notify)
        version = importlib.metadata.version("xllamacpp")
        self.endpoint = f"local/xllamacpp-{version}/{weights.sha256(path)[:16]}"
        settings = self._engine.CommonParams()
        settings.model.path = str(path)
        settings.n_parallel = 1
        settings.n_ctx = _CONTEXT
        settings.cache_ram_mib = 0
        settings.verbosity = -1
        try:
            self._server = self._engine.Server(settings)
        except Exception as error:
            raise InputError(
                f"judge {self._judge.name!r}: {path.name} cannot be loaded ({error}); "
                "is it a complete GGUF file?"
            ) from None

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._client is not None:
            await self._client.close()
        self._client = self._server = None


def _rewind(body: dict[str, Any]) -> dict[str, Any]:
    """A request that leaves the cache holding what all questions share, and one word more."""
    shared = body["messages"][:-1]
    last = {"role": body["messages"][-1]["role"], "content": "."}
    return {
        "model": body["model"],
        "messages": [*shared, last],
        "max_tokens": 1,
        "temperature": 0.0,
    }


def _engine() -> Any:
    """The llama.cpp bindings, an extra because not every user runs models here."""
    try:
        return importlib.import_module("xllamacpp")
    except ImportError:
        raise InputError(
            "the local judge needs llama.cpp: install it with pip install 'llm-elicit[local]'"
        ) from None
