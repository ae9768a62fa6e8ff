"""Judgments as the core uses them: checked, merged, and grouped by pair.

*Log-odds* are measurements of the difference of utility of a pair. With ℓ = log P(first shown) /
P(second shown) and the pair (a, b) asked in both orders,

    ℓ_ab = m + g(a) − g(b) + e,      ℓ_ba = m − (g(a) − g(b)) + e',      e, e' ~ N(0, σ²),

half the difference measures g(a) − g(b) with variance σ²/2, and half the sum measures the pair's
position effect m. If only one order was asked, ℓ minus the mean position effect measures g(a) −
g(b) with variance σ² + Var m, which is σ²/2 plus the variance of the half sums of other pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from llm_elicit.density.errors import Array, DensityError, Flags, Index, check_table
from llm_elicit.density.evidence import UNKNOWN, Evidence, LogOdds, is_swapped, order_points
from llm_elicit.density.sampling import SamplingDensity, check_inside
from llm_elicit.density.unbounded import GaussianMixture

_MIN_WEIGHT, _MAX_WEIGHT = 1e-9, 1e12
"""Weights outside this range exceed the precision of floats beside the prior."""


class _LabelledRows:
    """Rows with their judge and presentation; the rows of one combination are a *cell*."""

    judge: Index
    presentation: Index

    @cached_property
    def cells(self) -> Index:
        """Judge and presentation (C, 2) of each cell that has rows, in lexical order."""
        return np.unique(np.stack([self.judge, self.presentation], 1), axis=0)

    @cached_property
    def cell(self) -> Index:
        """Number (n,) of each row's cell."""
        rows = np.stack([self.judge, self.presentation], 1)
        number = np.unique(rows, axis=0, return_inverse=True)[1]
        return np.asarray(number.reshape(-1), dtype=np.int64)


@dataclass(frozen=True)
class Context(_LabelledRows):
    """The judges, presentations, positions and ties of n comparisons.

    Attributes:
        judges: names of the judges.
        judge: (n,) numbers of ``judges``.
        presentations: names of the presentations; one empty name if there is one.
        presentation: (n,) numbers of ``presentations``; −1 for none.
        position_terms: (judge, points shown, position, presentation) of each of B position effects.
        position_columns: (n, B) how often each effect counts for the winner, less how often for
            the loser.
        tie, pick: (n,) as in `Evidence`.
        group: (n,) numbers; rows of one group stay together in cross-validation.
    """

    judges: tuple[str, ...]
    judge: Index
    presentations: tuple[str, ...]
    presentation: Index
    position_terms: tuple[tuple[str, int, int, int], ...]
    position_columns: Array
    tie: Flags
    pick: Index
    group: Index

    @property
    def is_needed(self) -> bool:
        """Whether the comparisons are more than plain ones by one judge."""
        special = self.tie.any() or (self.pick != UNKNOWN).any()
        has_several = len(self.judges) > 1 or len(self.presentations) > 1
        return bool(has_several or self.position_terms or special)


@dataclass(frozen=True)
class PairContrasts(_LabelledRows):
    """n measurements of g(a) − g(b), one for each pair, judge and presentation.

    Attributes:
        a, b: (n, d) points in natural units.
        value: (n,) nats. If only one order was asked, the mean position effect of the judge in
            this presentation is subtracted, if other pairs determine it.
        dispersion_share, extra_variance: (n,) the variance of the value is ``dispersion_share`` σ²
            + ``extra_variance``, with σ the judge's dispersion.
        censored: (n,) as in `LogOdds`.
        judge: (n,) numbers of the judges.
        presentation: (n,) numbers of the presentations.
        half_sum: (n,) half sums; NaN unless both orders were asked and are equally censored.
        position_coefficient: (n,) of the position effect in the value: ±1 if only one order was
            asked, else 0.
    """

    a: Array
    b: Array
    value: Array
    dispersion_share: Array
    extra_variance: Array
    censored: Index
    judge: Index
    presentation: Index
    half_sum: Array
    position_coefficient: Array

    def __len__(self) -> int:
        return len(self.value)

    def position_effect(self, rows: Flags) -> tuple[float, float, int] | None:
        """Return mean, standard deviation and number of these rows' half sums; None without."""
        sums = self.half_sum[rows & np.isfinite(self.half_sum)]
        if not len(sums):
            return None
        return float(sums.mean()), float(sums.std(ddof=1)) if len(sums) > 1 else 0.0, len(sums)


def pair_contrasts(rows: LogOdds) -> PairContrasts:
    """Return the measurements of every pair; answers to the same question are averaged.

    A censored answer makes the value a bound, and leaves no half sum. If both orders are censored
    towards the same position, the pair says nothing about the points; only its half sum is used.
    """
    d = rows.first.shape[1]
    is_swapped_order = is_swapped(rows.first, rows.second)
    cell_columns = np.stack([rows.judge, rows.presentation], axis=1)
    keys = np.concatenate([cell_columns, *order_points(rows.first, rows.second)], axis=1)
    unique, index = np.unique(keys, axis=0, return_inverse=True)
    pair = index.reshape(-1)

    def sum_by_pair(values: Array | Index | None = None) -> Array:
        """Return the sum over the answers of each order, and of each pair (2, n)."""
        sums = np.bincount(pair + len(unique) * is_swapped_order, values, 2 * len(unique))
        return sums.astype(np.float64).reshape(2, -1)

    # Mean log-odds, their variance by rounding and the direction of a bound; 0 without answers.
    count = sum_by_pair()
    answer_count = np.maximum(count, 1.0)
    ab, ba = sum_by_pair(rows.value) / answer_count
    rounding = (sum_by_pair(rows.rounding_sd**2) / answer_count**2).sum(0)
    ab_censored, ba_censored = np.sign(sum_by_pair(rows.censored))
    both_orders = (count > 0).all(0)
    value = np.where(both_orders, 0.5, 1.0) * (ab - ba)
    extra_variance = np.where(both_orders, 0.25, 1.0) * rounding
    # A bound on either order is a bound on the pair; two contradicting bounds give none.
    censored = np.sign(ab_censored - ba_censored)
    uninformative = both_orders & (ab_censored != 0) & (ab_censored == ba_censored)
    judge, presentation = unique[:, :2].T.astype(np.int64)
    # A bound on one order, or bounds towards different positions, would pull the half sum to 0.
    has_half_sum = both_orders & (ab_censored == ba_censored)
    half_sum = np.where(has_half_sum, 0.5 * (ab + ba), np.nan)
    position_coefficient = np.where(both_orders, 0.0, np.where(count[1] > 0, -1.0, 1.0))
    # Mean and variance of the half sums of each judge and presentation; unknown for less than two.
    mean_effect, effect_variance = np.zeros(len(judge)), np.full(len(judge), np.nan)
    for cell in np.unique(unique[:, :2], axis=0):
        in_cell = (unique[:, :2] == cell).all(1)
        effects = half_sum[in_cell & np.isfinite(half_sum)]
        if len(effects) > 1:
            mean_effect[in_cell], effect_variance[in_cell] = effects.mean(), effects.var(ddof=1)
    identified = both_orders | np.isfinite(effect_variance)
    extra_variance = extra_variance + np.where(both_orders | ~identified, 0.0, effect_variance)
    return PairContrasts(
        unique[:, 2 : 2 + d],
        unique[:, 2 + d :],
        np.where(uninformative, 0.0, value - position_coefficient * mean_effect),
        np.where(identified, 0.5, 1.0),
        np.where(uninformative, np.inf, extra_variance),
        np.where(uninformative, 0, censored).astype(np.int64),
        judge,
        presentation,
        half_sum,
        position_coefficient,
    )


@dataclass(frozen=True)
class Judgments:
    """Checked comparisons, and log-odds by pair.

    Equal rows are merged (their weights added) and rows of weight zero dropped. So a row given
    twice equals a row of weight two, and a soft judgment of probability one equals a hard one,
    exactly.

    Attributes:
        winners, losers: (n, d) points in natural units.
        weights: (n,) > 0.
        pairs: (n,) numbers of the pairs, the same in either order.
        context: the circumstances; None if all are plain comparisons by one judge.
        contrasts: the log-odds by pair.
        judges: names of the judges' numbers.
        presentations: names of the presentations' numbers.
    """

    winners: Array
    losers: Array
    weights: Array
    pairs: Index
    context: Context | None
    contrasts: PairContrasts
    judges: tuple[str, ...]
    presentations: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of distinct rows of comparisons."""
        return int(self.winners.shape[0])

    @property
    def points(self) -> Array:
        """All judged points (m, d), natural units."""
        return np.concatenate([self.winners, self.losers, self.contrasts.a, self.contrasts.b])


def canonical_order(evidence: Evidence, sampling: SamplingDensity) -> list[int]:
    """Return the features' numbers in an order that does not depend on that of the columns.

    A fit is made in this order, because its random numbers belong to columns: by how far winners
    lie above losers, in units of their differences. A correlated `GaussianMixture` keeps the order
    of the columns, since its Cholesky factor depends on it.
    """
    if isinstance(sampling, GaussianMixture):
        covariance = sampling.covariance
        if (covariance != np.diag(np.diagonal(covariance))).any():
            return list(range(evidence.dimension))
    measurements = evidence.measurements
    kinds = [
        (evidence.winners, evidence.losers, evidence.weights),
        (measurements.first, measurements.second, measurements.value),
    ]
    differences = np.concatenate([a - b for a, b, _ in kinds])
    weights = np.concatenate([weights for *_, weights in kinds])
    norm = np.sqrt(np.square(differences).sum(0))
    direction = (weights[:, None] * differences).sum(0) / np.where(norm > 0.0, norm, 1.0)
    points = np.concatenate([a for a, *_ in kinds])
    return sorted(
        range(len(direction)), key=lambda j: (round(float(direction[j]), 9), points[:, j].tobytes())
    )


def check_rows(evidence: Evidence, sampling: SamplingDensity) -> None:
    """Raise unless points lie in the support of λ and weights can be used."""
    d = evidence.dimension
    if d != sampling.dimension:
        raise DensityError(
            f"the points have {d} features and the sampling density {sampling.dimension}; they "
            "must agree; pass the λ that the pairs were drawn from."
        )
    measured = evidence.measurements
    points_by_name = {"winners": evidence.winners, "losers": evidence.losers}
    if len(measured):
        points_by_name |= {"first": measured.first, "second": measured.second}
    for name, points in points_by_name.items():
        if len(points) or not len(measured):
            check_inside(name, check_table(name, points), sampling)
    weights = evidence.weights
    usable = (weights == 0) | ((weights >= _MIN_WEIGHT) & (weights <= _MAX_WEIGHT))
    for i in np.flatnonzero(~usable):
        raise DensityError(
            f"weights[{i}] is {weights[i]}; a weight is how many judgments a row stands for, 0 or "
            f"from {_MIN_WEIGHT:g} to {_MAX_WEIGHT:g}; give an unwanted comparison weight 0."
        )
    if not weights.any() and not len(measured):
        raise DensityError(
            "weights are all 0; at least one comparison must count; leave weights out to count "
            "every comparison once."
        )


def merge(evidence: Evidence) -> Judgments:
    """Return evidence as `Judgments`.

    Raises:
        DensityError: there are fewer distinct judgments than features.
    """
    has_weight, d = evidence.weights > 0, evidence.dimension
    measured = pair_contrasts(evidence.measurements)
    labels = (
        evidence.judge,
        *evidence.positions.T,
        evidence.shown_count,
        evidence.tie,
        evidence.pick,
        evidence.question,
        evidence.presentation,
    )
    circumstances = np.stack(labels, axis=1).astype(np.float64)
    points = np.concatenate([evidence.winners, evidence.losers], axis=1)
    rows = np.concatenate([points, circumstances], axis=1)[has_weight]
    unique, index = np.unique(rows, axis=0, return_inverse=True)
    weights = np.bincount(index.reshape(-1), evidence.weights[has_weight], len(unique))
    a, b = unique[:, :d], unique[:, d : 2 * d]
    # The same pair in either order gets one number, so that its rows are in one fold.
    pairs = np.unique(np.concatenate(order_points(a, b), axis=1), axis=0, return_inverse=True)[1]
    pairs = pairs.reshape(-1).astype(np.int64)
    if len(unique) + len(measured) < d:
        raise DensityError(
            f"winners holds {len(unique)} distinct comparisons of positive weight and "
            f"{len(measured)} pairs with log-odds for {d} features; at least as many as "
            "features are needed; ask more questions."
        )
    judges = evidence.judges
    columns = unique[:, 2 * d :].astype(np.int64).T
    judge, winner, loser, size, tie, pick, questions, presentation = columns
    kinds = np.unique(np.stack([judge, size, presentation], 1)[winner != UNKNOWN], axis=0)
    # The last position is the reference of the others.
    position_terms = [(j, k, place, p) for j, k, p in kinds.tolist() for place in range(k - 1)]
    position_columns = np.zeros((len(judge), len(position_terms)))
    for term, (j, k, position, p) in enumerate(position_terms):
        rows = (judge == j) & (size == k) & (presentation == p)
        position_columns[:, term] = rows * ((winner == position) * 1.0 - (loser == position) * 1.0)
    named_terms = tuple((judges[j], k, place, p) for j, k, place, p in position_terms)
    # Judgments of one pair or of one set of alternatives are one group.
    groups, group_of_pairs = pairs.copy(), dict[bytes, int]()
    for question in np.unique(questions[questions != UNKNOWN]):
        rows = questions == question
        pairs_of_question = np.unique(pairs[rows]).tobytes()
        groups[rows] = group_of_pairs.setdefault(
            pairs_of_question, int(pairs.max()) + 1 + len(group_of_pairs)
        )
    group = np.unique(groups, return_inverse=True)[1].reshape(-1).astype(np.int64)
    names = evidence.presentations
    context = Context(
        judges, judge, names, presentation, named_terms, position_columns, tie > 0, pick, group
    )
    return Judgments(
        a,
        b,
        weights.astype(np.float64),
        pairs,
        context if len(unique) and context.is_needed else None,
        measured,
        judges,
        evidence.presentations,
    )


def assign_folds(pairs: Index, folds: int, rng: np.random.Generator) -> Index:
    """Return fold numbers (n,), 0 to ``folds`` − 1: of equal size, and equal for rows of a pair."""
    groups = int(pairs.max()) + 1
    fold_of_group = rng.permutation(np.arange(groups) % folds)
    return np.asarray(fold_of_group[pairs], dtype=np.int64)
