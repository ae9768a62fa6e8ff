"""Points that pairs may be made of, with what every draw of the posterior says of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_elicit.density.belief_draws import utilities_at
from llm_elicit.density.latent import Latent
from llm_elicit.density.proposal import draw_sampling
from llm_elicit.density.utility_density import UtilityDensity, anneal_belief, utility_at
from llm_elicit.density.utility_draws import UtilityDraws

Array = npt.NDArray[np.float64]
_SHARES = (0.4, 0.4, 0.2)  # of the belief, the flattened belief, λ


@dataclass(frozen=True)
class Candidates:
    """``points`` (M, d) in natural units; utilities ``values`` (S, M) by every draw, nats;
    ``log_density`` (M,) of the points themselves, both per unit of the features' scales.
    """

    points: Array
    values: Tensor
    log_density: Tensor


def make_candidates(
    model: UtilityDensity,
    draws: UtilityDraws,
    count: int,
    temperature: float,
    generator: torch.Generator,
) -> Candidates:
    """Points of the belief, of the belief flattened to exp(f/temperature), and of λ.

    Where the belief is wrong about there being little mass, it is less wrong when flattened.
    """
    latent, flat = model.latent, model.utility.scaled(1.0 / temperature)
    sizes = [round(share * count) for share in _SHARES]
    found = anneal_belief(latent, flat, max(sizes[1], 512), generator, model.annealing)
    kept = torch.randperm(len(found.draws.points), generator=generator)[: sizes[1]]
    of_belief = model.sample_latent(sizes[0], generator).points
    of_sampling = draw_sampling(latent, sizes[2], generator)
    g = torch.cat([of_belief, found.draws.points[kept], of_sampling])
    parts = [
        model.log_density(g),
        utility_at(latent, flat, g) - found.log_normalizer,
        _log_sampling(latent, g),
    ]
    logs = [part + math.log(share) for part, share in zip(parts, _SHARES, strict=True)]
    density = torch.logsumexp(torch.stack(logs), 0)
    points = latent.from_latent(g.numpy())
    return Candidates(points, utilities_at(latent, draws, g), density)


def _log_sampling(latent: Latent, g: Tensor) -> Tensor:
    """log λ per unit of the features' scales."""
    return latent.log_sampling(g) - latent.log_volume(g)
