"""Stated quantiles: their distances from belief and data.

A feature's five quantiles define a monotone quantile function, linear on the feature's scale from
the lower end of its range through the five to the upper end. Wasserstein-1 between two of them is
∫|Q − Q'| du, computed exactly. Belief and data are reduced to their five quantiles as well, so that
the reduction itself adds no distance.

The power that they give a belief is `llm_elicit.density.fit_power`'s.
"""

from __future__ import annotations

import numpy as np

from llm_elicit._util.settings import StrictModel
from llm_elicit.audit.inference import finite_or_none
from llm_elicit.audit.reference import Reference
from llm_elicit.questions.numbers import LEVELS
from llm_elicit.spaces.features import Floats

_NODES = np.array([0, *LEVELS, 100]) / 100
"""Levels at which quantile functions are stored."""
_FLOOR_PAIRS = 10
"""Pairs of bootstrap samples over which the floor is averaged."""


class StatedFeature(StrictModel):
    """One feature's stated quantiles. Distances are W1 in standard deviations of the data.

    Attributes:
        name: the feature.
        times: number of statements that could be parsed.
        quantiles: at 5, 25, 50, 75 and 95 %, natural units; medians over statements; None without.
        outside: number of stated values outside the range, which are moved to its ends.
        spread: mean distance of a statement from the median of all statements; None for one.
        data, belief: distances of the stated quantiles from those of the data and of the belief.
        belief_data: distance between the quantiles of the belief and of the data.
        floor: mean distance between the quantiles of two bootstrap samples of the data.
    """

    name: str
    times: int
    quantiles: tuple[float, float, float, float, float] | None
    outside: int
    spread: float | None
    data: float | None = None
    belief: float | None = None
    belief_data: float | None = None
    floor: float | None = None


def measure_stated_quantiles(
    quantiles: Floats,
    reference: Reference,
    belief: Floats | None,
    rng: np.random.Generator,
) -> list[StatedFeature] | None:
    """Compare a judge's quantiles with belief and data; None if none of them is finite.

    The features are those that are numbers and not periodic, in the order of the space.

    Args:
        quantiles: stated quantiles, `(t, d, 5)`, natural units, for each statement and feature.
        reference: the data and λ.
        belief: the belief's draws, `(m, d)`, natural units; None if none was fitted.
        rng: generator for floors.
    """
    if not np.isfinite(quantiles).any():
        return None
    space, data = reference.space, reference.data
    ends = (space.low[:, None], space.high[:, None])
    clipped = np.clip(quantiles, *ends)
    outside = ((quantiles < ends[0]) | (quantiles > ends[1])).sum(axis=(0, 2))
    statements = np.isfinite(quantiles[:, :, 0]).sum(axis=0)
    # The median of monotone sequences is monotone.
    median = np.full(quantiles.shape[1:], np.nan)
    median[statements > 0] = np.nanmedian(clipped[:, statements > 0], axis=0)

    def functions(quantiles: Floats) -> Floats:
        # Standardized quantile functions `(..., d, 7)` at their nodes and the range's ends.
        low, high = (np.broadcast_to(end, (*quantiles.shape[:-1], 1)) for end in ends)
        with_ends = np.swapaxes(np.concatenate([low, quantiles, high], axis=-1), -1, -2)
        return np.swapaxes(reference.standardizer.standardize_numbers(with_ends), -1, -2)

    def functions_of_points(points: Floats) -> Floats:
        # Points are rounded as the questions state them.
        return functions(np.quantile(space.round(points), np.array(LEVELS) / 100, axis=0).T)

    stated, single = functions(median), functions(clipped)
    data_functions = None if data is None else functions_of_points(data)
    belief_functions = None if belief is None else functions_of_points(belief)
    spread = np.nansum(quantile_distance(single, stated), axis=0) / np.maximum(statements, 1)
    columns = {"spread": np.where(statements > 1, spread, np.nan)}
    if data_functions is not None:
        columns["data"] = quantile_distance(stated, data_functions)
    if belief_functions is not None:
        columns["belief"] = quantile_distance(stated, belief_functions)
    if data_functions is not None and belief_functions is not None:
        columns["belief_data"] = quantile_distance(belief_functions, data_functions)
    if data is not None:  # between pairs of bootstrap samples of rows
        n, count = len(data), 2 * _FLOOR_PAIRS
        resampled = [functions_of_points(data[rng.integers(n, size=n)]) for _ in range(count)]
        columns["floor"] = quantile_distance(
            np.array(resampled[::2]), np.array(resampled[1::2])
        ).mean(0)
    return [
        StatedFeature(
            name=space.names[j],
            times=int(statements[j]),
            quantiles=tuple(median[j].tolist()) if statements[j] else None,
            outside=int(outside[j]),
            **{name: finite_or_none(values[j]) for name, values in columns.items()},
        )
        for j in space.on_line
    ]


def quantile_distance(x: Floats, y: Floats) -> Floats:
    """Return ∫|x − y| du of functions that are linear between the nodes, `(..., 7)` each.

    Examples:
        >>> up, level = np.array([0, 1, 1, 1, 1, 1, 0.0]), np.zeros(7)
        >>> round(float(quantile_distance(up, level)), 6)   # two triangles of 0.05 / 2, and 0.9
        0.95
    """
    start, end = (x - y)[..., :-1], (x - y)[..., 1:]
    size = np.abs(start) + np.abs(end)
    crosses = start * end < 0
    # Two triangles if the sign changes, a trapezium otherwise.
    triangles = (start**2 + end**2) / np.where(size > 0, size, 1.0)
    mean = np.where(crosses, triangles, size) / 2
    return np.asarray((mean * np.diff(_NODES)).sum(axis=-1))
