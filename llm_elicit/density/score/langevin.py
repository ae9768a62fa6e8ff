"""Annealed Langevin dynamics with a position-independent, preconditioned step.

A drift b = ∇log π and the move x ← x + εA b + √(2ε) A^½ n keep π as ε → 0 only if εA does not
depend on x: a step ε/τ(x) would leave τ·π invariant instead. A = E[b bᵀ]⁻¹ over the particles is
the inverse of the density's mean curvature (its Fisher information), so ε is dimensionless,
the same for every density; noise averaged over two steps (Leimkuhler and Matthews, 2013)
makes the stationary law exact for Gaussians and second-order accurate otherwise. Far from
equilibrium A is too timid along stiff directions, so start near the target: here from draws of
the utility density, whose modes also carry the right weights, which no local sampler can find.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from llm_elicit.density.score.training import cosine_schedule

Drift = Callable[[Tensor, float], Tensor]


@dataclass(frozen=True)
class LangevinSettings:
    """``steps`` per noise level, ``final_steps`` at the last; ``step`` is ε, in units of A."""

    levels: int = 4
    steps: int = 8
    final_steps: int = 60
    step: float = 0.3
    sigma_start: float = 0.1
    sigma_end: float = 0.05


def sample_langevin(
    points: Tensor, drift: Drift, settings: LangevinSettings, generator: torch.Generator
) -> Tensor:
    """Carry points (n, d) down the noise levels; ``drift(x, σ)`` is ∇log π_σ (n, d).

    The last level's step falls to a tenth, which removes what discretization error is left.
    """
    schedule = cosine_schedule(settings.levels, settings.sigma_start, settings.sigma_end).tolist()
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
