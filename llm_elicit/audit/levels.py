"""Quantiles of a belief, and of what else its answers allow, at other noise levels.

p under a noise level s and p^c under c s answer alike. So the points of one belief, weighted by
p^c, are points of it at another level; and the same points, weighted by a draw of the posterior,
are that draw's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llm_elicit import density
from llm_elicit.audit.replies import DirectEvidence
from llm_elicit.density.summaries import weighted_quantiles
from llm_elicit.questions.numbers import LEVELS
from llm_elicit.spaces.features import FeatureSpace, Floats

LEVEL_FACTORS = tuple(2.0 ** (k / 2) for k in range(-6, 7))
"""The noise levels looked at, over the one that the fit was told."""

_POINTS = 4000
_ENOUGH = 200


def at_noise_levels(
    evidence: DirectEvidence | None,
    belief: density.BeliefDensity,
    space: FeatureSpace,
    points: Floats,
    seed: int,
) -> DirectEvidence | None:
    """The evidence with the belief's quantiles at other noise levels, where quantiles were stated.

    Args:
        evidence: a judge's answers, if there are any.
        belief: a belief that has other noise levels, and `points` `(m, d)`, its own draws.
        space: the features.
        seed: of the draws.
    """
    if evidence is None or not np.isfinite(evidence.quantiles).any():
        return evidence
    return replace(evidence, at_levels=quantiles_at_levels(belief, space, points, seed))


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
