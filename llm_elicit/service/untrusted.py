"""Campaigns that come over HTTP, which may name only what the operator's file allows.

Otherwise the author of a campaign could have a key sent to their own server (`base_url` with
`api_key_env`), read a file of this machine (`space`, `template`, a model's weights), write to
another database (`journal`), or spend without limit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from llm_elicit._util import resources
from llm_elicit._util.settings import parse_yaml, validated
from llm_elicit.backends import provider_of
from llm_elicit.config.campaign import Campaign
from llm_elicit.config.judges import OWN_BACKENDS, BaseJudge, Judge, PluginJudge
from llm_elicit.errors import InputError
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.service.settings import AllowedJudge, Bounds, ServerSettings
from llm_elicit.service.spaces import Library

WHERE = "campaign"
"""What messages call the campaign."""

_OPERATORS = {
    "runs": "the server has a folder of its own",
    "part_of": "grids are split by the server",
    "grid": "start the cells of a grid one by one",
}


def read(body: bytes, kind: str, settings: ServerSettings, library: Library) -> Campaign:
    """Return the campaign in a request, ready to run.

    Args:
        body: its text.
        kind: "json" or "yaml".
        settings: what it may name.
        library: the feature spaces that it may name.

    Raises:
        InputError: it breaks a rule, or names what the server does not allow.
    """
    campaign = checked(_parsed(body, kind), settings, library)
    run = Run.open(campaign)
    run.identity  # noqa: B018 - this reads the templates, and tries those of the operator
    return campaign


def checked(data: Any, settings: ServerSettings, library: Library) -> Campaign:
    """Return the campaign of parsed data; nothing is read but lists of names.

    Raises:
        InputError: it breaks a rule, or names what the server does not allow.

    Example:
        >>> from pathlib import Path
        >>> data = {"name": "try", "space": "penguins",
        ...         "judges": [{"name": "gpt", "backend": "openai", "model": "m"}]}
        >>> checked(data, ServerSettings(), Library(Path("none")))
        Traceback (most recent call last):
        ...
        llm_elicit.errors.InputError: campaign: judge 'gpt': this server allows no backend \
'openai'; it allows simulated, human
    """
    if not isinstance(data, dict):
        raise InputError(f"{WHERE}: a mapping of keys is expected, got {type(data).__name__}")
    for key, why in _OPERATORS.items():
        if key in data:
            raise InputError(f"{WHERE}: {key}: {why}; remove it")
    if data.get("journal", settings.journal) != settings.journal:
        raise InputError(f"{WHERE}: journal: this server has its own; remove it")
    _check_backends(data.get("judges"), settings)
    campaign = validated(Campaign, data, WHERE)
    judges = tuple(_allowed(judge, settings) for judge in campaign.judges)
    _check_size(campaign, settings.bounds)
    _check_cost(campaign, settings.bounds)
    _check_templates([campaign.design.template, *campaign.pilot])
    changes = {
        "judges": judges,
        "space": library.find(campaign.space),
        "runs": settings.runs,
        "journal": settings.journal,
    }
    return campaign.model_copy(update=changes)


def check_limits(max_cost: float | None, concurrency: int | None, bounds: Bounds) -> None:
    """Check new limits of a run.

    Raises:
        InputError: one is beyond the server's.
    """
    if max_cost is not None and bounds.max_cost is not None and max_cost > bounds.max_cost:
        raise InputError(f"max_cost: {max_cost:g} is above this server's {bounds.max_cost:g} USD")
    if concurrency is not None and concurrency > bounds.concurrency:
        raise InputError(f"concurrency: {concurrency} is above this server's {bounds.concurrency}")


def _parsed(body: bytes, kind: str) -> Any:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{WHERE}: not UTF-8: {error}") from None
    if kind == "yaml":
        return parse_yaml(text, WHERE)
    try:
        return json.loads(text, parse_constant=_no_number, object_pairs_hook=_each_key_once)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{WHERE}: not valid JSON: {error}") from None


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no finite number")


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice; remove one")
    return found


def _check_backends(judges: Any, settings: ServerSettings) -> None:
    """Check the backends before their settings are read, which imports plug-ins."""
    known = list(dict.fromkeys(allowed.backend for allowed in settings.judges))
    for judge in judges if isinstance(judges, list) else []:
        backend = judge.get("backend") if isinstance(judge, dict) else None
        if isinstance(backend, str) and backend not in known:
            raise InputError(
                f"{WHERE}: judge {str(judge.get('name'))[:80]!r}: this server allows no backend "
                f"{backend[:80]!r}; it allows {', '.join(known) or 'none'}"
            )


def _allowed(judge: Judge, settings: ServerSettings) -> Judge:
    """Return a judge with the price that the operator states.

    Raises:
        InputError: no entry of the server's file has its address, key and model.
    """
    where = f"{WHERE}: judge {judge.name!r}"
    if "price" in judge.model_fields_set:
        raise InputError(f"{where}: price: the server's file states it; remove it")
    if judge.backend not in OWN_BACKENDS:  # a plug-in
        further = judge.model_fields_set - set(PluginJudge.model_fields) - {"base_url"}
        if further:
            raise InputError(f"{where}: {sorted(further)[0]}: this server does not allow it")
    entries = [entry for entry in settings.judges if entry.backend == judge.backend]
    for entry in entries:
        if _same(judge, entry):
            stated = None if entry.price is None else {"price": entry.price}
            return judge if stated is None else judge.model_copy(update=stated)
    allowed = "; ".join(_shown(entry) for entry in entries)
    raise InputError(
        f"{where}: this server does not allow its base_url, api_key_env and model together; for "
        f"{judge.backend} it allows {allowed}"
    )


def _same(judge: BaseJudge, entry: AllowedJudge) -> bool:
    place = getattr(judge, "base_url", None), getattr(judge, "api_key_env", None)
    model = getattr(judge, "model", None)
    if model is None:
        named = True
    elif entry.models:
        named = model in entry.models
    else:
        named = entry.backend != "local" or not model.endswith(".gguf")  # a file's name
    return named and place == (entry.base_url, entry.api_key_env)


def _shown(entry: AllowedJudge) -> str:
    """Return an entry of the server's file in a few words."""
    words = [f"base_url {entry.base_url}" if entry.base_url else "no base_url"]
    words.append(f"api_key_env {entry.api_key_env}" if entry.api_key_env else "no api_key_env")
    words.append(f"models {', '.join(entry.models)}" if entry.models else "any model")
    return " with ".join(words)


def _check_size(campaign: Campaign, bounds: Bounds) -> None:
    design, direct = campaign.design, campaign.direct
    asked = 0 if direct is None else sum(direct.model_dump().values())
    experts = sum(len(judge.experts) for judge in campaign.people.values())
    rounds = design.rounds.count if design.rounds else 1
    sizes = [
        ("judges", len(campaign.judges), bounds.judges),
        ("judges: experts", experts, bounds.experts),
        ("design.pairs", design.pairs, bounds.pairs),
        ("design.rounds.count", rounds, bounds.rounds),
        ("direct", asked, bounds.direct),
        ("questions", len(campaign.judges) * (design.questions + asked), bounds.questions),
        ("fit.samples", campaign.fit.samples, bounds.samples),
    ]
    for judge in campaign.judges:
        for name in ("concurrency", "attempts", "timeout"):
            value = getattr(judge, name)
            sizes.append((f"judge {judge.name!r}: {name}", value, getattr(bounds, name)))
    for name, value, most in sizes:
        if value > most:
            raise InputError(f"{WHERE}: {name}: {value:,} is above this server's {most:,}")


def _check_cost(campaign: Campaign, bounds: Bounds) -> None:
    paid = [judge.name for judge in campaign.judges if not provider_of(judge).free]
    if not paid:
        return
    if bounds.max_cost is None:
        raise InputError(
            f"{WHERE}: judge {paid[0]!r} costs money, which this server allows only with "
            "bounds.max_cost in its file"
        )
    stated = campaign.limits.max_cost
    if stated is None:
        raise InputError(
            f"{WHERE}: limits.max_cost: judge {paid[0]!r} costs money; give a cap of at most "
            f"{bounds.max_cost:g} USD"
        )
    if stated > bounds.max_cost:
        raise InputError(
            f"{WHERE}: limits.max_cost: {stated:g} is above this server's {bounds.max_cost:g} USD"
        )


def _check_templates(names: Iterable[str]) -> None:
    known = resources.available("prompts", ".md")
    for name in names:
        if name not in known:
            shown = re.sub(r"\s+", " ", name)[:100]
            raise InputError(f"{WHERE}: no template {shown!r}; this server has {', '.join(known)}")
