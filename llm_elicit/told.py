"""What the density core is told of a campaign: the answers, λ, and the judge's noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_elicit.campaign import Fit
from llm_elicit.comparisons import Comparisons
from llm_elicit.features import FeatureSpace
from llm_elicit.later import Later

if TYPE_CHECKING:
    from llm_elicit import density
else:
    density = Later("llm_elicit.density")  # PyTorch, which most commands do without


def sampling_of(space: FeatureSpace) -> density.Uniform:
    """The density that pairs are drawn from: uniform on each feature's scale."""
    return density.Uniform(space.low, space.high, log=space.log, categorical=space.categorical)


def noise_of(fit: Fit) -> density.Noise:
    """The judge's noise as the campaign takes it to be."""
    return density.Noise(fit.noise) if fit.level is None else density.Noise(fit.noise, fit.level)


def evidence_of(comparisons: Comparisons, judge: str, fit: Fit) -> density.Evidence:
    """A judge's answers; see `Fit.order_bias`."""
    if fit.order_bias == "averaged":
        choices = comparisons.choices(judge)
        return density.Evidence.comparisons(choices.a, choices.b, choices.preference)
    said = comparisons.said(judge)
    tie = said.tie & (fit.noise == "gumbel")  # the others count a tie as half and half
    return density.Evidence.comparisons(
        said.a, said.b, said.preference, tie=tie, first=said.first, judge=judge
    )
