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
from llm_elicit.density.latent import Latent
from llm_elicit.density.sampling import bisect
from llm_elicit.density.utility_function import Utility

Array = npt.NDArray[np.float64]
_LOG_2PI = float(np.log(2.0 * np.pi))
_FARTHEST = 30.0  # standard deviations, beyond which λ has no mass in floats

_ESS = 0.5
_MOVES = 2
_ACCEPTED = 0.3
_BISECTIONS = 30
_JITTER = 1e-9


@dataclass(frozen=True)
class TruncatedNormal:
    """A truncated normal for each of G boxes.

    Args:
        low, high: (G, d) bounds of h; see `Latent.box`.
        root: L (d, d).
    """

    low: Tensor
    high: Tensor
    root: Tensor

    @classmethod
    def of(cls, latent: Latent, boxes: Array) -> TruncatedNormal:
        """Return those of boxes (G, d, 2), natural units; a free feature has (−inf, inf)."""
        sampling = latent.sampling
        grouped = np.argwhere(sampling.categorical & np.isfinite(boxes).any(-1))
        if grouped.size:
            raise DensityError(
                f"ranges: {boxes[tuple(grouped[0])].tolist()} bounds feature {grouped[0][1]}, whose"
                " values are categories; leave it free by (-inf, inf)."
            )
        low, high = latent.box(boxes)
        root = latent.root
        most = _FARTHEST * np.linalg.norm(root, axis=1)
        empty = np.flatnonzero(~((low < high) & (low < most) & (high > -most)).all(1))
        if empty.size:
            raise DensityError(
                f"ranges: box {boxes[empty[0]].tolist()} holds nothing of the sampling density; "
                "its bounds must lie within the support."
            )
        return cls(torch.from_numpy(low), torch.from_numpy(high), torch.from_numpy(root))

    def select(self, indices: Tensor) -> TruncatedNormal:
        """Return the distributions of some boxes."""
        return TruncatedNormal(self.low[indices], self.high[indices], self.root)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Return latent points (G, count, d), by the same scrambled Sobol points in all boxes."""
        groups, d = self.low.shape
        sobol = qmc.Sobol(d, rng=int(torch.randint(2**62, (), generator=generator)))
        uniform = torch.from_numpy(sobol.random_base2((count - 1).bit_length())[:count])
        g = torch.zeros(groups, count, d, dtype=torch.float64)
        for j in range(d):
            a, b = self._bounds(g, j)
            g[..., j] = _truncated(a, b, uniform[..., j])
        return g

    def log_density(self, g: Tensor) -> Tensor:
        """Return log-densities (G, N) at latent points (G, N, d) of the boxes."""
        total = -0.5 * (g.square() + _LOG_2PI).sum(-1)
        for j in range(g.shape[-1]):
            total = total - _log_mass(*self._bounds(g, j))
        return total

    def _bounds(self, g: Tensor, j: int) -> tuple[Tensor, Tensor]:
        """Return the bounds (G, N) of coordinate j given those before it."""
        before = g[..., :j] @ self.root[j, :j]
        a, b = ((side[:, j, None] - before) / self.root[j, j] for side in (self.low, self.high))
        return a.clamp(-_FARTHEST, _FARTHEST), b.clamp(-_FARTHEST, _FARTHEST)


def _truncated(a: Tensor, b: Tensor, uniform: Tensor) -> Tensor:
    """Return standard normals within [a, b] by their quantile function, from the nearer tail."""
    flip = a > 0
    low, high = torch.where(flip, -b, a), torch.where(flip, -a, b)
    below, above = torch.special.ndtr(low), torch.special.ndtr(high)
    # Far out, both may round to one number; then a uniform draw between the bounds serves.
    drawn = torch.special.ndtri(below + uniform * (above - below))
    drawn = torch.where(drawn.isfinite(), drawn, low + uniform * (high - low))
    drawn = torch.minimum(torch.maximum(drawn, low), high)
    return torch.where(flip, -drawn, drawn)


def _log_mass(a: Tensor, b: Tensor) -> Tensor:
    """Return log(Φ(b) − Φ(a)), from the nearer tail."""
    flip = a > 0
    low, high = torch.where(flip, -b, a), torch.where(flip, -a, b)
    upper, lower = torch.special.log_ndtr(high), torch.special.log_ndtr(low)
    inside: Tensor = upper + torch.log1p(-torch.exp((lower - upper).clamp(max=-1e-300)))
    return inside


@dataclass(frozen=True)
class PowerPath:
    """Masses and particles of exp(k f) within G boxes, at K powers.

    Args:
        powers: (K,), increasing.
        log_mass: (G, K) log ∫ exp(k f) dz over each box, nats.
        points: K tensors (G, N, d) of latent particles.
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
    """Return particles in boxes (G, d, 2), natural units, along increasing powers (K,)."""
    moved = _Particles(latent, utility, boxes, particles, generator)
    masses, points = [], []
    for power in powers:
        moved.anneal(float(power))
        masses.append(moved.log_mass.clone())
        points.append(moved.points.clone())
    return PowerPath(powers, torch.stack(masses, 1).numpy(), tuple(points))


class _Particles:
    """Particles (G, N, d) of every box at one power, and the log-masses (G,).

    ``values`` are, for each particle (G, N): the utility f; the rest of the log-density, taper and
    volume; and the log-density of the truncated normal.
    """

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
        self.values = self._evaluate(self.points, self.within)
        self.log_mass = torch.zeros(len(boxes), dtype=torch.float64)
        self.power = 0.0  # before the first power the particles are those of the truncated normal
        self.step = torch.full((len(boxes),), 2.4 / math.sqrt(boxes.shape[1]), dtype=torch.float64)

    def _evaluate(self, points: Tensor, within: TruncatedNormal) -> tuple[Tensor, ...]:
        flat = points.reshape(-1, points.shape[-1])
        value = self.utility(self.latent.features(flat))
        base = self.latent.taper(flat) + self.latent.log_volume(flat)
        shape = points.shape[:-1]
        return value.reshape(shape), base.reshape(shape), within.log_density(points)

    def _ends(self, power: float, values: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the log-densities (G, N) at the present power and at the next one."""
        f, base, start = values
        present = start if self.power == 0.0 else self.power * f + base
        return present, power * f + base

    def anneal(self, power: float) -> None:
        """Move the particles of all boxes to this power, by steps of weights and moves."""
        done = torch.zeros(len(self.boxes), dtype=torch.float64)
        while bool((done < 1.0).any()):
            active = torch.nonzero(done < 1.0)[:, 0]
            first, last = self._ends(power, [value[active] for value in self.values])
            part = _increments(last - first, 1.0 - done[active])
            logs = part[:, None] * (last - first)
            self.log_mass[active] += torch.logsumexp(logs, 1) - math.log(logs.shape[1])
            done[active] = torch.where(part >= 1.0 - done[active], 1.0, done[active] + part)
            self._resample(active, logs)
            for _ in range(_MOVES):
                self._move(active, done[active], power)
        self.power = power

    def _resample(self, active: Tensor, logs: Tensor) -> None:
        """Resample systematically within each box."""
        size = logs.shape[1]
        edges = torch.softmax(logs, 1).cumsum(1)
        offset = torch.rand(1, generator=self.generator, dtype=torch.float64)
        at = (torch.arange(size, dtype=torch.float64) + offset) / size
        index = torch.searchsorted(edges, at.expand_as(edges).contiguous()).clamp(max=size - 1)
        self.points[active] = torch.take_along_dim(self.points[active], index[..., None], 1)
        for values in self.values:
            values[active] = torch.take_along_dim(values[active], index, 1)

    def _move(self, active: Tensor, done: Tensor, power: float) -> None:
        """Make one random-walk Metropolis step, scaled by the covariance within each box."""
        points = self.points[active]
        # The same random numbers in all boxes: differences of their log-masses vary less.
        white = torch.randn(points.shape[1:], generator=self.generator, dtype=torch.float64)
        proposal = points + self.step[active][:, None, None] * (white @ _root(points).mT)
        inside = _inside(self.latent, proposal, self.boxes[active.numpy()])
        proposal = torch.where(inside[..., None], proposal, points)
        values = self._evaluate(proposal, self.within.select(active))
        new, old = (
            torch.lerp(*self._ends(power, ends), done[:, None])
            for ends in (values, [value[active] for value in self.values])
        )
        chance = torch.exp((new - old).clamp(max=0.0)).nan_to_num(0.0) * inside
        draw = torch.rand(chance.shape[1:], generator=self.generator, dtype=torch.float64)
        accepted = draw < chance
        self.points[active] = torch.where(accepted[..., None], proposal, points)
        for present, moved in zip(self.values, values, strict=True):
            present[active] = torch.where(accepted, moved, present[active])
        rate = chance.mean(1)
        self.step[active] = (self.step[active] * torch.exp(rate - _ACCEPTED)).clamp(1e-3, 5.0)


def _root(points: Tensor) -> Tensor:
    """Return Cholesky factors (G, d, d) of the particles' covariances, kept away from singular."""
    centred = points - points.mean(1, keepdim=True)
    covariance = centred.mT @ centred / points.shape[1]
    diagonal = covariance.diagonal(dim1=1, dim2=2)
    root: Tensor = torch.linalg.cholesky(covariance + torch.diag_embed(0.02 * diagonal + _JITTER))
    return root


def _increments(ratio: Tensor, remaining: Tensor) -> Tensor:
    """Return for each box (G,) the largest part of ``remaining`` that keeps the effective size."""

    def enough(part: Array) -> npt.NDArray[np.bool_]:
        logs = torch.from_numpy(part)[:, None] * ratio
        twice = 2.0 * torch.logsumexp(logs, 1) - torch.logsumexp(2.0 * logs, 1)
        return np.asarray((torch.exp(twice) / ratio.shape[1] >= _ESS).numpy())

    most = remaining.numpy()
    part = bisect(enough, np.zeros_like(most), most, _BISECTIONS).clip(1e-9)
    return torch.from_numpy(np.where(enough(most), most, part))


def _inside(latent: Latent, points: Tensor, boxes: Array) -> Tensor:
    """Return which latent points (G, N, d) lie in their boxes (G, d, 2)."""
    flat = points.reshape(-1, points.shape[-1]).numpy()
    x = latent.from_latent(flat).reshape(points.shape)
    inside = (x >= boxes[:, None, :, 0]) & (x <= boxes[:, None, :, 1])
    return torch.from_numpy(inside.all(-1))


def whole(dimension: int) -> Array:
    """Return the box (1, d, 2) of the whole space."""
    return np.broadcast_to(np.array([-np.inf, np.inf]), (1, dimension, 2)).copy()


def log_grid(low: float, high: float, count: int) -> Array:
    """Return ``count`` powers from low to high, equally spaced in their logarithm."""
    return np.exp(np.linspace(math.log(low), math.log(high), count))


def unique_boxes(boxes: Sequence[Array]) -> tuple[Array, npt.NDArray[np.intp]]:
    """Return the distinct boxes (G, d, 2) of several arrays (n, d, 2), and the number of each."""
    every = np.concatenate(boxes)
    flat = every.reshape(len(every), -1)
    unique, index = np.unique(flat, axis=0, return_inverse=True)
    return unique.reshape(-1, *every.shape[1:]), index.reshape(-1)
