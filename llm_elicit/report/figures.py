"""The figures of a report: marginals, corner plot and map, each in light and dark.

Densities are per unit of each feature's scale, from histograms over the range asked about;
lines are smoothed with reflection at the range's ends, so that no mass leaks out of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from scipy.ndimage import gaussian_filter

from llm_elicit.audit.bands import BINS, smoothed
from llm_elicit.audit.distance import bin_edges, bin_widths
from llm_elicit.audit.standard import shares_of
from llm_elicit.audit.summary import BeliefBands, CategoryBands, FeatureBands
from llm_elicit.features import Feature, Floats
from llm_elicit.report.pairs import Samples, draw_pair, histogram, ramp
from llm_elicit.report.picture import Picture, draw_picture, paint_picture, render
from llm_elicit.report.style import (
    DARK,
    LIGHT,
    Theme,
    axis_label,
    blank,
    dress,
    set_axis,
)
from llm_elicit.report.words import between, share

_MOST_CORNER = 10
_BAR = 0.8  # how wide a category's is, of its place
_LEAST_CORNER = 4.4  # inches: the legend fits beside the panels of two features


@dataclass(frozen=True)
class Portrait:
    """The figures of one judge.

    Attributes:
        marginals: a picture a feature.
        corner: belief over data for every pair of features; None where there are too many.
        map: data, belief and λ by longitude and latitude, where the space has them.
        files: the figures as they are saved, by the end of the file's name.
    """

    marginals: list[Picture]
    corner: Picture | None
    map: Picture | None
    files: dict[str, bytes]


def draw_portrait(samples: Samples, judge: str) -> Portrait:
    """Draw one judge's belief beside data and λ."""
    space, belief = samples.space, samples.beliefs[judge]
    figures = {"marginals": marginals_figure(samples, belief, LIGHT, samples.bands.get(judge))}
    files = {"marginals.png": render(figures["marginals"], "png")}
    corner = chart = None
    if 2 <= space.dimension <= _MOST_CORNER:
        figures["corner"] = corner_figure(samples, belief, LIGHT)
        corner = paint_picture(
            figures["corner"],
            corner_figure(samples, belief, DARK),
            f"Belief of {judge} over the data, two features at a time",
            "Corner plot. Each panel sets two features against each other: the data in grey, "
            f"lines around the densest 50 and 90 percent of the belief of {judge}.",
        )
        files["corner.png"] = corner.light
    if {"Latitude", "Longitude"} <= {space.names[j] for j in space.numeric}:
        figures["map"] = map_figure(samples, belief, LIGHT)
        chart = paint_picture(
            figures["map"],
            map_figure(samples, belief, DARK),
            f"Where {judge} expects it",
            "Maps of longitude and latitude side by side: the data, the belief of "
            f"{judge}, and the sampling density, stronger where denser.",
        )
        files["map.png"] = chart.light
    marginals = [_marginal_picture(samples, judge, i) for i in range(space.dimension)]
    drawn = {f"{name}.svg": render(figure, "svg") for name, figure in figures.items()}
    return Portrait(marginals, corner, chart, files | drawn)


def save_figures(portraits: Mapping[str, Portrait], folder: Path) -> list[Path]:
    """Write every judge's figures into `folder` as SVG and PNG; returns the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for judge, portrait in portraits.items():
        for ending, content in portrait.files.items():
            path = folder / f"{file_name(judge)}-{ending}"
            path.write_bytes(content)
            written.append(path)
    return written


def file_name(judge: str) -> str:
    """A judge's name as part of a file name: nothing that leads out of the folder.

    A name that had to be changed gets a checksum, so that two of them do not collide.

    Example:
        >>> file_name("gpt-5.2"), file_name("../a b")
        ('gpt-5.2', '--a-b-75e96e29')
    """
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "_-.") else "-" for c in judge)
    kept = kept.replace("..", "-")[:80]
    return kept if kept == judge else f"{kept}-{zlib.crc32(judge.encode()):08x}"


def marginals_figure(
    samples: Samples, belief: Floats, theme: Theme, bands: BeliefBands | None = None
) -> Figure:
    """All marginals in one figure, a panel a feature."""
    features = samples.space.features
    columns = min(4, len(features))
    rows = -(-len(features) // columns)
    figure = blank(2.7 * columns, 2.1 * rows + 0.4, theme)
    for column, feature in enumerate(features):
        axes = figure.add_subplot(rows, columns, column + 1)
        _draw_marginal(axes, samples, belief, column, theme)
        _draw_band(axes, bands, column, theme)
        axes.set_xlabel(axis_label(feature), fontsize=8)
    handles = _legend(theme, data=samples.data is not None, bands=bands is not None)
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=len(handles),
        frameon=False,
        labelcolor=theme.ink,
    )
    return figure


def corner_figure(samples: Samples, belief: Floats, theme: Theme) -> Figure:
    """Belief over data for every pair of features, marginals on the diagonal."""
    features = samples.space.features
    d = len(features)
    side = max(1.3 * d + 0.7, _LEAST_CORNER)
    # Placed by hand: the constrained layout takes seconds for this many panels.
    figure = Figure(figsize=(side, side), facecolor=theme.background)
    low, high = 0.6 / side, 1 - 0.1 / side
    under = 0.85 / side if samples.space.categorical.any() else low  # words stand on end there
    figure.subplots_adjust(left=low, bottom=under, right=high, top=high, wspace=0.08, hspace=0.08)
    for row in range(d):
        for column in range(row + 1):
            axes = figure.add_subplot(d, d, row * d + column + 1)
            if row == column:
                _draw_marginal(axes, samples, belief, row, theme)
            else:
                draw_pair(axes, samples, belief, (column, row), theme)
            _corner_labels(axes, features, (column, row), theme)
    handles = _legend(theme, samples.data is not None)
    figure.legend(handles=handles, loc="upper right", frameon=False, labelcolor=theme.ink)
    return figure


def map_figure(samples: Samples, belief: Floats, theme: Theme) -> Figure:
    """Longitude and latitude of data, belief and λ side by side on one scale of density."""
    space = samples.space
    x, y = space.names.index("Longitude"), space.names.index("Latitude")
    edges = [bin_edges(space.features[i], BINS) for i in (x, y)]
    panels = {
        "data": (samples.data, theme.ink),
        "belief": (belief, theme.belief),
        "sampling density λ": (samples.sampling, theme.sampling),
    }
    shown = {
        name: (gaussian_filter(histogram(points[:, [x, y]], edges), 1.5, mode="reflect"), colour)
        for name, (points, colour) in panels.items()
        if points is not None
    }
    highest = max(float((density / density.sum()).max()) for density, _ in shown.values())
    figure = blank(2.5 * len(shown), 3.2, theme)
    for place, (name, (density, colour)) in enumerate(shown.items(), start=1):
        axes = figure.add_subplot(1, len(shown), place)
        # The square root keeps thin regions visible beside the cities.
        image = np.sqrt(density.T / density.sum() / highest)
        shades = ramp(theme, colour)
        axes.pcolormesh(*edges, image, cmap=shades, vmin=0, vmax=1, rasterized=True)
        dress(axes, theme)
        axes.set_title(name, fontsize=9, color=theme.ink)
        set_axis(axes, "x", space.features[x])
        set_axis(axes, "y", space.features[y])
        axes.set_xlabel(axis_label(space.features[x]), fontsize=8)
        if place == 1:
            axes.set_ylabel(axis_label(space.features[y]), fontsize=8)
        else:
            axes.tick_params(labelleft=False)
        axes.set_aspect(1.0 / np.cos(np.deg2rad(np.mean(edges[1]))))
    return figure


def _draw_marginal(axes: Axes, samples: Samples, belief: Floats, column: int, theme: Theme) -> None:
    feature = samples.space.features[column]
    edges = bin_edges(feature, BINS)
    if feature.categories:
        _draw_shares(axes, samples, belief, column, theme)
        return
    if samples.data is not None:
        bars = _density(samples.data[:, column], edges, feature)
        axes.stairs(bars, edges, fill=True, color=theme.data)
    centres = (edges[:-1] + edges[1:]) / 2
    for points, colour, dashes in (
        (samples.sampling, theme.sampling, (0, (4, 2))),
        (belief, theme.belief, "solid"),
    ):
        line = smoothed(_density(points[:, column], edges, feature))
        axes.plot(centres, line, color=colour, linestyle=dashes, linewidth=1.6)
    _dress_marginal(axes, feature, theme)
    axes.set_xlim(edges[0], edges[-1])


def _dress_marginal(axes: Axes, feature: Feature, theme: Theme) -> None:
    dress(axes, theme)
    axes.spines["left"].set_visible(False)
    axes.set_yticks([])
    axes.set_ylim(bottom=0)
    set_axis(axes, "x", feature)


def _draw_shares(axes: Axes, samples: Samples, belief: Floats, column: int, theme: Theme) -> None:
    """A bar a category for the data, and lines across it for the belief and λ."""
    feature = samples.space.features[column]
    codes = np.arange(len(feature.categories))
    if samples.data is not None:
        axes.bar(codes, shares_of(samples.data[:, column], feature), _BAR, color=theme.data)
    for points, colour, dashes in (
        (samples.sampling, theme.sampling, (0, (2, 1))),
        (belief, theme.belief, "solid"),
    ):
        shares = shares_of(points[:, column], feature)
        ends = codes - _BAR / 2, codes + _BAR / 2
        axes.hlines(shares, *ends, color=colour, linestyle=dashes, linewidth=1.6)
    _dress_marginal(axes, feature, theme)


def _draw_band(axes: Axes, bands: BeliefBands | None, column: int, theme: Theme) -> None:
    if bands is None:
        return
    band = bands.marginals[column]
    if isinstance(bands.features[column], CategoryBands):
        height = np.subtract(band.high, band.low)
        axes.bar(band.at, height, _BAR, band.low, color=theme.belief, alpha=0.28, linewidth=0)
    else:
        axes.fill_between(band.at, band.low, band.high, color=theme.belief, alpha=0.28, linewidth=0)
    axes.set_ylim(top=max(axes.get_ylim()[1], 1.05 * max(band.high)))


def _corner_labels(
    axes: Axes, features: tuple[Feature, ...], place: tuple[int, int], theme: Theme
) -> None:
    """Labels on the outer panels alone."""
    column, row = place
    axes.tick_params(labelsize=6.5, length=2)
    if row == len(features) - 1:
        axes.set_xlabel(_wrapped(features[column].label), fontsize=7, color=theme.ink)
        axes.tick_params(axis="x", rotation=45)
    else:
        axes.tick_params(labelbottom=False)
    if column == 0 and row > 0:
        axes.set_ylabel(_wrapped(features[row].label), fontsize=7, color=theme.ink)
    else:
        axes.tick_params(labelleft=False)


def _wrapped(label: str) -> str:
    """A long label on two lines, broken near its middle."""
    words = label.split()
    if len(label) <= 14 or len(words) < 2:
        return label
    cut = min(range(1, len(words)), key=lambda i: abs(len(" ".join(words[:i])) - len(label) / 2))
    return " ".join(words[:cut]) + "\n" + " ".join(words[cut:])


def _density(values: Floats, edges: Floats, feature: Feature) -> Floats:
    """Histogram density per unit of the feature's scale."""
    counts = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0]
    widths = bin_widths(feature, edges)
    return np.asarray(counts / (counts.sum() * widths), dtype=np.float64)


def _legend(theme: Theme, data: bool, bands: bool = False) -> list[Patch | Line2D]:
    handles: list[Patch | Line2D] = [Patch(color=theme.data, label="data")] if data else []
    if bands:
        handles.append(Patch(color=theme.belief, alpha=0.28, label="90 % band of the belief"))
    return [
        *handles,
        Line2D([], [], color=theme.belief, label="belief"),
        Line2D([], [], color=theme.sampling, linestyle="dashed", label="sampling density λ"),
    ]


def _marginal_picture(samples: Samples, judge: str, column: int) -> Picture:
    feature, belief = samples.space.features[column], samples.beliefs[judge]
    bands = samples.bands.get(judge)

    figure = blank(3.0, 1.7, LIGHT)
    axes = figure.add_subplot()
    _draw_marginal(axes, samples, belief, column, LIGHT)
    _draw_band(axes, bands, column, LIGHT)

    told = _median_words(samples, belief, column, bands)
    if feature.categories:
        told = _share_words(samples, belief, column, bands)
    return draw_picture(figure, axis_label(feature), told)


def _median_words(samples: Samples, belief: Floats, column: int, bands: BeliefBands | None) -> str:
    feature = samples.space.features[column]

    def median(points: Floats) -> str:
        return feature.word(float(np.median(points[:, column])))

    parts = [f"belief {median(belief)}", f"sampling density {median(samples.sampling)}"]
    band = None if bands is None else bands.features[column]
    if isinstance(band, FeatureBands):
        parts[0] += f" (90 % band {between(feature, band.q50)})"
    if samples.data is not None:
        parts.insert(0, f"data {median(samples.data)}")
    return f"Marginal densities of {feature.label}. Medians: {', '.join(parts)}."


def _share_words(samples: Samples, belief: Floats, column: int, bands: BeliefBands | None) -> str:
    feature, parts = samples.space.features[column], []
    data = None if samples.data is None else shares_of(samples.data[:, column], feature)
    shares = shares_of(belief[:, column], feature)
    band = None if bands is None else bands.features[column]
    for code, word in enumerate(feature.categories):
        part = f"belief {share(float(shares[code]))}"
        if isinstance(band, CategoryBands):
            part += f" (90 % band {' to '.join(map(share, band.shares[word]))})"
        part = part if data is None else f"data {share(float(data[code]))}, {part}"
        parts.append(f"{word}: {part}")
    return f"Shares of {feature.label}. {'; '.join(parts)}."
