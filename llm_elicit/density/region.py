"""Where a belief is highest: its mode, and the smallest region of a given probability."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

Array = npt.NDArray[np.float64]
LogProb = Callable[[npt.ArrayLike], Array]
_STARTS = 5
_STEP = 1e-4


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
