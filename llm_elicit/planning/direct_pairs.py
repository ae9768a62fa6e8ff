"""The pairs of ranges that a campaign compares, and the pairs whose ratio it asks for.

Both follow from the seed alone. A larger number of either starts with the same questions, so that
earlier answers stay valid.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llm_elicit.errors import InputError
from llm_elicit.planning.range_pairs import draw_ranges
from llm_elicit.spaces.features import FeatureSpace, Floats

_BLOCK = 20
"""The number of pairs drawn together; each bounds every feature about equally often."""

_TRIES = 100
_ENOUGH = 10


def range_pairs(space: FeatureSpace, count: int, seed: int) -> tuple[Floats, Floats]:
    """Return the first `count` pairs of ranges, rounded as they are worded.

    Returns:
        `first` and `second`, `(count, d, 2)`: the bounds of every feature, natural units;
        (−inf, inf) for unbounded features, such as all categorical ones.

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
    """Return the numbers of at most `count` pairs whose ratio is asked for.

    Args:
        pairs: the number of pairs to choose from.
        count: the number of ratios.
        seed: the campaign's.
    """
    return np.random.default_rng([seed, 0x4A710]).permutation(pairs)[:count]


def _block(space: FeatureSpace, seed: int, number: int) -> tuple[Floats, Floats]:
    """Draw pairs of ranges that have a positive width when rounded."""
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
    """Round bounds `(n, d, 2)` as they are worded, except those of unbounded features."""
    found = boxes.copy()
    for j in space.numeric.tolist():
        bounded = np.isfinite(boxes[:, j]).all(axis=1)
        found[bounded, j] = space.features[j].round(boxes[bounded, j])
    return found


def _flat(boxes: Floats) -> NDArray[np.bool_]:
    """Return whether boxes `(n, d, 2)` have a feature of zero width."""
    return np.asarray((boxes[..., 0] >= boxes[..., 1]).any(axis=1))
