"""What a score belief is made of, and the force that drives its sampler.

The paper's coordinates: a cube on which λ is uniform, with edges.

y = side·(T(x) − ½), T the Rosenblatt map of λ. λ's score vanishes inside, and de-tempering
there without the Jacobian of T gives p·λ instead of p wherever λ is not uniform.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from llm_elicit.baselines.protocol.network import ScoreNetwork
from llm_elicit.baselines.protocol.samplers import FlowPrior
from llm_elicit.density.latent import Array, Coordinates, Latent
from llm_elicit.density.score.tempering import Tempering
from llm_elicit.density.uniform import Uniform
from llm_elicit.density.utility_density import utility_and_slope, utility_at
from llm_elicit.density.utility_function import Utility

_CUBE_STEP = 1e-4
_MARGIN = 1e-9


class CubeLatent(Coordinates):
    """Coordinates in [−side/2, side/2]^d; see `llm_elicit.density.latent.Coordinates`.

    Points beyond the cube count as the nearest point of it. ``outer`` are the coordinates the
    utility was fitted in.

    Example:
        >>> import numpy as np
        >>> from llm_elicit.density import Uniform
        >>> from llm_elicit.density.transforms import make_latent
        >>> cube = CubeLatent(make_latent(Uniform([0.0], [1.0])), side=6.0)
        >>> cube.to_latent(np.array([[0.5], [1.0]])).round(6).tolist()
        [[0.0], [3.0]]
    """

    def __init__(self, outer: Latent, side: float) -> None:
        self.outer, self.side, self.sampling = outer, side, outer.sampling

    def to_latent(self, x: Array) -> Array:
        """Natural units -> cube."""
        return np.asarray(self.side * (self.sampling.to_cube(x) - 0.5))

    def from_latent(self, g: Array) -> Array:
        """Cube -> natural units."""
        inside = np.clip(g / self.side + 0.5, _MARGIN, 1.0 - _MARGIN)
        return np.asarray(self.sampling.from_cube(inside))

    def to_outer(self, g: Tensor) -> Tensor:
        """Cube -> the outer latent coordinates."""
        return torch.from_numpy(self.outer.to_latent(self.from_latent(g.numpy())))

    def from_outer(self, g: Tensor) -> Tensor:
        """Return cube coordinates of outer latent coordinates."""
        return torch.from_numpy(self.to_latent(self.outer.from_latent(g.numpy())))

    def features(self, g: Tensor) -> Tensor:
        """Return the inputs of the utility, through the outer coordinates."""
        return self.outer.features(self.to_outer(g))

    def features_slope(self, g: Tensor, v: Tensor) -> Tensor:
        """Pull a gradient v with respect to `features` back to g, by central differences."""
        columns = [(self.features(up) - self.features(down)) * v for up, down in _pairs(g)]
        return torch.stack([c.sum(-1) for c in columns], dim=1) / (2.0 * _CUBE_STEP)

    def log_volume(self, g: Tensor) -> Tensor:
        """log|dz/dg| = −log λ per scale unit, less the side's."""
        x = self.from_latent(g.numpy())
        per_scale = self.sampling.log_prob(x) - self.sampling.log_scale_slope(x)
        return torch.from_numpy(-per_scale) - g.shape[1] * math.log(self.side)

    def log_volume_slope(self, g: Tensor) -> Tensor:
        """Gradient of `log_volume`, by central differences; 0 for a uniform λ."""
        slopes = [self.log_volume(up) - self.log_volume(down) for up, down in _pairs(g)]
        return torch.stack(slopes, dim=1) / (2.0 * _CUBE_STEP)

    def log_sampling(self, g: Tensor) -> Tensor:
        """Return log λ: the same everywhere."""
        return torch.full_like(g[:, 0], -g.shape[1] * math.log(self.side))

    def sampling_score(self, g: Tensor, sigma: float | Tensor) -> Tensor:  # noqa: ARG002
        """Zero, as the paper takes it at every noise level."""
        return torch.zeros_like(g)


def _pairs(g: Tensor) -> list[tuple[Tensor, Tensor]]:
    """g moved up and down along each coordinate."""
    steps = _CUBE_STEP * torch.eye(g.shape[1], dtype=g.dtype)
    return [(g + step, g - step) for step in steps]


def _relaxation(latent: Coordinates, g: Tensor, sigma: float) -> Tensor:
    """Return the force towards λ (n, d) at noise level σ, without which noisy levels would be flat.

    On a box it is 0, because the volume term keeps points in the bulk of λ.
    """
    if isinstance(latent.sampling, Uniform):
        return torch.zeros_like(g)
    return sigma**2 / (1.0 + sigma**2) * latent.sampling_score(g, sigma)


NODES = 24
_CHUNK = 4096
_STEP = 0.01  # nats


@dataclass(frozen=True)
class Mode:
    """How scores become a belief.

    ``side`` is "both" (the score of the odds of winning, times ω) or "winners" (the paper's: the
    score of the winners, times τ). ``cap`` and ``floor`` bound the field, which multiplies the
    network's errors; ``constant`` replaces it by one number for method ``score-constant``.
    Without ``jacobian`` the belief comes out as p·λ, the paper's mistake.
    """

    side: str
    cap: float
    floor: float
    constant: float | None
    sigma: float
    jacobian: bool


@dataclass(frozen=True)
class ScoreParts:
    """Coordinates, utility, network, field and the laws at σ_max of winners and losers."""

    latent: Latent | CubeLatent
    utility: Utility
    network: ScoreNetwork
    tempering: Tempering
    priors: tuple[FlowPrior, FlowPrior]
    mode: Mode

    def field(self, g: Tensor) -> Tensor:
        """Return ω or τ at latent points (n, d), capped, or the constant; (n,)."""
        if self.mode.constant is not None:
            return torch.full_like(g[:, 0], self.mode.constant)
        return self._field_at(utility_at(self.latent, self.utility, g))

    def field_and_slope(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return the field (n,) and its gradient (n, d), which is along that of the utility."""
        u, slope = utility_and_slope(self.latent, self.utility, g)
        ahead, behind = self._field_at(u + _STEP), self._field_at(u - _STEP)
        return self._field_at(u), ((ahead - behind) / (2.0 * _STEP))[:, None] * slope

    def _field_at(self, u: Tensor) -> Tensor:
        if self.mode.constant is not None:
            return torch.full_like(u, self.mode.constant)
        return self.tempering.field(u, self.mode.side).clamp(self.mode.floor, self.mode.cap)

    def scores(self, g: Tensor, masked: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        """Return ∇log p_{w,σ} and ∇log p_{l,σ} (n, d); differentiable in g."""
        like = self.network.gain
        winner, loser = self.network.side_scores(g.to(like), masked.to(like), sigma)
        return winner.to(g), loser.to(g)

    def learned(self, g: Tensor, masked: Tensor, sigma: float) -> Tensor:
        """Return the field times the network's score (n, d); zero beyond the compared points."""
        with torch.no_grad():
            winner, loser = self.scores(g, masked, sigma)
            two_sided = self.mode.side == "both"
            excess = winner - (loser if two_sided else self.latent.sampling_score(g, sigma))
            inside = g.norm(dim=1, keepdim=True) <= self.latent.radius
            return torch.where(inside, self.field(g)[:, None] * excess, torch.zeros_like(g))

    def force(self, g: Tensor, masked: Tensor, sigma: float) -> Tensor:
        """Return the gradient of the belief's latent log-density (n, d) at noise level σ."""
        parts = [
            self._force(points, mask, sigma)
            for points, mask in zip(
                torch.split(g, _CHUNK), torch.split(masked, _CHUNK), strict=True
            )
        ]
        return torch.cat(parts)

    def _force(self, g: Tensor, masked: Tensor, sigma: float) -> Tensor:
        latent, jacobian = self.latent, self.mode.jacobian
        force = self.learned(g, masked, sigma) + latent.taper_slope(g)
        force = force + _relaxation(latent, g, sigma)
        return force + (latent.log_volume_slope(g) if jacobian else latent.sampling_score(g, 0.0))

    def along_rays(self, g: Tensor, nodes: int = NODES) -> Tensor:
        """u(g) (n,) up to a constant: the learned field summed from the middle of λ.

        With a learned field that is no gradient this is its potential along rays.
        """
        latent, still = self.latent, self.still(self.mode.sigma)
        shrink = (latent.radius / g.norm(dim=1, keepdim=True).clamp(min=1e-30)).clamp(max=1.0)
        pieces = [
            path_integral(still, torch.zeros_like(part), part, nodes)
            for part in torch.split(g * shrink, _CHUNK)
        ]
        return torch.cat(pieces) + latent.taper(g)

    def still(self, sigma: float) -> Callable[[Tensor], Tensor]:
        """Return the learned field with a fixed draw of the mask, a deterministic function of g."""
        return lambda g: self.learned(g, fixed_mask(g, sigma), sigma)


def fixed_mask(g: Tensor, sigma: float) -> Tensor:
    """One draw of N(0, σ²I), the same for every point (n, d) and every call."""
    unit = torch.randn(1, g.shape[1], generator=torch.Generator().manual_seed(0))
    return (sigma * unit).to(g.dtype).expand(len(g), -1)


def path_integral(
    field: Callable[[Tensor], Tensor], start: Tensor, end: Tensor, nodes: int = NODES
) -> Tensor:
    """Return ∫ field·dx along the straight lines from ``start`` to ``end``, (n, d) each; (n,).

    For a gradient this is the difference of its potential. By Gauss–Legendre quadrature.

    Example:
        >>> import torch
        >>> start, end = torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])
        >>> round(path_integral(lambda x: 2 * x, start, end).item(), 4)      # x² + y²
        25.0
    """
    places, shares = np.polynomial.legendre.leggauss(nodes)
    along = end - start
    total = torch.zeros_like(start[:, 0])
    for place, share in zip((places + 1.0) / 2.0, shares / 2.0, strict=True):
        total = total + float(share) * (field(start + float(place) * along) * along).sum(-1)
    return total


def flow_score(parts: ScoreParts, side: int) -> Callable[[Tensor, float], Tensor]:
    """Return the score of winners (0) or losers (1) as the probability flow needs it."""
    return lambda g, sigma: parts.scores(g, fixed_mask(g, sigma), sigma)[side]


def utility_by_flow(
    parts: ScoreParts, log_flow: Callable[[Tensor, int], Tensor], g: Tensor
) -> Tensor:
    """u(g) (n,): log p_w − log p_l (or − log λ), back through w; tapered as the samples."""
    latent, mode = parts.latent, parts.mode
    shrink = (latent.radius / g.norm(dim=1, keepdim=True).clamp(min=1e-30)).clamp(max=1.0)
    inner = g * shrink
    two_sided = mode.side == "both"
    ratio = log_flow(inner, 0) - (log_flow(inner, 1) if two_sided else latent.log_sampling(inner))
    if mode.constant is not None:
        u = mode.constant * ratio
    elif two_sided:
        u = parts.tempering.utility_of_odds(ratio)
    else:
        u = parts.tempering.utility_of_log(ratio - math.log(2.0))
    return u + latent.taper(g)
