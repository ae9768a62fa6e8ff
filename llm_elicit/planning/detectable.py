"""What a number of pairs can detect, before they are asked, and how often a pair is asked.

The points of every pair may be exchanged, in 2ⁿ ways for n pairs, and exchanging all of them
changes no statistic, so no p-value is below 2/2ⁿ (`llm_elicit.audit.randomization`).

*Replicates* (`design.replicates: auto`). A choice about a pair is Bernoulli with a probability that
varies between pairs: with the utility, and with what the utility does not explain. Let ρ be the
correlation of two choices about one pair (the intraclass correlation of the beta-binomial
distribution; each order has a mean of its own, so that a position effect is no part of it), and u
the share of ρ that the utility does not explain. In units of the variance of a choice, the mean of
k choices about a pair varies around its expectation by u ρ + (1 − ρ) / k, so m pairs with k choices
each carry the information

    m / (u ρ + (1 − ρ) / k) = n / (u ρ k + 1 − ρ)

about the utility, with n = m k choices to pay for. It falls with k, and stays the same if u = 0:
**a choice about another pair costs the same and tells at least as much.** So the number is 1, and
no rule that gives some pairs more replicates than others does better; rounds (`design.rounds`)
choose pairs that tell more. A log-odds needs no replicate, since it repeats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from llm_elicit.config.campaign import Campaign
from llm_elicit.spaces.features import FeatureSpace

if TYPE_CHECKING:
    import pandas as pd

_LEVEL, _FLIPS = 0.05, 1999
_ROUNDED = 0.005  # the least share that is not rounded to none
_CRITICAL, _POWER = 1.645, 0.842  # normal quantiles of 95 % and 80 %


def smallest_p(pairs: int, flips: int = _FLIPS) -> float:
    """Return the smallest p-value possible with these numbers of pairs of one round and of flips.

    Examples:
        >>> smallest_p(5), smallest_p(6), smallest_p(100)
        (0.0625, 0.03125, 0.0005)
    """
    return max(2.0 ** (1 - pairs), 1.0 / (1 + flips)) if pairs else 1.0


def fewest_pairs(judges: int, level: float = _LEVEL) -> int:
    """Return the smallest number of pairs that can show a preference, Holm-adjusted for `judges`.

    Examples:
        >>> fewest_pairs(1), fewest_pairs(2)
        (6, 7)
    """
    return math.floor(2.0 - math.log2(level / max(judges, 1)))


def detectable_share(pairs: int, space: FeatureSpace) -> float:
    """Return the share of the variation of answers that a preference must explain to be detected.

    A share of this size is found in about four of five runs; at most 1. It is the R² of
    `audit.preference.estimate_sample_size` for the columns of the randomization test, with χ² as
    null distribution. Of 60 simulated runs each, linear in three or eight features, with 15 to 120
    pairs, 73 to 100 % found such a share.

    Examples:
        >>> space = FeatureSpace.load("countries")
        >>> [round(detectable_share(pairs, space), 2) for pairs in (10, 40, 400)]
        [1.0, 0.39, 0.04]
    """
    sizes = [len(feature.categories) - 1 or 1 for feature in space.features if feature.categories]
    numbers = space.dimension - len(sizes)
    coordinates = numbers + sum(sizes)
    products = (coordinates**2 - numbers - sum(size**2 for size in sizes)) // 2
    columns = coordinates + numbers
    columns += products if pairs >= 2 * (columns + products) else 0
    spread = 2.0 / (9.0 * columns)  # Wilson and Hilferty (1931)
    quantile = columns * (1.0 - spread + _CRITICAL * math.sqrt(spread)) ** 3
    critical, noise = (quantile - columns) / pairs, 2.0 * columns / pairs**2
    half = critical + 2.0 * _POWER**2 / pairs
    return min(1.0, half + math.sqrt(half**2 - critical**2 + _POWER**2 * noise))


def detectable_note(campaign: Campaign, space: FeatureSpace) -> str:
    """Return a line on the preferences that the campaign's pairs can detect.

    Examples:
        >>> campaign = Campaign.model_validate({
        ...     "name": "try", "space": "penguins", "design": {"pairs": 5},
        ...     "judges": [{"name": "expert", "backend": "simulated"}]})
        >>> detectable_note(campaign, campaign.load_space()).partition(";")[0]
        '5 pairs cannot show a preference: their smallest possible p-value, 0.062, is above 0.05'
    """
    pairs, judges = campaign.design.pairs, len(campaign.judges) - len(campaign.controls)
    min_pairs, smallest = fewest_pairs(judges), smallest_p(pairs)
    adjusted = f", {min(judges * smallest, 1.0):.2g} adjusted for {judges} judges"
    text = f"{smallest:.2g}{adjusted if judges > 1 else ''}"
    if campaign.design.rounds is not None:
        return ""
    if pairs < min_pairs:
        return (
            f"{pairs} pairs cannot show a preference: their smallest possible p-value, {text}, "
            f"is above {_LEVEL:g}; ask at least {min_pairs} pairs, and a few dozen for a weak "
            "preference."
        )
    share = detectable_share(pairs, space)
    part = f"about {share:.0%}" if share >= _ROUNDED else "less than 1%"
    strength = (
        f"a preference that explains {part} of the variation of the answers is detected in "
        "four of five runs"
        if share < 1.0
        else "only a very strong preference can be detected"
    )
    return f"{pairs} pairs can show a preference (smallest possible p-value {text}): {strength}."


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
        """Return the correlation in a judge's answers; None if they do not determine it.

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
        complete = means.dropna() if {"ab", "ba"} <= set(means.columns) else means.iloc[:0]
        if len(complete) < FEWEST or min(complete.std()) == 0.0:
            return None
        value = float(np.corrcoef(complete["ab"], complete["ba"])[0, 1])
        return cls(max(value, 0.0), len(complete))

    def relative_information(self, replicates: int, orders: int = 2) -> float:
        """Return a lower bound on the information of a replicate, relative to that of a new pair.

        It is attained if the utility explains none of the differences between pairs.

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
        correlation: correlation of its choices in a pilot; None if unknown.
    """
    if log_odds:
        return "replicates: 1, because asking again gives the same log-odds"
    sentence = "replicates: 1, because a new pair costs the same and is at least as informative"
    if correlation is None:
        return sentence
    share = correlation.relative_information(_TIMES)
    return (
        f"{sentence}: judging by {correlation.pairs} pairs, {_TIMES} replicates give {share:.0%} "
        "to 100% of the information for the same cost"
    )
