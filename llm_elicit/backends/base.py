"""The protocol of backends, and the requests and replies that pass through it."""

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
from typing import Any, Literal, Protocol, Self
from urllib.parse import quote, quote_plus, urlsplit, urlunsplit

from llm_elicit._util.settings import http_address
from llm_elicit.backends.failures import Failure
from llm_elicit.config.judges import VARIABLE, BaseJudge, HostedJudge, without_folders
from llm_elicit.errors import InputError
from llm_elicit.questions.direct import DirectQuestion
from llm_elicit.questions.template import Answer, Prompt
from llm_elicit.spaces.features import Floats

_LIMITS = (
    "max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens",
    "max_tokens_to_sample", "maxOutputTokens", "maxTokens", "maxTokenCount", "num_predict",
    "n_predict",
)  # fmt: skip
"""Providers' names of the token limit of an answer."""

_SHORTEST_SECRET = 6

Notify = Callable[[str], None]

Unscored = Literal["", "another token", "none sent", "letter not listed", "refused", "not offered"]
"""Why a choice has no log-probabilities; empty if it has."""


def ignore_note(line: str) -> None:
    """Ignore a notification."""
    del line


@dataclass(frozen=True)
class Capabilities:
    """The capabilities of a backend, as it declares them: no paid request probes them.

    `text` means direct questions, which show no pair and are answered in words, and `likelihood`
    those for the probability of a row (`backends.row_likelihood`).
    """

    temperature: bool = False
    seed: bool = False
    logprobs: bool = False
    structured: bool = False
    batch: bool = False
    text: bool = False
    likelihood: bool = False


@dataclass(frozen=True)
class Request:
    """One question as a backend receives it.

    Attributes:
        prompt: the rendered messages.
        points: the points shown as first and second option, natural units; of direct questions,
            those of a ratio, or the one of a likelihood.
        replicate: the number of the replicate.
        options: the letters of the first and the second option.
        max_tokens: tokens that an answer needs, from the template.
        direct: the direct question; None for a pair.
        answer: the form of the answer: a letter, a probability, a ratio, or words.
    """

    prompt: Prompt
    points: tuple[Floats, ...]
    replicate: int = 0
    options: tuple[str, str] = ("A", "B")
    max_tokens: int = 8
    direct: DirectQuestion | None = None
    answer: Answer = "letter"

    def temperature(self, judge_temperature: float | None) -> float | None:
        """Return the temperature of the request, given the judge's; None for the provider's.

        Questions for a sample are sent at 1 where the judge has 0: all samples at 0 would be equal.
        """
        return (
            1.0
            if judge_temperature == 0.0 and self.direct and self.direct.kind == "sample"
            else judge_temperature
        )

    def token_limit(self, judge_limit: int | None, default: int = 0, thinking: int = 0) -> int:
        """Return the token limit of the answer, thinking included.

        Args:
            judge_limit: the judge's setting, which may be too short for answers other than letters.
            default: the limit of answers without one.
            thinking: tokens reserved for thinking.
        """
        if judge_limit is not None and self.answer == "letter":
            return judge_limit
        return max(self.max_tokens + thinking, judge_limit if judge_limit is not None else default)


@dataclass(frozen=True)
class Reply:
    """One answer.

    Attributes:
        text: the visible text of the answer.
        finish: "stop", "length", "refusal", or another reason in the provider's own words.
        model: the model that answered, as the provider reports it.
        fingerprint: the version of the system around the model, if the provider reports one.
        first: P(first option shown) from token log-probabilities; None without them.
        letter_mass: the probability that the model gave to the two letters together.
        prompt_tokens: as counted by the provider, or 0.
        completion_tokens: as counted by the provider, or 0.
        cached_tokens: as counted by the provider, or 0; included in the prompt's.
        thinking_tokens: as counted by the provider, or 0; included in the completion's.
        body: the request body that was sent.
        headers: the response's headers on rate limits; they are not stored.
        thinking: the thinking that a reasoning model returned; never parsed as an answer.
        unscored: why the parsed letter has no log-probabilities although they were requested; empty
            otherwise.
        censored: 1 if log P(first) / P(second) is known only to be at least that of `first`, −1 if
            at most, else 0.
        kept_at: UTC time at which the cache stored it, ISO 8601; empty for a new answer.
    """

    text: str
    finish: str
    model: str
    first: float | None = None
    letter_mass: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    thinking_tokens: int = 0
    body: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    thinking: str = ""
    unscored: Unscored = ""
    censored: int = 0
    fingerprint: str = ""
    kept_at: str = field(default="", compare=False)


class SettingDroppedError(Exception):
    """The backend dropped a setting that the server refused; send the changed body.

    The orchestrator catches this exception, notes it and sends the request again.
    """


class Backend(Protocol):
    """A judge that can be asked.

    Attributes:
        capabilities: its capabilities.
        endpoint: its address, without credentials; part of the identity of an answer.
        model: the model asked.
        account: a digest of the API key; rate limits are per account.
        cacheable: whether its answers are cached across runs.
    """

    capabilities: Capabilities
    endpoint: str
    model: str
    account: str
    cacheable: bool

    def body(self, request: Request) -> dict[str, Any]:
        """Return the request body that `ask` would send now."""
        ...

    async def ask(self, request: Request) -> Reply:
        """Ask one question once, without retries.

        Raises:
            SettingDroppedError: the server refused an optional setting.
            Exception: any other error of the request; see `failure`.
        """
        ...

    def failure(self, error: Exception) -> Failure | None:
        """Return what an exception of `ask` means for the request; None for a bug."""
        ...

    def scrub(self, text: str) -> str:
        """Return `text` without the judge's API key, which a server may have echoed."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...


def read_key(variable: str, judge: str) -> str:
    """Return the API key in an environment variable.

    Raises:
        InputError: it is not set, empty, or cannot be sent in a header.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        raise InputError(
            f"judge {judge!r}: the environment variable {variable} holds no key; "
            f"export {variable}=... or name another one in api_key_env"
        )
    bad = next((n for n, letter in enumerate(key, start=1) if not "!" <= letter <= "~"), None)
    if bad is not None:
        raise InputError(
            f"judge {judge!r}: character {bad} of the key in the environment variable {variable} "
            "is a space, a line break or not ASCII, which keys do not contain; export the key "
            "again"
        )
    return key


def read_headers(judge: HostedJudge) -> dict[str, str]:
    """Return the further headers of a judge, with the values of environment variables.

    Raises:
        InputError: a variable is not set, or a header cannot carry its value.
    """

    def value_of(match: re.Match[str]) -> str:
        value = os.environ.get(match[1], "").strip()
        if value and value.isascii() and value.isprintable():
            return value
        raise InputError(
            f"judge {judge.name!r}: extra_headers: the environment variable {match[1]} holds no "
            f"text that a header can carry; export {match[1]}=..."
        )

    return {name: VARIABLE.sub(value_of, text) for name, text in judge.extra_headers.items()}


def secrets_of(judge: BaseJudge) -> list[str]:
    """Return the values of the environment variables with a judge's secrets."""
    values = (os.environ.get(name, "").strip() for name in judge.secret_variables)
    return [value for value in values if value]


def merge_fields(body: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request body with a judge's further fields; mappings are merged.

    Examples:
        >>> merge_fields({"output_config": {"effort": "low"}}, {"output_config": {"x": 1}, "k": 5})
        {'output_config': {'effort': 'low', 'x': 1}, 'k': 5}
    """
    if not extra:
        return body
    merged = {
        name: {**body[name], **value} if isinstance(body.get(name), dict) else value
        for name, value in extra.items()
    }
    return {**body, **merged}


def server_url(base_url: str | None, variable: str, judge: str) -> str | None:
    """Return the address of a judge: as stated, or from the SDK's environment variable.

    Raises:
        InputError: the variable holds no address, or a secret.
    """
    address = os.environ.get(variable) if variable else None
    if base_url is not None or not address:
        return base_url
    try:
        return http_address(address)
    except ValueError as error:
        raise InputError(f"judge {judge!r}: the environment variable {variable} {error}") from None


def scrub_secrets(text: str, *secrets: str) -> str:
    """Return `text` with every occurrence of a secret replaced, also if encoded.

    The encodings are those of URLs, JSON and base64 (headers of basic authentication). A secret of
    fewer than six characters is not replaced, since it would occur in many answers.

    Examples:
        >>> scrub_secrets("no access for sk%2Fcanary or sk/canary", "sk/canary")
        'no access for [key] or [key]'
    """
    for secret in secrets:
        if len(secret) >= _SHORTEST_SECRET:
            text = _forms(secret).sub("[key]", text)
    return text


@lru_cache(maxsize=64)
def _forms(key: str) -> re.Pattern[str]:
    """Return a pattern of a key and its encodings."""
    forms = {key, quote(key), quote(key, safe=""), quote_plus(key), json.dumps(key)[1:-1]}
    for offset in range(3):
        # Base64 encodes three bytes at a time, so that the code depends on where the key begins.
        code = base64.b64encode(b"\0" * offset + key.encode()).decode()
        code_of_key = code[math.ceil(offset * 8 / 6) : (offset + len(key.encode())) * 8 // 6]
        forms |= {code_of_key, code_of_key.translate(str.maketrans("+/", "-_"))}
    return re.compile("|".join(map(re.escape, sorted(forms, key=len, reverse=True))))


def without_key(reply: Reply, scrub: Callable[[str], str]) -> Reply:
    """Return a reply without the key in any text field, without headers and without folders.

    Some servers name a model by the path of its weights.
    """
    return replace(
        reply, text=scrub(reply.text), thinking=scrub(reply.thinking), finish=scrub(reply.finish),
        model=without_folders(scrub(reply.model)), fingerprint=scrub(reply.fingerprint), headers={},
    )  # fmt: skip


def bare_url(url: str) -> str:
    """Return a URL without user, password, query and trailing slash, so that it can be stored."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))


def answer_schema(request: Request) -> dict[str, Any] | None:
    """Return the JSON schema of an answer: one of two letters, or a number; None for words.

    Examples:
        >>> prompt = Prompt(())
        >>> answer_schema(Request(prompt, ()))["properties"]["choice"]["enum"]
        ['A', 'B']
        >>> answer_schema(Request(prompt, (), answer="probability"))["required"]
        ['percent']
    """
    fields: dict[Answer, tuple[str, dict[str, Any]]] = {
        "letter": ("choice", {"type": "string", "enum": list(request.options)}),
        "probability": ("percent", {"type": "number"}),
        "ratio": ("ratio", {"type": "number"}),
    }
    if request.answer not in fields:
        return None
    name, value = fields[request.answer]
    return {
        "type": "object",
        "properties": {name: value},
        "required": [name],
        "additionalProperties": False,
    }


def is_local(endpoint: str) -> bool:
    """Return whether an endpoint is on this machine or network, without rate limits.

    Examples:
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
    """Return the headers of a response on rate limits, with names in lower case.

    Examples:
        >>> limit_headers({"X-RateLimit-Remaining-Requests": "9", "Server": "x"})
        {'x-ratelimit-remaining-requests': '9'}
    """
    lower = ((name.lower(), value) for name, value in headers.items())
    return {name: value for name, value in lower if "ratelimit" in name or name == "date"}


def token_limit(body: Mapping[str, Any]) -> int | None:
    """Return the token limit of the answer in a request body, under any usual name.

    None if the body has no limit.

    Examples:
        >>> token_limit({"model": "m", "generationConfig": {"maxOutputTokens": 8}})
        8
        >>> token_limit({"prompt": "A or B?"}) is None
        True
    """
    limits = [body[name] for name in _LIMITS if isinstance(body.get(name), int)]
    inner = [token_limit(value) for value in body.values() if isinstance(value, dict)]
    return max((number for number in [*limits, *inner] if number), default=None)
