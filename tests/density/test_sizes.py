"""The smallest and the largest problems of the method, fitted with few steps."""

from __future__ import annotations

import numpy as np
import pytest

from llm_elicit.density import Uniform, fit_belief
from tests.density.conftest import BRIEF
from tests.density.targets import ask

pytestmark = pytest.mark.usefixtures("few_particles")


@pytest.mark.parametrize(
    ("n", "d", "method"),
    [
        (50, 1, "utility"), (50, 1, "score"), (50, 2, "utility"), (50, 2, "score"),
        # The time of a quadratic form grows with the fourth power of d, or faster.
        (320, 24, "utility"), (640, 32, "score"),
    ],
)  # fmt: skip
def test_few_comparisons_and_many_features_fit(method: str, n: int, d: int) -> None:
    """A normal belief about 0.4 in each feature: its side of the box is found, on average."""
    box = Uniform(-np.ones(d), np.ones(d))
    judge = ask(lambda x: -0.5 * ((x - 0.4) ** 2).sum(1) / 0.3**2, box, n, seed=2)
    belief = fit_belief(*judge, sampling=box, method=method, seed=1, settings=BRIEF)
    x = belief.sample(1000, seed=1)
    assert x.shape == (1000, d)
    assert box.contains(x).all()
    assert 0.08 < x.mean() < 0.6
    log_prob = belief.log_prob(x)
    assert np.isfinite(log_prob).all()
    assert log_prob.mean() > -d * np.log(2.0)  # more than the flat density says
    assert belief.diagnostics["log_prob_error"]["total"] < 0.3
    assert belief.diagnostics["sampler"]["effective_share"] > 0.1
