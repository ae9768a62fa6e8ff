"""The score network of winners and losers at every noise level.

Preconditioned as in EDM (Karras et al., 2022): with c_skip = σ_d²/(σ² + σ_d²),
c_out = σσ_d/√(σ² + σ_d²), c_in = 1/√(σ² + σ_d²), the denoiser is D = c_skip·x + c_out·F(c_in·x)
and the score (D − x)/σ². Layers preserve magnitudes in the sense of EDM2 (Karras et al.,
2024): every weight row has unit norm, SiLU is divided by its gain 0.596 on normal inputs,
and sums are weighted so that variance stays one.

Beliefs saved by former versions hold networks that add F/√(σ² + σ_d²) to a known score instead.

σ_d is the standard deviation of all compared points, winners and losers pooled: about 1 in
latent coordinates, where D = c_skip·x is then nearly the denoiser of λ itself, so F learns
what distinguishes winners from λ.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

_SILU_GAIN = 0.596
_MIX = 0.3


class UnitLinear(nn.Module):
    """Linear map without bias whose weight rows are scaled to unit norm when used."""

    def __init__(self, fan_in: int, fan_out: int, generator: torch.Generator) -> None:
        super().__init__()
        # Rows start at unit norm too: only their direction matters, so the norm they start
        # with sets how fast a given learning rate turns them.
        start = torch.randn(fan_out, fan_in, generator=generator)
        self.weight = nn.Parameter(nn.functional.normalize(start, dim=1))

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., fan_in) -> (..., fan_out)."""
        out: Tensor = x @ nn.functional.normalize(self.weight, dim=1).T
        return out


def _silu(x: Tensor) -> Tensor:
    return nn.functional.silu(x) / _SILU_GAIN


def _blend(a: Tensor, b: Tensor) -> Tensor:
    """Magnitude-preserving sum of two unit-variance signals."""
    return (a * (1.0 - _MIX) + b * _MIX) / math.hypot(1.0 - _MIX, _MIX)


class ScoreNetwork(nn.Module):
    """Scores of the pair (winner, loser), of the winner alone or of the loser alone, at noise σ.

    Parameters
    ----------
    dimension : features d. width : units per layer; one input and four hidden layers.
    sigma_data : standard deviation of the compared points in latent coordinates.

    Examples
    --------
    >>> import torch
    >>> network = ScoreNetwork(2, 16, 1.0, torch.Generator().manual_seed(0))
    >>> winner, loser = network.side_scores(torch.zeros(5, 2), torch.zeros(5, 2), 0.5)
    >>> winner.shape
    torch.Size([5, 2])
    """

    def __init__(
        self, dimension: int, width: int, sigma_data: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.dimension, self.width, self.sigma_data = dimension, width, sigma_data
        self.inlet = UnitLinear(2 * dimension + 1, width, generator)
        # Conditions: ln σ, its square, which halves are seen, a constant (the only bias).
        self.condition = UnitLinear(5, width, generator)
        self.hidden = nn.ModuleList(UnitLinear(width, width, generator) for _ in range(4))
        self.outlet = UnitLinear(width, 2 * dimension, generator)
        self.gain = nn.Parameter(torch.tensor(0.1))

    def forward(self, pair: Tensor, sigma: Tensor, seen: Tensor) -> Tensor:
        """Denoised pair (n, 2d) from a noisy pair (n, 2d), σ (n, 1) and ``seen`` (n, 2).

        ``seen`` says with 1 which of (winner, loser) is data; the other half must be N(0, σ²I)
        noise, and its output means nothing. (1, 1) is the joint density, (1, 0) the marginal of
        winners, (0, 1) that of losers.
        """
        variance = self.sigma_data**2
        total = sigma.square() + variance
        raw = self._raw(pair / total.sqrt(), sigma, seen)
        return (variance / total) * pair + (sigma * self.sigma_data / total.sqrt()) * raw

    def _raw(self, scaled: Tensor, sigma: Tensor, seen: Tensor) -> Tensor:
        one = torch.ones_like(sigma)
        log_sigma = torch.log(sigma) / 2.0
        flags = torch.cat([log_sigma + 1.0, 0.5 * log_sigma.square(), 2.0 * seen - 1.0, one], 1)
        context: Tensor = self.condition(flags)
        hidden = _silu(_blend(self.inlet(torch.cat([scaled, one], 1)), context))
        for layer in self.hidden:
            hidden = _silu(_blend(layer(hidden), context))
        out: Tensor = self.outlet(hidden) * self.gain
        return out

    def side_scores(
        self, point: Tensor, masked: Tensor, sigma: float, *, added: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return ∇ log p_{w,σ} and ∇ log p_{l,σ}, both (n, d), at points (n, d).

        ``masked`` (n, d) is N(0, σ²I) noise in place of the half that is not seen; ``added``
        returns what a network of former versions adds to a known score.
        """
        n, d = point.shape
        level = point.new_full((2 * n, 1), sigma)
        seen = torch.eye(2, dtype=point.dtype, device=point.device).repeat_interleave(n, 0)
        pairs = torch.cat([torch.cat([point, masked], 1), torch.cat([masked, point], 1)])
        variance = self.sigma_data**2
        total = sigma**2 + variance
        raw = self._raw(pairs / math.sqrt(total), level, seen)
        winner, loser = raw[:n, :d], raw[n:, d:]
        if added:
            scale = 1.0 / math.sqrt(total)
            return scale * winner, scale * loser
        # (D − x)/σ² without the cancellation that small σ would bring.
        scale = self.sigma_data / (sigma * math.sqrt(total))
        return scale * winner - point / total, scale * loser - point / total
