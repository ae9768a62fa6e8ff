"""Summaries of a belief: marginals, quantiles, bands, the mode and credible regions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from llm_elicit.density.errors import (
    DensityError,
    finite,
    fraction,
    numbers,
)

Array = npt.NDArray[np.float64]
LogProb = Callable[[npt.ArrayLike], Array]
_STARTS = 5
_STEP = 1e-4


@dataclass(frozen=True)
class Marginal:
    """One feature's belief: mean, standard deviation and quantiles, natural units."""

    mean: float
    sd: float
    quantiles: dict[float, float]


def band(values: Array, level: float = 0.9) -> tuple[Array, Array]:
    """Lower and upper ends of the central credible band of values (S, ...), one for each draw.

    Raises
    ------
    DensityError : a level that is not between 0 and 1.

    Examples
    --------
    >>> import numpy as np
    >>> low, high = band(np.arange(1.0, 100.0), 0.9)
    >>> float(low.round(6)), float(high.round(6))
    (5.0, 95.0)
    """
    fraction("band: level", level)
    values = finite("band: values", numbers("band: values", values))
    if not values.ndim or not values.size:
        raise DensityError("band: values has none; one for each draw is needed.")
    tail = 0.5 - 0.5 * level
    # Of S draws and the truth, every rank of the truth is as likely: no band from too few ranks.
    low, high = np.quantile(values, [tail, 1.0 - tail], axis=0, method="weibull")
    return np.asarray(low), np.asarray(high)


def weighted_quantiles(
    x: Array, weights: Array, levels: Array, order: npt.NDArray[np.intp] | None = None
) -> Array:
    """Quantiles (L, d) of points (m, d) with weights (m,) that sum to one.

    ``order`` (m, d) is that of each column, for many weights of the same points.

    Examples
    --------
    >>> import numpy as np
    >>> x, weights = np.array([[1.0], [2.0], [9.0]]), np.array([0.5, 0.5, 0.0])
    >>> weighted_quantiles(x, weights, np.array([0.25, 0.5])).tolist()
    [[1.0], [1.5]]
    """
    order = np.argsort(x, axis=0) if order is None else order
    found = np.empty((len(levels), x.shape[1]))
    for j, ranked in enumerate(order.T):
        reached = np.cumsum(weights[ranked]) - 0.5 * weights[ranked]
        found[:, j] = np.interp(levels, reached, x[ranked, j])
    return found


@dataclass(frozen=True)
class CredibleRegion:
    """The points of log density ``threshold`` or more: of all regions that hold a share ``level``
    of the belief, the smallest.
    """

    level: float
    threshold: float
    log_prob: LogProb

    def contains(self, x: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether each of points (n, d), natural units, lies in the region: (n,) bools."""
        return np.asarray(self.log_prob(x) >= self.threshold)


def find_mode(log_prob: LogProb, draws: Array) -> Array:
    """The point (d,) of highest density near the highest of ``draws`` (n, d).

    L-BFGS from each of the five highest, in units of the draws' standard deviations.

    Examples
    --------
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
        # The bounds of λ's support are a cliff, which a slope must not look over.
        inside = np.isfinite(up) & np.isfinite(down)
        slope = np.subtract(up, down, out=np.zeros_like(up), where=inside) / (2.0 * _STEP)
        return (-float(value[0]), -slope) if np.isfinite(value[0]) else (1e10, 0.0 * slope)

    found = [minimize(downhill, x / scale, jac=True, method="L-BFGS-B").x for x in highest]
    points = np.concatenate([highest, np.stack(found) * scale])
    return np.asarray(points[int(np.argmax(log_prob(points)))])
