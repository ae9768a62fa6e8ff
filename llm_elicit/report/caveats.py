"""What a reader must know before believing a number of this run, generated from the run."""

from __future__ import annotations

from collections.abc import Mapping

from llm_elicit.audit.record import Audit
from llm_elicit.config.campaign import Campaign
from llm_elicit.spaces.features import Feature

_NOISE = {
    "gumbel": "Gumbel noise (Bradley–Terry choices)",
    "exponential": "exponential noise",
    "normal": "normal noise (Thurstone–Mosteller choices)",
}


def caveats(
    audit: Audit, campaign: Campaign, missing: Mapping[str, int], questions: Mapping[str, int]
) -> list[tuple[str, str]]:
    """(heading, paragraph) pairs, the most consequential first.

    Args:
        audit: the numbers.
        campaign: what was asked.
        missing: how many questions have no answer, for judges with any.
        questions: how many each of those judges is asked in all; fewer than planned where a
            stopping rule had enough.
    """
    gaps = [("Answers are missing", _gaps(missing, questions))] if missing else []
    return [
        *gaps,
        ("Only up to a power", _power(audit, campaign)),
        ("A density per unit of each feature's scale", _scale(audit)),
        ("Within the range asked", _range(audit)),
        ("How the questions were put", _design(audit, campaign)),
        ("When a preference is called consistent", _verdicts(audit, campaign)),
        ("How distances are measured", _distances(audit)),
    ]


def _gaps(missing: Mapping[str, int], questions: Mapping[str, int]) -> str:
    judges = "; ".join(f"{name}: {gap:,} of {questions[name]:,}" for name, gap in missing.items())
    return (
        f"The campaign is not complete. Questions without an answer: {judges}. Every number of "
        "this page rests on the others; run the campaign again to ask what is missing."
    )


def _power(audit: Audit, campaign: Campaign) -> str:
    kinds = _kinds(audit)
    parts = [
        "Comparisons identify a belief only up to a power: p and p^k, renormalized, order all "
        "points alike, and differ in how sharp they are."
    ]
    if "choices" in kinds:
        level = campaign.fit.noise_level
        stated = "at its standard level" if level is None else f"at level {level:g}"
        parts.append(
            "Choices fix the power only together with how noisy they are: "
            f"{_exchange(campaign.fit.noise)}. A judge who chooses more consistently than assumed "
            "gets a belief that is too narrow, one who chooses less consistently a belief that is "
            f"too wide; where its peak lies stays. The noise assumed is "
            f"{_NOISE[campaign.fit.noise]} {stated}."
        )
    if "log-odds" in kinds:
        parts.append(
            "Log-odds of the answers are measurements of a utility in a unit of the judge's own, "
            "so they fix no power at all; their noise is estimated from them."
        )
    parts.append(f"The belief is estimated by {', cross-checked by '.join(campaign.fit.methods)}.")
    return " ".join(parts)


def _exchange(family: str) -> str:
    """Which beliefs predict the same choices at different levels of noise."""
    if family == "exponential":  # whose level is a rate
        return (
            "a belief p with noise of rate s predicts the same choices as p^s, renormalized, with "
            "rate 1"
        )
    return (
        "a belief p with noise level s predicts the same choices as p^(1/s), renormalized, with "
        "level 1"
    )


def _kinds(audit: Audit) -> set[str]:
    """What the judges' answers are fitted as: "log-odds", "choices" or both."""
    return {judge.preference.response for judge in audit.judges}


def _scale(audit: Audit) -> str:
    return _scales(audit) + _categories(audit)


def _categories(audit: Audit) -> str:
    words = [f.label for f in audit.space.features if f.categories]
    if not words:
        return ""
    return (
        f" These features have categories: {', '.join(words)}. Candidates were drawn from all of "
        "them alike, the density is one per category, and no order among them is assumed."
    )


def _scales(audit: Audit) -> str:
    log = [f.label for f in audit.space.features if f.scale == "log"]
    if not log:
        return (
            "Every feature has a linear scale: densities are per unit of the feature, and "
            "candidates were drawn uniformly over its range."
        )
    return (
        f"These features have a logarithmic scale: {', '.join(log)}. Candidates were drawn "
        "uniformly in the logarithm and the density is per unit of the logarithm, so that a "
        "doubling weighs the same everywhere; per unit of the feature itself the curves would "
        "have another shape."
    )


def _range(audit: Audit) -> str:
    ranges = "; ".join(_span(feature) for feature in audit.space.features)
    reason = f" ({audit.space.ranges})" if audit.space.ranges else ""
    rows = audit.reference.rows
    data = "" if rows is None else f" The data are the {rows:,} complete rows inside these ranges."
    return f"Nothing was asked, so nothing is known, outside these ranges{reason}: {ranges}.{data}"


def _corners(audit: Audit) -> str:
    if not audit.space.categorical.any():
        return ""
    return (
        "; categories are the corners of a regular simplex, all as far from each other, of which "
        "rows scatter as much as in a number"
    )


def _span(feature: Feature) -> str:
    if feature.categories:
        *most, last = feature.categories
        return f"{feature.label} {', '.join(most)} or {last}"
    return f"{feature.label} {feature.word(feature.low)} to {feature.word(feature.high)}"


def _design(audit: Audit, campaign: Campaign) -> str:
    design = campaign.design
    most = "Up to " if design.rounds is not None and design.rounds.stop is not None else ""
    triads = ""
    if design.triads:
        triads = (
            f"{3 * design.triads:,} of them join {design.triads:,} times three points, each point "
            "in two pairs, so that cycles can be counted. "
        )
    return (
        f"{most}{design.pairs:,} pairs were put {_orders(audit, campaign)}. {_points(campaign)} "
        f"{triads}Wording: template {design.template}; another wording may give another belief. "
        f"Campaign seed {campaign.seed}."
    )


def _points(campaign: Campaign) -> str:
    """Where the points of the pairs come from."""
    sizes = campaign.design.sizes
    if len(sizes) == 1:
        return "Both points of a pair were drawn independently from the sampling density λ."
    return (
        f"They were asked in {len(sizes)} rounds: the points of the {sizes[0]:,} pairs of the "
        "first were drawn independently from the sampling density λ, most pairs of the others "
        "were chosen by what had been answered before, so pairs are not independent."
    )


def _orders(audit: Audit, campaign: Campaign) -> str:
    """In which orders, how often, and what is made of a preference for a position."""
    design, kinds = campaign.design, _kinds(audit)
    times = "once" if design.replicates == 1 else f"{design.replicates} times"
    if not design.both_orders:
        return (
            f"in one order, {times}, so that agreement between the orders cannot be measured and "
            "the position effect is known only where the belief explains the rest"
        )
    parts = [f"in both orders, {times} each"]
    if "log-odds" in kinds:
        parts.append(
            "half the difference of a pair's two log-odds measures the preference, half their sum "
            "the position effect"
        )
    if "choices" in kinds and campaign.fit.position_effect == "estimated":
        parts.append("the order bias of choices is estimated with the belief")
    elif "choices" in kinds:
        parts.append("choices in the two orders are averaged")
    return (
        f"{'; '.join(parts)}. That removes an order bias as far as it is the same for all pairs: "
        "what an option gains by its own content when it is shown first stays in the belief"
    )


def _verdicts(audit: Audit, campaign: Campaign) -> str:
    settings, rounds = audit.settings, campaign.design.rounds
    by_round = ending = ""
    if rounds is not None:
        by_round = (
            " That was done round by round, since later pairs depend on earlier answers, and the "
            "rounds' p-values were combined."
        )
        if rounds.stop is not None:
            ending = (
                " A rule could end the rounds early, so half of the level was for a judge who was "
                "asked all of them and half was divided among the earlier ends."
            )
    several = ""
    if len(audit.judges) > 1:
        several = (
            f" The p-values are corrected for {len(audit.judges)} judges by Holm's method, so that "
            f"among judges without a preference a consistent one is found in at most "
            f"{settings.level:.0%} of such runs."
        )
    return (
        "A preference is called consistent where the answers depend on the points: the points of "
        f"every pair were exchanged at random {settings.flips:,} times, and in fewer than "
        f"{settings.level:.0%} of these did a ridge regression on linear and quadratic features "
        f"predict answers left out as well as with the real ones.{by_round}{ending}{several} "
        "A preference without any linear or quadratic trend over the range can escape the test. "
        "Multiplying all log-odds of a judge by a constant changes neither the verdict nor its "
        "reliability, its AUC or the order of its effects."
    )


def _distances(audit: Audit) -> str:
    settings, floor = audit.settings, audit.reference.sampling_floor
    yard = "λ's" if audit.reference.data is None else "the data's"
    half = (
        " The table is too small for the size asked for, so its halves are set against each other."
        if audit.reference.half_split
        else ""
    )
    return (
        f"Features are put on their scale and standardized by {yard} mean and standard deviation"
        f"{_corners(audit)}. "
        f"Wasserstein-1 and the other distances over all features together are between "
        f"{floor.size:,} points on each side, total variation between "
        f"{floor.marginal_size:,} in {settings.bins} bins a feature, each on {settings.repeats} "
        f"fresh subsamples (mean ± standard deviation; the subsamples share the belief's own "
        "points, so this is not the uncertainty of the belief; where its method has draws of the "
        "posterior, the 90 % interval over them is in brackets). Two samples of one "
        f"density are not 0 apart: read each distance beside its floor.{half} Audit seed "
        f"{audit.seed}."
    )
