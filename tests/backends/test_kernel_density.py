"""The density of a table with words: a density, with Laplace's shares, that is drawn from."""

import numpy as np
import pytest
from scipy import stats

from llm_elicit.backends.kernel_density import KernelDensity

RNG = np.random.default_rng(0)
KIND = RNG.choice(3, 200, p=[0.6, 0.3, 0.1])
TABLE = np.column_stack([KIND, RNG.choice(2, 200), RNG.normal([[0.0, 5.0, 9.0]])[0][KIND]])
TABLE[:, 2] += RNG.normal(size=200)
COUNTS = np.array([4, 2, 0])  # the fourth kind is in no row


@pytest.fixture
def kernels() -> KernelDensity:
    return KernelDensity(TABLE, COUNTS)


def test_shares_are_laplaces_and_all_is_one(kernels: KernelDensity) -> None:
    line = np.linspace(-10.0, 20.0, 3001)
    masses = {}
    for kind, other in np.ndindex(4, 2):
        at = np.column_stack([np.full_like(line, kind), np.full_like(line, other), line])
        masses[kind, other] = np.exp(kernels.logpdf(at)).sum() * 0.01
    assert sum(masses.values()) == pytest.approx(1.0, abs=1e-3)
    counts = np.bincount(KIND, minlength=4)
    for kind in range(4):
        share = sum(mass for (k, _), mass in masses.items() if k == kind)
        assert share == pytest.approx((counts[kind] + 1) / 204, abs=1e-3)


def test_draws_have_the_density(kernels: KernelDensity) -> None:
    drawn = kernels.sample(20_000, np.random.default_rng(1))
    counts = np.bincount(KIND, minlength=4)
    found = np.bincount(drawn[:, 0].astype(int), minlength=4) / 20_000
    np.testing.assert_allclose(found, (counts + 1) / 204, atol=0.01)
    of_second = drawn[drawn[:, 0] == 1.0, 2]
    assert of_second.mean() == pytest.approx(TABLE[KIND == 1, 2].mean(), abs=0.3)


def test_of_numbers_alone_it_is_scipys() -> None:
    numbers = TABLE[:, [2]]
    own, scipys = KernelDensity(numbers, np.array([0])), stats.gaussian_kde(numbers.T)
    at = np.linspace(-2.0, 10.0, 7)[:, None]
    np.testing.assert_array_equal(own.logpdf(at), scipys.logpdf(at.T))


def test_of_words_alone_it_is_shares() -> None:
    kernels = KernelDensity(TABLE[:, [0]], np.array([4]))
    found = np.exp(kernels.logpdf(np.arange(4.0)[:, None]))
    np.testing.assert_allclose(found, (np.bincount(KIND, minlength=4) + 1) / 204)
    assert kernels.sample(50, np.random.default_rng(0)).shape == (50, 1)
