"""Latent coordinates of an `Empirical` λ: the change of variables is triangular."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_elicit.density.empirical import Empirical

Array = npt.NDArray[np.float64]
_LOG_2PI = math.log(2.0 * math.pi)


class CopulaLatent:
    """g with h = Lg and x_j = Q_j(h_j), so that λ is N(0, I); see `Empirical`.

    |dz/dg| = |L| Π_j Q_j'(h_j), since x_j is a function of h_j alone. The utility sees the
    features x standardized by λ's own mean and standard deviation.

    The belief ends where the questions end, as under a Gaussian λ and even when the support has
    bounds, since data may fill only a corner of it: beyond the radius of the compared points,
    the utility is frozen at its value on the sphere |g| = radius and the factor
    exp(−(|g|² − radius²)/2) is applied. A judge without preferences thus has the uniform
    density on the image of that ball, which falls off outside.

    Examples
    --------
    >>> import numpy as np
    >>> data = np.random.default_rng(0).standard_normal((1000, 2))
    >>> latent = CopulaLatent(Empirical(data), math.inf)
    >>> bool(np.allclose(latent.from_latent(latent.to_latent(data)), data))
    True
    """

    def __init__(self, sampling: Empirical, radius: float) -> None:
        self.sampling = sampling
        self.radius = radius
        self._low = torch.from_numpy(sampling.cholesky)
        self._log_scale = float(np.log(np.diagonal(sampling.cholesky)).sum())
        mean, sd = sampling.marginals.moments()
        self._mean, self._sd = torch.from_numpy(mean), torch.from_numpy(sd)

    def to_latent(self, x: Array) -> Array:
        """Natural units -> latent."""
        return self.sampling.to_normal(x)

    def from_latent(self, g: Array) -> Array:
        """Latent -> natural units, inside the support."""
        return self.sampling.from_normal(g)

    def features(self, g: Tensor) -> Tensor:
        """(x − mean)/sd at g, drawn back to the sphere of `radius` when beyond it."""
        h = (g * self._shrink(g)).double() @ self._low.T
        return ((self.sampling.marginals.value(h) - self._mean) / self._sd).to(g.dtype)

    def from_features(self, t: Tensor) -> tuple[Tensor, float]:
        """Inverse of `features`, as if there were no sphere."""
        x = (t.double() * self._sd + self._mean).numpy()
        inside = self.sampling.contains(x)
        g = torch.full_like(t, math.nan)
        g[inside] = torch.from_numpy(self.to_latent(x[inside])).to(t)
        return g, float(self._sd.log().sum())

    def _shrink(self, g: Tensor) -> Tensor:
        norm: Tensor = g.norm(dim=-1, keepdim=True)
        return (self.radius / norm.clamp(min=1e-30)).clamp(max=1.0)

    def features_slope(self, g: Tensor, v: Tensor) -> Tensor:
        """Back through x_j(h_j), through L, and along the sphere beyond it."""
        shrink = self._shrink(g)
        h = (g * shrink).double() @ self._low.T
        slope = torch.exp(self.sampling.marginals.log_slope(h)) / self._sd
        pulled = ((v.double() * slope) @ self._low).to(g.dtype)
        unit = g / g.norm(dim=-1, keepdim=True).clamp(min=1e-30)
        tangential = shrink * (pulled - unit * (unit * pulled).sum(-1, keepdim=True))
        return torch.where(shrink < 1.0, tangential, pulled)

    def taper(self, g: Tensor) -> Tensor:
        """−(|g|² − radius²)/2 beyond the radius, else 0."""
        return -0.5 * ((g * g).sum(-1) - self.radius**2).clamp(min=0.0)

    def taper_slope(self, g: Tensor) -> Tensor:
        """Gradient of `taper`."""
        return torch.where(self._shrink(g) < 1.0, -g, torch.zeros_like(g))

    def log_volume(self, g: Tensor) -> Tensor:
        """log|L| + Σ_j log Q_j'(h_j)."""
        h = g.double() @ self._low.T
        return (self.sampling.marginals.log_slope(h).sum(-1) + self._log_scale).to(g.dtype)

    def log_volume_slope(self, g: Tensor) -> Tensor:
        """Lᵀ (log Q')'."""
        h = g.double() @ self._low.T
        return (self.sampling.marginals.log_slope_slope(h) @ self._low).to(g.dtype)

    def relaxation(self, g: Tensor, sigma: float) -> Tensor:
        """σ²/(1 + σ²) times the smoothed score of λ: without it noisy levels would be flat."""
        return sigma**2 / (1.0 + sigma**2) * self.sampling_score(g, sigma)

    def log_sampling(self, g: Tensor) -> Tensor:
        """log N(g; 0, I)."""
        return -0.5 * (g * g).sum(-1) - 0.5 * _LOG_2PI * g.shape[-1]

    def sampling_score(self, g: Tensor, sigma: float | Tensor) -> Tensor:
        """Score of N(0, (1 + σ²)I)."""
        return -g / (1.0 + sigma * sigma)
