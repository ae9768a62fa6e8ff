"""The marginal likelihood of the variances, gains and dispersions of the Gaussian process.

They are the vector θ: logarithms of six variances of the prior (`VARIANCE_COUNT`), of the length
scale ℓ, of the gains of all sources but one, and of the dispersions of log-odds. If log-odds were
asked in several presentations, these follow: the logarithms of ρ², the variance of what is
particular to one presentation relative to what is common to all, and of each presentation's gain
and dispersion relative to the judge's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from scipy.optimize import minimize
from scipy.stats import qmc
from torch import Tensor

from llm_elicit.density.contrasts import PairContrasts
from llm_elicit.density.errors import Array, Flags, Index
from llm_elicit.density.evidence import UNKNOWN, order_points
from llm_elicit.density.latent import Latent
from llm_elicit.density.likelihood import Context, Judgments, Noise
from llm_elicit.density.utility.quadratic import QuadraticTerms

VARIANCE_COUNT = 6
"""Linear terms, common curvature, its differences, cross terms, products with u·t, process."""

_LOG_SD = 3.0  # of the prior of a log-variance, a log-dispersion and a log-gain
_LENGTH_SD = 0.5  # of the prior of log ℓ
# Prior of the log-gains and log-dispersions of presentations: in one model, the standard deviations
# of five wordings were within a factor of 2.2.
_PRESENTATION_SD = 0.5
_INTERACTION_BOUNDS = (math.log(1e-4), math.log(9.0))  # the range of log ρ²
_PROFILE_TOLERANCE = 1e-5  # of a profile, relative
_FAILED_LOSS = 1e12  # the loss where the covariance is not positive definite
_DIFFERENCE_STEP = 1e-3  # of the differences that second derivatives are taken by
_POSITION_SD = 3.0  # of a choice's order bias, in units of the noise's scale


@dataclass(frozen=True)
class Observations:
    """n rows that measure differences of utility: log-odds, then choices.

    Attributes:
        first, second: (n, p) features of the two points; of a choice, the first point won.
        value: (n,) measured log-odds, nats; 0 for choices.
        dispersion_share, extra_variance: (n,) the variance of a log-odds is
            ``dispersion_share`` σ² + ``extra_variance``.
        censored: (n,) see `LogOdds`.
        weight: (n,) how many times a choice was made.
        source: (n,) number of the source. Each source has a gain and a dispersion: the log-odds of
            each judge, then the choices of each judge.
        source_is_choice: whether a source has choices, for each source.
        position_columns: (n, B) columns of position effects.
        effect_sd: (B,) prior standard deviations of position effects; NaN for a wide prior.
        group: (n,) rows of one group are left out together in cross-validation.
        cell: (n,) number of the judge and presentation of a log-odds; −1 for choices, and for all
            rows if no judge had two presentations.
        category: (p,) as in `QuadraticTerms.of`.
        ridge_direction: u (p,), see `_GaussianProcess.add_ridge`; None without a ridge.
    """

    first: Tensor
    second: Tensor
    value: Array
    dispersion_share: Array
    extra_variance: Array
    censored: Index
    weight: Array
    source: Index
    source_is_choice: tuple[bool, ...]
    position_columns: Array
    effect_sd: Array
    group: Index
    cell: Index
    category: Index
    ridge_direction: Tensor | None = None

    def __len__(self) -> int:
        return len(self.value)

    @classmethod
    def of(cls, judgments: Judgments, latent: Latent, noise: Noise) -> Observations:
        """Return the rows of checked judgments."""
        pairs, context, m = judgments.contrasts, judgments.context, judgments.size
        choice_judge = np.zeros(m, dtype=np.int64) if context is None else context.judge
        judges, choice_judges = (
            list(dict.fromkeys(numbers.tolist())) for numbers in (pairs.judge, choice_judge)
        )
        source = [judges.index(judge) for judge in pairs.judge]
        source += [len(judges) + choice_judges.index(judge) for judge in choice_judge]
        # Rows about the same two points are left out together.
        low, high = order_points(judgments.winners, judgments.losers)
        points = np.hstack([np.concatenate([pairs.a, low]), np.concatenate([pairs.b, high])])
        groups = np.unique(points, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
        sides = (pairs.a, judgments.winners), (pairs.b, judgments.losers)
        first, second = (
            latent.features(torch.from_numpy(latent.to_latent(np.concatenate(side))))
            for side in sides
        )
        has_presentations = len(pairs.cells) > len(judges)
        cell = pairs.cell if has_presentations else np.full(len(pairs), UNKNOWN)
        columns, effect_sd = _position_columns(pairs, context, m, noise)
        choices = 0, m
        return cls(
            first,
            second,
            np.pad(pairs.value, choices),
            np.pad(pairs.dispersion_share, choices, constant_values=1.0),
            np.pad(pairs.extra_variance, choices),
            np.pad(pairs.censored, choices),
            np.concatenate([np.ones(len(pairs)), judgments.weights]),
            np.array(source, dtype=np.int64),
            (*[False] * len(judges), *[True] * len(choice_judges)),
            columns,
            effect_sd,
            groups,
            np.pad(cell, choices, constant_values=UNKNOWN),
            latent.category,
        )

    @property
    def is_choice(self) -> Flags:
        """Which rows are choices (n,)."""
        return np.array(self.source_is_choice, dtype=bool)[self.source]

    @property
    def cell_count(self) -> int:
        """The number of cells; 0 if no judge had two presentations."""
        return int(self.cell.max(initial=-1)) + 1

    @property
    def is_exact(self) -> Flags:
        """Which rows are log-odds that are not censored (n,)."""
        exact: Flags = ~self.is_choice & np.isfinite(self.extra_variance) & (self.censored == 0)
        return exact

    @cached_property
    def terms(self) -> QuadraticTerms:
        """The terms of the quadratic form."""
        return QuadraticTerms.of(self.category)

    @cached_property
    def quadratic_columns(self) -> Tensor:
        """Differences (n, P) of the quadratic form's columns."""
        sides = (self.terms.columns(t.double().numpy()) for t in (self.first, self.second))
        return torch.from_numpy(np.subtract(*sides))

    @cached_property
    def prior_roots(self) -> tuple[Tensor, ...]:
        """Roots of the prior covariances of β (P,) under variances of one, except the process's.

        The roots of linear terms, shared curvature, its differences and cross terms are projections
        (P, P). The last (P, p), with p = 0 without a direction, has (u·t) t_i as columns.
        """
        products = torch.zeros(len(self.terms), 0, dtype=torch.float64)
        if self.ridge_direction is not None:
            products = self.terms.products(self.ridge_direction)
        return (*self.terms.projections, products)


def _position_columns(
    pairs: PairContrasts, context: Context | None, choices: int, noise: Noise
) -> tuple[Array, Array]:
    """Return columns (n, B) of position effects and their prior standard deviations (B,)."""
    columns, sd = [], []
    for cell in range(len(pairs.cells)):
        in_cell = pairs.cell == cell
        coefficients = np.where(in_cell, pairs.position_coefficient, 0.0)
        if coefficients.any():
            estimate = pairs.position_effect(in_cell)
            columns.append(np.pad(coefficients, (0, choices)))
            mean_sd = np.nan
            if estimate is not None and estimate[2] > 1:
                mean_sd = estimate[1] / np.sqrt(estimate[2])
            sd.append(mean_sd)
    if context is not None:
        columns += list(np.pad(context.position_columns, ((len(pairs), 0), (0, 0))).T)
        sd += [_POSITION_SD * noise.scale] * len(context.position_terms)
    empty = np.zeros((len(pairs) + choices, 0))
    return np.stack(columns, 1) if columns else empty, np.array(sd)


class Parameters(NamedTuple):
    """The parts of θ: variances (6,), ℓ (), gains (n,), measurement variances (n,) and ρ² ()."""

    variances: Tensor
    length_scale: Tensor
    gain: Tensor
    measurement_variance: Tensor
    interaction_variance: Tensor


class Hyperparameters:
    """The layout of θ and its prior, normal about ``prior_mean`` (T,).

    Args:
        rows: the observations.
        units: (S,) the scale of each source, nats: of its log-odds, or of the differences of
            utility between two points for choices.
    """

    def __init__(self, rows: Observations, units: Array) -> None:
        self._source = torch.from_numpy(rows.source)
        self._share = torch.from_numpy(rows.dispersion_share)
        self._extra = torch.from_numpy(rows.extra_variance)
        self._sources = len(rows.source_is_choice)
        # The gain of the source that sets the unit of the utility is one.
        anchor = rows.source_is_choice.index(True) if any(rows.source_is_choice) else 0
        self.sources_with_gain = [s for s in range(self._sources) if s != anchor]
        self.log_odds_sources = np.flatnonzero(~np.array(rows.source_is_choice)).tolist()
        self._gains = slice(VARIANCE_COUNT + 1, VARIANCE_COUNT + 1 + len(self.sources_with_gain))
        self._dispersions = slice(self._gains.stop, self._gains.stop + len(self.log_odds_sources))
        self._cell, self._cells = torch.from_numpy(rows.cell), rows.cell_count
        self.interaction_index = self._dispersions.stop if self._cells else None
        """The place of log ρ² in θ."""
        counts = np.bincount(rows.source, minlength=self._sources)
        main_source = max(self.log_odds_sources, key=lambda s: counts[s])
        self._main_gain = (
            self._gains.start + self.sources_with_gain.index(main_source)
            if main_source in self.sources_with_gain
            else None
        )
        d, logs = rows.first.shape[1], np.log(units)
        variance = 2.0 * logs[anchor] - math.log(2.0 * d)
        self.prior_mean = np.array([
            *[variance] * 3, variance - math.log(d), *[variance] * 2,
            0.5 * math.log(d),
            *(logs[self.sources_with_gain] - logs[anchor]),
            *np.log(0.5 * units[self.log_odds_sources]),
            *([math.log(0.1)] if self._cells else []),
            *np.zeros(2 * self._cells),
        ])  # fmt: skip
        size = len(self.prior_mean)
        # Log-gains and log-dispersions (2, S) of the sources are these rows times θ.
        self._log_rows = torch.zeros(2, self._sources, size, dtype=torch.float64)
        self._log_rows[0, self.sources_with_gain, range(size)[self._gains]] = 1.0
        self._log_rows[1, self.log_odds_sources, range(size)[self._dispersions]] = 1.0
        self.bounds = [(c - 12.0, c + 8.0) for c in self.prior_mean]
        log_length = self.prior_mean[VARIANCE_COUNT]
        self.bounds[VARIANCE_COUNT] = (log_length - 2.0, log_length + 1.5)
        self._sd = np.full(len(self.prior_mean), _LOG_SD)
        self._sd[VARIANCE_COUNT] = _LENGTH_SD
        if self.interaction_index is not None:
            self.bounds[self.interaction_index] = _INTERACTION_BOUNDS
            self._sd[self.interaction_index] = math.inf
            self._sd[self.interaction_index + 1 :] = _PRESENTATION_SD
            first = [int((rows.cell == cell).argmax()) for cell in range(self._cells)]
            judge = rows.source[first]
            same_judge = (judge[:, None] == judge).astype(np.float64)
            self._same_judge = torch.from_numpy(same_judge / same_judge.sum(0))

    def unpack(self, theta: Tensor) -> Parameters:
        """Return the parts of θ."""
        log_gain, log_sd = ((rows @ theta)[self._source] for rows in self._log_rows)
        interaction_variance = 0.0 * theta[0]  # a function of θ, as the others
        if self.interaction_index is not None:
            interaction_variance = torch.exp(theta[self.interaction_index])
            # The last column is that of choices, which have no presentation.
            relative = torch.nn.functional.pad(self._relative_to_judge(theta), (0, 1))
            log_gain, log_sd = log_gain + relative[0, self._cell], log_sd + relative[1, self._cell]
        measurement_variance = self._share * torch.exp(2.0 * log_sd) + self._extra
        variances, length, gain = map(
            torch.exp, (theta[:VARIANCE_COUNT], theta[VARIANCE_COUNT], log_gain)
        )
        return Parameters(variances, length, gain, measurement_variance, interaction_variance)

    def source_parameters(self, theta: Array) -> tuple[Array, Array]:
        """Return gains and dispersions of every source, NaN dispersion for choices."""
        gain, dispersion = np.exp(self._log_rows.numpy() @ theta)
        is_measured = np.isin(np.arange(self._sources), self.log_odds_sources)
        return gain, np.where(is_measured, dispersion, np.nan)

    def cell_parameters(self, theta: Array) -> tuple[Array, Array]:
        """Return gains and dispersions of every cell (C,), relative to the judge's."""
        if self.interaction_index is None:
            return np.ones(0), np.ones(0)
        gain, dispersion = np.exp(self._relative_to_judge(torch.from_numpy(theta)).numpy())
        return gain, dispersion

    def _relative_to_judge(self, theta: Tensor) -> Tensor:
        """Return log-gains and log-dispersions (2, C) of cells less their means over each judge."""
        logs = theta[self._dispersions.stop + 1 :].view(2, -1)
        return logs - logs @ self._same_judge

    def negative_log_prior(self, theta: Tensor) -> Tensor:
        """Return minus the log prior density, up to a constant."""
        deviation = theta - torch.from_numpy(self.prior_mean)
        if self._main_gain is not None:
            # The variances are a priori those of κ f of the source with the most log-odds. A prior
            # on those of f would pull at its gain by the variances of all terms that f lacks.
            variances = deviation[:VARIANCE_COUNT] + 2.0 * deviation[self._main_gain]
            deviation = torch.cat([variances, deviation[VARIANCE_COUNT:]])
        return 0.5 * (deviation / torch.from_numpy(self._sd)).square().sum()

    def vary_gains(self, theta: Array, curvature: Tensor, count: int) -> Array:
        """Return θ (count, T) with gains at equally likely quantiles, the others at their mean.

        The posterior of θ is normal about its maximum (Laplace's approximation); ℓ is held fixed.

        Args:
            theta, curvature: the maximum (T,), and the second derivatives (T, T) of the loss there.
            count: the number of θ.
        """
        varied = [i for i in range(len(theta)) if i not in (VARIANCE_COUNT, self.interaction_index)]
        values, vectors = torch.linalg.eigh(curvature[varied][:, varied])
        # Where a gain is known only times a variance, precision is less than a prior's.
        covariance = (vectors / values.clamp(min=0.1 * _LOG_SD**-2.0)) @ vectors.T
        gains = [varied.index(i) for i in range(len(theta))[self._gains]]
        root = torch.linalg.cholesky(covariance[gains][:, gains])
        slope = torch.linalg.solve_triangular(root, covariance[gains], upper=False)
        quantiles = qmc.Sobol(len(gains), scramble=False).random(count) + 0.5 / count
        thetas = np.tile(theta, (count, 1))
        thetas[:, varied] += stats.norm.ppf(quantiles) @ slope.numpy()
        return thetas


class MarginalLikelihood:
    """The marginal likelihood of θ given measurements of some rows.

    Args:
        rows, hyperparameters: the observations, and the layout of θ.
        effect_variance: (B,) of the priors of the position effects.
        row_numbers: (m,) numbers of the rows that are used.
        target, variance: (n,) normal approximations of the rows that are not exact.
    """

    def __init__(
        self,
        rows: Observations,
        hyperparameters: Hyperparameters,
        effect_variance: Tensor,
        row_numbers: Tensor,
        target: Tensor,
        variance: Tensor,
    ) -> None:
        self._hyperparameters, self._row_numbers = hyperparameters, row_numbers
        self._target, self._variance = target[row_numbers], variance[row_numbers]
        self._exact = torch.from_numpy(rows.is_exact)[row_numbers]
        self._row_share = len(row_numbers) / len(rows)
        halves = [rows.quadratic_columns[row_numbers] @ block for block in rows.prior_roots]
        self._covariance_parts = [half @ half.T for half in halves]
        first, second = rows.first.double()[row_numbers], rows.second.double()[row_numbers]
        pairs = ((first, first), (second, second), (first, second))
        self._distances = [torch.cdist(x, y).square() for x, y in pairs]
        effects = torch.from_numpy(rows.position_columns)[row_numbers]
        self._effects = (effects * effect_variance) @ effects.T
        cell = torch.from_numpy(rows.cell)[row_numbers]
        self._same_cell = (
            ((cell[:, None] == cell) & (cell >= 0)).double() if rows.cell_count else None
        )

    def loss_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Return minus the log marginal likelihood and log prior, and its gradient (T,) in θ."""
        theta_tensor = torch.from_numpy(theta).requires_grad_()
        terms = self._hyperparameters.unpack(theta_tensor)
        negative_log_prior = self._hyperparameters.negative_log_prior(theta_tensor)
        with torch.no_grad():
            value, derivatives = self._value_and_derivatives(terms)
        if not math.isfinite(value):
            return _FAILED_LOSS, np.zeros(len(theta))
        # Derivatives as an argument of `grad` would have PyTorch import SymPy, two seconds.
        products = [(t * slope).sum() for t, slope in zip(terms, derivatives, strict=True)]
        (gradient,) = torch.autograd.grad(sum(products, negative_log_prior), [theta_tensor])
        return value + float(negative_log_prior.detach()), np.asarray(gradient.numpy())

    def _value_and_derivatives(self, terms: Parameters) -> tuple[float, Parameters]:
        """Return minus the log marginal likelihood, and its derivatives by the terms."""
        subset = self._row_numbers
        xx, yy, xy = (torch.exp(-0.5 * r / terms.length_scale**2) for r in self._distances)
        covariance_parts = [*self._covariance_parts, xx + yy - xy - xy.T]
        utility = sum(v * part for v, part in zip(terms.variances, covariance_parts, strict=True))
        # What is particular to a presentation has the common part's covariance, times ρ².
        cell_factor = (
            1.0 if self._same_cell is None else 1.0 + terms.interaction_variance * self._same_cell
        )
        gain = terms.gain[subset]
        variance = torch.where(self._exact, terms.measurement_variance[subset], self._variance)
        covariance = (
            gain[:, None] * (utility * cell_factor) * gain + self._effects + torch.diag(variance)
        )
        factor, failed = torch.linalg.cholesky_ex(covariance)
        if failed:
            return math.inf, terms
        inverse = torch.cholesky_inverse(factor)
        solved = inverse @ self._target
        value = 0.5 * self._target @ solved + factor.diagonal().log().sum()
        # The derivative by the covariance, and by that of the utility's differences.
        covariance_derivative = 0.5 * (inverse - torch.outer(solved, solved))
        utility_derivative = gain[:, None] * covariance_derivative * gain
        part_derivative = utility_derivative * cell_factor
        xx, yy, xy = (r * e for r, e in zip(self._distances, (xx, yy, xy), strict=True))
        length_derivative = (part_derivative * (xx + yy - xy - xy.T)).sum()
        gain_derivative, measurement_derivative = torch.zeros(
            2, len(terms.gain), dtype=torch.float64
        )
        gain_derivative[subset] = 2.0 * ((covariance_derivative * utility * cell_factor) @ gain)
        measurement_derivative[subset] = torch.where(
            self._exact, covariance_derivative.diagonal(), 0.0
        )
        interaction_derivative = torch.zeros(())
        if self._same_cell is not None:
            interaction_derivative = (utility_derivative * utility * self._same_cell).sum()
        return float(value), Parameters(
            torch.stack([(part_derivative * part).sum() for part in covariance_parts]),
            length_derivative * terms.variances[-1] / terms.length_scale**3,
            gain_derivative,
            measurement_derivative,
            interaction_derivative,
        )

    def maximize(
        self, theta: Array, max_iterations: int, fixed: Sequence[int] = ()
    ) -> tuple[Array, float]:
        """Return the maximum (T,) reached from θ, and the log marginal likelihood plus log prior.

        Args:
            theta: the start (T,).
            max_iterations: largest number of iterations of L-BFGS-B.
            fixed: indices of the elements of θ that are not changed.
        """
        bounds = list(self._hyperparameters.bounds)
        tolerance = _PROFILE_TOLERANCE if fixed else None
        for index in fixed:
            bounds[index] = (theta[index], theta[index])
        optimum = minimize(
            self.loss_and_gradient, theta, jac=True, method="L-BFGS-B", bounds=bounds,
            tol=tolerance, options={"maxiter": max_iterations},
        )  # fmt: skip
        return np.asarray(optimum.x), -float(optimum.fun)

    def hessian(self, theta: Array) -> Tensor:
        """Return the second derivatives (T, T) of the loss, scaled to the number of all rows."""
        steps = _DIFFERENCE_STEP * np.eye(len(theta))
        up, down = (
            np.stack([self.loss_and_gradient(theta + step)[1] for step in signed_steps])
            for signed_steps in (steps, -steps)
        )
        hessian = torch.from_numpy(up - down) / (2.0 * _DIFFERENCE_STEP)
        return 0.5 * (hessian + hessian.T) / self._row_share
