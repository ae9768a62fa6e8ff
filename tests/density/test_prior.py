"""A belief with the names of SciPy's frozen distributions."""

import numpy as np
import pytest

from llm_elicit.density import (
    BeliefDensity,
    DensityError,
    Empirical,
    FitSettings,
    GaussianMixture,
    Prior,
    SamplingDensity,
    ScoreSettings,
    Uniform,
    fit_belief,
)
from tests.density.targets import QUICK, Array, ask

pytestmark = pytest.mark.usefixtures("few_particles")


def _belief(sampling: SamplingDensity) -> BeliefDensity:
    def log_density(x: np.ndarray) -> np.ndarray:
        return np.asarray(-0.5 * np.square((x - 1.0) / 0.5).sum(1))

    winners, losers = ask(log_density, sampling, 200, seed=0)
    return fit_belief(winners, losers, sampling=sampling, method="utility", settings=QUICK)


@pytest.fixture(scope="module")
def boxed() -> BeliefDensity:
    return _belief(Uniform([-3.0, -3.0], [3.0, 3.0]))


def test_a_prior_draws_and_weighs_as_its_belief_does(boxed: BeliefDensity) -> None:
    prior = boxed.as_prior()
    x = prior.rvs(500, random_state=3)
    assert np.array_equal(x, prior.rvs(500, random_state=3))
    assert not np.array_equal(x, prior.rvs(500, random_state=np.random.default_rng(4)))
    assert x.shape == (500, prior.dim) == (500, 2)
    np.testing.assert_array_equal(prior.logpdf(x), boxed.log_prob(x))
    cube = prior.logpdf(x.reshape(5, 100, 2))
    assert cube.shape == (5, 100)
    # A batch of another shape is summed in another order.
    np.testing.assert_allclose(cube.ravel(), boxed.log_prob(x), rtol=1e-4, atol=1e-4)
    assert prior.logpdf([1.0, 1.0]).shape == ()
    assert prior.pdf([9.0, 9.0]) == 0.0
    np.testing.assert_allclose(prior.mean(), x.mean(0), atol=0.15)
    np.testing.assert_allclose(prior.cov(), np.cov(x.T), atol=0.1)


def test_the_gradient_outside_the_support_is_zero(boxed: BeliefDensity) -> None:
    value, gradient = boxed.as_prior().logpdf_and_gradient([[[9.0, 0.0]], [[0.0, 0.0]]])
    assert value.shape == (2, 1)
    assert gradient.shape == (2, 1, 2)
    assert value[0, 0] == -np.inf
    assert not gradient[0, 0].any()
    assert (gradient[1, 0] > 0).all()  # the belief's centre is (1, 1)


def _skewed() -> Array:
    """Data (500, 2), positive and correlated."""
    rng = np.random.default_rng(1)
    return np.exp(rng.multivariate_normal([0.0, 0.0], [[0.3, 0.2], [0.2, 0.3]], 500))


@pytest.fixture(
    scope="module",
    params=[
        (Uniform([-3.0, 0.05], [3.0, 20.0], log=[False, True]), ([-3.0, 0.05], [3.0, 20.0])),
        (
            GaussianMixture([0.4, 0.6], [[0.0, 1.0], [2.0, 1.0]], [[[1.0, 0.4], [0.4, 1.0]]] * 2),
            ([-np.inf] * 2, [np.inf] * 2),
        ),
        (Empirical(_skewed(), low=[0.0, -np.inf]), ([0.0, -np.inf], [np.inf] * 2)),
    ],
    ids=["box", "mixture", "empirical"],
)
def under(request: pytest.FixtureRequest) -> tuple[SamplingDensity, Array, Prior]:
    """λ, its bounds (2, d) and the prior fitted under it."""
    sampling, support = request.param
    return sampling, np.array(support), _belief(sampling).as_prior()


def test_the_support_is_that_of_the_sampling_density(
    under: tuple[SamplingDensity, Array, Prior],
) -> None:
    _, support, prior = under
    np.testing.assert_array_equal(np.stack(prior.support()), support)


def test_the_gradient_is_that_of_the_log_density(
    under: tuple[SamplingDensity, Array, Prior],
) -> None:
    """Against differences: where the belief is, over all λ, and beyond every question."""
    sampling, (low, high), prior = under
    near = prior.rvs(40, random_state=1)
    rng = np.random.default_rng(5)
    far = 8.0 * rng.standard_normal((40, 2))
    x = np.concatenate([near, sampling.sample(40, rng), far[sampling.contains(far)]])
    room = np.minimum(np.minimum(x - low, high - x), near.std(0))  # steps stay in the support
    steps = np.einsum("nd,de->dne", 3e-3 * room, np.eye(2))
    values, gradient = prior.logpdf_and_gradient(x)
    np.testing.assert_allclose(values, prior.logpdf(x), rtol=1e-4, atol=1e-4)
    up, down = prior.logpdf(x + steps) - prior.logpdf(x), prior.logpdf(x) - prior.logpdf(x - steps)
    rises = np.stack([up, down, 0.5 * (up + down)]).transpose(0, 2, 1) / 3e-3
    # Where the compared points end the slope jumps: there one side is right.
    wrong = abs(rises - gradient * room).min(axis=0)
    assert (wrong < 5e-3 + 1e-2 * abs(gradient * room)).all()


def test_a_belief_without_a_utility_has_no_gradient() -> None:
    box = Uniform([-3.0], [3.0])
    a, b = np.random.default_rng(0).uniform(-3, 3, (2, 40, 1))
    brief = FitSettings(score=ScoreSettings(networks=2, width=8, steps=10))
    prior = fit_belief(a, b, sampling=box, method="score", settings=brief).as_prior()
    assert np.isfinite(prior.logpdf([0.0]))
    with pytest.raises(DensityError, match=r"fit by one of them"):
        prior.logpdf_and_gradient([[0.0]])
