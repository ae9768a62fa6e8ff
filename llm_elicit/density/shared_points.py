"""Quasi-random points that represent one density, or all draws of the posterior at once.

The points follow a defensive mixture q = 0.1 λ + 0.9 Σ_k w_k N(m_k, L_k L_kᵀ), and each density
weights them by its ratio to q. They are a scrambled Sobol sequence in q's own coordinates (Owen,
1998), which hardly depends on the seed. For the draws of a posterior the Gaussians are fitted to
the mean of the draws' densities, estimated from points of an earlier mixture: adaptive importance
sampling (Cappé, Douc, Guillin, Marin and Robert, 2008). What error the points have, the draws
share.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_elicit.density.latent import Latent
from llm_elicit.density.smc import Proposal, systematic

_FIRST, _POINTS = 4096, 16_384
_STEP = 0.5
_LEAST_SHARE = 0.2
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SharedPoints:
    """Latent points (m, d), and for each of S draws weights (S, m), their effective number, log Z.

    Weights of a draw sum to one.
    """

    points: Tensor
    weights: Tensor
    effective: Tensor
    log_normalizers: Tensor


def share_points(
    latent: Latent,
    log_densities: Callable[[Tensor], Tensor],
    start: Proposal | None,
    generator: torch.Generator,
) -> SharedPoints:
    """Return points for all draws.

    Parameters
    ----------
    log_densities : (S, m) at latent points (m, d), per unit of the scales; each unnormalized.
    start : the first mixture; None for λ alone.
    """
    first = weigh_points(latent, log_densities, start, _FIRST, generator)
    parents = systematic(first.weights.mean(0).log(), generator)
    fitted = Proposal.fit(first.points[parents], _STEP, generator)
    return weigh_points(latent, log_densities, fitted, _POINTS, generator)


def even_points(
    latent: Latent,
    log_density: Callable[[Tensor], Tensor],
    proposal: Proposal | None,
    n: int,
    generator: torch.Generator,
) -> Tensor | None:
    """Return n latent points (n, d) of one density, in random order; None if too few would count.

    They are resampled systematically along a space-filling curve (Gerber, Chopin and Whiteley,
    2019), which keeps them even: their mean varies less than that of independent draws.
    """
    found = weigh_points(latent, lambda g: log_density(g)[None], proposal, _POINTS, generator)
    if float(found.effective[0]) < max(_LEAST_SHARE * _POINTS, n):
        return None
    order = torch.from_numpy(np.argsort(_morton(found.points.numpy())))
    kept = order[systematic(found.weights[0][order].log(), generator, n)]
    return found.points[kept[torch.randperm(n, generator=generator)]]


def _morton(points: Array) -> npt.NDArray[np.uint64]:
    """Return the place (n,) of points (n, d) along the Morton curve through their ranks."""
    n, d = points.shape
    bits = max(1, min(10, 60 // d))
    cells = (points.argsort(axis=0).argsort(axis=0) * 2**bits // n).astype(np.uint64)
    place = np.zeros(n, dtype=np.uint64)
    for bit in reversed(range(bits)):
        for column in cells.T[: 60 // bits]:
            place = 2 * place + (column >> np.uint64(bit)) % 2
    return place


def weigh_points(
    latent: Latent,
    log_densities: Callable[[Tensor], Tensor],
    proposal: Proposal | None,
    n: int,
    generator: torch.Generator,
) -> SharedPoints:
    """Return n points of ``proposal``, or of λ, with the weights of each density.

    Points outside the support, which have no weight, are left out.
    """
    if proposal is None:
        g = latent.draw_evenly(n, generator)
        log_q = latent.log_sampling(g)
    else:
        g = proposal.draw_evenly(latent, n, generator)
        log_q = proposal.log_density(latent, g)[0]
    ratio = log_densities(g) + latent.log_volume(g) - log_q
    weights = torch.softmax(ratio, 1)
    logs = torch.logsumexp(ratio, 1) - math.log(len(g))
    inside = torch.isfinite(latent.taper(g))
    return SharedPoints(g[inside], weights[:, inside], 1.0 / weights.square().sum(1), logs)
