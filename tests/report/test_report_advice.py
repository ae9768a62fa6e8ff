"""What to do next follows from the verdict, the design and what became of the answers."""

import dataclasses

import pytest

from llm_elicit.audit.inference import Interval, SampleSize
from llm_elicit.comparisons.table_files import VERDICTS
from llm_elicit.config.design import Design
from llm_elicit.report.page import render_page
from llm_elicit.report.sentences import next_step, no_answers_clause


def judge_of(study, verdict, pairs=60, counts=None, **preference):
    expert = study.audit.of("expert")
    changed = {"verdict": verdict, "pairs": pairs, **preference}
    update = {"preference": expert.preference.model_copy(update=changed)}
    if counts is not None:
        verdicts = dict.fromkeys(VERDICTS, 0) | counts
        known = {"verdict_counts": verdicts, "answers": sum(verdicts.values())}
        update["consistency"] = expert.consistency.model_copy(update=known)
    return expert.model_copy(update=update)


@pytest.mark.parametrize(
    ("lost", "line", "advice"),
    [
        ("truncated", "20 truncated of 20", "raise its `max_tokens`"),
        (
            "refusal",
            "20 refused of 20",
            "other templates with `llm-elicit pilot`, since the judge refuses",
        ),
        ("unparsable", "20 unparsable of 20", "read its replies below"),
    ],
)
def test_without_answers_the_reason_and_its_setting_are_named(study, lost, line, advice):
    judge = judge_of(study, "no usable answers", pairs=0, counts={lost: 20})
    assert no_answers_clause(judge).startswith(f" ({line}): ")
    assert advice in no_answers_clause(judge)
    assert advice in next_step(judge, study.audit, study.campaign)
    assert no_answers_clause(judge_of(study, "position only")) == ""


@pytest.mark.parametrize(
    ("verdict", "design", "preference", "said"),
    [
        ("too few answers", {"pairs": 5}, {"pairs": 5}, "Next: ask more pairs: at least 7 for a"),
        ("position only", {"both_orders": False}, {}, "Next: ask both orders, which averages"),
        ("position only", {}, {"sample_size": None}, "Next: use template `v1/few-shot`, which"),
        ("position only", {}, {"sample_size": None}, "use a larger model"),
        ("position only", {"template": "v1/few-shot"}, {}, "Next: compare templates with `llm-"),
        ("no consistent preference", {}, {}, "compare templates with `llm-elicit pilot`"),
        ("no consistent preference", {}, {"response": "choices"}, "that returns log-probabilities"),
        (
            "no consistent preference",
            {},
            {"sample_size": SampleSize(excess=0.1, se=0.01, pairs=200)},
            "Next: ask about 200 pairs in all, use template",
        ),
        ("consistent preference", {}, {}, "Next: add questions about ranges or ratios (`direct:"),
        ("belief with a scale", {}, {}, ""),
    ],
)
def test_every_verdict_says_what_to_do_next(study, verdict, design, preference, said):
    judge = judge_of(study, verdict, **preference)
    campaign = study.campaign.model_copy(update={"design": Design(**{"pairs": 60} | design)})
    text = next_step(judge, study.audit, campaign)
    assert said in text if said else text == ""


def test_more_pairs_are_no_cure_of_a_position_effect(study):
    """They were named first, four times as many, to a judge who gave A in 60 of 60 answers."""
    for verdict in ("position only", "no consistent preference"):
        judge = judge_of(study, verdict, sample_size=None)
        text = next_step(judge, study.audit, study.campaign)
        assert ("or ask more pairs (four times as many: 240)." in text) == (
            verdict == "no consistent preference"
        )
    required = SampleSize(excess=0.1, se=0.01, pairs=200)
    judge = judge_of(study, "position only", sample_size=required)
    assert next_step(judge, study.audit, study.campaign).endswith("ask about 200 pairs in all.")


def test_what_helps_a_preference_is_one_sentence(study):
    judge = judge_of(study, "consistent preference")
    unrelated = {
        "auc": Interval(value=0.5, low=0.3, high=0.7),
        "rank_correlation": Interval(value=0.0, low=-0.5, high=0.5),
    }
    judge = judge.model_copy(
        update={"discrimination": judge.discrimination.model_copy(update=unrelated)}
    )
    text = next_step(judge, study.audit, study.campaign)
    assert text.startswith("Next: ask more pairs to narrow the intervals and add questions about")


def test_the_sections_of_a_judge_without_a_preference_say_that_they_are_no_belief(study):
    page = " ".join(render_page(study, {}).split())
    said = "Do not read anything below as a belief of stuck &lt;b&gt;judge&lt;/b&gt;: no preference"
    for section in ("judge-2", "distances"):
        text = page.split(f'<h2 id="{section}">')[1].split("<h2")[0]
        assert said in text.split("<table")[0], section
    assert said not in page.split('<h2 id="judge-1">')[1].split("<h2")[0]


def test_the_belief_of_a_judge_with_too_few_answers_is_not_drawn(study):
    """Five answers leave λ and the fit's assumptions; its band would look like knowledge."""
    judge = judge_of(study, "too few answers", pairs=5)
    audit = study.audit.model_copy(update={"judges": [judge]})
    text = render_page(dataclasses.replace(study, audit=audit), {})
    assert "it is not drawn here" in text
    assert "Summary statistics" not in text
    assert "would be found with about" not in text


def test_a_page_without_judges_is_made(study):
    audit = study.audit.model_copy(update={"judges": []})
    assert "these 0 judges" in render_page(dataclasses.replace(study, audit=audit), {})


def test_log_odds_need_no_model_with_log_probabilities(study):
    judge = judge_of(study, "position only", response="log-odds")
    assert "log-probabilities" not in next_step(judge, study.audit, study.campaign)
