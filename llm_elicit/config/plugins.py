"""Backends from other packages: found by entry points, and loaded when a campaign names one.

A package offers a backend by an entry point of the group `llm_elicit.backends`;
docs/how-to/backend.md says how to write one. Nothing of such a package is imported before it is
asked for.
"""

from __future__ import annotations

from collections import defaultdict
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from llm_elicit.errors import InputError

GROUP = "llm_elicit.backends"

_LONGEST = 200


def installed() -> dict[str, list[EntryPoint]]:
    """Return the backends that installed packages provide, by name; several if names clash."""
    entries: dict[str, list[EntryPoint]] = defaultdict(list)
    for entry in entry_points(group=GROUP):
        entries[entry.name].append(entry)
    return dict(sorted(entries.items()))


def package(entry: EntryPoint) -> str:
    """Return the package of an entry point and its version."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown package"


def load(name: str, own: tuple[str, ...]) -> Any:
    """Load the object of a backend's entry point.

    Args:
        name: the backend's name in the campaign.
        own: the names of this package's backends, for the message.

    Raises:
        InputError: no package offers the name, two do, or its package cannot be imported.

    Examples:
        >>> try:
        ...     load("telepathy", ("local",))
        ... except InputError as error:
        ...     print(str(error)[:37])
        backend 'telepathy' is not installed;
    """
    backends = installed()
    entries = backends.get(name, [])
    if not entries:
        names = ", ".join([*own, *backends])
        raise InputError(
            f"backend {name!r} is not installed; known: {names}; correct the name, or install "
            "the package that has it"
        )
    if len(entries) > 1:
        packages = " and ".join(package(entry) for entry in entries)
        raise InputError(f"backend {name!r} is offered by {packages}; remove one of them")
    (entry,) = entries
    try:
        return entry.load()
    except Exception as error:
        reason = " ".join(str(error).split())[:_LONGEST]
        raise InputError(
            f"backend {name!r} of {package(entry)} cannot be loaded ({type(error).__name__}: "
            f"{reason}); mend or upgrade that package"
        ) from None
