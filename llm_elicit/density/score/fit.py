"""Fit the score methods: train the network, tabulate the tempering field, set up sampling."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from llm_elicit.density.normalizer import importance_log_normalizer
from llm_elicit.density.problem import Fitted, Problem
from llm_elicit.density.ratio import Utility
from llm_elicit.density.score.density import ScoreDensity, ScoreParts
from llm_elicit.density.score.likelihood import FlowPrior
from llm_elicit.density.score.training import PairData, train_score
from llm_elicit.density.tempering import Tempering, optimal_constant
from llm_elicit.density.utility_density import estimate_log_normalizer, utility_at

_REFERENCE = 2048


def fit_score(problem: Problem, utility: Utility, constant: bool) -> Fitted:
    """The score of winners (and losers) de-tempered by the field, or by one constant."""
    settings = problem.settings.score
    utilities = utility_at(problem.latent, utility, problem.points_of_sampling())
    tempering = Tempering.tabulate(utilities.numpy(), problem.noise)
    both = settings.side == "both"
    field = tempering.omega(utilities) if both else tempering.tau(utilities)
    cap = float(torch.quantile(field, settings.cap_quantile))
    star = _optimal_constants(problem, utility, tempering)
    data = PairData(problem.winners, problem.losers, problem.weights, problem.judgments.pairs)
    seed = int(problem.rng.integers(2**62))
    trained = train_score(data, settings.training, seed, problem.progress)
    parts = ScoreParts(
        problem.latent,
        utility,
        trained.network,
        tempering,
        (_flow_prior(data.winners, problem.weights), _flow_prior(data.losers, problem.weights)),
        settings.side,
        cap,
        star[settings.side] if constant else None,
    )
    sigma = _final_sigma(problem)
    langevin = replace(settings.langevin, sigma_start=2.0 * sigma, sigma_end=sigma)
    likelihood = replace(settings.likelihood, sigma_min=sigma)
    model = ScoreDensity(parts, langevin, likelihood, problem.settings.annealing)
    generator = problem.generator
    draws = model.sample_latent(_REFERENCE, generator)
    found = importance_log_normalizer(problem.latent, model.unnormalized, draws, generator)
    notes = {
        "side": settings.side,
        "tau_star": star["winners"],
        "omega_star": star["both"],
        "field_cap": cap,
        "final_sigma": sigma,
        "score_held_out_loss": trained.held_out_loss,
        "score_steps": trained.steps,
    }
    return Fitted(replace(model, log_normalizer=found.value), found, notes)


def _final_sigma(problem: Problem) -> float:
    per_feature = problem.judgments.size / problem.dimension
    smoothing = problem.settings.score.smoothing
    sigma: float = smoothing * (1000.0 / per_feature) ** 0.5
    return min(max(sigma, smoothing), 0.5)


def _optimal_constants(
    problem: Problem, utility: Utility, tempering: Tempering
) -> dict[str, float]:
    """τ* and ω* over draws of the belief, with ∇log q = ∇u/field on the feature scale."""
    latent, annealing = problem.latent, problem.settings.annealing
    draws = estimate_log_normalizer(latent, utility, problem.generator, annealing, 1024).draws
    value, slope = utility.value_and_slope(latent.features(draws))
    u = value + latent.taper(draws)
    fields = {"winners": tempering.tau(u), "both": tempering.omega(u)}
    return {k: optimal_constant(v, slope / v[:, None]) for k, v in fields.items()}


def _flow_prior(points: Tensor, weights: Tensor) -> FlowPrior:
    share = weights / weights.sum()
    mean = share @ points
    centred = points - mean
    return FlowPrior(mean, (centred * share[:, None]).T @ centred)
