"""Marginals on a page, with their alternative texts; and the samples that figures show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from llm_elicit.audit.reference import axis_of, category_shares
from llm_elicit.audit.summaries import BeliefBands, CategoryBands, CircularBands, FeatureBands
from llm_elicit.density.feature_axis import Band, PlotData
from llm_elicit.density.plot_style import LIGHT
from llm_elicit.density.plots import (
    draw_band,
    draw_belief,
    draw_data,
    draw_sampling,
    dress_marginal,
    top_of,
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
from llm_elicit.spaces.circles import Circle
from llm_elicit.spaces.features import FeatureSpace, Floats

_SIZE = 3.0, 1.6  # inches, on a page
_UNDER, _UNDER_WORDS = 0.25, 0.7  # inches below, for ticks and for rotated category names


def marginal_layers(samples: Samples, judge: str, column: int) -> Layers:
    """Draw one feature's marginal for the page, with the belief at every power."""
    data = samples.shown(judge)
    figure = Figure(figsize=_SIZE, facecolor=LIGHT.background)
    figure.subplots_adjust(left=0.04, right=0.96, bottom=_UNDER / _SIZE[1], top=0.97)
    axes = figure.add_subplot()
    dress_marginal(axes, data.axes[column], LIGHT)
    if any(label.get_rotation() for label in axes.get_xticklabels()):
        figure.subplots_adjust(bottom=_UNDER_WORDS / _SIZE[1])
    shapes, scale = marginal_shapes(axes, data, samples.by_factor(judge), column)
    return Layers(
        data.axes[column].label,
        marginal_words(samples, samples.beliefs[judge], column, samples.bands.get(judge)),
        *size_of(figure),
        (*shapes, *axis_shapes(axes)),
        (scale,),
    )


def marginal_shapes(
    axes: Axes, data: PlotData, powers: Mapping[float, Floats], column: int
) -> tuple[list[Shape], Rescaled]:
    """Return the belief's shapes at every power, and those of data and λ."""
    axis, saved = data.axes[column], list(powers).index(1.0)
    tops = [top_of(data, points[:, column], column) for points in powers.values()]
    band = None if data.bands is None else data.bands[column]
    if band is not None:
        tops[saved] = max(tops[saved], 1.05 * max(band.high))
    lines = []
    for step, (points, top) in enumerate(zip(powers.values(), tops, strict=True)):
        axes.set_ylim(0, top)
        lines += shapes_of(draw_belief(axes, axis, points[:, column], LIGHT), "belief", step)
    axes.set_ylim(0, tops[saved])
    shade = [] if band is None else shapes_of(draw_band(axes, axis, band, LIGHT), "band", saved)
    fixed = shapes_of(draw_data(axes, data, column, LIGHT), "data")
    fixed += shapes_of(draw_sampling(axes, data, column, LIGHT), "sampling")
    return [*shade, *lines], Rescaled(tuple(fixed), rescaling(axes, tops, tops[saved]))


def marginal_words(samples: Samples, belief: Floats, column: int, bands: BeliefBands | None) -> str:
    """Return the alternative text of a marginal."""
    feature, data = samples.space.features[column], samples.data
    band = None if bands is None else bands.features[column]
    if feature.categories:
        shares = category_shares(belief[:, column], feature)
        of_data = None if data is None else category_shares(data[:, column], feature)
        parts = []
        for code, word in enumerate(feature.categories):
            part = f"belief {share(float(shares[code]))}"
            if isinstance(band, CategoryBands):
                part += f" (90 % band {' to '.join(map(share, band.shares[word]))})"
            part = part if of_data is None else f"data {share(float(of_data[code]))}, {part}"
            parts.append(f"{word}: {part}")
        return f"Shares of {feature.label}. {'; '.join(parts)}."
    circle = Circle.of(feature) if feature.periodic else None

    def middle(points: Floats) -> str:
        values = points[:, column]
        return feature.word(circle.mean(values) if circle else float(np.median(values)))

    parts = [f"belief {middle(belief)}", f"sampling density {middle(samples.sampling)}"]
    if isinstance(band, FeatureBands | CircularBands):
        ends = band.q50 if isinstance(band, FeatureBands) else band.mean
        parts[0] += f" (90 % band {between(feature, ends)})"
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
        points = {**self.at_powers.get(judge, {}), 1.0: self.beliefs[judge]}
        return dict(sorted(points.items()))

    def shown(self, judge: str) -> PlotData:
        """Return what figures show of a judge; data beyond a feature's range are at its end."""
        axes, bands = tuple(map(axis_of, self.space.features)), self.bands.get(judge)
        ends = np.transpose([(axis.low, axis.high) for axis in axes])
        return PlotData(
            axes,
            self.beliefs[judge],
            self.sampling,
            None if self.data is None else np.clip(self.data, *ends),
            None if bands is None else [Band(b.at, b.low, b.high) for b in bands.marginals],
            self.draws.get(judge),
        )
