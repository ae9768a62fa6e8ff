"""The interface of latent coordinates; those of each sampling density are in `transforms`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from llm_elicit.density.sampling import SamplingDensity

Array = npt.NDArray[np.float64]
_MARGIN = 1e-10
LOG_2PI = math.log(2.0 * math.pi)


def uniforms_evenly(n: int, dimension: int, generator: torch.Generator) -> Tensor:
    """Return a scrambled Sobol sequence (n, dimension), uniform on the open unit cube.

    Example:
        >>> cube = uniforms_evenly(256, 2, torch.Generator().manual_seed(0))
        >>> bool((cube.mean(0) - 0.5).abs().max() < 0.005)         # random: about 0.02
        True
    """
    seed = int(torch.randint(2**31, (), generator=generator))
    engine = SobolEngine(dimension, scramble=True, seed=seed)  # type: ignore[no-untyped-call]
    cube: Tensor = engine.draw(n, dtype=torch.float64)
    return cube.clamp(_MARGIN, 1.0 - _MARGIN)


class Coordinates(ABC):
    """A change of coordinates, and λ in it. Tensors are (n, d); log-densities (n,), nats.

    The methods given here are those of coordinates in which λ is N(0, I) on a bounded space.

    Attributes:
        sampling: λ itself.
        radius: the distance |g| of the farthest compared point; infinite where λ has no tails.
    """

    sampling: SamplingDensity
    radius: float = math.inf

    @abstractmethod
    def to_latent(self, x: Array) -> Array:
        """Return the latent points of points in natural units."""

    @abstractmethod
    def from_latent(self, g: Array) -> Array:
        """Return the points, natural units and inside the support, of latent points."""

    @abstractmethod
    def features(self, g: Tensor) -> Tensor:
        """Return the inputs (n, p) of the utility: bounded, of unit variance under λ.

        p is d, or more where a feature is periodic or has categories.
        """

    @abstractmethod
    def features_slope(self, g: Tensor, v: Tensor) -> Tensor:
        """Return the gradient in g of a function with gradient v (n, p) in the features."""

    @abstractmethod
    def log_volume(self, g: Tensor) -> Tensor:
        """Return log|dz/dg|, with z the features on their scales."""

    @abstractmethod
    def log_volume_slope(self, g: Tensor) -> Tensor:
        """Return the gradient of `log_volume`."""

    def taper(self, g: Tensor) -> Tensor:
        """Return what is added to the utility beyond the compared points; 0 on a bounded space."""
        return torch.zeros_like(g[:, 0])

    def taper_slope(self, g: Tensor) -> Tensor:
        """Return the gradient of `taper`."""
        return torch.zeros_like(g)

    def log_sampling(self, g: Tensor) -> Tensor:
        """Return log λ in latent coordinates."""
        return -0.5 * (g * g).sum(-1) - 0.5 * LOG_2PI * g.shape[-1]

    def sampling_score(self, g: Tensor, sigma: float | Tensor) -> Tensor:
        """Return ∇ log (λ * N(0, σ²I)) in latent coordinates; σ is a number or (n, 1)."""
        return -g / (1.0 + sigma * sigma)


class Latent(Coordinates):
    """Coordinates that are affine in functions of single features: those the core fits in."""

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """Return n exact draws (n, d) of λ."""
        size = (n, self.sampling.dimension)
        return self.from_cube(torch.rand(*size, generator=generator, dtype=torch.float64))

    def draw_evenly(self, n: int, generator: torch.Generator) -> Tensor:
        """Return n points (n, d) of λ, more even than those of `draw`: a Sobol sequence."""
        return self.from_cube(uniforms_evenly(n, self.sampling.dimension, generator))

    def from_cube(self, cube: Tensor) -> Tensor:
        """Return λ's points (n, d) of uniforms (n, d), by the Rosenblatt map.

        Of a constrained λ they are those before the constraints.
        """
        return torch.from_numpy(self.to_latent(self.sampling.from_cube(cube.numpy())))

    @property
    def owners(self) -> npt.NDArray[np.int64]:
        """The feature (p,) that each column of `features` belongs to."""
        return np.arange(self.sampling.dimension)

    @property
    def category(self) -> npt.NDArray[np.int64]:
        """The categorical feature that each input of the utility belongs to, (p,); −1 of others."""
        return np.full(self.sampling.dimension, -1)

    @abstractmethod
    def from_features(self, t: Tensor) -> tuple[Tensor, float] | None:
        """Return the latent points (n, d) of features t (n, d), and log|dz/dt|.

        Points are NaN where no latent point has these features. None if several latent points share
        features, or z is not linear in them.
        """

    @abstractmethod
    def natural_slope(self, g: Array, v: Array) -> Array:
        """Return the gradient (n, d) per natural unit of f + log|dz/dx|, for f of gradient v in g.

        The second term turns a log-density per unit of the scales z into one per natural unit. It
        varies where a scale is logarithmic.
        """

    @abstractmethod
    def box(self, boxes: Array) -> tuple[Array, Array]:
        """Return the bounds (G, d) of h in boxes (G, d, 2), natural units, ±∞ included.

        h_j is a function of x_j alone, and h = L g up to a constant, with L the `root`.
        """

    @property
    @abstractmethod
    def root(self) -> Array:
        """L (d, d), lower triangular; see `box`."""
