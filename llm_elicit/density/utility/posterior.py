"""Draws of the posterior over utilities: what else the choices could mean.

Each form's posterior is known up to a constant, and near its summit it is nearly normal; each
draw is the end of a Hamiltonian walk (`walks`) under it.

Each number of components is given its share of the draws by how well it can describe the judge
(`bootstrapped_shares` of `halfway`), the quadratic form counting as one component. Held-out
choices alone tell how well a form is known too: one with more to learn foretells worse even where
it is right. Its draws show that doubt themselves, and few components that blur the true ones
would take all draws and be sure of it. The networks have no posterior; where they belong to the
utility, the draws stand around what the mixtures say, which is somewhat flatter. The mixtures'
prior is weaker here than where a single best utility is wanted: a prior that keeps modes' masses
near each other and bumps round pays on average, but a band must not leave out what the choices
leave open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from llm_elicit.density.likelihood import Response
from llm_elicit.density.utility.clusters import clustered_weights
from llm_elicit.density.utility.data import Array, CrossValidation, HeldOut
from llm_elicit.density.utility.mixture import MixtureFit
from llm_elicit.density.utility.quadratic import QuadraticFit, RidgedFit
from llm_elicit.density.utility.scoring import Mixture, MixturePosterior, climb, scales_of
from llm_elicit.density.utility.stacking import bootstrapped_shares, halfway
from llm_elicit.density.utility.walks import WalkSettings, walk
from llm_elicit.density.utility_draws import UtilityDraws
from llm_elicit.density.utility_function import ComponentStack, products

_CLIMB = 30
_CHUNK = 1024
_DOUBT = 1e-4
_FEW = 2.0  # points a feature leave a shape to the prior


@dataclass(frozen=True)
class PosteriorSettings:
    """``draws`` of the posterior, each the end of a ``walk``; 0 draws for none.

    ``concentration`` is that of the mixtures' prior (a half is Jeffreys' Dirichlet), ``sized`` its
    own, ``weakened`` what their ``strength`` is multiplied by, ``doubt`` that of a width times the
    entries of a precision. Of the forms' log-likelihoods the share ``counted`` counts; see
    `bootstrapped_shares`.
    """

    draws: int = 64
    walk: WalkSettings = field(default_factory=WalkSettings)
    concentration: float = 0.5
    sized: float = 2.0
    weakened: float = 0.3
    doubt: float = 1.0
    counted: float = 0.5


def draw_posterior(
    quadratic: QuadraticFit,
    ridged: list[RidgedFit],
    betas: Array,
    foretold: HeldOut,
    mixtures: list[MixtureFit],
    settings: PosteriorSettings,
) -> UtilityDraws:
    """Draws over all forms; ``ridged``, ``betas`` (K, P) and ``foretold`` are the quadratic's.

    Judgments of one pair are counted as far as they tell apart beside the form that foretells
    best; see `clustered_weights`.
    """
    forms = [foretold, *(m.held_out for m in mixtures)]
    members = [betas @ quadratic.design.T, *(m.differences(quadratic.validation) for m in mixtures)]
    of_forms = _shares(quadratic.validation, forms, members, settings)
    shares = np.concatenate([of_forms[0] * _ridge_shares(ridged), of_forms[1:]])
    # The first n shares get their part of the draws, rounded once: the parts add up.
    edges = np.floor(np.cumsum(shares) * settings.draws + 0.5).astype(int)
    sizes = np.diff(np.concatenate([[0], edges])).tolist()
    weights = clustered_weights(quadratic.validation, max(forms, key=quadratic.validation.score))
    drawn = [
        draw_quadratics(quadratic, fit, weights, replace(settings, draws=size))
        for fit, size in zip(ridged, sizes, strict=False)
    ]
    linear, curvature = (torch.cat(parts) for parts in zip(*drawn, strict=True))
    stacks = [
        draw_mixtures(quadratic.validation, m, weights, replace(settings, draws=size))
        for m, size in zip(mixtures, sizes[len(ridged) :], strict=True)
        if size
    ]
    return UtilityDraws(linear, curvature, tuple(stacks))


def _ridge_shares(ridged: list[RidgedFit]) -> Array:
    """Shares (R,) of the ridges, each as likely as any other before the choices.

    What is shrunk by the ridges is shrunk with the widths of all features: draws under the best
    ridges alone would be too sure of them.
    """
    evidence = np.array([fit.evidence for fit in ridged])
    return np.asarray(softmax(evidence))


def _shares(
    validation: CrossValidation,
    foretold: list[HeldOut],
    members: list[Array],
    settings: PosteriorSettings,
) -> Array:
    """Shares (F,) of the forms, by what they foretell and what each fold's members say (K, m)."""
    rows = validation.judged.numpy()
    weights, groups = validation.data.weights[rows], validation.data.groups[rows]
    logs = np.stack([halfway(validation, *of) for of in zip(foretold, members, strict=True)])
    counted = settings.counted * len(rows) / weights.sum()
    return bootstrapped_shares(counted * weights * logs, groups, validation.generator)


def draw_mixtures(
    validation: CrossValidation, fit: MixtureFit, weights: Tensor, settings: PosteriorSettings
) -> ComponentStack:
    """Draws of the posterior of a mixture of one number of components."""
    d = validation.dimension
    prior = replace(
        fit.prior,
        concentration=settings.concentration,
        sized=settings.sized,
        strength=settings.weakened * fit.prior.strength,
        doubt=2.0 * settings.doubt / (d * (d + 1)),
    )
    points = validation.sides(torch.arange(validation.size))
    posterior = MixturePosterior(points, weights.float(), validation.response, prior)
    summit = climb(posterior, fit.first, _CLIMB)[0]
    if summit.directions() is None:
        posterior, summit = freed(posterior, summit)
    law = MixtureLaw(posterior, summit)
    scales = scales_of(posterior.derivatives(summit)[1])
    ends = walk(law, scales, settings.draws, validation.generator, settings.walk, law.near)
    drawn = summit.moved(ends)
    return ComponentStack(drawn.whiten, drawn.offset, drawn.height)


def freed(posterior: MixturePosterior, summit: Mixture) -> tuple[MixturePosterior, Mixture]:
    """Correlations freed of the invariant measure by 1 − 2d/n, or not at all, and the new summit.

    A component known as by n points would be about d/n too wide under that measure. Where n is
    small the prior would be left to say what its shape is, and components that each stand for two
    bumps, long and thin, would be made round.
    """
    share = 1.0 - _FEW * summit.offset.shape[-1] / posterior.told(summit)
    prior = replace(posterior.prior, uncorrelated=tuple(share.clamp(min=0.0).tolist()))
    posterior = replace(posterior, prior=prior)
    return posterior, climb(posterior, summit, _CLIMB)[0]


@dataclass(frozen=True)
class MixtureLaw:
    """The log-posterior (S,) of steps (S, P) from a summit.

    Its gradient is found chunk by chunk: that of all choices at once would fill the memory.
    """

    posterior: MixturePosterior
    summit: Mixture

    def __call__(self, steps: Tensor) -> Tensor:
        moved = self.summit.moved(steps)
        beside = self.posterior.prior.value(moved) + moved.log_measure()
        return self.log_likelihood(moved) + beside

    def log_likelihood(self, many: Mixture) -> Tensor:
        """Of the choices by each of S mixtures (S,), with its gradient in their coefficients."""
        rows = ComponentStack(many.whiten, many.offset, many.height).rows()
        fixed = rows.detach().requires_grad_(rows.requires_grad)
        total, slope = torch.zeros(len(fixed)), torch.zeros_like(fixed)
        for logs, mass in self._choices(fixed):
            part = logs @ mass
            if rows.requires_grad:
                slope += torch.autograd.grad(part.sum(), [fixed])[0]
            total += part.detach()
        return total + ((rows - fixed.detach()) * slope).sum((1, 2))

    def near(self, steps: Tensor) -> MixtureLaw:
        """The same by those choices alone that some of the mixtures at ``steps`` doubts.

        Most choices are between improbable points far apart, and decided for all of them.
        """
        moved = self.summit.moved(steps)
        rows = ComponentStack(moved.whiten, moved.offset, moved.height).rows()
        least = torch.cat([logs.amin(0) for logs, _ in self._choices(rows)])
        doubted = torch.nonzero(least < -_DOUBT)[:, 0]
        return MixtureLaw(self.posterior.only(doubted), self.summit)

    def _choices(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Log-likelihoods (S, m) of choices by mixtures of coefficients (S, K, P); weights (m,)."""
        columns = rows.flatten(0, 1).T
        for design, mass, response in self._designs:
            forms = (design @ columns).reshape(len(design), *rows.shape[:2])
            of_winner, of_loser = torch.logsumexp(forms, -1).T.chunk(2, 1)
            yield response.log_cdf(of_winner - of_loser), mass

    @cached_property
    def _designs(self) -> list[tuple[Tensor, Tensor, Response]]:
        winners, losers = self.posterior.points.chunk(2)
        weights, response = self.posterior.weights, self.posterior.response
        chunks = (slice(first, first + _CHUNK) for first in range(0, len(weights), _CHUNK))
        return [
            (products(torch.cat([winners[at], losers[at]])), weights[at], response.at(at))
            for at in chunks
        ]


def draw_quadratics(
    quadratic: QuadraticFit, fit: RidgedFit, weights: Tensor, settings: PosteriorSettings
) -> tuple[Tensor, Tensor]:
    """Draws of a quadratic form's posterior under ridges: linear (S, d), curvature (S, d, d)."""
    response, d = quadratic.response, quadratic.validation.dimension
    design = torch.from_numpy(quadratic.design)
    prior = torch.from_numpy(quadratic.prior(fit.ridges))
    mass = weights[torch.from_numpy(quadratic.rows)].double()
    centre = torch.from_numpy(fit.coefficients)

    def log_posterior(steps: Tensor) -> Tensor:
        beta = centre + steps.double()
        likelihood = response.log_cdf(beta @ design.T) @ mass
        return (likelihood - 0.5 * ((beta @ prior) * beta).sum(1)).float()

    scales = scales_of(torch.from_numpy(quadratic.curvature(fit.coefficients, fit.ridges)))
    generator = quadratic.validation.generator
    ends = walk(log_posterior, scales, settings.draws, generator, settings.walk)
    beta = (centre + ends.double()).float()
    i, j = torch.triu_indices(d, d)
    curvature = torch.zeros(len(beta), d, d)
    curvature[:, i, j] = beta[:, d:]
    return beta[:, :d], 0.5 * (curvature + curvature.mT)
