"""Does what a judge prefers follow the data? Numbers that depend on the order of points alone.

The utility's order of points says nothing of its power, so none of these does. The *ceiling* is
what the data's own density reaches, estimated by normal kernels from the other rows (Parzen 1962)
with the bandwidth that predicts left-out rows best. Intervals are over draws of the utility's
posterior, each with the rows of the data and the draws from λ sampled anew (bootstrap).
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import logsumexp
from scipy.stats import rankdata

from llm_elicit import density
from llm_elicit.audit.inference import Interval
from llm_elicit.audit.reference import Reference
from llm_elicit.audit.scales import Standard
from llm_elicit.audit.utility import Utility
from llm_elicit.config.base_model import StrictModel
from llm_elicit.spaces.features import Floats

_TENTH = 0.1
_BANDWIDTHS = (0.25, 0.4, 0.6, 0.8, 1.0, 1.3)
"""Bandwidths tried, over Scott's (1992)."""
_FEWEST_DRAWS = 100
_ROUNDING = 1e-9


class Discrimination(StrictModel):
    """A judge's utility against the data; 95 % intervals over rows and draws of the posterior.

    Attributes:
        rows: how many rows of the data were looked at.
        auc: how often the utility of a row of the data is higher than that of a draw from λ (the
            area under the curve); 1/2 if the utility says nothing of which is which.
        ceiling: the same of the data's own density.
        rank_correlation: Spearman's, of the utility with the logarithm of that density, over draws
            from λ.
        level_set: the share of the data within the tenth of λ that the utility puts highest.
        level_set_ceiling: the same of the data's own density.
    """

    rows: int
    auc: Interval
    ceiling: float
    rank_correlation: Interval
    level_set: Interval
    level_set_ceiling: float


def measure_discrimination(
    utility: Utility, reference: Reference, rng: np.random.Generator
) -> Discrimination | None:
    """From a utility at rows of the data and draws from λ; None without a table."""
    if utility.rows is None or utility.row_points is None:
        return None
    of_rows, of_sampling = utility.rows.draws, utility.sampling.draws
    own = _Kernels(reference.standard, utility.row_points, utility.sampling_points)
    count = max(_FEWEST_DRAWS, len(of_rows))
    found = np.empty((count, 3))
    for at in range(count):
        draw = at % len(of_rows)
        row, drawn = (rng.integers(n, size=n) for n in (of_rows.shape[1], of_sampling.shape[1]))
        rows, sampling = of_rows[draw, row], of_sampling[draw, drawn]
        weights = np.bincount(row, minlength=len(own.rows)).astype(np.float64)
        dense = own.at_sampling(weights)[drawn]
        found[at] = auc(rows, sampling), spearman(sampling, dense), level_set(rows, sampling)
    area, correlation, share = (_interval(column) for column in found.T)
    return Discrimination(
        rows=of_rows.shape[1],
        auc=area,
        ceiling=auc(own.rows, own.sampling),
        rank_correlation=correlation,
        level_set=share,
        level_set_ceiling=level_set(own.rows, own.sampling),
    )


def auc(rows: Floats, sampling: Floats) -> float:
    """P(row > draw) + P(row = draw) / 2: Mann and Whitney's (1947) statistic as a share.

    Example:
        >>> auc(np.array([1.0, 3.0]), np.array([0.0, 1.0]))
        0.875
    """
    n = len(rows)
    ranks = rankdata(_levelled(np.concatenate([rows, sampling])))
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * len(sampling)))


def spearman(x: Floats, y: Floats) -> float:
    """Spearman's rank correlation; 0 where either does not vary.

    Example:
        >>> round(spearman(np.array([1.0, 2.0, 3.0]), np.array([0.0, 10.0, 11.0])), 6)
        1.0
    """
    one, other = (rankdata(_levelled(each)) for each in (x, y))
    one, other = one - one.mean(), other - other.mean()
    scale = float(np.sqrt((one @ one) * (other @ other)))
    return float(one @ other) / scale if scale > 0 else 0.0


def level_set(rows: Floats, sampling: Floats, volume: float = _TENTH) -> float:
    """The share of rows in the part of λ of this volume where values are highest.

    Where values tie at its edge, as many of the tied as make up the volume count.

    Example:
        >>> level_set(np.array([9.0, 0.0]), np.arange(10.0)), level_set(np.zeros(4), np.zeros(9))
        (0.5, 0.1)
    """
    both = _levelled(np.concatenate([rows, sampling]))
    rows, sampling = both[: len(rows)], both[len(rows) :]
    edge = np.sort(sampling)[::-1][max(int(np.ceil(volume * len(sampling))) - 1, 0)]
    above, tied = float((sampling > edge).mean()), float((sampling == edge).mean())
    part = (volume - above) / tied
    return float((rows > edge).mean() + part * (rows == edge).mean())


def _levelled(values: Floats) -> Floats:
    """Values without the rounding that makes equal ones differ."""
    spread = float(np.ptp(values))
    if spread <= _ROUNDING * max(1.0, float(np.abs(values).max())):
        return np.zeros(len(values))
    return np.asarray(np.round((values - values.min()) / spread / _ROUNDING))


class _Kernels:
    """The log density of the data `(n, d)` by kernels: at its rows, each left out, and at λ."""

    def __init__(self, standard: Standard, rows: Floats, sampling: Floats) -> None:
        x, y = standard(standard.space.round(rows)), standard(standard.space.round(sampling))
        n, d = x.shape
        # Rounded values and categories may leave a direction without any spread.
        covariance = np.cov(x, rowvar=False).reshape(d, d) + 1e-3 * np.eye(d)
        turn = np.linalg.inv(np.linalg.cholesky(covariance)).T
        scott = n ** (-1.0 / (d + 4))
        within = cdist(x @ turn, x @ turn, "sqeuclidean")
        np.fill_diagonal(within, np.inf)
        tried = {
            scale: logsumexp(-0.5 * within / scale**2, axis=1) - d * np.log(scale)
            for scale in (scott * factor for factor in _BANDWIDTHS)
        }
        best = max(tried, key=lambda scale: float(tried[scale].mean()))
        self.rows = tried[best] + np.log(n / (n - 1))  # one kernel fewer than at a draw from λ
        logs = -0.5 * cdist(y @ turn, x @ turn, "sqeuclidean") / best**2
        self._highest = logs.max(axis=1)
        self._kernels = np.exp(logs - self._highest[:, None])
        self.sampling = self.at_sampling(np.ones(n)) - d * np.log(best)

    def at_sampling(self, weights: Floats) -> Floats:
        """Log density at the draws from λ, up to a constant, rows counted `weights` (n,) times."""
        with np.errstate(divide="ignore"):
            logs = self._highest + np.log(self._kernels @ weights)
        least = float(np.min(logs[np.isfinite(logs)], initial=0.0))
        return np.asarray(np.maximum(logs, least - 1.0))


def _interval(values: Floats) -> Interval:
    """Median and central 95 % of values (S,)."""
    low, high = density.band(values, 0.95)
    return Interval(value=float(np.median(values)), low=float(low), high=float(high))
