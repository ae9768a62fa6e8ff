"""Which pairs to ask next, of a judge who answers by log-odds."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from llm_elicit.density import (
    BeliefDensity,
    FitSettings,
    Uniform,
    UtilitySettings,
    fit_belief,
    suggest_pairs,
)
from llm_elicit.density.design import SuggestSettings, draw_candidates, predict_answers
from llm_elicit.density.settings import GaussianProcessSettings
from tests.density.targets import Array

pytestmark = pytest.mark.usefixtures("few_particles")

SQUARE = Uniform([-3.0, -3.0], [3.0, 3.0])
SMALL = FitSettings(
    utility=UtilitySettings(process=GaussianProcessSettings(frequencies=128, draws=64))
)


def hill(x: Array) -> Array:
    """log p of N((1, −1), 0.3² I), without its constant."""
    return -0.5 * ((x - [1.0, -1.0]) ** 2).sum(-1) / 0.3**2


def answers(a: Array, b: Array, seed: int, factor: float = 1.0) -> Array:
    """Faint log-odds (n,), of standard deviation 0.2 or so."""
    noise = np.random.default_rng(seed).normal(0, 0.05, len(a))
    return factor * (0.003 * (hill(a) - hill(b)) + noise)


def fitted(a: Array, b: Array, heard: Array) -> BeliefDensity:
    return fit_belief(a, b, log_odds=heard, sampling=SQUARE, settings=SMALL)


@functools.cache
def first_round(factor: float = 1.0) -> BeliefDensity:
    rng = np.random.default_rng(0)
    a, b = SQUARE.sample(40, rng), SQUARE.sample(40, rng)
    return fitted(a, b, answers(a, b, 0, factor))


def sure(pairs: tuple[Array, Array], seed: int) -> BeliefDensity:
    """Fitted to answers with a tenth of the noise."""
    noise = np.random.default_rng(seed).normal(0, 0.005, len(pairs[0]))
    return fitted(*pairs, 0.003 * (hill(pairs[0]) - hill(pairs[1])) + noise)


def test_the_unit_power_makes_one_nat_of_the_log_density():
    belief = first_round()
    power = belief.unit_power()
    x = SQUARE.sample(20_000, np.random.default_rng(1))
    assert belief.tempered(power).log_prob(x).std() == pytest.approx(1.0, rel=0.05)
    faint = first_round(factor=0.01)
    assert faint.unit_power() == pytest.approx(100 * power, rel=0.02)


def test_a_belief_without_a_known_power_is_taken_at_its_unit_power():
    belief = first_round()
    known = belief.tempered(50.0 * belief.unit_power(), seed=2)
    at_unit = belief.tempered(belief.unit_power(), seed=2)
    pairs, of_known, of_unit = (suggest_pairs(b, 20, seed=2) for b in (belief, known, at_unit))
    np.testing.assert_array_equal(pairs, of_unit)
    assert not np.array_equal(pairs, of_known)


def test_log_odds_have_one_variance_whatever_their_size():
    belief = first_round()
    belief = belief.tempered(belief.unit_power())
    found = draw_candidates(belief, 200, 3.0, seed=1)
    pairs = np.arange(100), np.arange(100, 200)
    deviation, noise_variance = predict_answers(found, pairs, belief)
    dispersion = belief.diagnostics["response"]["dispersion"] * belief.power
    assert (noise_variance == noise_variance[0]).all()
    assert float(noise_variance[0]) == pytest.approx(len(found.values) * dispersion**2)
    assert deviation.mean(0).abs().max() < 1e-9


def test_the_pairs_do_not_depend_on_the_scale_of_the_answers():
    spread = []
    for factor in (1.0, 0.01):
        belief = first_round(factor=factor)
        a, b = suggest_pairs(belief, 60, seed=2, settings=SuggestSettings(uniform=0.0))
        spread.append(np.linalg.norm(np.concatenate([a, b]) - [1.0, -1.0], axis=1).mean())
    assert spread[1] == pytest.approx(spread[0], rel=0.15)


def test_a_known_power_brings_the_points_closer():
    belief = first_round()
    sharp = belief.tempered(333.0)
    means = []
    for each in (belief, sharp):
        a, b = suggest_pairs(each, 60, seed=2, settings=SuggestSettings(uniform=0.0))
        means.append(np.linalg.norm(np.concatenate([a, b]) - [1.0, -1.0], axis=1).mean())
    assert means[1] < 0.8 * means[0]


def test_chosen_pairs_are_more_informative_than_random_ones():
    """They leave the utility less uncertain where the belief has its mass: a quarter less.

    What is left is compared, and not the error of the estimate, which is one draw from it: of 14
    judges the errors of chosen and of random pairs did not differ beyond chance.
    """
    gains = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        pairs = SQUARE.sample(20, rng), SQUARE.sample(20, rng)
        chosen = suggest_pairs(sure(pairs, seed).tempered(100.0), 20, seed=seed)
        random = SQUARE.sample(20, rng), SQUARE.sample(20, rng)
        # The belief at this power is N((1, −1), 0.55² I).
        x = rng.normal([1.0, -1.0], 0.55, (400, 2)).clip(-3.0, 3.0)
        left = []
        for more in (chosen, random):
            both = np.concatenate([pairs[0], more[0]]), np.concatenate([pairs[1], more[1]])
            f = sure(both, 100 + seed).utilities(x)
            left.append((f - f.mean(1, keepdims=True)).std(0).mean())
        gains.append(np.log(left[1] / left[0]))
    assert np.mean(gains) > 0.15
