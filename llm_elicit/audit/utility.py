"""A belief's utility at the points that the audit uses, with draws of its posterior.

The utility is the logarithm of the density per unit of every feature's scale, up to a constant and
a power. Here it is in log-odds: the difference between two points is that of the judge's answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from llm_elicit import density
from llm_elicit.spaces.features import Feature, FeatureSpace, Floats

GRID = np.array([0.05, 0.15, 0.25, 0.35, 0.45, 0.5, 0.55, 0.65, 0.75, 0.85, 0.95])
"""Positions in a number's range, on its scale from 0 to 1, at which its effect is evaluated."""

_AROUND = 12  # values around a circle
_ROWS, _SAMPLING, _AVERAGED = 1000, 2000, 200


@dataclass(frozen=True)
class Values:
    """A utility at n points, `(n,)`, and of S draws of its posterior, `(S, n)`."""

    mean: Floats
    draws: Floats


@dataclass(frozen=True)
class Utility:
    """A utility in log-odds.

    Attributes:
        rows: at rows of the data; None without a table.
        sampling: at draws from λ.
        row_points, sampling_points: the points of these, natural units.
        effects: of each feature at `GRID` over its range, or at `separate_values`, averaged over λ
            in the other features.
    """

    rows: Values | None
    sampling: Values
    row_points: Floats | None
    sampling_points: Floats
    effects: tuple[Values, ...]


def utility_of(
    belief: density.BeliefDensity, space: FeatureSpace, data: Floats | None, seed: int
) -> Utility:
    """Evaluate a belief's utility; data `(n, d)` in natural units, at most 1000 rows of them."""
    rng = np.random.default_rng([seed, 0x071])
    sampling = space.round(space.sample(_SAMPLING, rng))
    rows = None if data is None else data[rng.permutation(len(data))[:_ROWS]]
    unit = belief.power * _unit(belief)

    def values(points: Floats, tapered: bool = True) -> Values:
        mean = _mean(belief, points, tapered) / unit
        draws = belief.utilities(points, tapered=tapered) / unit if belief.has_draws else mean[None]
        return Values(mean, draws)

    # An effect is of the answers, not of the taper beyond the compared points.
    answered = partial(values, tapered=False)

    base, grids = space.sample(_AVERAGED, rng), _grids(space)
    return Utility(
        rows=None if rows is None else values(rows),
        sampling=values(sampling),
        row_points=rows,
        sampling_points=sampling,
        effects=tuple(
            _averaged(answered, space, base, feature, grid) for feature, grid in enumerate(grids)
        ),
    )


def _unit(belief: density.BeliefDensity) -> float:
    """Return nats of log density per nat of log-odds, at power 1."""
    response = belief.diagnostics.get("response")
    if response is not None and response.get("scale") == "log-odds":
        return 1.0
    return belief.noise.scale


def _mean(belief: density.BeliefDensity, points: Floats, tapered: bool) -> Floats:
    if belief.has_noise_levels:
        return belief.utility(points, tapered=tapered)
    return belief.log_prob(points) - belief.sampling.log_scale_slope(points)


def _grids(space: FeatureSpace) -> list[Floats]:
    """Return the values at which each feature is evaluated, natural units: see `separate_values`.

    Whole numbers at a position in the range of their cells, halves to the nearer end.
    """
    low, high = space.scale_ends
    at = space.from_scale(low + GRID[:, None] * (high - low))
    outward = np.where(GRID[:, None] <= 0.5, np.ceil(at - 0.5), np.floor(at + 0.5))
    at = np.clip(np.where(space.integer, outward, at), space.low, space.high)
    return [
        separate_values(feature) if is_separate(feature) else at[:, j]
        for j, feature in enumerate(space.features)
    ]


def is_separate(feature: Feature) -> bool:
    """Return whether a feature's values are compared one by one: categories, and on a circle."""
    return bool(feature.categories) or feature.periodic


def separate_values(feature: Feature) -> Floats:
    """Return codes of all categories, or values around a circle, natural units.

    Example:
        >>> month = Feature(name="m", label="m", kind="integer", low=1, high=12, periodic=True)
        >>> separate_values(month).tolist()[-2:]
        [11.0, 12.0]
    """
    if feature.categories or (feature.whole and feature.period <= _AROUND):
        return np.arange(feature.lowest, feature.highest + 1.0)
    around = feature.lowest + feature.period * np.arange(_AROUND) / _AROUND
    return feature.round(around)


def _averaged(
    values: Callable[[Floats], Values],
    space: FeatureSpace,
    base: Floats,
    feature: int,
    grid: Floats,
) -> Values:
    """Return the mean over base points `(m, d)` with one feature set to each of T values.

    The mean is over the points that keep the space's constraints. Where none does, it is that of
    the nearest value.
    """
    points = np.repeat(base[None], len(grid), axis=0)
    points[:, :, feature] = grid[:, None]
    flat = points.reshape(-1, base.shape[1])
    inside = space.contains(flat) if space.constraints else np.ones(len(flat), dtype=bool)
    found = values(flat[inside])
    counts = inside.reshape(len(grid), -1).sum(axis=1)
    owner = np.repeat(np.arange(len(grid)), len(base))[inside]
    known = np.flatnonzero(counts)
    nearest = known[np.abs(known - np.arange(len(grid))[:, None]).argmin(axis=1)]

    def averaged(row: Floats) -> Floats:
        totals = np.bincount(owner, weights=row, minlength=len(grid))
        return np.asarray((totals / np.maximum(counts, 1))[nearest])

    return Values(averaged(found.mean), np.stack([averaged(row) for row in found.draws]))
