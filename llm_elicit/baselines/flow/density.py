"""The flow of one member, and the belief as a mixture of such flows."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from llm_elicit.density.errors import DensityError
from llm_elicit.density.latent import Latent
from llm_elicit.density.methods import EvaluationError
from llm_elicit.density.smc import Draws

_CHUNK = 8192
_SQRT_3 = math.sqrt(3.0)
_LOG_2PI = math.log(2.0 * math.pi)
_BISECTIONS = 90
_SHARE_START = -2.0


@dataclass(frozen=True)
class FlowShape:
    """Size of a flow: features, spline layers, bins, hidden units, and whether it stretches."""

    dimension: int
    transforms: int
    bins: int
    width: int
    stretched: bool


class BeliefFlow(torch.nn.Module):
    """q(g) on latent points (n, d): g → y → t = A(y − b) → splines → N(0, I).

    * y is the stretch y_j = κ_j g_j + (1 − κ_j)·√3 erf(g_j/√2), with κ_j in (0, 1) learned. In a
      box, κ → 0 makes y the scaled feature itself and κ = 1 leaves g: narrow beliefs are normal in
      the one and the uniform belief is in the other. Without ``stretched``, y = g.
    * A is lower triangular with a positive diagonal.
    * The splines are a neural spline flow (Durkan et al., 2019), autoregressive in the features,
      of zuko (Rozet et al., 2022); they start as the identity, and stay so beyond |t_j| = 5, so
      the tails are normal whatever was learned.

    Examples
    --------
    >>> import torch
    >>> flow = BeliefFlow(FlowShape(2, 1, 4, 8, stretched=False), seed=0)
    >>> flow.log_prob(torch.zeros(1, 2)).exp().mul(2 * torch.pi).round(decimals=6).tolist()
    [1.0]
    """

    def __init__(self, shape: FlowShape, seed: int) -> None:
        super().__init__()
        self.shape = shape
        d = shape.dimension
        self.splines = _identity_splines(shape, seed)
        self.centre = torch.nn.Parameter(torch.zeros(d))
        # Entries of A; its diagonal is kept as a logarithm.
        self.linear = torch.nn.Parameter(torch.zeros(d, d))
        self.share = torch.nn.Parameter(torch.full((d,), _SHARE_START))
        self.with_splines = True

    def affine_parameters(self) -> list[torch.nn.Parameter]:
        """Return parameters of the stretch and of the linear layer."""
        return [self.centre, self.linear, *([self.share] if self.shape.stretched else [])]

    @torch.no_grad()
    def start_at(self, points: Tensor, weights: Tensor) -> None:
        """Set the linear layer so that weighted latent points (n, d) become standard."""
        y, _ = self._stretch(points.to(self.centre.dtype))
        share = (weights / weights.sum()).to(y.dtype)
        mean = share @ y
        centred = y - mean
        covariance = (centred * share[:, None]).T @ centred
        ridge = 1e-6 * (1.0 + covariance.diagonal().mean()) * torch.eye(len(mean), dtype=y.dtype)
        low = torch.linalg.inv(torch.linalg.cholesky(covariance + ridge))
        self.centre.copy_(mean)
        self.linear.copy_(torch.tril(low, -1) + torch.diag(low.diagonal().log()))

    def log_prob(self, g: Tensor) -> Tensor:
        """Return log q (n,) per latent unit at latent points (n, d), nats; exactly normalized."""
        y, log_slope = self._stretch(g)
        t = (y - self.centre) @ self._matrix().T
        log_volume = log_slope + self.linear.diagonal().sum()
        if not self.with_splines:
            return log_volume - 0.5 * (t * t).sum(-1) - 0.5 * _LOG_2PI * t.shape[-1]
        log_prob: Tensor = self.splines().log_prob(t)
        return log_volume + log_prob

    @torch.no_grad()
    def push(self, z: Tensor) -> Tensor:
        """Latent points (n, d) from draws z (n, d) of N(0, I)."""
        t = self.splines().transform.inv(z)
        low = self._matrix()
        y = torch.linalg.solve_triangular(low, t.T, upper=False).T + self.centre
        return self._unstretch(y)

    def _matrix(self) -> Tensor:
        return torch.tril(self.linear, -1) + torch.diag(self.linear.diagonal().exp())

    def _stretch(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """y (n, d), and the logarithm (n,) of |dy/dg|."""
        if not self.shape.stretched:
            return g, torch.zeros_like(g[:, 0])
        share = torch.sigmoid(self.share)
        y = share * g + (1.0 - share) * _SQRT_3 * torch.erf(g / math.sqrt(2.0))
        normal = _SQRT_3 * math.sqrt(2.0 / math.pi) * torch.exp(-0.5 * g * g)
        return y, torch.log(share + (1.0 - share) * normal).sum(-1)

    def _unstretch(self, y: Tensor) -> Tensor:
        """Inverse of `_stretch`, by bisection."""
        if not self.shape.stretched:
            return y
        # |y| >= κ|g| − √3, so g lies in this bracket.
        high = (y.abs() + 2.0) / torch.sigmoid(self.share)
        low = -high
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            below = self._stretch(middle)[0] < y
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return 0.5 * (low + high)


def _identity_splines(shape: FlowShape, seed: int) -> Any:
    """Return a neural spline flow that starts as the identity, without global random state."""
    try:
        from zuko.flows import NSF  # noqa: PLC0415 - of the extra `flow`
    except ImportError as error:
        raise DensityError(
            f"method 'flow' needs zuko ({error}); pip install 'llm-elicit[flow]'."
        ) from error

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        flow = NSF(
            shape.dimension,
            transforms=shape.transforms,
            bins=shape.bins,
            hidden_features=(shape.width, shape.width),
            activation=torch.nn.Tanh,
        )
    for layer in flow.transform.transforms:
        # With one feature there is no network: the spline's own parameters are all there is.
        last = layer.hyper[-1] if shape.dimension > 1 else layer
        for parameter in last.parameters():
            torch.nn.init.zeros_(parameter)
    return flow


@dataclass(frozen=True)
class FlowDensity:
    """p(g) = (1/K) Σ_k q_k(g) in latent coordinates, with K flows of equal weight.

    See `llm_elicit.density.methods.DensityModel`. Nothing is estimated: ∫ p dg = 1, and
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
        """Return the parameters of every flow."""
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
