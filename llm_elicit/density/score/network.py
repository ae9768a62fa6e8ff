"""Networks for the utility of a point, trained on pairs by denoising score matching.

The judge sees pairs, and so does the loss. Let both points be draws of λ, and F(u(a) − u(b)) the
probability that a is preferred. Of the joint density of winner and loser (Mikkola, Acerbi and
Klami, 2026), 2 λ(a) λ(b) F(u(a) − u(b)), the scores are

    ∇_a = ∇log λ(a) + (F′/F) ∇u(a),    ∇_b = ∇log λ(b) − (F′/F) ∇u(b),

so that they determine u itself: there is no field by which to multiply. Smoothed by N(0, σ²I) the
two orders of a pair still add up to 2 λ_σ(a) λ_σ(b), whose scores are known exactly
(`Latent.sampling_score`), and the probability of the order is modelled as F(u_σ(a) − u_σ(b)),
which is exact as σ → 0. The networks, functions of the features and of σ, are trained for u_σ: the
scores of noisy pairs are matched to −noise/σ. Each noise is used with both signs, which cancels
the target's variance of order 1/σ² to first order.

Several networks are trained, each without one fold of the pairs. Those held-out pairs choose the
form that training starts from (a constant, a linear or a quadratic form, fitted to choices by
Newton's method) and the step at which it stops; the average of the networks is the estimate.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from llm_elicit.density.latent import Latent
from llm_elicit.density.likelihood import Noise
from llm_elicit.density.score.start import Start, fit_start
from llm_elicit.density.settings import ScoreSettings
from llm_elicit.density.torch_utils import Adam

_CHUNK = 4096
_AVERAGING, _CLIP = 0.98, 10.0
_SCALES = torch.logspace(-1.5, 3.0, 46, dtype=torch.float64)


class ScoreNetworks(nn.Module):
    """K networks with three hidden layers of SiLU units and a quadratic form each."""

    def __init__(self, count: int, features: int, width: int, generator: torch.Generator) -> None:
        super().__init__()

        def normal(fan_in: int, fan_out: int, gain: float = 1.0) -> nn.Parameter:
            start = torch.randn(count, fan_in, fan_out, generator=generator)
            return nn.Parameter(gain / math.sqrt(fan_in) * start)

        self.count, self.features, self.width = count, features, width
        self.inlet, self.condition = normal(features, width, 1.2), normal(3, width, 0.5)
        self.hidden = nn.ParameterList(normal(width, width) for _ in range(2))
        start = 0.5 * torch.randn(count, 1, width, generator=generator)
        self.biases = nn.ParameterList(
            nn.Parameter(bias) for bias in (start, 0.0 * start, 0.0 * start)
        )
        self.outlet = nn.Parameter(torch.zeros(count, width, 1))
        self.linear = nn.Parameter(torch.zeros(count, features, 1))
        self.quadratic = nn.Parameter(torch.zeros(count, features, features))

    @torch.no_grad()
    def load_form(self, start: Start) -> None:
        """Let the networks be the forms of ``start``."""
        self.linear.copy_(start.linear[..., None])
        self.quadratic.copy_(start.curvature)

    def forward(self, t: Tensor, sigma: Tensor, which: slice = slice(None)) -> Tensor:
        """L_σ (K, n) of the networks ``which`` at features (K, n, p) and levels (K, n, 1)."""
        log_sigma = 0.5 * torch.log(sigma)
        known = torch.cat([log_sigma + 1.0, 0.5 * log_sigma.square(), torch.ones_like(sigma)], -1)
        hidden = t @ self.inlet[which] + known @ self.condition[which] + self.biases[0][which]
        for weight, bias in zip(self.hidden, list(self.biases)[1:], strict=True):
            hidden = nn.functional.silu(hidden) @ weight[which] + bias[which]
        value = nn.functional.silu(hidden) @ self.outlet[which] + t @ self.linear[which]
        value = value[..., 0] + ((t @ self.quadratic[which]) * t).sum(-1)
        return value / (1.0 + sigma[..., 0].square())

    def log_odds(self, t: Tensor, sigma: float, which: slice = slice(None)) -> Tensor:
        """Return the average L_σ (n,) over the networks ``which`` at features (n, p)."""
        with torch.no_grad():
            parts = [self._mean(chunk.to(self.outlet), sigma, which) for chunk in _chunks(t)]
        return torch.cat(parts).to(t)

    def mean_and_slope(self, t: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        """Return the average L_σ (n,) over networks at features (n, p), and its gradient."""
        values, slopes = [], []
        for chunk in _chunks(t):
            with torch.enable_grad():
                point = chunk.detach().to(self.outlet).requires_grad_()
                value = self._mean(point, sigma)
                (slope,) = torch.autograd.grad(value.sum(), point)
            values.append(value.detach())
            slopes.append(slope)
        return torch.cat(values).to(t), torch.cat(slopes).to(t)

    def _mean(self, t: Tensor, sigma: float, which: slice = slice(None)) -> Tensor:
        repeated = t.expand(len(range(self.count)[which]), *t.shape)
        values: Tensor = self(repeated, torch.full_like(repeated[..., :1], sigma), which)
        return values.mean(0)


def _chunks(t: Tensor) -> tuple[Tensor, ...]:
    return torch.split(t, _CHUNK)


@dataclass(frozen=True)
class PairData:
    """Latent winners and losers (n, d), weights (n,), and each pair's fold (n,)."""

    winners: Tensor
    losers: Tensor
    weights: Tensor
    folds: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Trained:
    """Networks, the log-odds (n,) of winners and losers by networks not trained on them, the step
    that the networks are from and the noise level that they are evaluated at."""

    networks: ScoreNetworks
    winners: Tensor
    losers: Tensor
    step: int
    sigma: float


class _Trainer:
    def __init__(
        self,
        data: PairData,
        latent: Latent,
        noise: Noise,
        settings: ScoreSettings,
        generator: torch.Generator,
        device: str,
    ) -> None:
        self.data, self.latent, self.noise = data, latent, noise
        self.settings, self.generator = settings, generator
        self.pairs = torch.stack([data.winners, data.losers])
        self.features = latent.features(data.winners), latent.features(data.losers)
        folds = torch.from_numpy(data.folds)
        self.seen = data.weights * (folds != torch.arange(settings.networks)[:, None])
        self.networks = ScoreNetworks(
            settings.networks, self.features[0].shape[1], settings.width, generator
        ).to(device)
        self.start = fit_start(self.features, data.weights, data.folds, noise, latent.category)
        self.networks.load_form(self.start)
        self.adam = Adam(list(self.networks.parameters()))
        self.average = [p.detach().clone() for p in self.networks.parameters()]

    def step(self, step: int) -> None:
        settings = self.settings
        loss = self._loss()
        gradients = torch.autograd.grad(loss, self.adam.parameters)
        norm = torch.stack([g.norm() for g in gradients]).norm()
        clip = (_CLIP / norm).clamp(max=1.0)
        rate = 0.5 * settings.learning_rate * (1.0 + math.cos(math.pi * step / settings.steps))
        self.adam.step([clip * g for g in gradients], rate)
        decay = min(_AVERAGING, step / (step + 10.0))
        for average, parameter in zip(self.average, self.networks.parameters(), strict=True):
            average.lerp_(parameter.detach(), 1.0 - decay)

    def _loss(self) -> Tensor:
        """Denoising loss of the pairs' scores, averaged over pairs and summed over networks."""
        settings, count = self.settings, self.settings.networks
        rows = torch.multinomial(self.seen, settings.batch, True, generator=self.generator)
        clean = self.pairs[:, rows].transpose(0, 1)  # (K, 2, B, d), winners first
        low, high = math.log(settings.sigma_min), math.log(settings.sigma_max)
        shape = (count, 1, settings.batch, 1)  # one level for both points of a pair
        sigma = torch.exp(low + (high - low) * torch.rand(shape, generator=self.generator).double())
        noise = torch.randn(clean.shape, generator=self.generator, dtype=clean.dtype)
        noise, sigma = torch.cat([noise, -noise], 2), sigma.repeat(1, 2, 2, 1)
        score, log_win = self._score(clean.repeat(1, 1, 2, 1) + sigma * noise, sigma)
        error = (score * sigma.to(score) + noise.to(score)).square().sum(-1)
        denoising = 0.5 * error * (1.0 + 1.0 / sigma[..., 0].to(score).square())
        return (denoising.mean(1) - self.settings.outcome_weight * log_win).mean(1).sum()

    def _score(self, g: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (K, 2, n, d) of noisy pairs at levels (K, 2, n, 1), and log F (K, n)."""
        latent, like = self.latent, self.networks.outlet
        shrink = 1.0 / torch.sqrt(1.0 + sigma.square())  # noisy points have unit variance again
        flat = (g * shrink).flatten(0, 2)
        t = latent.features(flat).view(len(g), -1, self.networks.features)
        t = t.to(like).requires_grad_()
        utility = self.networks(t, sigma.flatten(1, 2).to(like)).view(g.shape[:3])
        log_win = self.noise.log_cdf(self.noise.scale * (utility[:, 0] - utility[:, 1]))
        (slope,) = torch.autograd.grad(log_win.sum(), t, create_graph=True)
        pulled = latent.features_slope(flat, slope.flatten(0, 1).to(flat)).view(g.shape)
        prior = latent.sampling_score(g.flatten(0, 2), sigma.flatten(0, 2)).view(g.shape)
        return prior.to(like) + (shrink * pulled).to(like), log_win

    @torch.no_grad()
    def held_out(self, sigma: float) -> tuple[Tensor, Tensor]:
        """Log-odds (n,) of winners and of losers, each by the network not trained on the pair."""
        winners, losers = (torch.zeros(len(self.data.folds)).double() for _ in range(2))
        folds = torch.from_numpy(self.data.folds)
        for fold in range(self.settings.networks):
            rows = folds == fold
            for found, t in zip((winners, losers), self.features, strict=True):
                found[rows] = self.networks.log_odds(t[rows], sigma, slice(fold, fold + 1))
        return winners, losers

    def evaluate(self, step: int) -> tuple[float, Trained]:
        """The averaged networks at the noise level of highest held-out likelihood, and that."""
        current = [p.detach().clone() for p in self.networks.parameters()]
        _load(self.networks, self.average)
        found = [(self.held_out(sigma), sigma) for sigma in self.settings.sigmas]
        likelihoods = [
            _choice_likelihood(winners - losers, self.data.weights, self.noise)
            for (winners, losers), _ in found
        ]
        best = int(np.argmax(likelihoods))
        sides, sigma = found[best]
        kept = Trained(copy.deepcopy(self.networks), *sides, step, sigma)
        _load(self.networks, current)
        return likelihoods[best], kept


def train_networks(
    data: PairData,
    latent: Latent,
    noise: Noise,
    settings: ScoreSettings,
    generator: torch.Generator,
    progress: Callable[[int], None] = lambda _: None,
    device: str = "cpu",
) -> Trained:
    """Train the networks and keep the averaged weights that predict held-out choices best.

    ``progress`` is called with the number of steps done; ``device`` is where networks stay.
    """
    trainer = _Trainer(data, latent, noise, settings, generator, device)
    score, best = trainer.evaluate(0)
    for step in range(1, settings.steps + 1):
        trainer.step(step)
        if step % settings.check_every and step != settings.steps:
            continue
        progress(step)
        likelihood, found = trainer.evaluate(step)
        if likelihood > score:
            score, best = likelihood, found
        elif step - best.step >= settings.patience * settings.check_every:
            break
    best.networks.requires_grad_(False)
    return best


@torch.no_grad()
def _load(networks: ScoreNetworks, values: list[Tensor]) -> None:
    for parameter, value in zip(networks.parameters(), values, strict=True):
        parameter.copy_(value)


def _choice_likelihood(difference: Tensor, weights: Tensor, noise: Noise) -> float:
    """Mean log-likelihood of choices at the best multiple of these differences (n,)."""
    logs = noise.log_cdf(_SCALES[:, None] * noise.scale * difference)
    return float((logs @ weights).max() / weights.sum())
