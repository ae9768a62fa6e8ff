"""How far a preference depends on the presentation: the variance component.

The share ρ²/(1 + ρ²) is uniform a priori; its likelihood is the largest over gains and dispersions,
with the variances of the common part as estimated. So it is the share of this content's variance,
not of that of all contents with the same prior, of which one utility says little. The likelihood is
raised to the power of one half, since all these are taken for known. The power was chosen by
simulated campaigns; docs/benchmarks.md has the coverage in others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import PchipInterpolator

from llm_elicit.density.errors import Array

SHARES = np.array([0.0005, 0.02, 0.05, 0.1, 0.17, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85])
"""Those at which the likelihood is computed, and between which it is smooth."""

TARGET_GENERALIZABILITY = 0.8
"""The generalizability that is aimed at."""

_QUANTILES = 16
_TEMPER = 0.5


@dataclass(frozen=True)
class Interaction:
    """How far a preference depends on the presentation, from log-odds.

    Attributes:
        share: of the variance of the content, what is particular to one presentation: posterior
            mean.
        share_interval: 90 %, the shortest by the posterior.
        presentations: their number W.
        generalizability: the share of the variance of the content, averaged over W presentations,
            that is common to presentations like these: 1 / (1 + ρ²/W).
        generalizability_interval: 90 %.
        needed: presentations of which the average would have a generalizability of .8.
        quantiles: of the share, at 16 equal steps of probability.
    """

    share: float
    share_interval: tuple[float, float]
    presentations: int
    generalizability: float
    generalizability_interval: tuple[float, float]
    needed: int
    quantiles: tuple[float, ...]

    @classmethod
    def from_profile(cls, log_likelihood: Array, presentations: int) -> Interaction:
        """Return the estimates from log-likelihoods at `SHARES`."""
        grid = np.linspace(SHARES[0], SHARES[-1], 800)
        values = PchipInterpolator(SHARES, log_likelihood)(grid)
        weight = np.exp(_TEMPER * (values - values.max()))
        weight /= weight.sum()
        order = np.argsort(-weight)
        shortest = grid[order[: np.searchsorted(np.cumsum(weight[order]), 0.9) + 1]]
        low, high, share = float(shortest.min()), float(shortest.max()), float(grid @ weight)
        odds = TARGET_GENERALIZABILITY / (1.0 - TARGET_GENERALIZABILITY)
        levels = (np.arange(_QUANTILES) + 0.5) / _QUANTILES

        def generalizability_at(share: float) -> float:
            return 1.0 / (1.0 + share / (1.0 - share) / presentations)

        return cls(
            share,
            (low, high),
            presentations,
            generalizability_at(share),
            (generalizability_at(high), generalizability_at(low)),
            max(math.ceil(odds * share / (1.0 - share)), 1),
            tuple(grid[np.searchsorted(np.cumsum(weight), levels)].tolist()),
        )
