"""Draws of the posterior over utilities.

The draws are divided among the forms by the weights that these have in the belief (`weigh_forms`).
The mixtures' prior is weaker here than for the mode: equal masses and round components predict
better on average, but a credible band must not exclude what the choices leave open.

The posterior of each form is nearly normal around its mode, and is sampled by Hamiltonian Monte
Carlo, many chains at once. In coordinates z in which the normal approximation is N(0, I) the
density is exp(−½|z|² − Φ(z)). Between leapfrog steps by −∇Φ, positions and velocities rotate as
under N(0, I) (Beskos, Pinski, Sanz-Serna and Stuart, 2011), so that only what is not normal causes
rejections.

If nearly all choices are certain, the curvature at the mode may be wrong by a factor of ten in
some directions. The normal approximation is therefore estimated again from the chains after each
of several warm-up windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from llm_elicit.density.likelihood import Response
from llm_elicit.density.utility.cross_validation import CrossValidation
from llm_elicit.density.utility.mixture import MixtureFit
from llm_elicit.density.utility.model import (
    Mixture,
    MixturePosterior,
    inverse_root,
    log_prior,
    maximize,
)
from llm_elicit.density.utility.quadratic import QuadraticFit, Regression, RidgedFit, SmoothFit
from llm_elicit.density.utility_function import ComponentStack, UtilityDraws, products

LogDensity = Callable[[Tensor], Tensor]
Slope = Callable[[Tensor], Tensor]
Guide = Callable[[Tensor], Slope]
_ACCEPTED = 0.8
_START = 0.5  # of the normal approximation's spread: its tails may be too heavy
_ADAPTATION = 0.7
_QUARTER_TURN = 0.5 * math.pi
_FEWEST = 16
_LATER = 0.25
_LEAST = 1e-8
_LONGER, _KEPT = 2, 3  # of the last window: its length in others', and positions kept of a chain


@dataclass(frozen=True)
class HmcSettings:
    """Effort of the sampler.

    Args:
        windows: number of windows; all but the last adapt the coordinates.
        chains: most chains of the windows that adapt.
        trajectories: fresh velocities in each window that adapts.
        leapfrog_steps: gradient evaluations in each trajectory.
    """

    windows: int = 5
    trajectories: int = 6
    leapfrog_steps: int = 12
    chains: int = 32


def sample_hmc(
    log_density: LogDensity,
    root: Tensor,
    count: int,
    generator: torch.Generator,
    settings: HmcSettings = HmcSettings(),
    guide: Guide | None = None,
) -> Tensor:
    """Return S = ``count`` draws (S, P) from a density with its mode at 0.

    They are positions of a third as many chains, at three times of the last window, which is twice
    as long as the others. Its chains begin where fewer ones have been in the window before.

    Args:
        log_density: maps (S, P) to (S,), differentiable.
        root: (P, F); draws of the normal approximation are root z, z ~ N(0, I).
        count: the number of draws.
        generator: draws starts, momenta and acceptances.
        settings: of the chains.
        guide: given the positions (S, P) at which a window begins, returns a cheaper gradient,
            which maps (S, P) to (S, P) and is used in that window; `slope_of` without. Proposals
            are accepted by ``log_density``, which therefore stays the invariant density.

    Examples:
        >>> import torch
        >>> found = sample_hmc(lambda x: -0.5 * (x.squeeze(1) / 2.0).square(), torch.ones(1, 1),
        ...                    2000, torch.Generator().manual_seed(0))
        >>> bool(1.8 < found.std() < 2.2)
        True
    """
    if not (count and root.shape[1]):
        return torch.zeros(count, len(root))
    long = replace(settings, trajectories=_LONGER * settings.trajectories)
    thinned = [long.trajectories * (part + 1) // _KEPT - 1 for part in range(_KEPT)]
    chains = max(-(-count // _KEPT), _FEWEST)  # fewer chains do not show a covariance
    root, angle = root.double(), root.shape[1] ** -0.5
    z = _START * torch.randn((min(chains, settings.chains), root.shape[1]), generator=generator)
    for remaining in reversed(range(settings.windows)):
        axes = root.float()
        slope = slope_of(log_density) if guide is None else guide(z @ axes.T)
        density = _Potential(log_density, slope, axes)
        effort = settings if remaining else long
        trace, angle = _window(density, z, angle, generator, effort)
        z = trace[-1]
        if remaining == 1:
            # The last positions of all chains first, then those before.
            z = trace.flip(0).flatten(0, 1).repeat(-(-chains // trace[..., 0].numel()), 1)[:chains]
        if remaining:
            spread = _spread(trace[len(trace) // 2 :])
            root, z = root @ spread, torch.linalg.solve(spread, z.double().T).T.float()
    return (trace[thinned[::-1]].flatten(0, 1) @ axes.T)[:count]


def slope_of(log_density: LogDensity) -> Slope:
    """Return the gradient of a log-density by automatic differentiation."""

    def slope(x: Tensor) -> Tensor:
        with torch.enable_grad():
            free = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(log_density(free).sum(), [free])
        return gradient

    return slope


@dataclass(frozen=True)
class _Potential:
    """A log-density in coordinates z (F,) of ``axes`` (P, F), and its gradient, ``slope``."""

    log_density: LogDensity
    slope: Slope
    axes: Tensor

    def value(self, z: Tensor) -> Tensor:
        """Return minus the log-density (S,)."""
        with torch.no_grad():
            return -self.log_density(z @ self.axes.T)

    def force(self, z: Tensor) -> Tensor:
        """Return −∇Φ (S, F)."""
        return self.slope(z @ self.axes.T) @ self.axes + z


def _window(
    density: _Potential, z: Tensor, angle: float, generator: torch.Generator, settings: HmcSettings
) -> tuple[Tensor, float]:
    """Return the positions of chains from z (S, F) after each trajectory: (T, S, F).

    The step begins at ``angle``; that at the end is returned, too.
    """
    longest = _QUARTER_TURN / settings.leapfrog_steps
    angle = min(longest, angle)
    potential, force, trace = density.value(z), density.force(z), []
    for _ in range(settings.trajectories):
        velocity = torch.randn(z.shape, generator=generator)
        moved, speed, pushed = z, velocity, force
        for _ in range(settings.leapfrog_steps):
            speed = speed + 0.5 * angle * pushed
            turned = math.cos(angle) * moved + math.sin(angle) * speed
            speed = math.cos(angle) * speed - math.sin(angle) * moved
            moved, pushed = turned, density.force(turned)
            speed = speed + 0.5 * angle * pushed
        reached = density.value(moved)
        loss = reached - potential + 0.5 * (speed.square() - velocity.square()).sum(1)
        chance = torch.exp(-loss.nan_to_num(math.inf).clamp(min=0.0))
        accepted = torch.rand(len(z), generator=generator) < chance
        potential = torch.where(accepted, reached, potential)
        z, force = (
            torch.where(accepted[:, None], new, old) for new, old in ((moved, z), (pushed, force))
        )
        trace.append(z)
        angle = min(longest, angle * math.exp(_ADAPTATION * (float(chance.mean()) - _ACCEPTED)))
    return torch.stack(trace), angle


def _spread(trace: Tensor) -> Tensor:
    """Return a root (F, F) of the covariance of positions (T, S, F).

    Positions of one chain are correlated, so all but one per chain count for a quarter;
    where there are fewer than dimensions, off-diagonal covariances are shrunk.
    """
    places = trace.flatten(0, 1).double()
    covariance = torch.cov(places.T, correction=0).reshape(places.shape[1], places.shape[1])
    counted = trace.shape[1] + _LATER * (len(places) - trace.shape[1])
    sure = counted / (counted + trace.shape[2])
    shrunk = sure * covariance + (1.0 - sure) * torch.diag(covariance.diagonal())
    variances, axes = torch.linalg.eigh(shrunk)
    root: Tensor = axes * variances.clamp_min(_LEAST).sqrt()
    return root


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
        quadratic: the quadratic form.
        ridged: the quadratic form under each multiple of its ridges, the best first.
        smooth: the quadratic form with a Gaussian process; None if it was not fitted.
        mixtures: the other forms, by name.
        count: the number of draws.
        seed: seed of the draws.
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
    validation: CrossValidation, fit: MixtureFit, count: int, generator: torch.Generator
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
    return drawn.stack()


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
        rows = many.stack().rows()
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
        rows = moved.stack().rows()
        least = torch.cat([logs.amin(0) for logs, _ in self._choices(rows)])
        undecided = torch.nonzero(least < -_UNDECIDED)[:, 0]
        return MixtureDensity(self.posterior.subset(undecided), self.mode)

    def _choices(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield log-likelihoods (S, m) of m choices by rows (S, K, P + 1), and weights (m,)."""
        columns = rows.flatten(0, 1).T
        for design, mass, response in self._designs:
            forms = columns[-1] - 0.5 * self.mode.tail.fall(-2.0 * (design @ columns[:-1]))
            forms = forms.reshape(len(design), *rows.shape[:2])
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
    regression: Regression, mode: Tensor, count: int, generator: torch.Generator
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
