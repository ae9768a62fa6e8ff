"""What to do next, by verdict: one sentence for the reader of a report."""

from __future__ import annotations

from llm_elicit.audit.consistency import Consistency
from llm_elicit.audit.preference import REPEATABLE
from llm_elicit.audit.record import Audit, JudgeAudit
from llm_elicit.config.campaign import Campaign
from llm_elicit.planning.detectable import fewest_pairs
from llm_elicit.report.formatting import listed
from llm_elicit.report.verdicts import unusable

_READ = {
    "truncated": "raise its `max_tokens`, or turn its thinking off, so that answers are not cut",
    "refusal": "compare other templates with `llm-elicit pilot`, since it refuses this question",
    "unparsable": (
        "read its replies below and compare other templates with `llm-elicit pilot`, since its "
        "answers are not of the form asked for"
    ),
}
_TIMES = 4


def next_step(judge: JudgeAudit, audit: Audit, campaign: Campaign) -> str:
    """Return what to change or ask next; empty if there is nothing to improve."""
    preference, level = judge.preference, audit.settings.level
    if preference.verdict == "no usable answers":
        return f"Next: {_how_to_read(judge.consistency)}."
    if preference.verdict == "too few answers":
        least = fewest_pairs(sum(one.preference.pairs > 0 for one in audit.judges), level)
        steps = [f"ask more pairs: at least {least} can show a preference, a few dozen a faint one"]
        if preference.pairs < campaign.design.pairs:
            steps.insert(0, _how_to_read(judge.consistency))
        return f"Next: {listed(steps)}."
    if preference.verdict == REPEATABLE:
        return (
            "Next: describe the options by more features, among them what a text shows (digits, "
            "length, roundness), or compare templates with `llm-elicit pilot`."
        )
    if not preference.consistent:
        return f"Next: {listed(_find_more(judge, campaign), 'or')}."
    steps = []
    related = judge.discrimination is None or judge.discrimination.relation
    if related in ("not shown", "partly"):
        steps.append("ask more pairs, which narrows the intervals")
    if preference.verdict == "consistent preference":
        steps.append(
            "to find the scale, add questions about ranges or ratios (`direct: {ranges: 40, "
            "ratios: 20}`)"
        )
    return f"Next: {listed(steps)}." if steps else ""


def without_answers(judge: JudgeAudit) -> str:
    """Return why a judge has no usable answers, and what to do; empty if it has some.

    The end of the line that a command prints of its verdict.
    """
    if judge.verdict != "no usable answers":
        return ""
    answers = judge.consistency
    lost = f"{unusable(answers)} of {answers.judgments:,}"
    return f" ({lost}): {_how_to_read(answers)}"


def _how_to_read(answers: Consistency) -> str:
    """Return how to get usable answers, by the most frequent reason why some are not."""
    counts = {kind: answers.verdicts[kind] for kind in _READ}
    worst = max(counts, key=lambda kind: counts[kind])
    return _READ[worst] if counts[worst] else "run it again to ask the missing questions"


def _find_more(judge: JudgeAudit, campaign: Campaign) -> list[str]:
    """Return the ways to find a preference that was not found."""
    preference, answers = judge.preference, judge.consistency
    required = preference.sample_size
    if required is not None and required.pairs is not None and required.pairs > preference.pairs:
        pairs = f"about {required.pairs:,} pairs in all"
    else:
        pairs = f"more pairs (four times as many: {_TIMES * preference.pairs:,})"
    steps = [f"ask {pairs}"]
    if 2 * sum(answers.verdicts[kind] for kind in _READ) >= answers.judgments:
        steps.insert(0, _how_to_read(answers))
    if not campaign.design.both_orders:
        steps.append("ask both orders, which averages the position effect out")
    steps.append("compare templates with `llm-elicit pilot`")
    if preference.response == "choices":
        steps.append("use a model that returns log-probabilities, which say more per pair")
    return steps
