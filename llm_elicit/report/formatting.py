"""Numbers and verdicts in words: how a report says what the audit measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llm_elicit._util.sanitize import visible
from llm_elicit.audit.direct_answers import DirectAudit
from llm_elicit.audit.distances import Estimate
from llm_elicit.audit.inference import Interval, p_words
from llm_elicit.audit.record import JudgeAudit
from llm_elicit.audit.row_completion import Recited
from llm_elicit.audit.shape import Box
from llm_elicit.spaces.features import Feature, FeatureSpace

__all__ = [
    "between", "cell", "estimate", "interval", "level_words", "listed", "no_belief_sentence",
    "number", "p_cell", "recited_sentence", "share", "sides", "signed",
    "times_saved", "visible", "worded",
]  # fmt: skip

NOT_MEASURED = "not measurable"
NULL_NAMES = {
    "coin": "one half for every choice",
    "sampling density": "λ as the belief",
    "places": "the position effect alone",
    "quadratic": "the best quadratic rule",
}
"""What null models are called on the page."""


def number(value: float | None, digits: int = 3) -> str:
    """A number to `digits` significant digits, with a true minus sign.

    Example:
        >>> number(-0.01234), number(1234.5), number(None)
        ('−0.0123', '1,234', 'not measurable')
    """
    if value is None:
        return NOT_MEASURED
    text = f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"
    return "0" if float(text.replace(",", "")) == 0 else text.replace("-", "−")


def estimate(value: Estimate | None, decimals: int = 2, percent: bool = False) -> str:
    """Mean and standard deviation over repeats, as numbers or as percentages.

    Example:
        >>> estimate(Estimate(mean=1.2345, sd=0.0123))
        '1.23 ± 0.01'
        >>> estimate(Estimate(mean=0.5012, sd=0.0098), 1, percent=True)
        '50.1 ± 1.0 %'
    """
    if value is None:
        return NOT_MEASURED
    if percent:
        return f"{100 * value.mean:.{decimals}f} ± {100 * value.sd:.{decimals}f} %"
    return f"{value.mean:.{decimals}f} ± {value.sd:.{decimals}f}"


def interval(value: Interval | None, percent: bool = False, decimals: int = 0) -> str:
    """An estimate with its interval, as numbers or as percentages to so many decimals.

    Example:
        >>> interval(Interval(value=0.02, low=-0.05, high=0.09))
        '+0.02 (−0.05 to +0.09)'
    """
    if value is None:
        return NOT_MEASURED
    if percent:
        middle, low, high = (share(x, decimals) for x in (value.value, value.low, value.high))
        return f"{middle} ({low} to {high})"
    return f"{signed(value.value)} ({signed(value.low)} to {signed(value.high)})"


def signed(value: float) -> str:
    """A number with its sign, to two decimals.

    Example:
        >>> signed(0.25), signed(-0.3), signed(-0.001)
        ('+0.25', '−0.30', '+0.00')
    """
    return f"{value:+.2f}".replace("-0.00", "+0.00").replace("-", "−")


def share(value: float | None, decimals: int = 0) -> str:
    """A share as a percentage.

    Example:
        >>> share(0.05), share(0.0512, 1)
        ('5%', '5.1%')
    """
    return NOT_MEASURED if value is None else f"{value:.{decimals}%}"


def cell(value: float, kind: str) -> str:
    """A number in a cell: a "share" of 0 at least, a "correlation", or a number of two digits.

    Example:
        >>> cell(0.771, "share"), cell(-1.35, "share"), cell(-0.2, "correlation"), cell(0.0123, "")
        ('77%', '0%', '−0.20', '0.012')
    """
    if kind == "share":
        return share(max(value, 0.0))
    return signed(value) if kind == "correlation" else number(value, 2)


def p_cell(value: float, at_floor: bool = False) -> str:
    """A p-value in a table's cell; one that a simulation could not have found smaller is a bound.

    Example:
        >>> p_cell(0.0005, at_floor=True), p_cell(0.2134)
        ('≤ 0.0005', '0.21')
    """
    return p_words(value, at_floor).removeprefix("p ").removeprefix("= ")


def times_saved(factor: float) -> str:
    """A power, by its factor of the saved belief's.

    Example:
        >>> times_saved(0.5**0.5), times_saved(1.0)
        ('0.71 times the saved power', 'the saved power')
    """
    return "the saved power" if factor == 1.0 else f"{number(factor, 2)} times the saved power"


def between(feature: Feature, band: tuple[float, float]) -> str:
    """The two ends of a band, as `worded`.

    Example:
        >>> between(Feature(name="x", label="x", unit="m", low=0, high=100), (1.0, 22.0))
        '1 to 22'
    """
    return " to ".join(worded(feature, end) for end in band)


def worded(feature: Feature, value: float) -> str:
    """A mean, sd or quantile with about the digits a question would give, without the unit.

    Unlike the values in a question it may lie outside the range: a standard deviation does.

    Example:
        >>> feature = Feature(name="x", label="x", unit="USD", factor=1000, low=0, high=100)
        >>> worded(feature, 41.57), worded(feature, -1.0)
        ('42,000', '−1,000')
    """
    shown = value * feature.factor
    span = (feature.high - feature.low) * feature.factor
    extent = abs(shown) if feature.scale == "log" else span
    decimals = feature.digits - 1 - math.floor(math.log10(max(extent, 1e-9)))
    if feature.kind == "integer":
        decimals = min(decimals, 0 if span >= 20 else 1)
    text = f"{round(shown, decimals):,.{max(decimals, 0)}f}"
    return text.replace("-", "−")


def no_belief_sentence(judge: JudgeAudit, space: FeatureSpace) -> str:
    """Why a judge has no belief: too few answers to fit one to, or no fit was run."""
    pairs, least = judge.preference.pairs, space.dimension
    if pairs < least:
        return (
            f"No belief was fitted: {pairs} pairs have an answer, and {least} features need at "
            f"least {least}."
        )
    return "No belief was fitted: the stage fit has not been run; llm-elicit fit does it."


def sides(box: Box, space: FeatureSpace) -> str:
    """The features that bound a box, each in its unit, or with its categories.

    Example:
        >>> x, y = ({"name": n, "label": n, "unit": "m", "low": 0, "high": 9} for n in "xy")
        >>> space = FeatureSpace(name="xy", title="xy", subject="xy", features=[x, y])
        >>> held = {"value": 0.5, "low": 0.4, "high": 0.6}
        >>> ends = [{"name": "x", "low": None, "high": 2}, {"name": "y", "low": 1, "high": 2}]
        >>> sides(Box(sides=ends, data=held, belief=0.1, band=None, outside=None), space)
        'x up to 2.00 m, y 1.00 m to 2.00 m'
    """
    features, said = dict(zip(space.names, space.features, strict=True)), []
    for side in box.sides:
        feature = features[side.name]
        if side.categories is not None:
            said.append(f"{feature.label} {listed(side.categories, 'or')}")
            continue
        low, high = (None if end is None else feature.word(end) for end in (side.low, side.high))
        if low is None or high is None:
            bounds = f"up to {high}" if low is None else f"over {low}"
        else:
            bounds = f"{low} to {high}"
        said.append(f"{feature.label} {bounds}")
    return ", ".join(said)


def level_words(direct: DirectAudit) -> str:
    """The noise level that agrees best with stated quantiles, over the assumed one."""
    level = None if direct.stated is None else direct.stated.level
    if level is None:
        return NOT_MEASURED
    interval = f"{level.best:.2g} ({level.low:.2g} to {level.high:.2g})"
    return interval if level.identified else f"not identified: {interval}"


def recited_sentence(recited: Recited, judge: str) -> str:
    """Whether a judge has memorized the table, and what follows.

    Example:
        >>> from llm_elicit.audit.inference import wilson
        >>> share = wilson(0, 20)
        >>> none = Recited(feature=0, rows=20, read=18, share=share, chance=0, p_value=1,
        ...                found=False)
        >>> recited_sentence(none, "x")
        'x completed no row of 20 exactly: no sign that it has memorized the table.'
        >>> recited_sentence(none.model_copy(update={"read": 0}), "x").partition(":")[0]
        "None of x's answers to 20 rows could be read"
    """
    share, rows = recited.share, recited.rows
    if not recited.read:
        return (
            f"None of {judge}'s answers to {rows:,} rows could be read: whether it has memorized "
            "the table is not known."
        )
    count = "no row" if not share.value else f"{round(share.value * rows):,} rows"
    exactly = f"{judge} completed {count} of {rows:,} exactly"
    if not recited.found:
        return f"{exactly}: no sign that it has memorized the table."
    return (
        f"{exactly}, where a judge that knows the subject but not the table would complete "
        f"{recited.chance:.1%}. It has memorized at least a part of the table, so its belief's "
        "agreement with the data says little about how well it judges what it has not read."
    )


def listed(names: Sequence[str], joint: str = "and") -> str:
    """Names in one phrase.

    Example:
        >>> listed(["a", "b", "c"]), listed(["a", "b"], "or")
        ('a, b and c', 'a or b')
    """
    *most, last = names
    return f"{', '.join(most)} {joint} {last}" if most else last
