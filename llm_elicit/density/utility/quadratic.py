"""A quadratic utility with ridge: a Gaussian belief on the feature scale."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import fmin_l_bfgs_b

from llm_elicit.density.ratio import quadratic_features
from llm_elicit.density.utility.data import Array, CrossValidation, Differences, Folds

_CHUNK = 8192
_MANY = 20_000


class QuadraticFit:
    """Weighted choice likelihood with ridge, L-BFGS on [t_i, t_i t_j].

    Only the judged rows are used: a quadratic form needs no more comparisons than those.
    """

    def __init__(self, validation: CrossValidation) -> None:
        self.validation = validation
        self.rows = validation.judged.numpy()
        self.design = self._design(self.rows)
        self.weights = validation.data.weights[self.rows]

    def _design(self, rows: slice | Folds) -> Array:
        data = self.validation.data
        return quadratic_features(data.winners[rows]) - quadratic_features(data.losers[rows])

    def fit(self, ridge: float, unseen: int | None = None, start: Array | None = None) -> Array:
        """Coefficients (P,) maximizing Σ w log F(design·β) − ridge·|β|²/2 without one fold."""
        kept = self.validation.folds[self.rows] != unseen
        design, mass = torch.from_numpy(self.design), torch.from_numpy(self.weights * kept)
        noise = self.validation.noise

        def objective(beta: Array) -> tuple[float, Array]:
            difference = design @ torch.from_numpy(beta)
            log_cdf = noise.log_cdf(difference)
            # d log F = F'/F: the hazard, from logs so that neither tail overflows.
            slope = -mass * torch.exp(noise.log_pdf(difference) - log_cdf)
            gradient = np.asarray((design.T @ slope).numpy()) + ridge * beta
            return -float(log_cdf @ mass) + 0.5 * ridge * float(beta @ beta), gradient

        first = np.zeros(self.design.shape[1]) if start is None else start
        found, _, _ = fmin_l_bfgs_b(objective, first, maxiter=200, factr=1e6)
        return np.asarray(found)

    def cross_validate(self, ridges: tuple[float, ...]) -> tuple[float, Array, Differences]:
        """Best ridge, each fold's coefficients (K, P) at it, and what they predict."""
        validation = self.validation
        folds = validation.folds[self.rows]
        best: tuple[float, float, Array] | None = None
        betas: list[Array | None] = [None] * validation.count
        # With many comparisons the ridge hardly matters: a coarser grid saves most of the time.
        coarse = 3 if validation.size > _MANY else 1
        for ridge in sorted(ridges, reverse=True)[::coarse]:
            fits = [self.fit(ridge, k, betas[k]) for k in range(validation.count)]
            betas = list(fits)
            held_out = (np.stack(fits) @ self.design.T)[folds, np.arange(len(folds))]
            score = validation.log_likelihood_of_judged(held_out)
            if best is None or score > best[0]:
                best = (score, ridge, np.stack(fits))
        assert best is not None
        return best[1], best[2], self._predict(best[2])

    def _predict(self, betas: Array) -> Differences:
        chunks = [slice(i, i + _CHUNK) for i in range(0, self.validation.size, _CHUNK)]
        by_member = np.concatenate([betas @ self._design(rows).T for rows in chunks], axis=1)
        return Differences.gather(by_member, self.validation.folds)
