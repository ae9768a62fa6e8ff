"""A fit that this machine has no memory for is refused before it allocates anything."""

import time

import numpy as np
import pytest

from llm_elicit.density import DensityError, Uniform, fit_belief, seconds_of


@pytest.mark.parametrize(
    ("sampling", "features"),
    [
        (Uniform(np.zeros(1000), np.ones(1000)), "1,000 features"),
        (Uniform([0.0], [4999.0], categorical=[True]), "4,999 features"),
    ],
)
def test_too_many_features_are_refused_at_once(sampling: Uniform, features: str) -> None:
    rng = np.random.default_rng(0)
    winners, losers = sampling.sample(1000, rng), sampling.sample(1000, rng)
    began = time.process_time()
    with pytest.raises(DensityError) as refused:
        fit_belief(winners, losers, sampling=sampling, method="utility")
    assert features in str(refused.value)
    assert "GiB are free" in str(refused.value)
    assert time.process_time() - began < 5.0


def test_long_fits_are_known_before_they_begin() -> None:
    square, wide = Uniform(np.zeros(2), np.ones(2)), Uniform(np.zeros(60), np.ones(60))
    assert seconds_of(200, square) < 60 < seconds_of(100_000, square)
    assert seconds_of(300, wide) > 60
