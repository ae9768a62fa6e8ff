"""The keys of a feature that follow from its kind: codes of categories, and dates as days."""

from __future__ import annotations

import datetime
from typing import Any

EPOCH = datetime.date(1970, 1, 1)
"""The day that dates are counted from."""

_OF_NUMBERS = {"unit": "", "prefix": "", "scale": "linear", "digits": 3, "factor": 1.0}
"""What numbers alone have, and what it is where it is not given."""


def with_codes(data: dict[str, Any]) -> dict[str, Any]:
    """A feature's keys, with the lowest and the highest code where its values are categories.

    Raises:
        ValueError: keys that do not go with each other, or words that cannot be told apart.
    """
    name, given, kind = data.get("name"), data.get("categories"), data.get("kind")
    if kind not in ("categorical", "ordered"):
        if given:
            raise ValueError(f"{name}: categories are given; they need kind: categorical")
        return data
    if not isinstance(given, list | tuple) or len(given) < 2:
        raise ValueError(f"{name}: kind: {kind} needs two categories or more; list them")
    for word in given:
        if not isinstance(word, str):
            raise ValueError(f"{name}: category {word!r} is not text; put it in quotes")
        if not word.strip() or not word.strip().isprintable():
            raise ValueError(f"{name}: category {word!r} cannot be read; use words that print")
    words = tuple(word.strip() for word in given)
    twice = sorted({word for word in words if words.count(word) > 1})
    if twice:
        raise ValueError(f"{name}: the category {twice[0]!r} appears twice; categories must differ")
    derived = {"low": 0.0, "high": len(words) - 1.0}
    _refuse(data, f"{name}: kind: {kind}", _OF_NUMBERS | derived)
    return {**data, **derived, "categories": words}


def with_days(data: dict[str, Any]) -> dict[str, Any]:
    """A date's keys, with its bounds as days since 1970.

    Raises:
        ValueError: a key of numbers, or a bound that is no date.
    """
    name = data.get("name")
    if data.get("categories"):
        raise ValueError(f"{name}: categories are given; they need kind: categorical")
    _refuse(data, f"{name}: kind: date", _OF_NUMBERS)
    return data | {key: days_of(name, key, data[key]) for key in ("low", "high") if key in data}


def days_of(name: object, key: str, given: object) -> object:
    """A bound as days since 1970; a number is one already."""
    try:
        day = datetime.date.fromisoformat(given) if isinstance(given, str) else given
        if isinstance(day, datetime.date):
            return float(day.toordinal() - EPOCH.toordinal())
        if isinstance(day, int | float):
            EPOCH + datetime.timedelta(days=day)
    except (ValueError, OverflowError):
        raise ValueError(f"{name}: {key} {given!r} is no date; write it as 2020-03-14") from None
    return given


def _refuse(data: dict[str, Any], what: str, defaults: dict[str, Any]) -> None:
    """Refuse keys that the kind does not have, except with their defaults.

    Raises:
        ValueError: there is one.
    """
    for key, usual in defaults.items():
        if data.get(key, usual) != usual:
            raise ValueError(f"{what} has no {key}; remove {key}")
