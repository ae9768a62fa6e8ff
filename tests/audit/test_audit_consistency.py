"""Order bias, agreement and verdict counts against planted judges."""

import numpy as np
import pandas as pd
import pytest

from audit.planted import ask, box, constant, gaussian_expert
from llm_elicit.audit.consistency import measure_consistency
from llm_elicit.audit.inference import wilson_interval
from llm_elicit.comparisons.table import Comparisons

SPACE = box(3)


def measure(log):
    return measure_consistency(log, "judge", log.choices("judge"))


def test_a_judge_who_always_says_a_has_the_largest_order_bias():
    c = measure(ask(SPACE, constant(1.0), np.random.default_rng(0)))
    assert c.order_bias.value == 0.5
    assert 0.45 < c.order_bias.low < 0.5
    assert c.agreement.value == 0.0
    assert c.swap_difference == 1.0
    assert c.decisiveness == 0.0
    assert c.verdict_counts == {
        "A": 200, "B": 0, "tie": 0, "refusal": 0, "truncated": 0, "unparsable": 0
    }  # fmt: skip


def test_a_judge_without_position_effect_agrees_under_swap():
    c = measure(ask(SPACE, lambda x, y: (x[:, 0] > y[:, 0]) * 1.0, np.random.default_rng(0)))
    assert c.order_bias.value == 0.0
    assert c.order_bias.low < 0 < c.order_bias.high
    assert c.agreement.value == 1.0
    assert c.swap_difference == 0.0
    assert c.decisiveness == 0.5


def test_intervals_cover_the_planted_bias():
    covered = 0
    for seed in range(40):
        log = ask(SPACE, constant(0.7), np.random.default_rng(seed), 60)
        bias = measure(log).order_bias
        covered += bias.low <= 0.2 <= bias.high
    assert covered >= 34


def test_soft_judgments_have_a_soft_order_bias():
    expert = gaussian_expert(SPACE)

    def leaning(first, second):
        return 0.6 * expert(first, second) + 0.4

    c = measure(ask(SPACE, leaning, np.random.default_rng(0), 200, soft=True))
    assert c.soft_share == 1.0
    assert c.soft_order_bias.value == pytest.approx(0.2, abs=1e-9)
    assert c.swap_difference == pytest.approx(0.4, abs=1e-9)


def test_one_order_makes_bias_and_agreement_unmeasurable():
    c = measure(ask(SPACE, constant(1.0), np.random.default_rng(0), both_orders=False))
    assert c.order_bias is None
    assert c.soft_order_bias is None
    assert c.agreement is None
    assert c.swap_difference is None
    assert c.pairs == 100


def test_a_judge_who_only_refuses_has_no_measurements():
    frame = ask(SPACE, constant(1.0), np.random.default_rng(0), 5).frame
    frame["verdict"], frame["probability"] = "refusal", np.nan
    c = measure(Comparisons(frame, SPACE.names))
    assert c.verdict_counts["refusal"] == c.answers == 10
    assert c.pairs == 0
    assert c.order_bias is c.agreement is c.decisiveness is None


def test_replicates_are_averaged_within_a_pair():
    frame = ask(SPACE, constant(1.0), np.random.default_rng(0), 1).frame
    again = frame.assign(replicate=1)
    again.loc[again["order"] == "ba", ["verdict", "probability"]] = ["B", 1.0]
    c = measure(Comparisons(pd.concat([frame, again]), SPACE.names))
    assert c.agreement.value == 0.5
    assert c.order_bias.value == pytest.approx(0.25)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_wilson_holds_its_share(share):
    interval = wilson_interval(share, 10)
    assert 0 <= interval.low <= share <= interval.high <= 1
    assert interval.low < interval.high


@pytest.mark.parametrize("share", [0.5, 0.8, 1.0])
def test_a_judge_asked_again_agrees_with_itself_as_often_as_its_noise_allows(share):
    rng = np.random.default_rng(3)
    frames = []
    for replicate in range(3):
        frame = ask(SPACE, constant(share), np.random.default_rng(0), 300).frame
        said_a = rng.random(len(frame)) < share
        prefers_a = said_a == (frame["order"] == "ab")
        frames.append(
            frame.assign(
                replicate=replicate,
                verdict=np.where(said_a, "A", "B"),
                probability=prefers_a.astype(float),
            )
        )
    log = Comparisons(pd.concat(frames), SPACE.names)
    retest = measure_consistency(log, "judge", log.choices("judge")).retest_agreement
    expected = share**2 + (1 - share) ** 2
    assert retest.low - 0.02 < expected < retest.high + 0.02
    once = Comparisons(frames[0], SPACE.names)
    assert measure_consistency(once, "judge", once.choices("judge")).retest_agreement is None


def test_replies_that_are_not_the_likelier_letter_are_counted():
    """Verdicts drawn from the probabilities agree with them in a share E max(p, 1 - p)."""
    space, rng = box(2), np.random.default_rng(3)
    frame = ask(space, gaussian_expert(space), rng, 400, soft=True).frame
    option_a = np.where(frame["order"] == "ab", frame["probability"], 1 - frame["probability"])
    log = Comparisons(frame, space.names)
    always = measure_consistency(log, "judge", log.choices("judge")).likelier_letter_share
    assert always.value == 1.0
    frame["verdict"] = np.where(rng.random(len(frame)) < option_a, "A", "B")
    log = Comparisons(frame, space.names)
    drawn = measure_consistency(log, "judge", log.choices("judge")).likelier_letter_share
    assert drawn.low < np.maximum(option_a, 1 - option_a).mean() < drawn.high
