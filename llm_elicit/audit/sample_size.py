"""What would more pairs buy: narrower bands, or a preference where none was found?

*Bands* narrow with 1/√n, n the number of pairs, once the answers outweigh the fit's prior (the
Bernstein–von Mises theorem: van der Vaart 1998, "Asymptotic Statistics", chapter 10). Nothing
nearer is foretold because nothing cheap does better: a refit to half of the pairs takes longer
than the rest of an audit and says one noisy ratio, and what the posterior's draws say that new
answers would tell (as `llm_elicit.density.design` reckons it) erred as much over thirty
simulated judges asked four times the pairs, a factor of 1.6 (root mean square). Over eight
targets (docs/benchmarks.md, "Coverage of credible bands") ten times the pairs made bands 2.0 times
as narrow in the geometric mean, 0.6 to 3.3, where the root says 3.2.

*A preference* that was not found is sought by `llm_elicit.audit.randomization`, whose statistic is
a mean over pairs: what is of the judge in it stays as pairs are added, what is of chance shrinks
with 1/n, and how it scatters with 1/√n. That is so of pairs drawn alike. The test of pairs chosen
in rounds adds up rounds of different pairs, and no number is said of it.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from llm_elicit.audit.summaries import BeliefBands, CategoryBands
from llm_elicit.config.base_model import StrictModel
from llm_elicit.spaces.features import FeatureSpace, Floats

LEAN = 100
"""Pairs a feature below which the prior still decides how wide bands are.

With 15 to 50 a feature, four times as many left bands 0.3 to 1.7 times as wide as before (18
simulated judges, geometric mean 0.7), with 100 a feature 0.2 to 0.65 times (12, mean 0.45).
"""
_TIMES = 4
_POWER = 0.8
_ROUNDING = 1e-9


class Width(StrictModel):
    """How wide one feature's bands are, in standard deviations of the belief on its scale."""

    name: str
    mean: float
    median: float


class ShareWidth(StrictModel):
    """How wide the widest band of a share is, of a categorical feature's."""

    name: str
    share: float


class BandPower(StrictModel):
    """What more pairs would make of a belief's bands.

    Attributes:
        pairs: how many were answered.
        more: how many more, drawn as these were and answered as these were, would halve every
            band's width.
        lean: whether the answers are so few that the prior still decides, and `more` is too few.
        widths: of the bands of mean and median, in the order of the space; of numbers.
        shares: of the bands of shares, in the order of the space; of categorical features.
    """

    pairs: int
    more: int
    lean: bool
    widths: list[Width]
    shares: tuple[ShareWidth, ...] = ()


class SearchPower(StrictModel):
    """What it would take to find a preference that was not found.

    Attributes:
        excess: the leave-one-out gain less what chance makes of it.
        se: how chance scatters it.
        pairs: how many would find a dependence of this size in four of five studies; None where
            the excess is within its standard error, so that no number can be said.
    """

    excess: float
    se: float
    pairs: int | None


def measure_band_power(
    bands: BeliefBands, belief: Floats, space: FeatureSpace, pairs: int
) -> BandPower:
    """From a belief's bands and its samples `(m, d)`, natural units.

    Example:
        >>> from llm_elicit.audit.summaries import FeatureBands
        >>> x = {"name": "x", "label": "x", "low": -5, "high": 5}
        >>> space = FeatureSpace(name="x", title="x", subject="x", features=[x])
        >>> ends = dict.fromkeys(("mean", "q05", "q25", "q50", "q75", "q95"), (-0.1, 0.1))
        >>> features = [FeatureBands(name="x", **ends)]
        >>> bands = BeliefBands(level=0.9, draws=64, features=features, marginals=[])
        >>> found = measure_band_power(bands, np.array([[-2.0], [2.0]]), space, pairs=120)
        >>> found.widths[0].mean, found.more
        (0.1, 360)
    """
    sd, widths, shares = space.to_scale(belief).std(axis=0), [], []
    for column, each in enumerate(bands.features):
        if isinstance(each, CategoryBands):
            widest = max(high - low for low, high in each.shares.values())
            shares.append(ShareWidth(name=each.name, share=widest))
            continue

        ends = np.log([each.mean, each.q50]) if space.log[column] else [each.mean, each.q50]
        mean, median = np.diff(ends)[:, 0] / (sd[column] if sd[column] > 0 else 1.0)
        widths.append(Width(name=each.name, mean=float(mean), median=float(median)))
    return BandPower(
        pairs=pairs,
        more=(_TIMES - 1) * pairs,
        lean=pairs < LEAN * space.dimension,
        widths=widths,
        shares=tuple(shares),
    )


def measure_search_power(
    gain: float, by_chance: Floats, pairs: int, level: float = 0.05
) -> SearchPower:
    """How many pairs would find what was measured.

    With N pairs the gain is about normal around excess + μ n/N with variance
    σ² (n/N)² + 4 excess/N, and what the test asks for is q n/N: μ, σ and q are mean, standard
    deviation and 1 - `level` quantile of what chance makes of n pairs, 4 excess/N is the variance
    of a squared correlation. It is taken that the rule that predicts keeps its columns.

    Args:
        gain: leave-one-out gain of n answered pairs.
        by_chance: the same after random exchanges of winners and losers, `(flips,)`.
        pairs: n.
        level: size of the test.

    Example:
        >>> by_chance = (np.random.default_rng(0).chisquare(1, 2000) - 1) / 100
        >>> measure_search_power(0.03, by_chance, 100).pairs
        241
        >>> measure_search_power(0.005, by_chance, 100).pairs is None
        True
    """
    mean, se = float(by_chance.mean()), float(by_chance.std())
    excess, critical = gain - mean, float(np.quantile(by_chance, 1.0 - level)) - mean
    if excess <= max(se, _ROUNDING):
        return SearchPower(excess=excess, se=se, pairs=None)
    quantile = float(norm.ppf(_POWER))

    def margin(share: float) -> float:
        """What is left at n/N = share after what the test asks for and 80 % of the scatter."""
        scatter = math.sqrt((se * share) ** 2 + 4.0 * excess * share / pairs)
        return excess - critical * share - quantile * scatter

    share = 1.0 if margin(1.0) >= 0 else float(brentq(margin, 0.0, 1.0))
    return SearchPower(excess=excess, se=se, pairs=math.ceil(pairs / share))
