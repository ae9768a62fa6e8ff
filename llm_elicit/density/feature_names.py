"""Names of the features of a density, and the words of their categories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llm_elicit.density import errors
from llm_elicit.density.errors import Array, DensityError


@dataclass(frozen=True)
class FeatureNames:
    """The names of d features.

    Attributes:
        names: one name for each feature, no two alike.
        categories: the words of a feature's codes 0, 1, ..., by its number.
        dates: the numbers of features that are days since 1 January 1970.

    Examples:
        >>> known = FeatureNames(("species", "mass"), {0: ("Adelie", "Gentoo")})
        >>> known.parse_values("given", {"species": "Gentoo"})
        {0: 1.0}
        >>> days = FeatureNames(("day",), dates=frozenset([0]))
        >>> days.parse_values("given", {"day": "2020-03-14"})
        {0: 18335.0}
    """

    names: tuple[str, ...]
    categories: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    dates: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for name in self.names:
            if not isinstance(name, str) or self.names.count(name) > 1:
                raise DensityError(
                    f"feature names: {name!r}; they must be different texts; rename the columns."
                )

    def __str__(self) -> str:
        names = ", ".join(map(repr, self.names[: errors.MAX_NAMES]))
        more = len(self.names) - errors.MAX_NAMES
        return f"{names} and {more} more" if more > 0 else names

    @classmethod
    def default(cls, count: int) -> FeatureNames:
        """Return x0, x1, ..., the names of features without any."""
        return cls(tuple(f"x{i}" for i in range(count)))

    def index(self, label: str, feature: int | str) -> int:
        """Return the number of a feature, which is given by its number or name."""
        if isinstance(feature, str):
            if feature not in self.names:
                raise DensityError(
                    f"{label}: no feature {feature!r}; the features are {', '.join(self.names)}."
                )
            return self.names.index(feature)
        return errors.check_integer(
            f"{label}: a feature's number", feature, maximum=len(self.names) - 1
        )

    def indices(self, label: str, features: Any = None) -> list[int]:
        """Return the numbers of features, each given by its number or name; of all for None.

        Raises:
            DensityError: there is no such feature, none was given, or one was given twice.
        """
        if features is None:
            return list(range(len(self.names)))
        is_sequence = isinstance(features, Iterable) and not isinstance(features, str)
        indices = [
            self.index(label, feature) for feature in (features if is_sequence else [features])
        ]
        if not indices or len(set(indices)) < len(indices):
            raise DensityError(
                f"{label}: features = {features!r}; give one or more, none of them twice."
            )
        return indices

    def parse_values(self, label: str, assignment: Mapping[Any, float | str]) -> dict[int, float]:
        """Return values by the features' numbers; words of categories become codes."""
        if not isinstance(assignment, Mapping) or not assignment:
            raise DensityError(
                f"{label}: {assignment!r}; it must be {{feature: value}}, one value or more."
            )
        assignments = {self.index(label, feature): value for feature, value in assignment.items()}
        return {
            index: self._parse_value(label, index, value) for index, value in assignments.items()
        }

    def _parse_value(self, label: str, index: int, value: float | str) -> float:
        if index in self.dates and not isinstance(value, int | float):
            return self._parse_date(label, index, value)
        if not isinstance(value, str):
            return errors.check_number(f"{label}: the value of feature {index}", value)
        categories = self.categories.get(index, ())
        if value not in categories:
            choices = ", ".join(categories) or "none; give a number"
            raise DensityError(
                f"{label}: {self.names[index]} has no category {value!r}; it has {choices}."
            )
        return float(categories.index(value))

    def _parse_date(self, label: str, index: int, value: object) -> float:
        """Return a date, or its text, as days since 1 January 1970."""
        try:
            return float(np.datetime64(value, "D").astype(np.int64))  # type: ignore[call-overload]
        except (TypeError, ValueError):  # the first of a missing date
            raise DensityError(
                f"{label}: {self.names[index]} has no date {value!r}; write it as 2020-03-14."
            ) from None

    def to_array(self, label: str, x: Any) -> Any:
        """Return the columns of a data frame in the order of the features; arrays as they are.

        So are a mapping of columns, and the values of one point in a mapping or a Series.
        """
        x = errors.as_frame(x)
        column_names = errors.feature_labels(label, x)
        if column_names is None:
            return x
        missing = [name for name in self.names if name not in column_names]
        if missing:
            available = ", ".join(map(repr, column_names)) or "none"
            raise DensityError(
                f"{label}: the frame has no column {missing[0]!r}; it has {available}."
            )
        columns = [
            self._encode_column(label, index, x[name]) for index, name in enumerate(self.names)
        ]
        return np.stack(columns, axis=-1) if columns else np.empty((len(x), 0))

    def _encode_column(self, label: str, index: int, column: Any) -> Array:
        if not hasattr(column, "dtype") or not column.ndim:
            column = np.asarray(column)
            if not column.ndim:
                return np.array(self._parse_value(label, index, column.item()))
        if index in self.dates and column.dtype.kind in "OUTM":
            return np.array([self._parse_date(label, index, day) for day in column])
        if index not in self.categories or column.dtype.kind in "biuf":
            return errors.check_numbers(f"{label}: column {self.names[index]!r}", column)
        words = np.asarray(column, dtype=object)
        codes = {word: self._parse_value(label, index, str(word)) for word in dict.fromkeys(words)}
        return np.array([codes[word] for word in words], dtype=np.float64)

    def to_columns(self, x: Array) -> dict[str, Any]:
        """Return the columns of points (n, d) by name, codes of categories as words."""
        columns: dict[str, Any] = {}
        for index, name in enumerate(self.names):
            words = self.categories.get(index)
            if index in self.dates:
                columns[name] = np.rint(x[:, index]).astype("datetime64[D]").astype("datetime64[s]")
                continue
            values = x[:, index].tolist()
            columns[name] = values if words is None else [words[round(code)] for code in values]
        return columns

    def drop(self, features: Iterable[int]) -> FeatureNames:
        """Return the names of the other features."""
        dropped = set(features)
        return self.select([i for i in range(len(self.names)) if i not in dropped])

    def select(self, indices: Sequence[int]) -> FeatureNames:
        """Return the names of some features, in the order given."""
        words = {n: self.categories[i] for n, i in enumerate(indices) if i in self.categories}
        dates = frozenset(n for n, i in enumerate(indices) if i in self.dates)
        return FeatureNames(tuple(self.names[i] for i in indices), words, dates)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description."""
        categories = {str(index): list(categories) for index, categories in self.categories.items()}
        return {"names": list(self.names), "categories": categories, "dates": sorted(self.dates)}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> FeatureNames:
        """Return the names that `to_dict` described."""
        categories = {
            int(index): tuple(categories) for index, categories in description["categories"].items()
        }
        return cls(tuple(description["names"]), categories, frozenset(description.get("dates", ())))


def frame_names(x: Any) -> FeatureNames | None:
    """Return the names of the columns of a data frame; None if they are not texts, all different.

    The categories of a column of pandas' dtype "category" are its words, if they are texts, and
    columns of times are dates.

    Examples:
        >>> frame_names([[1.0, 2.0]]) is None
        True
    """
    columns = list(x.columns) if hasattr(x, "columns") and hasattr(x, "to_numpy") else []
    are_texts = all(isinstance(name, str) for name in columns)
    if not columns or not are_texts or len(set(columns)) < len(columns):
        return None
    dates = frozenset(index for index, name in enumerate(columns) if x[name].dtype.kind == "M")
    categories = {}
    for index, name in enumerate(columns):
        words = tuple(getattr(x[name].dtype, "categories", ()))
        if words and all(isinstance(word, str) for word in words):
            categories[index] = words
    return FeatureNames(tuple(columns), categories, dates)


def match_frames(
    sides: tuple[str, str], first: Any, second: Any
) -> tuple[Any, Any, FeatureNames | None]:
    """Return two sides of n questions, with the columns of data frames in the order of the first.

    The last value is the names of the features; None if there are none.

    Raises:
        DensityError: as `FeatureNames.to_array`, or frames with other columns.
    """
    names = frame_names(first)
    if (names is None) != (frame_names(second) is None):
        raise DensityError(
            f"{sides[0]} has feature names or {sides[1]} has, not both; give two data frames, "
            "or two arrays."
        )
    if names is not None:
        return names.to_array(sides[0], first), names.to_array(sides[1], second), names
    columns = [list(getattr(side, "columns", ())) for side in (first, second)]
    for label, labels in zip(sides, columns, strict=True):
        if len(set(labels)) < len(labels):
            raise DensityError(
                f"{label} has two columns of one name among {errors.shorten(labels)}; "
                "rename one of them."
            )
    are_frames = hasattr(first, "columns") and hasattr(second, "columns")
    if are_frames and columns[0] != columns[1]:
        if set(columns[0]) != set(columns[1]):
            raise DensityError(
                f"{sides[1]} has the columns {errors.shorten(columns[1])} and {sides[0]} "
                f"{errors.shorten(columns[0])}; they must be the same features."
            )
        second = second[columns[0]]
    return first, second, None


def stack_frames(label: str, points: Any) -> tuple[Any, FeatureNames | None]:
    """Return a list of k data frames as an array (n, k, d), with their names; others as they are.

    Raises:
        DensityError: as `FeatureNames.to_array`, or frames of different lengths.
    """
    frames = (
        [errors.as_frame(frame) for frame in points] if isinstance(points, list | tuple) else []
    )
    names_of_frames = [frame_names(frame) for frame in frames]
    names = names_of_frames[0] if names_of_frames else None
    if names is None or None in names_of_frames:
        if any(names_of_frames):
            raise DensityError(f"{label}: some tables have names and others none; name all.")
        return points, None
    parts = [names.to_array(label, frame) for frame in frames]
    if len({len(part) for part in parts}) > 1:
        raise DensityError(
            f"{label} are frames of different lengths; each needs one row per question."
        )
    return np.stack(parts, axis=1), names
