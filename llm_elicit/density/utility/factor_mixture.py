"""Mixtures of components with one factor: isotropic but for one direction.

A component's covariance is s²(I + b bᵀ), as of probabilistic principal components with one factor
(Tipping and Bishop, 1999), or s²(I + b bᵀ)⁻¹: elongated or flattened along b. With its height and
centre these are 2d + 2 parameters, where a free covariance takes 1 + d + d(d + 1)/2. They serve
where comparisons are too few for free ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from llm_elicit.density.utility.model import Mixture


@dataclass(frozen=True)
class FactorMixture(Mixture):
    """A mixture with W = (I + b bᵀ)^(∓½)/s; make it by `of`.

    Parameters
    ----------
    elongated : (K,) bools; the other components are flattened.
    centre : m (K, d).
    log_scale : log s (K,).
    loading : b (K, d).
    """

    elongated: Tensor
    centre: Tensor
    log_scale: Tensor
    loading: Tensor

    @staticmethod
    def of(
        elongated: Tensor, height: Tensor, centre: Tensor, log_scale: Tensor, loading: Tensor
    ) -> FactorMixture:
        """Return the mixture with these parameters; leading axes are kept."""
        root = (1.0 + loading.square().sum(-1)).sqrt()
        bent = torch.where(elongated, -1.0 / root, 1.0) / (root + 1.0)
        whiten = torch.eye(loading.shape[-1]) + _outer(bent[..., None] * loading, loading)
        whiten = whiten * (-log_scale).exp()[..., None, None]
        offset = (centre[..., None, :] @ whiten).squeeze(-2)
        return FactorMixture(whiten, offset, height, elongated, centre, log_scale, loading)

    @staticmethod
    def nearest(mixture: Mixture) -> FactorMixture:
        """Return the mixture with these centres and each covariance's outermost axis."""
        inverse = torch.linalg.inv(mixture.whiten)
        variance, axes = torch.linalg.eigh(inverse.mT @ inverse)
        logs = variance.log()
        elongated = logs[:, -1] - logs[:, :-1].mean(1) > logs[:, 1:].mean(1) - logs[:, 0]
        rest = torch.where(elongated, logs[:, :-1].mean(1), logs[:, 1:].mean(1))
        ratio = torch.where(elongated, logs[:, -1] - rest, rest - logs[:, 0]).exp()
        axis = torch.where(elongated[:, None], axes[:, :, -1], axes[:, :, 0])
        loading = axis * (ratio - 1.0).clamp(min=0.0).sqrt()[:, None]
        centre = (mixture.offset[:, None] @ inverse).squeeze(1)
        return FactorMixture.of(elongated, mixture.height, centre, 0.5 * rest, loading)

    def moved(self, step: Tensor) -> FactorMixture:
        """Return the mixture after a step (..., K·(2d + 2)), changes of (h, m W, log s, b)."""
        k, d = self.loading.shape
        changes = step.reshape(*step.shape[:-1], k, 2 * d + 2)
        rise, shift, growth, change = torch.split(changes, [1, d, 1, d], -1)
        return FactorMixture.of(
            self.elongated,
            self.height + rise.squeeze(-1),
            self.centre + (shift[..., None, :] @ torch.linalg.inv(self.whiten)).squeeze(-2),
            self.log_scale + growth.squeeze(-1),
            self.loading + change,
        )

    def directions(self) -> Tensor:
        """Return the free mixture's steps (K, p, 2d + 2) that these are, to first order.

        W grows by WΔ where b bᵀ changes by B: Δ = −½ s² Wᵀ B W of an elongated component and,
        with V = W⁻¹/s, Δ = ½ V B Vᵀ of a flattened one.
        """
        k, d = self.loading.shape
        i, j = torch.triu_indices(d, d)
        side, along = self._turned()
        bent = 0.5 * _outer(side, along.expand_as(side))
        bent = torch.where(self.elongated, -1.0, 1.0)[:, None, None, None] * (bent + bent.mT)
        parts = torch.zeros(k, 1 + d + len(i), 2 * d + 2)
        parts[:, : 1 + d, : 1 + d] = torch.eye(1 + d)
        parts[:, 1 + d :, 1 + d] = -(i == j).float()
        parts[:, 1 + d :, 2 + d :] = bent[..., i, j].mT
        return parts

    def form_slopes(self, y: Tensor) -> Tensor:
        """Return the derivatives (K, 2d + 2, n) of the forms by their own steps."""
        side, along = self._turned()
        sign = torch.where(self.elongated, 1.0, -1.0)[:, None, None]
        bent = sign * (side @ y) * (along @ y)
        return torch.cat([torch.ones_like(y[:, :1]), y, y.square().sum(1, True), bent], 1)

    def _turned(self) -> tuple[Tensor, Tensor]:
        """Return each feature axis (K, d, d), and b (K, 1, d), in a component's coordinates.

        These are W s of an elongated component and W⁻¹/s of a flattened one.
        """
        unit = self.whiten * self.log_scale.exp()[:, None, None]
        side = torch.where(self.elongated[:, None, None], unit, torch.linalg.inv(unit))
        return side, self.loading[:, None] @ side

    def log_measure(self) -> Tensor:
        """Return the log of a measure under which the length of b, not its entries, is flat.

        Under a flat measure of its entries a loading of many entries is drawn too long (Stein,
        1959).
        """
        d = self.loading.shape[-1]
        return -0.5 * (d - 1) * torch.log1p(self.loading.square().sum(-1)).sum(-1)


def _outer(a: Tensor, b: Tensor) -> Tensor:
    """Return a bᵀ (..., d, d)."""
    return a[..., :, None] * b[..., None, :]
