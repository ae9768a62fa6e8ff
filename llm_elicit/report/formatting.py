"""Numbers of the audit as text, and the labels of the slider over powers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase

import numpy as np

from llm_elicit.audit.belief_power import BeliefPowers, DataPower
from llm_elicit.audit.calibration import Box
from llm_elicit.audit.distances import Estimate
from llm_elicit.audit.inference import Interval, format_p_value
from llm_elicit.density import Power
from llm_elicit.spaces.feature import ENGLISH, format_number
from llm_elicit.spaces.features import Feature, FeatureSpace

NOT_MEASURED = "not measurable"
NULL_NAMES = {
    "random choices": "random choices (probability one half)",
    "sampling density": "λ as the belief",
    "position": "position effect only",
    "quadratic": "quadratic utility",
}
"""Names of null models on the page."""


def number_text(value: float | None, digits: int = 3) -> str:
    """Return a number to `digits` significant digits, with a typographic minus sign.

    Examples:
        >>> number_text(-0.01234), number_text(1234.5), number_text(None)
        ('−0.0123', '1,234', 'not measurable')
    """
    if value is None:
        return NOT_MEASURED
    text = f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"
    return "0" if float(text.replace(",", "")) == 0 else text.replace("-", "−")


def estimate_text(value: Estimate | None, decimals: int = 2, percent: bool = False) -> str:
    """Return mean and standard deviation over repeats, as numbers or as percentages.

    Examples:
        >>> estimate_text(Estimate(mean=1.2345, sd=0.0123))
        '1.23 ± 0.01'
        >>> estimate_text(Estimate(mean=0.5012, sd=0.0098), 1, percent=True)
        '50.1 ± 1.0 %'
    """
    if value is None:
        return NOT_MEASURED
    if percent:
        return f"{100 * value.mean:.{decimals}f} ± {100 * value.sd:.{decimals}f} %"
    return f"{value.mean:.{decimals}f} ± {value.sd:.{decimals}f}"


def interval_text(value: Interval | None, percent: bool = False, decimals: int = 0) -> str:
    """Return an estimate with its interval, as numbers or as percentages.

    Examples:
        >>> interval_text(Interval(value=0.02, low=-0.05, high=0.09))
        '+0.02 (−0.05 to +0.09)'
    """
    if value is None:
        return NOT_MEASURED
    if percent:
        middle, low, high = (share_text(x, decimals) for x in (value.value, value.low, value.high))
        return f"{middle} ({low} to {high})"
    return f"{signed_text(value.value)} ({signed_text(value.low)} to {signed_text(value.high)})"


def signed_text(value: float, decimals: int = 2) -> str:
    """Return a number with its sign; without one if it is rounded to zero.

    Examples:
        >>> signed_text(0.25), signed_text(-0.3), signed_text(-0.001), signed_text(-0.001, 3)
        ('+0.25', '−0.30', '0.00', '−0.001')
    """
    text = f"{value:+,.{decimals}f}"
    return text.lstrip("+-") if not text.strip("+-0.,") else text.replace("-", "−")


def share_text(value: float | None, decimals: int = 0) -> str:
    """Return a share as a percentage.

    Examples:
        >>> share_text(0.05), share_text(0.0512, 1)
        ('5%', '5.1%')
    """
    return NOT_MEASURED if value is None else f"{value:.{decimals}%}"


def bare_share(value: float) -> str:
    """Return a share from 0 to 1 as a number without its leading zero.

    Examples:
        >>> bare_share(0.834)
        '.83'
    """
    return f"{value:.2f}".removeprefix("0")


def cell_text(value: float, kind: str) -> str:
    """Return a number for a cell: a "share" of at least 0, a "correlation", or two digits.

    Examples:
        >>> cell_text(0.771, "share"), cell_text(-1.35, "share")
        ('77%', '0%')
        >>> cell_text(-0.2, "correlation"), cell_text(0.0123, "")
        ('−0.20', '0.012')
    """
    if kind == "share":
        return share_text(max(value, 0.0))
    return signed_text(value) if kind == "correlation" else number_text(value, 2)


def p_value_cell(value: float, at_floor: bool = False) -> str:
    """Return a p-value for a table's cell; a bound if it is the smallest a simulation can give.

    Examples:
        >>> p_value_cell(0.0005, at_floor=True), p_value_cell(0.2134)
        ('≤ 0.0005', '0.21')
    """
    return format_p_value(value, at_floor).removeprefix("p ").removeprefix("= ")


def power_factor_text(factor: float) -> str:
    """Return a power as a multiple of the saved belief's.

    Examples:
        >>> power_factor_text(0.5**0.5), power_factor_text(1.0)
        ('0.71 times the saved power', 'the saved power')
    """
    return "the saved power" if factor == 1.0 else f"{number_text(factor, 2)} times the saved power"


def band_text(feature: Feature, band: tuple[float, float]) -> str:
    """Return the two ends of a band, formatted by `value_text`.

    Examples:
        >>> band_text(Feature(name="x", label="x", unit="m", low=0, high=100), (1.0, 22.0))
        '1 to 22'
    """
    return " to ".join(value_text(feature, end) for end in band)


def range_text(feature: Feature) -> str:
    """Return the range of a feature that questions cover, with its label and unit.

    Examples:
        >>> range_text(Feature(name="x", label="x", unit="m", low=0, high=100))
        'x 0 m to 100 m'
    """
    if feature.categories:
        return f"{feature.label} {join_names(feature.categories, 'or')}"
    if feature.periodic:  # the highest value would be worded as the lowest
        ends = band_text(feature, (feature.lowest, feature.highest))
        return f"{feature.label} {ends} {feature.unit}".rstrip() + ", periodic"
    return f"{feature.label} {feature.word(feature.low)} to {feature.word(feature.high)}"


def value_text(feature: Feature, value: float) -> str:
    """Return a mean or quantile with about as many digits as in a question, without the unit.

    Unlike the values in a question it may lie outside the range. A circular mean or an end of its
    band is a value of the circle: a month, an hour.

    Examples:
        >>> feature = Feature(name="x", label="x", unit="USD", factor=1000, low=0, high=100)
        >>> value_text(feature, 41.57), value_text(feature, -1.0)
        ('42,000', '−1,000')
        >>> month = Feature(name="m", label="m", kind="integer", low=1, high=12, periodic=True)
        >>> value_text(month, 11.8), value_text(month, 12.7)
        ('12', '1')
    """
    if feature.kind == "date":
        day, month, year = feature.word(value).split()
        return f"{day} {month[:3]} {year}"
    if feature.periodic and (feature.whole or not feature.low <= value <= feature.high):
        value = float(feature.round(np.asarray(value)))
    return _format_value(feature, value)


def _format_value(feature: Feature, value: float) -> str:
    """Return a number, in the worded unit, with about as many digits as in a question."""
    size = value * feature.factor
    span = (feature.high - feature.low) * feature.factor
    extent = abs(size) if feature.scale == "log" else span
    decimals = feature.digits - 1 - math.floor(math.log10(max(extent, 1e-9)))
    if feature.kind == "integer":
        max_decimals = 1 if span >= 2 else 2
        decimals = min(decimals, 0 if span >= 20 or value == round(value) else max_decimals)
    text = format_number(round(size, decimals), decimals, feature.locale or ENGLISH)
    return text.replace("-", "−")


def sd_text(feature: Feature, sd: float) -> str:
    """Return a standard deviation, with as many digits as `value_text` gives; of dates, in days.

    Examples:
        >>> born = Feature(name="b", label="b", kind="date", low="1990-01-01", high="2020-12-31")
        >>> sd_text(born, 1234.5)
        '1,234 days'
    """
    return f"{sd:,.0f} days" if feature.kind == "date" else _format_value(feature, sd)


def box_text(box: Box, space: FeatureSpace) -> str:
    """Return the bounds of a box, each in its feature's unit, or with its categories.

    Examples:
        >>> x, y = ({"name": n, "label": n, "unit": "m", "low": 0, "high": 9} for n in "xy")
        >>> space = FeatureSpace(name="xy", title="xy", subject="xy", features=[x, y])
        >>> share = {"value": 0.5, "low": 0.4, "high": 0.6}
        >>> ends = [{"name": "x", "low": None, "high": 2}, {"name": "y", "low": 1, "high": 2}]
        >>> box_text(Box(bounds=ends, data=share, belief=0.1, band=None, outside_band=None), space)
        'x up to 2.00 m, y 1.00 m to 2.00 m'
    """
    features, parts = dict(zip(space.names, space.features, strict=True)), []
    for bound in box.bounds:
        feature = features[bound.name]
        if bound.categories is not None:
            parts.append(f"{feature.label} {join_names(bound.categories, 'or')}")
            continue
        # Above 2 is from 3 on, where values are whole.
        lowest = bound.low + 1.0 if feature.whole and bound.low is not None else bound.low
        low, high = (None if end is None else feature.word(end) for end in (lowest, bound.high))
        limits = low if low == high else f"{low} to {high}"
        if low is None:
            limits = f"up to {high}"
        elif high is None:
            limits = f"{'from' if feature.whole else 'above'} {low}"
        parts.append(f"{feature.label} {limits}")
    return ", ".join(parts)


def join_names(names: Sequence[str], conjunction: str = "and") -> str:
    """Return names as one phrase.

    Examples:
        >>> join_names(["a", "b", "c"]), join_names(["a", "b"], "or")
        ('a, b and c', 'a or b')
    """
    *leading, last = names
    return f"{', '.join(leading)} {conjunction} {last}" if leading else last


@dataclass(frozen=True)
class PowerLabel:
    """One power on the slider.

    Attributes:
        letter: the label.
        at, low, high: positions of the power and its interval along the slider, from 0 to 1,
            clipped to its ends.
        nearest: index of the nearest of the slider's powers; None if it is beyond its ends.
        text: the source of the power and its value.
    """

    letter: str
    at: float
    low: float
    high: float
    nearest: int | None
    text: str


def power_labels(powers: BeliefPowers | None, factors: Sequence[float]) -> tuple[PowerLabel, ...]:
    """Return labels for a slider over multiples of the saved power: by source, and of the data."""
    if powers is None or len(factors) < 2:
        return ()
    labels: list[tuple[str, Power | DataPower]] = []
    if powers.identified_power is not None:
        sources = powers.identified_power.sources
        names = {"points": "nearest to the points sampled"}
        if len(sources) > 1:
            names = {source.source: f"{source.source} alone" for source in sources}
            labels.append(("all sources combined", powers.identified_power))
        labels += [(names.get(source.source, source.source), source) for source in sources]
    if powers.data_power is not None and powers.data_power.value > 0.0:
        beyond = "" if powers.data_power.is_maximum_inside else ", the largest evaluated"
        name = f"power that predicts the data best{beyond}"
        labels.append((name, powers.data_power))
    slider_labels = []
    for letter, (name, power) in zip(ascii_uppercase, labels, strict=False):
        ends = (power.value, power.low, power.high)
        value, low, high = (end / powers.saved_power for end in ends)
        at = _slider_position(value, factors)
        is_inside = factors[0] / 2**0.25 <= value <= factors[-1] * 2**0.25
        slider_labels.append(
            PowerLabel(
                letter=letter,
                at=at,
                low=_slider_position(low, factors),
                high=_slider_position(high, factors),
                nearest=round(at * (len(factors) - 1)) if is_inside else None,
                text=(
                    f"{name}: {power_factor_text(round(value, 2))} "
                    f"({number_text(low, 2)} to {number_text(high, 2)})"
                ),
            )
        )
    return tuple(slider_labels)


def _slider_position(factor: float, factors: Sequence[float]) -> float:
    """Return a factor's position from 0 to 1; factors are equally spaced in the logarithm."""
    first, last = math.log(factors[0]), math.log(factors[-1])
    return min(max((math.log(max(factor, 1e-9)) - first) / (last - first), 0.0), 1.0)
