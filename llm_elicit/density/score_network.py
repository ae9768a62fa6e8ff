"""Networks for the utility of a point, trained on pairs by denoising score matching.

The judge sees pairs, and so does the loss. Let both points be draws of λ, and F(u(a) − u(b)) the
probability that a is preferred. Of the joint density of winner and loser (Mikkola, Acerbi and
Klami, 2026), 2 λ(a) λ(b) F(u(a) − u(b)), the scores are

    ∇_a = ∇log λ(a) + (F′/F) ∇u(a),    ∇_b = ∇log λ(b) − (F′/F) ∇u(b),

so that they determine u itself: there is no field by which to multiply. Smoothed by N(0, σ²I) the
two orders of a pair still add up to 2 λ_σ(a) λ_σ(b), whose scores are known exactly
(`Latent.sampling_score`), and the probability of the order is modelled as F(u_σ(a) − u_σ(b)),
which is exact as σ → 0. The networks, functions of the features and of σ, are trained for u_σ: the
scores of noisy pairs are matched to −noise/σ.

Several networks are trained, each without one fold of the pairs. Those held-out pairs choose the
form that training starts from (a constant, a linear or a quadratic form, fitted to choices by
Newton's method) and the step at which it stops; the average of the networks is the estimate.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from llm_elicit.density.errors import Index
from llm_elicit.density.likelihood import Noise
from llm_elicit.density.methods import Problem
from llm_elicit.density.torch_utils import Adam, ascend

_RIDGES = (1000.0, 100.0, 10.0, 1.0, 0.1, 0.01)
_MAX_TERMS, _MAX_ROWS = 600, 20_000
_STEPS, _TOLERANCE = 30, 1e-3


@dataclass(frozen=True)
class InitialForm:
    """A form for each fold, fitted without that fold's pairs.

    Attributes:
        form: "constant", "linear" or "quadratic".
        linear, curvature: b (K, p) and A (K, p, p) of b·t + tᵀA t, in units of the noise's scale.
        log_likelihood: log-likelihood of the held-out choices, nats per comparison.
    """

    form: str
    linear: Tensor
    curvature: Tensor
    log_likelihood: float


def fit_initial_form(
    sides: tuple[Tensor, Tensor], weights: Tensor, folds: Index, noise: Noise, category: Index
) -> InitialForm:
    """Return the form, and its ridge, that predict held-out choices best.

    Args:
        sides: features (n, p) of winners and of losers, of unit variance under λ.
        weights: (n,) of the comparisons.
        folds: (n,) the fold of each comparison.
        noise: noise of the choices.
        category: see `llm_elicit.density.latent.Latent.category`. Products within one feature's
            categories would add nothing, and are left out.
    """
    p, count, fold_of = len(category), int(folds.max()) + 1, torch.from_numpy(folds)
    i, j = np.triu_indices(p)
    distinct = (category[i] != category[j]) | (category[i] < 0)
    i, j = i[distinct], j[distinct]
    winners, losers = (torch.cat([t, t[:, i] * t[:, j]], 1) for t in sides)
    quadratic = {"quadratic": p + len(i)} if p + len(i) <= _MAX_TERMS else {}
    form, best = "constant", torch.zeros(count, p + len(i), dtype=torch.float64)
    likelihood = float(noise.log_cdf(torch.zeros((), dtype=torch.float64)))
    for name, size in {"linear": p, **quadratic}.items():
        columns, previous = (winners - losers)[:, :size], -math.inf
        betas = torch.zeros(count, size, dtype=torch.float64)
        for ridge in _RIDGES:  # falling
            difference = torch.empty(len(columns), dtype=torch.float64)
            for fold in range(count):
                in_fold = fold_of == fold
                rows = (~in_fold).nonzero()[:_MAX_ROWS, 0]
                betas[fold] = _maximize(columns[rows], weights[rows], noise, ridge, betas[fold])
                difference[in_fold] = columns[in_fold] @ betas[fold]
            value = float(noise.log_cdf(difference) @ weights / weights.sum())
            if value > likelihood:
                form, likelihood = name, value
                best = torch.nn.functional.pad(betas, (0, p + len(i) - size)) / noise.scale
            if value < previous:
                break
            previous = value
    curvature = torch.zeros(count, p, p, dtype=torch.float64)
    curvature[:, i, j] = best[:, p:]
    return InitialForm(form, best[:, :p], 0.5 * (curvature + curvature.mT), likelihood)


def _maximize(columns: Tensor, weights: Tensor, noise: Noise, ridge: float, at: Tensor) -> Tensor:
    """Return the coefficients (P,) of maximum penalized likelihood, by Newton from ``at``."""

    def value(at: Tensor) -> float:
        return float(noise.log_cdf(columns @ at) @ weights - 0.5 * ridge * at @ at)

    def derivatives(at: Tensor) -> tuple[Tensor, Tensor]:
        difference = columns @ at
        slope = torch.exp(noise.log_pdf(difference) - noise.log_cdf(difference)) * weights
        mass = noise.information(difference) * weights
        precision = columns.T @ (columns * mass[:, None])
        precision.diagonal().add_(ridge)
        return columns.T @ slope - ridge * at, precision

    return ascend(at, value, derivatives, torch.add, _STEPS, _TOLERANCE)[0]


_CHUNK = 4096
_AVERAGING, _CLIP = 0.98, 10.0
_LOG_FACTORS = -7.0, 3.0


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
        biases = start, 0.0 * start, 0.0 * start
        self.biases = nn.ParameterList(nn.Parameter(bias) for bias in biases)
        self.outlet = nn.Parameter(torch.zeros(count, width, 1))
        self.linear = nn.Parameter(torch.zeros(count, features, 1))
        self.quadratic = nn.Parameter(torch.zeros(count, features, features))

    @torch.no_grad()
    def load_form(self, start: InitialForm) -> None:
        """Let the networks be the forms of ``start``."""
        self.linear.copy_(start.linear[..., None])
        self.quadratic.copy_(start.curvature)

    def forward(self, t: Tensor, sigma: Tensor, nets: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return u_σ (K, n) of the networks ``nets`` and its gradient (K, n, p), in noise units.

        Features are (K, n, p) and levels (K, n, 1).
        """
        log_sigma = 0.5 * torch.log(sigma)
        context = torch.cat([log_sigma + 1.0, 0.5 * log_sigma.square(), torch.ones_like(sigma)], -1)
        inlet, outlet, curvature = self.inlet[nets], self.outlet[nets], self.quadratic[nets]
        weights = [hidden[nets] for hidden in self.hidden]
        biases = [bias[nets] for bias in self.biases]
        hidden, first = _silu(t @ inlet + context @ self.condition[nets] + biases[0])
        hidden, second = _silu(torch.baddbmm(biases[1], hidden, weights[0]))
        hidden, third = _silu(torch.baddbmm(biases[2], hidden, weights[1]))
        curved = t @ (curvature + curvature.mT)
        linear = self.linear[nets]
        value = (hidden @ outlet + t @ linear)[..., 0] + 0.5 * (curved * t).sum(-1)
        hidden_gradient = (third * outlet.mT) @ weights[1].mT
        hidden_gradient = ((hidden_gradient * second) @ weights[0].mT * first) @ inlet.mT
        scale = 1.0 / (1.0 + sigma.square())
        return scale[..., 0] * value, scale * (hidden_gradient + curved + linear.mT)

    @torch.no_grad()
    def mean(self, t: Tensor, sigma: float, nets: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return the average u_σ (n,) over the networks ``nets`` at features (n, p), and slope."""
        count, parts = len(range(self.count)[nets]), []
        for chunk in torch.split(t.to(self.outlet), _CHUNK):
            repeated = chunk.expand(count, *chunk.shape)
            value, slope = self(repeated, torch.full_like(repeated[..., :1], sigma), nets)
            parts.append((value.mean(0), slope.mean(0)))
        values, slopes = (torch.cat(part).to(t) for part in zip(*parts, strict=True))
        return values, slopes


class _Silu(torch.autograd.Function):
    """x sigmoid(x) and its derivative; PyTorch's own second derivatives take twice as long."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        share = torch.sigmoid(x)
        slope = torch.addcmul(share, x * share, 1.0 - share)
        ctx.save_for_backward(x, share, slope)
        return x * share, slope

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        x, share, slope = ctx.saved_tensors
        bend = torch.addcmul(2.0 + x, x, share, value=-2.0).mul_(share).mul_(1.0 - share)
        return torch.addcmul(gradients[0] * slope, gradients[1], bend)


def _silu(x: Tensor) -> tuple[Tensor, Tensor]:
    value, slope = _Silu.apply(x)  # type: ignore[no-untyped-call]
    return value, slope


@dataclass(frozen=True)
class TrainedNetworks:
    """The result of training.

    Attributes:
        networks, sigma: u_σ, and the noise level that it is evaluated at.
        winners, losers: u_σ (n,) of either side, by networks not trained on the pair.
        log_likelihood: log-likelihood of those choices, nats per comparison, at the best multiple
            of u_σ.
        step: number of the training step that the networks were taken from.
        start: the form that training started from.
    """

    networks: ScoreNetworks
    sigma: float
    winners: Tensor
    losers: Tensor
    log_likelihood: float
    step: int
    start: str


class _Trainer:
    """The networks in training, and the running average of their weights."""

    def __init__(self, problem: Problem, folds: Index) -> None:
        settings, generator, latent = problem.settings.score, problem.generator, problem.latent
        self.problem, self.settings, self.generator = problem, settings, generator
        self.steps = settings.steps_for(problem.judgments.size)
        self.pairs = torch.stack([problem.winners, problem.losers])
        self.features = latent.features(problem.winners), latent.features(problem.losers)
        self.folds = torch.from_numpy(folds)
        self.training_weights = problem.weights * (
            self.folds != torch.arange(settings.networks)[:, None]
        )
        count, features = settings.networks, self.features[0].shape[1]
        networks = ScoreNetworks(count, features, settings.width, generator)
        self.networks = networks.to(problem.settings.device)
        weighted = self.features, problem.weights, folds
        self.start = fit_initial_form(*weighted, problem.noise, latent.category)
        self.networks.load_form(self.start)
        self.adam = Adam(list(self.networks.parameters()))
        self.average = copy.deepcopy(self.networks).requires_grad_(False)

    def step(self, step: int) -> None:
        """Take the step of this number, counted from 1."""
        settings = self.settings
        weights, generator = self.training_weights, self.generator
        rows = torch.multinomial(weights, settings.batch, True, generator=generator)
        clean = self.pairs[:, rows].transpose(0, 1)  # (K, 2, B, d), winners first
        low, high = math.log(settings.sigma_min), math.log(settings.sigma_max)
        # One level for both points of a pair.
        shape = (settings.networks, 1, settings.batch, 1)
        sigma = torch.exp(low + (high - low) * torch.rand(shape, generator=generator).double())
        noise = torch.randn(clean.shape, generator=generator, dtype=clean.dtype)
        sigma = sigma.repeat(1, 2, 1, 1)
        score, log_win = self._score(clean + sigma * noise, sigma)
        error = (score * sigma.to(score) + noise.to(score)).square().sum(-1)
        denoising = 0.5 * error * (1.0 + 1.0 / sigma[..., 0].to(score).square())
        outcome_weight = settings.outcome_weight * clean.shape[-1] ** 2
        # Averaged over pairs and summed over networks.
        loss = (denoising.mean(1) - outcome_weight * log_win).mean(1).sum()
        gradients = torch.autograd.grad(loss, self.adam.parameters)
        norm = torch.stack([g.norm() for g in gradients]).norm()
        clip = (_CLIP / norm).clamp(max=1.0)
        rate = 0.5 * settings.learning_rate * (1.0 + math.cos(math.pi * step / self.steps))
        self.adam.step([clip * g for g in gradients], rate)
        decay = min(_AVERAGING, step / (step + 10.0))
        parameters = zip(self.average.parameters(), self.networks.parameters(), strict=True)
        for average, parameter in parameters:
            average.lerp_(parameter.detach(), 1.0 - decay)

    def _score(self, g: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores (K, 2, n, d) of noisy pairs at levels (K, 2, n, 1), and log F (K, n)."""
        latent, noise, outlet = self.problem.latent, self.problem.noise, self.networks.outlet
        shrink = 1.0 / torch.sqrt(1.0 + sigma.square())  # noisy points have unit variance again
        flat = (g * shrink).flatten(0, 2)
        t = latent.features(flat).view(len(g), -1, self.networks.features).to(outlet)
        utility, slope = self.networks(t, sigma.flatten(1, 2).to(outlet))
        winners, losers = utility.chunk(2, 1)
        difference = noise.scale * (winners - losers)
        log_win = noise.log_cdf(difference)
        pull = noise.scale * torch.exp(noise.log_pdf(difference) - log_win)
        slope = torch.cat([pull, -pull], 1)[..., None] * slope
        pulled = latent.gradient_from_features(flat, slope.flatten(0, 1).to(flat)).view(g.shape)
        prior = latent.sampling_score(g.flatten(0, 2), sigma.flatten(0, 2)).view(g.shape)
        return prior.to(outlet) + (shrink * pulled).to(outlet), log_win

    @torch.no_grad()
    def predict_held_out(self, sigma: float) -> tuple[Tensor, Tensor]:
        """Return u_σ (n,) of winners and of losers, by the averaged network of the pair's fold."""
        winners, losers = (torch.zeros(len(self.folds)).double() for _ in range(2))
        for fold in range(self.settings.networks):
            rows = self.folds == fold
            for values, t in zip((winners, losers), self.features, strict=True):
                values[rows] = self.average.mean(t[rows], sigma, slice(fold, fold + 1))[0]
        return winners, losers

    def evaluate(self, step: int) -> TrainedNetworks:
        """Return the averaged networks, at the noise level that predicts held-out choices best."""
        weights, noise = self.problem.weights, self.problem.noise
        normalized_weights, candidates = weights / weights.sum(), list[TrainedNetworks]()
        for sigma in self.settings.sigmas:
            sides = self.predict_held_out(sigma)
            difference = noise.scale * (sides[0] - sides[1])

            def loss(log_factor: float, difference: Tensor = difference) -> float:
                return -float(noise.log_cdf(math.exp(log_factor) * difference) @ normalized_weights)

            score = -minimize_scalar(loss, bounds=_LOG_FACTORS, method="bounded").fun
            form = self.start.form
            candidates.append(TrainedNetworks(self.average, sigma, *sides, score, step, form))
        best_candidate = max(candidates, key=lambda trained: trained.log_likelihood)
        return replace(best_candidate, networks=copy.deepcopy(self.average))


def train_networks(problem: Problem, folds: Index) -> TrainedNetworks:
    """Train the networks and keep the averaged weights that predict held-out choices best.

    Args:
        problem: the comparisons and settings.
        folds: (n,) the fold of each comparison; each network is trained without one fold.
    """
    trainer, settings = _Trainer(problem, folds), problem.settings.score
    best = trainer.evaluate(0)
    for step in range(1, trainer.steps + 1):
        trainer.step(step)
        if step % settings.check_every and step != trainer.steps:
            continue
        if problem.progress is not None:
            problem.progress("score", step, trainer.steps)
        best = max(best, trainer.evaluate(step), key=lambda trained: trained.log_likelihood)
        if step - best.step >= settings.patience * settings.check_every:
            break
    return best
