"""Fits of the utility f = log p by likelihood."""

from llm_elicit.density.utility.fit import UtilityFit, UtilitySettings, fit_utility
from llm_elicit.density.utility.folds import ChoiceData
from llm_elicit.density.utility.gaussian_process import GaussianProcessSettings
from llm_elicit.density.utility.measured import fit_measured
from llm_elicit.density.utility.mixture import MixtureSettings
from llm_elicit.density.utility.model import MixturePrior
from llm_elicit.density.utility.posterior import PosteriorSettings
from llm_elicit.density.utility.smooth import SmoothSettings

__all__ = [
    "ChoiceData",
    "GaussianProcessSettings",
    "MixturePrior",
    "MixtureSettings",
    "PosteriorSettings",
    "SmoothSettings",
    "UtilityFit",
    "UtilitySettings",
    "fit_measured",
    "fit_utility",
]
