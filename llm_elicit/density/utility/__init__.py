"""The utility f = log p, fitted by choice likelihood: `fit_utility` and its settings."""

from llm_elicit.density.utility.data import ChoiceData
from llm_elicit.density.utility.fit import UtilitySettings, fit_utility
from llm_elicit.density.utility.mixture import MixtureSettings
from llm_elicit.density.utility.residual import ResidualSettings
from llm_elicit.density.utility.scoring import MixturePrior

__all__ = [
    "ChoiceData",
    "MixturePrior",
    "MixtureSettings",
    "ResidualSettings",
    "UtilitySettings",
    "fit_utility",
]
