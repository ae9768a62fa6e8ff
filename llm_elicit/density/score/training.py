"""Train the score network by joint denoising score matching with the loser masked at random.

Half of the time the loser is replaced by N(0, σ²I) noise and only the winner's score counts,
so one network learns both ∇log p(winner, loser) and ∇log p_w (appendix C.1 of Mikkola, Acerbi
and Klami, 2026). σ comes half from a cosine schedule of levels, half from a log-normal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_elicit.density.score.network import ScoreNetwork

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of the score network's training; noise levels are in latent units."""

    width: int = 64
    steps: int = 2500
    batch: int = 1024
    learning_rate: float = 6e-3
    decay_after: int = 500
    sigma_min: float = 0.02
    sigma_max: float = 3.0
    levels: int = 40
    log_mean: float = -1.2
    log_sd: float = 1.2
    joint: float = 0.25
    ema: float = 0.06
    hold_out: float = 0.1
    check_every: int = 250
    patience: int = 5


@dataclass(frozen=True)
class PairData:
    """Latent winners and losers (n, d), weights (n,), pair ids (n,)."""

    winners: Tensor
    losers: Tensor
    weights: Tensor
    pairs: npt.NDArray[np.int64]


@dataclass(frozen=True)
class TrainedScore:
    """The averaged network, its held-out loss (an average over σ of the EDM loss) and step."""

    network: ScoreNetwork
    held_out_loss: float
    steps: int


def cosine_schedule(levels: int, sigma_min: float, sigma_max: float) -> Tensor:
    """Noise levels (levels,) falling from σ_max to σ_min along a cosine in log σ.

    Examples
    --------
    >>> [round(v, 3) for v in cosine_schedule(3, 0.01, 1.0).tolist()]
    [1.0, 0.1, 0.01]
    """
    place = 0.5 * (1.0 + torch.cos(torch.linspace(0.0, math.pi, levels, dtype=torch.float64)))
    return torch.exp(math.log(sigma_min) + place * math.log(sigma_max / sigma_min))


def power_decay(step: int, relative_sd: float) -> float:
    """Decay of the power-function average whose profile has this relative standard deviation.

    With weights ∝ t^γ the relative width is σ² = (γ+1)/((γ+2)²(γ+3)); γ solves it, and the running
    average then decays by (1 − 1/step)^(γ+1) (Karras et al., 2024, section 3).
    """
    roots = np.roots([1.0, 7.0, 16.0 - relative_sd**-2, 12.0 - relative_sd**-2])
    gamma = float(roots.real.max())
    return float((1.0 - 1.0 / step) ** (gamma + 1.0))


def draw_seen(n: int, joint: float, generator: torch.Generator) -> Tensor:
    """Which halves (winner, loser) each row sees, (n, 2): both with probability ``joint``,
    else one of them, either equally likely."""
    draw = torch.rand(n, 1, generator=generator)
    winner = (draw < 0.5 + 0.5 * joint).float()
    loser = ((draw < joint) | (winner == 0)).float()
    return torch.cat([winner, loser], dim=1)


def mask_unseen(pair: Tensor, sigma: Tensor, seen: Tensor, generator: torch.Generator) -> Tensor:
    """Replace the unseen half of a noisy pair (n, 2d) by N(0, σ²I)."""
    noise = sigma * torch.randn(pair.shape, generator=generator)
    return torch.where(_spread_flags(seen, pair) > 0, pair, noise)


def _spread_flags(seen: Tensor, pair: Tensor) -> Tensor:
    return seen.repeat_interleave(pair.shape[1] // 2, dim=1)


class _Trainer:
    def __init__(self, data: PairData, settings: TrainingSettings, seed: int) -> None:
        self.settings = settings
        self.generator = torch.Generator().manual_seed(seed)
        self.pairs = torch.cat([data.winners, data.losers], dim=1).float()
        pooled = torch.cat([data.winners, data.losers])
        share = data.weights.repeat(2) / (2.0 * data.weights.sum())
        variance = share @ (pooled - share @ pooled).square()
        sigma_data = float(variance.mean().sqrt())
        d = data.winners.shape[1]
        self.network = ScoreNetwork(d, settings.width, sigma_data, self.generator)
        self.average = [p.detach().clone() for p in self.network.parameters()]
        self.adam = torch.optim.Adam(
            self.network.parameters(), settings.learning_rate, betas=(0.9, 0.99)
        )
        self.schedule = cosine_schedule(settings.levels, settings.sigma_min, settings.sigma_max)
        groups = int(data.pairs.max()) + 1
        order = torch.randperm(groups, generator=self.generator).numpy()
        held = order[data.pairs] < settings.hold_out * groups if groups > 20 else None
        held_rows = torch.zeros(len(self.pairs), dtype=torch.bool)
        if held is not None:
            held_rows = torch.from_numpy(np.asarray(held))
        self.train_weights = data.weights * ~held_rows
        self.held = self.pairs[held_rows], data.weights[held_rows].float()

    def loss(self, pair: Tensor, generator: torch.Generator) -> Tensor:
        """EDM-weighted denoising loss of each row (n,)."""
        settings, n = self.settings, len(pair)
        level = torch.randint(settings.levels, (n, 1), generator=generator)
        log_normal = torch.exp(
            settings.log_mean + settings.log_sd * torch.randn(n, 1, generator=generator)
        ).clamp(settings.sigma_min, settings.sigma_max)
        scheduled = torch.rand(n, 1, generator=generator) < 0.5
        sigma = torch.where(scheduled, self.schedule[level].float(), log_normal)
        seen = draw_seen(n, settings.joint, generator)
        noisy = pair + sigma * torch.randn(pair.shape, generator=generator)
        noisy = mask_unseen(noisy, sigma, seen, generator)
        counts = _spread_flags(seen, pair)
        variance = self.network.sigma_data**2
        weight = (sigma.square() + variance) / (sigma.square() * variance)
        error: Tensor = (self.network(noisy, sigma, seen) - pair).square() * counts
        return (weight * error).sum(1) / counts.sum(1)

    def step(self, step: int) -> None:
        rows = torch.multinomial(
            self.train_weights, self.settings.batch, replacement=True, generator=self.generator
        )
        loss = self.loss(self.pairs[rows], self.generator).mean()
        self.adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for group in self.adam.param_groups:
            factor = max(step / self.settings.decay_after, 1.0) ** 0.5
            group["lr"] = self.settings.learning_rate / factor
        self.adam.step()
        decay = power_decay(step, self.settings.ema)
        for average, parameter in zip(self.average, self.network.parameters(), strict=True):
            average.mul_(decay).add_(parameter.detach(), alpha=1.0 - decay)

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """Loss of the averaged network on held-out pairs, with the same noise at every check."""
        pairs, weights = self.held
        current = [p.detach().clone() for p in self.network.parameters()]
        self.load(self.average)
        generator = torch.Generator().manual_seed(0)
        repeats = max(1, 20000 // max(1, len(pairs)))
        rows = torch.arange(len(pairs)).repeat(repeats)
        losses = self.loss(pairs[rows], generator) * weights[rows]
        self.load(current)
        return float(losses.sum() / weights[rows].sum())

    @torch.no_grad()
    def load(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self.network.parameters(), values, strict=True):
            parameter.copy_(value)


def train_score(
    data: PairData, settings: TrainingSettings, seed: int, progress: Progress | None = None
) -> TrainedScore:
    """Train on latent pairs; keep the averaged weights with the lowest held-out loss."""
    trainer = _Trainer(data, settings, seed)
    best, since_best = (math.inf, settings.steps, trainer.average), 0
    for step in range(1, settings.steps + 1):
        trainer.step(step)
        if step % settings.check_every == 0:
            if progress is not None:
                progress("score", step, settings.steps)
            if not len(trainer.held[0]):
                continue
            loss = trainer.held_out_loss()
            since_best = 0 if loss < best[0] else since_best + 1
            if loss < best[0]:
                best = (loss, step, [p.clone() for p in trainer.average])
            if since_best > settings.patience:
                break
    trainer.load(best[2])
    trainer.network.requires_grad_(False)
    return TrainedScore(trainer.network, best[0], best[1])
