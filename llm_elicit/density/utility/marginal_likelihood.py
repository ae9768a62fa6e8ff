"""The marginal likelihood of the variances, gains and dispersions of the Gaussian process.

They are the vector θ: logarithms of six variances of the prior (`VARIANCES`), of the length scale
ℓ, of the gains of all sources but one, and of the dispersions of log-odds. If log-odds were asked
in several presentations, these follow: the logarithms of ρ², the variance of what is particular to
one presentation relative to what is common to all, and of each one's gain and dispersion relative
to the judge's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from scipy.optimize import minimize
from scipy.stats import qmc
from torch import Tensor

from llm_elicit.density.errors import Array, Flags, Index
from llm_elicit.density.utility.quadratic import QuadraticTerms

VARIANCES = 6
"""Linear terms, common curvature, its differences, cross terms, products with u·t, process."""

_LOG_SD = 3.0  # of the prior of a log-variance, a log-dispersion and a log-gain
_LENGTH_SD = 0.5  # of the prior of log ℓ
# Of the log-gains and log-dispersions of presentations: those of five wordings of one model had
# standard deviations within a factor of 2.2.
_PRESENTATION_SD = 0.5
_INTERACTION = (math.log(1e-4), math.log(9.0))  # the range of log ρ²
_PROFILE_TOLERANCE = 1e-5  # of a profile, relative
_FAILED = 1e12  # the loss where the covariance is not positive definite
_STEP = 1e-3  # of the differences that second derivatives are taken by


@dataclass(frozen=True)
class Observations:
    """n rows that measure differences of utility.

    ``first``, ``second`` (n, p) features; ``category`` (p,) as in `QuadraticTerms.of`. Of a
    measurement ``value`` (n,) has variance ``share`` σ² + ``extra`` and may be ``censored`` (see
    `LogOdds`); of a choice the first point won, ``weight`` (n,) times. ``source`` (n,) numbers what
    has a gain and a dispersion of its own: the log-odds of each judge, then the choices of each
    judge; ``choices`` says of each source whether it is of choices. ``effects`` (n, B) are columns
    of position effects with normal priors of standard deviation ``effect_sd`` (B,), NaN for a wide
    one. Rows of one ``group`` (n,) are left out together. ``cell`` (n,) numbers judge and
    presentation of log-odds, −1 for choices; all −1 if no judge had two presentations.
    ``direction`` is that of a ridge, u (p,); None if the products of u·t have no variance of their
    own.
    """

    first: Tensor
    second: Tensor
    value: Array
    share: Array
    extra: Array
    censored: Index
    weight: Array
    source: Index
    choices: tuple[bool, ...]
    effects: Array
    effect_sd: Array
    group: Index
    cell: Index
    category: Index
    direction: Tensor | None = None

    def __len__(self) -> int:
        return len(self.value)

    @property
    def chosen(self) -> Flags:
        """Which rows are choices (n,)."""
        return np.array(self.choices, dtype=bool)[self.source]

    @property
    def cells(self) -> int:
        """The number of cells; 0 if no judge had two presentations."""
        return int(self.cell.max(initial=-1)) + 1

    @property
    def exact(self) -> Flags:
        """Which rows are log-odds that are not censored (n,)."""
        exact: Flags = ~self.chosen & np.isfinite(self.extra) & (self.censored == 0)
        return exact

    @cached_property
    def terms(self) -> QuadraticTerms:
        """The terms of the quadratic form."""
        return QuadraticTerms.of(self.category)

    @cached_property
    def quadratic(self) -> Tensor:
        """Differences (n, P) of the quadratic form's columns."""
        sides = (self.terms.columns(t.double().numpy()) for t in (self.first, self.second))
        return torch.from_numpy(np.subtract(*sides))

    @cached_property
    def blocks(self) -> tuple[Tensor, ...]:
        """Roots of the prior covariances of β (P,) under variances of one, but for the process's.

        Of linear terms, shared curvature, its differences and cross terms they are projections
        (P, P). The last (P, p), with p = 0 without a direction, has (u·t) t_i as columns.
        """
        d, square = self.terms.dimension, torch.from_numpy(self.terms.squares)
        linear = torch.cat([torch.ones(d), torch.zeros(len(square))]).double()
        squares = torch.cat([torch.zeros(d), square]).double()
        crossed = torch.cat([torch.zeros(d), ~square]).double()
        common = torch.outer(squares, squares) / max(float(squares.sum()), 1.0)
        along = torch.zeros(len(linear), 0, dtype=torch.float64)
        if self.direction is not None:
            along = self.terms.products(self.direction)
        plain = torch.diag(linear), common, torch.diag(squares) - common, torch.diag(crossed)
        return (*plain, along)


class Terms(NamedTuple):
    """θ taken apart: variances (6,), ℓ (), gains (n,), variances of measurements (n,) and ρ² ()."""

    variances: Tensor
    length: Tensor
    gain: Tensor
    measurement: Tensor
    interaction: Tensor


class Hyperparameters:
    """The layout of θ and its prior, normal about ``centre`` (T,).

    Args:
        rows: the observations.
        units: (S,) the sizes of a log-odds of each source, nats; of choices, what the utility may
            differ between two points.
    """

    def __init__(self, rows: Observations, units: Array) -> None:
        self._source = torch.from_numpy(rows.source)
        self._share, self._extra = torch.from_numpy(rows.share), torch.from_numpy(rows.extra)
        self._sources = len(rows.choices)
        # The gain of the source that sets the unit of the utility is one.
        anchor = rows.choices.index(True) if any(rows.choices) else 0
        self.free = [s for s in range(self._sources) if s != anchor]
        self.log_odds = [s for s, choices in enumerate(rows.choices) if not choices]
        self._gains = slice(VARIANCES + 1, VARIANCES + 1 + len(self.free))
        self._dispersions = slice(self._gains.stop, self._gains.stop + len(self.log_odds))
        self._cell, self._cells = torch.from_numpy(rows.cell), rows.cells
        self.interaction = self._dispersions.stop if self._cells else None
        """The place of log ρ² in θ."""
        counts = np.bincount(rows.source, minlength=self._sources)
        most = max(self.log_odds, key=lambda s: counts[s])
        self._most = self._gains.start + self.free.index(most) if most in self.free else None
        d, logs = rows.first.shape[1], np.log(units)
        variance = 2.0 * logs[anchor] - math.log(2.0 * d)
        self.centre = np.array([
            *[variance] * 3, variance - math.log(d), *[variance] * 2,
            0.5 * math.log(d),
            *(logs[self.free] - logs[anchor]),
            *np.log(0.5 * units[self.log_odds]),
            *([math.log(0.1)] if self._cells else []),
            *np.zeros(2 * self._cells),
        ])  # fmt: skip
        self.bounds = [(c - 12.0, c + 8.0) for c in self.centre]
        middle = self.centre[VARIANCES]
        self.bounds[VARIANCES] = (middle - 2.0, middle + 1.5)
        self._sd = np.full(len(self.centre), _LOG_SD)
        self._sd[VARIANCES] = _LENGTH_SD
        if self.interaction is not None:
            self.bounds[self.interaction] = _INTERACTION
            self._sd[self.interaction] = math.inf
            self._sd[self.interaction + 1 :] = _PRESENTATION_SD
            first = [int((rows.cell == cell).argmax()) for cell in range(self._cells)]
            judge = rows.source[first]
            same = (judge[:, None] == judge).astype(np.float64)
            self._same_judge = torch.from_numpy(same / same.sum(0))

    def terms(self, theta: Tensor) -> Terms:
        """Return θ taken apart."""
        log_gain, log_sd = torch.zeros(2, self._sources, dtype=torch.float64)
        log_gain = log_gain.index_copy(0, _places(self.free), theta[self._gains])
        log_sd = log_sd.index_copy(0, _places(self.log_odds), theta[self._dispersions])
        log_gain, log_sd = log_gain[self._source], log_sd[self._source]
        interaction = 0.0 * theta[0]  # a function of θ, as the others
        if self.interaction is not None:
            interaction = torch.exp(theta[self.interaction])
            # The last column is that of choices, which have no presentation.
            own = torch.nn.functional.pad(self._relative(theta), (0, 1))
            log_gain, log_sd = log_gain + own[0, self._cell], log_sd + own[1, self._cell]
        measurement = self._share * torch.exp(2.0 * log_sd) + self._extra
        variances, length = torch.exp(theta[:VARIANCES]), torch.exp(theta[VARIANCES])
        return Terms(variances, length, torch.exp(log_gain), measurement, interaction)

    def of_sources(self, theta: Array) -> tuple[Array, Array]:
        """Return gains and dispersions of every source, NaN dispersion for choices."""
        gain, dispersion = np.ones(self._sources), np.full(self._sources, np.nan)
        gain[self.free] = np.exp(theta[self._gains])
        dispersion[self.log_odds] = np.exp(theta[self._dispersions])
        return gain, dispersion

    def of_cells(self, theta: Array) -> tuple[Array, Array]:
        """Return gains and dispersions of every cell (C,), relative to the judge's."""
        if self.interaction is None:
            return np.ones(0), np.ones(0)
        gain, dispersion = np.exp(self._relative(torch.from_numpy(theta)).numpy())
        return gain, dispersion

    def _relative(self, theta: Tensor) -> Tensor:
        """Return log-gains and log-dispersions (2, C) of cells less their means over each judge."""
        logs = theta[self._dispersions.stop + 1 :].view(2, -1)
        return logs - logs @ self._same_judge

    def surprise(self, theta: Tensor) -> Tensor:
        """Return minus the log prior density, up to a constant."""
        moved = theta - torch.from_numpy(self.centre)
        if self._most is not None:
            # The variances are a priori those of κ f of the source with the most log-odds. A prior
            # on those of f would pull at its gain by the variances of all terms that f lacks.
            moved = torch.cat([moved[:VARIANCES] + 2.0 * moved[self._most], moved[VARIANCES:]])
        return 0.5 * (moved / torch.from_numpy(self._sd)).square().sum()

    def with_gains(self, theta: Array, curvature: Tensor, count: int) -> Array:
        """Return θ (count, T) with gains of equal probability, the rest as expected given them.

        The posterior of θ is normal about its maximum (Laplace's approximation), except for ℓ,
        which stays.

        Args:
            theta, curvature: the maximum (T,), and the second derivatives (T, T) of the loss there.
            count: the number of θ.
        """
        moving = [i for i in range(len(theta)) if i not in (VARIANCES, self.interaction)]
        values, vectors = torch.linalg.eigh(curvature[moving][:, moving])
        # Where a gain is known only times a variance, precision is less than a prior's.
        covariance = (vectors / values.clamp(min=0.1 * _LOG_SD**-2.0)) @ vectors.T
        gains = [moving.index(i) for i in range(len(theta))[self._gains]]
        root = torch.linalg.cholesky(covariance[gains][:, gains])
        slope = torch.linalg.solve_triangular(root, covariance[gains], upper=False)
        even = qmc.Sobol(len(gains), scramble=False).random(count) + 0.5 / count
        thetas = np.tile(theta, (count, 1))
        thetas[:, moving] += stats.norm.ppf(even) @ slope.numpy()
        return thetas


class MarginalLikelihood:
    """The marginal likelihood of θ given measurements of some rows.

    Args:
        rows, hyper: the observations, and the layout of θ.
        effect_variance: (B,) of the priors of the position effects.
        subset: (m,) numbers of the rows that are used.
        target, variance: (n,) normal approximations of the rows that are not exact.
    """

    def __init__(
        self,
        rows: Observations,
        hyper: Hyperparameters,
        effect_variance: Tensor,
        subset: Tensor,
        target: Tensor,
        variance: Tensor,
    ) -> None:
        self._hyper, self._subset = hyper, subset
        self._target, self._variance = target[subset], variance[subset]
        self._exact = torch.from_numpy(rows.exact)[subset]
        self._share = len(subset) / len(rows)
        halves = [rows.quadratic[subset] @ block for block in rows.blocks]
        self._parts = [half @ half.T for half in halves]
        first, second = rows.first.double()[subset], rows.second.double()[subset]
        pairs = ((first, first), (second, second), (first, second))
        self._distances = [torch.cdist(x, y).square() for x, y in pairs]
        effects = torch.from_numpy(rows.effects)[subset]
        self._effects = (effects * effect_variance) @ effects.T
        cell = torch.from_numpy(rows.cell)[subset]
        self._alike = ((cell[:, None] == cell) & (cell >= 0)).double() if rows.cells else None

    def loss_and_slope(self, theta: Array) -> tuple[float, Array]:
        """Return minus the log marginal likelihood and log prior, and its gradient (T,) in θ."""
        at = torch.from_numpy(theta).requires_grad_()
        terms, surprise = self._hyper.terms(at), self._hyper.surprise(at)
        with torch.no_grad():
            value, slopes = self._value_and_slopes(terms)
        if not math.isfinite(value):
            return _FAILED, np.zeros(len(theta))
        (slope,) = torch.autograd.grad([*terms, surprise], [at], [*slopes, torch.ones(())])
        return value + float(surprise.detach()), np.asarray(slope.numpy())

    def _value_and_slopes(self, terms: Terms) -> tuple[float, Terms]:
        """Return minus the log marginal likelihood, and its derivatives by the terms."""
        subset = self._subset
        xx, yy, xy = (torch.exp(-0.5 * r / terms.length**2) for r in self._distances)
        parts = [*self._parts, xx + yy - xy - xy.T]
        utility = sum(v * part for v, part in zip(terms.variances, parts, strict=True))
        # What is particular to a presentation has the common part's covariance, times ρ².
        shared = 1.0 if self._alike is None else 1.0 + terms.interaction * self._alike
        gain = terms.gain[subset]
        variance = torch.where(self._exact, terms.measurement[subset], self._variance)
        covariance = (
            gain[:, None] * (utility * shared) * gain + self._effects + torch.diag(variance)
        )
        factor, failed = torch.linalg.cholesky_ex(covariance)
        if failed:
            return math.inf, terms
        inverse = torch.cholesky_inverse(factor)
        pull = inverse @ self._target
        value = 0.5 * self._target @ pull + factor.diagonal().log().sum()
        # The derivative by the covariance, and by that of the utility's differences.
        slope = 0.5 * (inverse - torch.outer(pull, pull))
        scaled = gain[:, None] * slope * gain
        inner = scaled * shared
        xx, yy, xy = (r * e for r, e in zip(self._distances, (xx, yy, xy), strict=True))
        of_length = (inner * (xx + yy - xy - xy.T)).sum()
        of_gain, of_measurement = torch.zeros(2, len(terms.gain), dtype=torch.float64)
        of_gain[subset] = 2.0 * ((slope * utility * shared) @ gain)
        of_measurement[subset] = torch.where(self._exact, slope.diagonal(), 0.0)
        return float(value), Terms(
            torch.stack([(inner * part).sum() for part in parts]),
            of_length * terms.variances[-1] / terms.length**3,
            of_gain,
            of_measurement,
            torch.zeros(()) if self._alike is None else (scaled * utility * self._alike).sum(),
        )

    def maximize(
        self, theta: Array, iterations: int, fixed: int | None = None
    ) -> tuple[Array, float]:
        """Return the maximum (T,) found from θ, and its log marginal likelihood and log prior.

        Args:
            theta: the start (T,).
            iterations: the most of them.
            fixed: the place of an element of θ that stays as it is.
        """
        bounds, tolerance = list(self._hyper.bounds), None
        if fixed is not None:
            bounds[fixed], tolerance = (theta[fixed], theta[fixed]), _PROFILE_TOLERANCE
        optimum = minimize(
            self.loss_and_slope, theta, jac=True, method="L-BFGS-B", bounds=bounds, tol=tolerance,
            options={"maxiter": iterations},
        )  # fmt: skip
        return np.asarray(optimum.x), -float(optimum.fun)

    def curvature(self, theta: Array) -> Tensor:
        """Return the second derivatives (T, T) of the loss, as of all rows."""
        steps = _STEP * np.eye(len(theta))
        up, down = (
            np.stack([self.loss_and_slope(theta + step)[1] for step in way])
            for way in (steps, -steps)
        )
        hessian = torch.from_numpy(up - down) / (2.0 * _STEP)
        return 0.5 * (hessian + hessian.T) / self._share


def _places(numbers: list[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.long)
