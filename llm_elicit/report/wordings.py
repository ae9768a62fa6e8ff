"""Sentences on how much of a preference is due to how the question is asked, or to the text."""

from __future__ import annotations

from llm_elicit.audit.preference import CONSISTENT_VERDICTS, PRESENTATION, WORDING, Verdict
from llm_elicit.audit.presentations import PresentationAudit
from llm_elicit.audit.surface import SurfaceAudit
from llm_elicit.report.formatting import join_names, share_text


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
    """Return a sentence on answers that length and digits of the text predict; or an empty text."""
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
