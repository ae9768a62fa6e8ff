"""A quadratic utility with ridge: a Gaussian belief on the feature scale."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from scipy.linalg import solve_triangular
from scipy.optimize import fmin_l_bfgs_b

from llm_elicit.density.ratio import quadratic_features
from llm_elicit.density.utility.data import Array, CrossValidation, Folds, HeldOut

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

    def cross_validate(self, ridges: tuple[float, ...]) -> tuple[float, Array, HeldOut]:
        """Best ridge, each fold's coefficients (K, P) at it, what they foretell (judged rows)."""
        validation = self.validation
        best: tuple[float, float, Array, HeldOut] | None = None
        betas: list[Array | None] = [None] * validation.count
        # With many comparisons the ridge hardly matters: a coarser grid saves most of the time.
        coarse = 3 if validation.size > _MANY else 1
        for ridge in sorted(ridges, reverse=True)[::coarse]:
            fits = [self.fit(ridge, k, betas[k]) for k in range(validation.count)]
            betas = list(fits)
            held_out = self._foretell(np.stack(fits), ridge)
            score = validation.score(held_out)
            if best is None or score > best[0]:
                best = (score, ridge, np.stack(fits), held_out)
        assert best is not None
        return best[1], best[2], best[3]

    def _foretell(self, betas: Array, ridge: float) -> HeldOut:
        difference, spread = np.empty(len(self.rows)), np.empty(len(self.rows))
        for fold, beta in enumerate(betas):
            unseen = self.validation.folds[self.rows] == fold
            difference[unseen] = self.design[unseen] @ beta
            half = np.linalg.cholesky(self._curvature(beta, ~unseen, ridge))
            along = solve_triangular(half, self.design[unseen].T, lower=True)
            spread[unseen] = np.sqrt(np.square(along).sum(axis=0))
        return HeldOut(difference, spread)

    def _curvature(self, beta: Array, seen: npt.NDArray[np.bool_], ridge: float) -> Array:
        """Fisher information of the choices seen, and the ridge: the Laplace precision (P, P)."""
        design = self.design[seen]
        information = self.validation.noise.information(torch.from_numpy(design @ beta)).numpy()
        scaled = design * (self.weights[seen] * information)[:, None]
        return np.asarray(design.T @ scaled + ridge * np.eye(design.shape[1]))

    def differences(self, betas: Array) -> Array:
        """f(winner) − f(loser) of every row by every fold's coefficients: (K, n)."""
        chunks = [slice(i, i + _CHUNK) for i in range(0, self.validation.size, _CHUNK)]
        return np.concatenate([betas @ self._design(rows).T for rows in chunks], axis=1)
