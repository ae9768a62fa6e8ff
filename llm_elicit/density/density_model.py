"""What a fitted method must offer for a `BeliefDensity` to be built on it."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class DensityModel(Protocol):
    """A belief in latent coordinates: draws, and the density per unit of the feature scales."""

    @property
    def name(self) -> str:
        """The method's name."""
        ...

    def sample_latent(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw (n, d) latent points, double precision."""
        ...

    def log_density(self, g: Tensor) -> Tensor:
        """Normalized log-density (n,) per scale unit at latent points (n, d), nats."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Every array the model needs, by name."""
        ...

    def config(self) -> dict[str, Any]:
        """Every other number the model needs, JSON-able."""
        ...
