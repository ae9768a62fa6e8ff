"""Sample from a score, and evaluate its density by the probability flow.

*Langevin dynamics.* A drift b = ∇log π and the move x ← x + εA b + √(2ε) A^½ n keep π as ε → 0 only
if εA does not depend on x: a step ε/τ(x) leaves τ·π invariant instead, unless the drift ε∇(1/τ) is
added. A = E[b bᵀ]⁻¹ over the
particles is the inverse of the density's mean curvature (its Fisher information), so ε is
dimensionless, the same for every density; noise averaged over two steps (Leimkuhler and Matthews,
2013) makes the stationary law exact for Gaussians and second-order accurate otherwise. Far from
equilibrium A gives too short steps along stiff directions, so sampling starts from draws of the
utility density, whose modes also have the right weights, which no local sampler can find. For
comparison, the paper's form starts from noise and takes plain steps ε·(σ/σ_max)²/τ(x).

*Reverse diffusion.* Going down dx/dσ = −σ s(x, σ) from N(mean, covariance + σ_max² I) turns noise
into draws (Karras et al., 2022, algorithm 1 without churn). A second network, trained by denoising
score matching on the draws of the Langevin sampler (algorithm 1 of Mikkola, Acerbi and Klami, 2026,
the optional step), draws the belief in some sixty network calls; its flow likelihood is the density
of those draws.

*Density of the winners.* dx/dσ = −σ s(x, σ) carries p_w at σ_min to p_w smoothed at σ_max, so

    log p_w(x) = log p_σmax(x(σ_max)) − ∫ σ ∇·s(x(σ), σ) dσ

(instantaneous change of variables; eq. C.2 of Mikkola, Acerbi and Klami, 2026). At σ_max the
density is taken as a Gaussian with the winners' mean and covariance plus σ_max² I. The
divergence is exact, one reverse pass per feature.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torchdiffeq import odeint

from llm_elicit.baselines.protocol.network import (
    PairData,
    ScoreNetwork,
    cosine_schedule,
    train_score,
)
from llm_elicit.baselines.protocol.settings import (
    FIXED,
    HeunSettings,
    LangevinSettings,
    LikelihoodSettings,
)
from llm_elicit.density.errors import DensityError
from llm_elicit.density.sampling import LOG_2PI

Score = Callable[[Tensor, float], Tensor]


@dataclass(frozen=True)
class FlowPrior:
    """The density at σ_max, nearly Gaussian: mean (d,) and covariance (d, d) without the noise."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, points: Tensor, weights: Tensor) -> FlowPrior:
        """Return the prior with the mean and covariance of points (n, d) with weights (n,)."""
        share = weights / weights.sum()
        mean = share @ points
        centred = points - mean
        return cls(mean, (centred * share[:, None]).T @ centred)

    @classmethod
    def at_zero(cls, dimension: int) -> FlowPrior:
        """Return the prior N(0, σ² I), as of points that are all 0."""
        zero = torch.zeros(dimension, dtype=torch.float64)
        return cls(zero, torch.diag(zero))

    def factor(self, sigma: float) -> Tensor:
        """Return the Cholesky factor (d, d) of covariance + σ² I."""
        noise = sigma**2 * torch.eye(len(self.mean), dtype=self.mean.dtype)
        low: Tensor = torch.linalg.cholesky(self.covariance + noise)
        return low

    def sample(self, n: int, sigma: float, generator: torch.Generator) -> Tensor:
        """Draw points (n, d) with noise of level σ."""
        white = torch.randn(n, len(self.mean), generator=generator, dtype=self.mean.dtype)
        return self.mean + white @ self.factor(sigma).T

    def log_prob(self, x: Tensor, sigma: float) -> Tensor:
        """Return log N(x; mean, covariance + σ² I), (n,), at points (n, d)."""
        low = self.factor(sigma)
        white = torch.linalg.solve_triangular(low, (x - self.mean).T, upper=False)
        size = low.diagonal().log().sum() + 0.5 * len(low) * LOG_2PI
        log_prob: Tensor = -0.5 * white.square().sum(0) - size
        return log_prob


def flow_log_prob(
    x: Tensor, score: Score, prior: FlowPrior, settings: LikelihoodSettings
) -> Tensor:
    """Return log p_w (n,) at latent points (n, d).

    Examples:
        >>> import torch
        >>> standard = FlowPrior(torch.zeros(1).double(), torch.eye(1).double())
        >>> settings = LikelihoodSettings(sigma_min=1e-3)
        >>> x = torch.zeros(1, 1).double()
        >>> value = flow_log_prob(x, lambda y, s: -y / (1 + s**2), standard, settings)
        >>> round(float(value.item()), 2)
        -0.92
    """
    parts = torch.split(x, settings.chunk)
    return torch.cat([_solve(part, score, prior, settings) for part in parts])


def _solve(x: Tensor, score: Score, prior: FlowPrior, settings: LikelihoodSettings) -> Tensor:
    fixed = settings.solver in FIXED
    low, high = settings.sigma_min, settings.sigma_max

    def velocity(time: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        # If the velocity is almost zero, the solver's first trial step is far beyond the end.
        sigma = float(time) if fixed else math.exp(min(float(time), math.log(high)))
        value, divergence = score_and_divergence(state[0], score, sigma)
        speed = sigma if fixed else sigma**2
        return -speed * value, speed * divergence

    times = torch.tensor([math.log(low), math.log(high)], dtype=x.dtype)
    if fixed:
        times = torch.linspace(low, high, settings.grid, dtype=x.dtype)
    start = (x, torch.zeros_like(x[:, 0]))
    accuracy = {"rtol": settings.rtol, "atol": settings.atol}
    path, gained = odeint(velocity, start, times, method=settings.solver, **accuracy)
    log_prob: Tensor = prior.log_prob(path[-1], high) - gained[-1]
    return log_prob


def score_and_divergence(x: Tensor, score: Score, sigma: float) -> tuple[Tensor, Tensor]:
    """Return s(x, σ) (n, d) and ∇·s (n,)."""
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        value = score(point, sigma)
        divergence = torch.zeros_like(x[:, 0])
        for i in range(x.shape[1]):
            (slope,) = torch.autograd.grad(value[:, i].sum(), point, retain_graph=True)
            divergence = divergence + slope[:, i]
    return value.detach(), divergence.detach()


Drift = Callable[[Tensor, float], Tensor]
Field = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""τ (n,) at points (n, d) and its gradient (n, d), None for steps without the drift ε∇(1/τ)."""


def langevin_levels(settings: LangevinSettings) -> list[float]:
    """Return the noise levels, decreasing to ``sigma_end``; a single level is ``sigma_end``.

    Examples:
        >>> levels = langevin_levels(LangevinSettings(levels=3, sigma_start=1.0, sigma_end=0.01))
        >>> [round(sigma, 3) for sigma in levels]
        [1.0, 0.1, 0.01]
    """
    if settings.levels == 1:
        return [settings.sigma_end]
    levels = cosine_schedule(settings.levels, settings.sigma_end, settings.sigma_start)
    return [float(level) for level in levels]


def sample_langevin(
    points: Tensor,
    drift: Drift,
    settings: LangevinSettings,
    generator: torch.Generator,
    field: Field | None = None,
) -> Tensor:
    """Move points (n, d) through decreasing noise levels; ``drift(x, σ)`` is ∇log π_σ (n, d).

    The step of the last level decreases to a tenth, which reduces the discretization error.
    ``field`` is τ, for steps ε/τ(x) only, with its gradient where their drift is to be added.
    """
    if settings.scaling != "constant" and field is not None:
        return _sample_as_published(points, drift, settings, generator, field)
    schedule = langevin_levels(settings)
    previous = torch.randn(points.shape, generator=generator, dtype=points.dtype)
    for level, sigma in enumerate(schedule):
        last = level == len(schedule) - 1
        count = settings.final_steps if last else settings.steps
        for k in range(count):
            step = settings.step * (0.1 ** (k / count) if last else 1.0)
            force = drift(points, sigma)
            low = _step_factor(force)
            fresh = torch.randn(points.shape, generator=generator, dtype=points.dtype)
            noise = math.sqrt(step / 2.0) * (previous + fresh)
            # Moves longer than √d in whitened units, which only outlying particles make, are
            # shortened: one in a steep tail would diverge. At stationarity moves are ε√d.
            move, limit = step * (force @ low), math.sqrt(points.shape[1])
            size = move.norm(dim=1, keepdim=True).clamp(min=1e-12)
            points = points + (move * (limit / size).clamp(max=1.0) + noise) @ low.T
            previous = fresh
    return points


def _sample_as_published(
    points: Tensor,
    drift: Drift,
    settings: LangevinSettings,
    generator: torch.Generator,
    field: Field,
) -> Tensor:
    """Sample by the published step x ← x + ε(x)·drift + √(2ε(x))·n, ε(x) = ε·(σ/σ_start)²/τ(x).

    It leaves τ·π invariant, not π; with ∇ε(x) = −ε(x)·∇τ/τ added to the move it leaves π invariant.
    """
    schedule = langevin_levels(settings)
    for level, sigma in enumerate(schedule):
        last = level == len(schedule) - 1
        for _ in range(settings.final_steps if last else settings.steps):
            tau, slope = field(points)
            step = settings.step * (sigma / settings.sigma_start) ** 2 / tau[:, None]
            force = drift(points, sigma)
            if slope is not None:
                force = force - slope / tau[:, None]
            noise = torch.randn(points.shape, generator=generator, dtype=points.dtype)
            points = points + step * force + (2.0 * step).sqrt() * noise
            if not bool(torch.isfinite(points).all()):
                raise DensityError(
                    f"Langevin sampling diverged at noise level {sigma:.3g}: steps of "
                    f"{settings.step:g} are too long for this score; lower LangevinSettings.step."
                )
    return points


def _step_factor(force: Tensor) -> Tensor:
    """Return the Cholesky factor of A = E[b bᵀ]⁻¹, (d, d), with large forces clipped.

    A few outlying particles would otherwise shrink the steps of all; the ridge keeps steps below
    one latent unit where the density is flat.
    """
    d = force.shape[1]
    norm = force.norm(dim=1, keepdim=True)
    limit = 4.0 * norm.square().mean().sqrt().minimum(3.0 * norm.median() + 1e-6)
    clipped = force * (limit / norm.clamp(min=1e-12)).clamp(max=1.0)
    information = clipped.T @ clipped / len(force) + 0.5 * torch.eye(d, dtype=force.dtype)
    factor: Tensor = torch.linalg.cholesky(torch.linalg.inv(information))
    return factor


_CHUNK = 8192


def edm_steps(settings: HeunSettings) -> list[float]:
    """Return noise levels that fall from σ_max to σ_min, and then 0.

    Examples:
        >>> [round(s, 3) for s in edm_steps(HeunSettings(steps=3, sigma_min=0.01, sigma_max=1.0))]
        [1.0, 0.145, 0.01, 0.0]
    """
    power = 1.0 / settings.rho
    ends = settings.sigma_max**power, settings.sigma_min**power
    levels = np.linspace(*ends, settings.steps) ** settings.rho
    return [*levels.tolist(), 0.0]


def sample_heun(
    n: int,
    score: Callable[[Tensor, float], Tensor],
    prior: FlowPrior,
    settings: HeunSettings,
    generator: torch.Generator,
) -> Tensor:
    """Return points (n, d) drawn by following the probability flow of ``score(x, σ)`` to small σ.

    Examples:
        >>> import torch
        >>> standard = FlowPrior(torch.zeros(1).double(), torch.eye(1).double())
        >>> draws = sample_heun(2000, lambda x, s: -x / (1 + s**2), standard,
        ...                     HeunSettings(), torch.Generator().manual_seed(0))
        >>> bool(abs(draws.std() - 1.0) < 0.1)
        True
    """
    parts, levels = [], edm_steps(settings)
    for x in torch.split(prior.sample(n, settings.sigma_max, generator), _CHUNK):
        with torch.no_grad():
            for high, low in pairwise(levels):
                slope = -high * score(x, high)
                ahead = x + (low - high) * slope
                if low > 0.0:
                    slope = 0.5 * (slope - low * score(ahead, low))
                    ahead = x + (low - high) * slope
                x = ahead  # noqa: PLW2901 - the points on their way
        parts.append(x)
    return torch.cat(parts)


@dataclass(frozen=True)
class Resampler:
    """The second network, with draws by `sample_heun` and a density by its probability flow."""

    network: ScoreNetwork
    prior: FlowPrior
    settings: HeunSettings
    likelihood: LikelihoodSettings

    @classmethod
    def train(
        cls,
        draws: Tensor,
        settings: HeunSettings,
        likelihood: LikelihoodSettings,
        seed: int,
        device: str = "cpu",
    ) -> Resampler:
        """Train a network for the score of draws (n, d) at every noise level."""
        ids = np.arange(len(draws))
        ones = torch.ones(len(draws), dtype=torch.float64)
        data = PairData(draws, torch.zeros_like(draws), ones, ids)
        trained = train_score(data, settings.training, seed, device=device)
        return cls(trained.network, FlowPrior.of(draws, ones), settings, likelihood)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw (n, d) points."""
        return sample_heun(n, self.score, self.prior, self.settings, generator)

    def log_prob(self, g: Tensor) -> Tensor:
        """Return the log-density (n,) of the draws at points (n, d), nats."""
        return flow_log_prob(g, self.score, self.prior, self.likelihood)

    def score(self, g: Tensor, sigma: float) -> Tensor:
        """Return ∇log of the smoothed density (n, d)."""
        point = g.to(self.network.gain)
        return self.network.side_scores(point, torch.zeros_like(point), sigma)[0].to(g)
