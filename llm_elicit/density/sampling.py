"""Sampling densities λ: the densities that the compared points were drawn from.

**Scale of a feature.** Every feature has a scale, linear or logarithmic. A `Uniform` λ is uniform
on that scale, and the utility u = log p is the log-density per unit of that scale. This is a
modelling choice: a judge who is asked about incomes over several decades is assumed to weigh
relative differences. Samples are always in natural units, and `log_prob` is a density in natural
units. With all scales linear (the default) this is the setting of Mikkola, Acerbi and Klami (2026).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from llm_elicit.density.errors import (
    DensityError,
    finite,
    flags,
    instance,
    integer,
    no_nan,
    numbers,
)

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
_NARROWEST = 1e-12
_NAMED = 1e-9  # how near a whole number a category's is


@runtime_checkable
class SamplingDensity(Protocol):
    """The interface of a sampling density λ over d features, in natural units."""

    @property
    def dimension(self) -> int:
        """Number of features d."""
        ...

    @property
    def categorical(self) -> Flags:
        """Which features have categories, (d,) bools; their values are the categories' numbers."""
        ...

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Return n random points (n, d)."""
        ...

    def log_prob(self, x: npt.ArrayLike) -> Array:
        """Return log densities (n,), nats per natural unit; −inf outside the support."""
        ...

    def contains(self, x: npt.ArrayLike) -> Flags:
        """Return whether each point lies in the support, (n,) bools."""
        ...

    def to_cube(self, x: npt.ArrayLike) -> Array:
        """Return points (n, d) of [0, 1]^d by the Rosenblatt map, which makes λ uniform."""
        ...

    def from_cube(self, y: npt.ArrayLike) -> Array:
        """Return the inverse of `to_cube`."""
        ...

    def log_scale_slope(self, x: npt.ArrayLike) -> Array:
        """Return log |d scale / d x| (n,), which turns a density per scale unit into one per x."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description, which `sampling_from_dict` reads back."""
        ...


class Uniform:
    """Uniform λ on a box, each feature on its own scale (see the module's note on scales).

    Parameters
    ----------
    low, high : (d,) bounds in natural units, low < high.
    log : (d,) bool mask of features with a logarithmic scale (their low must be > 0);
        ``None`` means all linear.
    categorical : (d,) bool mask of features whose values are categories, numbered by the whole
        numbers from low to high; ``None`` means that all are numbers. The order of the numbers
        has no meaning. The density of such a feature is a probability per category.

    Raises
    ------
    DensityError : bounds of different shapes, not finite, low >= high, a logarithmic feature
        whose lower bound is not positive, or categories that are not numbered by whole numbers.

    Examples
    --------
    >>> import numpy as np
    >>> box = Uniform([0.0, 1.0], [2.0, 100.0], log=[False, True])
    >>> box.from_cube([[0.5, 0.5]]).round(6).tolist()
    [[1.0, 10.0]]
    >>> float(box.log_prob([[3.0, 10.0]])[0])
    -inf
    >>> three = Uniform([0.0, 0.0], [2.0, 2.0], categorical=[False, True])   # 0, 1 or 2
    >>> three.contains([[1.5, 1.0], [1.5, 1.5]]).tolist()
    [True, False]
    """

    def __init__(
        self,
        low: npt.ArrayLike,
        high: npt.ArrayLike,
        log: npt.ArrayLike | None = None,
        categorical: npt.ArrayLike | None = None,
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
        width, size = self.high - self.low, np.maximum(np.abs(self.low), np.abs(self.high))
        for i in np.flatnonzero(width < _NARROWEST * size):
            raise DensityError(
                f"Uniform: low[{i}] = {self.low[i]} and high[{i}] = {self.high[i]} are too near "
                "for floats to tell values between them apart; count from another origin."
            )
        self.log, self.categorical = self._mask(log, "log"), self._mask(categorical, "categorical")
        self._check_scales()
        # A category is a cell as wide as one, so that a density on the scale is one per category.
        cell = np.where(self.categorical, 0.5, 0.0)
        self.scale_low = self._to_scale(self.low) - cell
        self.scale_high = self._to_scale(self.high) + cell

    def _mask(self, given: npt.ArrayLike | None, name: str) -> Flags:
        if given is None:
            return np.zeros(self.low.size, bool)
        if np.ndim(given) != 1:
            raise DensityError(
                f"Uniform: {name} = {given!r}; it must mark each of the {self.low.size} features "
                "True or False; leave it out where none is."
            )
        return flags(f"Uniform: {name}", given, self.low.size)

    def _check_scales(self) -> None:
        for i in np.flatnonzero(self.log & (self.low <= 0)):
            raise DensityError(
                f"Uniform: low[{i}] = {self.low[i]} on a logarithmic scale; such a feature needs "
                "a positive lower bound; raise the bound or use a linear scale."
            )
        whole = (self.low == np.rint(self.low)) & (self.high == np.rint(self.high))
        for i in np.flatnonzero(self.categorical & (self.log | ~whole)):
            raise DensityError(
                f"Uniform: feature {i} is categorical, from {self.low[i]} to {self.high[i]}"
                f"{' on a logarithmic scale' if self.log[i] else ''}; categories are numbered by "
                "whole numbers on a linear scale; give low = 0 and high = their number less one."
            )

    def __repr__(self) -> str:
        masks = {"log": self.log, "categorical": self.categorical}
        marked = "".join(f", {k}={mask.tolist()}" for k, mask in masks.items() if mask.any())
        return f"Uniform(low={self.low.tolist()}, high={self.high.tolist()}{marked})"

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return int(self.low.size)

    def _to_scale(self, x: Array) -> Array:
        return np.where(self.log, np.log(np.where(self.log & (x > 0), x, 1.0)), x)

    def without(self, features: Sequence[int]) -> Uniform:
        """Return λ of the other features."""
        kept = np.setdiff1d(np.arange(self.dimension), list(features))
        return Uniform(
            self.low[kept], self.high[kept], log=self.log[kept], categorical=self.categorical[kept]
        )

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Return n random points (n, d) in natural units."""
        check_draw(n, rng)
        return self.from_cube(rng.random((n, self.dimension)))

    def contains(self, x: npt.ArrayLike) -> Flags:
        """Return whether each point lies in the closed box, categories at whole numbers, (n,)."""
        points = check_points(x, self.dimension)
        named = ~self.categorical | (np.abs(points - np.rint(points)) < _NAMED)
        return np.asarray(((points >= self.low) & (points <= self.high) & named).all(axis=1))

    def log_prob(self, x: npt.ArrayLike) -> Array:
        """Return log densities (n,) per natural unit; a logarithmic feature contributes −log x."""
        points = no_nan("points", check_points(x, self.dimension))
        inside = self.contains(points)
        constant = -np.log(self.scale_high - self.scale_low).sum()
        return np.where(inside, constant + self.log_scale_slope(points), -np.inf)

    def log_scale_slope(self, x: npt.ArrayLike) -> Array:
        """Return log |d scale / d x| (n,): −log x of each logarithmic feature, summed."""
        points = check_points(x, self.dimension)
        logs = np.log(np.where(self.log & (points > 0), points, 1.0))
        return -np.asarray(np.where(self.log, logs, 0.0).sum(axis=1))

    def to_cube(self, x: npt.ArrayLike) -> Array:
        """Return points of [0, 1]^d, linear in each scale; a category at its interval's middle."""
        z = self._to_scale(check_points(x, self.dimension))
        return (z - self.scale_low) / (self.scale_high - self.scale_low)

    def from_cube(self, y: npt.ArrayLike) -> Array:
        """Return the inverse of `to_cube`, inside the box whatever the rounding."""
        cube = check_points(y, self.dimension)
        z = self.scale_low + cube * (self.scale_high - self.scale_low)
        x = np.where(self.log, np.exp(np.where(self.log, z, 0.0)), z)
        return np.clip(np.where(self.categorical, np.rint(x), x), self.low, self.high)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description."""
        text = {
            "kind": "uniform",
            "low": self.low.tolist(),
            "high": self.high.tolist(),
            "log": self.log.tolist(),
        }
        return text | ({"categorical": self.categorical.tolist()} if self.categorical.any() else {})


def _vector(values: npt.ArrayLike, name: str) -> Array:
    array = numbers(name, values)
    if array.ndim != 1 or array.size == 0:
        raise DensityError(
            f"{name} has shape {array.shape}; it must be one finite number for each feature, "
            "shape (d,); pass a list or a 1-D array."
        )
    return finite(name, array.copy())


def check_points(x: npt.ArrayLike, dimension: int) -> Array:
    """Return points (n, d) as floats, NaN and infinite ones included.

    Raises
    ------
    DensityError : not numbers, or another shape.
    """
    points = numbers("points", x)
    if points.ndim != 2 or points.shape[1] != dimension:
        raise DensityError(
            f"points have shape {points.shape}; they must be (n, {dimension}); "
            "reshape a single point to one row."
        )
    return points


def check_draw(n: int, rng: np.random.Generator) -> None:
    """Check the arguments of ``sample``.

    Raises
    ------
    DensityError : n is not a whole number >= 0, or ``rng`` is not a NumPy generator.
    """
    integer("sample: n", n)
    instance("sample: rng", rng, np.random.Generator, "pass numpy.random.default_rng(seed)")


def bisect(below: Callable[[Array], Flags], low: Array, high: Array, steps: int = 60) -> Array:
    """Return the points between low and high at which ``below`` turns from True to False.

    Elementwise, ``steps`` halvings of the interval. SciPy's root finders either take one equation
    at a time or fail where rounding leaves both ends with one sign.

    Examples
    --------
    >>> import numpy as np
    >>> bisect(lambda x: x**2 < [4.0, 9.0], np.zeros(2), np.full(2, 5.0)).round(6).tolist()
    [2.0, 3.0]
    """
    for _ in range(steps):
        middle = 0.5 * (low + high)
        left = below(middle)
        low, high = np.where(left, middle, low), np.where(left, high, middle)
    return np.asarray(0.5 * (low + high))
