"""The utility density p ∝ exp(f): sampled and normalized by annealed sequential Monte Carlo."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_elicit.density.latent import Coordinates, Latent
from llm_elicit.density.methods import EvaluationError, Fitted, LogNormalizer
from llm_elicit.density.settings import AnnealingSettings
from llm_elicit.density.smc import Annealed, Draws, Proposal, anneal, even_points
from llm_elicit.density.transforms import reordering
from llm_elicit.density.utility_function import Potential, Utility, rounding

Array = npt.NDArray[np.float64]
_ISLANDS, _PARTICLES = 8, 1024
_FIRST = 4096
_EVEN = 2048
_LEAST_PARTICLES = 1024


def utility_at(latent: Coordinates, utility: Potential, g: Tensor) -> Tensor:
    """Return u (n,) at latent points (n, d): the utility with the taper of `Latent.taper`."""
    return utility(latent.features(g)) + latent.taper(g)


def utility_and_slope(latent: Coordinates, utility: Potential, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return u (n,) and its gradient (n, d) at latent points (n, d); see `utility_at`."""
    value, slope = utility.value_and_slope(latent.features(g))
    return value + latent.taper(g), latent.features_slope(g, slope) + latent.taper_slope(g)


@dataclass(frozen=True)
class UtilityDensity:
    """The belief p ∝ exp(f) per scale unit, a `llm_elicit.density.methods.DensityModel`.

    Args:
        latent, utility: the coordinates, and f in them.
        log_normalizer: log ∫ exp(u) dz, nats.
        annealing: settings of the sampler.
        start: where annealing starts; None for λ.
    """

    latent: Latent
    utility: Utility
    log_normalizer: float
    annealing: AnnealingSettings
    start: Proposal | None = None

    @property
    def name(self) -> str:
        """The method's name."""
        return "utility"

    def sample_latent(self, n: int, generator: torch.Generator) -> Draws:
        """Return n latent draws (n, d), annealed from the start."""
        settings, start = self.annealing, self.start
        return draw_belief(self.latent, self.utility, n, generator, settings, start)

    def log_density(self, g: Tensor) -> Tensor:
        """Return normalized log-densities (n,) at latent points (n, d), nats per scale unit."""
        return utility_at(self.latent, self.utility, g) - self.log_normalizer

    def log_prob_and_slope(self, x: Array) -> tuple[Array, Array]:
        """Return log densities (n,) and gradients (n, d) per natural unit at points inside."""
        latent = self.latent
        g = latent.to_latent(x)
        value, slope = utility_and_slope(latent, self.utility, torch.from_numpy(g))
        shift = latent.sampling.log_scale_slope(x) - self.log_normalizer
        return value.numpy() + shift, latent.natural_slope(g, slope.numpy())

    def evaluation_error(self, g: Tensor) -> EvaluationError:
        """Return the error of single precision; the path has none, the force being a gradient."""
        return EvaluationError(rounding(self.utility, self.latent.features(g)))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the utility and of the start."""
        start = {} if self.start is None else self.start.tensors()
        return {**self.utility.tensors(), **start}

    def config(self) -> dict[str, Any]:
        """Return log Z and the sampler's settings."""
        return {"log_normalizer": self.log_normalizer, "annealing": asdict(self.annealing)}

    @classmethod
    def restore(
        cls, latent: Latent, tensors: dict[str, Tensor], config: dict[str, Any]
    ) -> UtilityDensity:
        """Return the density that `tensors` and `config` describe."""
        annealing = AnnealingSettings(**config["annealing"])
        utility, start = Utility.from_tensors(tensors), Proposal.from_tensors(tensors)
        return cls(latent, utility, config["log_normalizer"], annealing, start)


def anneal_belief(
    latent: Latent,
    utility: Potential,
    n: int,
    generator: torch.Generator,
    settings: AnnealingSettings,
    start: Proposal | None = None,
) -> Annealed:
    """Return n draws of p ∝ exp(u), annealed from draws of ``start``, or of λ."""

    def from_sampling(g: Tensor) -> tuple[Tensor, Tensor]:
        return latent.log_sampling(g), latent.sampling_score(g, 0.0)

    def target(g: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = utility_and_slope(latent, utility, g)
        return value + latent.log_volume(g), slope + latent.log_volume_slope(g)

    if start is None:
        points = latent.draw(n, generator)
        return anneal(points, from_sampling, target, generator, settings)
    points, density = start.draw(latent, n, generator), partial(start.log_density, latent)
    return anneal(points, density, target, generator, settings, float(start.step))


def draw_belief(
    latent: Latent,
    utility: Potential,
    n: int,
    generator: torch.Generator,
    settings: AnnealingSettings,
    start: Proposal | None = None,
) -> Draws:
    """Return any number n of draws as `anneal_belief` does, in random order."""
    # A few particles cannot estimate their own covariance: anneal more, keep n.
    count = max(n, _LEAST_PARTICLES)
    draws = anneal_belief(latent, utility, count, generator, settings, start).draws
    return draws.take(torch.randperm(count, generator=generator)[:n])


def estimate_log_normalizer(
    latent: Latent,
    utility: Potential,
    generator: torch.Generator,
    settings: AnnealingSettings,
) -> LogNormalizer:
    """Return log ∫ exp(u) dz from independent annealing runs, whose spread is its standard error.

    A first run goes from λ to the belief. The others start from a `Proposal` fitted to its draws,
    or from λ if that took one temperature.
    """
    first = anneal_belief(latent, utility, _FIRST, generator, settings)
    start = None
    if first.temperatures > 1:
        start = Proposal.fit(first.draws.points, first.step, generator)
    runs = [
        anneal_belief(latent, utility, _PARTICLES, generator, settings, start)
        for _ in range(_ISLANDS)
    ]
    logs = torch.tensor([run.log_normalizer for run in runs], dtype=torch.float64)
    value = float(torch.logsumexp(logs, 0)) - math.log(_ISLANDS)
    # Relative spread of Z across runs, by the delta method.
    error = float(torch.exp(logs - value).std()) / math.sqrt(_ISLANDS)
    return LogNormalizer(value, error, _joined([run.draws for run in runs]), start)


def _joined(islands: list[Draws]) -> Draws:
    """Return the draws of all islands; no two islands have a genealogy in common."""
    genealogies = [run.genealogies + i * len(run.points) for i, run in enumerate(islands)]
    return Draws(torch.cat([run.points for run in islands]), torch.cat(genealogies))


def normalized(
    latent: Latent, utility: Utility, generator: torch.Generator, annealing: AnnealingSettings
) -> Fitted:
    """Return the density ∝ exp(f), with its normalizing constant, draws and even points."""
    normalizer = estimate_log_normalizer(latent, utility, generator, annealing)
    density = UtilityDensity(latent, utility, normalizer.value, annealing, normalizer.start)
    even = even_points(latent, density.log_density, normalizer.start, _EVEN, generator)
    return Fitted(density, replace(normalizer, even=even), {})


def in_coordinates(fitted: Fitted, latent: Latent, order: Sequence[int]) -> Fitted:
    """Return a utility density in other coordinates, of which it has the features ``order``."""
    model, normalizer = fitted.model, fitted.normalizer
    assert isinstance(model, UtilityDensity)
    turn, columns = reordering(latent, model.latent, order)
    start = None if normalizer.start is None else normalizer.start.turned(turn)
    even = None if normalizer.even is None else normalizer.even @ turn
    draws = replace(normalizer.draws, points=normalizer.draws.points @ turn)
    return replace(
        fitted,
        model=replace(model, latent=latent, utility=model.utility.turned(columns), start=start),
        normalizer=replace(normalizer, draws=draws, start=start, even=even),
        draws=None if fitted.draws is None else fitted.draws.turned(columns),
    )
