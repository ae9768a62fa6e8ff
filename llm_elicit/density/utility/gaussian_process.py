"""A Gaussian process for the utility, from measured log-odds, alone or beside choices.

f(t) = quadratic form + smooth rest, every coefficient normal a priori: linear terms, the curvature
that all features share, differences of curvatures, cross terms, and a stationary process of length
scale ℓ, each with a variance of its own. A log-odds is a measurement, normal about κ_j (f(a) −
f(b)) with the judge's variance; with all variances given, the posterior of f is normal and exact.
The variances, ℓ, the dispersions σ_j and the gains κ_j maximize the marginal likelihood (Rasmussen
and Williams, 2006, section 5.4) under weak priors.

*Ridges.* A belief that is much narrower or wider along one direction u than along the others has
d(d−1)/2 cross terms that agree. As independent terms of one variance they are all shrunk alike, and
the shrinkage along u adds up to many standard deviations of the posterior: draws are too short or
too long together. The terms (u·t)(z·t), z normal, are the matrices near uuᵀ (its tangent space)
and get a variance of their own where that has more evidence, with u of the form fitted without.

*Presentations.* Log-odds asked in several wordings z measure κ_z [(f + δ_z)(a) − (f + δ_z)(b)]:
what is particular to a wording, δ_z, has the prior of f with every variance times ρ². The posterior
of f, with every δ_z integrated out, is the belief over wordings like these, and its bands are wider
by what the wordings leave open (generalizability theory; Brennan, 2001). The belief's mean is that
at the posterior mean of ρ²/(1 + ρ²), and the draws are those at its quantiles; see `Interaction`.

Choices and censored answers enter by their local normal approximations, found together with f
(penalized quasi-likelihood; Breslow and Clayton, 1993).

*Scale.* Comparisons know f times κ only. If there are choices, those of the first judge set the
unit of f: nats at the assumed noise level. Otherwise the log-odds of the first judge
do: κ = 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from llm_elicit.density.contrasts import PairContrasts
from llm_elicit.density.errors import Array, Flags
from llm_elicit.density.latent import Latent
from llm_elicit.density.likelihood import Judgments, Noise
from llm_elicit.density.settings import GaussianProcessSettings
from llm_elicit.density.utility.cross_validation import explained_share
from llm_elicit.density.utility.interaction import SHARES, Interaction
from llm_elicit.density.utility.marginal_likelihood import (
    VARIANCE_COUNT,
    Hyperparameters,
    MarginalLikelihood,
    Observations,
)
from llm_elicit.density.utility.quadratic import frequency_lattice
from llm_elicit.density.utility_function import (
    FourierStack,
    Utility,
    UtilityDraws,
    draw_frequencies,
    fourier_features,
)

_WIDE_EFFECT_SD = 3.0  # of the prior of a position effect, in units of the observations
_MIN_INFORMATION = 1e-6
_TOLERANCE = 1e-3
_THETA_DRAWS = 16  # different gains, and shares of presentations, among the draws
_MAX_LATTICE_FEATURES = 4  # most features with a lattice of frequencies
_MAX_FREQUENCY = 3.0  # largest frequency of a lattice times the length scale
_PERIOD_MARGIN = 2.5  # period of a lattice beyond the range of the features, in length scales
_MIN_RIDGE_GAIN = 2.0  # nats of evidence for a ridge
_CURVATURE_VARIANCES = slice(2, 5)  # the variances that shrink a ridge
_MIN_REPORTED_EXTENSION = 1.25  # smallest extension that is reported
_MAX_EXTENSION = 10.0  # largest extension that is reported


@dataclass(frozen=True)
class GaussianProcessFit:
    """The posterior of the utility, and the estimated terms of the judges.

    Attributes:
        utility: the posterior mean of f.
        draws: draws of the posterior of f.
        left_out_prediction: (n,) prediction of each row by the other groups: κ (f(a) − f(b)) plus
            the position effect.
        effects: (B,) posterior means of the position effects.
        gain, dispersion: (S,) of each source; the dispersion of choices is NaN.
        cell_gain, cell_dispersion: (C,) of each judge and presentation, relative to the judge's.
        interaction: None with one presentation.
        length_scale: ℓ of the smooth rest.
        log_evidence: log marginal likelihood and log prior of the estimated variances.
        extension: how many times as long the belief would be in its longest direction if its
            curvatures had four times their prior variance; 1 where the change of the curvature
            is within a posterior standard deviation.
    """

    utility: Utility
    draws: UtilityDraws
    left_out_prediction: Array
    effects: Array
    gain: Array
    dispersion: Array
    cell_gain: Array
    cell_dispersion: Array
    interaction: Interaction | None
    length_scale: float
    log_evidence: float
    extension: float

    @property
    def extension_report(self) -> dict[str, Any] | None:
        """A note that the prior decides how long the belief is; None if it does not."""
        if self.extension < _MIN_REPORTED_EXTENSION:
            return None
        return {
            "factor": self.extension,
            "message": "the answers hardly determine how far the belief extends in its longest "
            "direction, and its bands understate this uncertainty: with a prior of "
            f"curvatures four times as wide, it would be {self.extension:.2g} times as long",
        }


class _Precision(NamedTuple):
    """The inverse of the covariance N (n, n) of measurements about the common part.

    It is diag(√w) L⁻ᵀ L⁻¹ diag(√w), with w the precisions of the measurements and L (m, m) for the
    rows (m,) of each cell, whose errors have what is particular to it in common.
    """

    weights: Tensor
    cells: tuple[tuple[Tensor, Tensor], ...] = ()

    def root(self, matrix: Tensor) -> Tensor:
        """Return L⁻¹ diag(√w) M (n, k) of M (n, k)."""
        scaled = matrix * self.weights.sqrt()[:, None]
        for rows, factor in self.cells:
            scaled[rows] = torch.linalg.solve_triangular(factor, scaled[rows], upper=False)
        return scaled

    def times(self, matrix: Tensor) -> Tensor:
        """Return N⁻¹ M (n, k)."""
        scaled = matrix * self.weights.sqrt()[:, None]
        for rows, factor in self.cells:
            scaled[rows] = torch.cholesky_solve(scaled[rows], factor)
        return scaled * self.weights.sqrt()[:, None]

    @property
    def diagonal(self) -> Tensor:
        """The diagonal (n,) of N⁻¹."""
        diagonal = self.weights.clone()
        for rows, factor in self.cells:
            diagonal[rows] *= torch.cholesky_inverse(factor).diagonal()
        return diagonal


class _Posterior(NamedTuple):
    """Columns (n, P), mean (P,) and a root (P, Q) of the covariance of the coefficients."""

    columns: Tensor
    mean: Tensor
    root: Tensor
    precision: _Precision


class _GaussianProcess:
    """The posterior of the coefficients at the variances that maximize the marginal likelihood."""

    likelihood: MarginalLikelihood

    def __init__(
        self,
        rows: Observations,
        noise: Noise,
        generator: torch.Generator,
        settings: GaussianProcessSettings,
    ) -> None:
        self.rows, self.noise, self.settings = rows, noise, settings
        self.generator = generator
        is_exact = rows.is_exact
        self.exact = torch.from_numpy(is_exact)
        self.unit = _root_mean_square(rows.value[is_exact], noise.scale)
        wide_sd = _WIDE_EFFECT_SD * max(self.unit, noise.scale if rows.is_choice.any() else 0.0)
        self.effect_variance = torch.from_numpy(
            np.where(np.isnan(rows.effect_sd), wide_sd, rows.effect_sd) ** 2
        )
        self.position_columns = torch.from_numpy(rows.position_columns)
        # The size of a difference of utility (S,) in each source's log-odds, nats; choices are
        # decided by a few times their noise.
        units = [
            2.0 * noise.scale
            if is_choice
            else _root_mean_square(rows.value[is_exact & (rows.source == source)], self.unit)
            for source, is_choice in enumerate(rows.source_is_choice)
        ]
        self.hyperparameters = Hyperparameters(rows, np.array(units))
        self.theta, self.log_evidence = self.hyperparameters.prior_mean.copy(), -math.inf
        self.target = torch.from_numpy(np.where(is_exact, rows.value, 0.0))
        self.fixed_variance = torch.full((len(rows),), math.inf, dtype=torch.float64)
        self.interaction: Interaction | None = None

    def maximize(self) -> None:
        """Estimate the variances, in turns with the normal approximations of inexact rows."""
        rounds = self.settings.rounds if not bool(self.exact.all()) else 1
        eta = torch.zeros(len(self.rows), dtype=torch.float64)
        for _ in range(rounds):
            self._approximate_rows(eta)
            self._maximize_likelihood()
            self._solve()
            change = self.fitted - eta
            eta = self.fitted
            if float(change.abs().max()) < _TOLERANCE * max(self.unit, self.noise.scale):
                break

    def add_ridge(self) -> None:
        """Add a variance for products with the form's outermost direction, if evidence rises."""
        rows = self.rows
        previous = rows, self.theta, self.log_evidence, self.likelihood
        curvatures = rows.terms.linear_and_curvature(self.mean[None, : len(rows.terms)])[1][0]
        eigenvalues, axes = torch.linalg.eigh(curvatures.double())
        outermost = (eigenvalues - eigenvalues.median()).abs().argmax()
        self.rows = replace(rows, ridge_direction=axes[:, outermost])
        self.maximize()
        if self.log_evidence < previous[2] + _MIN_RIDGE_GAIN:
            self.rows, self.theta, self.log_evidence, self.likelihood = previous
            self._solve()

    def estimate_interaction(self, presentations: int) -> None:
        """Set ρ² to its posterior mean, if there are several presentations."""
        index = self.hyperparameters.interaction_index
        if index is None:
            return
        # With the variances of the common part as they are: see the module of `Interaction`.
        fixed, unit = [*range(VARIANCE_COUNT + 1), index], math.log(self._content_over_prior())

        def maximize(theta: Array, share: float) -> tuple[Array, float]:
            theta[index] = math.log(share / (1.0 - share)) + unit
            return self.likelihood.maximize(theta, self.settings.iterations, fixed)

        theta, profile = self.theta.copy(), []
        for share in SHARES:
            theta, value = maximize(theta, share)
            profile.append(value)
        self.interaction = Interaction.from_profile(np.array(profile), presentations)
        self.theta, self.log_evidence = maximize(theta, self.interaction.share)
        self._solve()

    def _content_over_prior(self) -> float:
        """Return the mean square of the common part over rows, over that of its prior."""
        parameters = self.hyperparameters.unpack(torch.from_numpy(self.theta))
        quadratic = self.rows.quadratic_columns
        parts = [(quadratic @ root).square().sum(1) for root in self.rows.prior_roots]
        parts.append(self.utility_columns[:, quadratic.shape[1] :].square() @ self.spectrum)
        prior = sum(v * p.mean() for v, p in zip(parameters.variances, parts, strict=True))
        plain = self.utility_columns.shape[1]
        spread = (self.utility_columns @ self.root[:plain]).square().sum(1)
        content = (self.utility_columns @ self.mean[:plain]).square() + spread
        return float(content.mean() / prior)

    def _approximate_rows(self, eta: Tensor) -> None:
        """Set normal approximations of choices and censored rows about ``eta``."""
        rows = self.rows
        is_choice = torch.from_numpy(rows.is_choice)
        if is_choice.any():
            weight = torch.from_numpy(rows.weight)[is_choice]
            predictor = eta[is_choice]
            slope = torch.exp(self.noise.log_pdf(predictor) - self.noise.log_cdf(predictor))
            information = self.noise.information(predictor).clamp(min=_MIN_INFORMATION)
            self.target[is_choice] = predictor + slope / information
            self.fixed_variance[is_choice] = 1.0 / (weight * information)
        censored = torch.from_numpy(rows.censored != 0)
        if censored.any():
            sign = torch.from_numpy(rows.censored)[censored].double()
            parameters = self.hyperparameters.unpack(torch.from_numpy(self.theta))
            sd = parameters.measurement_variance[censored].sqrt()
            u = sign * (eta[censored] - torch.from_numpy(rows.value)[censored]) / sd
            log_density = -0.5 * u * u - 0.5 * math.log(2 * math.pi)
            ratio = torch.exp(log_density - torch.special.log_ndtr(u))
            information = (ratio * (ratio + u)).clamp(min=_MIN_INFORMATION) / sd**2
            self.target[censored] = eta[censored] + sign * ratio / sd / information
            self.fixed_variance[censored] = 1.0 / information

    def _maximize_likelihood(self) -> None:
        """Maximize the marginal likelihood of at most `rows` rows."""
        rows = torch.nonzero(self.exact | self.fixed_variance.isfinite())[:, 0]
        if len(rows) > self.settings.rows:
            permutation = torch.randperm(len(rows), generator=self.generator)
            rows = rows[permutation[: self.settings.rows]]
        approximation = self.target, self.fixed_variance
        self.likelihood = MarginalLikelihood(
            self.rows, self.hyperparameters, self.effect_variance, rows, *approximation
        )
        self.theta, self.log_evidence = self.likelihood.maximize(
            self.theta, self.settings.iterations
        )

    def _solve(self) -> None:
        """Compute the posterior of all coefficients at the variances found."""
        points = torch.cat([self.rows.first, self.rows.second]).double()
        length, max_frequencies = math.exp(self.theta[VARIANCE_COUNT]), self.settings.frequencies
        self.frequencies, self.spectrum = stationary_terms(points, length, max_frequencies)
        first, second = fourier_features(points, self.frequencies).chunk(2)
        self.utility_columns = torch.cat([self.rows.quadratic_columns, first - second], 1)
        self.columns, self.mean, self.root, self.precision = self._posterior(self.theta)
        self.fitted = self.columns @ self.mean

    def _posterior(self, theta: Array) -> _Posterior:
        """Return the posterior of all coefficients at these variances and gains."""
        parameters = self.hyperparameters.unpack(torch.from_numpy(theta))
        weights = 1.0 / torch.where(
            self.exact, parameters.measurement_variance, self.fixed_variance
        )
        columns = torch.cat(
            [self.utility_columns * parameters.gain[:, None], self.position_columns], 1
        )
        # A root (P, Q) of the coefficients' prior covariance.
        variances, quadratic = parameters.variances, self.rows.quadratic_columns.shape[1]
        other_sd = torch.cat([variances[-1] * self.spectrum, self.effect_variance]).sqrt()
        count = quadratic + len(other_sd)
        *blocks, ridge = (
            v.sqrt() * b for v, b in zip(variances, self.rows.prior_roots, strict=False)
        )
        root = torch.zeros(count, count + ridge.shape[1], dtype=torch.float64)
        root[:quadratic, :quadratic] = sum(blocks)
        root[:quadratic, count:] = ridge
        root.diagonal()[quadratic:] = other_sd
        root_columns = columns @ root
        precision = _Precision(weights)
        if self.hyperparameters.interaction_index is not None:
            utility_count = self.utility_columns.shape[1]
            particular = (
                parameters.interaction_variance.sqrt() * columns[:, :utility_count]
            ) @ root[:utility_count]
            precision = _Precision(weights, tuple(self._cell_factors(particular, weights)))
        whitened = precision.root(root_columns)
        information = whitened.T @ whitened + torch.eye(whitened.shape[1], dtype=torch.float64)
        factor = torch.linalg.cholesky(information)
        projected = whitened.T @ precision.root(self.target[:, None]).nan_to_num(0.0)
        mean = root @ torch.cholesky_solve(projected, factor)[:, 0]
        root = torch.linalg.solve_triangular(factor, root.T, upper=False).T  # cov = root rootᵀ
        return _Posterior(columns, mean, root, precision)

    def _cell_factors(self, particular: Tensor, weight: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield rows (m,) and L (m, m) of every cell.

        ``particular`` (n, Q) is a root of the covariance of δ_z at the rows.
        """
        cell = torch.from_numpy(self.rows.cell)
        for index in range(self.rows.cell_count):
            rows = torch.nonzero(cell == index)[:, 0]
            weighted = particular[rows] * weight[rows].sqrt()[:, None]
            yield rows, torch.linalg.cholesky(weighted @ weighted.T + torch.eye(len(rows)).double())

    def result(self) -> GaussianProcessFit:
        """Return the fit."""
        terms, end = self.rows.terms, self.utility_columns.shape[1]
        # The mean of the coefficients, then draws of them.
        coefficients = torch.cat([self.mean[None], self._draw_coefficients()])
        weights = coefficients[:, len(terms) : end].float()
        mean, draws = (
            FourierStack(self.frequencies.float(), part) for part in (weights[:1], weights[1:])
        )
        linear, curvature = terms.linear_and_curvature(coefficients[:, : len(terms)])
        return GaussianProcessFit(
            Utility(linear[0], curvature[0], fourier=mean),
            UtilityDraws(linear[1:], curvature[1:], fourier=draws),
            self._predict_left_out(),
            self.mean[end:].numpy(),
            *self.hyperparameters.source_parameters(self.theta),
            *self.hyperparameters.cell_parameters(self.theta),
            self.interaction,
            math.exp(self.theta[VARIANCE_COUNT]),
            self.log_evidence,
            self._extension(),
        )

    def _extension(self) -> float:
        """Return how much longer the belief would be under a wider prior; see the fit."""
        terms, theta = self.rows.terms, self.theta.copy()
        products = slice(terms.dimension, len(terms))
        theta[_CURVATURE_VARIANCES] += math.log(4.0)
        first, second = torch.from_numpy(terms.first), torch.from_numpy(terms.second)
        curvatures = terms.linear_and_curvature(self.mean[None, : len(terms)])[1][0].double()
        longest = torch.linalg.eigh(curvatures)[1][:, -1]
        weights = longest[first] * longest[second]
        curvature = float(weights @ self.mean[products])
        wider = float(weights @ self._posterior(theta).mean[products])
        sd = float((weights @ self.root[products]).norm())
        if curvature >= 0.0 or wider - curvature < sd:
            return 1.0
        return math.sqrt(curvature / min(wider, curvature / _MAX_EXTENSION**2))

    def _draw_coefficients(self) -> Tensor:
        """Return draws (S, P) of the coefficients; gains and the share are drawn with them."""
        normal = torch.randn(
            self.root.shape[1], self.settings.draws, generator=self.generator, dtype=torch.float64
        )
        index = self.hyperparameters.interaction_index
        if not self.hyperparameters.sources_with_gain and index is None:
            return (self.mean[:, None] + self.root @ normal).T
        parts = normal.chunk(_THETA_DRAWS, dim=1)
        thetas = np.tile(self.theta, (len(parts), 1))
        if self.hyperparameters.sources_with_gain:
            curvature = self.likelihood.hessian(self.theta)
            thetas = self.hyperparameters.vary_gains(self.theta, curvature, len(parts))
        if index is not None and self.interaction is not None:
            # In an order that does not go with that of the gains.
            shares = np.array(self.interaction.quantiles)[7 * np.arange(len(parts)) % _THETA_DRAWS]
            odds = shares / (1.0 - shares)
            mean = self.interaction.share
            thetas[:, index] += np.log(odds) - math.log(mean / (1.0 - mean))
        posteriors = [self._posterior(theta) for theta in thetas]
        return torch.cat(
            [p.mean[:, None] + p.root @ z for p, z in zip(posteriors, parts, strict=True)], 1
        ).T

    def _predict_left_out(self) -> Array:
        """Return the prediction of every row without its group, at the same variances."""
        # With C the covariance of all rows, what a group lacks is (C⁻¹)_GG⁻¹ (C⁻¹ y)_G. Rows of one
        # group are of different cells, so that (N⁻¹)_GG is diagonal.
        errors = self.target - self.fitted
        weighted_errors = self.precision.times(errors[:, None])[:, 0].nan_to_num(0.0).numpy()
        weighted_root = self.precision.times(self.columns @ self.root).numpy()
        diagonal, residuals = self.precision.diagonal.numpy(), errors.numpy()
        left_out_diagonal = np.maximum(diagonal - np.square(weighted_root).sum(1), 1e-9 * diagonal)
        deleted = np.where(
            diagonal > 0.0,
            weighted_errors / np.where(diagonal > 0.0, left_out_diagonal, 1.0),
            residuals,
        )
        is_single = np.bincount(self.rows.group)[self.rows.group] == 1
        for group in np.unique(self.rows.group[~is_single & (diagonal > 0.0)]):
            members = np.flatnonzero((self.rows.group == group) & (diagonal > 0.0))
            inverse = np.diag(diagonal[members]) - weighted_root[members] @ weighted_root[members].T
            deleted[members] = np.linalg.lstsq(inverse, weighted_errors[members], rcond=None)[0]
        return np.asarray(self.target.numpy() - deleted)


def stationary_terms(
    points: Tensor, length_scale: float, max_frequencies: int
) -> tuple[Tensor, Tensor]:
    """Return frequencies (d, M) of a process and the spectrum (2M,) of their terms, one on average.

    They are a lattice, or random ones where many features would need a large one.
    """
    dimension = points.shape[1]
    if dimension > _MAX_LATTICE_FEATURES:
        # The same for every seed, because other frequencies would move the ends of bands.
        frequencies = draw_frequencies(max_frequencies, dimension, torch.Generator().manual_seed(0))
        return frequencies / length_scale, torch.ones(2 * max_frequencies, dtype=torch.float64)
    reach, margin = _MAX_FREQUENCY / length_scale, _PERIOD_MARGIN * length_scale
    frequencies = frequency_lattice(points, range(dimension), max_frequencies, reach, margin)
    density = torch.exp(-0.5 * (length_scale * frequencies.norm(dim=0)).square())
    # Each also stands for its opposite; the constant, of frequency zero, changes no difference.
    spectrum = 2.0 * density / (1.0 + 2.0 * density.sum())
    return frequencies, len(spectrum) * spectrum.repeat(2)


def _root_mean_square(values: Array, default: float) -> float:
    """Return the root mean square of log-odds (m,)."""
    mean_square = float(np.mean(values**2)) if len(values) else default**2
    # Of equal log-odds any scale will do.
    return math.sqrt(max(mean_square, 1e-24))


_MIN_PAIRS = 10  # pairs needed for an interval of R²


def fit_log_odds(
    judgments: Judgments,
    latent: Latent,
    noise: Noise,
    generator: torch.Generator,
    settings: GaussianProcessSettings,
) -> tuple[GaussianProcessFit, dict[str, Any]]:
    """Fit log-odds, and the choices beside them if there are any.

    Returns the fit and its ``response`` (JSON-able): ``scale``, what sets the unit of the utility,
    "log-odds" or "choices"; ``held_out_r2`` of the pairs' log-odds by the others, one minus the
    mean squared error over the mean square, without the position effect in either, with its 95 %
    ``held_out_r2_interval`` over pairs, None where they do not vary and with fewer than ten pairs;
    ``dispersion``, the residual standard deviation of one log-odds, nats; ``interaction``, an
    `Interaction`, where there are several presentations; ``position``, the mean effect of being
    shown first and its standard deviation over pairs beyond the dispersion, None where no pair was
    asked in both orders; ``pairs`` and how many were asked in ``both_orders``; and the same of each
    of the ``judges``, with the gain of its log-odds. Values beside ``judges`` are the first
    judge's.
    """
    rows = Observations.of(judgments, latent, noise)
    process = _GaussianProcess(rows, noise, generator, settings)
    process.maximize()
    process.add_ridge()
    process.estimate_interaction(len(np.unique(judgments.contrasts.presentation)))
    fit = process.result()
    return fit, _response(judgments, rows, fit)


def _response(judgments: Judgments, rows: Observations, fit: GaussianProcessFit) -> dict[str, Any]:
    pairs, cells = judgments.contrasts, _presentation_estimates(judgments, fit)
    judges = {
        judgments.judges[judge]: _judge_response(pairs, judge, fit, source, cells[judge])
        for source, judge in enumerate(dict.fromkeys(pairs.judge.tolist()))
    }
    response = {
        "scale": "choices" if any(rows.source_is_choice) else "log-odds",
        **next(iter(judges.values())),
        **_held_out_r2(pairs, fit, np.ones(len(pairs), dtype=bool)),
        "pairs": len(pairs),
        "both_orders": int((pairs.position_coefficient == 0).sum()),
        "judges": judges,
    }
    if fit.interaction is not None:
        response["interaction"] = asdict(fit.interaction)
    return response


def _presentation_estimates(
    judgments: Judgments, fit: GaussianProcessFit
) -> dict[int, dict[str, dict[str, Any]]]:
    """Return the estimates of every presentation of every judge, by the judge's number."""
    pairs, effects = judgments.contrasts, iter(fit.effects.tolist())
    cells: dict[int, dict[str, dict[str, Any]]] = {}
    for index, (judge, presentation) in enumerate(pairs.cells.tolist()):
        rows = pairs.cell == index
        estimate = pairs.position_effect(rows)
        mean = next(effects) if pairs.position_coefficient[rows].any() else 0.0
        if estimate is not None:
            # Rows in one order shift the mean of the half sums.
            mean = estimate[0] + (mean if estimate[2] > 1 else 0.0)
        report = {"pairs": int(rows.sum()), "position": mean}
        if fit.interaction is not None:
            report["gain"] = float(fit.cell_gain[index])
            report["dispersion"] = float(fit.cell_dispersion[index])
        cells.setdefault(judge, {})[judgments.presentations[presentation]] = report
    return cells


def _judge_response(
    pairs: PairContrasts,
    judge: int,
    fit: GaussianProcessFit,
    source: int,
    cells: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    rows, dispersion = pairs.judge == judge, float(fit.dispersion[source])
    estimate, position_sd = pairs.position_effect(rows), None
    if estimate is not None:
        position_sd = float(np.sqrt(max(estimate[1] ** 2 - 0.5 * dispersion**2, 0.0)))
    counts = [cell["pairs"] for cell in cells.values()]
    mean = float(np.average([cell["position"] for cell in cells.values()], weights=counts))
    response = {
        **_held_out_r2(pairs, fit, rows),
        "dispersion": dispersion,
        "gain": float(fit.gain[source]),
        "position": {"mean": mean, "sd": position_sd},
        "pairs": int(rows.sum()),
        "both_orders": int((pairs.position_coefficient[rows] == 0).sum()),
    }
    return response if fit.interaction is None else response | {"presentations": cells}


def _held_out_r2(pairs: PairContrasts, fit: GaussianProcessFit, selected: Flags) -> dict[str, Any]:
    """Return R² of uncensored values less the position effect; None where they are all 0.

    The effect is that of the other pairs.
    """
    usable = selected & (pairs.censored == 0) & np.isfinite(pairs.extra_variance)
    value, predicted = pairs.value[usable], fit.left_out_prediction[: len(pairs)][usable]
    centred = value - _effect_of_other_pairs(pairs, usable)[usable]
    squares = np.square(centred)
    # Half differences of equal numbers are rounding errors, not a preference.
    if len(value) < _MIN_PAIRS or squares.sum() <= 1e-24 * len(value):
        return {"held_out_r2": None, "held_out_r2_interval": None}
    share, *interval = explained_share(np.square(value - predicted), squares)
    return {"held_out_r2": share, "held_out_r2_interval": interval}


def _effect_of_other_pairs(pairs: PairContrasts, usable: Flags) -> Array:
    """Return what the mean position effect of a cell's other pairs adds to each value (n,).

    0 where pairs asked in both orders determine it, as it is subtracted there.
    """
    effect = np.zeros(len(pairs))
    for cell in np.unique(pairs.cell[usable]):
        in_cell = pairs.cell == cell
        estimate = pairs.position_effect(in_cell)
        one_order = usable & in_cell & (pairs.position_coefficient != 0)
        if one_order.sum() > 1 and (estimate is None or estimate[2] < 2):
            signed = pairs.position_coefficient[one_order] * pairs.value[one_order]
            mean_of_others = (signed.sum() - signed) / (len(signed) - 1)
            effect[one_order] = pairs.position_coefficient[one_order] * mean_of_others
    return effect
