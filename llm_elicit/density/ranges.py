"""Comparisons of ranges: the likelihood of a belief's power, and a test of the judge's coherence.

A judge with density p_k ∝ exp(k f) finds a range R as plausible as its mass. Its log-odds of R over
R' are c (L_k(R) − L_k(R')) + noise, with L_k(R) = log ∫_R exp(k f) and some response scale c. The
log-odds of a judge who attends to typical values, and not to the width of ranges, have another
term: a coefficient of the log-width that cancels the one within L_k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats

from llm_elicit.density.belief import BeliefDensity
from llm_elicit.density.errors import DensityError, finite, numbers
from llm_elicit.density.log_odds import LogOdds, pair_contrasts
from llm_elicit.density.power_path import PowerPath, unique_boxes
from llm_elicit.density.sampling import SamplingDensity
from llm_elicit.density.summaries import Coherence
from llm_elicit.density.uniform import Uniform

Array = npt.NDArray[np.float64]
Paths = Callable[[Array, Array, int], PowerPath]
Deviations = Callable[[torch.Tensor], Array]

_PARTICLES = 128
_AVERAGED = 32  # of them, for means of functions that vary little within a range
_SCALE_SD = 1.0  # prior sd of log(c k), which is 0 if points and ranges are judged alike
_NOISE_SD = 1.0  # prior sd of log(noise of a range's log-odds / that of a point's)
_ANY_NOISE_SD = 2.0  # the same if the noise of a point's log-odds is unknown
_NEWTON, _STEP = 50, 1e-3
_SHARES = np.array([1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 1e-3, 0.0])  # step lengths of Newton's method


@dataclass(frozen=True)
class Ranges:
    """n comparisons of two ranges, one row per question; the other order is another row.

    Args:
        first, second: (n, d, 2) the lower and upper bounds of each feature, natural units; a free
            feature has (−inf, inf).
        log_odds: (n,) log P(first) / P(second), nats.

    Raises:
        DensityError: shapes that do not fit, log-odds that are not finite, or reversed bounds.

    Example:
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
        a, b = numbers("Ranges: first", first), numbers("Ranges: second", second)
        if a.ndim != 3 or a.shape[2] != 2 or a.shape != b.shape or 0 in a.shape:
            raise DensityError(
                f"Ranges: first has shape {a.shape} and second {b.shape}; both are (n, d, 2),"
                " the bounds of every feature of every range."
            )
        value = finite("Ranges: log_odds", log_odds)
        if value.shape != (len(a),):
            raise DensityError(
                f"Ranges: log_odds has shape {value.shape}; one number per question is needed, "
                f"shape ({len(a)},)."
            )
        for name, side in (("first", a), ("second", b)):
            _check_bounds(name, side)
            object.__setattr__(self, name, side)
        object.__setattr__(self, "log_odds", value)

    def __len__(self) -> int:
        return len(self.log_odds)


def _check_bounds(name: str, side: Array) -> None:
    wrong = np.argwhere(~(side[..., 0] < side[..., 1]))
    if wrong.size:
        i, j = wrong[0]
        raise DensityError(
            f"Ranges: {name}[{i}] has the bounds {side[i, j].tolist()} of feature {j}; the "
            "lower bound comes first and lies below the upper one."
        )


class RangeLikelihood:
    """The likelihood of the log-odds of ranges, at any powers.

    It has two more parameters, θ = (log c k, log noise), with normal priors. They are integrated
    out by Laplace's method.
    """

    def __init__(
        self, ranges: Ranges, belief: BeliefDensity, paths: Paths, deviations: Deviations
    ) -> None:
        _check(ranges, belief.sampling)
        n, d = len(ranges), belief.dimension
        first, second = (side.reshape(n, 2 * d) for side in (ranges.first, ranges.second))
        rows = LogOdds.of(first, second, ranges.log_odds)
        pairs = pair_contrasts(rows)
        if len(pairs) < 3:
            raise DensityError(
                f"fit_power: {len(pairs)} pairs of ranges; at least three different ones are "
                "needed; ask more."
            )
        self.paths, self.deviations = paths, deviations
        self._made: dict[tuple[float, ...], list[_Rows]] = {}
        # Half differences of both orders are free of the position effect; a single order is not.
        self.side, self.share = pairs.side, np.sqrt(2.0 * pairs.share)
        self.value = pairs.value
        boxes = [side.reshape(-1, d, 2) for side in (pairs.a, pairs.b)]
        self.boxes, index = unique_boxes(boxes)
        self.one, self.other = np.split(index, 2)
        width = _log_widths(self.boxes, belief.sampling)
        self.width = width[self.one] - width[self.other]
        self.prior = _prior(self.value, belief)

    @property
    def widths_differ(self) -> bool:
        """Whether widths are finite and differ."""
        return bool(np.isfinite(self.width).all() and float(np.ptp(self.width)) > 1e-9)

    def curve(self, powers: Array) -> Array:
        """Return log p(log-odds | k) (K,), with θ integrated out."""
        return np.array([at.maximum(free=False).integral for at in self._rows(powers)])

    def coherence(self, powers: Array) -> Coherence | None:
        """Return the test of the coefficient of log-width; None if widths are infinite or equal.

        ``powers`` (K,) must include the likely ones.
        """
        if not self.widths_differ:
            return None
        rows = self._rows(powers)
        bound = [row.maximum(free=False).value for row in rows]
        maxima = [row.maximum(free=True) for row in rows]
        free = [maximum.value for maximum in maxima]
        best = maxima[int(np.argmax(free))]
        k = powers[int(np.argmax(free))]
        ratio = 2.0 * max(_top(powers, free) - _top(powers, bound), 0.0)
        freedom = max(len(self.value) - 4, 1)
        p_value = float(stats.f.sf(freedom * np.expm1(ratio / len(self.value)), 1, freedom))
        expected = float(np.exp(best.theta[0]) / k)
        half = float(stats.t.ppf(0.975, freedom)) * best.error
        width = expected + best.coefficient
        return Coherence((width, width - half, width + half), expected, p_value)

    def _rows(self, powers: Array) -> list[_Rows]:
        """Return the measurements at each of the powers, computed once for equal powers."""
        key = tuple(powers.tolist())
        if key not in self._made:
            self._made[key] = self._make_rows(powers)
        return self._made[key]

    def _make_rows(self, powers: Array) -> list[_Rows]:
        path = self.paths(self.boxes, powers, _PARTICLES)
        rows = []
        for at, points in enumerate(path.points):
            mean = _means(self.deviations, points[:, :_AVERAGED])
            spread = (mean[:, self.one] - mean[:, self.other]).T / self.share[:, None]
            mass = path.log_mass[self.one, at] - path.log_mass[self.other, at]
            rows.append(_Rows.of(self, float(powers[at]), mass, spread))
        return rows


@dataclass(frozen=True)
class _Maximum:
    """The mode of θ (2,), its log-posterior, the log-likelihood with θ integrated out, and the
    coefficient of log-width with its standard error, both 0 if it is not free.
    """

    theta: Array
    value: float
    integral: float
    coefficient: float
    error: float


@dataclass(frozen=True)
class _Rows:
    """n measurements at one power, along axes on which they are independent.

    ``value``, ``mass``, ``width``, ``side`` (n,) have unit noise; ``variance`` (n,) comes from the
    uncertainty of the utility, for c k = 1.
    """

    power: float
    value: Array
    mass: Array
    width: Array
    side: Array
    variance: Array
    prior: tuple[Array, Array]

    @classmethod
    def of(cls, likelihood: RangeLikelihood, power: float, mass: Array, spread: Array) -> _Rows:
        variance, axes = np.linalg.eigh(spread @ spread.T)
        columns = (likelihood.value, mass, likelihood.width, likelihood.side)
        value, mass, width, side = (axes.T @ (column / likelihood.share) for column in columns)
        return cls(power, value, mass, width, side, np.maximum(variance, 0.0), likelihood.prior)

    def maximum(self, *, free: bool) -> _Maximum:
        """Return the mode, by Newton's method from a least-squares fit."""
        theta = self._start(free=free)
        curvature = np.eye(2)
        for _ in range(_NEWTON):
            slope, curvature = self._slope(theta, free=free)
            step = np.linalg.solve(curvature, slope)
            candidates = theta + np.outer(_SHARES, step.clip(-1.0, 1.0))
            best = int(self._logs(candidates, free=free)[0].argmax())
            theta = candidates[best]
            if _SHARES[best] * float(abs(step).max()) < 1e-5:
                break
        logs, coefficients, errors = (float(v[0]) for v in self._logs(theta[None], free=free))
        integral = logs + np.log(2.0 * np.pi) - 0.5 * np.linalg.slogdet(curvature)[1]
        return _Maximum(theta, logs, float(integral), coefficients, errors)

    def _effects(self, *, free: bool) -> list[Array]:
        """Return the columns (n,) of the position effect, if there is one, and of log-width."""
        return [self.side] * bool(self.side.any()) + [self.width] * free

    def _start(self, *, free: bool) -> Array:
        """Return θ by least squares."""
        design = np.stack([self.mass, *self._effects(free=free)], -1)
        beta = np.linalg.lstsq(design, self.value, rcond=None)[0]
        e = self.value - design @ beta
        mean, sd = self.prior
        # A negative scale means that the answers do not follow the masses: start from a small one.
        scale = max(float(beta[0]) * self.power, float(np.exp(mean[0] - 2.0 * sd[0])))
        return np.array([np.log(scale), 0.5 * np.log(np.mean(e**2) + np.exp(2.0 * mean[1] - 6))])

    def _slope(self, theta: Array, *, free: bool) -> tuple[Array, Array]:
        """Return the gradient (2,) and minus the Hessian (2, 2), made positive definite."""
        moves = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, -1]])
        at = self._logs(theta + _STEP * moves, free=free)[0]
        slope = np.array([at[1] - at[2], at[3] - at[4]]) / (2.0 * _STEP)
        twice = 2.0 * at[0] - np.array([at[1] + at[2], at[3] + at[4]])
        crossed = -0.5 * (at[5] + at[6] - at[1] - at[2] - at[3] - at[4] + 2.0 * at[0])
        hessian = np.array([[twice[0], crossed], [crossed, twice[1]]]) / _STEP**2
        values, vectors = np.linalg.eigh(hessian)
        return slope, (vectors * np.maximum(values, 0.1)) @ vectors.T

    def _logs(self, theta: Array, *, free: bool) -> tuple[Array, Array, Array]:
        """Return log-posteriors (m,) at θ (m, 2), and the coefficient of log-width and its error.

        If ``free``, that coefficient is fitted by generalized least squares; otherwise both are 0.
        """
        scale, noise = np.exp(theta[:, :1]), np.exp(theta[:, 1:])
        variance = scale**2 * self.variance + noise**2  # (m, n)
        weight = 1.0 / variance
        residual = self.value - scale / self.power * self.mass
        effects = self._effects(free=free)
        logs = -0.5 * (weight * residual**2 + np.log(variance)).sum(1)
        mean, sd = self.prior
        logs = logs - 0.5 * np.square((theta - mean) / sd).sum(1)
        none = np.zeros(len(theta))
        if not effects:
            return logs, none, none
        design = np.stack(effects, -1)
        information = np.einsum("mr,rp,rq->mpq", weight, design, design)
        pull = np.einsum("mr,mr,rp->mp", weight, residual, design)
        inverse = np.linalg.pinv(information, hermitian=True)
        beta = np.einsum("mpq,mq->mp", inverse, pull)
        logs = logs + 0.5 * np.einsum("mp,mp->m", beta, pull)
        if not free:
            return logs, none, none
        return logs, beta[:, -1], np.sqrt(inverse[:, -1, -1])


def _prior(value: Array, belief: BeliefDensity) -> tuple[Array, Array]:
    """Return the prior means and standard deviations (2,) of θ."""
    size = max(float(np.sqrt(np.mean(value**2))), 1e-12)
    noise, noise_sd = 0.3 * size, _ANY_NOISE_SD
    dispersion = float(belief.diagnostics.get("response", {}).get("dispersion", np.nan))
    if dispersion > 0.0:
        # The dispersion is that of one log-odds; half differences have 1/√2 of it.
        noise, noise_sd = dispersion / np.sqrt(2.0), _NOISE_SD
    return np.array([0.0, np.log(noise)]), np.array([_SCALE_SD, noise_sd])


def _top(powers: Array, values: list[float]) -> float:
    """Return the maximum of a curve over log-powers, by a parabola through the highest nodes."""
    at = int(np.clip(np.argmax(values), 1, len(values) - 2))
    near = slice(at - 1, at + 2)
    x = np.log(powers[near] / powers[at])
    bend, slope, height = np.polyfit(x, np.asarray(values)[near], 2)
    if bend >= 0.0 or not x[0] < -slope / (2.0 * bend) < x[2]:
        return float(np.max(values))
    return float(height - slope**2 / (4.0 * bend))


def _means(deviations: Deviations, points: torch.Tensor) -> Array:
    """Return mean deviations (S, G) of particles (G, N, d) in each box."""
    flat = deviations(points.reshape(-1, points.shape[-1]))
    return np.asarray(flat.reshape(len(flat), *points.shape[:2]).mean(-1))


def _check(ranges: Ranges, sampling: SamplingDensity) -> None:
    d = sampling.dimension
    if ranges.first.shape[1] != d:
        raise DensityError(
            f"fit_power: ranges of {ranges.first.shape[1]} features, and the belief has {d}; give "
            "(-inf, inf) for a free feature."
        )
    if not isinstance(sampling, Uniform):
        return
    for name, side in (("first", ranges.first), ("second", ranges.second)):
        slack = 1e-9 * (sampling.high - sampling.low)
        out = np.isfinite(side) & (
            (side < (sampling.low - slack)[:, None]) | (side > (sampling.high + slack)[:, None])
        )
        if out.any():
            i, j = np.argwhere(out)[0][:2]
            raise DensityError(
                f"fit_power: ranges.{name}[{i}] has the bounds {side[i, j].tolist()} of feature {j}"
                f", outside the range asked about, {sampling.low[j]} to {sampling.high[j]}; use "
                "(-inf, inf) for a free feature."
            )


def _log_widths(boxes: Array, sampling: SamplingDensity) -> Array:
    """Return log-volumes (G,) of boxes on the features' scales; a free one has its whole range."""
    if isinstance(sampling, Uniform):
        cube = sampling.edges(boxes)
        return np.asarray(np.log(cube[..., 1] - cube[..., 0]).sum(1))
    low, high = boxes[..., 0], boxes[..., 1]
    free = np.isinf(low) & np.isinf(high)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(free, 0.0, np.log(high - low)).sum(1))
