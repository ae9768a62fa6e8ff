"""Fisher scoring of one mixture: its posterior given choices, climbed by damped Newton steps.

Each step is taken in the components' own coordinates y = t W − o. A change (η, s, Δ), Δ
symmetric, raises a component by η, moves its centre by s of its standard deviations and
reshapes it to W(I + Δ). To first order its form q = h − ½|y|² changes by η + s·y − yᵀΔy: the
step is blind to the scales of features and components, and a bound on it is a trust region.
The curvature is the Fisher information of the choices (never negative), damped after Marquardt
(1963) until the posterior rises.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from llm_elicit.density.likelihood import Response

_CHUNK = 4096
_DECIDED = 1e-5  # a choice of less slope and information than this says nothing
_LONGEST = 0.5
_CONVERGED = 1e-3
_FELT = 1e-7
_DAMPINGS = (1e-6, 1e6)


@dataclass(frozen=True)
class Mixture:
    """f(t) = log Σ_k exp(h_k − ½|t W_k − o_k|²).

    ``whiten`` W (K, d, d), ``offset`` o (K, d), ``height`` h (K,). `moved` by several steps it is
    as many mixtures: axes before these.
    """

    whiten: Tensor
    offset: Tensor
    height: Tensor

    def whitened(self, t: Tensor) -> Tensor:
        """y (n, K, d) at features (n, d)."""
        k, d = self.offset.shape
        return (t @ self.whiten.permute(1, 0, 2).reshape(d, k * d)).reshape(-1, k, d) - self.offset

    def forms(self, y: Tensor) -> Tensor:
        """q (n, K) at whitened features."""
        return self.height - 0.5 * y.square().sum(-1)

    def form_slopes(self, y: Tensor) -> Tensor:
        """Derivatives (n, K, p) of the forms by their own step, at whitened features."""
        i, j = torch.triu_indices(y.shape[2], y.shape[2])
        twice = torch.where(i == j, 1.0, 2.0)
        return torch.cat([torch.ones_like(y[..., :1]), y, -twice * y[..., i] * y[..., j]], -1)

    def __call__(self, t: Tensor) -> Tensor:
        """f (n,) at features (n, d)."""
        return torch.logsumexp(self.forms(self.whitened(t)), -1)

    def masses(self) -> Tensor:
        """The components' masses (K,), which sum to one."""
        return torch.softmax(self.height - torch.linalg.slogdet(self.whiten).logabsdet, 0)

    def moved(self, step: Tensor) -> Mixture:
        """The mixture after a step (..., K·p), p = 1 + d + d(d + 1)/2."""
        k, d = self.offset.shape
        changes = step.reshape(*step.shape[:-1], k, -1)
        rise, shift, shape = torch.split(changes, [1, d, d * (d + 1) // 2], -1)
        i, j = torch.triu_indices(d, d)
        change = torch.zeros(*shape.shape[:-1], d, d)
        change[..., i, j] = change[..., j, i] = shape
        # I + Δ + Δ²/2 is positive definite for every symmetric Δ; I + Δ is not.
        factor = torch.eye(d) + change + 0.5 * change @ change
        offset = (self.offset[:, None] @ factor).squeeze(-2) + shift
        return Mixture(self.whiten @ factor, offset, self.height + rise.squeeze(-1))

    def directions(self) -> Tensor | None:
        """What its own steps are of these: (K, p, q), component by component; None for the same."""
        return None

    def log_measure(self) -> Tensor:
        """What the log-density of its steps has beside the prior and the choices."""
        return torch.zeros(self.height.shape[:-1])


@dataclass(frozen=True)
class MixturePrior:
    """What is believed of a mixture before any choice.

    Masses are Dirichlet with parameter ``concentration``, its density by their logarithms (the mode
    is at equal masses); precisions Wishart-like with ``strength`` degrees of freedom around
    components of standard deviation ``width``; centres normal with precision ``centring``; all in
    features, whose variance under λ is one. Each component's squared width is multiplied by a gamma
    variable of mean 1 and 1/``doubt`` degrees of freedom: without ``doubt``, thin components are
    all but excluded. With ``sized`` it is not the masses that are Dirichlet but each over its
    component's size, the geometric mean of its standard deviations, to this power. The measure
    invariant under changes of coordinates, that of steps, holds a component's correlation matrix R
    for the likelier the nearer it is to singular, as |R|^(−(d + 1)/2), and costs each feature's
    variance d − 1 degrees of freedom. Of that power a share is given back, ``uncorrelated`` of each
    component: at 1 every R is as likely (Lewandowski, Kurowicka and Joe, 2009, η = 1).
    """

    concentration: float = 3.0
    strength: float = 1.0
    width: float = 0.5
    centring: float = 0.1
    doubt: float = 0.0
    uncorrelated: tuple[float, ...] = ()
    sized: float = 0.0

    def _scatter(self, whiten: Tensor) -> Tensor:
        """A component's expected covariance in its own coordinates (K, d, d)."""
        return self.width**2 * whiten.mT @ whiten

    def value(self, mixture: Mixture) -> Tensor:
        """Log-density up to a constant: one number, or one for each of several mixtures."""
        half_log_precision = torch.linalg.slogdet(mixture.whiten).logabsdet
        sizing = 1.0 - self.sized / mixture.offset.shape[-1]
        log_mass = torch.log_softmax(mixture.height - sizing * half_log_precision, -1)
        trace = self._scatter(mixture.whiten).diagonal(dim1=-2, dim2=-1).sum(-1)
        if freedom := self.doubt * self.strength:  # the gamma variable integrated out
            trace = (mixture.offset.shape[-1] + 1.0 / freedom) * torch.log1p(freedom * trace)
        shape = self.strength * (half_log_precision - 0.5 * trace)
        # A walk may look far out, where rounding leaves a singular matrix: no error, no density.
        centre, _ = torch.linalg.solve_ex(mixture.whiten.mT, mixture.offset)
        total: Tensor = (
            self.concentration * log_mass.sum(-1)
            + shape.sum(-1)
            - 0.5 * self.centring * centre.square().sum((-2, -1))
        )
        if self.uncorrelated:
            inverse, _ = torch.linalg.inv_ex(mixture.whiten)
            half_log_correlation = -half_log_precision - inverse.norm(dim=-2).log().sum(-1)
            total = total + 2.0 * half_log_correlation @ self._powers(mixture)
        return total

    def _powers(self, mixture: Mixture) -> Tensor:
        """The powers (K,) of |R| beside the invariant measure."""
        return 0.5 * (mixture.offset.shape[-1] + 1) * torch.tensor(self.uncorrelated)

    def derivatives(self, mixture: Mixture) -> tuple[Tensor, Tensor]:
        """Gradient (K·p,) and minus a curvature (K·p, K·p), positive, in a step's coordinates."""
        k, d = mixture.offset.shape
        i, j = torch.triu_indices(d, d)
        diagonal, twice = (i == j).float(), torch.where(i == j, 1.0, 2.0)
        gradient, curvature = torch.zeros(k, 1 + d + len(i)), torch.zeros(k, 1 + d + len(i))

        # Masses over sizes to the power a: h − (1 − a/d) log|W|, and log|W| grows by tr Δ.
        sizing = 1.0 - self.sized / d
        mass = torch.softmax(mixture.height - sizing * torch.linalg.slogdet(mixture.whiten)[1], 0)
        along = torch.cat([torch.ones(1), torch.zeros(d), -sizing * diagonal])
        gradient += self.concentration * torch.outer(1.0 - k * mass, along)
        spread = self.concentration * k * (torch.diag(mass) - torch.outer(mass, mass))
        together = torch.kron(spread, torch.outer(along, along))

        scatter = self._scatter(mixture.whiten)
        # What doubt leaves of the pull: less the thinner a component, so this bounds its curvature.
        freedom = self.doubt * self.strength
        trace = scatter.diagonal(dim1=1, dim2=2).sum(1, keepdim=True)[..., None]
        scatter = scatter * ((1.0 + freedom * d) / (1.0 + freedom * trace))
        gradient[:, 1 + d :] += self.strength * twice * (torch.eye(d) - scatter)[:, i, j]
        of_trace = scatter.diagonal(dim1=1, dim2=2)
        curvature[:, 1 + d :] = (
            self.strength * twice * (1 + 0.5 * (of_trace[:, i] + of_trace[:, j]))
        )

        # Centres move by s W⁻¹.
        inverse = torch.linalg.inv(mixture.whiten)
        centre = mixture.offset[:, None] @ inverse
        gradient[:, 1 : 1 + d] -= self.centring * (centre @ inverse.transpose(1, 2)).squeeze(1)
        together += torch.diag(curvature.flatten())
        pull = self.centring * inverse @ inverse.transpose(1, 2)
        own = together.view(k, 1 + d + len(i), k, 1 + d + len(i)).diagonal(dim1=0, dim2=2)
        own[1 : 1 + d, 1 : 1 + d] += pull.permute(1, 2, 0)
        if self.uncorrelated:
            slope, bend = _log_correlation_derivatives(inverse)
            power = self._powers(mixture)
            gradient[:, 1 + d :] += power[:, None] * slope
            own[1 + d :, 1 + d :] += power * bend.permute(1, 2, 0)
        return gradient.flatten(), together


@dataclass(frozen=True)
class MixturePosterior:
    """Posterior of a mixture given choices.

    ``points`` (2m, d) are the features of m winners, then of their losers; ``weights`` (m,).
    """

    points: Tensor
    weights: Tensor
    response: Response
    prior: MixturePrior

    def only(self, which: Tensor) -> MixturePosterior:
        """Given the choices numbered ``which`` alone."""
        points = torch.cat([side[which] for side in self.points.chunk(2)])
        return replace(
            self, points=points, weights=self.weights[which], response=self.response.at(which)
        )

    @cached_property
    def _chunks(self) -> list[tuple[Tensor, Tensor, Response]]:
        winners, losers = (torch.split(side, _CHUNK) for side in self.points.chunk(2))
        sides = (torch.cat(both) for both in zip(winners, losers, strict=True))
        weights = torch.split(self.weights, _CHUNK)
        responses = self.response.split(_CHUNK, len(self.weights))
        return list(zip(sides, weights, responses, strict=True))

    def value(self, mixture: Mixture) -> float:
        """Log-posterior up to a constant."""
        total = self.prior.value(mixture).double()
        for points, weights, response in self._chunks:
            winners, losers = mixture(points).chunk(2)
            total = total + (response.log_cdf(winners - losers) * weights).sum().double()
        return float(total)

    def derivatives(self, mixture: Mixture) -> tuple[Tensor, Tensor]:
        """Gradient (P,) and damping-free curvature (P, P) in the coordinates of its steps."""
        gradient, curvature = self.prior.derivatives(mixture)
        directions = mixture.directions()
        if directions is not None:
            own = torch.block_diag(*directions)  # type: ignore[no-untyped-call]
            gradient, curvature = gradient @ own, own.T @ curvature @ own
        for points, weights, response in self._chunks:
            y = mixture.whitened(points)
            winners, losers = torch.logsumexp(mixture.forms(y), -1).chunk(2)
            slope = response.slope(winners - losers)
            information = response.information(winners - losers)
            telling = torch.nonzero(weights * torch.maximum(slope, information) > _DECIDED)[:, 0]
            slopes = _slopes(mixture, y[torch.cat([telling, telling + len(weights)])])
            of_winners, of_losers = slopes.chunk(2)
            change, mass = of_winners - of_losers, weights[telling]
            gradient = gradient + (slope[telling] * mass) @ change
            curvature = curvature + change.T @ (change * (information[telling] * mass)[:, None])
        return gradient, curvature

    def told(self, mixture: Mixture) -> Tensor:
        """n (K,): as much is known of each component's width as n points drawn from it would tell.

        The logarithm of a width known by n points in d dimensions has variance 1/(2nd).
        """
        k, d = mixture.offset.shape
        scales = scales_of(self.derivatives(mixture)[1])
        i, j = torch.triu_indices(d, d)
        of_width = scales.reshape(k, -1, scales.shape[1])[:, 1 + d :][:, i == j].mean(1)
        points: Tensor = 1.0 / (2.0 * d * of_width.square().sum(1))
        return points

    def foretell(self, mixture: Mixture, points: Tensor) -> tuple[Tensor, Tensor]:
        """f(winner) − f(loser) (m,) and its posterior standard deviation at the summit.

        ``points`` (2m, d) are features of m winners, then of their losers. Laplace's
        approximation: slopes of the difference under the inverse curvature. Directions the
        posterior does not feel (a common height) change no difference and are left out.
        """
        scales = scales_of(self.derivatives(mixture)[1])
        differences, spreads = [], []
        winners, losers = points.chunk(2)
        for both in zip(torch.split(winners, _CHUNK), torch.split(losers, _CHUNK), strict=True):
            y = mixture.whitened(torch.cat(both))
            of_winners, of_losers = torch.logsumexp(mixture.forms(y), -1).chunk(2)
            slopes = _slopes(mixture, y).chunk(2)
            differences.append(of_winners - of_losers)
            spreads.append(((slopes[0] - slopes[1]) @ scales).norm(dim=1))
        return torch.cat(differences), torch.cat(spreads)


def _log_correlation_derivatives(inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient (K, P) and minus the Hessian (K, P, P) of log |R| by Δ, at W⁻¹ (K, d, d).

    R is the correlation matrix of covariance (W Wᵀ)⁻¹. With u_j the direction of the j-th column
    of W⁻¹, log |R| changes by Σ_j 2 uᵀΔu − 2(|Δu|² − (uᵀΔu)²), less 2 tr Δ: never bent upwards.
    """
    d = inverse.shape[-1]
    i, j = torch.triu_indices(d, d)
    entry = torch.arange(len(i))
    basis = torch.zeros(len(i), d, d)
    basis[entry, i, j] = basis[entry, j, i] = 1.0
    u = inverse / inverse.norm(dim=1, keepdim=True)
    turned = basis @ u[:, None]  # Δu: (K, P, d, d)
    along = (turned * u[:, None]).sum(2)
    slope = 2.0 * along.sum(-1) - 2.0 * (i == j).float()
    flat = turned.flatten(2)
    return slope, 4.0 * (flat @ flat.mT - along @ along.mT)


def scales_of(curvature: Tensor) -> Tensor:
    """(P, F): times its transpose, the inverse of a curvature on the F directions that are felt."""
    precisions, axes = torch.linalg.eigh(curvature.double())
    felt = precisions > _FELT * precisions[-1]
    scales: Tensor = axes[:, felt] / precisions[felt].sqrt()
    return scales.float()


def _slopes(mixture: Mixture, y: Tensor) -> Tensor:
    """Derivatives (n, P) of f by a mixture's own step, at whitened features (n, K, d)."""
    share = torch.softmax(mixture.forms(y), -1)
    return (share[..., None] * mixture.form_slopes(y)).flatten(1)


def climb(posterior: MixturePosterior, start: Mixture, steps: int) -> tuple[Mixture, float]:
    """The mixture at most ``steps`` damped Newton steps above ``start``, and its log-posterior."""
    mixture, value, damping, fresh = start, posterior.value(start), 0.1, True
    for _ in range(steps):
        if fresh:
            gradient, curvature = (part.double() for part in posterior.derivatives(mixture))
        scale = curvature.diagonal() + 1e-6 * curvature.diagonal().mean()
        step = torch.linalg.solve(curvature + damping * torch.diag(scale), gradient).float()
        proposal = mixture.moved(step * min(1.0, _LONGEST / max(float(step.abs().max()), 1e-12)))
        proposed = posterior.value(proposal)
        fresh = proposed > value
        if fresh:
            gain, mixture, value = proposed - value, proposal, proposed
            damping = max(damping / 4.0, _DAMPINGS[0])
            if gain < _CONVERGED:
                break
        else:
            damping *= 6.0
            if damping > _DAMPINGS[1]:
                break
    return mixture, value
