"""The Bradley–Terry utility density p ∝ exp(f), sampled by annealing."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_elicit.density.annealing import Annealed, AnnealingSettings, anneal
from llm_elicit.density.components import ComponentStack
from llm_elicit.density.density_model import Draws, EvaluationError
from llm_elicit.density.fourier import FourierStack
from llm_elicit.density.latent import Latent
from llm_elicit.density.proposal import Proposal, draw_sampling
from llm_elicit.density.ratio import NetworkStack, Utility, rounding
from llm_elicit.density.slope import natural_slope

Array = npt.NDArray[np.float64]
_ISLANDS, _PARTICLES = 8, 1024
_FIRST = 4096
_START = ("weights", "means", "factors", "step")


def utility_at(latent: Latent, utility: Utility, g: Tensor) -> Tensor:
    """u(g) (n,): the fitted utility with the taper that keeps the belief integrable."""
    return utility(latent.features(g)) + latent.taper(g)


def utility_and_slope(latent: Latent, utility: Utility, g: Tensor) -> tuple[Tensor, Tensor]:
    """u(g) (n,) and its latent gradient (n, d)."""
    value, slope = utility.value_and_slope(latent.features(g))
    return value + latent.taper(g), latent.features_slope(g, slope) + latent.taper_slope(g)


@dataclass(frozen=True)
class LogNormalizer:
    """log ∫ exp(u) dz in nats, its standard error, draws of the belief, a start for more."""

    value: float
    standard_error: float
    draws: Draws
    start: Proposal | None = None


@dataclass(frozen=True)
class UtilityDensity:
    """p ∝ exp(f) per scale unit; see `llm_elicit.density.density_model.DensityModel`.

    ``start`` is where annealing starts, None for λ.
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
        """Draw n latent points by annealing n draws of the start."""
        # A handful of particles cannot estimate their own covariance: carry a crowd, keep n.
        crowd = max(n, 1024)
        settings, start = self.annealing, self.start
        found = anneal_belief(self.latent, self.utility, crowd, generator, settings, start)
        return found.draws.take(torch.randperm(crowd, generator=generator)[:n])

    def log_density(self, g: Tensor) -> Tensor:
        """Normalized log-density (n,) per scale unit, nats."""
        return utility_at(self.latent, self.utility, g) - self.log_normalizer

    def log_prob_and_slope(self, x: Array) -> tuple[Array, Array]:
        """Log density (n,) per natural unit and its gradient (n, d) at points (n, d) inside."""
        latent = self.latent
        g = latent.to_latent(x)
        value, slope = utility_and_slope(latent, self.utility, torch.from_numpy(g))
        shift = latent.sampling.log_scale_slope(x) - self.log_normalizer
        return value.numpy() + shift, natural_slope(latent, g, slope.numpy())

    def evaluation_error(self, g: Tensor) -> EvaluationError:
        """What single precision leaves: the force is the gradient of the log-density."""
        return EvaluationError(rounding(self.utility, self.latent.features(g)))

    def tensors(self) -> dict[str, Tensor]:
        """The utility's coefficients and networks, and the start."""
        return {**utility_tensors(self.utility), **start_tensors(self.start)}

    def config(self) -> dict[str, Any]:
        """log Z and the sampler's settings."""
        return {"log_normalizer": self.log_normalizer, "annealing": asdict(self.annealing)}

    @classmethod
    def restore(
        cls, latent: Latent, tensors: dict[str, Tensor], config: dict[str, Any]
    ) -> UtilityDensity:
        """Rebuild from `tensors` and `config`."""
        annealing = AnnealingSettings(**config["annealing"])
        utility, start = utility_from_tensors(tensors), start_from_tensors(tensors)
        return cls(latent, utility, config["log_normalizer"], annealing, start)


def anneal_belief(
    latent: Latent,
    utility: Utility,
    n: int,
    generator: torch.Generator,
    settings: AnnealingSettings,
    start: Proposal | None = None,
) -> Annealed:
    """Anneal n exact draws of ``start``, or of λ, to p ∝ exp(u), in latent coordinates."""

    def from_sampling(g: Tensor) -> tuple[Tensor, Tensor]:
        return latent.log_sampling(g), latent.sampling_score(g, 0.0)

    def target(g: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = utility_and_slope(latent, utility, g)
        return value + latent.log_volume(g), slope + latent.log_volume_slope(g)

    if start is None:
        points = draw_sampling(latent, n, generator)
        return anneal(points, from_sampling, target, generator, settings)
    points, density = start.draw(latent, n, generator), partial(start.log_density, latent)
    return anneal(points, density, target, generator, settings, float(start.step))


def estimate_log_normalizer(
    latent: Latent,
    utility: Utility,
    generator: torch.Generator,
    settings: AnnealingSettings,
) -> LogNormalizer:
    """log ∫ exp(u) dz from independent annealing runs; their spread is the standard error.

    One run from λ first finds the belief; the others start from a `Proposal` fitted to it, or
    from λ too where that was but one step away.
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
    """All islands' draws; no two islands have a family in common."""
    before = [i * len(island.points) for i, island in enumerate(islands)]
    families = [island.families + first for island, first in zip(islands, before, strict=True)]
    return Draws(torch.cat([island.points for island in islands]), torch.cat(families))


def start_tensors(start: Proposal | None) -> dict[str, Tensor]:
    """A `Proposal` as named tensors; none for None."""
    return {} if start is None else {f"start.{name}": getattr(start, name) for name in _START}


def start_from_tensors(tensors: dict[str, Tensor]) -> Proposal | None:
    """Inverse of `start_tensors`."""
    if "start.step" not in tensors:
        return None
    return Proposal(*(tensors[f"start.{name}"] for name in _START))


def utility_tensors(utility: Utility) -> dict[str, Tensor]:
    """A `Utility` as named tensors."""
    named = {"utility.linear": utility.linear, "utility.curvature": utility.curvature}
    if utility.networks is not None:
        for i, parameter in enumerate(utility.networks.parameters):
            named[f"utility.networks.{i}"] = parameter
    for stack in utility.components:
        for parameter in (*stack.parameters, torch.tensor(stack.share)):
            at = sum(name.startswith("utility.components.") for name in named)
            named[f"utility.components.{at}"] = parameter
    if utility.fourier is not None:
        named["utility.frequencies"] = utility.fourier.frequencies
        named["utility.weights"] = utility.fourier.weights
    return {name: tensor.cpu() for name, tensor in named.items()}


def utility_from_tensors(tensors: dict[str, Tensor]) -> Utility:
    """Inverse of `utility_tensors`."""
    networks = _numbered(tensors, "utility.networks.")
    components = _numbered(tensors, "utility.components.")
    fourier = None
    if "utility.weights" in tensors:
        fourier = FourierStack(tensors["utility.frequencies"], tensors["utility.weights"])
    return Utility(
        tensors["utility.linear"],
        tensors["utility.curvature"],
        NetworkStack(networks) if networks else None,
        tuple(_component_stack(components[i : i + 4]) for i in range(0, len(components), 4)),
        fourier,
    )


def _component_stack(parameters: list[Tensor]) -> ComponentStack:
    whiten, offset, height, share = parameters
    return ComponentStack(whiten, offset, height, float(share))


def _numbered(tensors: dict[str, Tensor], prefix: str) -> list[Tensor]:
    count = sum(name.startswith(prefix) for name in tensors)
    return [tensors[f"{prefix}{i}"] for i in range(count)]
