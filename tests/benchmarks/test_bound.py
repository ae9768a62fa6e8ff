"""The information bound against the logistic regression whose information is known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.bound import angular, components, information, mode_weights
from benchmarks.targets import Target, cube
from llm_elicit.density import GaussianMixture, Noise


def _flat(dimension: int = 1) -> Target:
    box = cube(1.0, dimension)
    return Target("flat", box, lambda x: np.zeros(len(x)), box.sample)


def test_information_about_a_slope_on_a_flat_belief() -> None:
    """Gumbel: F'²/(F(1 − F)) = 1/(4s²) at 0, and E(x − x')² = 2/3 on [−1, 1]."""
    noise = Noise("gumbel", 0.5)
    found = information(_flat(), lambda x: x, 300, noise, np.random.default_rng(0))
    assert found.item() == pytest.approx(300 / (4 * 0.25) * 2 / 3, rel=0.02)


def test_information_of_the_exponential_family_at_zero() -> None:
    """Laplace of rate s: F'(0)² / (1/4) = s²."""
    noise = Noise("exponential", 2.0)
    found = information(_flat(), lambda x: x, 300, noise, np.random.default_rng(0))
    assert found.item() == pytest.approx(300 * 4.0 * 2 / 3, rel=0.02)


def test_changes_have_their_shapes_and_values() -> None:
    assert angular(np.array([[0.0, 2.0]])) == pytest.approx(np.array([[0, 1, -1, 0]]), abs=1e-12)
    law = GaussianMixture([0.5, 0.5], [[-3.0], [3.0]], [[[1.0]], [[1.0]]])
    belongs = mode_weights(law)(np.array([[-3.0], [0.0], [3.0]]))
    assert belongs[:, 0] == pytest.approx([0, 0.5, 1], abs=1e-6)


def test_the_slopes_of_a_mixture_are_its_derivatives() -> None:
    """By raising, moving and reshaping the second of two components a little."""
    rng = np.random.default_rng(5)
    means, half = rng.normal(size=(2, 2)), rng.normal(size=(2, 2, 3))
    law = GaussianMixture([0.3, 0.7], means, half @ half.transpose(0, 2, 1))
    x = rng.normal(size=(50, 2))
    own = [GaussianMixture([1.0], [m], [c]) for m, c in zip(means, law.covariances, strict=True)]
    first, top = own[0].log_prob(x) + np.log(0.3), own[1].log_prob(means[1:]) + np.log(0.7)
    y = np.linalg.solve(np.linalg.cholesky(law.covariances[1]), (x - means[1]).T).T

    def log_density(change: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        rise, shift, (xx, xy, yy) = change[0], change[1:3], change[3:]
        white = (y - shift) @ (np.eye(2) + np.array([[xx, xy], [xy, yy]]))
        return np.logaddexp(first, top + rise - 0.5 * np.square(white).sum(axis=1))

    slopes = components(law)(x)
    assert slopes.shape == (50, 11)
    for at, step in enumerate(1e-5 * np.eye(6)):
        expected = (log_density(step) - log_density(-step)) / 2e-5
        np.testing.assert_allclose(slopes[:, 5 + at], expected, atol=1e-6)
