"""The information bound against the logistic regression whose information is known."""

from __future__ import annotations

import numpy as np
import pytest

from llm_elicit.benchmarks.bound import angular, information, mode_weights
from llm_elicit.benchmarks.targets import Target, cube
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
