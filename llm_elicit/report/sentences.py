"""Sentences on the power of a belief and on presentations, and labels of powers on the slider."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from llm_elicit.audit.belief_power import BeliefPowers, DataPower
from llm_elicit.audit.inference import format_p_value
from llm_elicit.audit.preference import CONSISTENT_VERDICTS, PRESENTATION, WORDING, Verdict
from llm_elicit.audit.presentations import PresentationAudit
from llm_elicit.audit.surface import SurfaceAudit
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.density import Power
from llm_elicit.report.formatting import join_names, number_text, power_factor_text, share_text

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
