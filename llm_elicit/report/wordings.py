"""What a preference owes to the wording of the question and to the text, in sentences."""

from __future__ import annotations

from llm_elicit.audit.preference import CONSISTENT_VERDICTS, WORDING, Verdict
from llm_elicit.audit.presentations import PresentationAudit
from llm_elicit.audit.surface import SurfaceAudit
from llm_elicit.report.formatting import join_names, share_text


def presentation_sentence(asked: PresentationAudit | None, verdict: Verdict) -> str:
    """Return how much of a preference wordings have in common.

    It is empty with one wording, and for verdicts that find no preference.
    """
    if verdict not in (*CONSISTENT_VERDICTS, WORDING):
        return ""
    if asked is None or asked.common is None or asked.generalizability is None:
        return ""
    value, low, high = (
        f"{number:.2f}".removeprefix("0")
        for number in (
            asked.generalizability.value,
            asked.generalizability.low,
            asked.generalizability.high,
        )
    )
    return (
        f"{share_text(asked.common.value)} of what it prefers is common to wordings like these "
        f"(generalizability {value} [{low}, {high}])."
    )


def study_sentence(asked: PresentationAudit) -> str:
    """Return how many wordings and pairs reach a generalizability of .8; empty if not known."""
    reached = asked.generalizability_of(len(asked.presentations), asked.pairs)
    if reached is None:
        return ""
    wordings, pairs = asked.presentations_needed, asked.pairs_needed
    ways = []
    if wordings is not None:
        ways.append(f"{wordings:,} of these wordings" if wordings > 1 else "one wording")
    if pairs is not None:
        ways.append(f"{pairs:,} pairs in {len(asked.presentations)} wordings")
    needed = f"{join_names(ways, 'or')} would reach" if ways else "more of both are needed for"
    return (
        f"With {len(asked.presentations)} wordings and {asked.pairs:,} pairs, errors of both "
        f"counted, the generalizability is {reached:.2f}; {needed} .80."
    )


def surface_sentence(text: SurfaceAudit | None) -> str:
    """Return what the surface of the text says of the answers; empty where the content does too."""
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
