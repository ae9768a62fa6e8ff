"""The power by points of the belief when points are few and features many."""

import numpy as np
import pytest

from llm_elicit.density import BeliefDensity, Uniform, fit_belief, fit_power

D = 8
LAMBDA = Uniform([-3.0] * D, [3.0] * D)


@pytest.fixture(scope="module")
def belief() -> BeliefDensity:
    """Of 100 faint log-odds: the utility is known well, yet not at powers of hundreds."""
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-3, 3, (2, 100, D))
    weights = 0.03 * rng.normal(size=D)
    log_odds = (a - b) @ weights + rng.normal(0, 0.05, 100)
    return fit_belief(a, b, log_odds=log_odds, sampling=LAMBDA, seed=0)


@pytest.mark.parametrize("sharpness", [1.0, 3.0])
def test_points_of_a_power_determine_it(belief: BeliefDensity, sharpness: float) -> None:
    sd = belief.utility(LAMBDA.sample(4096, np.random.default_rng(1))).std()
    points = belief.tempered(sharpness / sd).sample(100, seed=2)
    found = fit_power(belief, points=points)
    assert found.value * sd == pytest.approx(sharpness, rel=0.35)


def test_points_that_the_belief_finds_implausible_do_not_make_it_sharper(
    belief: BeliefDensity,
) -> None:
    """The upper end of the powers looked at was the answer, whatever the points."""
    sd = belief.utility(LAMBDA.sample(4096, np.random.default_rng(1))).std()
    points = np.clip(np.random.default_rng(3).normal(size=(150, D)), -3, 3)
    assert fit_power(belief, points=points).value * sd < 1.0
