"""What a number of pairs can show before they are asked.

The points of every pair may be exchanged, in 2ⁿ ways for n pairs, and exchanging all of them
changes no statistic, so no p-value is below 2/2ⁿ (`llm_elicit.audit.randomization`).
"""

from __future__ import annotations

import math

from llm_elicit.config.campaign import Campaign
from llm_elicit.spaces.features import FeatureSpace

_LEVEL, _FLIPS = 0.05, 1999
_ROUNDED = 0.005  # the least share that is not rounded to none
_CRITICAL, _POWER = 1.645, 0.842  # normal quantiles of 95 % and 80 %


def smallest_p(pairs: int, flips: int = _FLIPS) -> float:
    """Return the smallest p-value that so many pairs of one round, and flips, can give.

    Examples:
        >>> smallest_p(5), smallest_p(6), smallest_p(100)
        (0.0625, 0.03125, 0.0005)
    """
    return max(2.0 ** (1 - pairs), 1.0 / (1 + flips)) if pairs else 1.0


def fewest_pairs(judges: int, level: float = _LEVEL) -> int:
    """Return how many pairs can show a preference at all, Holm-adjusted for so many judges.

    Examples:
        >>> fewest_pairs(1), fewest_pairs(2)
        (6, 7)
    """
    return math.floor(2.0 - math.log2(level / max(judges, 1)))


def detectable_share(pairs: int, space: FeatureSpace) -> float:
    """Return the share of the answers' variation that features must explain to be found.

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
    """Return in one line what the campaign's pairs can show of a judge.

    Examples:
        >>> campaign = Campaign.model_validate({
        ...     "name": "try", "space": "penguins", "design": {"pairs": 5},
        ...     "judges": [{"name": "expert", "backend": "simulated"}]})
        >>> detectable_note(campaign, campaign.load_space()).partition(";")[0]
        '5 pairs cannot show a preference: their smallest possible p-value, 0.062, is above 0.05'
    """
    pairs, judges = campaign.design.pairs, len(campaign.judges) - len(campaign.controls)
    least, smallest = fewest_pairs(judges), smallest_p(pairs)
    adjusted = f", {min(judges * smallest, 1.0):.2g} adjusted for {judges} judges"
    text = f"{smallest:.2g}{adjusted if judges > 1 else ''}"
    if campaign.design.rounds is not None:
        return ""
    if pairs < least:
        return (
            f"{pairs} pairs cannot show a preference: their smallest possible p-value, {text}, "
            f"is above {_LEVEL:g}; ask at least {least} pairs, and a few dozen for a weak "
            "preference."
        )
    share = detectable_share(pairs, space)
    part = f"about {share:.0%}" if share >= _ROUNDED else "less than 1%"
    strength = (
        f"a preference that explains {part} of the variation of the answers is found in four of "
        "five runs"
        if share < 1.0
        else "only a very strong preference is found"
    )
    return f"{pairs} pairs can show a preference (smallest possible p-value {text}): {strength}."
