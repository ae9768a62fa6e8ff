"""A fit that this machine has no memory for is refused before it allocates anything."""

import tracemalloc

import numpy as np
import pytest

from llm_elicit.density import DensityError, Uniform, estimate_seconds, fit_belief
from llm_elicit.density.fit import count_features, count_terms
from llm_elicit.density.latent import make_latent
from llm_elicit.density.utility.quadratic import QuadraticTerms


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        (Uniform(np.zeros(1000), np.ones(1000)), "over 1,000 features .* GiB are free"),
        (Uniform([0.0], [4999.0], categorical=[True]), "5,000 categories; at most 200"),
    ],
)
def test_too_many_features_are_refused_before_any_of_their_products_are_made(
    sampling: Uniform, said: str
) -> None:
    rng = np.random.default_rng(0)
    winners, losers = sampling.sample(1000, rng), sampling.sample(1000, rng)
    tracemalloc.start()
    try:
        with pytest.raises(DensityError, match=said):
            fit_belief(winners, losers, sampling=sampling, method="utility")
        largest = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert largest < 10 * (winners.nbytes + losers.nbytes) + 1e6


def test_long_fits_are_known_before_they_begin() -> None:
    square, wide = Uniform(np.zeros(2), np.ones(2)), Uniform(np.zeros(60), np.ones(60))
    assert estimate_seconds(200, square) < 60 < estimate_seconds(100_000, square)
    assert estimate_seconds(300, wide) > 60


def test_products_within_categories_cost_nothing() -> None:
    box = Uniform([0.0] * 4, [99.0, 3.0, 1.0, 24.0], [0] * 4, [1, 1, 0, 0], periodic=[0, 0, 0, 1])
    columns = make_latent(box).category
    assert count_features(box) == len(columns) == 99 + 3 + 1 + 2
    assert count_terms(box) == len(QuadraticTerms.of(columns))
