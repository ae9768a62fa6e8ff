"""A quadratic utility under a Gaussian prior: a Gaussian belief on the feature scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import fmin_l_bfgs_b

from llm_elicit.density.ratio import quadratic_features
from llm_elicit.density.utility.data import Array, CrossValidation, Folds, HeldOut

_CHUNK = 8192
_ROUND = 1e-4


@dataclass(frozen=True)
class RidgedFit:
    """The coefficients (P,) under a ridge, and the ridge's log-evidence up to a constant."""

    ridge: float
    coefficients: Array
    evidence: float


class QuadraticFit:
    """Weighted choice likelihood with ridge, L-BFGS on [t_i, t_i t_j].

    The prior is centred at a round belief: the curvature that all features have in common is
    nearly free, so that the belief's width is the data's to say, and the ridge holds all the rest.
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
        self.round, self.crossed = _common(validation.dimension)

    def _design(self, rows: slice | Folds) -> Array:
        data = self.validation.data
        return quadratic_features(data.winners[rows]) - quadratic_features(data.losers[rows])

    def fit(self, ridge: float, unseen: int | None = None, start: Array | None = None) -> Array:
        """Coefficients (P,) maximizing Σ w log F(design·β) − βᵀRβ/2 without one fold."""
        kept = self.validation.folds[self.rows] != unseen
        design, mass = torch.from_numpy(self.design), torch.from_numpy(self.weights * kept)
        prior = self.prior(ridge)

        def objective(beta: Array) -> tuple[float, Array]:
            difference = design @ torch.from_numpy(beta)
            slope, held = -mass * self.response.slope(difference), prior @ beta
            gradient = np.asarray((design.T @ slope).numpy()) + held
            fit = float(self.response.log_cdf(difference) @ mass)
            return 0.5 * float(beta @ held) - fit, gradient

        first = np.zeros(self.design.shape[1]) if start is None else start
        found, _, _ = fmin_l_bfgs_b(objective, first, maxiter=200, factr=1e6)
        return np.asarray(found)

    def fits(self, ridges: tuple[float, ...]) -> list[RidgedFit]:
        """The fit under each ridge, the one of most evidence first.

        Evidence is the likelihood of the choices with β integrated out, by Laplace's approximation
        (MacKay, 1992). Held-out choices would rather have a larger ridge: one summit foretells best
        when it is too flat, however narrow the belief.
        """
        found: list[RidgedFit] = []
        for ridge in sorted(ridges, reverse=True):
            beta = self.fit(ridge, start=found[-1].coefficients if found else None)
            found.append(RidgedFit(ridge, beta, self._evidence(beta, ridge)))
        return sorted(found, key=lambda fit: -fit.evidence)

    def _evidence(self, beta: Array, ridge: float) -> float:
        """Log-likelihood of the choices with the coefficients integrated out, up to a constant."""
        difference = torch.from_numpy(self.design @ beta)
        fit = self.response.log_cdf(difference) @ torch.from_numpy(self.weights)
        prior, curvature = self.prior(ridge), self.curvature(beta, ridge)
        volume = np.linalg.slogdet(prior)[1] - np.linalg.slogdet(curvature)[1]
        return float(fit - 0.5 * beta @ prior @ beta + 0.5 * volume)

    def cross_validate(self, ridge: float) -> tuple[Array, HeldOut]:
        """Each fold's coefficients (K, P), and what they foretell of the judged rows.

        Their spread is left out: where choices hardly bound a scale, Laplace's is far too large.
        """
        betas = np.stack([self.fit(ridge, k) for k in range(self.validation.count)])
        difference = np.empty(len(self.rows))
        for fold, beta in enumerate(betas):
            unseen = self.validation.folds[self.rows] == fold
            difference[unseen] = self.design[unseen] @ beta
        return betas, HeldOut(difference, np.zeros(len(self.rows)))

    def prior(self, ridge: float) -> Array:
        """R (P, P), the precision of the coefficients before any choice."""
        precision = ridge * np.eye(len(self.round))
        precision -= (ridge - _ROUND) * np.outer(self.round, self.round)
        terms = np.count_nonzero(self.crossed)
        return precision - ridge * terms / (terms + 1) * np.outer(self.crossed, self.crossed)

    def curvature(self, beta: Array, ridge: float) -> Array:
        """Fisher information of the choices, and the prior's: Laplace's precision (P, P)."""
        information = self.response.information(torch.from_numpy(self.design @ beta))
        scaled = self.design * (self.weights * information.numpy())[:, None]
        return np.asarray(self.design.T @ scaled + self.prior(ridge))

    def differences(self, betas: Array) -> Array:
        """f(winner) − f(loser) of every row by every fold's coefficients: (K, n)."""
        chunks = [slice(i, i + _CHUNK) for i in range(0, self.validation.size, _CHUNK)]
        return np.concatenate([betas @ self._design(rows).T for rows in chunks], axis=1)


def _common(d: int) -> tuple[Array, Array]:
    """Unit vectors (P,): the curvature, and the cross term, that all features have in common."""
    i, j = np.triu_indices(d)
    which = [np.concatenate([np.zeros(d), of]) for of in (i == j, i != j)]
    alike, crossed = (each / max(np.linalg.norm(each), 1.0) for each in which)
    return alike, crossed
