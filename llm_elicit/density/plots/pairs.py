"""Panels of two features, for numbers and single values, and the test of a flat belief.

The variation of a density p relative to λ is ∑ (p − λ)² / λ over cells of a coarse grid, minus its
expectation for a finite number of points. It is compared with two noise levels: the variance of the
posterior draws around their mean, and that of the smoothed histogram that is drawn. If the
variation is below either, contour lines would show noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle
from scipy.ndimage import gaussian_filter

from llm_elicit.density.feature_axis import FeatureAxis
from llm_elicit.density.plots.plot_data import PlotData
from llm_elicit.density.plots.style import Theme, dress, set_axis

Array = npt.NDArray[np.float64]
CELLS = 36
"""Bins of a panel along a number."""
_MASSES = (0.9, 0.5)
_LINES = (0.8, 1.3)
_LARGEST = 0.9  # largest side of a frame, relative to their distance
_FRAMES = 20  # beside each other; lines of more of them are thinner
_COARSE = 6
_TIMES = 4.0
_USUAL = 25_000
_WIDTH, _WIDEST = 1.6, 3.0


@dataclass(frozen=True)
class PanelPair:
    """Two features and their columns among the points."""

    axes: tuple[FeatureAxis, FeatureAxis]
    columns: tuple[int, int]

    @classmethod
    def of(cls, plot: PlotData, column: int, row: int) -> PanelPair:
        """Return the pair of two features of a figure."""
        return cls((plot.axes[column], plot.axes[row]), (column, row))

    @property
    def single(self) -> bool:
        """Whether both features have single values, such as categories."""
        return all(axis.by_value for axis in self.axes)

    @property
    def edges(self) -> list[Array]:
        """The edges of the cells of a belief, along either axis."""
        return [axis.edges(axis.finer * CELLS) for axis in self.axes]

    def shares(self, points: Array) -> Array:
        """Return the shares of points (..., n, d) in the cells of a coarse grid, (..., c)."""
        cell, cells = np.zeros(points.shape[:-1], dtype=np.int64), 1
        for axis, column in zip(self.axes, self.columns, strict=True):
            inner = axis.edges(_COARSE)[1:-1]
            cell = cell * (len(inner) + 1) + np.searchsorted(inner, points[..., column], "right")
            cells *= len(inner) + 1
        flat = cell.reshape(-1, points.shape[-2])
        numbered = flat + cells * np.arange(len(flat))[:, None]
        counts = np.bincount(numbered.ravel(), minlength=cells * len(flat))
        return np.asarray(counts.reshape(*points.shape[:-2], cells) / points.shape[-2])


def draw_panel(axes: Axes, plot: PlotData, pair: PanelPair, theme: Theme, most: int) -> None:
    """Draw the axes of two features, with at most ``most`` ticks, and the data between them."""
    if plot.data is not None:
        edges = [axis.edges(CELLS) for axis in pair.axes]
        counts = histogram(plot.data[:, pair.columns], edges)
        image = np.sqrt(counts.T / max(counts.max(), 1))
        shades = ramp(theme, theme.ink)
        axes.pcolormesh(*edges, image, cmap=shades, vmin=0, vmax=1.6, rasterized=True)
    dress(axes, theme)
    set_axis(axes, "x", pair.axes[0], most)
    set_axis(axes, "y", pair.axes[1], most)


def draw_belief_regions(
    axes: Axes, points: Array, pair: PanelPair, flat: bool, theme: Theme
) -> list[Artist]:
    """Draw a belief's points (n, d) as `draw_regions`, or label it as flat."""
    return draw_flat(axes, theme) if flat else draw_regions(axes, points, pair, theme)


def draw_regions(axes: Axes, points: Array, pair: PanelPair, theme: Theme) -> list[Artist]:
    """Draw the densest regions of a belief's points (n, d).

    Single values, such as categories, are not smoothed: a region is one line per value. For two
    such features the areas of frames are the belief's shares.
    """
    edges, width = pair.edges, smoothing(len(points))
    centres = [(e[:-1] + e[1:]) / 2 for e in edges]
    single = [axis.by_value for axis in pair.axes]
    density = gaussian_filter(
        histogram(points[:, pair.columns], edges),
        [0.0 if is_discrete else width for is_discrete in single],
        mode=["wrap" if axis.periodic else "reflect" for axis in pair.axes],
    )
    if all(single):
        return [_draw_frames(axes, density / density.sum(), centres, theme)]
    levels = _levels(density)
    if any(single):
        at = centres[0] if single[0] else centres[1]
        return _draw_lines(axes, density, edges, at, levels, single[0], theme)
    if not levels:
        return []
    lines: dict[str, Any] = {"colors": theme.belief, "linewidths": _LINES[-len(levels) :]}
    return [axes.contour(*centres, density.T, levels=levels, **lines)]


def draw_flat(axes: Axes, theme: Theme) -> list[Artist]:
    """Label a panel as flat."""
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8, "color": theme.belief}
    return [axes.text(0.5, 0.5, "flat", transform=axes.transAxes, **style)]


def _draw_frames(axes: Axes, shares: Array, centres: list[Array], theme: Theme) -> Artist:
    """Draw a frame for each pair of single values, with an area proportional to its share."""
    sides, (x, y) = _LARGEST * np.sqrt(shares / shares.max()), centres
    frames = [
        Rectangle((x[i] - side / 2, y[j] - side / 2), side, side)
        for (i, j), side in np.ndenumerate(sides)
        if side > 0.0
    ]
    width = _LINES[-1] * min(1.0, _FRAMES / max(shares.shape))
    outlines = PatchCollection(frames, facecolor="none", edgecolor=theme.belief, linewidth=width)
    axes.add_collection(outlines)
    return outlines


def _draw_lines(
    axes: Axes,
    density: Array,
    edges: list[Array],
    at: Array,
    levels: list[float],
    upright: bool,
    theme: Theme,
) -> list[Artist]:
    """Draw highest-density regions over single values and a number as lines, thick for 50 %."""
    rows, ends_of = (density, edges[1]) if upright else (density.T, edges[0])
    draw, drawn = axes.vlines if upright else axes.hlines, list[Artist]()
    for level, width in zip(levels, (0.8, 2.6), strict=False):
        dense = np.pad((rows >= level).astype(int), ((0, 0), (1, 1)))
        (row, start), (_, end) = (np.nonzero(np.diff(dense) == step) for step in (1, -1))
        drawn.append(draw(at[row], ends_of[start], ends_of[end], colors=theme.belief, lw=width))
    return drawn


def histogram(points: Array, edges: list[Array]) -> Array:
    """Return counts of points (n, 2) in cells; those off the axes are not counted."""
    counts: Array = np.histogram2d(points[:, 0], points[:, 1], bins=edges)[0]
    return counts


def _levels(density: Array) -> list[float]:
    """Return the density levels whose regions hold the masses in `_MASSES`, increasing."""
    order = np.sort(density.ravel())[::-1]
    mass = np.cumsum(order) / order.sum()
    levels = [float(order[np.searchsorted(mass, share)]) for share in _MASSES]
    return sorted({level for level in levels if 0 < level < order[0]})


def ramp(theme: Theme, colour: str) -> LinearSegmentedColormap:
    """Return a colour map from the background to ``colour``."""
    return LinearSegmentedColormap.from_list("ramp", [theme.background, colour])


def smoothing(count: int) -> float:
    """Return the standard deviation, in bins, of the kernel for a panel of ``count`` points.

    Example:
        >>> smoothing(25_000), round(smoothing(4_000), 1)
        (1.6, 2.2)
    """
    return float(min(_WIDTH * (_USUAL / count) ** (1 / 6), _WIDEST))


def is_flat(pair: PanelPair, plot: PlotData) -> bool:
    """Return whether a belief cannot be told apart from λ in a panel; see the module's text.

    Of two features of single values the shares are drawn as they are, so that a belief is never
    called flat.
    """
    if pair.single:
        return False
    return is_noise(pair, plot.belief, plot.sampling) or is_uncertain(pair, plot)


def is_noise(pair: PanelPair, points: Array, sampling: Array) -> bool:
    """Return whether points vary by less than four times the noise of their drawn histogram."""
    cells = CELLS**2 * pair.axes[0].finer * pair.axes[1].finer
    noise = cells / (len(points) * 4 * math.pi * smoothing(len(points)) ** 2)
    return _variation(pair, points, sampling) < _TIMES * noise


def is_uncertain(pair: PanelPair, plot: PlotData) -> bool:
    """Return whether a belief varies by less than its posterior's draws do around it.

    Multiplying the utility by a constant multiplies both by the constant's square, to first order.
    """
    if plot.draws is None:
        return False
    flat = pair.shares(plot.sampling)
    occupied = flat > 0
    shares = pair.shares(plot.draws)[:, occupied]
    spread = shares.var(axis=0, ddof=1) - _scatter(shares.mean(axis=0), plot.draws.shape[1])
    return _variation(pair, plot.belief, plot.sampling) < float((spread / flat[occupied]).sum())


def _variation(pair: PanelPair, points: Array, sampling: Array) -> float:
    p, flat = pair.shares(points), pair.shares(sampling)
    occupied = flat > 0
    p, flat = p[occupied], flat[occupied]
    chance = _scatter(p, len(points)) + _scatter(flat, len(sampling))
    return float((((p - flat) ** 2 - chance) / flat).sum())


def _scatter(shares: Array, count: int) -> Array:
    """Return the variance of a share of ``count`` points."""
    return shares * (1.0 - shares) / count
