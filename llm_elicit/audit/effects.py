"""What one feature adds to an option, the others as λ has them."""

from __future__ import annotations

from typing import Literal

from llm_elicit.strict import Strict

Direction = Literal["higher", "lower", "middle", "ends", "category"]


class Effect(Strict):
    """One feature's effect on the utility, averaged over the other features.

    Attributes:
        name: the feature.
        value: log-odds of an option at the upper quartile of the feature's range over one at the
            lower; of a categorical feature of the category that is highest over the lowest.
        low, high: the 95 % interval over draws of the posterior.
        direction: what is preferred: "higher" or "lower" values, those in the "middle" or at the
            "ends" of the range, or a "category".
        categories: of a categorical feature, the highest and the lowest; else None.
        size: standard deviation of the averaged utility over λ, log-odds.
        p_value, p_holm: of the randomization test of the feature alone, and over all features.
        at_floor: whether p is the smallest that the flips can show.
    """

    name: str
    value: float | None
    low: float | None
    high: float | None
    direction: Direction | None
    categories: tuple[str, str] | None = None
    size: float | None
    p_value: float
    p_holm: float
    at_floor: bool
