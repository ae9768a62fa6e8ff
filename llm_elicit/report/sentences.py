"""The sentences of a report: verdicts with their qualifications, next steps, powers, people.

Their wording is in `templates/sentences.jinja`; here is what the wording depends on.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jinja2

from llm_elicit.audit.belief_power import BeliefPowers
from llm_elicit.audit.consistency import Consistency
from llm_elicit.audit.direct_answers import RowCompletionTest
from llm_elicit.audit.inference import Interval
from llm_elicit.audit.people import PeopleAudit, RaterAgreement
from llm_elicit.audit.preference import (
    CONSISTENT_VERDICTS,
    DOUBTFUL_VERDICTS,
    MIN_PAIRS,
    PRESENTATION,
    REPEATABLE,
    WORDING,
    Ceiling,
    PositionEffect,
    Preference,
    Verdict,
    is_repeatable,
)
from llm_elicit.audit.presentations import PresentationAudit
from llm_elicit.audit.record import Audit, JudgeAudit
from llm_elicit.audit.surface import SurfaceAudit
from llm_elicit.audit.utility import EQUIVALENCE_MARGIN, Discrimination, Effect
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.config.campaign import Campaign
from llm_elicit.density import fit_warnings
from llm_elicit.planning.pairs import fewest_pairs
from llm_elicit.report import formatting
from llm_elicit.report.formatting import NOT_MEASURED, join_names, share_text, signed_text
from llm_elicit.spaces.features import FeatureSpace

_DIRECTION_WORDS = {"higher": "higher ", "lower": "lower ", "middle": "middle values of ",
                    "ends": "extreme values of ", "category": ""}  # fmt: skip
_MAX_NAMED_FEATURES = 4
"""Largest number of features that a verdict names."""
_MAX_DECIMALS = 6
_UNUSABLE = {"truncated": "truncated", "refusal": "refused", "unparsable": "unparsable"}
_TEST_LEVEL = 0.05
"""Level of the test that the sources of a power agree. Verdicts use `AuditSettings.level`."""
# Where the short name of a subject ends: "a country | in some year".
_SUBJECT_END = re.compile(
    r"[,(;:]|\s(?:in|near|of|sold|between|with|from|for|at|on|by|that|who|which|made|built)\s"
)
_MAX_SUBJECT_WORDS = 4


@functools.cache  # the templates are compiled once
def text_environment() -> jinja2.Environment:
    """Return the Jinja2 environment of texts; its filters are the functions of this package."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("llm_elicit.report"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for module in (formatting, sys.modules[__name__]):
        environment.filters |= dict(inspect.getmembers(module, inspect.isfunction))
    environment.globals |= {
        "doubtful_verdicts": DOUBTFUL_VERDICTS,
        "equivalence_margin": EQUIVALENCE_MARGIN,
        "is_repeatable": is_repeatable,
        "min_pairs": MIN_PAIRS,
        "repeatable": REPEATABLE,
    }
    return environment


def _sentences(macro: str, *values: Any) -> list[str]:
    """Return the sentences of a macro of `sentences.jinja`, one a line."""
    module = text_environment().get_template("sentences.jinja").module
    text: str = getattr(module, macro)(*values)
    return [line for line in text.split("\n") if line]


def _sentence(macro: str, *values: Any) -> str:
    return " ".join(_sentences(macro, *values))


def verdict_sentence(judge: JudgeAudit, audit: Audit) -> str:
    """Return the sentence on a judge's preference, its reliability, the data and the scale."""
    preference, level = judge.preference, audit.settings.level
    decisive = preference.p_value < level <= preference.p_holm
    return _sentence(
        "verdict_sentence",
        judge,
        level,
        preference.describe_p_value(level) if decisive else preference.p_text,
        preferred_features(judge.effects, audit.space, level),
        data_clause(judge.discrimination, audit.space.subject),
        usable_ceiling(preference),
        reaches_ceiling(preference),
        judge.powers is not None and sources_disagree(judge.powers),
    )


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


def share_below_one(value: float) -> str:
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
    auc_ends = _interval_ends(discrimination.auc, 0.5, share_text)
    rank_ends = _interval_ends(
        discrimination.rank_correlation, 0.0, lambda end, decimals: signed_text(end, 2 + decimals)
    )
    return _sentence("data_clause", discrimination, short_subject(subject), auc_ends, rank_ends)


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


def interaction_p(position: PositionEffect, level: float) -> str:
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


def count_unusable(answers: Consistency) -> int:
    """Return the number of answers that are no choice."""
    return sum(answers.verdict_counts[kind] for kind in _UNUSABLE)


def main_obstacle(answers: Consistency) -> str:
    """Return the most frequent reason why answers are no choice; empty if all are choices."""
    counts = {kind: answers.verdict_counts[kind] for kind in _UNUSABLE}
    return max(counts, key=counts.__getitem__) if any(counts.values()) else ""


def position_sentence(position: PositionEffect | None, level: float) -> str:
    """Return the size of the position effect, and whether it depends on the content.

    Empty if the effect is less than a quarter of the answers' variation and not shown to depend on
    the content.
    """
    return "" if position is None else _sentence("position_sentence", position, level)


def remarks(judge: JudgeAudit, level: float) -> tuple[str, ...]:
    """Return sentences that qualify a judge's verdict."""
    preference = judge.preference
    sentences = [_sentence("repeatable_sentence", preference, level)]
    if preference.consistent:  # its ranges and its position effect qualify a preference only
        sentences = [
            _sentence("misfit_sentence", preference), coherence_sentence(judge.powers),
            position_sentence(preference.position, level), *fit_sentences(judge),
        ]  # fmt: skip
    sentences += [
        presentation_sentence(judge.presentations, preference.verdict),
        surface_sentence(judge.surface),
        _sentence("unusable_remark", judge),
    ]
    return tuple(sentence for sentence in sentences if sentence)


def fit_sentences(judge: JudgeAudit) -> list[str]:
    """Return the warnings of the fit of the judge's belief as sentences."""
    warnings = fit_warnings(judge.diagnostics.get(judge.method or "", {}), quality=False)
    return [f"{warning[0].upper()}{warning[1:]}." for warning in warnings]


def sample_size_sentence(preference: Preference) -> str:
    """Return how many pairs would find a preference if none was found; empty if not estimated."""
    return _sentence("sample_size_sentence", preference)


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
    return _sentence("level_set_sentence", discrimination)


def next_step(judge: JudgeAudit, audit: Audit, campaign: Campaign) -> str:
    """Return what to change or to ask next; empty if there is nothing to improve."""
    steps = next_steps(judge, audit, campaign)
    all_needed = judge.preference.consistent or judge.verdict == "too few answers"
    return f"Next: {join_names(steps, 'and' if all_needed else 'or')}." if steps else ""


def next_steps(judge: JudgeAudit, audit: Audit, campaign: Campaign) -> list[str]:
    """Return the things to change or ask next, what helps most first."""
    min_pairs = fewest_pairs(judge.preference.family_size, audit.settings.level)
    return _sentences("next_steps", judge, campaign, min_pairs)


def no_answers_clause(judge: JudgeAudit) -> str:
    """Return why a judge has no usable answers, and what to do; empty if it has some.

    The text ends the line that a command prints about the verdict.
    """
    if judge.verdict != "no usable answers":
        return ""
    answers = judge.consistency
    counts = f"{unusable_counts(answers)} of {answers.answers:,}"
    return f" ({counts}): {_sentence('reading_advice', answers)}"


def no_belief_notice(judges: Sequence[JudgeAudit]) -> str:
    """Return that what follows is no belief of judges without a preference; empty for others."""
    names = [judge.name for judge in judges if not judge.preference.consistent]
    return _sentence("no_belief_notice", names)


def no_belief_sentence(judge: JudgeAudit, space: FeatureSpace) -> str:
    """Return why a judge has no belief: too few answers, or no fit was run."""
    return _sentence("no_belief_sentence", judge, space)


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
    return _sentence("row_completion_sentence", test, judge)


def power_sentence(powers: BeliefPowers) -> str:
    """Return the source of the saved power, and whether several sources agree."""
    return _sentence("power_sentence", powers, sources_disagree(powers))


def nearer_sentence(powers: BeliefPowers) -> str:
    """Return whether a belief is nearer to the data than λ is, over the powers evaluated."""
    if powers.sampling_data_distance is None:
        return ""
    signs = {row.compare_with_sampling(powers.sampling_data_distance) for row in powers.beliefs}
    return _sentence("nearer_sentence", powers, signs)


def coherence_sentence(powers: BeliefPowers | None) -> str:
    """Return whether answers about ranges are coherent with a density; empty without any."""
    response = None if powers is None else powers.coherence
    return "" if response is None else _sentence("coherence_sentence", response)


def sources_disagree(powers: BeliefPowers) -> bool:
    """Return whether the test that all sources share one power rejects."""
    identified = powers.identified_power
    if identified is None or identified.agreement is None:
        return False
    return identified.agreement < _TEST_LEVEL


def sources_text(source: str) -> str:
    """Return the sources of a power as a phrase."""
    return join_names(source.replace("likelihood", "the model's own density").split(" + "))


def presentation_sentence(audit: PresentationAudit | None, verdict: Verdict) -> str:
    """Return a sentence on how much of a preference is common to presentations.

    The sentence is empty with one presentation, and for verdicts without a preference.
    """
    if verdict not in (*CONSISTENT_VERDICTS, WORDING, PRESENTATION):
        return ""
    if audit is None or audit.common is None or audit.generalizability is None:
        return ""
    return _sentence("presentation_sentence", audit)


def study_sentence(audit: PresentationAudit) -> str:
    """Return how many presentations and pairs reach a generalizability of .8; empty if unknown."""
    reached = audit.generalizability_of(len(audit.presentations), audit.pairs)
    return "" if reached is None else _sentence("study_sentence", audit, reached)


def surface_sentence(text: SurfaceAudit | None) -> str:
    """Return a sentence on how well length and digits of the text predict answers; or nothing."""
    if text is None or text.relation not in ("surface", "not told apart"):
        return ""
    return _sentence("surface_sentence", text)


def agreement_sentences(people: PeopleAudit) -> list[str]:
    """Return sentences on the agreement of experts with each other, with models and over time."""
    names = {person.name for person in people.people}
    among, mixed = (
        [pair for pair in people.agreements if len({pair.first, pair.second} & names) == count]
        for count in (2, 1)
    )
    retests = [person.retest for person in people.people if person.retest is not None]
    shares = map(_mean_agreement, (among, mixed, retests))
    return _sentences("agreement_sentences", people, *shares)


def _mean_agreement(agreements: Sequence[RaterAgreement]) -> float | None:
    """Return the share of pairs on which raters agree, over all of their pairs."""
    pairs = sum(agreement.pairs for agreement in agreements)
    agreed = sum(agreement.share.value * agreement.pairs for agreement in agreements)
    return agreed / pairs if pairs else None


def inattention_sentences(people: PeopleAudit) -> list[str]:
    """Return which people may have answered without reading the question, and the reason."""
    return _sentences("inattention_sentences", people)


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
    cost = f"{rows['cost'].sum():.4g}" if rows["cost"].notna().all() else ""
    asked = rows["asked_at"].dropna()
    ends = [str(time)[:16].replace("T", " ") for time in (asked.min(), asked.max())]
    total = questions if missing else 0
    return _sentence("asking_sentence", len(rows), total, cost, *(ends if len(asked) else ["", ""]))
