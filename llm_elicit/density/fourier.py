"""Random Fourier features: smooth functions f(t) = Σ_m a_m cos(ω_m·t) + b_m sin(ω_m·t).

With ω ~ N(0, I/ℓ²) and independent normal coefficients of variance v/M these are draws of a
Gaussian process with covariance v exp(−|t − t'|²/2ℓ²), up to the Monte Carlo error of M
frequencies (Rahimi and Recht, 2007).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


def draw_frequencies(count: int, dimension: int, generator: torch.Generator) -> Tensor:
    """Return frequencies (d, M) of a process of length scale one.

    Examples
    --------
    >>> draw_frequencies(8, 2, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 8])
    """
    # Orthogonal directions spread better than independent ones (Yu and others, 2016).
    blocks = []
    for _ in range(math.ceil(count / dimension)):
        normal = torch.randn(dimension, dimension, generator=generator, dtype=torch.float64)
        directions = torch.linalg.qr(normal)[0]
        radii = torch.randn(dimension, dimension, generator=generator, dtype=torch.float64)
        blocks.append(directions * radii.norm(dim=0))
    return torch.cat(blocks, 1)[:, :count]


def fourier_features(t: Tensor, frequencies: Tensor) -> Tensor:
    """Return [cos, sin] of t·ω divided by √M, (n, 2M), at features (n, d)."""
    angle = t @ frequencies
    return torch.cat([torch.cos(angle), torch.sin(angle)], 1) / math.sqrt(frequencies.shape[1])


@dataclass(frozen=True)
class FourierStack:
    """S functions of the same frequencies.

    ``frequencies`` (d, M), ``weights`` (S, 2M) of `fourier_features`.

    Examples
    --------
    >>> import torch
    >>> wave = FourierStack(torch.ones(1, 1), torch.tensor([[1.0, 0.0]]))
    >>> wave(torch.zeros(2, 1)).tolist()
    [[1.0, 1.0]]
    """

    frequencies: Tensor
    weights: Tensor

    @property
    def count(self) -> int:
        """Number of functions S."""
        return len(self.weights)

    @property
    def parameters(self) -> list[Tensor]:
        """Both tensors."""
        return [self.frequencies, self.weights]

    def select(self, which: Sequence[int]) -> FourierStack:
        """Return the functions numbered ``which``."""
        return replace(self, weights=self.weights[list(which)])

    def scaled(self, factor: float) -> FourierStack:
        """Return the same functions times ``factor``."""
        return replace(self, weights=factor * self.weights)

    def to(self, like: Tensor) -> FourierStack:
        """Return the same functions on the device and in the precision of ``like``."""
        return FourierStack(self.frequencies.to(like), self.weights.to(like))

    def __call__(self, t: Tensor) -> Tensor:
        """Return values (S, n) at features (n, d)."""
        return self.weights @ fourier_features(t, self.frequencies).T

    def mean_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean over the stack (n,) and its gradient (n, d)."""
        of_cos, of_sin = self.weights.mean(0).chunk(2)
        root = math.sqrt(self.frequencies.shape[1])
        angle = t @ self.frequencies
        cos, sin = torch.cos(angle) / root, torch.sin(angle) / root
        slope = (of_sin * cos - of_cos * sin) @ self.frequencies.T
        return cos @ of_cos + sin @ of_sin, slope
