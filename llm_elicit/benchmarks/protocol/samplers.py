"""Samplers: annealed Langevin dynamics, and reverse diffusion by Heun's method.

A drift b = ∇log π and the move x ← x + εA b + √(2ε) A^½ n keep π as ε → 0 only if εA does not
depend on x: a step ε/τ(x) would leave τ·π invariant instead. A = E[b bᵀ]⁻¹ over the particles is
the inverse of the density's mean curvature (its Fisher information), so ε is dimensionless,
the same for every density; noise averaged over two steps (Leimkuhler and Matthews, 2013)
makes the stationary law exact for Gaussians and second-order accurate otherwise. Far from
equilibrium A is too timid along stiff directions, so start near the target: here from draws of
the utility density, whose modes also carry the right weights, which no local sampler can find.

*The paper's form* is kept for comparison: start from noise, plain steps ε·(σ/σ_max)²/τ(x).

*Reverse diffusion.* Going down dx/dσ = −σ s(x, σ) from N(mean, covariance + σ_max² I) turns noise
into draws (Karras et al., 2022, algorithm 1 without churn). A second network, trained by denoising
score matching on the draws of the Langevin sampler (algorithm 1 of Mikkola, Acerbi and Klami, 2026,
the optional step), draws the belief in some sixty network calls; its flow likelihood is the density
of those draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from llm_elicit.benchmarks.protocol.checks import one_of, rising, within
from llm_elicit.benchmarks.protocol.likelihood import FlowPrior, LikelihoodSettings, flow_log_prob
from llm_elicit.benchmarks.protocol.network import ScoreNetwork
from llm_elicit.benchmarks.protocol.training import (
    PairData,
    TrainingSettings,
    cosine_schedule,
    train_score,
)

Drift = Callable[[Tensor, float], Tensor]
Field = Callable[[Tensor], Tensor]
SCALINGS = ("constant", "field")
STARTS = ("utility", "noise")


@dataclass(frozen=True)
class LangevinSettings:
    """``steps`` per noise level, ``final_steps`` at the last; ``step`` is ε.

    ``scaling="constant"`` takes the same, preconditioned step everywhere, ε in units of A;
    ``"field"`` is the paper's ε·(σ/σ_start)²/τ(x), ε in squared latent units. ``start="utility"``
    starts from draws of the utility's belief and from twice the last noise level, whatever
    ``sigma_start`` and ``sigma_end`` say; ``"noise"`` from N(0, sigma_start² I).

    Raises
    ------
    DensityError : an unknown choice or a number out of range.
    """

    levels: int = 4
    steps: int = 8
    final_steps: int = 60
    step: float = 0.3
    sigma_start: float = 0.1
    sigma_end: float = 0.05
    scaling: str = "constant"
    start: str = "utility"

    def __post_init__(self) -> None:
        owner = "LangevinSettings"
        one_of(owner, "scaling", self.scaling, SCALINGS)
        one_of(owner, "start", self.start, STARTS)
        for name in ("levels", "steps", "final_steps", "step"):
            within(owner, name, getattr(self, name), 0.0)
        rising(owner, ("sigma_end", self.sigma_end), ("sigma_start", self.sigma_start))

    def ending_at(self, sigma: float) -> LangevinSettings:
        """Return the same settings for this last noise level (latent units)."""
        if self.start == "noise":
            return self
        return replace(self, sigma_start=2.0 * sigma, sigma_end=sigma)

    def schedule(self) -> list[float]:
        """Return the noise levels, decreasing to ``sigma_end``; a single level is ``sigma_end``.

        Examples
        --------
        >>> levels = LangevinSettings(levels=3, sigma_start=1.0, sigma_end=0.01).schedule()
        >>> [round(sigma, 3) for sigma in levels]
        [1.0, 0.1, 0.01]
        """
        if self.levels == 1:
            return [self.sigma_end]
        levels: list[float] = cosine_schedule(
            self.levels, self.sigma_end, self.sigma_start
        ).tolist()
        return levels


def sample_langevin(
    points: Tensor,
    drift: Drift,
    settings: LangevinSettings,
    generator: torch.Generator,
    field: Field | None = None,
) -> Tensor:
    """Carry points (n, d) down the noise levels; ``drift(x, σ)`` is ∇log π_σ (n, d).

    The last level's step falls to a tenth, which removes what discretization error is left.
    ``field`` is τ (n,) at points (n, d), for the paper's step alone.
    """
    if settings.scaling == "field" and field is not None:
        return _sample_as_published(points, drift, settings, generator, field)
    schedule = settings.schedule()
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
            points = points + (_tamed(step * (force @ low)) + noise) @ low.T
            previous = fresh
    return points


def _sample_as_published(
    points: Tensor,
    drift: Drift,
    settings: LangevinSettings,
    generator: torch.Generator,
    field: Field,
) -> Tensor:
    """x ← x + ε(x)·drift + √(2ε(x))·n with ε(x) = ε·(σ/σ_start)²/τ(x): it keeps τ·π, not π."""
    schedule = settings.schedule()
    for level, sigma in enumerate(schedule):
        last = level == len(schedule) - 1
        for _ in range(settings.final_steps if last else settings.steps):
            step = settings.step * (sigma / settings.sigma_start) ** 2 / field(points)[:, None]
            noise = torch.randn(points.shape, generator=generator, dtype=points.dtype)
            points = points + step * drift(points, sigma) + (2.0 * step).sqrt() * noise
    return points


def _tamed(move: Tensor) -> Tensor:
    """Shorten moves longer than √d in whitened units, which only strays far out make.

    At stationarity the forces are of norm √d there and the moves ε√d, so this never acts on the
    bulk, but without it a steep tail throws a stray particle to infinity.
    """
    limit = math.sqrt(move.shape[1])
    norm: Tensor = move.norm(dim=1, keepdim=True)
    return move * (limit / norm.clamp(min=1e-12)).clamp(max=1.0)


def _step_factor(force: Tensor) -> Tensor:
    """Cholesky factor of A = E[b bᵀ]⁻¹, (d, d), with the forces on strays clipped.

    A few particles far out would otherwise shrink everybody's step; the floor keeps steps
    below one latent unit where the density is flat.
    """
    d = force.shape[1]
    norm = force.norm(dim=1, keepdim=True)
    limit = 4.0 * norm.square().mean().sqrt().minimum(3.0 * norm.median() + 1e-6)
    clipped = force * (limit / norm.clamp(min=1e-12)).clamp(max=1.0)
    information = clipped.T @ clipped / len(force) + 0.5 * torch.eye(d, dtype=force.dtype)
    factor: Tensor = torch.linalg.cholesky(torch.linalg.inv(information))
    return factor


_CHUNK = 8192


@dataclass(frozen=True)
class HeunSettings:
    """``steps`` noise levels from ``sigma_max`` to ``sigma_min`` (latent units), spaced evenly in
    σ^(1/ρ). ``draws`` of the Langevin sampler train the second network by ``training``.

    Raises
    ------
    DensityError : a number out of its range.
    """

    steps: int = 32
    rho: float = 7.0
    sigma_min: float = 0.02
    sigma_max: float = 3.0
    draws: int = 16_384
    training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(joint=0.0, alone="winner", steps=3000)
    )

    def __post_init__(self) -> None:
        within("HeunSettings", "steps", self.steps, 1.0)
        within("HeunSettings", "rho", self.rho, 0.0)
        within("HeunSettings", "draws", self.draws, 0.0)
        rising("HeunSettings", ("sigma_min", self.sigma_min), ("sigma_max", self.sigma_max))


def edm_steps(settings: HeunSettings) -> list[float]:
    """Noise levels falling from σ_max to σ_min, then 0.

    Examples
    --------
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
    """Draw (n, d) points by going down the probability flow of ``score(x, σ)`` (n, d).

    Examples
    --------
    >>> import torch
    >>> standard = FlowPrior(torch.zeros(1).double(), torch.eye(1).double())
    >>> draws = sample_heun(2000, lambda x, s: -x / (1 + s**2), standard,
    ...                     HeunSettings(), torch.Generator().manual_seed(0))
    >>> bool(abs(draws.std() - 1.0) < 0.1)
    True
    """
    x = prior.sample(n, settings.sigma_max, generator)
    return torch.cat(
        [_descend(part, score, edm_steps(settings)) for part in torch.split(x, _CHUNK)]
    )


def _descend(x: Tensor, score: Callable[[Tensor, float], Tensor], levels: list[float]) -> Tensor:
    with torch.no_grad():
        for high, low in pairwise(levels):
            slope = -high * score(x, high)
            ahead = x + (low - high) * slope
            if low > 0.0:
                slope = 0.5 * (slope - low * score(ahead, low))
                ahead = x + (low - high) * slope
            x = ahead
    return x


@dataclass(frozen=True)
class Resampler:
    """The second network: draws by `sample_heun`, density by its own probability flow."""

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
        """Learn the score of draws (n, d) at every noise level."""
        ids = np.arange(len(draws))
        ones = torch.ones(len(draws), dtype=torch.float64)
        data = PairData(draws, torch.zeros_like(draws), ones, ids)
        trained = train_score(data, settings.training, seed, device=device)
        return cls(trained.network, FlowPrior.of(draws, ones), settings, likelihood)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw (n, d) points."""
        return sample_heun(n, self.score, self.prior, self.settings, generator)

    def log_prob(self, g: Tensor) -> Tensor:
        """Log-density (n,) of the draws at points (n, d), nats."""
        return flow_log_prob(g, self.score, self.prior, self.likelihood)

    def score(self, g: Tensor, sigma: float) -> Tensor:
        """Return ∇log of the smoothed density (n, d)."""
        point = g.to(self.network.gain)
        return self.network.side_scores(point, torch.zeros_like(point), sigma)[0].to(g)
