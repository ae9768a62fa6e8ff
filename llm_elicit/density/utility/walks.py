"""Walks that leave a nearly normal law as it is: many draws of it at once.

In coordinates z in which a law's normal approximation is N(0, I), the law is exp(−½|z|² − Φ(z)),
Φ what is not normal about it. Hamiltonian walks whose free motion is the normal law's own, a
rotation of z and its velocity, and that are kicked by −∇Φ alone (Beskos, Pinski, Sanz-Serna and
Stuart, 2011) are accepted or refused by how badly the kicks were timed: what is normal costs
nothing, whatever the dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LogDensity = Callable[[Tensor], Tensor]
_ACCEPTED = 0.8
_START = 0.5  # of the normal law's spread: far out its tails may be steeper than they should
_PATIENCE = 0.7
_QUARTER_TURN = 0.5 * math.pi


@dataclass(frozen=True)
class WalkSettings:
    """``turns`` times a fresh velocity, and ``kicks`` along the way it leads."""

    turns: int = 12
    kicks: int = 8


@dataclass(frozen=True)
class _Place:
    """Where S walks stand, z (S, F), with log-densities (S,) and ∇Φ (S, F) there."""

    z: Tensor
    log_density: Tensor
    slope: Tensor

    def energy(self, velocity: Tensor) -> Tensor:
        return 0.5 * velocity.square().sum(1) - self.log_density

    def where(self, moved: Tensor, other: _Place) -> _Place:
        """``other`` where ``moved`` (S,) says so."""
        return _Place(
            torch.where(moved[:, None], other.z, self.z),
            torch.where(moved, other.log_density, self.log_density),
            torch.where(moved[:, None], other.slope, self.slope),
        )


def walk(
    log_density: LogDensity,
    scales: Tensor,
    count: int,
    generator: torch.Generator,
    settings: WalkSettings | None = None,
) -> Tensor:
    """Ends (S, P) of S = ``count`` walks under a law with its summit at 0.

    ``log_density`` maps (S, P) to (S,), differentiable; ``scales`` (P, F) are the normal
    approximation's: its draws are scales z, z ~ N(0, I).

    Examples
    --------
    >>> import torch
    >>> found = walk(lambda x: -0.5 * (x.squeeze(1) / 2.0).square(), torch.ones(1, 1), 2000,
    ...              torch.Generator().manual_seed(0))
    >>> bool(1.8 < found.std() < 2.2)
    True
    """
    settings = settings or WalkSettings()
    size = (count, scales.shape[1])
    if not all(size):
        return torch.zeros(count, len(scales))

    def place(z: Tensor) -> _Place:
        with torch.enable_grad():
            free = z.detach().requires_grad_()
            value = log_density(free @ scales.T)
            (uphill,) = torch.autograd.grad(value.sum(), [free])
        return _Place(z, value.detach(), -uphill - z)

    longest = _QUARTER_TURN / settings.kicks
    angle = min(longest, size[1] ** -0.5)
    at = place(_START * torch.randn(size, generator=generator))
    for _ in range(settings.turns):
        velocity = torch.randn(size, generator=generator)
        moved, speed = at, velocity
        for _ in range(settings.kicks):
            speed = speed - 0.5 * angle * moved.slope
            turned = math.cos(angle) * moved.z + math.sin(angle) * speed
            speed = math.cos(angle) * speed - math.sin(angle) * moved.z
            moved = place(turned)
            speed = speed - 0.5 * angle * moved.slope
        gain = (at.energy(velocity) - moved.energy(speed)).nan_to_num(-math.inf).clamp(max=0.0)
        accept = torch.log(torch.rand(count, generator=generator)) < gain
        at = at.where(accept, moved)
        angle *= math.exp(_PATIENCE * (float(torch.exp(gain).mean()) - _ACCEPTED))
        angle = min(longest, angle)
    return at.z @ scales.T
