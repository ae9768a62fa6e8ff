"""The density of a table with words: a density, with Laplace's shares, that is drawn from."""

import numpy as np
import pytest
from scipy import stats

from llm_elicit.backends.simulated import KernelDensity

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
    np.testing.assert_allclose(own.logpdf(at), scipys.logpdf(at.T), rtol=1e-13)


def test_of_words_alone_it_is_shares() -> None:
    kernels = KernelDensity(TABLE[:, [0]], np.array([4]))
    found = np.exp(kernels.logpdf(np.arange(4.0)[:, None]))
    np.testing.assert_allclose(found, (np.bincount(KIND, minlength=4) + 1) / 204)
    assert kernels.sample(50, np.random.default_rng(0)).shape == (50, 1)


@pytest.mark.parametrize("box", [(2.0, 7.0), (20.0, 20.01), (-9.0, -8.9)])
def test_masses_are_integrals_of_the_density_over_all_categories(
    kernels: KernelDensity, box: tuple[float, float]
) -> None:
    """They were counted among 20,000 draws: all rare boxes were alike."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    half = 0.5 * (box[1] - box[0])
    total = 0.0
    for kind, other in np.ndindex(4, 2):
        at = np.column_stack(np.broadcast_arrays(kind, other, box[0] + half * (nodes + 1.0)))
        total += half * float(np.exp(kernels.logpdf(at)) @ weights)
    free = [np.inf, np.inf]
    found = kernels.log_mass(np.array([*free, box[0]]), np.array([*free, box[1]]))
    assert found == pytest.approx(np.log(total), abs=1e-3)


def test_masses_of_some_categories_add_up(kernels: KernelDensity) -> None:
    def mass(first: float, last: float) -> float:
        found = kernels.log_mass(np.array([first, np.inf, 1.0]), np.array([last, np.inf, 3.0]))
        return float(np.exp(found))

    every = sum(mass(kind - 0.5, kind + 0.5) for kind in range(4))
    assert mass(-0.5, 3.5) == pytest.approx(every, rel=1e-9)
    assert mass(-0.5, 1.5) < every - mass(2.5, 3.5)


def test_masses_far_above_the_table_are_those_far_below_its_mirror_image() -> None:
    table = np.random.default_rng(2).multivariate_normal([0, 0], [[1, 0.9], [0.9, 1]], 300)
    low, high = np.array([2.0, -3.0]), np.array([2.2, -2.8])
    above = KernelDensity(-table[:, ::-1], np.zeros(2, int)).log_mass(-high[::-1], -low[::-1])
    below = KernelDensity(table, np.zeros(2, int)).log_mass(low, high)
    flipped = KernelDensity(-table, np.zeros(2, int)).log_mass(-high, -low)
    assert above == pytest.approx(below, rel=1e-6)
    assert flipped == pytest.approx(below, rel=1e-6)
