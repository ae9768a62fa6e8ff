"""Row completion: the beginnings of rows of the reference table, and the values to complete.

A judge that has memorized the table can complete a row as it is printed. This is the row-completion
test of Bordt et al. 2024, "Elephants never forget: memorization and learning of tabular data in
large language models". The hidden value should be hard to guess but determined by the row: it is
that of the last numeric feature with at least half as many different values as any other, among
those whose preceding cells identify nearly every row.
"""

from __future__ import annotations

import csv
import hashlib
import io
from dataclasses import dataclass

import numpy as np

from llm_elicit.errors import InputError
from llm_elicit.spaces.circles import Circle
from llm_elicit.spaces.features import Feature, FeatureSpace, Floats

_UNIQUE_SHARE = 0.9
"""The least share of distinct beginnings."""


@dataclass(frozen=True)
class RowCompletion:
    """The rows that can be asked about, in the order in which they are asked.

    Attributes:
        feature: the index of the feature whose value is hidden.
        header: the names of the columns up to it.
        beginnings: each row up to it, as the file prints it.
        hidden: each row's hidden cell, as the file prints it.
        shown: the features within the beginnings, `(n, k)`, natural units; NaN for empty cells.
            Categorical features are dummy-coded, one column per category; periodic ones have two
            columns, of unit vectors.
        columns: the index of the feature of each column of `shown`.
    """

    feature: int
    header: str
    beginnings: tuple[str, ...]
    hidden: tuple[str, ...]
    shown: Floats
    columns: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.hidden)

    @property
    def digest(self) -> str:
        """The SHA-256 of the rows as they are asked about."""
        lines = zip(self.beginnings, self.hidden, strict=True)
        text = "\n".join((self.header, *(f"{beginning},{hidden}" for beginning, hidden in lines)))
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def of(cls, space: FeatureSpace, seed: int) -> RowCompletion:
        """Read the rows of a space's table, in an order that follows from the seed.

        Raises:
            InputError: the space has no table, its file is missing or was changed, or no column
                after its first one holds numbers.

        Examples:
            >>> completion = RowCompletion.of(FeatureSpace.load("penguins"), seed=1)
            >>> completion.header.split(",")[-1], len(completion)
            ('body_mass_g', 342)
        """
        space.read_table()  # this checks its checksum and its columns
        header, *rows = space.printed_rows()
        rows = [row for row in rows if len(row) == len(header)]
        places = [header.index(heading) for heading in space.headings]
        place = _hidden_column(places, rows, space)
        rows = [row for row in rows if _number(row[place]) is not None]
        order = np.random.default_rng([seed, 0x2EC17E]).permutation(len(rows))
        chosen = [rows[i] for i in order]
        before = [j for j in range(space.dimension) if places[j] < place]
        cells = [_values([row[places[j]] for row in chosen], space.features[j]) for j in before]
        owners = [j for j, columns in zip(before, cells, strict=True) for _ in columns.T]
        return cls(
            feature=places.index(place),
            header=_line(header[: place + 1]),
            beginnings=tuple(_line(row[:place]) for row in chosen),
            hidden=tuple(row[place] for row in chosen),
            shown=np.concatenate([np.empty((len(chosen), 0)), *cells], axis=1),
            columns=tuple(owners),
        )


def _hidden_column(places: list[int], rows: list[list[str]], space: FeatureSpace) -> int:
    """Return the column to hide, a numeric feature's."""
    candidates: list[tuple[bool, int, int]] = []
    for place in (places[j] for j in space.numeric if space.features[j].kind != "date"):
        if not place:
            continue  # no cell precedes it
        beginnings = {tuple(row[:place]) for row in rows}
        values = {row[place] for row in rows}
        candidates.append((len(beginnings) >= _UNIQUE_SHARE * len(rows), len(values), place))
    if not candidates:
        raise InputError(
            f"direct.rows: {space.name!r} has no numeric feature after the first column of its "
            "table, so no row can be completed; remove `rows`"
        )
    is_unique, most, _ = max(candidates)
    return max(place for *kind, place in candidates if kind[0] == is_unique and 2 * kind[1] >= most)


def _values(cells: list[str], feature: Feature) -> Floats:
    """Return cells as numbers `(n, 1)`; NaN if empty.

    Those of K categories are dummy-coded, `(n, K)`, and those of a circle unit vectors, `(n, 2)`.
    """
    if not feature.categories:
        numbers = np.array([_number(cell) for cell in cells], dtype=np.float64)
        return Circle.of(feature).vectors(numbers) if feature.periodic else numbers[:, None]
    stripped = np.array([[cell.strip()] for cell in cells])
    is_category = stripped == np.array(feature.categories)
    return np.where(is_category.any(axis=1, keepdims=True), is_category, np.nan)


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def _line(cells: list[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()
