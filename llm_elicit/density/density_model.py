"""What a fitted method must offer for a `BeliefDensity` to be built on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Draws:
    """Latent points (n, d), double precision, and their families (n,), integers from 0.

    Draws of one family go back to the same particle and so share its luck; draws of different
    families are independent.

    Examples
    --------
    >>> import torch
    >>> Draws.independent(torch.zeros(3, 2)).families.tolist()
    [0, 1, 2]
    """

    points: Tensor
    families: Tensor

    @classmethod
    def independent(cls, points: Tensor) -> Draws:
        """Points that share nothing: each a family of its own."""
        return cls(points, torch.arange(len(points)))

    def take(self, index: Tensor) -> Draws:
        """The draws numbered ``index`` (m,)."""
        return Draws(self.points[index], self.families[index])


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
