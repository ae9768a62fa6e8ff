"""Fits of the utility f = log p by likelihood."""

from llm_elicit.density.utility.cross_validation import ChoiceData
from llm_elicit.density.utility.fit import UtilityFit, fit_utility
from llm_elicit.density.utility.gaussian_process import fit_measured

__all__ = ["ChoiceData", "UtilityFit", "fit_measured", "fit_utility"]
