"""The utility f = log p, fitted by likelihood: `fit_utility`, `fit_measured`, their settings."""

from llm_elicit.density.utility.data import ChoiceData
from llm_elicit.density.utility.fit import UtilityFit, UtilitySettings, fit_utility
from llm_elicit.density.utility.gaussian_process import GaussianProcessSettings
from llm_elicit.density.utility.measured import fit_measured
from llm_elicit.density.utility.mixture import MixtureSettings
from llm_elicit.density.utility.posterior import PosteriorSettings
from llm_elicit.density.utility.residual import ResidualSettings
from llm_elicit.density.utility.scoring import MixturePrior

__all__ = [
    "ChoiceData",
    "GaussianProcessSettings",
    "MixturePrior",
    "MixtureSettings",
    "PosteriorSettings",
    "ResidualSettings",
    "UtilityFit",
    "UtilitySettings",
    "fit_measured",
    "fit_utility",
]
