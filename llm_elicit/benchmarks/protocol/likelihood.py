"""Log-density of the winners by the probability-flow ODE.

dx/dσ = −σ s(x, σ) carries p_w at σ_min to p_w smoothed at σ_max, so

    log p_w(x) = log p_σmax(x(σ_max)) − ∫ σ ∇·s(x(σ), σ) dσ

(instantaneous change of variables; eq. C.2 of Mikkola, Acerbi and Klami, 2026). At σ_max the
density is taken as a Gaussian with the winners' mean and covariance plus σ_max² I. The
divergence is exact, one reverse pass per feature, or Hutchinson's estimate, one reverse pass
per Rademacher probe, the probe kept along a point's whole path.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torchdiffeq import odeint

from llm_elicit.benchmarks.protocol.checks import one_of, rising, within

Score = Callable[[Tensor, float], Tensor]
DIVERGENCES = ("exact", "hutchinson")
PRIORS = ("matched", "noise")
ADAPTIVE = ("dopri5", "bosh3")
FIXED = ("implicit_adams", "rk4", "midpoint")


@dataclass(frozen=True)
class LikelihoodSettings:
    """Ends of the flow in latent units, divergence, solver, and points per solve.

    ``solver`` is adaptive ("dopri5", "bosh3": tolerances ``rtol``, ``atol``, steps in ln σ, where
    the flow is least stiff) or runs on a fixed grid of ``grid`` values even in σ ("implicit_adams"
    as in the paper, "rk4", "midpoint"), where most of the grid lies above the noise that matters.
    ``divergence`` is "exact" or "hutchinson" with ``probes`` probes a point. ``prior`` is the law
    at σ_max: "matched" keeps the winners' mean and covariance, "noise" is N(0, σ_max² I).

    Raises
    ------
    DensityError : an unknown choice or a number out of range.
    """

    sigma_min: float = 0.05
    sigma_max: float = 3.0
    rtol: float = 1e-4
    atol: float = 1e-4
    chunk: int = 4096
    solver: str = "dopri5"
    grid: int = 40
    divergence: str = "exact"
    probes: int = 1
    prior: str = "matched"

    def __post_init__(self) -> None:
        owner = "LikelihoodSettings"
        one_of(owner, "solver", self.solver, (*ADAPTIVE, *FIXED))
        one_of(owner, "divergence", self.divergence, DIVERGENCES)
        one_of(owner, "prior", self.prior, PRIORS)
        rising(owner, ("sigma_min", self.sigma_min), ("sigma_max", self.sigma_max))
        for name in ("rtol", "atol", "chunk", "probes"):
            within(owner, name, getattr(self, name), 0.0)
        within(owner, "grid", self.grid, 1.0)


@dataclass(frozen=True)
class FlowPrior:
    """Mean (d,) and covariance (d, d) of the winners: their law at σ_max is nearly Gaussian."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, points: Tensor, weights: Tensor) -> FlowPrior:
        """Return the weighted mean and covariance of points (n, d), weights (n,)."""
        share = weights / weights.sum()
        mean = share @ points
        centred = points - mean
        return cls(mean, (centred * share[:, None]).T @ centred)

    @classmethod
    def at_zero(cls, dimension: int) -> FlowPrior:
        """No spread but the noise's: N(0, σ² I)."""
        zero = torch.zeros(dimension, dtype=torch.float64)
        return cls(zero, torch.diag(zero))

    def sample(self, n: int, sigma: float, generator: torch.Generator) -> Tensor:
        """Draw (n, d) from N(mean, covariance + σ² I)."""
        white = torch.randn(n, len(self.mean), generator=generator, dtype=self.mean.dtype)
        return self.mean + white @ self._factor(sigma).T

    def _factor(self, sigma: float) -> Tensor:
        one = torch.eye(len(self.mean), dtype=self.mean.dtype)
        low: Tensor = torch.linalg.cholesky(self.covariance + sigma**2 * one)
        return low

    def log_prob(self, x: Tensor, sigma: float) -> Tensor:
        """Return log N(x; mean, covariance + σ² I), (n,)."""
        d = x.shape[1]
        low = self._factor(sigma)
        white = torch.linalg.solve_triangular(low, (x - self.mean).T, upper=False)
        log_scale = low.diagonal().log().sum()
        log_prob: Tensor = -0.5 * white.square().sum(0) - log_scale
        return log_prob - 0.5 * d * math.log(2.0 * math.pi)


def flow_log_prob(
    x: Tensor,
    score: Score,
    prior: FlowPrior,
    settings: LikelihoodSettings,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return log p_w (n,) at latent points (n, d).

    ``generator`` draws Hutchinson's probes; without one they are the same at every call.

    Examples
    --------
    >>> import torch
    >>> standard = FlowPrior(torch.zeros(1).double(), torch.eye(1).double())
    >>> settings = LikelihoodSettings(sigma_min=1e-3)
    >>> x = torch.zeros(1, 1).double()
    >>> value = flow_log_prob(x, lambda y, s: -y / (1 + s**2), standard, settings)
    >>> round(float(value.item()), 2)
    -0.92
    """
    draw = torch.Generator().manual_seed(0) if generator is None else generator
    solved = []
    for part in torch.split(x, settings.chunk):
        probes = None
        if settings.divergence == "hutchinson":
            probes = rademacher((settings.probes, *part.shape), draw, x.dtype)
        solved.append(_solve(part, score, prior, settings, probes))
    return torch.cat(solved)


def rademacher(
    shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Independent signs ±1 of this shape.

    Examples
    --------
    >>> import torch
    >>> rademacher((2, 3), torch.Generator().manual_seed(0)).abs().tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    return 2.0 * torch.randint(2, shape, generator=generator).to(dtype) - 1.0


def _solve(
    x: Tensor, score: Score, prior: FlowPrior, settings: LikelihoodSettings, probes: Tensor | None
) -> Tensor:
    fixed = settings.solver in FIXED
    low, high = settings.sigma_min, settings.sigma_max

    def velocity(time: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        # Where nothing moves yet, a solver's trial of its first step goes far beyond the end.
        sigma = float(time) if fixed else math.exp(min(float(time), math.log(high)))
        value, divergence = score_and_divergence(state[0], score, sigma, probes)
        speed = sigma if fixed else sigma**2
        return -speed * value, speed * divergence

    times = torch.tensor([math.log(low), math.log(high)], dtype=x.dtype)
    if fixed:
        times = torch.linspace(low, high, settings.grid, dtype=x.dtype)
    start = (x, torch.zeros_like(x[:, 0]))
    accuracy = {"rtol": settings.rtol, "atol": settings.atol}
    path, gained = odeint(velocity, start, times, method=settings.solver, **accuracy)
    log_prob: Tensor = prior.log_prob(path[-1], settings.sigma_max) - gained[-1]
    return log_prob


def score_and_divergence(
    x: Tensor, score: Score, sigma: float, probes: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """s(x, σ) (n, d) and ∇·s (n,): exact, or the mean of vᵀ∇s v over ``probes`` v (k, n, d)."""
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        value = score(point, sigma)
        divergence = torch.zeros_like(x[:, 0])
        if probes is not None:
            for probe in probes:
                (slope,) = torch.autograd.grad((value * probe).sum(), point, retain_graph=True)
                divergence = divergence + (slope * probe).sum(1) / len(probes)
            return value.detach(), divergence.detach()
        for i in range(x.shape[1]):
            (slope,) = torch.autograd.grad(value[:, i].sum(), point, retain_graph=True)
            divergence = divergence + slope[:, i]
    return value.detach(), divergence.detach()
