"""Features with categories: closed forms, and a judge of three categories."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from llm_elicit.density import (
    BeliefDensity,
    DensityError,
    MixtureSettings,
    Noise,
    PosteriorSettings,
    Uniform,
    band,
    fit_belief,
    simulate_choices,
    suggest_pairs,
)
from llm_elicit.density.design import _coordinates
from llm_elicit.density.latent import make_latent
from tests.density.targets import QUICK

pytestmark = pytest.mark.usefixtures("few_particles")

BOX = Uniform([0.0, -4.0], [2.0, 4.0], categorical=[True, False])
SHARES, MEANS, SDS = (
    np.array([0.5, 0.15, 0.35]),
    np.array([-1.5, 2.0, 0.5]),
    np.array([0.5, 0.4, 0.8]),
)


def _log_density(x: np.ndarray) -> np.ndarray:
    c = x[:, 0].astype(int)
    return np.log(SHARES[c] / SDS[c]) - 0.5 * ((x[:, 1] - MEANS[c]) / SDS[c]) ** 2


def _fit(n: int, seed: int, counts: tuple[int, ...]) -> BeliefDensity:
    mixture = MixtureSettings(counts=counts, starts=4)
    posterior = PosteriorSettings(draws=64)
    settings = replace(QUICK, utility=replace(QUICK.utility, mixture=mixture, posterior=posterior))
    rng = np.random.default_rng(seed)
    a, b = BOX.sample(n, rng), BOX.sample(n, rng)
    wins = simulate_choices(_log_density(a), _log_density(b), Noise(), rng)[:, None]
    winners, losers = np.where(wins, a, b), np.where(wins, b, a)
    return fit_belief(winners, losers, sampling=BOX, method="auto", seed=seed, settings=settings)


@pytest.fixture(scope="module")
def belief() -> BeliefDensity:
    return _fit(600, 0, (2, 3))


@pytest.mark.parametrize("count", [2, 3, 7])
def test_categories_are_all_as_far_from_each_other(count: int) -> None:
    """So that their numbers mean nothing; and each column has mean 0 and variance 1 under λ."""
    latent = make_latent(Uniform([0.0], [count - 1.0], categorical=[True]))
    corners = latent.features(torch.from_numpy(latent.to_latent(np.arange(count)[:, None] * 1.0)))
    assert corners.shape == (count, count - 1)
    apart = torch.cdist(corners, corners)[~torch.eye(count, dtype=torch.bool)]
    np.testing.assert_allclose(apart, float(apart[0]), rtol=1e-12)
    np.testing.assert_allclose(corners.mean(0), 0.0, atol=1e-12)
    np.testing.assert_allclose(corners.T @ corners / count, np.eye(count - 1), atol=1e-12)


def test_one_feature_of_categories_alone_is_bradley_terry() -> None:
    """Shares are the strengths: a choice between two categories is of odds (p/q)^(1/s)."""
    shares, box = np.array([0.4, 0.05, 0.25, 0.3]), Uniform([0.0], [3.0], categorical=[True])
    rng, noise = np.random.default_rng(3), Noise(level=1.0)
    a, b = box.sample(6000, rng), box.sample(6000, rng)
    logs = np.log(shares)
    wins = simulate_choices(logs[a[:, 0].astype(int)], logs[b[:, 0].astype(int)], noise, rng)
    winners, losers = np.where(wins[:, None], a, b), np.where(wins[:, None], b, a)
    belief = fit_belief(
        winners, losers, sampling=box, method="auto", noise=noise, settings=QUICK
    )  # fmt: skip
    found = np.exp(belief.log_prob(np.arange(4.0)[:, None]))
    assert found.sum() == pytest.approx(1.0, abs=0.01)
    np.testing.assert_allclose(found, shares, atol=0.04)
    drawn = np.bincount(belief.sample(20_000, seed=1)[:, 0].astype(int), minlength=4) / 20_000
    np.testing.assert_allclose(drawn, found, atol=0.02)


def test_bands_of_shares_hold_those_of_the_judge(belief: BeliefDensity) -> None:
    covered = []
    for each in (belief, _fit(300, 1, (3,))):
        low, high = band(each.draws().shares(0))
        covered.append((low <= SHARES) & (high >= SHARES))
    assert np.mean(covered) >= 0.66


def test_a_judge_of_three_categories_is_found(belief: BeliefDensity) -> None:
    for category in range(3):
        values = belief.sample_given({0: float(category)}, 20_000, seed=1)
        assert (values[:, 0] == category).all()
        assert abs(values[:, 1].mean() - MEANS[category]) < 0.35


def test_the_density_is_one_per_category(belief: BeliefDensity) -> None:
    grid = np.linspace(-4.0, 4.0, 401)
    points = np.stack(np.meshgrid([0.0, 1.0, 2.0], grid, indexing="ij"), -1).reshape(-1, 2)
    masses = np.exp(belief.log_prob(points)).reshape(3, -1).sum(1) * 0.02
    assert masses.sum() == pytest.approx(1.0, abs=0.02)
    drawn = belief.sample(20_000, seed=2)[:, 0]
    assert np.isin(drawn, [0.0, 1.0, 2.0]).all()
    np.testing.assert_allclose(np.bincount(drawn.astype(int)) / 20_000, masses, atol=0.03)


def test_the_density_is_zero_between_categories(belief: BeliefDensity) -> None:
    assert belief.log_prob([[0.5, 0.0], [1.0, 0.0]])[0] == -np.inf
    assert belief.mode()[0] in (0.0, 1.0, 2.0)
    assert np.isin(np.concatenate(suggest_pairs(belief, 40, seed=1))[:, 0], [0.0, 1.0, 2.0]).all()
    assert belief.diagnostics["bounds"]["each"][0] is None


def test_a_belief_with_categories_is_read_back(belief: BeliefDensity, tmp_path: Path) -> None:
    belief.save(tmp_path / "belief")
    again = BeliefDensity.load(tmp_path / "belief")
    points = BOX.sample(50, np.random.default_rng(0))
    np.testing.assert_array_equal(again.log_prob(points), belief.log_prob(points))
    assert repr(again.sampling) == repr(BOX)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"low": [0.5], "high": [2.0]}, "numbered by whole numbers"),
        ({"low": [1.0], "high": [2.0], "log": [True]}, "never on a logarithmic scale"),
    ],
)
def test_categories_without_whole_numbers_are_refused(arguments: dict, said: str) -> None:
    with pytest.raises(DensityError, match=said):
        Uniform(**arguments, categorical=[True])


def test_methods_for_numbers_alone_refuse_categories(belief: BeliefDensity) -> None:
    points = BOX.sample(4, np.random.default_rng(0))
    with pytest.raises(DensityError, match="feature 0 has categories"):
        fit_belief(points[:2], points[2:], sampling=BOX, method="score")
    with pytest.raises(DensityError, match="no gradient"):
        belief.as_prior().logpdf_and_gradient(points)
    with pytest.raises(DensityError, match="feature 1 has no categories"):
        belief.draws().shares(1)
    with pytest.raises(DensityError, match="outside"):
        fit_belief(points[:2] + 0.5, points[2:], sampling=BOX, method="utility")


def test_the_information_of_pairs_does_not_depend_on_codes() -> None:
    """Mass in doubt between categories 0 and 2 is no farther apart than between 0 and 1."""
    rng = np.random.default_rng(0)
    points = BOX.sample(60, rng)
    other = points.copy()
    other[:, 0] = np.array([2.0, 0.0, 1.0])[points[:, 0].astype(int)]
    one, two = (torch.cdist(p, p) for p in (_coordinates(points, BOX), _coordinates(other, BOX)))
    np.testing.assert_allclose(one, two, atol=1e-12)
    kinds = _coordinates(np.column_stack([[0.0, 1.0, 2.0], [0.0] * 3]), BOX)
    apart = torch.cdist(kinds, kinds)[~torch.eye(3, dtype=torch.bool)]
    np.testing.assert_allclose(apart, float(apart[0]))
    numbers = Uniform([0.0, -4.0], [2.0, 4.0])
    np.testing.assert_array_equal(_coordinates(points, numbers), points / points.std(0))
