"""Parts of utility functions: mixtures of forms and Fourier terms, many at a time.

*Mixtures* f(t) = a log Σ_k exp(h_k − ½|t W_k − o_k|²). Far from the data the widest form
dominates, so that exp(f) is integrable.

*Fourier features* f(t) = Σ_m a_m cos(ω_m·t) + b_m sin(ω_m·t). With ω ~ N(0, I/ℓ²) and independent
normal coefficients of variance v/M these are draws of a Gaussian process with covariance
v exp(−|t − t'|²/2ℓ²), up to the Monte Carlo error of M frequencies (Rahimi and Recht, 2007); with ω
on a lattice and variances that follow the spectral density, up to the lattice's period.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class ComponentStack:
    """S mixtures of K components, evaluated together, times ``share``.

    Component k has its centre where t W = o, precision W Wᵀ, and log-mass h − log|det W| up to a
    constant.

    Args:
        whiten, offset, height: W (S, K, d, d), o (S, K, d) and h (S, K).
        share: the factor a of the logarithm.
    """

    whiten: Tensor
    offset: Tensor
    height: Tensor
    share: float = 1.0

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return int(self.offset.shape[-1])

    @property
    def count(self) -> int:
        """Number of mixtures S."""
        return int(self.height.shape[0])

    @property
    def parameters(self) -> list[Tensor]:
        """The three tensors."""
        return [self.whiten, self.offset, self.height]

    def select(self, indices: Sequence[int]) -> ComponentStack:
        """Return copies of the mixtures numbered ``indices``."""
        whiten, offset, height = (p.detach()[list(indices)].clone() for p in self.parameters)
        return ComponentStack(whiten, offset, height, self.share)

    def turned(self, matrix: Tensor) -> ComponentStack:
        """Return the mixtures of M t, for M (d, d)."""
        return replace(self, whiten=matrix.to(self.whiten).T @ self.whiten)

    def scaled(self, factor: float) -> ComponentStack:
        """Return the mixtures times ``factor``."""
        return replace(self, share=factor * self.share)

    def __call__(self, t: Tensor) -> Tensor:
        """Return values (S, n) at features (n, d)."""
        return self.share * torch.logsumexp(self._forms(t), -1)

    def _forms(self, t: Tensor) -> Tensor:
        """Return the components' values (S, n, K), by one product with `products` of features."""
        s, k, _ = self.offset.shape
        return (products(t) @ self._columns).reshape(-1, s, k).transpose(0, 1)

    def rows(self) -> Tensor:
        """Return the components' coefficients (S, K, P) of `products`."""
        d = self.dimension
        i, j = torch.triu_indices(d, d, device=self.whiten.device)
        twice = torch.where(i == j, 0.5, 1.0)
        constant = self.height - 0.5 * self.offset.square().sum(-1)
        squares = -twice * self._precision[:, :, i, j]
        return torch.cat([self._linear, squares, constant[..., None]], -1)

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """Return features (n, d), double, of the first mixture as if its ``share`` were 1."""
        masses = torch.softmax(self._log_masses[0], 0)
        components = torch.multinomial(masses, n, replacement=True, generator=generator)
        white = torch.randn(n, self.dimension, generator=generator, dtype=torch.float64)
        inverse = torch.linalg.inv(self.whiten[0].double())
        t: Tensor = ((white + self.offset[0, components])[:, None] @ inverse[components]).squeeze(1)
        return t

    @property
    def log_mass(self) -> Tensor:
        """log ∫ exp(f) dt (S,), nats, as if ``share`` were 1."""
        masses: Tensor = torch.logsumexp(self._log_masses, 1)
        return masses + 0.5 * self.dimension * math.log(2.0 * math.pi)

    @property
    def _log_masses(self) -> Tensor:
        """Log-masses (S, K) of the components, up to a constant."""
        masses: Tensor = self.height - torch.linalg.slogdet(self.whiten).logabsdet
        return masses

    # Samplers evaluate a stack thousands of times.
    @cached_property
    def _columns(self) -> Tensor:
        """`rows`, one component per column (P, S·K)."""
        return self.rows().flatten(0, 1).T

    @cached_property
    def _precision(self) -> Tensor:
        """W Wᵀ (S, K, d, d)."""
        return self.whiten @ self.whiten.transpose(2, 3)

    @cached_property
    def _linear(self) -> Tensor:
        """W o (S, K, d): each component's slope at 0."""
        return (self.whiten @ self.offset[..., None]).squeeze(-1)

    def mean_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean over the stack (n,) and its gradient (n, d)."""
        s, k, d = self.offset.shape
        forms = self._forms(t)
        share = torch.softmax(forms, -1) * (self.share / s)
        flat = share.transpose(0, 1).reshape(-1, s * k)
        pull = (flat @ self._precision.reshape(s * k, d * d)).reshape(-1, d, d)
        slope = flat @ self._linear.reshape(s * k, d) - (pull @ t[..., None]).squeeze(-1)
        return self.share * torch.logsumexp(forms, -1).mean(0), slope


def products(t: Tensor) -> Tensor:
    """Return [t_i, t_i t_j, 1] (n, P) of features (n, d), i <= j."""
    i, j = torch.triu_indices(t.shape[1], t.shape[1], device=t.device)
    return torch.cat([t, t[:, i] * t[:, j], torch.ones_like(t[:, :1])], 1)


def draw_frequencies(count: int, dimension: int, generator: torch.Generator) -> Tensor:
    """Return frequencies (d, M) of a process of length scale one.

    Examples:
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
    """

    frequencies: Tensor
    weights: Tensor

    @property
    def count(self) -> int:
        """Number of functions S."""
        return len(self.weights)

    def select(self, indices: Sequence[int]) -> FourierStack:
        """Return the functions numbered ``indices``."""
        return replace(self, weights=self.weights[list(indices)])

    def turned(self, matrix: Tensor) -> FourierStack:
        """Return the functions of M t, for M (d, d)."""
        return replace(self, frequencies=matrix.to(self.frequencies).T @ self.frequencies)

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
