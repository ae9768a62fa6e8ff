"""Draws of the posterior over utilities.

The draws are divided among the forms by the weights that these have in the belief, see
`fit_form_weights`. The mixtures' prior is weaker here than for the mode: equal masses and round
components predict better on average, but a credible band must not exclude what the choices leave
open.

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from llm_elicit.density.likelihood import Response
from llm_elicit.density.utility.cross_validation import CrossValidation
from llm_elicit.density.utility.mixture import MixtureFit
from llm_elicit.density.utility.model import (
    Mixture,
    MixturePosterior,
    inverse_root,
    log_prior,
    log_prior_gradient,
    maximize,
)
from llm_elicit.density.utility.quadratic import Regression
from llm_elicit.density.utility_function import ArrayGradients, ComponentStack, quadratic_features

LogDensity = Callable[[Tensor], Tensor]
Gradient = Callable[[Tensor], Tensor]
GradientFactory = Callable[[Tensor], Gradient]
_TARGET_ACCEPTANCE = 0.8
_START_SCALE = 0.5  # of the normal approximation's spread: its tails may be too heavy
_ADAPTATION_RATE = 0.7
_MAX_TRAJECTORY_ANGLE = 0.5 * math.pi
_MIN_CHAINS = 16
_LATER_POSITION_WEIGHT = 0.25
_MIN_VARIANCE = 1e-8
_LAST_WINDOW_FACTOR = 2  # length of the last window in that of others
_POSITIONS_PER_CHAIN = 3  # positions kept of a chain of the last window


@dataclass(frozen=True)
class HmcSettings:
    """Effort of the sampler.

    Attributes:
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
    gradient_factory: GradientFactory,
    settings: HmcSettings = HmcSettings(),
) -> Tensor:
    """Return S = ``count`` draws (S, P) from a density with its mode at 0.

    They are positions of a third as many chains, at three times of the last window, which is twice
    as long as the others. Its chains begin where fewer ones have been in the window before.

    Args:
        log_density: maps (S, P) to (S,).
        root: (P, F); draws of the normal approximation are root z, z ~ N(0, I).
        count: the number of draws.
        generator: draws starts, momenta and acceptances.
        gradient_factory: given the positions (S, P) at which a window begins, returns a gradient,
            perhaps of fewer choices, which maps (S, P) to (S, P) and is used in that window.
            Proposals are accepted by ``log_density``, which therefore stays the invariant density.
        settings: settings of the chains.

    Examples:
        >>> import torch
        >>> draws = sample_hmc(lambda x: -0.5 * (x.squeeze(1) / 2.0).square(), torch.ones(1, 1),
        ...                    2000, torch.Generator().manual_seed(0), lambda _: lambda x: -x / 4.0)
        >>> bool(1.8 < draws.std() < 2.2)
        True
    """
    if not (count and root.shape[1]):
        return torch.zeros(count, len(root))
    last_window = replace(settings, trajectories=_LAST_WINDOW_FACTOR * settings.trajectories)
    positions = [
        last_window.trajectories * (part + 1) // _POSITIONS_PER_CHAIN - 1
        for part in range(_POSITIONS_PER_CHAIN)
    ]
    # Fewer chains do not show a covariance.
    chains = max(-(-count // _POSITIONS_PER_CHAIN), _MIN_CHAINS)
    root, angle, size = root.double(), root.shape[1] ** -0.5, root.shape[1]
    z = _START_SCALE * torch.randn((min(chains, settings.chains), size), generator=generator)
    for remaining in reversed(range(settings.windows)):
        axes = root.float()
        density = _Potential(log_density, gradient_factory(z @ axes.T), axes)
        window_settings = settings if remaining else last_window
        trace, angle = _run_window(density, z, angle, generator, window_settings)
        z = trace[-1]
        if remaining == 1:
            # The last positions of all chains first, then those before.
            z = trace.flip(0).flatten(0, 1).repeat(-(-chains // trace[..., 0].numel()), 1)[:chains]
        if remaining:
            covariance_root = _covariance_root(trace[len(trace) // 2 :])
            root = root @ covariance_root
            z = torch.linalg.solve(covariance_root, z.double().T).T.float()
    return (trace[positions[::-1]].flatten(0, 1) @ axes.T)[:count]


@dataclass(frozen=True)
class _Potential:
    """A log-density in coordinates z (F,) of ``axes`` (P, F), and its gradient, ``gradient``."""

    log_density: LogDensity
    gradient: Gradient
    axes: Tensor

    def value(self, z: Tensor) -> Tensor:
        """Return minus the log-density (S,)."""
        with torch.no_grad():
            return -self.log_density(z @ self.axes.T)

    def force(self, z: Tensor) -> Tensor:
        """Return −∇Φ (S, F)."""
        return self.gradient(z @ self.axes.T) @ self.axes + z


def _run_window(
    density: _Potential, z: Tensor, angle: float, generator: torch.Generator, settings: HmcSettings
) -> tuple[Tensor, float]:
    """Return the positions of chains from z (S, F) after each trajectory: (T, S, F).

    The step begins at ``angle``; that at the end is returned, too.
    """
    max_angle = _MAX_TRAJECTORY_ANGLE / settings.leapfrog_steps
    angle = min(max_angle, angle)
    potential, force, trace = density.value(z), density.force(z), []
    for _ in range(settings.trajectories):
        velocity = torch.randn(z.shape, generator=generator)
        position, new_velocity, new_force = z, velocity, force
        for _ in range(settings.leapfrog_steps):
            new_velocity = new_velocity + 0.5 * angle * new_force
            rotated = math.cos(angle) * position + math.sin(angle) * new_velocity
            new_velocity = math.cos(angle) * new_velocity - math.sin(angle) * position
            position, new_force = rotated, density.force(rotated)
            new_velocity = new_velocity + 0.5 * angle * new_force
        new_potential = density.value(position)
        kinetic_change = 0.5 * (new_velocity.square() - velocity.square()).sum(1)
        energy_change = new_potential - potential + kinetic_change
        acceptance = torch.exp(-energy_change.nan_to_num(math.inf).clamp(min=0.0))
        accepted = torch.rand(len(z), generator=generator) < acceptance
        potential = torch.where(accepted, new_potential, potential)
        z = torch.where(accepted[:, None], position, z)
        force = torch.where(accepted[:, None], new_force, force)
        trace.append(z)
        excess = float(acceptance.mean()) - _TARGET_ACCEPTANCE
        angle = min(max_angle, angle * math.exp(_ADAPTATION_RATE * excess))
    return torch.stack(trace), angle


def _covariance_root(trace: Tensor) -> Tensor:
    """Return a root (F, F) of the covariance of positions (T, S, F).

    Positions of one chain are correlated, so all but one per chain count for a quarter;
    where there are fewer than dimensions, off-diagonal covariances are shrunk.
    """
    positions = trace.flatten(0, 1).double()
    size = positions.shape[1]
    covariance = torch.cov(positions.T, correction=0).reshape(size, size)
    effective_count = trace.shape[1] + _LATER_POSITION_WEIGHT * (len(positions) - trace.shape[1])
    weight = effective_count / (effective_count + trace.shape[2])
    shrunk = weight * covariance + (1.0 - weight) * torch.diag(covariance.diagonal())
    variances, axes = torch.linalg.eigh(shrunk)
    root: Tensor = axes * variances.clamp_min(_MIN_VARIANCE).sqrt()
    return root


_MAX_NEWTON_STEPS = 30
_CHUNK = 1024
_UNDECIDED = 1e-3
# The mixtures' prior: Jeffreys' Dirichlet prior of the masses, a share of the strength chosen for
# the mode, and doubt about the width; see `MixturePrior`.
_CONCENTRATION, _STRENGTH_FACTOR, _SIZE_POWER = 0.5, 0.3, 2.0
_LINEAR_HMC = HmcSettings(4, 4, 8)  # the posterior of a linear predictor is log-concave


def draw_mixtures(
    validation: CrossValidation, fit: MixtureFit, count: int, generator: torch.Generator
) -> ComponentStack:
    """Return ``count`` draws of the posterior of a mixture of one number of components."""
    d = validation.dimension
    prior = replace(
        fit.prior,
        concentration=_CONCENTRATION,
        size_power=_SIZE_POWER,
        strength=_STRENGTH_FACTOR * fit.prior.strength,
        width_uncertainty=2.0 / (d * (d + 1)),
    )
    points = validation.winners_and_losers(torch.arange(validation.size))
    posterior = MixturePosterior(points, validation.weights, validation.response, prior)
    mode = maximize(posterior, fit.mode, _MAX_NEWTON_STEPS)[0]
    density = MixtureDensity(posterior, mode)
    root = inverse_root(posterior.derivatives(mode)[1])
    steps = sample_hmc(density, root, count, generator, density.surrogate_gradient)
    return mode.take_step(steps).stack()


@dataclass(frozen=True)
class MixtureDensity:
    """The log-posterior (S,) of steps (S, P) from a mode, and its gradient."""

    posterior: MixturePosterior
    mode: Mixture

    def __call__(self, steps: Tensor) -> Tensor:
        mixtures = self.mode.take_step(steps)
        log_prior_density = log_prior(self.posterior.prior, mixtures) + mixtures.log_measure()
        return self.log_likelihood(mixtures) + log_prior_density

    def log_likelihood(self, mixtures: Mixture) -> Tensor:
        """Return the log-likelihood (S,) of the choices under each of S mixtures."""
        coefficients = mixtures.stack().coefficients()
        total = coefficients.new_zeros(len(coefficients))
        for logs, mass in self._log_likelihoods(coefficients):
            total = total + logs @ mass
        return total

    def gradient(self, steps: Tensor) -> Tensor:
        """Return the derivatives (S, P)."""
        mixtures, tail = self.mode.take_step(steps), self.mode.tail
        stack = mixtures.stack()
        coefficients = stack.coefficients()  # (S, K, P + 1)
        by_coefficients = torch.zeros_like(coefficients.transpose(0, 1))
        for design, mass, response in self._chunks:
            log_terms, distances = self._log_terms(design, coefficients)
            values = torch.logsumexp(log_terms, 0)
            winner_values, loser_values = values.chunk(2, 1)
            slope = response.slope(winner_values - loser_values) * mass
            of_terms = torch.exp(log_terms - values) * torch.cat([slope, -slope], 1)
            by_coefficients[..., -1] += of_terms.sum(-1)
            if tail.power != 1.0:
                of_terms = of_terms * tail.slope(distances)
            by_coefficients[..., :-1] += of_terms @ design
        by_choices = stack.array_gradients(by_coefficients.transpose(0, 1))
        by_prior = log_prior_gradient(self.posterior.prior, mixtures)
        total = ArrayGradients(*map(torch.add, by_choices, by_prior))
        return self.mode.step_gradient(steps, total)

    def surrogate_gradient(self, steps: Tensor) -> Gradient:
        """Return the gradient of the `surrogate` at these steps."""
        return self.surrogate(steps).gradient

    def surrogate(self, steps: Tensor) -> MixtureDensity:
        """Return the density given only the choices that some of these mixtures leave uncertain.

        Most choices are nearly certain under all of them, and hardly contribute to the gradient.
        """
        mixtures = self.mode.take_step(steps)
        coefficients = mixtures.stack().coefficients()
        lowest = torch.cat([logs.amin(0) for logs, _ in self._log_likelihoods(coefficients)])
        undecided = torch.nonzero(lowest < -_UNDECIDED)[:, 0]
        return MixtureDensity(self.posterior.subset(undecided), self.mode)

    def _log_likelihoods(self, coefficients: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield log-likelihoods (S, m) of m choices by coefficients, and weights (m,)."""
        for design, mass, response in self._chunks:
            log_terms, _ = self._log_terms(design, coefficients)
            winner_values, loser_values = torch.logsumexp(log_terms, 0).chunk(2, 1)
            yield response.log_cdf(winner_values - loser_values), mass

    def _log_terms(self, design: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        """Return the components' values and squared distances (K, S, n) at n points."""
        # Components come first: a sum over what is far apart in memory takes half the time.
        coefficients = coefficients.transpose(0, 1)
        linear = coefficients[..., :-1].flatten(0, 1) @ design.T
        distances = -2.0 * linear.reshape(*coefficients.shape[:2], -1)
        return coefficients[..., -1:] - 0.5 * self.mode.tail.rho(distances), distances

    @cached_property
    def _chunks(self) -> list[tuple[Tensor, Tensor, Response]]:
        chunks = self.posterior.chunks(_CHUNK)
        return [
            (quadratic_features(points), weights, response) for points, weights, response in chunks
        ]


def draw_linear(
    regression: Regression, mode: Tensor, count: int, generator: torch.Generator
) -> Tensor:
    """Return draws (S, P) of the coefficients of a linear predictor."""
    uncertain = regression.response.log_cdf(regression.columns @ mode) < -_UNDECIDED
    uncertain_regression = regression.subset(torch.nonzero(uncertain)[:, 0])
    root = inverse_root(regression.precision(mode))

    def log_density(steps: Tensor) -> Tensor:
        return regression.values(mode + steps.double()).float()

    def gradient(steps: Tensor) -> Tensor:
        return uncertain_regression.gradients(mode + steps.double()).float()

    steps = sample_hmc(log_density, root, count, generator, lambda _: gradient, _LINEAR_HMC)
    return mode + steps.double()
