"""The power by points when they are few and features many, and by quantiles of whole numbers."""

import numpy as np
import pytest

from llm_elicit.density import BeliefDensity, Uniform, fit_belief, fit_power
from tests.density.targets import FEW_DRAWS

pytestmark = pytest.mark.usefixtures("few_particles")

D = 8
LAMBDA = Uniform([-3.0] * D, [3.0] * D)


@pytest.fixture(scope="module")
def belief() -> BeliefDensity:
    """Of 100 faint log-odds: the utility is known well, yet not at powers of hundreds."""
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-3, 3, (2, 100, D))
    weights = 0.03 * rng.normal(size=D)
    log_odds = (a - b) @ weights + rng.normal(0, 0.05, 100)
    return fit_belief(a, b, log_odds=log_odds, sampling=LAMBDA, settings=FEW_DRAWS)


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


def test_intervals_by_points_are_of_the_judges_own_power_and_the_value_of_the_fits() -> None:
    """Of a judge of two modes whose log-odds are half noise; the fit is nearest at half its power.

    None of six intervals held the judge's own: they were of this fit's.
    """
    rng, square = np.random.default_rng([3, 2]), Uniform([-2.0, -2.0], [2.0, 2.0])

    def log_density(x: np.ndarray) -> np.ndarray:
        modes = [-3.0 * np.square(x - np.array(at)).sum(1) for at in ([-1.0, -1.0], [1.0, 0.5])]
        return np.logaddexp(*modes)

    a, b = rng.uniform(-2, 2, (2, 40, 2))
    apart = log_density(a) - log_density(b)
    heard = (apart + 0.6 * apart.std() * rng.normal(size=40)) / 20.0
    belief = fit_belief(a, b, log_odds=heard, sampling=square, settings=FEW_DRAWS)
    x = rng.uniform(-2, 2, (60_000, 2))
    mass = np.exp(log_density(x))
    found = [
        fit_power(belief, points=x[rng.choice(len(x), 100, p=mass / mass.sum())]) for _ in range(3)
    ]
    assert sum(power.low < 20.0 < power.high for power in found) >= 2
    assert all(power.high < 10 * power.low for power in found)
    values = belief.utility(x)
    for power in found:
        weights = np.exp(power.value * (values - values.max()))
        assert power.value < 16.0
        # The fit itself has the judge's mean utility there, but for the error of 100 points.
        gap = weights @ values / weights.sum() - mass @ values / mass.sum()
        assert abs(gap) < 4 * np.sqrt(np.cov(values, aweights=mass) / 100)


TEN = Uniform([0.0], [9.0], integer=[True])
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


def _of_whole_numbers(seed: int) -> tuple[BeliefDensity, dict[float, float]]:
    """Return a belief fitted to a third of a log density, and the quantiles of the density."""
    rng = np.random.default_rng(seed)
    centre, width = rng.uniform(2.0, 7.0), rng.uniform(1.5, 2.7)
    mass = np.exp(-0.5 * ((np.arange(10) - centre) / width) ** 2)
    quantiles = np.searchsorted(mass.cumsum() / mass.sum(), LEVELS)
    a, b = TEN.sample(60, rng), TEN.sample(60, rng)
    apart = -0.5 * (((a - centre) / width) ** 2 - ((b - centre) / width) ** 2)[:, 0]
    heard = apart / 3.0 + 0.02 * rng.normal(size=60)
    belief = fit_belief(a, b, log_odds=heard, sampling=TEN, seed=seed, settings=FEW_DRAWS)
    return belief, dict(zip(LEVELS, quantiles.astype(float).tolist(), strict=True))


def test_quantiles_of_whole_numbers_determine_the_power() -> None:
    """All of a number's mass counted as below it, and powers were a quarter too low."""
    logs = []
    for seed in range(6):
        belief, stated = _of_whole_numbers(seed)
        logs.append(np.log(fit_power(belief, quantiles={0: stated}, seed=seed).value / 3.0))
    assert abs(np.mean(logs)) < 0.15


def test_a_quantile_between_two_whole_numbers_can_be_stated() -> None:
    """The median of two statements, 4 and 5, was refused as outside the support."""
    belief, _ = _of_whole_numbers(0)
    assert fit_power(belief, quantiles={0: {0.25: 3.0, 0.5: 4.5, 0.75: 6.5}}).value > 0.0
