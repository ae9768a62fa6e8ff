"""Utilities that are logarithms of mixtures: f(t) = a log Σ_k exp(h_k − ½|t W_k − o_k|²).

A belief with K bumps is K quadratic forms under one log-sum-exp. Far out the widest form wins,
so exp(f) is integrable whatever was fitted.
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
    """S mixtures of K forms, evaluated together, times ``share``.

    ``whiten`` W (S, K, d, d), ``offset`` o (S, K, d), ``height`` h (S, K). Component k has its
    centre where t W = o, precision W Wᵀ, and log-mass h − log|det W| up to a constant.

    Examples
    --------
    >>> import torch
    >>> one = ComponentStack(torch.eye(2)[None, None], torch.zeros(1, 1, 2), torch.zeros(1, 1))
    >>> one(torch.tensor([[2.0, 0.0]])).tolist()
    [[-2.0]]
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

    def select(self, which: Sequence[int]) -> ComponentStack:
        """The mixtures numbered ``which``, copied."""
        whiten, offset, height = (p.detach()[list(which)].clone() for p in self.parameters)
        return ComponentStack(whiten, offset, height, self.share)

    def scaled(self, factor: float) -> ComponentStack:
        """The same mixtures times ``factor``."""
        return replace(self, share=factor * self.share)

    def __call__(self, t: Tensor) -> Tensor:
        """Values (S, n) at features (n, d)."""
        return self.share * torch.logsumexp(self._forms(t), -1)

    def _forms(self, t: Tensor) -> Tensor:
        """The forms' values (S, n, K): products of features, so one matrix product for all."""
        s, k, _ = self.offset.shape
        return (products(t) @ self._columns).reshape(-1, s, k).transpose(0, 1)

    def rows(self) -> Tensor:
        """Coefficients (S, K, P) of the forms in `products`."""
        d = self.dimension
        i, j = torch.triu_indices(d, d, device=self.whiten.device)
        twice = torch.where(i == j, 0.5, 1.0)
        constant = self.height - 0.5 * self.offset.square().sum(-1)
        squares = -twice * self._precision[:, :, i, j]
        return torch.cat([self._linear, squares, constant[..., None]], -1)

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """Features (n, d), double, drawn from the first mixture as if its ``share`` were one."""
        masses = torch.softmax(self._log_masses[0], 0)
        which = torch.multinomial(masses, n, replacement=True, generator=generator)
        white = torch.randn(n, self.dimension, generator=generator, dtype=torch.float64)
        inverse = torch.linalg.inv(self.whiten[0].double())
        t: Tensor = ((white + self.offset[0, which])[:, None] @ inverse[which]).squeeze(1)
        return t

    @property
    def log_mass(self) -> Tensor:
        """log ∫ exp(f) dt (S,), nats, if ``share`` were one."""
        masses: Tensor = torch.logsumexp(self._log_masses, 1)
        return masses + 0.5 * self.dimension * math.log(2.0 * math.pi)

    @property
    def _log_masses(self) -> Tensor:
        """Of every form (S, K), up to a constant."""
        masses: Tensor = self.height - torch.linalg.slogdet(self.whiten).logabsdet
        return masses

    # What does not depend on features is worked out once: samplers ask thousands of times.
    @cached_property
    def _columns(self) -> Tensor:
        """`rows`, a form a column (P, S·K)."""
        return self.rows().flatten(0, 1).T

    @cached_property
    def _precision(self) -> Tensor:
        """W Wᵀ (S, K, d, d)."""
        return self.whiten @ self.whiten.transpose(2, 3)

    @cached_property
    def _linear(self) -> Tensor:
        """W o (S, K, d): each form's slope at 0."""
        return (self.whiten @ self.offset[..., None]).squeeze(-1)

    def mean_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Mean over the stack and its gradient: (n,), (n, d)."""
        s, k, d = self.offset.shape
        forms = self._forms(t)
        share = torch.softmax(forms, -1) * (self.share / s)
        flat = share.transpose(0, 1).reshape(-1, s * k)
        pull = (flat @ self._precision.reshape(s * k, d * d)).reshape(-1, d, d)
        slope = flat @ self._linear.reshape(s * k, d) - (pull @ t[..., None]).squeeze(-1)
        return self.share * torch.logsumexp(forms, -1).mean(0), slope


def products(t: Tensor) -> Tensor:
    """[t_i, t_i t_j, 1] (n, P) of features (n, d), i <= j."""
    i, j = torch.triu_indices(t.shape[1], t.shape[1], device=t.device)
    return torch.cat([t, t[:, i] * t[:, j], torch.ones_like(t[:, :1])], 1)
