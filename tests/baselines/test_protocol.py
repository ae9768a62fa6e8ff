"""The published score method, each part against a closed form or a known effect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from llm_elicit.baselines.protocol import CORRECTIONS, ProtocolSettings, paper_protocol
from llm_elicit.baselines.protocol.density import (
    CubeLatent,
    ScoreParts,
    clip_weights,
    finer,
    winner_weights,
)
from llm_elicit.baselines.protocol.network import ScoreNetwork
from llm_elicit.baselines.protocol.samplers import (
    FlowPrior,
    LangevinSettings,
    LikelihoodSettings,
    edm_steps,
    flow_log_prob,
    sample_heun,
    sample_langevin,
)
from llm_elicit.density import (
    BeliefDensity,
    DensityError,
    FitSettings,
    GaussianMixture,
    MixtureSettings,
    Noise,
    PosteriorSettings,
    SmoothSettings,
    Uniform,
    UtilitySettings,
    fit_belief,
)
from llm_elicit.density.latent import make_latent
from llm_elicit.density.score import Tempering
from llm_elicit.density.utility_function import Utility
from tests.density.targets import Array, ask, assert_close

LINE = Uniform([-1.0], [1.0])
# The beliefs of these tests are normal.
QUADRATIC = UtilitySettings(
    folds=4,
    mixture=MixtureSettings(counts=()),
    smooth=SmoothSettings(frequencies=0),
    posterior=PosteriorSettings(draws=0),
)


def brief(*corrected: str, dimension: int = 1, steps: int = 60) -> FitSettings:
    """Settings of a fit that takes a second."""
    paper = paper_protocol(dimension, corrected)
    protocol = replace(
        paper,
        training=replace(paper.training, steps=steps, batch=128, width=16),
        langevin=replace(paper.langevin, levels=6, steps=4),
        winner_draws=min(paper.winner_draws, 200),
    )
    return FitSettings(utility=QUADRATIC, external=protocol)


# Likelihood


def _gaussian_flow(settings: LikelihoodSettings, sd: float = 0.2) -> float:
    """Largest error of log N(x; 0.3, sd²) by the flow of its exact score."""
    mean, variance = torch.tensor([0.3]).double(), torch.tensor([[sd**2]]).double()
    x = 0.3 + sd * torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    found = flow_log_prob(
        x, lambda y, s: -(y - mean) / (sd**2 + s**2), FlowPrior(mean, variance), settings
    )
    return float(np.abs(found.numpy() - stats.norm.logpdf(x[:, 0], 0.3, sd)).max())


def test_a_fixed_grid_is_coarser_than_adaptive_steps_and_converges() -> None:
    fine = LikelihoodSettings(3.0, sigma_min=5e-4, adaptive=True, tolerance=1e-6)
    fixed = replace(fine, adaptive=False)
    assert _gaussian_flow(fine, sd=0.02) < 2e-3
    assert _gaussian_flow(fixed, sd=0.02) > 0.1
    assert _gaussian_flow(replace(fixed, grid=1500), sd=0.02) < 0.01
    assert _gaussian_flow(fixed, sd=0.2) < 2e-3


# The field's integrals


def test_winners_weighted_by_their_density_give_the_field_under_uniform_sampling() -> None:
    """τ at three utilities by draws of p_w against a grid of λ; clipping costs accuracy."""
    grid = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    utility = -8.0 * grid.square()
    exact = Tempering.tabulate(utility[::10].numpy(), Noise())
    density = exact.log_win_at(utility).exp()  # p_w = 2λw with λ = 1/2
    chosen = torch.multinomial(
        density, 4000, replacement=True, generator=torch.Generator().manual_seed(0)
    )
    draws, log_winner = grid[chosen][:, None], torch.log(density[chosen])
    flat = torch.full((4000,), -np.log(2.0), dtype=torch.float64)
    u = torch.tensor([-6.0, -2.0, -0.1], dtype=torch.float64)

    def error(points: torch.Tensor, weights: torch.Tensor) -> float:
        utilities = (-8.0 * points[:, 0].square()).numpy()
        found = Tempering.tabulate(utilities, Noise(), weights.numpy()).tau(u)
        return float((found / exact.tau(u) - 1).abs().max())

    plain = error(draws, winner_weights(log_winner, flat, None))
    assert plain < 0.06
    assert error(draws, winner_weights(log_winner, flat, (0.01, 0.6))) > 2 * plain


def test_weights_are_clipped_to_their_quantiles() -> None:
    weights = torch.linspace(0.0, 100.0, 101)
    clipped = clip_weights(weights, (0.01, 0.9))
    assert (clipped.min().item(), clipped.max().item()) == pytest.approx((1.0, 90.0))
    assert clip_weights(weights, None) is weights


# Samplers


@pytest.mark.parametrize(("drift", "variance"), [(False, 2.0), (True, 1.0)])
def test_the_paper_s_step_keeps_the_density_times_the_field_unless_its_drift_is_added(
    drift: bool, variance: float
) -> None:
    """π = N(0, 1), τ = 1 + x²: under τ·π the variance is (1 + 3)/(1 + 1) = 2, under π it is 1."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4000, 1, generator=generator, dtype=torch.float64)
    settings = LangevinSettings(steps=800, step=0.05, sigma_start=0.1, levels=1)
    x = sample_langevin(
        start,
        lambda x, s: -x,
        lambda x: (1.0 + x[:, 0].square(), 2.0 * x if drift else None),
        settings,
        generator,
    )
    assert x.square().mean().item() == pytest.approx(variance, abs=0.1 if drift else 0.25)


def test_steps_too_long_for_the_score_are_said() -> None:
    start, generator = torch.ones(10, 1, dtype=torch.float64), torch.Generator().manual_seed(0)
    settings = LangevinSettings(steps=300, step=100.0, sigma_start=0.05, levels=1)
    with pytest.raises(DensityError, match=r"diverged at noise level 0\.05: steps of 100"):
        sample_langevin(
            start, lambda x, s: -(x**3), lambda x: (torch.ones(len(x)), None), settings, generator
        )


def test_the_field_s_gradient_is_its_derivative() -> None:
    """τ = g(u(x)), so ∇τ = g′(u) ∇u."""
    tempering = Tempering.tabulate(np.linspace(-3.0, 1.0, 50), Noise())
    latent = CubeLatent(make_latent(Uniform([-1.0, -1.0], [1.0, 1.0])), side=6.0)
    utility = Utility(torch.tensor([1.0, -0.5]), torch.tensor([[-1.0, 0.2], [0.2, -0.4]]))
    network, prior = ScoreNetwork(2, 1, 1.0, torch.Generator()), FlowPrior.at_zero(2)
    parts = ScoreParts(latent, utility, network, tempering, prior, 0.0, True, cap=5.0)
    g, h = torch.tensor([[0.3, -0.4], [-0.8, 0.1], [2.5, -2.5]], dtype=torch.float64), 1e-3
    field, slope = parts.field_and_slope(g)
    assert_close(field, parts.field(g))
    for axis in range(2):
        step = h * torch.eye(2, dtype=torch.float64)[axis]
        expected = (parts.field(g + step) - parts.field(g - step)) / (2 * h)
        assert_close(slope[:, axis], expected, rtol=0.02, atol=1e-3)


def test_heun_draws_a_correlated_gaussian() -> None:
    covariance = torch.tensor([[0.5, 0.2], [0.2, 0.3]], dtype=torch.float64)
    mean = torch.tensor([0.3, -0.5], dtype=torch.float64)

    def score(x: torch.Tensor, sigma: float) -> torch.Tensor:
        total = covariance + sigma**2 * torch.eye(2, dtype=torch.float64)
        return -(x - mean) @ torch.linalg.inv(total)

    generator = torch.Generator().manual_seed(0)
    x = sample_heun(8000, score, FlowPrior(mean, covariance), edm_steps(0.02, 3.0), generator)
    np.testing.assert_allclose(x.mean(0), mean, atol=0.03)
    np.testing.assert_allclose(torch.cov(x.T), covariance, atol=0.03)
    levels = edm_steps(0.02, 3.0)
    assert levels == sorted(levels, reverse=True)
    assert levels[-1] == 0.0


# The paper's coordinates


def test_the_cube_makes_the_sampling_density_uniform_and_knows_its_jacobian() -> None:
    sampling = GaussianMixture([1.0], [[1.0, -2.0]], [[[2.0, 0.5], [0.5, 1.0]]])
    cube = CubeLatent(make_latent(sampling), side=2.0)
    x = sampling.sample(4000, np.random.default_rng(0))
    y = cube.to_latent(x)
    np.testing.assert_allclose(cube.from_latent(y), x, atol=1e-6)
    assert stats.kstest(y[:, 1], stats.uniform(-1, 2).cdf).pvalue > 0.01
    inner = torch.from_numpy(y[:5])
    np.testing.assert_allclose(cube.from_outer(cube.to_outer(inner)), inner, atol=1e-6)
    # λ = dy/dx on a cube of volume 4, so log|dx/dy| = −log λ − log 4.
    np.testing.assert_allclose(
        cube.log_volume(inner), -sampling.log_prob(x[:5]) - np.log(4.0), atol=1e-6
    )


def test_without_the_jacobian_the_density_is_multiplied_by_the_sampling_density() -> None:
    """The same network, with and without: log densities differ by log λ, up to a constant."""
    sampling = GaussianMixture([1.0], [[0.0]], [[[3.0]]])
    winners, losers = ask(lambda x: -0.5 * x[:, 0] ** 2, sampling, 300, seed=21)
    x = np.linspace(-1.0, 1.0, 9)[:, None]
    published, corrected = (
        fit_belief(winners, losers, sampling=sampling, method="protocol", settings=brief(*names))
        for names in ((), ("jacobian",))
    )
    difference = published.log_prob(x) - corrected.log_prob(x) - sampling.log_prob(x)
    assert np.ptp(difference) < 0.01


# Whole fits


@pytest.mark.parametrize("corrected", [(), CORRECTIONS])
def test_a_fit_saves_and_loads(
    corrected: tuple[str, ...], line_judge: tuple[Array, Array], tmp_path: Path
) -> None:
    belief = fit_belief(
        *line_judge, sampling=LINE, method="protocol", settings=brief(*corrected), seed=3
    )
    belief.save(tmp_path)
    again = BeliefDensity.load(tmp_path)
    x = belief.sample(200, seed=4)
    assert LINE.contains(x).all()
    np.testing.assert_array_equal(again.sample(200, seed=4), x)
    np.testing.assert_array_equal(again.log_prob(x), belief.log_prob(x))
    grid = np.linspace(-0.999, 0.999, 201)[:, None]
    total = np.trapezoid(np.exp(belief.log_prob(grid)), grid[:, 0])
    assert total == pytest.approx(1.0, abs=4 * belief.diagnostics["log_normalizer_se"] + 0.05)


def test_each_published_choice_is_corrected_alone() -> None:
    published = paper_protocol(6)
    for name in CORRECTIONS:
        corrected = paper_protocol(6, corrected=[name])
        fields = [f for f in vars(published) if getattr(published, f) != getattr(corrected, f)]
        assert fields == [_FIELD.get(name, name)]
    with pytest.raises(DensityError, match="jacobian, drift, start"):
        paper_protocol(6, corrected=["everything"])
    with pytest.raises(DensityError, match="dimension = 0"):
        paper_protocol(0)


_FIELD = {
    "drift": "langevin", "start": "langevin", "expectation": "winner_draws",
    "solver": "likelihood", "prior": "likelihood",
}  # fmt: skip


def test_the_stated_error_of_the_flow_likelihood_falls_with_its_tolerance(
    line_judge: tuple[Array, Array],
) -> None:
    errors = []
    for tolerance in (3e-2, 1e-5):
        settings = brief("solver")
        protocol = settings.external
        assert isinstance(protocol, ProtocolSettings)
        likelihood = replace(protocol.likelihood, tolerance=tolerance)
        settings = replace(settings, external=replace(protocol, likelihood=likelihood))
        belief = fit_belief(*line_judge, sampling=LINE, method="protocol", settings=settings)
        errors.append(belief.diagnostics["log_prob_error"]["evaluation"])
    assert errors[1] < 0.1 * errors[0]
    assert finer(LikelihoodSettings(3.0)).adaptive
