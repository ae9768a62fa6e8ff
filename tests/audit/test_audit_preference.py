"""The test of a preference and its verdicts: false alarms, power, and what scale cannot change."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from audit.planted import Planted, ask, ask_each, box, constant, gaussian_expert
from llm_elicit.audit.inference import estimate_explained_share, t_interval
from llm_elicit.audit.preference import (
    decide_verdicts,
    measure_preference,
)
from llm_elicit.audit.randomization import RandomizationTest
from llm_elicit.audit.reference import AuditSettings
from llm_elicit.audit.responses import Response, build_response
from llm_elicit.comparisons.table import Choices, Comparisons

SPACE = box(2)
SETTINGS = AuditSettings(flips=199)


def noisy_soft(rng):
    return lambda first, _: np.clip(0.8 + 0.1 * rng.normal(size=len(first)), 0, 1)


def faint(rng, scale=1.0, position=0.1, spread=0.05, noise=0.07):
    """Log-odds of standard deviation .2 by the first feature, with noise.

    The position effect is each pair's own, the same in both orders.
    """
    of_pair = rng.normal(position, spread, 1000)

    def choose(first, second):
        n = len(first)
        log_odds = 0.08 * (first - second)[:, 0] + of_pair[:n] + rng.normal(0.0, noise, n)
        return 1.0 / (1.0 + np.exp(-scale * log_odds))

    return choose


def preference_of(log, seed=0, settings=SETTINGS, **more):
    """Of one judge asked alone."""
    response = build_response(log, "judge")
    one = measure_preference(response, SPACE, settings, np.random.default_rng(seed), **more)
    return decide_verdicts([one], [None], settings.level)[0]


@pytest.mark.parametrize(
    ("judge", "soft", "both_orders"),
    [
        (lambda rng: constant(0.5), False, True),
        (lambda rng: constant(0.9), False, True),
        (lambda rng: constant(1.0), False, False),
        (noisy_soft, True, True),
        (noisy_soft, True, False),
    ],
    ids=["random", "mostly A", "always A, one order", "soft and noisy", "soft, one order"],
)
def test_false_alarms_keep_to_the_level(judge, soft, both_orders):
    repeats, alarms = 200, 0
    rngs = {str(repeat): np.random.default_rng([repeat, 11]) for repeat in range(repeats)}
    judges = {name: Planted(judge(rng), rng) for name, rng in rngs.items()}
    log = ask_each(SPACE, judges, 40, soft, both_orders)
    for name, rng in rngs.items():
        test = RandomizationTest(build_response(log, name), SPACE)
        alarms += test.run(99, rng).p_value <= 0.05
    # Five percent of alarms exceed this bound once in a thousand suites.
    assert alarms <= stats.binom.ppf(0.999, repeats, 0.05)


@pytest.mark.parametrize("soft", [False, True])
def test_always_a_in_both_orders_is_no_preference(soft):
    """Soft answers leave rounding, which is none either."""
    log = ask(SPACE, constant(0.9 if soft else 1.0), np.random.default_rng(0), 50, soft=soft)
    found = preference_of(log)
    assert found.verdict == "position only"
    assert (found.p_value, found.p_is_bound, found.reliability) == (1.0, False, None)
    assert found.position.explained_share == pytest.approx(1.0)
    assert found.position.p_is_bound
    assert "p ≤ 0.005" in found.reason


def test_random_choices_show_neither_preference_nor_position_effect():
    verdicts = [
        preference_of(ask(SPACE, constant(0.5), np.random.default_rng(s), 60), s).verdict
        for s in range(20)
    ]
    assert verdicts.count("no consistent preference") >= 15


def test_a_gaussian_expert_is_found_in_eight_dimensions():
    space, found = box(8), 0
    for repeat in range(10):
        rng = np.random.default_rng([repeat, 12])
        log = ask(space, gaussian_expert(space), rng, 200)
        test = RandomizationTest(build_response(log, "judge"), space)
        found += test.run(199, rng).p_value < 0.05
    assert found == 10


def test_a_preference_of_low_amplitude_is_found_with_its_reliability():
    """Half differences: signal variance .04, noise .07²/2, so 94 % can be predicted."""
    found = [
        preference_of(ask(SPACE, faint(rng), rng, 100, soft=True), s)
        for s, rng in ((seed, np.random.default_rng(seed)) for seed in range(20))
    ]
    assert all(one.verdict == "consistent preference" for one in found)
    signal = 0.08**2 * 6.0
    truth = signal / (signal + 0.07**2 / 2)
    covered = sum(one.reliability.low < truth < one.reliability.high for one in found)
    assert np.mean([one.reliability.value for one in found]) == pytest.approx(truth, abs=0.03)
    assert covered >= 14
    position = [one.position for one in found]
    assert np.mean([each.mean.value for each in position]) == pytest.approx(0.1, abs=0.01)
    assert np.mean([each.sd for each in position]) == pytest.approx(0.05, abs=0.015)
    assert np.mean([each.explained_share for each in position]) == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_the_measurements_do_not_depend_on_the_scale_of_the_log_odds(scale):
    for seed in range(3):
        one, other = (
            preference_of(ask(SPACE, faint(rng, factor), rng, 60, soft=True), seed)
            for factor, rng in ((f, np.random.default_rng(seed)) for f in (1.0, scale))
        )
        assert (one.verdict, one.p_value, one.reason) == (
            other.verdict,
            other.p_value,
            other.reason,
        )
        for name in ("value", "low", "high"):
            for what in ("reliability", "ceiling"):
                here, there = (getattr(getattr(x, what), name) for x in (one, other))
                assert here == pytest.approx(there, rel=1e-6), what
        assert scale * one.position.mean.value == pytest.approx(other.position.mean.value)
        assert one.position.explained_share == pytest.approx(
            other.position.explained_share, rel=1e-6
        )
        assert one.position.interaction.p_value == other.position.interaction.p_value


def test_a_position_effect_that_depends_on_what_is_shown_is_found():
    rng = np.random.default_rng(3)

    def choose(first, second):
        log_odds = 0.1 + 0.05 * (first + second)[:, 0] + rng.normal(0.0, 0.05, len(first))
        return 1.0 / (1.0 + np.exp(-log_odds))

    found = preference_of(ask(SPACE, choose, rng, 80, soft=True)).position
    assert found.interaction.loo_r2 > 0.7
    assert found.interaction.p_is_bound
    alarms = 0
    for seed in range(60):
        rng = np.random.default_rng([seed, 4])
        log = ask(SPACE, faint(rng), rng, 40, soft=True)
        alarms += preference_of(log, seed).position.interaction.p_value <= 0.05
    assert alarms <= stats.binom.ppf(0.999, 60, 0.05)


def test_one_order_leaves_the_mean_effect_to_be_subtracted():
    rng = np.random.default_rng(0)
    log = ask(SPACE, faint(rng, position=1.0, spread=0.0), rng, 60, soft=True, both_orders=False)
    found = preference_of(log)
    assert found.verdict == "consistent preference"
    assert found.position.orders == "one"
    assert found.position.mean.low < 1.0 < found.position.mean.high
    assert found.position.interaction is None
    assert found.ceiling is None


@pytest.mark.parametrize("soft", [True, False])
def test_one_order_does_not_count_the_position_effect(soft):
    """The quadratic rule predicts nothing of a judge who rather names the first, at any rate."""
    for seed in range(10):
        rng = np.random.default_rng(seed)

        def choose(first, _, rng=rng):
            return 1.0 / (1.0 + np.exp(-1.5 - rng.normal(0.0, 0.2, len(first))))

        found = preference_of(ask(SPACE, choose, rng, 40, soft=soft, both_orders=False), seed)
        assert found.reliability.value < 0.2
        assert found.reliability.low < 0.0


@pytest.mark.parametrize("pairs", [2, 5, 9])
def test_of_a_few_pairs_neither_reliability_nor_ceiling_is_given(pairs):
    log = ask(SPACE, faint(np.random.default_rng(1)), np.random.default_rng(1), pairs, soft=True)
    fit = {"response": {"held_out_r2": 0.19, "held_out_r2_interval": [0.186, 0.191]}}
    found = preference_of(log, diagnostics=fit)
    assert (found.reliability, found.ceiling, found.explained_share) == (None, None, 1.0)


def in_time(log, times):
    """The same answers, asked at other times."""
    stamps = [f"2026-01-01T00:{t // 60:02}:{t % 60:02}Z" for t in times]
    return Comparisons(log.frame.assign(asked_at=stamps), SPACE.names)


def test_agreement_is_beyond_that_of_answers_asked_as_far_apart():
    """Answers that take turns agree between the orders of a pair, and between pairs as well."""
    n, rng = 40, np.random.default_rng(0)
    log = ask(SPACE, constant(0.5), rng, n, soft=True)
    asked = np.concatenate([2 * np.arange(n), 2 * np.arange(n) + 1])  # ab, ba, ab, ba, ...

    def answered(shown):
        first = 1.0 / (1.0 + np.exp(-shown[asked]))
        side = (log.frame["order"] == "ab").to_numpy()
        frame = log.frame.assign(probability=np.where(side, first, 1.0 - first))
        return build_response(in_time(Comparisons(frame, SPACE.names), asked), "judge")

    turns = answered(np.tile([1.0, -1.0], n))
    assert turns.agreement == pytest.approx(0.0)
    assert turns.agreement_control == pytest.approx(-1.0)
    drift = answered(np.linspace(-3.0, 3.0, 2 * n))
    assert abs(drift.agreement.mean()) < 0.05
    content = rng.choice([-1.0, 1.0], n)
    repeatable = answered((content[:, None] * [1.0, -1.0]).ravel())
    assert repeatable.agreement.mean() > 0.7
    # All once and then all again: no two answers about different pairs are as far apart.
    again = in_time(log, np.arange(2 * n))
    assert np.isfinite(build_response(again, "judge").agreement).all()


def test_log_odds_without_times_are_in_the_order_of_the_plan():
    """A table may hold all answers in one order before those in the other."""
    log = ask(SPACE, faint(np.random.default_rng(2)), np.random.default_rng(2), 30, soft=True)
    by_pair = Comparisons(log.frame.sort_values(["pair", "order"]), SPACE.names)
    one, other = build_response(log, "judge"), build_response(by_pair, "judge")
    assert one.agreement == pytest.approx(other.agreement)


def test_wild_answers_do_not_hide_a_preference():
    found = 0
    for seed in range(20):
        rng = np.random.default_rng([seed, 8])

        def choose(a, b, rng=rng):
            wild = np.where(rng.random(len(a)) < 0.1, -4.0, 1.0)
            log_odds = wild * 0.2 * (a - b)[:, 0] + rng.normal(0.0, 0.1, len(a))
            return 1.0 / (1.0 + np.exp(-log_odds))

        test = RandomizationTest(
            build_response(ask(SPACE, choose, rng, 60, soft=True), "judge"), SPACE
        )
        found += test.run(199, rng).p_value < 0.05
    assert found == 20


def test_position_effects_that_drift_are_not_called_a_preference_for_a_position():
    """Each resembles the one before, so they are worth fewer than their number."""
    drifting = np.concatenate([np.full(10, level) for level in (0.5, -0.4, 0.6, -0.1)])
    assert t_interval(drifting).low > 0.0
    n = len(drifting)
    log = ask(SPACE, constant(0.5), np.random.default_rng(0), n, soft=True).frame
    first = 1.0 / (1.0 + np.exp(-np.tile(drifting, 2)))
    log["probability"] = np.where(log["order"] == "ab", first, 1.0 - first)
    found = preference_of(Comparisons(log, SPACE.names)).position
    assert found.mean.low < 0.0 < found.mean.value
    assert found.p_value > 0.1


def test_repeats_that_vary_give_the_ceiling():
    rng = np.random.default_rng(0)
    log = ask(SPACE, faint(rng, spread=0.0), rng, 100, soft=True).frame
    # The same pairs asked again: the same points, answers with noise of their own.
    points = [log[[f"{side}_{n}" for n in SPACE.names]].to_numpy() for side in "ab"]
    again = log.assign(replicate=1)
    first = (log["order"] == "ab").to_numpy()[:, None]
    shown = np.where(first, *points), np.where(first, *reversed(points))
    p = faint(rng, spread=0.0)(*shown)
    again["probability"] = np.where(first[:, 0], p, 1.0 - p)
    found = preference_of(Comparisons(pd.concat([log, again]), SPACE.names))
    signal = 0.08**2 * 6.0
    assert found.ceiling.source == "repeats"
    assert found.ceiling.value == pytest.approx(signal / (signal + 0.07**2 / 4), abs=0.02)


def test_a_stated_certainty_counts_as_half_a_step_inside():
    """Of stated per cents 0 and 100 are roundings, not log-odds of twenty nats."""
    log = ask(SPACE, constant(0.75), np.random.default_rng(0), 4, soft=True).frame
    log["format"] = "probability"
    log.loc[(log["pair"] == 1) & (log["order"] == "ab"), "probability"] = 1.0
    found = build_response(Comparisons(log, SPACE.names), "judge")
    assert found.value[1] == pytest.approx(0.5 * (np.log(199.0) - np.log(3.0)))
    assert found.value[0] == 0.0


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_few_pairs_do_not_crash_and_cannot_be_significant(n):
    rng = np.random.default_rng(n)
    points = SPACE.sample(2 * n, rng) if n else np.empty((0, 2))
    choices = Choices(points[:n], points[n:], np.ones(n), np.arange(n))
    found = measure_preference(Response.from_choices(choices), SPACE, SETTINGS, rng)
    assert found.p_value >= 0.05
    assert found.reliability is None


def test_a_feature_that_never_varies_and_equal_points():
    rng = np.random.default_rng(0)
    a = SPACE.sample(30, rng)
    a[:, 1] = 1.0
    choices = Choices(a, a.copy(), rng.random(30), np.arange(30))
    found = RandomizationTest(Response.from_choices(choices), SPACE).run(99, rng)
    assert found.p_value == 1.0
    assert found.loo_r2 == pytest.approx(0.0)


def test_verdicts_allow_for_the_number_of_judges():
    """One p of .03 is enough for a judge asked alone, and for none of three."""
    log = ask(SPACE, faint(np.random.default_rng(0)), np.random.default_rng(0), 40, soft=True)
    one = preference_of(log).model_copy(update={"p_value": 0.03, "p_is_bound": False})
    assert decide_verdicts([one], [None], 0.05)[0].verdict == "consistent preference"
    assert decide_verdicts([one], ["ranges"], 0.05)[0].verdict == "belief with a scale"
    three = decide_verdicts([one] * 3, [None] * 3, 0.05)
    assert [each.p_holm for each in three] == pytest.approx([0.09] * 3)
    assert {each.verdict for each in three} == {"position only"}


def test_a_control_is_tested_by_itself_and_does_not_count_for_the_others():
    """A simulated judge beside a model turned p = .029 into .058, and the verdict with it."""
    log = ask(SPACE, faint(np.random.default_rng(0)), np.random.default_rng(0), 40, soft=True)
    one = preference_of(log).model_copy(update={"p_value": 0.029, "p_is_bound": False})
    silent = one.model_copy(update={"pairs": 0, "p_value": 1.0})
    model, control = decide_verdicts([one] * 2, [None] * 2, 0.05, [False, True])
    assert [model.p_holm, control.p_holm, model.family_size, control.family_size] == [
        0.029,
        0.029,
        1,
        1,
    ]
    assert model.verdict == control.verdict == "consistent preference"
    assert "adjusted" not in model.reason
    # Of the judges who answered and are no controls, the rate of false preferences is held.
    four = decide_verdicts([one, one, one, silent], [None] * 4, 0.05, [False, False, True, False])
    assert [judge.p_holm for judge in four] == pytest.approx([0.058, 0.058, 0.029, 1.0])
    assert "(p = 0.058, adjusted for 2 judges; p = 0.029 alone)" in four[0].reason
    assert "adjusted" not in four[2].reason
    for tests in ("position", "agreement"):
        alone, adjusted = getattr(four[2], tests), getattr(four[0], tests)
        assert alone.p_holm == alone.p_value
        assert adjusted.p_holm == min(1.0, 2.0 * adjusted.p_value)


def test_the_interval_of_an_explained_share_covers_it():
    truth, covered = 0.7, 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        y, e = rng.normal(0, 0.7**0.5, 60), rng.normal(0, 0.3**0.5, 60)
        found = estimate_explained_share(e**2, (y + e) ** 2)
        covered += found.low < truth < found.high
    assert 0.9 < covered / 300 < 0.98
