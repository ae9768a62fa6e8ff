"""Whole figures: all marginals, and the corner plot of every pair of features."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from llm_elicit.density.feature_axis import FeatureAxis, PlotData
from llm_elicit.density.plots.panels import (
    PanelPair,
    draw_marginal,
    draw_panel,
    draw_regions,
    dress_marginal,
    is_flat,
    legend,
)
from llm_elicit.density.plots.style import LIGHT, NotebookFigure, Theme, blank, wrapped

_COLUMNS = 4
_WIDE, _HIGH = 2.7, 2.1  # inches, of a marginal
_LEGEND = 0.2  # inches, of a row of the legend above the marginals
_ENTRY = 1.7  # inches, of an entry in it
_INSIDE = 0.85  # the width of a marginal's axis, relative to its panel
_PANEL = {2: 1.8, 3: 1.8, 4: 1.65, 5: 1.45}  # inches, by the number of features
_LEAST_PANEL = 1.3
_EDGE = 0.1  # inches
_SPACE = 0.08  # between panels, relative to their side
_SIZE, _TICKS = 8, 7  # points, of labels and tick labels
_MOST_TICKS = 4  # of an axis of a corner plot


def marginals_figure(plot: PlotData, theme: Theme = LIGHT) -> Figure:
    """Return all marginals in one figure, one panel per feature."""
    columns = min(_COLUMNS, plot.dimension)
    rows = -(-plot.dimension // columns)
    handles = legend(theme, plot.data is not None, plot.bands is not None)
    beside = min(len(handles), max(int(_WIDE * columns / _ENTRY), 1))
    above = _LEGEND * (1 - (-len(handles) // beside))
    figure = blank(_WIDE * columns, _HIGH * rows + above, theme)
    for column, axis in enumerate(plot.axes):
        axes = figure.add_subplot(rows, columns, column + 1)
        draw_marginal(axes, plot, column, theme)
        _name(axes.xaxis, axis, _INSIDE * _WIDE, theme)
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=beside,
        frameon=False,
        labelcolor=theme.ink,
        fontsize=_SIZE,
    )
    return figure


def corner_figure(plot: PlotData, theme: Theme = LIGHT) -> Figure:
    """Return the corner plot: a panel for every pair of features, marginals on the diagonal.

    Of one feature it is the marginal.
    """
    if plot.dimension == 1:
        return marginals_figure(plot, theme)
    figure = corner_panels(plot, theme)
    fill_corner(figure, plot, theme)
    return figure


def fill_corner(figure: Figure, plot: PlotData, theme: Theme = LIGHT) -> None:
    """Draw the belief, the marginals and the legend on the panels of a corner plot."""
    for axes, row, column in corner_places(figure, plot.dimension):
        if row == column:
            draw_marginal(axes, plot, row, theme, _MOST_TICKS)
            _label(axes, plot.axes, (column, row), theme)
        else:
            pair = PanelPair.of(plot, column, row)
            draw_regions(axes, plot.belief, pair, theme, flat=is_flat(pair, plot))
    handles = legend(theme, plot.data is not None, plot.bands is not None)
    figure.legend(
        handles=handles, loc="upper right", frameon=False, labelcolor=theme.ink, fontsize=_SIZE
    )


def corner_panels(plot: PlotData, theme: Theme = LIGHT) -> Figure:
    """Return the panels without a belief; marginals are empty, because their axes change."""
    d = plot.dimension
    figure = NotebookFigure(facecolor=theme.background)
    for row in range(d):
        for column in range(row + 1):
            axes = figure.add_subplot(d, d, row * d + column + 1)
            if row == column:
                dress_marginal(axes, plot.axes[row], theme, _MOST_TICKS)
            else:
                draw_panel(axes, plot, PanelPair.of(plot, column, row), theme, _MOST_TICKS)
            _label(axes, plot.axes, (column, row), theme)
    # Panels of a set size, and margins in which their labels fit: the constrained layout would take
    # seconds for this many panels.
    panels = _panel(d) * (d + _SPACE * (d - 1))
    below = [axes for axes, row, _ in corner_places(figure, d) if row == d - 1]
    beside = [axes for axes, _, column in corner_places(figure, d) if column == 0]
    figure.align_xlabels(below)
    figure.align_ylabels(beside)
    # Labels hang on panels of the final size, so they are measured on these.
    figure.set_size_inches(panels, panels)
    figure.subplots_adjust(0.0, 0.0, 1.0, 1.0, wspace=_SPACE, hspace=_SPACE)
    drawn = [*(axes.yaxis for axes in beside), *(axes.xaxis for axes in below)]
    boxes = [box for axis in drawn if (box := axis.get_tightbbox()) is not None]
    ends = min(0.0, *(box.x0 for box in boxes)), min(0.0, *(box.y0 for box in boxes))
    left, bottom = (_EDGE - end / figure.dpi for end in ends)
    wide, high = panels + left + _EDGE, panels + bottom + _EDGE
    figure.set_size_inches(wide, high)
    figure.subplots_adjust(
        left=left / wide, right=1.0 - _EDGE / wide, bottom=bottom / high, top=1.0 - _EDGE / high
    )
    return figure


def corner_places(figure: Figure, dimension: int) -> Iterator[tuple[Axes, int, int]]:
    """Yield every panel of a corner plot with its row and column."""
    rows, columns = np.tril_indices(dimension)
    yield from zip(figure.axes, rows.tolist(), columns.tolist(), strict=True)


def _panel(d: int) -> float:
    return _PANEL.get(d, _LEAST_PANEL)


def _label(
    axes: Axes, features: tuple[FeatureAxis, ...], place: tuple[int, int], theme: Theme
) -> None:
    """Label the outer panels only."""
    column, row = place
    room = _panel(len(features))
    axes.tick_params(labelsize=_TICKS, length=2)
    if row == len(features) - 1:
        _name(axes.xaxis, features[column], room, theme)
        for label in axes.get_xticklabels():
            label.set(rotation=45, ha="right", va="top", rotation_mode="anchor")
    else:
        axes.tick_params(labelbottom=False)
    if column == 0 and row > 0:
        _name(axes.yaxis, features[row], room, theme)
    else:
        axes.tick_params(labelleft=False)


def _name(drawn: Axis, axis: FeatureAxis, room: float, theme: Theme) -> None:
    label = wrapped(axis.label, room, _SIZE)
    drawn.set_label_text(label, fontsize=_SIZE, color=theme.ink, parse_math=False)
