"""Constraints on the points of a `Uniform` λ: regions of the box, in natural units.

A constraint is a plain object that JSON can hold (`to_dict`, `parse_constraint`). Points nearer to
the boundary than rounding errors, 1e-9 of the features' ranges, are inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llm_elicit.density import errors
from llm_elicit.density.errors import Array, DensityError, Flags

_TOLERANCE = 1e-9
_CHUNK = 2**20


@dataclass(frozen=True)
class LinearConstraint:
    """The region where Σ_j a_j x_j <= bound, in natural units.

    Attributes:
        coefficients: a (d,), one of each feature, 0 where the feature does not matter; or a mapping
            or Series of those that do, by name, for a λ with names.
        bound: the largest value allowed.

    Raises:
        DensityError: values that are not finite numbers, or coefficients that are all 0.

    Examples:
        >>> import numpy as np
        >>> low_below_high = LinearConstraint([1.0, -1.0], 0.0)       # x_0 <= x_1
        >>> low_below_high.holds(np.array([[1.0, 2.0], [2.0, 1.0]]), np.ones(2)).tolist()
        [True, False]
    """

    coefficients: Sequence[float]
    bound: float
    names: tuple[str, ...] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        values, names = errors.match_order(
            "LinearConstraint: coefficients", self.coefficients, self.names
        )
        a = errors.check_finite("LinearConstraint: coefficients", values)
        if a.ndim != 1 or not a.any():
            raise DensityError(
                f"LinearConstraint: coefficients = {values!r}; they must be one number "
                "for each feature, not all of them 0."
            )
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "coefficients", tuple(a.tolist()))
        object.__setattr__(
            self, "bound", errors.check_number("LinearConstraint: bound", self.bound)
        )

    @property
    def feature_numbers(self) -> tuple[int, ...]:
        """The numbers of the features with a coefficient."""
        return tuple(j for j, a in enumerate(self.coefficients) if a)

    def holds(self, x: Array, ranges: Array) -> Flags:
        """Return whether points (n, d) lie in the region, (n,)."""
        a = np.asarray(self.coefficients)
        return np.asarray(x @ a <= self.bound + _TOLERANCE * float(np.abs(a) @ ranges))

    def condition(self, values: Mapping[int, float], free: Sequence[int]) -> Constraint | None:
        """Return the constraint on the features ``free`` given ``values`` of the others."""
        coefficients = [self.coefficients[j] for j in free]
        offset = sum(self.coefficients[j] * value for j, value in values.items())
        return LinearConstraint(coefficients, self.bound - offset) if any(coefficients) else None

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description."""
        return {"kind": "linear", "coefficients": list(self.coefficients), "bound": self.bound}


@dataclass(frozen=True)
class PolygonConstraint:
    """The region of two features within a polygon, in natural units.

    Attributes:
        features: the numbers of the two features, such as those of longitude and latitude.
        vertices: (v, 2) corners in order, three or more; the last is joined to the first. Where the
            outline crosses itself, a point is inside by the even–odd rule.

    Raises:
        DensityError: other features than two different ones, or vertices of another shape.

    Examples:
        >>> import numpy as np
        >>> triangle = PolygonConstraint((0, 1), [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> triangle.holds(np.array([[0.2, 0.2], [0.8, 0.8], [0.5, 0.5]]), np.ones(2)).tolist()
        [True, False, True]
    """

    features: tuple[int, int]
    vertices: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        if len(self.features) != 2 or self.features[0] == self.features[1]:
            raise DensityError(
                f"PolygonConstraint: features = {self.features!r}; they must be two different ones."
            )
        features = tuple(
            errors.check_integer("PolygonConstraint: features", j) for j in self.features
        )
        if errors.feature_labels("PolygonConstraint: vertices", self.vertices) is not None:
            raise DensityError(
                "PolygonConstraint: vertices have names, and features are numbers; put the columns "
                "in the order of features, and pass to_numpy()."
            )
        corners = errors.check_finite("PolygonConstraint: vertices", self.vertices)
        if corners.ndim != 2 or corners.shape[1] != 2 or len(corners) < 3:
            raise DensityError(
                f"PolygonConstraint: vertices have shape {corners.shape}; they must be (v, 2), "
                "three corners or more."
            )
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "vertices", tuple(map(tuple, corners.tolist())))

    @property
    def feature_numbers(self) -> tuple[int, ...]:
        """The numbers of both features."""
        return self.features

    def holds(self, x: Array, ranges: Array) -> Flags:
        """Return whether points (n, d) lie in the polygon or on its edges, (n,)."""
        unit = ranges[list(self.features)]
        points, start = x[:, list(self.features)] / unit, np.asarray(self.vertices) / unit
        edge, inside = np.roll(start, -1, axis=0) - start, []
        length = np.square(edge).sum(1).clip(min=1e-300)
        for part in np.array_split(points, 1 + len(points) * len(start) // _CHUNK):
            offset = part[:, None] - start  # (n, v, 2)
            crosses = (offset[..., 1] < 0.0) != (offset[..., 1] < edge[:, 1])
            with np.errstate(divide="ignore", invalid="ignore"):
                crossing = edge[:, 0] * offset[..., 1] / edge[:, 1]
            is_odd = (crosses & (offset[..., 0] < crossing)).sum(1) % 2 == 1
            fraction = ((offset * edge).sum(2) / length).clip(0.0, 1.0)[..., None]
            on_edge = np.square(offset - fraction * edge).sum(2) <= _TOLERANCE**2
            inside.append(is_odd | on_edge.any(1))
        return np.concatenate(inside)

    def condition(self, values: Mapping[int, float], free: Sequence[int]) -> Constraint | None:
        """Return the constraint on the features ``free`` given ``values`` of the others."""
        axes = [j for j in self.features if j in free]
        if len(axes) == 2:
            return PolygonConstraint((free.index(axes[0]), free.index(axes[1])), self.vertices)
        if not axes:
            return None
        axis = self.features.index(axes[0])
        along, across = (np.asarray(self.vertices)[:, side] for side in (axis, 1 - axis))
        distance, following = across - values[self.features[1 - axis]], np.roll(along, -1)
        crosses = (distance < 0.0) != (np.roll(distance, -1) < 0.0)
        share = distance[crosses] / (distance - np.roll(distance, -1))[crosses]
        ends = np.sort(along[crosses] + share * (following - along)[crosses])
        return IntervalConstraint(free.index(axes[0]), ends.reshape(-1, 2).tolist())

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description."""
        corners = [list(corner) for corner in self.vertices]
        return {"kind": "polygon", "features": list(self.features), "vertices": corners}


@dataclass(frozen=True)
class IntervalConstraint:
    """The region where one feature lies in one of some intervals, in natural units.

    A polygon is this for one of its features given the other.

    Attributes:
        feature: the feature's number.
        intervals: (m, 2) ends, one interval or more.

    Raises:
        DensityError: intervals of another shape.

    Examples:
        >>> import numpy as np
        >>> morning_or_evening = IntervalConstraint(0, [[6.0, 10.0], [16.0, 20.0]])
        >>> morning_or_evening.holds(np.array([[8.0], [12.0], [20.0]]), np.ones(1)).tolist()
        [True, False, True]
    """

    feature: int
    intervals: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        errors.check_integer("IntervalConstraint: feature", self.feature)
        label = "IntervalConstraint: intervals"
        ends = errors.check_finite(label, self.intervals)
        if ends.ndim != 2 or ends.shape[1] != 2 or not len(ends):
            raise DensityError(
                f"{label} have shape {ends.shape}; they must be (m, 2), one interval or more."
            )
        object.__setattr__(self, "intervals", tuple(map(tuple, ends.tolist())))

    @property
    def feature_numbers(self) -> tuple[int, ...]:
        """The feature's number."""
        return (self.feature,)

    def holds(self, x: Array, ranges: Array) -> Flags:
        """Return whether points (n, d) lie in an interval, (n,)."""
        low, high = np.asarray(self.intervals).T
        slack, values = _TOLERANCE * ranges[self.feature], x[:, self.feature, None]
        return np.asarray(((values >= low - slack) & (values <= high + slack)).any(1))

    def condition(self, values: Mapping[int, float], free: Sequence[int]) -> Constraint | None:
        """Return the constraint on the features ``free`` given ``values`` of the others."""
        if self.feature in values:
            return None
        return IntervalConstraint(free.index(self.feature), self.intervals)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description."""
        intervals = [list(ends) for ends in self.intervals]
        return {"kind": "intervals", "feature": self.feature, "intervals": intervals}


Constraint = LinearConstraint | PolygonConstraint | IntervalConstraint
"""A region of d features: the numbers of the features that it bounds are `feature_numbers`."""


def parse_constraint(
    description: object, dimension: int, names: tuple[str, ...] | None = None
) -> Constraint:
    """Return a constraint on d features, or the one that its ``to_dict`` described.

    One of named features is put in the order of λ's ``names``.

    Examples:
        >>> parse_constraint({"kind": "linear", "coefficients": [1.0, 2.0], "bound": 3.0}, 2)
        LinearConstraint(coefficients=(1.0, 2.0), bound=3.0)
    """
    kinds = {
        "linear": LinearConstraint,
        "polygon": PolygonConstraint,
        "intervals": IntervalConstraint,
    }
    region = description
    if isinstance(description, Mapping) and description.get("kind") in kinds:
        fields = {name: value for name, value in description.items() if name != "kind"}
        region = kinds[description["kind"]](**fields)
    if not isinstance(region, Constraint):
        raise DensityError(
            f"Uniform: constraints holds {description!r}; each must be a LinearConstraint, a "
            "PolygonConstraint or an IntervalConstraint."
        )
    if isinstance(region, LinearConstraint) and region.names is not None:
        if names is None:
            raise DensityError(
                f"Uniform: a LinearConstraint names {', '.join(region.names)}, but low and high "
                "have no names; give both by name, or both as lists."
            )
        coefficients = dict.fromkeys(names, 0.0) | dict(
            zip(region.names, region.coefficients, strict=True)
        )
        region = LinearConstraint(
            errors.match_order("LinearConstraint", coefficients, names)[0], region.bound
        )
    if isinstance(region, LinearConstraint) and len(region.coefficients) != dimension:
        raise DensityError(
            f"Uniform: a LinearConstraint has {len(region.coefficients)} coefficients and λ "
            f"{dimension} features; give one for each, 0 where the feature does not matter."
        )
    last = max(region.feature_numbers)
    if last >= dimension:
        raise DensityError(
            f"Uniform: a constraint is on feature {last}, and λ has {dimension}; "
            "features are numbered from 0."
        )
    return region
