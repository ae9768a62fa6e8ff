"""Numbers and verdicts in words: how a report says what the audit measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from llm_elicit.audit.boxes import Box
from llm_elicit.audit.consistency import Interval
from llm_elicit.audit.direct import DirectAudit
from llm_elicit.audit.distance import Estimate
from llm_elicit.audit.power import SearchPower
from llm_elicit.audit.recited import Recited
from llm_elicit.audit.record import Audit, JudgeAudit
from llm_elicit.audit.scale import Scale
from llm_elicit.features import Feature, FeatureSpace
from llm_elicit.text import visible

__all__ = [
    "between", "estimate", "interval", "level_words", "number", "order_sentence", "p_value",
    "recited_sentence", "scale_sentence", "search_sentence", "share", "sides", "signed",
    "times_saved", "verdict_sentence", "visible", "worded",
]  # fmt: skip

NOT_MEASURED = "not measurable"
_STRONG_BIAS = 0.25
NULL_NAMES = {
    "coin": "a coin",
    "sampling density": "the sampling density λ for a belief",
    "places": "the order alone",
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


def p_value(value: float, flips: int) -> str:
    """A p-value; the smallest one that so many flips can give is a bound.

    Example:
        >>> p_value(0.0005, 1999), p_value(0.2134, 1999)
        ('p ≤ 0.0005', 'p = 0.21')
    """
    if value <= 1.0 / (1 + flips):
        return f"p ≤ {value:.1g}"
    return f"p = {value:.2g}"


def times_saved(factor: float) -> str:
    """A power, by its factor of the saved belief's.

    Example:
        >>> times_saved(0.5**0.5), times_saved(1.0)
        ('0.71 times the saved power', 'the saved power')
    """
    return "the saved power" if factor == 1.0 else f"{factor:.2g} times the saved power"


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


def verdict_sentence(judge: JudgeAudit, audit: Audit) -> str:
    """What the audit found about one judge, for a reader who knows none of the methods."""
    signal = judge.signal
    p = p_value(signal.p_value, signal.flips)
    if judge.consistency.pairs == 0:
        return f"{judge.name} never chose, so there is no belief to speak of."
    if not signal.answers_depend:
        return (
            f"{judge.name}'s answers cannot be told from answers that ignore what was shown "
            f"({p}). Whatever belief is drawn below was fitted to noise; do not read it as an "
            "opinion of the model."
        )
    depends = f"{judge.name}'s answers depend on what was shown ({p})"
    if signal.verdict == "no signal found":
        if judge.belief is None:
            return f"{depends}, but no belief was fitted."
        return (
            f"{depends}, but so weakly that the "
            "belief they imply cannot be told from the density the questions were drawn from."
        )
    return f"{depends}. {_distance_clause(judge, audit)}"


def order_sentence(judge: JudgeAudit) -> str:
    """A warning where the position of an option decides much; empty otherwise."""
    bias = judge.consistency.order_bias
    if bias is None or max(bias.low, -bias.high) < _STRONG_BIAS:
        return ""
    letter, named = ("A" if bias.value > 0 else "B"), 0.5 + abs(bias.value)
    return f"It named option {letter} in {named:.0%} of its choices, whatever was shown there."


def no_belief_sentence(judge: JudgeAudit, space: FeatureSpace) -> str:
    """Why a judge has no belief: too few answers to fit one to, or no fit was run."""
    pairs, least = judge.consistency.pairs, space.dimension
    if pairs < least:
        return (
            f"No belief was fitted: {pairs} pairs have an answer, and {least} features need at "
            f"least {least}."
        )
    return "No belief was fitted: the stage fit has not been run; llm-elicit fit does it."


def scale_sentence(scale: Scale, labels: Mapping[str, str]) -> str:
    """What holds whatever the noise level is, and what does not; features by their labels.

    Example:
        >>> from llm_elicit.audit.scale import AtLevel
        >>> ends = [AtLevel(factor=f, belief_data=None, shifts=[0.3, 0.0]) for f in (0.5, 2)]
        >>> scale = Scale(levels=ends, size=2, sampling_data=None, nearer=None,
        ...               above=["age"], below=[], open=["rooms"])
        >>> labels = {"age": "house age", "rooms": "rooms per household"}
        >>> scale_sentence(scale, labels).partition(": ")[2]
        'house age lies above λ. It depends on the level where rooms per household lies.'
    """
    least, most = (scale.levels[end].factor for end in (0, -1))
    holds, open_ = [], [f"where {labels[name]} lies" for name in scale.open]
    near = "whether the belief is nearer to the data than the range asked about"
    if scale.nearer is not None:
        holds.append(f"the belief is {'' if scale.nearer else 'no '}nearer to the data than λ")
    elif scale.sampling_data is not None:
        open_.insert(0, near)
    other = "the data" if scale.sampling_data is not None else "λ"
    for names, side in ((scale.above, "above"), (scale.below, "below")):
        if names:
            shown = _listed([labels[name] for name in names])
            holds.append(f"{shown} {'lies' if len(names) == 1 else 'lie'} {side} {other}")
    told = f"the noise level, from {least:g} to {most:g} times the one that the fit was told"
    sure = f"Whatever {told}: {'; '.join(holds)}." if holds else f"Nothing holds whatever {told}."
    return f"{sure} It depends on the level {_listed(open_)}." if open_ else sure


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
            said.append(f"{feature.label} {_listed(side.categories, 'or')}")
            continue
        low, high = (None if end is None else feature.word(end) for end in (side.low, side.high))
        if low is None or high is None:
            told = f"up to {high}" if low is None else f"over {low}"
        else:
            told = f"{low} to {high}"
        said.append(f"{feature.label} {told}")
    return ", ".join(said)


def search_sentence(search: SearchPower, pairs: int) -> str:
    """What it would take to find a signal that `pairs` pairs did not show.

    Example:
        >>> search_sentence(SearchPower(excess=0.03, se=0.01, pairs=430), 150)
        'If what was measured is a signal, about 430 pairs in all would find it: 280 more.'
    """
    if search.pairs is None:
        return (
            "How many more pairs would find a signal is more than can be said: what was measured "
            "is less than one standard error above chance."
        )
    return (
        f"If what was measured is a signal, about {search.pairs:,} pairs in all would find it: "
        f"{search.pairs - pairs:,} more."
    )


def level_words(direct: DirectAudit) -> str:
    """The noise level that suits stated quantiles, over the one told."""
    level = None if direct.stated is None else direct.stated.level
    if level is None:
        return NOT_MEASURED
    interval = f"{level.best:.2g} ({level.low:.2g} to {level.high:.2g})"
    return interval if level.identified else f"not identified: {interval}"


def recited_sentence(recited: Recited, judge: str) -> str:
    """Whether a judge has the table by heart, and what follows.

    Example:
        >>> from llm_elicit.audit.consistency import wilson
        >>> share = wilson(0, 20)
        >>> none = Recited(feature=0, rows=20, read=18, share=share, chance=0, p_value=1,
        ...                found=False)
        >>> recited_sentence(none, "x")
        'x recited no row of 20 exactly: no sign that it has the table by heart.'
        >>> recited_sentence(none.model_copy(update={"read": 0}), "x").partition(":")[0]
        "None of x's answers to 20 rows could be read"
    """
    share, rows = recited.share, recited.rows
    if not recited.read:
        return (
            f"None of {judge}'s answers to {rows:,} rows could be read: whether it has the table "
            "by heart is not known."
        )
    count = "no row" if not share.value else f"{round(share.value * rows):,} rows"
    exactly = f"{judge} recited {count} of {rows:,} exactly"
    if not recited.found:
        return f"{exactly}: no sign that it has the table by heart."
    return (
        f"{exactly}, where a judge that knows the subject alone would recite "
        f"{recited.chance:.1%}. It has at least a part of the table by heart, so that its belief's "
        "agreement with the data says little about how well it judges what it has not read."
    )


def _listed(names: Sequence[str], joint: str = "and") -> str:
    """ "a, b and c"."""
    *most, last = names
    return f"{', '.join(most)} {joint} {last}" if most else last


def _distance_clause(judge: JudgeAudit, audit: Audit) -> str:
    """How near the belief is to the data, against the two yardsticks: the floor and λ."""
    reference = audit.reference
    if judge.belief_data is None or reference.sampling_data is None or reference.data_floor is None:
        return "There is no reference table to compare its belief with."
    belief, floor, sampling = (
        distance.wasserstein.mean
        for distance in (judge.belief_data, reference.data_floor, reference.sampling_data)
    )
    way = (belief - floor) / max(sampling - floor, 1e-12)
    if way < 0.1:
        place = "about as near to the data as can be measured"
    elif way < 0.5:
        place = "much nearer to the data than the range asked about"
    elif way < 0.9:
        place = "somewhat nearer to the data than the range asked about"
    elif way <= 1.1:
        place = "no nearer to the data than the range asked about"
    else:
        place = "farther from the data than the range asked about"
    return (
        f"The belief they imply is {place}: its distance from the data is {belief:.2f}, where two "
        f"samples of the data are {floor:.2f} apart and the density the questions were drawn "
        f"from is {sampling:.2f} away."
    )
