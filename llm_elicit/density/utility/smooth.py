"""A quadratic form plus a smooth remainder: a Gaussian process by random Fourier features.

f(t) = quadratic form + Σ_m a_m cos(ω_m·t) + b_m sin(ω_m·t), all coefficients normal a priori, a
process of squared exponential covariance with variance v and length scale ℓ (Rahimi and Recht,
2007). The posterior mode is found by Newton's method, and v maximizes Laplace's approximation to
the evidence (Rasmussen and Williams, 2006, sections 3.4 and 5.5). Processes of several ℓ are
averaged: evidence discriminates poorly between them, and the belief depends on the choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from llm_elicit.density.settings import SmoothSettings
from llm_elicit.density.stacks import FourierStack, draw_frequencies, fourier_features
from llm_elicit.density.utility.cross_validation import Array, CrossValidation, HeldOut
from llm_elicit.density.utility.quadratic import QuadraticFit, Regression, Ridges

_UPDATES = 6
_FIRST_VARIANCE = 10.0
_SETTLED = 0.1  # of the logarithm of the variance
_VARIANCES = (1e-3, 1e4)
_TOLERANCE = 0.02  # of averaging, nats per comparison


@dataclass(frozen=True)
class SmoothFit:
    """The posterior mode of all coefficients (P + 2M,), and how well it predicts.

    ``held_out`` is as in `MixtureFit`.
    """

    mode: Tensor
    frequencies: Tensor
    held_out: HeldOut
    length_scale: float
    variance: float
    regression: Regression

    def split(self, coefficients: Tensor) -> tuple[Tensor, FourierStack]:
        """Split coefficients (S, P + 2M) into those of the quadratic form (S, P) and processes."""
        count = 2 * self.frequencies.shape[1]
        weights = coefficients[:, -count:].float()
        return coefficients[:, :-count], FourierStack(self.frequencies, weights)


def fit_smooth(
    quadratic: QuadraticFit, ridges: Ridges, settings: SmoothSettings
) -> list[SmoothFit]:
    """Return one process of each length scale, each with frequencies of its own.

    The list is empty where the form is left out.
    """
    d = quadratic.validation.dimension
    if not settings.frequencies or d > settings.most_features:
        return []
    return [_fit_length(quadratic, ridges, settings, length) for length in settings.length_scales]


def _fit_length(
    quadratic: QuadraticFit, ridges: Ridges, settings: SmoothSettings, length: float
) -> SmoothFit:
    """Return the process of one length scale that makes the choices most likely."""
    validation, count = quadratic.validation, 2 * settings.frequencies
    unit = draw_frequencies(settings.frequencies, validation.dimension, validation.generator)
    frequencies = unit / (length * math.sqrt(validation.dimension))
    regression = _regression(quadratic, frequencies, ridges)
    rows = torch.randperm(len(quadratic.rows), generator=validation.generator)
    variance, start = _most_likely(regression.subset(rows[: settings.search_rows]), count)
    regression = _with_variance(regression, count, variance)
    mode, _ = regression.maximize(start)
    return SmoothFit(
        mode,
        frequencies.float(),
        _cross_validate(regression, validation, mode),
        length,
        variance,
        regression,
    )


def averaging_shares(scores: Sequence[float]) -> Array:
    """Return shares (F,) ∝ exp(score / 0.02 nats per comparison), which sum to one.

    Most comparisons lie where the belief has little mass, so that small differences of scores say
    little about the belief.

    Parameters
    ----------
    scores : nats per comparison of each of F processes.

    Examples
    --------
    >>> averaging_shares([-0.07, -0.08, -0.40]).round(2).tolist()
    [0.62, 0.38, 0.0]
    """
    shares = np.exp((np.asarray(scores) - max(scores)) / _TOLERANCE)
    return np.asarray(shares / shares.sum())


def average_smooth(fits: Sequence[SmoothFit], shares: Array) -> tuple[Tensor, FourierStack]:
    """Return the coefficients (P,) of the quadratic form and the process of Σ_i a_i f_i."""
    parts = [fit.split(float(a) * fit.mode[None]) for fit, a in zip(fits, shares, strict=True)]
    cos, sin = zip(*(process.weights.chunk(2, 1) for _, process in parts), strict=True)
    # Features are divided by the root of the number of frequencies, which is now larger.
    weights = math.sqrt(len(fits)) * torch.cat([*cos, *sin], 1)
    frequencies = torch.cat([process.frequencies for _, process in parts], 1)
    coefficients: Tensor = torch.stack([of_quadratic[0] for of_quadratic, _ in parts]).sum(0)
    return coefficients, FourierStack(frequencies, weights)


def _regression(quadratic: QuadraticFit, frequencies: Tensor, ridges: Ridges) -> Regression:
    """Return that of the quadratic form and of a process of variance one."""
    plain = quadratic.regression(ridges)
    points = quadratic.validation.sides(quadratic.validation.rows).double()
    winners, losers = fourier_features(points, frequencies).chunk(2)
    columns = torch.cat([plain.columns, winners - losers], 1)
    identity = torch.eye(winners.shape[1], dtype=torch.float64)
    prior: Tensor = torch.block_diag(plain.prior, identity)  # type: ignore[no-untyped-call]
    return replace(plain, columns=columns, prior=prior)


def _with_variance(regression: Regression, count: int, variance: float) -> Regression:
    """Return the regression with another variance of the process's ``count`` coefficients."""
    prior = regression.prior.clone()
    prior.diagonal()[-count:] = 1.0 / variance
    return replace(regression, prior=prior)


def _most_likely(regression: Regression, count: int) -> tuple[float, Tensor]:
    """Return the variance that maximizes the evidence (MacKay, 1992), and the mode."""
    variance, mode = _FIRST_VARIANCE, None
    for _ in range(_UPDATES):
        mode, factor = _with_variance(regression, count, variance).maximize(mode)
        covariance = torch.cholesky_inverse(factor).diagonal()[-count:]
        determined = max(count - float(covariance.sum()) / variance, 1e-9)
        size = float(mode[-count:].square().sum())
        before, variance = variance, float(np.clip(size / determined, *_VARIANCES))
        if abs(math.log(variance / before)) < _SETTLED:
            break
    assert mode is not None
    return variance, mode


def _cross_validate(regression: Regression, validation: CrossValidation, mode: Tensor) -> HeldOut:
    fold_of = validation.fold_of[validation.rows]
    difference = torch.empty(len(fold_of), dtype=torch.float64)
    spread = torch.empty_like(difference)
    for fold in range(validation.count):
        unseen = fold_of == fold
        at, factor = regression.without(unseen).maximize(mode)
        columns = regression.columns[unseen]
        difference[unseen] = columns @ at
        spread[unseen] = torch.linalg.solve_triangular(factor, columns.T, upper=False).norm(dim=0)
    return HeldOut(difference.numpy(), spread.numpy())
