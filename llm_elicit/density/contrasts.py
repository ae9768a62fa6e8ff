"""Log-odds by pair: the answers in both orders as one measurement of a difference of utility.

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

from llm_elicit.density.errors import Array, Flags, Index
from llm_elicit.density.evidence import LogOdds, is_swapped, order_points


class LabelledRows:
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
class PairContrasts(LabelledRows):
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
