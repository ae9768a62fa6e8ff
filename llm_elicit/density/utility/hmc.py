"""Hamiltonian Monte Carlo for densities that are nearly normal, many chains at once.

In coordinates z in which the normal approximation is N(0, I) the density is exp(−½|z|² − Φ(z)).
Between leapfrog steps by −∇Φ, positions and velocities rotate as under N(0, I) (Beskos,
Pinski, Sanz-Serna and Stuart, 2011), so that only what is not normal causes rejections.

If nearly all choices are certain, the curvature at the mode may be wrong by a factor of ten in
some directions. The normal approximation is therefore estimated again from the chains after each
of several warm-up windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

LogDensity = Callable[[Tensor], Tensor]
Slope = Callable[[Tensor], Tensor]
Guide = Callable[[Tensor], Slope]
_ACCEPTED = 0.8
_START = 0.5  # of the normal approximation's spread: its tails may be too heavy
_ADAPTATION = 0.7
_QUARTER_TURN = 0.5 * math.pi
_FEWEST = 16
_LATER = 0.25
_LEAST = 1e-8
_LONGER, _KEPT = 2, 3  # of the last window: its length in others', and positions kept of a chain


@dataclass(frozen=True)
class HmcSettings:
    """Effort of the sampler.

    Args:
        windows: number of windows; all but the last adapt the coordinates.
        chains: most chains of the windows that adapt.
        trajectories: fresh velocities in each window that adapts.
        leapfrog_steps: gradient evaluations in each trajectory.
    """

    windows: int = 5
    trajectories: int = 6
    leapfrog_steps: int = 12
    chains: int = 32


def sample_hmc(
    log_density: LogDensity,
    root: Tensor,
    count: int,
    generator: torch.Generator,
    settings: HmcSettings = HmcSettings(),
    guide: Guide | None = None,
) -> Tensor:
    """Return S = ``count`` draws (S, P) from a density with its mode at 0.

    They are positions of a third as many chains, at three times of the last window, which is twice
    as long as the others. Its chains begin where fewer ones have been in the window before.

    Args:
        log_density: maps (S, P) to (S,), differentiable.
        root: (P, F); draws of the normal approximation are root z, z ~ N(0, I).
        guide: given the positions (S, P) at which a window begins, returns a cheaper gradient,
            which maps (S, P) to (S, P) and is used in that window; `slope_of` without. Proposals
            are accepted by ``log_density``, which therefore stays the invariant density.

    Example:
        >>> import torch
        >>> found = sample_hmc(lambda x: -0.5 * (x.squeeze(1) / 2.0).square(), torch.ones(1, 1),
        ...                    2000, torch.Generator().manual_seed(0))
        >>> bool(1.8 < found.std() < 2.2)
        True
    """
    if not (count and root.shape[1]):
        return torch.zeros(count, len(root))
    long = replace(settings, trajectories=_LONGER * settings.trajectories)
    thinned = [long.trajectories * (part + 1) // _KEPT - 1 for part in range(_KEPT)]
    chains = max(-(-count // _KEPT), _FEWEST)  # fewer chains do not show a covariance
    root, angle = root.double(), root.shape[1] ** -0.5
    z = _START * torch.randn((min(chains, settings.chains), root.shape[1]), generator=generator)
    for remaining in reversed(range(settings.windows)):
        axes = root.float()
        slope = slope_of(log_density) if guide is None else guide(z @ axes.T)
        density = _Potential(log_density, slope, axes)
        effort = settings if remaining else long
        trace, angle = _window(density, z, angle, generator, effort)
        z = trace[-1]
        if remaining == 1:
            # The last positions of all chains first, then those before.
            z = trace.flip(0).flatten(0, 1).repeat(-(-chains // trace[..., 0].numel()), 1)[:chains]
        if remaining:
            spread = _spread(trace[len(trace) // 2 :])
            root, z = root @ spread, torch.linalg.solve(spread, z.double().T).T.float()
    return (trace[thinned[::-1]].flatten(0, 1) @ axes.T)[:count]


def slope_of(log_density: LogDensity) -> Slope:
    """Return the gradient of a log-density by automatic differentiation."""

    def slope(x: Tensor) -> Tensor:
        with torch.enable_grad():
            free = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(log_density(free).sum(), [free])
        return gradient

    return slope


@dataclass(frozen=True)
class _Potential:
    """A log-density in coordinates z (F,) of ``axes`` (P, F), and its gradient, ``slope``."""

    log_density: LogDensity
    slope: Slope
    axes: Tensor

    def value(self, z: Tensor) -> Tensor:
        """Return minus the log-density (S,)."""
        with torch.no_grad():
            return -self.log_density(z @ self.axes.T)

    def force(self, z: Tensor) -> Tensor:
        """Return −∇Φ (S, F)."""
        return self.slope(z @ self.axes.T) @ self.axes + z


def _window(
    density: _Potential,
    z: Tensor,
    angle: float,
    generator: torch.Generator,
    settings: HmcSettings,
) -> tuple[Tensor, float]:
    """Return the positions of chains from z (S, F) after each trajectory: (T, S, F).

    The step begins at ``angle``; that at the end is returned, too.
    """
    longest = _QUARTER_TURN / settings.leapfrog_steps
    angle = min(longest, angle)
    potential, force, trace = density.value(z), density.force(z), []
    for _ in range(settings.trajectories):
        velocity = torch.randn(z.shape, generator=generator)
        moved, speed, pushed = z, velocity, force
        for _ in range(settings.leapfrog_steps):
            speed = speed + 0.5 * angle * pushed
            turned = math.cos(angle) * moved + math.sin(angle) * speed
            speed = math.cos(angle) * speed - math.sin(angle) * moved
            moved, pushed = turned, density.force(turned)
            speed = speed + 0.5 * angle * pushed
        reached = density.value(moved)
        loss = reached - potential + 0.5 * (speed.square() - velocity.square()).sum(1)
        chance = torch.exp(-loss.nan_to_num(math.inf).clamp(min=0.0))
        accepted = torch.rand(len(z), generator=generator) < chance
        potential = torch.where(accepted, reached, potential)
        z, force = (
            torch.where(accepted[:, None], new, old) for new, old in ((moved, z), (pushed, force))
        )
        trace.append(z)
        angle = min(longest, angle * math.exp(_ADAPTATION * (float(chance.mean()) - _ACCEPTED)))
    return torch.stack(trace), angle


def _spread(trace: Tensor) -> Tensor:
    """Return a root (F, F) of the covariance of positions (T, S, F).

    Positions of one chain are correlated, so all but one per chain count for a quarter;
    where there are fewer than dimensions, off-diagonal covariances are shrunk.
    """
    places = trace.flatten(0, 1).double()
    covariance = torch.cov(places.T, correction=0).reshape(places.shape[1], places.shape[1])
    counted = trace.shape[1] + _LATER * (len(places) - trace.shape[1])
    sure = counted / (counted + trace.shape[2])
    shrunk = sure * covariance + (1.0 - sure) * torch.diag(covariance.diagonal())
    variances, axes = torch.linalg.eigh(shrunk)
    root: Tensor = axes * variances.clamp_min(_LEAST).sqrt()
    return root
