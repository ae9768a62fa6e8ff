"""Reference tables: the file behind a feature space, the rows that are used, and their density.

The kernel density is a sampling density λ whose questions are plausible. A draw is a random row,
moved by a normal kernel on the features' scales. The kernel's covariance is that of the rows times
h², h = n^(−1/(d + 4)) (Scott, 1992), so that it follows the table's correlations. Draws outside the
range or a constraint are drawn again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from llm_elicit._util.packages import LazyModule, pd
from llm_elicit._util.settings import StrictModel, increasing
from llm_elicit._util.text import visible
from llm_elicit.errors import InputError
from llm_elicit.spaces.csv_files import Dialect
from llm_elicit.spaces.feature import Feature, Floats

if TYPE_CHECKING:
    from llm_elicit.spaces import cells, table_files
else:  # a process that only asks questions does not import pandas
    cells = LazyModule("llm_elicit.spaces.cells")
    table_files = LazyModule("llm_elicit.spaces.table_files")

_MIN_ROWS = 20
_SCARCE = 0.1
"""Share of used rows below which a message says that they are few."""

_MAX_ROUNDS = 1000


class TableDensity:
    """The kernel density of rows `(n, d)` on the features' scales.

    Args:
        rows: on the scales.
        smoothed: which columns the kernel moves, `(d,)`; codes of categories stay as they are.

    Raises:
        InputError: fewer than 20 rows.

    Examples:
        >>> rows = np.random.default_rng(0).normal(3.0, 1.0, (500, 2))
        >>> density = TableDensity(rows, np.array([True, True]))
        >>> drawn = density.sample(1000, np.random.default_rng(1), lambda z: z[:, 0] > 0)
        >>> drawn.shape, bool(drawn[:, 0].min() > 0), float(drawn.mean().round(1))
        ((1000, 2), True, 2.9)
    """

    def __init__(self, rows: Floats, smoothed: NDArray[np.bool_]) -> None:
        if len(rows) < _MIN_ROWS:
            raise InputError(
                f"sampling: empirical needs {_MIN_ROWS} complete rows within the ranges, but the "
                f"table has {len(rows)}; use sampling: uniform, or widen the ranges"
            )
        self.rows, self.smoothed = rows, smoothed
        smoothed_rows = rows[:, smoothed]
        self._factor = np.zeros((smoothed_rows.shape[1],) * 2)
        if smoothed_rows.shape[1]:
            width = len(rows) ** (-1.0 / (smoothed_rows.shape[1] + 4))
            covariance = np.atleast_2d(np.cov(smoothed_rows.T))
            values, vectors = np.linalg.eigh(covariance)
            self._factor = width * vectors * np.sqrt(np.maximum(values, 0.0))

    def sample(
        self, n: int, rng: np.random.Generator, inside: Callable[[Floats], NDArray[np.bool_]]
    ) -> Floats:
        """Return n draws `(n, d)`, on the scales, for which `inside` is true.

        Raises:
            InputError: hardly any draw is inside.
        """

        def draw() -> Floats:
            points = self.rows[rng.integers(len(self.rows), size=n)]
            noise = rng.standard_normal((n, len(self._factor)))
            points[:, self.smoothed] += noise @ self._factor.T
            return points[inside(points)]

        scarce = (
            "sampling: empirical: almost no draw from the table's density lies within the ranges; "
            "widen the ranges"
        )
        return draw_accepted(draw, n, scarce)


def draw_accepted(draw: Callable[[], Floats], n: int, scarce: str) -> Floats:
    """Return the first n points of repeated calls of `draw`, which returns accepted points.

    Raises:
        InputError: a thousand calls return fewer than n points; the message is `scarce`.
    """
    points = draw()
    for _ in range(_MAX_ROUNDS - 1):
        if len(points) >= n:
            break
        points = np.concatenate([points, draw()])
    if len(points) < n:
        raise InputError(scarce)
    return points[:n]


Cuts = Annotated[tuple[float, ...], AfterValidator(increasing)]


class Table(StrictModel):
    """The reference data that a belief is compared with, and where they come from.

    Attributes:
        file: the file's name, beside the space's.
        sha256: its checksum.
        source, licence: where the table comes from, and under which licence.
        rows: the number of its cases, without blank rows and rows that the dialect leaves out.
        columns: by feature, the heading of its column where that is not its name; other keys are
            ignored.
        dialect: the format of its file.
        words: by feature, the category that a cell's text (which may be empty) stands for; an empty
            category means a missing value, as in ``income: {"-99": ""}``.
        dates: by feature, the format of its dates; ISO dates such as 2020-03-14 by default.
        cuts: by feature whose categories are ranges of numbers, the lower bounds of the ranges
            from the second on.
    """

    file: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    source: str
    licence: str
    rows: Annotated[int, Field(ge=1)]
    columns: dict[str, str] = Field(default={}, exclude_if=lambda headings: not headings)
    dialect: Dialect = Field(default=Dialect(), exclude_if=lambda value: value == Dialect())
    words: dict[str, dict[str, str]] = Field(default={}, exclude_if=lambda value: not value)
    dates: dict[str, str] = Field(default={}, exclude_if=lambda value: not value)
    cuts: dict[str, Cuts] = Field(default={}, exclude_if=lambda value: not value)

    def heading(self, name: str) -> str:
        """Return the heading of a feature's column."""
        return self.columns.get(name, name)

    def read(
        self, folder: Path, features: Sequence[Feature], space: str, content: bytes | None = None
    ) -> pd.DataFrame:
        """Return the columns of features, by their names, as floats in natural units.

        Args:
            folder: where the file is.
            features: the features.
            space: the space's name, for messages.
            content: the file's bytes, if it has not been written yet.

        Raises:
            InputError: the file is gone or was changed, or a column is missing or holds a cell
                that is no value of its feature.
        """
        path = folder / self.file
        content = self._checked(path, space, content)
        frame = table_files.read_table_file(path, self.dialect, content).frame
        if len(frame) != self.rows:
            raise InputError(
                f"{path}: {len(frame):,} rows, but {space}.yaml says `rows: {self.rows}`; correct "
                "the YAML, or restore the table"
            )
        missing = [f.name for f in features if self.heading(f.name) not in frame.columns]
        if missing:
            raise InputError(
                f"{path}: no column {self.heading(missing[0])!r}; the columns are "
                f"{', '.join(frame.columns)}"
            )
        columns = {f.name: frame[self.heading(f.name)] for f in features}
        return pd.DataFrame({f.name: self.values(columns[f.name], f, path) for f in features})

    def values(self, column: pd.Series[Any], feature: Feature, path: Path) -> pd.Series[float]:
        """Return a feature's column as numbers: codes, days since 1970; NaN for missing cells.

        Args:
            column: the column's cells, as text or typed.
            feature: the feature.
            path: the file, for messages.

        Raises:
            InputError: a cell is not a value of the feature; the message names column and line.
        """
        words = self.words.get(feature.name, {})
        if blanks := [cell for cell, word in words.items() if not word]:
            column = column.mask(cells.as_text(column).isin(blanks))
        has_codes = bool(feature.categories)
        codes = {cell: feature.code(word) for cell, word in words.items() if word and has_codes}
        way_out = "correct the cell or leave the column out"
        if self.cuts.get(feature.name):
            values, rule = self._ranges(column, feature, codes), "not a number"
            way_out = "correct the cell"
        elif feature.categories:
            codes = {word: float(code) for code, word in enumerate(feature.categories)} | codes
            values = cells.as_text(column).map(codes)
            rule = f"not one of its categories ({', '.join(feature.categories)})"
            way_out = "correct the cell, or add the category to the feature space"
        elif feature.kind == "date":
            values = cells.to_days(column, self.dates.get(feature.name, cells.ISO))
            rule = "not a date"
        else:
            values, rule = cells.to_numbers(column, self.dialect), "not a number"
        values = values.astype("float64")
        if values.notna().all():
            return values
        bad = cells.as_text(column[values.isna()])
        bad = bad[~cells.is_missing(bad)]
        if len(bad):
            raise InputError(
                f"{path}: column {column.name!r}, line {int(bad.index[0]) + 2}: "
                f"{visible(bad.iloc[0], 100)!r} is {rule}; {way_out}"
            )
        return values

    def _ranges(
        self, column: pd.Series[Any], feature: Feature, codes: Mapping[str, float]
    ) -> pd.Series[float]:
        """Return the codes of the ranges that numbers lie in.

        Raises:
            InputError: there are more or fewer ranges than cuts.
        """
        cuts, ranges = self.cuts[feature.name], len(feature.categories) - ("" in codes)
        if ranges != len(cuts) + 1:
            raise InputError(
                f"table.cuts: {len(cuts)} numbers between {ranges} ranges of {feature.name}; give "
                "one less than there are categories for numbers"
            )
        numbers, text = cells.to_numbers(column, self.dialect), cells.as_text(column)
        indices = np.searchsorted(cuts, numbers.to_numpy(), side="right")
        values = pd.Series(indices, numbers.index, dtype="float64").where(numbers.notna())
        if "" not in codes:
            return values
        return values.where(~cells.is_missing(text) & ~text.isin(list(codes)), codes[""])

    def _checked(self, path: Path, space: str, content: bytes | None) -> bytes:
        """Return the bytes of the file after verifying their checksum.

        Raises:
            InputError: the file is missing, or its checksum is not the recorded one.
        """
        if content is None and not path.is_file():
            raise InputError(f"{path}: the reference table is missing; restore the file")
        content = path.read_bytes() if content is None else content
        digest = hashlib.sha256(content).hexdigest()
        if digest != self.sha256:
            raise InputError(
                f"{path}: checksum {digest[:12]}… is not the {self.sha256[:12]}… of feature space "
                f"{space!r}; restore the file, or update `sha256` to {digest}"
            )
        return content

    def printed(self, folder: Path, content: bytes | None = None) -> list[list[str]]:
        """Return the cells as they are printed, the header line first."""
        path = folder / self.file
        content = path.read_bytes() if content is None else content
        return table_files.printed_cells(path, self.dialect, content)


@dataclass(frozen=True)
class TableRows:
    """The rows of a reference table that are used, and why the others are not.

    A row is counted once: at the first feature, in the order of the space, whose value is missing,
    or else at the first whose range it is outside of.

    Attributes:
        total: the number of rows.
        used: the number of rows that are complete and within the range.
        missing: the number of rows without a value, by column.
        outside: the number of complete rows outside the range, by column.
        excluded: the number of rows within all ranges that break a constraint.

    Examples:
        >>> print(TableRows(200_000, 59_233, {"age": 20_767}, {"income": 120_000}))
        59,233 of 200,000 rows used: 120,000 outside the range of income, 20,767 with a missing age
    """

    total: int
    used: int
    missing: Mapping[str, int]
    outside: Mapping[str, int]
    excluded: int = 0

    @property
    def scarce(self) -> str:
        """Advice if hardly any rows are used; empty if they are enough."""
        if self.used >= max(_SCARCE * self.total, min(_MIN_ROWS, self.total / 2)):
            return ""
        return (
            f"beliefs are compared with only {self.used:,} of {self.total:,} rows; to use more, "
            "widen the ranges (low, high) or leave out features with missing values"
        )

    def __str__(self) -> str:
        """Return the counts in a sentence, the largest first."""
        reasons = [(n, f"{n:,} outside the range of {name}") for name, n in self.outside.items()]
        reasons += [(n, f"{n:,} with a missing {name}") for name, n in self.missing.items()]
        if self.excluded:
            reasons.append((self.excluded, f"{self.excluded:,} outside the constraints"))
        listed = ", ".join(line for _, line in sorted(reasons, key=lambda reason: -reason[0]))
        return f"{self.used:,} of {self.total:,} rows used" + (f": {listed}" if listed else "")
