"""Sample an unnormalized density by annealing particles to it from λ, or from a better start.

Sequential Monte Carlo (Del Moral, Doucet and Jasra, 2006): exact draws of a start q (λ, or
`llm_elicit.density.proposal`) are moved along q^(1−β) π^β. Each next β is where the effective
sample size falls to a set share; particles are then resampled systematically and moved by the
Metropolis-adjusted Langevin algorithm, preconditioned by their own covariance. Far-apart modes
keep their weights, since weights and not walks carry mass between them, and the increments give
log Z = log ∫ π.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from llm_elicit.density.density_model import Draws

LogDensity = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class AnnealingSettings:
    """``ess`` share kept at each temperature; MALA moves per temperature and at the end.

    The last moves stop, after at most ``final_moves``, once particles have left where they were
    resampled: when a further move lengthens their mean squared way from there, in no direction,
    by more than the share ``settled``.
    """

    ess: float = 0.5
    moves: int = 4
    final_moves: int = 20
    acceptance: float = 0.6
    settled: float = 0.1


@dataclass(frozen=True)
class Annealed:
    """Particles from the target, log Z in nats, number of temperatures, the step adapted to it.

    Particles of one family descend from the same draw of the start.
    """

    draws: Draws
    log_normalizer: float
    temperatures: int
    step: float


@dataclass
class _Particles:
    points: Tensor
    start: tuple[Tensor, Tensor]
    target: tuple[Tensor, Tensor]

    def take(self, index: Tensor) -> _Particles:
        start = (self.start[0][index], self.start[1][index])
        target = (self.target[0][index], self.target[1][index])
        return _Particles(self.points[index], start, target)


def anneal(
    points: Tensor,
    start: LogDensity,
    target: LogDensity,
    generator: torch.Generator,
    settings: AnnealingSettings,
    step: float = 0.5,
) -> Annealed:
    """Carry exact draws ``points`` (n, d) of ``start`` (normalized) to ``target``.

    Both densities map (n, d) to log-densities (n,) and their gradients (n, d). ``step`` is the
    first Langevin step, in units of the particles' covariance.
    """
    particles = _Particles(points, start(points), target(points))
    beta, log_normalizer, temperatures = 0.0, 0.0, 0
    families = torch.arange(len(points))
    while beta < 1.0:
        ratio = particles.target[0] - particles.start[0]
        increment = _next_increment(ratio, 1.0 - beta, settings.ess)
        log_weights = increment * ratio
        log_normalizer += float(torch.logsumexp(log_weights, 0)) - math.log(len(ratio))
        beta = 1.0 if increment >= 1.0 - beta else beta + increment
        parents = _systematic(log_weights, generator)
        particles, families = particles.take(parents), families[parents]
        temperatures += 1
        moves, way = settings.moves, None
        if beta == 1.0:
            # The start no longer counts, so it need not be evaluated.
            start, moves, way = _nothing, settings.final_moves, _Way(particles.points)
        for _ in range(moves):
            particles, rate = _mala(particles, (start, target), beta, step, generator)
            step *= math.exp(0.5 * (rate - settings.acceptance))
            if way is not None and way.growth(particles.points) < settings.settled:
                break
    return Annealed(Draws(particles.points, families), log_normalizer, temperatures, step)


def _nothing(g: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros_like(g[:, 0]), torch.zeros_like(g)


class _Way:
    """How far particles have come from where they were resampled, in their own units."""

    def __init__(self, points: Tensor) -> None:
        self.origin, self.low = points, _spread(points)
        self.squared = torch.zeros_like(points[0])

    def growth(self, points: Tensor) -> float:
        """By what share the mean squared way grew since the last call; of all directions the
        largest."""
        moved = (points - self.origin).T
        squared = torch.linalg.solve_triangular(self.low, moved, upper=False).square().mean(1)
        growth = 1.0 - self.squared / squared.clamp(min=1e-30)
        self.squared = squared
        return float(growth.max())


def _next_increment(ratio: Tensor, remaining: float, share: float) -> float:
    """Largest step in β whose weights keep the effective sample size at ``share``."""

    def effective(increment: float) -> float:
        log_weights = increment * ratio
        twice = 2.0 * torch.logsumexp(log_weights, 0) - torch.logsumexp(2.0 * log_weights, 0)
        return math.exp(float(twice)) / len(ratio)

    if effective(remaining) >= share:
        return remaining
    low, high = 0.0, remaining
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if effective(middle) >= share else (low, middle)
    return high


def _systematic(log_weights: Tensor, generator: torch.Generator) -> Tensor:
    """Systematic resampling: indices (n,), each particle about n·weight times."""
    n = len(log_weights)
    edges = torch.softmax(log_weights.double(), 0).cumsum(0)
    offset = torch.rand((), generator=generator, dtype=torch.float64)
    marks = (torch.arange(n, dtype=torch.float64) + offset) / n
    return torch.searchsorted(edges, marks).clamp(max=n - 1)


def _mala(
    particles: _Particles,
    densities: tuple[LogDensity, LogDensity],
    beta: float,
    step: float,
    generator: torch.Generator,
) -> tuple[_Particles, float]:
    """One preconditioned Langevin proposal, accepted or refused by Metropolis and Hastings."""
    x = particles.points
    low = _spread(x)
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    drift = 0.5 * step * (_bridge(particles, beta)[1] @ low)
    proposal = x + math.sqrt(step) * (noise + drift / math.sqrt(step)) @ low.T
    moved = _Particles(proposal, densities[0](proposal), densities[1](proposal))
    back_drift = 0.5 * step * (_bridge(moved, beta)[1] @ low)
    # In whitened coordinates the move is  √step·noise + drift; the way back must undo it.
    back_noise = -noise - (drift + back_drift) / math.sqrt(step)
    log_accept = (
        _bridge(moved, beta)[0]
        - _bridge(particles, beta)[0]
        + 0.5 * (noise.square() - back_noise.square()).sum(-1)
    )
    uniform = torch.rand(len(x), generator=generator, dtype=x.dtype)
    accept = torch.log(uniform) < log_accept
    rate = float(log_accept.clamp(max=0.0).exp().nan_to_num(0.0).mean())
    return _choose(accept, moved, particles), rate


def _choose(accept: Tensor, moved: _Particles, stay: _Particles) -> _Particles:
    def pick(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return torch.where(accept, a[0], b[0]), torch.where(accept[:, None], a[1], b[1])

    points = torch.where(accept[:, None], moved.points, stay.points)
    return _Particles(points, pick(moved.start, stay.start), pick(moved.target, stay.target))


def _bridge(particles: _Particles, beta: float) -> tuple[Tensor, Tensor]:
    value = (1.0 - beta) * particles.start[0] + beta * particles.target[0]
    return value, (1.0 - beta) * particles.start[1] + beta * particles.target[1]


def _spread(x: Tensor) -> Tensor:
    """Cholesky factor of the particles' covariance, with a floor for degenerate clouds."""
    centred = x - x.mean(0)
    covariance = centred.T @ centred / len(x)
    floor = 1e-6 * torch.eye(x.shape[1], dtype=x.dtype) * (covariance.diagonal().mean() + 1e-6)
    factor: Tensor = torch.linalg.cholesky(covariance + floor)
    return factor
