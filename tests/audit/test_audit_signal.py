"""The test of "no signal found": false alarms by simulation, power, and the second condition."""

import numpy as np
import pytest
from scipy import stats

from audit.planted import ask, box, constant, gaussian_expert
from llm_elicit.audit.evidence import AuditSettings
from llm_elicit.audit.signal import assess_signal, distance_from_sampling, randomization_test
from llm_elicit.comparisons import Choices

SPACE = box(2)
SETTINGS = AuditSettings(draws=99)


def noisy_soft(rng):
    return lambda first, _: np.clip(0.8 + 0.1 * rng.normal(size=len(first)), 0, 1)


@pytest.mark.parametrize(
    ("judge", "soft", "both_orders"),
    [
        (lambda rng: constant(0.5), False, True),
        (lambda rng: constant(0.9), False, True),
        (lambda rng: constant(1.0), False, False),
        (noisy_soft, True, True),
    ],
    ids=["coin", "mostly A", "always A, one order", "soft and noisy"],
)
def test_false_alarms_keep_to_the_level(judge, soft, both_orders):
    repeats, alarms = 200, 0
    for repeat in range(repeats):
        rng = np.random.default_rng([repeat, 11])
        log = ask(SPACE, judge(rng), rng, 40, soft=soft, both_orders=both_orders)
        alarms += randomization_test(log.choices("judge"), SPACE, 99, rng)[0] <= 0.05
    # Five percent of alarms exceed this bound once in a thousand suites.
    assert alarms <= stats.binom.ppf(0.999, repeats, 0.05)


def test_always_a_in_both_orders_is_no_preference_at_all():
    log = ask(SPACE, constant(1.0), np.random.default_rng(0), 50)
    assert randomization_test(log.choices("judge"), SPACE, 99, np.random.default_rng(0)) == (1, 0)


def test_soft_always_a_with_rounding_noise_is_no_preference():
    log = ask(SPACE, constant(0.9), np.random.default_rng(0), 50, soft=True)
    p_value, gain = randomization_test(log.choices("judge"), SPACE, 99, np.random.default_rng(0))
    assert (p_value, gain) == (1.0, 0.0)


def test_a_gaussian_expert_is_found_in_eight_dimensions():
    space, found = box(8), 0
    for repeat in range(10):
        rng = np.random.default_rng([repeat, 12])
        log = ask(space, gaussian_expert(space), rng, 200)
        found += randomization_test(log.choices("judge"), space, 199, rng)[0] < 0.05
    assert found == 10


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_few_pairs_do_not_crash_and_cannot_be_significant(n):
    rng = np.random.default_rng(n)
    points = SPACE.sample(2 * n, rng) if n else np.empty((0, 2))
    choices = Choices(points[:n], points[n:], np.ones(n), np.arange(n))
    assert randomization_test(choices, SPACE, 99, rng)[0] >= 0.05


def test_a_feature_that_never_varies_and_equal_points():
    rng = np.random.default_rng(0)
    a = SPACE.sample(30, rng)
    a[:, 1] = 1.0
    choices = Choices(a, a.copy(), rng.random(30), np.arange(30))
    p_value, gain = randomization_test(choices, SPACE, 99, rng)
    assert p_value == 1.0
    assert gain == pytest.approx(0.0)


def test_samples_of_lambda_are_within_chance_of_lambda_and_a_belief_is_not():
    rng = np.random.default_rng(3)
    sampling, same = rng.random((4000, 2)), rng.random((4000, 2))
    distance, threshold, size = distance_from_sampling(same, sampling, 100, SETTINGS, rng)
    assert distance < threshold
    assert size == 100
    distance, threshold, _ = distance_from_sampling(same**2, sampling, 100, SETTINGS, rng)
    assert distance > threshold


@pytest.mark.parametrize(
    ("p_value", "against", "verdict", "words"),
    [
        (0.01, (1.0, 0.2, 100), "signal", "depend on the points shown (p = 0.01), and the belief"),
        (0.01, (0.1, 0.2, 100), "no signal found", "but the belief is no farther"),
        (0.20, (1.0, 0.2, 100), "no signal found", "cannot be told"),
        (0.20, (0.1, 0.2, 100), "no signal found", "and the belief is no farther"),
        (0.01, None, "no signal found", "no belief"),
    ],
)
def test_a_signal_needs_both_conditions(p_value, against, verdict, words):
    signal = assess_signal(p_value, 0.1, against, SETTINGS, held_out=-0.5)
    assert signal.verdict == verdict
    assert words in signal.reason
    assert (signal.answers_depend and signal.differs_from_sampling) == (verdict == "signal")
