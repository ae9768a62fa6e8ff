"""A belief as a table of its features, for notebooks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_elicit.density.belief_draws import BeliefDraws
from llm_elicit.density.feature_axis import FeatureAxis
from llm_elicit.density.summaries import band

Array = npt.NDArray[np.float64]
_LEVELS = (0.05, 0.5, 0.95)
_HEADINGS = ("", "mean", "sd", "5 %", "50 %", "95 %")
_MOST_ROWS, _MOST_CATEGORIES = 40, 8
_LONGEST = 60
_RIGHT, _LEFT, _SMALL = (
    ' style="text-align:right"',
    ' style="text-align:left"',
    ' style="opacity:.75;white-space:nowrap"',
)
_NONE = "–"


def belief_html(
    axes: Sequence[FeatureAxis],
    points: Array,
    draws: BeliefDraws | bool,
    diagnostics: Mapping[str, Any],
) -> str:
    """Return the table of a belief as HTML, without scripts and without colours.

    Args:
        axes: one for each feature.
        points: (m, d) points of the belief.
        draws: those of the posterior, for 90 % bands; or whether it has some, if none were made
            yet.
        diagnostics: the report of the fit.
    """
    bands = None if isinstance(draws, bool) else _Bands.of(draws)
    rows = [_row(axis, points[:, j], j, bands) for j, axis in enumerate(axes[:_MOST_ROWS])]
    if len(axes) > _MOST_ROWS:
        rows.append(_wide("…", f"{len(axes) - _MOST_ROWS} more features"))
    head = "".join(f"<th{_RIGHT}>{heading}</th>" for heading in _HEADINGS)
    return (
        f"<div><p><b>Belief density</b>: {escape('; '.join(_facts(diagnostics)))}</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        f"<p><small>{escape(' '.join(_notes(axes, draws)))}</small></p></div>"
    )


@dataclass(frozen=True)
class _Bands:
    """Draws with the ends of 90 % bands: of means (2, d) and of quantiles (2, L, d)."""

    drawn: BeliefDraws
    means: Array
    quantiles: Array

    @classmethod
    def of(cls, drawn: BeliefDraws) -> _Bands:
        return cls(drawn, np.stack(band(drawn.mean())), np.stack(band(drawn.quantile(_LEVELS))))


def _row(axis: FeatureAxis, values: Array, place: int, bands: _Bands | None) -> str:
    """Return the row of one feature, by its values (m,)."""
    if axis.categories:
        return _wide(axis.label, _shares(axis, values, place, bands))
    if axis.periodic:
        return _circle(axis, values, place, bands)
    sd = float(values.std())
    at = [float(values.mean()), *np.quantile(values, _LEVELS).tolist()]
    ends: list[Array | None] = [None] * len(at)
    if bands is not None:
        ends = [bands.means[:, place], *bands.quantiles[:, :, place].T]
    mean, *quantiles = [
        _cell(_value(value, axis, sd), _between(axis, sd, end))
        for value, end in zip(at, ends, strict=True)
    ]
    width = f"{_number(sd, axis, sd)} days" if axis.date else _number(sd, axis, sd)
    return _cells(axis.label, [mean, _cell(width), *quantiles])


def _circle(axis: FeatureAxis, values: Array, place: int, bands: _Bands | None) -> str:
    """Return the row of a periodic feature: a circle has a mean direction and no quantiles."""
    period = axis.high - axis.low + axis.whole
    turn = 2.0 * math.pi / period

    def resultant(x: Array, weights: Array | None = None) -> complex:
        return complex(np.average(np.exp(1j * turn * (x - axis.low)), weights=weights))

    def value(angle: float) -> float:
        return axis.low + (angle / turn) % period

    middle = resultant(values)
    sd = math.sqrt(max(0.0, 1.0 - abs(middle) ** 2)) / turn
    angle, end = float(np.angle(middle)), None
    if bands is not None:
        weighted = zip(bands.drawn.points, bands.drawn.weights, strict=True)
        means = np.array([resultant(x[:, place], w) for x, w in weighted])
        # Measured from the mean, a band may go over the end of the range.
        end = [value(angle + float(part)) for part in band(np.angle(means * np.exp(-1j * angle)))]
    mean = _cell(_number(value(angle), axis, sd), _between(axis, sd, end))
    return _cells(axis.label, [mean, _cell(_number(sd, axis, sd)), *[_cell(_NONE)] * len(_LEVELS)])


def _shares(axis: FeatureAxis, values: Array, place: int, bands: _Bands | None) -> str:
    """Return the shares of categories, the largest first."""
    share = axis.bars(values)
    ends = None if bands is None else np.stack(band(bands.drawn.shares(place)))
    order = np.argsort(-share, kind="stable")
    top, tail = order[:_MOST_CATEGORIES], order[_MOST_CATEGORIES:]
    parts = []
    for code in top.tolist():
        between = "" if ends is None else f" ({ends[0, code]:.0%} to {ends[1, code]:.0%})"
        parts.append(f"{_cut(axis.categories[code])} {share[code]:.0%}{between}")
    if len(tail):
        parts.append(f"{len(tail)} others {share[tail].sum():.0%}")
    return ", ".join(parts)


def _between(axis: FeatureAxis, sd: float, end: Sequence[float] | Array | None) -> str:
    return "" if end is None else " to ".join(_value(float(x), axis, sd) for x in end)


def _cell(text: str, under: str = "") -> str:
    below = f"<br><small{_SMALL}>{escape(under)}</small>" if under else ""
    return f"<td{_RIGHT}>{escape(text)}{below}</td>"


def _cells(label: str, cells: Sequence[str]) -> str:
    return f"<tr><th{_LEFT}>{escape(_cut(label))}</th>{''.join(cells)}</tr>"


def _wide(label: str, text: str) -> str:
    """Return a row with one cell."""
    return _cells(label, [f'<td{_LEFT} colspan="{len(_HEADINGS) - 1}">{escape(text)}</td>'])


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _value(value: float, axis: FeatureAxis, sd: float) -> str:
    """Return a value of a feature: a number, or a date."""
    return str(np.datetime64(round(value), "D")) if axis.date else _number(value, axis, sd)


def _number(value: float, axis: FeatureAxis, sd: float) -> str:
    """Return a number with two digits of the standard deviation; on a log scale, three of its own.

    Example:
        >>> age = FeatureAxis("age", 0.0, 90.0)
        >>> _number(41.5678, age, 12.3), _number(-41567.8, age, 1234.5)
        ('42', '−41,568')
    """
    if axis.log or not 1e-6 < sd < 1e12:
        text = f"{value:,.0f}" if 100.0 <= abs(value) < 1e12 else f"{value:.3g}"
    else:
        text = f"{value:,.{max(0, 1 - math.floor(math.log10(sd)))}f}"
    return _signed(text)


def _signed(text: str) -> str:
    """Return a number with a typographic minus sign."""
    return text.replace("-", "−")


def _facts(diagnostics: Mapping[str, Any]) -> list[str]:
    """Return how the belief was made and how well it predicts, as short phrases."""
    facts = []
    if "method" in diagnostics:
        facts.append(f"method {diagnostics['method']}")
    if "n" in diagnostics:
        facts.append(f"{diagnostics['n']:,} judgments")
    held_out = diagnostics.get("held_out_log_likelihood")
    chance = diagnostics.get("coin_log_likelihood")
    if held_out is not None and chance is not None:
        facts.append(
            f"held-out log-likelihood {_signed(f'{held_out:.3f}')} per comparison "
            f"(random choices {_signed(f'{chance:.3f}')})"
        )
    if "power" in diagnostics:
        facts.append(f"power {diagnostics['power']['value']:.3g}")
    if "given" in diagnostics:
        fixed = (f"feature {number} = {value:g}" for number, value in diagnostics["given"].items())
        facts.append(f"given {', '.join(fixed)}")
    return facts


def _notes(axes: Sequence[FeatureAxis], draws: BeliefDraws | bool) -> list[str]:
    """Return what the numbers are."""
    notes = []
    if not isinstance(draws, bool):
        notes.append(f"Below each number: its 90 % band over {len(draws)} draws of the posterior.")
    elif draws:
        notes.append("For 90 % bands call draws() first; it takes seconds.")
    if any(axis.periodic for axis in axes):
        notes.append("Of a periodic feature: circular mean and standard deviation.")
    return notes
