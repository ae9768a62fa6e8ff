"""Summaries of a belief: marginals, its power, quantiles, bands, the mode, credible regions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from llm_elicit.density.errors import DensityError, finite, fraction, number, numbers

Array = npt.NDArray[np.float64]
LogProb = Callable[[npt.ArrayLike], Array]
_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
_STARTS = 5
_STEP = 1e-4
_HIGHER = 1e-9  # nats


@dataclass(frozen=True)
class Marginal:
    """One feature's mean, standard deviation, and quantiles by level, natural units."""

    mean: float
    sd: float
    quantiles: dict[float, float]


@dataclass(frozen=True)
class Coherence:
    """How a judge reacts to the width of ranges.

    Args:
        width: (value, low, high), the coefficient of the difference of log-widths in the log-odds,
            beside that of the mean density within the ranges, with its 95 % interval.
        expected: the coefficient of a judge who has a density and otherwise answers alike.
        p_value: of the test that the judge is one.
    """

    width: tuple[float, float, float]
    expected: float
    p_value: float

    @property
    def coherent(self) -> bool:
        """Whether the answers may come from a density: the test does not reject it at 5 %."""
        return self.p_value >= 0.05


@dataclass(frozen=True)
class Power:
    """A power k with its 90 % credible interval, under a prior flat in log k.

    Args:
        value, low, high: the median and the ends of the interval. By points alone, the value is the
            power at which the fit is nearest to them, and the interval that of the judge's own
            power.
        source: what determines it: "points", "quantiles", "ranges", "ratios", joined by " + ".
        log_sd: the standard deviation of log k.
        sources: the powers by each single source.
        agreement: the p-value of a χ² test that all sources have one k; None for one source.
        coherence: the judge's reaction to width, if there are ranges.
        above_flat: by how many nats the maximum of the likelihood exceeds that of the flattest
            power.

    Raises:
        DensityError: a value that is not finite and > 0, or a log_sd that is not finite.
    """

    value: float
    low: float
    high: float
    source: str
    log_sd: float
    sources: tuple[Power, ...] = ()
    agreement: float | None = None
    coherence: Coherence | None = None
    above_flat: float = 0.0

    def __post_init__(self) -> None:
        number("Power: log_sd", self.log_sd)
        if not number("Power: value", self.value) > 0:
            raise DensityError(
                f"Power: value {self.value} with log_sd {self.log_sd}; a power is a finite number "
                "> 0; fit_power makes one."
            )


def summarize(x: Array) -> tuple[Marginal, ...]:
    """Return the marginal of each feature of draws (m, d).

    Example:
        >>> import numpy as np
        >>> (found,) = summarize(np.array([[1.0], [2.0], [3.0]]))
        >>> found.mean, found.quantiles[0.5]
        (2.0, 2.0)
    """
    quantiles = np.quantile(x, _LEVELS, axis=0)
    return tuple(
        Marginal(
            float(x[:, j].mean()),
            float(x[:, j].std()),
            {level: float(value) for level, value in zip(_LEVELS, quantiles[:, j], strict=True)},
        )
        for j in range(x.shape[1])
    )


def band(values: Array, level: float = 0.9) -> tuple[Array, Array]:
    """Return the lower and upper ends of the central credible band of values (S, ...) by draw.

    Raises:
        DensityError: no values, or a level that is not between 0 and 1. Values that are
            not-a-number in every draw, as the means of categories, have such a band.

    Example:
        >>> import numpy as np
        >>> low, high = band(np.arange(1.0, 100.0), 0.9)
        >>> float(low.round(6)), float(high.round(6))
        (5.0, 95.0)
    """
    fraction("band: level", level)
    values = numbers("band: values", values)
    unknown = np.isnan(values).all(axis=0) if values.ndim and values.size else False
    finite("band: values", np.where(unknown, 0.0, values))
    if not values.ndim or not values.size:
        raise DensityError("band: values has none; one for each draw is needed.")
    tail = 0.5 - 0.5 * level
    # The truth has each of the S + 1 ranks among the draws equally often, as "weibull" assumes.
    low, high = np.quantile(values, [tail, 1.0 - tail], axis=0, method="weibull")
    return np.asarray(low), np.asarray(high)


def weighted_quantiles(
    x: Array, weights: Array, levels: Array, order: npt.NDArray[np.intp] | None = None
) -> Array:
    """Return quantiles (L, d) at levels (L,) of points (m, d) with weights (m,) that sum to one.

    ``order`` (m, d) sorts each column; it saves time for many weights of the same points.

    Example:
        >>> import numpy as np
        >>> x, weights = np.array([[1.0], [2.0], [9.0]]), np.array([0.5, 0.5, 0.0])
        >>> weighted_quantiles(x, weights, np.array([0.25, 0.5])).tolist()
        [[1.0], [1.5]]
    """
    order = np.argsort(x, axis=0) if order is None else order
    quantiles = np.empty((len(levels), x.shape[1]))
    for j, ranked in enumerate(order.T):
        reached = np.cumsum(weights[ranked]) - 0.5 * weights[ranked]
        quantiles[:, j] = np.interp(levels, reached, x[ranked, j])
    return quantiles


@dataclass(frozen=True)
class CredibleRegion:
    """The points of log density ``threshold`` or more: the smallest region of mass ``level``.

    Example:
        >>> import numpy as np
        >>> region = CredibleRegion(0.68, -0.5, lambda x: -0.5 * np.square(x).sum(1))   # of N(0, 1)
        >>> region.contains([[0.5], [2.0]]).tolist()
        [True, False]
    """

    level: float
    threshold: float
    log_prob: LogProb

    def contains(self, x: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Return whether each of points (n, d), natural units, lies in the region: (n,) bools."""
        return np.asarray(self.log_prob(x) >= self.threshold)


def find_mode(log_prob: LogProb, draws: Array, reach: Array | None = None) -> Array:
    """Return the point (d,) of highest density near ``draws`` (n, d).

    L-BFGS starts from the five draws of highest density, in units of the draws' standard
    deviations. Whole numbers are then changed by powers of two, one feature at a time, in turns
    with L-BFGS, until nothing is higher.

    Args:
        reach: (d,) the largest change of each whole number, 0 of other features; None if there are
            no whole numbers.

    Example:
        >>> import numpy as np
        >>> peak = np.array([1.0, -2.0])
        >>> draws = np.random.default_rng(0).normal(peak, 1.0, (500, 2))
        >>> find_mode(lambda x: -((np.asarray(x) - peak) ** 2).sum(1), draws).round(2).tolist()
        [1.0, -2.0]
    """
    scale = draws.std(axis=0).clip(min=1e-12)
    highest = draws[np.argsort(log_prob(draws))[::-1][:_STARTS]]
    steps = _STEP * np.eye(draws.shape[1])

    def downhill(z: Array) -> tuple[float, Array]:
        around = np.concatenate([z[None], z + steps, z - steps]) * scale
        value, up, down = np.split(log_prob(around), [1, 1 + len(steps)])
        # Outside λ's support the density is 0, and a difference across its bounds has no meaning.
        inside = np.isfinite(up) & np.isfinite(down)
        slope = np.subtract(up, down, out=np.zeros_like(up), where=inside) / (2.0 * _STEP)
        return (-float(value[0]), -slope) if np.isfinite(value[0]) else (1e10, 0.0 * slope)

    def best_of(starts: Array) -> tuple[Array, float]:
        optima = [minimize(downhill, x / scale, jac=True, method="L-BFGS-B").x for x in starts]
        points = np.concatenate([starts, np.stack(optima) * scale])
        values = log_prob(points)
        return points[int(np.argmax(values))], float(np.max(values))

    point, value = best_of(highest)
    while reach is not None and reach.any():
        moved, higher = best_of(_best_whole(log_prob, point, reach)[None])
        if higher <= value + _HIGHER:
            break
        point, value = moved, higher
    return point


def _best_whole(log_prob: LogProb, point: Array, reach: Array) -> Array:
    """Return a point (d,) whose whole numbers no single change by a power of two improves."""
    moves = np.concatenate([
        np.outer([sign * 2.0**i for i in range(int(np.log2(far)) + 1) for sign in (1, -1)], unit)
        for unit, far in zip(np.eye(len(point)), reach, strict=True)
        if far >= 1.0
    ])  # fmt: skip
    while True:
        around = np.concatenate([point[None], point + moves])
        values = log_prob(around)
        best = int(np.argmax(values))
        if values[best] <= values[0] + _HIGHER:
            return point
        point = around[best]
