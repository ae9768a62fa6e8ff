"""Where in the space a judge does not choose: refusals, cut-off and unreadable answers by region.

Answers that are missing for some regions only leave a belief that knows less there than its
number of comparisons says, and a judge who refuses by what is shown has told something.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.linalg import orth

from llm_elicit.audit.inference import Interval, holm, wilson
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.config.base_model import StrictModel
from llm_elicit.spaces.features import Feature, FeatureSpace, Floats

Codes = npt.NDArray[np.int64]
_THIRDS = 3


class UnansweredBy(StrictModel):
    """One feature and the questions without a choice.

    Attributes:
        name: the feature.
        thirds: share of unanswered questions among those with a point in the lowest, the middle
            and the highest third of the feature's range, on its scale; None where none was asked.
            None of a categorical feature.
        categories: the same by the category of a point; None of a number.
        p_value: of the permutation test that the feature's values in a pair have no part in it.
        p_holm: the same, for looking at all features (Holm 1979).
    """

    name: str
    thirds: list[float | None] | None
    categories: dict[str, float | None] | None = None
    p_value: float
    p_holm: float


class Unanswered(StrictModel):
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
    codes = np.stack(sides).astype(int)
    bases = [
        _of_categories(codes[:, :, j], len(feature.categories))
        if feature.categories
        else _of_numbers(points[:, :, j])
        for j, feature in enumerate(space.features)
    ]
    p_values = _permuted(bases, left, permutations, rng)
    adjusted = holm(p_values)
    return Unanswered(
        share=wilson(float(left.mean()), len(left)),
        features=[
            UnansweredBy(
                name=feature.name,
                thirds=None if feature.categories else _thirds(points[:, :, j], left),
                categories=_each(codes[:, :, j], feature, left) if feature.categories else None,
                p_value=float(p_values[j]),
                p_holm=float(adjusted[j]),
            )
            for j, feature in enumerate(space.features)
        ],
    )


def _of_numbers(values: Floats) -> Floats:
    """An orthonormal basis `(n, 2)` of a pair's numbers `(2, n)`: of their sum and of squares."""
    columns = [np.ones(values.shape[1]), values.sum(axis=0), (values**2).sum(axis=0)]
    return np.asarray(np.linalg.qr(np.stack(columns, axis=1))[0][:, 1:])


def _of_categories(codes: Codes, count: int) -> Floats:
    """The same `(n, r)` of codes `(2, n)`: how often each category is in the pair."""
    counts = (codes[:, :, None] == np.arange(count)).sum(axis=0)
    return np.asarray(orth(counts - counts.mean(axis=0)))


def _permuted(
    bases: list[Floats], left: Floats, permutations: int, rng: np.random.Generator
) -> Floats:
    """p `(d,)` of permutation tests of what a feature says about `left` `(n,)`.

    The statistic is how much of `left` the feature's basis `(n, r)` explains; of a feature that is
    the same in all pairs there is none, and p is 1.
    """
    basis = np.concatenate(bases, axis=1)
    of = np.repeat(np.arange(len(bases)), [each.shape[1] for each in bases])

    def explained(some: Floats) -> Floats:
        return np.asarray(np.bincount(of, (some @ basis) ** 2, minlength=len(bases)))

    least = explained(left) * (1 - 1e-12)
    reached = np.zeros(len(least))
    for _ in range(permutations):  # one at a time: a campaign may hold a million pairs
        reached += explained(rng.permutation(left)) >= least
    return (1 + reached) / (1 + permutations)


def _each(codes: Codes, feature: Feature, left: Floats) -> dict[str, float | None]:
    """The share left open among pairs with a category, by its word."""
    touched = [(codes == code).any(axis=0) for code in range(len(feature.categories))]
    found = [float(left[some].mean()) if some.any() else None for some in touched]
    return dict(zip(feature.categories, found, strict=True))


def _thirds(values: Floats, left: Floats) -> list[float | None]:
    """The share left open `(n,)` among pairs with a value `(2, n)`, from 0 to 1, in each third."""
    third = np.clip((values * _THIRDS).astype(int), 0, _THIRDS - 1)
    touched = [(third == k).any(axis=0) for k in range(_THIRDS)]
    return [float(left[some].mean()) if some.any() else None for some in touched]
