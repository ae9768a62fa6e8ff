"""A quadratic utility with ridge: a Gaussian belief on the feature scale."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import fmin_l_bfgs_b

from llm_elicit.density.ratio import quadratic_features
from llm_elicit.density.utility.data import Array, CrossValidation, Differences

_MANY = 20_000


class QuadraticFit:
    """Weighted choice likelihood with ridge, L-BFGS on [t_i, t_i t_j]."""

    def __init__(self, validation: CrossValidation) -> None:
        data = validation.data
        self.validation = validation
        self.design = quadratic_features(data.winners) - quadratic_features(data.losers)

    def fit(self, ridge: float, weights: Array, start: Array | None = None) -> Array:
        """Coefficients (P,) maximizing Σ w log F(design·β) − ridge·|β|²/2."""
        design, mass = torch.from_numpy(self.design), torch.from_numpy(weights)
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
        best: tuple[float, float, Array, Differences] | None = None
        betas: list[Array | None] = [None] * validation.count
        # With many comparisons the ridge hardly matters: a coarser grid saves most of the time.
        coarse = 3 if validation.size > _MANY else 1
        for ridge in sorted(ridges, reverse=True)[::coarse]:
            fits = [
                self.fit(ridge, validation.data.weights * (validation.folds != k), start=betas[k])
                for k in range(validation.count)
            ]
            betas = list(fits)
            predicted = Differences.gather(np.stack(fits) @ self.design.T, validation.folds)
            score = validation.log_likelihood(predicted.out_of_fold)
            if best is None or score > best[0]:
                best = (score, ridge, np.stack(fits), predicted)
        assert best is not None
        return best[1:]
