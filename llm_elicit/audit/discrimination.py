"""Whether a judge's preference agrees with the data, by measures that do not depend on the power.

The utility's order of points is the same at every power. The *ceiling* is what the data's own
density reaches, estimated by normal kernels from the other rows (Parzen 1962) with the bandwidth
that best predicts left-out rows. Intervals are over draws of the utility's posterior, each with the
rows of the data and the draws from λ resampled (bootstrap).

*Misfit.* If the fit leaves out part of the variation that repeats (see `Preference.captured`), the
utility has a part that is not known, of known standard deviation over λ. It is drawn with every
draw: its correlation with the rank of the data's density may be anything, and the rest of it is
noise at draws from λ and one number at all rows, since what was left out may be just about these.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from scipy.spatial.distance import cdist
from scipy.stats import rankdata

from llm_elicit._util.settings import StrictModel
from llm_elicit.audit.inference import Interval, posterior_interval
from llm_elicit.audit.reference import Reference, Standardizer
from llm_elicit.audit.utility import Utility
from llm_elicit.spaces.features import Floats

_VOLUME = 0.1
_BANDWIDTHS = (0.25, 0.4, 0.6, 0.8, 1.0, 1.3)
"""Bandwidths tried, as multiples of Scott's (1992)."""
_FEWEST_DRAWS = 100
_ROUNDING = 1e-9
NEGLIGIBLE = 0.15
"""The share of what the data's own density reaches below which a preference is practically
unrelated to the data: of the AUC .05, if the ceiling is .83. With the rows and draws used, 95 %
intervals of a rank correlation are about ±.08, so that little less could ever be shown.
"""
_LEAST_CEILING = 0.55
"""Ceiling of the AUC below which data and λ are indistinguishable, so that nothing can follow them.
With the 1000 rows and 2000 draws used, the error of an area about one half is .01.
"""

Relation = Literal[
    "follows", "opposite", "partly", "practically unrelated", "not shown", "not measurable"
]


class Discrimination(StrictModel):
    """A judge's utility against the data; 95 % intervals over rows and draws of the posterior.

    Attributes:
        rows: number of rows of the data used.
        auc: probability that the utility of a row of the data is higher than that of a draw from
            λ (area under the ROC curve); 1/2 if the utility does not separate them.
        ceiling: the same for the data's own density.
        rank_correlation: Spearman's, of the utility with the logarithm of that density, over draws
            from λ.
        level_set: the share of the data within the tenth of λ with the highest utility.
        level_set_ceiling: the same for the data's own density.
    """

    rows: int
    auc: Interval
    ceiling: float
    rank_correlation: Interval
    level_set: Interval
    level_set_ceiling: float

    @property
    def reached(self) -> float:
        """What the AUC reaches of its ceiling: 0 at one half, 1 at the ceiling."""
        return (self.auc.value - 0.5) / (self.ceiling - 0.5)

    @property
    def signs(self) -> tuple[int, int]:
        """The signs of the AUC minus one half and of the rank correlation; 0 if not shown."""
        return _sign(self.auc, 0.5), _sign(self.rank_correlation, 0.0)

    @property
    def relation(self) -> Relation:
        """What is shown of the preference and the data.

        "follows": both intervals are above no relation; "opposite": both below; "partly": one of
        them, or one above and one below. "practically unrelated": both lie within `NEGLIGIBLE` of
        what the data's own density reaches, two one-sided tests of equivalence at 2.5 % each. "not
        shown": none of these. "not measurable": the data's own density hardly separates the data
        from λ.
        """
        if self.ceiling < _LEAST_CEILING:
            return "not measurable"
        margin = NEGLIGIBLE * (self.ceiling - 0.5)
        if _within(self.auc, 0.5, margin) and _within(self.rank_correlation, 0.0, NEGLIGIBLE):
            return "practically unrelated"
        if self.signs == (0, 0):
            return "not shown"
        related: dict[tuple[int, int], Relation] = {(1, 1): "follows", (-1, -1): "opposite"}
        return related.get(self.signs, "partly")


def _sign(interval: Interval, null: float) -> int:
    return int(interval.low > null) - int(interval.high < null)


def _within(interval: Interval, null: float, margin: float) -> bool:
    return null - margin < interval.low and interval.high < null + margin


def measure_discrimination(
    utility: Utility, reference: Reference, rng: np.random.Generator
) -> Discrimination | None:
    """Measure from a utility at rows of the data and draws from λ.

    None without a table, or if nothing is captured of the variation that repeats.
    """
    if utility.rows is None or utility.row_points is None or utility.captured <= 0.0:
        return None
    of_rows, of_sampling = utility.rows, utility.sampling
    kernels = _KernelDensity(reference.standardizer, utility.row_points, utility.sampling_points)
    sizes, count = (of_rows.shape[1], of_sampling.shape[1]), max(_FEWEST_DRAWS, len(of_rows))
    resamples = [[rng.integers(n, size=n) for n in sizes] for _ in range(count)]
    weights = np.array([np.bincount(row, minlength=sizes[0]) for row, _ in resamples])
    densities = kernels.at_sampling(weights.astype(np.float64))  # at once: a product of matrices
    left_out, ranks = utility.left_out, kernels.ranks()
    results = np.empty((count, 3))
    for i, (row, drawn) in enumerate(resamples):
        draw = i % len(of_rows)
        rows, sampling = of_rows[draw, row], of_sampling[draw, drawn]
        if left_out > 0.0:
            angle = math.asin(rng.uniform(-1.0, 1.0))
            of_ranks, remainder = left_out * math.sin(angle), left_out * math.cos(angle)
            rows = rows + of_ranks * ranks[0][row] + remainder * rng.standard_normal()
            sampling = (
                sampling
                + of_ranks * ranks[1][drawn]
                + remainder * rng.standard_normal(len(sampling))
            )
        dense = densities[i, drawn]
        results[i] = auc(rows, sampling), spearman(sampling, dense), level_set(rows, sampling)
    area, correlation, share = (posterior_interval(column, 0.95) for column in results.T)
    return Discrimination(
        rows=of_rows.shape[1],
        auc=area,
        ceiling=auc(kernels.rows, kernels.sampling),
        rank_correlation=correlation,
        level_set=share,
        level_set_ceiling=level_set(kernels.rows, kernels.sampling),
    )


def auc(rows: Floats, sampling: Floats) -> float:
    """Return P(row > draw) + P(row = draw) / 2: Mann and Whitney's (1947) U as a share.

    Examples:
        >>> auc(np.array([1.0, 3.0]), np.array([0.0, 1.0]))
        0.875
    """
    # Not by SciPy's mannwhitneyu and spearmanr, which take most of their time for p-values.
    n, ranks = len(rows), rankdata(_rounded(np.concatenate([rows, sampling])))
    return float((ranks[:n].sum() - 0.5 * n * (n + 1)) / (n * len(sampling)))


def spearman(x: Floats, y: Floats) -> float:
    """Return Spearman's rank correlation; 0 if either does not vary.

    Examples:
        >>> round(spearman(np.array([1.0, 2.0, 3.0]), np.array([0.0, 10.0, 11.0])), 6)
        1.0
    """
    x, y = _rounded(x), _rounded(y)
    if not x.any() or not y.any():
        return 0.0
    return float(np.corrcoef(rankdata(x), rankdata(y))[0, 1])


def level_set(rows: Floats, sampling: Floats, volume: float = _VOLUME) -> float:
    """Return the share of rows in the part of λ of this volume with the highest values.

    If values tie at its edge, as many of the tied as complete the volume count.

    Examples:
        >>> level_set(np.array([9.0, 0.0]), np.arange(10.0)), level_set(np.zeros(4), np.zeros(9))
        (0.5, 0.1)
    """
    values = _rounded(np.concatenate([rows, sampling]))
    rows, sampling = values[: len(rows)], values[len(rows) :]
    edge = np.sort(sampling)[::-1][max(int(np.ceil(volume * len(sampling))) - 1, 0)]
    above, tied = float((sampling > edge).mean()), float((sampling == edge).mean())
    part = (volume - above) / tied
    return float((rows > edge).mean() + part * (rows == edge).mean())


def _rounded(values: Floats) -> Floats:
    """Return values, from 0 up, in steps that absorb rounding error: equal ones are equal."""
    extent = float(np.ptp(values))
    if extent <= _ROUNDING * max(1.0, float(np.abs(values).max())):
        return np.zeros(len(values))
    return np.asarray(np.round((values - values.min()) / extent / _ROUNDING))


class _KernelDensity:
    """Return the leave-one-out log kernel density of the data `(n, d)` at its rows, and at λ."""

    def __init__(self, standardizer: Standardizer, rows: Floats, sampling: Floats) -> None:
        space = standardizer.space
        x, y = standardizer(space.round(rows)), standardizer(space.round(sampling))
        n, d = x.shape
        # Rounded values and categories may leave a direction without any variance.
        covariance = np.cov(x, rowvar=False).reshape(d, d) + 1e-3 * np.eye(d)
        whitening = np.linalg.inv(np.linalg.cholesky(covariance)).T
        scott = n ** (-1.0 / (d + 4))
        within = cdist(x @ whitening, x @ whitening, "sqeuclidean")
        np.fill_diagonal(within, np.inf)
        nearest = within.min(axis=1)
        apart = nearest[:, None] - within

        def log_kernels(scale: float) -> Floats:
            exponents = 0.5 * apart / scale**2
            return np.asarray(np.log(np.exp(exponents).sum(axis=1)) - 0.5 * nearest / scale**2)

        scales = [scott * factor for factor in _BANDWIDTHS]
        log_densities = {scale: log_kernels(scale) - d * np.log(scale) for scale in scales}
        best = max(log_densities, key=lambda scale: float(log_densities[scale].mean()))
        # There is one kernel fewer than at a draw from λ.
        self.rows = log_densities[best] + np.log(n / (n - 1))
        logs = -0.5 * cdist(y @ whitening, x @ whitening, "sqeuclidean") / best**2
        self._highest = logs.max(axis=1)
        self._kernels = np.exp(logs - self._highest[:, None])
        self.sampling = self.at_sampling(np.ones((1, n)))[0] - d * np.log(best)

    def ranks(self) -> tuple[Floats, Floats]:
        """Return the ranks of the density at its rows and at λ, of mean 0 and variance 1 over λ."""
        ordered = np.sort(self.sampling)
        rows, sampling = (
            math.sqrt(12.0) * (np.searchsorted(ordered, logs) / len(ordered) - 0.5)
            for logs in (self.rows, self.sampling)
        )
        return rows, sampling

    def at_sampling(self, weights: Floats) -> Floats:
        """Return log densities `(S, k)` at the draws from λ, up to constants.

        `weights` `(S, n)` are those of the rows.
        """
        with np.errstate(divide="ignore"):
            logs = self._highest + np.log(weights @ self._kernels.T)
        least = np.where(np.isfinite(logs), logs, np.inf).min(axis=1, initial=0.0)
        return np.asarray(np.maximum(logs, least[:, None] - 1.0))
