"""Where in the space a judge does not choose: refusals, cut-off and unreadable answers by region.

Answers that are missing for some regions only leave a belief that knows less there than its
number of comparisons says, and a judge who refuses by what is shown has told something.
"""

from __future__ import annotations

import numpy as np

from llm_elicit.audit.consistency import Interval, wilson
from llm_elicit.audit.multiplicity import holm
from llm_elicit.comparisons import Comparisons
from llm_elicit.features import FeatureSpace, Floats, Strict

_THIRDS = 3


class UnansweredBy(Strict):
    """One feature and the questions without a choice.

    Attributes:
        name: the feature.
        thirds: share of unanswered questions among those with a point in the lowest, the middle
            and the highest third of the feature's range, on its scale; None where none was asked.
        p_value: of the permutation test that the feature's values in a pair have no part in it.
        p_holm: the same, for looking at all features (Holm 1979).
    """

    name: str
    thirds: list[float | None]
    p_value: float
    p_holm: float


class Unanswered(Strict):
    """A judge's questions that came back without a choice: refusal, truncated or unparsable.

    Attributes:
        share: of all questions, with Wilson's interval over pairs.
        features: by feature, in the order of the space.
    """

    share: Interval
    features: list[UnansweredBy]


def measure_unanswered(
    comparisons: Comparisons,
    judge: str,
    space: FeatureSpace,
    permutations: int,
    rng: np.random.Generator,
) -> Unanswered | None:
    """By region; None where all questions were answered, or none.

    A tie is an answer. Pairs are permuted whole, so that two orders of one pair are no evidence
    for one another.
    """
    rows = comparisons.of(judge)
    missing = rows["probability"].isna().to_numpy(np.float64)
    pairs, first, member = np.unique(rows["pair"], return_index=True, return_inverse=True)
    asked = np.bincount(member)
    left = np.bincount(member, missing) / asked
    if not 0.0 < missing.mean() < 1.0 or len(pairs) < 3:
        return None
    sides = [rows[[f"{side}_{name}" for name in space.names]].to_numpy()[first] for side in "ab"]
    low, high = space.to_scale(space.low), space.to_scale(space.high)
    points = np.stack([(space.to_scale(side) - low) / (high - low) for side in sides])
    p_values = _permuted(points, left, permutations, rng)
    adjusted = holm(p_values)
    return Unanswered(
        share=wilson(float(left.mean()), len(left)),
        features=[
            UnansweredBy(
                name=name,
                thirds=_thirds(points[:, :, j], left),
                p_value=float(p_values[j]),
                p_holm=float(adjusted[j]),
            )
            for j, name in enumerate(space.names)
        ],
    )


def _permuted(points: Floats, left: Floats, permutations: int, rng: np.random.Generator) -> Floats:
    """p `(d,)` of permutation tests of what a feature of two points `(2, n, d)` says about `left`.

    The statistic is how much of `left` `(n,)` the sums of its values and of their squares explain.
    """
    bases = []
    for values in np.moveaxis(points, 2, 0):
        columns = [np.ones(len(left)), values.sum(axis=0), (values**2).sum(axis=0)]
        bases.append(np.linalg.qr(np.stack(columns, axis=1))[0][:, 1:])
    basis = np.concatenate(bases, axis=1)

    def explained(some: Floats) -> Floats:
        return np.asarray(((some @ basis) ** 2).reshape(-1, 2).sum(axis=1))

    least = explained(left) * (1 - 1e-12)
    reached = np.zeros(len(least))
    for _ in range(permutations):  # one at a time: a campaign may hold a million pairs
        reached += explained(rng.permutation(left)) >= least
    return (1 + reached) / (1 + permutations)


def _thirds(values: Floats, left: Floats) -> list[float | None]:
    """The share left open `(n,)` among pairs with a value `(2, n)`, from 0 to 1, in each third."""
    third = np.clip((values * _THIRDS).astype(int), 0, _THIRDS - 1)
    touched = [(third == k).any(axis=0) for k in range(_THIRDS)]
    return [float(left[some].mean()) if some.any() else None for some in touched]
