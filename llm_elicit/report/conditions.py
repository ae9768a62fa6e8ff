"""The page that compares conditions: how beliefs and data depend on the given features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from llm_elicit.audit.record import Audit
from llm_elicit.audit.reference import axis_label, feature_axis
from llm_elicit.audit.summaries import (
    Bands,
    CategoryBands,
    CategorySummary,
    FeatureBands,
    FeatureSummary,
    Summary,
)
from llm_elicit.density.plot_style import LIGHT, empty_figure, set_axis, style_axes
from llm_elicit.report.layers import Picture, draw_picture, svg_settings
from llm_elicit.report.page import template_environment
from llm_elicit.spaces.features import Feature

Summaries = tuple[Summary | None, Bands | None, Summary | None]

_DATA_OFFSET = -0.14
"""Horizontal offset of the data from the tick of a condition; the belief has the opposite."""


@dataclass(frozen=True)
class Condition:
    """One condition.

    Attributes:
        label: the given features, with their values.
        value: the given values alone.
        audit: the audit of its run.
        report: the address of its report, relative to the page.
    """

    label: str
    value: str
    audit: Audit
    report: str


@dataclass(frozen=True)
class Cell:
    """A mean or share in the belief, its 90 % band, and the same in the data; None if unknown."""

    belief: float | None
    band: tuple[float, float] | None
    data: float | None


@dataclass(frozen=True)
class Row:
    """A feature's mean, or the share of one of its categories, by condition.

    Attributes:
        feature: the feature.
        category: the category; None for a mean.
        cells: one per condition.
        same_direction: number of the `disjoint` pairs whose difference has the same sign in the
            belief and in the data.
        disjoint: number of pairs of conditions whose bands do not overlap.
    """

    feature: Feature
    category: str | None
    cells: tuple[Cell, ...]
    same_direction: int
    disjoint: int


def write_conditions(title: str, conditions: Sequence[Condition], path: Path) -> Path:
    """Write the page of the conditions of one feature space.

    Args:
        title: title of the feature space.
        conditions: two or more, over the same features and judges.
        path: the page's path.
    """
    features, labels = conditions[0].audit.space.features, [item.value for item in conditions]
    data_summaries = [condition.audit.reference.data_summary for condition in conditions]
    views = []
    for judge in [audited.name for audited in conditions[0].audit.judges]:
        audits = [condition.audit.of(judge) for condition in conditions]
        rows, pictures = [], []
        for index, feature in enumerate(features):
            summaries: list[Summaries] = [
                (
                    None if audit.belief_summary is None else audit.belief_summary[index],
                    None if audit.bands is None else audit.bands[index],
                    None if data is None else data[index],
                )
                for audit, data in zip(audits, data_summaries, strict=True)
            ]
            for category in feature.categories or (None,):
                cells = tuple(
                    Cell(*(_mean_or_share(side, category) for side in sides)) for sides in summaries
                )
                # A periodic feature, such as the hour, has no direction.
                direction = (0, 0) if feature.periodic else _count_same_direction(cells)
                rows.append(Row(feature, category, cells, *direction))
            if not feature.categories and not feature.periodic:
                pictures.append(_draw_feature(feature, judge, summaries, labels))
        views.append({"name": judge, "rows": rows, "pictures": pictures})
    page = template_environment().get_template("conditions.html.jinja")
    text = page.render(title=title, conditions=conditions, judges=views)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _mean_or_share(summary: Summary | Bands | None, category: str | None) -> Any:
    if isinstance(summary, CategorySummary | CategoryBands):
        return summary.shares[category or ""]
    return None if summary is None else summary.mean


def _count_same_direction(cells: Sequence[Cell]) -> tuple[int, int]:
    """Return how many differences agree in sign with the data, and how many bands are disjoint.

    Examples:
        >>> light, heavy = Cell(3.0, (2.0, 4.0), 3.7), Cell(6.0, (5.0, 7.0), 5.1)
        >>> _count_same_direction([light, heavy, Cell(4.5, (3.5, 5.5), 4.0)])
        (1, 1)
    """
    same_order = disjoint = 0
    for first, second in combinations(cells, 2):
        if first.band is None or second.band is None or first.data is None or second.data is None:
            continue
        if first.band[1] < second.band[0] or second.band[1] < first.band[0]:
            disjoint += 1
            same_order += (first.band[0] < second.band[0]) == (first.data < second.data)
    return same_order, disjoint


def _draw_feature(
    feature: Feature, judge: str, summaries: Sequence[Summaries], labels: list[str]
) -> Picture:
    """Draw a feature's distribution under every condition, in the belief and in the data."""
    with svg_settings():
        figure = empty_figure(3.6, 2.5, LIGHT)
        axes = figure.add_subplot()
        style_axes(axes, LIGHT)
        for x, (belief, bands, data) in enumerate(summaries):
            if isinstance(data, FeatureSummary):
                _draw_summary(axes, x + _DATA_OFFSET, data, LIGHT.data)
            if isinstance(belief, FeatureSummary):
                _draw_summary(axes, x - _DATA_OFFSET, belief, LIGHT.belief)
            if isinstance(bands, FeatureBands):
                shade: dict[str, Any] = {
                    "color": LIGHT.belief,
                    "lw": 7,
                    "alpha": 0.3,
                    "solid_capstyle": "butt",
                }
                axes.plot([x - _DATA_OFFSET] * 2, bands.mean, **shade)
        set_axis(axes, "y", feature_axis(feature))
        axes.set_xlim(-0.5, len(labels) - 0.5)
        crowded = sum(map(len, labels)) > 30
        axes.set_xticks(range(len(labels)), labels, parse_math=False)
        for label in axes.get_xticklabels() if crowded else ():
            label.set(rotation=30, ha="right", rotation_mode="anchor")
        alt = f"{axis_label(feature)} under each condition: the belief of {judge} and the data."
        return draw_picture(figure, axis_label(feature), alt)


def _draw_summary(axes: Axes, x: float, summary: FeatureSummary, colour: str) -> None:
    """Draw a mean as a point, with lines between the 5 and 95 % and the 25 and 75 % quantiles."""
    axes.plot([x, x], [summary.q05, summary.q95], color=colour, lw=1, solid_capstyle="butt")
    axes.plot([x, x], [summary.q25, summary.q75], color=colour, lw=2.5, solid_capstyle="butt")
    axes.plot([x], [summary.mean], "o", color=colour, ms=5)
