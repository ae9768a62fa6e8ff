"""The tempering field: from the score of the winners to the score of the belief.

With w(u) = E_{x'~λ} F(u − u(x')) the marginal winner density is p_w(x) = 2 λ(x) w(u(x)), so in
*any* coordinates

    ∇u = τ(u) · (∇log p_w − ∇log λ),    τ(u) = w(u)/w'(u).

For uniform λ this is Theorem 3.1 (Gumbel) and Theorem A.1 (exponential) of Mikkola, Acerbi
and Klami (2026); the same formula covers normal noise. τ depends on x through u alone, so it
is tabulated once on a grid of utilities, with the expectation taken directly over λ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_elicit.density.choice import Noise

Array = npt.NDArray[np.float64]
_GRID = 2048
_MARGIN = 8.0


@dataclass(frozen=True)
class Tempering:
    """log w and log τ tabulated on an even grid of utilities (nats), (G,) each, double precision.

    Between grid points both are interpolated linearly; beyond the ends they are held constant.

    Examples
    --------
    >>> import numpy as np, torch
    >>> field = Tempering.tabulate(np.zeros(3), Noise())   # every competitor has utility 0
    >>> round(float(field.win_probability(torch.zeros(1)).item()), 6)
    0.5
    """

    grid: Tensor
    log_win: Tensor
    log_tau: Tensor

    @classmethod
    def tabulate(cls, utilities: Array, noise: Noise, weights: Array | None = None) -> Tempering:
        """Build the table from utilities (m,) of draws from λ, optionally weighted."""
        u = torch.as_tensor(utilities, dtype=torch.float64)
        mass = torch.ones_like(u) if weights is None else torch.as_tensor(weights).double()
        log_mass = torch.log(mass / mass.sum())
        low = float(u.min()) - _MARGIN * noise.scale
        high = float(u.max()) + _MARGIN * noise.scale
        grid = torch.linspace(low, high, _GRID, dtype=torch.float64)
        log_win, log_slope = [], []
        for part in grid.split(128):
            gap = part[:, None] - u
            log_win.append(torch.logsumexp(noise.log_cdf(gap) + log_mass, dim=1))
            log_slope.append(torch.logsumexp(noise.log_pdf(gap) + log_mass, dim=1))
        win = torch.cat(log_win)
        return cls(grid, win, win - torch.cat(log_slope))

    def tau(self, u: Tensor) -> Tensor:
        """τ at utilities of any shape."""
        return torch.exp(self._interpolate(u, self.log_tau))

    def log_win_probability(self, u: Tensor) -> Tensor:
        """log w at utilities of any shape."""
        return self._interpolate(u, self.log_win)

    def win_probability(self, u: Tensor) -> Tensor:
        """w: the chance of beating a random draw from λ."""
        return torch.exp(self.log_win_probability(u))

    def utility_of(self, log_win: Tensor) -> Tensor:
        """Inverse of `log_win_probability`; values beyond the table go to its ends."""
        right = torch.searchsorted(self.log_win, log_win.double().contiguous())
        right = right.clamp(1, len(self.grid) - 1)
        low, high = self.log_win[right - 1], self.log_win[right]
        share = ((log_win.double() - low) / (high - low).clamp(min=1e-300)).clamp(0.0, 1.0)
        value = self.grid[right - 1] + share * (self.grid[right] - self.grid[right - 1])
        return value.to(log_win.dtype)

    def _interpolate(self, u: Tensor, table: Tensor) -> Tensor:
        spacing = (self.grid[-1] - self.grid[0]) / (len(self.grid) - 1)
        place = ((u.double() - self.grid[0]) / spacing).clamp(0.0, len(self.grid) - 1.001)
        left = place.floor().long()
        share = place - left
        return (table[left] * (1.0 - share) + table[left + 1] * share).to(u.dtype)


def optimal_constant(tau: Tensor, winner_score: Tensor) -> float:
    """τ* = E[τ |∇log q|²] / E[|∇log q|²], minimizing the Fisher divergence (Proposition 3.2).

    Shapes: τ (n,) and ∇log q (n, d) at draws of the belief, q the marginal winner density
    relative to λ. Where ∇log q vanishes everywhere every constant is optimal: the mean of τ.
    """
    weight = winner_score.square().sum(-1)
    total = weight.sum()
    if float(total) == 0.0:
        return float(tau.mean())
    return float((tau * weight).sum() / total)
