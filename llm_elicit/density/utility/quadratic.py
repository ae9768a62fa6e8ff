"""A quadratic utility under a Gaussian prior: a Gaussian belief on the feature scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import fmin_l_bfgs_b

from llm_elicit.density.utility.data import Array, CrossValidation, Folds, HeldOut
from llm_elicit.density.utility_function import quadratic_features

_CHUNK = 8192
_ROUND = 1e-4
_TURNS = 12
_RIDGES = (1e-6, 1e4)
_UNTOLD = 1e-6


class Ridges(NamedTuple):
    """Prior precisions of linear terms, of the curvatures' differences, and of cross terms.

    One ridge for all would be set by the many terms that a belief has not, and hold those it has:
    features that have nothing to do with each other kept a belief's centre in the middle.
    """

    linear: float
    apart: float
    crossed: float

    def times(self, factor: float) -> Ridges:
        """All of them stronger by one factor: the belief's scale, and not its shape."""
        return Ridges(*(factor * ridge for ridge in self))


@dataclass(frozen=True)
class RidgedFit:
    """The coefficients (P,) under ridges, and their log-evidence up to a constant."""

    ridges: Ridges
    coefficients: Array
    evidence: float


class QuadraticFit:
    """Weighted choice likelihood with ridges, L-BFGS on [t_i, t_i t_j].

    The prior is centred at a round belief: the curvature that all features have in common is
    nearly free, so that the belief's width is the data's to say, and `Ridges` hold all the rest.
    Held at zero altogether, few choices give a belief that is open in some directions.
    A cross term is what all of them have in common, and as much again of its own: features that
    all go together have many small ones, and each held for itself would have none.
    Only the judged rows are used: a quadratic form needs no more comparisons than those.
    """

    def __init__(self, validation: CrossValidation) -> None:
        self.validation = validation
        self.rows = validation.judged.numpy()
        self.design = self._design(self.rows)
        self.weights = validation.data.weights[self.rows]
        self.response = validation.response.at(validation.judged)
        self.kinds, self.free = _kinds(validation.dimension)

    def _design(self, rows: slice | Folds) -> Array:
        data = self.validation.data
        return quadratic_features(data.winners[rows]) - quadratic_features(data.losers[rows])

    def fit(self, ridges: Ridges, unseen: int | None = None, start: Array | None = None) -> Array:
        """Coefficients (P,) maximizing Σ w log F(design·β) − βᵀRβ/2 without one fold."""
        kept = self.validation.folds[self.rows] != unseen
        design, mass = torch.from_numpy(self.design), torch.from_numpy(self.weights * kept)
        prior = self.prior(ridges)

        def objective(beta: Array) -> tuple[float, Array]:
            difference = design @ torch.from_numpy(beta)
            slope, held = -mass * self.response.slope(difference), prior @ beta
            gradient = np.asarray((design.T @ slope).numpy()) + held
            fit = float(self.response.log_cdf(difference) @ mass)
            return 0.5 * float(beta @ held) - fit, gradient

        first = np.zeros(self.design.shape[1]) if start is None else start
        found, _, _ = fmin_l_bfgs_b(objective, first, maxiter=200, factr=1e6)
        return np.asarray(found)

    def fits(self, factors: tuple[float, ...]) -> list[RidgedFit]:
        """The fit under each multiple of `suited` ridges, the one of most evidence first.

        Evidence is the likelihood of the choices with β integrated out, by Laplace's approximation
        (MacKay, 1992). Held-out choices would rather have larger ridges: one summit foretells best
        when it is too flat, however narrow the belief.
        """
        suited, found = self.suited(), list[RidgedFit]()
        for factor in sorted(factors, reverse=True):
            ridges = suited.times(factor)
            beta = self.fit(ridges, start=found[-1].coefficients if found else None)
            found.append(RidgedFit(ridges, beta, self._evidence(beta, ridges)))
        return sorted(found, key=lambda fit: -fit.evidence)

    def suited(self) -> Ridges:
        """Ridges of most evidence, each kind's γ / βᵀKβ in turns (MacKay, 1992).

        γ is how many of a kind's coefficients the choices tell and the ridge does not.
        """
        ridges, beta = Ridges(1.0, 1.0, 1.0), None
        for _ in range(_TURNS):
            beta = self.fit(ridges, start=beta)
            covariance = np.asarray(np.linalg.inv(self.curvature(beta, ridges)), dtype=float)
            ridges = Ridges(*(
                _told(kind, ridge, beta, covariance)
                for kind, ridge in zip(self.kinds, ridges, strict=True)
            ))  # fmt: skip
        return ridges

    def _evidence(self, beta: Array, ridges: Ridges) -> float:
        """Log-likelihood of the choices with the coefficients integrated out, up to a constant."""
        difference = torch.from_numpy(self.design @ beta)
        fit = self.response.log_cdf(difference) @ torch.from_numpy(self.weights)
        prior, curvature = self.prior(ridges), self.curvature(beta, ridges)
        volume = np.linalg.slogdet(prior)[1] - np.linalg.slogdet(curvature)[1]
        return float(fit - 0.5 * beta @ prior @ beta + 0.5 * volume)

    def cross_validate(self, ridges: Ridges) -> tuple[Array, HeldOut]:
        """Each fold's coefficients (K, P), and what they foretell of the judged rows.

        Their spread is left out: where choices hardly bound a scale, Laplace's is far too large.
        """
        betas = np.stack([self.fit(ridges, k) for k in range(self.validation.count)])
        difference = np.empty(len(self.rows))
        for fold, beta in enumerate(betas):
            unseen = self.validation.folds[self.rows] == fold
            difference[unseen] = self.design[unseen] @ beta
        return betas, HeldOut(difference, np.zeros(len(self.rows)))

    def prior(self, ridges: Ridges) -> Array:
        """R (P, P), the precision of the coefficients before any choice."""
        held = sum(r * kind.precision for r, kind in zip(ridges, self.kinds, strict=True))
        return np.asarray(held + _ROUND * np.outer(self.free, self.free))

    def curvature(self, beta: Array, ridges: Ridges) -> Array:
        """Fisher information of the choices, and the prior's: Laplace's precision (P, P)."""
        information = self.response.information(torch.from_numpy(self.design @ beta))
        scaled = self.design * (self.weights * information.numpy())[:, None]
        return np.asarray(self.design.T @ scaled + self.prior(ridges))

    def differences(self, betas: Array) -> Array:
        """f(winner) − f(loser) of every row by every fold's coefficients: (K, n)."""
        chunks = [slice(i, i + _CHUNK) for i in range(0, self.validation.size, _CHUNK)]
        return np.concatenate([betas @ self._design(rows).T for rows in chunks], axis=1)


@dataclass(frozen=True)
class _Kind:
    """Terms that share a ridge: ``precision`` (P, P) under a ridge of one, and its rank."""

    precision: Array
    rank: int


def _kinds(d: int) -> tuple[tuple[_Kind, ...], Array]:
    """The kinds in the order of `Ridges`, and the direction (P,) that no ridge holds."""
    i, j = np.triu_indices(d)
    linear, alike, crossed = (
        np.concatenate(which).astype(float)
        for which in (
            (np.ones(d), np.zeros(len(i))),
            (np.zeros(d), i == j),
            (np.zeros(d), i != j),
        )
    )
    free, terms = alike / np.sqrt(d), int(crossed.sum())
    apart = np.diag(alike) - np.outer(free, free)
    of_crossed = np.diag(crossed) - np.outer(crossed, crossed) / (terms + 1)
    return (_Kind(np.diag(linear), d), _Kind(apart, d - 1), _Kind(of_crossed, terms)), free


def _told(kind: _Kind, ridge: float, beta: Array, covariance: Array) -> float:
    """The ridge that suits coefficients β (P,) of this posterior covariance (P, P).

    Where the choices tell of no such term, or there is none, any ridge suits and this one stays.
    """
    told = kind.rank - ridge * float((covariance * kind.precision).sum())
    if told < _UNTOLD:
        return ridge
    size = float(beta @ kind.precision @ beta)
    least, most = _RIDGES
    return float(np.clip(told / size, least, most)) if size > told / most else most
