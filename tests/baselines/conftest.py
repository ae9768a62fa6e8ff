"""A small judge that several tests fit."""

from __future__ import annotations

import pytest

from llm_elicit.density import Uniform
from tests.density.targets import Array, ask


@pytest.fixture(scope="session")
def line_judge() -> tuple[Array, Array]:
    """120 comparisons in one dimension, belief N(0.3, 0.2²) on [−1, 1]."""
    return ask(lambda x: -0.5 * ((x[:, 0] - 0.3) / 0.2) ** 2, Uniform([-1.0], [1.0]), 120, seed=5)
