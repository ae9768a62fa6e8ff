"""The corner plot on a page: the density core's, with the belief at every power as layers."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.figure import Figure

from llm_elicit.density.plots.figures import corner_panels, corner_places, fill_corner
from llm_elicit.density.plots.pairs import PanelPair, draw_belief_regions, is_noise, is_uncertain
from llm_elicit.density.plots.plot_data import PlotData
from llm_elicit.density.plots.style import LIGHT
from llm_elicit.report.layers import Layers, Rescaled, Shape, shapes_of, size_of
from llm_elicit.report.marginals import Samples, marginal_shapes
from llm_elicit.report.rendering import paint_grey
from llm_elicit.spaces.features import Floats

MOST = 10
"""Largest number of features of a corner plot."""


def draw_corner(samples: Samples, judge: str) -> tuple[Layers, Figure]:
    """Draw a judge's belief over the data: for the page, and as a figure with its legend.

    The panels are drawn once: their image is taken, the belief at every power is drawn on them and
    removed as shapes, and the saved belief is drawn last.
    """
    shown = replace(samples.shown(judge), bands=None)
    figure = corner_panels(shown)
    layers = _layers(figure, shown, samples.by_factor(judge), judge)
    fill_corner(figure, shown)
    return layers, figure


def _layers(figure: Figure, shown: PlotData, powers: dict[float, Floats], judge: str) -> Layers:
    """Return the corner plot for the page, with the belief at every power and without a legend."""
    backdrop = paint_grey(figure, "Panels", "Panels")
    shapes, rescaled, flat = list[Shape](), list[Rescaled](), set[int]()
    for axes, row, column in corner_places(figure, shown.dimension):
        if row == column:
            found, grown = marginal_shapes(axes, shown, powers, row)
            shapes += found
            rescaled.append(grown)
            continue
        pair = PanelPair.of(shown, column, row)
        for step, (factor, is_flat) in enumerate(flat_factors(shown, powers, pair).items()):
            if is_flat:
                flat.add(step)
            drawn = draw_belief_regions(axes, powers[factor], pair, is_flat, LIGHT)
            shapes += shapes_of(drawn, "belief", step)
    data = "the data in grey, " if shown.data is not None else ""
    return Layers(
        f"Belief of {judge}, two features at a time",
        f"Corner plot. Each panel shows two features: {data}lines around the highest-density "
        f"regions with 50 and 90 percent of the belief of {judge}.",
        *size_of(figure),
        tuple(shapes),
        tuple(rescaled),
        backdrop,
        tuple(sorted(flat)),
    )


def flat_factors(
    shown: PlotData, powers: dict[float, Floats], pair: PanelPair
) -> dict[float, bool]:
    """Return whether a judge's belief is flat over two features, by the factor of its power."""
    if pair.single:
        return dict.fromkeys(powers, False)
    uncertain = is_uncertain(pair, shown)
    return {
        factor: uncertain or is_noise(pair, points, shown.sampling)
        for factor, points in powers.items()
    }
