"""The findings about a judge in sentences, for a reader who knows none of the methods."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llm_elicit.audit.belief_power import BeliefPowers
from llm_elicit.audit.discrimination import Discrimination
from llm_elicit.audit.inference import p_text
from llm_elicit.audit.judge_audit import JudgeAudit
from llm_elicit.audit.position_effect import PositionEffect
from llm_elicit.audit.preference import Ceiling, Preference
from llm_elicit.audit.record import Audit
from llm_elicit.audit.utility import Effect
from llm_elicit.report.formatting import NOT_MEASURED, listed, share, signed
from llm_elicit.report.powers import (
    coherence_of,
    coherence_sentence,
    sources_disagree,
    sources_text,
)
from llm_elicit.spaces.features import FeatureSpace

_MOST_NAMED = 4
_STRONG = 0.25
_CHANCE = 0.5
# The end of the noun phrase that names the subject.
_NARROWED = re.compile(
    r"[,(;:]|\s(?:in|near|of|sold|between|with|from|for|at|on|by|that|who|which|made|built)\s"
)
_MOST_WORDS = 4


def verdict_sentence(judge: JudgeAudit, audit: Audit) -> str:
    """Return what a judge prefers, how reliably, whether the data agree, and the scale."""
    preference, level = judge.preference, audit.settings.level
    if preference.pairs == 0:
        return f"{judge.name} gave no choice."
    p = p_text(preference.p_holm, preference.at_floor)
    if not preference.consistent:
        return _no_preference(judge.name, preference, p)
    parts = [
        f"{judge.name} prefers {preferred(judge.effects, audit.space, level)}"
        f"{_reliably(preference, p)}",
        data_clause(judge.discrimination, audit.space.subject),
        _scale_clause(preference, judge.powers),
    ]
    return "; ".join(part for part in parts if part) + "."


def preferred(effects: Sequence[Effect], space: FeatureSpace, level: float) -> str:
    """Return the features with significant effects, the largest first, with direction."""
    labels = {feature.name: feature.label for feature in space.features}
    significant = [effect for effect in effects if effect.p_holm < level]
    significant.sort(key=lambda effect: -(effect.size or 0.0))
    if not significant:
        return "some combinations of features to others; no single feature is significant"
    named: dict[str, list[str]] = {}
    for effect in significant[:_MOST_NAMED]:
        named.setdefault(_direction(effect), []).append(_name(effect, labels[effect.name]))
    phrases = [f"{direction}{listed(names)}" for direction, names in named.items()]
    rest = len(significant) - _MOST_NAMED
    return listed([*phrases, f"{rest} more"] if rest > 0 else phrases)


def _direction(effect: Effect) -> str:
    """Return which values of a feature are preferred, before its name."""
    if effect.categories is not None:
        return ""
    return {
        "higher": "higher ",
        "lower": "lower ",
        "middle": "middle values of ",
        "ends": "extreme values of ",
    }.get(effect.direction or "", "some values of ")


def _name(effect: Effect, label: str) -> str:
    """Return a feature's label without the part in brackets, or its preferred category."""
    short = label.split(" (", maxsplit=1)[0]
    if effect.categories is None:
        return short
    best, worst = effect.categories
    return f"{best} over {worst} ({short})"


def _reliably(preference: Preference, p: str) -> str:
    """Return how reliable a preference is, in brackets or as a clause."""
    kind = preference.response
    if preference.reliability is None:
        return f" ({p})"
    reached, ceiling = preference.reliability.value, shown_ceiling(preference)
    if reached <= 0.0:
        return f", though the fit predicts none of the variation of held-out {kind} ({p})"
    known = ceiling is not None and ceiling.value >= reached
    most = f"; ceiling {share(ceiling.value)}" if known and ceiling is not None else ""
    return f" ({share(reached)} of the variation of held-out {kind} is predicted{most}; {p})"


def shown_ceiling(preference: Preference) -> Ceiling | None:
    """Return the ceiling of the reliability; None if its interval lies below the reliability.

    Estimated from the orders, it counts variation of the position effect as noise; estimated from
    few pairs, it is noisy itself.
    """
    reached, ceiling = preference.reliability, preference.ceiling
    if reached is None or ceiling is None or ceiling.high < reached.value:
        return None
    return ceiling


def data_clause(found: Discrimination | None, subject: str) -> str:
    """Return whether a preference agrees with the data; empty without data."""
    if found is None:
        return ""
    auc, real = found.auc, thing(subject)
    if auc.low > _CHANCE:
        agrees = "the preference agrees with the data"
    elif auc.high < _CHANCE:
        agrees = "the preference is opposite to the data"
    else:
        agrees = "the preference is unrelated to the data"
    return (
        f"{agrees}: a real {real} ranks above a random one {share(auc.value)} of the time "
        f"(95 % interval {share(auc.low)} to {share(auc.high)}; ceiling {share(found.ceiling)})"
    )


def thing(subject: str) -> str:
    """Return what a subject is called in short, without its article.

    Example:
        >>> thing("a country in some year between 1952 and 2007")
        'country'
        >>> thing("an adult penguin (Adelie, chinstrap or gentoo) near Palmer Station")
        'adult penguin'
        >>> thing("whatever else one may well come to think up")
        'case'
    """
    bare = re.sub(r"^(?:an?|the)\s+", "", subject.strip(), flags=re.IGNORECASE)
    name = _NARROWED.split(bare, maxsplit=1)[0].strip()
    return name if 0 < len(name.split()) <= _MOST_WORDS else "case"


def _scale_clause(preference: Preference, powers: BeliefPowers | None) -> str:
    if preference.verdict != "belief with a scale" or powers is None or powers.scale is None:
        return "the scale of its belief is not identified"
    doubt, width = "", coherence_of(powers)
    if width is not None and not width.coherent:
        doubt = ", though its answers about ranges are not coherent with a density"
    elif sources_disagree(powers):
        doubt = ", though these disagree"
    return f"the scale of its belief is identified by {sources_text(powers.scale)}{doubt}"


def _no_preference(name: str, preference: Preference, p: str) -> str:
    ignores = f"{name}'s answers show no dependence on the content ({p})"
    if preference.verdict == "position only" and preference.position is not None:
        position = preference.position
        p_position = p_text(position.p_holm, position.at_floor)
        side = "first" if position.mean.value > 0 else "second"
        return (
            f"{ignores}; they depend on the position only: it prefers the option shown {side} "
            f"({p_position}), which accounts for {share(position.share)} of the variation of its "
            "answers."
        )
    return f"{ignores} or on which option is shown first."


def position_sentence(position: PositionEffect | None, level: float) -> str:
    """Return the size of the position effect, and whether it depends on the content.

    Empty if it is less than a quarter of the answers' variation and the same for all pairs.
    """
    if position is None:
        return ""
    parts = []
    if position.share >= _STRONG:
        parts.append(
            f"The position effect accounts for {share(position.share)} of the variation of its "
            "answers."
        )
    content = position.content
    if content is not None and content.p_value < level:
        parts.append(
            f"Its position effect depends on the content "
            f"({p_text(content.p_value, content.at_floor)}): asking both orders removes only its "
            "mean; what an option gains from its own content by being shown first is counted as "
            "preference."
        )
    return " ".join(parts)


def remarks(judge: JudgeAudit, level: float) -> tuple[str, ...]:
    """Return sentences that qualify a judge's verdict."""
    if not judge.preference.consistent:
        return ()  # its ranges and its position effect qualify a preference only
    found = coherence_sentence(judge.powers), position_sentence(judge.preference.position, level)
    return tuple(remark for remark in found if remark)


def sample_size_sentence(preference: Preference) -> str:
    """Return how many pairs would find a preference if none was found; empty if not estimated."""
    required, pairs = preference.sample_size, preference.pairs
    if required is None or preference.consistent or pairs == 0:
        return ""
    if required.pairs is None:
        return (
            "The dependence measured is less than one standard error above chance, so the number "
            "of pairs needed to find a preference cannot be estimated."
        )
    return (
        f"A preference as strong as the dependence measured would be found with about "
        f"{required.pairs:,} pairs in total ({required.pairs - pairs:,} more)."
    )


def effect_cell(effect: Effect) -> str:
    """Return an effect in log-odds with its interval."""
    if effect.value is None or effect.low is None or effect.high is None:
        return NOT_MEASURED
    return f"{signed(effect.value)} ({signed(effect.low)} to {signed(effect.high)})"


def direction_cell(effect: Effect) -> str:
    """Return the preferred values of a feature."""
    if effect.categories is not None:
        return " over ".join(effect.categories)
    return effect.direction or ""


def level_set_sentence(found: Discrimination) -> str:
    """Return the share of the data in the tenth of λ with the highest utility."""
    level = found.level_set
    return (
        f"{share(level.value)} of the data (95 % interval {share(level.low)} to "
        f"{share(level.high)}) lie in the tenth of the range that it finds most plausible; 10% are "
        f"expected by chance, and the ceiling is {share(found.level_set_ceiling)}."
    )
