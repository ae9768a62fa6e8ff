"""The effect of more pairs: narrower bands, and the power to find a preference.

*Bands* narrow with 1/√n, n the number of pairs, once the answers outweigh the prior of the fit (the
Bernstein–von Mises theorem: van der Vaart 1998, "Asymptotic Statistics", chapter 10). No sharper
prediction is made because cheap alternatives are no better: a refit to half of the pairs takes
longer than the rest of an audit and gives one noisy ratio, and the information that new answers
would add according to the posterior (as in `llm_elicit.density.design`) was off by a factor of 1.6
(root mean square) over thirty simulated judges asked four times the pairs. Over eight targets
(docs/benchmarks.md) ten times the pairs made bands 2.0 times as narrow in the geometric mean, range
0.6 to 3.3, where the root predicts 3.2.

*A preference* is tested by `llm_elicit.audit.randomization`, whose statistic is a mean over pairs:
as pairs are added the judge's part of it stays, its expectation under chance shrinks with 1/n and
its standard deviation with 1/√n. This holds for pairs drawn independently. With pairs chosen in
rounds no number is given.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from llm_elicit._util.settings import StrictModel
from llm_elicit.audit.summaries import BeliefBands, CategoryBands, CircularBands
from llm_elicit.spaces.features import FeatureSpace, Floats

FEW_PAIRS = 100
"""Pairs per feature below which the prior still dominates the width of bands.

With 15 to 50 per feature, four times as many left bands 0.3 to 1.7 times as wide as before (18
simulated judges, geometric mean 0.7), with 100 per feature 0.2 to 0.65 times (12, mean 0.45).
"""
_TIMES = 4
_POWER = 0.8
_ROUNDING = 1e-9


class BandWidth(StrictModel):
    """Widths of one feature's bands, in standard deviations of the belief on its scale."""

    name: str
    mean: float
    median: float


class ShareBandWidth(StrictModel):
    """Width of the widest band of a categorical feature's shares."""

    name: str
    share: float


class BandPrecision(StrictModel):
    """The widths of a belief's bands, and how many more pairs would halve them.

    Attributes:
        pairs: how many were answered.
        more_pairs: how many more, drawn and answered in the same way, would halve every width.
        prior_dominated: whether there are so few pairs that the prior still dominates, and
            `more_pairs` is too low.
        widths: of the bands of mean and median, in the order of the space; for numbers that are
            not periodic.
        shares: of the bands of shares, in the order of the space; for categorical features.
    """

    pairs: int
    more_pairs: int
    prior_dominated: bool
    widths: list[BandWidth]
    shares: tuple[ShareBandWidth, ...] = ()


class SampleSize(StrictModel):
    """The number of pairs that would find a preference that was not found.

    Attributes:
        excess: the leave-one-out gain minus its expectation under the null hypothesis.
        se: standard deviation of the gain under the null hypothesis.
        pairs: how many would find a dependence of this size with a power of 80 %; None if the
            excess is within its standard error, so that no number can be given.
    """

    excess: float
    se: float
    pairs: int | None


def measure_band_precision(
    bands: BeliefBands, belief: Floats, space: FeatureSpace, pairs: int
) -> BandPrecision:
    """Measure from a belief's bands and its samples `(m, d)`, natural units.

    Examples:
        >>> from llm_elicit.audit.summaries import FeatureBands
        >>> x = {"name": "x", "label": "x", "low": -5, "high": 5}
        >>> space = FeatureSpace(name="x", title="x", subject="x", features=[x])
        >>> ends = dict.fromkeys(("mean", "q05", "q25", "q50", "q75", "q95"), (-0.1, 0.1))
        >>> features = [FeatureBands(name="x", **ends)]
        >>> bands = BeliefBands(level=0.9, draws=64, features=features, marginals=[])
        >>> found = measure_band_precision(bands, np.array([[-2.0], [2.0]]), space, pairs=120)
        >>> found.widths[0].mean, found.more_pairs
        (0.1, 360)
    """
    sd, widths, shares = space.to_scale(belief).std(axis=0), [], []
    for column, feature in enumerate(bands.features):
        if isinstance(feature, CategoryBands):
            widest = max(high - low for low, high in feature.shares.values())
            shares.append(ShareBandWidth(name=feature.name, share=widest))
            continue
        if isinstance(feature, CircularBands):
            continue
        bands_of = np.array([feature.mean, feature.q50])
        ends = np.log(bands_of) if space.log[column] else bands_of
        mean, median = np.diff(ends)[:, 0] / (sd[column] if sd[column] > 0 else 1.0)
        widths.append(BandWidth(name=feature.name, mean=float(mean), median=float(median)))
    return BandPrecision(
        pairs=pairs,
        more_pairs=(_TIMES - 1) * pairs,
        prior_dominated=pairs < FEW_PAIRS * space.dimension,
        widths=widths,
        shares=tuple(shares),
    )


def required_pairs(gain: float, null: Floats, pairs: int, level: float = 0.05) -> SampleSize:
    """Return how many pairs would find a dependence as strong as the one measured.

    With N pairs the gain is about normal around excess + μ n/N with variance
    σ² (n/N)² + 4 excess/N, and the test's critical value is q n/N: μ, σ and q are mean, standard
    deviation and 1 − `level` quantile of the gain under the null hypothesis with n pairs, and
    4 excess/N is the variance of a squared correlation. The prediction is assumed to keep its
    columns.

    Args:
        gain: leave-one-out gain of n answered pairs.
        null: the same after random exchanges of winners and losers, `(flips,)`.
        pairs: n.
        level: size of the test.

    Examples:
        >>> null = (np.random.default_rng(0).chisquare(1, 2000) - 1) / 100
        >>> required_pairs(0.03, null, 100).pairs
        241
        >>> required_pairs(0.005, null, 100).pairs is None
        True
    """
    mean, se = float(null.mean()), float(null.std())
    excess, critical = gain - mean, float(np.quantile(null, 1.0 - level)) - mean
    if excess <= max(se, _ROUNDING):
        return SampleSize(excess=excess, se=se, pairs=None)
    quantile = float(norm.ppf(_POWER))

    def margin(share: float) -> float:
        """Return the distance from the critical value at n/N = share, with a power of 80 %."""
        scatter = math.sqrt((se * share) ** 2 + 4.0 * excess * share / pairs)
        return excess - critical * share - quantile * scatter

    share = 1.0 if margin(1.0) >= 0 else float(brentq(margin, 0.0, 1.0))
    return SampleSize(excess=excess, se=se, pairs=math.ceil(pairs / share))
