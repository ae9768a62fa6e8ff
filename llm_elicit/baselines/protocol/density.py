"""The published protocol: the score of winners, de-tempered by the field, and its sampler.

The paper's coordinates are a cube on which λ is uniform, with edges: y = side·(T(x) − ½), T the
Rosenblatt map of λ. λ's score vanishes inside, and de-tempering there without the Jacobian of T
gives p·λ instead of p wherever λ is not uniform.

*Integrals of the field.* The field is a ratio of expectations under λ. The paper takes draws x_i of
the estimated winners' density, with weights λ/p_w from its probability flow, clipped to their
1st–90th percentiles. The compared points and quasi-random ones are draws of λ, so that its
expectations are plain averages over them.

Each mistake of the protocol has a name and can be corrected alone:

=============  ====================================================  =============================
name           as published                                           corrected
=============  ====================================================  =============================
jacobian       de-tempering on the cube without the Jacobian of T:    p, the Jacobian's slope added
               samples p·λ where λ is not uniform
drift          steps of ε/τ(x): these leave τ·p invariant, not p      the drift ε∇(1/τ) added
start          from N(0, σ_max² I): with a field that belongs to      from draws of exp(f)
               σ = 0 the weights of modes are lost on the way down
expectation    τ's integrals at draws of p_w, flow densities as       at draws of λ
               weights
clip           those weights clipped to their 1st–90th percentiles    not clipped
floor          τ >= 1; the bound that holds is τ >= s                 no floor
solver         Adams–Bashforth–Moulton on a fixed grid                adaptive, in ln σ
prior          N(0, σ_max² I) at σ_max, as if p_w were a point at 0   p_w's mean and covariance
=============  ====================================================  =============================

Not mistakes, but kept as published: the cube's coordinates, widths, numbers of iterations, learning
rates, noise levels, the cap of the field at its 99 % quantile, no stopping rule. The paper gives
widths as 32 to 128 and no rule; here they grow with the dimension. The utility is this package's,
not the paper's network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import qmc
from torch import Tensor

from llm_elicit.baselines.protocol.network import ScoreNetwork, TrainingSettings, train_score
from llm_elicit.baselines.protocol.samplers import (
    FlowPrior,
    LangevinSettings,
    LikelihoodSettings,
    edm_steps,
    flow_log_prob,
    sample_heun,
    sample_langevin,
)
from llm_elicit.density import methods
from llm_elicit.density.errors import Array, DensityError, check_integer
from llm_elicit.density.fit import fit_choice_utility
from llm_elicit.density.latent import Coordinates, Latent
from llm_elicit.density.methods import MethodFit, PotentialDensity, Problem, UtilityDensity
from llm_elicit.density.score import Tempering
from llm_elicit.density.smc import Draws, Proposal
from llm_elicit.density.torch_utils import prefix_tensors, select_tensors
from llm_elicit.density.utility_function import Utility

CORRECTIONS = ("jacobian", "drift", "start", "expectation", "clip", "floor", "solver", "prior")
_CUBE_STEP = 1e-4
_MARGIN = 1e-9
_MAX_COMPARED, _LOG2_SOBOL = 16_384, 12
_REFERENCE = 2048
_CAP_QUANTILE = 0.99  # of the field under λ, by which it is bounded


@dataclass(frozen=True)
class ProtocolSettings:
    """Settings of the protocol, made by `paper_protocol`.

    Attributes:
        cube: the side of the cube with uniform λ in which the score is learned.
        winner_draws: number of winners for each feature at which the integrals of the tempering
            field are taken, with weights; 0 takes them at draws of λ.
        clip: the quantiles to which the winners' weights are clipped; None for no clipping.
        floor: the lower bound of the field.
        jacobian: whether to use the Jacobian of the coordinates; without, the result is p·λ.
    """

    training: TrainingSettings
    langevin: LangevinSettings
    likelihood: LikelihoodSettings
    cube: float
    winner_draws: int
    clip: tuple[float, float] | None
    floor: float
    jacobian: bool


def paper_protocol(dimension: int, corrected: Sequence[str] = ()) -> ProtocolSettings:
    """Return the settings of the published tables for d features, with the named corrections.

    It is slow: up to 15,360 training steps and 2000 Langevin steps without any stopping rule.

    Source: Mikkola, Acerbi and Klami (2026), section 4, algorithms 1 and 2, appendices C and E.

    Raises:
        DensityError: no feature, or a correction that is not in `CORRECTIONS`.

    Examples:
        >>> settings = paper_protocol(2)
        >>> settings.training.steps, settings.langevin.step, settings.jacobian
        (8192, 7.0, False)
        >>> paper_protocol(2, corrected=["jacobian"]).jacobian
        True
    """
    check_integer("paper_protocol: dimension", dimension, minimum=1)
    for name in corrected:
        if name not in CORRECTIONS:
            raise DensityError(
                f"paper_protocol: correction {name!r} is unknown; the corrections are "
                f"{', '.join(CORRECTIONS)}; choose one of them."
            )
    flat, is_low_dimensional = dimension <= 2, dimension < 10
    sigma_max = 5.0 if dimension == 2 else 2.0
    training = TrainingSettings(
        width=32 if flat else 64 if dimension <= 4 else 96 if is_low_dimensional else 128,
        steps=8192 if flat else 12_288 if is_low_dimensional else 15_360,
        learning_rate=5e-3 if flat else 5e-4 if is_low_dimensional else 3e-4,
        decay_after=1024 if flat else None,
        sigma_max=sigma_max,
    )
    langevin = LangevinSettings(
        steps=15 if dimension == 2 else 50,
        step=7.0 if dimension == 2 else 0.15,
        sigma_start=sigma_max,
        drift="drift" in corrected,
        at_belief="start" in corrected,
    )
    likelihood = LikelihoodSettings(
        sigma_max, adaptive="solver" in corrected, matched="prior" in corrected
    )
    return ProtocolSettings(
        training,
        langevin,
        likelihood,
        cube=6.0 if dimension == 2 else 1.0,
        winner_draws=0 if "expectation" in corrected else 2000,
        clip=None if "clip" in corrected else (0.01, 0.9),
        floor=0.0 if "floor" in corrected else 1.0,
        jacobian="jacobian" in corrected,
    )


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


def _pairs(g: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return points moved up and down along each coordinate."""
    steps = _CUBE_STEP * torch.eye(g.shape[1], dtype=g.dtype)
    return [(g + step, g - step) for step in steps]


_CHUNK = 4096
_STEP = 0.01  # nats


@dataclass(frozen=True)
class ScoreParts:
    """The parts that turn the score of the winners into a belief.

    Attributes:
        latent: the cube in which the score is learned.
        utility: of which the tempering field is a function.
        network: the score of the winners.
        tempering: the tempering field, which multiplies the network's errors.
        floor, cap: bounds of the field.
        prior: the law of the winners at σ_max.
        jacobian: without it the belief comes out as p·λ, the paper's mistake.
    """

    latent: CubeLatent
    utility: Utility
    network: ScoreNetwork
    tempering: Tempering
    prior: FlowPrior
    floor: float
    jacobian: bool
    cap: float = math.inf

    def field(self, g: Tensor) -> Tensor:
        """Return τ at points of the cube (n, d), within its bounds: (n,)."""
        return self._field_of_utility(methods.evaluate_utility(self.latent, self.utility, g))

    def field_and_slope(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return the field (n,) and its gradient (n, d), which is along that of the utility."""
        u, slope = methods.evaluate_utility_and_gradient(self.latent, self.utility, g)
        ahead, behind = self._field_of_utility(u + _STEP), self._field_of_utility(u - _STEP)
        return self._field_of_utility(u), ((ahead - behind) / (2.0 * _STEP))[:, None] * slope

    def _field_of_utility(self, u: Tensor) -> Tensor:
        return self.tempering.tau(u).clamp(self.floor, self.cap)

    def score(self, g: Tensor, masked: Tensor, sigma: float) -> Tensor:
        """Return ∇log p_{w,σ} (n, d); differentiable in g."""
        reference = self.network.gain
        return self.network.winner_score(g.to(reference), masked.to(reference), sigma).to(g)

    def flow_score(self, g: Tensor, sigma: float) -> Tensor:
        """Return the score (n, d) of the probability flow, with one draw of the mask for all."""
        return self.score(g, fixed_mask(g, sigma), sigma)

    @torch.no_grad()
    def force(self, g: Tensor, masked: Tensor, sigma: float) -> Tensor:
        """Return the gradient of the belief's log-density in the cube (n, d) at noise level σ."""
        if len(g) > _CHUNK:
            chunks = zip(torch.split(g, _CHUNK), torch.split(masked, _CHUNK), strict=True)
            return torch.cat([self.force(points, mask, sigma) for points, mask in chunks])
        force = self.field(g)[:, None] * self.score(g, masked, sigma)
        return force + self.latent.log_volume_gradient(g) if self.jacobian else force


def fixed_mask(g: Tensor, sigma: float) -> Tensor:
    """One draw of N(0, σ²I), the same for every point (n, d) and every call."""
    unit = torch.randn(1, g.shape[1], generator=torch.Generator().manual_seed(0))
    return (sigma * unit).to(g.dtype).expand(len(g), -1)


_CROWD = 1024  # fewest particles that the belief is annealed by
_ERROR_POINTS = 128


@dataclass(frozen=True)
class ScoreDensity:
    """Samples by score-scaled Langevin dynamics; density by the probability flow.

    ``belief`` is the utility's density, in latent coordinates.
    """

    parts: ScoreParts
    belief: UtilityDensity
    langevin: LangevinSettings
    likelihood: LikelihoodSettings
    log_normalizer: float = 0.0

    @property
    def name(self) -> str:
        """The method's name."""
        return "protocol"

    def sample_latent(self, n: int, generator: torch.Generator) -> Draws:
        """Draw n latent points by Langevin dynamics, from noise or from draws of the belief."""
        parts, count = self.parts, max(n, _CROWD)
        if self.langevin.at_belief:  # whose modes have their weights
            draws = self.belief.anneal(count, generator).draws
            start = replace(draws, points=parts.latent.from_outer(draws.points))
        else:
            shape = count, parts.latent.sampling.dimension
            white = torch.randn(shape, generator=generator, dtype=torch.float64)
            start = Draws.independent(self.langevin.sigma_start * white)

        def drift(g: Tensor, sigma: float) -> Tensor:
            return parts.force(g, sigma * torch.randn(g.shape, generator=generator), sigma)

        def field(g: Tensor) -> tuple[Tensor, Tensor | None]:
            return parts.field_and_slope(g) if self.langevin.drift else (parts.field(g), None)

        points = sample_langevin(start.points, drift, field, self.langevin, generator)
        sample = Draws(parts.latent.to_outer(points), start.genealogies)
        return sample.take(torch.randperm(count, generator=generator)[:n])

    def log_density(self, g: Tensor) -> Tensor:
        """Normalized log-density (n,) per scale unit, nats."""
        return self.log_unnormalized_density(g) - self.log_normalizer

    def log_unnormalized_density(self, g: Tensor) -> Tensor:
        """log-density (n,) per scale unit up to a constant, at latent points (n, d)."""
        latent, parts = self.parts.latent, self.parts
        inner = latent.from_outer(g)
        log_win = flow_log_prob(inner, parts.flow_score, parts.prior, self.likelihood)
        log_win = log_win - latent.log_sampling(inner) - math.log(2.0)
        u = parts.tempering.utility_from_log_win(log_win)
        if not parts.jacobian:
            u = u + latent.log_sampling(inner) - latent.log_volume(inner)
        return u

    def evaluation_error(self, g: Tensor) -> float:
        """Return the error of the solver, by one with a tighter tolerance."""
        # A constant error is left out, because it cancels against log Z.
        points = g[:_ERROR_POINTS]
        tighter = replace(self, likelihood=finer(self.likelihood))
        gap = self.log_unnormalized_density(points) - tighter.log_unnormalized_density(points)
        return float(gap.std(correction=0).nan_to_num(torch.inf))

    def tensors(self) -> dict[str, Tensor]:
        """Utility, network, tempering table and flow prior."""
        parts, tensors = self.parts, self.belief.tensors()
        modules = {"network": parts.network, "tempering": parts.tempering, "prior": parts.prior}
        for name, value in modules.items():
            tensors |= prefix_tensors(name, value)
        return tensors

    def config(self) -> dict[str, Any]:
        """Return every number that is not an array."""
        parts = self.parts
        return {
            **self.belief.config(),
            "network": parts.network.size,
            "bounds": {"floor": parts.floor, "cap": parts.cap, "jacobian": parts.jacobian},
            "cube": parts.latent.side,
            "langevin": asdict(self.langevin),
            "likelihood": asdict(self.likelihood),
            "log_normalizer": self.log_normalizer,
        }

    @classmethod
    def restore(
        cls, latent: Latent, tensors: dict[str, Tensor], config: dict[str, Any]
    ) -> ScoreDensity:
        """Rebuild from `tensors` and `config`."""
        dimension = latent.sampling.dimension
        network = ScoreNetwork(dimension, **config["network"], generator=torch.Generator())
        network.load_state_dict(select_tensors("network", tensors))
        belief = UtilityDensity.restore(latent, tensors, config)
        parts = ScoreParts(
            CubeLatent(latent, config["cube"]),
            belief.utility,
            network.requires_grad_(False),
            Tempering(**select_tensors("tempering", tensors)),
            FlowPrior(**select_tensors("prior", tensors)),
            **config["bounds"],
        )
        langevin = LangevinSettings(**config["langevin"])
        likelihood = LikelihoodSettings(**config["likelihood"])
        return cls(parts, belief, langevin, likelihood, config["log_normalizer"])


def finer(settings: LikelihoodSettings) -> LikelihoodSettings:
    """Return settings whose error is small beside that of ``settings``, and no tighter.

    Single-precision networks are noisy at the scale of 1e-6, which stops an adaptive solver.

    Examples:
        >>> finer(LikelihoodSettings(3.0, adaptive=True, tolerance=1e-2)).tolerance
        0.001
    """
    tolerance = max(settings.tolerance / 10.0, 1e-6) if settings.adaptive else 1e-5
    return replace(settings, adaptive=True, tolerance=tolerance)


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


def clip_weights(weights: Tensor, clip: tuple[float, float] | None) -> Tensor:
    """Return weights (m,) clipped to two of their own quantiles; unchanged if ``clip`` is None.

    Examples:
        >>> import torch
        >>> clip_weights(torch.arange(5.0), (0.25, 0.75)).tolist()
        [1.0, 1.0, 2.0, 3.0, 3.0]
    """
    if clip is None:
        return weights
    low, high = (float(torch.quantile(weights, level)) for level in clip)
    return weights.clamp(low, high)


def winner_weights(
    log_winner: Tensor, log_sampling: Tensor, clip: tuple[float, float] | None
) -> Tensor:
    """Return λ/p_w (m,) at draws of the winners, up to a factor, clipped."""
    logs = log_sampling - log_winner
    return clip_weights(torch.exp(logs - logs.max()), clip)


def fit_protocol(problem: Problem) -> MethodFit:
    """Fit the score of winners, de-tempered by the field at this package's utility."""
    settings = methods.external_settings(problem, paper_protocol(problem.dimension), "protocol")
    utility_fit = fit_choice_utility(problem)
    utility, report = utility_fit.utility, utility_fit.diagnostics
    # Draws of λ: compared points and Sobol points.
    compared = torch.cat([problem.winners, problem.losers])
    if len(compared) > _MAX_COMPARED:
        rows = torch.randperm(len(compared), generator=problem.generator)[:_MAX_COMPARED]
        compared = compared[rows]
    sampling = problem.latent.sampling
    sobol = qmc.Sobol(sampling.dimension, rng=problem.rng).random_base2(_LOG2_SOBOL)
    quasi = problem.latent.to_latent(sampling.from_cube(sobol))
    points = torch.cat([compared, torch.from_numpy(quasi)])
    u = methods.evaluate_utility(problem.latent, utility, points)
    latent = CubeLatent(problem.latent, settings.cube)
    winners, losers = latent.from_outer(problem.winners), latent.from_outer(problem.losers)
    sides, training, device = (winners, losers), settings.training, problem.settings.device
    seed = int(problem.rng.integers(2**62))
    network = train_score(sides, problem.weights, training, seed, problem.progress, device)
    prior = FlowPrior.at_zero(problem.dimension)
    if settings.likelihood.matched:
        prior = FlowPrior.of(winners, problem.weights)
    tempering = Tempering.tabulate(u.numpy(), problem.noise)
    parts = ScoreParts(
        latent, utility, network, tempering, prior, settings.floor, settings.jacobian
    )
    if settings.winner_draws:
        tempering = _estimate_field(problem, settings, parts)
    cap = float(torch.quantile(tempering.tau(u), _CAP_QUANTILE))
    parts = replace(parts, tempering=tempering, cap=cap)
    annealing = problem.settings.annealing
    start = PotentialDensity(problem.latent, utility, annealing).normalize(problem.generator)[0]
    belief = UtilityDensity(problem.latent, utility, annealing, start=start.start)
    model = ScoreDensity(parts, belief, settings.langevin, settings.likelihood)
    draws = model.sample_latent(_REFERENCE, problem.generator)
    normalizer = importance_log_normalizer(
        problem.latent, model.log_unnormalized_density, draws, problem.generator
    )
    notes = {
        "held_out_log_likelihood": report["held_out"][report["form"]],
        "utility": report,
        "field_cap": cap,
    }
    return MethodFit(replace(model, log_normalizer=normalizer.value), normalizer, notes)


def _estimate_field(problem: Problem, settings: ProtocolSettings, parts: ScoreParts) -> Tempering:
    """Return the tempering table, integrated over draws of the winners."""
    likelihood, n = settings.likelihood, settings.winner_draws * problem.dimension
    levels = edm_steps(likelihood.sigma_min, likelihood.sigma_max)
    nodes = sample_heun(n, parts.flow_score, parts.prior, levels, problem.generator)
    log_winner = flow_log_prob(nodes, parts.flow_score, parts.prior, likelihood)
    weights = winner_weights(log_winner, parts.latent.log_sampling(nodes), settings.clip)
    utilities = methods.evaluate_utility(parts.latent, parts.utility, nodes)
    return Tempering.tabulate(utilities.numpy(), problem.noise, weights.numpy())
