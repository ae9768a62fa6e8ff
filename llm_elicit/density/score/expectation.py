"""Where the integrals of the tempering field are taken: under λ, at the winners, or at both.

The field is a ratio of expectations under λ. The compared points and quasi-random ones are draws
of λ, so its expectations are plain averages. The paper takes draws x_i of the estimated winners'
density instead, with weights λ/p_w from its probability flow, clipped to their 1st–90th
percentiles; half of each with the balance heuristic's weights λ/(½λ + ½p_w) <= 2 is the
defensive mixture (Hesterberg, 1995).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

EXPECTATIONS = ("sampling", "winners", "mixture")


@dataclass(frozen=True)
class WinnerDraws:
    """Draws (m, d) of the winners' density and their log-densities (m,), latent."""

    points: Tensor
    log_prob: Tensor


def clip_weights(weights: Tensor, clip: tuple[float, float] | None) -> Tensor:
    """Clamp weights (m,) between two of their own quantiles; None leaves them.

    Examples
    --------
    >>> import torch
    >>> clip_weights(torch.arange(5.0), (0.25, 0.75)).tolist()
    [1.0, 1.0, 2.0, 3.0, 3.0]
    """
    if clip is None:
        return weights
    low, high = (float(torch.quantile(weights, level)) for level in clip)
    return weights.clamp(low, high)


def winner_weights(
    draws: WinnerDraws, log_sampling: Tensor, clip: tuple[float, float] | None
) -> Tensor:
    """λ/p_w (m,) at draws of the winners, up to a factor, clipped."""
    logs = log_sampling - draws.log_prob
    return clip_weights(torch.exp(logs - logs.max()), clip)


def defensive_mixture(
    of_sampling: Tensor, draws: WinnerDraws, log_densities: tuple[Callable[[Tensor], Tensor], ...]
) -> tuple[Tensor, Tensor]:
    """Points (2m, d), half of λ and half of the winners, and weights λ/(½λ + ½p_w) (2m,).

    ``log_densities`` are those of λ and of the winners, (n, d) -> (n,).
    """
    log_sampling, log_winner = log_densities
    half = of_sampling[: len(draws.points)]
    points = torch.cat([half, draws.points[: len(half)]])
    winner = torch.cat([log_winner(half), draws.log_prob[: len(half)]])
    ratio = winner - log_sampling(points)
    return points, 2.0 / (1.0 + torch.exp(ratio))
