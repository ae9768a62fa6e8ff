"""How many replicates of a pair a judge is asked: `design.replicates: auto`.

A choice about a pair is Bernoulli with a probability that varies between pairs: with the utility,
and with what the utility does not explain. Let ρ be the correlation of two choices about one pair
(the intraclass correlation of the beta-binomial distribution; each order has a mean of its own, so
that a position effect is no part of it), and u the share of ρ that the utility does not explain. In
units of the variance of a choice, the mean of k choices about a pair varies around its expectation
by u ρ + (1 − ρ) / k, so m pairs with k choices each carry the information

    m / (u ρ + (1 − ρ) / k) = n / (u ρ k + 1 − ρ)

about the utility, with n = m k choices to pay for. It falls with k, and stays the same if u = 0:
**a choice about another pair costs the same and tells at least as much.** So the number is 1, and
no rule that gives some pairs more replicates than others does better; rounds (`design.rounds`)
choose pairs that tell more. A log-odds needs no replicate, since it repeats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 10
"""The least number of pairs from which a correlation is reported."""

_TIMES = 8


@dataclass(frozen=True)
class PairCorrelation:
    """The correlation of two choices about one pair.

    Attributes:
        value: ρ, at least 0.
        pairs: the number of pairs with a choice in both orders.
    """

    value: float
    pairs: int

    @classmethod
    def of(cls, rows: pd.DataFrame) -> PairCorrelation | None:
        """Return that of a judge's answers; None if they do not tell.

        Args:
            rows: rows of the table of comparisons.

        Examples:
            >>> import pandas as pd
            >>> rows = pd.DataFrame({
            ...     "pair": np.repeat(np.arange(12), 2), "order": ["ab", "ba"] * 12,
            ...     "probability": [1, 1, 0, 0] * 6})
            >>> round(PairCorrelation.of(rows).value, 2)
            1.0
        """
        means = rows.groupby(["pair", "order"])["probability"].mean().unstack()
        both = means.dropna() if {"ab", "ba"} <= set(means.columns) else means.iloc[:0]
        if len(both) < FEWEST or min(both.std()) == 0.0:
            return None
        value = float(np.corrcoef(both["ab"], both["ba"])[0, 1])
        return cls(max(value, 0.0), len(both))

    def relative_information(self, replicates: int, orders: int = 2) -> float:
        """Return the least information that replicates give, relative to as many choices of 1.

        It is the least because the utility may explain nothing of what differs between pairs.

        Examples:
            >>> PairCorrelation(0.5, 20).relative_information(1)
            1.0
            >>> round(PairCorrelation(0.5, 20).relative_information(8), 2)
            0.18
        """
        noise = 1.0 - self.value
        return (self.value * orders + noise) / (self.value * orders * replicates + noise)


def reason(*, log_odds: bool, correlation: PairCorrelation | None) -> str:
    """Return why a judge is asked one replicate.

    Args:
        log_odds: whether its answers are log-odds.
        correlation: of its choices in a pilot; None if unknown.
    """
    if log_odds:
        return "replicates: 1, because asking again gives the same log-odds"
    tells = "replicates: 1, because a new pair costs the same and is at least as informative"
    if correlation is None:
        return tells
    share = correlation.relative_information(_TIMES)
    return (
        f"{tells}: judging by {correlation.pairs} pairs, {_TIMES} replicates give {share:.0%} to "
        "100% of the information for the same cost"
    )
