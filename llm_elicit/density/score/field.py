"""The tempering field, tabulated on a one-dimensional grid.

The log-odds L of beating a random draw of λ is an increasing function of the utility u = log p,
so u = m(L) and ∇u = ω ∇L with the tempering field ω = m′(L) = du/dL: at a utility u,

    ω(u) = w(1 − w)/w′,    w(u) = E_{x′~λ} F(u − u(x′)),

which is the field of Theorem 3.1 of Mikkola, Acerbi and Klami (2026), τ = w/w′, for winners and
losers together. The expectation determines m poorly: where utilities under λ are many times the
noise apart, w is their rank whatever their scale. The outcomes of pairs determine it well, so m is
fitted to them: piecewise linear and increasing, by maximum penalized likelihood of the choices
F(m(L) − m(L′)). With one piece it is the constant ω* of the method ``score-constant``
(Proposition 3.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from torch import Tensor

from llm_elicit.density.likelihood import Noise

_ROUGHNESS = 1.0


@dataclass(frozen=True)
class TemperingField:
    """u = m(L): ``utilities`` (G,) at the log-odds ``grid`` (G,), linear between and beyond.

    Examples
    --------
    >>> import torch
    >>> field = TemperingField(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 2.0, 3.0]))
    >>> field.utility(torch.tensor([0.5, 3.0])).tolist()
    [1.0, 4.0]
    >>> field(torch.tensor([0.5, 3.0])).tolist()
    [2.0, 1.0]
    """

    grid: Tensor
    utilities: Tensor

    @classmethod
    def fit(
        cls, log_odds: tuple[Tensor, Tensor], weights: Tensor, noise: Noise, knots: int
    ) -> TemperingField:
        """Fit the field to the log-odds (n,) of winners and of losers.

        The grid has ``knots`` points, at quantiles of the log-odds; the logarithm of the field is
        smoothed by a penalty on its differences, a random walk with standard deviation
        1/√2 a piece.
        """
        both = torch.cat(log_odds).numpy()
        grid = np.unique(np.quantile(both, np.linspace(0.0, 1.0, knots)))
        if len(grid) < 2:  # every point has the same log-odds
            return cls(torch.tensor([-1.0, 1.0]).double(), torch.tensor([0.0, 0.0]).double())
        pieces = torch.from_numpy(_pieces(log_odds[0].numpy(), grid))
        pieces = pieces - torch.from_numpy(_pieces(log_odds[1].numpy(), grid))

        def loss(log_field: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
            at = torch.tensor(log_field, requires_grad=True)
            rough = _ROUGHNESS * (at[1:] - at[:-1]).square().sum()
            value = rough - (weights * noise.log_cdf(pieces @ at.exp())).sum()
            (slope,) = torch.autograd.grad(value, at)
            return float(value.detach()), slope.numpy()

        start = np.full(len(grid) - 1, math.log(noise.scale))
        bounds = [(math.log(noise.scale) - 7.0, math.log(noise.scale) + 7.0)] * len(start)
        found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
        steps = np.exp(found) * np.diff(grid)
        utilities = np.concatenate([[0.0], np.cumsum(steps)])
        return cls(torch.from_numpy(grid), torch.from_numpy(utilities))

    def utility(self, log_odds: Tensor) -> Tensor:
        """Return u (n,) at log-odds (n,), nats."""
        right, slope = self._piece(log_odds)
        return self.utilities[right - 1] + slope * (log_odds - self.grid[right - 1])

    def __call__(self, log_odds: Tensor) -> Tensor:
        """Return ω (n,) at log-odds (n,)."""
        return self._piece(log_odds)[1]

    def _piece(self, log_odds: Tensor) -> tuple[Tensor, Tensor]:
        right = torch.searchsorted(self.grid, log_odds.contiguous()).clamp(1, len(self.grid) - 1)
        slopes = self.utilities.diff() / self.grid.diff()
        return right, slopes[right - 1]


def _pieces(
    log_odds: npt.NDArray[np.float64], grid: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """How much of each interval of the grid lies below each value: (n, G − 1)."""
    low, high = grid[:-1].copy(), grid[1:].copy()
    start = low.copy()
    low[0], high[-1] = -np.inf, np.inf
    return np.asarray(np.clip(log_odds[:, None], low, high) - start)
