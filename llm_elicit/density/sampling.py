"""Sampling densities λ: the densities that the compared points were drawn from.

**Scale of a feature.** Every feature has a scale, linear or logarithmic. A `Uniform` λ is uniform
on that scale, and the utility u = log p is the log-density per unit of that scale. This is a
modelling choice: a judge who is asked about incomes over several decades is assumed to weigh
relative differences. Samples are always in natural units, and `log_prob` is a density in natural
units. With all scales linear (the default) this is the setting of Mikkola, Acerbi and Klami (2026).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from llm_elicit.density.errors import DensityError, instance, integer, points_of, shaped
from llm_elicit.density.feature_names import FeatureNames

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
_BATCH = 2**16  # draws at once


class SamplingDensity(Protocol):
    """The interface of a sampling density λ over d features, in natural units.

    Attributes:
        categorical: (d,) bools, which features have categories; values are the categories' numbers.
        integer: (d,) bools, which features have whole numbers for values.
        periodic: (d,) bools, which features lie on a circle.
        names: of the features, by which data frames are matched; None if it was made from arrays.
    """

    categorical: Flags
    integer: Flags
    periodic: Flags
    names: tuple[str, ...] | None

    @property
    def dimension(self) -> int:
        """Number of features d."""
        ...

    def reordered(self, order: Sequence[int]) -> Self:
        """Return λ with the features of these numbers, in this order."""
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


class NamedFeatures:
    """The names of λ's features, by which the columns of data frames are matched."""

    names: tuple[str, ...] | None = None

    @property
    def dimension(self) -> int:
        """Number of features d."""
        raise NotImplementedError

    def _points(self, x: Any, *, no_nan: bool = False) -> Array:
        """Return points (n, d) as floats, without NaN if asked for."""
        points = x if self.names is None else FeatureNames(self.names).points("points", x)
        if no_nan:
            return points_of("points", points, self.dimension, infinite=True)
        return shaped("points", points, self.dimension)

    def _text(self, text: dict[str, Any]) -> dict[str, Any]:
        """Return a description with the names, if there are any."""
        return text if self.names is None else {**text, "names": list(self.names)}

    def _name(self, names: Sequence[str] | None, order: Sequence[int]) -> Self:
        """Take the names of these numbers."""
        self.names = None if names is None else tuple(names[i] for i in order)
        return self


def accepted(draw: Callable[[int], Array], n: int, share: float) -> Array:
    """Return n points by rejection; draw(k) returns the accepted ones of k draws, about k·share."""
    parts, missing = [draw(0)], n
    while missing > 0:
        parts.append(draw(min(int(1.1 * missing / share) + 16, _BATCH)))
        missing -= len(parts[-1])
    return np.concatenate(parts)[:n]


def check_draw(n: int, rng: np.random.Generator) -> None:
    """Check the arguments of ``sample``."""
    integer("sample: n", n)
    instance("sample: rng", rng, np.random.Generator, "pass numpy.random.default_rng(seed)")


def inside(label: str, points: Array, sampling: SamplingDensity) -> Array:
    """Return points (n, d) after a check that all are in λ's support."""
    outside = np.flatnonzero(~sampling.contains(points))
    if outside.size:
        raise DensityError(
            f"{label}[{outside[0]}] = {np.round(points[outside[0]], 6).tolist()} lies outside the "
            f"support of the sampling density {sampling!r} ({outside.size} such rows); leave them "
            "out, or widen λ."
        )
    return points


def bisect(below: Callable[[Array], Flags], low: Array, high: Array, steps: int = 60) -> Array:
    """Return the points between low and high at which ``below`` turns from True to False.

    Elementwise, ``steps`` halvings of the interval. SciPy's root finders either take one equation
    at a time or fail where rounding leaves both ends with one sign.

    Example:
        >>> import numpy as np
        >>> bisect(lambda x: x**2 < [4.0, 9.0], np.zeros(2), np.full(2, 5.0)).round(6).tolist()
        [2.0, 3.0]
    """
    for _ in range(steps):
        middle = 0.5 * (low + high)
        is_below = below(middle)
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    return np.asarray(0.5 * (low + high))
