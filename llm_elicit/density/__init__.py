"""The density core: comparisons in, a belief density out. It knows nothing of language models.

Examples
--------
>>> import numpy as np
>>> from llm_elicit.density import Uniform, fit_belief
>>> rng = np.random.default_rng(0)
>>> a, b = rng.uniform(0, 10, (2, 80, 1))
>>> winners, losers = np.maximum(a, b), np.minimum(a, b)        # a judge who likes large values
>>> belief = fit_belief(winners, losers, sampling=Uniform([0.0], [10.0]), method="utility")
>>> bool(belief.sample(1000, seed=1).mean() > 6)
True
"""

from llm_elicit.density.annealing import AnnealingSettings
from llm_elicit.density.belief import BeliefDensity, Marginal
from llm_elicit.density.choice import Noise, simulate_choices
from llm_elicit.density.errors import DensityError
from llm_elicit.density.fit import FitSettings, fit_belief
from llm_elicit.density.mixture import GaussianMixture
from llm_elicit.density.sampling import SamplingDensity, Uniform
from llm_elicit.density.score.langevin import LangevinSettings
from llm_elicit.density.score.likelihood import LikelihoodSettings
from llm_elicit.density.score.training import TrainingSettings
from llm_elicit.density.utility import UtilitySettings

__all__ = [
    "AnnealingSettings",
    "BeliefDensity",
    "DensityError",
    "FitSettings",
    "GaussianMixture",
    "LangevinSettings",
    "LikelihoodSettings",
    "Marginal",
    "Noise",
    "SamplingDensity",
    "TrainingSettings",
    "Uniform",
    "UtilitySettings",
    "fit_belief",
    "simulate_choices",
]
