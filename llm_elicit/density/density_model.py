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
)
from llm_elicit.density.transforms import Latent


@dataclass(frozen=True)
class EvaluationError:
    """Root mean square errors of a log-density over draws of the belief, nats.

    Parameters
    ----------
    numerical : the error of arithmetic, quadrature and solvers.
    path : along the straight line between two draws, the difference of log-densities less the
        integral of the force that moves the sampler; zero where the force is a gradient.
    """

    numerical: float = 0.0
    path: float = 0.0


class DensityModel(Protocol):
    """The interface of a belief in latent coordinates: its draws, and its density."""

    @property
    def name(self) -> str:
        """The method's name."""
        ...

    def sample_latent(self, n: int, generator: torch.Generator) -> Draws:
        """Return n latent draws (n, d) with their genealogies."""
        ...

    def log_density(self, g: Tensor) -> Tensor:
        """Return normalized log-densities (n,) at latent points (n, d), nats per scale unit."""
        ...

    def evaluation_error(self, g: Tensor) -> EvaluationError:
        """Return the errors of `log_density` at draws g (n, d), other than that of log Z."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return every array of the model by name."""
        ...

    def config(self) -> dict[str, Any]:
        """Return every other number of the model, JSON-able."""
        ...


@dataclass(frozen=True)
class LogNormalizer:
    """log ∫ exp(u) dz in nats, its standard error, draws of the belief, and a start for more."""

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
    """Return log ∫ exp(u) dz in nats, by importance sampling with ``points`` points.

    The proposal is a `Proposal` fitted to ``draws`` of the belief (n, d): its components put points
    where the mass is, and its share of λ bounds the weights elsewhere (Hesterberg, 1995). The
    standard error is by the delta method.

    Parameters
    ----------
    unnormalized : u (n,) at latent points (n, d), nats per scale unit.
    """
    proposal = Proposal.fit(draws.points, 0.5, generator)
    g = proposal.draw(latent, points, generator)
    log_weights = unnormalized(g) + latent.log_volume(g) - proposal.log_density(latent, g)[0]
    value = float(torch.logsumexp(log_weights, 0)) - math.log(points)
    error = float(torch.exp(log_weights - value).std()) / math.sqrt(points)
    return LogNormalizer(value, error, draws)
