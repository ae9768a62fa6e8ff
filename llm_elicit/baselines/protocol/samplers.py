"""Sample from a score, and evaluate its density by the probability flow.

*Langevin dynamics.* A drift b = ∇log π and the move x ← x + ε b + √(2ε) n keep π as ε → 0 only if ε
does not depend on x: the paper's step ε·(σ/σ_max)²/τ(x) leaves τ·π invariant instead, unless the
drift ε∇(1/τ) is added.

*Reverse diffusion.* Going down dx/dσ = −σ s(x, σ) from N(mean, covariance + σ_max² I) turns noise
into draws (Karras et al., 2022, algorithm 1 without churn).

*Density of the winners.* dx/dσ = −σ s(x, σ) carries p_w at σ_min to p_w smoothed at σ_max, so

    log p_w(x) = log p_σmax(x(σ_max)) − ∫ σ ∇·s(x(σ), σ) dσ

(instantaneous change of variables; eq. C.2 of Mikkola, Acerbi and Klami, 2026). At σ_max the
density is taken as a Gaussian. The divergence is exact, one reverse pass per feature.
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

from llm_elicit.baselines.protocol.network import SIGMA_MIN, cosine_schedule
from llm_elicit.density.errors import DensityError
from llm_elicit.density.sampling import LOG_2PI

Score = Callable[[Tensor, float], Tensor]
_CHUNK = 4096  # points whose flows are solved together
_HEUN_CHUNK, _HEUN_LEVELS, _RHO = 8192, 32, 7.0  # levels are even in σ^(1/ρ)


@dataclass(frozen=True)
class LangevinSettings:
    """Settings of the Langevin sampler.

    Attributes:
        levels: number of noise levels, from ``sigma_start`` to ``sigma_end``.
        steps: number of steps at each of them.
        step: the step size ε, in squared latent units: a step is ε·(σ/σ_start)²/τ(x).
        drift: whether the drift ε·(σ/σ_start)²·∇(1/τ) that such a step needs is added.
        at_belief: whether sampling starts from draws of the utility's belief, not from noise.
    """

    steps: int
    step: float
    sigma_start: float
    sigma_end: float = SIGMA_MIN
    levels: int = 40
    drift: bool = False
    at_belief: bool = False


@dataclass(frozen=True)
class LikelihoodSettings:
    """Settings of the density by the probability flow.

    Attributes:
        sigma_max, sigma_min: the ends of the flow, in latent units.
        adaptive: whether steps are adaptive and in ln σ, where the flow is least stiff; else they
            are on a fixed grid that is even in σ, most of which lies above the noise levels that
            matter.
        tolerance: of either solver, relative and absolute.
        grid: number of values of the fixed grid.
        matched: whether the density at σ_max has the winners' mean and covariance; else it is
            N(0, σ_max² I).
    """

    sigma_max: float
    sigma_min: float = SIGMA_MIN
    adaptive: bool = False
    tolerance: float = 1e-4
    grid: int = 40
    matched: bool = False


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
        >>> settings = LikelihoodSettings(3.0, 1e-3, adaptive=True)
        >>> x = torch.zeros(1, 1).double()
        >>> value = flow_log_prob(x, lambda y, s: -y / (1 + s**2), standard, settings)
        >>> round(float(value.item()), 2)
        -0.92
    """
    parts = torch.split(x, _CHUNK)
    return torch.cat([_solve(part, score, prior, settings) for part in parts])


def _solve(x: Tensor, score: Score, prior: FlowPrior, settings: LikelihoodSettings) -> Tensor:
    adaptive = settings.adaptive
    low, high = settings.sigma_min, settings.sigma_max

    def velocity(time: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        # If the velocity is almost zero, the solver's first trial step is far beyond the end.
        sigma = math.exp(min(float(time), math.log(high))) if adaptive else float(time)
        value, divergence = score_and_divergence(state[0], score, sigma)
        speed = sigma**2 if adaptive else sigma
        return -speed * value, speed * divergence

    times = torch.tensor([math.log(low), math.log(high)], dtype=x.dtype)
    if not adaptive:
        times = torch.linspace(low, high, settings.grid, dtype=x.dtype)
    start = (x, torch.zeros_like(x[:, 0]))
    accuracy = {"rtol": settings.tolerance, "atol": settings.tolerance}
    method = "dopri5" if adaptive else "implicit_adams"
    path, gained = odeint(velocity, start, times, method=method, **accuracy)
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


def sample_langevin(
    points: Tensor,
    drift: Drift,
    field: Field,
    settings: LangevinSettings,
    generator: torch.Generator,
) -> Tensor:
    """Move points (n, d) through decreasing noise levels; ``drift(x, σ)`` is ∇log π_σ (n, d).

    Raises:
        DensityError: a point left for infinity.
    """
    levels = cosine_schedule(settings.levels, settings.sigma_end, settings.sigma_start)
    for sigma in levels.tolist():
        for _ in range(settings.steps):
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


def edm_steps(sigma_min: float, sigma_max: float) -> list[float]:
    """Return noise levels that fall from σ_max to σ_min, evenly in σ^(1/ρ), and then 0.

    Examples:
        >>> levels = edm_steps(0.02, 3.0)
        >>> len(levels), round(levels[0], 2), levels[-1]
        (33, 3.0, 0.0)
    """
    ends = sigma_max ** (1.0 / _RHO), sigma_min ** (1.0 / _RHO)
    levels = np.linspace(*ends, _HEUN_LEVELS) ** _RHO
    return [*levels.tolist(), 0.0]


def sample_heun(
    n: int, score: Score, prior: FlowPrior, levels: list[float], generator: torch.Generator
) -> Tensor:
    """Return points (n, d) drawn by following the probability flow of ``score(x, σ)`` to small σ.

    A step of Heun's method (second order) from each of the decreasing levels to the next, and one
    of Euler's to 0.
    """
    parts = []
    for x in torch.split(prior.sample(n, levels[0], generator), _HEUN_CHUNK):
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
