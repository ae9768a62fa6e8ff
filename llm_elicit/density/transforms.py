"""Latent coordinates g: unbounded, with a simple λ, and every point inside the support.

* For a `Uniform` λ, each feature's cube coordinate goes through the normal quantile function, so
  λ becomes N(0, I) and the box has no edges.
* For a `GaussianMixture`, g = L⁻¹(x − m) with the mixture's mean m and covariance LLᵀ, so λ stays
  a mixture.
* For an `Empirical` λ, x_j = Q_j(h_j) with h = L g, and λ becomes N(0, I).

In each case λ smoothed by N(0, σ²I) is a Gaussian mixture whose score is known exactly at every
noise level σ.

The utility u = log p is a density *per unit of the feature's scale* z. In latent coordinates
the belief therefore has log-density u + log|dz/dg|: dropping that Jacobian returns p·λ
instead of p.

**Beliefs on an unbounded space** must be integrable whatever was fitted. Beyond the radius of
the compared points there are no data. The utility is constant there along each direction, with its
value on the sphere of that radius, and the belief falls off like a standardized normal: the factor
exp(−(|g|² − radius²)/2). Inside the radius nothing changes.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtri
from torch import Tensor

from llm_elicit.density.empirical import Empirical
from llm_elicit.density.errors import DensityError
from llm_elicit.density.gaussian_mixture import GaussianMixture
from llm_elicit.density.sampling import SamplingDensity, Uniform

Array = npt.NDArray[np.float64]
_SQRT_3 = math.sqrt(3.0)
_LOG_2PI = math.log(2.0 * math.pi)
CUBE_MARGIN = 1e-12


class Latent(Protocol):
    """The change of coordinates and λ in it. Tensors are (n, d); log-densities (n,), nats."""

    radius: float

    @property
    def sampling(self) -> SamplingDensity:
        """λ itself."""
        ...

    def to_latent(self, x: Array) -> Array:
        """Natural units -> latent."""
        ...

    def from_latent(self, g: Array) -> Array:
        """Latent -> natural units, inside the support."""
        ...

    def features(self, g: Tensor) -> Tensor:
        """What the utility sees: bounded, of unit variance under λ. (n, p), p = d but where
        there are categories.
        """
        ...

    def from_features(self, t: Tensor) -> tuple[Tensor, float] | None:
        """Latent points (n, d) of features t (n, d), NaN where there are none, and log|dz/dt|.

        None where features do not say which point they are of, or z is not linear in them.
        """
        ...

    def features_slope(self, g: Tensor, v: Tensor) -> Tensor:
        """Pull a gradient v with respect to `features` back to g."""
        ...

    def taper(self, g: Tensor) -> Tensor:
        """What is added to the utility beyond the compared points; 0 on a bounded space."""
        ...

    def taper_slope(self, g: Tensor) -> Tensor:
        """Gradient of `taper`."""
        ...

    def log_volume(self, g: Tensor) -> Tensor:
        """log|dz/dg|, with z the features on their scales."""
        ...

    def log_volume_slope(self, g: Tensor) -> Tensor:
        """Gradient of `log_volume`."""
        ...

    def relaxation(self, g: Tensor, sigma: float) -> Tensor:
        """Pull towards λ while annealing at noise level σ, vanishing with σ."""
        ...

    def log_sampling(self, g: Tensor) -> Tensor:
        """log λ in latent coordinates."""
        ...

    def sampling_score(self, g: Tensor, sigma: float | Tensor) -> Tensor:
        """∇ log (λ * N(0, σ²I)) in latent coordinates; σ a number or (n, 1)."""
        ...


class BoxLatent:
    """Latent coordinates of a `Uniform` λ: g = Φ⁻¹(cube), so that λ is N(0, I).

    A category is an interval of its axis. The utility sees K categories as the corners of a
    regular simplex in K − 1 columns, all as far from each other, and so knows no order.
    """

    def __init__(self, sampling: Uniform, radius: float) -> None:
        self.sampling = sampling
        self.radius = radius
        self._log_widths = float(np.log(sampling.scale_high - sampling.scale_low).sum())
        self._numeric = torch.from_numpy(~sampling.categorical)
        self._corners = {
            int(j): _simplex(round(sampling.high[j] - sampling.low[j]) + 1)
            for j in np.flatnonzero(sampling.categorical)
        }

    def to_latent(self, x: Array) -> Array:
        """Natural units -> latent; the faces of the box map to a large finite value."""
        cube = np.clip(self.sampling.to_cube(x), CUBE_MARGIN, 1.0 - CUBE_MARGIN)
        return np.asarray(ndtri(cube))

    def from_latent(self, g: Array) -> Array:
        """Latent -> natural units, inside the box."""
        return self.sampling.from_cube(torch.special.ndtr(torch.from_numpy(g)).numpy())

    def features(self, g: Tensor) -> Tensor:
        """√3·(2Φ(g) − 1): linear in the scaled feature, in [−√3, √3]; categories' corners last."""
        if not self._corners:
            return _SQRT_3 * torch.erf(g / math.sqrt(2.0))
        columns = [_SQRT_3 * torch.erf(g[:, self._numeric.to(g.device)] / math.sqrt(2.0))]
        for j, corners in self._corners.items():
            category = (torch.special.ndtr(g[:, j]) * len(corners)).long()
            columns.append(corners.to(g)[category.clamp(0, len(corners) - 1)])
        return torch.cat(columns, 1)

    def from_features(self, t: Tensor) -> tuple[Tensor, float] | None:
        """Inverse of `features` in the box; None where there are categories."""
        if self._corners:
            return None
        g = torch.special.ndtri(0.5 + t / (2.0 * _SQRT_3))  # NaN beyond [0, 1]
        return g, self._log_widths - t.shape[1] * math.log(2.0 * _SQRT_3)

    def features_slope(self, g: Tensor, v: Tensor) -> Tensor:
        """dt/dg = 2√3 φ(g), coordinate by coordinate; 0 where there are categories."""
        if self._corners:
            numeric = self._numeric.to(g.device)
            of_numbers, v = v[:, : int(numeric.sum())], torch.zeros_like(g)
            v[:, numeric] = of_numbers
        return v * (2.0 * _SQRT_3 / math.sqrt(2.0 * math.pi)) * torch.exp(-0.5 * g * g)

    def taper(self, g: Tensor) -> Tensor:
        """A box needs no taper."""
        return torch.zeros_like(g[:, 0])

    def taper_slope(self, g: Tensor) -> Tensor:
        """A box needs no taper."""
        return torch.zeros_like(g)

    def log_volume(self, g: Tensor) -> Tensor:
        """Σ log φ(g_i) + Σ log width_i."""
        return self.log_sampling(g) + self._log_widths

    def log_volume_slope(self, g: Tensor) -> Tensor:
        """−g."""
        return -g

    def relaxation(self, g: Tensor, sigma: float) -> Tensor:  # noqa: ARG002 - a protocol
        """Zero: the volume term already keeps points in the bulk of λ."""
        return torch.zeros_like(g)

    def log_sampling(self, g: Tensor) -> Tensor:
        """log N(g; 0, I)."""
        return -0.5 * (g * g).sum(-1) - 0.5 * _LOG_2PI * g.shape[-1]

    def sampling_score(self, g: Tensor, sigma: float | Tensor) -> Tensor:
        """Score of N(0, (1 + σ²)I)."""
        return -g / (1.0 + sigma * sigma)


def _simplex(count: int) -> Tensor:
    """Corners (K, K − 1) of a regular simplex around 0, each column of unit variance."""
    centred = np.eye(count) - 1.0 / count
    axes = np.linalg.svd(centred)[0][:, : count - 1]
    return torch.from_numpy(math.sqrt(count) * axes)


class AffineLatent:
    """Latent coordinates of a `GaussianMixture` λ: g = L⁻¹(x − mean), covariance LLᵀ."""

    def __init__(self, sampling: GaussianMixture, radius: float) -> None:
        self.sampling = sampling
        self.radius = radius
        self._low = np.linalg.cholesky(sampling.covariance)
        self._mean = sampling.mean
        whiten = np.linalg.inv(self._low)
        covariances = whiten @ sampling.covariances @ whiten.T
        values, vectors = np.linalg.eigh(covariances)
        keep = sampling.weights > 0
        self._log_weights = torch.from_numpy(np.log(sampling.weights[keep]))
        self._means = torch.from_numpy((sampling.means - self._mean)[keep] @ whiten.T)
        self._values = torch.from_numpy(np.maximum(values[keep], 1e-12))
        self._vectors = torch.from_numpy(vectors[keep])
        self._log_scale = float(np.log(np.diagonal(self._low)).sum())

    def to_latent(self, x: Array) -> Array:
        """Natural units -> latent."""
        return np.asarray(np.linalg.solve(self._low, (x - self._mean).T).T)

    def from_latent(self, g: Array) -> Array:
        """Latent -> natural units."""
        return np.asarray(g @ self._low.T + self._mean)

    def features(self, g: Tensor) -> Tensor:
        """g, drawn back to the sphere of `radius` when beyond it."""
        return g * self._shrink(g)

    def from_features(self, t: Tensor) -> tuple[Tensor, float]:
        """t itself, also beyond the sphere."""
        return t, self._log_scale

    def _shrink(self, g: Tensor) -> Tensor:
        norm: Tensor = g.norm(dim=-1, keepdim=True)
        return (self.radius / norm.clamp(min=1e-30)).clamp(max=1.0)

    def features_slope(self, g: Tensor, v: Tensor) -> Tensor:
        """Beyond the sphere only the tangential part survives, shrunk."""
        shrink = self._shrink(g)
        unit = g / g.norm(dim=-1, keepdim=True).clamp(min=1e-30)
        tangential = shrink * (v - unit * (unit * v).sum(-1, keepdim=True))
        return torch.where(shrink < 1.0, tangential, v)

    def taper(self, g: Tensor) -> Tensor:
        """−(|g|² − radius²)/2 beyond the radius, else 0."""
        return -0.5 * ((g * g).sum(-1) - self.radius**2).clamp(min=0.0)

    def taper_slope(self, g: Tensor) -> Tensor:
        """−g beyond the radius, else 0."""
        return torch.where(g.norm(dim=-1, keepdim=True) > self.radius, -g, torch.zeros_like(g))

    def log_volume(self, g: Tensor) -> Tensor:
        """log|L|, the same everywhere."""
        return torch.full_like(g[:, 0], self._log_scale)

    def log_volume_slope(self, g: Tensor) -> Tensor:
        """Zero."""
        return torch.zeros_like(g)

    def relaxation(self, g: Tensor, sigma: float) -> Tensor:
        """σ²/(1 + σ²) times the smoothed score of λ: without it noisy levels would be flat."""
        return sigma**2 / (1.0 + sigma**2) * self.sampling_score(g, sigma)

    def log_sampling(self, g: Tensor) -> Tensor:
        """log λ in latent coordinates: a mixture."""
        return torch.logsumexp(self._log_parts(g, 0.0)[0], dim=-1)

    def sampling_score(self, g: Tensor, sigma: float | Tensor) -> Tensor:
        """Score of the mixture with every covariance widened by σ²I."""
        log_parts, scaled = self._log_parts(g, sigma)
        share = torch.softmax(log_parts, dim=-1)
        return -torch.einsum("nk,nkj,kij->ni", share, scaled, self._vectors.to(g.dtype))

    def _log_parts(self, g: Tensor, sigma: float | Tensor) -> tuple[Tensor, Tensor]:
        """Per component: log weight + log density (n, k), and Λ⁻¹Vᵀ(g − μ) (n, k, d)."""
        means, vectors = self._means.to(g.dtype), self._vectors.to(g.dtype)
        variance = self._values.to(g.dtype) + torch.as_tensor(sigma * sigma)[..., None].to(g.dtype)
        projected = torch.einsum("nki,kij->nkj", g[:, None] - means, vectors)
        scaled = projected / variance
        logs = -0.5 * (projected * scaled + torch.log(variance) + _LOG_2PI).sum(-1)
        return logs + self._log_weights.to(g.dtype), scaled


def make_latent(sampling: SamplingDensity, points: Array | None = None) -> Latent:
    """Latent coordinates of λ; their radius is that of the farthest of ``points`` (n, d).

    Examples
    --------
    >>> import numpy as np
    >>> make_latent(Uniform([0.0], [1.0])).to_latent(np.array([[0.5]])).tolist()
    [[0.0]]
    """
    latent: Latent
    if isinstance(sampling, Uniform):
        latent = BoxLatent(sampling, math.inf)
    elif isinstance(sampling, GaussianMixture):
        latent = AffineLatent(sampling, math.inf)
    elif isinstance(sampling, Empirical):
        latent = CopulaLatent(sampling, math.inf)
    else:
        raise DensityError(
            f"make_latent: no latent coordinates for a {type(sampling).__name__}; "
            "the densities known here are Uniform, GaussianMixture and Empirical; pass one of them."
        )
    if points is not None:
        latent.radius = float(np.linalg.norm(latent.to_latent(points), axis=1).max())
    return latent


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


def natural_slope(latent: Latent, g: Array, v: Array) -> Array:
    """Gradient (n, d) per natural unit of f + log|dz/dx|; f has the gradient v (n, d) in g (n, d).

    The second term makes a log density per unit of the scales z one per natural unit; it varies
    where a scale is logarithmic.

    Examples
    --------
    >>> import numpy as np
    >>> from llm_elicit.density.transforms import make_latent
    >>> latent = make_latent(GaussianMixture([1.0], [[0.0]], [[[4.0]]]))   # g = x / 2
    >>> natural_slope(latent, np.array([[0.3]]), np.array([[1.0]])).tolist()
    [[0.5]]
    """
    sampling = latent.sampling
    if isinstance(sampling, Uniform):
        widths = sampling.scale_high - sampling.scale_low
        per_scale = v * math.sqrt(2.0 * math.pi) * np.exp(0.5 * g * g) / widths
        # On a logarithmic scale z = log x and log|dz/dx| = −log x.
        x = np.where(sampling.log, latent.from_latent(g), 1.0)
        return (per_scale - sampling.log) / x
    if isinstance(sampling, GaussianMixture):
        return np.asarray(np.linalg.solve(np.linalg.cholesky(sampling.covariance).T, v.T).T)
    assert isinstance(sampling, Empirical)  # the last of those with latent coordinates
    h = torch.from_numpy(g @ sampling.cholesky.T)
    of_scores = np.linalg.solve(sampling.cholesky.T, v.T).T
    return np.asarray(of_scores * np.exp(-sampling.marginals.log_slope(h).numpy()))
