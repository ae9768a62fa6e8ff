"""Fits and reports of runs in a fraction of their time, where they only have to be there."""

from __future__ import annotations

from dataclasses import replace
from functools import partial, partialmethod
from typing import Literal

import pytest
from matplotlib.figure import Figure

from llm_elicit import density
from llm_elicit.audit import record
from llm_elicit.audit.reference import AuditSettings
from llm_elicit.density.settings import FitSettings, GaussianProcessSettings, PosteriorSettings
from llm_elicit.report import figures, layers
from tests.density.targets import QUADRATIC

# A quadratic form, with few draws: of few answers, most of a run's time is theirs.
_QUICK = FitSettings(
    utility=replace(
        QUADRATIC.utility,
        posterior=PosteriorSettings(draws=24),
        process=GaussianProcessSettings(draws=24),
    )
)

# By module, for workers that import none of this. Optimal transport between 1,000 points is two
# thirds of an audit's time.
FIT_CONSTANTS = {
    "llm_elicit.density.methods": {"_FIRST_PARTICLES": 1024, "_RUNS": 3, "_EVEN_POINTS": 1024},
    "llm_elicit.density.belief_draws": {"_POINTS_PER_DRAW": 1024},
    "llm_elicit.density.power": {
        "_PARTICLES": 512, "_MAX_PARTICLES": 2048, "_GRID_SIZE": 12, "_REFINED_SIZE": 8,
    },
    "llm_elicit.density.ranges": {"_PARTICLES": 64},
}  # fmt: skip
AUDIT_SETTINGS = {"size": 100, "marginal_size": 1000}
AUDIT_CONSTANTS = {
    "llm_elicit.audit.belief_power": {
        "_DISTANCE_POINTS": 100, "_POINTS": 1000, "_MIN_EFFECTIVE_POINTS": 100,
    },
    "llm_elicit.audit.utility": {"_SAMPLING_POINTS": 500, "MAX_ROWS": 250, "_MIN_DRAWS": 24},
}  # fmt: skip


def normalize_quickly(patch: pytest.MonkeyPatch) -> None:
    """Let fits in this process normalize their density by few particles."""
    name = "llm_elicit.density.methods"
    _set_constants(patch, {name: FIT_CONSTANTS[name]})


def fit_quickly(patch: pytest.MonkeyPatch) -> None:
    """Let fits in this process fit a quadratic form, with few draws of it, by few particles.

    The fits between rounds and those of a live view are such, too.
    """
    patch.setattr(density, "BETWEEN_ROUNDS", _QUICK)
    quick = partialmethod(FitSettings.__init__, utility=_QUICK.utility)
    patch.setattr(FitSettings, "__init__", quick)
    _set_constants(patch, FIT_CONSTANTS)


def audit_quickly(patch: pytest.MonkeyPatch) -> None:
    """Let audits in this process measure by few points and few draws."""
    patch.setattr(record, "AuditSettings", partial(AuditSettings, **AUDIT_SETTINGS))
    _set_constants(patch, AUDIT_CONSTANTS)


def report_quickly(patch: pytest.MonkeyPatch) -> None:
    """Let audits here be quick, and reports have no corner plots, layout or pixels.

    Corner plots are three fourths of a portrait. Half of the rest is finding where labels end, and
    drawing PNG files, which are empty here.
    """
    audit_quickly(patch)
    patch.setattr(figures, "MAX_CORNER_FEATURES", 1)
    render = layers.render

    def render_plainly(figure: Figure, kind: Literal["svg", "png"]) -> bytes:
        figure.set_layout_engine(None)
        return render(Figure(figure.get_size_inches()) if kind == "png" else figure, kind)

    for module in (figures, layers):
        patch.setattr(module, "render", render_plainly)


def _set_constants(patch: pytest.MonkeyPatch, constants: dict[str, dict[str, int]]) -> None:
    for module, values in constants.items():
        for name, value in values.items():
            patch.setattr(f"{module}.{name}", value)
