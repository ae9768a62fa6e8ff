"""Two curves that should lie on the diagonal: the data within the belief, choices as predicted."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from llm_elicit.audit.coverage import DataCoverage
from llm_elicit.audit.foretold import Foretold
from llm_elicit.audit.record import JudgeAudit
from llm_elicit.report.picture import Picture, draw_picture
from llm_elicit.report.style import LIGHT, Theme, blank, dress

_SIDE = 3.1


def draw_curves(judge: JudgeAudit) -> Picture | None:
    """Both curves of one judge beside each other, those that there are."""
    parts = [part for part in (judge.coverage, judge.foretold) if part is not None]
    if not parts:
        return None
    alt = " ".join(_words(part) for part in parts)
    return draw_picture(curves_figure(judge, LIGHT), f"Calibration of {judge.name}", alt)


def _words(part: DataCoverage | Foretold) -> str:
    if isinstance(part, DataCoverage):
        held = ", ".join(f"{r.holds.value:.0%} in its densest {r.mass:.0%}" for r in part.regions)
        return f"Share of the data within the belief's densest regions: {held}."
    found = ", ".join(f"{b.found:.0%} where {b.foretold:.0%}" for b in part.calibration)
    return f"Held-out choices that came out as predicted: {found}."


def curves_figure(judge: JudgeAudit, theme: Theme) -> Figure:
    """The curves of one judge in one theme."""
    drawn = [part for part in (judge.coverage, judge.foretold) if part is not None]
    figure = blank(_SIDE * len(drawn), _SIDE, theme)
    for place, part in enumerate(drawn, start=1):
        axes = figure.add_subplot(1, len(drawn), place)
        dress(axes, theme)
        axes.set_aspect("equal")
        if isinstance(part, DataCoverage):
            _draw_coverage(axes, part, theme)
        else:
            _draw_calibration(axes, part, theme)
    return figure


def _draw_coverage(axes: Axes, coverage: DataCoverage, theme: Theme) -> None:
    masses = np.linspace(0.0, 1.0, len(coverage.curve))
    axes.plot([0, 1], [0, 1], color=theme.data, linewidth=1, linestyle="--")
    axes.plot(masses, coverage.curve, color=theme.belief, linewidth=1.8)
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    axes.set_xlabel("mass of the belief's densest region", fontsize=8)
    axes.set_ylabel("share of the data in it", fontsize=8)
    axes.set_title("the data within the belief", fontsize=9)


def _draw_calibration(axes: Axes, foretold: Foretold, theme: Theme) -> None:
    bins = foretold.calibration
    at, found = ([getattr(b, side) for b in bins] for side in ("foretold", "found"))
    axes.plot([0.5, 1], [0.5, 1], color=theme.data, linewidth=1, linestyle="--")
    axes.plot(at, found, color=theme.belief, linewidth=0.8)
    sizes = [12 + 150 * b.share for b in bins]
    axes.scatter(at, found, s=sizes, color=theme.belief, zorder=3, clip_on=False)
    axes.set(xlim=(0.48, 1.02), ylim=(min(0.48, *found) - 0.02, 1.02))
    axes.set_xlabel("predicted probability of the likelier side", fontsize=8)
    axes.set_ylabel("how often it was chosen", fontsize=8)
    axes.set_title("choices held out", fontsize=9)
