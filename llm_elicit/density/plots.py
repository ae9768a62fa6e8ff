"""Figures of a belief: marginals and the corner plot. They need Matplotlib; the core does not.

A panel of two features shows contour lines only if the belief differs there from λ by more than
noise; otherwise it is labelled "flat". The difference of a density p from λ is ∑ (p − λ)² / λ over
the cells of a coarse grid, minus its expectation from the finite numbers of points. It is compared
with two noise levels: the variance of the posterior draws around their mean, and the variance of
the smoothed histogram that is drawn. If it is below either, the panel is flat.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import PatchCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from scipy.ndimage import gaussian_filter

from llm_elicit.density import plot_style
from llm_elicit.density.errors import Array
from llm_elicit.density.feature_axis import BINS, Band, FeatureAxis, PlotData
from llm_elicit.density.plot_style import Theme

CELLS = 36
"""Bins of a panel along a number."""

# Panels of two features
_MASSES = (0.9, 0.5)  # shares of the belief inside the contour lines
_CONTOUR_WIDTHS = (0.8, 1.3)  # widths of these lines, points
_MAX_SIDE = 0.9  # largest side of a frame, relative to the distance of frames
_MAX_FRAMES = 20  # if more frames are side by side, their lines are thinner
_COARSE_CELLS = 6  # cells along a number for the test of a flat belief
_NOISE_FACTOR = 4.0  # the difference from λ must exceed this many times the noise of the histogram
_USUAL_POINTS = 25_000  # usual number of points
_SMOOTHING = 1.6  # bins, of the smoothing kernel for that number of points
_MAX_SMOOTHING = 3.0  # bins

# Panels of one feature
_BAR_WIDTH = 0.8  # width of a category's bar, relative to the distance of bars
_LINE_WIDTH = 1.6  # points
_BAND_OPACITY = 0.28  # opacity of a band

# Figures
_COLUMNS = 4
_WIDE, _HIGH = 2.7, 2.1  # inches, of a marginal
_LEGEND = 0.2  # inches, of a row of the legend above the marginals
_ENTRY = 1.7  # inches, of an entry of the legend
_INSIDE = 0.85  # the width of a marginal's axis, relative to its panel
_PANEL = {2: 1.8, 3: 1.8, 4: 1.65, 5: 1.45}  # inches, by the number of features
_MIN_PANEL = 1.3
_EDGE = 0.1  # inches
_SPACE = 0.08  # between panels, relative to their side
_SIZE, _TICKS = 8, 7  # points, of labels and tick labels
_MAX_TICKS = 4  # of an axis of a corner plot


@dataclass(frozen=True)
class PanelPair:
    """Two features and their columns among the points."""

    axes: tuple[FeatureAxis, FeatureAxis]
    columns: tuple[int, int]

    @classmethod
    def from_plot(cls, plot: PlotData, column: int, row: int) -> PanelPair:
        """Return the pair of two features of a figure."""
        return cls((plot.axes[column], plot.axes[row]), (column, row))

    @property
    def is_discrete(self) -> bool:
        """Whether both features have single values, such as categories."""
        return all(axis.is_discrete for axis in self.axes)

    @property
    def edges(self) -> list[Array]:
        """The edges of the cells of a belief, along either axis."""
        return [axis.edges(axis.refinement * CELLS) for axis in self.axes]

    def shares(self, points: Array) -> Array:
        """Return the shares of points (..., n, d) in the cells of a coarse grid, (..., c)."""
        cell, cells = np.zeros(points.shape[:-1], dtype=np.int64), 1
        for axis, column in zip(self.axes, self.columns, strict=True):
            inner = axis.edges(_COARSE_CELLS)[1:-1]
            cell = cell * (len(inner) + 1) + np.searchsorted(inner, points[..., column], "right")
            cells *= len(inner) + 1
        flat = cell.reshape(-1, points.shape[-2])
        numbered = flat + cells * np.arange(len(flat))[:, None]
        counts = np.bincount(numbered.ravel(), minlength=cells * len(flat))
        return np.asarray(counts.reshape(*points.shape[:-2], cells) / points.shape[-2])


def draw_panel(axes: Axes, plot: PlotData, pair: PanelPair, theme: Theme, max_ticks: int) -> None:
    """Draw the axes of two features with at most ``max_ticks`` ticks, and the data."""
    if plot.data is not None:
        edges = [axis.edges(CELLS) for axis in pair.axes]
        counts = histogram(plot.data[:, pair.columns], edges)
        image = np.sqrt(counts.T / max(counts.max(), 1))
        shades = colour_map(theme, theme.ink)
        axes.pcolormesh(*edges, image, cmap=shades, vmin=0, vmax=1.6, rasterized=True)
    plot_style.style_axes(axes, theme)
    plot_style.set_axis(axes, "x", pair.axes[0], max_ticks)
    plot_style.set_axis(axes, "y", pair.axes[1], max_ticks)


def draw_regions(
    axes: Axes, points: Array, pair: PanelPair, theme: Theme, *, flat: bool = False
) -> list[Artist]:
    """Draw the densest regions of a belief's points (n, d), or label them as ``flat``.

    Features of single values, such as categories, are not smoothed. With one such feature, a region
    is a line per value. With two, each pair of values has a frame with an area proportional to the
    belief's share.
    """
    if flat:
        style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
        return [axes.text(0.5, 0.5, "flat", transform=axes.transAxes, color=theme.belief, **style)]
    edges, width = pair.edges, smoothing_width(len(points))
    centres = [(e[:-1] + e[1:]) / 2 for e in edges]
    discrete = [axis.is_discrete for axis in pair.axes]
    density = gaussian_filter(
        histogram(points[:, pair.columns], edges),
        [0.0 if is_discrete else width for is_discrete in discrete],
        mode=["wrap" if axis.periodic else "reflect" for axis in pair.axes],
    )
    if all(discrete):
        # A frame for each pair of single values, with an area proportional to its share.
        shares, (x, y) = density / density.sum(), centres
        frames = [
            Rectangle((x[i] - side / 2, y[j] - side / 2), side, side)
            for (i, j), side in np.ndenumerate(_MAX_SIDE * np.sqrt(shares / shares.max()))
            if side > 0.0
        ]
        thin = _CONTOUR_WIDTHS[-1] * min(1.0, _MAX_FRAMES / max(shares.shape))
        outlines = PatchCollection(frames, facecolor="none", edgecolor=theme.belief, linewidth=thin)
        axes.add_collection(outlines)
        return [outlines]
    # The density levels whose regions hold the masses, increasing.
    order = np.sort(density.ravel())[::-1]
    mass = np.cumsum(order) / order.sum()
    level_values = {float(order[np.searchsorted(mass, share)]) for share in _MASSES}
    levels = sorted(level for level in level_values if 0 < level < order[0])
    if any(discrete):
        # One feature has single values: a line along the other for each value, thick for 50 %.
        vertical, lines = discrete[0], list[Artist]()
        values, ends = (centres[0], edges[1]) if vertical else (centres[1], edges[0])
        draw_lines = axes.vlines if vertical else axes.hlines
        for level, thickness in zip(levels, (0.8, 2.6), strict=False):
            dense = (density if vertical else density.T) >= level
            changes = np.diff(np.pad(dense.astype(int), ((0, 0), (1, 1))))
            (row, start), (_, end) = np.nonzero(changes == 1), np.nonzero(changes == -1)
            spans = values[row], ends[start], ends[end]
            lines.append(draw_lines(*spans, colors=theme.belief, lw=thickness))
        return lines
    if not levels:
        return []
    widths = _CONTOUR_WIDTHS[-len(levels) :]
    return [axes.contour(*centres, density.T, levels, colors=theme.belief, linewidths=widths)]


def histogram(points: Array, edges: list[Array]) -> Array:
    """Return counts of points (n, 2) in cells; those off the axes are not counted."""
    counts: Array = np.histogram2d(points[:, 0], points[:, 1], bins=edges)[0]
    return counts


def colour_map(theme: Theme, colour: str) -> LinearSegmentedColormap:
    """Return a colour map from the background to ``colour``."""
    return LinearSegmentedColormap.from_list("ramp", [theme.background, colour])


def smoothing_width(count: int) -> float:
    """Return the standard deviation, in bins, of the kernel for a panel of ``count`` points.

    Examples:
        >>> smoothing_width(25_000), round(smoothing_width(4_000), 1)
        (1.6, 2.2)
    """
    return float(min(_SMOOTHING * (_USUAL_POINTS / count) ** (1 / 6), _MAX_SMOOTHING))


def is_flat(pair: PanelPair, plot: PlotData) -> bool:
    """Return whether a belief cannot be told apart from λ in a panel; see the module's text.

    If both features have single values, the belief's shares are drawn without smoothing, and a
    belief is never called flat.
    """
    if pair.is_discrete:
        return False
    return is_within_noise(pair, plot.belief, plot.sampling) or is_within_posterior(pair, plot)


def is_within_noise(pair: PanelPair, points: Array, sampling: Array) -> bool:
    """Return whether points differ from λ by less than the noise of their drawn histogram."""
    cells = CELLS**2 * pair.axes[0].refinement * pair.axes[1].refinement
    noise = cells / (len(points) * 4 * math.pi * smoothing_width(len(points)) ** 2)
    return _difference_from_sampling(pair, points, sampling) < _NOISE_FACTOR * noise


def is_within_posterior(pair: PanelPair, plot: PlotData) -> bool:
    """Return whether a belief differs from λ by less than its posterior draws from the belief.

    Multiplying the utility by a constant multiplies both differences by the constant's square, to
    first order, so that the result hardly depends on the power.
    """
    if plot.draws is None:
        return False
    reference = pair.shares(plot.sampling)
    has_mass = reference > 0
    shares = pair.shares(plot.draws)[:, has_mass]
    chance = _binomial_variance(shares.mean(axis=0), plot.draws.shape[1])
    variance = (shares.var(axis=0, ddof=1) - chance) / reference[has_mass]
    return _difference_from_sampling(pair, plot.belief, plot.sampling) < float(variance.sum())


def _difference_from_sampling(pair: PanelPair, points: Array, sampling: Array) -> float:
    """Return ∑ (p − λ)² / λ over a coarse grid, minus its expectation by chance."""
    p, reference = pair.shares(points), pair.shares(sampling)
    has_mass = reference > 0
    p, reference = p[has_mass], reference[has_mass]
    chance = _binomial_variance(p, len(points)) + _binomial_variance(reference, len(sampling))
    return float((((p - reference) ** 2 - chance) / reference).sum())


def _binomial_variance(shares: Array, count: int) -> Array:
    """Return the variances of shares that were estimated from ``count`` points."""
    return shares * (1.0 - shares) / count


def draw_marginal(
    axes: Axes, plot: PlotData, column: int, theme: Theme, max_ticks: int = 5
) -> None:
    """Draw data, λ, a belief and its band on styled axes with at most ``max_ticks`` ticks."""
    axis, belief = plot.axes[column], plot.belief[:, column]
    style_marginal(axes, axis, theme, max_ticks)
    draw_data(axes, plot, column, theme)
    draw_sampling(axes, plot, column, theme)
    draw_belief(axes, axis, belief, theme)
    axes.set_ylim(0, density_axis_limit(plot, belief, column))
    if plot.bands is not None:
        draw_band(axes, axis, plot.bands[column], theme)


def density_axis_limit(plot: PlotData, belief: Array, column: int) -> float:
    """Return the upper end of a marginal's density axis, above data, λ and belief (n,)."""
    axis = plot.axes[column]
    lines = [axis.density_line(plot.sampling[:, column]), axis.density_line(belief)]
    if plot.data is not None:
        lines.append(axis.data_histogram(plot.data[:, column]))
    return 1.05 * float(np.concatenate(lines).max())


def style_marginal(axes: Axes, axis: FeatureAxis, theme: Theme, max_ticks: int = 5) -> None:
    """Style the axes of one feature: its range below, no density axis."""
    plot_style.style_axes(axes, theme)
    axes.spines["left"].set_visible(False)
    axes.set_yticks([])
    plot_style.set_axis(axes, "x", axis, max_ticks)


def draw_data(axes: Axes, plot: PlotData, column: int, theme: Theme) -> list[Artist]:
    """Draw the data as bars, if there are any."""
    axis = plot.axes[column]
    if plot.data is None:
        return []
    bars = axis.data_histogram(plot.data[:, column])
    if axis.is_discrete:
        return list(axes.bar(axis.centres, bars, _BAR_WIDTH, color=theme.data))
    return [axes.stairs(bars, axis.edges(BINS), fill=True, color=theme.data)]


def draw_sampling(axes: Axes, plot: PlotData, column: int, theme: Theme) -> list[Artist]:
    """Draw λ as a dashed line."""
    axis = plot.axes[column]
    dashes = (0, (2, 1)) if axis.is_discrete else (0, (4, 2))
    return _draw_line(axes, axis, plot.sampling[:, column], theme.sampling, dashes)


def draw_belief(axes: Axes, axis: FeatureAxis, values: Array, theme: Theme) -> list[Artist]:
    """Draw a belief, by its values (n,) of the feature, as a line."""
    return _draw_line(axes, axis, values, theme.belief, "solid")


def draw_band(axes: Axes, axis: FeatureAxis, band: Band, theme: Theme) -> list[Artist]:
    """Draw a belief's band as a shaded area, which may leave the axes where it is far above."""
    top = band_top(axes.get_ylim()[1], axis, band)
    axes.set_ylim(top=top)
    shade: dict[str, Any] = {"color": theme.belief, "alpha": _BAND_OPACITY, "linewidth": 0}
    if axis.is_discrete:
        height = np.subtract(band.high, band.low)
        return list(axes.bar(band.centres, height, _BAR_WIDTH, band.low, **shade))
    return [axes.fill_between(band.centres, band.low, np.minimum(band.high, top), **shade)]


def band_top(top: float, axis: FeatureAxis, band: Band) -> float:
    """Return the upper end of the axis of densities for a band, given the end without it.

    The band of few answers rises steeply at the ends of a range, where it would leave no room for
    what is known. It takes up to as much room as the rest.
    """
    highest = 1.05 * float(np.max(band.high))
    return max(top, highest if axis.is_discrete else min(highest, 2.0 * top))


def legend_handles(theme: Theme, data: bool, bands: bool = False) -> list[Patch | Line2D]:
    """Return the handles of a figure's legend."""
    handles: list[Patch | Line2D] = [Patch(color=theme.data, label="data")] if data else []
    if bands:
        label = "90 % band of the belief"
        handles.append(Patch(color=theme.belief, alpha=_BAND_OPACITY, label=label))
    return [
        *handles,
        Line2D([], [], color=theme.belief, label="belief"),
        Line2D([], [], color=theme.sampling, linestyle="dashed", label="sampling density λ"),
    ]


def _draw_legend(
    figure: Figure, handles: list[Patch | Line2D], theme: Theme, **placement: Any
) -> None:
    style: dict[str, Any] = {"frameon": False, "labelcolor": theme.ink, "fontsize": _SIZE}
    figure.legend(handles=handles, **style, **placement)


def _draw_line(
    axes: Axes,
    axis: FeatureAxis,
    values: Array,
    colour: str,
    dashes: str | tuple[int, tuple[int, int]],
) -> list[Artist]:
    """Draw a density as a line; for a feature of single values, a horizontal line per value."""
    style: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": _LINE_WIDTH}
    line, at = axis.density_line(values), axis.centres
    if axis.is_discrete:
        return [axes.hlines(line, at - _BAR_WIDTH / 2, at + _BAR_WIDTH / 2, **style)]
    return list(axes.plot(at, line, **style))


def marginals_figure(plot: PlotData, theme: Theme = plot_style.LIGHT) -> Figure:
    """Return all marginals in one figure, one panel per feature."""
    columns = min(_COLUMNS, plot.dimension)
    rows = -(-plot.dimension // columns)
    handles = legend_handles(theme, plot.data is not None, plot.bands is not None)
    handles_per_row = min(len(handles), max(int(_WIDE * columns / _ENTRY), 1))
    legend_height = _LEGEND * (1 - (-len(handles) // handles_per_row))
    figure = plot_style.empty_figure(_WIDE * columns, _HIGH * rows + legend_height, theme)
    for column, axis in enumerate(plot.axes):
        axes = figure.add_subplot(rows, columns, column + 1)
        draw_marginal(axes, plot, column, theme)
        _set_label(axes.xaxis, axis, _INSIDE * _WIDE, theme)
    _draw_legend(figure, handles, theme, loc="outside upper center", ncols=handles_per_row)
    return figure


def corner_figure(plot: PlotData, theme: Theme = plot_style.LIGHT) -> Figure:
    """Return the corner plot: a panel for every pair of features, marginals on the diagonal.

    With one feature, it is the figure of the marginal.
    """
    if plot.dimension == 1:
        return marginals_figure(plot, theme)
    figure = empty_corner(plot, theme)
    fill_corner(figure, plot, theme)
    return figure


def fill_corner(figure: Figure, plot: PlotData, theme: Theme = plot_style.LIGHT) -> None:
    """Draw the belief, the marginals and the legend on the panels of a corner plot."""
    for axes, row, column in iterate_panels(figure, plot.dimension):
        if row == column:
            draw_marginal(axes, plot, row, theme, _MAX_TICKS)
            _label_outer_panels(axes, plot.axes, (column, row), theme)
        else:
            pair = PanelPair.from_plot(plot, column, row)
            draw_regions(axes, plot.belief, pair, theme, flat=is_flat(pair, plot))
    handles = legend_handles(theme, plot.data is not None, plot.bands is not None)
    _draw_legend(figure, handles, theme, loc="upper right")


def empty_corner(plot: PlotData, theme: Theme = plot_style.LIGHT) -> Figure:
    """Return the corner plot without a belief; marginals are empty until their scale is known."""
    d = plot.dimension
    figure = plot_style.NotebookFigure(facecolor=theme.background)
    for row in range(d):
        for column in range(row + 1):
            axes = figure.add_subplot(d, d, row * d + column + 1)
            if row == column:
                style_marginal(axes, plot.axes[row], theme, _MAX_TICKS)
            else:
                draw_panel(axes, plot, PanelPair.from_plot(plot, column, row), theme, _MAX_TICKS)
            _label_outer_panels(axes, plot.axes, (column, row), theme)
    # Panels have a fixed size and margins that fit their labels. Matplotlib's constrained layout
    # would take seconds for this many panels.
    panels_size = _panel_side(d) * (d + _SPACE * (d - 1))
    bottom_row = [axes for axes, row, _ in iterate_panels(figure, d) if row == d - 1]
    left_column = [axes for axes, _, column in iterate_panels(figure, d) if column == 0]
    figure.align_xlabels(bottom_row)
    figure.align_ylabels(left_column)
    # The size of the labels is measured with panels of the final size.
    figure.set_size_inches(panels_size, panels_size)
    figure.subplots_adjust(0.0, 0.0, 1.0, 1.0, wspace=_SPACE, hspace=_SPACE)
    axes_with_labels = [*(axes.yaxis for axes in left_column), *(axes.xaxis for axes in bottom_row)]
    boxes = [box for axis in axes_with_labels if (box := axis.get_tightbbox()) is not None]
    overhang = min(0.0, *(box.x0 for box in boxes)), min(0.0, *(box.y0 for box in boxes))
    left, bottom = (_EDGE - end / figure.dpi for end in overhang)
    wide, high = panels_size + left + _EDGE, panels_size + bottom + _EDGE
    figure.set_size_inches(wide, high)
    figure.subplots_adjust(
        left=left / wide, right=1.0 - _EDGE / wide, bottom=bottom / high, top=1.0 - _EDGE / high
    )
    return figure


def iterate_panels(figure: Figure, dimension: int) -> Iterator[tuple[Axes, int, int]]:
    """Yield every panel of a corner plot with its row and column."""
    rows, columns = np.tril_indices(dimension)
    yield from zip(figure.axes, rows.tolist(), columns.tolist(), strict=True)


def _panel_side(d: int) -> float:
    return _PANEL.get(d, _MIN_PANEL)


def _label_outer_panels(
    axes: Axes, features: tuple[FeatureAxis, ...], panel: tuple[int, int], theme: Theme
) -> None:
    """Label the outer panels only."""
    column, row = panel
    side = _panel_side(len(features))
    axes.tick_params(labelsize=_TICKS, length=2)
    if row == len(features) - 1:
        _set_label(axes.xaxis, features[column], side, theme)
        for label in axes.get_xticklabels():
            label.set(rotation=45, ha="right", va="top", rotation_mode="anchor")
    else:
        axes.tick_params(labelbottom=False)
    if column == 0 and row > 0:
        _set_label(axes.yaxis, features[row], side, theme)
    else:
        axes.tick_params(labelleft=False)


def _set_label(matplotlib_axis: Axis, axis: FeatureAxis, width: float, theme: Theme) -> None:
    label = plot_style.wrap_label(axis.label, width, _SIZE)
    matplotlib_axis.set_label_text(label, fontsize=_SIZE, color=theme.ink, parse_math=False)
