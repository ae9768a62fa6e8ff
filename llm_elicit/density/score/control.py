"""The fitted utility as a control variate of the score network.

The utility f already says what winners and losers look like: p_w = 2λw(f), p_l = 2λ(1 − w(f)).
Smoothed by N(0, σ²I), λ's score is known exactly; the chance of winning at a noisy point y is
taken at κy, κ = 1/(1 + σ²), the mean of the clean point given y under a standard normal λ:

    ∇log p_{w,σ}(y) ≈ ∇log λ_σ(y) + ∇_y log w(f(κy)),
    ∇log p_{l,σ}(y) ≈ ∇log λ_σ(y) + ∇_y log(1 − w(f(κy))).

Both are exact as σ → 0. The network learns only what is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from llm_elicit.density.tempering import Tempering
from llm_elicit.density.transforms import Latent
from llm_elicit.density.utility_density import utility_and_slope
from llm_elicit.density.utility_function import Utility

_STEP = 1e-2


@dataclass(frozen=True)
class Control:
    """Scores of winners and losers that the utility implies, at every noise level.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from llm_elicit.density import Noise, Uniform
    >>> from llm_elicit.density.transforms import make_latent
    >>> flat = Utility(torch.zeros(2), torch.zeros(2, 2))      # a judge who tosses a coin
    >>> field = Tempering.tabulate(np.zeros(3), Noise())
    >>> latent = make_latent(Uniform([0.0, 0.0], [1.0, 1.0]))
    >>> winner, loser = Control(latent, flat, field).scores(torch.ones(1, 2).double(), 1.0)
    >>> winner.tolist()                                        # λ's own score, -g/(1 + σ²)
    [[-0.5, -0.5]]
    """

    latent: Latent
    utility: Utility
    tempering: Tempering

    def scores(self, g: Tensor, sigma: float | Tensor) -> tuple[Tensor, Tensor]:
        """∇log p_{w,σ} and ∇log p_{l,σ} (n, d) at latent points (n, d); σ a number or (n, 1).

        Differentiable: the Jacobian, a Hessian and so symmetric, is taken by central differences.
        """
        level = torch.as_tensor(sigma, dtype=g.dtype).expand(len(g), 1)
        winner: Tensor = _BySymmetry.apply(g, level, self._winner)  # type: ignore[no-untyped-call]
        loser: Tensor = _BySymmetry.apply(g, level, self._loser)  # type: ignore[no-untyped-call]
        return winner, loser

    def pair(self, pair: Tensor, sigma: Tensor) -> Tensor:
        """The control's score (n, 2d) of noisy pairs (n, 2d), each half on its own."""
        d = pair.shape[1] // 2
        winner, loser = pair[:, :d].double(), pair[:, d:].double()
        level = sigma.double()
        scores = [self._winner(winner, level), self._loser(loser, level)]
        return torch.cat(scores, dim=1).to(pair.dtype)

    def _winner(self, g: Tensor, sigma: Tensor) -> Tensor:
        u, slope = self._slope(g, sigma)
        return self.latent.sampling_score(g, sigma) + self.tempering.win_slope(u)[:, None] * slope

    def _loser(self, g: Tensor, sigma: Tensor) -> Tensor:
        u, slope = self._slope(g, sigma)
        return self.latent.sampling_score(g, sigma) - self.tempering.lose_slope(u)[:, None] * slope

    def _slope(self, g: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        shrink = 1.0 / (1.0 + sigma.square())
        u, slope = utility_and_slope(self.latent, self.utility, shrink * g)
        return u, shrink * slope


class _BySymmetry(torch.autograd.Function):
    """A gradient field whose reverse product with v is its directional difference along v."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, sigma: Tensor, score: Any) -> Tensor:
        ctx.save_for_backward(g, sigma)
        ctx.score = score
        out: Tensor = score(g, sigma)
        return out

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None, None]:
        g, sigma = ctx.saved_tensors
        size = v.norm(dim=1, keepdim=True).clamp(min=1e-30)
        step = _STEP * v / size
        change = ctx.score(g + step, sigma) - ctx.score(g - step, sigma)
        return change * size / (2.0 * _STEP), None, None
