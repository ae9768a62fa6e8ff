"""The coordinates of points in a feature space: their ranges, kinds and scales as arrays."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llm_elicit._util.packages import LazyModule
from llm_elicit.errors import InputError
from llm_elicit.spaces.constraints import Constraint, density_constraint
from llm_elicit.spaces.feature import Feature, Floats, column_values

if TYPE_CHECKING:
    import pandas as pd

    from llm_elicit.density.constraints import Constraint as DensityConstraint
else:
    pd = LazyModule("pandas")


class Coordinates:
    """What arrays of points `(n, d)` mean, columns in the order of `features`."""

    if TYPE_CHECKING:  # fields of the space
        features: tuple[Feature, ...]
        constraints: tuple[Constraint, ...]

        @property
        def given(self) -> dict[str, float]: ...

    @cached_property
    def names(self) -> list[str]:
        return [feature.name for feature in self.features]

    @property
    def dimension(self) -> int:
        return len(self.features)

    @cached_property
    def low(self) -> Floats:
        return np.array([feature.lowest for feature in self.features])

    @cached_property
    def high(self) -> Floats:
        return np.array([feature.highest for feature in self.features])

    @cached_property
    def log(self) -> NDArray[np.bool_]:
        """Which coordinates have a logarithmic scale, `(d,)` bools."""
        return np.array([feature.scale == "log" for feature in self.features])

    @cached_property
    def categorical(self) -> NDArray[np.bool_]:
        """Which coordinates are codes of categories without an order, `(d,)` bools."""
        return np.array([feature.kind == "categorical" for feature in self.features])

    @cached_property
    def integer(self) -> NDArray[np.bool_]:
        """Which coordinates are whole numbers: integers, dates and codes of ordered categories."""
        return np.array([feature.whole for feature in self.features])

    @cached_property
    def periodic(self) -> NDArray[np.bool_]:
        """Which coordinates go around a circle, `(d,)` bools."""
        return np.array([feature.periodic for feature in self.features])

    @cached_property
    def numeric(self) -> NDArray[np.int64]:
        """The places of the coordinates that are not worded as categories."""
        return np.flatnonzero([not feature.categories for feature in self.features])

    @cached_property
    def on_line(self) -> NDArray[np.int64]:
        """The places of the numbers with quantiles: neither categories nor periodic."""
        return self.numeric[~self.periodic[self.numeric]]

    @cached_property
    def scale_ends(self) -> tuple[Floats, Floats]:
        """The ends of the range on the scales, `(d,)` each: of whole numbers, of their cells."""
        return self.to_scale(self.low - self.cells), self.to_scale(self.high + self.cells)

    def to_scale(self, points: ArrayLike) -> Floats:
        """Natural units to scale units (the logarithm, where the scale is logarithmic)."""
        natural = np.asarray(points, dtype=np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.log, np.log(natural), natural)

    def from_scale(self, points: ArrayLike) -> Floats:
        """Scale units back to natural units."""
        scaled = np.asarray(points, dtype=np.float64)
        return np.where(self.log, np.exp(np.where(self.log, scaled, 0.0)), scaled)

    def contains(self, points: ArrayLike) -> NDArray[np.bool_]:
        """Whether each point lies in the range asked about and keeps the constraints, `(n,)` bools.

        Codes, integers and dates must be whole; `high` of a periodic real number is its `low`.
        """
        natural = np.asarray(points, dtype=np.float64)
        inside = self.inside(natural).all(axis=-1)
        return np.asarray(inside & self.allowed(natural) if self.constraints else inside)

    @cached_property
    def density_constraints(self) -> tuple[DensityConstraint, ...]:
        """The constraints on the features, given the values of fixed ones, for the density core."""
        given = dict(enumerate(self.given.values(), start=self.dimension))
        names, places = [*self.names, *self.given], range(self.dimension)
        whole = (density_constraint(each, names) for each in self.constraints)
        left = (each.conditional(given, places) for each in whole)
        return tuple(each for each in left if each is not None)

    def allowed(self, natural: Floats) -> NDArray[np.bool_]:
        """Whether points keep the constraints, `(n,)` bools; not those with missing values."""
        kept = ~np.isnan(natural).any(axis=-1)
        for each in self.density_constraints:
            kept = kept & each.holds(natural, self.high - self.low)
        return np.asarray(kept)

    def inside(self, natural: Floats) -> NDArray[np.bool_]:
        """Whether each value lies in the range of its feature, `(n, d)` bools."""
        discrete = self.categorical | self.integer
        whole = ~discrete | (natural == np.rint(natural))
        below = np.where(self.periodic & ~discrete, natural < self.high, natural <= self.high)
        return np.asarray((natural >= self.low) & below & whole)

    @cached_property
    def cells(self) -> Floats:
        """Half the width of each coordinate's values: 1/2 of whole ones and codes, else 0."""
        return np.where(self.categorical | self.integer, 0.5, 0.0)

    def to_support(self, points: ArrayLike) -> Floats:
        """Points with the values of whole features rounded, and the end of a circle its start."""
        rows = np.asarray(points, dtype=np.float64)
        rows = np.where(self.integer, np.rint(rows), rows)
        circle = self.periodic & ~self.integer
        return np.where(circle & (rows == self.high), self.low, rows)

    def round(self, points: ArrayLike) -> Floats:
        """Points as they are asked, so that the question and the record agree to the last digit."""
        natural = np.asarray(points, dtype=np.float64)
        columns = [f.round(natural[..., i]) for i, f in enumerate(self.features)]
        return np.stack(columns, axis=-1)

    def table_of(self, points: Floats) -> pd.DataFrame:
        """Points as a table with the words of categories, and dates; see `Feature.column`."""
        columns = {f.name: f.column(points[:, i]) for i, f in enumerate(self.features)}
        return pd.DataFrame(columns)

    def points_of(self, table: pd.DataFrame) -> Floats:
        """The points `(n, d)` of a table that `table_of` made, or of one with codes.

        Raises:
            InputError: a word that is no category, a text that is no date, or a missing value.
        """
        for feature in self.features:
            if table[feature.name].isna().any():
                raise InputError(f"{feature.name}: a value is missing")
        columns = [f.read_column(table[f.name]) for f in self.features]
        return np.stack([column_values(column) for column in columns], axis=1)

    def word(self, point: ArrayLike) -> list[tuple[str, str]]:
        """A point as (label, worded value) pairs, in the order of the features."""
        values = np.asarray(point, dtype=np.float64).tolist()
        return [(f.label, f.word(v)) for f, v in zip(self.features, values, strict=True)]

    def word_box(self, box: ArrayLike) -> list[tuple[str, str]]:
        """A box as (label, worded range) pairs of the features that it bounds.

        Args:
            box: `(d, 2)`, the bounds of every feature, natural units; infinite where it is free.
        """
        bounds = np.asarray(box, dtype=np.float64)
        rows = zip(self.features, bounds.tolist(), strict=True)
        return [(f.label, f.word_range(*row)) for f, row in rows if np.isfinite(row).all()]
