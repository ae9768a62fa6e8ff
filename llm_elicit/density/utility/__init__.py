"""The utility f = log p, fitted by choice likelihood: `fit_utility` and its settings."""

from llm_elicit.density.utility.data import ChoiceData
from llm_elicit.density.utility.fit import UtilityFit, UtilitySettings, fit_utility
from llm_elicit.density.utility.mixture import MixtureSettings
from llm_elicit.density.utility.posterior import PosteriorSettings
from llm_elicit.density.utility.residual import ResidualSettings
from llm_elicit.density.utility.scoring import MixturePrior

__all__ = [
    "ChoiceData",
    "MixturePrior",
    "MixtureSettings",
    "PosteriorSettings",
    "ResidualSettings",
    "UtilityFit",
    "UtilitySettings",
    "fit_utility",
]
