"""Stated quantiles: how far they lie from the belief's and the data's, and which noise they suit.

A feature's five quantiles make a monotone quantile function: straight on the feature's scale from
the lower end of its range through the five to the upper end. Wasserstein-1 between two of them is
∫|Q - Q'| du, exact. All sides are reduced to their five quantiles alike, so that what five numbers
leave out is no distance between them.

Choices tell the belief together with the judge's noise level alone: p at one level and p^c at c
times that level answer alike (`llm_elicit.density.BeliefDensity.at_noise`). Stated quantiles are
answers of another kind, so they can tell the two apart, as far as the judge means the same by both.

Quantiles of a belief, and of what else its answers allow, at other noise levels.

p under a noise level s and p^c under c s answer alike. So the points of one belief, weighted by
p^c, are points of it at another level; and the same points, weighted by a draw of the posterior,
are that draw's.
"""

from __future__ import annotations

import numpy as np

from llm_elicit import density
from llm_elicit.audit.reference import Reference
from llm_elicit.audit.scales import Standard
from llm_elicit.config.base_model import StrictModel
from llm_elicit.density.summaries import weighted_quantiles
from llm_elicit.questions.numbers import LEVELS
from llm_elicit.spaces.features import FeatureSpace, Floats

_NODES = np.array([0, *LEVELS, 100]) / 100
_RESAMPLES = 999
_FLOORS = 10
_WIDEST = 8.0


class StatedFeature(StrictModel):
    """One feature's stated quantiles. Distances are W1 in standard deviations of the data.

    Attributes:
        name: the feature.
        times: how often they were stated and could be read.
        quantiles: at 5, 25, 50, 75 and 95 %, natural units; medians over the times; None if never.
        outside: how many of the stated numbers lie outside the range; they count as its ends.
        spread: mean distance of one statement from the median of all; None if stated once.
        data, belief: distances from those of the data and of the belief.
        belief_data: distance of the belief's from the data's.
        floor: the same distance between two draws of the data, as many rows as there are each.
    """

    name: str
    times: int
    quantiles: tuple[float, float, float, float, float] | None
    outside: int
    spread: float | None
    data: float | None
    belief: float | None
    belief_data: float | None
    floor: float | None


class StatedLevel(StrictModel):
    """The noise level at which the belief agrees best with the stated quantiles.

    Attributes:
        factors: the levels looked at, over the one that the fit was told.
        distances: the mean W1 over features between belief and statement at each.
        best: the factor of the least distance.
        low, high: the middle 90 % of the best factors over features, statements and beliefs that
            the choices allow, all drawn anew.
        identified: whether that interval is short of both ends of the levels looked at, and not
            wider than a factor of eight.
    """

    factors: list[float]
    distances: list[float]
    best: float
    low: float
    high: float
    identified: bool


class Stated(StrictModel):
    """A judge's stated quantiles.

    Attributes:
        features: those that are numbers, in the order of the space.
        level: which noise level they suit; None for a belief that has but one, or fewer than two
            features with statements.
    """

    features: list[StatedFeature]
    level: StatedLevel | None


def measure_stated(
    quantiles: Floats,
    reference: Reference,
    belief: Floats | None,
    at_levels: Floats | None,
    rng: np.random.Generator,
) -> Stated | None:
    """How a judge's quantiles compare; None if none of them is finite.

    Args:
        quantiles: as they were stated each time, `(t, d, 5)`, natural units.
        reference: the data and λ.
        belief: the belief's draws, `(m, d)`, natural units; None where none was fitted.
        at_levels: the belief's quantiles at other noise levels and those of draws of its posterior,
            `(1 + S, c, d, 5)`, from `quantiles_at_levels`; None for a belief that has but one.
        rng: draws what floors and intervals need.
    """
    if not np.isfinite(quantiles).any():
        return None
    space, data = reference.space, reference.data
    ends = (space.low[:, None], space.high[:, None])
    clipped = np.clip(quantiles, *ends)
    outside = ((quantiles < ends[0]) | (quantiles > ends[1])).sum(axis=(0, 2))
    times = np.isfinite(quantiles[:, :, 0]).sum(axis=0)
    # Monotone sequences have a monotone median.
    middle = np.full(quantiles.shape[1:], np.nan)
    middle[times > 0] = np.nanmedian(clipped[:, times > 0], axis=0)
    nodes = _Nodes(reference.standard)
    stated, single = nodes(middle), nodes(clipped)
    of_data = None if data is None else nodes.of(data)
    of_belief = None if belief is None else nodes.of(belief)
    columns = {
        "spread": _spread(apart(single, stated), times),
        "data": _between(stated, of_data),
        "belief": _between(stated, of_belief),
        "belief_data": _between(of_belief, of_data),
        "floor": None if data is None else _floor(nodes, data, rng),
    }
    features = [
        StatedFeature(
            name=space.names[j],
            times=int(times[j]),
            quantiles=tuple(middle[j].tolist()) if times[j] else None,
            outside=int(outside[j]),
            **{key: _finite(values, j) for key, values in columns.items()},
        )
        for j in space.numeric
    ]
    level = None
    if at_levels is not None:
        level = _best_level(single, nodes(at_levels), rng)
    return Stated(features=features, level=level)


class _Nodes:
    """Quantile functions at their nodes, `(..., d, 7)`, standardized: the range's ends included."""

    def __init__(self, standard: Standard) -> None:
        self._standard = standard

    def __call__(self, quantiles: Floats) -> Floats:
        space = self._standard.space
        ends = [np.broadcast_to(e[:, None], (*quantiles.shape[:-1], 1))
                for e in (space.low, space.high)]  # fmt: skip
        whole = np.concatenate([ends[0], quantiles, ends[1]], axis=-1)
        return np.swapaxes(self._standard.numbers(np.swapaxes(whole, -1, -2)), -1, -2)

    def of(self, points: Floats) -> Floats:
        """Of a sample `(n, d)`, natural units, rounded as it would be worded."""
        rounded = self._standard.space.round(points)
        return self(np.quantile(rounded, np.array(LEVELS) / 100, axis=0).T)


def apart(x: Floats, y: Floats) -> Floats:
    """∫|x - y| du of functions that are straight between the nodes, `(..., 7)` each.

    Example:
        >>> ends = [0.0, 0.0]
        >>> up, level = np.array([0, 1, 1, 1, 1, 1, 0.0]), np.zeros(7)
        >>> round(float(apart(up, level)), 6)   # two triangles of 0.05 / 2, and 0.9
        0.95
    """
    left, right = (x - y)[..., :-1], (x - y)[..., 1:]
    size = np.abs(left) + np.abs(right)
    crosses = left * right < 0
    # Two triangles where the sign changes, a trapezium elsewhere.
    triangles = (left**2 + right**2) / np.where(size > 0, size, 1.0)
    mean = np.where(crosses, triangles, size) / 2
    return np.asarray((mean * np.diff(_NODES)).sum(axis=-1))


def _spread(distances: Floats, times: Floats) -> Floats:
    """The mean of the distances `(t, d)` that there are, where there is more than one."""
    sums = np.nansum(distances, axis=0)
    return np.asarray(np.where(times > 1, sums / np.maximum(times, 1), np.nan))


def _between(x: Floats | None, y: Floats | None) -> Floats | None:
    return None if x is None or y is None else apart(x, y)


def _floor(nodes: _Nodes, data: Floats, rng: np.random.Generator) -> Floats:
    """Mean distance `(d,)` between the quantiles of two draws of rows, with replacement."""
    draws = [nodes.of(data[rng.integers(len(data), size=len(data))]) for _ in range(2 * _FLOORS)]
    pairs = zip(draws[::2], draws[1::2], strict=True)
    return np.asarray(np.mean([apart(x, y) for x, y in pairs], axis=0))


def _finite(values: Floats | None, column: int) -> float | None:
    if values is None or not np.isfinite(values[column]):
        return None
    return float(values[column])


def _best_level(single: Floats, at_levels: Floats, rng: np.random.Generator) -> StatedLevel | None:
    """From statements `(t, d, 7)` and the beliefs' quantiles `(1 + S, c, d, 7)`, at the nodes.

    A belief of the posterior is drawn anew, features, and of each feature one of its statements.
    """
    factors = np.array(LEVEL_FACTORS)
    distances = apart(at_levels[:, :, None], single)  # (1 + S, c, t, d)
    known = np.flatnonzero(np.isfinite(distances[0, 0]).any(axis=0))
    if len(known) < 2:
        return None
    means = np.nanmean(distances[0][:, :, known], axis=1).mean(axis=1)
    beliefs = np.arange(min(1, len(distances) - 1), len(distances))
    found = []
    for _ in range(_RESAMPLES):
        of_belief = distances[rng.choice(beliefs)]
        drawn = [
            of_belief[:, rng.choice(np.flatnonzero(np.isfinite(of_belief[0, :, j]))), j]
            for j in rng.choice(known, len(known))
        ]
        found.append(factors[np.mean(drawn, axis=0).argmin()])
    low, high = np.quantile(found, [0.05, 0.95], method="nearest")
    return StatedLevel(
        factors=factors.tolist(),
        distances=means.tolist(),
        best=float(factors[means.argmin()]),
        low=float(low),
        high=float(high),
        identified=bool(low > factors[0] and high < factors[-1] and high <= _WIDEST * low),
    )


LEVEL_FACTORS = tuple(2.0 ** (k / 2) for k in range(-6, 7))
"""The noise levels looked at, over the one that the fit was told."""

_POINTS = 4000
_ENOUGH = 200


def quantiles_at_levels(
    belief: density.BeliefDensity, space: FeatureSpace, points: Floats, seed: int
) -> Floats:
    """Five quantiles of each feature at each of `LEVEL_FACTORS`, `(1 + S, c, d, 5)`, natural units.

    NaN of categorical features.

    The first of them are the belief's own, the other S those of draws of its posterior, if it has
    any. Points of the belief and as many from λ are weighted into each; where too few would count
    for the belief itself, it is drawn anew.
    """
    rng = np.random.default_rng([seed, 0x1E7E1])
    some = points[rng.permutation(len(points))[:_POINTS]]
    both = np.concatenate([some, space.sample(len(some), rng)])
    slope = belief.sampling.log_scale_slope(both)
    own = belief.log_prob(both)
    drawn = np.logaddexp(own, belief.sampling.log_prob(both)) - slope
    logs = [own, *belief.draws(seed=seed).log_prob(both)] if belief.has_draws else [own]
    order, wanted = np.argsort(both, axis=0), np.array(LEVELS) / 100
    found = np.empty((len(logs), len(LEVEL_FACTORS), space.dimension, len(LEVELS)))
    for i, log_p in enumerate(logs):
        for k, factor in enumerate(LEVEL_FACTORS):
            exponents = factor * (log_p - slope) - drawn
            weights = np.exp(exponents - exponents.max())
            weights /= weights.sum()
            if i == 0 and factor > 1.0 and 1.0 / (weights**2).sum() < _ENOUGH:
                other = belief.at_noise(factor * belief.noise.level).sample(_POINTS, seed=seed)
                found[i, k] = np.quantile(other, wanted, axis=0).T
            else:
                found[i, k] = weighted_quantiles(both, weights, wanted, order).T
    found[:, :, space.categorical] = np.nan
    return found
