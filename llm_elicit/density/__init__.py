"""The density core: from comparisons to a belief density. It imports nothing else of the package.

`fit_belief` and `fit_evidence` return a `BeliefDensity`, with methods to sample, evaluate and save
it. If the comparisons do not determine the power k of a belief ∝ exp(k f), which sets its
sharpness, `fit_power` estimates it from other answers.

Examples:
    >>> from llm_elicit.density import Noise, Uniform
    >>> Uniform([0.0, 1.0], [10.0, 100.0], log=[False, True]).dimension
    2
    >>> Noise("normal", 1.0).family
    'normal'
"""

from llm_elicit.density.belief import BeliefDensity
from llm_elicit.density.belief_draws import BeliefDraws
from llm_elicit.density.constraints import IntervalConstraint, LinearConstraint, PolygonConstraint
from llm_elicit.density.design import BETWEEN_ROUNDS, SuggestSettings, suggest_pairs
from llm_elicit.density.distribution import Coherence, Marginal, Power, Prior, band
from llm_elicit.density.errors import DensityError
from llm_elicit.density.evidence import Evidence
from llm_elicit.density.fit import JUDGE_METHODS, estimate_seconds, fit_belief, fit_evidence
from llm_elicit.density.likelihood import Noise, estimate_level, simulate_choices
from llm_elicit.density.methods import bounded_below, fit_warnings
from llm_elicit.density.pool import fit_pool_weights, pool_beliefs
from llm_elicit.density.power import fit_power
from llm_elicit.density.ranges import Ranges
from llm_elicit.density.sampling import SamplingDensity, Uniform
from llm_elicit.density.score import WinnerDensity, winner_density
from llm_elicit.density.settings import (
    AnnealingSettings,
    FitSettings,
    MixturePrior,
    MixtureSettings,
    PosteriorSettings,
    ScoreSettings,
    SmoothSettings,
    UtilitySettings,
)
from llm_elicit.density.unbounded import Empirical, GaussianMixture

__all__ = [
    "BETWEEN_ROUNDS",
    "JUDGE_METHODS",
    "AnnealingSettings",
    "BeliefDensity",
    "BeliefDraws",
    "Coherence",
    "DensityError",
    "Empirical",
    "Evidence",
    "FitSettings",
    "GaussianMixture",
    "IntervalConstraint",
    "LinearConstraint",
    "Marginal",
    "MixturePrior",
    "MixtureSettings",
    "Noise",
    "PolygonConstraint",
    "PosteriorSettings",
    "Power",
    "Prior",
    "Ranges",
    "SamplingDensity",
    "ScoreSettings",
    "SmoothSettings",
    "SuggestSettings",
    "Uniform",
    "UtilitySettings",
    "WinnerDensity",
    "band",
    "bounded_below",
    "estimate_level",
    "estimate_seconds",
    "fit_belief",
    "fit_evidence",
    "fit_pool_weights",
    "fit_power",
    "fit_warnings",
    "pool_beliefs",
    "simulate_choices",
    "suggest_pairs",
    "winner_density",
]
