"""Draws of the posterior, and bands against closed forms."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from llm_elicit.density import (
    BeliefDensity,
    BeliefDraws,
    DensityError,
    Empirical,
    FitSettings,
    GaussianMixture,
    MixtureSettings,
    Noise,
    PosteriorSettings,
    SamplingDensity,
    SmoothSettings,
    SuggestSettings,
    Uniform,
    UtilitySettings,
    band,
    fit_belief,
    simulate_choices,
    suggest_pairs,
)
from llm_elicit.density.belief_draws import sample_components
from llm_elicit.density.latent import make_latent
from llm_elicit.density.methods import evaluate_utility
from llm_elicit.density.utility_function import ComponentStack, DeferredDraws, Utility, UtilityDraws
from tests.density.targets import QUICK, ask, assert_close

BOX = Uniform([-3.0, -3.0], [3.0, 3.0])


def _normal(x: np.ndarray) -> np.ndarray:
    return -0.5 * (((x - [0.5, -0.5]) / [0.8, 0.5]) ** 2).sum(1)


def _fit(n: int = 200, seed: int = 0, settings: FitSettings = QUICK) -> BeliefDensity:
    winners, losers = ask(_normal, BOX, n, np.random.default_rng(seed))
    return fit_belief(winners, losers, sampling=BOX, method="utility", settings=settings)


@pytest.fixture(scope="module")
def belief() -> BeliefDensity:
    return _fit()


def test_draws_together_are_the_draws_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    whiten = torch.eye(2) + 0.1 * torch.randn(4, 3, 2, 2, generator=generator)
    stack = ComponentStack(whiten, torch.randn(4, 3, 2, generator=generator), torch.zeros(4, 3))
    linear = torch.randn(6, 2, generator=generator)  # of the mixtures, too
    draws = UtilityDraws(linear, -0.5 * torch.eye(2).expand(6, 2, 2), (stack,))
    t = torch.randn(7, 2, generator=generator)
    plain = replace(draws, linear=linear.clone(), curvature=draws.curvature.clone())
    plain.linear[2:], plain.curvature[2:] = 0.0, 0.0
    assert_close(plain(t)[2:], stack(t))
    one_by_one = torch.stack([utility(t) for utility in draws])
    assert_close(draws(t), one_by_one)
    assert_close(draws.scaled(2.0)(t), 2.0 * one_by_one)
    assert_close(draws.thin(3)(t), one_by_one[[0, 2, 4]])


def test_new_answers_to_the_same_pairs_narrow_the_bands_without_mixtures_too() -> None:
    """Six a pair by a noisy judge, too few pairs for mixtures: √6 narrower would be 0.9."""
    alone = replace(QUICK.utility, mixture=MixtureSettings(counts=()))
    noise, rng = Noise(level=1.56), np.random.default_rng(0)
    a, b = BOX.sample(150, rng), BOX.sample(150, rng)
    widths = []
    for times in (1, 6):
        one, other = np.tile(a, (times, 1)), np.tile(b, (times, 1))
        wins = simulate_choices(_normal(one), _normal(other), noise, rng)[:, None]
        belief = fit_belief(
            np.where(wins, one, other), np.where(wins, other, one), sampling=BOX, noise=noise,
            method="utility", settings=replace(QUICK, utility=alone),
        )  # fmt: skip
        low, high = band(belief.draws().mean())
        widths.append(np.log((high - low).mean()))
    assert widths[1] - widths[0] < -0.5


LEVELS, NORMAL_QUANTILES = [0.1, 0.5, 0.9], np.array([-1.2816, 0.0, 1.2816])


@pytest.fixture(scope="module")
def judges() -> list[BeliefDraws]:
    """Draws of the beliefs of six judges, after 200 choices each."""
    return [_fit(200, seed).draws() for seed in range(6)]


def test_bands_are_as_wide_as_the_truth_is_far(judges: list[BeliefDraws]) -> None:
    """Of distribution functions of a normal belief, in half-widths of their 90 % bands.

    If bands are right, the distance's root mean square is 1/1.645 = 0.61. Six judges whose
    distances are measured show bands that are too narrow or wide by as little as twelve judges
    of whom it is counted how many lie inside.
    """
    truth = np.array([0.5, -0.5]) + NORMAL_QUANTILES[:, None] * np.array([0.8, 0.5])
    distances = []
    for draws in judges:
        low, high = band(draws.quantile(LEVELS))
        distances.append((2.0 * truth - low - high) / (high - low))
    assert 0.40 < np.sqrt(np.mean(np.square(distances))) < 0.78


def test_more_comparisons_make_narrower_bands(judges: list[BeliefDraws]) -> None:
    def width(beliefs: list[BeliefDraws]) -> np.ndarray:
        bands = [band(draws.mean()) for draws in beliefs]
        return np.mean([high - low for low, high in bands], axis=0)

    # Eight times as many make them √8 narrower.
    more = [_fit(1600, seed).draws() for seed in range(2)]
    assert (width(more) < 0.6 * width(judges)).all()


def test_a_draw_is_a_normalized_density_of_its_points(belief: BeliefDensity) -> None:
    draws = belief.draws()
    axis = (np.arange(120) + 0.5) / 120 * 6 - 3
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    mass = np.exp(draws.log_prob(grid)) * 0.05**2
    np.testing.assert_allclose(mass.sum(1), 1.0, atol=0.15)
    mass /= mass.sum(1, keepdims=True)
    spread = np.sqrt(mass @ grid**2 - (mass @ grid) ** 2)
    assert (np.abs(draws.mean() - mass @ grid) < 0.12 * spread).all()
    cdf = draws.cdf(np.zeros((1, 2)))[:, 0]
    np.testing.assert_allclose(cdf, mass @ (grid <= 0), atol=0.06)
    assert np.isneginf(draws.log_prob([[9.0, 0.0]])).all()


_BUMPS = ComponentStack(
    torch.tensor([[[[4.0]], [[1.5]]]]), torch.tensor([[[-3.0], [2.0]]]), torch.tensor([[0.0, -1.0]])
)


_UTILITIES = {
    "mixture": replace(Utility.flat(1), components=(_BUMPS,)),
    "quadratic form": Utility(torch.tensor([1.0]), torch.tensor([[-3.0]])),
}


@pytest.mark.parametrize("form", _UTILITIES)
@pytest.mark.parametrize("share", [1.0, 1.5])
@pytest.mark.parametrize(
    "sampling",
    [
        Uniform([1.0], [20.0], log=[True]),
        GaussianMixture([1.0], [[1.0]], [[[4.0]]]),
        Empirical(np.random.default_rng(0).gamma(3.0, size=(500, 1))),
    ],
)
def test_a_draw_of_bumps_is_as_by_quadrature(
    sampling: SamplingDensity, share: float, form: str
) -> None:
    latent = make_latent(sampling, sampling.sample(50, np.random.default_rng(1)))
    utility = _UTILITIES[form].scaled(share)
    found = sample_components(latent, utility, torch.Generator().manual_seed(2))
    assert found is not None
    points, weights, log_z = found

    g = torch.linspace(-8.0, 8.0, 100_001, dtype=torch.float64)[:, None]
    x = latent.from_latent(g.numpy())
    density = torch.exp(evaluate_utility(latent, utility, g) + latent.log_volume(g)).numpy()
    z = density.sum() * 16.0 / 100_000
    assert log_z == pytest.approx(np.log(z), abs=0.03)
    mean = density @ x[:, 0] / density.sum()
    sd = np.sqrt(density @ (x[:, 0] - mean) ** 2 / density.sum())
    assert weights @ points[:, 0] == pytest.approx(mean, abs=0.08 * sd)


def test_bumps_of_which_little_is_asked_about_are_not_drawn_from() -> None:
    latent, generator = make_latent(Uniform([0.0], [1.0])), torch.Generator().manual_seed(0)
    outside = replace(_BUMPS, offset=torch.tensor([[[-30.0], [20.0]]]))
    utility = replace(Utility.flat(1), components=(outside,))
    assert sample_components(latent, utility, generator) is None
    corners = make_latent(Uniform([0.0], [1.0], categorical=[True]))
    assert sample_components(corners, _UTILITIES["mixture"], generator) is None
    assert sample_components(latent, Utility.flat(1), generator) is None
    valley = Utility(torch.tensor([1.0]), torch.tensor([[3.0]]))
    assert sample_components(latent, valley, generator) is None


def test_draws_are_the_same_bits_after_a_load(belief: BeliefDensity, tmp_path: Path) -> None:
    belief.save(tmp_path)
    loaded = BeliefDensity.load(tmp_path)
    assert (loaded.draws(seed=3).mean() == belief.draws(seed=3).mean()).all()
    pairs, again = (suggest_pairs(each, 9, seed=4) for each in (belief, loaded))
    assert (pairs[0] == again[0]).all()
    assert (pairs[1] == again[1]).all()


def test_suggested_pairs_tell_more_than_pairs_at_random(belief: BeliefDensity) -> None:
    """The draws disagree about who wins them: mutual information of answer and draw, nats."""

    def information(a: np.ndarray, b: np.ndarray) -> float:
        draws = belief.draws()
        chance = torch.from_numpy(draws.log_prob(a) - draws.log_prob(b))
        chance = torch.exp(belief.noise.log_cdf(chance))
        entropy = torch.special.entr
        whole, each = (entropy(p) + entropy(1 - p) for p in (chance.mean(0), chance))
        return float((whole - each.mean(0)).mean())

    rng = np.random.default_rng(0)
    uniform = BOX.sample(200, rng), BOX.sample(200, rng)
    chosen = suggest_pairs(belief, 200, seed=1, settings=SuggestSettings(uniform=0.0))
    assert all(BOX.contains(side).all() for side in chosen)
    assert information(*chosen) > 2.0 * information(*uniform)


def test_a_share_of_the_pairs_stays_uniform(belief: BeliefDensity) -> None:
    a, b = suggest_pairs(belief, 400, seed=1, settings=SuggestSettings(uniform=1.0))
    both = (np.concatenate([a, b]) + 3.0) / 6.0
    assert abs(both.mean() - 0.5) < 0.03
    assert abs(both.var() - 1 / 12) < 0.01


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_at_another_noise_the_density_is_a_power_of_itself(
    belief: BeliefDensity, factor: float
) -> None:
    assert belief.has_noise_levels
    other = belief.at_noise(factor * belief.noise.level)
    assert other.noise.level == factor * belief.noise.level
    rng = np.random.default_rng(0)
    a, b = BOX.sample(50, rng), BOX.sample(50, rng)
    ratio, was = (each.log_prob(a) - each.log_prob(b) for each in (other, belief))
    np.testing.assert_allclose(ratio, factor * was, rtol=1e-3, atol=1e-3)
    axis = (np.arange(120) + 0.5) / 120 * 6 - 3
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    mass = np.exp(other.log_prob(grid)) * 0.05**2
    assert abs(mass.sum() - 1.0) < 0.05
    # Of 2,000 points, 0.12 is five standard errors of a mean.
    points = belief.sample_at_noise(2000, other.noise.level)
    mean = mass @ grid / mass.sum()
    spread = np.sqrt(mass @ (grid - mean) ** 2 / mass.sum())
    assert (np.abs(points.mean(0) - mean) < 0.12 * spread).all()
    np.testing.assert_allclose(points.std(0), spread, rtol=0.1)
    both = np.stack([a[0], b[0]])
    drawn, information = (np.diff(each.draws().log_prob(both)) for each in (other, belief))
    np.testing.assert_allclose(drawn, factor * information, rtol=1e-3, atol=1e-3)


def test_at_noise_takes_a_level(belief: BeliefDensity) -> None:
    with pytest.raises(DensityError, match="level = -1"):
        belief.at_noise(-1)


def test_what_has_no_draws_says_so() -> None:
    none = FitSettings(utility=UtilitySettings(
        mixture=MixtureSettings(counts=()), smooth=SmoothSettings(frequencies=0),
        posterior=PosteriorSettings(draws=0),
    ))  # fmt: skip
    belief = _fit(60, settings=none)
    with pytest.raises(DensityError, match="without draws"):
        belief.draws()
    with pytest.raises(DensityError, match="n = 0"):
        suggest_pairs(belief, 0)
    with pytest.raises(DensityError, match=r"level = 1\.5"):
        band(np.zeros((3, 1)), 1.5)


def test_mode_region_and_conditional_draws_are_those_of_the_density(belief: BeliefDensity) -> None:
    axis = (np.arange(150) + 0.5) / 150 * 6 - 3
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    log_prob = belief.log_prob(grid)
    mode = belief.mode()
    assert belief.log_prob(mode[None])[0] >= log_prob.max() - 1e-3
    mass = np.exp(log_prob) / np.exp(log_prob).sum()
    inside = belief.credible_region(0.8).contains(grid)
    assert abs(mass[inside].sum() - 0.8) < 0.04
    assert mass[inside].min() >= mass[~inside].max()
    drawn = belief.sample_given({0: 1.0}, 4000, seed=1)
    assert (drawn[:, 0] == 1.0).all()
    line = np.stack([np.ones(150), axis], 1)
    share = np.exp(belief.log_prob(line)).cumsum()
    expected = np.interp([0.1, 0.5, 0.9], share / share[-1], axis + 0.02)
    np.testing.assert_allclose(np.quantile(drawn[:, 1], [0.1, 0.5, 0.9]), expected, atol=0.08)
    np.testing.assert_allclose(belief.quantile(0.5)[0], np.median(belief.sample(4000), 0), atol=0.1)
    np.testing.assert_allclose(belief.mean(), mass @ grid, atol=0.08)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({2: 0.0}, "number = 2; it must lie between 0 and 1"),
        ({0: 9.0}, "outside the support"),
        ({0: 0.0, 1: 0.0}, "every"),
    ],
)
def test_what_cannot_be_given_is_refused(
    belief: BeliefDensity, given: dict[int, float], message: str
) -> None:
    with pytest.raises(DensityError, match=message):
        belief.sample_given(given, 10)


def test_a_noise_level_in_doubt_widens_the_draws_by_as_much(belief: BeliefDensity) -> None:
    """p^c of a normal belief is narrower by the root of c: log sd has half the doubt of log s."""
    known, doubted = belief.draws(seed=1), belief.draws(seed=1, log_level_sd=1.0)

    def log_widths(draws: BeliefDraws) -> np.ndarray:
        edges = draws.quantile([0.25, 0.75])
        return np.log(edges[:, 1] - edges[:, 0]).mean(1)

    more = log_widths(doubted).var() - log_widths(known).var()
    assert 0.08 < more < 0.45, "about a quarter, from 64 draws, in a box that holds the widest back"
    axis = np.linspace(-2.985, 2.985, 200)
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    mass = np.exp(doubted.log_prob(grid)).sum(1) * (axis[1] - axis[0]) ** 2
    np.testing.assert_allclose(mass, 1.0, atol=0.05)
    with pytest.raises(DensityError, match="log_level_sd = -1"):
        belief.draws(log_level_sd=-1.0)


def test_draws_of_a_seed_are_made_once(belief: BeliefDensity) -> None:
    """An audit asks for those of its seed several times, figures for those of seed 0."""
    figures, seeded = belief.draws(), belief.draws(seed=3)
    assert belief.draws(seed=3).weights is seeded.weights
    assert belief.draws().weights is figures.weights is not seeded.weights
    steps: list[int] = []
    followed = belief.draws(seed=3, progress=lambda _label, done, _total: steps.append(done))
    assert len(steps) == len(followed)
    for points, others in zip(followed.points, seeded.points, strict=True):
        assert (points == others).all()


def test_draws_are_made_when_they_are_asked_for_and_once(
    belief: BeliefDensity, tmp_path: Path
) -> None:
    made = []

    def make() -> UtilityDraws:
        made.append(1)
        return belief.utility_draws()

    draws = DeferredDraws(make, 64)
    twice = draws.map(lambda drawn: drawn.scaled(2.0))
    assert len(draws) == len(twice) == 64
    assert not made
    t = torch.zeros(3, 2)
    assert_close(twice.get()(t), 2.0 * draws.get()(t))
    assert_close(pickle.loads(pickle.dumps(twice)).get()(t), twice.get()(t))
    assert made == [1]
    # Whether they are first asked for before or after a save makes no difference.
    alone = replace(QUICK, utility=replace(QUICK.utility, mixture=MixtureSettings(counts=())))
    early, late = (_fit(60, 3, alone) for _ in range(2))
    mean = early.draws(seed=1).mean()
    late.save(tmp_path)
    assert (BeliefDensity.load(tmp_path).draws(seed=1).mean() == mean).all()
    assert (late.draws(seed=1).mean() == mean).all()
