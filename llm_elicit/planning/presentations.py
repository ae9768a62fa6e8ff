"""How the pairs of a campaign are spread over presentations: wordings, units, labels and the like.

A *presentation* is a combination of a level of every facet. A fraction of all combinations is
used: as few as show every level about equally often, and every two levels of different facets as
evenly as can be. Pairs are spread over these W presentations in blocks of 6 W places. A block has
5 W different pairs. Its first W pairs take a second place each, in another presentation, so that a
fifth of the pairs is asked twice. Every presentation comes once, in random order, before any comes
again. From block to block, the distance from a pair's first to its second presentation changes.

All of it follows from the settings and the seed, and a larger number of pairs starts with the same
ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from llm_elicit.config.design import Design
from llm_elicit.errors import InputError
from llm_elicit.spaces.features import FeatureSpace

MIN_PRESENTATIONS = 6
"""Smallest number of presentations, unless the facets have fewer combinations."""

_PERIOD = 6
"""Every sixth place has a pair that was asked before."""

_RANDOM_STARTS = 8
"""Number of random fractions that are improved by exchanges; the best is used."""

FACETS = {
    "wordings": "wordings",
    "features": "orders of features",
    "units": "units",
    "labels": "labels",
    "digits": "numbers of digits",
    "examples": "sets of worked examples",
}
"""The facets, and what several levels are called."""

Ints = NDArray[np.int64]
Levels = Mapping[str, tuple[object, ...]]
"""The levels of every facet by its name."""


def name_facets(labels: Iterable[str]) -> str:
    """Return the facets that vary between presentations, in words; empty if none do.

    Args:
        labels: the labels of the presentations. A label has the template, if wordings vary, and
            the name and level of every other facet that varies.

    Examples:
        >>> name_facets(["v2/typical, labels A/B", "v2/common, labels 1/2"])
        'wordings and labels'
        >>> name_facets(["units 1, digits 2", "units 2, digits 3"])
        'units and numbers of digits'
    """
    parts = {part for label in labels for part in label.split(", ") if part}
    varied = {name if (name := part.split(" ")[0]) in FACETS else "wordings" for part in parts}
    words = [word for name, word in FACETS.items() if name in varied]
    return " and ".join([", ".join(words[:-1]), *words[-1:]] if len(words) > 1 else words)


def facets_of(design: Design, space: FeatureSpace) -> Levels:
    """Return the levels of the facets of a campaign: wordings alone if it has one presentation.

    Raises:
        InputError: the space has no such levels, or no template has the name of a wording.

    Examples:
        >>> space = FeatureSpace.load("penguins")
        >>> facets_of(Design(), space)
        {'wordings': ('v1/zero-shot',)}
    """
    facets = design.presentations
    if facets is None:
        return {"wordings": (design.template,)}
    levels: dict[str, tuple[object, ...]] = {
        "wordings": design.templates,
        "examples": facets.example_sets(),
        "labels": facets.labels,
        "digits": facets.digits,
    }
    numbers = [feature for feature in space.features if feature.counts_digits]
    if facets.digits and not numbers:
        raise InputError(
            f"design.presentations: digits: {space.name} has no numbers with digits; leave it out"
        )
    if facets.units == "varied":
        unit_count = max(len(feature.units) for feature in space.features)
        if not unit_count:
            raise InputError(
                f"design.presentations: units: no feature of {space.name} has other units; list "
                "some under `units` of a feature, or leave it out"
            )
        levels["units"] = tuple(range(1 + unit_count))
    if facets.features == "shuffled":
        if space.dimension < 2:
            raise InputError(
                f"design.presentations: features: {space.name} has only one feature, so there is "
                "no order to vary; remove it"
            )
        count = _presentations_needed([len(values) for values in levels.values() if values])
        four = space.dimension > 2 and count % 4 == 0
        levels["features"] = tuple(range(4 if four else 2))
    return {name: values for name, values in levels.items() if values}


def _presentations_needed(counts: list[int]) -> int:
    """Return how many presentations facets with these numbers of levels need.

    At least as many as the longest list, and at most twice as many or twelve: the smallest number
    that most lists divide.
    """
    possible, longest = math.prod(counts), max(counts)
    smallest = max(longest, min(MIN_PRESENTATIONS, possible))
    sizes = range(smallest, min(possible, max(2 * longest, 2 * MIN_PRESENTATIONS)) + 1)
    return min(sizes, key=lambda size: (sum(size % count > 0 for count in counts), size))


@lru_cache(maxsize=64)  # every stage of a run asks for it
def fraction(counts: tuple[int, ...], seed: int) -> Ints:
    """Return the numbers of the levels `(W, facets)` in a balanced fraction of their combinations.

    Every level of a facet occurs equally often, or once more than another if W cannot be divided
    by their number. Pairs of levels are spread as evenly as exchanges of levels make them.

    Examples:
        >>> fraction((3, 2), seed=1).shape
        (6, 2)
    """
    size = _presentations_needed(list(counts))
    rng = np.random.default_rng([seed, 0xFAC37])
    best = min(
        (_improve_by_exchanges(counts, size, rng) for _ in range(_RANDOM_STARTS)),
        key=lambda item: item[0],
    )
    return best[1]


def _improve_by_exchanges(
    counts: tuple[int, ...], size: int, rng: np.random.Generator
) -> tuple[int, Ints]:
    """Return a random fraction, made more even by exchanges of levels, and its unevenness."""
    rows = np.stack([rng.permutation(np.arange(size) % count) for count in counts], axis=1)
    rows[:, 0] = np.sort(rows[:, 0])
    uneven, improved = _unevenness(rows, counts), True
    while improved:
        improved = False
        for facet in range(1, len(counts)):
            for i, j in combinations(range(size), 2):
                if rows[i, facet] == rows[j, facet]:
                    continue
                rows[[i, j], facet] = rows[[j, i], facet]
                if (changed := _unevenness(rows, counts)) < uneven:
                    uneven, improved = changed, True
                else:
                    rows[[i, j], facet] = rows[[j, i], facet]
    return uneven, rows


def _unevenness(rows: Ints, counts: tuple[int, ...]) -> int:
    """Return the sum of squares of the counts of pairs of levels, with a penalty for equal rows."""
    firsts = np.cumsum((0, *counts[:-1]))
    levels = np.zeros((len(rows), sum(counts)), dtype=np.int64)
    levels[np.arange(len(rows))[:, None], rows + firsts] = 1
    together = levels.T @ levels
    same = len(set(map(bytes, rows)))
    return int((together**2).sum()) + len(rows) ** 3 * (len(rows) - same)


def presentation_count(design: Design, space: FeatureSpace) -> int:
    """Return the number of presentations of a campaign.

    Raises:
        InputError: as `facets_of`.
    """
    if design.presentations is None:
        return 1
    return _presentations_needed([len(values) for values in facets_of(design, space).values()])


@dataclass(frozen=True)
class Spread:
    """The pair and the presentation of each of n places in a round.

    Attributes:
        content: the number `(n,)` of the pair, from 0 on; a fifth of the pairs have two places.
        presentation: the number `(n,)` of its presentation.
    """

    content: Ints
    presentation: Ints

    @property
    def pairs(self) -> int:
        """The number of different pairs."""
        return int(self.content.max(initial=-1)) + 1


def spread(count: int, presentations: int, seed: int, start: int = 0) -> Spread:
    """Return the pair and the presentation of `count` successive places.

    Args:
        count: the number of places.
        presentations: the number of presentations W; with one, every place has a pair of its own.
        seed: the campaign's seed.
        start: the number of the first place, so that rounds differ.

    Examples:
        >>> spread(12, 2, seed=1).content.tolist()
        [0, 1, 2, 3, 4, 0, 5, 6, 7, 8, 9, 1]
    """
    if presentations == 1:
        return Spread(np.arange(count), np.zeros(count, dtype=np.int64))
    block = _PERIOD * presentations
    rng = np.random.default_rng([seed, 0x5B3EAD, start])
    parts = [_block(presentations, number, rng) for number in range(-(-count // block))]
    contents = [
        part.content + (_PERIOD - 1) * presentations * number for number, part in enumerate(parts)
    ]
    empty = np.empty(0, dtype=np.int64)
    return Spread(
        np.concatenate([empty, *contents])[:count],
        np.concatenate([empty, *(part.presentation for part in parts)])[:count],
    )


def _block(presentations: int, number: int, rng: np.random.Generator) -> Spread:
    """Return block `number`: 5 W different pairs, the first W of which are asked twice."""
    first_round = np.concatenate([rng.permutation(presentations) for _ in range(_PERIOD - 1)])
    shift = 1 + number % (presentations - 1)
    second_round = (first_round[:presentations] + shift) % presentations
    rows = np.arange(len(first_round)).reshape(presentations, _PERIOD - 1)
    content = np.hstack([rows, np.arange(presentations)[:, None]])
    numbers = np.hstack([first_round[rows], second_round[:, None]])
    return Spread(content.ravel(), numbers.ravel())


def presentation_note(design: Design, space: FeatureSpace, seed: int) -> str:
    """Return two lines: how pairs are spread, and how precise the effects of levels will be.

    Empty for a campaign of one presentation.

    Examples:
        >>> from llm_elicit.config.design import Presentations
        >>> labels = Presentations(labels=["A/B", "1/2"])
        >>> design = Design(pairs=60, template="v2/typical", presentations=labels)
        >>> print(presentation_note(design, FeatureSpace.load("penguins"), 1))
        2 presentations (2 labels): 50 different pairs, 10 of them in two presentations.
        Standard errors of the effect of a level, in standard deviations of the answers about \
pairs: labels 0.26.
    """
    levels = facets_of(design, space)
    table = fraction(tuple(len(values) for values in levels.values()), seed)
    if len(table) == 1:
        return ""
    assigned = spread(design.pairs, len(table), seed)
    errors = []
    for facet, (name, values) in enumerate(levels.items()):
        if len(values) > 1:
            counts = np.bincount(table[assigned.presentation, facet], minlength=len(values))
            remaining = np.maximum(len(assigned.content) - counts, 1)
            error = np.sqrt(1.0 / np.maximum(counts, 1) + 1.0 / remaining).max()
            errors.append(f"{name} {error:.2f}")
    sizes = [f"{len(values)} {FACETS[name]}" for name, values in levels.items() if len(values) > 1]
    repeated = len(assigned.content) - assigned.pairs
    return (
        f"{len(table)} presentations ({', '.join(sizes)}): {assigned.pairs:,} different pairs, "
        f"{repeated:,} of them in two presentations.\n"
        "Standard errors of the effect of a level, in standard deviations of the answers about "
        f"pairs: {', '.join(errors)}."
    )
