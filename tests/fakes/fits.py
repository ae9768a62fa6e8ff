"""Fits of runs in a fraction of their time, where a belief only has to be there."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from llm_elicit import density
from llm_elicit.density import power
from llm_elicit.density.settings import FitSettings, GaussianProcessSettings, PosteriorSettings
from tests.density.targets import QUADRATIC

# A quadratic form, with few draws: of few answers, most of a run's time is theirs.
_QUICK = FitSettings(
    utility=replace(
        QUADRATIC.utility,
        posterior=PosteriorSettings(draws=24),
        process=GaussianProcessSettings(draws=24),
    )
)


def fit_quickly(patch: pytest.MonkeyPatch) -> None:
    """Let runs in this process fit a quadratic form, with few draws of it, and a coarse power."""
    patch.setattr(power, "_PARTICLES", 512)
    patch.setattr(power, "_MAX_PARTICLES", 2048)
    patch.setattr(density, "fit_evidence", partial(density.fit_evidence, settings=_QUICK))
