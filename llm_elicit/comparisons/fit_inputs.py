"""The inputs of a fit: a judge's answers, the sampling density λ, and the judge's noise."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import numpy as np

from llm_elicit._util.packages import LazyModule
from llm_elicit.comparisons.table import Comparisons, Judgments
from llm_elicit.config.campaign import Fit
from llm_elicit.spaces.features import FeatureSpace

if TYPE_CHECKING:
    from llm_elicit import density
else:
    density = LazyModule("llm_elicit.density")  # PyTorch, which most commands do not need


PROBABILITY_ROUNDING = 0.01
"""The rounding of stated probabilities."""

_DENSE = 100
"""Number of values from which `Empirical` treats whole numbers as real ones."""


def sampling_of(space: FeatureSpace) -> density.SamplingDensity:
    """Return λ, in whose coordinates beliefs are fitted.

    It is uniform on each feature's scale, or has the marginals and rank correlations of the table
    if `follows_table`.
    """
    if follows_table(space):
        return density.Empirical(space.table_points(), space.low, space.high, log=space.log)
    kinds = {name: getattr(space, name) for name in ("log", "categorical", "integer", "periodic")}
    return density.Uniform(space.low, space.high, **kinds, constraints=space.density_constraints)


def follows_table(space: FeatureSpace) -> bool:
    """Return whether beliefs are fitted in coordinates with the table's rank correlations.

    This is so if points are drawn from the table, without constraints, and all features are real
    numbers or whole ones of a wide range.

    Examples:
        >>> cars, penguins = (FeatureSpace.load(name) for name in ("cars", "penguins_kinds"))
        >>> [follows_table(space.with_sampling("empirical")) for space in (cars, penguins)]
        [True, False]
    """
    is_narrow = space.integer & (space.high - space.low < _DENSE)
    kinds = space.categorical | space.periodic | is_narrow
    return space.sampling == "empirical" and not space.constraints and not bool(kinds.any())


def noise_of(fit: Fit) -> density.Noise:
    """Return the noise that the campaign assumes."""
    if fit.noise_level is None:
        return density.Noise(fit.noise)
    return density.Noise(fit.noise, fit.noise_level)


def evidence_of(comparisons: Comparisons, judge: str, fit: Fit) -> density.Evidence:
    """Return a judge's answers as evidence: log-odds if most answers have them, else choices.

    If most answers have log-odds, those without are left out, since they add little information.
    Stated probabilities count as rounded to a per cent. How choices enter is set by
    `Fit.position_effect`. If pairs were asked in several presentations, the belief is what these
    have in common.
    """
    judgments = comparisons.judgments(judge)
    if judgments.measured:
        return _evidence_of_odds(judgments, judge)
    if fit.position_effect == "averaged":
        choices = comparisons.choices(judge)
        of_pair = dict(zip(judgments.pair, judgments.presentation, strict=True))
        names = [str(of_pair[pair]) for pair in choices.pair]
        return density.Evidence.comparisons(
            choices.a, choices.b, choices.preference, presentation=names, judge=judge
        )
    tie = judgments.tie & (fit.noise == "gumbel")  # other families count a tie as half a win
    return density.Evidence.comparisons(
        judgments.a,
        judgments.b,
        judgments.preference,
        tie=tie,
        first=judgments.first,
        presentation=judgments.presentation,
        judge=judge,
    )


def _evidence_of_odds(judgments: Judgments, judge: str) -> density.Evidence:
    """Return a judge's answers that have log-odds or stated probabilities as evidence."""
    first = np.where(judgments.first[:, None], judgments.a, judgments.b)
    second = np.where(judgments.first[:, None], judgments.b, judgments.a)
    is_stated = judgments.soft & (judgments.format == "probability")
    measured = judgments.soft & ~is_stated
    parts = []
    if measured.any():
        log_odds, cut = judgments.log_odds[measured], judgments.censored[measured]
        parts.append(
            density.Evidence.log_odds(
                first[measured],
                second[measured],
                lower=np.where(cut < 0, -np.inf, log_odds),
                upper=np.where(cut > 0, np.inf, log_odds),
                presentation=judgments.presentation[measured],
                judge=judge,
            )
        )
    if is_stated.any():
        probabilities = judgments.first_preference[is_stated]
        parts.append(
            density.Evidence.probabilities(
                first[is_stated],
                second[is_stated],
                probabilities,
                rounding=PROBABILITY_ROUNDING,
                presentation=judgments.presentation[is_stated],
                judge=judge,
            )
        )
    return reduce(add, parts)
