"""Small local models: llama.cpp in this process, asked through the openai SDK."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from llm_elicit._util.packages import LazyModule
from llm_elicit.backends import weights
from llm_elicit.backends.base import Capabilities, Notify, Reply, Request, silent
from llm_elicit.backends.chat_completions import read_completion
from llm_elicit.backends.sdk import Keyless
from llm_elicit.config.judges import LocalJudge
from llm_elicit.errors import InputError

if TYPE_CHECKING:
    import openai
else:
    openai = LazyModule("openai")

_CONTEXT = 4096
_LISTED = 1000
"""Of how many tokens the log-probability is asked: a model that leans hard to one letter has the
other far down its list, and what it holds of it is the whole answer."""


_GRAMMARS = {
    "probability": 'root ::= ("100" | [1-9]? [0-9]) "%"',
    "ratio": 'root ::= [0-9] | [1-9] [0-9] [0-9]? | [0-9] "." [0-9] [0-9]? | "1/" [1-9] [0-9]?',
}
"""Grammars that restrict the model to a number, by the form of the answer."""


class LocalBackend(Keyless):
    """A GGUF model served in this process.

    The model is held to the two letters, or to a number, by a grammar, and the log-probabilities
    of letters are those before the grammar, so `Reply.letter_mass` tells how much of the model's
    own probability the letters had.

    **Reproducible by construction.** llama.cpp's arithmetic depends on how a prompt is split
    into batches, and with prefix caching the split depends on the question asked before. So
    an engine evaluates one question at a time, and before each its cache is rewound to the
    part of the prompt that all questions share, which is evaluated anew where the engine was
    last asked something with another beginning: every answer is the same in whatever order,
    after whatever interruption. A direct question is answered freely, without grammar.

    The judge's `concurrency` is the number of engines, which share the cores between them. Few
    threads an engine are fast where cores are busy: llama.cpp's threads wait for each other at
    every layer, and one that was put off holds up all. Each engine has weights of its own in
    memory: one of `qwen2.5-coder-1.5b` takes 1.4 GB, two take 2.6 GB.

    Raises:
        InputError: an unknown model, or the engine is not installed.
    """

    capabilities = Capabilities(
        temperature=True, seed=True, logprobs=True, structured=True, text=True
    )
    cacheable = True

    def __init__(self, judge: LocalJudge, notify: Notify = silent) -> None:
        self._engine = _engine()
        if not judge.model.endswith(".gguf"):
            weights.known(judge.model)
        self._judge = judge
        self._notify = notify
        self.model = judge.model
        self.endpoint = "local"
        self._servers: list[Any] = []
        self._idle: asyncio.Queue[openai.AsyncOpenAI] = asyncio.Queue()
        self._shared: dict[openai.AsyncOpenAI, list[dict[str, str]]] = {}

    def body(self, request: Request) -> dict[str, Any]:
        """Return the chat completions body that `ask` would send."""
        letter = request.answer == "letter"
        temperature = request.temperature(self._judge.temperature or 0.0)
        body: dict[str, Any] = {
            "model": Path(self.model).name,
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
            return read_completion(await self._send(client, body), body, request.options)
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
            # What another kind of question begins alike with was split in other batches.
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
        version = importlib.metadata.version("xllamacpp")
        self.endpoint = f"local/xllamacpp-{version}/{weights.sha256(path)[:16]}"
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
