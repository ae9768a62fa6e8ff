"""The Bradley–Terry utility density p ∝ exp(f), sampled by annealing.

Draws of some features given the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_elicit.density.density_model import EvaluationError, LogNormalizer
from llm_elicit.density.errors import DensityError, integer, number
from llm_elicit.density.fourier import FourierStack
from llm_elicit.density.sampling import Uniform
from llm_elicit.density.smc import (
    Annealed,
    AnnealingSettings,
    Draws,
    Proposal,
    anneal,
    draw_sampling,
)
from llm_elicit.density.transforms import Latent
from llm_elicit.density.utility_function import ComponentStack, NetworkStack, Utility, rounding

Array = npt.NDArray[np.float64]
_ISLANDS, _PARTICLES = 8, 1024
_FIRST = 4096
_START = ("weights", "means", "factors", "step")
_CROWD = 1024


def utility_at(latent: Latent, utility: Utility, g: Tensor) -> Tensor:
    """u(g) (n,): the fitted utility with the taper that keeps the belief integrable."""
    return utility(latent.features(g)) + latent.taper(g)


def utility_and_slope(latent: Latent, utility: Utility, g: Tensor) -> tuple[Tensor, Tensor]:
    """u(g) (n,) and its latent gradient (n, d)."""
    value, slope = utility.value_and_slope(latent.features(g))
    return value + latent.taper(g), latent.features_slope(g, slope) + latent.taper_slope(g)


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
        return value.numpy() + shift, latent.natural_slope(g, slope.numpy())

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


def sample_given(
    model: UtilityDensity, given: Mapping[int, float], n: int, generator: torch.Generator
) -> Array:
    """n draws (n, d), natural units, of the belief given the values of some features.

    In the latent coordinates of a `Uniform` λ every feature has an axis of its own and λ is
    N(0, I), so the free axes are annealed from λ with the others held.

    Raises
    ------
    DensityError : λ is not a `Uniform`, a feature is not there or its value is outside the
        support, or no feature is left free.
    """
    latent, sampling = model.latent, model.latent.sampling
    if not isinstance(given, Mapping):
        raise DensityError(f"sample_given: given = {given!r}; it must be {{feature: value}}.")
    for feature, value in given.items():
        integer("sample_given: given, a feature's number", feature, most=sampling.dimension - 1)
        number(f"sample_given: given[{feature}]", value)
    free = _free(sampling, given)
    fixed = sampling.from_cube(np.full((1, sampling.dimension), 0.5))[0]
    fixed[list(given)] = list(given.values())
    if not sampling.contains(fixed[None])[0]:
        raise DensityError(
            f"sample_given: {dict(given)} lies outside the support of {sampling!r}; "
            "give values inside it."
        )
    held = torch.from_numpy(latent.to_latent(fixed[None]))[0]

    def whole(g: Tensor) -> Tensor:
        points = held.expand(len(g), -1).clone()
        points[:, free] = g
        return points

    def target(g: Tensor) -> tuple[Tensor, Tensor]:
        points = whole(g)
        value, slope = utility_and_slope(latent, model.utility, points)
        slope = slope + latent.log_volume_slope(points)
        return value + latent.log_volume(points), slope[:, free]

    def start(g: Tensor) -> tuple[Tensor, Tensor]:
        constant = 0.5 * g.shape[1] * float(np.log(2.0 * np.pi))
        return -0.5 * g.square().sum(1) - constant, -g

    crowd = max(n, _CROWD)
    first = torch.randn(crowd, len(free), generator=generator, dtype=torch.float64)
    found = anneal(first, start, target, generator, model.annealing).draws.points
    kept = found[torch.randperm(crowd, generator=generator)[:n]]
    x = latent.from_latent(whole(kept).numpy())
    x[:, list(given)] = list(given.values())
    return x


def _free(sampling: object, given: Mapping[int, float]) -> list[int]:
    if not isinstance(sampling, Uniform):
        raise DensityError(
            f"sample_given: λ is a {type(sampling).__name__}; features have axes of their own "
            "under a Uniform alone; fit with sampling=Uniform(low, high)."
        )
    unknown = [i for i in given if not 0 <= i < sampling.dimension]
    if unknown:
        raise DensityError(
            f"sample_given: there is no feature {unknown[0]}; they are numbered 0 to "
            f"{sampling.dimension - 1}."
        )
    free = [i for i in range(sampling.dimension) if i not in given]
    if not free:
        raise DensityError("sample_given: every feature is given; leave at least one free.")
    return free
