"""Rankings of several points: whether the judge uses the points, their positions, or neither.

Rankings are compared with nested Plackett–Luce models (Plackett 1975): all orders equally likely;
positions only; positions and points. Two tests are exact, because they exchange within each
question only what their null hypothesis makes exchangeable:

* *positions*: if the position in the list does not matter, the order of presentation is
  exchangeable;
* *points*: if only positions matter, the points are exchangeable between positions.

Both use the score statistic of the next larger model, standardized by its covariance under the
exchanges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lgamma

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from llm_elicit._util.settings import StrictModel
from llm_elicit.audit.inference import Interval, holm_adjust, normal_interval, percentile_interval
from llm_elicit.errors import InputError
from llm_elicit.spaces.features import Floats

Index = npt.NDArray[np.int64]
_PRIOR_SD = 1.0
"""Prior standard deviation of a feature's effect, in nats per standard deviation of λ."""
_FOLDS = 10
"""Folds of the cross-validation."""
_ZERO_EFFECT = Interval(value=0.0, low=0.0, high=0.0)


class RankingPositionEffect(StrictModel):
    """Effect of a position relative to the last one, nats, and how often it was ranked first."""

    position: int
    nats: Interval
    times_first: int


class FeatureEffect(StrictModel):
    """Effect of a feature given the positions and the other features.

    By Plackett–Luce regression on z and z² − 1 of all features, z in standard deviations of the
    points shown; intervals by bootstrap over questions.

    Attributes:
        name: the feature.
        slope: nats per standard deviation.
        curvature: nats per unit of z² − 1; below 0 if the middle is preferred to both ends.
        p_value: p-value of both terms of this feature, by exchanging points.
        p_holm: this p-value, Holm-adjusted over all features.
    """

    name: str
    slope: Interval
    curvature: Interval
    p_value: float
    p_holm: float


class RankingAudit(StrictModel):
    """The audit of a judge's rankings. Log-likelihoods are nats per ranking; intervals are 95 %.

    Attributes:
        questions, alternatives: number of questions, and of points in each.
        chance_log_likelihood: log-likelihood of random orders, −log k!.
        position_gain: held-out gain of positions over random orders.
        point_gain: held-out gain of points (linear and square terms) over positions only.
        position_p_value, point_p_value: p-values of the two exact tests.
        positions, features: the effects.
    """

    questions: int
    alternatives: int
    chance_log_likelihood: float
    position_gain: Interval
    point_gain: Interval
    position_p_value: float
    point_p_value: float
    positions: list[RankingPositionEffect]
    features: list[FeatureEffect]


def audit_rankings(
    points: Floats,
    ranking: Index,
    names: Sequence[str],
    *,
    exchanges: int = 4999,
    resamples: int = 400,
    seed: int = 0,
) -> RankingAudit:
    """Audit complete rankings.

    Args:
        points: `(n, k, d)`, each question's points in the order of presentation.
        ranking: `(n, k)`, their indices, best first.
        names: the features' names.
        exchanges: number of random exchanges of each exact test.
        resamples: number of bootstrap resamples.
        seed: seed of exchanges, folds and resamples.

    Raises:
        InputError: if shapes do not match, a row is not a ranking, or there are fewer than 20
            questions.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> points = rng.uniform(size=(60, 4, 2))
        >>> ranking = np.argsort(-points[..., 0], axis=1)       # the first feature alone
        >>> audit = audit_rankings(points, ranking, ["size", "age"], exchanges=199, resamples=40)
        >>> audit.point_p_value, audit.features[0].p_holm < 0.05 < audit.features[1].p_holm
        (0.005, True)
    """
    rankings = _Rankings.from_points(points, ranking, names)
    rng = np.random.default_rng(seed)
    position_coefficients = rankings.fit(np.arange(rankings.n), features=False)
    coefficients = rankings.fit(np.arange(rankings.n), features=True)
    bootstrap = [
        rankings.fit(rng.integers(rankings.n, size=rankings.n), features=True)
        for _ in range(resamples)
    ]
    draws = np.transpose(bootstrap)
    effects = list(map(percentile_interval, coefficients.tolist(), draws))
    position_effects, feature_effects = effects[: rankings.k - 1], effects[rankings.k - 1 :]
    # Scores of a question sum to zero, and all positions have one variance under exchanges.
    score = rankings.utility_scores(np.zeros(rankings.terms.shape[2]))
    (position_p,) = _exchange_test(
        score, lambda s: np.square(s.sum(0)).sum(keepdims=True), exchanges, rng
    )
    residual = rankings.utility_scores(position_coefficients)
    point_p, *feature_p = _exchange_test(
        residual, rankings.feature_statistics(residual), exchanges, rng
    )
    adjusted = holm_adjust(np.array(feature_p))
    position_gain, point_gain = (
        normal_interval(float(gains.mean()), float(gains.std(ddof=1)) / np.sqrt(rankings.n))
        for gains in _cross_validate(rankings, rng)
    )
    first = np.bincount(rankings.ranking[:, 0], minlength=rankings.k).tolist()
    return RankingAudit(
        questions=rankings.n,
        alternatives=rankings.k,
        chance_log_likelihood=-lgamma(rankings.k + 1),
        position_gain=position_gain,
        point_gain=point_gain,
        position_p_value=position_p,
        point_p_value=point_p,
        positions=[  # the last position is the reference
            RankingPositionEffect(position=i, nats=effect, times_first=first[i])
            for i, effect in enumerate([*position_effects, _ZERO_EFFECT])
        ],
        features=[
            FeatureEffect(
                name=name,
                slope=feature_effects[j],
                curvature=feature_effects[len(names) + j],
                p_value=feature_p[j],
                p_holm=float(adjusted[j]),
            )
            for j, name in enumerate(names)
        ],
    )


@dataclass(frozen=True)
class _Rankings:
    """Rankings with the covariates of the models.

    Attributes:
        terms: indicators of all positions except the last, features in standard deviations, and
            their squares, `(n, k, k − 1 + 2 d)`, in the order of presentation.
        ranking: the alternatives of each question, best first, `(n, k)`.
        d: number of features.
    """

    terms: Floats
    ranking: Index
    d: int

    @classmethod
    def from_points(cls, points: Floats, ranking: Index, names: Sequence[str]) -> _Rankings:
        points, ranking = np.asarray(points, dtype=np.float64), np.asarray(ranking)
        if points.ndim != 3 or points.shape[2] != len(names):
            raise InputError(
                f"rankings: points have shape {points.shape}; give (n, k, {len(names)}), a value "
                "for each of the named features"
            )
        n, k, d = points.shape
        if ranking.shape != (n, k) or (np.sort(ranking, axis=1) != np.arange(k)).any():
            raise InputError(
                f"rankings: every row must be a permutation of 0 to {k - 1}, best first, and there "
                f"must be {n} rows, one for each question"
            )
        if n < 2 * _FOLDS:
            raise InputError(f"rankings: {n} questions; at least {2 * _FOLDS} are needed; ask more")
        flat = points.reshape(-1, d)
        scale = flat.std(0)
        standard = (points - flat.mean(0)) / np.where(scale > 0, scale, 1.0)
        square = standard**2 - 1.0
        positions = np.broadcast_to(np.eye(k)[:, : k - 1], (n, k, k - 1))
        return cls(np.concatenate([positions, standard, square], axis=2), ranking, d)

    def feature_statistics(self, residual: Floats) -> Callable[[Floats], Floats]:
        """Return the score statistics of all features' terms jointly, and of each feature's two."""
        terms = self.terms[..., self.k - 1 :]
        centred = terms - terms.mean(1, keepdims=True)
        weights = (residual**2).sum(1) / (self.k - 1)
        covariance = np.einsum("n,nki,nkj->ij", weights, centred, centred)
        term_groups = [np.arange(2 * self.d), *(np.array([j, self.d + j]) for j in range(self.d))]
        inverses = [
            np.linalg.pinv(covariance[np.ix_(columns, columns)], hermitian=True)
            for columns in term_groups
        ]
        design = centred.reshape(-1, 2 * self.d)

        def statistics(scores: Floats) -> Floats:
            score = scores.ravel() @ design
            parts = zip(term_groups, inverses, strict=True)
            return np.array(
                [score[columns] @ inverse @ score[columns] for columns, inverse in parts]
            )

        return statistics

    @property
    def n(self) -> int:
        return len(self.ranking)

    @property
    def k(self) -> int:
        return int(self.ranking.shape[1])

    def ranked_terms(self, rows: Index) -> Floats:
        """Return the terms of some questions, best first (m, k, p)."""
        return np.take_along_axis(self.terms[rows], self.ranking[rows][..., None], axis=1)

    def fit(self, rows: Index, *, features: bool) -> Floats:
        """Return maximum a posteriori coefficients (p,), 0 for features that are left out."""
        count = self.terms.shape[2] if features else self.k - 1
        terms = self.ranked_terms(rows)[..., :count]
        flat = terms.reshape(-1, count)
        precision = (np.arange(count) >= self.k - 1) / _PRIOR_SD**2

        def loss(beta: Floats) -> tuple[float, Floats]:
            utilities = terms @ beta
            total = 0.5 * precision @ beta**2 - plackett_luce(utilities).sum()
            return float(total), precision * beta - plackett_luce_score(utilities).ravel() @ flat

        coefficients = np.zeros(self.terms.shape[2])
        coefficients[:count] = minimize(loss, coefficients[:count], jac=True, method="L-BFGS-B").x
        return coefficients

    def log_likelihood(self, rows: Index, coefficients: Floats) -> Floats:
        """Return the log-likelihood of each of some questions (m,)."""
        return plackett_luce(self.ranked_terms(rows) @ coefficients)

    def utility_scores(self, coefficients: Floats) -> Floats:
        """Return the score of every alternative's utility (n, k), in the order of presentation."""
        score = plackett_luce_score(self.ranked_terms(np.arange(self.n)) @ coefficients)
        by_position = np.empty((self.n, self.k))
        np.put_along_axis(by_position, self.ranking, score, axis=1)
        return by_position


def plackett_luce(utilities: Floats) -> Floats:
    """Return the log-likelihood (n,) of utilities (n, k), best first (Plackett 1975)."""
    return np.asarray((utilities - _log_remaining_sum(utilities)).sum(axis=-1))


def plackett_luce_score(utilities: Floats) -> Floats:
    """Return the derivative of the log-likelihood by each utility, (n, k)."""
    log_chances = np.logaddexp.accumulate(-_log_remaining_sum(utilities), axis=-1)
    return np.asarray(1.0 - np.exp(utilities + log_chances))


def _log_remaining_sum(utilities: Floats) -> Floats:
    """Return log Σ exp(utility) over each alternative and those ranked after it, (n, k)."""
    return np.asarray(np.logaddexp.accumulate(utilities[..., ::-1], axis=-1)[..., ::-1])


def _exchange_test(
    scores: Floats, statistics: Callable[[Floats], Floats], exchanges: int, rng: np.random.Generator
) -> list[float]:
    """Return the p-values of statistics of scores `(n, k)`, by permuting these within questions.

    Exchanging the scores of two positions is equivalent to exchanging their points.
    """
    observed = statistics(scores) - 1e-9
    exceedances = np.zeros(len(observed))
    for _ in range(exchanges):
        exceedances += statistics(rng.permuted(scores, axis=1)) >= observed
    p_values: list[float] = ((1.0 + exceedances) / (1.0 + exchanges)).tolist()
    return p_values


def _cross_validate(rankings: _Rankings, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return held-out gains (n,) of positions over chance, and of points over positions."""
    fold = rng.permutation(np.arange(rankings.n) % _FOLDS)
    position_gain, point_gain = np.empty(rankings.n), np.empty(rankings.n)
    for held_out in range(_FOLDS):
        training, rows = np.flatnonzero(fold != held_out), np.flatnonzero(fold == held_out)
        position_likelihood = rankings.log_likelihood(rows, rankings.fit(training, features=False))
        coefficients = rankings.fit(training, features=True)
        position_gain[rows] = position_likelihood + lgamma(rankings.k + 1)
        point_gain[rows] = rankings.log_likelihood(rows, coefficients) - position_likelihood
    return position_gain, point_gain
