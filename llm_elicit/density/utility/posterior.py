"""Draws of the posterior over utilities: what else the choices could mean.

Each form's posterior is known up to a constant, and near its summit it is nearly normal. A walk
whose steps leave that normal law as it is (the preconditioned Crank–Nicolson proposal; Cotter,
Roberts, Stuart and White, 2013) is accepted or refused by how far the posterior is from it:
many walks are taken side by side, and what is normal costs nothing, whatever the dimension.

Each number of components is given its share of the draws, the quadratic form counting as one
component. The networks have no posterior; where they belong to the utility, the draws stand
around what the mixtures say, which is somewhat flatter. The mixtures' prior is weaker here than
where a single best utility is wanted: a prior that keeps modes' masses near each other pays on
average, but a band must not leave out what the choices leave open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from llm_elicit.density.components import ComponentStack
from llm_elicit.density.utility.clusters import clustered_weights
from llm_elicit.density.utility.data import Array, CrossValidation
from llm_elicit.density.utility.mixture import MixtureFit, averaging_shares
from llm_elicit.density.utility.quadratic import QuadraticFit
from llm_elicit.density.utility.scoring import Mixture, MixturePosterior, climb, scales_of
from llm_elicit.density.utility_draws import UtilityDraws

LogPosterior = Callable[[Tensor], Tensor]
_ACCEPTED = 0.3
_CLIMB = 30
_CHUNK = 1024


@dataclass(frozen=True)
class PosteriorSettings:
    """``draws`` of the posterior, each the end of a walk of ``steps``; 0 draws for none.

    ``concentration`` is that of the mixtures' prior (one is the flat Dirichlet), ``weakened``
    what their ``strength`` is multiplied by, and ``tolerance`` as in `MixtureSettings`.
    """

    draws: int = 64
    steps: int = 60
    concentration: float = 1.0
    weakened: float = 0.3
    tolerance: float = 0.02


def draw_posterior(
    quadratic: QuadraticFit,
    fit: tuple[float, Array, float],
    mixtures: list[MixtureFit],
    settings: PosteriorSettings,
) -> UtilityDraws:
    """Draws over all forms; ``fit`` is the quadratic's ridge, coefficients (P,) and score.

    Judgments of one pair are counted as far as they tell apart; see `clustered_weights`.
    """
    ridge, summit, score = fit
    shares = averaging_shares([score, *(m.score for m in mixtures)], settings.tolerance)
    # The first n shares get their part of the draws, rounded once: the parts add up.
    edges = np.floor(np.cumsum(shares) * settings.draws + 0.5).astype(int)
    counts = np.diff(np.concatenate([[0], edges]))
    weights = clustered_weights(quadratic.validation, [m.held_out for m in mixtures])
    linear, curvature = draw_quadratics(
        quadratic, ridge, summit, weights, replace(settings, draws=int(counts[0]))
    )
    stacks = [
        draw_mixtures(quadratic.validation, m, weights, replace(settings, draws=int(count)))
        for m, count in zip(mixtures, counts[1:], strict=True)
        if count
    ]
    return UtilityDraws(linear, curvature, tuple(stacks))


def draw_mixtures(
    validation: CrossValidation, fit: MixtureFit, weights: Tensor, settings: PosteriorSettings
) -> ComponentStack:
    """Draws of the posterior of a mixture of one number of components."""
    weak = settings.weakened * fit.prior.strength
    prior = replace(fit.prior, concentration=settings.concentration, strength=weak)
    points = validation.sides(torch.arange(validation.size))
    posterior = MixturePosterior(points, weights.float(), validation.response, prior)
    member = fit.components.select([0])
    start = Mixture(member.whiten[0], member.offset[0], member.height[0])
    summit, _ = climb(posterior, start, _CLIMB)

    def log_posterior(steps: Tensor) -> Tensor:
        moved = summit.moved(steps)
        return _log_likelihood(posterior, moved) + prior.value(moved)

    scales = scales_of(posterior.derivatives(summit)[1])
    drawn = summit.moved(walk(log_posterior, scales, settings, validation.generator))
    return ComponentStack(drawn.whiten, drawn.offset, drawn.height)


def _log_likelihood(posterior: MixturePosterior, many: Mixture) -> Tensor:
    """Of the choices by each of S mixtures: (S,)."""
    stack = ComponentStack(many.whiten, many.offset, many.height)
    winners, losers = posterior.points.chunk(2)
    total = torch.zeros(stack.count)
    rows = (torch.split(part, _CHUNK) for part in (winners, losers, posterior.weights))
    responses = posterior.response.split(_CHUNK, len(winners))
    for winner, loser, mass, response in zip(*rows, responses, strict=True):
        of_winner, of_loser = stack(torch.cat([winner, loser])).chunk(2, 1)
        total += response.log_cdf(of_winner - of_loser) @ mass
    return total


def draw_quadratics(
    quadratic: QuadraticFit,
    ridge: float,
    summit: Array,
    weights: Tensor,
    settings: PosteriorSettings,
) -> tuple[Tensor, Tensor]:
    """Draws of the posterior of a quadratic form: linear (S, d) and curvature (S, d, d)."""
    response, d = quadratic.response, quadratic.validation.dimension
    design, prior = torch.from_numpy(quadratic.design), torch.from_numpy(quadratic.prior(ridge))
    mass = weights[torch.from_numpy(quadratic.rows)].double()
    centre = torch.from_numpy(summit)

    def log_posterior(steps: Tensor) -> Tensor:
        beta = centre + steps.double()
        fit = response.log_cdf(beta @ design.T) @ mass
        return (fit - 0.5 * ((beta @ prior) * beta).sum(1)).float()

    scales = scales_of(torch.from_numpy(quadratic.curvature(summit, ridge)))
    generator = quadratic.validation.generator
    beta = (centre + walk(log_posterior, scales, settings, generator).double()).float()
    i, j = torch.triu_indices(d, d)
    curvature = torch.zeros(len(beta), d, d)
    curvature[:, i, j] = beta[:, d:]
    return beta[:, :d], 0.5 * (curvature + curvature.mT)


def walk(
    log_posterior: LogPosterior,
    scales: Tensor,
    settings: PosteriorSettings,
    generator: torch.Generator,
) -> Tensor:
    """Ends (S, P) of walks that leave a posterior as it is.

    ``log_posterior`` maps steps from the summit (S, P) to (S,); ``scales`` (P, F) are the normal
    approximation's: its draws are scales z, z ~ N(0, I), and each walk starts from one.

    Examples
    --------
    >>> import torch
    >>> found = walk(lambda x: -0.5 * (x.squeeze(1) / 2.0).square(), torch.ones(1, 1),
    ...              PosteriorSettings(draws=2000, steps=200), torch.Generator().manual_seed(0))
    >>> bool(1.8 < found.std() < 2.2)
    True
    """
    z = torch.randn(settings.draws, scales.shape[1], generator=generator)
    gain = log_posterior(z @ scales.T) + 0.5 * z.square().sum(1)
    turn = 0.5
    for _ in range(settings.steps if len(z) else 0):
        fresh = torch.randn(z.shape, generator=generator)
        proposal = (1.0 - turn**2) ** 0.5 * z + turn * fresh
        proposed = log_posterior(proposal @ scales.T) + 0.5 * proposal.square().sum(1)
        accept = torch.log(torch.rand(len(z), generator=generator)) < proposed - gain
        z = torch.where(accept[:, None], proposal, z)
        gain = torch.where(accept, proposed, gain)
        turn = min(1.0, turn * float(torch.exp(0.5 * (accept.float().mean() - _ACCEPTED))))
    return z @ scales.T
