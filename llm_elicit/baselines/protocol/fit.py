"""Fit the score methods of the published protocol: network, tempering field, sampling.

*Integrals of the field.* The field is a ratio of expectations under λ. The compared points and
quasi-random ones are draws of λ, so that its expectations are plain averages. The paper takes draws
x_i of the estimated winners' density instead, with weights λ/p_w from its probability flow, clipped
to their 1st–90th percentiles; half of each with the weights λ/(½λ + ½p_w) <= 2 of the balance
heuristic is the defensive mixture (Hesterberg, 1995).

*Held-out choices* select the weights of the network and the last noise level. A learned score has
no likelihood of its own, but the utility difference that it implies for a pair is its integral
along the straight line from the loser to the winner, and that difference has the likelihood of a
choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter

import torch
from scipy.stats import qmc
from torch import Tensor

from llm_elicit.baselines.protocol.density import (
    CubeLatent,
    Mode,
    ScoreDensity,
    ScoreParts,
    flow_score,
    importance_log_normalizer,
    path_integral,
)
from llm_elicit.baselines.protocol.network import (
    Choice,
    PairData,
    ScoreNetwork,
    train_score,
)
from llm_elicit.baselines.protocol.samplers import FlowPrior, Resampler, flow_log_prob, sample_heun
from llm_elicit.baselines.protocol.settings import ProtocolSettings
from llm_elicit.density import methods
from llm_elicit.density.fit import fit_choice_utility
from llm_elicit.density.latent import Latent
from llm_elicit.density.likelihood import Noise, choice_log_likelihood
from llm_elicit.density.methods import MethodFit, Problem, UtilityDensity
from llm_elicit.density.score import Tempering, optimal_constant
from llm_elicit.density.utility_function import Utility

_MAX_COMPARED, _LOG2_SOBOL = 16_384, 12
_MAX_HELD_OUT = 1000
_REFERENCE = 2048


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


def defensive_mixture(
    of_sampling: Tensor,
    of_winners: Tensor,
    log_sampling: Callable[[Tensor], Tensor],
    log_winner: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Return points (2m, d), half of λ and half of the winners, and weights λ/(½λ + ½p_w) (2m,).

    Args:
        of_sampling, of_winners: draws (m, d) of each; as many of each as the smaller set has.
        log_sampling, log_winner: log-densities (m,) at points (m, d).
    """
    half = min(len(of_sampling), len(of_winners))
    sides = of_sampling[:half], of_winners[:half]
    points, winner = torch.cat(sides), torch.cat([log_winner(side) for side in sides])
    return points, 2.0 / (1.0 + torch.exp(winner - log_sampling(points)))


class ChoiceJudge:
    """Scores a network by the likelihood of held-out choices."""

    def __init__(
        self, parts: ScoreParts, held_out: PairData, noise: Noise, sigmas: tuple[float, ...]
    ) -> None:
        self.parts, self.held_out, self.noise, self.sigmas = parts, held_out, noise, sigmas

    def __call__(self, network: ScoreNetwork) -> Choice:
        """Return the best noise level and its mean log-likelihood, nats."""
        held_out, best = self.held_out, Choice(-math.inf, self.sigmas[0])
        mode = replace(self.parts.mode, constant=None)
        parts = replace(self.parts, network=network, mode=mode)
        for sigma in self.sigmas:
            difference = path_integral(parts.still(sigma), held_out.losers, held_out.winners)
            mean = choice_log_likelihood(difference, held_out.weights, self.noise)
            best = max(best, Choice(float(mean), sigma), key=itemgetter(0))
        return best


def fit_protocol(problem: Problem) -> MethodFit:
    """Fit the score of winners (and losers), de-tempered by the field at this package's utility."""
    settings = methods.external_settings(problem, ProtocolSettings, "protocol")
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
    tempering = Tempering.tabulate(u.numpy(), problem.noise)
    parts, data = _initial_parts(problem, settings, utility, tempering)
    training, seed = settings.training, int(problem.rng.integers(2**62))
    held_out = data.take(data.held_out(training.hold_out, seed).nonzero()[:, 0])
    judge = None
    if settings.sigmas is not None and len(held_out.weights):
        few = held_out.take(torch.arange(len(held_out.weights))[:_MAX_HELD_OUT])
        judge = ChoiceJudge(parts, few, problem.noise, settings.sigmas)
    device = problem.settings.device
    trained = train_score(data, training, seed, problem.progress, judge=judge, device=device)
    parts = replace(parts, network=trained.network)
    if trained.choice.sigma is not None:
        parts = replace(parts, mode=replace(parts.mode, sigma=trained.choice.sigma))
    if settings.expectation != "sampling":
        tempering = _estimate_field(problem, settings, parts, points)
    cap = float(torch.quantile(tempering.field_of_side(u, settings.side), settings.cap_quantile))
    belief = UtilityDensity(problem.latent, utility, problem.settings.annealing)
    density, normalizer = methods.PotentialDensity(**vars(belief)).normalize(problem.generator)
    # τ* and ω* over draws of the belief, with ∇log q = ∇u/field on the feature scale.
    draws = normalizer.draws.points
    value, slope = utility.value_and_gradient(problem.latent.features(draws))
    of_belief = value + problem.latent.taper(draws)
    fields = {"winners": tempering.tau(of_belief), "both": tempering.omega(of_belief)}
    star = {side: optimal_constant(v, slope / v[:, None]) for side, v in fields.items()}
    constant = star[settings.side] if settings.constant else None
    mode = replace(parts.mode, cap=cap, constant=constant)
    parts = replace(parts, tempering=tempering, mode=mode)
    belief = replace(belief, start=density.start)
    model, normalizer = _normalize(problem, settings, parts, belief)
    notes = {
        "held_out_log_likelihood": report["held_out"][report["form"]],
        "utility": report,
        "side": settings.side,
        "tau_star": star["winners"],
        "omega_star": star["both"],
        "field_cap": cap,
        "final_sigma": mode.sigma,
        "score_held_out_loss": trained.held_out_loss,
        "score_steps": trained.steps,
    }
    if not settings.constant and trained.choice.sigma is not None:
        # The score is evaluated on pairs that were held out of its training, as the utility is.
        notes["held_out_log_likelihood"] = trained.choice.score
    return MethodFit(model, normalizer, notes)


def _initial_parts(
    problem: Problem, settings: ProtocolSettings, utility: Utility, tempering: Tempering
) -> tuple[ScoreParts, PairData]:
    """Return the parts, in the problem's latent coordinates or the paper's cube, and the pairs."""
    latent: Latent | CubeLatent = problem.latent
    winners, losers = problem.winners, problem.losers
    if settings.cube is not None:
        latent = CubeLatent(problem.latent, settings.cube)
        winners, losers = latent.from_outer(winners), latent.from_outer(losers)
    # A learned score has variance of the order d/(n σ²).
    per_feature, smoothing = problem.judgments.size / problem.dimension, settings.smoothing
    sigma = min(max(smoothing * (1000.0 / per_feature) ** 0.5, smoothing), 0.5)
    mode = Mode(settings.side, torch.inf, settings.floor, None, sigma, settings.jacobian)
    network = ScoreNetwork(problem.dimension, 1, 1.0, torch.Generator())
    matched = settings.likelihood.prior != "noise"
    of_winners, of_losers = (
        FlowPrior.of(side, problem.weights) if matched else FlowPrior.at_zero(problem.dimension)
        for side in (winners, losers)
    )
    parts = ScoreParts(latent, utility, network, tempering, (of_winners, of_losers), mode)
    return parts, PairData(winners, losers, problem.weights, problem.judgments.pairs)


def _estimate_field(
    problem: Problem, settings: ProtocolSettings, parts: ScoreParts, points: Tensor
) -> Tempering:
    """Return the tempering table, integrated over draws of the winners, or of winners and λ."""
    latent, likelihood, score = parts.latent, settings.likelihood, flow_score(parts, 0)
    ends = {name: getattr(likelihood, name) for name in ("sigma_min", "sigma_max")}
    heun, count = replace(settings.heun, **ends), settings.winner_draws * problem.dimension
    nodes = sample_heun(count, score, parts.priors[0], heun, problem.generator)

    def log_winner(g: Tensor) -> Tensor:
        return flow_log_prob(g, score, parts.priors[0], likelihood)

    if settings.expectation == "winners":
        weights = winner_weights(log_winner(nodes), latent.log_sampling(nodes), settings.clip)
    else:
        inner = parts.inward(points)
        of_sampling = inner[torch.randperm(len(inner), generator=problem.generator)]
        nodes, weights = defensive_mixture(of_sampling, nodes, latent.log_sampling, log_winner)
    utilities = methods.evaluate_utility(latent, parts.utility, nodes)
    return Tempering.tabulate(utilities.numpy(), problem.noise, weights.numpy())


def _normalize(
    problem: Problem, settings: ProtocolSettings, parts: ScoreParts, belief: UtilityDensity
) -> tuple[ScoreDensity, methods.LogNormalizer]:
    """Return the model, its second network if there is one, and log Z."""
    generator, sigma = problem.generator, parts.mode.sigma
    model = ScoreDensity(
        parts,
        belief,
        settings.langevin.truncate_at(sigma),
        replace(settings.likelihood, sigma_min=sigma),
        settings.density == "flow",
    )
    if settings.resample is not None:
        learned_from = model.sample_latent(settings.heun.draws, generator).points
        seed = int(problem.rng.integers(2**62))
        ends = replace(settings.likelihood, sigma_min=settings.heun.sigma_min)
        second = Resampler.train(learned_from, settings.heun, ends, seed, problem.settings.device)
        model = replace(model, resampler=second)
    draws = model.sample_latent(_REFERENCE, generator)
    normalizer = importance_log_normalizer(
        problem.latent, model.log_unnormalized_density, draws, generator
    )
    return replace(model, log_normalizer=normalizer.value), normalizer
