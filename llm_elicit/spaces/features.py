"""Feature spaces: what is asked about, in which units, over which range, on which scale.

A feature has a *scale*, linear or logarithmic. Candidates are drawn uniformly on that scale
and the belief density is the density per unit of it, so that a question about a block group's
population weighs "twice as many" alike at 500 and at 5000 people.

The values of a *categorical* feature are words. In arrays they are codes, the whole numbers from 0
in the order of `categories`; codes only name the categories, so nothing is to be read into which
are near each other, and no mean or quantile of them means anything.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, ValidationInfo, field_validator, model_validator

from llm_elicit.config import resources
from llm_elicit.config.base_model import StrictModel, read_yaml, validated
from llm_elicit.errors import InputError
from llm_elicit.spaces.csv_columns import read_columns

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
"""What a feature's name looks like."""

_LARGEST = 1e30
"""Values beyond are no quantities of any sensible unit, and their squares no numbers at all."""


class Feature(StrictModel):
    """One coordinate of a feature space, and how its values are worded.

    Example:
        >>> age = Feature(name="age", label="age", unit="years", kind="integer", low=0, high=90)
        >>> age.word(41.7)
        '42 years'
        >>> island = Feature(name="island", label="island", kind="categorical",
        ...                  categories=["Biscoe", "Dream", "Torgersen"])
        >>> island.word(1.0), island.code("Torgersen"), island.high
        ('Dream', 2.0, 2.0)
    """

    name: Annotated[str, Field(pattern=NAME)]
    label: str
    unit: str = ""
    prefix: str = ""
    kind: Literal["continuous", "integer", "categorical"] = "continuous"
    scale: Literal["linear", "log"] = "linear"
    low: float = Field(allow_inf_nan=False)
    high: float = Field(allow_inf_nan=False)
    digits: Annotated[int, Field(ge=1, le=9)] = 3
    factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    note: str = ""
    # Left out where there are none: the identity of runs begun before there were any is as it was.
    categories: tuple[str, ...] = Field(default=(), exclude_if=lambda words: not words)

    @model_validator(mode="before")
    @classmethod
    def _codes_of_categories(cls, data: Any) -> Any:
        """Low and high of a categorical feature follow from its words."""
        return _with_codes(data) if isinstance(data, dict) else data

    @field_validator("label", "unit", "prefix")
    @classmethod
    def _can_be_read(cls, text: str, info: ValidationInfo) -> str:
        """What stands in a question stays in its line."""
        if not text.isprintable() or (info.field_name == "label" and not text.strip()):
            raise ValueError("holds nothing that prints in one line; give words")
        return text

    @model_validator(mode="after")
    def _range_is_usable(self) -> Feature:
        largest = max(abs(self.low), abs(self.high)) * max(1.0, self.factor)
        if largest > _LARGEST:
            raise ValueError(
                f"{self.name}: values up to {largest:g} are beyond {_LARGEST:g}; use a larger unit"
            )
        if not self.low < self.high:
            raise ValueError(
                f"{self.name}: low {self.low:g} is not below high {self.high:g}; swap or widen them"
            )
        if self.scale == "log" and self.low <= 0:
            raise ValueError(
                f"{self.name}: a log scale needs low > 0, got {self.low:g}; "
                "raise low or use scale: linear"
            )
        if not self.categories:
            self._check_digits()
        return self

    def _check_digits(self) -> None:
        """Nothing, if the worded values tell the ends of the range apart.

        Raises:
            ValueError: both ends are worded alike.
        """
        low, high = self.word(self.low), self.word(self.high)
        if low == high:
            raise ValueError(
                f"{self.name}: {self.low:g} and {self.high:g} would be asked about as {low!r} and "
                f"{high!r}; give more digits, or factor and unit of a smaller unit (factor: 1e9)"
            )

    def word(self, value: float) -> str:
        """`value` with its unit and no more digits than a person would give.

        `factor` turns the table's unit into the worded one (a median income kept in
        10,000 USD is worded in USD with `factor: 10000`). Of a categorical feature, the word.

        Raises:
            InputError: it is not a number.
        """
        if math.isnan(value):
            raise InputError(
                f"{self.name}: what is not a number cannot be put into words; nothing was asked: "
                "the pair has no points yet, or its table has a gap"
            )
        if self.categories:
            return self.categories[round(min(max(value, self.low), self.high))]
        if self.scale == "linear" and math.isfinite(value):
            decimals, grid = self._grid
            # `_rounded` for one number: NumPy takes its time, and campaigns word millions.
            whole = value * self.factor * grid
            rounded = math.copysign(round(whole), whole) / grid / self.factor
            rounded = min(max(rounded, self.low), self.high)
        else:
            values = np.asarray(value)
            digits = self._decimals(values)
            decimals, rounded = int(digits), float(self._rounded(values, digits))
        shown = rounded * self.factor
        return f"{self.prefix}{shown:,.{max(0, decimals)}f} {self.unit}".rstrip()

    def word_range(self, low: float, high: float) -> str:
        """A range of values in words.

        Example:
            >>> age = Feature(name="age", label="age", unit="years", kind="integer", low=0, high=90)
            >>> age.word_range(50, 55)
            'between 50 and 55 years'
        """
        unit = f" {self.unit}" if self.unit else ""
        return f"between {self.word(low).removesuffix(unit)} and {self.word(high)}"

    def read(self, value: str | float) -> float:
        """A value as it is asked about: a number, rounded, or the code of a category's word.

        Raises:
            InputError: no such category, or not a number of the range.
        """
        if self.categories:
            return self.code(str(value))
        number = value if isinstance(value, int | float) else math.nan
        if not self.low <= number <= self.high:
            raise InputError(
                f"{self.name}: {value!r} is not a number from {self.low:g} to {self.high:g}; give "
                "one, or widen the range in the feature space"
            )
        return float(self.round(np.asarray(float(number))))

    def code(self, word: str) -> float:
        """The code of a category's word, blanks around it aside.

        Raises:
            InputError: there is no such category.
        """
        try:
            return float(self.categories.index(word.strip()))
        except ValueError:
            known = ", ".join(self.categories) or "none, it is no categorical feature"
            raise InputError(f"{self.name}: no category {word!r}; known: {known}") from None

    @cached_property
    def _grid(self) -> tuple[int, float]:
        """On a linear scale: how many decimals there are, and ten to the power of it."""
        return int(self._of_range), float(10.0**self._of_range)

    @property
    def step(self) -> float:
        """The step between the values that are worded, natural units; 0 on a logarithmic scale.

        Example:
            >>> Feature(name="x", label="x", low=0, high=50).step
            0.1
        """
        return 0.0 if self.scale == "log" else 1.0 / (self._grid[1] * self.factor)

    def round(self, values: Floats) -> Floats:
        """Values as they are worded: `digits` digits, whole where the kind is integer.

        Digits are counted from the leading digit of the range on a linear scale (a latitude of
        34.0522 over a ten-degree range is 34.1 at three digits) and from the leading digit of
        the value itself on a logarithmic one (a population of 1166 is 1170). Codes go to the
        nearest category's.
        """
        if self.categories:
            # 0.0 is added so that no code is −0.
            return np.asarray(np.clip(np.rint(values), self.low, self.high) + 0.0)
        return self._rounded(values, self._decimals(values))

    def _rounded(self, values: Floats, decimals: Floats) -> Floats:
        grid = 10.0**decimals
        shown = np.rint(values * self.factor * grid) / grid / self.factor
        return np.asarray(np.clip(shown, self.low, self.high))

    def _decimals(self, values: Floats) -> Floats:
        """How many decimals the worded value has; negative for tens, hundreds, ..."""
        return self._digits_of(np.abs(values)) if self.scale == "log" else self._of_range

    @cached_property
    def _of_range(self) -> Floats:
        return self._digits_of(np.asarray(self.high - self.low))

    def _digits_of(self, extent: Floats) -> Floats:
        decimals = self.digits - 1 - np.floor(np.log10(np.maximum(extent * self.factor, 1e-300)))
        return np.asarray(np.minimum(decimals, 0.0 if self.kind == "integer" else 6.0))


_OF_NUMBERS = {"unit": "", "prefix": "", "scale": "linear", "digits": 3, "factor": 1.0}
"""What numbers alone have, and what it is where it is not given."""


def _with_codes(data: dict[str, Any]) -> dict[str, Any]:
    """A feature's keys, with the lowest and the highest code where its values are categories.

    Raises:
        ValueError: keys that do not go with each other, or words that cannot be told apart.
    """
    name, given = data.get("name"), data.get("categories")
    if data.get("kind") != "categorical":
        if given:
            raise ValueError(f"{name}: categories are given; they need kind: categorical")
        return data
    if not isinstance(given, list | tuple) or len(given) < 2:
        raise ValueError(f"{name}: kind: categorical needs two categories or more; list them")
    for word in given:
        if not isinstance(word, str):
            raise ValueError(f"{name}: category {word!r} is not text; put it in quotes")
        if not word.strip() or not word.strip().isprintable():
            raise ValueError(f"{name}: category {word!r} cannot be read; use words that print")
    words = tuple(word.strip() for word in given)
    twice = sorted({word for word in words if words.count(word) > 1})
    if twice:
        raise ValueError(f"{name}: the category {twice[0]!r} appears twice; categories must differ")
    derived = {"low": 0.0, "high": len(words) - 1.0}
    for key, usual in (_OF_NUMBERS | derived).items():
        if data.get(key, usual) != usual:
            raise ValueError(f"{name}: kind: categorical has no {key}; remove {key}")
    return {**data, **derived, "categories": words}


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
        kept = {name: getattr(self, name) for name in FeatureSpace.model_fields}
        return FeatureSpace(**{**kept, **changed})

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
        """The places of the coordinates that are numbers."""
        return np.flatnonzero(~self.categorical)

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
        """Whether each point lies in the range asked about, codes being whole, `(n,)` bools."""
        natural = np.asarray(points, dtype=np.float64)
        whole = ~self.categorical | (natural == np.rint(natural))
        return np.asarray(((natural >= self.low) & (natural <= self.high) & whole).all(axis=-1))

    def sample(self, n: int, rng: np.random.Generator) -> Floats:
        """`n` draws from the sampling density λ: uniform on each feature's scale, `(n, d)`.

        Values are rounded as they are worded (`round`). All categories are as likely.
        """
        unit = rng.random((n, self.dimension))
        cell = np.where(self.categorical, 0.5, 0.0)  # on either side of a code
        low, high = self.to_scale(self.low) - cell, self.to_scale(self.high) + cell
        return self.round(self.from_scale(low + unit * (high - low)))

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
        """The complete rows of the reference table that lie in the range asked about, `(n, d)`."""
        rows = self.read_table().dropna().to_numpy(dtype=np.float64)
        return rows[self.contains(rows)]
