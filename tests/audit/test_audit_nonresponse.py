"""Refusals by region: a judge who refuses by what is shown, and one who does so by chance."""

import numpy as np
import pytest

from audit.planted import ask, box, constant
from llm_elicit.audit.consistency import measure_nonresponse
from llm_elicit.comparisons.table import Comparisons

SPACE = box(3)


def refusing(chance, seed: int) -> Comparisons:
    """Random choices that refuse a question with `chance` of its two points."""
    rng = np.random.default_rng(seed)
    frame = ask(SPACE, constant(0.5), rng, 120).frame
    points = [frame[[f"{side}_{name}" for name in SPACE.names]].to_numpy() for side in "ab"]
    refused = rng.random(len(frame)) < chance(*points)
    frame.loc[refused, ["verdict", "reply"]] = ["refusal", "I cannot."]
    frame.loc[refused, "probability"] = np.nan
    return Comparisons(frame, SPACE.names)


def measure(log: Comparisons, seed: int = 0):
    return measure_nonresponse(log, "judge", SPACE, 199, np.random.default_rng(seed))


def test_a_judge_who_refuses_in_one_region_is_found_there() -> None:
    """Half of the questions with a point beyond x1 = 2 are refused: found in 19 of 20 logs."""
    found = 0
    for seed in range(20):
        log = refusing(lambda a, b: 0.5 * ((a[:, 1] > 2) | (b[:, 1] > 2)), seed)
        nonresponse = measure(log)
        guilty = [each.name for each in nonresponse.features if each.p_holm < 0.05]
        found += "x1" in guilty
        low, _, high = nonresponse.features[1].thirds
        assert high > low
    assert found >= 19


def test_nonresponse_at_random_is_seldom_significant() -> None:
    """At 5 % for all features together, of 40 judges: more than 6 has a chance of 1 %."""
    blamed = 0
    for seed in range(40):
        features = measure(refusing(lambda a, _: np.full(len(a), 0.1), seed)).features
        blamed += any(each.p_holm < 0.05 for each in features)
    assert blamed <= 6


def test_the_nonresponse_rate_is_over_all_questions() -> None:
    log = refusing(lambda a, _: np.full(len(a), 0.1), 1)
    share = measure(log).share
    assert share.value == pytest.approx((log.frame["verdict"] == "refusal").mean())
    assert share.low < share.value < share.high


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_nonresponse_is_not_measured_if_all_or_no_questions_are_answered(chance: float) -> None:
    assert measure(refusing(lambda a, _: np.full(len(a), chance), 0)) is None
