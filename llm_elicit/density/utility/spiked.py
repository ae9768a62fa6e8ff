"""Mixtures whose components are round but for one direction.

A component's covariance is s²(I + b bᵀ), a spiked one (Johnstone, 2001), as of probabilistic
principal components with one factor (Tipping and Bishop, 1999), or s²(I + b bᵀ)⁻¹: a cigar or a
disc. With its height and centre these are 2d + 2 numbers, where a free shape takes
1 + d + d(d + 1)/2. Comparisons too few to tell several free shapes may tell several of these.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from llm_elicit.density.utility.scoring import Mixture


@dataclass(frozen=True)
class SpikedMixture(Mixture):
    """A mixture with W = (I + b bᵀ)^(∓½)/s, made by `of`.

    ``long`` (K,) says which are cigars; ``centre`` m (K, d), ``log_scale`` log s (K,), ``spike``
    b (K, d).
    """

    long: Tensor
    centre: Tensor
    log_scale: Tensor
    spike: Tensor

    @staticmethod
    def of(
        long: Tensor, height: Tensor, centre: Tensor, log_scale: Tensor, spike: Tensor
    ) -> SpikedMixture:
        """The mixture with these parameters; their axes before K are kept."""
        root = (1.0 + spike.square().sum(-1)).sqrt()
        bent = torch.where(long, -1.0 / root, 1.0) / (root + 1.0)
        whiten = torch.eye(spike.shape[-1]) + _outer(bent[..., None] * spike, spike)
        whiten = whiten * (-log_scale).exp()[..., None, None]
        offset = (centre[..., None, :] @ whiten).squeeze(-2)
        return SpikedMixture(whiten, offset, height, long, centre, log_scale, spike)

    @staticmethod
    def nearest(mixture: Mixture) -> SpikedMixture:
        """With a mixture's centres, each covariance's outermost axis and the mean of the others."""
        inverse = torch.linalg.inv(mixture.whiten)
        variance, axes = torch.linalg.eigh(inverse.mT @ inverse)
        logs = variance.log()
        long = logs[:, -1] - logs[:, :-1].mean(1) > logs[:, 1:].mean(1) - logs[:, 0]
        rest = torch.where(long, logs[:, :-1].mean(1), logs[:, 1:].mean(1))
        ratio = torch.where(long, logs[:, -1] - rest, rest - logs[:, 0]).exp()
        axis = torch.where(long[:, None], axes[:, :, -1], axes[:, :, 0])
        spike = axis * (ratio - 1.0).clamp(min=0.0).sqrt()[:, None]
        centre = (mixture.offset[:, None] @ inverse).squeeze(1)
        return SpikedMixture.of(long, mixture.height, centre, 0.5 * rest, spike)

    def moved(self, step: Tensor) -> SpikedMixture:
        """The mixture after a step (..., K·(2d + 2)), changes of (h, m W, log s, b)."""
        k, d = self.spike.shape
        changes = step.reshape(*step.shape[:-1], k, 2 * d + 2)
        rise, shift, growth, lean = torch.split(changes, [1, d, 1, d], -1)
        return SpikedMixture.of(
            self.long,
            self.height + rise.squeeze(-1),
            self.centre + (shift[..., None, :] @ torch.linalg.inv(self.whiten)).squeeze(-2),
            self.log_scale + growth.squeeze(-1),
            self.spike + lean,
        )

    def directions(self) -> Tensor:
        """(K, p, 2d + 2): the free mixture's steps that are these steps, to first order.

        W grows by WΔ where b bᵀ changes by B: Δ = −½ s² Wᵀ B W of a cigar, with
        V = W⁻¹/s its opposite Δ = ½ V B Vᵀ of a disc.
        """
        k, d = self.spike.shape
        i, j = torch.triu_indices(d, d)
        side, along = self._turned()
        bent = 0.5 * _outer(side, along.expand_as(side))
        bent = torch.where(self.long, -1.0, 1.0)[:, None, None, None] * (bent + bent.mT)
        parts = torch.zeros(k, 1 + d + len(i), 2 * d + 2)
        parts[:, : 1 + d, : 1 + d] = torch.eye(1 + d)
        parts[:, 1 + d :, 1 + d] = -(i == j).float()
        parts[:, 1 + d :, 2 + d :] = bent[..., i, j].mT
        return parts

    def form_slopes(self, y: Tensor) -> Tensor:
        """Derivatives (n, K, 2d + 2) of the forms by their own step, at whitened features."""
        side, along = self._turned()
        turned = (y.transpose(0, 1) @ side.mT).transpose(0, 1)
        lean = torch.where(self.long, 1.0, -1.0)[:, None] * turned * (y * along[:, 0]).sum(-1, True)
        return torch.cat([torch.ones_like(y[..., :1]), y, y.square().sum(-1, True), lean], -1)

    def _turned(self) -> tuple[Tensor, Tensor]:
        """Each axis of the features (K, d, d), and b (K, 1, d), in a component's coordinates.

        A cigar's W s, or a disc's W⁻¹/s.
        """
        unit = self.whiten * self.log_scale.exp()[:, None, None]
        side = torch.where(self.long[:, None, None], unit, torch.linalg.inv(unit))
        return side, self.spike[:, None] @ side

    def log_measure(self) -> Tensor:
        """That a spike's length, rather than its entries, be as likely everywhere.

        Where entries are, a spike of many is drawn too long, as the length of a normal vector's
        mean is (Stein, 1959).
        """
        d = self.spike.shape[-1]
        return -0.5 * (d - 1) * torch.log1p(self.spike.square().sum(-1)).sum(-1)


def _outer(a: Tensor, b: Tensor) -> Tensor:
    """a bᵀ (..., d, d)."""
    return a[..., :, None] * b[..., None, :]
