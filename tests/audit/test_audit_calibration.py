"""Predictive checks of choices, and coverage of the data by the belief."""

import numpy as np
import pytest
from scipy import stats

from audit.planted import box
from llm_elicit.audit.calibration import (
    DataLevels,
    evaluate_data_levels,
    measure_data_coverage,
    rank_by_density,
    read_predictive_check,
)
from llm_elicit.comparisons.table import Choices
from llm_elicit.density import (
    Evidence,
    Uniform,
    fit_evidence,
)
from llm_elicit.spaces.features import FeatureSpace
from tests.density.targets import QUICK


def _normal(x: np.ndarray, sd: float) -> np.ndarray:
    return -0.5 * np.square(x / sd).sum(1)


def _levels(
    belief_sd: float, d: int, rng: np.random.Generator, rows: int = 2000, draws: int = 4000
) -> DataLevels:
    data, drawn = rng.normal(0, 1, (rows, d)), rng.normal(0, belief_sd, (draws, d))
    values = rank_by_density(_normal(data, belief_sd), _normal(drawn, belief_sd), rng)
    return DataLevels(values, draws)


@pytest.mark.parametrize("d", [1, 3, 10])
def test_levels_of_data_drawn_from_the_belief_are_uniform(d: int) -> None:
    coverage = measure_data_coverage(_levels(1.0, d, np.random.default_rng(d)))
    assert coverage.p_value > 1e-3
    assert coverage.error < 0.03
    for region in coverage.regions:
        assert region.data_share.low - 0.02 < region.mass < region.data_share.high + 0.02


@pytest.mark.parametrize(("rows", "draws"), [(4000, 4000), (500, 4000), (400, 200)])
def test_the_uniformity_test_accounts_for_the_finite_draws_of_the_belief(rows, draws) -> None:
    """With as many draws as rows, a test that took the belief for known alarmed three times."""
    repeats = 300
    p_values = [
        measure_data_coverage(
            _levels(1.0, 1, np.random.default_rng([seed, 5]), rows, draws)
        ).p_value
        for seed in range(repeats)
    ]
    alarms = int((np.array(p_values) <= 0.05).sum())
    assert stats.binom.ppf(0.001, repeats, 0.05) <= alarms <= stats.binom.ppf(0.999, repeats, 0.05)


def test_coverage_is_above_the_mass_for_wide_beliefs_and_below_for_narrow_ones() -> None:
    rng = np.random.default_rng(0)
    wide, narrow = (measure_data_coverage(_levels(sd, 2, rng)) for sd in (2.0, 0.5))
    for one, other in zip(wide.regions, narrow.regions, strict=True):
        assert one.data_share.low > one.mass
        assert other.data_share.high < other.mass
    # The densest half of N(0, 4 I) in two dimensions reaches to the radius 2 √(2 ln 2).
    assert wide.regions[2].data_share.value == pytest.approx(1 - 0.5**4, abs=0.02)
    assert wide.p_value < 1e-6


def test_ties_in_density_are_broken_at_random() -> None:
    values = rank_by_density(np.zeros(2000), np.zeros(1000), np.random.default_rng(0))
    levels = DataLevels(values, 1000)
    assert measure_data_coverage(levels).p_value > 1e-3


def test_a_space_without_a_table_has_no_levels() -> None:
    space = box(1)
    x = np.linspace(-2, 2, 60)[:, None]
    belief = fit_evidence(
        Evidence.comparisons(x, x[::-1], (abs(x) < 1)[:, 0] * 1.0),
        sampling=Uniform(space.low, space.high),
        settings=QUICK,
    )
    assert evaluate_data_levels(belief, space, belief.sample(100)) is None
    penguins = FeatureSpace.load("penguins")
    assert len(penguins.table_points()) > 100


def _judge(seed: int, n: int = 150) -> Choices:
    """By the second of three features alone."""
    rng, space = np.random.default_rng(seed), box(3)
    a, b = space.sample(n, rng), space.sample(n, rng)
    won = (a[:, 1] - b[:, 1] + rng.logistic(0, 0.78, n) > 0).astype(float)
    return Choices(a, b, won, np.arange(n))


def test_a_fit_reports_its_predictions_and_simpler_models() -> None:
    choices, space = _judge(1, 300), box(3)
    evidence = Evidence.comparisons(choices.a, choices.b, choices.preference)
    fitted = fit_evidence(
        evidence, sampling=Uniform(space.low, space.high), settings=QUICK
    ).diagnostics
    found = read_predictive_check(fitted)
    assert found is not None
    nulls = {null.name: null for null in found.null_models}
    assert set(nulls) == {"random choices", "quadratic"}, "λ equals random choices here"
    chance = nulls["random choices"]
    assert chance.gain is not None
    assert chance.gain.value == pytest.approx(found.log_likelihood - chance.log_likelihood)
    assert 0 < chance.gain.low < chance.gain.value
    assert sum(b.share for b in found.calibration) == pytest.approx(1.0)
    assert found.calibration_error < 0.1
    assert read_predictive_check({}) is None
