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

from collections.abc import Callable
from dataclasses import dataclass, replace

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
from llm_elicit.baselines.protocol.network import PairData, ScoreNetwork, TrainedScore, train_score
from llm_elicit.baselines.protocol.samplers import FlowPrior, Resampler, flow_log_prob, sample_heun
from llm_elicit.baselines.protocol.settings import ProtocolSettings
from llm_elicit.density.fit import fit_choice_utility
from llm_elicit.density.latent import Latent
from llm_elicit.density.likelihood import Noise
from llm_elicit.density.methods import (
    Fitted,
    LogNormalizer,
    Problem,
    estimate_log_normalizer,
    external_settings,
    utility_at,
)
from llm_elicit.density.score.density import Tempering, optimal_constant
from llm_elicit.density.utility_function import Utility

_MOST_COMPARED, _LOG2_SOBOL = 16_384, 12


@dataclass(frozen=True)
class WinnerDraws:
    """Draws (m, d) of the winners' density and their log-densities (m,), latent."""

    points: Tensor
    log_prob: Tensor


def clip_weights(weights: Tensor, clip: tuple[float, float] | None) -> Tensor:
    """Clamp weights (m,) between two of their own quantiles; None leaves them.

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
    draws: WinnerDraws, log_sampling: Tensor, clip: tuple[float, float] | None
) -> Tensor:
    """Return λ/p_w (m,) at draws of the winners, up to a factor, clipped."""
    logs = log_sampling - draws.log_prob
    return clip_weights(torch.exp(logs - logs.max()), clip)


def defensive_mixture(
    of_sampling: Tensor, draws: WinnerDraws, log_densities: tuple[Callable[[Tensor], Tensor], ...]
) -> tuple[Tensor, Tensor]:
    """Return points (2m, d), half of λ and half of the winners, and weights λ/(½λ + ½p_w) (2m,).

    ``log_densities`` are those of λ and of the winners, (n, d) -> (n,).
    """
    log_sampling, log_winner = log_densities
    half = of_sampling[: len(draws.points)]
    points = torch.cat([half, draws.points[: len(half)]])
    winner = torch.cat([log_winner(half), draws.log_prob[: len(half)]])
    ratio = winner - log_sampling(points)
    return points, 2.0 / (1.0 + torch.exp(ratio))


_LIMIT = 1000


@dataclass(frozen=True)
class Choice:
    """The last noise level (latent units) and the mean held-out log-likelihood in nats."""

    sigma: float
    log_likelihood: float


@dataclass(frozen=True)
class HeldOut:
    """Held-out pairs: latent winners and losers (m, d), weights (m,), and the judge's noise."""

    winners: Tensor
    losers: Tensor
    weights: Tensor
    noise: Noise

    def limited(self) -> HeldOut:
        """Return at most 1000 of them, to limit the time."""
        cut = slice(0, _LIMIT)
        return HeldOut(self.winners[cut], self.losers[cut], self.weights[cut], self.noise)


class ChoiceJudge:
    """Scores networks by the likelihood of held-out choices under their field."""

    def __init__(self, parts: ScoreParts, held: HeldOut, sigmas: tuple[float, ...]) -> None:
        self._parts, self._held, self._sigmas = parts, held.limited(), sigmas

    def __call__(self, network: ScoreNetwork) -> tuple[float, Choice]:
        """Return the mean log-likelihood, and the `Choice` that reaches it."""
        held, mode = self._held, self._parts.mode
        parts = replace(self._parts, network=network, mode=replace(mode, constant=None))
        best = Choice(self._sigmas[0], -torch.inf)
        for sigma in self._sigmas:
            difference = path_integral(parts.still(sigma), held.losers, held.winners)
            mean = self._mean(held.noise.log_cdf(difference))
            if mean > best.log_likelihood:
                best = Choice(sigma, mean)
        return best.log_likelihood, best

    def _mean(self, values: Tensor) -> float:
        return float((values * self._held.weights).sum() / self._held.weights.sum())


_REFERENCE = 2048


def fit_protocol(problem: Problem) -> Fitted:
    """Fit the score of winners (and losers), de-tempered by the field at this package's utility."""
    utility_fit = fit_choice_utility(problem)
    fitted = fit_score(problem, utility_fit.utility, constant=_settings(problem).constant)
    report = utility_fit.diagnostics
    held_out = {"held_out_log_likelihood": report["held_out"][report["form"]]}
    diagnostics = {**held_out, "utility": report, **fitted.diagnostics}
    return Fitted(fitted.model, fitted.normalizer, diagnostics)


def _settings(problem: Problem) -> ProtocolSettings:
    return external_settings(problem, ProtocolSettings, "protocol")


def fit_score(problem: Problem, utility: Utility, constant: bool) -> Fitted:
    """Fit the score of winners (and losers), de-tempered by the field or by one constant."""
    settings = _settings(problem)
    points = _points_of_sampling(problem)
    latent, data = _coordinates(problem)
    tempering = Tempering.tabulate(
        utility_at(problem.latent, utility, points).numpy(), problem.noise
    )
    parts = _untrained_parts(problem, latent, utility, tempering, data)
    trained = _train(problem, parts, data)
    parts = replace(parts, network=trained.network)
    if trained.choice is not None:
        parts = replace(parts, mode=replace(parts.mode, sigma=trained.choice.sigma))
    tempering = _estimate_field(problem, parts, points)
    at_sampling = tempering.field(utility_at(problem.latent, utility, points), settings.side)
    cap = float(torch.quantile(at_sampling, settings.cap_quantile))
    belief = estimate_log_normalizer(
        problem.latent, utility, problem.generator, problem.settings.annealing
    )
    # τ* and ω* over draws of the belief, with ∇log q = ∇u/field on the feature scale.
    draws = belief.draws.points
    value, slope = utility.value_and_slope(problem.latent.features(draws))
    u = value + problem.latent.taper(draws)
    fields = {"winners": tempering.tau(u), "both": tempering.omega(u)}
    star = {k: optimal_constant(v, slope / v[:, None]) for k, v in fields.items()}
    mode = replace(parts.mode, cap=cap, constant=star[settings.side] if constant else None)
    model, normalizer = _normalized(problem, replace(parts, tempering=tempering, mode=mode), belief)
    notes = {
        "side": settings.side,
        "tau_star": star["winners"],
        "omega_star": star["both"],
        "field_cap": cap,
        "final_sigma": mode.sigma,
        "score_held_out_loss": trained.held_out_loss,
        "score_steps": trained.steps,
    }
    if not constant and trained.choice is not None:
        # The score is evaluated on pairs that were held out of its training, as the utility is.
        notes["held_out_log_likelihood"] = trained.choice.log_likelihood
    return Fitted(replace(model, log_normalizer=normalizer.value), normalizer, notes)


def _points_of_sampling(problem: Problem) -> Tensor:
    """Return latent draws (m, d) of λ: compared points and Sobol points."""
    compared = torch.cat([problem.winners, problem.losers])
    if len(compared) > _MOST_COMPARED:
        rows = torch.randperm(len(compared), generator=problem.generator)[:_MOST_COMPARED]
        compared = compared[rows]
    sampling = problem.latent.sampling
    sobol = qmc.Sobol(sampling.dimension, rng=problem.rng).random_base2(_LOG2_SOBOL)
    quasi = problem.latent.to_latent(sampling.from_cube(sobol))
    return torch.cat([compared, torch.from_numpy(quasi)])


def _coordinates(problem: Problem) -> tuple[Latent | CubeLatent, PairData]:
    """Return the problem's latent coordinates, or the paper's cube, and the pairs in them."""
    side, pairs = _settings(problem).cube, problem.judgments.pairs
    if side is None:
        data = PairData(problem.winners, problem.losers, problem.weights, pairs)
        return problem.latent, data
    cube = CubeLatent(problem.latent, side)
    winners, losers = cube.from_outer(problem.winners), cube.from_outer(problem.losers)
    return cube, PairData(winners, losers, problem.weights, pairs)


def _untrained_parts(
    problem: Problem,
    latent: Latent | CubeLatent,
    utility: Utility,
    tempering: Tempering,
    data: PairData,
) -> ScoreParts:
    settings = _settings(problem)
    # A learned score has variance of the order d/(n σ²).
    per_feature, smoothing = problem.judgments.size / problem.dimension, settings.smoothing
    sigma = min(max(smoothing * (1000.0 / per_feature) ** 0.5, smoothing), 0.5)
    mode = Mode(settings.side, torch.inf, settings.floor, None, sigma, settings.jacobian)
    network = ScoreNetwork(problem.dimension, 1, 1.0, torch.Generator())
    priors = _flow_prior(problem, data.winners), _flow_prior(problem, data.losers)
    return ScoreParts(latent, utility, network, tempering, priors, mode)


def _flow_prior(problem: Problem, points: Tensor) -> FlowPrior:
    if _settings(problem).likelihood.prior == "noise":
        return FlowPrior.at_zero(problem.dimension)
    return FlowPrior.of(points, problem.weights)


def _train(problem: Problem, parts: ScoreParts, data: PairData) -> TrainedScore:
    settings = _settings(problem)
    seed = int(problem.rng.integers(2**62))
    held = data.held_out(settings.training.hold_out, seed)
    held_out = HeldOut(data.winners[held], data.losers[held], data.weights[held], problem.noise)
    judge = None
    if settings.sigmas is not None and bool(held.any()):
        judge = ChoiceJudge(parts, held_out, settings.sigmas)
    training, progress = settings.training, problem.progress
    return train_score(data, training, seed, progress, judge=judge, device=problem.settings.device)


def _estimate_field(problem: Problem, parts: ScoreParts, points: Tensor) -> Tempering:
    """Return the table with its integrals at the points of `ScoreSettings.expectation`."""
    settings, latent = _settings(problem), parts.latent
    if settings.expectation == "sampling":
        return parts.tempering
    ends = {name: getattr(settings.likelihood, name) for name in ("sigma_min", "sigma_max")}
    heun, count = replace(settings.heun, **ends), settings.winner_draws * problem.dimension
    score = flow_score(parts, 0)
    of_winners = sample_heun(count, score, parts.priors[0], heun, problem.generator)
    draws = WinnerDraws(of_winners, _winner_flow(problem, parts)(of_winners))
    if settings.expectation == "winners":
        nodes = draws.points
        weights = winner_weights(draws, latent.log_sampling(nodes), settings.clip)
    else:
        inner = latent.from_outer(points) if isinstance(latent, CubeLatent) else points
        order = torch.randperm(len(inner), generator=problem.generator)
        densities = (latent.log_sampling, _winner_flow(problem, parts))
        nodes, weights = defensive_mixture(inner[order], draws, densities)
    utilities = utility_at(latent, parts.utility, nodes)
    return Tempering.tabulate(utilities.numpy(), problem.noise, weights.numpy())


def _winner_flow(problem: Problem, parts: ScoreParts) -> Callable[[Tensor], Tensor]:
    likelihood, score = _settings(problem).likelihood, flow_score(parts, 0)
    return lambda g: flow_log_prob(g, score, parts.priors[0], likelihood)


def _normalized(
    problem: Problem, parts: ScoreParts, belief: LogNormalizer
) -> tuple[ScoreDensity, LogNormalizer]:
    """Return the model, its second network if there is one, and log Z."""
    settings, generator = _settings(problem), problem.generator
    annealing, sigma = problem.settings.annealing, parts.mode.sigma
    likelihood = replace(settings.likelihood, sigma_min=sigma)
    langevin = settings.langevin.ending_at(sigma)
    by_flow = settings.density == "flow"
    model = ScoreDensity(parts, langevin, likelihood, annealing, by_flow, start=belief.start)
    if settings.resample is not None:
        learned_from = model.sample_latent(settings.heun.draws, generator).points
        seed = int(problem.rng.integers(2**62))
        ends = replace(settings.likelihood, sigma_min=settings.heun.sigma_min)
        second = Resampler.train(learned_from, settings.heun, ends, seed, problem.settings.device)
        model = replace(model, resampler=second)
    draws = model.sample_latent(_REFERENCE, generator)
    return model, importance_log_normalizer(problem.latent, model.unnormalized, draws, generator)
