"""Mixtures of quadratic forms as utilities, with free covariances or one factor; their prior.

The posterior mode given choices is found by Fisher scoring, damped Newton steps. The curvature is
the Fisher information of the choices, which is never negative; it is damped as by Marquardt (1963)
until the log-posterior rises. Steps are those of `Mixture`, so a bound on their entries is a trust
region.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from llm_elicit.density.likelihood import Response
from llm_elicit.density.settings import MixturePrior
from llm_elicit.density.torch_utils import ascend
from llm_elicit.density.utility_function import (
    ArrayGradients,
    ComponentStack,
    Tail,
    symmetric,
    symmetric_gradient,
)


@dataclass(frozen=True)
class Mixture:
    """The utility f(t) = log Σ_k exp(h_k − ½|t W_k − o_k|²), a log-mixture of K Gaussians.

    A step of a component is (η, s, Δ) in its own coordinates y = t W − o: η raises its height,
    s moves its centre by s standard deviations, and the symmetric Δ reshapes it to W(I + Δ). To
    first order its form q = h − ½|y|² changes by η + s·y − yᵀΔy. Steps are therefore free of the
    scales of features and components.

    Attributes:
        whiten: W (K, d, d); W Wᵀ is a component's precision.
        offset: o (K, d).
        height: h (K,).
        tail: of all components.

    After `take_step` by S steps at once, the arrays have a leading axis S.
    """

    whiten: Tensor
    offset: Tensor
    height: Tensor
    tail: Tail = field(default=Tail(), kw_only=True)

    def stack(self) -> ComponentStack:
        """Return the mixtures, or this one, as a stack."""
        arrays = (self.whiten, self.offset, self.height)
        if self.height.ndim == 1:
            arrays = (self.whiten[None], self.offset[None], self.height[None])
        return ComponentStack(*arrays, tail=self.tail)

    def standardize(self, t: Tensor) -> Tensor:
        """Return y (K, d, n) at features (n, d)."""
        k, d = self.offset.shape
        y = self.whiten.mT.reshape(k * d, d) @ t.T
        return y.reshape(k, d, -1) - self.offset[:, :, None]

    def log_terms(self, y: Tensor) -> Tensor:
        """Return the log of every component, q (K, n), at whitened features y (K, d, n)."""
        return self.height[:, None] - 0.5 * self.tail.rho(y.square().sum(1))

    def log_term_slopes(self, y: Tensor) -> Tensor:
        """Return the derivatives (K, p, n) of `log_terms` by their steps, p = 1 + d + d(d+1)/2.

        Features come before rows because the triangle's products are then contiguous.
        """
        k, d, n = y.shape
        slopes = y.new_empty(k, 1 + d + d * (d + 1) // 2, n)
        slopes[:, 0] = 1.0
        slopes[:, 1 : 1 + d] = y
        column, doubled = 1 + d, -2.0 * y
        for i in range(d):
            torch.mul(doubled[:, i : i + 1], y[:, i:], out=slopes[:, column : column + d - i])
            slopes[:, column] *= 0.5
            column += d - i
        if self.tail.power != 1.0:
            slopes[:, 1:] *= self.tail.slope(y.square().sum(1, True))
        return slopes

    def __call__(self, t: Tensor) -> Tensor:
        """Return f (n,) at features (n, d)."""
        return torch.logsumexp(self.log_terms(self.standardize(t)), 0)

    def take_step(self, step: Tensor) -> Mixture:
        """Return the mixture after a step (..., K·p)."""
        k, d = self.offset.shape
        changes = step.reshape(*step.shape[:-1], k, -1)
        change = symmetric(changes[..., 1 + d :], d)
        # I + Δ + Δ²/2 is positive definite for every symmetric Δ; I + Δ is not.
        factor = torch.eye(d) + change + 0.5 * change @ change
        offset = (self.offset[:, None] @ factor).squeeze(-2) + changes[..., 1 : 1 + d]
        height = self.height + changes[..., 0]
        return replace(self, whiten=self.whiten @ factor, offset=offset, height=height)

    def step_gradient(self, step: Tensor, by: ArrayGradients) -> Tensor:
        """Return the derivatives (S, K·p) of the log-density with respect to a step.

        Args:
            step: the argument of `take_step`, (S, K·p).
            by: derivatives with respect to the arrays of the S mixtures after the step, of the
                log-density without `log_measure`.
        """
        d = self.offset.shape[-1]
        changes = step.reshape(*step.shape[:-1], len(self.height), -1)
        change = symmetric(changes[..., 1 + d :], d)
        of_factor = self.whiten.mT @ by.whiten + _outer(self.offset, by.offset)
        of_change = of_factor + 0.5 * (of_factor @ change + change @ of_factor)
        of_shape = symmetric_gradient(of_change)
        return torch.cat([by.height[..., None], by.offset, of_shape], -1).flatten(-2)

    def directions(self) -> Tensor | None:
        """Return a subclass's q own steps as steps of the free mixture (K, p, q).

        None means that both are the same.
        """
        return None

    def log_measure(self) -> Tensor:
        """Return the log-density of the base measure in the coordinates of the steps."""
        return torch.zeros(self.height.shape[:-1])


@dataclass(frozen=True)
class FactorMixture(Mixture):
    """A mixture of components with one factor, W = (I + b bᵀ)^(∓½)/s; make it by `of`.

    A component's covariance is s²(I + b bᵀ), as of probabilistic principal components with one
    factor (Tipping and Bishop, 1999), or s²(I + b bᵀ)⁻¹: elongated or flattened along b. With its
    height and centre these are 2d + 2 parameters, where a free covariance takes
    1 + d + d(d + 1)/2. They serve where comparisons are too few for free ones.

    Attributes:
        elongated: (K,) bools; the other components are flattened.
        centre: m (K, d).
        log_scale: log s (K,).
        loading: b (K, d).
    """

    elongated: Tensor
    centre: Tensor
    log_scale: Tensor
    loading: Tensor

    @staticmethod
    def of(
        elongated: Tensor, height: Tensor, centre: Tensor, log_scale: Tensor, loading: Tensor
    ) -> FactorMixture:
        """Return the mixture with these parameters; leading axes are kept."""
        coefficient, _ = _root_coefficient(elongated, (1.0 + loading.square().sum(-1)).sqrt())
        whiten = torch.eye(loading.shape[-1]) + _outer(coefficient[..., None] * loading, loading)
        whiten = whiten * (-log_scale).exp()[..., None, None]
        offset = (centre[..., None, :] @ whiten).squeeze(-2)
        return FactorMixture(whiten, offset, height, elongated, centre, log_scale, loading)

    @staticmethod
    def approximate(mixture: Mixture) -> FactorMixture:
        """Return a factor mixture with the same centres and each covariance's most extreme axis."""
        inverse = torch.linalg.inv(mixture.whiten)
        variance, axes = torch.linalg.eigh(inverse.mT @ inverse)
        logs = variance.log()
        elongated = logs[:, -1] - logs[:, :-1].mean(1) > logs[:, 1:].mean(1) - logs[:, 0]
        common = torch.where(elongated, logs[:, :-1].mean(1), logs[:, 1:].mean(1))
        ratio = torch.where(elongated, logs[:, -1] - common, common - logs[:, 0]).exp()
        axis = torch.where(elongated[:, None], axes[:, :, -1], axes[:, :, 0])
        loading = axis * (ratio - 1.0).clamp(min=0.0).sqrt()[:, None]
        centre = (mixture.offset[:, None] @ inverse).squeeze(1)
        return FactorMixture.of(elongated, mixture.height, centre, 0.5 * common, loading)

    def take_step(self, step: Tensor) -> FactorMixture:
        """Return the mixture after a step (..., K·(2d + 2)), changes of (h, m W, log s, b)."""
        k, d = self.loading.shape
        changes = step.reshape(*step.shape[:-1], k, 2 * d + 2)
        rise, shift, log_scale_change, loading_change = torch.split(changes, [1, d, 1, d], -1)
        return FactorMixture.of(
            self.elongated,
            self.height + rise.squeeze(-1),
            self.centre + (shift[..., None, :] @ torch.linalg.inv(self.whiten)).squeeze(-2),
            self.log_scale + log_scale_change.squeeze(-1),
            self.loading + loading_change,
        )

    def step_gradient(self, step: Tensor, by: ArrayGradients) -> Tensor:
        """Return the derivatives (S, K·(2d + 2)); see `Mixture.step_gradient`."""
        mixtures = self.take_step(step)
        d, loading, whiten = self.loading.shape[-1], mixtures.loading, mixtures.whiten
        of_centre = _matvec(whiten, by.offset)
        of_whiten = by.whiten + _outer(mixtures.centre, by.offset)
        # W = (I + c b bᵀ)/s, with c a function of r = √(1 + |b|²).
        of_outer = (-mixtures.log_scale).exp()[..., None, None] * of_whiten
        along = _matvec(of_outer + of_outer.mT, loading)
        square = 1.0 + loading.square().sum(-1)
        root = square.sqrt()
        coefficient, of_root = _root_coefficient(self.elongated, root)
        of_coefficient = 0.5 * (along * loading).sum(-1)
        of_length = of_coefficient * of_root / root - (d - 1) / square
        parts = (
            by.height[..., None],
            _matvec(torch.linalg.inv(self.whiten), of_centre),
            -(of_whiten * whiten).sum((-2, -1))[..., None],
            coefficient[..., None] * along + of_length[..., None] * loading,
        )
        return torch.cat(parts, -1).flatten(-2)

    def directions(self) -> Tensor:
        """Return this mixture's steps as steps of the free mixture (K, p, 2d + 2), to first order.

        If b bᵀ changes by B, W changes by WΔ: Δ = −½ s² Wᵀ B W for an elongated component, and
        Δ = ½ V B Vᵀ with V = W⁻¹/s for a flattened one.
        """
        k, d = self.loading.shape
        i, j = torch.triu_indices(d, d)
        axes, loading = self._axes_and_loading()
        reshaping = 0.5 * _outer(axes, loading.expand_as(axes))
        sign = torch.where(self.elongated, -1.0, 1.0)[:, None, None, None]
        reshaping = sign * (reshaping + reshaping.mT)
        directions = torch.zeros(k, 1 + d + len(i), 2 * d + 2)
        directions[:, : 1 + d, : 1 + d] = torch.eye(1 + d)
        directions[:, 1 + d :, 1 + d] = -(i == j).float()
        directions[:, 1 + d :, 2 + d :] = reshaping[..., i, j].mT
        return directions

    def log_term_slopes(self, y: Tensor) -> Tensor:
        """Return the derivatives (K, 2d + 2, n) of `log_terms` by their steps."""
        axes, loading = self._axes_and_loading()
        sign = torch.where(self.elongated, 1.0, -1.0)[:, None, None]
        reshaping = sign * (axes @ y) * (loading @ y)
        return torch.cat([torch.ones_like(y[:, :1]), y, y.square().sum(1, True), reshaping], 1)

    def _axes_and_loading(self) -> tuple[Tensor, Tensor]:
        """Return the feature axes (K, d, d) and b (K, 1, d) in each component's coordinates.

        The axes are W s for an elongated component and W⁻¹/s for a flattened one.
        """
        unit = self.whiten * self.log_scale.exp()[:, None, None]
        axes = torch.where(self.elongated[:, None, None], unit, torch.linalg.inv(unit))
        return axes, self.loading[:, None] @ axes

    def log_measure(self) -> Tensor:
        """Return the log of the measure that is flat in the length of b, not in its entries.

        A measure that is flat in the entries favours too long loadings in many dimensions (Stein,
        1959).
        """
        d = self.loading.shape[-1]
        return -0.5 * (d - 1) * torch.log1p(self.loading.square().sum(-1)).sum(-1)


def log_prior(prior: MixturePrior, mixture: Mixture) -> Tensor:
    """Return the log-density of a mixture's prior up to a constant: (), or (S,) for S mixtures."""
    factors, half_log_precision = _factorize(mixture.whiten)
    size_exponent = 1.0 - prior.size_power / mixture.offset.shape[-1]
    log_mass = torch.log_softmax(mixture.height - size_exponent * half_log_precision, -1)
    trace = _expected_covariance(prior, mixture.whiten).diagonal(dim1=-2, dim2=-1).sum(-1)
    if inverse_freedom := prior.width_uncertainty * prior.strength:
        factor = mixture.offset.shape[-1] + 1.0 / inverse_freedom
        trace = factor * torch.log1p(inverse_freedom * trace)
    shape = prior.strength * (half_log_precision - 0.5 * trace)
    centre = torch.linalg.lu_solve(*factors, mixture.offset[..., None], adjoint=True)
    total: Tensor = (
        prior.concentration * log_mass.sum(-1)
        + shape.sum(-1)
        - 0.5 * prior.centring * centre.square().sum((-3, -2, -1))
    )
    return total


def log_prior_gradient(prior: MixturePrior, mixtures: Mixture) -> ArrayGradients:
    """Return the derivatives of `log_prior` by the arrays of S mixtures."""
    whiten, (k, d) = mixtures.whiten, mixtures.offset.shape[-2:]
    factors, half_log_precision = _factorize(whiten)
    inverse = torch.linalg.lu_solve(*factors, torch.eye(d, dtype=whiten.dtype).expand_as(whiten))
    size_exponent = 1.0 - prior.size_power / d
    log_mass = mixtures.height - size_exponent * half_log_precision
    of_mass = prior.concentration * (1.0 - k * torch.softmax(log_mass, -1))
    of_log_precision = prior.strength - size_exponent * of_mass
    inverse_freedom = prior.width_uncertainty * prior.strength
    trace = prior.width**2 * whiten.square().sum((-2, -1), keepdim=True)
    pull = prior.strength * (1.0 + inverse_freedom * d) / (1.0 + inverse_freedom * trace)
    centre = _matvec(inverse.mT, mixtures.offset)
    of_offset = -prior.centring * _matvec(inverse, centre)
    of_whiten = of_log_precision[..., None, None] * inverse.mT - (prior.width**2 * pull) * whiten
    return ArrayGradients(of_whiten - _outer(centre, of_offset), of_offset, of_mass)


def prior_derivatives(prior: MixturePrior, mixture: Mixture) -> tuple[Tensor, Tensor]:
    """Return the prior's gradient (K·p,) and its positive curvature (K·p, K·p) by a step."""
    k, d = mixture.offset.shape
    i, j, diagonal = _triangle(d)
    multiplicity = 2.0 - diagonal

    # Masses over sizes to the power a: h − (1 − a/d) log|W|, and log|W| grows by tr Δ.
    size_exponent = 1.0 - prior.size_power / d
    factors, half_log_precision = _factorize(mixture.whiten)
    masses = torch.softmax(mixture.height - size_exponent * half_log_precision, 0)
    mass_direction = torch.cat([torch.ones(1), torch.zeros(d), -size_exponent * diagonal])
    gradient = prior.concentration * torch.outer(1.0 - k * masses, mass_direction)
    mass_covariance = prior.concentration * k * (torch.diag(masses) - torch.outer(masses, masses))
    mass_directions = torch.outer(mass_direction, mass_direction)
    curvature = mass_covariance[:, None, :, None] * mass_directions[:, None]
    component_curvature = curvature.diagonal(dim1=0, dim2=2)  # (p, p, K)

    scatter = _expected_covariance(prior, mixture.whiten)
    if inverse_freedom := prior.width_uncertainty * prior.strength:
        # The pull of the prior weakens as a component gets thinner: this bounds its curvature.
        trace = scatter.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
        scatter = scatter * ((1.0 + inverse_freedom * d) / (1.0 + inverse_freedom * trace))
    triangle = scatter.flatten(1)[:, d * i + j]
    gradient[:, 1 + d :] += prior.strength * multiplicity * (diagonal - triangle)
    squares = scatter.diagonal(dim1=1, dim2=2)
    shape_curvature = multiplicity * (1.0 + 0.5 * (squares[:, i] + squares[:, j]))
    component_curvature.diagonal()[:, 1 + d :] += prior.strength * shape_curvature

    # Centres move by s W⁻¹.
    inverse = torch.linalg.lu_solve(*factors, torch.eye(d).expand(k, d, d))
    centre_precision = prior.centring * inverse @ inverse.mT
    gradient[:, 1 : 1 + d] -= (mixture.offset[:, None] @ centre_precision).squeeze(1)
    component_curvature[1 : 1 + d, 1 : 1 + d] += centre_precision.permute(1, 2, 0)
    return gradient.flatten(), curvature.reshape(gradient.numel(), -1)


@lru_cache(maxsize=64)
def _triangle(d: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows and columns of a triangle's entries, and 1.0 for those on the diagonal."""
    i, j = torch.triu_indices(d, d)
    return i, j, (i == j).float()


def _factorize(whiten: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Return the LU factors of W (..., d, d) with their pivots, and log|W| (...).

    HMC may propose a matrix that is singular in single precision: no error, no density.
    """
    factors, pivots, _ = torch.linalg.lu_factor_ex(whiten)
    return (factors, pivots), factors.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)


def _expected_covariance(prior: MixturePrior, whiten: Tensor) -> Tensor:
    """Return the prior's expected covariance (K, d, d) in each component's coordinates."""
    return prior.width**2 * whiten.mT @ whiten


def _outer(a: Tensor, b: Tensor) -> Tensor:
    """Return a bᵀ (..., d, d)."""
    return a[..., :, None] * b[..., None, :]


def _matvec(matrix: Tensor, vector: Tensor) -> Tensor:
    """Return M v (..., d)."""
    return (matrix @ vector[..., None]).squeeze(-1)


def _root_coefficient(elongated: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """Return c in (I + b bᵀ)^(∓½) = I + c b bᵀ, and dc/dr, at r = √(1 + |b|²) (``root``)."""
    flattened = 1.0 / (root + 1.0)
    coefficient = torch.where(elongated, -1.0 / root, 1.0) * flattened
    slope = torch.where(elongated, (1.0 / root + flattened) / root, -flattened)
    return coefficient, slope * flattened


_CHUNK = 4096
_NEGLIGIBLE = 1e-4  # choices with a smaller slope and information are left out
_MAX_STEP = 0.5
_TOLERANCE = 0.02  # nats of the log-posterior
_MIN_RELATIVE_PRECISION = 1e-7


@dataclass(frozen=True)
class MixturePosterior:
    """The posterior of a mixture given m choices.

    Attributes:
        points: (2m, d) features of the winners, then of the losers.
        weights: (m,).
    """

    points: Tensor
    weights: Tensor
    response: Response
    prior: MixturePrior

    def subset(self, rows: Tensor) -> MixturePosterior:
        """Return the posterior given only the choices numbered ``rows``."""
        points = torch.cat([side[rows] for side in self.points.chunk(2)])
        return replace(
            self, points=points, weights=self.weights[rows], response=self.response.select(rows)
        )

    def chunks(self, size: int) -> Iterator[tuple[Tensor, Tensor, Response]]:
        """Yield the points (2c, d), weights (c,) and response of at most ``size`` choices."""
        winners, losers = self.points.chunk(2)
        for first in range(0, len(self.weights), size):
            at = slice(first, first + size)
            points = torch.cat([winners[at], losers[at]])
            yield points, self.weights[at], self.response.select(at)

    @cached_property
    def _chunks(self) -> list[tuple[Tensor, Tensor, Response]]:
        return list(self.chunks(_CHUNK))

    def value(self, mixture: Mixture) -> float:
        """Return the log-posterior up to a constant."""
        total = log_prior(self.prior, mixture).double()
        for points, weights, response in self._chunks:
            winners, losers = mixture(points).chunk(2)
            total = total + (response.log_cdf(winners - losers) * weights).sum().double()
        return float(total)

    def derivatives(self, mixture: Mixture) -> tuple[Tensor, Tensor]:
        """Return the log-posterior's gradient (P,) and curvature (P, P) by the mixture's steps."""
        gradient, curvature = prior_derivatives(self.prior, mixture)
        directions = mixture.directions()
        if directions is not None:
            basis = torch.block_diag(*directions)  # type: ignore[no-untyped-call]
            gradient, curvature = gradient @ basis, basis.T @ curvature @ basis
        for points, weights, response in self._chunks:
            y = mixture.standardize(points)
            winners, losers = torch.logsumexp(mixture.log_terms(y), 0).chunk(2)
            slope = response.slope(winners - losers)
            information = response.information(winners - losers)
            rows = torch.nonzero(weights * torch.maximum(slope, information) > _NEGLIGIBLE)[:, 0]
            slopes = _utility_slopes(mixture, y[..., torch.cat([rows, rows + len(weights)])])
            winner_slopes, loser_slopes = slopes.chunk(2, 1)
            differences, mass = winner_slopes - loser_slopes, weights[rows]
            gradient = gradient + differences @ (slope[rows] * mass)
            curvature = curvature + (differences * (information[rows] * mass)) @ differences.T
        return gradient, curvature

    def predict(self, mixture: Mixture, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return f(winner) − f(loser) (m,) and its posterior standard deviation at the mode.

        The standard deviation is by Laplace's approximation. Directions that the posterior does
        not identify, such as a common height, change no difference and are left out.

        Args:
            mixture: the posterior mode.
            points: (2m, d) features of m winners, then of their losers.
        """
        root = inverse_root(self.derivatives(mixture)[1])
        differences, sds = [], []
        winners, losers = points.chunk(2)
        for pair in zip(torch.split(winners, _CHUNK), torch.split(losers, _CHUNK), strict=True):
            y = mixture.standardize(torch.cat(pair))
            winner_values, loser_values = torch.logsumexp(mixture.log_terms(y), 0).chunk(2)
            slopes = _utility_slopes(mixture, y).chunk(2, 1)
            differences.append(winner_values - loser_values)
            sds.append((root.T @ (slopes[0] - slopes[1])).norm(dim=0))
        return torch.cat(differences), torch.cat(sds)


def inverse_root(curvature: Tensor) -> Tensor:
    """Return a root (P, F) of the inverse of a curvature on its F identified directions."""
    precisions, axes = torch.linalg.eigh(curvature.double())
    identified = precisions > _MIN_RELATIVE_PRECISION * precisions[-1]
    root: Tensor = axes[:, identified] / precisions[identified].sqrt()
    return root.float()


def _utility_slopes(mixture: Mixture, y: Tensor) -> Tensor:
    """Return the derivatives (P, n) of f by a step of the mixture, at whitened features."""
    responsibilities = torch.softmax(mixture.log_terms(y), 0)
    return mixture.log_term_slopes(y).mul_(responsibilities[:, None]).flatten(0, 1)


def maximize(posterior: MixturePosterior, start: Mixture, steps: int) -> tuple[Mixture, float]:
    """Return the mixture after at most ``steps`` Newton steps, and its log-posterior."""

    def take_step(mixture: Mixture, step: Tensor) -> Mixture:
        step = step.float()
        return mixture.take_step(step * min(1.0, _MAX_STEP / max(float(step.abs().max()), 1e-12)))

    return ascend(start, posterior.value, posterior.derivatives, take_step, steps, _TOLERANCE)
