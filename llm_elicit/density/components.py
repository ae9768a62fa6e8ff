"""Utilities that are logarithms of mixtures: f(t) = a log Σ_k exp(h_k − ½|t W_k − o_k|²).

A belief with K bumps is K quadratic forms under one log-sum-exp. Far out the widest form wins,
so exp(f) is integrable whatever was fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

    def __call__(self, t: Tensor) -> Tensor:
        """Values (S, n) at features (n, d)."""
        return self.share * torch.logsumexp(self._forms(t)[1], -1)

    def _forms(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Whitened residuals (S, n, K, d) and the forms' values (S, n, K)."""
        s, k, d = self.offset.shape
        flat = self.whiten.permute(0, 2, 1, 3).reshape(s, d, k * d)
        offset = -self.offset.reshape(s, 1, k * d)
        white = torch.baddbmm(offset, t.expand(s, *t.shape), flat).reshape(s, -1, k, d)
        return white, self.height[:, None] - 0.5 * white.square().sum(-1)

    def mean_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Mean over the stack and its gradient: (n,), (n, d)."""
        white, forms = self._forms(t)
        share = torch.softmax(forms, -1) * (self.share / self.count)
        slope = -torch.einsum("snke,skde->nd", share[..., None] * white, self.whiten)
        return self.share * torch.logsumexp(forms, -1).mean(0), slope
