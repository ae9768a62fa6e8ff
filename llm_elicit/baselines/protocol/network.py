"""The score network of winners at every noise level, and its training.

Preconditioned as in EDM (Karras et al., 2022): with c_skip = σ_d²/(σ² + σ_d²),
c_out = σσ_d/√(σ² + σ_d²), c_in = 1/√(σ² + σ_d²), the denoiser is D = c_skip·x + c_out·F(c_in·x)
and the score (D − x)/σ². Layers preserve magnitudes in the sense of EDM2 (Karras et al.,
2024): every weight row has unit norm, SiLU is divided by its gain 0.596 on normal inputs,
and sums are weighted so that variance stays one.

σ_d is the standard deviation of all compared points, winners and losers pooled: about 1 in
latent coordinates, where D = c_skip·x is then nearly the denoiser of λ itself, so F learns
what distinguishes winners from λ.

*Training* is by joint denoising score matching: half of the time the loser of a pair is replaced by
N(0, σ²I) noise and only the winner's score counts, so one network learns the score of pairs and of
winners (appendix C.1 of Mikkola, Acerbi and Klami, 2026). Half of the σ are from a cosine schedule
of levels, half from a log-normal.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from llm_elicit.density.torch_utils import Adam

SIGMA_MIN = 0.002
_SILU_GAIN = 0.596
_MIX = 0.3


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of the score network's training.

    Attributes:
        decay_after: the step after which the learning rate falls as 1/√step; None keeps it.
    """

    width: int
    steps: int
    learning_rate: float
    decay_after: int | None
    sigma_max: float
    sigma_min: float = SIGMA_MIN
    batch: int = 4000


class UnitLinear(nn.Module):
    """Linear map without bias whose weight rows are scaled to unit norm when used."""

    def __init__(self, fan_in: int, fan_out: int, generator: torch.Generator) -> None:
        super().__init__()
        # Rows start at unit norm too: only their direction matters, so their initial norm
        # determines how fast they rotate at a given learning rate.
        start = torch.randn(fan_out, fan_in, generator=generator)
        self.weight = nn.Parameter(nn.functional.normalize(start, dim=1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (..., fan_out) for inputs (..., fan_in)."""
        out: Tensor = x @ nn.functional.normalize(self.weight, dim=1).T
        return out


def _silu(x: Tensor) -> Tensor:
    return nn.functional.silu(x) / _SILU_GAIN


def _blend(a: Tensor, b: Tensor) -> Tensor:
    """Return the magnitude-preserving sum of two unit-variance signals."""
    return (a * (1.0 - _MIX) + b * _MIX) / math.hypot(1.0 - _MIX, _MIX)


class ScoreNetwork(nn.Module):
    """Scores of the pair (winner, loser), or of the winner alone, at noise σ.

    Args:
        dimension: features d.
        width: units per layer; one input and four hidden layers.
        sigma_data: standard deviation of the compared points in latent coordinates.

    Examples:
        >>> import torch
        >>> network = ScoreNetwork(2, 16, 1.0, torch.Generator().manual_seed(0))
        >>> network.winner_score(torch.zeros(5, 2), torch.zeros(5, 2), 0.5).shape
        torch.Size([5, 2])
    """

    def __init__(
        self, dimension: int, width: int, sigma_data: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.size, self.sigma_data = {"width": width, "sigma_data": sigma_data}, sigma_data
        self.inlet = UnitLinear(2 * dimension + 1, width, generator)
        # Conditions: ln σ, its square, which halves are seen, a constant (the only bias).
        self.condition = UnitLinear(5, width, generator)
        self.hidden = nn.ModuleList(UnitLinear(width, width, generator) for _ in range(4))
        self.outlet = UnitLinear(width, 2 * dimension, generator)
        self.gain = nn.Parameter(torch.tensor(0.1))

    def forward(self, pair: Tensor, sigma: Tensor, visible: Tensor) -> Tensor:
        """Return denoised pairs (n, 2d), from noisy pairs (n, 2d) at noise levels σ (n, 1).

        ``visible`` (n, 2) is 1 for each half (winner, loser) that is data; the other half must be
        N(0, σ²I) noise, and its output has no meaning. (1, 1) is the joint density, (1, 0) the
        marginal density of winners.
        """
        variance = self.sigma_data**2
        total = sigma.square() + variance
        raw = self._raw(pair / total.sqrt(), sigma, visible)
        return (variance / total) * pair + (sigma * self.sigma_data / total.sqrt()) * raw

    def _raw(self, scaled: Tensor, sigma: Tensor, visible: Tensor) -> Tensor:
        ones = torch.ones_like(sigma)
        log_sigma = torch.log(sigma) / 2.0
        flags = torch.cat([log_sigma + 1.0, 0.5 * log_sigma.square(), 2.0 * visible - 1.0, ones], 1)
        context: Tensor = self.condition(flags)
        hidden = _silu(_blend(self.inlet(torch.cat([scaled, ones], 1)), context))
        for layer in self.hidden:
            hidden = _silu(_blend(layer(hidden), context))
        out: Tensor = self.outlet(hidden) * self.gain
        return out

    def winner_score(self, point: Tensor, masked: Tensor, sigma: float) -> Tensor:
        """Return ∇ log p_{w,σ} (n, d) at points (n, d).

        ``masked`` (n, d) is N(0, σ²I) noise in place of the loser.
        """
        n, d = point.shape
        visible = point.new_tensor([[1.0, 0.0]]).expand(n, 2)
        total = sigma**2 + self.sigma_data**2
        scaled = torch.cat([point, masked], 1) / math.sqrt(total)
        raw = self._raw(scaled, point.new_full((n, 1), sigma), visible)
        # (D − x)/σ² without the cancellation that small σ would bring.
        return self.sigma_data / (sigma * math.sqrt(total)) * raw[:, :d] - point / total


Progress = Callable[[str, int, int], None]
_LEVELS, _LOG_MEAN, _LOG_SD = 40, -2.3, 1.5  # of the schedule, and of the log-normal
_JOINT_SHARE = 0.5  # of the rows, which show the loser too
_AVERAGE_WIDTH = 0.01  # of the power-function average of the weights, relative to the run
_REPORT_EVERY = 100  # steps


def cosine_schedule(levels: int, sigma_min: float, sigma_max: float) -> Tensor:
    """Return noise levels (levels,) that fall from σ_max to σ_min along a cosine in log σ.

    Examples:
        >>> [round(v, 3) for v in cosine_schedule(3, 0.01, 1.0).tolist()]
        [1.0, 0.1, 0.01]
    """
    fall = 0.5 * (1.0 + torch.cos(torch.linspace(0.0, math.pi, levels, dtype=torch.float64)))
    return torch.exp(math.log(sigma_min) + fall * math.log(sigma_max / sigma_min))


def power_decay(step: int, relative_sd: float) -> float:
    """Return the decay of the power-function average with this relative standard deviation.

    With weights ∝ t^γ the relative width is σ² = (γ+1)/((γ+2)²(γ+3)); γ solves it, and the running
    average then decays by (1 − 1/step)^(γ+1) (Karras et al., 2024, section 3).
    """
    roots = np.roots([1.0, 7.0, 16.0 - relative_sd**-2, 12.0 - relative_sd**-2])
    gamma = float(roots.real.max())
    return float((1.0 - 1.0 / step) ** (gamma + 1.0))


def draw_visibility(n: int, generator: torch.Generator) -> Tensor:
    """Return the visible halves (winner, loser) of each row, (n, 2): half the losers."""
    draw = torch.rand(n, 1, generator=generator)
    return torch.cat([torch.ones_like(draw), (draw < _JOINT_SHARE).float()], dim=1)


def mask_hidden(pair: Tensor, visible: Tensor) -> Tensor:
    """Return pairs (n, 2d) with the hidden half set to 0, which noise makes N(0, σ²I)."""
    return _expand_mask(visible, pair) * pair


def _expand_mask(visible: Tensor, pair: Tensor) -> Tensor:
    return visible.repeat_interleave(pair.shape[1] // 2, dim=1)


class _Noisy(NamedTuple):
    """Clean and noisy pairs (n, 2d), noise levels σ (n, 1) and visible halves (n, 2)."""

    clean: Tensor
    noisy: Tensor
    sigma: Tensor
    visible: Tensor


class _Trainer:
    def __init__(
        self,
        sides: tuple[Tensor, Tensor],
        weights: Tensor,
        settings: TrainingSettings,
        seed: int,
        device: str,
    ) -> None:
        self.settings, self.weights = settings, weights
        self.generator = torch.Generator().manual_seed(seed)
        self.pairs = torch.cat(sides, dim=1).float()
        pooled = torch.cat(sides)
        share = weights.repeat(2) / (2.0 * weights.sum())
        variance = share @ (pooled - share @ pooled).square()
        sigma_data = float(variance.mean().sqrt())
        network = ScoreNetwork(pooled.shape[1], settings.width, sigma_data, self.generator)
        self.network = network.to(device)
        self.average = copy.deepcopy(self.network).requires_grad_(False)
        self.adam = Adam(list(self.network.parameters()))
        self.schedule = cosine_schedule(_LEVELS, settings.sigma_min, settings.sigma_max)

    def draw_sigma(self, n: int) -> Tensor:
        """Draw noise levels (n, 1), half from the schedule and half log-normal."""
        settings, generator = self.settings, self.generator
        level = torch.randint(_LEVELS, (n, 1), generator=generator)
        log_normal = torch.exp(_LOG_MEAN + _LOG_SD * torch.randn(n, 1, generator=generator))
        log_normal = log_normal.clamp(settings.sigma_min, settings.sigma_max)
        scheduled = torch.rand(n, 1, generator=generator) < 0.5
        return torch.where(scheduled, self.schedule[level].float(), log_normal)

    def add_noise(self, pair: Tensor) -> _Noisy:
        """Return pairs (n, 2d) with noise and hidden losers."""
        sigma = self.draw_sigma(len(pair))
        visible = draw_visibility(len(pair), self.generator)
        noise = sigma * torch.randn(pair.shape, generator=self.generator)
        return _Noisy(pair, mask_hidden(pair, visible) + noise, sigma, visible)

    def loss(self, rows: _Noisy) -> Tensor:
        """Return the EDM-weighted denoising loss of each row (n,), on the CPU."""
        rows = _Noisy(*(part.to(self.network.gain) for part in rows))
        counts = _expand_mask(rows.visible, rows.clean)
        variance = self.network.sigma_data**2
        weight = (rows.sigma.square() + variance) / (rows.sigma.square() * variance)
        denoised = self.network(rows.noisy, rows.sigma, rows.visible)
        error: Tensor = (denoised - rows.clean).square() * counts
        return ((weight * error).sum(1) / counts.sum(1)).cpu()

    def step(self, step: int) -> None:
        settings = self.settings
        rows = torch.multinomial(
            self.weights, settings.batch, replacement=True, generator=self.generator
        )
        loss = self.loss(self.add_noise(self.pairs[rows])).mean()
        gradients = torch.autograd.grad(loss, self.adam.parameters)
        factor = 1.0
        if settings.decay_after is not None:
            factor = max(step / settings.decay_after, 1.0) ** 0.5
        self.adam.step(gradients, settings.learning_rate / factor)
        decay = power_decay(step, _AVERAGE_WIDTH)
        weights = zip(self.average.parameters(), self.network.parameters(), strict=True)
        for average, parameter in weights:
            average.mul_(decay).add_(parameter.detach(), alpha=1.0 - decay)


def train_score(
    sides: tuple[Tensor, Tensor],
    weights: Tensor,
    settings: TrainingSettings,
    seed: int,
    progress: Progress | None = None,
    device: str = "cpu",
) -> ScoreNetwork:
    """Return the averaged network, trained on latent winners and losers (n, d), weights (n,)."""
    trainer = _Trainer(sides, weights, settings, seed, device)
    for step in range(1, settings.steps + 1):
        trainer.step(step)
        if progress is not None and (step % _REPORT_EVERY == 0 or step == settings.steps):
            progress("score", step, settings.steps)
    return trainer.average
