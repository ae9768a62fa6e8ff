"""The figures of a report: marginals and corner plot of the density core, map, calibration.

On a page, marginals and the corner plot have the belief at every power as layers.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.ndimage import gaussian_filter

from llm_elicit.audit.calibration import DataCoverage
from llm_elicit.audit.record import JudgeAudit
from llm_elicit.audit.reference import category_shares, feature_axis
from llm_elicit.audit.summaries import BeliefBands, CategoryBands, CircularBands, FeatureBands
from llm_elicit.density.feature_axis import BINS, Band, PlotData
from llm_elicit.density.plot_style import DARK, LIGHT, Theme, empty_figure, set_axis, style_axes
from llm_elicit.density.plots import (
    PanelPair,
    band_top,
    colour_map,
    density_axis_limit,
    draw_band,
    draw_belief,
    draw_data,
    draw_regions,
    draw_sampling,
    empty_corner,
    fill_corner,
    histogram,
    is_within_noise,
    is_within_posterior,
    iterate_panels,
    marginals_figure,
    style_marginal,
)
from llm_elicit.report.formatting import band_text, share_text
from llm_elicit.report.layers import (
    LayeredFigure,
    Picture,
    RescaledShapes,
    Shape,
    axis_shapes,
    axis_transforms,
    css_size,
    draw_picture,
    extract_shapes,
    paint_grey,
    paint_picture,
    render,
)
from llm_elicit.spaces.circles import Circle
from llm_elicit.spaces.features import FeatureSpace, Floats

_MARGINAL_SIZE = 3.0, 1.6
MARGINAL_SIDES = 0.04, 0.96
"""The ends of the axis of a marginal, as shares of the figure's width."""
"""Width and height of a marginal on the page, in inches."""
_TICK_MARGIN, _CATEGORY_MARGIN = 0.25, 0.7
"""Height below a marginal for ticks, and for rotated names of categories, in inches."""


def marginal_layers(samples: Samples, judge: str, column: int) -> LayeredFigure:
    """Draw one feature's marginal for the page, with the belief at every power."""
    data = samples.plot_data(judge)
    figure = Figure(figsize=_MARGINAL_SIZE, facecolor=LIGHT.background)
    left, right = MARGINAL_SIDES
    bottom = _TICK_MARGIN / _MARGINAL_SIZE[1]
    figure.subplots_adjust(left=left, right=right, bottom=bottom, top=0.97)
    axes = figure.add_subplot()
    style_marginal(axes, data.axes[column], LIGHT)
    if any(label.get_rotation() for label in axes.get_xticklabels()):
        figure.subplots_adjust(bottom=_CATEGORY_MARGIN / _MARGINAL_SIZE[1])
    shapes, scale = marginal_shapes(axes, data, samples.belief_by_factor(judge), column)
    return LayeredFigure(
        data.axes[column].label,
        marginal_alt_text(samples, samples.beliefs[judge], column, samples.bands.get(judge)),
        *css_size(figure),
        (*shapes, *axis_shapes(axes)),
        (scale,),
    )


def marginal_shapes(
    axes: Axes, data: PlotData, powers: Mapping[float, Floats], column: int
) -> tuple[list[Shape], RescaledShapes]:
    """Return the belief's shapes at every power, and those of data and λ."""
    axis, saved = data.axes[column], list(powers).index(1.0)
    tops = [density_axis_limit(data, points[:, column], column) for points in powers.values()]
    band = None if data.bands is None else data.bands[column]
    if band is not None:
        tops[saved] = band_top(tops[saved], axis, band)
    lines = []
    for step, (points, top) in enumerate(zip(powers.values(), tops, strict=True)):
        axes.set_ylim(0, top)
        lines += extract_shapes(draw_belief(axes, axis, points[:, column], LIGHT), "belief", step)
    axes.set_ylim(0, tops[saved])
    shade = []
    if band is not None:
        shade = extract_shapes(draw_band(axes, axis, band, LIGHT), "band", saved)
    fixed = extract_shapes(draw_data(axes, data, column, LIGHT), "data")
    fixed += extract_shapes(draw_sampling(axes, data, column, LIGHT), "sampling")
    return [*shade, *lines], RescaledShapes(tuple(fixed), axis_transforms(axes, tops, tops[saved]))


def marginal_alt_text(
    samples: Samples, belief: Floats, column: int, bands: BeliefBands | None
) -> str:
    """Return the alternative text of a marginal."""
    feature, data = samples.space.features[column], samples.data
    band = None if bands is None else bands.features[column]
    if feature.categories:
        shares = category_shares(belief[:, column], feature)
        data_shares = None if data is None else category_shares(data[:, column], feature)
        parts = []
        for code, word in enumerate(feature.categories):
            part = f"belief {share_text(float(shares[code]))}"
            if isinstance(band, CategoryBands):
                part += f" (90 % band {' to '.join(map(share_text, band.shares[word]))})"
            if data_shares is not None:
                part = f"data {share_text(float(data_shares[code]))}, {part}"
            parts.append(f"{word}: {part}")
        return f"Shares of {feature.label}. {'; '.join(parts)}."
    circle = Circle.of(feature) if feature.periodic else None

    def middle(points: Floats) -> str:
        values = points[:, column]
        return feature.word(circle.mean(values) if circle else float(np.median(values)))

    parts = [f"belief {middle(belief)}", f"sampling density {middle(samples.sampling)}"]
    if isinstance(band, FeatureBands | CircularBands):
        ends = band.q50 if isinstance(band, FeatureBands) else band.mean
        parts[0] += f" (90 % band {band_text(feature, ends)})"
    if data is not None:
        parts.insert(0, f"data {middle(data)}")
    name = "Circular means" if circle else "Medians"
    return f"Marginal densities of {feature.label}. {name}: {', '.join(parts)}."


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
        points_by_factor: each judge's belief at other powers, as multiples of the saved power.
    """

    space: FeatureSpace
    sampling: Floats
    data: Floats | None = None
    beliefs: Mapping[str, Floats] = field(default_factory=dict)
    bands: Mapping[str, BeliefBands] = field(default_factory=dict)
    draws: Mapping[str, Floats] = field(default_factory=dict)
    points_by_factor: Mapping[str, Mapping[float, Floats]] = field(default_factory=dict)

    def belief_by_factor(self, judge: str) -> dict[float, Floats]:
        """Return a judge's belief by the factor of its power, rising; 1 is the saved belief."""
        points = {**self.points_by_factor.get(judge, {}), 1.0: self.beliefs[judge]}
        return dict(sorted(points.items()))

    def plot_data(self, judge: str) -> PlotData:
        """Return the points to plot; data beyond a feature's range are moved to its end."""
        axes, bands = tuple(map(feature_axis, self.space.features)), self.bands.get(judge)
        ends = np.transpose([(axis.low, axis.high) for axis in axes])
        return PlotData(
            axes,
            self.beliefs[judge],
            self.sampling,
            None if self.data is None else np.clip(self.data, *ends),
            None if bands is None else [Band(b.at, b.low, b.high) for b in bands.marginals],
            self.draws.get(judge),
        )


MAX_CORNER_FEATURES = 10
"""Largest number of features of a corner plot."""


def draw_corner(samples: Samples, judge: str) -> tuple[LayeredFigure, Figure]:
    """Draw a judge's belief over the data: for the page, and as a figure with its legend.

    The panels are drawn once: their image is taken, the belief at every power is drawn on them and
    removed as shapes, and the saved belief is drawn last.
    """
    data = replace(samples.plot_data(judge), bands=None)
    figure = empty_corner(data)
    powers = samples.belief_by_factor(judge)
    backdrop = paint_grey(figure, "Panels", "Panels")
    shapes, rescaled, flat_steps = list[Shape](), list[RescaledShapes](), set[int]()
    for axes, row, column in iterate_panels(figure, data.dimension):
        if row == column:
            panel_shapes, scale = marginal_shapes(axes, data, powers, row)
            shapes += panel_shapes
            rescaled.append(scale)
            continue
        pair = PanelPair.from_plot(data, column, row)
        for step, (factor, is_flat) in enumerate(find_flat_factors(data, powers, pair).items()):
            if is_flat:
                flat_steps.add(step)
            artists = draw_regions(axes, powers[factor], pair, LIGHT, flat=is_flat)
            shapes += extract_shapes(artists, "belief", step)
    grey_data = "the data in grey, " if data.data is not None else ""
    layers = LayeredFigure(
        f"Belief of {judge}, two features at a time",
        f"Corner plot. Each panel shows two features: {grey_data}lines around the highest-density "
        f"regions with 50 and 90 percent of the belief of {judge}.",
        *css_size(figure),
        tuple(shapes),
        tuple(rescaled),
        backdrop,
        tuple(sorted(flat_steps)),
    )
    fill_corner(figure, data)
    return layers, figure


def find_flat_factors(
    data: PlotData, powers: dict[float, Floats], pair: PanelPair
) -> dict[float, bool]:
    """Return whether a judge's belief is flat over two features, by the factor of its power."""
    if pair.is_discrete:
        return dict.fromkeys(powers, False)
    uncertain = is_within_posterior(pair, data)
    return {
        factor: uncertain or is_within_noise(pair, points, data.sampling)
        for factor, points in powers.items()
    }


@dataclass(frozen=True)
class Portrait:
    """The figures of one judge.

    Attributes:
        factors: the powers that the layers show, as increasing multiples of the saved one.
        marginals: one per feature.
        corner: belief and data for every pair of features; None if there are too many.
        map: data, belief and λ by longitude and latitude, if the space has them.
        files: the saved figures, by the suffix of the file's name.
    """

    factors: tuple[float, ...]
    marginals: list[LayeredFigure]
    corner: LayeredFigure | None
    map: Picture | None
    files: dict[str, bytes]

    @property
    def saved_step(self) -> int:
        """The index of the saved belief's power among the factors."""
        return self.factors.index(1.0)


def draw_portrait(samples: Samples, judge: str) -> Portrait:
    """Draw one judge's belief with data and λ."""
    space, data = samples.space, samples.plot_data(judge)
    figures = {"marginals": marginals_figure(data)}
    corner = map_picture = None
    if 2 <= space.dimension <= MAX_CORNER_FEATURES:
        corner, figures["corner"] = draw_corner(samples, judge)
    if {"Latitude", "Longitude"} <= {space.names[j] for j in space.numeric}:
        columns = space.names.index("Longitude"), space.names.index("Latitude")
        map_axes = PanelPair.from_plot(data, *columns)
        figures["map"] = map_figure(data, map_axes, LIGHT)
        map_picture = paint_picture(
            figures["map"],
            map_figure(data, map_axes, DARK),
            f"Map of the belief of {judge}",
            "Maps of longitude and latitude side by side: the data, the belief of "
            f"{judge}, and the sampling density, stronger where denser.",
        )
    marginals = [marginal_layers(samples, judge, i) for i in range(space.dimension)]
    files = {
        f"{name}.{kind}": render(figure, kind)
        for name, figure in figures.items()
        for kind in ("png", "svg")
    }
    return Portrait(tuple(samples.belief_by_factor(judge)), marginals, corner, map_picture, files)


def save_figures(portraits: Mapping[str, Portrait], folder: Path) -> list[Path]:
    """Write every judge's figures into `folder` as SVG and PNG; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for judge, portrait in portraits.items():
        for ending, content in portrait.files.items():
            path = folder / f"{file_stem(judge)}-{ending}"
            path.write_bytes(content)
            written.append(path)
    return written


def file_stem(judge: str) -> str:
    """Return a judge's name as part of a file name that cannot lead out of the folder.

    A name that had to be changed gets a checksum, so that two of them do not collide.

    Examples:
        >>> file_stem("gpt-5.2"), file_stem("../a b")
        ('gpt-5.2', '--a-b-75e96e29')
    """
    name = "".join(c if c.isascii() and (c.isalnum() or c in "_-.") else "-" for c in judge)
    name = name.replace("..", "-")[:80]
    return name if name == judge else f"{name}-{zlib.crc32(judge.encode()):08x}"


def map_figure(plot_data: PlotData, map_axes: PanelPair, theme: Theme) -> Figure:
    """Return maps of data, belief and λ by longitude and latitude, on one density scale."""
    edges = [axis.edges(BINS) for axis in map_axes.axes]
    panels = {
        "data": (plot_data.data, theme.ink),
        "belief": (plot_data.belief, theme.belief),
        "sampling density λ": (plot_data.sampling, theme.sampling),
    }
    maps = {
        name: (gaussian_filter(histogram(points[:, map_axes.columns], edges), 1.5), colour)
        for name, (points, colour) in panels.items()
        if points is not None
    }
    highest = max(float((density / density.sum()).max()) for density, _ in maps.values())
    figure = empty_figure(2.5 * len(maps), 3.2, theme)
    for number, (name, (density, colour)) in enumerate(maps.items(), start=1):
        axes = figure.add_subplot(1, len(maps), number)
        # The square root keeps regions of low density visible.
        image = np.sqrt(density.T / density.sum() / highest)
        shades = colour_map(theme, colour)
        axes.pcolormesh(*edges, image, cmap=shades, vmin=0, vmax=1, rasterized=True)
        style_axes(axes, theme)
        axes.set_title(name, fontsize=9, color=theme.ink)
        set_axis(axes, "x", map_axes.axes[0])
        set_axis(axes, "y", map_axes.axes[1])
        axes.set_xlabel(map_axes.axes[0].label, fontsize=8)
        if number == 1:
            axes.set_ylabel(map_axes.axes[1].label, fontsize=8)
        else:
            axes.tick_params(labelleft=False)
        axes.set_aspect(1.0 / np.cos(np.deg2rad(np.mean(edges[1]))))
    return figure


_CURVE_SIZE = 3.1
"""Width and height of a calibration curve, in inches."""


def draw_curves(judge: JudgeAudit) -> Picture | None:
    """Draw the calibration curves of one judge; None if there are none."""
    sentences = []
    if judge.coverage is not None:
        regions = judge.coverage.regions
        shares = [f"{r.data_share.value:.0%} in the {r.mass:.0%} region" for r in regions]
        text = ", ".join(shares)
        sentences.append(f"Share of the data in highest-density regions of the belief: {text}.")
    if judge.predictive_check is not None:
        bins = judge.predictive_check.calibration
        text = ", ".join(f"{b.observed:.0%} where {b.predicted:.0%}" for b in bins)
        sentences.append(f"Observed frequencies of held-out choices: {text} is predicted.")
    if not sentences:
        return None
    title, alt = f"Calibration of {judge.name}", " ".join(sentences)
    return draw_picture(curves_figure(judge, LIGHT), title, alt)


def curves_figure(judge: JudgeAudit, theme: Theme) -> Figure:
    """Return the calibration curves of one judge in one theme."""
    parts = [part for part in (judge.coverage, judge.predictive_check) if part is not None]
    figure = empty_figure(_CURVE_SIZE * len(parts), _CURVE_SIZE, theme)
    for column, part in enumerate(parts, start=1):
        axes = figure.add_subplot(1, len(parts), column)
        style_axes(axes, theme)
        axes.set_aspect("equal")
        if isinstance(part, DataCoverage):
            diagonal_start = 0.0
            line = np.linspace(0.0, 1.0, len(part.curve)).tolist(), part.curve
            axes.set(xlim=(0, 1), ylim=(0, 1.02))
            labels = "mass of the highest-density region", "share of the data", "data coverage"
        else:
            bins, diagonal_start = part.calibration, 0.5
            line = [b.predicted for b in bins], [b.observed for b in bins]
            sizes = [12 + 150 * b.share for b in bins]
            axes.scatter(*line, s=sizes, color=theme.belief, zorder=3, clip_on=False)
            axes.set(xlim=(0.48, 1.02), ylim=(min(0.48, *line[1]) - 0.02, 1.02))
            labels = (
                "predicted probability of the likelier option", "observed frequency",
                "held-out choices",
            )  # fmt: skip
        diagonal = [diagonal_start, 1]
        axes.plot(diagonal, diagonal, color=theme.data, linewidth=1, linestyle="--")
        axes.plot(*line, color=theme.belief, linewidth=0.8 if diagonal_start else 1.8)
        axes.set_xlabel(labels[0], fontsize=8)
        axes.set_ylabel(labels[1], fontsize=8)
        axes.set_title(labels[2], fontsize=9)
    return figure
