"""The input of every estimator: judgments in latent coordinates, noise, random numbers."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import qmc
from torch import Tensor

from llm_elicit.density.judgments import Judgments
from llm_elicit.density.likelihood import Noise
from llm_elicit.density.sampling import SamplingDensity
from llm_elicit.density.settings import FitSettings, Progress
from llm_elicit.density.transforms import Latent, make_latent


class Problem:
    """The input of one fit.

    Attributes
    ----------
    judgments, noise, settings, progress : as given to `llm_elicit.density.fit_belief`, checked.
    latent : the latent coordinates.
    winners, losers : (n, d) latent points.
    weights : (n,) of the comparisons.
    rng, generator : the random numbers of the fit, from one seed.
    """

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
        """Return latent draws (m, d) of λ: ``limit`` compared points at most, 2^k Sobol points."""
        compared = torch.cat([self.winners, self.losers])
        if len(compared) > limit:
            kept = torch.randperm(len(compared), generator=self.generator)[:limit]
            compared = compared[kept]
        sampling = self.latent.sampling
        sobol = qmc.Sobol(sampling.dimension, rng=self.rng).random_base2(log2_quasi)
        quasi = self.latent.to_latent(sampling.from_cube(sobol))
        return torch.cat([compared, torch.from_numpy(quasi)])
