"""The reference table as text: rows whose beginning is shown, and the value a judge is to recite.

A judge that has the table by heart goes on with a row as it is printed: the row-completion test of
Bordt et al. 2024, "Elephants never forget: memorization and learning of tabular data in large
language models". What is asked for should be hard to guess and easy to find: the last feature that
has half as many different values as any has, of those whose beginnings tell nearly all rows apart,
and a number.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llm_elicit.errors import InputError
from llm_elicit.spaces.features import Feature, FeatureSpace, Floats

_TOLD_APART = 0.9
"""The share of rows whose beginning must be like no other's."""


@dataclass(frozen=True)
class RowCompletion:
    """The rows that can be asked for, in the order in which they are.

    Attributes:
        feature: the place in the space of the feature whose value is hidden.
        header: the names of the columns up to it.
        beginnings: each row up to it, as the file prints it.
        hidden: each row's hidden cell, as the file prints it.
        shown: the features within the beginnings, `(n, k)`, natural units; NaN where empty. Of a
            categorical feature there is a column a category: 1 where it is the row's, or 0.
        columns: their places in the space.
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
        """SHA-256 over the rows as they are asked for."""
        lines = zip(self.beginnings, self.hidden, strict=True)
        text = "\n".join((self.header, *(f"{shown},{hidden}" for shown, hidden in lines)))
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def of(cls, space: FeatureSpace, seed: int) -> RowCompletion:
        """The rows of a space's table, in an order that follows from the seed.

        Raises:
            InputError: there is no table, it is gone or changed, or it has but one column.

        Example:
            >>> completion = RowCompletion.of(FeatureSpace.load("penguins"), seed=1)
            >>> completion.header.split(",")[-1], len(completion)
            ('body_mass_g', 342)
        """
        space.read_table()  # its checksum and its columns are as they should be
        assert space.table is not None
        header, *rows = _cells(space.folder / space.table.file)
        rows = [row for row in rows if len(row) == len(header)]
        places = [header.index(heading) for heading in space.headings]
        place = _hardest(places, rows, space)
        rows = [row for row in rows if _number(row[place]) is not None]
        order = np.random.default_rng([seed, 0x2EC17E]).permutation(len(rows))
        chosen = [rows[i] for i in order]
        before = [j for j in range(space.dimension) if places[j] < place]
        cells = [_values([row[places[j]] for row in chosen], space.features[j]) for j in before]
        return cls(
            feature=places.index(place),
            header=_line(header[: place + 1]),
            beginnings=tuple(_line(row[:place]) for row in chosen),
            hidden=tuple(row[place] for row in chosen),
            shown=np.concatenate([np.empty((len(chosen), 0)), *cells], axis=1),
            columns=tuple(j for j in before for _ in space.features[j].categories or (j,)),
        )


def _cells(path: Path) -> list[list[str]]:
    """A CSV's cells as they are printed; pandas would make numbers of them."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    return list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")))


def _hardest(places: list[int], rows: list[list[str]], space: FeatureSpace) -> int:
    """The column to hide, of those of the features that are numbers."""
    found: list[tuple[bool, int, int]] = []
    for place in (places[j] for j in space.numeric):
        if not place:
            continue  # nothing comes before it
        beginnings = {tuple(row[:place]) for row in rows}
        values = {row[place] for row in rows}
        found.append((len(beginnings) >= _TOLD_APART * len(rows), len(values), place))
    if not found:
        raise InputError(
            f"direct.rows: {space.name!r} has no number but in its table's first column: a row has "
            "no beginning to be shown; leave rows out"
        )
    apart, most, _ = max(found)
    return max(place for *kind, place in found if kind[0] == apart and 2 * kind[1] >= most)


def _values(cells: list[str], feature: Feature) -> Floats:
    """Cells `(n, 1)` as numbers, or `(n, K)` as indicators of their categories; NaN where empty."""
    if not feature.categories:
        return np.array([[_number(cell)] for cell in cells], dtype=np.float64)
    stripped = np.array([[cell.strip()] for cell in cells])
    found = stripped == np.array(feature.categories)
    return np.where(found.any(axis=1, keepdims=True), found, np.nan)


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
