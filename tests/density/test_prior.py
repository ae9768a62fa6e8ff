"""A belief with the names of SciPy's frozen distributions."""

import numpy as np
import pytest

from llm_elicit.density import (
    BeliefDensity,
    Empirical,
    GaussianMixture,
    SamplingDensity,
    Uniform,
    fit_belief,
)
from tests.density.targets import QUICK, ask


def _belief(sampling: SamplingDensity) -> BeliefDensity:
    def log_density(x: np.ndarray) -> np.ndarray:
        return np.asarray(-0.5 * np.square((x - 1.0) / 0.5).sum(1))

    winners, losers = ask(log_density, sampling, 200, np.random.default_rng(0))
    return fit_belief(winners, losers, sampling=sampling, method="utility", settings=QUICK)


def test_a_prior_draws_and_weighs_as_its_belief_does() -> None:
    belief = _belief(Uniform([-3.0, -3.0], [3.0, 3.0]))
    prior = belief.as_prior()
    x = prior.rvs(500, random_state=3)
    assert np.array_equal(x, prior.rvs(500, random_state=3))
    assert not np.array_equal(x, prior.rvs(500, random_state=np.random.default_rng(4)))
    assert x.shape == (500, prior.dim) == (500, 2)
    np.testing.assert_array_equal(prior.logpdf(x), belief.log_prob(x))
    cube = prior.logpdf(x.reshape(5, 100, 2))
    assert cube.shape == (5, 100)
    # A batch of another shape is summed in another order.
    np.testing.assert_allclose(cube.ravel(), belief.log_prob(x), rtol=1e-4, atol=1e-4)
    assert prior.logpdf([1.0, 1.0]).shape == ()
    assert prior.pdf([9.0, 9.0]) == 0.0
    np.testing.assert_allclose(prior.mean(), x.mean(0), atol=0.15)
    np.testing.assert_allclose(prior.cov(), np.cov(x.T), atol=0.1)


@pytest.mark.parametrize(
    ("sampling", "support"),
    [
        (Uniform([-3.0], [3.0]), ([-3.0], [3.0])),
        (GaussianMixture([1.0], [[1.0]], [[[4.0]]]), ([-np.inf], [np.inf])),
        (
            Empirical(np.random.default_rng(0).gamma(4.0, 0.5, (400, 1)), low=[0.0]),
            ([0.0], [np.inf]),
        ),
    ],
)
def test_the_support_is_that_of_the_sampling_density(
    sampling: SamplingDensity, support: tuple[list[float], list[float]]
) -> None:
    found = _belief(sampling).as_prior().support()
    assert [side.tolist() for side in found] == list(support)
