"""Feature spaces: the features that are asked about together, and their reference table."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from llm_elicit.config import resources
from llm_elicit.config.base_model import Sampling, StrictModel, read_yaml, validated
from llm_elicit.errors import InputError
from llm_elicit.spaces.csv_columns import read_columns
from llm_elicit.spaces.feature import NAME, Feature, Floats
from llm_elicit.spaces.number_format import Locale
from llm_elicit.spaces.table_density import TableDensity

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["NAME", "Feature", "FeatureSpace", "Floats", "Table", "TableRows"]


class Table(StrictModel):
    """The reference data that a belief is compared with, and where they come from.

    `columns` gives the headings of features that are not headed by their names; of names that
    are no feature's it says nothing.
    """

    file: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    source: str
    licence: str
    rows: Annotated[int, Field(ge=1)]
    columns: dict[str, str] = Field(default={}, exclude_if=lambda headings: not headings)


class FixedFeature(StrictModel):
    """A feature that a conditional space holds at one value, natural units."""

    feature: Feature
    value: float

    @property
    def worded(self) -> str:
        """The label and the worded value."""
        return f"{self.feature.label} {self.feature.word(self.value)}"


@dataclass(frozen=True)
class TableRows:
    """The rows of a reference table that are used, and why the others are not.

    A row is counted once: under the first feature, in the order of the space, that it lacks, or
    else under the first whose range it leaves.

    Attributes:
        total: the number of rows.
        used: the number of rows that are complete and within the range.
        missing: the number of rows without a value, by feature.
        outside: the number of complete rows outside the range, by feature.

    Example:
        >>> print(TableRows(200_000, 59_233, {"age": 20_767}, {"income": 120_000}))
        59,233 of 200,000 rows used: 120,000 outside the range of income, 20,767 with a missing age
    """

    total: int
    used: int
    missing: Mapping[str, int]
    outside: Mapping[str, int]

    def __str__(self) -> str:
        """The counts in a sentence, the largest first."""
        reasons = [(n, f"{n:,} outside the range of {name}") for name, n in self.outside.items()]
        reasons += [(n, f"{n:,} with a missing {name}") for name, n in self.missing.items()]
        listed = ", ".join(line for _, line in sorted(reasons, key=lambda each: -each[0]))
        return f"{self.used:,} of {self.total:,} rows used" + (f": {listed}" if listed else "")


class FeatureSpace(StrictModel):
    """A named box of features with the table it stands for.

    Arrays of points are `(n, d)` floats in the table's natural units, columns in the order
    of `features`.

    Example:
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
    fixed: tuple[FixedFeature, ...] = Field(default=(), exclude_if=lambda fixed: not fixed)
    sampling: Sampling = Field(default="uniform", exclude_if=lambda given: given == "uniform")
    locale: Locale | None = Field(default=None, exclude_if=lambda given: given is None)
    folder: Path = Field(default=Path(), exclude=True)

    @model_validator(mode="before")
    @classmethod
    def _locale_of_features(cls, data: Any) -> Any:
        """Features without a locale of their own have the space's."""
        if not isinstance(data, dict) or data.get("locale") is None:
            return data
        features = [_with_locale(feature, data["locale"]) for feature in data.get("features") or ()]
        return data | {"features": features}

    @model_validator(mode="after")
    def _names_are_unique(self) -> FeatureSpace:
        names = [feature.name for feature in self.features]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"features: the name {twice[0]!r} appears twice; names must differ")
        return self

    @model_validator(mode="after")
    def _labels_are_unique(self) -> FeatureSpace:
        labels = [feature.label.strip() for feature in self.features]
        twice = [label for number, label in enumerate(labels) if label in labels[:number]]
        if twice:
            raise ValueError(
                f"features: the label {twice[0]!r} appears twice; a judge could not tell them apart"
            )
        return self

    @model_validator(mode="after")
    def _headings_are_unique(self) -> FeatureSpace:
        headings = self.headings
        twice = sorted({heading for heading in headings if headings.count(heading) > 1})
        if twice:
            raise ValueError(
                f"table: the column {twice[0]!r} belongs to two features; a feature has its own"
            )
        return self

    @classmethod
    def load(cls, name: str) -> FeatureSpace:
        """Read a feature space by name (from datasets/) or by path.

        Raises:
            InputError: no such file, or the file breaks a rule; the message names it.
        """
        path = resources.find("datasets", name, ".yaml")
        data = read_yaml(path)
        return validated(cls, {**data, "folder": path.parent}, str(path))

    def conditional(self, given: Mapping[str, str | float]) -> FeatureSpace:
        """Return the space of the other features, given values of some.

        The questions' setting states the values, and the table has the rows of these values alone:
        those that would be worded alike.

        Args:
            given: words of categories, and numbers in natural units, by feature.

        Raises:
            InputError: an unknown feature, a value that it cannot have, or no feature is left.

        Example:
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
                    f"given: {self.name} has no feature {name!r}; it has {', '.join(features)}"
                )
        free = tuple(one for name, one in features.items() if name not in given)
        if not free:
            raise InputError("given: every feature is given; leave one or more to ask about")
        fixed = tuple(
            FixedFeature(feature=features[name], value=features[name].read(value))
            for name, value in given.items()
        )
        stated = f"All of them have {'; '.join(one.worded for one in fixed)}."
        setting = f"{self.setting} {stated}".strip()
        changed = {"features": free, "fixed": (*self.fixed, *fixed), "setting": setting}
        return self._changed(changed)

    def sampled(self, sampling: Sampling) -> FeatureSpace:
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

    def _changed(self, values: Mapping[str, Any]) -> FeatureSpace:
        kept = {name: getattr(self, name) for name in FeatureSpace.model_fields}
        return FeatureSpace(**{**kept, **values})

    @cached_property
    def names(self) -> list[str]:
        return [feature.name for feature in self.features]

    @property
    def headings(self) -> list[str]:
        """What the reference table's columns are headed by, in the order of the features."""
        return [self._heading(name) for name in self.names]

    def _heading(self, name: str) -> str:
        return self.table.columns.get(name, name) if self.table else name

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
        """Whether each point lies in the range asked about, `(n,)` bools.

        Codes, integers and dates must be whole; `high` of a periodic real number is its `low`.
        """
        return np.asarray(self._inside(np.asarray(points, dtype=np.float64)).all(axis=-1))

    def _inside(self, natural: Floats) -> NDArray[np.bool_]:
        """Whether each value lies in the range of its feature."""
        discrete = self.categorical | self.integer
        whole = ~discrete | (natural == np.rint(natural))
        below = np.where(self.periodic & ~discrete, natural < self.high, natural <= self.high)
        return np.asarray((natural >= self.low) & below & whole)

    def sample(self, n: int, rng: np.random.Generator) -> Floats:
        """`n` draws from the sampling density λ, `(n, d)`, rounded as they are worded (`round`).

        λ is uniform on each feature's scale: a category or a whole number k has the probability of
        its cell, from k − 1/2 to k + 1/2. With `sampling="empirical"` it is a kernel density of the
        table; see `llm_elicit.spaces.table_density`.
        """
        if self.sampling == "empirical":
            return self.round(self.from_scale(self._of_table.sample(n, rng, self._asked)))
        unit = rng.random((n, self.dimension))
        cell = np.where(self.categorical | self.integer, 0.5, 0.0)
        low, high = self.to_scale(self.low - cell), self.to_scale(self.high + cell)
        return self.round(self.from_scale(low + unit * (high - low)))

    @cached_property
    def _of_table(self) -> TableDensity:
        return TableDensity(self.to_scale(self.table_points()), ~self.categorical)

    def _asked(self, scaled: Floats) -> NDArray[np.bool_]:
        """Whether points on the scales lie in the range asked about, before they are rounded."""
        natural = self.from_scale(scaled)
        cell = np.where(self.categorical | self.integer, 0.5, 0.0)
        return np.asarray(
            ((natural >= self.low - cell) & (natural <= self.high + cell)).all(axis=1)
        )

    def round(self, points: ArrayLike) -> Floats:
        """Points as they are asked, so that the question and the record agree to the last digit."""
        natural = np.asarray(points, dtype=np.float64)
        columns = [f.round(natural[..., i]) for i, f in enumerate(self.features)]
        return np.stack(columns, axis=-1)

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

    def read_table(self) -> pd.DataFrame:
        """The reference table's feature columns, natural units, after its checksum is verified.

        Words of categorical features become codes. Rows with other values of `fixed` features are
        left out.

        Raises:
            InputError: the space has no table, the file is gone or changed, or a column is
                missing, holds text for numbers, or a word that is no category.
        """
        if self.table is None:
            raise InputError(
                f"feature space {self.name!r} has no reference table; add `table:` to its YAML"
            )
        path = self.folder / self.table.file
        if not path.is_file():
            raise InputError(f"{path}: the reference table is missing; put the file back")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != self.table.sha256:
            raise InputError(
                f"{path}: checksum {digest[:12]}… is not {self.table.sha256[:12]}… as "
                f"{self.name}.yaml says; restore the file or update sha256"
            )
        held = {self._heading(one.feature.name): one for one in self.fixed}
        words = [feature.categories for feature in self.features]
        wanted = {heading: one.feature.categories for heading, one in held.items()}
        read = read_columns(path, dict(zip(self.headings, words, strict=True)) | wanted)
        if len(read) != self.table.rows:
            raise InputError(
                f"{path}: {len(read):,} rows, and {self.name}.yaml says {self.table.rows:,}; "
                "correct rows there, or restore the file"
            )
        for heading, one in held.items():
            read = read[one.feature.round(read[heading].to_numpy()) == one.value]
        return read[self.headings].set_axis(self.names, axis="columns")

    def table_points(self) -> Floats:
        """The complete rows of the reference table that lie in the range asked about, `(n, d)`.

        Values of whole features are rounded to whole numbers.
        """
        rows = self._on_support(self.read_table())
        return rows[self.contains(rows)]

    def table_rows(self) -> TableRows:
        """The number of rows that `table_points` has, and why the others are left out."""
        rows = self._on_support(self.read_table())
        missing = self._first(np.isnan(rows))
        inside = self._inside(rows)
        outside = self._first(~inside & ~np.isnan(rows).any(axis=1, keepdims=True))
        return TableRows(len(rows), int(inside.all(axis=1).sum()), missing, outside)

    def _on_support(self, table: pd.DataFrame) -> Floats:
        rows = table.to_numpy(dtype=np.float64)
        rows = np.where(self.integer, np.rint(rows), rows)
        circle = self.periodic & ~self.integer
        return np.where(circle & (rows == self.high), self.low, rows)

    def _first(self, flagged: NDArray[np.bool_]) -> dict[str, int]:
        """The number of rows by the first feature that is flagged in them."""
        places = flagged.argmax(axis=1)[flagged.any(axis=1)]
        counts = np.bincount(places, minlength=self.dimension).tolist()
        return {name: n for name, n in zip(self.names, counts, strict=True) if n}


def _with_locale(feature: Any, locale: Any) -> Any:
    """A feature, or its keys, with a locale unless it has one."""
    if isinstance(feature, Feature):
        given = Locale.model_validate(locale)
        return feature if feature.locale else feature.model_copy(update={"locale": given})
    if isinstance(feature, dict) and feature.get("locale") is None:
        return feature | {"locale": locale}
    return feature
