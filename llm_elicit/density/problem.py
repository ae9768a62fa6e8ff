"""What every estimator is given: the judgments in latent coordinates, noise, randomness."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.stats import qmc
from torch import Tensor

from llm_elicit.density.annealing import AnnealingSettings
from llm_elicit.density.choice import Noise
from llm_elicit.density.density_model import DensityModel
from llm_elicit.density.device import device_named
from llm_elicit.density.flow.settings import FlowSettings
from llm_elicit.density.judgments import Judgments
from llm_elicit.density.latent import Latent, make_latent
from llm_elicit.density.sampling import SamplingDensity
from llm_elicit.density.score.settings import ScoreSettings
from llm_elicit.density.utility import UtilitySettings
from llm_elicit.density.utility_density import LogNormalizer

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class FitSettings:
    """All settings of a fit, a group for each part; the defaults serve every target.

    ``device`` is where fitted utilities and score networks are evaluated and score networks
    trained: "cpu", "cuda" or "cuda:0". All else (the fit of the utility, flows, random numbers,
    coordinates in double precision) stays on the CPU, so seeds mean the same on both. A belief
    read back by `load` is on the CPU.

    Raises
    ------
    DensityError : a device of another name, or one that is not there.

    Examples
    --------
    >>> FitSettings().device
    'cpu'
    """

    utility: UtilitySettings = field(default_factory=UtilitySettings)
    annealing: AnnealingSettings = field(default_factory=AnnealingSettings)
    score: ScoreSettings = field(default_factory=ScoreSettings)
    flow: FlowSettings = field(default_factory=FlowSettings)
    device: str = "cpu"

    def __post_init__(self) -> None:
        device_named(self.device)


@dataclass(frozen=True)
class Fitted:
    """A fitted model, its log Z with draws, and its diagnostics (JSON-able)."""

    model: DensityModel
    normalizer: LogNormalizer
    notes: dict[str, Any]


class Problem:
    """One fit: checked judgments, latent (n, d) winners and losers, and its random numbers."""

    def __init__(
        self,
        judgments: Judgments,
        sampling: SamplingDensity,
        noise: Noise,
        seed: int,
        settings: FitSettings,
        progress: Progress | None = None,
    ) -> None:
        self.judgments, self.noise, self.settings = judgments, noise, settings
        self.progress = progress
        self.latent: Latent = make_latent(sampling, judgments.points)
        self.winners = torch.from_numpy(self.latent.to_latent(judgments.winners))
        self.losers = torch.from_numpy(self.latent.to_latent(judgments.losers))
        self.weights = torch.from_numpy(judgments.weights)
        self.rng = np.random.default_rng(seed)
        self.generator = torch.Generator().manual_seed(int(self.rng.integers(2**62)))

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return self.latent.sampling.dimension

    def points_of_sampling(self, log2_quasi: int = 12, limit: int = 16_384) -> Tensor:
        """Draws of λ, latent (m, d): up to ``limit`` compared points and 2^k quasi-random ones."""
        compared = torch.cat([self.winners, self.losers])
        if len(compared) > limit:
            kept = torch.randperm(len(compared), generator=self.generator)[:limit]
            compared = compared[kept]
        sampling = self.latent.sampling
        sobol = qmc.Sobol(sampling.dimension, rng=self.rng).random_base2(log2_quasi)
        quasi = self.latent.to_latent(sampling.from_cube(sobol))
        return torch.cat([compared, torch.from_numpy(quasi)])
