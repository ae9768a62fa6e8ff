"""The effect of each feature on the utility, averaged over λ in the other features.

The averaged utility is a curve over a feature's range. Its effect is in log-odds: between the
quartiles of the range if the curve mainly rises or falls, between the median and the quartiles if
it has a maximum or minimum in the middle. The test of a feature is a randomization test given the
other features, Holm-adjusted over features; tested alone, what the judge weighs the feature against
would count as noise.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from llm_elicit.audit.inference import credible_band, holm
from llm_elicit.audit.randomization import RandomizationTest
from llm_elicit.audit.reference import AuditSettings
from llm_elicit.audit.responses import Response
from llm_elicit.audit.utility import GRID, Utility, Values, is_separate, separate_values
from llm_elicit.config.base_model import StrictModel
from llm_elicit.planning.rounds import Schedule
from llm_elicit.spaces.features import Feature, FeatureSpace, Floats

Direction = Literal["higher", "lower", "middle", "ends", "category"]

_WEIGHTS = np.diff(np.concatenate([[0.0], 0.5 * (GRID[1:] + GRID[:-1]), [1.0]]))
"""The share of the range that each point of `GRID` represents."""


class Effect(StrictModel):
    """One feature's effect on the utility, averaged over the other features.

    Attributes:
        name: the feature.
        value: log-odds over the middle half of the range: of the upper quartile against the lower
            if higher or lower values are preferred, of the median against the quartiles if the
            middle or the ends are, of the best category or periodic value against the worst.
            None without a belief.
        low, high: its 95 % interval over draws of the posterior.
        direction: what is preferred: "higher" or "lower" values, those in the "middle" or at the
            "ends" of the range, or a "category".
        categories: of a categorical feature, the best and the worst; of a periodic one, the best
            and the worst value; else None.
        size: standard deviation of the averaged utility over λ, log-odds.
        gain: leave-one-out share of the responses' mean square that the feature predicts alone,
            by linear and square terms, or by category; at or below 0 if it predicts nothing.
        p_value, p_holm: of the randomization test of the feature given the others (alone with
            several rounds, or if there are few pairs), and adjusted over all features.
        at_floor: whether p is the smallest that the flips can give.
    """

    name: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    direction: Direction | None = None
    categories: tuple[str, str] | None = None
    size: float | None = None
    gain: float
    p_value: float
    p_holm: float
    at_floor: bool


def measure_effects(
    response: Response,
    space: FeatureSpace,
    settings: AuditSettings,
    rng: np.random.Generator,
    schedule: Schedule | None = None,
    utility: Utility | None = None,
) -> tuple[Effect, ...]:
    """Measure every feature's effect, in the order of the space; empty with fewer than two pairs.

    Args:
        response: the judge's answers.
        space: the feature space.
        settings: the flips.
        rng: draws them.
        schedule: which pairs belong to which round.
        utility: the belief's, if there is one.

    Example:
        >>> from llm_elicit.comparisons.table import Choices
        >>> space = FeatureSpace.load("penguins")
        >>> rng = np.random.default_rng(0)
        >>> a, b = space.sample(80, rng), space.sample(80, rng)
        >>> heavier = (a[:, 3] > b[:, 3]).astype(float)         # a judge by weight alone
        >>> response = Response.of_choices(Choices(a, b, heavier, np.arange(80)))
        >>> effects = measure_effects(response, space, AuditSettings(flips=199), rng)
        >>> [effect.name for effect in effects if effect.p_holm < 0.05]
        ['body_mass_g']
    """
    if len(response) < 2:
        return ()
    test = RandomizationTest(response, space, schedule)
    found = [test.run_partial(settings.flips, rng, j) for j in range(space.dimension)]
    adjusted = holm(np.array([each.p_value for each in found]))
    return tuple(
        Effect(
            name=feature.name,
            gain=found[j].gain,
            p_value=found[j].p_value,
            p_holm=float(adjusted[j]),
            at_floor=found[j].at_floor,
            **({} if utility is None else _curve_effect(utility.effects[j], feature)),
        )
        for j, feature in enumerate(space.features)
    )


def _curve_effect(values: Values, feature: Feature) -> dict[str, Any]:
    """Return the fields of `Effect` that the averaged utility determines."""
    mean = values.mean
    if is_separate(feature):
        best, worst = int(mean.argmax()), int(mean.argmin())
        direction, contrast = "category", np.zeros(len(mean))
        contrast[best], contrast[worst] = 1.0, -1.0
        if best == worst:
            contrast[:] = 0.0
        weights = np.full(len(mean), 1.0 / len(mean))
        at = separate_values(feature)
        categories = feature.word(float(at[best])), feature.word(float(at[worst]))
    else:
        direction, contrast = _contrast(mean)
        weights, categories = _WEIGHTS, None
    value = float(mean @ contrast)
    low, high = credible_band(values.draws @ contrast, 0.95)
    centred = mean - weights @ mean
    return {
        "value": value,
        "low": min(low, value),
        "high": max(high, value),
        "direction": direction,
        "categories": categories,
        "size": float(np.sqrt(weights @ centred**2)),
    }


def _contrast(curve: Floats) -> tuple[Direction, Floats]:
    """Return whether a curve over `GRID` has more slope or more curvature, and its contrast."""
    line = GRID - 0.5
    bend = line**2 - _WEIGHTS @ line**2
    slope, curvature = (
        (_WEIGHTS * each) @ curve / np.sqrt(_WEIGHTS @ each**2) for each in (line, bend)
    )
    contrast = np.zeros(len(GRID))
    lower, median, upper = (int(np.abs(GRID - at).argmin()) for at in (0.25, 0.5, 0.75))
    if abs(slope) >= abs(curvature):
        contrast[upper], contrast[lower] = 1.0, -1.0
        return ("higher" if slope >= 0 else "lower"), contrast
    contrast[median], contrast[lower], contrast[upper] = 1.0, -0.5, -0.5
    return ("middle" if curvature <= 0 else "ends"), contrast
