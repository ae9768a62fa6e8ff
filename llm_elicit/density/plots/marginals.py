"""Marginal densities: data, λ, a belief and its band over one feature."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from llm_elicit.density.feature_axis import BINS, FeatureAxis
from llm_elicit.density.plots.plot_data import Band, PlotData
from llm_elicit.density.plots.style import Theme, dress, set_axis

Array = npt.NDArray[np.float64]
_BAR = 0.8  # the width of a category's bar, relative to their distance
_LINE = 1.6
_SHADE = 0.28


def draw_marginal(axes: Axes, plot: PlotData, column: int, theme: Theme, most: int = 5) -> None:
    """Draw data, λ, a belief and its band on styled axes with at most ``most`` ticks."""
    axis, belief = plot.axes[column], plot.belief[:, column]
    dress_marginal(axes, axis, theme, most)
    draw_data(axes, plot, column, theme)
    draw_sampling(axes, plot, column, theme)
    draw_belief(axes, axis, belief, theme)
    axes.set_ylim(0, top_of(plot, belief, column))
    if plot.bands is not None:
        draw_band(axes, axis, plot.bands[column], theme)


def top_of(plot: PlotData, belief: Array, column: int) -> float:
    """Return the upper end of a marginal's density axis, above data, λ and belief (n,)."""
    axis = plot.axes[column]
    lines = [axis.line(plot.sampling[:, column]), axis.line(belief)]
    if plot.data is not None:
        lines.append(axis.bars(plot.data[:, column]))
    return 1.05 * float(np.concatenate(lines).max())


def dress_marginal(axes: Axes, axis: FeatureAxis, theme: Theme, most: int = 5) -> None:
    """Style the axes of one feature: its range below, no density axis."""
    dress(axes, theme)
    axes.spines["left"].set_visible(False)
    axes.set_yticks([])
    set_axis(axes, "x", axis, most)


def draw_data(axes: Axes, plot: PlotData, column: int, theme: Theme) -> list[Artist]:
    """Draw the data as bars, if there are any."""
    axis = plot.axes[column]
    if plot.data is None:
        return []
    bars = axis.bars(plot.data[:, column])
    if axis.by_value:
        return list(axes.bar(axis.centres, bars, _BAR, color=theme.data))
    return [axes.stairs(bars, axis.edges(BINS), fill=True, color=theme.data)]


def draw_sampling(axes: Axes, plot: PlotData, column: int, theme: Theme) -> list[Artist]:
    """Draw λ as a dashed line."""
    axis = plot.axes[column]
    dashes = (0, (2, 1)) if axis.by_value else (0, (4, 2))
    return _draw_line(axes, axis, plot.sampling[:, column], theme.sampling, dashes)


def draw_belief(axes: Axes, axis: FeatureAxis, values: Array, theme: Theme) -> list[Artist]:
    """Draw a belief, by its values (n,) of the feature, as a line."""
    return _draw_line(axes, axis, values, theme.belief, "solid")


def draw_band(axes: Axes, axis: FeatureAxis, band: Band, theme: Theme) -> list[Artist]:
    """Draw a belief's band as a shaded area."""
    axes.set_ylim(top=max(axes.get_ylim()[1], 1.05 * float(np.max(band.high))))
    shade: dict[str, Any] = {"color": theme.belief, "alpha": _SHADE, "linewidth": 0}
    if axis.by_value:
        height = np.subtract(band.high, band.low)
        return list(axes.bar(band.at, height, _BAR, band.low, **shade))
    return [axes.fill_between(band.at, band.low, band.high, **shade)]


def legend(theme: Theme, data: bool, bands: bool = False) -> list[Patch | Line2D]:
    """Return the handles of a figure's legend."""
    handles: list[Patch | Line2D] = [Patch(color=theme.data, label="data")] if data else []
    if bands:
        label = "90 % band of the belief"
        handles.append(Patch(color=theme.belief, alpha=_SHADE, label=label))
    return [
        *handles,
        Line2D([], [], color=theme.belief, label="belief"),
        Line2D([], [], color=theme.sampling, linestyle="dashed", label="sampling density λ"),
    ]


def _draw_line(
    axes: Axes,
    axis: FeatureAxis,
    values: Array,
    colour: str,
    dashes: str | tuple[int, tuple[int, int]],
) -> list[Artist]:
    """Draw a density as a line; of single values, one horizontal line each."""
    style: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": _LINE}
    line, at = axis.line(values), axis.centres
    if axis.by_value:
        return [axes.hlines(line, at - _BAR / 2, at + _BAR / 2, **style)]
    return list(axes.plot(at, line, **style))
