"""Sampling densities λ: what the compared candidates were drawn from.

**Scale of a feature.** Every feature has a scale, linear or logarithmic. λ is uniform on that
scale, and the belief density that enters the utility, u = log p, is the density per unit of
that scale. This is a modelling choice: a judge asked about incomes spread over decades is
taken to weigh relative steps, not absolute ones. Samples are always in natural units, and
`log_prob` is always a proper density in natural units. With all scales linear (the default)
this is the paper's setting exactly.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from llm_elicit.density.errors import DensityError

Array = npt.NDArray[np.float64]


@runtime_checkable
class SamplingDensity(Protocol):
    """What the core asks of a sampling density λ over d features, in natural units."""

    @property
    def dimension(self) -> int:
        """Number of features d."""
        ...

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw (n, d) points."""
        ...

    def log_prob(self, x: npt.ArrayLike) -> Array:
        """Log density (n,) in nats per natural unit; −inf outside the support."""
        ...

    def contains(self, x: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether each point lies in the support, shape (n,)."""
        ...

    def to_cube(self, x: npt.ArrayLike) -> Array:
        """Rosenblatt map: λ becomes uniform on [0, 1]^d."""
        ...

    def from_cube(self, y: npt.ArrayLike) -> Array:
        """Inverse of `to_cube`."""
        ...

    def log_scale_slope(self, x: npt.ArrayLike) -> Array:
        """log |d scale / d x| (n,): from a density per scale unit to one per natural unit."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """JSON-able description; `sampling_from_dict` reads it back."""
        ...


class Uniform:
    """Uniform λ on a box, each feature on its own scale (see the module's note on scales).

    Parameters
    ----------
    low, high : (d,) bounds in natural units, low < high.
    log : (d,) bool mask of features with a logarithmic scale (their low must be > 0);
        ``None`` means all linear.

    Raises
    ------
    DensityError : bounds of different shapes, not finite, low >= high, or a logarithmic
        feature whose lower bound is not positive.

    Examples
    --------
    >>> import numpy as np
    >>> box = Uniform([0.0, 1.0], [2.0, 100.0], log=[False, True])
    >>> box.from_cube([[0.5, 0.5]]).round(6).tolist()
    [[1.0, 10.0]]
    >>> float(box.log_prob([[3.0, 10.0]])[0])
    -inf
    """

    def __init__(
        self, low: npt.ArrayLike, high: npt.ArrayLike, log: npt.ArrayLike | None = None
    ) -> None:
        self.low, self.high = _vector(low, "Uniform: low"), _vector(high, "Uniform: high")
        if self.low.shape != self.high.shape:
            raise DensityError(
                f"Uniform: low has {self.low.size} features and high {self.high.size}; "
                "they must agree; give one bound of each for every feature."
            )
        for i in np.flatnonzero(self.low >= self.high):
            raise DensityError(
                f"Uniform: low[{i}] = {self.low[i]} is not below high[{i}] = {self.high[i]}; "
                "every lower bound must lie below its upper bound; swap or widen the bounds."
            )
        self.log = self._mask(log)
        self.scale_low, self.scale_high = self._to_scale(self.low), self._to_scale(self.high)

    def _mask(self, log: npt.ArrayLike | None) -> npt.NDArray[np.bool_]:
        mask = np.zeros(self.low.size, bool) if log is None else np.asarray(log, dtype=bool)
        if mask.shape != self.low.shape:
            raise DensityError(
                f"Uniform: log has shape {mask.shape}; it must mark each of the {self.low.size} "
                "features True or False; leave it out for linear scales."
            )
        for i in np.flatnonzero(mask & (self.low <= 0)):
            raise DensityError(
                f"Uniform: low[{i}] = {self.low[i]} on a logarithmic scale; such a feature needs "
                "a positive lower bound; raise the bound or use a linear scale."
            )
        return mask

    def __repr__(self) -> str:
        log = f", log={self.log.tolist()}" if self.log.any() else ""
        return f"Uniform(low={self.low.tolist()}, high={self.high.tolist()}{log})"

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return int(self.low.size)

    def _to_scale(self, x: Array) -> Array:
        return np.where(self.log, np.log(np.where(self.log & (x > 0), x, 1.0)), x)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw (n, d) points in natural units."""
        return self.from_cube(rng.random((n, self.dimension)))

    def contains(self, x: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether each point lies in the closed box, shape (n,)."""
        points = _points(x, self.dimension)
        return np.asarray(((points >= self.low) & (points <= self.high)).all(axis=1))

    def log_prob(self, x: npt.ArrayLike) -> Array:
        """Log density (n,) per natural unit: a logarithmic feature contributes −log x."""
        points = _points(x, self.dimension)
        inside = self.contains(points)
        constant = -np.log(self.scale_high - self.scale_low).sum()
        return np.where(inside, constant + self.log_scale_slope(points), -np.inf)

    def log_scale_slope(self, x: npt.ArrayLike) -> Array:
        """log |d scale / d x| (n,): what turns a density per scale unit into one per natural."""
        points = _points(x, self.dimension)
        logs = np.log(np.where(self.log & (points > 0), points, 1.0))
        return -np.asarray(np.where(self.log, logs, 0.0).sum(axis=1))

    def to_cube(self, x: npt.ArrayLike) -> Array:
        """Map the box to [0, 1]^d, linearly on each feature's scale."""
        z = self._to_scale(_points(x, self.dimension))
        return (z - self.scale_low) / (self.scale_high - self.scale_low)

    def from_cube(self, y: npt.ArrayLike) -> Array:
        """Inverse of `to_cube`; the result lies in the box whatever the rounding."""
        cube = _points(y, self.dimension)
        z = self.scale_low + cube * (self.scale_high - self.scale_low)
        x = np.where(self.log, np.exp(np.where(self.log, z, 0.0)), z)
        return np.clip(x, self.low, self.high)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able description."""
        return {
            "kind": "uniform",
            "low": self.low.tolist(),
            "high": self.high.tolist(),
            "log": self.log.tolist(),
        }


def _vector(values: npt.ArrayLike, name: str) -> Array:
    array = np.array(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise DensityError(
            f"{name} = {array.tolist()}; it must be one finite number for each feature, "
            "shape (d,); pass a list or a 1-D array."
        )
    return array


def _points(x: npt.ArrayLike, dimension: int) -> Array:
    points = np.asarray(x, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != dimension:
        raise DensityError(
            f"points have shape {points.shape}; they must be (n, {dimension}); "
            "reshape a single point to one row."
        )
    return points
