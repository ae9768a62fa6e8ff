"""A fit does not depend on the order of the features."""

from collections.abc import Callable

import numpy as np
import pytest

from llm_elicit.density import (
    BETWEEN_ROUNDS,
    BeliefDensity,
    Empirical,
    Evidence,
    GaussianMixture,
    Uniform,
    fit_belief,
    fit_evidence,
)
from llm_elicit.density.fit import canonical_order
from llm_elicit.density.sampling import SamplingDensity

pytestmark = pytest.mark.usefixtures("few_particles")

Array = np.ndarray
COVARIANCE = np.array([[1.0, 0.6, 0.2], [0.6, 2.0, -0.3], [0.2, -0.3, 0.5]])
BOX = Uniform([-2.0, -1.0, -2.0], [2.0, 3.0, 2.0])
KINDS = Uniform(
    [1.0, 0.0, 0.0], [100.0, 3.0, 11.0], log=[True, False, False],
    categorical=[False, True, False], integer=[False, False, True],
    periodic=[False, False, True],
)  # fmt: skip
TABLE = Empirical(np.random.default_rng(0).multivariate_normal([0.0, 1.0, 0.0], COVARIANCE, 300))


def asked(sampling: SamplingDensity) -> tuple[Array, Array, Array]:
    """60 pairs, and log-odds of a judge with a trend, an optimum and a kink."""
    rng = np.random.default_rng(3)
    a, b = sampling.sample(60, rng), sampling.sample(60, rng)
    unit = sampling.sample(500, rng).std(0)

    def utility(x: Array) -> Array:
        z = x / unit
        return z[:, 1] - 0.5 * (z[:, 0] - 0.3) ** 2 - np.maximum(z[:, 2], 0.0) ** 2

    return a, b, utility(a) - utility(b) + rng.logistic(0.0, 0.78, 60)


def by_choices(a: Array, b: Array, gap: Array, sampling: SamplingDensity) -> BeliefDensity:
    wins = gap[:, None] > 0
    sides = np.where(wins, a, b), np.where(wins, b, a)
    return fit_belief(*sides, sampling=sampling, settings=BETWEEN_ROUNDS)


def by_log_odds(a: Array, b: Array, gap: Array, sampling: SamplingDensity) -> BeliefDensity:
    return fit_belief(a, b, log_odds=gap, sampling=sampling)


def by_places(a: Array, b: Array, gap: Array, sampling: SamplingDensity) -> BeliefDensity:
    """Choices of pairs that were shown in an order, beside rankings."""
    pairs = Evidence.comparisons(a, b, (gap > 0) * 1.0, first=np.arange(60) % 2 == 0)
    sets = np.stack([a[:20], b[:20], a[20:40]], axis=1)
    ranks = Evidence.rankings(sets, np.tile([1, 0, 2], (20, 1)))
    return fit_evidence(pairs + ranks, sampling=sampling, settings=BETWEEN_ROUNDS)


@pytest.mark.parametrize(
    ("sampling", "fit"),
    [
        (BOX, by_choices),
        (KINDS, by_places),
        (TABLE, by_choices),
        (GaussianMixture([1.0], [[0.0, 1.0, 0.0]], [np.diag([1.0, 2.0, 0.5])]), by_log_odds),
    ],
    ids=["choices", "rankings", "table", "log-odds"],
)
def test_reordered_columns_give_the_same_belief(
    sampling: SamplingDensity, fit: Callable[..., BeliefDensity]
) -> None:
    a, b, gap = asked(sampling)
    belief, order = fit(a, b, gap, sampling), [2, 0, 1]
    other = fit(a[:, order], b[:, order], gap, sampling.reorder(order))
    means = np.array([feature.mean for feature in belief.marginals])[order]
    assert [m.mean for m in other.marginals] == pytest.approx(means, abs=1e-9, nan_ok=True)
    x = sampling.sample(200, np.random.default_rng(4))
    assert other.log_prob(x[:, order]) == pytest.approx(belief.log_prob(x), abs=1e-4)
    assert other.utilities(x[:, order]) == pytest.approx(belief.utilities(x), abs=1e-3)
    bounds, moved = (fitted.diagnostics["bounds"]["each"] for fitted in (belief, other))
    assert moved == pytest.approx([bounds[j] for j in order])


def test_the_order_is_of_the_answers_and_equal_columns_are_told_apart_by_their_points() -> None:
    rng = np.random.default_rng(0)
    winners, losers = rng.normal(size=(2, 30, 4))
    winners[:, 3], losers[:, 3] = winners[::-1, 0], losers[::-1, 0]  # the same trend
    evidence = Evidence.comparisons(winners, losers)
    found = canonical_order(evidence, BOX)
    for order in ([3, 2, 1, 0], [1, 3, 0, 2]):
        again = canonical_order(evidence.reorder_features(order), BOX)
        assert [order[j] for j in again] == found
