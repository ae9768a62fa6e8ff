"""All targets by name."""

from __future__ import annotations

from collections.abc import Iterable

from llm_elicit.benchmarks.paper import PAPER_TARGETS, RING_PRINTED
from llm_elicit.benchmarks.targets import Target
from llm_elicit.benchmarks.tuning import TUNING_TARGETS
from llm_elicit.errors import InputError


def find(names: Iterable[str]) -> list[Target]:
    """Targets by their names, in the order given; upper and lower case are the same.

    Raises:
        InputError: a name is unknown.

    Example:
        >>> [target.dimension for target in find(["gaussian4d", "Ring2D"])]
        [4, 2]
    """
    known = {t.name.lower(): t for t in (*PAPER_TARGETS, RING_PRINTED, *TUNING_TARGETS)}
    found = []
    for name in names:
        if name.lower() not in known:
            choices = ", ".join(t.name for t in known.values())
            raise InputError(f"target {name!r} is unknown; choose from {choices}")
        found.append(known[name.lower()])
    return found
