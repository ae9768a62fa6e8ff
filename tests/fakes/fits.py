"""Fits of runs in a fraction of their time, where a belief only has to be there."""

from __future__ import annotations

from functools import partial

import pytest

from llm_elicit import density
from llm_elicit.density.settings import (
    FitSettings,
    GaussianProcessSettings,
    MixtureSettings,
    SmoothSettings,
    UtilitySettings,
)

# A quadratic form, and of log-odds a fourth of the draws: powers take time by their number.
_QUICK = FitSettings(
    utility=UtilitySettings(
        mixture=MixtureSettings(counts=()),
        smooth=SmoothSettings(frequencies=0),
        process=GaussianProcessSettings(frequencies=128, draws=64),
    )
)


def fit_quickly(patch: pytest.MonkeyPatch) -> None:
    """Let runs in this process fit a quadratic form, and few draws of one of log-odds."""
    patch.setattr(density, "fit_evidence", partial(density.fit_evidence, settings=_QUICK))
