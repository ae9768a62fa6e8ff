"""The density of a table: Gaussian kernels for its numbers, smoothed shares for its categories."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llm_elicit._util.packages import LazyModule
from llm_elicit.spaces.features import Floats

if TYPE_CHECKING:
    from scipy import special, stats
else:
    # Not needed by processes that only ask models.
    special, stats = LazyModule("scipy.special"), LazyModule("scipy.stats")

_NODES = 64
_MOST_TERMS = 20_000
"""The most kernels, rows by combinations of categories, whose masses are summed."""


class KernelDensity:
    """A kernel density over numbers and categories together.

    Each row of the table is a kernel: Gaussian over the numbers, and over a feature of K categories
    the row's own category but for a share K/(n + K), which is spread over all K evenly. A feature's
    shares are thus (count + 1)/(n + K), Laplace's rule, and no combination is impossible. Given the
    categories, the numbers have SciPy's weighted kernel density, with the covariance of the rows of
    these categories, and Scott's rule for as many rows as they are worth.

    Args:
        points: the table, `(n, d)`.
        counts: number of categories of each feature, `(d,)`; 0 for a number.
        bandwidth: of the Gaussian kernels, in standard deviations; None for Scott's rule.
        around: which numbers lie on a circle from 0 to 1, `(d,)` bools; none by default.

    Example:
        >>> rows = np.array([[0.0, 1.0], [0.0, 1.2], [1.0, 5.0], [0.0, 0.9], [1.0, 5.5]])
        >>> kernels = KernelDensity(rows, np.array([2, 0]))
        >>> line = np.linspace(-20.0, 30.0, 20_001)
        >>> of_first = np.exp(kernels.logpdf(np.column_stack([0.0 * line, line])))
        >>> round(float(of_first.sum() * 0.0025), 4)   # (3 + 1) / (5 + 2)
        0.5714
    """

    def __init__(
        self,
        points: Floats,
        counts: NDArray[np.int64],
        bandwidth: float | None = None,
        around: NDArray[np.bool_] | None = None,
    ) -> None:
        self._words = counts > 0
        self._counts = counts[self._words]
        self._codes = points[:, self._words].astype(int)
        self._numbers = points[:, ~self._words].T
        on_circle = np.zeros(len(counts), dtype=bool) if around is None else around
        self._around = np.flatnonzero(on_circle[~self._words])
        self._start = np.zeros(len(self._numbers))
        for j in self._around.tolist():
            turn = np.exp(2j * np.pi * self._numbers[j]).mean()
            self._start[j] = np.angle(turn) / (2.0 * np.pi) - 0.5  # opposite the mean direction
        self._numbers = self._cut(self._numbers)
        self._spread = self._counts / (len(points) + self._counts)
        self._bandwidth = bandwidth
        self._given: dict[tuple[int, ...], stats.gaussian_kde] = {}

    def logpdf(self, points: Floats) -> Floats:
        """Return the log density `(m,)` at points `(m, d)`, per unit and per category."""
        found = np.empty(len(points))
        for codes, rows in self._by_codes(points[:, self._words].astype(int)):
            found[rows] = np.log(self._weights(codes).mean())
            if len(self._numbers):
                found[rows] += self._log_of_numbers(codes, points[np.ix_(rows, ~self._words)].T)
        return found

    def sample(self, count: int, rng: np.random.Generator) -> Floats:
        """Return draws `(count, d)`."""
        drawn = np.empty((count, len(self._words)))
        codes = self._codes[rng.integers(len(self._codes), size=count)]
        anywhere = rng.random(codes.shape) < self._spread
        codes = np.where(anywhere, rng.integers(self._counts, size=codes.shape), codes)
        drawn[:, self._words] = codes
        if len(self._numbers):
            for some, rows in self._by_codes(codes):
                numbers = self._of_numbers(some).resample(len(rows), seed=rng)
                numbers[self._around] %= 1.0
                drawn[np.ix_(rows, ~self._words)] = numbers.T
        return drawn

    def log_mass(self, low: Floats, high: Floats) -> float | None:
        """Return the log mass of a box that bounds at most two numeric features.

        Exact over one number, by quadrature over two, so that narrow boxes are as exact as others.

        Args:
            low, high: `(d,)`, of a category's code too; infinite for an unbounded feature.

        Returns:
            Nats; None for other boxes, where there are circles, and where the table has many rows
            for so many combinations of categories.
        """
        bounded = np.isfinite(low) & np.isfinite(high)
        numbers = bounded & ~self._words
        allowed = [
            range(math.ceil(low[j]), math.floor(high[j]) + 1) if bounded[j] else range(count)
            for j, count in zip(np.flatnonzero(self._words), self._counts, strict=True)
        ]
        terms = len(self._codes) * math.prod(map(len, allowed))
        several = self._words.any() and terms > _MOST_TERMS
        if len(self._around) or not bounded.any() or numbers.sum() > 2 or several:
            return None
        which = np.flatnonzero(numbers[~self._words]).tolist()
        total = 0.0
        for codes in itertools.product(*allowed):
            share = float(self._weights(codes).mean()) if codes else 1.0
            total += share * self._mass_of_numbers(codes, which, low[numbers], high[numbers])
        return math.log(total) if total > 0.0 else -math.inf

    def _mass_of_numbers(
        self, codes: tuple[int, ...], which: list[int], low: Floats, high: Floats
    ) -> float:
        """Return the mass of a box in none, one or two numbers, given the categories."""
        if not which:
            return 1.0
        kernels = self._of_numbers(codes)
        one, *others = which
        centre, sd = self._numbers[one][:, None], np.sqrt(kernels.covariance[one, one])
        if not others:
            inside = _between((low[0] - centre) / sd, (high[0] - centre) / sd)
            return float(kernels.weights @ inside[:, 0])
        other = others[0]
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        half = 0.5 * (high[0] - low[0])
        at = low[0] + half * (nodes + 1.0)
        slope = kernels.covariance[one, other] / sd**2
        rest = np.sqrt(kernels.covariance[other, other] - slope**2 * sd**2)
        middle = self._numbers[other][:, None] + slope * (at - centre)
        inside = _between((low[1] - middle) / rest, (high[1] - middle) / rest)
        heights = np.exp(-0.5 * ((at - centre) / sd) ** 2) / (sd * np.sqrt(2.0 * np.pi))
        return float(half * kernels.weights @ (heights * inside) @ weights)

    @staticmethod
    def _by_codes(
        codes: NDArray[np.int64],
    ) -> list[tuple[tuple[int, ...], NDArray[np.int64]]]:
        """Return the combinations of categories in the table, and the rows of each."""
        found, which = np.unique(codes, axis=0, return_inverse=True)
        return [(tuple(row), np.flatnonzero(which == i)) for i, row in enumerate(found.tolist())]

    def _weights(self, codes: tuple[int, ...]) -> Floats:
        """Return the mass of each row's kernel `(n,)` on a combination of categories."""
        evenly = self._spread / self._counts
        own = np.where(self._codes == np.array(codes, int), 1.0 - self._spread, 0.0)
        return np.asarray((own + evenly).prod(axis=1))

    def _cut(self, numbers: Floats) -> Floats:
        """Return numbers `(d, m)` with each circle cut opposite its mean direction."""
        cut, start = numbers.copy(), self._start[self._around, None]
        cut[self._around] = start + (numbers[self._around] - start) % 1.0
        return cut

    def _log_of_numbers(self, codes: tuple[int, ...], numbers: Floats) -> Floats:
        """Return the log density of numbers `(d, m)`, a sum over turns around each circle."""
        kernels, cut = self._of_numbers(codes), self._cut(numbers)
        logs = []
        for turns in itertools.product((-1.0, 0.0, 1.0), repeat=len(self._around)):
            turned = cut.copy()
            turned[self._around] += np.array(turns)[:, None]
            logs.append(kernels.logpdf(turned))
        return np.asarray(np.logaddexp.reduce(logs, axis=0))

    def _of_numbers(self, codes: tuple[int, ...]) -> stats.gaussian_kde:
        """Return the density of the numeric features given the categories."""
        if codes not in self._given:
            weights = None if not codes else self._weights(codes)
            self._given[codes] = stats.gaussian_kde(
                self._numbers, bw_method=self._bandwidth, weights=weights
            )
        return self._given[codes]


def _between(low: Floats, high: Floats) -> Floats:
    """Return Φ(high) − Φ(low), from the nearer tail."""
    upper = low > 0.0
    first, last = np.where(upper, -high, low), np.where(upper, -low, high)
    return np.asarray(special.ndtr(last) - special.ndtr(first))
