"""A Gaussian process for the utility, from measured log-odds, alone or beside choices.

f(t) = quadratic form + smooth rest, every coefficient normal a priori: linear terms, the curvature
that all features share, differences of curvatures, cross terms, and a stationary process of length
scale ℓ, each with a variance of its own. A log-odds is a measurement, normal about κ_j (f(a) −
f(b)) with the judge's variance; with all variances given, the posterior of f is normal and exact.
The variances, ℓ, the dispersions σ_j and the gains κ_j maximize the marginal likelihood (Rasmussen
and Williams, 2006, section 5.4) under weak priors.

Choices and censored answers enter by their local normal approximations, found together with f
(penalized quasi-likelihood; Breslow and Clayton, 1993).

*Scale.* Comparisons know f times κ only. If there are choices, those of the first judge set the
unit of f: nats at the assumed noise level. Otherwise the log-odds of the first judge
do: κ = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from torch import Tensor

from llm_elicit.density.likelihood import Noise
from llm_elicit.density.settings import GaussianProcessSettings
from llm_elicit.density.stacks import FourierStack, draw_frequencies, fourier_features
from llm_elicit.density.utility.quadratic import QuadraticTerms
from llm_elicit.density.utility_function import Utility, UtilityDraws

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]

_SEED = 0
_VARIANCES = 5  # linear, common curvature, differences of curvature, cross terms, process
_LOG_SD = 3.0  # of the prior of a log-variance, a log-dispersion and a log-gain
_LENGTH_SD = 0.5  # of the prior of log ℓ
_WIDE = 3.0  # prior standard deviation of a position effect, in units of the observations'
_LEAST_INFORMATION = 1e-6
_CONVERGED = 1e-3


@dataclass(frozen=True)
class Observations:
    """n rows that measure differences of utility.

    ``first``, ``second`` (n, p) features; ``category`` (p,) as in `QuadraticTerms.of`. Of a
    measurement ``value`` (n,) has variance ``share`` σ² + ``extra`` and may be ``censored`` (see
    `LogOdds`); of a choice the first point won, ``weight`` (n,) times. ``source`` (n,) numbers what
    has a gain and a dispersion of its own: the log-odds of each judge, then the choices of each
    judge; ``choices`` says of each source whether it is of choices. ``effects`` (n, B) are columns
    of position effects with normal priors of standard deviation ``effect_sd`` (B,), NaN for a wide
    one. Rows of one ``group`` (n,) are left out together.
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
    category: Index

    def __len__(self) -> int:
        return len(self.value)

    @property
    def chosen(self) -> npt.NDArray[np.bool_]:
        """Which rows are choices (n,)."""
        return np.array(self.choices, dtype=bool)[self.source]

    @property
    def anchor(self) -> int:
        """The source whose gain is one."""
        return self.choices.index(True) if any(self.choices) else 0


@dataclass(frozen=True)
class GaussianProcessFit:
    """The posterior mean, draws, and the estimated terms of the judges.

    ``predicted`` (n,) is what each row is predicted to be by the others: κ (f(a) − f(b)) with the
    position effect; ``effects`` (B,) are posterior means; ``gain`` and ``dispersion`` are those of
    each source, NaN dispersion for choices.
    """

    utility: Utility
    draws: UtilityDraws
    predicted: Array
    effects: Array
    gain: Array
    dispersion: Array
    length_scale: float
    log_evidence: float


def fit_gaussian_process(
    rows: Observations, noise: Noise, generator: torch.Generator, settings: GaussianProcessSettings
) -> GaussianProcessFit:
    """Return the posterior of the utility given rows of any kind."""
    process = _Process(rows, noise, generator, settings)
    process.maximize()
    return process.result()


class _Process:
    """The marginal likelihood of the variances, and the posterior of the coefficients at them."""

    def __init__(
        self,
        rows: Observations,
        noise: Noise,
        generator: torch.Generator,
        settings: GaussianProcessSettings,
    ) -> None:
        self.rows, self.noise, self.settings = rows, noise, settings
        self.generator = generator
        self.dimension = int(rows.first.shape[1])
        # The same for every seed: which ones are drawn moves the ends of bands.
        fixed = torch.Generator().manual_seed(_SEED)
        self.unit_frequencies = draw_frequencies(settings.frequencies, self.dimension, fixed)
        self.terms = QuadraticTerms.of(rows.category)
        sides = (self.terms.columns(t.double().numpy()) for t in (rows.first, rows.second))
        self.quadratic = torch.from_numpy(np.subtract(*sides))
        self.blocks = _blocks(self.terms)
        exact = ~rows.chosen & np.isfinite(rows.extra) & (rows.censored == 0)
        self.exact = torch.from_numpy(exact)
        square = float(np.mean(rows.value[exact] ** 2)) if exact.any() else noise.scale**2
        # If all log-odds are equal there is no scale; any value will do.
        self.unit = math.sqrt(max(square, 1e-24))
        wide = _WIDE * max(self.unit, noise.scale if rows.chosen.any() else 0.0)
        self.effect_variance = torch.from_numpy(
            np.where(np.isnan(rows.effect_sd), wide, rows.effect_sd) ** 2
        )
        self.effects = torch.from_numpy(rows.effects)
        self.source = torch.from_numpy(rows.source)
        self.free = [s for s in range(len(rows.choices)) if s != rows.anchor]
        self.log_odds = [s for s, choices in enumerate(rows.choices) if not choices]
        self.theta = self._start()
        self.centre = self.theta.copy()
        self.target = torch.from_numpy(np.where(exact, rows.value, 0.0))
        self.fixed_variance = torch.full((len(rows),), math.inf, dtype=torch.float64)

    def _start(self) -> Array:
        """Return the centres of the priors: logs of variances, ℓ, gains, dispersions."""
        gains = [0.0] * len(self.free)
        unit = self.unit
        if any(self.rows.choices):
            # f is in units of the choices' noise, a few of it wide; log-odds may be fainter.
            unit = 2.0 * self.noise.scale
            faint = math.log(self.unit / unit)
            gains = [0.0 if self.rows.choices[s] else faint for s in self.free]
        d = self.dimension
        variance = 2.0 * math.log(unit) - math.log(2.0 * d)
        logs = [variance, variance, variance, variance - math.log(d), variance]
        dispersions = [math.log(0.5 * self.unit)] * len(self.log_odds)
        return np.array([*logs, 0.5 * math.log(d), *gains, *dispersions])

    def maximize(self) -> None:
        """Estimate the variances, in turns with normal approximations where rows need them."""
        rounds = self.settings.rounds if not bool(self.exact.all()) else 1
        eta = torch.zeros(len(self.rows), dtype=torch.float64)
        for _ in range(rounds):
            self._approximate(eta)
            self._search()
            self._solve()
            moved = self.fitted - eta
            eta = self.fitted
            if float(moved.abs().max()) < _CONVERGED * max(self.unit, self.noise.scale):
                break

    def _approximate(self, eta: Tensor) -> None:
        """Set normal approximations of choices and censored rows about ``eta``."""
        rows = self.rows
        chosen = torch.from_numpy(rows.chosen)
        if chosen.any():
            weight = torch.from_numpy(rows.weight)[chosen]
            at = eta[chosen]
            slope = torch.exp(self.noise.log_pdf(at) - self.noise.log_cdf(at))
            information = self.noise.information(at).clamp(min=_LEAST_INFORMATION)
            self.target[chosen] = at + slope / information
            self.fixed_variance[chosen] = 1.0 / (weight * information)
        cut = torch.from_numpy(rows.censored != 0)
        if cut.any():
            sign = torch.from_numpy(rows.censored[rows.censored != 0]).double()
            spread = self._variance()[cut].sqrt()
            u = sign * (eta[cut] - torch.from_numpy(rows.value)[cut]) / spread
            log_density = -0.5 * u * u - 0.5 * math.log(2 * math.pi)
            ratio = torch.exp(log_density - torch.special.log_ndtr(u))
            information = (ratio * (ratio + u)).clamp(min=_LEAST_INFORMATION) / spread**2
            self.target[cut] = eta[cut] + sign * ratio / spread / information
            self.fixed_variance[cut] = 1.0 / information

    def _parts(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return variances (5,), ℓ (), gains (n,) and variances of the measurements (n,)."""
        variances, rest = torch.exp(theta[:_VARIANCES]), theta[_VARIANCES:]
        log_gain = torch.zeros(len(self.rows.choices), dtype=torch.float64)
        log_gain = log_gain.index_copy(0, torch.tensor(self.free, dtype=torch.long),
                                       rest[1 : 1 + len(self.free)])  # fmt: skip
        log_sd = torch.zeros(len(self.rows.choices), dtype=torch.float64)
        log_sd = log_sd.index_copy(0, torch.tensor(self.log_odds, dtype=torch.long),
                                   rest[1 + len(self.free) :])  # fmt: skip
        share, extra = torch.from_numpy(self.rows.share), torch.from_numpy(self.rows.extra)
        variance = share * torch.exp(2.0 * log_sd[self.source]) + extra
        return variances, torch.exp(rest[0]), torch.exp(log_gain)[self.source], variance

    def _variance(self) -> Tensor:
        return self._parts(torch.from_numpy(self.theta))[3]

    def _search(self) -> None:
        """Maximize the marginal likelihood of at most `rows` rows."""
        kept = torch.nonzero(self.exact | self.fixed_variance.isfinite())[:, 0]
        if len(kept) > self.settings.rows:
            mixed = torch.randperm(len(kept), generator=self.generator)
            kept = kept[mixed[: self.settings.rows]]
        grams = _Grams(self, kept)

        def objective(values: Array) -> tuple[float, Array]:
            theta = torch.from_numpy(values).requires_grad_()
            loss = grams.loss(theta)
            (slope,) = torch.autograd.grad(loss, [theta])
            return float(loss.detach()), np.asarray(slope.numpy())

        bounds = [(c - 12.0, c + 8.0) for c in self.centre]
        at = _VARIANCES
        bounds[at] = (self.centre[at] - 2.0, self.centre[at] + 1.5)
        found = minimize(
            objective, self.theta, jac=True, method="L-BFGS-B", bounds=bounds,
            options={"maxiter": self.settings.iterations},
        )  # fmt: skip
        self.theta, self.log_evidence = np.asarray(found.x), -float(found.fun)

    def _solve(self) -> None:
        """Compute the posterior of all coefficients at the variances found."""
        variances, length, gain, variance = self._parts(torch.from_numpy(self.theta))
        variance = torch.where(self.exact, variance, self.fixed_variance)
        self.frequencies = self.unit_frequencies / length
        first, second = self.rows.first.double(), self.rows.second.double()
        fourier = fourier_features(first, self.frequencies)
        fourier = fourier - fourier_features(second, self.frequencies)
        columns = torch.cat([self.quadratic, fourier], 1) * gain[:, None]
        self.columns = torch.cat([columns, self.effects], 1)
        root = self._prior_root(variances)
        weight = 1.0 / variance
        scaled = (self.columns @ root) * weight.sqrt()[:, None]
        precision = scaled.T @ scaled + torch.eye(scaled.shape[1], dtype=torch.float64)
        factor = torch.linalg.cholesky(precision)
        pull = scaled.T @ (self.target * weight.sqrt()).nan_to_num(0.0)
        mean = torch.cholesky_solve(pull[:, None], factor)[:, 0]
        self.root = torch.linalg.solve_triangular(factor, root.T, upper=False).T  # cov = root rootᵀ
        self.mean, self.weight = root @ mean, weight
        self.fitted = self.columns @ self.mean

    def _prior_root(self, variances: Tensor) -> Tensor:
        """Return a root (P, P) of the coefficients' prior covariance."""
        count = self.columns.shape[1]
        quadratic = self.quadratic.shape[1]
        root = torch.zeros(count, count, dtype=torch.float64)
        for block, variance in zip(self.blocks, variances[: _VARIANCES - 1], strict=True):
            root[:quadratic, :quadratic] += variance.sqrt() * block
        process = torch.arange(quadratic, count - len(self.effect_variance))
        root[process, process] = variances[-1].sqrt()
        effect = torch.arange(count - len(self.effect_variance), count)
        root[effect, effect] = self.effect_variance.sqrt()
        return root

    def result(self) -> GaussianProcessFit:
        """Return the fit."""
        quadratic = self.quadratic.shape[1]
        end = self.columns.shape[1] - len(self.effect_variance)
        normal = torch.randn(
            self.root.shape[1], self.settings.draws, generator=self.generator, dtype=torch.float64
        )
        drawn = (self.mean[:, None] + self.root @ normal).T
        frequencies = self.frequencies.float()
        mean = self.mean.numpy()
        plain = self.terms.utility(mean[:quadratic])
        smooth = FourierStack(frequencies, self.mean[None, quadratic:end].float())
        draws = UtilityDraws(
            *self.terms.forms(drawn[:, :quadratic]),
            fourier=FourierStack(frequencies, drawn[:, quadratic:end].float()),
        )
        _, length, _, _ = self._parts(torch.from_numpy(self.theta))
        gain, dispersion = np.ones(len(self.rows.choices)), np.full(len(self.rows.choices), np.nan)
        rest = self.theta[_VARIANCES + 1 :]
        gain[self.free] = np.exp(rest[: len(self.free)])
        dispersion[self.log_odds] = np.exp(rest[len(self.free) :])
        return GaussianProcessFit(
            Utility(plain.linear, plain.curvature, fourier=smooth),
            draws,
            self._predicted(),
            mean[end:],
            gain,
            dispersion,
            float(length),
            self.log_evidence,
        )

    def _predicted(self) -> Array:
        """Return the prediction of every row without its group, at the same variances."""
        leverage = self.columns @ self.root
        residual = (self.target - self.fitted).numpy()
        predicted = self.fitted.numpy().copy()
        weight = self.weight.numpy()
        own = (leverage.square().sum(1) * self.weight).numpy().clip(max=1.0 - 1e-9)
        alone = np.bincount(self.rows.group)[self.rows.group] == 1
        target = self.target.numpy()
        predicted[alone] = target[alone] - residual[alone] / (1.0 - own[alone])
        for group in np.unique(self.rows.group[~alone]):
            at = np.flatnonzero(self.rows.group == group)
            smoother = (leverage[at] @ leverage[at].T).numpy() * weight[at]
            left = np.linalg.lstsq(np.eye(len(at)) - smoother, residual[at], rcond=None)[0]
            predicted[at] = target[at] - left
        return predicted


class _Grams:
    """Inner products of the rows under each part of the prior, and the marginal likelihood."""

    def __init__(self, process: _Process, kept: Tensor) -> None:
        self.process, self.kept = process, kept
        rows = process.rows
        quadratic = process.quadratic[kept]
        self.parts = [(quadratic @ block) @ (quadratic @ block).T for block in process.blocks]
        first, second = rows.first.double()[kept], rows.second.double()[kept]
        pairs = ((first, first), (second, second), (first, second), (second, first))
        self.distances = [torch.cdist(x, y).square() for x, y in pairs]
        effects = process.effects[kept]
        self.effects = (effects * process.effect_variance) @ effects.T

    def loss(self, theta: Tensor) -> Tensor:
        """Minus the log marginal likelihood and log prior, up to a constant."""
        process, kept = self.process, self.kept
        variances, length, gain, variance = process._parts(theta)
        variance = torch.where(process.exact, variance, process.fixed_variance)[kept]
        near = [torch.exp(-0.5 * distance / length**2) for distance in self.distances]
        covariance = variances[-1] * (near[0] + near[1] - near[2] - near[3])
        for part, scale in zip(self.parts, variances[: _VARIANCES - 1], strict=True):
            covariance = covariance + scale * part
        gains = gain[kept]
        covariance = gains[:, None] * covariance * gains + self.effects + torch.diag(variance)
        factor, failed = torch.linalg.cholesky_ex(covariance)
        if failed:
            return torch.full((), 1e12, dtype=torch.float64) + 0.0 * theta.sum()
        white = torch.linalg.solve_triangular(factor, process.target[kept][:, None], upper=False)
        sd = torch.full_like(theta, _LOG_SD)
        sd[_VARIANCES] = _LENGTH_SD
        prior = ((theta - torch.from_numpy(process.centre)) / sd).square().sum()
        loss: Tensor = 0.5 * white.square().sum() + factor.diagonal().log().sum() + 0.5 * prior
        return loss


def _blocks(terms: QuadraticTerms) -> tuple[Tensor, ...]:
    """Projections (P, P) on linear terms, shared curvature, its differences, cross terms."""
    d, square = terms.dimension, torch.from_numpy(terms.squares)
    linear = torch.cat([torch.ones(d), torch.zeros(len(square))]).double()
    squares = torch.cat([torch.zeros(d), square]).double()
    crossed = torch.cat([torch.zeros(d), ~square]).double()
    common = torch.outer(squares, squares) / max(float(squares.sum()), 1.0)
    return torch.diag(linear), common, torch.diag(squares) - common, torch.diag(crossed)
