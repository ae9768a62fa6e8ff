"""Walks that leave a nearly normal law as it is: many draws of it at once.

In coordinates z in which a law's normal approximation is N(0, I), the law is exp(−½|z|² − Φ(z)),
Φ what is not normal about it. Hamiltonian walks whose free motion is the normal law's own, a
rotation of z and its velocity, and that are kicked by −∇Φ alone (Beskos, Pinski, Sanz-Serna and
Stuart, 2011) are accepted or refused by how badly the kicks were timed: what is normal costs
nothing, whatever the dimension.

Where choices are nearly all decided, the curvature at a summit says little of the law around it:
some directions are ten times as wide as it would have them. So walks go in stages, all walks
together, and between stages the normal approximation becomes the one that they have shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LogDensity = Callable[[Tensor], Tensor]
Near = Callable[[Tensor], LogDensity]
_ACCEPTED = 0.8
_START = 0.5  # of the normal law's spread: far out its tails may be steeper than they should
_PATIENCE = 0.7
_QUARTER_TURN = 0.5 * math.pi
_FEWEST = 16
_LATER = 0.25
_LEAST = 1e-8


@dataclass(frozen=True)
class WalkSettings:
    """In each of ``stages`` ``turns`` times a fresh velocity, and ``kicks`` along the way it leads.

    After each stage but the last, coordinates are scaled by how the walks lie.
    """

    stages: int = 5
    turns: int = 6
    kicks: int = 12


def walk(
    log_density: LogDensity,
    scales: Tensor,
    count: int,
    generator: torch.Generator,
    settings: WalkSettings | None = None,
    near: Near | None = None,
) -> Tensor:
    """Ends (S, P) of S = ``count`` walks under a law with its summit at 0.

    ``log_density`` maps (S, P) to (S,), differentiable; ``scales`` (P, F) are the normal
    approximation's: its draws are scales z, z ~ N(0, I). ``near`` gives, for the places (S, P)
    where a stage begins, a cheaper log-density that does the kicking; what is accepted is
    ``log_density``'s to say, so that the law stays the same.

    Examples
    --------
    >>> import torch
    >>> found = walk(lambda x: -0.5 * (x.squeeze(1) / 2.0).square(), torch.ones(1, 1), 2000,
    ...              torch.Generator().manual_seed(0))
    >>> bool(1.8 < found.std() < 2.2)
    True
    """
    settings = settings or WalkSettings()
    if not (count and scales.shape[1]):
        return torch.zeros(count, len(scales))
    size = (max(count, _FEWEST), scales.shape[1])  # a few walks do not show how a law lies
    scales = scales.double()
    z = _START * torch.randn(size, generator=generator)
    for left in reversed(range(settings.stages)):
        axes = scales.float()
        guide = log_density if near is None else near(z @ axes.T)
        trace = _stage(_Law(log_density, guide, axes), z, generator, settings)
        z = trace[-1]
        if left:
            spread = _spread(trace[len(trace) // 2 :])
            scales, z = scales @ spread, torch.linalg.solve(spread, z.double().T).T.float()
    return (z @ axes.T)[:count]


@dataclass(frozen=True)
class _Law:
    """A log-density, and the ``guide`` that kicks, in coordinates z (F,) of ``axes`` (P, F)."""

    log_density: LogDensity
    guide: LogDensity
    axes: Tensor

    def potential(self, z: Tensor) -> Tensor:
        """Minus the log-density (S,)."""
        with torch.no_grad():
            return -self.log_density(z @ self.axes.T)

    def kick(self, z: Tensor) -> Tensor:
        """−∇Φ (S, F)."""
        with torch.enable_grad():
            free = z.detach().requires_grad_()
            (uphill,) = torch.autograd.grad(self.guide(free @ self.axes.T).sum(), [free])
        return uphill + z


def _stage(law: _Law, z: Tensor, generator: torch.Generator, settings: WalkSettings) -> Tensor:
    """Where walks from z (S, F) stand after each turn: (T, S, F)."""
    longest = _QUARTER_TURN / settings.kicks
    angle = min(longest, z.shape[1] ** -0.5)
    potential, kick, trace = law.potential(z), law.kick(z), []
    for _ in range(settings.turns):
        velocity = torch.randn(z.shape, generator=generator)
        moved, speed, kicked = z, velocity, kick
        for _ in range(settings.kicks):
            speed = speed + 0.5 * angle * kicked
            turned = math.cos(angle) * moved + math.sin(angle) * speed
            speed = math.cos(angle) * speed - math.sin(angle) * moved
            moved, kicked = turned, law.kick(turned)
            speed = speed + 0.5 * angle * kicked
        reached = law.potential(moved)
        loss = reached - potential + 0.5 * (speed.square() - velocity.square()).sum(1)
        chance = torch.exp(-loss.nan_to_num(math.inf).clamp(min=0.0))
        accepted = torch.rand(len(z), generator=generator) < chance
        potential = torch.where(accepted, reached, potential)
        z, kick = (
            torch.where(accepted[:, None], new, old) for new, old in ((moved, z), (kicked, kick))
        )
        trace.append(z)
        angle = min(longest, angle * math.exp(_PATIENCE * (float(chance.mean()) - _ACCEPTED)))
    return torch.stack(trace)


def _spread(trace: Tensor) -> Tensor:
    """A root (F, F) of the covariance of places (T, S, F).

    Places of one walk hang together, so those beyond one a walk count for a quarter; where there
    are fewer than dimensions, covariances beside the diagonal are shrunk.
    """
    places = trace.flatten(0, 1).double()
    covariance = torch.cov(places.T, correction=0).reshape(places.shape[1], places.shape[1])
    counted = trace.shape[1] + _LATER * (len(places) - trace.shape[1])
    sure = counted / (counted + trace.shape[2])
    shrunk = sure * covariance + (1.0 - sure) * torch.diag(covariance.diagonal())
    variances, axes = torch.linalg.eigh(shrunk)
    root: Tensor = axes * variances.clamp_min(_LEAST).sqrt()
    return root
