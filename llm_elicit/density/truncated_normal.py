"""Normal laws truncated to boxes, in latent coordinates: where particles within ranges start.

In every kind of latent coordinates a feature's place on its axis is h_j with h = L g + m, L
triangular. Under g ~ N(0, I) the coordinates of g given those before them are independent of what
follows, so that each is drawn from a standard normal truncated to where its feature stays within
its bounds (the sampler of Geweke, Hajivassiliou and Keane). The law of these draws is normalized
on the box and known in closed form.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtri
from scipy.stats import qmc
from torch import Tensor

from llm_elicit.density.empirical import Empirical
from llm_elicit.density.errors import DensityError
from llm_elicit.density.latent import CUBE_MARGIN, Latent
from llm_elicit.density.mixture import GaussianMixture
from llm_elicit.density.sampling import SamplingDensity, Uniform

Array = npt.NDArray[np.float64]
_LOG_2PI = float(np.log(2.0 * np.pi))
_FARTHEST = 30.0  # standard deviations, beyond which λ holds nothing


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
        low, high = (_axis(latent, boxes[..., side]) for side in (0, 1))
        root = _root(sampling)
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


def _axis(latent: Latent, x: Array) -> Array:
    """Values (G, d) of the features, natural units, on the axes of h."""
    sampling = latent.sampling
    if isinstance(sampling, Uniform):
        cube = sampling.to_cube(np.clip(x, sampling.low, sampling.high))
        cube = np.where(np.isfinite(x), cube, x > 0).clip(CUBE_MARGIN, 1.0 - CUBE_MARGIN)
        return np.asarray(ndtri(cube))
    if isinstance(sampling, Empirical):
        marginals = sampling.marginals
        within = np.clip(x, marginals.low, marginals.high)
        finite = np.isfinite(within)
        known = np.where(finite, within, sampling.from_normal(np.zeros((1, x.shape[1]))))
        return np.where(finite, marginals.score(known), within)
    assert isinstance(sampling, GaussianMixture)  # the third and last kind of latent coordinates
    return np.asarray(x - sampling.mean)


def _root(sampling: SamplingDensity) -> Array:
    """L (d, d)."""
    if isinstance(sampling, Uniform):
        return np.eye(sampling.dimension)
    if isinstance(sampling, Empirical):
        return np.asarray(sampling.cholesky, dtype=np.float64)
    assert isinstance(sampling, GaussianMixture)
    return np.asarray(np.linalg.cholesky(sampling.covariance))


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
