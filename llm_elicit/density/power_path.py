"""The family p_k ∝ exp(k f) on boxes of the space: masses and particles along the powers k.

Annealed sequential Monte Carlo, all boxes at once: draws of a normal truncated to each box are
carried to exp(k f) for the first power and on to every further one, resampled and moved by
random-walk Metropolis steps that never leave the box. The means of the weights give
log ∫ exp(k f) over a box for every power, also where a box holds next to nothing of the belief.

*Truncated normals.* In every kind of latent coordinates, h = L g + m with L triangular, and each
feature is a function of its own h_j. Under g ~ N(0, I), each coordinate of g given those before it
is drawn from a standard normal truncated to where its feature stays within its bounds (the sampler
of Geweke, Hajivassiliou and Keane). The density of these draws is known in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import qmc
from torch import Tensor

from llm_elicit.density.errors import DensityError
from llm_elicit.density.transforms import Latent
from llm_elicit.density.utility_function import Utility

Array = npt.NDArray[np.float64]
_LOG_2PI = float(np.log(2.0 * np.pi))
_FARTHEST = 30.0  # standard deviations, beyond which λ holds nothing

_ESS = 0.5
_MOVES = 2
_ACCEPTED = 0.3
_BISECTIONS = 30
_JITTER = 1e-9


@dataclass(frozen=True)
class TruncatedNormal:
    """One law for each of G boxes: ``low``, ``high`` (G, d) bounds of h, ``root`` L (d, d)."""

    low: Tensor
    high: Tensor
    root: Tensor

    @classmethod
    def of(cls, latent: Latent, boxes: Array) -> TruncatedNormal:
        """The laws within boxes (G, d, 2), natural units; a free feature has (−inf, inf).

        Raises
        ------
        DensityError : bounds on a feature with categories, or a box outside λ's support.
        """
        sampling = latent.sampling
        grouped = np.argwhere(sampling.categorical & np.isfinite(boxes).any(-1))
        if grouped.size:
            raise DensityError(
                f"ranges: {boxes[tuple(grouped[0])].tolist()} bounds feature {grouped[0][1]}, whose"
                " values are categories; leave it free by (-inf, inf)."
            )
        low, high = (latent.axis(boxes[..., side]) for side in (0, 1))
        root = latent.root
        most = _FARTHEST * np.linalg.norm(root, axis=1)
        empty = np.flatnonzero(~((low < high) & (low < most) & (high > -most)).all(1))
        if empty.size:
            raise DensityError(
                f"ranges: box {boxes[empty[0]].tolist()} holds nothing of the sampling density; "
                "its bounds must lie within the support."
            )
        return cls(torch.from_numpy(low), torch.from_numpy(high), torch.from_numpy(root))

    def select(self, which: Tensor) -> TruncatedNormal:
        """The laws of some boxes."""
        return TruncatedNormal(self.low[which], self.high[which], self.root)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw (G, count, d) latent points, from the same scrambled Sobol points in all boxes."""
        groups, d = self.low.shape
        sobol = qmc.Sobol(d, rng=int(torch.randint(2**62, (), generator=generator)))
        uniform = torch.from_numpy(sobol.random_base2((count - 1).bit_length())[:count])
        g = torch.zeros(groups, count, d, dtype=torch.float64)
        for j in range(d):
            a, b = self._bounds(g, j)
            g[..., j] = _truncated(a, b, uniform[..., j])
        return g

    def log_density(self, g: Tensor) -> Tensor:
        """Log-density (G, N) at latent points (G, N, d) of the boxes."""
        total = -0.5 * (g.square() + _LOG_2PI).sum(-1)
        for j in range(g.shape[-1]):
            total = total - _log_mass(*self._bounds(g, j))
        return total

    def _bounds(self, g: Tensor, j: int) -> tuple[Tensor, Tensor]:
        """Bounds (G, N) of coordinate j given those before it."""
        before = g[..., :j] @ self.root[j, :j]
        a, b = ((side[:, j, None] - before) / self.root[j, j] for side in (self.low, self.high))
        return a.clamp(-_FARTHEST, _FARTHEST), b.clamp(-_FARTHEST, _FARTHEST)


def _truncated(a: Tensor, b: Tensor, uniform: Tensor) -> Tensor:
    """A standard normal within [a, b] by its quantile function, from the nearer tail."""
    flip = a > 0
    low, high = torch.where(flip, -b, a), torch.where(flip, -a, b)
    below, above = torch.special.ndtr(low), torch.special.ndtr(high)
    # Where the box is so far out that both round to one number, its middle will do.
    drawn = torch.special.ndtri(below + uniform * (above - below))
    drawn = torch.where(drawn.isfinite(), drawn, low + uniform * (high - low))
    drawn = torch.minimum(torch.maximum(drawn, low), high)
    return torch.where(flip, -drawn, drawn)


def _log_mass(a: Tensor, b: Tensor) -> Tensor:
    """log(Φ(b) − Φ(a)), from the nearer tail."""
    flip = a > 0
    low, high = torch.where(flip, -b, a), torch.where(flip, -a, b)
    upper, lower = torch.special.log_ndtr(high), torch.special.log_ndtr(low)
    inside: Tensor = upper + torch.log1p(-torch.exp((lower - upper).clamp(max=-1e-300)))
    return inside


@dataclass(frozen=True)
class PowerPath:
    """``log_mass`` (G, K): log ∫_R exp(k f) dz, nats, of region and power; ``points`` (K of
    (G, N, d)): latent particles of exp(k f) within each region.
    """

    powers: Array
    log_mass: Array
    points: tuple[Tensor, ...]


def follow_powers(
    latent: Latent,
    utility: Utility,
    boxes: Array,
    powers: Array,
    particles: int,
    generator: torch.Generator,
) -> PowerPath:
    """Carry particles within boxes (G, d, 2), natural units, along increasing powers (K,).

    Raises
    ------
    DensityError : a box that λ's support has no part in, or bounds on a feature with categories.
    """
    swarm = _Swarm(latent, utility, boxes, particles, generator)
    masses, points = [], []
    for power in powers:
        swarm.advance(float(power))
        masses.append(swarm.log_mass.clone())
        points.append(swarm.points.clone())
    return PowerPath(powers, torch.stack(masses, 1).numpy(), tuple(points))


class _Swarm:
    """Particles (G, N, d) of every region at one power, their utilities and log-masses (G,)."""

    def __init__(
        self,
        latent: Latent,
        utility: Utility,
        boxes: Array,
        particles: int,
        generator: torch.Generator,
    ) -> None:
        self.latent, self.utility, self.generator = latent, utility, generator
        self.boxes, self.within = boxes, TruncatedNormal.of(latent, boxes)
        self.points = self.within.draw(particles, generator)
        self.log_mass = torch.zeros(len(boxes), dtype=torch.float64)
        self.f, self.base = self._evaluate(self.points)
        self.start = self.within.log_density(self.points)
        self.power = 0.0
        # To the first power the exponent goes from 0 to 1; from then on the power grows.
        self.bridged = False
        self.step = torch.full((len(boxes),), 2.4 / math.sqrt(boxes.shape[1]), dtype=torch.float64)

    def _evaluate(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """f (G, N), and what the log-density has beside k f: taper and volume."""
        flat = points.reshape(-1, points.shape[-1])
        value = self.utility(self.latent.features(flat))
        base = self.latent.taper(flat) + self.latent.log_volume(flat)
        return value.reshape(points.shape[:-1]), base.reshape(points.shape[:-1])

    def advance(self, power: float) -> None:
        """Carry all regions to this power."""
        if not self.bridged:
            self._anneal(power, power * self.f + self.base - self.start, bridge=True)
            self.bridged, self.power = True, power
            return
        self._anneal(power, (power - self.power) * self.f, bridge=False)
        self.power = power

    def _anneal(self, power: float, ratio: Tensor, *, bridge: bool) -> None:
        """Weights by parts of ``ratio`` (G, N), resampling and moves, until all of it is used."""
        done = torch.zeros(len(ratio), dtype=torch.float64)
        while bool((done < 1.0).any()):
            active = torch.nonzero(done < 1.0)[:, 0]
            part = _increments(ratio[active], 1.0 - done[active])
            logs = part[:, None] * ratio[active]
            size = logs.shape[1]
            self.log_mass[active] += torch.logsumexp(logs, 1) - math.log(size)
            done[active] = torch.where(part >= 1.0 - done[active], 1.0, done[active] + part)
            self._resample(active, logs)
            for _ in range(_MOVES):
                self._move(active, done[active], power, bridge=bridge)
            if bridge:
                ratio = power * self.f + self.base - self.start
            else:
                ratio = (power - self.power) * self.f

    def _log_density(
        self, done: Tensor, power: float, parts: tuple[Tensor, Tensor, Tensor], *, bridge: bool
    ) -> Tensor:
        f, base, start = parts
        share = done[:, None]
        if bridge:
            return (1.0 - share) * start + share * (power * f + base)
        return (self.power + share * (power - self.power)) * f + base

    def _resample(self, active: Tensor, logs: Tensor) -> None:
        """Systematic resampling within each region."""
        size = logs.shape[1]
        edges = torch.softmax(logs, 1).cumsum(1)
        offset = torch.rand(1, generator=self.generator, dtype=torch.float64)
        marks = (torch.arange(size, dtype=torch.float64) + offset) / size
        index = torch.searchsorted(edges, marks.expand_as(edges).contiguous()).clamp(max=size - 1)
        self.points[active] = torch.take_along_dim(self.points[active], index[..., None], 1)
        for values in (self.f, self.base, self.start):
            values[active] = torch.take_along_dim(values[active], index, 1)

    def _move(self, active: Tensor, done: Tensor, power: float, *, bridge: bool) -> None:
        """One random-walk Metropolis step of every particle, scaled by its region's covariance."""
        points = self.points[active]
        centred = points - points.mean(1, keepdim=True)
        covariance = centred.mT @ centred / points.shape[1]
        diagonal = covariance.diagonal(dim1=1, dim2=2)
        covariance = covariance + torch.diag_embed(0.02 * diagonal + _JITTER)
        root = torch.linalg.cholesky(covariance)
        # The same random numbers in all regions: differences of their log-masses vary less.
        white = torch.randn(points.shape[1:], generator=self.generator, dtype=torch.float64)
        proposal = points + self.step[active][:, None, None] * (white @ root.mT)
        inside = _inside(self.latent, proposal, self.boxes[active.numpy()])
        proposal = torch.where(inside[..., None], proposal, points)
        f, base = self._evaluate(proposal)
        start = self.start[active]
        if bridge:
            start = self.within.select(active).log_density(proposal)
        new = self._log_density(done, power, (f, base, start), bridge=bridge)
        here = (self.f[active], self.base[active], self.start[active])
        old = self._log_density(done, power, here, bridge=bridge)
        chance = torch.exp((new - old).clamp(max=0.0)).nan_to_num(0.0) * inside
        draw = torch.rand(chance.shape[1:], generator=self.generator, dtype=torch.float64)
        accepted = draw < chance
        self.points[active] = torch.where(accepted[..., None], proposal, points)
        for values, moved in ((self.f, f), (self.base, base), (self.start, start)):
            values[active] = torch.where(accepted, moved, values[active])
        rate = chance.mean(1)
        self.step[active] = (self.step[active] * torch.exp(rate - _ACCEPTED)).clamp(1e-3, 5.0)


def _increments(ratio: Tensor, remaining: Tensor) -> Tensor:
    """For each region (G,), the largest part of ``remaining`` that keeps the effective size."""

    def effective(part: Tensor) -> Tensor:
        logs = part[:, None] * ratio
        twice = 2.0 * torch.logsumexp(logs, 1) - torch.logsumexp(2.0 * logs, 1)
        return torch.exp(twice) / ratio.shape[1]

    low, high = torch.zeros_like(remaining), remaining.clone()
    enough = effective(remaining) >= _ESS
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        fine = effective(middle) >= _ESS
        low, high = torch.where(fine, middle, low), torch.where(fine, high, middle)
    return torch.where(enough, remaining, high.clamp(min=1e-9))


def _inside(latent: Latent, points: Tensor, boxes: Array) -> Tensor:
    """Which latent points (G, N, d) lie in their region's box (G, d, 2)."""
    flat = points.reshape(-1, points.shape[-1]).numpy()
    x = latent.from_latent(flat).reshape(points.shape)
    inside = (x >= boxes[:, None, :, 0]) & (x <= boxes[:, None, :, 1])
    return torch.from_numpy(inside.all(-1))


def whole(dimension: int) -> Array:
    """The box (1, d, 2) of the whole space."""
    return np.broadcast_to(np.array([-np.inf, np.inf]), (1, dimension, 2)).copy()


def log_grid(low: float, high: float, count: int) -> Array:
    """``count`` powers from low to high, equally spaced in their logarithm."""
    return np.exp(np.linspace(math.log(low), math.log(high), count))


def unique_boxes(boxes: Sequence[Array]) -> tuple[Array, npt.NDArray[np.intp]]:
    """Different boxes (G, d, 2) of several arrays (n, d, 2), and each one's number among them."""
    every = np.concatenate(boxes)
    flat = every.reshape(len(every), -1)
    unique, index = np.unique(flat, axis=0, return_inverse=True)
    return unique.reshape(-1, *every.shape[1:]), index.reshape(-1)
