"""Small local models: llama.cpp in this process, asked through the openai SDK."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from llm_elicit._util.packages import LazyModule
from llm_elicit.backends import weights
from llm_elicit.backends.base import Capabilities, Notify, Reply, Request, silent
from llm_elicit.backends.chat_completions import read_completion
from llm_elicit.backends.sdk import WithoutKey
from llm_elicit.config.judges import LocalJudge
from llm_elicit.errors import InputError

if TYPE_CHECKING:
    import openai
else:
    openai = LazyModule("openai")

_CONTEXT = 4096
_LISTED = 1000
"""Number of log-probabilities requested for the first token: if a model clearly prefers one letter,
the other one is far down the list."""


_GRAMMARS = {
    "probability": 'root ::= ("100" | [1-9]? [0-9]) "%"',
    "ratio": 'root ::= [0-9] | [1-9] [0-9] [0-9]? | [0-9] "." [0-9] [0-9]? | "1/" [1-9] [0-9]?',
}
"""Grammars that restrict the model to a number, by the form of the answer."""


class LocalBackend(WithoutKey):
    """A GGUF model served in this process.

    A grammar restricts the answer to the two letters, or to a number. The log-probabilities of
    letters are those without the grammar, so `Reply.letter_mass` is the probability that the model
    itself gave to the letters. A direct question is answered without a grammar.

    Answers are reproducible. llama.cpp's arithmetic depends on how a prompt is split into batches,
    and with prefix caching the split depends on the question before. Therefore an engine evaluates
    one question at a time, and its cache is reset before each to the beginning that all questions
    share; the beginning is evaluated again if the last question had another one. Answers then do
    not depend on the order of asking or on interruptions.

    The judge's `concurrency` is the number of engines, which share the cores. If cores are busy,
    few threads per engine are faster, since llama.cpp's threads wait for each other at every layer.
    Each engine has its own weights in memory: one of `qwen2.5-coder-1.5b` takes 1.4 GB, two 2.6 GB.

    Answers name the model by its name, or that of its file, with the first digits of the weights'
    SHA-256; never by a folder of this machine.

    Raises:
        InputError: an unknown model, no such file, or the engine is not installed.
    """

    capabilities = Capabilities(
        temperature=True, seed=True, logprobs=True, structured=True, text=True
    )
    cacheable = True

    def __init__(self, judge: LocalJudge, notify: Notify = silent) -> None:
        self._engine = _engine()
        weights.check(judge.model)
        self._judge = judge
        self._notify = notify
        self.model = judge.model_name
        self.endpoint = "local"
        self._answering = self.model
        self._servers: list[Any] = []
        self._idle: asyncio.Queue[openai.AsyncOpenAI] = asyncio.Queue()
        self._shared: dict[openai.AsyncOpenAI, list[dict[str, str]]] = {}

    def body(self, request: Request) -> dict[str, Any]:
        """Return the chat completions body that `ask` would send."""
        letter = request.answer == "letter"
        temperature = request.temperature(self._judge.temperature or 0.0)
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": m.role, "content": m.content} for m in request.prompt.messages],
            "max_tokens": 1 if letter else request.room(self._judge.max_tokens),
            "temperature": temperature,
        }
        if letter:
            first, second = request.options
            body |= {"logprobs": True, "top_logprobs": _LISTED}
            body["grammar"] = f'root ::= "{first}" | "{second}"'
        elif request.answer in _GRAMMARS:
            body["grammar"] = _GRAMMARS[request.answer]
        if temperature:
            body["seed"] = request.replicate
        return body

    async def ask(self, request: Request) -> Reply:
        """Ask one question once."""
        if not self._servers:
            raise RuntimeError("the local model is asked inside `async with` only")
        body = self.body(request)
        client = await self._idle.get()
        try:
            await self._rewind(client, body)
            reply = read_completion(await self._send(client, body), body, request.options)
            # The engine calls its model by the path of the weights.
            return replace(reply, model=self._answering)
        finally:
            self._idle.put_nowait(client)

    async def _rewind(self, client: openai.AsyncOpenAI, body: dict[str, Any]) -> None:
        """Leave the cache with what questions of this kind share, and one word more."""
        shared = body["messages"][:-1]
        last = {"role": body["messages"][-1]["role"], "content": "."}
        rewound = {
            "model": body["model"],
            "messages": [*shared, last],
            "max_tokens": 1,
            "temperature": 0.0,
            # Other kinds of questions split a common beginning into other batches.
            "cache_prompt": self._shared.get(client) == shared,
        }
        await self._send(client, rewound)
        self._shared[client] = shared

    @staticmethod
    async def _send(client: openai.AsyncOpenAI, body: dict[str, Any]) -> object:
        sent = dict(body)
        extra = {name: sent.pop(name) for name in ("grammar", "cache_prompt") if name in sent}
        return await client.chat.completions.create(**sent, extra_body=extra)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._start)
        for server in self._servers:
            client = openai.AsyncOpenAI(
                api_key="none",
                base_url=f"{server.listening_address}/v1",
                timeout=self._judge.timeout,
                max_retries=0,
            )
            self._idle.put_nowait(client)
        return self

    def _start(self) -> None:
        path = weights.find_weights(self._judge.model, self._notify)
        version, digest = importlib.metadata.version("xllamacpp"), weights.sha256(path)
        self.endpoint = f"local/xllamacpp-{version}/{digest[:16]}"
        self._answering = f"{self.model}@{digest[:12]}"
        try:
            self._servers = [
                self._engine.Server(self._settings(path)) for _ in range(self._judge.concurrency)
            ]
        except Exception as error:
            raise InputError(
                f"judge {self._judge.name!r}: {path.name} cannot be loaded ({error}); "
                "is it a complete GGUF file?"
            ) from None

    def _settings(self, path: Path) -> Any:
        threads = max(1, (os.cpu_count() or 1) // self._judge.concurrency)
        settings = self._engine.CommonParams()
        settings.model.path = str(path)
        settings.n_parallel = 1
        settings.n_ctx = _CONTEXT
        settings.cache_ram_mib = 0
        # Most weights are rearranged for the processor as they are loaded. A mapped file would
        # stay in memory beside the rearranged copy, once for each engine.
        settings.load_mode = self._engine.llama_load_mode.LLAMA_LOAD_MODE_NONE
        settings.verbosity = -1
        settings.cpuparams.n_threads = threads
        settings.cpuparams_batch.n_threads = threads
        return settings

    async def __aexit__(self, *error: object) -> None:
        while not self._idle.empty():
            await self._idle.get_nowait().close()
        self._servers = []
        self._shared = {}


def _engine() -> Any:
    """Return the llama.cpp bindings, which are an optional extra."""
    try:
        return importlib.import_module("xllamacpp")
    except ImportError:
        raise InputError(
            "the local judge needs llama.cpp: install it with pip install 'llm-elicit[local]'"
        ) from None
