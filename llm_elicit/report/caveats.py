"""What a reader must know before believing a number of this run, generated from the run."""

from __future__ import annotations

from collections.abc import Mapping

from llm_elicit.audit.record import Audit
from llm_elicit.campaign import Campaign
from llm_elicit.features import Feature

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
        ("Only up to the noise level", _noise(campaign)),
        ("A density per unit of each feature's scale", _scale(audit)),
        ("Within the range asked", _range(audit)),
        ("How the questions were put", _design(campaign)),
        ("When a signal is called one", _signal(audit, campaign)),
        ("How distances are measured", _distances(audit)),
    ]


def _gaps(missing: Mapping[str, int], questions: Mapping[str, int]) -> str:
    judges = "; ".join(f"{name}: {gap:,} of {questions[name]:,}" for name, gap in missing.items())
    return (
        f"The campaign is not complete. Questions without an answer: {judges}. Every number of "
        "this page rests on the others; run the campaign again to ask what is missing."
    )


def _noise(campaign: Campaign) -> str:
    level = campaign.fit.level
    stated = "at its standard level" if level is None else f"at level s = {level:g}"
    return (
        "Choices identify the belief only together with how noisy they are: a belief p with "
        "noise level s predicts the same choices as p^(1/s), renormalized, with level 1. A judge "
        "who chooses more consistently than assumed gets a belief that is too narrow, one who "
        "chooses less consistently a belief that is too wide; where its peak lies does not depend "
        f"on s. Here the noise was assumed, not measured: {_NOISE[campaign.fit.noise]} {stated}. "
        f"The belief is estimated by {', cross-checked by '.join(campaign.fit.methods)}."
    )


def _scale(audit: Audit) -> str:
    return _scales(audit) + _categories(audit)


def _categories(audit: Audit) -> str:
    words = [f.label for f in audit.space.features if f.categories]
    if not words:
        return ""
    return (
        f" These features have categories: {', '.join(words)}. Candidates were drawn from all of "
        "them alike, the density is one per category, and no order among them is taken for granted."
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


def _design(campaign: Campaign) -> str:
    design = campaign.design
    times = "once" if design.replicates == 1 else f"{design.replicates} times"
    orders = (
        f"in both orders, {times} each; the orders are averaged, which removes the order bias"
        if design.both_orders
        else f"in one order, {times}, so that order bias and agreement cannot be measured"
    )
    rounds = most = ""
    if design.rounds is not None:
        most = "" if design.rounds.stop is None else "Up to "
        rounds = (
            f"They were asked in {design.rounds.count} rounds: from the second on most pairs were "
            "chosen for what had been answered before, so pairs are not independent. "
        )
    triads = ""
    if design.triads:
        triads = (
            f"{3 * design.triads:,} of them join {design.triads:,} times three points, each point "
            "in two pairs, so that cycles can be counted. "
        )
    return (
        f"{most}{design.pairs:,} pairs, both points drawn independently from the sampling density "
        f"λ, were put {orders}. {triads}{rounds}Wording: template {design.template}; another "
        f"wording may give another belief. Campaign seed {campaign.seed}."
    )


def _signal(audit: Audit, campaign: Campaign) -> str:
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
    return (
        "Two conditions must hold. First, the answers depend on the points: winner and loser were "
        f"exchanged at random {settings.flips:,} times, and in fewer than "
        f"{settings.level:.0%} of them did a ridge regression on linear and quadratic features "
        f"predict left-out choices as well as with the real answers.{by_round}{ending} "
        "Second, the belief is farther "
        "from λ (energy distance) than as many draws of λ as there were comparisons are in "
        f"{1 - settings.level:.0%} of {settings.draws} trials. A belief without any linear or "
        "quadratic trend over the range can escape the first test. With several judges, about one "
        f"in {round(1 / settings.level)} of those without signal passes the first test by chance."
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
        "points, so this is not the uncertainty of the belief; where its method has draws of what "
        "the answers leave open, the 90 % interval over them is in brackets). Two samples of one "
        f"density are not 0 apart: read each distance beside its floor.{half} Audit seed "
        f"{audit.seed}."
    )
