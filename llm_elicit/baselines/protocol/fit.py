"""Fit the published protocol: network, tempering field, sampling.

*Integrals of the field.* The field is a ratio of expectations under λ. The paper takes draws x_i of
the estimated winners' density, with weights λ/p_w from its probability flow, clipped to their
1st–90th percentiles. The compared points and quasi-random ones are draws of λ, so that its
expectations are plain averages over them.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from scipy.stats import qmc
from torch import Tensor

from llm_elicit.baselines.protocol.density import (
    CubeLatent,
    ScoreDensity,
    ScoreParts,
    importance_log_normalizer,
)
from llm_elicit.baselines.protocol.network import train_score
from llm_elicit.baselines.protocol.samplers import FlowPrior, edm_steps, flow_log_prob, sample_heun
from llm_elicit.baselines.protocol.settings import ProtocolSettings, paper_protocol
from llm_elicit.density import methods
from llm_elicit.density.fit import fit_choice_utility
from llm_elicit.density.methods import MethodFit, PotentialDensity, Problem, UtilityDensity
from llm_elicit.density.score import Tempering

_MAX_COMPARED, _LOG2_SOBOL = 16_384, 12
_REFERENCE = 2048
_CAP_QUANTILE = 0.99  # of the field under λ, by which it is bounded


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
    network = train_score(
        (winners, losers),
        problem.weights,
        settings.training,
        int(problem.rng.integers(2**62)),
        problem.progress,
        problem.settings.device,
    )
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
    likelihood = settings.likelihood
    nodes = sample_heun(
        settings.winner_draws * problem.dimension,
        parts.flow_score,
        parts.prior,
        edm_steps(likelihood.sigma_min, likelihood.sigma_max),
        problem.generator,
    )
    log_winner = flow_log_prob(nodes, parts.flow_score, parts.prior, likelihood)
    weights = winner_weights(log_winner, parts.latent.log_sampling(nodes), settings.clip)
    utilities = methods.evaluate_utility(parts.latent, parts.utility, nodes)
    return Tempering.tabulate(utilities.numpy(), problem.noise, weights.numpy())
