"""Numbers of the audit as text, sentences on the power and on presentations, and slider labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase

import numpy as np

from llm_elicit.audit.belief_power import BeliefPowers, DataPower
from llm_elicit.audit.calibration import Box
from llm_elicit.audit.direct_answers import RowCompletionTest
from llm_elicit.audit.distances import Estimate
from llm_elicit.audit.inference import Interval, format_p_value
from llm_elicit.audit.preference import CONSISTENT_VERDICTS, PRESENTATION, WORDING, Verdict
from llm_elicit.audit.presentations import PresentationAudit
from llm_elicit.audit.record import JudgeAudit
from llm_elicit.audit.surface import SurfaceAudit
from llm_elicit.comparisons.table import Comparisons
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


def no_belief_sentence(judge: JudgeAudit, space: FeatureSpace) -> str:
    """Return why a judge has no belief: too few answers, or no fit was run."""
    pairs, min_pairs = judge.preference.pairs, space.dimension
    reason = "the stage fit has not been run; run llm-elicit fit"
    if pairs < min_pairs:
        reason = f"{pairs} pairs have an answer, and {min_pairs} features need at least {min_pairs}"
    return f"No belief was fitted: {reason}."


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


def row_completion_sentence(test: RowCompletionTest, judge: str) -> str:
    """Return whether a judge has memorized the table, and what that implies.

    Examples:
        >>> from llm_elicit.audit.inference import wilson_interval
        >>> share = wilson_interval(0, 20)
        >>> none = RowCompletionTest(
        ...     feature=0, rows=20, parsed=18, exact_share=share, chance_share=0, p_value=1,
        ...     memorized=False)
        >>> row_completion_sentence(none, "x")
        'x completed no row of 20 exactly: no evidence that it has memorized the table.'
        >>> row_completion_sentence(none.model_copy(update={"parsed": 0}), "x").partition(":")[0]
        "None of x's answers to 20 rows could be parsed"
    """
    share, rows = test.exact_share, test.rows
    if not test.parsed:
        return (
            f"None of {judge}'s answers to {rows:,} rows could be parsed: whether it has "
            "memorized the table is unknown."
        )
    count = "no row" if not share.value else f"{round(share.value * rows):,} rows"
    exactly = f"{judge} completed {count} of {rows:,} exactly"
    if not test.memorized:
        return f"{exactly}: no evidence that it has memorized the table."
    return (
        f"{exactly}; {test.chance_share:.1%} are expected of a judge that knows the subject but "
        "not the table. It has memorized at least part of the table, so agreement of its belief "
        "with the data is no evidence of calibration on data that it has not seen."
    )


def join_names(names: Sequence[str], conjunction: str = "and") -> str:
    """Return names as one phrase.

    Examples:
        >>> join_names(["a", "b", "c"]), join_names(["a", "b"], "or")
        ('a, b and c', 'a or b')
    """
    *leading, last = names
    return f"{', '.join(leading)} {conjunction} {last}" if leading else last


_TEST_LEVEL = 0.05
"""Level of the test that the sources of a power agree. Verdicts use `AuditSettings.level`."""


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


def power_sentence(powers: BeliefPowers) -> str:
    """Return the source of the saved power, and whether several sources agree."""
    identified = powers.identified_power
    if identified is None:
        return f"The sharpness of the belief is not identified. {_saved_power_sentence(powers)}"
    source = sources_text(identified.source)
    ends = (number_text(end / powers.saved_power, 2) for end in (identified.low, identified.high))
    interval = f"90 % interval {' to '.join(ends)} times the saved power"
    if not powers.is_identified:
        return (
            f"Answers about {source} do not identify the sharpness of the belief ({interval}). "
            f"{_saved_power_sentence(powers)}"
        )
    if identified.source == "points":
        sentence = (
            "The saved power is the one at which this fit is nearest to the points sampled. The "
            f"judge's own power may differ ({interval}), so points alone do not identify the "
            "sharpness of its belief."
        )
    elif powers.scale_sources is None:
        sentence = (
            f"The belief is saved at the power implied by answers about {source} ({interval}), but "
            "they are not coherent with a density, so the scale is not identified."
        )
    else:
        sentence = f"The saved power is identified by {source} ({interval})."
    if identified.agreement is None:
        return sentence
    p = format_p_value(identified.agreement, False)
    if sources_disagree(powers):
        return f"{sentence} The sources disagree ({p}); each is listed separately."
    return f"{sentence} The sources do not differ significantly ({p})."


def nearer_sentence(powers: BeliefPowers) -> str:
    """Return whether a belief is nearer to the data than λ is, over the powers evaluated."""
    if powers.sampling_data_distance is None:
        return ""
    first, last = (powers.beliefs[end].factor for end in (0, -1))
    evaluated = f"from {first:g} to {last:g} times the saved power"
    if powers.is_nearer is not None:
        relation = "nearer to" if powers.is_nearer else "farther from"
        return f"The belief is {relation} the data than λ at every power {evaluated}."
    signs = {row.compare_with_sampling(powers.sampling_data_distance) for row in powers.beliefs}
    if {-1, 1} <= signs:
        return f"Whether the belief is nearer to the data than λ depends on the power, {evaluated}."
    if signs == {0}:
        return (
            f"At every power {evaluated}, the distances of the belief and of λ from the data "
            "differ by less than their error."
        )
    relation = "nearer to" if 1 in signs else "farther from"
    return (
        f"At some powers {evaluated} the belief is {relation} the data than λ; at the others the "
        "two distances differ by less than their error."
    )


def coherence_sentence(powers: BeliefPowers | None) -> str:
    """Return whether answers about ranges are coherent with a density; empty without any."""
    response = None if powers is None else powers.coherence
    if response is None:
        return ""
    value, low, high = response.width
    numbers = (
        f"coefficient of log width {number_text(value, 2)}, 95 % interval {number_text(low, 2)} to "
        f"{number_text(high, 2)}; {number_text(response.expected, 2)} expected for a judge with a "
        f"density, {format_p_value(response.p_value, False)}"
    )
    includes_zero = low <= 0.0 <= high
    if response.coherent and includes_zero:
        return (
            f"Its answers about ranges are not shown to depend on their width ({numbers}), which "
            "is compatible only with a very sharp density."
        )
    if response.coherent:
        return f"Its answers about ranges are compatible with a density ({numbers})."
    if includes_zero:
        return (
            f"Its answers about ranges are not coherent with a density: they are not shown to "
            f"depend on the width ({numbers})."
        )
    return f"Its answers about ranges are not coherent with a density ({numbers})."


def sources_disagree(powers: BeliefPowers) -> bool:
    """Return whether the test that all sources share one power rejects."""
    identified = powers.identified_power
    if identified is None or identified.agreement is None:
        return False
    return identified.agreement < _TEST_LEVEL


def sources_text(source: str) -> str:
    """Return the sources of a power as a phrase."""
    return join_names(source.replace("likelihood", "the model's own density").split(" + "))


def _saved_power_sentence(powers: BeliefPowers) -> str:
    """Return the meaning of a saved power that is not identified."""
    source = f"the power implied by {sources_text(powers.saved_source)}"
    sentences = {
        "convention": (
            "By convention, the figures show the belief at the power at which the log density has "
            "a standard deviation of one nat over λ."
        ),
        "assumed noise level": (
            "The figures show the belief at the power that follows from the assumed noise level."
        ),
    }
    return sentences.get(powers.saved_source, f"The figures show the belief at {source}.")


def presentation_sentence(audit: PresentationAudit | None, verdict: Verdict) -> str:
    """Return a sentence on how much of a preference is common to presentations.

    The sentence is empty with one presentation, and for verdicts without a preference.
    """
    if verdict not in (*CONSISTENT_VERDICTS, WORDING, PRESENTATION):
        return ""
    if audit is None or audit.common is None or audit.generalizability is None:
        return ""
    value, low, high = (
        f"{number:.2f}".removeprefix("0")
        for number in (
            audit.generalizability.value,
            audit.generalizability.low,
            audit.generalizability.high,
        )
    )
    return (
        f"{share_text(audit.common.value)} of its preference is common to {audit.facets} like "
        f"these (generalizability {value} [{low}, {high}])."
    )


def study_sentence(audit: PresentationAudit) -> str:
    """Return how many presentations and pairs reach a generalizability of .8; empty if unknown."""
    reached = audit.generalizability_of(len(audit.presentations), audit.pairs)
    if reached is None:
        return ""
    needed, pairs, noun = audit.presentations_needed, audit.pairs_needed, audit.noun
    ways = []
    if needed is not None:
        ways.append(f"{needed:,} of these {noun}s" if needed > 1 else f"one {noun}")
    if pairs is not None:
        ways.append(f"{pairs:,} pairs in {len(audit.presentations)} {noun}s")
    advice = f"{join_names(ways, 'or')} would reach" if ways else "more of both are needed for"
    return (
        f"With {len(audit.presentations)} {noun}s and {audit.pairs:,} pairs, the generalizability "
        f"over {noun}s and pairs is {reached:.2f}; {advice} .80."
    )


def surface_sentence(text: SurfaceAudit | None) -> str:
    """Return a sentence on how well length and digits of the text predict answers; or nothing."""
    if text is None or text.relation not in ("surface", "not told apart"):
        return ""
    facets = " and ".join(f"`{facet}`" for facet in text.facets)
    advice = f"; vary {facets} in `design.presentations` to tell them apart" if facets else ""
    predicted = (
        f"Length and digits of the text alone predict {share_text(text.surface.value)} of the "
        f"answers, the content alone {share_text(text.content.value)}"
    )
    if text.relation == "surface":
        alike = advice if text.confounded_measures else ""
        return f"{predicted}; the content is not shown to add anything{alike}."
    return f"{predicted}; this design cannot tell content and text apart{advice}."


def asking_sentence(judge: str, comparisons: Comparisons, missing: int, questions: int) -> str:
    """Return how many answers a judge gave, what they cost, and when.

    Args:
        judge: the judge.
        comparisons: the judgments.
        missing, questions: number of its questions without an answer (0 if none), and of all.

    Examples:
        >>> table = Comparisons.empty(["age"])
        >>> asking_sentence("gpt", table, 0, 0)
        'No answers.'
    """
    rows = comparisons.answers_of(judge)
    if not len(rows):
        return "No answers."
    total = f" of {questions:,}" if missing else ""
    parts = [f"{len(rows):,}{total} answers"]
    costs = rows["cost"]
    if costs.notna().all():
        parts.append(f"{costs.sum():.4g} USD")
    asked = rows["asked_at"].dropna()
    if len(asked):
        first, last = (str(time)[:16].replace("T", " ") for time in (asked.min(), asked.max()))
        parts.append(f"asked {first}{'' if first == last else f' to {last}'} UTC")
    return "; ".join(parts) + "."
