"""Differences between providers, in one record per provider.

All other modules ask the record of a judge's provider instead of checking the judge's class. A
plug-in backend gets its record from its entry point.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from llm_elicit.backends import anthropic, local, openai
from llm_elicit.backends.base import Backend, Notify, ignore_note
from llm_elicit.backends.batches import BatchClient
from llm_elicit.backends.simulated import SimulatedBackend
from llm_elicit.config.judges import (
    THINKING_ROOM,
    AnthropicJudge,
    HostedJudge,
    HumanJudge,
    ImportedJudge,
    Judge,
    LocalJudge,
    OpenAIJudge,
    PluginJudge,
    SimulatedJudge,
    plugin_backend,
)
from llm_elicit.errors import InputError
from llm_elicit.spaces.features import FeatureSpace


def _none(judge: Any) -> None:
    """Return None for every judge."""
    del judge


def _unsupported(judge: HostedJudge) -> Mapping[str, str] | None:
    """Return patterns of the models that do not take a setting; None for unknown servers."""
    return judge.wire_format.unsupported


def _price_list(judge: HostedJudge) -> Mapping[str, str]:
    """Return the arguments that find a judge's model in the price list."""
    wire_format = judge.wire_format
    if wire_format.prices:
        return {"provider_id": wire_format.prices}
    address = judge.base_url or os.environ.get(wire_format.base_url_env)
    return {"provider_api_url": address or ""}


def _no_backend(judge: HumanJudge | ImportedJudge, *_: object) -> Backend:
    """Refuse to open a backend, since the judge is not sent requests."""
    reason = "its judgments were imported, and it cannot be asked"
    if judge.backend == "human":
        reason = "people answer on the pages of `llm-elicit serve`"
    raise InputError(f"judge {judge.name!r}: {reason}; name a model here")


@dataclass(frozen=True)
class Provider:
    """One provider of judges.

    Attributes:
        name: the `backend` in campaigns.
        settings: the class of its judges' settings.
        open: return the backend of a judge; sends and loads nothing.
        check: refuse a model that is known to be unusable, without sending anything and without
            the keys and packages that only asking needs.
        open_batches: return the client of its batch endpoints; None if it has no batch mode.
        unsupported: return patterns of the models that take no temperature, no log-probabilities
            or no schema, by the name of that setting; None if nothing is known.
        price_list: return the arguments that find a judge's model in the price list; None if
            the list does not have it.
        free: whether requests cost nothing.
        vocabulary: return the name of the model's tokenizer; None if it is unknown.
        caches_prompts: whether the common prefix of prompts is billed as cached.
        language_model: whether requests and answers consist of tokens.
        letter_tokens: tokens of an answer that is one letter.
    """

    name: str
    settings: type[Any]
    open: Callable[[Any, FeatureSpace, Notify], Backend]
    check: Callable[[Any], None] = _none
    open_batches: Callable[[Any], BatchClient] | None = None
    unsupported: Callable[[Any], Mapping[str, str] | None] = _none
    price_list: Callable[[Any], Mapping[str, Any] | None] = _none
    free: bool = False
    vocabulary: Callable[[Any], str | None] = _none
    caches_prompts: Callable[[Any], bool | None] = _none
    language_model: bool = True
    letter_tokens: int = 2


PROVIDERS = {
    provider.name: provider
    for provider in (
        Provider(
            name="anthropic",
            settings=AnthropicJudge,
            open=lambda judge, _space, _notify: anthropic.AnthropicBackend(judge),
            open_batches=anthropic.AnthropicBatchClient,
            unsupported=_unsupported,
            price_list=_price_list,
        ),
        Provider(
            name="openai",
            settings=OpenAIJudge,
            open=lambda judge, _space, notify: openai.OpenAIBackend(judge, notify),
            open_batches=openai.OpenAIBatchClient,
            unsupported=_unsupported,
            price_list=_price_list,
            vocabulary=openai.vocabulary,
            # OpenAI caches automatically; Anthropic only on request, which is not sent.
            caches_prompts=lambda judge: judge.wire_format.prices == "openai",
        ),
        Provider("human", HumanJudge, _no_backend, free=True, language_model=False),
        Provider("imported", ImportedJudge, _no_backend, free=True, language_model=False),
        Provider(
            name="local",
            settings=LocalJudge,
            open=lambda judge, _space, notify: local.LocalBackend(judge, notify),
            check=lambda judge: local.check_model(judge.model),
            free=True,
            letter_tokens=1,
        ),
        Provider(
            name="simulated",
            settings=SimulatedJudge,
            open=lambda judge, space, _notify: SimulatedBackend(judge, space),
            free=True,
            language_model=False,
        ),
    )
}
"""The providers of this package, by name."""


def provider_of(judge: Judge) -> Provider:
    """Return the record of a judge's provider.

    Raises:
        InputError: the backend is a plug-in that is not installed or cannot be imported.

    Examples:
        >>> judge = SimulatedJudge(name="expert", backend="simulated")
        >>> provider_of(judge).free
        True
    """
    if judge.backend in PROVIDERS:
        return PROVIDERS[judge.backend]
    backend = plugin_backend(judge.backend)
    settings: type[PluginJudge] = backend.Settings
    return Provider(
        name=judge.backend,
        settings=settings,
        open=lambda judge, space, _notify: backend(judge, space),
        free=settings.free,
    )


def expected_thinking(judge: Judge) -> int:
    """Return the tokens to reserve for a judge's thinking; 0 if it is not known to think.

    Examples:
        >>> expected_thinking(OpenAIJudge(name="o", backend="openai", model="o3")) > 0
        True
    """
    room: int = getattr(judge, "thinking_room", 0)
    # OpenAI's models without log-probabilities are those that think unless their effort is none.
    reasoning = (provider_of(judge).unsupported(judge) or {}).get("logprobs")
    if room or reasoning is None or getattr(judge, "effort", None) == "none":
        return room
    return THINKING_ROOM if re.match(reasoning, judge.model_name) else 0


def open_backend(judge: Judge, space: FeatureSpace, notify: Notify = ignore_note) -> Backend:
    """Return the backend of a judge, ready for `async with`; nothing is sent or loaded yet.

    Args:
        judge: the judge, as in the campaign.
        space: the feature space; the simulated judge's belief comes from its table.
        notify: called with one line before anything slow, such as fetching weights, and when the
            backend changes what it asks for.

    Raises:
        InputError: a key is missing, a local model unknown, a package not installed or broken.

    Examples:
        >>> judge = SimulatedJudge(name="expert", backend="simulated", belief="uniform")
        >>> open_backend(judge, FeatureSpace.load("penguins")).capabilities.seed
        True
    """
    return provider_of(judge).open(judge, space, notify)


def open_batch_client(judge: Judge) -> BatchClient:
    """Return the client of a judge's batch endpoints.

    Raises:
        InputError: the backend has no batch mode, or the key is not set.
    """
    open_batches = provider_of(judge).open_batches
    if open_batches is None or not judge.has_batches:
        host = getattr(judge, "profile", None) or judge.backend
        raise InputError(
            f"judge {judge.name!r}: {host} has no batch mode; ask it without --batch, or leave it "
            "out of the campaign"
        )
    return open_batches(judge)


def unsupported_settings(judge: Judge) -> list[str]:
    """Return the judge's settings that its model is known not to take.

    Nothing is assumed about models that are not listed, or about other servers: if a server refuses
    a setting, the judge stops, and a refusal costs nothing.

    Examples:
        >>> unsupported_settings(AnthropicJudge(
        ...     name="opus", backend="anthropic", model="claude-opus-4-7", temperature=0.5))
        ['temperature']
    """
    table = provider_of(judge).unsupported(judge) or {}
    values = {name: getattr(judge, name) for name in table if name in judge.model_fields_set}
    return [
        name
        for name, value in values.items()  # a temperature of 0 is a setting, too
        if value is not None and value is not False and re.match(table[name], judge.model_name)
    ]


def check_settings(judges: Iterable[Judge]) -> None:
    """Check that no judge has a setting that its model is known not to take.

    Raises:
        InputError: it names each such setting and the models that do not take it.

    Examples:
        >>> check_settings([SimulatedJudge(name="expert", backend="simulated")])
    """
    refused: dict[str, list[str]] = defaultdict(list)
    for judge in judges:
        for name in unsupported_settings(judge):
            refused[name].append(f"{getattr(judge, 'model', '')} (judge {judge.name!r})")
    if refused:
        lines = [
            f"{name}: not supported by {', '.join(models)}" for name, models in refused.items()
        ]
        raise InputError(f"{'; '.join(lines)}; remove the setting from these judges")
