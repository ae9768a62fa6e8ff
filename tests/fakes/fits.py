"""Fits and reports of runs in a fraction of their time, where they only have to be there."""

from __future__ import annotations

from dataclasses import replace
from functools import partial, partialmethod

import pytest

from llm_elicit import density
from llm_elicit.audit import belief_power, record
from llm_elicit.audit.reference import AuditSettings
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
    """Let fits in this process fit a quadratic form, with few draws of it, and a coarse power.

    The fits between rounds and those of a live view are such, too.
    """
    patch.setattr(density, "BETWEEN_ROUNDS", _QUICK)
    quick = partialmethod(FitSettings.__init__, utility=_QUICK.utility)
    patch.setattr(FitSettings, "__init__", quick)
    patch.setattr(power, "_PARTICLES", 512)
    patch.setattr(power, "_MAX_PARTICLES", 2048)


def report_quickly(patch: pytest.MonkeyPatch) -> None:
    """Let audits here measure distances between few points, and reports have no corner plots.

    Optimal transport between 1,000 points is two thirds of an audit's time, corner plots three
    fourths of a portrait's.
    """
    coarse = partial(AuditSettings, size=100, marginal_size=1000)
    patch.setattr(record, "AuditSettings", coarse)
    patch.setattr(belief_power, "_DISTANCE_POINTS", 100)
    patch.setattr(figures, "MAX_CORNER_FEATURES", 1)
