"""What direct questions show: pairs of ranges, pairs whose ratio is asked for, and parts of rows.

All follow from the seed alone. A larger number of any starts with the same questions, so that
earlier answers stay valid.

A judge with a density finds a range as plausible as its mass, so the answers determine the power of
the belief (`llm_elicit.density.fit_power`), through differences of log-width, which are known, and
of location. Each pair therefore has a narrow and a wide range at independent locations, in random
order.

A judge that has memorized the reference table can complete a row as it is printed, from its
beginning. This is the row-completion test of Bordt et al. 2024, "Elephants never forget:
memorization and learning of tabular data in large language models". The hidden value should be hard
to guess but determined by the row: it is that of the last numeric feature with at least half as
many different values as any other, among those whose preceding cells identify nearly every row.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from llm_elicit.errors import InputError
from llm_elicit.spaces.circles import Circle
from llm_elicit.spaces.features import Feature, FeatureSpace, Floats

NARROW = (0.01, 0.02)
"""Bounds of the width of the narrow range, as a share of the feature's whole range."""
WIDE = (0.3, 0.6)
"""Bounds of the width of the wide one."""
_STEPS = 2.0
_BOUNDED = 2
"""The number of features that a pair bounds."""

_UNIQUE_SHARE = 0.9
"""The least share of distinct beginnings."""


def draw_ranges(
    low: npt.ArrayLike,
    high: npt.ArrayLike,
    n: int,
    rng: np.random.Generator,
    *,
    log: npt.ArrayLike = False,
    features: Sequence[int] | None = None,
    resolution: npt.ArrayLike = 0.0,
) -> tuple[Floats, Floats]:
    """Draw n pairs of ranges within the box from ``low`` to ``high``.

    Both ranges of a pair bound the same two features, or the only one; all others have (−inf, inf).
    Every feature is bounded about equally often. Widths are log-uniform, locations uniform.

    Args:
        low, high: (d,) the least and the largest value of each feature, natural units.
        n: the number of pairs.
        rng: the random generator.
        log: (d,) whether a feature's scale is logarithmic; none by default.
        features: indices of the features that may be bounded, all by default; categorical ones
            must be left out.
        resolution: (d,) or one number, the step between worded values of a feature on a linear
            scale, natural units; every range is at least two steps wide.

    Returns:
        ``first``, ``second`` (n, d, 2), the lower and upper bound of every feature. Asked in both
        orders they are the arguments of `llm_elicit.density.Ranges`, one row per question.

    Examples:
        >>> first, second = draw_ranges([40, 100, 0], [90, 1e5, 1], 3, np.random.default_rng(0),
        ...                             log=[False, True, False])
        >>> first.shape, np.isinf(first[..., 0]).sum(axis=1).tolist()
        ((3, 3, 2), [1, 1, 1])
    """
    bottom, top = np.array(low, dtype=np.float64), np.array(high, dtype=np.float64)
    of_log = np.broadcast_to(np.asarray(log, dtype=bool), bottom.shape)
    bottom[of_log], top[of_log] = np.log(bottom[of_log]), np.log(top[of_log])
    chosen = np.arange(len(bottom)) if features is None else np.unique(np.asarray(features, int))
    uses, rows = np.zeros(len(chosen)), []
    for _ in range(n):
        # The least used come first, ties in random order.
        picked = np.lexsort((rng.random(len(chosen)), uses))[:_BOUNDED]
        uses[picked] += 1
        rows.append(chosen[np.sort(picked)])
    columns = np.stack(rows)
    steps = np.where(of_log, 0.0, np.broadcast_to(resolution, bottom.shape))
    min_width = (_STEPS * steps / (top - bottom))[columns]
    sides = []
    for bounds in (NARROW, WIDE):
        least_log, most_log = np.log(bounds)
        width = np.exp(least_log + (most_log - least_log) * rng.random(min_width.shape))
        width = np.maximum(width, min_width)
        start = (1.0 - width) * rng.random(min_width.shape)
        sides.append(np.stack([start, start + width], axis=-1))
    unit = np.stack(sides)
    swap = rng.random(n) < 0.5
    unit[:, swap] = unit[::-1, swap]
    ranges = np.full((2, n, len(bottom), 2), (-np.inf, np.inf))
    scaled = bottom[columns][..., None] + (top - bottom)[columns][..., None] * unit
    of_log = of_log[columns][..., None]
    values = np.where(of_log, np.exp(np.where(of_log, scaled, 0.0)), scaled)
    ranges[:, np.arange(n)[:, None], columns] = values
    return ranges[0], ranges[1]


_BLOCK = 20
"""The number of pairs drawn together; each bounds every feature about equally often."""

_TRIES = 100
_ENOUGH = 10


def range_pairs(space: FeatureSpace, count: int, seed: int) -> tuple[Floats, Floats]:
    """Return the first `count` pairs of ranges, rounded as they are worded.

    Returns:
        `first` and `second`, `(count, d, 2)`: the bounds of every feature, natural units;
        (−inf, inf) for unbounded features, such as all categorical ones.

    Raises:
        InputError: every feature is categorical, or has too few values to have ranges.

    Examples:
        >>> space = FeatureSpace.load("penguins")
        >>> first, second = range_pairs(space, 30, seed=1)
        >>> bool((range_pairs(space, 50, seed=1)[0][:30] == first).all())
        True
    """
    if not len(space.numeric):
        raise InputError(
            f"direct.ranges: every feature of {space.name} is categorical, and categories have no "
            "ranges; leave ranges out"
        )
    blocks = [_draw_block(space, seed, number) for number in range(-(-count // _BLOCK))]
    first, second = np.concatenate(blocks, axis=1)[:, :count]
    return first, second


def ratio_pairs(pairs: int, count: int, seed: int) -> NDArray[np.int64]:
    """Return the numbers of at most `count` pairs whose ratio is asked for.

    Args:
        pairs: the number of pairs to choose from.
        count: the number of ratios.
        seed: the campaign's.
    """
    return np.random.default_rng([seed, 0x4A710]).permutation(pairs)[:count]


def likelihood_rows(space: FeatureSpace, seed: int) -> Floats:
    """Return the rows of a space's table, in the order in which likelihoods are asked for.

    Returns:
        `(n, d)`, natural units, rounded as they are worded.

    Raises:
        InputError: the table is missing or was changed.
    """
    rows = space.round(space.table_points())
    rows = rows[space.contains(rows)]
    return np.asarray(rows[np.random.default_rng([seed, 0x11CE]).permutation(len(rows))])


def _draw_block(space: FeatureSpace, seed: int, number: int) -> Floats:
    """Draw pairs of ranges `(2, n, d, 2)` that have a positive width when rounded."""
    rng = np.random.default_rng([seed, 0x4A46E, number])
    pairs = _draw_rounded(space, rng)
    for _ in range(_TRIES):
        flat = (pairs[..., 0] >= pairs[..., 1]).any(axis=(0, 2))
        if not flat.any():
            return pairs
        pairs[:, flat] = _draw_rounded(space, rng)[:, flat]
    raise InputError(
        f"direct.ranges: a feature of {space.name} has too few values for ranges; leave ranges "
        "out, or give it more digits"
    )


def _draw_rounded(space: FeatureSpace, rng: np.random.Generator) -> Floats:
    """Draw pairs of ranges, with bounds rounded as they are worded."""
    steps = np.array([feature.step for feature in space.features])
    fine = [j for j in space.numeric.tolist() if _ENOUGH * steps[j] <= space.high[j] - space.low[j]]
    if not fine:
        raise InputError(
            f"direct.ranges: no feature of {space.name} has the {_ENOUGH} different values that "
            "ranges need; leave ranges out, or give a feature more digits"
        )
    pairs = np.stack(
        draw_ranges(
            space.low, space.high, _BLOCK, rng, log=space.log, features=fine, resolution=steps
        )
    )
    for j in fine:
        bounded = np.isfinite(pairs[:, :, j]).all(axis=(0, 2))
        pairs[:, bounded, j] = space.features[j].round(pairs[:, bounded, j])
    return pairs


@dataclass(frozen=True)
class RowCompletion:
    """The rows that can be asked about, in the order in which they are asked.

    Attributes:
        feature: the index of the feature whose value is hidden.
        header: the names of the columns up to it.
        beginnings: each row up to it, as the file prints it.
        hidden: each row's hidden cell, as the file prints it.
        predictors: the features within the beginnings, `(n, k)`, natural units; NaN for empty
            cells.
            Categorical features are dummy-coded, one column per category; periodic ones have two
            columns, of unit vectors.
        columns: the index of the feature of each column of `predictors`.
    """

    feature: int
    header: str
    beginnings: tuple[str, ...]
    hidden: tuple[str, ...]
    predictors: Floats
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
        column = [header.index(heading) for heading in space.headings]
        hidden = _hidden_column(column, rows, space)
        rows = [row for row in rows if _number(row[hidden]) is not None]
        order = np.random.default_rng([seed, 0x2EC17E]).permutation(len(rows))
        chosen = [rows[i] for i in order]
        visible = [j for j in range(space.dimension) if column[j] < hidden]
        cells = [_values([row[column[j]] for row in chosen], space.features[j]) for j in visible]
        owners = [j for j, columns in zip(visible, cells, strict=True) for _ in columns.T]
        return cls(
            feature=column.index(hidden),
            header=_line(header[: hidden + 1]),
            beginnings=tuple(_line(row[:hidden]) for row in chosen),
            hidden=tuple(row[hidden] for row in chosen),
            predictors=np.concatenate([np.empty((len(chosen), 0)), *cells], axis=1),
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
    is_unique, best, _ = max(candidates)
    return max(place for *kind, place in candidates if kind[0] == is_unique and 2 * kind[1] >= best)


def _values(cells: list[str], feature: Feature) -> Floats:
    """Return cells as numbers `(n, 1)`; NaN if empty.

    Cells of K categories are dummy-coded, `(n, K)`; cells of a circle are unit vectors, `(n, 2)`.
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
