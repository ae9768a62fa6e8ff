"""The randomization test of pairs chosen in rounds: exact whatever rule chose them, and as able."""

import numpy as np
import pytest
from scipy import stats

from audit.planted import ask, box, constant, gaussian_expert
from llm_elicit.audit.randomization import RandomizationTest
from llm_elicit.audit.reference import AuditSettings
from llm_elicit.audit.responses import Response, build_response
from llm_elicit.audit.utility import measure_effects
from llm_elicit.comparisons.table import Choices
from llm_elicit.planning.rounds import Schedule

LINE, PLANE = box(1), box(2)
_SETTINGS = AuditSettings(flips=99)


def _schedule(*sizes, may_end=False):
    ends = np.cumsum(sizes).tolist()
    starts = [0, *ends[:-1]]
    return Schedule(
        tuple(range(start, end) for start, end in zip(starts, ends, strict=True)), may_end
    )


def _responses(a, b, preference):
    choices = Choices(a, b, np.asarray(preference, dtype=float), np.arange(len(a)))
    return Response.from_choices(choices)


def _test(responses, space, flips, rng, schedule=None):
    """(p, gain)."""
    found = RandomizationTest(responses, space, schedule).run(flips, rng)
    return found.p_value, found.loo_r2


def _random_choices(n, rng):
    """The mean of two answers, one in each order."""
    return 0.5 * rng.integers(2, size=n) + 0.5 * rng.integers(2, size=n)


@pytest.mark.parametrize("schedule", [None, _schedule(60)])
def test_one_round_is_no_rounds_to_the_last_bit(schedule):
    for seed, judge in enumerate([constant(0.5), gaussian_expert(PLANE)]):
        responses = build_response(ask(PLANE, judge, np.random.default_rng(seed), 60), "judge")
        plain, rounds = np.random.default_rng(5), np.random.default_rng(5)
        assert _test(responses, PLANE, 199, plain) == _test(responses, PLANE, 199, rounds, schedule)
        assert plain.random() == rounds.random()


def test_of_one_round_it_gives_what_it_gave_before_there_were_rounds():
    responses = build_response(ask(PLANE, constant(0.5), np.random.default_rng(4), 25), "judge")
    found = RandomizationTest(responses, PLANE).run(399, np.random.default_rng(5))
    assert found.p_value == 0.2575
    assert found.loo_r2 == pytest.approx(0.008868933082477937, abs=1e-12)
    assert float(found.null_r2.mean()) == pytest.approx(0.003268258916487057, abs=1e-12)


SIZES = (10,) * 14


def _chased(rng):
    """Random choices under a design that looks for a trend: far apart, then near.

    Each round outweighs those before it, so that there are as many chances as rounds; a trend that
    chance made is kept by asking what no trend tells apart.
    """
    a, b, said = np.empty((0, 1)), np.empty((0, 1)), np.empty(0)
    for number, size in enumerate(SIZES):
        x, z = (a - b)[:, 0], said - 0.5
        found = bool(len(x)) and abs(x @ z) > 2.0 * np.sqrt(x**2 @ z**2)
        apart = 5.0 * 6.0 ** (-2 * len(SIZES) if found else number - len(SIZES))
        side = apart * rng.uniform(0.7, 1.0, (size, 1)) * rng.choice((-0.5, 0.5), (size, 1))
        a, b = np.concatenate([a, 1.0 + side]), np.concatenate([b, 1.0 - side])
        said = np.concatenate([said, _random_choices(size, rng)])
    return _responses(a, b, said)


def test_false_alarms_keep_to_the_level_where_pairs_chase_a_trend():
    repeats, naive, exact, single, schedule = 200, 0, 0, 0, _schedule(*SIZES)
    for repeat in range(repeats):
        rng = np.random.default_rng([repeat, 21])
        responses = _chased(rng)
        naive += _test(responses, LINE, 99, rng)[0] <= 0.05
        exact += _test(responses, LINE, 99, rng, schedule)[0] <= 0.05
        single += measure_effects(responses, LINE, _SETTINGS, rng, schedule)[0].p_value <= 0.05
    most = stats.binom.ppf(0.999, repeats, 0.05)
    assert naive > 1.8 * most
    assert exact <= most
    assert single <= most


def test_p_is_uniform_where_answers_ignore_the_points():
    schedule, p_values = _schedule(12, 1, 8, 0, 9), []
    for repeat in range(400):
        rng = np.random.default_rng([repeat, 22])
        responses = _responses(*rng.uniform(-1, 1, (2, 30, 2)), _random_choices(30, rng))
        p_values.append(_test(responses, PLANE, 39, rng, schedule)[0])
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3


def test_false_alarms_keep_to_the_level_where_rounds_end_when_they_please():
    repeats, sizes = 300, (20, 20, 20)
    schedule, ended, unaware = _schedule(*sizes, may_end=True), 0, 0
    for repeat in range(repeats):
        rng = np.random.default_rng([repeat, 23])
        a, b = rng.uniform(-1, 1, (2, 60, 1))
        said = _random_choices(60, rng)
        for last in (20, 40, 60):
            responses = _responses(a[:last], b[:last], said[:last])
            if _test(responses, LINE, 99, rng)[0] <= 0.05:
                break
        ended += _test(responses, LINE, 99, rng, schedule)[0] <= 0.05
        unaware += _test(responses, LINE, 99, rng)[0] <= 0.05
    most = stats.binom.ppf(0.999, repeats, 0.05)
    assert ended <= most
    assert unaware > ended


def test_a_weak_judge_is_found_about_as_often_as_by_the_plain_test():
    repeats, sizes, plain, rounds = 150, (40, 40, 40), 0, 0
    for repeat in range(repeats):
        rng = np.random.default_rng([repeat, 24])
        a, b = rng.uniform(-2.5, 2.5, (2, 120, 2))
        chance = 1.0 / (1.0 + np.exp(-0.18 * ((b**2 - a**2).sum(axis=1) / 2 + (a - b)[:, 0])))
        responses = _responses(a, b, (rng.random((2, 120)) < chance).mean(axis=0))
        plain += _test(responses, PLANE, 99, rng)[0] <= 0.05
        rounds += _test(responses, PLANE, 99, rng, _schedule(*sizes))[0] <= 0.05
    assert plain > 0.6 * repeats
    assert rounds > plain - 0.12 * repeats


@pytest.mark.parametrize(
    ("sizes", "answers"),
    [
        ((0, 0), 0),
        ((1, 1), 1),
        ((1, 1), 2),
        ((1, 2, 0, 1), 4),
        ((2, 5, 5), 2),
        ((3, 3), 2),
    ],
)
@pytest.mark.parametrize("may_end", [False, True])
def test_tiny_and_empty_rounds(sizes, answers, may_end):
    rng = np.random.default_rng(answers)
    a, b = rng.uniform(-1, 1, (2, answers, 2))
    schedule = _schedule(*sizes, may_end=may_end)
    p_value, gain = _test(_responses(a, b, np.ones(answers)), PLANE, 99, rng, schedule)
    assert 0.0 < p_value <= 1.0
    assert np.isfinite(gain)
    nothing = _test(_responses(a, b, np.full(answers, 0.5)), PLANE, 99, rng, schedule)
    assert nothing == (1.0, 0.0)


def test_rounds_without_a_preference_change_nothing():
    rng = np.random.default_rng(8)
    a, b = rng.uniform(-1, 1, (2, 40, 2))
    said = _random_choices(40, rng)
    said[10:20] = said[30:] = 0.5
    whole = RandomizationTest(_responses(a, b, said), PLANE, _schedule(10, 10, 10, 10))
    assert whole.spans == [(0, 10), (10, 30)], "points that answers chose are not looked at"
    only = RandomizationTest(_responses(a[:10], b[:10], said[:10]), PLANE, _schedule(10, 10))
    first = _test(only.response, PLANE, 99, np.random.default_rng(1))
    assert _test(only.response, PLANE, 99, np.random.default_rng(1), only.schedule) == first


@pytest.mark.parametrize(("asked", "share"), [(5, 0.125), (20, 0.125), (21, 0.5), (25, 0.5)])
def test_of_rounds_that_a_rule_may_end_each_end_has_its_share(asked, share):
    points = np.zeros((asked, 1))
    responses = _responses(points, points, np.ones(asked))
    sizes = (5,) * 5
    assert RandomizationTest(responses, LINE, _schedule(*sizes, may_end=True)).level_share == share
    assert RandomizationTest(responses, LINE, _schedule(*sizes)).level_share == 1.0
