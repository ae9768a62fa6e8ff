"""The position effect: what being shown first adds to an option, and how much of it is content.

Half the sum of a pair's answers in its two orders is its position effect plus noise; their mean is
the order bias. Averaging the orders removes what both points of a pair have in common. It cannot
remove what an option gains by its own content when it is shown first: that looks like a preference.
Whether half sums depend on the pair's points says whether there is anything of the kind.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from llm_elicit.audit.inference import Interval
from llm_elicit.audit.randomization import permute
from llm_elicit.audit.responses import Response
from llm_elicit.audit.scales import Standard
from llm_elicit.config.base_model import StrictModel
from llm_elicit.spaces.features import FeatureSpace, Floats

_FEWEST = 10
"""Pairs in both orders below which nothing is said of what the effect depends on."""


class PositionContent(StrictModel):
    """Whether the position effect depends on what is shown.

    Attributes:
        gain: leave-one-out share of the variance of half sums that the pair's points predict.
        p_value: of a permutation of half sums over pairs.
        at_floor: whether p is the smallest that the permutations can show.
    """

    gain: float
    p_value: float
    at_floor: bool


class PositionEffect(StrictModel):
    """What being shown first adds, in the unit of the response (nats, or probability).

    Attributes:
        orders: "both" where pairs were asked in both, so that it is averaged out of the response;
            "one" where it was estimated from pairs asked once and subtracted.
        pairs: how many pairs it is known from.
        mean: with its 95 % interval over pairs.
        sd: its standard deviation over pairs beyond the noise; None where not measurable.
        share: the share of the answers' mean square that mean and sd make up.
        p_value, p_holm: that the mean is 0, by sign flips; the same over the judges of the run.
        at_floor: whether p is the smallest that the flips can show.
        content: how it depends on the points; None where too few pairs were asked in both orders.
    """

    orders: str
    pairs: int
    mean: Interval
    sd: float | None
    share: float
    p_value: float
    p_holm: float
    at_floor: bool
    content: PositionContent | None


def measure_position(
    response: Response,
    noise_variance: float | None,
    space: FeatureSpace,
    flips: int,
    rng: np.random.Generator,
) -> PositionEffect | None:
    """From a judge's response; None where nothing was answered.

    Args:
        response: the judge's.
        noise_variance: of a half sum, if known: that of a half difference about the utility.
        space: the feature space.
        flips: of the tests.
        rng: draws them.
    """
    both = np.isfinite(response.position)
    known = response.position[both] if both.any() else response.single[~both]
    if not len(known):
        return None
    mean = float(known.mean())
    spread = None
    if both.sum() > 1 and noise_variance is not None:
        spread = math.sqrt(max(float(known.var(ddof=1)) - noise_variance, 0.0))
    total = np.square(np.where(both, response.position, response.single))
    square = float((total + np.where(both, response.value**2, 0.0)).mean())
    part = mean**2 + (spread or 0.0) ** 2
    p_value, at_floor = _flip(known, flips, rng)
    return PositionEffect(
        orders="both" if both.any() else "one",
        pairs=len(known),
        mean=_t_interval(known),
        sd=spread,
        share=min(1.0, part / square) if square > 0 else 0.0,
        p_value=p_value,
        p_holm=p_value,
        at_floor=at_floor,
        content=_content(response, both, space, flips, rng),
    )


def _t_interval(values: Floats) -> Interval:
    """Mean with Student's 95 % interval; unbounded from one value is not said: it has no width."""
    mean, n = float(values.mean()), len(values)
    half = 0.0
    if n > 1:
        half = float(stats.t.ppf(0.975, n - 1) * values.std(ddof=1) / math.sqrt(n))
    return Interval(value=mean, low=mean - half, high=mean + half)


def _flip(values: Floats, flips: int, rng: np.random.Generator) -> tuple[float, bool]:
    """p of |mean| under random signs: exact if the order of presentation makes no difference."""
    if not values.any():
        return 1.0, False
    signs = rng.choice((-1.0, 1.0), size=(flips, len(values)))
    least = abs(float(values.sum())) * (1.0 - 1e-9)
    reached = int((np.abs(signs @ values) >= least).sum())
    return (1 + reached) / (1 + flips), reached == 0


def _content(
    response: Response,
    both: np.ndarray[tuple[int], np.dtype[np.bool_]],
    space: FeatureSpace,
    flips: int,
    rng: np.random.Generator,
) -> PositionContent | None:
    if both.sum() < _FEWEST:
        return None
    design = _symmetric(response.a[both], response.b[both], space)
    found = permute(design, response.position[both], flips, rng)
    p_value = found.p_value
    at_floor = p_value <= (1.0 + 1e-12) / (1 + flips)
    return PositionContent(gain=found.gain, p_value=p_value, at_floor=at_floor)


def _symmetric(a: Floats, b: Floats, space: FeatureSpace) -> Floats:
    """Columns `(n, p)` that are the same when a and b change places, of unit variance."""
    standard = Standard.of(space, np.concatenate([a, b]))
    one, other = standard(a), standard(b)
    columns = np.concatenate([one + other, one**2 + other**2, (one - other) ** 2], axis=1)
    scale = columns.std(axis=0)
    return np.asarray(columns / np.where(scale > 1e-12, scale, 1.0))
