"""The belief by de-tempering the score of the winners, and the force that drives its sampler.

The paper's coordinates are a cube on which λ is uniform, with edges: y = side·(T(x) − ½), T the
Rosenblatt map of λ. λ's score vanishes inside, and de-tempering there without the Jacobian of T
gives p·λ instead of p wherever λ is not uniform.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llm_elicit.baselines.protocol.network import ScoreNetwork
from llm_elicit.baselines.protocol.samplers import (
    FlowPrior,
    Resampler,
    flow_log_prob,
    sample_langevin,
)
from llm_elicit.baselines.protocol.settings import (
    FIXED,
    HeunSettings,
    LangevinSettings,
    LikelihoodSettings,
    TrainingSettings,
)
from llm_elicit.density import methods
from llm_elicit.density.errors import Array
from llm_elicit.density.latent import Coordinates, Latent
from llm_elicit.density.methods import UtilityDensity
from llm_elicit.density.sampling import Uniform
from llm_elicit.density.score import Tempering
from llm_elicit.density.smc import Draws, Proposal
from llm_elicit.density.torch_utils import prefix_tensors, select_tensors
from llm_elicit.density.utility_function import Utility

_CUBE_STEP = 1e-4
_MARGIN = 1e-9


class CubeLatent(Coordinates):
    """Coordinates in [−side/2, side/2]^d; see `llm_elicit.density.latent.Coordinates`.

    Points outside the cube are replaced by the nearest point of the cube. The utility was fitted in
    the coordinates ``outer``.

    Examples:
        >>> import numpy as np
        >>> from llm_elicit.density import Uniform
        >>> from llm_elicit.density.latent import make_latent
        >>> cube = CubeLatent(make_latent(Uniform([0.0], [1.0])), side=6.0)
        >>> cube.to_latent(np.array([[0.5], [1.0]])).round(6).tolist()
        [[0.0], [3.0]]
    """

    def __init__(self, outer: Latent, side: float) -> None:
        self.outer, self.side, self.sampling = outer, side, outer.sampling

    def to_latent(self, x: Array) -> Array:
        """Return the cube coordinates of points in natural units."""
        return np.asarray(self.side * (self.sampling.to_cube(x) - 0.5))

    def from_latent(self, g: Array) -> Array:
        """Return the natural units of points in the cube."""
        inside = np.clip(g / self.side + 0.5, _MARGIN, 1.0 - _MARGIN)
        return np.asarray(self.sampling.from_cube(inside))

    def to_outer(self, g: Tensor) -> Tensor:
        """Return the outer latent coordinates of points in the cube."""
        return torch.from_numpy(self.outer.to_latent(self.from_latent(g.numpy())))

    def from_outer(self, g: Tensor) -> Tensor:
        """Return cube coordinates of outer latent coordinates."""
        return torch.from_numpy(self.to_latent(self.outer.from_latent(g.numpy())))

    def features(self, g: Tensor) -> Tensor:
        """Return the inputs of the utility, through the outer coordinates."""
        return self.outer.features(self.to_outer(g))

    def gradient_from_features(self, g: Tensor, v: Tensor) -> Tensor:
        """Return a gradient by g, given the gradient v by `features`, by central differences."""
        columns = [(self.features(up) - self.features(down)) * v for up, down in _pairs(g)]
        return torch.stack([c.sum(-1) for c in columns], dim=1) / (2.0 * _CUBE_STEP)

    def log_volume(self, g: Tensor) -> Tensor:
        """Return log|dz/dg|: −log λ per scale unit, minus d log(side)."""
        x = self.from_latent(g.numpy())
        per_scale = self.sampling.log_prob(x) - self.sampling.log_scale_derivative(x)
        return torch.from_numpy(-per_scale) - g.shape[1] * math.log(self.side)

    def log_volume_gradient(self, g: Tensor) -> Tensor:
        """Return the gradient of `log_volume`, by central differences; 0 for a uniform λ."""
        slopes = [self.log_volume(up) - self.log_volume(down) for up, down in _pairs(g)]
        return torch.stack(slopes, dim=1) / (2.0 * _CUBE_STEP)

    def log_sampling(self, g: Tensor) -> Tensor:
        """Return log λ: the same everywhere."""
        return torch.full_like(g[:, 0], -g.shape[1] * math.log(self.side))

    def sampling_score(self, g: Tensor, sigma: float | Tensor) -> Tensor:  # noqa: ARG002
        """Return 0, which the paper assumes at every noise level."""
        return torch.zeros_like(g)


def _pairs(g: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return points moved up and down along each coordinate."""
    steps = _CUBE_STEP * torch.eye(g.shape[1], dtype=g.dtype)
    return [(g + step, g - step) for step in steps]


NODES = 24
_CHUNK = 4096
_STEP = 0.01  # nats


@dataclass(frozen=True)
class Mode:
    """The way in which scores become a belief.

    ``side`` is "both" (the score of the odds of winning, times ω) or "winners" (the paper's: the
    score of the winners, times τ). ``cap`` and ``floor`` bound the field, which multiplies the
    network's errors; ``constant`` replaces it by one number for method ``score-constant``.
    Without ``jacobian`` the belief comes out as p·λ, the paper's mistake.
    """

    side: str
    cap: float
    floor: float
    constant: float | None
    sigma: float
    jacobian: bool


@dataclass(frozen=True)
class ScoreParts:
    """Coordinates, utility, network, field and the laws at σ_max of winners and losers."""

    latent: Latent | CubeLatent
    utility: Utility
    network: ScoreNetwork
    tempering: Tempering
    priors: tuple[FlowPrior, FlowPrior]
    mode: Mode

    def inward(self, g: Tensor) -> Tensor:
        """Return outer latent points in the coordinates the score was learned in."""
        return self.latent.from_outer(g) if isinstance(self.latent, CubeLatent) else g

    def clip_to_sphere(self, g: Tensor) -> Tensor:
        """Return points (n, d) brought back to the sphere of the compared points from beyond."""
        shrink: Tensor = self.latent.radius / g.norm(dim=1, keepdim=True).clamp(min=1e-30)
        return g * shrink.clamp(max=1.0)

    def field(self, g: Tensor) -> Tensor:
        """Return ω or τ at latent points (n, d), capped, or the constant; (n,)."""
        return self._field_of_utility(methods.evaluate_utility(self.latent, self.utility, g))

    def field_and_slope(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return the field (n,) and its gradient (n, d), which is along that of the utility."""
        u, slope = methods.evaluate_utility_and_gradient(self.latent, self.utility, g)
        ahead, behind = self._field_of_utility(u + _STEP), self._field_of_utility(u - _STEP)
        return self._field_of_utility(u), ((ahead - behind) / (2.0 * _STEP))[:, None] * slope

    def _field_of_utility(self, u: Tensor) -> Tensor:
        if self.mode.constant is not None:
            return torch.full_like(u, self.mode.constant)
        return self.tempering.field_of_side(u, self.mode.side).clamp(self.mode.floor, self.mode.cap)

    def scores(self, g: Tensor, masked: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        """Return ∇log p_{w,σ} and ∇log p_{l,σ} (n, d); differentiable in g."""
        like = self.network.gain
        winner, loser = self.network.side_scores(g.to(like), masked.to(like), sigma)
        return winner.to(g), loser.to(g)

    def field_times_score(self, g: Tensor, masked: Tensor, sigma: float) -> Tensor:
        """Return the field times the network's score (n, d); zero beyond the compared points."""
        with torch.no_grad():
            winner, loser = self.scores(g, masked, sigma)
            two_sided = self.mode.side == "both"
            excess = winner - (loser if two_sided else self.latent.sampling_score(g, sigma))
            inside = g.norm(dim=1, keepdim=True) <= self.latent.radius
            return torch.where(inside, self.field(g)[:, None] * excess, torch.zeros_like(g))

    def force(self, g: Tensor, masked: Tensor, sigma: float) -> Tensor:
        """Return the gradient of the belief's latent log-density (n, d) at noise level σ."""
        if len(g) > _CHUNK:
            chunks = zip(torch.split(g, _CHUNK), torch.split(masked, _CHUNK), strict=True)
            return torch.cat([self.force(points, mask, sigma) for points, mask in chunks])
        latent, jacobian = self.latent, self.mode.jacobian
        force = self.field_times_score(g, masked, sigma) + latent.taper_gradient(g)
        if not isinstance(latent.sampling, Uniform):
            # A pull towards λ, without which noisy levels would be flat. On a box the volume term
            # keeps points in the bulk of λ.
            force = force + sigma**2 / (1.0 + sigma**2) * latent.sampling_score(g, sigma)
        return force + (
            latent.log_volume_gradient(g) if jacobian else latent.sampling_score(g, 0.0)
        )

    def along_rays(self, g: Tensor, nodes: int = NODES) -> Tensor:
        """u(g) (n,) up to a constant: the learned field summed from the middle of λ.

        With a learned field that is no gradient this is its potential along rays.
        """
        still = self.still(self.mode.sigma)
        pieces = [
            path_integral(still, torch.zeros_like(part), part, nodes)
            for part in torch.split(self.clip_to_sphere(g), _CHUNK)
        ]
        return torch.cat(pieces) + self.latent.taper(g)

    def still(self, sigma: float) -> Callable[[Tensor], Tensor]:
        """Return the learned field with a fixed draw of the mask, a deterministic function of g."""
        return lambda g: self.field_times_score(g, fixed_mask(g, sigma), sigma)


def fixed_mask(g: Tensor, sigma: float) -> Tensor:
    """One draw of N(0, σ²I), the same for every point (n, d) and every call."""
    unit = torch.randn(1, g.shape[1], generator=torch.Generator().manual_seed(0))
    return (sigma * unit).to(g.dtype).expand(len(g), -1)


def path_integral(
    field: Callable[[Tensor], Tensor], start: Tensor, end: Tensor, nodes: int = NODES
) -> Tensor:
    """Return ∫ field·dx along the straight lines from ``start`` to ``end``, (n, d) each; (n,).

    For a gradient this is the difference of its potential. By Gauss–Legendre quadrature.

    Examples:
        >>> import torch
        >>> start, end = torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])
        >>> round(path_integral(lambda x: 2 * x, start, end).item(), 4)      # x² + y²
        25.0
    """
    places, shares = np.polynomial.legendre.leggauss(nodes)
    along = end - start
    total = torch.zeros_like(start[:, 0])
    for place, share in zip((places + 1.0) / 2.0, shares / 2.0, strict=True):
        total = total + float(share) * (field(start + float(place) * along) * along).sum(-1)
    return total


def flow_score(parts: ScoreParts, side: int) -> Callable[[Tensor, float], Tensor]:
    """Return the score of winners (0) or losers (1) as the probability flow needs it."""
    return lambda g, sigma: parts.scores(g, fixed_mask(g, sigma), sigma)[side]


_FINER = 4
_TIGHTER = 0.1


def finer(settings: LikelihoodSettings) -> LikelihoodSettings:
    """Return settings whose error is small beside that of ``settings``, and no tighter.

    Single-precision networks are noisy at the scale of 1e-6, which stops an adaptive solver.

    Examples:
        >>> finer(LikelihoodSettings(solver="implicit_adams")).solver
        'dopri5'
    """
    if settings.solver in FIXED:
        return replace(settings, solver="dopri5", rtol=1e-5, atol=1e-5)
    tight = max(settings.rtol * _TIGHTER, 1e-6), max(settings.atol * _TIGHTER, 1e-6)
    return replace(settings, rtol=tight[0], atol=tight[1])


def path_error(parts: ScoreParts, potential: Callable[[Tensor], Tensor], g: Tensor) -> float:
    """Return the root mean square difference (nats) of ``potential`` (n,) and the sampler's force.

    ``potential`` gives the utility at latent points (n, d). Its difference between two draws is
    compared with the force's integral on the line between them; draws beyond the compared points
    are left out, since the utility is tapered there.
    """
    inside = g[g.norm(dim=1) <= parts.latent.radius]
    half = len(inside) // 2
    if half == 0:
        return 0.0
    start, end = inside[:half], inside[half : 2 * half]
    expected = path_integral(parts.still(parts.mode.sigma), start, end, _FINER * NODES)
    gap = potential(end) - potential(start) - expected
    return float(gap.square().mean().sqrt().nan_to_num(torch.inf))


def spread(gap: Tensor) -> float:
    """Return the root mean square of differences (n,) about their mean, which is part of log Z.

    Where the solver failed, it is infinite and not NaN.
    """
    return float(gap.std(correction=0).nan_to_num(torch.inf))


_CROWD = 1024
_SOLVED, _SUMMED = 128, 512


@dataclass(frozen=True)
class ScoreDensity:
    """Samples by score-scaled Langevin dynamics; density along rays or by the probability flow.

    ``by_flow`` says which; ``resampler`` replaces both by the second network. The dynamics start at
    draws of ``belief``, the density of the utility. See `llm_elicit.density.methods.DensityModel`.
    """

    parts: ScoreParts
    belief: UtilityDensity
    langevin: LangevinSettings
    likelihood: LikelihoodSettings
    by_flow: bool
    resampler: Resampler | None = None
    log_normalizer: float = 0.0

    @property
    def name(self) -> str:
        """The method's name."""
        return "protocol"

    def sample_latent(self, n: int, generator: torch.Generator) -> Draws:
        """Draw n latent points: by Langevin dynamics, or by the second network."""
        if self.resampler is not None:
            return Draws.independent(self.resampler.sample(n, generator))
        # The step's preconditioner is an average over particles, so there must be many.
        crowd = max(n, _CROWD)
        start = self._start(crowd, generator)
        parts, latent = self.parts, self.parts.latent

        def drift(g: Tensor, sigma: float) -> Tensor:
            return parts.force(g, sigma * torch.randn(g.shape, generator=generator), sigma)

        def field(g: Tensor) -> tuple[Tensor, Tensor | None]:
            if self.langevin.scaling == "field with drift":
                return parts.field_and_slope(g)
            return parts.field(g), None

        with torch.no_grad():
            points = sample_langevin(start.points, drift, self.langevin, generator, field)
        if isinstance(latent, CubeLatent):
            points = latent.to_outer(points)
        moved = Draws(points, start.genealogies)
        return moved.take(torch.randperm(crowd, generator=generator)[:n])

    def _start(self, n: int, generator: torch.Generator) -> Draws:
        """Noise, or draws of the belief that the utility implies: its modes have their weights."""
        if self.langevin.start == "noise":
            shape = n, self.parts.latent.sampling.dimension
            white = torch.randn(shape, generator=generator, dtype=torch.float64)
            return Draws.independent(self.langevin.sigma_start * white)
        draws = self.belief.anneal(n, generator).draws
        return replace(draws, points=self.parts.inward(draws.points))

    def log_density(self, g: Tensor) -> Tensor:
        """Normalized log-density (n,) per scale unit, nats."""
        return self.log_unnormalized_density(g) - self.log_normalizer

    def log_unnormalized_density(self, g: Tensor) -> Tensor:
        """log-density (n,) per scale unit up to a constant, at outer latent points (n, d)."""
        latent = self.parts.latent
        if self.resampler is not None:
            return self.resampler.log_prob(g) - self.belief.latent.log_volume(g)
        inner = self.parts.inward(g)
        u = self._potential(inner)
        if not self.parts.mode.jacobian:
            u = u + latent.log_sampling(inner) - latent.log_volume(inner)
        return u

    def _potential(self, g: Tensor) -> Tensor:
        """Return u (n,) up to a constant, tapered as the samples.

        By the flow it is log p_w − log p_l (or − log λ), back through w.
        """
        parts, mode, latent = self.parts, self.parts.mode, self.parts.latent
        if not self.by_flow:
            return parts.along_rays(g)
        two_sided, inner = mode.side == "both", parts.clip_to_sphere(g)
        base = self.log_flow(inner, 1) if two_sided else latent.log_sampling(inner)
        ratio = self.log_flow(inner, 0) - base
        if mode.constant is not None:
            u = mode.constant * ratio
        elif two_sided:
            u = parts.tempering.utility_from_log_odds(ratio)
        else:
            u = parts.tempering.utility_from_log_win(ratio - math.log(2.0))
        return u + latent.taper(g)

    def evaluation_error(self, g: Tensor) -> tuple[float, float]:
        """Return the error of quadrature or solver, and that of the field against a gradient."""
        if self.resampler is not None:
            few, second = g[:_SOLVED], self.resampler
            better = replace(second, likelihood=finer(second.likelihood))
            return spread(second.log_prob(few) - better.log_prob(few)), 0.0
        inner = self.parts.inward(g[: _SOLVED if self.by_flow else _SUMMED])
        if self.by_flow:
            tight = replace(self, likelihood=finer(self.likelihood))
            numerical = spread(self._potential(inner) - tight._potential(inner))
        else:
            # With four times the quadrature nodes.
            finely = self.parts.along_rays(inner, nodes=_FINER * NODES)
            numerical = spread(self.parts.along_rays(inner) - finely)
        return numerical, path_error(self.parts, self._potential, inner)

    def log_flow(self, g: Tensor, side: int) -> Tensor:
        """Return log p_w (side 0) or log p_l (side 1) by the probability flow, (n,)."""
        score, prior = flow_score(self.parts, side), self.parts.priors[side]
        return flow_log_prob(g, score, prior, self.likelihood)

    def tensors(self) -> dict[str, Tensor]:
        """Utility, networks, tempering table and flow priors."""
        parts, second = self.parts, self.resampler
        named = {"network": parts.network, "tempering": parts.tempering}
        named |= {f"prior.{side}": prior for side, prior in enumerate(parts.priors)}
        if second is not None:
            named |= {"resampler": second.network, "prior.resampler": second.prior}
        tensors = self.belief.tensors()
        for name, value in named.items():
            tensors |= prefix_tensors(name, value)
        return tensors

    def config(self) -> dict[str, Any]:
        """Return every number that is not an array."""
        latent, second = self.parts.latent, self.resampler
        return {
            **self.belief.config(),
            "network": self.parts.network.size,
            "mode": asdict(self.parts.mode),
            "cube": latent.side if isinstance(latent, CubeLatent) else None,
            "langevin": asdict(self.langevin),
            "likelihood": asdict(self.likelihood),
            "by_flow": self.by_flow,
            "resampler": second
            and {
                "network": second.network.size,
                "settings": asdict(second.settings),
                "likelihood": asdict(second.likelihood),
            },
            "log_normalizer": self.log_normalizer,
        }

    @classmethod
    def restore(
        cls, latent: Latent, tensors: dict[str, Tensor], config: dict[str, Any]
    ) -> ScoreDensity:
        """Rebuild from `tensors` and `config`."""

        def network(name: str, size: dict[str, Any]) -> ScoreNetwork:
            d = latent.sampling.dimension
            restored = ScoreNetwork(d, size["width"], size["sigma_data"], torch.Generator())
            restored.load_state_dict(select_tensors(name, tensors))
            return restored.requires_grad_(False)

        def prior(name: str) -> FlowPrior:
            return FlowPrior(**select_tensors(f"prior.{name}", tensors))

        second, resampler = config["resampler"], None
        if second is not None:
            training = TrainingSettings(**second["settings"]["training"])
            resampler = Resampler(
                network("resampler", second["network"]),
                prior("resampler"),
                HeunSettings(**{**second["settings"], "training": training}),
                LikelihoodSettings(**second["likelihood"]),
            )
        belief = UtilityDensity.restore(latent, tensors, config)
        parts = ScoreParts(
            latent if config["cube"] is None else CubeLatent(latent, config["cube"]),
            belief.utility,
            network("network", config["network"]),
            Tempering(**select_tensors("tempering", tensors)),
            (prior("0"), prior("1")),
            Mode(**config["mode"]),
        )
        langevin = LangevinSettings(**config["langevin"])
        likelihood = LikelihoodSettings(**config["likelihood"])
        by_flow, log_normalizer = config["by_flow"], config["log_normalizer"]
        return cls(parts, belief, langevin, likelihood, by_flow, resampler, log_normalizer)


def importance_log_normalizer(
    latent: Latent,
    unnormalized: Callable[[Tensor], Tensor],
    draws: Draws,
    generator: torch.Generator,
    points: int = 1500,
) -> methods.LogNormalizer:
    """Return log ∫ exp(u) dz in nats, by importance sampling with ``points`` points.

    The proposal is a `Proposal` fitted to ``draws`` of the belief (n, d): its components put points
    where the mass is, and its share of λ bounds the weights elsewhere (Hesterberg, 1995). The
    standard error is by the delta method.

    Args:
        latent: the latent coordinates.
        unnormalized: u (n,) at latent points (n, d), nats per scale unit.
        draws: draws of the belief, to which the proposal is fitted.
        generator: draws the points.
        points: number of points of the proposal.
    """
    proposal = Proposal.fit(draws.points, 0.5, generator)
    g = proposal.draw(latent, points, generator)
    log_weights = unnormalized(g) + latent.log_volume(g) - proposal.log_density(latent, g)[0]
    value = float(torch.logsumexp(log_weights, 0)) - math.log(points)
    error = float(torch.exp(log_weights - value).std()) / math.sqrt(points)
    return methods.LogNormalizer(value, error, draws)
