"""Reverse diffusion by Heun's method on EDM's time steps, and a network for the belief itself.

Going down dx/dσ = −σ s(x, σ) from N(mean, covariance + σ_max² I) turns noise into draws (Karras
et al., 2022, algorithm 1 without churn). A second network trained by denoising score
matching on the tempered draws of the Langevin sampler (algorithm 1 of Mikkola, Acerbi and
Klami, 2026, the optional step) then draws the belief in some sixty network calls, and its
flow likelihood is the density of those very draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from llm_elicit.density.score.checks import rising, within
from llm_elicit.density.score.likelihood import FlowPrior, LikelihoodSettings, flow_log_prob
from llm_elicit.density.score.network import ScoreNetwork
from llm_elicit.density.score.training import PairData, TrainingSettings, train_score

_CHUNK = 8192


@dataclass(frozen=True)
class HeunSettings:
    """``steps`` noise levels from ``sigma_max`` to ``sigma_min`` (latent units), spaced evenly in
    σ^(1/ρ). ``draws`` of the Langevin sampler train the second network by ``training``.

    Raises
    ------
    DensityError : a number out of its range.
    """

    steps: int = 32
    rho: float = 7.0
    sigma_min: float = 0.02
    sigma_max: float = 3.0
    draws: int = 16_384
    training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(joint=0.0, alone="winner", steps=3000)
    )

    def __post_init__(self) -> None:
        within("HeunSettings", "steps", self.steps, 1.0)
        within("HeunSettings", "rho", self.rho, 0.0)
        within("HeunSettings", "draws", self.draws, 0.0)
        rising("HeunSettings", ("sigma_min", self.sigma_min), ("sigma_max", self.sigma_max))


def edm_steps(settings: HeunSettings) -> list[float]:
    """Noise levels falling from σ_max to σ_min, then 0.

    Examples
    --------
    >>> [round(s, 3) for s in edm_steps(HeunSettings(steps=3, sigma_min=0.01, sigma_max=1.0))]
    [1.0, 0.145, 0.01, 0.0]
    """
    power = 1.0 / settings.rho
    ends = settings.sigma_max**power, settings.sigma_min**power
    levels = np.linspace(*ends, settings.steps) ** settings.rho
    return [*levels.tolist(), 0.0]


def sample_heun(
    n: int,
    score: Callable[[Tensor, float], Tensor],
    prior: FlowPrior,
    settings: HeunSettings,
    generator: torch.Generator,
) -> Tensor:
    """Draw (n, d) points by going down the probability flow of ``score(x, σ)`` (n, d).

    Examples
    --------
    >>> import torch
    >>> standard = FlowPrior(torch.zeros(1).double(), torch.eye(1).double())
    >>> draws = sample_heun(2000, lambda x, s: -x / (1 + s**2), standard,
    ...                     HeunSettings(), torch.Generator().manual_seed(0))
    >>> bool(abs(draws.std() - 1.0) < 0.1)
    True
    """
    x = prior.sample(n, settings.sigma_max, generator)
    return torch.cat(
        [_descend(part, score, edm_steps(settings)) for part in torch.split(x, _CHUNK)]
    )


def _descend(x: Tensor, score: Callable[[Tensor, float], Tensor], levels: list[float]) -> Tensor:
    with torch.no_grad():
        for high, low in pairwise(levels):
            slope = -high * score(x, high)
            ahead = x + (low - high) * slope
            if low > 0.0:
                slope = 0.5 * (slope - low * score(ahead, low))
                ahead = x + (low - high) * slope
            x = ahead
    return x


@dataclass(frozen=True)
class Resampler:
    """The second network: draws by `sample_heun`, density by its own probability flow."""

    network: ScoreNetwork
    prior: FlowPrior
    settings: HeunSettings
    likelihood: LikelihoodSettings

    @classmethod
    def train(
        cls,
        draws: Tensor,
        settings: HeunSettings,
        likelihood: LikelihoodSettings,
        seed: int,
        device: str = "cpu",
    ) -> Resampler:
        """Learn the score of draws (n, d) at every noise level."""
        ids = np.arange(len(draws))
        ones = torch.ones(len(draws), dtype=torch.float64)
        data = PairData(draws, torch.zeros_like(draws), ones, ids)
        trained = train_score(data, settings.training, seed, device=device)
        return cls(trained.network, FlowPrior.of(draws, ones), settings, likelihood)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw (n, d) points."""
        return sample_heun(n, self.score, self.prior, self.settings, generator)

    def log_prob(self, g: Tensor) -> Tensor:
        """Log-density (n,) of the draws at points (n, d), nats."""
        return flow_log_prob(g, self.score, self.prior, self.likelihood)

    def score(self, g: Tensor, sigma: float) -> Tensor:
        """∇log of the smoothed density (n, d)."""
        point = g.to(self.network.gain)
        return self.network.side_scores(point, torch.zeros_like(point), sigma)[0].to(g)
