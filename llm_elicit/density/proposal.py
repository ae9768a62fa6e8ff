"""Where annealing starts: λ itself, or a mixture fitted to earlier draws of the belief.

From λ to a sharp belief is a long way: each temperature costs moves, and few families of
particles reach the end. A fit therefore anneals from λ once, fits a Gaussian mixture to the
particles, and every later run starts from q = 0.1 λ + 0.9 mixture. Importance weights π/q correct
whatever the mixture got wrong, the weights of the modes included, and λ's share keeps them
below ten times those of a start from λ, also in places the first run never found
(a defensive mixture; Hesterberg, 1995).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor

from llm_elicit.density.latent import CUBE_MARGIN, Latent
from llm_elicit.density.sampling import Uniform

_SHARE_SAMPLING = 0.1
_MOST = 16
_FITTED = 4096
_ITERATIONS = 15
_WIDER = 1.2
_CHUNK = 2048


def draw_sampling(latent: Latent, n: int, generator: torch.Generator) -> Tensor:
    """Exact latent draws of λ (n, d), from uniforms through the Rosenblatt map."""
    sampling = latent.sampling
    cube = torch.rand(n, sampling.dimension, generator=generator, dtype=torch.float64)
    if isinstance(sampling, Uniform):  # natural units do not know the place within a category
        g: Tensor = torch.special.ndtri(cube.clamp(min=CUBE_MARGIN))
        return g
    return torch.from_numpy(latent.to_latent(sampling.from_cube(cube.numpy())))


@dataclass(frozen=True)
class Proposal:
    """q = 0.1 λ + 0.9 Σ_k w_k N(m_k, L_k L_kᵀ) in latent coordinates.

    ``weights`` (k,), ``means`` (k, d), ``factors`` L (k, d, d), double precision; ``step`` () is
    the Langevin step that suited the draws it was fitted to.
    """

    weights: Tensor
    means: Tensor
    factors: Tensor
    step: Tensor

    @classmethod
    def fit(cls, points: Tensor, step: float, generator: torch.Generator) -> Proposal:
        """Expectation maximization on latent draws (n, d), from k-means clusters."""
        points = points[torch.randperm(len(points), generator=generator)[:_FITTED]]
        n, d = points.shape
        count = max(1, min(_MOST, n // (20 * d)))
        rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        labels = kmeans2(points.numpy(), count, minit="++", rng=rng)[1]
        share = torch.nn.functional.one_hot(torch.from_numpy(labels).long(), count).double()
        made = _weighted(points, share, step)
        for _ in range(_ITERATIONS):
            made = _weighted(points, torch.softmax(made._log_parts(points)[0], 1), step)
        return Proposal(made.weights, made.means, math.sqrt(_WIDER) * made.factors, made.step)

    def draw(self, latent: Latent, n: int, generator: torch.Generator) -> Tensor:
        """Draw (n, d) points of q; λ's share of them is exact."""
        of_sampling = round(_SHARE_SAMPLING * n)
        rest = n - of_sampling
        which = torch.multinomial(self.weights, rest, replacement=True, generator=generator)
        white = torch.randn(rest, self.means.shape[1], generator=generator, dtype=torch.float64)
        points = self.means[which] + torch.einsum("nij,nj->ni", self.factors[which], white)
        return torch.cat([draw_sampling(latent, of_sampling, generator), points])

    def log_density(self, latent: Latent, g: Tensor) -> tuple[Tensor, Tensor]:
        """log q (n,) and its gradient (n, d) at latent points (n, d)."""
        parts = [self._value_and_slope(chunk) for chunk in torch.split(g, _CHUNK)]
        value, slope = (torch.cat(part) for part in zip(*parts, strict=True))
        log_mixture = value + math.log(1.0 - _SHARE_SAMPLING)
        log_sampling = latent.log_sampling(g) + math.log(_SHARE_SAMPLING)
        total = torch.logaddexp(log_mixture, log_sampling)
        share = torch.exp(log_mixture - total)[:, None]
        return total, share * slope + (1.0 - share) * latent.sampling_score(g, 0.0)

    def _value_and_slope(self, g: Tensor) -> tuple[Tensor, Tensor]:
        logs, white, inverse = self._log_parts(g)
        share = torch.softmax(logs, 1)
        pull = (share[..., None] * white).reshape(len(g), -1)
        return torch.logsumexp(logs, 1), -(pull @ inverse.reshape(-1, g.shape[1]))

    def _log_parts(self, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Per component log weight + log density (n, k), L⁻¹(g − m) (n, k, d), and L⁻¹."""
        k, d = self.means.shape
        one = torch.eye(d, dtype=g.dtype).expand(k, d, d)
        inverse = torch.linalg.solve_triangular(self.factors, one, upper=False)
        centre = (inverse @ self.means[..., None]).reshape(-1)
        white = (g @ inverse.reshape(k * d, d).T - centre).reshape(len(g), k, d)
        scale = self.factors.diagonal(dim1=1, dim2=2).log().sum(1)
        constant = torch.log(self.weights) - scale - 0.5 * d * math.log(2.0 * math.pi)
        return constant - 0.5 * white.square().sum(2), white, inverse


def _weighted(points: Tensor, share: Tensor, step: float) -> Proposal:
    """The mixture of the responsibilities share (n, k); covariances lean on their mean."""
    n, d = points.shape
    mass = share.sum(0) + 1e-9
    means = (share.T @ points) / mass[:, None]
    moments = [
        (points - mean).T @ ((points - mean) * column[:, None])
        for mean, column in zip(means, share.T, strict=True)
    ]
    scatter = torch.stack(moments)
    pooled = scatter.sum(0) / n + 1e-9 * torch.eye(d, dtype=points.dtype)
    covariances = (scatter + 2.0 * d * pooled) / (mass + 2.0 * d)[:, None, None]
    factors = torch.linalg.cholesky(covariances)
    return Proposal(mass / mass.sum(), means, factors, torch.tensor(step, dtype=torch.float64))
