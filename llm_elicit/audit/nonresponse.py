"""Nonresponse by region: where refusals, truncated and unparsable answers occur.

If answers are missing in some regions only, the belief rests on fewer comparisons there than their
total number suggests.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import orth

from llm_elicit._util.settings import StrictModel
from llm_elicit.audit.inference import Interval, holm, wilson
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.spaces.features import FeatureSpace, Floats

_THIRDS = ("lowest", "middle", "highest")


class FeatureNonresponse(StrictModel):
    """Nonresponse by one feature.

    Attributes:
        name: the feature.
        thirds: nonresponse rate of pairs with a point in the lowest, middle and highest third of
            the feature's range, on its scale; None if no such pair was asked. None for a
            categorical feature.
        categories: the same by the category of a point; None for a number.
        p_value: of the permutation test of independence from the feature's values in a pair.
        p_holm: the same, Holm-adjusted over all features.
    """

    name: str
    thirds: list[float | None] | None
    categories: dict[str, float | None] | None = None
    p_value: float
    p_holm: float


class Nonresponse(StrictModel):
    """A judge's questions without a choice: refused, truncated or unparsable.

    Attributes:
        share: of all questions, with Wilson's interval over pairs.
        features: by feature, in the order of the space.
    """

    share: Interval
    features: list[FeatureNonresponse]


def measure_nonresponse(
    comparisons: Comparisons,
    judge: str,
    space: FeatureSpace,
    permutations: int,
    rng: np.random.Generator,
) -> Nonresponse | None:
    """Measure nonresponse by region; None if all questions were answered, or none.

    A tie is an answer. Whole pairs are permuted, so that the two orders of a pair do not count as
    independent.
    """
    rows = comparisons.answers_of(judge)
    missing = rows["probability"].isna().to_numpy(np.float64)
    _, first, member = np.unique(rows["pair"], return_index=True, return_inverse=True)
    rates = np.bincount(member, missing) / np.bincount(member)
    if not 0.0 < missing.mean() < 1.0 or len(rates) < 3:
        return None
    sides = [side[first] for side in comparisons.points(rows)]
    low, high = space.to_scale(space.low), space.to_scale(space.high)
    points = np.stack([(space.to_scale(side) - low) / (high - low) for side in sides])
    codes = np.stack(sides).astype(int)
    bases, groups = [], []
    for j, feature in enumerate(space.features):
        if names := feature.categories:
            group = codes[:, :, j]
            counts = (group[:, :, None] == np.arange(len(names))).sum(axis=0)
            bases.append(np.asarray(orth(counts - counts.mean(axis=0))))
        else:
            names, group = _THIRDS, np.clip((points[:, :, j] * 3).astype(int), 0, 2)
            # Sums over a pair of the values and their squares; of a circle, of its unit vectors.
            values = points[:, :, j]
            parts = [values, values**2]
            if feature.periodic:
                angle = 2.0 * np.pi * values * (feature.highest - feature.lowest) / feature.period
                parts = [np.cos(angle), np.sin(angle)]
            columns = [np.ones(len(rates)), *(part.sum(axis=0) for part in parts)]
            bases.append(np.asarray(np.linalg.qr(np.stack(columns, axis=1))[0][:, 1:]))
        asked = [(group == k).any(axis=0) for k in range(len(names))]
        means = (float(rates[pairs].mean()) if pairs.any() else None for pairs in asked)
        groups.append(dict(zip(names, means, strict=True)))
    p_values = _permutation_p_values(bases, rates, permutations, rng)
    adjusted = holm(p_values)
    return Nonresponse(
        share=wilson(float(rates.mean()), len(rates)),
        features=[
            FeatureNonresponse(
                name=feature.name,
                thirds=None if feature.categories else list(by_group.values()),
                categories=by_group if feature.categories else None,
                p_value=float(p_values[j]),
                p_holm=float(adjusted[j]),
            )
            for j, (feature, by_group) in enumerate(zip(space.features, groups, strict=True))
        ],
    )


def _permutation_p_values(
    bases: list[Floats], rates: Floats, permutations: int, rng: np.random.Generator
) -> Floats:
    """Return p `(d,)` of permutation tests of each feature's association with `rates` `(n,)`.

    The statistic is the sum of squares that the feature's basis `(n, r)` explains. A feature that
    is the same in all pairs has an empty basis, and p is 1.
    """
    basis = np.concatenate(bases, axis=1)
    owner = np.repeat(np.arange(len(bases)), [columns.shape[1] for columns in bases])

    def explained(permuted: Floats) -> Floats:
        return np.asarray(np.bincount(owner, (permuted @ basis) ** 2, minlength=len(bases)))

    observed = explained(rates) * (1 - 1e-12)
    reached = np.zeros(len(observed))
    for _ in range(permutations):  # one at a time: a campaign may hold a million pairs
        reached += explained(rng.permutation(rates)) >= observed
    return (1 + reached) / (1 + permutations)
