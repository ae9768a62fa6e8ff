"""Fit the score methods: train the network, tabulate the tempering field, set up sampling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from llm_elicit.density.density_model import Fitted, LogNormalizer, importance_log_normalizer
from llm_elicit.density.problem import Problem
from llm_elicit.density.score.control import Control
from llm_elicit.density.score.cube import CubeLatent
from llm_elicit.density.score.density import ScoreDensity
from llm_elicit.density.score.expectation import WinnerDraws, defensive_mixture, winner_weights
from llm_elicit.density.score.heun import Resampler, sample_heun
from llm_elicit.density.score.likelihood import FlowPrior, flow_log_prob
from llm_elicit.density.score.network import ScoreNetwork
from llm_elicit.density.score.parts import Mode, ScoreParts, flow_score
from llm_elicit.density.score.selection import Choice, ChoiceJudge, HeldOut
from llm_elicit.density.score.training import PairData, TrainedScore, train_score
from llm_elicit.density.tempering import Tempering, optimal_constant
from llm_elicit.density.transforms import Latent
from llm_elicit.density.utility_density import estimate_log_normalizer, utility_at
from llm_elicit.density.utility_function import Utility

_REFERENCE = 2048


def fit_score(problem: Problem, utility: Utility, constant: bool) -> Fitted:
    """The score of winners (and losers) de-tempered by the field, or by one constant."""
    settings = problem.settings.score
    points = problem.points_of_sampling()
    latent, data = _coordinates(problem)
    tempering = Tempering.tabulate(
        utility_at(problem.latent, utility, points).numpy(), problem.noise
    )
    parts = _blank_parts(problem, latent, utility, tempering, data)
    trained = _train(problem, parts, data)
    parts = replace(parts, network=trained.network)
    parts = _chosen(parts, trained.choice)
    tempering = _estimate_field(problem, parts, points)
    at_sampling = tempering.field(utility_at(problem.latent, utility, points), settings.side)
    cap = float(torch.quantile(at_sampling, settings.cap_quantile))
    belief = estimate_log_normalizer(
        problem.latent, utility, problem.generator, problem.settings.annealing
    )
    star = _optimal_constants(problem, utility, tempering, belief.draws.points)
    mode = replace(parts.mode, cap=cap, constant=star[settings.side] if constant else None)
    model, found = _normalized(problem, replace(parts, tempering=tempering, mode=mode), belief)
    notes = {
        "side": settings.side,
        "tau_star": star["winners"],
        "omega_star": star["both"],
        "field_cap": cap,
        "final_sigma": mode.sigma,
        "network_share": mode.share,
        "network_gain": None if trained.choice is None else trained.choice.gain,
        "score_held_out_loss": trained.held_out_loss,
        "score_steps": trained.steps,
    }
    if not (parts.mode.controlled or constant) and trained.choice is not None:
        # A score learned from nothing is judged on pairs it never saw, as the utility is.
        notes["held_out_log_likelihood"] = trained.choice.log_likelihood
    return Fitted(replace(model, log_normalizer=found.value), found, notes)


def _coordinates(problem: Problem) -> tuple[Latent, PairData]:
    """The problem's latent coordinates, or the paper's cube, and the pairs in them."""
    side, pairs = problem.settings.score.cube, problem.judgments.pairs
    if side is None:
        data = PairData(problem.winners, problem.losers, problem.weights, pairs)
        return problem.latent, data
    cube = CubeLatent(problem.latent, side)
    winners, losers = cube.from_outer(problem.winners), cube.from_outer(problem.losers)
    return cube, PairData(winners, losers, problem.weights, pairs)


def _blank_parts(
    problem: Problem, latent: Latent, utility: Utility, tempering: Tempering, data: PairData
) -> ScoreParts:
    settings = problem.settings.score
    mode = Mode(
        side=settings.side,
        cap=torch.inf,
        floor=settings.floor,
        constant=None,
        controlled=settings.control is not None,
        share=0.0 if settings.control is not None else 1.0,
        sigma=_rule_of_thumb(problem),
        jacobian=settings.jacobian,
    )
    network = ScoreNetwork(problem.dimension, 1, 1.0, torch.Generator())
    priors = _flow_prior(problem, data.winners), _flow_prior(problem, data.losers)
    return ScoreParts(latent, utility, network, tempering, priors, mode)


def _flow_prior(problem: Problem, points: Tensor) -> FlowPrior:
    if problem.settings.score.likelihood.prior == "noise":
        return FlowPrior.at_zero(problem.dimension)
    return FlowPrior.of(points, problem.weights)


def _train(problem: Problem, parts: ScoreParts, data: PairData) -> TrainedScore:
    settings = problem.settings.score
    seed = int(problem.rng.integers(2**62))
    held = data.held_out(settings.training.hold_out, seed)
    rest = HeldOut(data.winners[held], data.losers[held], data.weights[held], problem.noise)
    judge = None
    if settings.sigmas is not None and bool(held.any()):
        judge = ChoiceJudge(parts, rest, settings.sigmas)
    control = None
    if parts.mode.controlled:
        control = Control(parts.latent, parts.utility, parts.tempering).pair
    training, progress = settings.training, problem.progress
    return train_score(
        data, training, seed, progress, control=control, judge=judge, device=problem.settings.device
    )


def _chosen(parts: ScoreParts, choice: Choice | None) -> ScoreParts:
    """Take over what held-out choices decided; without them, the rule of thumb for σ."""
    if choice is None:
        return parts
    return replace(parts, mode=replace(parts.mode, share=choice.share, sigma=choice.sigma))


def _rule_of_thumb(problem: Problem) -> float:
    """The learned score has a variance of the order d/(n σ²): end at more noise with fewer n."""
    per_feature = problem.judgments.size / problem.dimension
    smoothing = problem.settings.score.smoothing
    sigma: float = smoothing * (1000.0 / per_feature) ** 0.5
    return min(max(sigma, smoothing), 0.5)


def _estimate_field(problem: Problem, parts: ScoreParts, points: Tensor) -> Tempering:
    """The table again, its integrals taken where `ScoreSettings.expectation` says."""
    settings, latent = problem.settings.score, parts.latent
    if settings.expectation == "sampling":
        return parts.tempering
    draws = _winner_draws(problem, parts)
    if settings.expectation == "winners":
        where = draws.points
        weights = winner_weights(draws, latent.log_sampling(where), settings.clip)
    else:
        inner = latent.from_outer(points) if isinstance(latent, CubeLatent) else points
        order = torch.randperm(len(inner), generator=problem.generator)
        densities = (latent.log_sampling, _winner_flow(problem, parts))
        where, weights = defensive_mixture(inner[order], draws, densities)
    utilities = utility_at(latent, parts.utility, where)
    return Tempering.tabulate(utilities.numpy(), problem.noise, weights.numpy())


def _winner_draws(problem: Problem, parts: ScoreParts) -> WinnerDraws:
    settings, d = problem.settings.score, problem.dimension
    heun = replace(
        settings.heun,
        sigma_min=settings.likelihood.sigma_min,
        sigma_max=settings.likelihood.sigma_max,
    )
    score, count = flow_score(parts, 0), settings.winner_draws * d
    points = sample_heun(count, score, parts.priors[0], heun, problem.generator)
    return WinnerDraws(points, _winner_flow(problem, parts)(points))


def _winner_flow(problem: Problem, parts: ScoreParts) -> Callable[[Tensor], Tensor]:
    likelihood, score = problem.settings.score.likelihood, flow_score(parts, 0)
    return lambda g: flow_log_prob(g, score, parts.priors[0], likelihood, problem.generator)


def _optimal_constants(
    problem: Problem, utility: Utility, tempering: Tempering, draws: Tensor
) -> dict[str, float]:
    """τ* and ω* over draws of the belief, with ∇log q = ∇u/field on the feature scale."""
    latent = problem.latent
    value, slope = utility.value_and_slope(latent.features(draws))
    u = value + latent.taper(draws)
    fields = {"winners": tempering.tau(u), "both": tempering.omega(u)}
    return {k: optimal_constant(v, slope / v[:, None]) for k, v in fields.items()}


def _normalized(
    problem: Problem, parts: ScoreParts, belief: LogNormalizer
) -> tuple[ScoreDensity, LogNormalizer]:
    """The model, its second network if there is one, and log Z."""
    settings, generator = problem.settings.score, problem.generator
    annealing, sigma = problem.settings.annealing, parts.mode.sigma
    likelihood = replace(settings.likelihood, sigma_min=sigma)
    langevin = settings.langevin.ending_at(sigma)
    if parts.mode.controlled and langevin.start == "utility":
        langevin = replace(langevin, levels=1)  # it starts from the base: no way down is needed
    by_flow = {"rays": False, "flow": True, "auto": settings.control is None}[settings.density]
    model = ScoreDensity(parts, langevin, likelihood, annealing, by_flow, start=belief.start)
    if settings.resample is not None:
        learned_from = model.sample_latent(settings.heun.draws, generator).points
        seed = int(problem.rng.integers(2**62))
        ends = replace(settings.likelihood, sigma_min=settings.heun.sigma_min)
        second = Resampler.train(learned_from, settings.heun, ends, seed, problem.settings.device)
        model = replace(model, resampler=second)
    elif parts.exact and parts.mode.constant is None and not model.by_flow:
        return model, belief
    draws = model.sample_latent(_REFERENCE, generator)
    return model, importance_log_normalizer(problem.latent, model.unnormalized, draws, generator)
