"""Rankings of several points: does the judge go by the points, by their places, or by neither?

The answers are set beside Plackett–Luce models of growing content: every order equally likely;
places alone; places and points. Two tests are exact because they exchange what the null says may
be exchanged, question by question, and nothing else:

* *places*: if places do not matter, the order in which the points were shown does not;
* *points*: if only places matter, it does not matter which point stood at which place.

Both compare the score of the next richer model, in units of its covariance under exchanges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lgamma

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize

from llm_elicit.audit.inference import Interval, holm
from llm_elicit.config.base_model import StrictModel
from llm_elicit.errors import InputError
from llm_elicit.spaces.features import Floats

Index = npt.NDArray[np.int64]
_PRIOR_SD = 1.0  # of a feature's effect, in nats a standard deviation of λ
_FOLDS = 10
_NOTHING = Interval(value=0.0, low=0.0, high=0.0)


class PlaceEffect(StrictModel):
    """What a place is worth over the last one, nats, and how often its point was ranked first."""

    place: int
    nats: Interval
    first: int


class FeatureEffect(StrictModel):
    """What a feature is worth, beside the places and the other features.

    By a Plackett–Luce regression on z and z² − 1 of all features, z in standard deviations of the
    points shown; intervals by bootstrap over questions.

    Attributes:
        name: the feature.
        slope: nats a standard deviation.
        curvature: nats of z² − 1; below 0 where the middle is preferred to both ends.
        p_value: of the exchange of points, for both terms of this feature.
        p_holm: the same, for looking at all features at once (Holm 1979).
    """

    name: str
    slope: Interval
    curvature: Interval
    p_value: float
    p_holm: float


class RankingAudit(StrictModel):
    """What rankings say of a judge. Log-likelihoods are nats a ranking; intervals are 95 %.

    Attributes:
        questions, alternatives: how many, of how many points each.
        chance: log-likelihood of an order drawn at random, −log k!.
        by_places: gain of places over chance on questions held out.
        by_points: gain of points (linear and square terms) over places alone, held out.
        places_p, points_p: the two exact tests.
        places, features: what each is worth.
    """

    questions: int
    alternatives: int
    chance: float
    by_places: Interval
    by_points: Interval
    places_p: float
    points_p: float
    places: list[PlaceEffect]
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
        points: `(n, k, d)`, each question's points in the order they were shown.
        ranking: `(n, k)`, their numbers, best first.
        names: the features' names.
        exchanges: of each exact test.
        resamples: of the bootstrap.
        seed: of exchanges, folds and resamples.

    Raises:
        InputError: shapes that do not match, a row that is no ranking, or fewer than 20 questions.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> points = rng.uniform(size=(60, 4, 2))
        >>> ranking = np.argsort(-points[..., 0], axis=1)       # the first feature alone
        >>> audit = audit_rankings(points, ranking, ["size", "age"], exchanges=199, resamples=40)
        >>> audit.points_p, audit.features[0].p_holm < 0.05 < audit.features[1].p_holm
        (0.005, True)
    """
    told = _Rankings.checked(points, ranking, names)
    rng = np.random.default_rng(seed)
    by_place = told.fit(np.arange(told.n), features=False)
    effects = _effects(told, resamples, rng)
    places_p = _exchange_places(told, exchanges, rng)
    points_p, each_p = _exchange_points(told, told.residual(by_place), exchanges, rng)
    adjusted = holm(each_p)
    gains = _held_out(told, rng)
    first = np.bincount(told.ranking[:, 0], minlength=told.k)
    return RankingAudit(
        questions=told.n,
        alternatives=told.k,
        chance=-lgamma(told.k + 1),
        by_places=_mean_interval(gains[0]),
        by_points=_mean_interval(gains[1]),
        places_p=places_p,
        points_p=points_p,
        places=[
            PlaceEffect(place=i, nats=effect, first=int(first[i]))
            for i, effect in enumerate([*effects[: told.k - 1], _NOTHING])
        ],
        features=[
            FeatureEffect(
                name=name,
                slope=effects[told.k - 1 + j],
                curvature=effects[told.k - 1 + told.d + j],
                p_value=float(each_p[j]),
                p_holm=float(adjusted[j]),
            )
            for j, name in enumerate(names)
        ],
    )


@dataclass(frozen=True)
class _Rankings:
    """Rankings as the models see them.

    ``terms`` (n, k, k − 1 + 2 d): indicators of all places but the last, features in standard
    deviations, and their squares; in the order of places shown.
    """

    terms: Floats
    ranking: Index
    d: int

    @classmethod
    def checked(cls, points: Floats, ranking: Index, names: Sequence[str]) -> _Rankings:
        points, ranking = np.asarray(points, dtype=np.float64), np.asarray(ranking)
        if points.ndim != 3 or points.shape[2] != len(names):
            raise InputError(
                f"rankings: points have shape {points.shape}, expected (n, k, {len(names)})"
            )
        n, k, d = points.shape
        if ranking.shape != (n, k) or (np.sort(ranking, axis=1) != np.arange(k)).any():
            raise InputError(
                f"rankings: each of {n} rows must hold the numbers 0 to {k - 1}, best first"
            )
        if n < 2 * _FOLDS:
            raise InputError(f"rankings: {n} questions; at least {2 * _FOLDS} are needed")
        flat = points.reshape(-1, d)
        scale = flat.std(0)
        standard = (points - flat.mean(0)) / np.where(scale > 0, scale, 1.0)
        square = standard**2 - 1.0
        places = np.broadcast_to(np.eye(k)[:, : k - 1], (n, k, k - 1))
        return cls(np.concatenate([places, standard, square], axis=2), ranking, d)

    @property
    def n(self) -> int:
        return len(self.ranking)

    @property
    def k(self) -> int:
        return int(self.ranking.shape[1])

    def ordered(self, rows: Index) -> Floats:
        """Terms of these questions, best first (m, k, p)."""
        return np.take_along_axis(self.terms[rows], self.ranking[rows][..., None], axis=1)

    def fit(self, rows: Index, *, features: bool) -> Floats:
        """Coefficients (p,) of most posterior, those of features zero where there are none."""
        count = self.terms.shape[2] if features else self.k - 1
        terms = torch.from_numpy(self.ordered(rows)[..., :count])
        held = (torch.arange(count) >= self.k - 1).double()

        def loss(values: Floats) -> tuple[float, Floats]:
            beta = torch.from_numpy(values).requires_grad_()
            prior = 0.5 * (held * beta.square()).sum() / _PRIOR_SD**2
            total = prior - plackett_luce(terms @ beta).sum()
            (slope,) = torch.autograd.grad(total, [beta])
            return float(total.detach()), np.asarray(slope.numpy())

        found = np.zeros(self.terms.shape[2])
        found[:count] = minimize(loss, found[:count], jac=True, method="L-BFGS-B").x
        return found

    def log_likelihood(self, rows: Index, coefficients: Floats) -> Floats:
        """Of each of these questions (m,)."""
        values = torch.from_numpy(self.ordered(rows) @ coefficients)
        return np.asarray(plackett_luce(values).numpy())

    def residual(self, coefficients: Floats) -> Floats:
        """Score of every alternative's utility (n, k), in the order of places."""
        values = torch.from_numpy(self.ordered(np.arange(self.n)) @ coefficients).requires_grad_()
        (slope,) = torch.autograd.grad(plackett_luce(values).sum(), [values])
        shown = np.empty((self.n, self.k))
        np.put_along_axis(shown, self.ranking, slope.numpy(), axis=1)
        return shown


def plackett_luce(utilities: torch.Tensor) -> torch.Tensor:
    """Log-likelihood (n,) of rankings with these utilities (n, k), best first (Plackett 1975)."""
    total = torch.logcumsumexp(utilities.flip(-1), -1).flip(-1)
    return (utilities - total).sum(-1)


def _exchange_places(told: _Rankings, exchanges: int, rng: np.random.Generator) -> float:
    """p-value of the score of places, by reordering the places of every question."""
    score = told.residual(np.zeros(told.terms.shape[2]))

    def statistic(shown: Floats) -> float:
        # Scores of a question sum to zero, and all places have one variance under exchanges.
        return float(np.square(shown.sum(0)).sum())

    observed = statistic(score) - 1e-9
    reached = sum(statistic(rng.permuted(score, axis=1)) >= observed for _ in range(exchanges))
    return (1.0 + reached) / (1.0 + exchanges)


def _exchange_points(
    told: _Rankings, residual: Floats, exchanges: int, rng: np.random.Generator
) -> tuple[float, Floats]:
    """p-values of the score of all features' terms together, and of each feature's two."""
    terms = told.terms[..., told.k - 1 :]
    centred = terms - terms.mean(1, keepdims=True)
    mass = (residual**2).sum(1) / (told.k - 1)
    covariance = np.einsum("n,nki,nkj->ij", mass, centred, centred)
    own = [np.arange(len(covariance)), *(np.array([j, told.d + j]) for j in range(told.d))]
    inverses = [np.linalg.pinv(covariance[np.ix_(at, at)], hermitian=True) for at in own]
    design = centred.reshape(-1, len(covariance))

    def statistics(shown: Floats) -> Floats:
        score = shown.ravel() @ design
        both = zip(own, inverses, strict=True)
        return np.array([score[at] @ inverse @ score[at] for at, inverse in both])

    observed = statistics(residual)
    # Exchanging scores between places is exchanging points between them.
    reached = np.zeros(len(observed))
    for _ in range(exchanges):
        reached += statistics(rng.permuted(residual, axis=1)) >= observed - 1e-9
    p_values = (1.0 + reached) / (1.0 + exchanges)
    return float(p_values[0]), np.asarray(p_values[1:])


def _effects(told: _Rankings, count: int, rng: np.random.Generator) -> list[Interval]:
    """Each coefficient of places and features with the central 95 % of a bootstrap."""
    value = told.fit(np.arange(told.n), features=True)
    resamples = (rng.integers(told.n, size=told.n) for _ in range(count))
    drawn = np.stack([told.fit(rows, features=True) for rows in resamples])
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return [
        Interval(value=float(v), low=float(a), high=float(b))
        for v, a, b in zip(value, low, high, strict=True)
    ]


def _held_out(told: _Rankings, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Gains (n,) of places over chance, and of points over places, on questions never seen."""
    fold = rng.permutation(np.arange(told.n) % _FOLDS)
    by_places, by_points = np.empty(told.n), np.empty(told.n)
    for unseen in range(_FOLDS):
        seen, rows = np.flatnonzero(fold != unseen), np.flatnonzero(fold == unseen)
        alone = told.log_likelihood(rows, told.fit(seen, features=False))
        both = told.fit(seen, features=True)
        by_places[rows] = alone + lgamma(told.k + 1)
        by_points[rows] = told.log_likelihood(rows, both) - alone
    return by_places, by_points


def _mean_interval(values: Floats) -> Interval:
    """Mean with the normal 95 % interval over questions."""
    mean, half = float(values.mean()), 1.96 * float(values.std(ddof=1)) / np.sqrt(len(values))
    return Interval(value=mean, low=mean - half, high=mean + half)
