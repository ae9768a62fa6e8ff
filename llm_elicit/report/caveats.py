"""Methods and caveats of a run, generated from its campaign and audit."""

from __future__ import annotations

from collections.abc import Mapping

from llm_elicit.audit.record import Audit, is_cross_check
from llm_elicit.comparisons.fit_inputs import follows_table
from llm_elicit.config.campaign import Campaign
from llm_elicit.report.formatting import between, listed
from llm_elicit.spaces.features import Feature

_NOISE = {
    "gumbel": "Gumbel noise (Bradley–Terry choices)",
    "exponential": "exponential noise",
    "normal": "normal noise (Thurstone–Mosteller choices)",
}


def caveats(
    audit: Audit, campaign: Campaign, missing: Mapping[str, int], questions: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Return (heading, paragraph) pairs, the most consequential first.

    Args:
        audit: the numbers.
        campaign: the questions.
        missing: number of unanswered questions, for judges with any.
        questions: total number of questions of each of those judges; fewer than planned if a
            stopping rule ended the rounds.
    """
    unanswered = "; ".join(
        f"{name}: {count:,} of {questions[name]:,}" for name, count in missing.items()
    )
    incomplete = (
        f"The campaign is not complete. Unanswered questions: {unanswered}. All numbers on this "
        "page are from the other answers; run the campaign again to ask the missing questions."
    )
    return [
        *([("Answers are missing", incomplete)] if missing else []),
        ("The belief is identified up to a power", _power(audit, campaign)),
        (
            "The density is per unit of each feature's scale",
            _scales(audit) + _kinds_of_features(audit),
        ),
        ("The belief is limited to the range asked about", _range(audit)),
        ("Design of the questions", _design(audit, campaign)),
        ("Test of a consistent preference", _verdicts(audit, campaign)),
        ("Distances", _distances(audit)),
    ]


def _power(audit: Audit, campaign: Campaign) -> str:
    kinds = _kinds(audit)
    parts = [
        "Comparisons identify a belief only up to a power: p and p^k, renormalized, order all "
        "points in the same way and differ in sharpness."
    ]
    if "choices" in kinds:
        family, level = campaign.fit.noise, campaign.fit.noise_level
        stated = "at its standard level" if level is None else f"at level {level:g}"
        kind, power, unit = ("noise level", "p^(1/s)", "level 1")
        if family == "exponential":
            kind, power, unit = ("noise of rate", "p^s", "rate 1")
        parts.append(
            "Choices identify the power only together with the noise level: a belief p with "
            f"{kind} s predicts the same choices as {power}, renormalized, with {unit}. If a judge "
            "chooses more consistently than assumed, its belief is too narrow; if less "
            "consistently, too wide; the location of the mode does not change. The assumed noise "
            f"is {_NOISE[family]} {stated}."
        )
    if "log-odds" in kinds:
        parts.append(
            "Log-odds of the answers measure a utility in a unit of the judge's own, so they do "
            "not identify the power; their noise is estimated."
        )
    first, *further = campaign.fit.methods
    fits = next((judge.diagnostics for judge in audit.judges if judge.diagnostics), {})
    checks = [method for method in further if is_cross_check(first, method, fits)]
    dependent = [method for method in further if method not in checks]
    text = f"The belief is estimated by {first}"
    if checks:
        text += f" and cross-checked by {listed(checks)}"
    if dependent:
        verb = "shares" if len(dependent) == 1 else "share"
        text += f"; {listed(dependent)} {verb} fitted parts with it, so agreement is no cross-check"
    return " ".join([*parts, f"{text}."])


def _kinds(audit: Audit) -> set[str]:
    """Return the kinds of answers that were fitted: "log-odds", "choices" or both."""
    return {judge.preference.response for judge in audit.judges}


def _kinds_of_features(audit: Audit) -> str:
    """Return what is special about categories and circles."""
    uniform = "Candidates were drawn uniformly over the categories. "
    kinds = (
        (
            "are categorical", [f.label for f in audit.space.features if f.kind == "categorical"],
            f"{'' if _from_the_table(audit) else uniform}The density is per category, and no order "
            "is assumed.",
        ),
        (
            "are ordered categories",
            [f.label for f in audit.space.features if f.kind == "ordered"],
            "They count as whole numbers in their order.",
        ),
        (
            "go around a circle", [f.label for f in audit.space.features if f.periodic],
            "Their ends are the same point, and they have neither quantiles nor correlations.",
        ),
    )  # fmt: skip
    parts = (f" These features {kind}: {', '.join(f)}. {rule}" for kind, f, rule in kinds if f)
    return "".join(parts)


def _scales(audit: Audit) -> str:
    log = [f.label for f in audit.space.features if f.scale == "log"]
    if log:
        text = (
            f"These features have a logarithmic scale: {', '.join(log)}. The density is per unit "
            "of the logarithm; per unit of the feature the curves would have another shape."
        )
        drawn = " Candidates were drawn uniformly in the logarithm."
    else:
        text = "Every feature has a linear scale: densities are per unit of the feature."
        drawn = " Candidates were drawn uniformly over its range."
    if _from_the_table(audit):
        fitted = (
            "Beliefs are fitted in coordinates with the marginals and rank correlations of the "
            "table, so that a smooth utility follows them."
            if follows_table(audit.space)
            else "Some features are not real numbers or there are constraints, so beliefs are "
            "fitted on the whole box of the ranges, and spread over combinations that are not in "
            "the table and that nobody was asked about."
        )
        drawn = (
            " Candidates were drawn from a kernel density of the table; where hardly any lie, the "
            f"belief follows from the shape of the utility, not from answers. {fitted} The belief "
            "of a judge without a preference is uniform over the ranges, not like the table."
        )
    return text + drawn


def _from_the_table(audit: Audit) -> bool:
    return audit.space.sampling == "empirical"


def _range(audit: Audit) -> str:
    ranges = "; ".join(_span(feature) for feature in audit.space.features)
    reason = f" ({audit.space.ranges})" if audit.space.ranges else ""
    rows, table = audit.reference.rows, audit.reference.table
    data = "" if rows is None else f" The data are the {rows:,} complete rows inside these ranges."
    data += "" if table is None else f" {table}."
    return (
        f"The questions cover these ranges{reason}: {ranges}. The belief is not defined outside."
        f"{data}"
    )


def _span(feature: Feature) -> str:
    if feature.categories:
        *most, last = feature.categories
        return f"{feature.label} {', '.join(most)} or {last}"
    if feature.periodic:  # the highest value would be worded as the lowest
        ends = between(feature, (feature.lowest, feature.highest))
        return f"{feature.label} {ends} {feature.unit}".rstrip() + ", around a circle"
    return f"{feature.label} {feature.word(feature.low)} to {feature.word(feature.high)}"


def _design(audit: Audit, campaign: Campaign) -> str:
    design = campaign.design
    most = "Up to " if design.rounds is not None and design.rounds.stop is not None else ""
    triads = ""
    if design.triads:
        triads = (
            f"{3 * design.triads:,} of them form {design.triads:,} triads (three points compared "
            "in all pairs), so that cycles can be counted. "
        )
    points, sizes = "Both points of a pair", design.sizes
    later = "; most later pairs were chosen from earlier answers, so pairs are not independent"
    if len(sizes) > 1:
        points = (
            f"They were asked in {len(sizes)} rounds: the points of the {sizes[0]:,} pairs of the "
            "first"
        )
    return (
        f"{most}{design.pairs:,} pairs were asked {_orders(audit, campaign)}. {points} were drawn "
        f"independently from the sampling density λ{later if len(sizes) > 1 else ''}. {triads}The "
        f"wording is template {design.template}; another wording may give another belief. Campaign "
        f"seed {campaign.seed}."
    )


def _orders(audit: Audit, campaign: Campaign) -> str:
    """Return the orders, the number of replicates, and the treatment of the position effect."""
    design, kinds = campaign.design, _kinds(audit)
    times = "once" if design.replicates == 1 else f"{design.replicates} times"
    if not design.both_orders:
        return (
            f"in one order, {times}, so that agreement between the orders cannot be measured and "
            "the position effect is identified only through the fitted belief"
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
        f"{'; '.join(parts)}. This removes an order bias as far as it is the same for all pairs; "
        "what an option gains by its own content when it is shown first remains in the belief"
    )


def _verdicts(audit: Audit, campaign: Campaign) -> str:
    settings, rounds = audit.settings, campaign.design.rounds
    flips = settings.flips
    least = min((judge.preference.pairs for judge in audit.judges), default=flips)
    exact = " (in all ways where few pairs allow no more)" if 2 ** min(least, 20) <= flips else ""
    by_round = ending = ""
    if rounds is not None:
        by_round = (
            " This was done round by round, because later pairs depend on earlier answers, and "
            "the rounds' p-values were combined."
        )
        if rounds.stop is not None:
            ending = (
                " A rule could end the rounds early, so half of the level was used for judges who "
                "were asked all rounds and half was divided among the earlier ends."
            )
    several = ""
    if len(audit.judges) > 1:
        several = (
            f" p-values are Holm-adjusted for {len(audit.judges)} judges: if no judge has a "
            f"preference, one is found in at most {settings.level:.0%} of such runs."
        )
    return (
        "A preference is called consistent if the answers depend on the points: the points of "
        f"every pair were exchanged at random {flips:,} times{exact}, and in fewer than "
        f"{settings.level:.0%} of these a ridge regression on linear and quadratic features "
        f"predicted held-out answers as well as for the real ones.{by_round}{ending}{several} "
        "Wild answers count less in a second version of this statistic; the larger one is tested. "
        "A preference without any linear or quadratic trend over the range can escape the test; if "
        "answers to a pair agree between its two orders, beyond what answers to different pairs "
        "asked equally far apart do, the verdict is that they repeat and are not described. "
        "Multiplying all log-odds of a judge by a constant changes neither the verdict, the "
        "reliability, the AUC nor the order of the effects."
    )


def _distances(audit: Audit) -> str:
    settings, floor = audit.settings, audit.reference.sampling_floor
    standard = "λ's" if audit.reference.data is None else "the data's"
    halves = " The table is too small for the requested size, so its halves are compared."
    simplex = (
        "; categories are vertices of a regular simplex, equally far apart, with the same total "
        "variance over the rows as a number"
    )
    return (
        f"Features are on their scale, standardized by {standard} mean and standard deviation"
        f"{simplex if audit.space.categorical.any() else ''}. "
        f"Wasserstein-1 and the other joint distances are between {floor.size:,} points on each "
        f"side, total variation between {floor.marginal_size:,} in {settings.bins} bins per "
        f"feature, each on {settings.repeats} fresh subsamples (mean ± standard deviation; the "
        "subsamples share one belief, so this is not the uncertainty of the belief, which is the "
        "90 % interval over posterior draws in brackets, if available). The distance between two "
        f"samples of the same density is not 0: compare each with its floor."
        f"{halves if audit.reference.half_split else ''} Audit seed {audit.seed}."
    )
