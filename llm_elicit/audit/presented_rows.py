"""A regression of answers in several presentations, and the tests by it.

*Nothing depends on the presentation*, but gains, dispersions and position effects: then labels can
be permuted over pairs. The statistic is the score of ρ² at 0 of a ridge regression on linear and
square terms, Σ_z Σ_(i≠j) p_i K_ij p_j over rows of one presentation, with p the residuals over
their variance, less what a gain of each label explains of them by the predictions from other rows.
Labels of pairs in several presentations are permuted among these.

*No preference in common*, with presentations as random: then a presentation's responses could have
the opposite signs. The statistic is the sum of p_i K_ij p_j over pairs of different presentations;
exact, with p at least 2^(1−W), so that six presentations can show it at 5 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llm_elicit.spaces.features import Floats

Index = npt.NDArray[np.int64]

_CHUNK = 500  # permutations at a time
_MIN_VARIANCE = 1e-3  # of the mean square of the values
_TURNS = 6
_GAIN_SD, _MIN_GAIN = 0.5, 0.1  # of the logarithms of gains


@dataclass(frozen=True)
class PresentedRows:
    """A ridge regression of measurements by the linear and square terms of their points.

    Attributes:
        columns: (n, p) differences of the points' terms, of mean square one.
        value: (n,) measurements over the gains of their presentations.
        noise: (n,) their variances.
        label: (n,) numbers of the presentations.
        pair: (n,) numbers of the pairs.
        variance: of a coefficient.
    """

    columns: Floats
    value: Floats
    noise: Floats
    label: Index
    pair: Index
    variance: float

    @classmethod
    def of(
        cls, columns: Floats, value: Floats, noise: Floats, label: Index, pair: Index
    ) -> PresentedRows:
        """Return the regression of values with the gains of presentations still in them."""
        total = float(np.square(value).mean())
        noise = np.maximum(noise, _MIN_VARIANCE * total + 1e-300)
        content = max(total - float(noise.mean()), _MIN_VARIANCE * total + 1e-300)
        variance, gain = content / columns.shape[1], np.ones(len(value))
        for _ in range(_TURNS):
            rows = cls(columns, value / gain, noise / np.square(gain), label, pair, variance)
            gain = gain * rows.gains()[label]
        return rows

    @property
    def count(self) -> int:
        """The number of presentations."""
        return int(self.label.max()) + 1

    def residuals(self) -> tuple[Floats, Floats]:
        """Return residuals over their variance, and predictions from the other rows (n,)."""
        weighted, diagonal = self._solve(math.sqrt(self.variance) * self.columns)
        return weighted, self.value - weighted / diagonal

    def _solve(self, root: Floats) -> tuple[Floats, Floats]:
        """Return C⁻¹ y and the diagonal of C⁻¹ (n,), with C = R Rᵀ + noise of a root R (n, q)."""
        scaled = root / self.noise[:, None]
        inner = np.linalg.inv(root.T @ scaled + np.eye(root.shape[1]))
        weighted = self.value / self.noise - scaled @ (inner @ (scaled.T @ self.value))
        return weighted, 1.0 / self.noise - np.einsum("nq,qr,nr->n", scaled, inner, scaled)

    def gains(self) -> Floats:
        """Return the presentations' gains over those assumed (W,), of geometric mean one.

        Their logarithms are shrunk as under a normal prior.
        """
        predicted = self.residuals()[1]
        squares = np.bincount(self.label, predicted**2 / self.noise, self.count)
        products = np.bincount(self.label, predicted * self.value / self.noise, self.count)
        known = squares > 0.0
        ratio = np.where(known, products, 1.0) / np.where(known, squares, 1.0)
        ratio = np.maximum(ratio, _MIN_GAIN)
        precision = squares * np.square(ratio)
        logs = np.log(ratio) * precision / (precision + _GAIN_SD**-2.0)
        return np.asarray(np.exp(logs - logs.mean()))

    def interaction_p_value(self, rng: np.random.Generator, permutations: int) -> float:
        """Return p of the test that nothing depends on the presentation."""
        scores = [self.interaction_scores(self.label[:, None])]
        for start in range(0, permutations, _CHUNK):
            labels = self._permuted_labels(min(_CHUNK, permutations - start), rng)
            scores.append(self.interaction_scores(labels))
        return share_reached(np.concatenate(scores))

    def _permuted_labels(self, count: int, rng: np.random.Generator) -> Index:
        """Return labels (n, count) permuted over pairs that have as many presentations."""
        labels = np.repeat(self.label[:, None], count, axis=1)
        numbers = np.unique(self.pair, return_inverse=True)[1].reshape(-1)
        multiplicity = np.bincount(numbers)[numbers]
        for times in np.unique(multiplicity):
            rows = np.flatnonzero(multiplicity == times)
            sets = rows[np.argsort(numbers[rows], kind="stable")].reshape(-1, times)
            for column in range(count):
                labels[sets, column] = self.label[rng.permutation(sets)]
        return labels

    def interaction_scores(self, labels: Index) -> Floats:
        """Return the score of ρ² at 0 for each column of labels (n, k)."""
        weighted, predicted = (values[:, None] for values in self.residuals())
        precision = 1.0 / self.noise[:, None]
        squares, total = np.square(self.columns).sum(axis=1), np.zeros(labels.shape[1])
        for number in range(self.count):
            within = labels == number
            size = (within * precision * predicted**2).sum(axis=0)
            slope = (within * weighted * predicted).sum(axis=0) / np.where(size > 0.0, size, 1.0)
            own = within * (weighted - precision * predicted * slope)
            total += np.square(self.columns.T @ own).sum(axis=0) - squares @ np.square(own)
        return total

    def common_scores(self, signs: Floats) -> Floats:
        """Return what presentations have in common, for each row of their signs (k, W)."""
        labels = np.arange(self.count)[:, None] == self.label
        sums = (labels * (self.value / self.noise)) @ self.columns
        products = sums @ sums.T
        np.fill_diagonal(products, 0.0)
        return np.asarray((signs @ products * signs).sum(axis=1))

    def coefficients(self, interaction: float) -> Floats:
        """Return posterior means (1 + W, p) of coefficients, first of those in common.

        ``interaction`` is ρ². Those of a presentation are the sum of the common and its own.
        """
        within = [(self.label == number)[:, None] for number in range(self.count)]
        particular = [math.sqrt(interaction) * self.columns * rows for rows in within]
        root = np.concatenate([self.columns, *particular], axis=1)
        weighted = self._solve(math.sqrt(self.variance) * root)[0]
        own = (np.arange(self.count)[:, None] == self.label) * weighted
        slopes = np.concatenate([weighted[None], interaction * own]) @ self.columns
        slopes[1:] += slopes[0]
        return np.asarray(self.variance * slopes)


def share_reached(scores: Floats) -> float:
    """Return the share of scores (1 + k,) that are at least the first.

    Examples:
        >>> share_reached(np.array([2.0, 1.0, 3.0, 0.0]))
        0.5
    """
    return float((scores >= scores[0] - 1e-9 * abs(scores[0])).mean())
