"""Which ranges a campaign compares, and of which of its pairs it asks for the ratio.

Both follow from the seed alone, and more of either begin with the fewer, so that answers that came
stay the answers to the same questions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llm_elicit.errors import InputError
from llm_elicit.planning.range_pairs import draw_ranges
from llm_elicit.spaces.features import FeatureSpace, Floats

_BLOCK = 20
"""Pairs drawn together: each feature is bounded about equally often within them."""

_TRIES = 100
_ENOUGH = 10


def range_pairs(space: FeatureSpace, count: int, seed: int) -> tuple[Floats, Floats]:
    """The first `count` pairs of ranges, rounded as they are worded.

    Returns:
        `first` and `second`, `(count, d, 2)`: the bounds of every feature, natural units; a feature
        that is left free, as every categorical one is, has (−inf, inf).

    Raises:
        InputError: every feature is categorical, or has too few values to have ranges.

    Example:
        >>> space = FeatureSpace.load("penguins")
        >>> first, second = range_pairs(space, 30, seed=1)
        >>> bool((range_pairs(space, 50, seed=1)[0][:30] == first).all())
        True
    """
    if not len(space.numeric):
        raise InputError(
            f"direct.ranges: every feature of {space.name} is categorical, and categories have no "
            "ranges; leave ranges out"
        )
    blocks = [_block(space, seed, number) for number in range(-(-count // _BLOCK))]
    none = np.empty((0, space.dimension, 2))
    first, second = (np.concatenate([none, *side])[:count] for side in zip(*blocks, strict=True))
    return first, second


def ratio_pairs(pairs: int, count: int, seed: int) -> NDArray[np.int64]:
    """The numbers of the pairs whose ratio is asked for; all, where there are not so many.

    Args:
        pairs: how many there are to choose from.
        count: how many are wanted.
        seed: the campaign's.
    """
    return np.random.default_rng([seed, 0x4A710]).permutation(pairs)[:count]


def _block(space: FeatureSpace, seed: int, number: int) -> tuple[Floats, Floats]:
    """Pairs of ranges that keep their width when rounded."""
    rng = np.random.default_rng([seed, 0x4A46E, number])
    first, second = _drawn(space, rng)
    for _ in range(_TRIES):
        flat = _flat(first) | _flat(second)
        if not flat.any():
            return first, second
        again = _drawn(space, rng)
        first[flat], second[flat] = again[0][flat], again[1][flat]
    raise InputError(
        f"direct.ranges: a feature of {space.name} has too few values for ranges of them; leave "
        "ranges out, or give it more digits"
    )


def _drawn(space: FeatureSpace, rng: np.random.Generator) -> tuple[Floats, Floats]:
    steps = np.array([feature.step for feature in space.features])
    fine = [j for j in space.numeric.tolist() if _ENOUGH * steps[j] <= space.high[j] - space.low[j]]
    if not fine:
        raise InputError(
            f"direct.ranges: no feature of {space.name} has the {_ENOUGH} different values that "
            "ranges of it take; leave ranges out, or give a feature more digits"
        )
    first, second = draw_ranges(
        space.low, space.high, _BLOCK, rng, log=space.log, features=fine, resolution=steps
    )
    return _rounded(space, first), _rounded(space, second)


def _rounded(space: FeatureSpace, boxes: Floats) -> Floats:
    """Bounds `(n, d, 2)` as they are worded; those of free features as they are."""
    found = boxes.copy()
    for j in space.numeric.tolist():
        bounded = np.isfinite(boxes[:, j]).all(axis=1)
        found[bounded, j] = space.features[j].round(boxes[bounded, j])
    return found


def _flat(boxes: Floats) -> NDArray[np.bool_]:
    """Which boxes `(n, d, 2)` have a feature without width."""
    return np.asarray((boxes[..., 0] >= boxes[..., 1]).any(axis=1))
