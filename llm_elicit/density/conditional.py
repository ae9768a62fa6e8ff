"""Draws of some features given the others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_elicit.density.annealing import anneal
from llm_elicit.density.checks import integer, number
from llm_elicit.density.errors import DensityError
from llm_elicit.density.sampling import Uniform
from llm_elicit.density.utility_density import UtilityDensity, utility_and_slope

Array = npt.NDArray[np.float64]
_CROWD = 1024


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
