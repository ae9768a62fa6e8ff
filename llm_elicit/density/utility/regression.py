"""Choices given a linear predictor: penalized maximum likelihood by Newton's method."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from llm_elicit.density.likelihood import Response

_STEPS = 50
_HALVINGS = 12
_CONVERGED = 1e-3  # nats of the log-posterior


@dataclass(frozen=True)
class Regression:
    """The posterior of coefficients β (P,) given choices with utility differences Xβ.

    Parameters
    ----------
    columns : X (m, P), features of the winners less those of the losers, float64.
    weights : (m,).
    prior : precision (P, P) of the normal prior of β, whose mean is 0.
    """

    columns: Tensor
    weights: Tensor
    response: Response
    prior: Tensor

    def subset(self, rows: Tensor) -> Regression:
        """Return the regression on these rows."""
        columns, weights = self.columns[rows], self.weights[rows]
        return Regression(columns, weights, self.response.at(rows), self.prior)

    def without(self, rows: Tensor) -> Regression:
        """Return the regression in which rows (m,) bools count nothing."""
        return replace(self, weights=self.weights * ~rows)

    def precision(self, at: Tensor) -> Tensor:
        """Return Laplace's posterior precision (P, P): Fisher information and prior."""
        mass = self.response.information(self.columns @ at) * self.weights
        return self.columns.T @ (self.columns * mass[:, None]) + self.prior

    def values(self, beta: Tensor) -> Tensor:
        """Return the log-posterior (...) of coefficients (..., P), up to a constant."""
        fit = self.response.log_cdf(beta @ self.columns.T) @ self.weights
        return fit - 0.5 * ((beta @ self.prior) * beta).sum(-1)

    def value(self, at: Tensor) -> float:
        """Return the log-posterior of one vector, up to a constant."""
        return float(self.values(at))

    def maximize(self, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the posterior mode (P,) and the Cholesky factor of its precision (P, P)."""
        at = torch.zeros(len(self.prior), dtype=torch.float64) if start is None else start
        value = self.value(at)
        for _ in range(_STEPS):
            factor = torch.linalg.cholesky(self.precision(at))
            slope = self.response.slope(self.columns @ at) * self.weights
            gradient = self.columns.T @ slope - self.prior @ at
            step = torch.cholesky_solve(gradient[:, None], factor)[:, 0]
            gain = 0.0
            for halving in range(_HALVINGS):
                moved = at + 0.5**halving * step
                gain = self.value(moved) - value
                if gain > 0.0:
                    at, value = moved, value + gain
                    break
            if gain < _CONVERGED:
                break
        return at, factor
