"""The interface of a fitted density, and what a fit returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from llm_elicit.density.smc import (
    Draws,
    Proposal,
    draw_sampling,
)
from llm_elicit.density.transforms import Latent

_SHARE_SAMPLING = 0.3


@dataclass(frozen=True)
class EvaluationError:
    """Root mean square errors of a log-density over draws of the belief, nats.

    ``numerical`` is what arithmetic, quadrature and solvers leave. ``path`` is how far the
    differences of log-density between pairs of draws are from the integral of the force that moves
    the sampler, along the straight line between them: zero where that force is a gradient.
    """

    numerical: float = 0.0
    path: float = 0.0


class DensityModel(Protocol):
    """A belief in latent coordinates: draws, and the density per unit of the feature scales."""

    @property
    def name(self) -> str:
        """The method's name."""
        ...

    def sample_latent(self, n: int, generator: torch.Generator) -> Draws:
        """Draw n latent points, with the families that say how independent they are."""
        ...

    def log_density(self, g: Tensor) -> Tensor:
        """Normalized log-density (n,) per scale unit at latent points (n, d), nats."""
        ...

    def evaluation_error(self, g: Tensor) -> EvaluationError:
        """How far `log_density` at draws g (n, d) is from what it stands for, but for log Z."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Every array the model needs, by name."""
        ...

    def config(self) -> dict[str, Any]:
        """Every other number the model needs, JSON-able."""
        ...


@dataclass(frozen=True)
class LogNormalizer:
    """log ∫ exp(u) dz in nats, its standard error, draws of the belief, a start for more."""

    value: float
    standard_error: float
    draws: Draws
    start: Proposal | None = None


@dataclass(frozen=True)
class Fitted:
    """A fitted model, its log Z with draws, and its diagnostics (JSON-able)."""

    model: DensityModel
    normalizer: LogNormalizer
    notes: dict[str, Any]


def importance_log_normalizer(
    latent: Latent,
    unnormalized: Callable[[Tensor], Tensor],
    draws: Draws,
    generator: torch.Generator,
    points: int = 1500,
) -> LogNormalizer:
    """log ∫ exp(u) dz in nats, with its standard error by the delta method.

    The proposal is 30 % λ and 70 % a Gaussian kernel estimate on ``draws`` of the belief
    itself: the kernels put points where the mass is, λ keeps every weight bounded where it is
    not (Hesterberg, 1995).
    """
    from_sampling = round(_SHARE_SAMPLING * points)
    low, centres = _kernel(draws.points)
    index = torch.randint(len(centres), (points - from_sampling,), generator=generator)
    white = torch.randn(len(index), centres.shape[1], generator=generator, dtype=centres.dtype)
    g = torch.cat([draw_sampling(latent, from_sampling, generator), centres[index] + white @ low.T])
    log_proposal = torch.logaddexp(
        math.log(_SHARE_SAMPLING) + latent.log_sampling(g),
        math.log(1.0 - _SHARE_SAMPLING) + _kernel_log_prob(g, low, centres),
    )
    log_weights = unnormalized(g) + latent.log_volume(g) - log_proposal
    value = float(torch.logsumexp(log_weights, 0)) - math.log(points)
    error = float(torch.exp(log_weights - value).std()) / math.sqrt(points)
    return LogNormalizer(value, error, draws)


def _kernel(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Cholesky factor of Silverman's bandwidth (narrowed for several modes), and the centres."""
    n, d = draws.shape
    width = 0.6 * (4.0 / (n * (d + 2.0))) ** (1.0 / (d + 4.0))
    centred = draws - draws.mean(0)
    covariance = centred.T @ centred / n + 1e-9 * torch.eye(d, dtype=draws.dtype)
    return width * torch.linalg.cholesky(covariance), draws


def _kernel_log_prob(g: Tensor, low: Tensor, centres: Tensor) -> Tensor:
    white = torch.linalg.solve_triangular(low, g.T, upper=False).T
    nodes = torch.linalg.solve_triangular(low, centres.T, upper=False).T
    constant = low.diagonal().log().sum() + 0.5 * g.shape[1] * math.log(2.0 * math.pi)
    distance = torch.cdist(white, nodes).square()
    return torch.logsumexp(-0.5 * distance, 1) - math.log(len(nodes)) - constant
