"""The protocol every judge's backend fulfils, and the frozen values that pass through it."""

from __future__ import annotations

import base64
import ipaddress
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Protocol, Self
from urllib.parse import quote, quote_plus, urlsplit, urlunsplit

from llm_elicit._util.addresses import served
from llm_elicit.backends.failures import Failure
from llm_elicit.errors import InputError
from llm_elicit.questions import DirectQuestion, Prompt
from llm_elicit.questions.template import Answer
from llm_elicit.spaces.features import Floats

THINKING_ROOM = 2048
"""Many models think before they answer, and their thinking counts towards the token limit."""

_LIMITS = (
    "max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens",
    "max_tokens_to_sample", "maxOutputTokens", "maxTokens", "maxTokenCount", "num_predict",
    "n_predict",
)  # fmt: skip
"""What providers call the most tokens that an answer may have."""

_SHORTEST_SECRET = 6

Notify = Callable[[str], None]


def silent(line: str) -> None:
    """A `Notify` that says nothing."""
    del line


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do; declared, so that nothing is found out at the user's cost.

    `text`: direct questions, which show no pair and are answered in words.
    """

    temperature: bool = False
    seed: bool = False
    logprobs: bool = False
    structured: bool = False
    batch: bool = False
    text: bool = False


@dataclass(frozen=True)
class Request:
    """One question as a backend receives it.

    Attributes:
        prompt: the rendered messages.
        points: the points shown as first and second option, natural units; none in a direct
            question but for a ratio.
        replicate: the replicate's number; replicates are asked separately by design.
        options: the letters of the first and the second option.
        max_tokens: how many tokens an answer needs, by the template.
        direct: the direct question that this is; None for a pair.
        answer: what is asked for: a letter, a probability, a ratio, or words.
    """

    prompt: Prompt
    points: tuple[Floats, ...]
    replicate: int = 0
    options: tuple[str, str] = ("A", "B")
    max_tokens: int = 8
    direct: DirectQuestion | None = None
    answer: Answer = "letter"

    def temperature(self, own: float | None) -> float | None:
        """The temperature to ask at, given the judge's own; None for the provider's.

        Samples drawn at 0 would all be one: there, and there alone, 0 gives way to 1.
        """
        return 1.0 if own == 0.0 and self.direct and self.direct.kind == "sample" else own

    def room(self, own: int | None, least: int = 0) -> int:
        """The token limit of the answer, given the judge's own and the least that it takes.

        A judge's own limit may be cut for letters, and any other answer needs more.
        """
        if own is not None and self.answer == "letter":
            return own
        return max(self.max_tokens, own if own is not None else least)


@dataclass(frozen=True)
class Reply:
    """One answer, as it came.

    Attributes:
        text: the visible text of the answer.
        finish: "stop", "length", "refusal", or the provider's own word for anything else.
        model: the model the provider says answered.
        first: P(first option shown) from token log-probabilities; None where there are none.
        letter_mass: the probability that the model gave to the two letters together.
        prompt_tokens, completion_tokens, cached_tokens: as the provider counted them, 0 where
            it did not; cached tokens are a part of the prompt's.
        body: the request body that was sent.
        headers: those of the response that speak of limits; they are not kept.
        thinking: what a reasoning model showed of its thinking; never read as an answer.
    """

    text: str
    finish: str
    model: str
    first: float | None
    letter_mass: float | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)
    thinking: str = ""


class AdaptedError(Exception):
    """The backend dropped a setting that the server refuses; ask again with the new body.

    Never leaves the package: the orchestrator catches it, notes it and asks again.
    """


class Backend(Protocol):
    """A judge that can be asked.

    Attributes:
        capabilities: what it can do.
        endpoint: where it answers, without credentials; part of an answer's identity.
        model: the model asked.
        account: tells one key from another, and nothing else about it; limits are an account's.
        cacheable: whether its answers are worth keeping across runs.
    """

    capabilities: Capabilities
    endpoint: str
    model: str
    account: str
    cacheable: bool

    def body(self, request: Request) -> dict[str, Any]:
        """The request body that `ask` would send now."""
        ...

    async def ask(self, request: Request) -> Reply:
        """Put one question, once: no retries here.

        Raises:
            AdaptedError: the server refused a setting that can be done without.
            Exception: whatever goes wrong with a request, for `failure` to read.
        """
        ...

    def failure(self, error: Exception) -> Failure | None:
        """What an exception of `ask` says of the request; None for a defect of the program."""
        ...

    def scrub(self, text: str) -> str:
        """`text` without the judge's key, should a server have echoed it."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...


def read_key(variable: str, judge: str) -> str:
    """The key in an environment variable.

    Raises:
        InputError: it is not set, or empty, or cannot be sent in a header.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        raise InputError(
            f"judge {judge!r}: the environment variable {variable} holds no key; "
            f"export {variable}=... or name another one in api_key_env"
        )
    odd = next((n for n, letter in enumerate(key, start=1) if not "!" <= letter <= "~"), None)
    if odd is not None:
        raise InputError(
            f"judge {judge!r}: character {odd} of the key in the environment variable {variable} "
            "is a space, a line's end or no ASCII, which no key holds; export it anew"
        )
    return key


def server_url(stated: str | None, variable: str, judge: str) -> str | None:
    """The address that a judge is asked at: as stated, or as an SDK's own variable has it.

    Raises:
        InputError: the variable holds no address, or a secret.
    """
    named = os.environ.get(variable) or None
    if stated is not None or named is None:
        return stated
    try:
        return served(named)
    except ValueError as error:
        raise InputError(f"judge {judge!r}: the environment variable {variable} {error}") from None


def scrubbed(text: str, key: str | None) -> str:
    """`text` with every occurrence of `key` blotted out: as it is, and as URLs, JSON and base64
    (a header of basic authentication) would have it.

    What is shorter than six characters is no secret, and would be found in many an answer.

    Example:
        >>> scrubbed("no access for sk%2Fcanary or sk/canary", "sk/canary")
        'no access for [key] or [key]'
    """
    return _forms(key).sub("[key]", text) if key and len(key) >= _SHORTEST_SECRET else text


@lru_cache(maxsize=64)
def _forms(key: str) -> re.Pattern[str]:
    """The ways in which a key may stand in a text."""
    forms = {key, quote(key), quote(key, safe=""), quote_plus(key), json.dumps(key)[1:-1]}
    for before in range(3):
        # Base64 encodes three bytes at a time: what is the key's alone, wherever it begins.
        code = base64.b64encode(b"\0" * before + key.encode()).decode()
        own = code[math.ceil(before * 8 / 6) : (before + len(key.encode())) * 8 // 6]
        forms |= {own, own.translate(str.maketrans("+/", "-_"))}
    return re.compile("|".join(map(re.escape, sorted(forms, key=len, reverse=True))))


def without_key(reply: Reply, scrub: Callable[[str], str]) -> Reply:
    """A reply whose words are scrubbed, whichever field they stand in, and without headers."""
    return replace(
        reply, text=scrub(reply.text), thinking=scrub(reply.thinking), finish=scrub(reply.finish),
        model=scrub(reply.model), headers={},
    )  # fmt: skip


def bare_url(url: str) -> str:
    """A URL without user, password, query and trailing slash: fit to be written down."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))


def answer_schema(request: Request) -> dict[str, Any] | None:
    """The JSON schema of an answer: one of two letters, or a number; None for words.

    Example:
        >>> prompt = Prompt(())
        >>> answer_schema(Request(prompt, ()))["properties"]["choice"]["enum"]
        ['A', 'B']
        >>> answer_schema(Request(prompt, (), answer="probability"))["required"]
        ['percent']
    """
    named: dict[Answer, tuple[str, dict[str, Any]]] = {
        "letter": ("choice", {"type": "string", "enum": list(request.options)}),
        "probability": ("percent", {"type": "number"}),
        "ratio": ("ratio", {"type": "number"}),
    }
    if request.answer not in named:
        return None
    name, value = named[request.answer]
    return {
        "type": "object",
        "properties": {name: value},
        "required": [name],
        "additionalProperties": False,
    }


def is_local(endpoint: str) -> bool:
    """Whether an endpoint is on this machine or this network, where nobody limits requests.

    Example:
        >>> is_local("http://localhost:8000/v1"), is_local("https://host.example/v1")
        (True, False)
    """
    host = urlsplit(endpoint).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".local")
    return address.is_private or address.is_loopback


def limit_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Those of a response's headers that speak of limits, their names in lower case.

    Example:
        >>> limit_headers({"X-RateLimit-Remaining-Requests": "9", "Server": "x"})
        {'x-ratelimit-remaining-requests': '9'}
    """
    lower = ((name.lower(), value) for name, value in headers.items())
    return {name: value for name, value in lower if "ratelimit" in name or name == "date"}


def token_limit(body: Mapping[str, Any]) -> int | None:
    """The most tokens that an answer may have, as a request body says it by any usual name.

    None where the body says nothing of it.

    Example:
        >>> token_limit({"model": "m", "generationConfig": {"maxOutputTokens": 8}})
        8
        >>> token_limit({"prompt": "A or B?"}) is None
        True
    """
    named = [body[name] for name in _LIMITS if isinstance(body.get(name), int)]
    inner = [token_limit(value) for value in body.values() if isinstance(value, Mapping)]
    return max((number for number in [*named, *inner] if number), default=None)
