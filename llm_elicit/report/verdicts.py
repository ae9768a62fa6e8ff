"""The sentences of a report about a judge: the verdict, its qualifications, and the next steps."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from llm_elicit.audit.consistency import Consistency
from llm_elicit.audit.inference import Interval
from llm_elicit.audit.preference import (
    DOUBTFUL_VERDICTS,
    MIN_PAIRS,
    PRESENTATION,
    REPEATABLE,
    SURFACE,
    WORDING,
    Ceiling,
    PositionEffect,
    Preference,
    is_repeatable,
)
from llm_elicit.audit.record import Audit, JudgeAudit
from llm_elicit.audit.utility import EQUIVALENCE_MARGIN, Discrimination, Effect
from llm_elicit.config.campaign import Campaign
from llm_elicit.density import fit_warnings
from llm_elicit.planning.pairs import fewest_pairs
from llm_elicit.report.formatting import (
    NOT_MEASURED,
    coherence_sentence,
    join_names,
    presentation_sentence,
    share_text,
    signed_text,
    sources_disagree,
    sources_text,
    surface_sentence,
)
from llm_elicit.spaces.features import FeatureSpace

_DIRECTION_WORDS = {"higher": "higher ", "lower": "lower ", "middle": "middle values of ",
                    "ends": "extreme values of ", "category": ""}  # fmt: skip
_MAX_NAMED_FEATURES = 4
"""Largest number of features that a verdict names."""
_STRONG_SHARE = 0.25
"""Smallest relative AUC, or share of a position effect, that is not called weak."""
_CHANCE_AUC = 0.5
_MIN_UNUSABLE_SHARE = 0.05
"""Smallest share of unusable answers that is mentioned."""
_MIN_EXPLAINED_SHARE = 0.95
"""Share of the reproducible variation below which a misfit is mentioned."""
_MAX_DECIMALS = 6
_UNUSABLE = {"refusal": "refused", "truncated": "truncated", "unparsable": "unparsable"}
# Where the short name of a subject ends: "a country | in some year".
_SUBJECT_END = re.compile(
    r"[,(;:]|\s(?:in|near|of|sold|between|with|from|for|at|on|by|that|who|which|made|built)\s"
)
_MAX_SUBJECT_WORDS = 4


def verdict_sentence(judge: JudgeAudit, audit: Audit) -> str:
    """Return the sentence on a judge's preference, its reliability, the data and the scale."""
    preference, level = judge.preference, audit.settings.level
    if preference.pairs == 0:
        counts, total = unusable_counts(judge.consistency), judge.consistency.answers
        return f"{judge.name} gave no usable answer: {counts} of {total:,}."
    decisive = preference.p_value < level <= preference.p_holm
    p = preference.describe_p_value(level) if decisive else preference.p_text
    if not preference.consistent:
        return _no_preference_sentence(judge, level, p)
    scale, powers = "the scale of its belief is not identified", judge.powers
    if preference.verdict == "belief with a scale" and powers is not None and powers.scale_sources:
        scale = f"the scale of its belief is identified by {sources_text(powers.scale_sources)}"
        if powers.coherence is not None and not powers.coherence.coherent:
            scale += ", though its answers about ranges are not coherent with a density"
        elif sources_disagree(powers):
            scale += ", though these disagree"
    parts = [
        f"{judge.name} prefers {preferred_features(judge.effects, audit.space, level)}"
        f"{_reliability_clause(preference, p)}",
        data_clause(judge.discrimination, audit.space.subject),
        scale,
    ]
    return "; ".join(part for part in parts if part) + "."


def preferred_features(effects: Sequence[Effect], space: FeatureSpace, level: float) -> str:
    """Return the features with significant effects, the largest first, with direction."""
    labels = {feature.name: feature.label for feature in space.features}
    significant = [effect for effect in effects if effect.p_holm < level]
    significant.sort(key=lambda effect: -(effect.sd or 0.0))
    if not significant:
        return "some combinations of features to others; no single feature is significant"
    names_by_direction: dict[str, list[str]] = {}
    for effect in significant[:_MAX_NAMED_FEATURES]:
        name = labels[effect.name].split(" (", maxsplit=1)[0]  # without its unit
        if not effect.has_direction:
            direction = ""  # the test finds a dependence, the interval no direction
        elif effect.categories is None:
            direction = effect.direction or ""
        else:
            direction, name = "category", f"{' over '.join(effect.categories)} ({name})"
        words = _DIRECTION_WORDS.get(direction, "some values of ")
        names_by_direction.setdefault(words, []).append(name)
    phrases = [f"{direction}{join_names(names)}" for direction, names in names_by_direction.items()]
    unnamed = len(significant) - _MAX_NAMED_FEATURES
    return join_names([*phrases, f"{unnamed} more"] if unnamed > 0 else phrases)


def _reliability_clause(preference: Preference, p: str) -> str:
    """Return how reliable a preference is, in brackets or as a clause."""
    kind = preference.response
    if preference.reliability is None:
        too_few = f"reliability is not given for fewer than {MIN_PAIRS} pairs; "
        return f" ({too_few if preference.pairs < MIN_PAIRS else ''}{p})"
    value, ceiling = preference.reliability.value, usable_ceiling(preference)
    if value <= 0.0:
        return f", though the fit predicts none of the variation of held-out {kind} ({p})"
    ceiling_clause = "" if ceiling is None else f"; ceiling {_share_below_one(ceiling.value)}"
    if reaches_ceiling(preference):
        ceiling_clause = ", which is at its ceiling"
    share = _share_below_one(value)
    return f" ({share} of the variation of held-out {kind} is predicted{ceiling_clause}; {p})"


def _share_below_one(value: float) -> str:
    """Return a share as text; a share below 1 is not rounded to 100%."""
    return "more than 99%" if 0.995 <= value < 1.0 else share_text(value)


def reaches_ceiling(preference: Preference) -> bool:
    """Return whether a reliability is estimated to be no lower than its ceiling, up to error."""
    reliability, ceiling = preference.reliability, usable_ceiling(preference)
    return reliability is not None and ceiling is not None and reliability.value >= ceiling.value


def usable_ceiling(preference: Preference) -> Ceiling | None:
    """Return the ceiling of the reliability; None if its interval lies below the reliability.

    Estimated from the orders, it counts variation of the position effect as noise; estimated from
    few pairs, it is noisy itself.
    """
    reliability, ceiling = preference.reliability, preference.ceiling
    if reliability is None or ceiling is None or ceiling.high < reliability.value:
        return None
    return ceiling


def data_clause(discrimination: Discrimination | None, subject: str) -> str:
    """Return the clause on the preference and the data; empty without data.

    A preference is said to follow the data if both the AUC and the rank correlation show it.
    """
    if discrimination is None:
        return ""
    noun, ceiling = short_subject(subject), share_text(discrimination.ceiling)
    if discrimination.relation == "not measurable":
        return (
            "whether the preference follows the data is not measurable: even the data's own "
            f"density ranks a real {noun} above a random one only {ceiling} of the time"
        )
    auc_ends = _interval_ends(discrimination.auc, _CHANCE_AUC, share_text)
    auc_clause = (
        f"a real {noun} ranks above a random one {share_text(discrimination.auc.value)} of the "
        f"time (95 % interval {auc_ends}; ceiling {ceiling})"
    )
    correlation = discrimination.rank_correlation
    rank_ends = _interval_ends(
        correlation, 0.0, lambda end, decimals: signed_text(end, 2 + decimals)
    )
    rank_clause = (
        "rank correlation with a kernel density of the data "
        f"{signed_text(correlation.value)} ({rank_ends})"
    )
    weakly = "weakly " if abs(discrimination.relative_auc) < _STRONG_SHARE else ""
    distance_to_ceiling = (
        f"{share_text(abs(discrimination.relative_auc))} of the way from one half to the ceiling"
    )
    if discrimination.relative_auc >= 1.0:
        distance_to_ceiling = "at least as often as under the data's own density"
    numbers, margin = f"{auc_clause}; {rank_clause}", share_text(EQUIVALENCE_MARGIN)
    clauses = {
        "follows": (
            f"the preference {weakly}follows the data: {auc_clause}, {distance_to_ceiling}; "
            f"{rank_clause}"
        ),
        "opposite": f"the preference is {weakly}opposite to the data: {numbers}",
        "not shown": f"the preference is not shown to be related to the data: {numbers}",
        "practically unrelated": (
            f"the preference is practically unrelated to the data: {numbers}; both intervals are "
            f"within {margin} of what the data's own density reaches"
        ),
    }
    if discrimination.relation in clauses:
        return clauses[discrimination.relation]
    auc_sign, rank_sign = discrimination.signs
    ranking_clause = {
        1: f"the preference ranks real rows {'slightly ' if weakly else ''}above random ones",
        0: "the preference is not shown to rank real rows above random ones",
        -1: f"the preference ranks real rows {'slightly ' if weakly else ''}below random ones",
    }[auc_sign]
    density_clause = {
        1: "but the utility is higher where the data are dense",
        0: "but the utility is not shown to be {} where the data are dense",
        -1: "but the utility is lower where the data are dense",
    }[rank_sign].format("higher" if auc_sign > 0 else "lower")
    extent = f", {distance_to_ceiling}" if auc_sign > 0 else ""
    return f"{ranking_clause}: {auc_clause}{extent}; {density_clause}: {rank_clause}"


def _interval_ends(interval: Interval, null: float, word: Callable[[float, int], str]) -> str:
    """Return an interval's ends, with as many decimals as tell them from the null value."""
    for decimals in range(3):
        ends = [word(end, decimals) for end in (interval.low, interval.high)]
        if word(null, decimals) not in ends:
            break
    return " to ".join(ends)


def short_subject(subject: str) -> str:
    """Return a short name of the subject, without its article.

    Examples:
        >>> short_subject("a country in some year between 1952 and 2007")
        'country'
        >>> short_subject("an adult penguin (Adelie, chinstrap or gentoo) near Palmer Station")
        'adult penguin'
        >>> short_subject("whatever else one may well come to think up")
        'case'
    """
    bare = re.sub(r"^(?:an?|the)\s+", "", subject.strip(), flags=re.IGNORECASE)
    name = _SUBJECT_END.split(bare, maxsplit=1)[0].strip()
    return name if 0 < len(name.split()) <= _MAX_SUBJECT_WORDS else "case"


def _no_preference_sentence(judge: JudgeAudit, level: float, p: str) -> str:
    name, preference, answers = judge.name, judge.preference, judge.consistency
    if preference.verdict == "too few answers":
        pairs = "1 pair" if preference.pairs == 1 else f"{preference.pairs:,} pairs"
        return f"{name} answered {pairs}, so few that no preference could have been found ({p})."
    if answers.verdict_counts["tie"] == answers.answers - _count_unusable(answers):
        return f"{name} called every pair a tie: no preference was found ({p})."
    if preference.verdict in DOUBTFUL_VERDICTS:
        return f"No preference of {name} for the content is shown: {preference.reason}"
    agreement, position = preference.agreement, preference.position
    if preference.verdict == REPEATABLE and agreement is not None:
        ceiling = preference.ceiling
        repeats = ""
        if ceiling is not None:
            repeats = f"{_share_below_one(ceiling.value)} of the variation repeats; "
        return (
            f"{name} prefers the same option of a pair in both orders ({repeats}"
            f"{agreement.p_text}), but no linear or quadratic rule on these features is shown to "
            f"predict which ({p})."
        )
    no_dependence = f"The answers of {name} are not shown to depend on the points ({p})"
    if preference.verdict != "position only" or position is None:
        return f"{no_dependence}, nor on which option is shown first."
    p_position = position.p_text
    side = "first" if position.mean.value > 0 else "second"
    depends = _interaction_p(position, level)
    return (
        f"{no_dependence}; they depend on the position: the option shown {side} is preferred "
        f"({p_position}), which accounts for {_share_below_one(position.explained_share)} of their "
        f"variation{f', to a degree that depends on the content ({depends})' if depends else ''}."
    )


def _interaction_p(position: PositionEffect, level: float) -> str:
    """Return the p-value of a position effect that depends on the points; empty if none shown."""
    content = position.interaction
    return "" if content is None or content.p_holm >= level else content.p_text


def unusable_counts(answers: Consistency) -> str:
    """Return the answers that are no choice, by reason, the most frequent first.

    Examples:
        >>> from llm_elicit.comparisons.table_files import VERDICTS
        >>> counts = dict.fromkeys(VERDICTS, 0) | {"refusal": 3, "truncated": 12}
        >>> unusable_counts(Consistency.model_construct(verdict_counts=counts))
        '12 truncated and 3 refused'
    """
    counts = sorted(
        ((answers.verdict_counts[kind], word) for kind, word in _UNUSABLE.items()), reverse=True
    )
    return join_names([f"{count:,} {word}" for count, word in counts if count] or ["0 answers"])


def _repeatable_sentence(preference: Preference, level: float) -> str:
    """Return a sentence on a preference that the features do not describe; empty if unknown."""
    if preference.verdict not in ("position only", "no consistent preference"):
        return ""
    agreement = preference.agreement
    if is_repeatable(preference, level) and agreement is not None and agreement.source == "repeats":
        return (
            "Its answers to the same question agree, however: they depend on the points through a "
            "preference or a position effect that no linear or quadratic rule is shown to "
            "predict."
        )
    if preference.position is not None and preference.position.orders == "one":
        return (
            "No pair was answered in both orders, so a repeatable preference that these "
            "features do not describe could not be detected."
        )
    return ""


def _misfit_sentence(preference: Preference) -> str:
    """Return a sentence on reproducible variation that the fit misses; empty if there is little."""
    reliability, ceiling = preference.reliability, preference.ceiling
    if preference.explained_share >= _MIN_EXPLAINED_SHARE or reliability is None or ceiling is None:
        return ""
    fit = "the fit" if reliability.source == "belief" else "a quadratic rule on the features"
    intervals = "the intervals above account for this; those of the density below do not"
    if preference.explained_share <= 0.0:
        intervals = "so its relation to the data and the effects of features are not given"
    return (
        f"Repeatable variation of its answers ({_share_below_one(ceiling.value)} repeats) is not "
        f"captured by {fit}: {intervals}."
    )


def _count_unusable(answers: Consistency) -> int:
    return sum(answers.verdict_counts[kind] for kind in _UNUSABLE)


def position_sentence(position: PositionEffect | None, level: float) -> str:
    """Return the size of the position effect, and whether it depends on the content.

    Empty if the effect is less than a quarter of the answers' variation and not shown to depend on
    the content.
    """
    if position is None:
        return ""
    depends = _interaction_p(position, level)
    share = _share_below_one(position.explained_share)
    share_sentence = f"The position effect accounts for {share} of the variation of its answers."
    interaction_sentence = (
        f"Its position effect depends on the content ({depends}): asking both orders removes only "
        "its mean, and part of the rest may look like preference."
    )
    sentences = (
        share_sentence if position.explained_share >= _STRONG_SHARE else "",
        interaction_sentence if depends else "",
    )
    return " ".join(filter(None, sentences))


def remarks(judge: JudgeAudit, level: float) -> tuple[str, ...]:
    """Return sentences that qualify a judge's verdict."""
    preference, sentences = judge.preference, []
    if preference.consistent:  # its ranges and its position effect qualify a preference only
        sentences = [
            _misfit_sentence(preference), coherence_sentence(judge.powers),
            position_sentence(preference.position, level), *fit_sentences(judge),
        ]  # fmt: skip
    else:
        sentences = [_repeatable_sentence(preference, level)]
    sentences += [
        presentation_sentence(judge.presentations, preference.verdict),
        surface_sentence(judge.surface),
    ]
    answers, unusable = judge.consistency, _count_unusable(judge.consistency)
    if preference.pairs and unusable >= _MIN_UNUSABLE_SHARE * max(answers.answers, 1):
        sentences.append(
            f"{unusable:,} of its {answers.answers:,} answers could not be used: "
            f"{unusable_counts(answers)}."
        )
    return tuple(sentence for sentence in sentences if sentence)


def fit_sentences(judge: JudgeAudit) -> list[str]:
    """Return the warnings of the fit of the judge's belief as sentences."""
    warnings = fit_warnings(judge.diagnostics.get(judge.method or "", {}), quality=False)
    return [f"{warning[0].upper()}{warning[1:]}." for warning in warnings]


def sample_size_sentence(preference: Preference) -> str:
    """Return how many pairs would find a preference if none was found; empty if not estimated."""
    required, pairs = preference.sample_size, preference.pairs
    if preference.consistent or preference.verdict == "too few answers":
        return ""
    if required is None or pairs == 0:
        return ""
    if required.pairs is None:
        return (
            "The measured dependence is less than one standard error above chance, so the "
            "number of pairs needed to find a preference cannot be estimated."
        )
    return (
        "A preference as strong as the measured dependence would be found with about "
        f"{required.pairs:,} pairs in total ({required.pairs - pairs:,} more)."
    )


def effect_cell(effect: Effect) -> str:
    """Return an effect in log-odds with its interval, to two digits of the interval's width."""
    if effect.open_ended and effect.has_direction:
        bound = effect.low or effect.high or 0.0
        return f"{'at least' if bound > 0 else 'at most'} {signed_text(bound, 2)}"
    if effect.value is None or effect.low is None or effect.high is None:
        return NOT_MEASURED
    width = effect.high - effect.low
    decimals = min(max(1 - math.floor(math.log10(width)), 0), _MAX_DECIMALS) if width else 2
    value, low, high = (
        signed_text(number, decimals) for number in (effect.value, effect.low, effect.high)
    )
    return f"{value} ({low} to {high})"


def direction_cell(effect: Effect, level: float) -> str:
    """Return the preferred values of a feature, where test and interval show them."""
    if effect.p_holm >= level:
        return "not shown"
    if not effect.has_direction:
        return "not determined"
    if effect.categories is not None:
        return " over ".join(effect.categories)
    return effect.direction or ""


def level_set_sentence(discrimination: Discrimination) -> str:
    """Return the share of the data in the tenth of λ with the highest utility."""
    level = discrimination.level_set
    return (
        f"{share_text(level.value)} of the data (95 % interval {share_text(level.low)} to "
        f"{share_text(level.high)}) lie in the tenth of the range that the judge finds most "
        "plausible; 10% are expected by chance, and the ceiling is "
        f"{share_text(discrimination.level_set_ceiling)}."
    )


_READING_ADVICE = {
    "truncated": "raise its `max_tokens`, or lower its `effort`, so that answers are not cut off",
    "refusal": "compare other templates with `llm-elicit pilot`, since the judge refuses this one",
    "unparsable": (
        "read its replies below and compare other templates with `llm-elicit pilot`, since its "
        "answers do not have the requested form"
    ),
}
_MORE_PAIRS_FACTOR = 4


def next_step(judge: JudgeAudit, audit: Audit, campaign: Campaign) -> str:
    """Return what to change or to ask next; empty if there is nothing to improve."""
    steps = next_steps(judge, audit, campaign)
    all_needed = judge.preference.consistent or judge.verdict == "too few answers"
    return f"Next: {join_names(steps, 'and' if all_needed else 'or')}." if steps else ""


_STEPS = {
    REPEATABLE: (
        "describe the options by more features, such as properties of the text (digits, length, "
        "roundness)",
        "compare templates with `llm-elicit pilot`",
    ),
    WORDING: ("ask in more wordings", "compare templates with `llm-elicit pilot`"),
    PRESENTATION: ("vary more in `design.presentations`, such as `wordings`",),
    SURFACE: (
        "vary `units` and `digits` in `design.presentations`, which show the same content by "
        "other text",
        "use a larger model",
    ),
}


def next_steps(judge: JudgeAudit, audit: Audit, campaign: Campaign) -> list[str]:
    """Return the things to change or ask next, what helps most first."""
    preference, level = judge.preference, audit.settings.level
    if judge.name in campaign.controls:
        return []  # its answers are as its settings say
    if preference.verdict == "no usable answers":
        return [_reading_advice(judge.consistency)]
    if preference.verdict == "too few answers":
        min_pairs = fewest_pairs(preference.family_size, level)
        steps = [
            f"ask more pairs: at least {min_pairs} for a strong preference, a few dozen for a weak "
            "one"
        ]
        has_lost_pairs = preference.pairs < campaign.design.pairs
        return [_reading_advice(judge.consistency), *steps] if has_lost_pairs else steps
    if preference.verdict in _STEPS:
        return list(_STEPS[preference.verdict])
    if not preference.consistent:
        return _steps_without_preference(judge, campaign)
    steps = []
    related = judge.discrimination is None or judge.discrimination.relation
    if related in ("not shown", "partly"):
        steps.append("ask more pairs to narrow the intervals")
    if preference.verdict == "consistent preference":
        steps.append(
            "add questions about ranges or ratios (`direct: {ranges: 40, ratios: 20}`) to find "
            "the scale"
        )
    return steps


def no_answers_clause(judge: JudgeAudit) -> str:
    """Return why a judge has no usable answers, and what to do; empty if it has some.

    The text ends the line that a command prints about the verdict.
    """
    if judge.verdict != "no usable answers":
        return ""
    answers = judge.consistency
    counts = f"{unusable_counts(answers)} of {answers.answers:,}"
    return f" ({counts}): {_reading_advice(answers)}"


def _reading_advice(answers: Consistency) -> str:
    """Return how to get usable answers, by the most frequent reason why some are not."""
    counts = {kind: answers.verdict_counts[kind] for kind in _READING_ADVICE}
    most_frequent = max(counts, key=lambda kind: counts[kind])
    return (
        _READING_ADVICE[most_frequent]
        if counts[most_frequent]
        else "run it again to ask the missing questions"
    )


def _steps_without_preference(judge: JudgeAudit, campaign: Campaign) -> list[str]:
    """Return the ways to find a preference that was not found, what helps most first."""
    preference, answers = judge.preference, judge.consistency
    steps, position = [], preference.verdict == "position only"
    if 2 * sum(answers.verdict_counts[kind] for kind in _READING_ADVICE) >= answers.answers:
        steps.append(_reading_advice(answers))
    if not campaign.design.both_orders:
        steps.append("ask both orders, which averages the position effect out")
    if campaign.design.templates == ("v1/zero-shot",):
        steps.append("use template `v1/few-shot`, which shows answered examples")
    steps.append("compare templates with `llm-elicit pilot`")
    if position:
        steps.append("use a larger model")
    if preference.response == "choices":
        steps.append(
            "use a model that returns log-probabilities, which carry more information per pair"
        )
    required = preference.sample_size
    if required is not None and required.pairs is not None and required.pairs > preference.pairs:
        # A number that was estimated helps for sure, unless the answers follow the position.
        steps.insert(len(steps) if position else 0, f"ask about {required.pairs:,} pairs in all")
    elif not position:
        steps.append(
            f"ask more pairs (four times as many: {_MORE_PAIRS_FACTOR * preference.pairs:,})"
        )
    return steps


def no_belief_notice(judges: Sequence[JudgeAudit]) -> str:
    """Return that what follows is no belief of judges without a preference; empty for others."""
    without = (judge for judge in judges if not judge.preference.consistent)
    names = [judge.name for judge in without]
    if not names:
        return ""
    return (
        f"Do not read anything below as a belief of {join_names(names, 'or')}: no preference was "
        "found, so the numbers may show noise or the position alone."
    )
