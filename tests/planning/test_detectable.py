"""What a number of pairs can show is what the test of a preference then finds, at most."""

import numpy as np
import pytest
from audit.planted import ask, box

from llm_elicit.audit.preference import decide_verdicts, measure_preference
from llm_elicit.audit.reference import AuditSettings
from llm_elicit.audit.responses import build_response
from llm_elicit.config.campaign import Campaign
from llm_elicit.planning.pairs import detectable_note, fewest_pairs, smallest_p

SPACE = box(1)


def _exact(a, b):
    """Log-odds without noise."""
    return 1.0 / (1.0 + np.exp(b[:, 0] - a[:, 0]))


def _of(pairs, flips=1999):
    log = ask(SPACE, _exact, np.random.default_rng(3), pairs, soft=True)
    response, settings = build_response(log, "judge"), AuditSettings(flips=flips)
    return measure_preference(response, SPACE, settings, np.random.default_rng(0))


@pytest.mark.parametrize("pairs", [5, 6, 8])
def test_a_judge_who_never_errs_reaches_the_smallest_p_and_no_smaller(pairs):
    """All exchanges of few pairs are tried, so p is exact."""
    found = _of(pairs)
    assert found.p_value == found.smallest_p == smallest_p(pairs) == 2 / 2**pairs
    verdict = decide_verdicts([found], [None], 0.05)[0].verdict
    assert verdict == ("too few answers" if pairs < 6 else "consistent preference")


def test_a_control_needs_no_more_pairs_of_the_others_and_little_is_not_rounded_to_none():
    expert = {"name": "expert", "backend": "simulated"}
    model = {"name": "model", "backend": "local", "model": "qwen2.5-0.5b"}
    for judges, adjusted in (([model, expert], False), ([expert, {**expert, "name": "b"}], True)):
        campaign = Campaign.model_validate(
            {"name": "t", "space": "penguins", "design": {"pairs": 9000}, "judges": judges}
        )
        note = detectable_note(campaign, campaign.load_space())
        assert ("adjusted for 2 judges" in note) == adjusted
        assert "explains less than 1% of the variation" in note


def test_more_judges_need_more_pairs():
    assert [fewest_pairs(judges) for judges in (1, 2, 4, 8)] == [6, 7, 8, 9]
    one = _of(6).model_copy(update={"p_value": 0.2})
    assert decide_verdicts([one], [None], 0.05)[0].verdict == "no consistent preference"
    verdicts = [found.verdict for found in decide_verdicts([one, one], [None] * 2, 0.05)]
    assert verdicts == ["too few answers"] * 2


@pytest.mark.parametrize(
    ("design", "judges", "said"),
    [
        (
            {"pairs": 5},
            1,
            "5 pairs cannot show a preference: their smallest possible p-value, 0.062,",
        ),
        ({"pairs": 6}, 2, ", 0.031, 0.062 adjusted for 2 judges, is above 0.05; ask at least 7"),
        (
            {"pairs": 12},
            1,
            "can show a preference (smallest possible p-value 0.0005): only a very strong",
        ),
        (
            {"pairs": 200},
            1,
            "a preference that explains about 8% of the variation of the answers is",
        ),
    ],
)
def test_the_plan_says_what_its_pairs_can_show(design, judges, said):
    named = [{"name": f"j{k}", "backend": "simulated"} for k in range(judges)]
    campaign = Campaign.model_validate(
        {"name": "try", "space": "countries", "design": design, "judges": named}
    )
    assert said in detectable_note(campaign, campaign.load_space())


def test_nothing_is_said_of_rounds_whose_p_values_are_combined():
    campaign = Campaign.model_validate(
        {"name": "try", "space": "countries", "design": {"pairs": 20, "rounds": {"count": 4}},
         "judges": [{"name": "j", "backend": "simulated"}]}
    )  # fmt: skip
    assert detectable_note(campaign, campaign.load_space()) == ""
