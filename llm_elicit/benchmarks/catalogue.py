"""All targets by name."""

from __future__ import annotations

from collections.abc import Iterable

from llm_elicit.benchmarks.paper import NORMAL, PAPER_TARGETS, RING_PRINTED
from llm_elicit.benchmarks.targets import Target
from llm_elicit.benchmarks.tuning import TUNING_TARGETS
from llm_elicit.errors import InputError

GROUPS = {"paper": PAPER_TARGETS, "tuning": TUNING_TARGETS}


def find(names: Iterable[str]) -> list[Target]:
    """Targets by their names or their group's, in the order given; case does not matter.

    Raises:
        InputError: a name is unknown.

    Example:
        >>> [target.dimension for target in find(["gaussian4d", "Ring2D"])]
        [4, 2]
        >>> len(find(["paper"]))
        8
    """
    every = (*PAPER_TARGETS, RING_PRINTED, NORMAL, *TUNING_TARGETS)
    known = {**GROUPS, **{target.name.lower(): (target,) for target in every}}
    found: list[Target] = []
    for name in names:
        if name.lower() not in known:
            choices = ", ".join([*GROUPS, *(target.name for target in every)])
            raise InputError(f"target {name!r} is unknown; choose from {choices}")
        found.extend(known[name.lower()])
    return found
