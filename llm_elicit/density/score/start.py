"""Where training starts: a constant, a linear or a quadratic form, fitted to the choices."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_elicit.density.likelihood import Noise
from llm_elicit.density.torch_utils import ascend

_RIDGES = (1000.0, 100.0, 10.0, 1.0, 0.1, 0.01)
_MOST_TERMS, _MOST_ROWS = 600, 20_000
_STEPS, _CONVERGED = 30, 1e-3


@dataclass(frozen=True)
class Start:
    """A form for each fold, fitted without that fold's pairs.

    Args:
        form: "constant", "linear" or "quadratic".
        linear, curvature: b (K, p) and A (K, p, p) of b·t + tᵀA t, in units of the noise's scale.
        log_likelihood: of the held-out choices, nats per comparison.
    """

    form: str
    linear: Tensor
    curvature: Tensor
    log_likelihood: float


def fit_start(
    sides: tuple[Tensor, Tensor],
    weights: Tensor,
    folds: npt.NDArray[np.int64],
    noise: Noise,
    category: npt.NDArray[np.int64],
) -> Start:
    """Return the form, and its ridge, that predict held-out choices best.

    Args:
        sides: features (n, p) of winners and of losers, of unit variance under λ.
        category: see `llm_elicit.density.latent.Latent.category`. Products within one feature's
            categories would add nothing, and are left out.
    """
    p, count, fold_of = len(category), int(folds.max()) + 1, torch.from_numpy(folds)
    i, j = np.triu_indices(p)
    apart = (category[i] != category[j]) | (category[i] < 0)
    i, j = i[apart], j[apart]
    winners, losers = (torch.cat([t, t[:, i] * t[:, j]], 1) for t in sides)
    quadratic = {"quadratic": p + len(i)} if p + len(i) <= _MOST_TERMS else {}
    form, best = "constant", torch.zeros(count, p + len(i), dtype=torch.float64)
    likelihood = float(noise.log_cdf(torch.zeros((), dtype=torch.float64)))
    for name, size in {"linear": p, **quadratic}.items():
        before = -math.inf
        for betas, value in _path((winners - losers)[:, :size], weights, fold_of, noise):
            if value > likelihood:
                form, likelihood = name, value
                best = torch.nn.functional.pad(betas, (0, p + len(i) - size)) / noise.scale
            if value < before:
                break
            before = value
    curvature = torch.zeros(count, p, p, dtype=torch.float64)
    curvature[:, i, j] = best[:, p:]
    return Start(form, best[:, :p], 0.5 * (curvature + curvature.mT), likelihood)


def _path(
    columns: Tensor, weights: Tensor, fold_of: Tensor, noise: Noise
) -> Iterator[tuple[Tensor, float]]:
    """Yield every fold's coefficients (K, P) and the held-out likelihood, by falling ridges."""
    count, size = int(fold_of.max()) + 1, columns.shape[1]
    betas = torch.zeros(count, size, dtype=torch.float64)
    for ridge in _RIDGES:
        difference = torch.empty(len(columns), dtype=torch.float64)
        for fold in range(count):
            held = fold_of == fold
            training = (~held).nonzero()[:_MOST_ROWS, 0]
            betas[fold] = _maximize(columns[training], weights[training], noise, ridge, betas[fold])
            difference[held] = columns[held] @ betas[fold]
        yield betas.clone(), float(noise.log_cdf(difference) @ weights / weights.sum())


def _maximize(columns: Tensor, weights: Tensor, noise: Noise, ridge: float, at: Tensor) -> Tensor:
    """Return the coefficients (P,) of most penalized likelihood, by Newton's method from ``at``."""

    def value(at: Tensor) -> float:
        return float(noise.log_cdf(columns @ at) @ weights - 0.5 * ridge * at @ at)

    def derivatives(at: Tensor) -> tuple[Tensor, Tensor]:
        difference = columns @ at
        slope = torch.exp(noise.log_pdf(difference) - noise.log_cdf(difference)) * weights
        mass = noise.information(difference) * weights
        precision = columns.T @ (columns * mass[:, None])
        precision.diagonal().add_(ridge)
        return columns.T @ slope - ridge * at, precision

    return ascend(at, value, derivatives, torch.add, _STEPS, _CONVERGED)[0]
