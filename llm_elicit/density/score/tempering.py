"""The tempering field: from the scores of winners and losers to the score of the belief.

With w(u) = E_{x'~λ} F(u − u(x')) the marginal winner density is p_w(x) = 2 λ(x) w(u(x)), so in
*any* coordinates

    ∇u = τ(u) · (∇log p_w − ∇log λ),    τ(u) = w(u)/w'(u).

For uniform λ this is Theorem 3.1 (Gumbel) and Theorem A.1 (exponential) of Mikkola, Acerbi
and Klami (2026); the same formula covers normal noise. τ depends on x through u alone, so it
is tabulated once on a grid of utilities, with the expectation taken directly over λ.

**Losers count too.** Their marginal density is p_l(x) = 2 λ(x) (1 − w(u(x))), so also
∇u = −(1 − w)/w' · (∇log p_l − ∇log λ). Near the belief's mode w is close to 1: the winners'
score is nearly λ's, τ is large and multiplies its errors, while losers are rare there and
their score is informative; far from the mode the reverse holds. A score estimated from
m points near x has variance ∝ 1/m, so the two estimates of ∇u have variances in the ratio
w : (1 − w), and weighting them inversely gives the least-variance combination

    ∇u = ω(u) · (∇log p_w − ∇log p_l),    ω(u) = w(1 − w)/w',

in which λ cancels. For Gumbel noise τ >= ω >= s, and ω stays of the order of s where τ grows
like 1/(1 − w); ω = s when every competitor has the same utility.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_elicit.density.likelihood import Noise
from llm_elicit.density.utility_function import Potential

Array = npt.NDArray[np.float64]
_GRID = 2048
_MARGIN = 8.0
_CACHED = 65_536  # numbers that stay in the cache


@dataclass(frozen=True)
class Tempering:
    """log w, log(1 − w) and log w' on an even grid of utilities (nats), (G,) each.

    Between grid points both are interpolated linearly; beyond the ends they are held constant.

    Example:
        >>> import numpy as np, torch
        >>> field = Tempering.tabulate(np.zeros(3), Noise())   # every competitor has utility 0
        >>> round(float(field.win_probability(torch.zeros(1)).item()), 4)
        0.5
    """

    grid: Tensor
    log_win: Tensor
    log_lose: Tensor
    log_slope: Tensor

    @classmethod
    def tabulate(cls, utilities: Array, noise: Noise, weights: Array | None = None) -> Tempering:
        """Build the table from utilities (m,) of draws from λ, optionally weighted."""
        u = torch.as_tensor(utilities, dtype=torch.float64)
        mass = torch.ones_like(u) if weights is None else torch.as_tensor(weights).double()
        log_mass = torch.log(mass / mass.sum())
        low = float(u.min()) - _MARGIN * noise.scale
        high = float(u.max()) + _MARGIN * noise.scale
        grid = torch.linspace(low, high, _GRID, dtype=torch.float64)
        columns: list[list[Tensor]] = [[], [], []]
        for part in torch.split(grid, max(_CACHED // len(u), 1)):
            gap = part[:, None] - u
            logs = (noise.log_cdf(gap), noise.log_cdf(-gap), noise.log_pdf(gap))
            for column, log in zip(columns, logs, strict=True):
                column.append(torch.logsumexp(log + log_mass, dim=1))
        return cls(grid, *(torch.cat(column) for column in columns))

    def tau(self, u: Tensor) -> Tensor:
        """Return τ = w/w' at utilities of any shape."""
        return torch.exp(self._interpolate(u, self.log_win - self.log_slope))

    def omega(self, u: Tensor) -> Tensor:
        """Return ω = w(1 − w)/w' at utilities of any shape."""
        return torch.exp(self._interpolate(u, self.log_win + self.log_lose - self.log_slope))

    def field(self, u: Tensor, side: str) -> Tensor:
        """Return ω for side "both", τ for side "winners"."""
        return self.omega(u) if side == "both" else self.tau(u)

    def win_probability(self, u: Tensor) -> Tensor:
        """Return w, the probability of being preferred to a random draw from λ."""
        return torch.exp(self.log_win_at(u))

    def log_win_at(self, u: Tensor) -> Tensor:
        """Return log w."""
        return self._interpolate(u, self.log_win)

    def log_odds(self, u: Tensor) -> Tensor:
        """log(w/(1 − w))."""
        return self._interpolate(u, self.log_win - self.log_lose)

    def utility_of_log(self, log_win: Tensor) -> Tensor:
        """Inverse of log w; values beyond the table go to its ends."""
        return self._invert(log_win, self.log_win)

    def utility_of_odds(self, log_odds: Tensor) -> Tensor:
        """Inverse of log(w/(1 − w)), well conditioned in both tails."""
        return self._invert(log_odds, self.log_win - self.log_lose)

    def _invert(self, value: Tensor, table: Tensor) -> Tensor:
        right = torch.searchsorted(table, value.double().contiguous())
        right = right.clamp(1, len(self.grid) - 1)
        low, high = table[right - 1], table[right]
        share = ((value.double() - low) / (high - low).clamp(min=1e-300)).clamp(0.0, 1.0)
        u = self.grid[right - 1] + share * (self.grid[right] - self.grid[right - 1])
        return u.to(value.dtype)

    def _interpolate(self, u: Tensor, table: Tensor) -> Tensor:
        spacing = (self.grid[-1] - self.grid[0]) / (len(self.grid) - 1)
        place = ((u.double() - self.grid[0]) / spacing).clamp(0.0, len(self.grid) - 1.001)
        index = place.floor().long()
        share = place - index
        return (table[index] * (1.0 - share) + table[index + 1] * share).to(u.dtype)


@dataclass(frozen=True)
class ConstantTempered:
    """``constant`` times the log-odds (side "both") or the log-chance (side "winners") of winning.

    Example:
        >>> import numpy as np, torch
        >>> from llm_elicit.density.likelihood import Noise
        >>> class Segment:
        ...     def __call__(self, t): return t[:, 0]
        ...     def value_and_slope(self, t): return t[:, 0], torch.ones_like(t)
        >>> field = Tempering.tabulate(np.zeros(3), Noise(level=1.0))  # every rival has utility 0
        >>> tempered = ConstantTempered(Segment(), field, "both", 2.0)
        >>> round(float(tempered(torch.tensor([[0.7]]).double()).item()), 3)
        1.4
    """

    utility: Potential
    tempering: Tempering
    side: str
    constant: float

    def __call__(self, t: Tensor) -> Tensor:
        """Return values (n,) at features (n, d)."""
        return self._value(self.utility(t))

    def value_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return values (n,) and gradients (n, d) at features (n, d)."""
        u, slope = self.utility.value_and_slope(t)
        field = self.tempering.field(u, self.side)
        return self._value(u), self.constant * slope / field[:, None]

    def _value(self, u: Tensor) -> Tensor:
        two_sided = self.side == "both"
        log = self.tempering.log_odds(u) if two_sided else self.tempering.log_win_at(u)
        return self.constant * log


def optimal_constant(tau: Tensor, score: Tensor) -> float:
    """Return τ* = E[τ |∇log q|²] / E[|∇log q|²], which minimizes the Fisher divergence (Prop. 3.2).

    Shapes: the field τ (n,) and ∇log q (n, d) at draws of the belief; q is the density being
    tempered (the winners' relative to λ, or the odds of winning). Where ∇log q vanishes
    everywhere every constant is optimal: the mean of τ.
    """
    weight = score.square().sum(-1)
    total = weight.sum()
    if float(total) == 0.0:
        return float(tau.mean())
    return float((tau * weight).sum() / total)
