"""The belief as a mixture of normalizing flows: exact draws, an exactly normalized density."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from llm_elicit.density.density_model import EvaluationError
from llm_elicit.density.flow.network import BeliefFlow, FlowShape
from llm_elicit.density.smc import Draws
from llm_elicit.density.transforms import Latent

_CHUNK = 8192


@dataclass(frozen=True)
class FlowDensity:
    """p(g) = (1/K) Σ_k q_k(g) in latent coordinates, with K flows of equal weight.

    See `llm_elicit.density.density_model.DensityModel`. Nothing is estimated: ∫ p dg = 1, and
    the density per unit of the feature scale is p(g)/|dz/dg|.
    """

    latent: Latent
    flows: tuple[BeliefFlow, ...]

    @property
    def name(self) -> str:
        """The method's name."""
        return "flow"

    def sample_latent(self, n: int, generator: torch.Generator) -> Draws:
        """Draw n latent points: base noise pushed through the flows, independent draws."""
        d = self.flows[0].shape.dimension
        which = torch.randint(len(self.flows), (n,), generator=generator)
        z = torch.randn(n, d, generator=generator, dtype=torch.float64)
        points = torch.empty_like(z)
        for k, flow in enumerate(self.flows):
            rows = which == k
            if rows.any():
                points[rows] = flow.push(z[rows])
        return Draws.independent(points)

    @torch.no_grad()
    def log_density(self, g: Tensor) -> Tensor:
        """Normalized log-density (n,) per scale unit, nats."""
        parts = [
            torch.stack([flow.log_prob(chunk) for flow in self.flows])
            for chunk in torch.split(g, _CHUNK)
        ]
        log_mixture = torch.logsumexp(torch.cat(parts, dim=1), 0) - math.log(len(self.flows))
        return log_mixture - self.latent.log_volume(g)

    def evaluation_error(self, g: Tensor) -> EvaluationError:  # noqa: ARG002 - a protocol
        """None: the flows' densities are closed forms, in double precision."""
        return EvaluationError()

    def tensors(self) -> dict[str, Tensor]:
        """The parameters of every flow."""
        return {
            f"flow.{k}.{name}": parameter.detach()
            for k, flow in enumerate(self.flows)
            for name, parameter in flow.named_parameters()
        }

    def config(self) -> dict[str, Any]:
        """Number and size of the flows."""
        return {"members": len(self.flows), "shape": asdict(self.flows[0].shape)}

    @classmethod
    def restore(
        cls, latent: Latent, tensors: dict[str, Tensor], config: dict[str, Any]
    ) -> FlowDensity:
        """Rebuild from `tensors` and `config`."""
        shape = FlowShape(**config["shape"])
        flows = []
        for k in range(config["members"]):
            flow = BeliefFlow(shape, seed=0).double()
            with torch.no_grad():
                for name, parameter in flow.named_parameters():
                    parameter.copy_(tensors[f"flow.{k}.{name}"])
            flows.append(flow)
        return cls(latent, tuple(flows))
