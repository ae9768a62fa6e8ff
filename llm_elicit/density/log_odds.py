"""Log-odds as measurements of the difference of utility of a pair.

With ℓ = log P(first shown) / P(second shown) and the pair (a, b) asked in both orders,

    ℓ_ab = m + g(a) − g(b) + e,      ℓ_ba = m − (g(a) − g(b)) + e',      e, e' ~ N(0, σ²),

half the difference measures g(a) − g(b) with variance σ²/2, and half the sum measures the pair's
position effect m. If only one order was asked, ℓ minus the mean position effect measures g(a) −
g(b) with variance σ² + Var m, which is σ²/2 plus the variance of the half sums of other pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LogOdds:
    """m measured log-odds, one row per question: log P(first shown) / P(second shown).

    Args:
        first, second: (m, d) points in natural units.
        value: (m,) nats.
        spread: (m,) standard deviation due to rounding, nats.
        censored: (m,) 1 if the log-odds are known only to be at least ``value``, −1 if at most,
            else 0.
        judge: (m,) numbers of the evidence's judges.
    """

    first: Array
    second: Array
    value: Array
    spread: Array
    censored: Index
    judge: Index

    def __len__(self) -> int:
        return len(self.value)

    @classmethod
    def of(cls, first: Array, second: Array, value: Array) -> LogOdds:
        """Return exact log-odds by one judge."""
        n = len(value)
        censored, judge = np.zeros((2, n), dtype=np.int64)
        return cls(first, second, value, np.zeros(n), censored, judge)

    @classmethod
    def bounded(cls, first: Array, second: Array, lower: Array, upper: Array) -> LogOdds:
        """Return log-odds of which bounds (m,) are known, equal where the value is.

        A finite interval counts as its middle, uniform within it.
        """
        above, below = np.isinf(upper), np.isinf(lower)
        inside = ~(above | below)
        value = np.where(above, lower, upper)
        value[inside] = 0.5 * (lower[inside] + upper[inside])
        spread = np.zeros(len(value))
        spread[inside] = (upper[inside] - lower[inside]) / np.sqrt(12.0)
        censored = above.astype(np.int64) - below
        return replace(cls.of(first, second, value), spread=spread, censored=censored)

    @classmethod
    def stated(cls, first: Array, second: Array, probability: Array, rounding: float) -> LogOdds:
        """Return the log-odds of stated probabilities (m,), known up to ``rounding``."""
        half = 0.5 * rounding
        inside = np.clip(probability, half, 1.0 - half)
        censored = (probability >= 1.0 - half).astype(np.int64) - (probability <= half)
        spread = rounding / np.sqrt(12.0) / (inside * (1.0 - inside))
        spread[censored != 0] = 0.0
        value = np.log(inside / (1.0 - inside))
        return replace(cls.of(first, second, value), spread=spread, censored=censored)

    @classmethod
    def none(cls, dimension: int) -> LogOdds:
        """Return log-odds without rows, of points with this many features."""
        points = np.empty((0, dimension))
        return cls.of(points, points, np.empty(0))


@dataclass(frozen=True)
class PairContrasts:
    """n measurements of g(a) − g(b), one for each pair and judge.

    Args:
        a, b: (n, d) points in natural units.
        value: (n,) nats. If only one order was asked, the judge's mean position effect is
            subtracted, if other pairs determine it.
        share, extra: (n,) the variance of the value is share · σ² + extra, with σ the judge's
            dispersion.
        censored: (n,) as in `LogOdds`.
        judge: (n,) numbers of the judges.
        position: (n,) half sums; NaN if only one order was asked, or one alone is known exactly.
        side: (n,) the coefficient of the position effect in the value: ±1 if only one order was
            asked, else 0.
    """

    a: Array
    b: Array
    value: Array
    share: Array
    extra: Array
    censored: Index
    judge: Index
    position: Array
    side: Array

    def __len__(self) -> int:
        return len(self.value)

    def position_effect(self, judge: int) -> tuple[float, float, int] | None:
        """Return mean, standard deviation and number of a judge's half sums; None without any."""
        sums = self.position[(self.judge == judge) & np.isfinite(self.position)]
        if not len(sums):
            return None
        return float(sums.mean()), float(sums.std(ddof=1)) if len(sums) > 1 else 0.0, len(sums)


def pair_contrasts(rows: LogOdds) -> PairContrasts:
    """Return the measurements of every pair; answers to the same question are averaged.

    A censored answer makes the value a bound, and leaves no half sum. If both orders are censored
    towards the same position, the pair has no information on the points, and its half sum alone is
    kept.
    """
    d = rows.first.shape[1]
    if not len(rows):
        empty, index = np.empty(0), np.empty(0, dtype=np.int64)
        return PairContrasts(
            rows.first, rows.second, empty, empty, empty, index, index, empty, empty
        )
    swap = _swapped(rows.first, rows.second)
    keys = np.concatenate([rows.judge[:, None], *in_order(rows.first, rows.second)], axis=1)
    unique, index = np.unique(keys, axis=0, return_inverse=True)
    pair = index.reshape(-1)
    ab, ba = (_averaged(rows, pair, len(unique), swap == later) for later in (False, True))
    balanced = (ab.rows > 0) & (ba.rows > 0)
    value = np.where(balanced, 0.5, 1.0) * (ab.mean - ba.mean)
    extra = np.where(balanced, 0.25, 1.0) * (ab.rounding + ba.rounding)
    # A bound on either order is a bound on the pair; two contradicting bounds give none.
    cut = np.sign(ab.censored - ba.censored)
    useless = balanced & (ab.censored != 0) & (ab.censored == ba.censored)
    judge = unique[:, 0].astype(np.int64)
    # A bound on one order, or bounds towards different positions, would pull the half sum to 0.
    summed = balanced & (ab.censored == ba.censored)
    position = np.where(summed, 0.5 * (ab.mean + ba.mean), np.nan)
    side = np.where(balanced, 0.0, np.where(ba.rows > 0, -1.0, 1.0))
    centre, variance = _position_effects(position, judge)
    identified = balanced | np.isfinite(variance)
    extra = extra + np.where(balanced | ~identified, 0.0, variance)
    return PairContrasts(
        unique[:, 1 : 1 + d],
        unique[:, 1 + d :],
        np.where(useless, 0.0, value - side * centre),
        np.where(identified, 0.5, 1.0),
        np.where(useless, np.inf, extra),
        np.where(useless, 0, cut).astype(np.int64),
        judge,
        position,
        side,
    )


class _Answers(NamedTuple):
    """Mean log-odds (n,), their variance by rounding, censoring and number of rows, by pair."""

    mean: Array
    rounding: Array
    censored: Array
    rows: Array


def _averaged(rows: LogOdds, pair: Index, count: int, chosen: npt.NDArray[np.bool_]) -> _Answers:
    """Return the answers of chosen rows by pair; all are 0 for a pair without any."""
    at = pair[chosen]
    n = np.bincount(at, minlength=count).astype(float)
    size = np.maximum(n, 1.0)
    mean = np.bincount(at, rows.value[chosen], count) / size
    rounding = np.bincount(at, rows.spread[chosen] ** 2, count) / size**2
    cut = np.sign(np.bincount(at, rows.censored[chosen], count))
    return _Answers(mean, rounding, cut, n)


def _position_effects(position: Array, judge: Index) -> tuple[Array, Array]:
    """Return mean and variance (n,) of the half sums of each row's judge; 0 and NaN without any."""
    centre, variance = np.zeros(len(judge)), np.full(len(judge), np.nan)
    for j in np.unique(judge):
        rows = judge == j
        effects = position[rows & np.isfinite(position)]
        if len(effects) > 1:
            centre[rows], variance[rows] = effects.mean(), effects.var(ddof=1)
    return centre, variance


def in_order(first: Array, second: Array) -> tuple[Array, Array]:
    """Return the lexically lesser and greater of both points (n, d) of each pair."""
    swap = _swapped(first, second)[:, None]
    return np.where(swap, second, first), np.where(swap, first, second)


def _swapped(first: Array, second: Array) -> npt.NDArray[np.bool_]:
    """Return whether the first point comes after the second in lexical order (n,)."""
    unequal = (first != second).argmax(1)[:, None]
    a, b = (np.take_along_axis(x, unequal, 1)[:, 0] for x in (first, second))
    return np.asarray(a > b)
