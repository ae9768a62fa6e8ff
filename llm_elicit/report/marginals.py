"""Marginal plots: data, λ, a belief and its band over one feature; and the samples they show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from llm_elicit.audit.scales import bin_edges, bin_widths, by_value, category_shares
from llm_elicit.audit.summaries import (
    BINS,
    BeliefBands,
    CategoryBands,
    CircularBands,
    FeatureBands,
    smoothed,
)
from llm_elicit.report.formatting import between, share
from llm_elicit.report.layers import (
    Layers,
    Rescaled,
    Shape,
    axis_shapes,
    rescaling,
    shapes_of,
    size_of,
)
from llm_elicit.report.rendering import LIGHT, Theme, axis_label, dress, set_axis
from llm_elicit.spaces.circles import Circle
from llm_elicit.spaces.features import Feature, FeatureSpace, Floats

_BAR = 0.8  # the width of a category's bar, relative to their distance
_LINE = 1.6
_SIZE = 3.0, 1.6  # inches, on a page
_UNDER, _UNDER_WORDS = 0.25, 0.7  # inches below, for ticks and for rotated category names


def draw_marginal(axes: Axes, samples: Samples, belief: Floats, column: int, theme: Theme) -> None:
    """Draw data, λ and a belief on styled axes."""
    dress_marginal(axes, samples.space.features[column], theme)
    draw_data(axes, samples, column, theme)
    draw_sampling(axes, samples, column, theme)
    draw_belief(axes, samples.space.features[column], belief[:, column], theme)
    axes.set_ylim(0, top_of(samples, belief, column))


def top_of(samples: Samples, belief: Floats, column: int) -> float:
    """Return the upper end of a marginal's density axis, above data, λ and belief."""
    feature = samples.space.features[column]
    lines = [line_of(feature, points[:, column]) for points in (samples.sampling, belief)]
    if samples.data is not None:
        lines.append(bars_of(feature, samples.data[:, column]))
    return 1.05 * float(np.concatenate(lines).max())


def dress_marginal(axes: Axes, feature: Feature, theme: Theme) -> None:
    """Style the axes of one feature: its range below, no density axis."""
    dress(axes, theme)
    axes.spines["left"].set_visible(False)
    axes.set_yticks([])
    set_axis(axes, "x", feature)
    if not feature.categories:
        edges = bin_edges(feature, BINS)
        axes.set_xlim(edges[0], min(edges[-1], feature.highest + 0.5 * feature.whole))


def draw_data(axes: Axes, samples: Samples, column: int, theme: Theme) -> list[Artist]:
    """Draw the data as bars, if there are any."""
    feature = samples.space.features[column]
    if samples.data is None:
        return []
    bars, edges = bars_of(feature, samples.data[:, column]), bin_edges(feature, BINS)
    if by_value(feature):
        return list(axes.bar(centres(edges), bars, _BAR, color=theme.data))
    return [axes.stairs(bars, edges, fill=True, color=theme.data)]


def draw_sampling(axes: Axes, samples: Samples, column: int, theme: Theme) -> list[Artist]:
    """Draw λ as a dashed line."""
    feature = samples.space.features[column]
    dashes = (0, (2, 1)) if by_value(feature) else (0, (4, 2))
    return _draw_line(axes, feature, samples.sampling[:, column], theme.sampling, dashes)


def draw_belief(axes: Axes, feature: Feature, values: Floats, theme: Theme) -> list[Artist]:
    """Draw a belief, by its values `(n,)` of the feature, as a line."""
    return _draw_line(axes, feature, values, theme.belief, "solid")


def draw_band(
    axes: Axes, bands: BeliefBands | None, feature: Feature, column: int, theme: Theme
) -> list[Artist]:
    """Draw a belief's band as a shaded area, if it has one."""
    if bands is None:
        return []
    band = bands.marginals[column]
    axes.set_ylim(top=max(axes.get_ylim()[1], 1.05 * max(band.high)))
    shade: dict[str, Any] = {"color": theme.belief, "alpha": 0.28, "linewidth": 0}
    if by_value(feature):
        height = np.subtract(band.high, band.low)
        return list(axes.bar(band.at, height, _BAR, band.low, **shade))
    return [axes.fill_between(band.at, band.low, band.high, **shade)]


def marginal_layers(samples: Samples, judge: str, column: int) -> Layers:
    """Draw one feature's marginal for the page, with the belief at every power."""
    feature, bands = samples.space.features[column], samples.bands.get(judge)
    figure = Figure(figsize=_SIZE, facecolor=LIGHT.background)
    figure.subplots_adjust(left=0.04, right=0.96, bottom=_UNDER / _SIZE[1], top=0.97)
    axes = figure.add_subplot()
    dress_marginal(axes, feature, LIGHT)
    if any(label.get_rotation() for label in axes.get_xticklabels()):
        figure.subplots_adjust(bottom=_UNDER_WORDS / _SIZE[1])
    shapes, grown = marginal_shapes(axes, samples, judge, column, bands)
    return Layers(
        axis_label(feature),
        marginal_words(samples, samples.beliefs[judge], column, bands),
        *size_of(figure),
        (*shapes, *axis_shapes(axes)),
        (grown,),
    )


def marginal_shapes(
    axes: Axes, samples: Samples, judge: str, column: int, bands: BeliefBands | None = None
) -> tuple[list[Shape], Rescaled]:
    """Return the belief's shapes at every power, and those of data and λ."""
    feature, powers = samples.space.features[column], samples.by_factor(judge)
    saved = list(powers).index(1.0)
    tops = [top_of(samples, points, column) for points in powers.values()]
    if bands is not None:
        tops[saved] = max(tops[saved], 1.05 * max(bands.marginals[column].high))
    lines = []
    for step, (points, top) in enumerate(zip(powers.values(), tops, strict=True)):
        axes.set_ylim(0, top)
        lines += shapes_of(draw_belief(axes, feature, points[:, column], LIGHT), "belief", step)
    axes.set_ylim(0, tops[saved])
    shade = shapes_of(draw_band(axes, bands, feature, column, LIGHT), "band", saved)
    fixed = shapes_of(draw_data(axes, samples, column, LIGHT), "data")
    fixed += shapes_of(draw_sampling(axes, samples, column, LIGHT), "sampling")
    return [*shade, *lines], Rescaled(tuple(fixed), rescaling(axes, tops, tops[saved]))


def legend(theme: Theme, data: bool, bands: bool = False) -> list[Patch | Line2D]:
    """Return the handles of a figure's legend."""
    handles: list[Patch | Line2D] = [Patch(color=theme.data, label="data")] if data else []
    if bands:
        handles.append(Patch(color=theme.belief, alpha=0.28, label="90 % band of the belief"))
    return [
        *handles,
        Line2D([], [], color=theme.belief, label="belief"),
        Line2D([], [], color=theme.sampling, linestyle="dashed", label="sampling density λ"),
    ]


def marginal_words(samples: Samples, belief: Floats, column: int, bands: BeliefBands | None) -> str:
    """Return the alternative text of a marginal."""
    if samples.space.features[column].categories:
        return _share_words(samples, belief, column, bands)
    return _median_words(samples, belief, column, bands)


def _draw_line(
    axes: Axes,
    feature: Feature,
    values: Floats,
    colour: str,
    dashes: str | tuple[int, tuple[int, int]],
) -> list[Artist]:
    """Draw a density as a line; of single values, one horizontal line each."""
    style: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": _LINE}
    line, at = line_of(feature, values), centres(bin_edges(feature, BINS))
    if by_value(feature):
        return [axes.hlines(line, at - _BAR / 2, at + _BAR / 2, **style)]
    return list(axes.plot(at, line, **style))


def bars_of(feature: Feature, values: Floats) -> Floats:
    """Return the histogram density per unit of the feature's scale; shares of single values."""
    edges = bin_edges(feature, BINS)
    counts = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0]
    widths = 1.0 if by_value(feature) else bin_widths(feature, edges)
    return np.asarray(counts / (counts.sum() * widths), dtype=np.float64)


def centres(edges: Floats) -> Floats:
    return np.asarray((edges[:-1] + edges[1:]) / 2)


def line_of(feature: Feature, values: Floats) -> Floats:
    """Return the histogram density, smoothed unless each value has its own share."""
    return smoothed(bars_of(feature, values), feature)


def _median_words(samples: Samples, belief: Floats, column: int, bands: BeliefBands | None) -> str:
    feature = samples.space.features[column]

    circle = Circle.of(feature) if feature.periodic else None

    def middle(points: Floats) -> str:
        values = points[:, column]
        return feature.word(circle.mean(values) if circle else float(np.median(values)))

    parts = [f"belief {middle(belief)}", f"sampling density {middle(samples.sampling)}"]
    band = None if bands is None else bands.features[column]
    if isinstance(band, FeatureBands):
        parts[0] += f" (90 % band {between(feature, band.q50)})"
    elif isinstance(band, CircularBands):
        parts[0] += f" (90 % band {between(feature, band.mean)})"
    if samples.data is not None:
        parts.insert(0, f"data {middle(samples.data)}")
    name = "Circular means" if feature.periodic else "Medians"
    return f"Marginal densities of {feature.label}. {name}: {', '.join(parts)}."


def _share_words(samples: Samples, belief: Floats, column: int, bands: BeliefBands | None) -> str:
    feature, parts = samples.space.features[column], []
    data = None if samples.data is None else category_shares(samples.data[:, column], feature)
    shares = category_shares(belief[:, column], feature)
    band = None if bands is None else bands.features[column]
    for code, word in enumerate(feature.categories):
        part = f"belief {share(float(shares[code]))}"
        if isinstance(band, CategoryBands):
            part += f" (90 % band {' to '.join(map(share, band.shares[word]))})"
        part = part if data is None else f"data {share(float(data[code]))}, {part}"
        parts.append(f"{word}: {part}")
    return f"Shares of {feature.label}. {'; '.join(parts)}."


@dataclass(frozen=True)
class Samples:
    """Points in natural units, `(n, d)` each.

    Attributes:
        space: the feature space.
        sampling: draws from λ.
        data: the reference table's points, or None.
        beliefs: each judge's belief samples, by the judge's name.
        bands: the beliefs' credible bands, if they have them.
        draws: points `(S, m, d)` of the posterior's draws, if a belief has them.
        at_powers: each judge's belief at other powers, by the factor of the saved belief's power.
    """

    space: FeatureSpace
    sampling: Floats
    data: Floats | None = None
    beliefs: Mapping[str, Floats] = field(default_factory=dict)
    bands: Mapping[str, BeliefBands] = field(default_factory=dict)
    draws: Mapping[str, Floats] = field(default_factory=dict)
    at_powers: Mapping[str, Mapping[float, Floats]] = field(default_factory=dict)

    def by_factor(self, judge: str) -> dict[float, Floats]:
        """Return a judge's belief by the factor of its power, rising; 1 is the saved belief."""
        found = {**self.at_powers.get(judge, {}), 1.0: self.beliefs[judge]}
        return dict(sorted(found.items()))
