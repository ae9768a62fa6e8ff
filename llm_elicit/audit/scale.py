"""What of an audit depends on the judge's noise level, which the choices do not tell.

Choices depend on the utility over the noise's scale alone: p under a noise level s and p^c under
c s answer alike (`llm_elicit.density.BeliefDensity.at_noise`). A level has to be assumed, so each
conclusion is drawn at several: from half to twice the one that the fit was told.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from llm_elicit import density
from llm_elicit.audit.distance import Estimate, common_size, estimate_of, wasserstein
from llm_elicit.audit.evidence import Reference
from llm_elicit.features import FeatureSpace, Floats
from llm_elicit.strict import Strict

FACTORS = (0.5, 0.5**0.5, 1.0, 2.0**0.5, 2.0)
"""What the level is multiplied by."""
_COUNT = 4000
_ENOUGH = 400
_SIZE, _REPEATS = 500, 3
_SHIFTED = 0.1


class AtLevel(Strict):
    """A judge's belief at one noise level.

    Attributes:
        factor: the level over the one that the fit was told.
        belief_data: Wasserstein-1 to the data; None without data.
        shifts: each feature's mean less the data's (λ's without data), in its standard
            deviations, on the feature's scale, in the order of the space; None of a categorical
            feature, which has no mean.
    """

    factor: float
    belief_data: Estimate | None
    shifts: list[float | None]


class Scale(Strict):
    """A judge's belief over a range of noise levels.

    Attributes:
        levels: from the least noise to the most.
        size: points on each side of the distances here.
        sampling_data: Wasserstein-1 of λ from the data at that size; None without data.
        nearer: whether the belief is nearer to the data than λ at every level (true), at none
            (false), or depends on the level (None).
        above, below: features whose mean is more than a tenth of a standard deviation above, or
            below, the data's at every level.
        open: the features for which that depends on the level.
    """

    levels: list[AtLevel]
    size: int
    sampling_data: Estimate | None
    nearer: bool | None
    above: list[str]
    below: list[str]
    open: list[str]


def points_at_levels(
    belief: density.BeliefDensity, space: FeatureSpace, points: Floats, seed: int
) -> dict[float, Floats]:
    """Points `(4000, d)`, natural units, of the belief at each of `FACTORS` times its level.

    `points` `(m, d)` are the belief's own draws. They and as many from λ are weighted into those
    of the other levels, and only where too few would count is the belief drawn anew.
    """
    rng = np.random.default_rng([seed, 0x5CA1E])
    both = np.concatenate([points, space.sample(len(points), rng)])
    slope = belief.sampling.log_scale_slope(both)
    log_p, log_flat = belief.log_prob(both) - slope, belief.sampling.log_prob(both) - slope
    log_drawn = np.logaddexp(log_p, log_flat)
    found = {}
    for factor in FACTORS:
        weights = np.exp((logs := factor * log_p - log_drawn) - logs.max())
        if factor == 1.0:
            found[factor] = rng.permutation(points)[:_COUNT]
        elif weights.sum() ** 2 / (weights**2).sum() >= _ENOUGH:
            found[factor] = both[rng.choice(len(both), _COUNT, p=weights / weights.sum())]
        else:
            other = belief.at_noise(factor * belief.noise.level)
            found[factor] = other.sample(_COUNT, seed=seed)
    return found


def measure_scale(
    at_levels: Mapping[float, Floats], reference: Reference, rng: np.random.Generator
) -> Scale:
    """From a belief's points by factor; see `points_at_levels`."""
    space, data = reference.space, reference.data
    sampling = space.round(reference.sampling)
    centre = sampling if data is None else space.round(data)
    standard = reference.standard
    size = common_size(_SIZE, centre, *at_levels.values())

    def apart(points: Floats) -> Estimate | None:
        return None if data is None else _apart(standard(points), standard(centre), size, rng)

    levels, shifts = [], []
    for factor, drawn in sorted(at_levels.items()):
        points = space.round(drawn)
        shift = standard.numbers(points).mean(axis=0) - standard.numbers(centre).mean(axis=0)
        found = [None if np.isnan(each) else float(each) for each in shift]
        levels.append(AtLevel(factor=factor, belief_data=apart(points), shifts=found))
        shifts.append(shift)
    of_sampling = apart(sampling)
    sides = np.sign(shifts) * (np.abs(shifts) > _SHIFTED)
    above, below = ((sides == side).all(axis=0) for side in (1, -1))
    beside = ~above & ~below & ~(sides == 0).all(axis=0) & ~space.categorical
    names = np.array(space.names)
    return Scale(
        levels=levels,
        size=size,
        sampling_data=of_sampling,
        nearer=_nearer(levels, of_sampling),
        above=names[above].tolist(),
        below=names[below].tolist(),
        open=names[beside].tolist(),
    )


def _apart(x: Floats, y: Floats, size: int, rng: np.random.Generator) -> Estimate:
    def some(points: Floats) -> Floats:
        return points[rng.choice(len(points), size, replace=False)]

    return estimate_of([wasserstein(some(x), some(y)) for _ in range(_REPEATS)])


def _nearer(levels: list[AtLevel], of_sampling: Estimate | None) -> bool | None:
    """Whether all, or none, of the levels' beliefs are nearer to the data than λ."""
    if of_sampling is None:
        return None
    nearer = {
        each.belief_data.mean < of_sampling.mean for each in levels if each.belief_data is not None
    }
    return nearer.pop() if len(nearer) == 1 else None
