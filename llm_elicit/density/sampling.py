"""Sampling densities λ: the densities that the compared points were drawn from.

**Scale of a feature.** Every feature has a scale, linear or logarithmic. A `Uniform` λ is uniform
on that scale, and the utility u = log p is the log-density per unit of that scale. This is a
modelling choice: a judge who is asked about incomes over several decades is assumed to weigh
relative differences. Samples are always in natural units, and `log_prob` is a density in natural
units. With all scales linear (the default) this is the setting of Mikkola, Acerbi and Klami (2026).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.stats import qmc

from llm_elicit.density import errors
from llm_elicit.density.constraints import parse_constraint
from llm_elicit.density.errors import Array, DensityError, Flags
from llm_elicit.density.feature_names import FeatureNames

LOG_2PI = math.log(2.0 * math.pi)
LOG_SQRT_2PI = 0.5 * LOG_2PI
_BATCH = 2**16  # draws at once


class SamplingDensity(ABC):
    """A sampling density λ over d features, in natural units.

    Attributes:
        low: (d,) lower bounds of the support, infinite where there are none.
        high: (d,) upper bounds of the support.
        log: (d,) bools, which features have a logarithmic scale.
        categorical: (d,) bools, which features have categories; values are the categories' numbers.
        integer: (d,) bools, which features have whole numbers for values.
        periodic: (d,) bools, which features lie on a circle.
        names: names of the features, by which data frames are matched; None if made from arrays.
    """

    low: Array
    high: Array
    log: Flags
    categorical: Flags
    integer: Flags
    periodic: Flags
    names: tuple[str, ...] | None = None

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return len(self.low)

    @abstractmethod
    def reorder(self, order: Sequence[int]) -> Self:
        """Return λ with the features of these numbers, in this order."""

    @abstractmethod
    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Return n random points (n, d)."""

    @abstractmethod
    def log_prob(self, x: npt.ArrayLike) -> Array:
        """Return log densities (n,), nats per natural unit; −inf outside the support."""

    @abstractmethod
    def to_cube(self, x: npt.ArrayLike) -> Array:
        """Return points (n, d) of [0, 1]^d by the Rosenblatt map, which makes λ uniform."""

    @abstractmethod
    def from_cube(self, y: npt.ArrayLike) -> Array:
        """Return the inverse of `to_cube`."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description, which `read_sampling` reads back."""

    def contains(self, x: npt.ArrayLike) -> Flags:
        """Return whether each point is finite and within the closed bounds, (n,) bools."""
        points = self._points(x)
        inside = (points >= self.low) & (points <= self.high) & (~self.log | (points > 0.0))
        return np.asarray((inside & np.isfinite(points)).all(axis=1))

    def log_scale_derivative(self, x: npt.ArrayLike) -> Array:
        """Return log |d scale / d x| (n,), which turns a density per scale unit into one per x.

        It is −log x of each logarithmic feature, summed.
        """
        points = self._points(x)
        logs = np.log(np.where(self.log & (points > 0), points, 1.0))
        return -np.asarray(logs.sum(axis=1))

    def from_scale(self, z: Array) -> Array:
        """Return natural values (..., d) of values on the features' scales."""
        return np.where(self.log, np.exp(np.where(self.log, z, 0.0)), z)

    def _set_numbers(self, low: Array, high: Array, log: Flags) -> None:
        """Set the bounds and scales of features that are all continuous numbers."""
        self.low, self.high, self.log = low, high, log
        self.categorical = self.integer = self.periodic = np.zeros(len(low), dtype=np.bool_)

    def _points(self, x: Any, *, no_nan: bool = False) -> Array:
        """Return points (n, d) as floats, without NaN if asked for."""
        points = x if self.names is None else FeatureNames(self.names).to_array("points", x)
        if no_nan:
            return errors.check_points("points", points, self.dimension, infinite=True)
        return errors.check_shape("points", points, self.dimension)

    def _with_names(self, description: dict[str, Any]) -> dict[str, Any]:
        """Return a description with the names, if there are any."""
        return description if self.names is None else {**description, "names": list(self.names)}

    def _set_names(self, names: Sequence[str] | None, order: Sequence[int]) -> Self:
        """Take the names of these numbers."""
        self.names = None if names is None else tuple(names[i] for i in order)
        return self


def sample_by_rejection(draw: Callable[[int], Array], n: int, share: float) -> Array:
    """Return n points by rejection; draw(k) returns the accepted ones of k draws, about k·share."""
    parts, remaining = [draw(0)], n
    while remaining > 0:
        parts.append(draw(min(int(1.1 * remaining / share) + 16, _BATCH)))
        remaining -= len(parts[-1])
    return np.concatenate(parts)[:n]


def check_draw(n: int, rng: np.random.Generator) -> None:
    """Check the arguments of ``sample``."""
    errors.check_integer("sample: n", n)
    errors.check_instance(
        "sample: rng", rng, np.random.Generator, "pass numpy.random.default_rng(seed)"
    )


def check_inside(label: str, points: Array, sampling: SamplingDensity) -> Array:
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

    Examples:
        >>> import numpy as np
        >>> bisect(lambda x: x**2 < [4.0, 9.0], np.zeros(2), np.full(2, 5.0)).round(6).tolist()
        [2.0, 3.0]
    """
    for _ in range(steps):
        middle = 0.5 * (low + high)
        is_below = below(middle)
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    return np.asarray(0.5 * (low + high))


_MIN_RELATIVE_WIDTH = 1e-12
_WHOLE_TOLERANCE = 1e-9  # how near a whole number is to itself
_MAX_WHOLE = 2.0**52
_MASKS = ("log", "categorical", "integer", "periodic")
_EXCLUSIVE = (("periodic", "log"), ("periodic", "categorical"), ("integer", "categorical"))
# Points that estimate the share of a box.
_SHARE_BATCH, _MIN_HITS, _MAX_SHARE_POINTS = 2**16, 100_000, 2**22
_MIN_SHARE = 0.001


class Uniform(SamplingDensity):
    """Uniform λ on a box, each feature on its own scale; see `llm_elicit.density.sampling`.

    Args:
        low: (d,) lower bounds in natural units. A mapping or a Series names the features: both
            bounds, and masks with names, are matched by them, and so are the points of a fit.
        high: (d,) upper bounds, above ``low``.
        log: (d,) bool mask of features with a logarithmic scale (their low must be > 0);
            ``None`` means all linear.
        categorical: (d,) bool mask of features whose values are categories, numbered by the whole
            numbers from low to high; ``None`` means that all are numbers. The order of the numbers
            has no meaning. The density of such a feature is a probability per category.
        integer: (d,) bool mask of features whose values are the whole numbers from low to high.
            Number k is the cell from k − ½ to k + ½ on the feature's scale: its probability under λ
            is the cell's width, and a belief is a probability per whole number. A logarithmic one
            needs low >= 1. Ordered categories are such numbers.
        periodic: (d,) bool mask of features on a circle, such as hours and directions. Low and high
            are the same point; of whole numbers, low follows high.
        constraints: `LinearConstraint` and `PolygonConstraint` objects; λ is uniform on the part of
            the box in which all of them hold.

    Raises:
        DensityError: bounds of different shapes, not finite, low >= high, a logarithmic feature
            whose lower bound is not positive, whole numbers or categories whose bounds are not
            whole, kinds that exclude each other, or constraints that hold in less than 0.1 % of the
            box.

    Examples:
        >>> import numpy as np
        >>> box = Uniform([0.0, 1.0], [2.0, 100.0], log=[False, True])
        >>> box.from_cube([[0.5, 0.5]]).round(6).tolist()
        [[1.0, 10.0]]
        >>> float(box.log_prob([[3.0, 10.0]])[0])
        -inf
        >>> three = Uniform([0.0, 0.0], [2.0, 2.0], categorical=[False, True])   # 0, 1 or 2
        >>> three.contains([[1.5, 1.0], [1.5, 1.5]]).tolist()
        [True, False]
        >>> rooms = Uniform([1.0], [4.0], integer=[True])
        >>> np.exp(rooms.log_prob([[1.0], [2.0], [2.5], [4.0]])).round(6).tolist()
        [0.25, 0.25, 0.0, 0.25]
    """

    def __init__(
        self,
        low: npt.ArrayLike,
        high: npt.ArrayLike,
        log: npt.ArrayLike | None = None,
        categorical: npt.ArrayLike | None = None,
        integer: npt.ArrayLike | None = None,
        periodic: npt.ArrayLike | None = None,
        constraints: Iterable[object] = (),
    ) -> None:
        labels = errors.feature_labels("Uniform: low", errors.as_frame(low))
        if (labels is None) != (
            errors.feature_labels("Uniform: high", errors.as_frame(high)) is None
        ):
            raise DensityError(
                "Uniform: low has feature names or Uniform: high has, not both; give both by "
                "name, or both as lists."
            )
        low, self.names = errors.match_order("Uniform: low", low, labels)
        high, _ = errors.match_order("Uniform: high", high, labels)
        self.low = _check_vector(low, "Uniform: low")
        self.high = _check_vector(high, "Uniform: high")
        if self.low.shape != self.high.shape:
            raise DensityError(
                f"Uniform: low has {self.low.size} features and high {self.high.size}; "
                "they must agree; give one bound of each for every feature."
            )
        self.log = self._mask("log", log)
        self.categorical = self._mask("categorical", categorical)
        self.integer = self._mask("integer", integer)
        self.periodic = self._mask("periodic", periodic)
        self.discrete = self.categorical | self.integer
        self.constraints = tuple(
            parse_constraint(rule, self.dimension, self.names) for rule in constraints
        )
        self._constrained = sorted({i for rule in self.constraints for i in rule.feature_numbers})
        self._check_kinds()
        # A whole number is a cell as wide as one, so that a density is one per whole number.
        cell = np.where(self.discrete, 0.5, 0.0)
        self.scale_low = self._to_scale(self.low - cell)
        self.scale_high = self._to_scale(self.high + cell)
        self.box_share = self._share_of_box() if self.constraints else 1.0

    def _mask(self, name: str, mask: npt.ArrayLike | None) -> Flags:
        if mask is None:
            return np.zeros(self.low.size, bool)
        mask, self.names = errors.match_order(f"Uniform: {name}", mask, self.names)
        if np.ndim(mask) != 1:
            raise DensityError(
                f"Uniform: {name} = {mask!r}; it must mark each of the {self.low.size} features "
                "True or False; leave it out if no feature is."
            )
        return errors.check_flags(f"Uniform: {name}", mask, self.low.size)

    def _check_kinds(self) -> None:
        low, high = self.low, self.high
        for i in np.flatnonzero(low >= high):
            raise DensityError(
                f"Uniform: low[{i}] = {low[i]} is not below high[{i}] = {high[i]}; "
                "every lower bound must lie below its upper bound; swap or widen the bounds."
            )
        for i in np.flatnonzero(
            high - low < _MIN_RELATIVE_WIDTH * np.maximum(np.abs(low), np.abs(high))
        ):
            raise DensityError(
                f"Uniform: low[{i}] = {low[i]} and high[{i}] = {high[i]} are too close together "
                "for floating-point numbers; subtract a constant."
            )
        is_whole = (low == np.rint(low)) & (high == np.rint(high))
        small = np.maximum(np.abs(low), np.abs(high)) < _MAX_WHOLE
        rules = [
            (
                self.log & (low <= 0),
                "has a logarithmic scale, which needs a positive lower bound (low > 0); raise the "
                "bound or use a linear scale",
            ),
            (
                self.categorical & (self.log | ~is_whole),
                "is categorical; categories are numbered by whole numbers, never on a "
                "logarithmic scale; give low = 0 and high = their number minus one",
            ),
            (
                self.integer & ~(is_whole & small),
                "has whole numbers; both bounds must be whole, and less than 2**52 in size",
            ),
            (
                self.periodic & self.integer & (high - low < 2),
                "is periodic with only two whole numbers; a period needs at least three",
            ),
            (
                self.categorical & np.isin(np.arange(self.dimension), self._constrained),
                "is under a constraint, which needs an order, but is categorical; mark it as "
                "integer if its categories are ordered",
            ),
        ]
        rules += [
            (getattr(self, a) & getattr(self, b), f"is marked {a} and {b}; choose one")
            for a, b in _EXCLUSIVE
        ]
        for wrong, rule in rules:
            for i in np.flatnonzero(wrong):
                raise DensityError(f"Uniform: feature {i}, from {low[i]} to {high[i]}, {rule}.")

    def __repr__(self) -> str:
        masks = {name: getattr(self, name) for name in _MASKS}
        arguments = "".join(f", {k}={mask.tolist()}" for k, mask in masks.items() if mask.any())
        arguments += f", constraints={list(self.constraints)}" if self.constraints else ""
        return errors.abbreviate(
            f"Uniform(low={self.low.tolist()}, high={self.high.tolist()}{arguments})"
        )

    def _to_scale(self, x: Array) -> Array:
        return np.where(self.log, np.log(np.where(self.log & (x > 0), x, 1.0)), x)

    def condition(self, values: Mapping[int, float]) -> Uniform:
        """Return λ of the other features, given values of some by number.

        Raises:
            DensityError: the constraints hold nowhere, or nearly so, given these.

        Examples:
            >>> from llm_elicit.density.constraints import LinearConstraint
            >>> ordered = Uniform([0.0, 0.0], [1.0, 1.0],
            ...                   constraints=[LinearConstraint([1, -1], 0)])
            >>> ordered.condition({0: 0.25}).contains([[0.2], [0.3]]).tolist()
            [False, True]
        """
        free = np.setdiff1d(np.arange(self.dimension), list(values))
        conditioned = [rule.condition(values, free.tolist()) for rule in self.constraints]
        point = self.low.copy()
        point[list(values)] = list(values.values())
        for rule, rule_given in zip(self.constraints, conditioned, strict=True):
            if rule_given is None and not rule.holds(point[None], self.high - self.low)[0]:
                raise DensityError(f"given: {dict(values)} violates {rule}; give other values.")
        return self._select(free.tolist(), [rule for rule in conditioned if rule is not None])

    def reorder(self, order: Sequence[int]) -> Uniform:
        """Return λ with the features of these numbers, in this order."""
        reordered = (rule.condition({}, order) for rule in self.constraints)
        return self._select(order, [rule for rule in reordered if rule is not None])

    def _select(self, features: Sequence[int], constraints: Iterable[object]) -> Uniform:
        """Return λ of some features under constraints on them."""
        indices = list(features)
        masks = {name: getattr(self, name)[indices] for name in _MASKS}
        box = Uniform(self.low[indices], self.high[indices], constraints=constraints, **masks)
        return box._set_names(self.names, indices)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Return n random points (n, d) in natural units."""
        check_draw(n, rng)
        if not self.constraints:
            return self.from_cube(rng.random((n, self.dimension)))

        def draw(count: int) -> Array:
            x = self.from_cube(rng.random((count, self.dimension)))
            return x[self.satisfies_constraints(x)]

        return sample_by_rejection(draw, n, self.box_share)

    def contains(self, x: npt.ArrayLike) -> Flags:
        """Return whether each point lies in the closed box and keeps the constraints, (n,).

        Categories and whole numbers must be whole.
        """
        points = self._points(x)
        inside = self.in_box(points)
        inside[inside] = self.satisfies_constraints(points[inside])
        return inside

    def in_box(self, points: Array) -> Flags:
        """Return whether points (n, d) lie in the support but for the constraints, (n,)."""
        size = np.maximum(np.abs(points), 1.0)
        is_valid = ~self.discrete | (np.abs(points - np.rint(points)) < _WHOLE_TOLERANCE * size)
        return np.asarray(((points >= self.low) & (points <= self.high) & is_valid).all(axis=1))

    def satisfies_constraints(self, x: Array) -> Flags:
        """Return whether points (n, d) of the box keep all constraints, (n,)."""
        inside = np.ones(len(x), dtype=np.bool_)
        for rule in self.constraints:
            inside &= rule.holds(x, self.high - self.low)
        return inside

    def _share_of_box(self) -> float:
        """Return the share of the box, on its scales, in which the constraints hold.

        By Sobol points of a fixed seed over the features that the constraints are on, as many as
        bring a hundred thousand accepted ones, or four million.
        """
        constrained = self._constrained
        sobol = qmc.Sobol(max(len(constrained), 1), rng=np.random.default_rng(0))
        points = hits = 0
        while (
            hits < _MIN_HITS
            and points < _MAX_SHARE_POINTS
            and hits >= _MIN_SHARE * (points - _SHARE_BATCH)
        ):
            cube = np.full((_SHARE_BATCH, self.dimension), 0.5)
            cube[:, constrained] = sobol.random(_SHARE_BATCH)[:, : len(constrained)]
            points += _SHARE_BATCH
            hits += int(self.satisfies_constraints(self.from_cube(cube)).sum())
        if hits < _MIN_SHARE * points:
            raise DensityError(
                f"Uniform: the constraints hold in {hits} of {points} points of the box, fewer "
                f"than {_MIN_SHARE:.1%}; check them, or narrow low and high to their region."
            )
        return hits / points

    def log_prob(self, x: npt.ArrayLike) -> Array:
        """Return log densities (n,) per natural unit; a logarithmic feature contributes −log x.

        A whole number or a category has a probability, not a density.
        """
        points = self._points(x, no_nan=True)
        inside = self.contains(points)
        constant = -np.log(self.scale_high - self.scale_low).sum() - np.log(self.box_share)
        return np.where(inside, constant + self.log_scale_derivative(points), -np.inf)

    def log_scale_derivative(self, x: npt.ArrayLike) -> Array:
        """Return log |d scale / d x| (n,), summed over the features.

        It is −log x of a logarithmic feature and 0 of others; of a whole number, the logarithm of
        its cell's width.
        """
        points = self._points(x)
        # The cell from k − ½ to k + ½ is log(1 + 1/(k − ½)) wide on a logarithmic scale.
        edge = np.where(self.integer, points - 0.5, points)
        edge = np.where(self.log & (edge > 0), edge, 1.0)
        slopes = np.where(self.integer, np.log(np.log1p(1.0 / edge)), -np.log(edge))
        return np.asarray(np.where(self.log, slopes, 0.0).sum(axis=1))

    def to_cube(self, x: npt.ArrayLike) -> Array:
        """Return points of [0, 1]^d, linear in each scale; a whole number at its cell's middle.

        With constraints, λ is uniform on the part of the cube where they hold.
        """
        points = self._points(x)
        cell = np.where(self.integer, 0.5, 0.0)
        z = 0.5 * (self._to_scale(points - cell) + self._to_scale(points + cell))
        return (z - self.scale_low) / (self.scale_high - self.scale_low)

    def from_cube(self, y: npt.ArrayLike) -> Array:
        """Return the inverse of `to_cube`, clipped to the box."""
        x = self.from_cube_unrounded(y)
        return np.clip(np.where(self.discrete, np.rint(x), x), self.low, self.high)

    def from_cube_unrounded(self, y: npt.ArrayLike) -> Array:
        """Return points (n, d) of the cube in natural units, whole numbers not rounded.

        Examples:
            >>> rooms = Uniform([1.0], [4.0], integer=[True])
            >>> rooms.from_cube_unrounded([[0.0], [0.375], [1.0]]).tolist()
            [[0.5], [2.0], [4.5]]
        """
        cube = self._points(y)
        return self.from_scale(self.scale_low + cube * (self.scale_high - self.scale_low))

    def box_to_cube(self, boxes: Array) -> Array:
        """Return cube coordinates (G, d, 2) of the bounds of boxes (G, d, 2), ±∞ included.

        Whole numbers count with their whole cells: from 2 to 4 is from 1½ to 4½ on the scale.
        """
        inside = np.clip(boxes, self.low[:, None], self.high[:, None])
        low, high = inside[..., 0], inside[..., 1]
        low = np.where(self.discrete, np.ceil(low) - 0.5, low)
        high = np.where(self.discrete, np.floor(high) + 0.5, high)
        z = np.stack([self._to_scale(low), self._to_scale(high)], axis=-1)
        return np.asarray(
            (z - self.scale_low[:, None]) / (self.scale_high - self.scale_low)[:, None]
        )

    def wrap(self, x: Array) -> Array:
        """Return points (n, d) with periodic features brought back into their period.

        Examples:
            >>> Uniform([0.0], [24.0], periodic=[True]).wrap(np.array([[25.0], [-1.0]])).tolist()
            [[1.0], [23.0]]
        """
        period = self.high - self.low + self.integer
        wrapped = self.low + np.mod(x - self.low, period)
        outside = (x < self.low) | (x > self.high)
        return np.where(self.periodic & outside, wrapped, x)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description."""
        description = {
            "kind": "uniform",
            "low": self.low.tolist(),
            "high": self.high.tolist(),
            "log": self.log.tolist(),
        }
        masks = {name: getattr(self, name) for name in _MASKS[1:]}
        description |= {name: mask.tolist() for name, mask in masks.items() if mask.any()}
        if self.constraints:
            description["constraints"] = [rule.to_dict() for rule in self.constraints]
        return self._with_names(description)


def describe_unsupported(sampling: SamplingDensity) -> str | None:
    """Return in words what λ has other than continuous numbers; None if it has nothing else.

    Examples:
        >>> describe_unsupported(Uniform([0.0, 1.0], [1.0, 12.0], periodic=[False, True]))
        'feature 1 is periodic'
    """
    descriptions = {
        "has categories": sampling.categorical,
        "has whole numbers": sampling.integer,
        "is periodic": sampling.periodic,
    }
    for name, mask in descriptions.items():
        if mask.any():
            return f"feature {int(mask.argmax())} {name}"
    if isinstance(sampling, Uniform) and sampling.constraints:
        return "the sampling density has constraints"
    return None


def _check_vector(values: npt.ArrayLike, name: str) -> Array:
    array = errors.check_numbers(name, values)
    if array.ndim != 1 or array.size == 0:
        raise DensityError(
            f"{name} has shape {array.shape}; it must be one finite number for each feature, "
            "shape (d,); pass a list or a 1-D array."
        )
    return errors.check_finite(name, array.copy())
