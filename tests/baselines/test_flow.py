"""The preferential normalizing flow: exact density, exact draws, and what it learns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from llm_elicit.baselines.flow import BeliefFlow, FlowSettings, FlowShape
from llm_elicit.density import (
    BeliefDensity,
    DensityError,
    FitSettings,
    GaussianMixture,
    Uniform,
    fit_belief,
    winner_density,
)
from tests.density.targets import Array, ask, wasserstein

QUICK = FitSettings(
    external=FlowSettings(members=2, affine_steps=400, short_steps=25, steps=100, width=16)
)
SINGLE = FitSettings(
    external=FlowSettings(members=1, affine_steps=400, short_steps=25, steps=100, width=16)
)
TWO_STARTS = FitSettings(
    external=FlowSettings(members=1, affine_steps=200, short_steps=100, steps=200, width=16)
)
SQUARE = Uniform([-3.0, -3.0], [3.0, 3.0])


def _flow(dimension: int, stretched: bool, seed: int = 0) -> BeliefFlow:
    """A flow far from the identity, in double precision."""
    flow = BeliefFlow(FlowShape(dimension, 2, 5, 8, stretched), seed).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in flow.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.4 * noise)
    return flow


@pytest.mark.parametrize("stretched", [True, False])
def test_a_flow_is_normalized_in_one_dimension(stretched: bool) -> None:
    grid = torch.linspace(-60, 60, 60_001, dtype=torch.float64)
    with torch.no_grad():
        total = _flow(1, stretched).log_prob(grid[:, None]).exp().sum() * float(grid[1] - grid[0])
    assert float(total) == pytest.approx(1.0, abs=1e-4)


def test_a_flow_is_normalized_in_two_dimensions() -> None:
    grid = torch.linspace(-10, 10, 401, dtype=torch.float64)
    points = torch.cartesian_prod(grid, grid)
    with torch.no_grad():
        density = _flow(2, stretched=False).log_prob(points).exp()
    assert float(density.sum() * (grid[1] - grid[0]) ** 2) == pytest.approx(1.0, abs=5e-3)


@pytest.mark.parametrize("stretched", [True, False])
@pytest.mark.parametrize("dimension", [1, 3])
def test_pushed_noise_has_the_density_of_the_flow(dimension: int, stretched: bool) -> None:
    """log q(g) = log N(z) − log|dg/dz| with g = push(z), the Jacobian by finite differences."""
    flow, h = _flow(dimension, stretched, seed=3), 1e-5
    z = torch.randn(4, dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    columns = []
    for j in range(dimension):
        shift = torch.zeros(dimension, dtype=torch.float64)
        shift[j] = h
        columns.append((flow.push(z + shift) - flow.push(z - shift)) / (2 * h))
    log_volume = torch.linalg.slogdet(torch.stack(columns, -1))[1]
    normal = -0.5 * (z * z).sum(1) - 0.5 * dimension * np.log(2 * np.pi)
    with torch.no_grad():
        found = flow.log_prob(flow.push(z))
    np.testing.assert_allclose(found, normal - log_volume, atol=1e-5)


def test_a_fresh_flow_starts_at_the_moments_of_the_winners() -> None:
    generator = torch.Generator().manual_seed(0)
    low = torch.tensor([[1.0, 0.0], [0.8, 0.3]])
    points = torch.randn(20_000, 2, generator=generator) @ low.T + torch.tensor([2.0, -1.0])
    weights = torch.ones(len(points))
    flow = BeliefFlow(FlowShape(2, 2, 5, 8, stretched=False), seed=0)
    flow.standardize_to(points, weights)
    draws = flow.push(torch.randn(20_000, 2, generator=generator))
    np.testing.assert_allclose(draws.mean(0), [2.0, -1.0], atol=0.05)
    np.testing.assert_allclose(torch.cov(draws.T), low @ low.T, atol=0.05)


def _ridge(x: Array) -> Array:
    """N((1, −0.5), [[0.25, 0.18], [0.18, 0.25]]) up to a constant."""
    precision = np.linalg.inv([[0.25, 0.18], [0.18, 0.25]])
    centred = x - [1.0, -0.5]
    return -0.5 * np.einsum("ni,ij,nj->n", centred, precision, centred)


@pytest.fixture(scope="module")
def ridge() -> BeliefDensity:
    winners, losers = ask(_ridge, SQUARE, 1500, seed=11)
    return fit_belief(winners, losers, sampling=SQUARE, method="flow", seed=11, settings=QUICK)


def test_a_correlated_belief_is_recovered(ridge: BeliefDensity) -> None:
    rng = np.random.default_rng(0)
    covariance = [[0.25, 0.18], [0.18, 0.25]]
    truth = rng.multivariate_normal([1.0, -0.5], covariance, size=1500)
    assert wasserstein(ridge.sample(1500, seed=1), truth) < 0.25
    assert ridge.diagnostics["held_out_log_likelihood"] > 0.3 * np.log(0.5)


def test_the_belief_is_normalized_exactly(ridge: BeliefDensity) -> None:
    assert ridge.diagnostics["log_normalizer"] == 0.0
    assert ridge.diagnostics["log_normalizer_se"] == 0.0
    edges = np.linspace(-3, 3, 401)
    middle = 0.5 * (edges[1:] + edges[:-1])
    points = np.stack(np.meshgrid(middle, middle, indexing="ij"), -1).reshape(-1, 2)
    total = np.exp(ridge.log_prob(points)).sum() * (edges[1] - edges[0]) ** 2
    assert total == pytest.approx(1.0, abs=5e-3)
    assert ridge.log_prob([[3.1, 0.0]])[0] == -np.inf


def test_draws_agree_with_the_density(ridge: BeliefDensity) -> None:
    """The share of draws in a disc is the integral of the density over it."""
    x = ridge.sample(20_000, seed=4)
    inside = np.linalg.norm(x - [1.0, -0.5], axis=1) < 0.5
    rng = np.random.default_rng(5)
    radius, angle = 0.5 * np.sqrt(rng.random(40_000)), 2 * np.pi * rng.random(40_000)
    disc = np.stack([1.0 + radius * np.cos(angle), -0.5 + radius * np.sin(angle)], 1)
    integral = np.exp(ridge.log_prob(disc)).mean() * np.pi * 0.25
    assert inside.mean() == pytest.approx(integral, abs=0.015)


def test_save_and_load_bit_for_bit(ridge: BeliefDensity, tmp_path: Path) -> None:
    ridge.save(tmp_path)
    again = BeliefDensity.load(tmp_path)
    x = ridge.sample(50, seed=2)
    np.testing.assert_array_equal(again.sample(50, seed=2), x)
    np.testing.assert_array_equal(again.log_prob(x), ridge.log_prob(x))
    assert json.loads(json.dumps(again.diagnostics)) == again.diagnostics
    assert again.diagnostics["method"] == "flow"


def test_it_has_no_gradient_for_a_winner_density(ridge: BeliefDensity) -> None:
    with pytest.raises(DensityError, match="by 'flow' has no gradient"):
        winner_density(ridge)


def test_a_fit_depends_on_its_seed_alone(line_judge: tuple[Array, Array]) -> None:
    """The same seed gives the same belief, and the global generator is neither read nor moved."""
    settings = FitSettings(
        external=FlowSettings(members=2, affine_steps=20, short_steps=10, steps=10, width=8)
    )
    line = Uniform([-1.0], [1.0])
    drawn = []
    for state in (1, 2):
        torch.manual_seed(state)
        before = torch.get_rng_state()
        belief = fit_belief(*line_judge, sampling=line, method="flow", seed=3, settings=settings)
        drawn.append(belief.sample(20, seed=0))
        assert torch.equal(before, torch.get_rng_state())
    np.testing.assert_array_equal(drawn[0], drawn[1])
    other = fit_belief(*line_judge, sampling=line, method="flow", seed=4, settings=settings)
    assert (other.sample(20, seed=0) != drawn[0]).any()


def test_two_far_modes_are_both_kept() -> None:
    """N(−1.5, 0.3²) and N(1.5, 0.3²) in equal parts: a linear layer alone keeps one of them."""

    def log_density(x: Array) -> Array:
        return np.logaddexp(*(-0.5 * ((x[:, 0] - m) / 0.3) ** 2 for m in (-1.5, 1.5)))

    line = Uniform([-3.0], [3.0])
    winners, losers = ask(log_density, line, 1000, seed=13)
    belief = fit_belief(winners, losers, sampling=line, method="flow", seed=13, settings=TWO_STARTS)
    x = belief.sample(4000, seed=1)[:, 0]
    assert 0.3 < (x > 0).mean() < 0.7
    assert (np.abs(x) < 0.5).mean() < 0.1


def test_soft_judgments_count_by_their_weight() -> None:
    """Every pair is given in both orders: only the weights tell what the judge prefers."""
    rng = np.random.default_rng(6)
    a, b = rng.uniform(-1, 1, (2, 300, 1))
    utility = [-0.5 * ((x[:, 0] - 0.4) / 0.3) ** 2 for x in (a, b)]
    q = 1 / (1 + np.exp(-(utility[0] - utility[1]) / 0.7797))
    belief = fit_belief(
        np.concatenate([a, b]),
        np.concatenate([b, a]),
        weights=np.concatenate([q, 1 - q]),
        sampling=Uniform([-1.0], [1.0]),
        method="flow",
        settings=SINGLE,
    )
    marginal = belief.marginals[0]
    # N(0.4, 0.3²) truncated to [−1, 1] has mean 0.385 and standard deviation 0.282.
    assert marginal.mean == pytest.approx(0.385, abs=0.06)
    assert marginal.sd == pytest.approx(0.282, abs=0.06)


def test_no_tilt_by_a_normal_sampling_density() -> None:
    """Belief N(0, 1) asked under N(0, 3): the standard deviation is 1, not 0.866."""
    normal = GaussianMixture([1.0], [[0.0]], [[[3.0]]])
    winners, losers = ask(lambda x: -0.5 * (x**2).sum(1), normal, 6000, seed=21)
    belief = fit_belief(winners, losers, sampling=normal, method="flow", settings=SINGLE)
    assert belief.marginals[0].sd == pytest.approx(1.0, abs=0.07)


def test_held_out_likelihood_of_a_coin_is_that_of_a_coin() -> None:
    rng = np.random.default_rng(7)
    a, b = rng.uniform(-1, 1, (2, 400, 1))
    belief = fit_belief(a, b, sampling=Uniform([-1.0], [1.0]), method="flow", settings=SINGLE)
    assert belief.diagnostics["held_out_log_likelihood"] == pytest.approx(np.log(0.5), abs=0.03)


def test_progress_reaches_its_total(line_judge: tuple[Array, Array]) -> None:
    settings = FitSettings(
        external=FlowSettings(members=2, affine_steps=50, short_steps=25, steps=25, width=8)
    )
    seen: list[tuple[str, int, int]] = []
    fit_belief(
        *line_judge,
        sampling=Uniform([-1.0], [1.0]),
        method="flow",
        settings=settings,
        progress=lambda *news: seen.append(news),
    )
    assert seen[-1] == ("flow", 200, 200)
    assert [news[1] for news in seen] == sorted(news[1] for news in seen)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: FlowSettings(members=0), "members = 0; it must lie between 1"),
        (lambda: FlowSettings(members=6), "at least the number of members; raise folds"),
        (lambda: FlowSettings(learning_rate=0.0), "learning_rate = 0.0"),
    ],
)
def test_bad_settings_are_named(build: object, words: str) -> None:
    with pytest.raises(DensityError, match=words):
        build()  # type: ignore[operator]
