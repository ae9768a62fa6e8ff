"""The identity of a request: canonical JSON (RFC 8785) of all that decides its answer."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import rfc8785

from llm_elicit.errors import InputError

SCHEMA = 3
"""Part of every key: incremented when a reply means something else, so that old answers rest."""

_EXACT = 2**53
"""JSON carries whole numbers below it exactly."""

_encode = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True)
class Identity:
    """All that decides an answer, as canonical JSON, and the SHA-256 of that text."""

    key: str
    text: str = field(compare=False, repr=False)


def identify(endpoint: str, model: str, body: dict[str, Any], replicate: int) -> Identity:
    """Return the identity of a request.

    Args:
        endpoint: the URL it is sent to.
        model: the model asked.
        body: the request body.
        replicate: the number of the replicate; replicates are asked separately by design.

    Raises:
        InputError: the body holds a number that JSON cannot carry exactly.

    Example:
        >>> a = identify("e", "m", {"x": 1, "y": 2}, 0)
        >>> a == identify("e", "m", {"y": 2, "x": 1.0}, 0), a == identify("e", "m", {"x": 1}, 0)
        (True, False)
    """
    whole: Any = {
        "schema": SCHEMA,
        "endpoint": endpoint,
        "model": model,
        "body": body,
        "replicate": replicate,
    }
    try:
        canonical = _canonical(whole)
    except rfc8785.CanonicalizationError as error:
        raise InputError(
            f"{model}: the request has no canonical JSON ({error}); keep whole numbers (a seed) "
            "below 2^53 and text without halves of characters"
        ) from None
    return Identity(hashlib.sha256(canonical).hexdigest(), canonical.decode())


def _canonical(whole: dict[str, Any]) -> bytes:
    """Return the bytes of RFC 8785; without fractions json writes the same, and is faster."""
    if _plain(whole):
        with suppress(UnicodeEncodeError):
            return _encode(whole).encode()
    return rfc8785.dumps(whole)


def _plain(value: Any) -> bool:
    """Return whether JSON has one way to write a value, but for the order of its keys.

    A key beyond ASCII is left to RFC 8785, which sorts by UTF-16.
    """
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return bool(abs(value) < _EXACT)
    if kind is list:
        return all(map(_plain, value))
    # A loop: a generator would take as long again, for each dictionary of each question.
    for key, inner in value.items() if kind is dict else ():
        if type(key) is not str or not key.isascii() or not _plain(inner):
            return False
    return kind is dict


def differences(one: Any, two: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Return where two JSON values differ: (path, first, second); a missing value is None.

    Example:
        >>> differences({"a": [1, 2], "b": 3}, {"a": [1, 5]})
        [('a[1]', 2, 5), ('b', 3, None)]
    """
    if isinstance(one, dict) and isinstance(two, dict):
        names = list(dict.fromkeys([*one, *two]))
        parts = [(f"{path}.{name}".lstrip("."), one.get(name), two.get(name)) for name in names]
        return [found for at, a, b in parts for found in differences(a, b, at)]
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        pairs = enumerate(zip(one, two, strict=True))
        return [found for i, (a, b) in pairs for found in differences(a, b, f"{path}[{i}]")]
    same = type(one) is type(two) and one == two
    return [] if same else [(path, one, two)]
