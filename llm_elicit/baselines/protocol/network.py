"""The score network of winners and losers at every noise level, and its training.

Preconditioned as in EDM (Karras et al., 2022): with c_skip = σ_d²/(σ² + σ_d²),
c_out = σσ_d/√(σ² + σ_d²), c_in = 1/√(σ² + σ_d²), the denoiser is D = c_skip·x + c_out·F(c_in·x)
and the score (D − x)/σ². Layers preserve magnitudes in the sense of EDM2 (Karras et al.,
2024): every weight row has unit norm, SiLU is divided by its gain 0.596 on normal inputs,
and sums are weighted so that variance stays one.

σ_d is the standard deviation of all compared points, winners and losers pooled: about 1 in
latent coordinates, where D = c_skip·x is then nearly the denoiser of λ itself, so F learns
what distinguishes winners from λ.

*Training* is by joint denoising score matching: part of the time one half of the pair, chosen at
random, is replaced by N(0, σ²I) noise and only the other's score counts, so one network learns the
score of pairs, of winners and of losers (appendix C.1 of Mikkola, Acerbi and Klami, 2026, who never
mask the winner). Half of the σ are from a cosine schedule of levels, half from a log-normal.

*Mirrored noise.* Every noisy pair x + σn comes with x − σn. The noise of the denoising target,
of size 1/σ, then cancels to first order, and the loss stays informative as σ → 0: its limit is
Hyvärinen's |s|²/2 + ∇·s, with n as the probe of the divergence.
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

from llm_elicit.baselines.protocol.settings import TrainingSettings
from llm_elicit.density.errors import Index
from llm_elicit.density.torch_utils import Adam

_SILU_GAIN = 0.596
_MIX = 0.3


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
    """Scores of the pair (winner, loser), of the winner alone or of the loser alone, at noise σ.

    Args:
        dimension: features d.
        width: units per layer; one input and four hidden layers.
        sigma_data: standard deviation of the compared points in latent coordinates.

    Examples:
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
        marginal density of winners, (0, 1) that of losers.
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

    def side_scores(self, point: Tensor, masked: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        """Return ∇ log p_{w,σ} and ∇ log p_{l,σ}, both (n, d), at points (n, d).

        ``masked`` (n, d) is N(0, σ²I) noise in place of the hidden half.
        """
        n, d = point.shape
        level = point.new_full((2 * n, 1), sigma)
        visible = torch.eye(2, dtype=point.dtype, device=point.device).repeat_interleave(n, 0)
        pairs = torch.cat([torch.cat([point, masked], 1), torch.cat([masked, point], 1)])
        variance = self.sigma_data**2
        total = sigma**2 + variance
        raw = self._raw(pairs / math.sqrt(total), level, visible)
        winner, loser = raw[:n, :d], raw[n:, d:]
        # (D − x)/σ² without the cancellation that small σ would bring.
        scale = self.sigma_data / (sigma * math.sqrt(total))
        return scale * winner - point / total, scale * loser - point / total


Progress = Callable[[str, int, int], None]
_HELD_ROWS = 5000


@dataclass(frozen=True)
class PairData:
    """Latent winners and losers (n, d), weights (n,), and the number of each row's pair (n,)."""

    winners: Tensor
    losers: Tensor
    weights: Tensor
    pairs: Index

    def take(self, rows: Tensor) -> PairData:
        """Return the pairs numbered ``rows``."""
        sides = self.winners[rows], self.losers[rows]
        return PairData(*sides, self.weights[rows], self.pairs[rows.numpy()])

    def held_out(self, share: float, seed: int) -> Tensor:
        """Return which rows (n,) are held out: a ``share`` of the pairs, none of 20 or fewer."""
        groups = int(self.pairs.max()) + 1
        if groups <= 20:
            return torch.zeros(len(self.weights), dtype=torch.bool)
        order = torch.randperm(groups, generator=torch.Generator().manual_seed(seed)).numpy()
        return torch.from_numpy(np.asarray(order[self.pairs] < share * groups))


class Choice(NamedTuple):
    """A network's score on held-out pairs (larger is better) and the noise level that reaches it.

    The level is None if the score is an average over all levels.
    """

    score: float
    sigma: float | None = None


@dataclass(frozen=True)
class TrainedScore:
    """The averaged network of the best step.

    Attributes:
        network: the network.
        held_out_loss: its EDM loss on held-out pairs, averaged over σ.
        steps: the step.
        choice: its score on held-out pairs.
    """

    network: ScoreNetwork
    held_out_loss: float
    steps: int
    choice: Choice


def cosine_schedule(levels: int, sigma_min: float, sigma_max: float) -> Tensor:
    """Return noise levels (levels,) that fall from σ_max to σ_min along a cosine in log σ.

    Examples:
        >>> [round(v, 3) for v in cosine_schedule(3, 0.01, 1.0).tolist()]
        [1.0, 0.1, 0.01]
    """
    place = 0.5 * (1.0 + torch.cos(torch.linspace(0.0, math.pi, levels, dtype=torch.float64)))
    return torch.exp(math.log(sigma_min) + place * math.log(sigma_max / sigma_min))


def power_decay(step: int, relative_sd: float) -> float:
    """Return the decay of the power-function average with this relative standard deviation.

    With weights ∝ t^γ the relative width is σ² = (γ+1)/((γ+2)²(γ+3)); γ solves it, and the running
    average then decays by (1 − 1/step)^(γ+1) (Karras et al., 2024, section 3).
    """
    roots = np.roots([1.0, 7.0, 16.0 - relative_sd**-2, 12.0 - relative_sd**-2])
    gamma = float(roots.real.max())
    return float((1.0 - 1.0 / step) ** (gamma + 1.0))


def draw_visibility(
    n: int, joint: float, generator: torch.Generator, alone: str = "either"
) -> Tensor:
    """Return the visible halves (winner, loser) of each row, (n, 2).

    Both are visible with probability ``joint``; otherwise one of them, chosen at random, or always
    the winner.
    """
    draw = torch.rand(n, 1, generator=generator)
    if alone == "winner":
        return torch.cat([torch.ones_like(draw), (draw < joint).float()], dim=1)
    winner = (draw < 0.5 + 0.5 * joint).float()
    loser = ((draw < joint) | (winner == 0)).float()
    return torch.cat([winner, loser], dim=1)


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
        self, data: PairData, settings: TrainingSettings, seed: int, device: str = "cpu"
    ) -> None:
        self.settings = settings
        self.generator = torch.Generator().manual_seed(seed)
        self.pairs = torch.cat([data.winners, data.losers], dim=1).float()
        pooled = torch.cat([data.winners, data.losers])
        share = data.weights.repeat(2) / (2.0 * data.weights.sum())
        variance = share @ (pooled - share @ pooled).square()
        sigma_data = float(variance.mean().sqrt())
        d = data.winners.shape[1]
        self.network = ScoreNetwork(d, settings.width, sigma_data, self.generator).to(device)
        self.average = copy.deepcopy(self.network).requires_grad_(False)
        self.adam = Adam(list(self.network.parameters()))
        self.schedule = cosine_schedule(settings.levels, settings.sigma_min, settings.sigma_max)
        held = data.held_out(settings.hold_out, seed)
        self.train_weights = data.weights * ~held
        self.held = self.pairs[held], data.weights[held].float()
        self.held_noisy: tuple[_Noisy, Tensor] | None = None

    def draw_sigma(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw noise levels (n, 1), half from the schedule and half log-normal."""
        settings = self.settings
        level = torch.randint(settings.levels, (n, 1), generator=generator)
        normal = torch.randn(n, 1, generator=generator)
        log_normal = torch.exp(settings.log_mean + settings.log_sd * normal)
        log_normal = log_normal.clamp(settings.sigma_min, settings.sigma_max)
        scheduled = torch.rand(n, 1, generator=generator) < 0.5
        return torch.where(scheduled, self.schedule[level].float(), log_normal)

    def add_noise(self, pair: Tensor, generator: torch.Generator) -> _Noisy:
        """Return pairs (n, 2d) with noise and hidden halves; 2n rows if noise is mirrored."""
        n = len(pair)
        sigma = self.draw_sigma(n, generator)
        visible = draw_visibility(n, self.settings.joint, generator, self.settings.alone)
        noise = sigma * torch.randn(pair.shape, generator=generator)
        clean = mask_hidden(pair, visible)
        noisy = clean + noise
        if self.settings.mirrored:
            noisy = torch.cat([noisy, clean - noise])
            pair, sigma, visible = pair.repeat(2, 1), sigma.repeat(2, 1), visible.repeat(2, 1)
        return _Noisy(pair, noisy, sigma, visible)

    def loss(self, network: ScoreNetwork, rows: _Noisy) -> Tensor:
        """Return the EDM-weighted denoising loss of each row (n,), on the CPU."""
        rows = _Noisy(*(part.to(network.gain) for part in rows))
        counts = _expand_mask(rows.visible, rows.clean)
        variance = network.sigma_data**2
        weight = (rows.sigma.square() + variance) / (rows.sigma.square() * variance)
        denoised = network(rows.noisy, rows.sigma, rows.visible)
        error: Tensor = (denoised - rows.clean).square() * counts
        return ((weight * error).sum(1) / counts.sum(1)).cpu()

    def step(self, step: int) -> None:
        settings = self.settings
        count = settings.batch // 2 if settings.mirrored else settings.batch
        rows = torch.multinomial(
            self.train_weights, max(count, 1), replacement=True, generator=self.generator
        )
        noisy = self.add_noise(self.pairs[rows], self.generator)
        loss = self.loss(self.network, noisy).mean()
        gradients = torch.autograd.grad(loss, self.adam.parameters)
        factor = 1.0
        if settings.decay_after is not None:
            factor = max(step / settings.decay_after, 1.0) ** 0.5
        self.adam.step(gradients, settings.learning_rate / factor)
        decay = 0.0 if settings.ema is None else power_decay(step, settings.ema)
        weights = zip(self.average.parameters(), self.network.parameters(), strict=True)
        for average, parameter in weights:
            average.mul_(decay).add_(parameter.detach(), alpha=1.0 - decay)

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """Return the averaged network's loss on held-out pairs, with the same noise each time."""
        if self.held_noisy is None:
            pairs, weights = self.held
            rows = torch.arange(len(pairs)).repeat(max(1, _HELD_ROWS // len(pairs)))
            noisy = self.add_noise(pairs[rows], torch.Generator().manual_seed(0))
            self.held_noisy = noisy, weights[rows].repeat(len(noisy.sigma) // len(rows))
        noisy, mass = self.held_noisy
        return float((self.loss(self.average, noisy) * mass).sum() / mass.sum())


def train_score(
    data: PairData,
    settings: TrainingSettings,
    seed: int,
    progress: Progress | None = None,
    *,
    judge: Callable[[ScoreNetwork], Choice] | None = None,
    device: str = "cpu",
) -> TrainedScore:
    """Train on latent pairs; keep the averaged weights with the best score on held-out pairs.

    The score is that of ``judge`` (the choice likelihood, in a fit), else the denoising loss.
    Training stops once the denoising loss, the less noisy of the two, has not improved for
    ``patience`` checks. ``device`` is that of the network; random numbers are the CPU's.
    """
    trainer = _Trainer(data, settings, seed, device)
    best = TrainedScore(trainer.average, math.inf, settings.steps, Choice(-math.inf))
    highest, since_highest = -math.inf, 0
    for step in range(1, settings.steps + 1):
        trainer.step(step)
        if step % settings.check_every and step != settings.steps:
            continue
        if progress is not None:
            progress("score", step, settings.steps)
        if not len(trainer.held[0]):
            continue
        loss = trainer.held_out_loss()
        choice = Choice(-loss) if judge is None else judge(trainer.average)
        since_highest = 0 if -loss > highest else since_highest + 1
        highest = max(-loss, highest)
        if choice.score > best.choice.score:
            best = TrainedScore(copy.deepcopy(trainer.average), loss, step, choice)
        if since_highest > settings.patience:
            break
    return best
