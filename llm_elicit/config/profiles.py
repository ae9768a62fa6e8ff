"""Profiles of providers: how the wire format of each differs from that of OpenAI or Anthropic.

They are data: `profiles.yaml` beside this module, and a file of the user's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from llm_elicit._util.settings import HttpAddress, StrictModel, read_yaml, validate
from llm_elicit.errors import InputError

PROFILES_VARIABLE = "LLM_ELICIT_PROFILES"
"""The environment variable that names a file with further profiles."""

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model thinks before it answers; no model takes all of these values."""

Fields = dict[str, JsonValue]
"""Fields of a request body, in which `$value` stands for the value that is sent."""

_OFFICIAL = "api.openai.com"
_VALUE = "$value"


class Client(StrictModel):
    """The class of a provider's SDK that sends its requests, and the names of its arguments.

    Attributes:
        name: the class.
        key: its argument for the key.
        address: its argument for the server's address.
        model: its argument for the model, where the model is part of the address.
        signs: whether each request is signed by the client.
        requires: the package by which it finds the key if none is given.
    """

    name: str = "AsyncClient"
    key: str = "api_key"
    address: str = "base_url"
    model: str | None = None
    signs: bool = False
    requires: str = ""


class Profile(StrictModel):
    """A provider, or a server, and its wire format.

    Attributes:
        backend: the backend whose wire format it has.
        base_url: its address; None if it has none of its own, or the SDK knows it.
        base_url_env: the environment variable with the address, where the SDK reads one.
        api_key_env: the environment variable with the key; None if the client finds the key in its
            usual place, or if none is needed.
        secrets: further environment variables with secrets, which the client reads.
        client: the class that sends its requests.
        extra: the extra of this package that installs what the client needs.
        prices: its name in the price list.
        token_limit: the field of the token limit.
        thinks: whether its models may think by default, which takes tokens.
        system_role: the role of the instructions; "user" puts them before the first question.
        effort: the fields for each `effort` of a judge, or for "any" other.
        thinking_tokens: the fields for a judge's `thinking_tokens`, which replace those of `effort`
            that have the same name; none where only the token limit is raised.
        seed: the field of the seed.
        structured: the fields for an answer by a JSON schema; None if it takes none.
        logprobs: the most alternatives of a token that it returns; 0 for no log-probabilities.
        logprobs_fields: the fields that request them.
        token_ids: the field that requests the log-probabilities of some tokens whatever their rank;
            empty if there is none. `logit_bias` cannot replace it: vLLM and llama.cpp return
            log-probabilities without the bias, and OpenAI does not say whether it does.
        batch: the path of the requests of a batch; None without batches of this wire format.
        unsupported: patterns of its models that do not take a setting, by the setting's name.
    """

    backend: Literal["openai", "anthropic"]
    base_url: HttpAddress | None = None
    base_url_env: str = ""
    api_key_env: str | None = None
    secrets: tuple[str, ...] = ()
    client: Client = Client()
    extra: str = ""
    prices: str | None = None
    token_limit: Literal["max_tokens", "max_completion_tokens"]
    thinks: bool = False
    system_role: Literal["system", "developer", "user"]
    effort: dict[Effort | Literal["any"], Fields]
    thinking_tokens: Fields
    seed: str
    structured: Fields | None
    logprobs: Annotated[int, Field(ge=0, le=20)]
    logprobs_fields: Fields
    token_ids: str = ""
    batch: str | None = None
    unsupported: Mapping[str, str] | None = None

    def thinking(self, effort: Effort | None, tokens: int | None) -> Fields:
        """Return the fields of a request that set how much a model thinks.

        Examples:
            >>> profile_named("openai").thinking("low", None)
            {'reasoning_effort': 'low'}
            >>> profile_named("openrouter").thinking("low", 2000)
            {'reasoning': {'max_tokens': 2000}}
        """
        fields = {} if effort is None else self.effort.get(effort) or self.effort.get("any", {})
        budget = {} if tokens is None else self.thinking_tokens
        return {**filled(fields, effort), **filled(budget, tokens)}


def filled(fields: Fields, value: Any) -> Fields:
    """Return fields of a request with `value` in place of "$value".

    Examples:
        >>> filled({"logprobs": True, "top_logprobs": "$value"}, 5)
        {'logprobs': True, 'top_logprobs': 5}
    """
    return {
        name: filled(part, value) if isinstance(part, dict) else value if part == _VALUE else part
        for name, part in fields.items()
    }


def profiles() -> Mapping[str, Profile]:
    """Return all profiles by name: those of this package, then the user's.

    Raises:
        InputError: the user's file cannot be read, or breaks a rule.

    Examples:
        >>> sorted(profiles())[:3]
        ['anthropic', 'azure', 'bedrock']
    """
    return _read(os.environ.get(PROFILES_VARIABLE) or None)


@cache
def _read(user_file: str | None) -> dict[str, Profile]:
    """Return the profiles of this package and of a user's file."""
    fields_of: dict[str, dict[str, Any]] = {}
    parsed: dict[str, Profile] = {}
    for path in [Path(__file__).with_suffix(".yaml"), *([Path(user_file)] if user_file else [])]:
        for name, fields in read_yaml(path).items():
            if not isinstance(fields, dict):
                raise InputError(f"{path}: {name}: a mapping of fields is expected")
            base = fields.pop("like", name if name in fields_of else "compatible")
            if fields_of and base not in fields_of:
                raise InputError(
                    f"{path}: {name}: like: profile {base!r} is not defined above it; known: "
                    f"{', '.join(sorted(fields_of))}"
                )
            fields_of[name] = {**fields_of.get(base, {}), **fields}
            parsed[name] = validate(Profile, fields_of[name], f"{path}: {name}")
    return parsed


def profile_named(name: str, backend: str | None = None) -> Profile:
    """Return a profile by its name.

    Args:
        name: the name.
        backend: the backend that the profile must have; None for any.

    Raises:
        InputError: there is no profile of this name, or it belongs to another backend.
    """
    profile = profiles().get(name)
    if profile is not None and backend in (None, profile.backend):
        return profile
    if profile is not None:
        raise InputError(f"profile {name!r} belongs to backend {profile.backend}; use that backend")
    names = sorted(key for key, item in profiles().items() if backend in (None, item.backend))
    raise InputError(
        f"no profile {name!r}; known: {', '.join(names)}; {PROFILES_VARIABLE} names a file with "
        "additional profiles"
    )


def with_profile(data: Any) -> Any:
    """Return the settings of a judge with the address and the key's variable of its profile.

    Log-probabilities are turned off for servers that are known to return none.

    Raises:
        ValueError: there is no such profile of its backend.

    Examples:
        >>> with_profile({"backend": "openai", "profile": "ollama", "model": "m"})["base_url"]
        'http://localhost:11434/v1'
    """
    profile_name = data.get("profile") if isinstance(data, dict) else None
    if not isinstance(profile_name, str):
        return data
    try:
        profile = profile_named(profile_name, str(data.get("backend")))
    except InputError as error:
        raise ValueError(str(error)) from None
    defaults: dict[str, Any] = {"api_key_env": profile.api_key_env}
    if profile.backend == "openai" and not profile.logprobs:
        defaults["logprobs"] = False
    return {**defaults, **data, "base_url": data.get("base_url") or profile.base_url}


def default_profile(backend: str, base_url: str | None) -> str:
    """Return the name of the profile of a judge that states none.

    Examples:
        >>> default_profile("openai", None), default_profile("openai", "http://localhost:8000/v1")
        ('openai', 'compatible')
    """
    if backend != "openai":
        return backend
    address = base_url or os.environ.get("OPENAI_BASE_URL") or _OFFICIAL
    return "openai" if _OFFICIAL in address else "compatible"
