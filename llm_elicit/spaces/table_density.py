"""A kernel density of the reference table: a sampling density that keeps questions plausible.

A draw is a random row of the table, moved by a normal kernel on the features' scales. The kernel's
covariance is that of the rows times h², h = n^(−1/(d + 4)) (Scott, 1992), so that it follows the
table's correlations. Draws outside the range asked about, or outside a constraint, are drawn again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from llm_elicit.errors import InputError
from llm_elicit.spaces.feature import Floats

_LEAST_ROWS = 20
_MOST_ROUNDS = 1000


class TableDensity:
    """The kernel density of rows `(n, d)` on the features' scales.

    Args:
        rows: on the scales.
        smoothed: which columns the kernel moves, `(d,)`; codes of categories stay as they are.

    Raises:
        InputError: fewer than 20 rows.

    Example:
        >>> rows = np.random.default_rng(0).normal(3.0, 1.0, (500, 2))
        >>> density = TableDensity(rows, np.array([True, True]))
        >>> drawn = density.sample(1000, np.random.default_rng(1), lambda z: z[:, 0] > 0)
        >>> drawn.shape, bool(drawn[:, 0].min() > 0), float(drawn.mean().round(1))
        ((1000, 2), True, 2.9)
    """

    def __init__(self, rows: Floats, smoothed: NDArray[np.bool_]) -> None:
        if len(rows) < _LEAST_ROWS:
            raise InputError(
                f"sampling: empirical needs {_LEAST_ROWS} complete rows in the range asked about, "
                f"and the table has {len(rows)}; use sampling: uniform, or widen the ranges"
            )
        self.rows, self.smoothed = rows, smoothed
        moved = rows[:, smoothed]
        self._factor = np.zeros((moved.shape[1],) * 2)
        if moved.shape[1]:
            width = len(rows) ** (-1.0 / (moved.shape[1] + 4))
            covariance = np.atleast_2d(np.cov(moved.T))
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
            drawn = self.rows[rng.integers(len(self.rows), size=n)]
            noise = rng.standard_normal((n, len(self._factor)))
            drawn[:, self.smoothed] += noise @ self._factor.T
            return drawn[inside(drawn)]

        scarce = "sampling: empirical: hardly any draw is inside the range asked about"
        return accepted(draw, n, scarce)


def accepted(draw: Callable[[], Floats], n: int, scarce: str) -> Floats:
    """Return the first n points of repeated draws, of which each keeps those it accepts.

    Raises:
        InputError: a thousand draws have not brought them; the message is `scarce`.
    """
    kept = draw()
    for _ in range(_MOST_ROUNDS - 1):
        if len(kept) >= n:
            break
        kept = np.concatenate([kept, draw()])
    if len(kept) < n:
        raise InputError(scarce)
    return kept[:n]
