"""Sampling densities, their cube maps and the latent coordinates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from llm_elicit.density import DensityError, GaussianMixture, Uniform
from llm_elicit.density.belief import read_sampling
from llm_elicit.density.latent import make_latent

MIXTURE = GaussianMixture(
    [0.3, 0.7],
    [[-1.0, 0.5], [2.0, -1.0]],
    [[[1.0, 0.3], [0.3, 0.5]], [[0.4, -0.2], [-0.2, 1.5]]],
)
BOX = Uniform([-2.0, 1.0], [3.0, 1000.0], log=[False, True])
DENSITIES = [BOX, MIXTURE, GaussianMixture([1.0], [[0.0, 1.0]], [[[2.0, 0.5], [0.5, 1.0]]])]
inner = st.floats(0.001, 0.999)


@pytest.mark.parametrize("density", DENSITIES, ids=["box", "mixture", "gaussian"])
@given(cube=st.tuples(inner, inner))
@settings(max_examples=40, deadline=None)
def test_to_cube_inverts_from_cube(density: Uniform, cube: tuple[float, float]) -> None:
    x = density.from_cube([cube])
    assert density.contains(x).all()
    np.testing.assert_allclose(density.to_cube(x)[0], cube, atol=1e-9)


@pytest.mark.parametrize("density", DENSITIES, ids=["box", "mixture", "gaussian"])
def test_draws_are_uniform_on_the_cube(density: Uniform, rng: np.random.Generator) -> None:
    cube = density.to_cube(density.sample(4000, rng))
    for column in cube.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(cube.T)[0, 1]) < 0.06


def test_log_prob_integrates_to_one() -> None:
    e1, e2 = np.linspace(-2, 3, 201), np.linspace(1, 1000, 20_001)
    inside = BOX.log_prob(np.stack([np.full(20_001, 0.5), e2], 1))
    assert np.trapezoid(np.exp(inside), e2) * (e1[-1] - e1[0]) == pytest.approx(1.0, rel=1e-3)
    grid = np.linspace(-9, 9, 401)
    points = np.stack(np.meshgrid(grid, grid, indexing="ij"), -1).reshape(-1, 2)
    total = np.exp(MIXTURE.log_prob(points)).sum() * (grid[1] - grid[0]) ** 2
    assert total == pytest.approx(1.0, abs=1e-6)


@given(x=st.floats(-10, 10), y=st.floats(0.1, 2000))
@settings(max_examples=60, deadline=None)
def test_log_prob_is_minus_infinity_exactly_outside(x: float, y: float) -> None:
    inside = -2 <= x <= 3 and 1 <= y <= 1000
    assert np.isfinite(BOX.log_prob([[x, y]])[0]) == inside


@pytest.mark.parametrize("density", DENSITIES, ids=["box", "mixture", "gaussian"])
def test_dictionary_round_trip(density: Uniform, rng: np.random.Generator) -> None:
    again = read_sampling(density.to_dict())
    x = density.sample(50, rng)
    np.testing.assert_array_equal(again.log_prob(x), density.log_prob(x))


@pytest.mark.parametrize("density", DENSITIES, ids=["box", "mixture", "gaussian"])
def test_latent_density_is_that_of_mapped_draws(density: Uniform) -> None:
    """log λ_g(g) = log λ(x) + log|dx/dz| + log|dz/dg|, with the inverse exact."""
    latent = make_latent(density)
    x = density.sample(200, np.random.default_rng(3))
    g = torch.from_numpy(latent.to_latent(x))
    np.testing.assert_allclose(latent.from_latent(g.numpy()), x, rtol=1e-8, atol=1e-8)
    expected = density.log_prob(x) - density.log_scale_derivative(x) + latent.log_volume(g).numpy()
    np.testing.assert_allclose(latent.log_sampling(g).numpy(), expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("density", DENSITIES, ids=["box", "mixture", "gaussian"])
@pytest.mark.parametrize("sigma", [0.0, 0.7])
def test_sampling_score_is_the_gradient_of_the_smoothed_density(
    density: Uniform, sigma: float
) -> None:
    latent = make_latent(density)
    rng = np.random.default_rng(4)
    clean = torch.from_numpy(latent.to_latent(density.sample(300_000, rng)))
    g = torch.tensor([[0.4, -0.8]], dtype=torch.float64)
    if sigma == 0.0:
        point = g.clone().requires_grad_()
        (expected,) = torch.autograd.grad(latent.log_sampling(point).sum(), point)
        tolerance = 1e-9
    else:  # Tweedie: the smoothed score is E[(clean − g)/σ² | g]
        weight = torch.softmax(-0.5 * (clean - g).square().sum(1) / sigma**2, 0)
        expected = (weight[:, None] * (clean - g)).sum(0, keepdim=True) / sigma**2
        tolerance = 0.02
    np.testing.assert_allclose(latent.sampling_score(g, sigma), expected, atol=tolerance)


@pytest.mark.parametrize("density", DENSITIES, ids=["box", "mixture", "gaussian"])
def test_latent_slopes_match_automatic_differentiation(density: Uniform) -> None:
    latent = make_latent(density)
    latent.radius = 1.5
    g = torch.tensor([[0.3, 0.2], [2.0, -1.9], [-4.0, 0.1]], dtype=torch.float64)
    v = torch.tensor([1.3, -0.4], dtype=torch.float64)
    point = g.clone().requires_grad_()
    (pulled,) = torch.autograd.grad((latent.features(point) @ v).sum(), point)
    np.testing.assert_allclose(latent.gradient_from_features(g, v.expand_as(g)), pulled, atol=1e-12)
    (volume,) = torch.autograd.grad((latent.log_volume(point) + 0 * point.sum(1)).sum(), point)
    np.testing.assert_allclose(latent.log_volume_gradient(g), volume, atol=1e-12)
    (taper,) = torch.autograd.grad((latent.taper(point) + 0 * point.sum(1)).sum(), point)
    np.testing.assert_allclose(latent.taper_gradient(g), taper, atol=1e-12)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Uniform([1.0], [1.0]), r"low\[0\] = 1.0 is not below high\[0\]"),
        (lambda: Uniform([0.0, 0.0], [1.0]), "low has 2 features and high 1"),
        (lambda: Uniform([np.nan], [1.0]), r"low\[0\] is nan; every value must be finite"),
        (lambda: Uniform([0.0], [1.0], log=[True]), "needs a positive lower bound"),
        (lambda: Uniform([1.0], [2.0], log=[True, False]), "one flag per row is needed"),
        (lambda: GaussianMixture([0.5], [[0.0]], [[[1.0]]]), "sum to 1"),
        (lambda: GaussianMixture([1.0], [[0.0]], [[[-1.0]]]), "positive definite"),
        (lambda: GaussianMixture([1.0], [[0.0, 1.0]], [[[1.0]]]), "do not fit"),
        (lambda: GaussianMixture([1.0], [[np.inf]], [[[1.0]]]), r"means\[0, 0\] is inf"),
        (lambda: BOX.log_prob([1.0, 2.0]), r"must be \(n, 2\)"),
    ],
)
def test_bad_sampling_densities_are_named(build: object, words: str) -> None:
    with pytest.raises(DensityError, match=words):
        build()  # type: ignore[operator]
