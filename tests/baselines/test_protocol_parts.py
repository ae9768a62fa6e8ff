"""The score network, its training, the Langevin sampler and the flow likelihood."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from llm_elicit.baselines.protocol import paper_protocol
from llm_elicit.baselines.protocol.density import importance_log_normalizer
from llm_elicit.baselines.protocol.network import (
    ScoreNetwork,
    TrainingSettings,
    cosine_schedule,
    draw_visibility,
    mask_hidden,
    power_decay,
    train_score,
)
from llm_elicit.baselines.protocol.samplers import (
    FlowPrior,
    LikelihoodSettings,
    flow_log_prob,
    score_and_divergence,
)
from llm_elicit.density import GaussianMixture, Uniform
from llm_elicit.density.latent import make_latent
from llm_elicit.density.smc import Draws


def _network(d: int = 2) -> ScoreNetwork:
    return ScoreNetwork(d, 32, 0.9, torch.Generator().manual_seed(0))


def test_gradients_reach_every_parameter() -> None:
    network = _network()
    seen = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    out = network(torch.randn(3, 4), torch.tensor([[0.1], [0.5], [2.0]]), seen)
    gradients = torch.autograd.grad(out.square().sum(), list(network.parameters()))
    assert all(bool((g != 0).any()) for g in gradients)


def test_flags_change_the_output_and_shapes_hold() -> None:
    network, pair, sigma = _network(), torch.randn(5, 4), torch.full((5, 1), 0.5)
    joint = network(pair, sigma, torch.ones(5, 2))
    marginal = network(pair, sigma, torch.tensor([[1.0, 0.0]]).expand(5, 2))
    assert joint.shape == (5, 4)
    assert not torch.allclose(joint, marginal)


def test_layers_preserve_magnitude() -> None:
    network = ScoreNetwork(8, 128, 1.0, torch.Generator().manual_seed(3))
    network.gain.data.fill_(1.0)
    generator = torch.Generator().manual_seed(4)
    pair = torch.randn(4000, 16, generator=generator)
    raw = network._raw(pair, torch.full((4000, 1), 0.3), torch.ones(4000, 2))
    assert 0.5 < raw.square().mean().sqrt().item() < 2.0


def test_masking_replaces_only_the_unseen_half_by_noise_of_size_sigma() -> None:
    generator = torch.Generator().manual_seed(0)
    n = 20_000
    pair = torch.full((n, 4), 7.0)
    seen = draw_visibility(n, generator)
    masked = mask_hidden(pair, seen) + 0.25 * torch.randn(n, 4, generator=generator)
    both, winner = seen.sum(1) == 2, (seen[:, 0] == 1) & (seen[:, 1] == 0)
    assert both.float().mean().item() == pytest.approx(0.5, abs=0.02)
    assert (both | winner).all()
    assert masked[both].mean().item() == pytest.approx(7.0, abs=0.01)
    assert masked[winner][:, :2].mean().item() == pytest.approx(7.0, abs=0.01)
    noise = masked[winner][:, 2:]
    assert noise.std().item() == pytest.approx(0.25, rel=0.03)
    assert noise.mean().item() == pytest.approx(0.0, abs=0.01)


def test_power_average_has_the_stated_width() -> None:
    steps, width = 2000, 0.06
    weights = np.ones(1)
    for step in range(2, steps + 1):
        decay = power_decay(step, width)
        weights = np.append(weights * decay, 1 - decay)
    place = np.arange(1, steps + 1) / steps
    mean = (weights * place).sum()
    sd = np.sqrt((weights * (place - mean) ** 2).sum())
    assert weights.sum() == pytest.approx(1.0)
    assert sd == pytest.approx(width, rel=0.05)


def test_cosine_schedule_falls_between_its_ends() -> None:
    schedule = cosine_schedule(40, 0.02, 3.0)
    assert schedule[0].item() == pytest.approx(3.0)
    assert schedule[-1].item() == pytest.approx(0.02)
    assert (schedule.diff() < 0).all()


def _training(**changes: int) -> TrainingSettings:
    return replace(paper_protocol(1).training, **changes)


def test_the_score_of_gaussian_winners_is_learned() -> None:
    rng = torch.Generator().manual_seed(0)
    winners = 0.5 * torch.randn(4000, 1, generator=rng, dtype=torch.float64) + 0.6
    losers = 0.8 * torch.randn(4000, 1, generator=rng, dtype=torch.float64) - 0.6
    settings = _training(steps=500, width=48, batch=1024)
    network = train_score((winners, losers), torch.ones(4000).double(), settings, seed=0)
    for sigma in (0.1, 0.5):
        g = torch.linspace(-0.4, 1.4, 50)[:, None]
        score = network.winner_score(g, torch.zeros_like(g), sigma)
        truth = -(g - 0.6) / (0.25 + sigma**2)
        assert (score - truth).square().mean().sqrt().item() < 0.35


def test_rows_of_weight_zero_do_not_train() -> None:
    rng = torch.Generator().manual_seed(1)
    good = torch.randn(200, 1, generator=rng, dtype=torch.float64)
    weights = torch.cat([torch.ones(200), torch.zeros(200)]).double()
    fits = []
    for bad in (50.0, -50.0):
        points = torch.cat([good, torch.full((200, 1), bad, dtype=torch.float64)])
        sides = points, good.repeat(2, 1)
        fits.append(train_score(sides, weights, _training(steps=20, width=8, batch=100), 0))
    one, two = (list(network.parameters())[1].detach() for network in fits)
    assert torch.equal(one, two)


def test_flow_likelihood_of_a_gaussian_is_exact() -> None:
    """Analytic score of N(m, C): the flow must return its log-density (no prior mismatch)."""
    mean = torch.tensor([0.3, -0.5], dtype=torch.float64)
    covariance = torch.tensor([[0.5, 0.2], [0.2, 0.3]], dtype=torch.float64)

    def score(x: torch.Tensor, sigma: float) -> torch.Tensor:
        total = covariance + sigma**2 * torch.eye(2, dtype=torch.float64)
        return -(x - mean) @ torch.linalg.inv(total)

    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    settings = LikelihoodSettings(3.0, 0.005, adaptive=True, tolerance=1e-6)
    found = flow_log_prob(x, score, FlowPrior(mean, covariance), settings)
    expected = multivariate_normal(mean.numpy(), covariance.numpy()).logpdf(x.numpy())
    np.testing.assert_allclose(found, expected, atol=2e-3, rtol=3e-4)


def test_divergence_is_the_trace_of_the_jacobian() -> None:
    def score(x: torch.Tensor, sigma: float) -> torch.Tensor:
        return torch.stack([x[:, 0] ** 2 * x[:, 1], torch.sin(x[:, 0]) + sigma * x[:, 1]], 1)

    x = torch.tensor([[2.0, 3.0]], dtype=torch.float64)
    value, divergence = score_and_divergence(x, score, 0.5)
    assert value[0].tolist() == pytest.approx([12.0, np.sin(2.0) + 1.5])
    assert divergence.item() == pytest.approx(12.5)


def test_the_flow_of_a_nearly_zero_score_is_solved() -> None:
    """A solver's first trial step is as long as the motion is slow, and e^step overflows."""
    variance = 1e3
    prior = FlowPrior(torch.zeros(1).double(), variance * torch.eye(1).double())
    x = torch.tensor([[30.0]], dtype=torch.float64)
    settings = LikelihoodSettings(3.0, 1e-3, adaptive=True, tolerance=1e-5)
    found = flow_log_prob(x, lambda y, s: -y / (variance + s * s), prior, settings)
    assert abs(float(found) + 0.5 * math.log(2 * math.pi * variance) + 0.45) < 1e-3


@pytest.mark.parametrize("dimension", [1, 4, 10])
def test_importance_sampling_finds_the_constant_of_a_normal(dimension: int) -> None:
    """Of N(m, S) under a box that holds it all: the integral is 1."""
    latent = make_latent(Uniform([-9.0] * dimension, [9.0] * dimension))
    covariance = 0.5 * np.eye(dimension) + 0.5
    law = GaussianMixture([1.0], [np.linspace(-1, 1, dimension)], [covariance])
    x = law.sample(2000, np.random.default_rng(0))
    draws = Draws.independent(torch.from_numpy(latent.to_latent(x)))

    def log_density(g: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(law.log_prob(latent.from_latent(g.numpy())))

    found = importance_log_normalizer(latent, log_density, draws, torch.Generator().manual_seed(1))
    assert found.standard_error < 0.05
    assert abs(found.value) < 4 * found.standard_error
