"""Agreement between raters, corrected for chance.

A *rater* is a person or a model. Raters are compared over the pairs that both have judged, by the
point preferred, whichever was shown first. Where a rater has several answers about a pair (both
orders, or replicates), agreement is the expectation over one of them drawn at random. Log-odds and
stated probabilities count as the choice that they imply. Answers without a choice are left out;
"equal" is a choice of its own.

Chance is corrected for by Cohen's (1960) kappa for two raters, and by Krippendorff's (2004) alpha
for any number of raters with missing answers, both nominal: 1 for raters that always agree, 0 for
raters that agree as often as by chance. Their 95 % intervals are percentiles of a bootstrap over
pairs. Both are written out here, since the bootstrap needs them for many tables at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from llm_elicit.audit.inference import Interval, wilson
from llm_elicit.config.base_model import StrictModel
from llm_elicit.spaces.features import Floats

Measure = Callable[[Floats], Floats]
"""A measure of agreement of tables of answers; NaN where it is undefined."""

RESAMPLES = 1_000
"""Resamples of a bootstrap."""

_LEAST = 1e-12
"""The least disagreement by chance for which agreement can be corrected."""


class RaterAgreement(StrictModel):
    """Agreement of two raters, or of a person with earlier answers of their own.

    Attributes:
        first, second: the raters.
        pairs: number of pairs that both judged; of one person, number of repeated questions.
        share: share of pairs on which they agree.
        kappa: Cohen's; None if all answers of both are the same.
    """

    first: str
    second: str
    pairs: int
    share: Interval
    kappa: Interval | None


class GroupAgreement(StrictModel):
    """Agreement of several raters.

    Attributes:
        raters: their names.
        pairs: number of pairs that at least two of them judged.
        alpha: Krippendorff's; None if all answers are the same.
    """

    raters: list[str]
    pairs: int
    alpha: Interval | None


@dataclass(frozen=True)
class Ratings:
    """What raters chose about pairs.

    Attributes:
        names: the raters.
        shares: the share of a rater's answers about a pair in each of k categories,
            `(raters, pairs, k)`; zeros where a rater has no choice.
    """

    names: list[str]
    shares: Floats

    @classmethod
    def of_preferences(
        cls, raters: Sequence[str], pairs: Sequence[int], preference: Floats
    ) -> Ratings:
        """Return the ratings of answers, in the categories "b", "equal" and "a".

        Args:
            raters, pairs: who answered and about what, `(n,)`.
            preference: P(a preferred), `(n,)`.
        """
        names, who = np.unique(raters, return_inverse=True)
        known, which = np.unique(pairs, return_inverse=True)
        counts = np.zeros((len(names), len(known), 3))
        np.add.at(counts, (who, which), choice_table(preference))
        total = counts.sum(axis=2, keepdims=True)
        return cls([str(name) for name in names], counts / np.maximum(total, 1.0))

    def select(self, names: Sequence[str]) -> Ratings:
        """Return the ratings of some raters, in this order."""
        return Ratings(list(names), self.shares[[self.names.index(name) for name in names]])


def choice_table(preference: Floats) -> Floats:
    """Return P(a preferred) `(n,)` as indicators of "b", "equal" and "a", `(n, 3)`.

    Example:
        >>> choice_table(np.array([0.2, 0.5])).tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    return np.asarray(np.eye(3)[(np.sign(preference - 0.5) + 1.0).astype(np.int64)])


def pairwise(ratings: Ratings, rng: np.random.Generator) -> list[RaterAgreement]:
    """Return the agreement of every two raters that share a pair."""
    found = []
    for one, other in combinations(range(len(ratings.names)), 2):
        names = ratings.names[one], ratings.names[other]
        agreed = agreement(names, ratings.shares[one], ratings.shares[other], rng)
        if agreed is not None:
            found.append(agreed)
    return found


def agreement(
    names: tuple[str, str], one: Floats, other: Floats, rng: np.random.Generator
) -> RaterAgreement | None:
    """Return the agreement of two raters; None without a pair that both have judged.

    Args:
        names: the raters.
        one, other: the shares of their answers in each category, `(pairs, k)`; rows of zeros
            where there are none.
        rng: for the bootstrap.

    Example:
        >>> ada = choice_table(np.array([0.0, 1.0, 1.0, 0.0]))
        >>> ben = choice_table(np.array([0.0, 1.0, 0.0, 0.0]))
        >>> found = agreement(("ada", "ben"), ada, ben, np.random.default_rng(0))
        >>> found.share.value, found.kappa.value
        (0.75, 0.5)
    """
    tables = one[:, :, None] * other[:, None, :]
    tables = tables[tables.sum(axis=(1, 2)) > 0]
    if not len(tables):
        return None
    share = float(tables.trace(axis1=1, axis2=2).mean())
    return RaterAgreement(
        first=names[0],
        second=names[1],
        pairs=len(tables),
        share=wilson(share, len(tables)),
        kappa=_bootstrap(tables, cohen_kappa, rng),
    )


def group_agreement(ratings: Ratings, rng: np.random.Generator) -> GroupAgreement | None:
    """Return the agreement of all raters; None if no pair was judged by two."""
    raters = (ratings.shares.sum(axis=2) > 0).sum(axis=0)
    shared = raters >= 2
    if not shared.any():
        return None
    shares = ratings.shares[:, shared]
    total = shares.sum(axis=0)
    # The answers of every two raters; a rater is not compared with itself.
    own = np.einsum("rpi,rpj->pij", shares, shares)
    tables = (total[:, :, None] * total[:, None, :] - own) / (raters[shared] - 1.0)[:, None, None]
    return GroupAgreement(
        raters=ratings.names,
        pairs=int(shared.sum()),
        alpha=_bootstrap(tables, krippendorff_alpha, rng),
    )


def cohen_kappa(table: Floats) -> Floats:
    """Return Cohen's kappa of tables of two raters' answers `(..., k, k)`; NaN if undefined.

    Example:
        >>> float(cohen_kappa(np.array([[20.0, 5.0], [10.0, 15.0]])).round(3))
        0.4
    """
    total = table.sum(axis=(-2, -1))
    observed = table.trace(axis1=-2, axis2=-1) / total
    by_chance = (table.sum(axis=-1) * table.sum(axis=-2)).sum(axis=-1) / total**2
    room = 1.0 - by_chance
    return np.where(room > _LEAST, (observed - by_chance) / np.maximum(room, _LEAST), np.nan)


def krippendorff_alpha(table: Floats) -> Floats:
    """Return Krippendorff's nominal alpha of coincidence matrices `(..., k, k)`; NaN if undefined.

    Example:
        >>> float(krippendorff_alpha(np.array([[10.0, 4.0], [4.0, 2.0]])).round(3))
        0.095
    """
    total, values = table.sum(axis=(-2, -1)), table.sum(axis=-1)
    observed = total - table.trace(axis1=-2, axis2=-1)
    by_chance = (total**2 - np.square(values).sum(axis=-1)) / np.maximum(total - 1.0, _LEAST)
    ratio = observed / np.maximum(by_chance, _LEAST)
    return np.where(by_chance > _LEAST, 1.0 - ratio, np.nan)


def _bootstrap(tables: Floats, measure: Measure, rng: np.random.Generator) -> Interval | None:
    """Return a measure of the sum of tables, with its bootstrap interval over them.

    Args:
        tables: one a pair, `(pairs, k, k)`.
        measure: of such tables.
        rng: for the bootstrap.

    Returns:
        None if the measure is undefined.
    """
    value = float(measure(tables.sum(axis=0)))
    if np.isnan(value):
        return None
    # Equal tables are drawn together, so that the time does not grow with their number.
    kinds, counts = np.unique(tables.reshape(len(tables), -1), axis=0, return_counts=True)
    times = rng.multinomial(len(tables), counts / len(tables), size=RESAMPLES)
    again = measure((times @ kinds).reshape(-1, *tables.shape[1:]))
    low, high = np.nanquantile(again, [0.025, 0.975])
    return Interval(value=value, low=min(float(low), value), high=max(float(high), value))
