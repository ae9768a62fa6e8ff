"""The position effect: what being shown first adds to an option, and whether it depends on content.

Half the sum of a pair's answers in its two orders is its position effect plus noise; their mean is
the order bias. Averaging the orders removes what both points of a pair have in common. It cannot
remove what an option gains by its own content when it is shown first, which looks like a
preference. Half sums that depend on the pair's points are evidence of such an interaction.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from llm_elicit.audit.inference import AdjustedTest, Interval, t_interval, t_test
from llm_elicit.audit.randomization import permutation_test, sign_test
from llm_elicit.audit.reference import Standardizer
from llm_elicit.audit.responses import Response
from llm_elicit.spaces.features import FeatureSpace, Floats

# Standard errors of the autocorrelation that show it, and the largest that is allowed for.
_RESEMBLING, _LARGEST = 2.0, 0.99
_FEWEST = 10
"""Least number of pairs in both orders for a test of the dependence on the points."""


class PositionContent(AdjustedTest):
    """Whether the position effect depends on the points shown.

    By permutations of half sums over pairs; adjusted over the judges.

    Attributes:
        gain: leave-one-out share of the variance of half sums that the pair's points predict.
    """

    gain: float


class PositionEffect(AdjustedTest):
    """What being shown first adds, in the unit of the response (nats, or probability).

    The test is that the mean is 0, by sign flips, but by Student's test if half sums resemble those
    asked before; adjusted over the judges.

    Attributes:
        orders: "both" if pairs were asked in both, so that the effect is averaged out of the
            response; "one" if it was estimated from pairs asked once and subtracted.
        pairs: number of pairs it was estimated from.
        mean: with its 95 % interval over pairs.
        sd: standard deviation over pairs beyond the noise; None if not measurable.
        share: share of the answers' mean square that mean and sd account for.
        content: how it depends on the points; None if too few pairs were asked in both orders.
    """

    orders: Literal["both", "one"]
    pairs: int
    mean: Interval
    sd: float | None
    share: float
    content: PositionContent | None


def measure_position(
    response: Response,
    noise_variance: float | None,
    space: FeatureSpace,
    flips: int,
    rng: np.random.Generator,
) -> PositionEffect | None:
    """Measure the position effect; None with fewer than two pairs.

    Args:
        response: the judge's.
        noise_variance: of a half sum, if known: that of a half difference about the utility.
        space: the feature space.
        flips: number of randomizations of each test.
        rng: draws them.
    """
    in_both_orders = np.isfinite(response.position)
    effects = (
        response.position[in_both_orders]
        if in_both_orders.any()
        else response.single[~in_both_orders]
    )
    if len(effects) < 2:
        return None
    mean = float(effects.mean())
    sd = None
    if in_both_orders.sum() > 1 and noise_variance is not None:
        sd = math.sqrt(max(float(effects.var(ddof=1)) - noise_variance, 0.0))
    total = np.square(np.where(in_both_orders, response.position, response.single))
    mean_square = float((total + np.where(in_both_orders, response.value**2, 0.0)).mean())
    explained = mean**2 + (sd or 0.0) ** 2
    p_value, at_floor = sign_test(effects, flips, rng)
    inflation = _inflation(effects)
    serial_p = t_test(effects, inflation) if inflation > 1.0 else 0.0
    if serial_p > p_value:
        p_value, at_floor = serial_p, False
    content = None
    if in_both_orders.sum() >= _FEWEST:
        design = _symmetric_columns(response.a[in_both_orders], response.b[in_both_orders], space)
        test = permutation_test(design, response.position[in_both_orders], flips, rng)
        p, smallest = test.p_value, (1.0 + 1e-12) / (1 + flips)
        content = PositionContent(gain=test.gain, p_value=p, at_floor=p <= smallest)
    return PositionEffect(
        orders="both" if in_both_orders.any() else "one",
        pairs=len(effects),
        mean=t_interval(effects, inflation),
        sd=sd,
        share=min(1.0, explained / mean_square) if mean_square > 0 else 0.0,
        p_value=p_value,
        at_floor=at_floor,
        content=content,
    )


def _inflation(values: Floats) -> float:
    """Return how many times as large as of independent values `(n,)` their mean's error is.

    One, unless each is shown to resemble the one before. As for a first-order autoregression, whose
    coefficient is corrected for its bias (Kendall 1954).
    """
    centred, n = values - values.mean(), len(values)
    total = float(centred @ centred)
    coefficient = float(centred[1:] @ centred[:-1]) / total if total > 0.0 else 0.0
    if coefficient * math.sqrt(n) <= _RESEMBLING:
        return 1.0
    coefficient = min(coefficient + (1.0 + 4.0 * coefficient) / n, _LARGEST)
    return math.sqrt((1.0 + coefficient) / (1.0 - coefficient))


def _symmetric_columns(a: Floats, b: Floats, space: FeatureSpace) -> Floats:
    """Return columns `(n, p)` of unit variance that exchanging a and b leaves unchanged."""
    standardizer = Standardizer.of(space, np.concatenate([a, b]))
    first, second = standardizer(a), standardizer(b)
    columns = np.concatenate([first + second, first**2 + second**2, (first - second) ** 2], axis=1)
    scale = columns.std(axis=0)
    return np.asarray(columns / np.where(scale > 1e-12, scale, 1.0))
