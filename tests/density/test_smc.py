"""Annealed sequential Monte Carlo: draws and normalizing constants, from λ and fitted starts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from llm_elicit.density import AnnealingSettings, DensityError, GaussianMixture, Uniform
from llm_elicit.density.latent import Latent, make_latent
from llm_elicit.density.methods import PotentialDensity
from llm_elicit.density.smc import Proposal
from llm_elicit.density.utility_function import ComponentStack, Utility
from tests.density.targets import Array

SETTINGS = AnnealingSettings()
CENTRES = torch.tensor([[-0.9, -0.6], [0.8, 0.7]])
WEIGHTS = torch.tensor([0.8, 0.2])
SD = 0.12


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _two_components() -> PotentialDensity:
    """0.8 N(c_0, SD²I) + 0.2 N(c_1, SD²I) on the features of a unit square, whose range is 2√3."""
    latent = make_latent(Uniform([0.0, 0.0], [1.0, 1.0]))
    whiten = torch.eye(2).expand(1, 2, 2, 2) / SD
    stack = ComponentStack(whiten, CENTRES[None] / SD, torch.log(WEIGHTS)[None])
    utility = Utility(torch.zeros(2), torch.zeros(2, 2), (stack,))
    return PotentialDensity(latent, utility, SETTINGS)


def _in_units_of_features(latent: Latent, points: torch.Tensor) -> Array:
    return np.asarray(latent.features(points).numpy())


def _share_left(density: PotentialDensity, n: int, seed: int, start: Proposal | None) -> float:
    draws = replace(density, start=start).anneal(n, _generator(seed)).draws
    return float((draws.points[:, 0] < 0).double().mean())


def test_log_z_weights_means_and_spreads_of_far_components_are_right() -> None:
    """∫ exp(f) over the unit square is 2π SD²/12, each feature being 2√3 wide."""
    density, found = _two_components().normalize(_generator(0))
    expected = math.log(2 * math.pi * SD**2 / 12)
    assert abs(found.value - expected) < 4 * found.standard_error
    assert found.standard_error < 0.01
    draws = density.anneal(8000, _generator(1)).draws
    t = _in_units_of_features(density.latent, draws.points)
    left = t[:, 0] < 0
    assert left.mean() == pytest.approx(0.8, abs=0.02)
    for rows, centre in ((left, CENTRES[0]), (~left, CENTRES[1])):
        assert t[rows].mean(0) == pytest.approx(centre.numpy(), abs=0.02)
        assert t[rows].std(0) == pytest.approx([SD, SD], abs=0.01)


def test_component_weights_are_less_noisy_from_a_fitted_start_than_from_lambda() -> None:
    density = _two_components()
    start = density.normalize(_generator(0))[0].start
    spread = []
    for where in (None, start):
        shares = [_share_left(density, 600, seed, where) for seed in range(60)]
        assert np.mean(shares) == pytest.approx(0.8, abs=3 * np.std(shares) / 60**0.5 + 0.002)
        spread.append(np.std(shares))
    assert spread[1] < 0.7 * spread[0]


def test_a_start_that_missed_a_component_is_corrected() -> None:
    density = _two_components()
    whole = density.anneal(4000, _generator(0))
    left = whole.draws.points[whole.draws.points[:, 0] < 0]
    start = Proposal.fit(left, whole.step, _generator(1))
    shares = [_share_left(density, 4000, seed, start) for seed in range(16)]
    assert np.mean(shares) == pytest.approx(0.8, abs=3 * np.std(shares) / 4)
    assert np.std(shares) < 0.15


@pytest.mark.parametrize(
    "sampling",
    [
        Uniform([0.0, 0.0], [1.0, 1.0]),
        GaussianMixture([0.4, 0.6], [[0.0, 0.0], [3.0, 1.0]], [np.eye(2), 0.5 * np.eye(2)]),
    ],
)
def test_the_start_is_normalized_and_draws_follow_it(
    sampling: Uniform | GaussianMixture,
) -> None:
    latent = make_latent(sampling)
    white = torch.randn(3000, 2, generator=_generator(3), dtype=torch.float64)
    curved = torch.stack([white[:, 0], 0.3 * white[:, 1] + 0.5 * white[:, 0].square()], 1)
    start = Proposal.fit(curved, 0.2, _generator(4))
    side = torch.linspace(-7, 7, 561, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2)
    log_q = start.log_density(latent, grid)[0]
    mass = torch.exp(log_q) * (side[1] - side[0]) ** 2
    assert mass.sum().item() == pytest.approx(1.0, abs=2e-3)
    draws = start.draw(latent, 20_000, _generator(5))
    expected = torch.stack([mass @ grid, mass @ grid.square()])
    found = torch.stack([draws.mean(0), draws.square().mean(0)])
    assert found.numpy() == pytest.approx(expected.numpy(), abs=0.08)


def test_the_gradient_of_the_start_is_that_of_its_log_density() -> None:
    density = _two_components()
    latent = density.latent
    start = Proposal.fit(density.anneal(2000, _generator(0)).draws.points, 0.2, _generator(1))
    g = torch.randn(200, 2, generator=_generator(2), dtype=torch.float64)
    slope = start.log_density(latent, g)[1]
    for axis in range(2):
        step = torch.zeros(2, dtype=torch.float64)
        step[axis] = 1e-5
        up, down = (start.log_density(latent, g + s * step)[0] for s in (1.0, -1.0))
        assert slope[:, axis].numpy() == pytest.approx(((up - down) / 2e-5).numpy(), abs=1e-4)


@pytest.mark.parametrize(
    "settings",
    [{"ess": 1.0}, {"ess": 0.0}, {"moves": 0}, {"final_moves": -1}, {"acceptance": 1.5}],
)
def test_settings_of_annealing_are_checked(settings: dict[str, float]) -> None:
    with pytest.raises(DensityError, match=f"AnnealingSettings: {next(iter(settings))} = "):
        AnnealingSettings(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_density_without_values_is_an_error(value: float) -> None:
    """And not a belief whose log Z is nan."""
    latent = make_latent(Uniform([0.0], [1.0]))
    utility = Utility(torch.tensor([value]), torch.zeros(1, 1))
    with pytest.raises(DensityError, match="the log-density is NaN or"):
        PotentialDensity(latent, utility, SETTINGS).anneal(100, _generator(0))
