"""Draws of the posterior over utilities.

The posterior of each form is nearly normal around its mode, and is sampled by Hamiltonian Monte
Carlo (`hmc`).

The draws are divided among the forms by the weights that these have in the belief (`weigh_forms`).
The mixtures' prior is weaker here than for the mode: equal masses and round components predict
better on average, but a credible band must not exclude what the choices leave open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from llm_elicit.density.likelihood import Response
from llm_elicit.density.stacks import ComponentStack, products
from llm_elicit.density.utility.cross_validation import CrossValidation
from llm_elicit.density.utility.fisher_scoring import MixturePosterior, inverse_root, maximize
from llm_elicit.density.utility.hmc import HmcSettings, Slope, sample_hmc, slope_of
from llm_elicit.density.utility.mixture import MixtureFit
from llm_elicit.density.utility.model import Mixture, log_prior
from llm_elicit.density.utility.quadratic import QuadraticFit, Regression, RidgedFit
from llm_elicit.density.utility.smooth import SmoothFit
from llm_elicit.density.utility_function import UtilityDraws

_STEPS = 30
_CHUNK = 1024
_UNDECIDED = 1e-3
# The mixtures' prior: Jeffreys' Dirichlet prior of the masses, a share of the strength chosen for
# the mode, and doubt about the width; see `MixturePrior`.
_CONCENTRATION, _PRIOR_SCALE, _SIZE_POWER = 0.5, 0.3, 2.0
_OF_LINEAR = HmcSettings(4, 4, 8)  # the posterior of a linear predictor is log-concave


def draw_posterior(
    weights: Mapping[str, float],
    quadratic: QuadraticFit,
    ridged: list[RidgedFit],
    smooth: SmoothFit | None,
    mixtures: Mapping[str, MixtureFit],
    count: int,
    seed: int,
) -> UtilityDraws:
    """Return ``count`` draws over all forms.

    Args:
        weights: of the forms by their names, summing to one.
        ridged: the quadratic form under each multiple of its ridges, the best first.
    """
    validation, generator = quadratic.validation, torch.Generator().manual_seed(seed)
    likely = np.array([fit.posterior for fit in ridged])
    others = [weights.get(name, 0.0) for name in ("smooth", *mixtures)]
    of_quadratic = weights.get("quadratic", 0.0) * softmax(likely)
    shares = np.concatenate([[weights.get("constant", 0.0)], of_quadratic, others])
    # Rounding the cumulated shares once makes the parts add up.
    edges = np.floor(np.cumsum(shares) * count + 0.5).astype(int)
    sizes = np.diff(np.concatenate([[0], edges])).tolist()
    drawn = [torch.zeros(sizes.pop(0), len(quadratic.terms), dtype=torch.float64)]
    for fit in ridged:
        regression = quadratic.regression(fit.ridges)
        mode = torch.from_numpy(fit.coefficients)
        drawn.append(_draw_linear(regression, mode, sizes.pop(0), generator))
    beta, fourier, size = torch.cat(drawn), None, sizes.pop(0)
    if smooth is not None and size:
        more = _draw_linear(smooth.regression, smooth.mode, size, generator)
        coefficients, process = smooth.split(more)
        none = torch.zeros(len(beta), process.weights.shape[1])
        fourier = replace(process, weights=torch.cat([none, process.weights]))
        beta = torch.cat([beta, coefficients])
    stacks = [
        draw_mixtures(validation, fit, size, generator)
        for fit, size in zip(mixtures.values(), sizes, strict=True)
        if size
    ]
    return UtilityDraws(*quadratic.terms.forms(beta), tuple(stacks), fourier)


def draw_mixtures(
    validation: CrossValidation,
    fit: MixtureFit,
    count: int,
    generator: torch.Generator,
) -> ComponentStack:
    """Return ``count`` draws of the posterior of a mixture of one number of components."""
    d = validation.dimension
    prior = replace(
        fit.prior,
        concentration=_CONCENTRATION,
        size_power=_SIZE_POWER,
        strength=_PRIOR_SCALE * fit.prior.strength,
        width_doubt=2.0 / (d * (d + 1)),
    )
    points = validation.sides(torch.arange(validation.size))
    posterior = MixturePosterior(points, validation.weights, validation.response, prior)
    mode = maximize(posterior, fit.mode, _STEPS)[0]
    density = MixtureDensity(posterior, mode)
    root = inverse_root(posterior.derivatives(mode)[1])
    steps = sample_hmc(density, root, count, generator, guide=density.guide)
    drawn = mode.moved(steps)
    return ComponentStack(drawn.whiten, drawn.offset, drawn.height)


@dataclass(frozen=True)
class MixtureDensity:
    """The log-posterior (S,) of steps (S, P) from a mode."""

    posterior: MixturePosterior
    mode: Mixture

    def __call__(self, steps: Tensor) -> Tensor:
        moved = self.mode.moved(steps)
        beside = log_prior(self.posterior.prior, moved) + moved.log_measure()
        return self.log_likelihood(moved) + beside

    def log_likelihood(self, many: Mixture) -> Tensor:
        """Return that of the choices by each of S mixtures: (S,), differentiable.

        Gradients are taken chunk by chunk: those of all choices at once would fill the memory.
        """
        rows = ComponentStack(many.whiten, many.offset, many.height).rows()
        fixed = rows.detach().requires_grad_(rows.requires_grad)
        total, slope = torch.zeros(len(fixed)), torch.zeros_like(fixed)
        for logs, mass in self._choices(fixed):
            part = logs @ mass
            if rows.requires_grad:
                slope += torch.autograd.grad(part.sum(), [fixed])[0]
            total += part.detach()
        return total + ((rows - fixed.detach()) * slope).sum((1, 2))

    def guide(self, steps: Tensor) -> Slope:
        """Return the gradient of the `surrogate` at these steps."""
        return slope_of(self.surrogate(steps))

    def surrogate(self, steps: Tensor) -> MixtureDensity:
        """Return the density given only the choices that some of these mixtures leave uncertain.

        Most choices are nearly certain under all of them, and hardly contribute to the gradient.
        """
        moved = self.mode.moved(steps)
        rows = ComponentStack(moved.whiten, moved.offset, moved.height).rows()
        least = torch.cat([logs.amin(0) for logs, _ in self._choices(rows)])
        undecided = torch.nonzero(least < -_UNDECIDED)[:, 0]
        return MixtureDensity(self.posterior.subset(undecided), self.mode)

    def _choices(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield log-likelihoods (S, m) of m choices by coefficients (S, K, P), and weights (m,)."""
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


def _draw_linear(
    regression: Regression,
    mode: Tensor,
    count: int,
    generator: torch.Generator,
) -> Tensor:
    """Return draws (S, P) of the coefficients of a linear predictor."""
    undecided = regression.response.log_cdf(regression.columns @ mode) < -_UNDECIDED
    few = regression.subset(torch.nonzero(undecided)[:, 0])
    root = inverse_root(regression.precision(mode))

    def log_density(steps: Tensor) -> Tensor:
        return regression.values(mode + steps.double()).float()

    def slope(steps: Tensor) -> Tensor:
        return few.slopes(mode + steps.double()).float()

    steps = sample_hmc(log_density, root, count, generator, _OF_LINEAR, lambda _: slope)
    return mode + steps.double()
