"""The paper's coordinates: a cube on which λ is uniform, with edges.

y = side·(T(x) − ½), T the Rosenblatt map of λ. λ's score vanishes inside, and de-tempering
there without the Jacobian of T gives p·λ instead of p wherever λ is not uniform.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from llm_elicit.density.latent import Array, Coordinates, Latent

_STEP = 1e-4
_MARGIN = 1e-9


class CubeLatent(Coordinates):
    """Coordinates in [−side/2, side/2]^d; see `llm_elicit.density.latent.Coordinates`.

    Points beyond the cube count as the nearest point of it. ``outer`` are the coordinates the
    utility was fitted in.

    Examples
    --------
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
        return torch.stack([c.sum(-1) for c in columns], dim=1) / (2.0 * _STEP)

    def log_volume(self, g: Tensor) -> Tensor:
        """log|dz/dg| = −log λ per scale unit, less the side's."""
        x = self.from_latent(g.numpy())
        per_scale = self.sampling.log_prob(x) - self.sampling.log_scale_slope(x)
        return torch.from_numpy(-per_scale) - g.shape[1] * math.log(self.side)

    def log_volume_slope(self, g: Tensor) -> Tensor:
        """Gradient of `log_volume`, by central differences; 0 for a uniform λ."""
        slopes = [self.log_volume(up) - self.log_volume(down) for up, down in _pairs(g)]
        return torch.stack(slopes, dim=1) / (2.0 * _STEP)

    def log_sampling(self, g: Tensor) -> Tensor:
        """Return log λ: the same everywhere."""
        return torch.full_like(g[:, 0], -g.shape[1] * math.log(self.side))

    def sampling_score(self, g: Tensor, sigma: float | Tensor) -> Tensor:  # noqa: ARG002
        """Zero, as the paper takes it at every noise level."""
        return torch.zeros_like(g)


def _pairs(g: Tensor) -> list[tuple[Tensor, Tensor]]:
    """g moved up and down along each coordinate."""
    steps = _STEP * torch.eye(g.shape[1], dtype=g.dtype)
    return [(g + step, g - step) for step in steps]
