"""The identity of a run: the settings that change a question, an answer or a number.

A run can be resumed only with the identity that it was started with. An identity is a mapping of
texts, so that a journal can store it and a message can name the part that differs. Only parts that
both identities have are compared: judges and direct questions can be added. Caps, speed, retries,
prices, the fit and the source of a feature space are not part of it. Its reference table and the
names of its columns can be mended at any time, too, unless the pairs were drawn from the table.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import InputError
from llm_elicit.spaces.features import FeatureSpace

_SHOWN = 60
_FEATURE = "feature number "
"""The beginning of the name of a feature's part."""


def identity_of(
    campaign: Campaign, space: FeatureSpace, words: Collection[str] = ()
) -> dict[str, str]:
    """Return the identity of a campaign: its questions and its judges.

    Args:
        campaign: the campaign.
        space: its feature space.
        words: the variables that its templates use.

    Examples:
        >>> campaign = Campaign.load("simulated")
        >>> identity_of(campaign, campaign.load_space())["seed"]
        '1'
    """
    settings: dict[str, Any] = {"features": [feature.label for feature in space.features]}
    settings |= {name: getattr(space, name) for name in ("subject", "setting")}
    if space.table and space.sampling == "empirical":  # the pairs are drawn from it
        settings["table"] = {
            "sha256": space.table.sha256,
            "columns": space.table.columns,
            **space.table.model_dump(mode="json", include={"dialect", "words", "dates"}),
        }
    features = {
        f"{_FEATURE}{number}": feature.model_dump(
            mode="json", exclude_defaults=True, exclude={"note", "units"}
        )
        for number, feature in enumerate(space.features, 1)
    }
    judges = {f"judge {judge.name}": judge.identity() for judge in campaign.judges}
    parts = {"seed": campaign.seed, "design": campaign.design.identity(), **features}
    parts |= {"space": settings, **judges}
    if "title" in words:
        parts["title"] = space.title
    return {name: json.dumps(part, sort_keys=True) for name, part in parts.items()}


def check_same(stored: Mapping[str, str], identity: Mapping[str, str], folder: Path) -> None:
    """Check that a run is resumed with the identity that it was started with.

    Args:
        stored: the recorded identity; empty if unknown.
        identity: the present identity.
        folder: the run's folder, for the message.

    Raises:
        InputError: the identities differ; the message names the first part that differs.
    """
    line = _difference(stored, identity)
    if line is not None:
        raise InputError(
            f"{folder}: this folder holds the run of another campaign ({line}); undo that "
            "change, or give this campaign another name"
        )


def _difference(stored: Mapping[str, str], identity: Mapping[str, str]) -> str | None:
    """Return the first part that differs, with its old and its new value."""
    for name, value in identity.items():
        if stored.get(name, value) != value:
            before, after = _read(stored[name]), _read(value)
            if isinstance(before, dict) and isinstance(after, dict):
                if not name.startswith(_FEATURE):
                    return _field(name, before, after)
                # The name of a feature is that of a column, which no question shows.
                before = before | {"name": after["name"]}
                if before != after:
                    return _field(f"feature {after['name']}", before, after)
                continue
            return f"its {name} differs: {_shown(before)} before, {_shown(after)} now"
    return None


def _field(name: str, before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return the first field of a part that differs."""
    merged = {**before, **after}
    differ = (key for key in merged if before.get(key, ...) != after.get(key, ...))
    field = next(differ, None)
    if field is None:  # only its text does, such as after damage to a file
        return f"the text of its {name} differs"
    old, new = before.get(field), after.get(field)
    if isinstance(old, dict) and isinstance(new, dict):
        return _field(f"{name}.{field}", old, new)
    return f"its {name}.{field} differs: {_shown(old)} before, {_shown(new)} now"


def _read(text: str) -> Any:
    """Parse a part from its text; digests stay texts."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _shown(value: Any) -> str:
    """Return a value for a message, shortened if it is long."""
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
