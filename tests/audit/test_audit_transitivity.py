"""Cycles among triads: found from the points, separated from noise, and what cannot be decided."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from audit.planted import ask, box, circle, constant, gaussian_expert
from llm_elicit.audit.consistency import (
    Triads,
    find_triads,
    measure_transitivity,
    poisson_binomial_tail,
    predict_triads,
)
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.density import (
    BeliefDensity,
    Evidence,
    FitSettings,
    MixtureSettings,
    PosteriorSettings,
    SmoothSettings,
    Uniform,
    UtilitySettings,
    fit_evidence,
)
from llm_elicit.errors import InputError

pytestmark = pytest.mark.usefixtures("few_particles")

SPACE = box(2)
LAMBDA = Uniform(SPACE.low, SPACE.high)
EXPERT = gaussian_expert(SPACE)
FEW_PAIRS = FitSettings(
    utility=UtilitySettings(
        mixture=MixtureSettings(counts=()),
        smooth=SmoothSettings(frequencies=0),
        posterior=PosteriorSettings(draws=16),
    )
)


def _chances(corners: np.ndarray, choose) -> np.ndarray:
    """P(option A) for a against b, b against c and c against a, `(t, 3)`."""
    on = np.roll(corners, -1, axis=1)
    return choose(corners.reshape(-1, 2), on.reshape(-1, 2)).reshape(-1, 3)


def _turned(choose):
    """P(option B) when the options change places: P of the same point in the other order."""
    return lambda first, second: 1.0 - choose(second, first)


def _answered(choose, seed: int, triads: int) -> Triads:
    """Triads of λ, answered in both orders."""
    rng = np.random.default_rng([seed, 0x721])
    corners = SPACE.sample(3 * triads, rng).reshape(triads, 3, 2)
    chances = np.stack([_chances(corners, each) for each in (choose, _turned(choose))], -1)
    return Triads(corners, (rng.random(chances.shape) < chances) * 1.0)


def _predicted(triads: Triads, choose) -> np.ndarray:
    """The predictions of a correct belief: a row of one draw."""
    both = [_chances(triads.corners, each) for each in (choose, _turned(choose))]
    return np.mean(both, axis=0)[None]


def _asked(choose, seed: int, triads: int, **how) -> Triads:
    rng = np.random.default_rng([seed, 0x721])
    return find_triads(ask(SPACE, choose, rng, 3 * triads, triads=triads, **how), "judge")


def _joined(log: Comparisons, graph: list[tuple[int, int]], points: np.ndarray) -> Comparisons:
    """The log with the points of its pairs replaced by those that the graph joins."""
    frame = log.frame.copy()
    for side, column in zip("ab", np.array(graph).T, strict=True):
        for i, name in enumerate(log.features):
            frame[f"{side}_{name}"] = points[column[frame["pair"]], i]
    return Comparisons(frame, log.features)


def test_triads_are_found_among_other_pairs_whatever_their_numbers_and_order():
    rng = np.random.default_rng(0)
    log = ask(SPACE, EXPERT, rng, 100, triads=12)
    found = find_triads(log, "judge")
    assert len(found) == 12
    shuffled = log.frame.sample(frac=1, random_state=0)
    shuffled["pair"] = 1000 - shuffled["pair"]
    again = find_triads(Comparisons(shuffled, SPACE.names), "judge")
    assert {frozenset(map(tuple, three)) for three in again.corners.tolist()} == {
        frozenset(map(tuple, three)) for three in found.corners.tolist()
    }
    one, other = measure_transitivity(found), measure_transitivity(again)
    assert one.cycle_share == other.cycle_share
    assert one.repeated_cycle_share == other.repeated_cycle_share


@given(st.integers(3, 9), st.integers(0, 2**31))
@settings(max_examples=10, deadline=None)
def test_no_two_triads_share_a_pair_and_none_is_left(k, seed):
    rng = np.random.default_rng(seed)
    every = list(itertools.combinations(range(k), 2))
    graph = [every[i] for i in rng.permutation(len(every))[: rng.integers(1, len(every) + 1)]]
    points = SPACE.sample(k, rng)
    log = _joined(ask(SPACE, EXPERT, rng, len(graph)), graph, points)
    found = find_triads(log, "judge")
    number = {tuple(point): i for i, point in enumerate(points)}
    used = [
        frozenset(pair)
        for three in found.corners
        for pair in itertools.combinations([number[tuple(point)] for point in three], 2)
    ]
    assert len(used) == len(set(used))
    free = set(map(frozenset, graph)) - set(used)
    left = [t for t in itertools.combinations(range(k), 3)
            if all(frozenset(pair) in free for pair in itertools.combinations(t, 2))]  # fmt: skip
    assert not left


def test_preferences_run_round_the_corners():
    """A judge who is sure of the larger first feature has no cycle, whichever way it was asked."""
    log = _asked(lambda a, b: (a[:, 0] > b[:, 0]) * 1.0, 1, 50)
    on = np.roll(log.corners, -1, axis=1)
    expected = (log.corners[..., 0] > on[..., 0]) * 1.0
    np.testing.assert_array_equal(log.preference, np.stack([expected, expected], -1))
    found = measure_transitivity(log)
    assert (found.cycle_share.value, found.repeated_cycle_share.value) == (0.0, 0.0)
    assert found.p_random == pytest.approx(0.75**50)
    assert found.expected_cycle_share is found.expected_repeated_share is found.p_value is None


@given(arrays(np.float64, (5, 5), elements=st.floats(0, 1)))
@settings(max_examples=50, deadline=None)
def test_the_rate_of_cycles_says_no_more_than_how_often_each_point_is_preferred(raw):
    """Kendall and Babington Smith's identity, for chances and points drawn again and again."""
    chance = np.where(np.triu(np.ones((5, 5)), 1) > 0, raw, 1.0 - raw.T)
    np.fill_diagonal(chance, 0.5)
    i, j, k = np.array(list(itertools.product(range(5), repeat=3))).T
    preference = np.stack([chance[i, j], chance[j, k], chance[k, i]], -1)[..., None]
    one_order = np.concatenate([preference, np.full_like(preference, np.nan)], -1)
    found = measure_transitivity(Triads(np.zeros((125, 3, 2)), one_order))
    preferred = 2.0 * chance.mean(1) - 1.0
    assert found.cycle_share.value == pytest.approx(0.25 - 0.75 * np.mean(preferred**2))


def test_a_coin_makes_a_quarter_and_a_thirty_second():
    found = measure_transitivity(_answered(constant(0.5), 3, 2000))
    assert found.cycle_share.low < 0.25 < found.cycle_share.high
    assert found.repeated_cycle_share.low < 1 / 32 < found.repeated_cycle_share.high
    assert found.p_random > 0.01


def test_a_judge_who_goes_round_in_circles_is_found():
    """By 30 triads in both orders beside a flat belief: in 96 % of studies, as is predicted.

    It has as many cycles as random choices (Wendel's theorem), so repeated ones are counted.
    """
    least = stats.binom.isf(0.05, 30, 1 / 32) + 1
    power = stats.binom.sf(least - 1, 30, 0.25)
    assert power == pytest.approx(0.963, abs=1e-3)
    found = [_answered(circle(), seed, 30) for seed in range(200)]
    measured = [measure_transitivity(each, np.full((1, 30, 3), 0.5)) for each in found]
    share = np.mean([each.p_value < 0.05 for each in measured])
    assert abs(share - power) < 4 * np.sqrt(power * (1 - power) / 200)
    assert np.mean([each.cycle_share.value for each in measured]) == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("bias", [0.0, 1.5])
def test_an_expert_is_called_cyclic_no_more_often_than_the_level(bias):
    """At three times its noise, so that there are cycles; with an order bias, less often."""

    def choose(first, second):
        chance = np.clip(EXPERT(first, second), 1e-9, 1 - 1e-9)
        return 1.0 / (1.0 + np.exp(-np.log(chance / (1 - chance)) / 3 - bias))

    found = [_answered(choose, seed, 60) for seed in range(200)]
    measured = [measure_transitivity(each, _predicted(each, choose)) for each in found]
    # Were it 5 %, 20 or more of 200 would be a chance of 0.3 %.
    assert sum(each.p_value < 0.05 for each in measured) < 20
    gap = np.array([each.cycle_share.value - each.expected_cycle_share for each in measured])
    assert abs(gap.mean()) < 4 * gap.std() / 14
    repeated = np.array(
        [each.repeated_cycle_share.value - each.expected_repeated_share for each in measured]
    )
    assert repeated.mean() < 4 * repeated.std() / 14


def test_soft_judgments_count_by_their_chances():
    triads = _asked(EXPERT, 5, 40, soft=True)
    found = measure_transitivity(triads, _predicted(triads, EXPERT))
    assert found.cycle_share.value == pytest.approx(found.expected_cycle_share)
    assert found.repeated_cycle_share.value == pytest.approx(found.expected_repeated_share)
    assert found.p_value > 0.4


def test_over_one_order_a_circle_and_noise_look_alike():
    triads = _asked(circle(), 6, 40, both_orders=False)
    found = measure_transitivity(triads, np.full((1, 40, 3), 0.5))
    assert found.triads == 40
    assert found.expected_cycle_share == 0.25
    assert found.repeated_cycle_share is found.expected_repeated_share is found.p_value is None


def test_a_pair_that_lost_an_order_leaves_its_triad_out_of_the_repeated_ones():
    rng = np.random.default_rng(7)
    frame = ask(SPACE, circle(), rng, 60, triads=20).frame
    lost = (frame["pair"] == 0) & (frame["order"] == "ab") | (frame["pair"] == 3)
    frame.loc[lost, ["verdict", "probability"]] = ["refusal", np.nan]
    triads = find_triads(Comparisons(frame, SPACE.names), "judge")
    assert len(triads) == 19
    found = measure_transitivity(triads, np.full((1, 19, 3), 0.5))
    kept = ~np.isnan(triads.preference).any(axis=(1, 2))
    assert kept.sum() == 18
    assert found.repeated_cycle_share.value == pytest.approx(np.mean(
        (triads.preference[kept] == 1).all(axis=(1, 2))
        | (triads.preference[kept] == 0).all(axis=(1, 2))
    ))  # fmt: skip


def test_transitivity_is_not_measured_without_triads():
    nothing = find_triads(ask(SPACE, EXPERT, np.random.default_rng(0), 50), "judge")
    assert len(nothing) == 0
    assert measure_transitivity(nothing) is None
    silent = ask(SPACE, EXPERT, np.random.default_rng(0), 6, triads=2).frame
    silent["verdict"], silent["probability"] = "refusal", np.nan
    assert len(find_triads(Comparisons(silent, SPACE.names), "judge")) == 0
    with pytest.raises(InputError, match=r"give \(draws, 2, 3\)"):
        measure_transitivity(_asked(EXPERT, 0, 2), np.full((1, 3, 3), 0.5))


@given(arrays(np.float64, (2, 6), elements=st.floats(0, 1)), st.integers(0, 6))
@settings(max_examples=50, deadline=None)
def test_the_poisson_binomial_tail_is_that_of_the_enumeration(chances, count):
    every = np.array(list(itertools.product([0, 1], repeat=6)))
    ways = np.where(every[:, None], chances, 1 - chances).prod(-1)
    expected = ways[every.sum(1) >= count].sum(0).mean()
    assert poisson_binomial_tail(count, chances) == pytest.approx(expected, abs=1e-12)
    assert poisson_binomial_tail(count + 0.75, chances) == poisson_binomial_tail(count, chances)


def _fit(log: Comparisons) -> BeliefDensity:
    choices = log.choices("judge")
    evidence = Evidence.comparisons(choices.a, choices.b, choices.preference)
    return fit_evidence(evidence, sampling=LAMBDA, method="utility", settings=FEW_PAIRS)


def test_an_expert_beside_its_fitted_belief():
    log = ask(SPACE, EXPERT, np.random.default_rng(8), 150, triads=40)
    belief, triads = _fit(log), find_triads(log, "judge")
    predicted = predict_triads(belief, triads, seed=1)
    assert np.abs(predicted.mean(0) - _predicted(triads, EXPERT)[0]).mean() < 0.1
    found = measure_transitivity(triads, predicted)
    assert found.p_value > 0.05
    assert found.p_random < 0.01
    assert found.cycle_share.low < found.expected_cycle_share < found.cycle_share.high
    assert predict_triads(belief, Triads(triads.corners[:0], triads.preference[:0])) is None


def test_a_circle_beside_its_fitted_belief():
    # Of 40 triads 7 were repeated cycles, which random choices, as the belief rightly takes them
    # for, give with probability 2e-4.
    log = ask(SPACE, circle(), np.random.default_rng(8), 180, triads=60)
    triads = find_triads(log, "judge")
    found = measure_transitivity(triads, predict_triads(_fit(log), triads, seed=1))
    assert found.p_value < 1e-4
    assert found.repeated_cycle_share.low > 2 * found.expected_repeated_share
    assert found.cycle_share.low < found.expected_cycle_share < found.cycle_share.high


def test_an_order_bias_and_ties_that_were_estimated_are_predicted():
    """A judge of four nats for the first option, a fifth ties, says less over both orders."""

    def choose(first, second):
        chance = np.clip(EXPERT(first, second), 1e-12, 1 - 1e-12)
        return 1.0 / (1.0 + (1 - chance) / chance * np.exp(-4.0 / 0.78))

    rng = np.random.default_rng(9)
    log = ask(SPACE, choose, rng, 150, triads=50)
    tied = rng.random(len(log.frame)) < 0.2
    log.frame.loc[tied, "probability"], log.frame.loc[tied, "verdict"] = 0.5, "tie"
    said = log.judgments("judge")
    evidence = Evidence.comparisons(
        said.a, said.b, said.preference, tie=said.tie, first=said.first, judge="judge"
    )
    belief = fit_evidence(evidence, sampling=LAMBDA, settings=FEW_PAIRS)
    triads = find_triads(log, "judge")
    predicted = predict_triads(belief, triads).mean(0) - 0.5
    toward, seen = np.sign(predicted), triads.preference.mean(-1) - 0.5
    assert np.sum(toward * seen) / np.abs(predicted).sum() == pytest.approx(1.0, abs=0.12)
