"""What the density core is told of a campaign: the answers, λ, and the judge's noise."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import numpy as np

from llm_elicit._util.lazy_module import LazyModule
from llm_elicit.comparisons.table import Comparisons, Judgments
from llm_elicit.config.campaign import Fit
from llm_elicit.spaces.features import FeatureSpace

if TYPE_CHECKING:
    from llm_elicit import density
else:
    density = LazyModule("llm_elicit.density")  # PyTorch, which most commands do without


STATED_TO = 0.01
"""The step between the probabilities that judges state."""


def sampling_of(space: FeatureSpace) -> density.Uniform:
    """The density that pairs are drawn from: uniform on each feature's scale."""
    return density.Uniform(space.low, space.high, log=space.log, categorical=space.categorical)


def noise_of(fit: Fit) -> density.Noise:
    """The judge's noise as the campaign takes it to be."""
    return (
        density.Noise(fit.noise)
        if fit.noise_level is None
        else density.Noise(fit.noise, fit.noise_level)
    )


def evidence_of(comparisons: Comparisons, judge: str, fit: Fit) -> density.Evidence:
    """A judge's answers: measured log-odds where it gave any, else choices.

    Choices without a probability among log-odds are left out: they say next to nothing beside
    them. Stated probabilities are known to a per cent, and no further at 0 and 100. Of choices
    alone see `Fit.position_effect`.
    """
    said = comparisons.judgments(judge)
    if said.soft.any():
        return _measured(said, judge)
    if fit.position_effect == "averaged":
        choices = comparisons.choices(judge)
        return density.Evidence.comparisons(choices.a, choices.b, choices.preference)
    tie = said.tie & (fit.noise == "gumbel")  # the others count a tie as half and half
    return density.Evidence.comparisons(
        said.a, said.b, said.preference, tie=tie, first=said.first, judge=judge
    )


def _measured(said: Judgments, judge: str) -> density.Evidence:
    """The soft answers of a judge, each by its form."""
    first = np.where(said.first[:, None], said.a, said.b)
    second = np.where(said.first[:, None], said.b, said.a)
    stated = said.soft & (said.format == "probability")
    known = said.soft & ~stated
    parts = []
    if known.any():
        log_odds = said.log_odds[known]
        parts.append(density.Evidence.log_odds(first[known], second[known], log_odds, judge=judge))
    if stated.any():
        shares = said.first_shown[stated]
        parts.append(
            density.Evidence.probabilities(
                first[stated], second[stated], shares, rounding=STATED_TO, judge=judge
            )
        )
    return reduce(add, parts)
