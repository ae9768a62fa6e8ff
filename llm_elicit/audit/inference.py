"""p-values of many tests at once, and of simulated ones."""

from __future__ import annotations

import numpy as np
from scipy import stats

from llm_elicit.config.base_model import StrictModel
from llm_elicit.spaces.features import Floats


def holm(p_values: Floats) -> Floats:
    """Holm's step-down adjustment of p-values `(m,)` for looking at all of them.

    Example:
        >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
        [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    stepped = (len(p_values) - np.arange(len(p_values))) * p_values[order]
    adjusted = np.empty_like(p_values)
    adjusted[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return adjusted


def p_words(p_value: float, at_floor: bool) -> str:
    """A p-value in words; one that a simulation could not have found smaller is a bound.

    Example:
        >>> p_words(0.0005, True), p_words(0.0312, False), p_words(1e-9, False)
        ('p ≤ 0.0005', 'p = 0.031', 'p < 0.0001')
    """
    if p_value < 1e-4:
        return "p < 0.0001"
    return f"p {'≤' if at_floor else '='} {p_value:.2g}"


class Interval(StrictModel):
    """An estimate with its interval, of 95 % where nothing else is said."""

    value: float
    low: float
    high: float


def wilson(share: float, n: float) -> Interval:
    """Wilson's 95 % score interval of a share out of `n` (Wilson 1927).

    Example:
        >>> interval = wilson(0.5, 100)
        >>> round(interval.low, 3), round(interval.high, 3)
        (0.404, 0.596)
    """
    z = float(stats.norm.ppf(0.975))
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    return Interval(
        value=share,
        low=float(min(max(0.0, centre - half), share)),
        high=float(max(min(1.0, centre + half), share)),
    )
