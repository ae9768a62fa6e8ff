"""Comparisons of ranges: what they say of a belief's power, and of the judge's coherence.

The holder of a density p_k ∝ exp(k f) finds a range R as plausible as its mass, so that its
log-odds of R over R' are c (L_k(R) − L_k(R')) + noise, L_k(R) = log ∫_R exp(k f), for some response
scale c. A judge who goes by the values alone and not by how many there are does not: beside
L_k, the log-width of a range then has a coefficient of its own that cancels that of L_k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats
from scipy.special import logsumexp

from llm_elicit.density.belief import BeliefDensity
from llm_elicit.density.errors import DensityError
from llm_elicit.density.log_odds import LogOdds, pair_contrasts
from llm_elicit.density.power_path import PowerPath, log_grid, unique_boxes
from llm_elicit.density.sampling import SamplingDensity, Uniform

Array = npt.NDArray[np.float64]
Paths = Callable[[Array, int], PowerPath]
Deviations = Callable[[torch.Tensor], Array]

_PARTICLES = 128
_SCALES, _NOISES = 41, 21
_SCALE_SD = 2.0  # prior standard deviation of log(c k): a judge of points and ranges alike has 0
_NOISE_SD = 1.0  # of log(noise of a range's log-odds / that of a point's)
_LEVEL = 0.05


@dataclass(frozen=True)
class Ranges:
    """n comparisons of two ranges, one row a question; the other order is another row.

    ``first``, ``second`` (n, d, 2): the lower and upper bounds of each feature, natural units; a
    feature that is left free has (−inf, inf). ``log_odds`` (n,) is log P(first) / P(second).

    Raises
    ------
    DensityError : shapes that do not fit, log-odds that are not finite, or reversed bounds.

    Examples
    --------
    >>> free = (-float("inf"), float("inf"))
    >>> ranges = Ranges([[(50, 55), free]], [[(60, 80), free]], [-0.4])
    >>> ranges.first.shape
    (1, 2, 2)
    """

    first: Array
    second: Array
    log_odds: Array

    def __init__(
        self, first: npt.ArrayLike, second: npt.ArrayLike, log_odds: npt.ArrayLike
    ) -> None:
        try:
            arrays = [np.asarray(each, dtype=np.float64) for each in (first, second, log_odds)]
        except (TypeError, ValueError) as error:
            raise DensityError(f"Ranges: cannot be read as numbers ({error}).") from error
        one, other, value = arrays
        if one.ndim != 3 or one.shape[2] != 2 or one.shape != other.shape or 0 in one.shape:
            raise DensityError(
                f"Ranges: first has shape {one.shape} and second {other.shape}; both are (n, d, 2),"
                " the bounds of every feature of every range."
            )
        if value.shape != (len(one),):
            raise DensityError(
                f"Ranges: log_odds has shape {value.shape}; one number a question is needed, "
                f"shape ({len(one)},)."
            )
        bad = np.flatnonzero(~np.isfinite(value))
        if bad.size:
            raise DensityError(
                f"Ranges: log_odds[{bad[0]}] is {value[bad[0]]}; every value must be finite."
            )
        for name, side in (("first", one), ("second", other)):
            wrong = np.argwhere(~(side[..., 0] < side[..., 1]))
            if wrong.size:
                i, j = wrong[0]
                raise DensityError(
                    f"Ranges: {name}[{i}] has the bounds {side[i, j].tolist()} of feature {j}; the "
                    "lower bound comes first and lies below the upper one."
                )
        for name, array in zip(("first", "second", "log_odds"), arrays, strict=True):
            object.__setattr__(self, name, array)

    def __len__(self) -> int:
        return len(self.log_odds)


@dataclass(frozen=True)
class Coherence:
    """How a judge reacts to the width of ranges.

    ``width`` (value, low, high) is the coefficient of the difference of log-widths in the log-odds,
    beside the mean density within the ranges, with its 95 % interval; ``expected`` what a holder of
    a density who answers alike otherwise would have; ``p_value`` of the test that the judge is one.
    ``coherent`` is False where that is refused at 5 %.
    """

    width: tuple[float, float, float]
    expected: float
    p_value: float

    @property
    def coherent(self) -> bool:
        """Whether the answers may be those of the holder of a density."""
        return self.p_value >= _LEVEL


class RangeLikelihood:
    """The likelihood of the log-odds of ranges, for a grid of powers (K,)."""

    def __init__(
        self,
        ranges: Ranges,
        belief: BeliefDensity,
        paths: Paths,
        deviations: Deviations,
        powers: Array,
    ) -> None:
        _check(ranges, belief.sampling)
        self.powers = powers
        n, d = len(ranges), belief.dimension
        none = np.zeros(n, dtype=np.int64)
        rows = LogOdds(
            ranges.first.reshape(n, 2 * d), ranges.second.reshape(n, 2 * d), ranges.log_odds,
            np.zeros(n), none, none,
        )  # fmt: skip
        pairs = pair_contrasts(rows)
        if len(pairs) < 3:
            raise DensityError(
                f"fit_power: {len(pairs)} pairs of ranges; at least three different ones tell a "
                "power; ask more."
            )
        # Both orders' half differences are free of the position effect; a single order's are not.
        self.side = pairs.side
        self.value, self.share = pairs.value, np.sqrt(2.0 * pairs.share)
        boxes = [side.reshape(-1, d, 2) for side in (pairs.a, pairs.b)]
        unique, index = unique_boxes(boxes)
        path = paths(unique, _PARTICLES)
        one, other = np.split(index, 2)
        self.mass = (path.log_mass[one] - path.log_mass[other]).T  # (K, n)
        width = _log_widths(unique, belief.sampling)
        self.width = width[one] - width[other]
        self.noise = float(belief.diagnostics.get("response", {}).get("dispersion", np.nan))
        self.deviation = [
            _means(deviations, points)[:, one] - _means(deviations, points)[:, other]
            for points in path.points
        ]  # K of (S, n)

    def curve(self) -> Array:
        """log p(log-odds | k), the response scale and the noise integrated out."""
        scales, noises, prior = self._grids()
        return np.array([
            logsumexp(self._logs(at, scales / k, noises)[0] + prior)
            for at, k in enumerate(self.powers)
        ])  # fmt: skip

    def _grids(self) -> tuple[Array, Array, Array]:
        """Values of c k (C,) and of the noise (N,), and their log-prior (C, N)."""
        scales = log_grid(np.exp(-3 * _SCALE_SD), np.exp(3 * _SCALE_SD), _SCALES)
        size = max(float(np.sqrt(np.mean(self.value**2))), 1e-12)
        noises = size * log_grid(0.02, 2.0, _NOISES)
        prior = -0.5 * np.square(np.log(scales) / _SCALE_SD)[:, None] + np.zeros(len(noises))
        if np.isfinite(self.noise):
            # What is known is the noise of one log-odds; half differences have 1/√2 of it.
            known = np.log(noises * np.sqrt(2.0) / self.noise)
            prior = prior - 0.5 * np.square(known / _NOISE_SD)
        return scales, noises, prior

    def _logs(
        self, at: int, scales: Array, noises: Array, *, free: bool = False
    ) -> tuple[Array, Array, Array]:
        """Log-likelihoods (C, N) of response scales c and noises at one power.

        With ``free`` a coefficient of log-width is added by generalized least squares: second and
        third are it and its standard error, (C, N).
        """
        k, c = self.powers[at], scales[:, None, None]
        spread = self.deviation[at].T / self.share[:, None]
        values, axes = np.linalg.eigh(spread @ spread.T)
        values = np.maximum(values, 0.0)
        rows = (self.value, self.mass[at], self.width, self.side)
        y, mass, width, side = (axes.T @ (each / self.share) for each in rows)
        variance = (c * k) ** 2 * values + np.square(noises)[:, None]  # (C, N, n)
        weight = 1.0 / variance
        residual = y - c * mass
        columns = [side] * bool(self.side.any()) + [width] * free
        penalty, coefficient, error = 0.0, np.zeros(()), np.zeros(())
        if columns:
            design = np.stack(columns, -1)
            information = np.einsum("cnr,rp,rq->cnpq", weight, design, design)
            residuals = np.broadcast_to(residual, weight.shape)
            pull = np.einsum("cnr,cnr,rp->cnp", weight, residuals, design)
            inverse = np.linalg.pinv(information, hermitian=True)
            beta = np.einsum("cnpq,cnq->cnp", inverse, pull)
            penalty = 0.5 * np.einsum("cnp,cnp->cn", beta, pull)
            coefficient, error = beta[..., -1], np.sqrt(inverse[..., -1, -1])
        logs = -0.5 * (weight * residual**2 + np.log(variance)).sum(-1) + penalty
        return logs, coefficient, error

    def coherence(self) -> Coherence | None:
        """The test of the coefficient of log-width; None where widths are infinite or all alike."""
        if not np.isfinite(self.width).all() or float(np.ptp(self.width)) < 1e-9:
            return None
        scales, noises, prior = self._grids()
        bound, best, at_best = -np.inf, -np.inf, (0.0, 0.0, 0.0)
        for at, k in enumerate(self.powers):
            logs = self._logs(at, scales / k, noises)[0] + prior
            bound = max(bound, float(logs.max()))
            logs, slopes, errors = self._logs(at, scales / k, noises, free=True)
            logs = logs + prior
            where = np.unravel_index(int(logs.argmax()), logs.shape)
            if logs[where] > best:
                best = float(logs[where])
                at_best = float(scales[where[0]] / k), float(slopes[where]), float(errors[where])
        scale, extra, error = at_best
        ratio = 2.0 * max(best - bound, 0.0)
        freedom = max(len(self.value) - 4, 1)
        half = float(stats.t.ppf(0.975, freedom)) * error
        width = scale + extra
        p_value = float(stats.f.sf(freedom * np.expm1(ratio / len(self.value)), 1, freedom))
        return Coherence((width, width - half, width + half), scale, p_value)


def _means(deviations: Deviations, points: torch.Tensor) -> Array:
    """Mean deviations (S, G) of particles (G, N, d) in each region."""
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
    """Log-volumes (G,) of boxes on the features' scales; a free feature has its whole range."""
    low, high = boxes[..., 0], boxes[..., 1]
    if isinstance(sampling, Uniform):
        low, high = (
            sampling.to_cube(np.clip(side, sampling.low, sampling.high)) for side in (low, high)
        )
        return np.asarray(np.log(high - low).sum(1))
    free = np.isinf(low) & np.isinf(high)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(free, 0.0, np.log(high - low)).sum(1))
