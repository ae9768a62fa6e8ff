"""Stated quantiles: distances from belief and data, and the noise level that fits them best.

A feature's five quantiles define a monotone quantile function, linear on the feature's scale from
the lower end of its range through the five to the upper end. Wasserstein-1 between two of them is
∫|Q − Q'| du, computed exactly. Belief and data are reduced to their five quantiles as well, so that
the reduction itself adds no distance.

Choices identify the belief only together with the judge's noise level: p at one level and p^c at c
times that level predict the same choices (`llm_elicit.density.BeliefDensity.at_noise`). Stated
quantiles can separate the two, as far as the judge's answers of both kinds agree. The belief at
other noise levels is obtained by weighting its points by p^c, and that of a posterior draw by
weighting the same points by the draw.
"""

from __future__ import annotations

import numpy as np

from llm_elicit import density
from llm_elicit._util.settings import StrictModel
from llm_elicit.audit.inference import finite_or_none
from llm_elicit.audit.reference import Reference
from llm_elicit.density.distribution import weighted_quantiles
from llm_elicit.questions.numbers import LEVELS
from llm_elicit.spaces.features import FeatureSpace, Floats

NOISE_FACTORS = tuple(2.0 ** (k / 2) for k in range(-6, 7))
"""The noise levels evaluated, as multiples of the assumed one."""

_NODES = np.array([0, *LEVELS, 100]) / 100
"""Levels at which quantile functions are stored."""
_RESAMPLES = 999
"""Resamples for the interval of the noise level."""
_FLOOR_PAIRS = 10
"""Pairs of bootstrap samples over which the floor is averaged."""
_MAX_INTERVAL_RATIO = 8.0
"""Largest ratio of the ends of the interval at which the noise level counts as identified."""
_POINTS = 4000
"""Points of the belief, and as many from λ, that are weighted to other noise levels."""
_MIN_EFFECTIVE_POINTS = 200
"""Effective sample size of weights below which the belief is sampled anew."""


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


class NoiseLevel(StrictModel):
    """The noise level at which the belief agrees best with the stated quantiles.

    Attributes:
        factors: the levels evaluated, as multiples of the assumed one.
        distances: mean W1 over features between belief and statement at each.
        best: the factor with the least distance.
        low, high: central 90 % of the best factors over resampled features, statements and
            posterior draws.
        identified: whether that interval excludes both ends of the levels evaluated and is at most
            a factor of eight wide.
    """

    factors: list[float]
    distances: list[float]
    best: float
    low: float
    high: float
    identified: bool


class StatedQuantiles(StrictModel):
    """A judge's stated quantiles.

    Attributes:
        features: the features that are numbers and not periodic, in the order of the space.
        noise_level: the noise level at which the belief is nearest to the stated quantiles; None
            for a belief with a single level, or with statements for fewer than two features.
    """

    features: list[StatedFeature]
    noise_level: NoiseLevel | None


def measure_stated_quantiles(
    quantiles: Floats,
    reference: Reference,
    belief: Floats | None,
    by_level: Floats | None,
    rng: np.random.Generator,
) -> StatedQuantiles | None:
    """Compare a judge's quantiles with belief and data; None if none of them is finite.

    Args:
        quantiles: stated quantiles, `(t, d, 5)`, natural units, for each statement and feature.
        reference: the data and λ.
        belief: the belief's draws, `(m, d)`, natural units; None if none was fitted.
        by_level: the belief's quantiles at other noise levels and those of draws of its posterior,
            `(1 + S, c, d, 5)`, from `quantiles_by_noise`; None for a belief with a single level.
        rng: generator for floors and intervals.
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
    features = [
        StatedFeature(
            name=space.names[j],
            times=int(statements[j]),
            quantiles=tuple(median[j].tolist()) if statements[j] else None,
            outside=int(outside[j]),
            **{name: finite_or_none(values[j]) for name, values in columns.items()},
        )
        for j in space.on_line
    ]
    level = None if by_level is None else _fit_noise_level(single, functions(by_level), rng)
    return StatedQuantiles(features=features, noise_level=level)


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


def _fit_noise_level(
    single: Floats, by_level: Floats, rng: np.random.Generator
) -> NoiseLevel | None:
    """Return the noise level that fits statements `(t, d, 7)` best, of `(1 + S, c, d, 7)` beliefs.

    Each resample draws a belief from the posterior, features with replacement, and one statement
    for each of these features.
    """
    factors = np.array(NOISE_FACTORS)
    distances = quantile_distance(by_level[:, :, None], single)  # (1 + S, c, t, d)
    answered_features = np.flatnonzero(np.isfinite(distances[0, 0]).any(axis=0))
    if len(answered_features) < 2:
        return None
    means = np.nanmean(distances[0][:, :, answered_features], axis=1).mean(axis=1)
    beliefs = np.arange(min(1, len(distances) - 1), len(distances))
    best_factors = []
    for _ in range(_RESAMPLES):
        belief_distances = distances[rng.choice(beliefs)]
        feature_distances = [
            belief_distances[
                :, rng.choice(np.flatnonzero(np.isfinite(belief_distances[0, :, j]))), j
            ]
            for j in rng.choice(answered_features, len(answered_features))
        ]
        best_factors.append(factors[np.mean(feature_distances, axis=0).argmin()])
    low, high = np.quantile(best_factors, [0.05, 0.95], method="nearest")
    return NoiseLevel(
        factors=factors.tolist(),
        distances=means.tolist(),
        best=float(factors[means.argmin()]),
        low=float(low),
        high=float(high),
        identified=bool(
            low > factors[0] and high < factors[-1] and high <= _MAX_INTERVAL_RATIO * low
        ),
    )


def quantiles_by_noise(
    belief: density.BeliefDensity, space: FeatureSpace, points: Floats, seed: int
) -> Floats:
    """Return five quantiles per feature at each of `NOISE_FACTORS`, `(1 + S, c, d, 5)`.

    Quantiles are in natural units, NaN for categorical and periodic features. The first entry is
    the belief, the other S are draws of its posterior, if it has any. Points of the belief and as
    many from λ are importance-weighted to each noise level; if the effective sample size is too
    small for the belief itself, it is sampled anew.
    """
    rng = np.random.default_rng([seed, 0x1E7E1])
    belief_points = points[rng.permutation(len(points))[:_POINTS]]
    candidates = np.concatenate([belief_points, space.sample(len(belief_points), rng)])
    slope = belief.sampling.log_scale_derivative(candidates)
    log_densities = [belief.log_prob(candidates)]
    proposal = np.logaddexp(log_densities[0], belief.sampling.log_prob(candidates)) - slope
    if belief.has_draws:
        log_densities.extend(belief.draws(seed=seed).log_prob(candidates))
    order, levels = np.argsort(candidates, axis=0), np.array(LEVELS) / 100
    quantiles = np.empty((len(log_densities), len(NOISE_FACTORS), space.dimension, len(LEVELS)))
    for i, log_p in enumerate(log_densities):
        for k, factor in enumerate(NOISE_FACTORS):
            exponents = factor * (log_p - slope) - proposal
            weights = np.exp(exponents - exponents.max())
            weights /= weights.sum()
            if i == 0 and factor > 1.0 and 1.0 / (weights**2).sum() < _MIN_EFFECTIVE_POINTS:
                sample = belief.sample_at_noise(_POINTS, factor * belief.noise.level, seed=seed)
                quantiles[i, k] = np.quantile(sample, levels, axis=0).T
            else:
                quantiles[i, k] = weighted_quantiles(candidates, weights, levels, order).T
    quantiles[:, :, space.categorical | space.periodic] = np.nan
    return quantiles
