"""The corner plot: belief and data for every pair of features, with marginals on the diagonal."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from llm_elicit.audit.scales import by_value
from llm_elicit.report.layers import Layers, Rescaled, Shape, shapes_of, size_of
from llm_elicit.report.marginals import (
    Samples,
    draw_marginal,
    dress_marginal,
    legend,
    marginal_shapes,
)
from llm_elicit.report.pairs import (
    PanelPair,
    draw_flat,
    draw_panel,
    draw_regions,
    is_flat,
    is_uncertain,
)
from llm_elicit.report.rendering import LIGHT, paint_grey
from llm_elicit.spaces.features import Feature, Floats

MOST = 10
"""Largest number of features of a corner plot."""
_PANEL = {2: 1.8, 3: 1.8, 4: 1.65, 5: 1.45}  # inches, by the number of features
_LEAST_PANEL = 1.3
_LEFT, _RIGHT, _WORDS = 0.65, 0.1, 0.85  # inches; room for rotated category names below


def draw_corner(samples: Samples, judge: str) -> tuple[Layers, Figure]:
    """Draw a judge's belief over the data: for the page, and as a figure with its legend.

    The panels are drawn once: their image is taken, the belief at every power is drawn on them and
    removed as shapes, and the saved belief is drawn last.
    """
    figure = _panels(samples)
    layers = _layers(figure, samples, judge)
    points = samples.beliefs[judge]
    for axes, row, column in _places(figure, samples):
        if row == column:
            draw_marginal(axes, samples, points, row, LIGHT)
            _label(axes, samples.space.features, (column, row))
        else:
            pair = _pair(samples, column, row)
            _draw_belief(axes, points, pair, flat_factors(samples, judge, pair)[1.0])
    figure.legend(
        handles=legend(LIGHT, samples.data is not None), loc="upper right", frameon=False,
        labelcolor=LIGHT.ink,
    )  # fmt: skip
    return layers, figure


def _layers(figure: Figure, samples: Samples, judge: str) -> Layers:
    """Return the corner plot for the page, with the belief at every power and without a legend."""
    backdrop, powers = paint_grey(figure, "Panels", "Panels"), samples.by_factor(judge)
    shapes, rescaled, flat = list[Shape](), list[Rescaled](), set[int]()
    for axes, row, column in _places(figure, samples):
        if row == column:
            found, grown = marginal_shapes(axes, samples, judge, row)
            shapes += found
            rescaled.append(grown)
            continue
        pair = _pair(samples, column, row)
        for step, (factor, is_flat_there) in enumerate(flat_factors(samples, judge, pair).items()):
            if is_flat_there:
                flat.add(step)
            drawn = _draw_belief(axes, powers[factor], pair, is_flat_there)
            shapes += shapes_of(drawn, "belief", step)
    data = "the data in grey, " if samples.data is not None else ""
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


def _draw_belief(axes: Axes, points: Floats, pair: PanelPair, flat: bool) -> list[Artist]:
    return draw_flat(axes, LIGHT) if flat else draw_regions(axes, points, pair, LIGHT)


def flat_factors(samples: Samples, judge: str, pair: PanelPair) -> dict[float, bool]:
    """Return whether a judge's belief is flat over two features, by the factor of its power.

    For two features of single values shares are drawn directly, so the belief is never called
    flat.
    """
    powers = samples.by_factor(judge)
    if all(map(by_value, pair.features)):
        return dict.fromkeys(powers, False)
    draws = samples.draws.get(judge)
    uncertain = draws is not None and is_uncertain(
        pair, samples.beliefs[judge], samples.sampling, draws
    )
    return {
        factor: uncertain or is_flat(pair, points, samples.sampling)
        for factor, points in powers.items()
    }


def _panels(samples: Samples) -> Figure:
    """Return the panels without a belief; marginals are empty, because their axes change."""
    d, figure = samples.space.dimension, _blank(samples)
    for row in range(d):
        for column in range(row + 1):
            axes = figure.add_subplot(d, d, row * d + column + 1)
            if row == column:
                dress_marginal(axes, samples.space.features[row], LIGHT)
            else:
                draw_panel(axes, samples, _pair(samples, column, row), LIGHT)
            _label(axes, samples.space.features, (column, row))
    return figure


def _blank(samples: Samples) -> Figure:
    # The constrained layout would take seconds for this many panels.
    d = samples.space.dimension
    side = _PANEL.get(d, _LEAST_PANEL) * d + _LEFT + _RIGHT
    worded = any(feature.categories for feature in samples.space.features)
    under = _WORDS if worded else _LEFT
    figure = Figure(figsize=(side, side), facecolor=LIGHT.background)
    figure.subplots_adjust(
        left=_LEFT / side, bottom=under / side, right=1 - _RIGHT / side, top=1 - _RIGHT / side,
        wspace=0.08, hspace=0.08,
    )  # fmt: skip
    return figure


def _places(figure: Figure, samples: Samples) -> Iterator[tuple[Axes, int, int]]:
    """Yield every panel with its row and column."""
    rows, columns = np.tril_indices(samples.space.dimension)
    yield from zip(figure.axes, rows.tolist(), columns.tolist(), strict=True)


def _pair(samples: Samples, column: int, row: int) -> PanelPair:
    features = samples.space.features
    return PanelPair((features[column], features[row]), (column, row))


def _label(axes: Axes, features: tuple[Feature, ...], place: tuple[int, int]) -> None:
    """Label the outer panels only."""
    column, row = place
    axes.tick_params(labelsize=7, length=2)
    if row == len(features) - 1:
        axes.set_xlabel(_wrapped(features[column].label), fontsize=8, color=LIGHT.ink)
        axes.tick_params(axis="x", rotation=45)
    else:
        axes.tick_params(labelbottom=False)
    if column == 0 and row > 0:
        axes.set_ylabel(_wrapped(features[row].label), fontsize=8, color=LIGHT.ink)
    else:
        axes.tick_params(labelleft=False)


def _wrapped(label: str) -> str:
    """Break a long label into two lines near its middle."""
    words = label.split()
    if len(label) <= 14 or len(words) < 2:
        return label
    cut = min(range(1, len(words)), key=lambda i: abs(len(" ".join(words[:i])) - len(label) / 2))
    return " ".join(words[:cut]) + "\n" + " ".join(words[cut:])
