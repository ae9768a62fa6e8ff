"""What one feature adds to an option, the others as λ has them.

The utility, averaged over the other features, is a curve over a feature's range. Its effect is in
log-odds: between the quartiles of the range where the curve rises or falls, between the median and
the quartiles where it has a summit or a valley. Whether there is any effect is asked by a
randomization test of the feature beside the others, Holm's (1979) over the features: the test of a
feature alone takes what a judge weighs it up against for noise.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from llm_elicit import density
from llm_elicit.audit.inference import holm
from llm_elicit.audit.randomization import RandomizationTest
from llm_elicit.audit.reference import AuditSettings
from llm_elicit.audit.responses import Response
from llm_elicit.audit.utility import QUARTILES, Utility, Values
from llm_elicit.config.base_model import StrictModel
from llm_elicit.planning.rounds import Schedule
from llm_elicit.spaces.features import Feature, FeatureSpace, Floats

Direction = Literal["higher", "lower", "middle", "ends", "category"]

_WEIGHTS = np.diff(np.concatenate([[0.0], 0.5 * (QUARTILES[1:] + QUARTILES[:-1]), [1.0]]))
"""The share of the range that each of `QUARTILES` stands for."""


class Effect(StrictModel):
    """One feature's effect on the utility, averaged over the other features.

    Attributes:
        name: the feature.
        value: log-odds, over the middle half of the range: of an option at the upper quartile over
            one at the lower where higher or lower values are preferred, of one at the median over
            one at a quartile where the middle or the ends are; of the highest category over the
            lowest. None without a belief.
        low, high: its 95 % interval over draws of the posterior.
        direction: what is preferred: "higher" or "lower" values, those in the "middle" or at the
            "ends" of the range, or a "category".
        categories: of a categorical feature, the highest and the lowest; else None.
        size: standard deviation of the averaged utility over λ, log-odds.
        gain: leave-one-out share of the responses' mean square that the feature predicts alone,
            linear and square, or by category; at or below 0 when it predicts nothing.
        p_value, p_holm: of the randomization test of the feature beside the others (alone, with
            rounds, and where pairs are few for the others), and over all features.
        at_floor: whether p is the smallest that the flips can show.
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
    """Every feature's effect, in the order of the space; empty of fewer than two pairs.

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
        >>> told = Response.of_choices(Choices(a, b, heavier, np.arange(80)))
        >>> effects = measure_effects(told, space, AuditSettings(flips=199), rng)
        >>> [effect.name for effect in effects if effect.p_holm < 0.05]
        ['body_mass_g']
    """
    if len(response) < 2:
        return ()
    test = RandomizationTest(response, space, schedule)
    found = [test.beside(settings.flips, rng, j) for j in range(space.dimension)]
    adjusted = holm(np.array([each.p_value for each in found]))
    return tuple(
        Effect(
            name=feature.name,
            gain=found[j].gain,
            p_value=found[j].p_value,
            p_holm=float(adjusted[j]),
            at_floor=found[j].at_floor,
            **({} if utility is None else _curve(utility.effects[j], feature)),
        )
        for j, feature in enumerate(space.features)
    )


def _curve(values: Values, feature: Feature) -> dict[str, Any]:
    """What a curve over a feature's range says of its effect."""
    mean = values.mean
    if feature.categories:
        best, worst = int(mean.argmax()), int(mean.argmin())
        direction, contrast = "category", np.zeros(len(mean))
        contrast[best], contrast[worst] = 1.0, -1.0
        if best == worst:
            contrast[:] = 0.0
        weights = np.full(len(mean), 1.0 / len(mean))
        named = feature.categories[best], feature.categories[worst]
    else:
        direction, contrast = _shape(mean)
        weights, named = _WEIGHTS, None
    draws = values.draws @ contrast
    low, high = density.band(draws, 0.95)
    middle = mean - weights @ mean
    return {
        "value": float(mean @ contrast),
        "low": float(min(low, mean @ contrast)),
        "high": float(max(high, mean @ contrast)),
        "direction": direction,
        "categories": named,
        "size": float(np.sqrt(weights @ middle**2)),
    }


def _shape(curve: Floats) -> tuple[Direction, Floats]:
    """Whether a curve over `QUARTILES` has more of a slope or of a bend, and its contrast."""
    line = QUARTILES - 0.5
    bend = line**2 - _WEIGHTS @ line**2
    slope, bent = ((_WEIGHTS * each) @ curve / np.sqrt(_WEIGHTS @ each**2) for each in (line, bend))
    contrast = np.zeros(len(QUARTILES))
    lower, median, upper = (int(np.abs(QUARTILES - at).argmin()) for at in (0.25, 0.5, 0.75))
    if abs(slope) >= abs(bent):
        contrast[upper], contrast[lower] = 1.0, -1.0
        return ("higher" if slope >= 0 else "lower"), contrast
    contrast[median], contrast[lower], contrast[upper] = 1.0, -0.5, -0.5
    return ("middle" if bent <= 0 else "ends"), contrast
