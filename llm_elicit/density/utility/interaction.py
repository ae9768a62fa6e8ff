"""How far a preference depends on the presentation: the variance component, and a test of it.

The share ρ²/(1 + ρ²) is uniform a priori; its likelihood is the largest over gains and dispersions,
with the variances of the common part as estimated. So it is the share of this content's variance,
not of that of all contents with the same prior, of which one utility says little. The likelihood is
raised to the power of one half, since all these are taken for known: so 90 % intervals hold.

*Test.* Under the hypothesis that nothing but gains, dispersions and position effects depends on the
presentation, labels can be permuted over pairs. The statistic is the score of ρ² at 0 of a ridge
regression on linear and square terms, Σ_z Σ_(i≠j) p_i K_ij p_j over rows of one presentation, with
p the residuals over their variance, less what a gain of each label explains of them by the
predictions from other rows. Labels of pairs in several presentations are permuted among these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import PchipInterpolator

from llm_elicit.density.errors import Array, Index

SHARES = np.array([0.0005, 0.02, 0.05, 0.1, 0.17, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85])
"""Those at which the likelihood is computed, and between which it is smooth."""

TARGET_GENERALIZABILITY = 0.8
"""The generalizability that is aimed at."""

_QUANTILES = 16
_TEMPER = 0.5
_PERMUTATIONS, _CHUNK = 999, 500
_LEVEL = 0.05  # of the test, by which an interval excludes 0
_MIN_VARIANCE = 1e-3  # of the mean square of the values
_TURNS = 6
_GAIN_SD, _MIN_GAIN = 0.5, 0.1  # of the logarithms of gains


@dataclass(frozen=True)
class Interaction:
    """How far a preference depends on the presentation, from log-odds.

    Attributes:
        share: of the variance of the content, what is particular to one presentation: posterior
            mean.
        share_interval: 90 %, the shortest by the posterior; from 0 unless the test rejects it.
        p_value: of the test that nothing depends on the presentation, by permutations.
        presentations: their number W.
        generalizability: the share of the variance of the content, averaged over W presentations,
            that is common to presentations like these: 1 / (1 + ρ²/W).
        generalizability_interval: 90 %.
        needed: presentations of which the average would have a generalizability of .8.
        quantiles: of the share, at 16 equal steps of probability.
    """

    share: float
    share_interval: tuple[float, float]
    p_value: float
    presentations: int
    generalizability: float
    generalizability_interval: tuple[float, float]
    needed: int
    quantiles: tuple[float, ...]

    @classmethod
    def from_profile(cls, log_likelihood: Array, presentations: int, p_value: float) -> Interaction:
        """Return the estimates from log-likelihoods at `SHARES` and the p-value of the test."""
        grid = np.linspace(SHARES[0], SHARES[-1], 800)
        values = PchipInterpolator(SHARES, log_likelihood)(grid)
        weight = np.exp(_TEMPER * (values - values.max()))
        weight /= weight.sum()
        order = np.argsort(-weight)
        shortest = grid[order[: np.searchsorted(np.cumsum(weight[order]), 0.9) + 1]]
        low = float(shortest.min()) if p_value < _LEVEL else 0.0
        high, share = float(shortest.max()), float(grid @ weight)
        odds = TARGET_GENERALIZABILITY / (1.0 - TARGET_GENERALIZABILITY)
        levels = (np.arange(_QUANTILES) + 0.5) / _QUANTILES

        def generalizability_at(share: float) -> float:
            return 1.0 / (1.0 + share / (1.0 - share) / presentations)

        return cls(
            share,
            (low, high),
            p_value,
            presentations,
            generalizability_at(share),
            (generalizability_at(high), generalizability_at(low)),
            max(math.ceil(odds * share / (1.0 - share)), 1),
            tuple(grid[np.searchsorted(np.cumsum(weight), levels)].tolist()),
        )


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

    columns: Array
    value: Array
    noise: Array
    label: Index
    pair: Index
    variance: float

    @classmethod
    def of(
        cls, columns: Array, value: Array, noise: Array, label: Index, pair: Index
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

    def residuals(self) -> tuple[Array, Array]:
        """Return residuals over their variance, and predictions from the other rows (n,)."""
        weighted, diagonal = self._solve(math.sqrt(self.variance) * self.columns)
        return weighted, self.value - weighted / diagonal

    def _solve(self, root: Array) -> tuple[Array, Array]:
        """Return C⁻¹ y and the diagonal of C⁻¹ (n,), with C = R Rᵀ + noise of a root R (n, q)."""
        scaled = root / self.noise[:, None]
        inner = np.linalg.inv(root.T @ scaled + np.eye(root.shape[1]))
        weighted = self.value / self.noise - scaled @ (inner @ (scaled.T @ self.value))
        return weighted, 1.0 / self.noise - np.einsum("nq,qr,nr->n", scaled, inner, scaled)

    def gains(self) -> Array:
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

    def interaction_p_value(
        self, rng: np.random.Generator, permutations: int = _PERMUTATIONS
    ) -> float:
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

    def interaction_scores(self, labels: Index) -> Array:
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

    def common_scores(self, signs: Array) -> Array:
        """Return what presentations have in common, for each row of their signs (k, W)."""
        labels = np.arange(self.count)[:, None] == self.label
        sums = (labels * (self.value / self.noise)) @ self.columns
        products = sums @ sums.T
        np.fill_diagonal(products, 0.0)
        return np.asarray((signs @ products * signs).sum(axis=1))

    def coefficients(self, interaction: float) -> Array:
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


def share_reached(scores: Array) -> float:
    """Return the share of scores (1 + k,) that are at least the first.

    Examples:
        >>> share_reached(np.array([2.0, 1.0, 3.0, 0.0]))
        0.5
    """
    return float((scores >= scores[0] - 1e-9 * abs(scores[0])).mean())
