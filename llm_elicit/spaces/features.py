"""Feature spaces: the features that are asked about, and the reference table."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from llm_elicit.config import resources
from llm_elicit.config.base_model import StrictModel, read_yaml, validated
from llm_elicit.errors import InputError
from llm_elicit.spaces.csv_columns import read_columns
from llm_elicit.spaces.feature import NAME, Feature, Floats

__all__ = ["NAME", "Feature", "FeatureSpace", "Floats", "Table"]

if TYPE_CHECKING:
    import pandas as pd


class Table(StrictModel):
    """The reference data that a belief is compared with, and their source.

    Attributes:
        file: the CSV file, in the folder of the space's YAML file.
        sha256: its checksum.
        source: where the data come from.
        licence: their licence.
        rows: the number of rows.
        columns: the headings of features whose columns are not headed by their names.
    """

    file: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    source: str
    licence: str
    rows: Annotated[int, Field(ge=1)]
    columns: dict[str, str] = Field(default={}, exclude_if=lambda headings: not headings)


class FeatureSpace(StrictModel):
    """A named set of features with their ranges, and the table that it describes.

    Arrays of points are `(n, d)` floats in the table's natural units, with columns in the order
    of `features`.

    Attributes:
        name: the name.
        title: a title for reports.
        subject: what a row of the table is, for questions: "a penguin".
        setting: a sentence of context for questions.
        ranges: how the ranges were chosen.
        features: the features.
        table: the reference table, if any.
        folder: the folder of the YAML file.

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
    folder: Path = Field(default=Path(), exclude=True)

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

    @cached_property
    def names(self) -> list[str]:
        return [feature.name for feature in self.features]

    @property
    def headings(self) -> list[str]:
        """The headings of the reference table's columns, in the order of the features."""
        known = self.table.columns if self.table else {}
        return [known.get(name, name) for name in self.names]

    @property
    def dimension(self) -> int:
        return len(self.features)

    @cached_property
    def low(self) -> Floats:
        return np.array([feature.low for feature in self.features])

    @cached_property
    def high(self) -> Floats:
        return np.array([feature.high for feature in self.features])

    @cached_property
    def log(self) -> NDArray[np.bool_]:
        """Which coordinates have a logarithmic scale, `(d,)` bools."""
        return np.array([feature.scale == "log" for feature in self.features])

    @cached_property
    def categorical(self) -> NDArray[np.bool_]:
        """Which coordinates are codes of categories, `(d,)` bools."""
        return np.array([feature.kind == "categorical" for feature in self.features])

    @cached_property
    def numeric(self) -> NDArray[np.int64]:
        """The indices of the coordinates that are numbers."""
        return np.flatnonzero(~self.categorical)

    def to_scale(self, points: ArrayLike) -> Floats:
        """Convert natural units to scale units: the logarithm on a logarithmic scale."""
        natural = np.asarray(points, dtype=np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.log, np.log(natural), natural)

    def from_scale(self, points: ArrayLike) -> Floats:
        """Convert scale units to natural units."""
        scaled = np.asarray(points, dtype=np.float64)
        return np.where(self.log, np.exp(np.where(self.log, scaled, 0.0)), scaled)

    def contains(self, points: ArrayLike) -> NDArray[np.bool_]:
        """Whether each point lies within the ranges and has whole codes, `(n,)` bools."""
        natural = np.asarray(points, dtype=np.float64)
        whole = ~self.categorical | (natural == np.rint(natural))
        return np.asarray(((natural >= self.low) & (natural <= self.high) & whole).all(axis=-1))

    def sample(self, n: int, rng: np.random.Generator) -> Floats:
        """Draw `n` points `(n, d)` from λ, which is uniform on each feature's scale.

        Values are rounded as they are worded (`round`). All categories are equally likely.
        """
        unit = rng.random((n, self.dimension))
        cell = np.where(self.categorical, 0.5, 0.0)  # on either side of a code
        low, high = self.to_scale(self.low) - cell, self.to_scale(self.high) + cell
        return self.round(self.from_scale(low + unit * (high - low)))

    def round(self, points: ArrayLike) -> Floats:
        """Round points as they are worded, so that questions and records agree exactly."""
        natural = np.asarray(points, dtype=np.float64)
        columns = [f.round(natural[..., i]) for i, f in enumerate(self.features)]
        return np.stack(columns, axis=-1)

    def word(self, point: ArrayLike) -> list[tuple[str, str]]:
        """Return a point as (label, worded value) pairs, in the order of the features."""
        values = np.asarray(point, dtype=np.float64).tolist()
        return [(f.label, f.word(v)) for f, v in zip(self.features, values, strict=True)]

    def word_box(self, box: ArrayLike) -> list[tuple[str, str]]:
        """Return a box as (label, worded range) pairs of the features that it bounds.

        Args:
            box: `(d, 2)`, the bounds of every feature, natural units; infinite if unbounded.
        """
        bounds = np.asarray(box, dtype=np.float64)
        rows = zip(self.features, bounds.tolist(), strict=True)
        return [(f.label, f.word_range(*row)) for f, row in rows if np.isfinite(row).all()]

    def read_table(self) -> pd.DataFrame:
        """Read the reference table's feature columns, natural units, and verify its checksum.

        Words of categorical features become codes.

        Raises:
            InputError: the space has no table, the file is missing or was changed, or a column is
                missing, holds text for numbers, or a word that is not a category.
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
        words = [feature.categories for feature in self.features]
        read = read_columns(path, dict(zip(self.headings, words, strict=True)))
        if len(read) != self.table.rows:
            raise InputError(
                f"{path}: {len(read):,} rows, and {self.name}.yaml says {self.table.rows:,}; "
                "correct rows there, or restore the file"
            )
        return read.set_axis(self.names, axis="columns")

    def table_points(self) -> Floats:
        """Read the complete rows of the reference table within the ranges, `(n, d)`."""
        rows = self.read_table().dropna().to_numpy(dtype=np.float64)
        return rows[self.contains(rows)]
