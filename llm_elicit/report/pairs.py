"""Two features at a time: the panels of the corner plot, for numbers and for categories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle
from scipy.ndimage import gaussian_filter

from llm_elicit.audit.distance import bin_edges
from llm_elicit.audit.summary import BeliefBands
from llm_elicit.features import FeatureSpace, Floats
from llm_elicit.report.style import Theme, dress, set_axis

_CORNER_BINS = 36
_MASSES = (0.9, 0.5)
_LINES = (0.8, 1.3)
_WIDEST = 0.9  # of a frame, of its place


@dataclass(frozen=True)
class Samples:
    """What figures are drawn from: points in natural units, `(n, d)` each.

    Attributes:
        space: the feature space.
        sampling: draws from λ.
        data: the reference table's points, or None.
        beliefs: each judge's belief samples, by the judge's name.
        bands: the beliefs' credible bands, of those that have them.
    """

    space: FeatureSpace
    sampling: Floats
    data: Floats | None = None
    beliefs: Mapping[str, Floats] = field(default_factory=dict)
    bands: Mapping[str, BeliefBands] = field(default_factory=dict)


def draw_pair(
    axes: Axes, samples: Samples, belief: Floats, columns: tuple[int, int], theme: Theme
) -> None:
    """A panel of the corner plot: the belief's densest regions over the data.

    Along categories nothing is smoothed: a region is lines, one a category; of two features with
    categories the belief is frames, whose areas are its shares.
    """
    features = [samples.space.features[i] for i in columns]
    edges = [bin_edges(feature, _CORNER_BINS) for feature in features]
    if samples.data is not None:
        counts = histogram(samples.data[:, columns], edges)
        image = np.sqrt(counts.T / max(counts.max(), 1))
        axes.pcolormesh(
            *edges, image, cmap=ramp(theme, theme.ink), vmin=0, vmax=1.6, rasterized=True
        )
    words = [bool(feature.categories) for feature in features]
    density = gaussian_filter(
        histogram(belief[:, columns], edges), [0.0 if w else 1.6 for w in words], mode="reflect"
    )
    levels = _levels(density)
    if all(words):
        _draw_frames(axes, density / density.sum(), theme)
    elif any(words):
        _draw_lines(axes, density, edges, levels, words[0], theme)
    elif levels:
        centres = [(e[:-1] + e[1:]) / 2 for e in edges]
        axes.contour(*centres, density.T, levels=levels, colors=theme.belief, linewidths=_LINES)
    dress(axes, theme)
    set_axis(axes, "x", features[0], most=4)
    set_axis(axes, "y", features[1], most=4)


def _draw_frames(axes: Axes, shares: Floats, theme: Theme) -> None:
    """A frame for each two categories; the largest share's fills its place."""
    sides = np.ndenumerate(_WIDEST * np.sqrt(shares / shares.max()))
    frames = [Rectangle((i - side / 2, j - side / 2), side, side) for (i, j), side in sides]
    outlines = PatchCollection(frames, facecolor="none", edgecolor=theme.belief, linewidth=1.3)
    axes.add_collection(outlines)


def _draw_lines(
    axes: Axes,
    density: Floats,
    edges: list[Floats],
    levels: list[float],
    upright: bool,
    theme: Theme,
) -> None:
    """The densest regions over categories and a number: thin lines, and thick ones within."""
    rows, ends_of = (density, edges[1]) if upright else (density.T, edges[0])
    draw = axes.vlines if upright else axes.hlines
    for level, width in zip(levels, (0.8, 2.6), strict=False):
        for code, row in enumerate(rows):
            dense = np.concatenate([[False], row >= level, [False]])
            starts, ends = (np.flatnonzero(np.diff(dense.astype(int)) == step) for step in (1, -1))
            if len(starts):
                at = np.full(len(starts), code)
                draw(at, ends_of[starts], ends_of[ends], color=theme.belief, linewidth=width)


def histogram(points: Floats, edges: list[Floats]) -> Floats:
    """Counts in cells between edges of points `(n, 2)`; those beyond in the outermost."""
    x, y = (np.clip(points[:, i], edges[i][0], edges[i][-1]) for i in (0, 1))
    counts: Floats = np.histogram2d(x, y, bins=edges)[0]
    return counts


def _levels(density: Floats) -> list[float]:
    """The density levels whose regions hold the masses in `_MASSES`, rising."""
    order = np.sort(density.ravel())[::-1]
    mass = np.cumsum(order) / order.sum()
    levels = [float(order[np.searchsorted(mass, share)]) for share in _MASSES]
    return sorted({level for level in levels if 0 < level < order[0]})


def ramp(theme: Theme, colour: str) -> LinearSegmentedColormap:
    """From the background to `colour`."""
    return LinearSegmentedColormap.from_list("ramp", [theme.background, colour])
