"""Fits and reports of runs in a fraction of their time, where they only have to be there."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from llm_elicit import density
from llm_elicit.density import power
from llm_elicit.density.settings import FitSettings, GaussianProcessSettings, PosteriorSettings
from llm_elicit.report import figures
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
    """Let runs in this process fit a quadratic form, with few draws of it, and a coarse power.

    The fits between rounds and those of a live view are such, too.
    """
    patch.setattr(density, "BETWEEN_ROUNDS", _QUICK)
    patch.setattr(power, "_PARTICLES", 512)
    patch.setattr(power, "_MAX_PARTICLES", 2048)
    patch.setattr(density, "fit_evidence", partial(density.fit_evidence, settings=_QUICK))


def draw_no_corners(patch: pytest.MonkeyPatch) -> None:
    """Let reports from this process have no corner plots, three fourths of a portrait's time."""
    patch.setattr(figures, "MAX_CORNER_FEATURES", 1)
