"""Comparisons of ranges: the likelihood of a belief's power, and a test of the judge's coherence.

A judge with density p_k ∝ exp(k f) judges the plausibility of a range R by its mass. Its log-odds
of R over R' are c (L_k(R) − L_k(R')) + noise, with L_k(R) = log ∫_R exp(k f) and a response scale
c. The log-odds of a judge who attends to typical values, and not to the width of ranges, have
another term: a coefficient of the log-width that cancels the one within L_k.

Masses L_k, and particles for every power k, are computed by annealed sequential Monte Carlo for all
boxes at once. Draws of a normal truncated to each box are moved to exp(k f) for the first power,
then to each further power, by resampling and random-walk Metropolis steps that never leave the box.
The mean weights estimate log ∫ exp(k f) over a box for every power, even for a box of tiny mass.

*Truncated normals.* In every kind of latent coordinates, h = L g + m with L triangular, and each
feature is a function of its own h_j. Under g ~ N(0, I), each coordinate of g given those before it
is drawn from a standard normal truncated to where its feature stays within its bounds (the sampler
of Geweke, Hajivassiliou and Keane). The density of these draws is known in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats
from scipy.stats import qmc
from torch import Tensor

from llm_elicit.density.belief import BeliefDensity
from llm_elicit.density.contrasts import pair_contrasts
from llm_elicit.density.distribution import Coherence
from llm_elicit.density.errors import Array, DensityError, check_finite, check_numbers
from llm_elicit.density.evidence import LogOdds
from llm_elicit.density.latent import Latent
from llm_elicit.density.methods import PotentialDensity
from llm_elicit.density.sampling import LOG_2PI, SamplingDensity, Uniform
from llm_elicit.density.smc import next_increments, systematic_resample

_MAX_SCORE = 30.0  # standard deviations, beyond which λ has no mass in floats

_MIN_EFFECTIVE_SHARE = 0.5
_MOVES = 2
_TARGET_ACCEPTANCE = 0.3
_JITTER = 1e-9


@dataclass(frozen=True)
class TruncatedNormal:
    """A truncated normal for each of G boxes.

    Attributes:
        low, high: (G, d) bounds of h; see `Latent.box_bounds`.
        root: L (d, d).
    """

    low: Tensor
    high: Tensor
    root: Tensor

    @classmethod
    def from_boxes(cls, latent: Latent, boxes: Array) -> TruncatedNormal:
        """Return truncated normals for boxes (G, d, 2), natural units.

        A feature without bounds has (−inf, inf).
        """
        sampling = latent.sampling
        for i, j in np.argwhere(sampling.categorical & np.isfinite(boxes).any(-1)):
            raise DensityError(
                f"ranges: {boxes[i, j].tolist()} bounds feature {j}, whose values are categories "
                "without an order; give (-inf, inf), which means no bounds."
            )
        low, high = latent.box_bounds(boxes)
        root = latent.root
        limit = _MAX_SCORE * np.linalg.norm(root, axis=1)
        empty = np.flatnonzero(~((low < high) & (low < limit) & (high > -limit)).all(1))
        if empty.size:
            raise DensityError(
                f"ranges: box {boxes[empty[0]].tolist()} has no mass under the sampling density; "
                "its bounds must lie within the support."
            )
        return cls(torch.from_numpy(low), torch.from_numpy(high), torch.from_numpy(root))

    def select(self, indices: Tensor) -> TruncatedNormal:
        """Return the distributions of some boxes."""
        return TruncatedNormal(self.low[indices], self.high[indices], self.root)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Return latent points (G, count, d), by the same scrambled Sobol points in all boxes."""
        groups, d = self.low.shape
        sobol = qmc.Sobol(d, rng=int(torch.randint(2**62, (), generator=generator)))
        uniform = torch.from_numpy(sobol.random_base2((count - 1).bit_length())[:count])
        g = torch.zeros(groups, count, d, dtype=torch.float64)
        for j in range(d):
            a, b = self._bounds(g, j)
            # Standard normals within [a, b] by their quantile function, from the nearer tail.
            flip = a > 0
            low, high = torch.where(flip, -b, a), torch.where(flip, -a, b)
            below, above = torch.special.ndtr(low), torch.special.ndtr(high)
            # Far out, both may round to one number; then a uniform draw between the bounds serves.
            normal = torch.special.ndtri(below + uniform[..., j] * (above - below))
            normal = torch.where(normal.isfinite(), normal, low + uniform[..., j] * (high - low))
            normal = torch.minimum(torch.maximum(normal, low), high)
            g[..., j] = torch.where(flip, -normal, normal)
        return g

    def log_density(self, g: Tensor) -> Tensor:
        """Return log-densities (G, N) at latent points (G, N, d) of the boxes."""
        total = -0.5 * (g.square() + LOG_2PI).sum(-1)
        for j in range(g.shape[-1]):
            total = total - _log_mass(*self._bounds(g, j))
        return total

    def _bounds(self, g: Tensor, j: int) -> tuple[Tensor, Tensor]:
        """Return the bounds (G, N) of coordinate j given those before it."""
        shift = g[..., :j] @ self.root[j, :j]
        a, b = ((side[:, j, None] - shift) / self.root[j, j] for side in (self.low, self.high))
        return a.clamp(-_MAX_SCORE, _MAX_SCORE), b.clamp(-_MAX_SCORE, _MAX_SCORE)


def _log_mass(a: Tensor, b: Tensor) -> Tensor:
    """Return log(Φ(b) − Φ(a)), from the nearer tail."""
    flip = a > 0
    low, high = torch.where(flip, -b, a), torch.where(flip, -a, b)
    upper, lower = torch.special.log_ndtr(high), torch.special.log_ndtr(low)
    log_mass: Tensor = upper + torch.log1p(-torch.exp((lower - upper).clamp(max=-1e-300)))
    return log_mass


@dataclass(frozen=True)
class PowerPath:
    """Masses and particles of exp(k f) within G boxes, at K powers.

    Attributes:
        log_mass: (G, K) log ∫ exp(k f) dz over each box, nats.
        points: K tensors (G, N, d) of latent particles.
    """

    log_mass: Array
    points: tuple[Tensor, ...]


def anneal_powers(
    model: PotentialDensity, boxes: Array, powers: Array, particles: int, generator: torch.Generator
) -> PowerPath:
    """Return particles in boxes (G, d, 2), natural units, along increasing powers (K,)."""
    particles_in_boxes = _Particles(model, boxes, particles, generator)
    masses, points = [], []
    for power in powers:
        particles_in_boxes.anneal(float(power))
        masses.append(particles_in_boxes.log_mass.clone())
        points.append(particles_in_boxes.points.clone())
    return PowerPath(torch.stack(masses, 1).numpy(), tuple(points))


class _Particles:
    """Particles (G, N, d) of every box at one power, and the log-masses (G,).

    ``values`` are, for each particle (G, N): the utility f; the rest of the log-density, taper and
    volume; and the log-density of the truncated normal.
    """

    def __init__(
        self, model: PotentialDensity, boxes: Array, particles: int, generator: torch.Generator
    ) -> None:
        self.latent, self.utility, self.generator = model.latent, model.utility, generator
        self.boxes, self.within = boxes, TruncatedNormal.from_boxes(model.latent, boxes)
        self.points = self.within.draw(particles, generator)
        self.values = self._evaluate(self.points, self.within)
        self.log_mass = torch.zeros(len(boxes), dtype=torch.float64)
        self.power = 0.0  # before the first power the particles are those of the truncated normal
        self.step = torch.full((len(boxes),), 2.4 / math.sqrt(boxes.shape[1]), dtype=torch.float64)

    def _evaluate(self, points: Tensor, within: TruncatedNormal) -> tuple[Tensor, ...]:
        flat = points.reshape(-1, points.shape[-1])
        value = self.utility(self.latent.features(flat))
        base = self.latent.taper(flat) + self.latent.log_volume(flat)
        shape = points.shape[:-1]
        return value.reshape(shape), base.reshape(shape), within.log_density(points)

    def _log_densities(self, power: float, values: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the log-densities (G, N) at the present power and at the next one."""
        utility, base, start = values
        current = start if self.power == 0.0 else self.power * utility + base
        return current, power * utility + base

    def anneal(self, power: float) -> None:
        """Move the particles of all boxes to this power, by steps of weights and moves."""
        progress = torch.zeros(len(self.boxes), dtype=torch.float64)
        while bool((progress < 1.0).any()):
            active = torch.nonzero(progress < 1.0)[:, 0]
            first, last = self._log_densities(power, [value[active] for value in self.values])
            remaining = 1.0 - progress[active]
            increment = next_increments(last - first, remaining, _MIN_EFFECTIVE_SHARE)
            log_weights = increment[:, None] * (last - first)
            mean_weights = torch.logsumexp(log_weights, 1) - math.log(log_weights.shape[1])
            self.log_mass[active] += mean_weights
            progress[active] = torch.where(
                increment >= remaining, 1.0, progress[active] + increment
            )
            index = systematic_resample(log_weights, self.generator)
            self.points[active] = torch.take_along_dim(self.points[active], index[..., None], 1)
            for values in self.values:
                values[active] = torch.take_along_dim(values[active], index, 1)
            for _ in range(_MOVES):
                self._move(active, progress[active], power)
        self.power = power

    def _move(self, active: Tensor, done: Tensor, power: float) -> None:
        """Make one random-walk Metropolis step, scaled by the covariance within each box."""
        points = self.points[active]
        # The same random numbers in all boxes: differences of their log-masses vary less.
        white = torch.randn(points.shape[1:], generator=self.generator, dtype=torch.float64)
        centred = points - points.mean(1, keepdim=True)
        covariance = centred.mT @ centred / points.shape[1]
        diagonal = covariance.diagonal(dim1=1, dim2=2)
        # Kept away from singular.
        root = torch.linalg.cholesky(covariance + torch.diag_embed(0.02 * diagonal + _JITTER))
        proposal = points + self.step[active][:, None, None] * (white @ root.mT)
        boxes = self.boxes[active.numpy()][:, None]
        x = self.latent.from_latent(proposal.flatten(0, 1).numpy()).reshape(proposal.shape)
        inside = torch.from_numpy(((x >= boxes[..., 0]) & (x <= boxes[..., 1])).all(-1))
        proposal = torch.where(inside[..., None], proposal, points)
        values = self._evaluate(proposal, self.within.select(active))
        proposed, present = (
            torch.lerp(*self._log_densities(power, ends), done[:, None])
            for ends in (values, [value[active] for value in self.values])
        )
        acceptance = torch.exp((proposed - present).clamp(max=0.0)).nan_to_num(0.0) * inside
        uniform = torch.rand(acceptance.shape[1:], generator=self.generator, dtype=torch.float64)
        accepted = uniform < acceptance
        self.points[active] = torch.where(accepted[..., None], proposal, points)
        for current, moved in zip(self.values, values, strict=True):
            current[active] = torch.where(accepted, moved, current[active])
        step_change = torch.exp(acceptance.mean(1) - _TARGET_ACCEPTANCE)
        self.step[active] = (self.step[active] * step_change).clamp(1e-3, 5.0)


def whole_space(dimension: int) -> Array:
    """Return the box (1, d, 2) of the whole space."""
    return np.tile([-np.inf, np.inf], (1, dimension, 1))


PathFunction = Callable[[Array, Array, int], PowerPath]
DeviationFunction = Callable[[torch.Tensor], Array]

_PARTICLES = 128
_AVERAGED_PARTICLES = 32  # of them, for means of functions that vary little within a range
_SCALE_SD = 1.0  # prior sd of log(c k), which is 0 if points and ranges are judged alike
_NOISE_SD = 1.0  # prior sd of log(noise of a range's log-odds / that of a point's)
_ANY_NOISE_SD = 2.0  # the same if the noise of a point's log-odds is unknown
_MAX_NEWTON_STEPS, _DIFFERENCE_STEP = 50, 1e-3
_STEP_LENGTHS = np.array([1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 1e-3, 0.0])  # of Newton's method


@dataclass(frozen=True)
class Ranges:
    """n comparisons of two ranges, one row per question; the other order is another row.

    Args:
        first: (n, d, 2) the lower and upper bounds of each feature in the range shown first,
            natural units; a free feature has (−inf, inf).
        second: (n, d, 2) the same of the range shown second.
        log_odds: (n,) log P(first) / P(second), nats.

    Raises:
        DensityError: shapes that do not fit, log-odds that are not finite, or reversed bounds.

    Examples:
        >>> free = (-float("inf"), float("inf"))
        >>> ranges = Ranges([[(50, 55), free]], [[(60, 80), free]], [-0.4])
        >>> ranges.first.shape
        (1, 2, 2)
    """

    first: Array
    second: Array
    log_odds: Array

    def __repr__(self) -> str:
        return f"Ranges({len(self.log_odds)} questions on {self.first.shape[1]} features)"

    def __init__(
        self, first: npt.ArrayLike, second: npt.ArrayLike, log_odds: npt.ArrayLike
    ) -> None:
        a, b = check_numbers("Ranges: first", first), check_numbers("Ranges: second", second)
        if a.ndim != 3 or a.shape[2] != 2 or a.shape != b.shape or 0 in a.shape:
            raise DensityError(
                f"Ranges: first has shape {a.shape} and second {b.shape}; both are (n, d, 2),"
                " the bounds of every feature of every range."
            )
        value = check_finite("Ranges: log_odds", log_odds)
        if value.shape != (len(a),):
            raise DensityError(
                f"Ranges: log_odds has shape {value.shape}; one number per question is needed, "
                f"shape ({len(a)},)."
            )
        for name, side in (("first", a), ("second", b)):
            wrong = np.argwhere(~(side[..., 0] < side[..., 1]))
            if wrong.size:
                i, j = wrong[0]
                raise DensityError(
                    f"Ranges: {name}[{i}] has the bounds {side[i, j].tolist()} of feature {j}; the "
                    "lower bound comes first and lies below the upper one."
                )
            object.__setattr__(self, name, side)
        object.__setattr__(self, "log_odds", value)

    def __len__(self) -> int:
        return len(self.log_odds)


class RangeLikelihood:
    """The likelihood of the log-odds of ranges, at any powers.

    It has two more parameters, θ = (log c k, log noise), with normal priors. They are integrated
    out by Laplace's method.
    """

    def __init__(
        self,
        ranges: Ranges,
        belief: BeliefDensity,
        paths: PathFunction,
        deviations: DeviationFunction,
    ) -> None:
        n, d, sampling = len(ranges), belief.dimension, belief.sampling
        if ranges.first.shape[1] != d:
            raise DensityError(
                f"fit_power: ranges of {ranges.first.shape[1]} features, and the belief has {d}; "
                "give (-inf, inf) for a free feature."
            )
        for name, side in (("first", ranges.first), ("second", ranges.second)):
            slack = 1e-9 * (sampling.high - sampling.low)
            below = side < (sampling.low - slack)[:, None]
            above = side > (sampling.high + slack)[:, None]
            is_outside = np.isfinite(side) & (below | above) & isinstance(sampling, Uniform)
            for i, j, _ in np.argwhere(is_outside):
                raise DensityError(
                    f"fit_power: ranges.{name}[{i}] has the bounds {side[i, j].tolist()} of feature"
                    f" {j}, outside the range asked about, {sampling.low[j]} to "
                    f"{sampling.high[j]}; use (-inf, inf) for a free feature."
                )
        first, second = (side.reshape(n, 2 * d) for side in (ranges.first, ranges.second))
        rows = LogOdds.exact(first, second, ranges.log_odds)
        pairs = pair_contrasts(rows)
        if len(pairs) < 3:
            raise DensityError(
                f"fit_power: {len(pairs)} pairs of ranges; at least three different pairs are "
                "needed; ask more."
            )
        self.paths, self.deviations = paths, deviations
        self._cache: dict[tuple[float, ...], list[_WhitenedRegression]] = {}
        # Half differences of both orders are free of the position effect; a single order is not.
        self.side, self.share = pairs.position_coefficient, np.sqrt(2.0 * pairs.dispersion_share)
        self.value = pairs.value
        boxes, index = np.unique(np.concatenate([pairs.a, pairs.b]), axis=0, return_inverse=True)
        self.boxes = boxes.reshape(-1, d, 2)
        self.first_index, self.second_index = np.split(index.reshape(-1), 2)
        width = _log_widths(self.boxes, sampling)
        self.width = width[self.first_index] - width[self.second_index]
        # Prior means and standard deviations (2,) of θ. The dispersion is that of one log-odds, and
        # half differences have less by √2.
        size = max(float(np.sqrt(np.mean(self.value**2))), 1e-12)
        dispersion = float(belief.diagnostics.get("response", {}).get("dispersion", np.nan))
        noise, noise_sd = 0.3 * size, _ANY_NOISE_SD
        if dispersion > 0.0:
            noise, noise_sd = dispersion / np.sqrt(2.0), _NOISE_SD
        self.prior = np.array([0.0, np.log(noise)]), np.array([_SCALE_SD, noise_sd])

    def log_likelihood(self, powers: Array) -> Array:
        """Return log p(log-odds | k) (K,), with θ integrated out."""
        return np.array([at.find_mode().integral for at in self._regressions(powers)])

    def coherence(self, powers: Array) -> Coherence | None:
        """Return the test of the coefficient of log-width; None if widths are infinite or equal.

        ``powers`` (K,) must include the likely ones.
        """
        if not (np.isfinite(self.width).all() and float(np.ptp(self.width)) > 1e-9):
            return None
        rows = self._regressions(powers)
        bound_values = [row.find_mode().value for row in rows]
        maxima = [row.with_free_width().find_mode() for row in rows]
        free_values = [maximum.value for maximum in maxima]
        best = maxima[int(np.argmax(free_values))]
        k = powers[int(np.argmax(free_values))]
        free_maximum = _interpolate_maximum(powers, free_values)
        gain = max(free_maximum - _interpolate_maximum(powers, bound_values), 0.0)
        freedom = max(len(self.value) - 4, 1)
        statistic = freedom * np.expm1(2.0 * gain / len(self.value))
        p_value = float(stats.f.sf(statistic, 1, freedom))
        expected = float(np.exp(best.theta[0]) / k)
        half_width = float(stats.t.ppf(0.975, freedom) * best.standard_errors[-1])
        width = expected + float(best.coefficients[-1])
        return Coherence((width, width - half_width, width + half_width), expected, p_value)

    def _regressions(self, powers: Array) -> list[_WhitenedRegression]:
        """Return the measurements at each of the powers, computed once for equal powers."""
        key = tuple(powers.tolist())
        if key in self._cache:
            return self._cache[key]
        path = self.paths(self.boxes, powers, _PARTICLES)
        rows = self._cache[key] = []
        for index, points in enumerate(path.points):
            averaged = points[:, :_AVERAGED_PARTICLES]
            flat = self.deviations(averaged.reshape(-1, averaged.shape[-1]))
            mean = flat.reshape(len(flat), *averaged.shape[:2]).mean(-1)  # (S, G), in each box
            differences = mean[:, self.first_index] - mean[:, self.second_index]
            deviations = differences.T / self.share[:, None]
            log_mass = path.log_mass[:, index]
            mass = log_mass[self.first_index] - log_mass[self.second_index]
            power = float(powers[index])
            rows.append(_WhitenedRegression.whiten(self, power, mass, deviations))
        return rows


@dataclass(frozen=True)
class _Mode:
    """The mode of θ (2,), its log-posterior, the log-likelihood with θ integrated out, and the
    coefficients of the effects (q,) with their standard errors.
    """

    theta: Array
    value: float
    integral: float
    coefficients: Array
    standard_errors: Array


@dataclass(frozen=True)
class _WhitenedRegression:
    """n measurements at one power, along axes on which they are independent.

    ``value``, ``mass``, ``width`` (n,) have unit noise, and so have the columns ``effects`` (n, q):
    that of the position effect, if there is one, and of log-width, if its coefficient is free.
    ``variance`` (n,) comes from the uncertainty of the utility, for c k = 1.
    """

    power: float
    value: Array
    mass: Array
    width: Array
    effects: Array
    variance: Array
    prior: tuple[Array, Array]

    @classmethod
    def whiten(
        cls, likelihood: RangeLikelihood, power: float, mass: Array, spread: Array
    ) -> _WhitenedRegression:
        variance, axes = np.linalg.eigh(spread @ spread.T)
        columns = (likelihood.value, mass, likelihood.width, likelihood.side)
        value, mass, width, side = (axes.T @ (column / likelihood.share) for column in columns)
        effects, positive = side[:, None][:, : bool(side.any())], np.maximum(variance, 0.0)
        return cls(power, value, mass, width, effects, positive, likelihood.prior)

    def with_free_width(self) -> _WhitenedRegression:
        """Return the same with a free coefficient of log-width."""
        return replace(self, effects=np.column_stack([self.effects, self.width]))

    def find_mode(self) -> _Mode:
        """Return the mode, by Newton's method from a least-squares fit."""
        design = np.column_stack([self.mass, self.effects])
        beta = np.linalg.lstsq(design, self.value, rcond=None)[0]
        e = self.value - design @ beta
        mean, sd = self.prior
        # A negative scale means that the answers do not follow the masses: start from a small one.
        scale = max(float(beta[0]) * self.power, float(np.exp(mean[0] - 2.0 * sd[0])))
        noise = 0.5 * np.log(np.mean(e**2) + np.exp(2.0 * mean[1] - 6))
        theta, curvature = np.array([np.log(scale), noise]), np.eye(2)
        for _ in range(_MAX_NEWTON_STEPS):
            gradient, curvature = self._derivatives(theta)
            step = np.linalg.solve(curvature, gradient)
            candidates = theta + np.outer(_STEP_LENGTHS, step.clip(-1.0, 1.0))
            best = int(self._log_posteriors(candidates)[0].argmax())
            theta = candidates[best]
            if _STEP_LENGTHS[best] * float(abs(step).max()) < 1e-5:
                break
        (log_posterior,), (coefficients,), (errors,) = self._log_posteriors(theta[None])
        integral = log_posterior + np.log(2.0 * np.pi) - 0.5 * np.linalg.slogdet(curvature)[1]
        return _Mode(theta, float(log_posterior), float(integral), coefficients, errors)

    def _derivatives(self, theta: Array) -> tuple[Array, Array]:
        """Return the gradient (2,) and minus the Hessian (2, 2), made positive definite."""
        steps = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, -1]])
        values = self._log_posteriors(theta + _DIFFERENCE_STEP * steps)[0]
        centre, right, left, up, down, both_up, both_down = values
        gradient = np.array([right - left, up - down]) / (2.0 * _DIFFERENCE_STEP)
        second = 2.0 * centre - np.array([right + left, up + down])
        mixed = -0.5 * (both_up + both_down - right - left - up - down + 2.0 * centre)
        hessian = np.array([[second[0], mixed], [mixed, second[1]]]) / _DIFFERENCE_STEP**2
        eigenvalues, vectors = np.linalg.eigh(hessian)
        return gradient, (vectors * np.maximum(eigenvalues, 0.1)) @ vectors.T

    def _log_posteriors(self, theta: Array) -> tuple[Array, Array, Array]:
        """Return log-posteriors (m,) at θ (m, 2), and the effects' coefficients and errors (m, q).

        The coefficients are generalized least squares estimates.
        """
        scale, noise = np.exp(theta[:, :1]), np.exp(theta[:, 1:])
        variance = scale**2 * self.variance + noise**2  # (m, n)
        weight = 1.0 / variance
        residual = self.value - scale / self.power * self.mass
        logs = -0.5 * (weight * residual**2 + np.log(variance)).sum(1)
        mean, sd = self.prior
        logs = logs - 0.5 * np.square((theta - mean) / sd).sum(1)
        design = self.effects
        information = np.einsum("mr,rp,rq->mpq", weight, design, design)
        weighted_sum = np.einsum("mr,mr,rp->mp", weight, residual, design)
        inverse = np.linalg.pinv(information, hermitian=True)
        beta = np.einsum("mpq,mq->mp", inverse, weighted_sum)
        logs = logs + 0.5 * np.einsum("mp,mp->m", beta, weighted_sum)
        return logs, beta, np.sqrt(np.diagonal(inverse, axis1=1, axis2=2))


def _interpolate_maximum(powers: Array, values: list[float]) -> float:
    """Return the maximum of a curve over log-powers, by a parabola through the highest nodes."""
    highest = int(np.clip(np.argmax(values), 1, len(values) - 2))
    neighbours = slice(highest - 1, highest + 2)
    x = np.log(powers[neighbours] / powers[highest])
    curvature, slope, height = np.polyfit(x, np.asarray(values)[neighbours], 2)
    if curvature >= 0.0 or not x[0] < -slope / (2.0 * curvature) < x[2]:
        return float(np.max(values))
    return float(height - slope**2 / (4.0 * curvature))


def _log_widths(boxes: Array, sampling: SamplingDensity) -> Array:
    """Return log-volumes (G,) of boxes on the features' scales; a free one has its whole range."""
    if isinstance(sampling, Uniform):
        cube = sampling.box_to_cube(boxes)
        return np.asarray(np.log(cube[..., 1] - cube[..., 0]).sum(1))
    low, high = boxes[..., 0], boxes[..., 1]
    free = np.isinf(low) & np.isinf(high)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(free, 0.0, np.log(high - low)).sum(1))
