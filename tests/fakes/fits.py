"""Fits of runs in a fraction of their time, where a belief only has to be there."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from llm_elicit import density
from llm_elicit.density.settings import FitSettings, PosteriorSettings
from tests.density.targets import FEW_DRAWS, QUADRATIC

# A quadratic form with its usual draws, and few of one of log-odds.
_QUICK = FitSettings(
    utility=replace(
        QUADRATIC.utility,
        posterior=PosteriorSettings(),
        process=FEW_DRAWS.utility.process,
    )
)


def fit_quickly(patch: pytest.MonkeyPatch) -> None:
    """Let runs in this process fit a quadratic form, and few draws of one of log-odds."""
    patch.setattr(density, "fit_evidence", partial(density.fit_evidence, settings=_QUICK))
