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
by what the wordings leave open (generalizability theory; Brennan, 2001). The share of a wording,
ρ²/(1 + ρ²), is uniform a priori, its likelihood the largest over the other variances; the belief's
mean is that at its posterior mean, and the draws are those at its quantiles.

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
from scipy import stats
from scipy.interpolate import PchipInterpolator
from torch import Tensor

from llm_elicit.density.errors import Array, Flags
from llm_elicit.density.evidence import UNKNOWN, in_order
from llm_elicit.density.judgments import Context, Judgments, PairContrasts
from llm_elicit.density.latent import Latent
from llm_elicit.density.likelihood import Noise
from llm_elicit.density.settings import GaussianProcessSettings
from llm_elicit.density.utility.marginal_likelihood import (
    VARIANCES,
    Hyperparameters,
    MarginalLikelihood,
    Observations,
)
from llm_elicit.density.utility.quadratic import lattice
from llm_elicit.density.utility_function import (
    FourierStack,
    Utility,
    UtilityDraws,
    draw_frequencies,
    fourier_features,
)

_WIDE = 3.0  # prior standard deviation of a position effect, in units of the observations'
_LEAST_INFORMATION = 1e-6
_CONVERGED = 1e-3
_DRAWN_AT = 16  # different gains, and shares of presentations, among the draws
_MOST_OF_LATTICES = 4  # features
_HIGHEST, _MARGIN = 3.0, 2.5  # of lattices, in units of one over the length scale, and of it
_CLEARLY = 2.0  # nats of evidence for a ridge
_CURVATURES = slice(2, 5)  # the variances that shrink a ridge
_EXTENDED = 1.25  # times as long, from which on the prior is said to matter
_LONGEST = 10.0  # times as long that a belief is said to be under another prior
# At which the likelihood of the share of presentations is computed, and between which it is smooth.
_SHARES = np.array([0.0005, 0.02, 0.05, 0.1, 0.17, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85])
_RELIABLE = 0.8  # the generalizability that is aimed at


@dataclass(frozen=True)
class Interaction:
    """How far a preference depends on the presentation, from log-odds.

    Attributes:
        share: of the variance of the content, what is particular to one presentation: posterior
            mean.
        share_interval: 90 %, the shortest by the posterior.
        p_value: of the likelihood ratio test that nothing depends on the presentation.
        presentations: their number W.
        generalizability: the share of the variance of the content, averaged over W presentations,
            that is common to presentations like these: 1 / (1 + ρ²/W).
        generalizability_interval: 90 %.
        needed: presentations of which the average would have a generalizability of .8.
    """

    share: float
    share_interval: tuple[float, float]
    p_value: float
    presentations: int
    generalizability: float
    generalizability_interval: tuple[float, float]
    needed: int

    @classmethod
    def of(cls, log_likelihood: Array, presentations: int) -> tuple[Interaction, Array]:
        """Return what log-likelihoods at `_SHARES` say, and quantiles of the share (16,)."""
        grid = np.linspace(_SHARES[0], _SHARES[-1], 400)
        values = PchipInterpolator(_SHARES, log_likelihood)(grid)
        weight = np.exp(values - values.max())
        weight /= weight.sum()
        by_density = np.argsort(-weight)
        shortest = grid[by_density[: np.searchsorted(np.cumsum(weight[by_density]), 0.9) + 1]]
        low = 0.0 if shortest.min() == grid[0] else float(shortest.min())
        high, share = float(shortest.max()), float(grid @ weight)
        ratio = max(2.0 * float(values.max() - values[0]), 0.0)
        odds = _RELIABLE / (1.0 - _RELIABLE)

        def common(share: float) -> float:
            return 1.0 / (1.0 + share / (1.0 - share) / presentations)

        interaction = cls(
            share,
            (low, high),
            # The share lies at the end of its range under the hypothesis.
            0.5 * float(stats.chi2.sf(ratio, 1)),
            presentations,
            common(share),
            (common(high), common(low)),
            max(math.ceil(odds * share / (1.0 - share)), 1),
        )
        levels = (np.arange(_DRAWN_AT) + 0.5) / _DRAWN_AT
        return interaction, grid[np.searchsorted(np.cumsum(weight), levels)]


@dataclass(frozen=True)
class GaussianProcessFit:
    """The posterior mean, draws, and the estimated terms of the judges.

    ``predicted`` (n,) is what each row is predicted to be by the others: κ (f(a) − f(b)) with the
    position effect; ``effects`` (B,) are posterior means; ``gain`` and ``dispersion`` are those of
    each source, NaN dispersion for choices, ``cell_gain`` and ``cell_dispersion`` (C,) those of
    each judge and presentation relative to them. ``interaction`` is None with one presentation.
    Under a prior whose curvatures have four times their
    variances the belief would be ``extension`` times as long in its longest direction; 1 where that
    is within a standard deviation of its curvature there.
    """

    utility: Utility
    draws: UtilityDraws
    predicted: Array
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
    def extent(self) -> dict[str, Any] | None:
        """What is said of a belief whose length the prior decides; None of others."""
        if self.extension < _EXTENDED:
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

    weight: Tensor
    cells: tuple[tuple[Tensor, Tensor], ...] = ()

    def root(self, matrix: Tensor) -> Tensor:
        """Return L⁻¹ diag(√w) M (n, k) of M (n, k)."""
        scaled = matrix * self.weight.sqrt()[:, None]
        for rows, factor in self.cells:
            scaled[rows] = torch.linalg.solve_triangular(factor, scaled[rows], upper=False)
        return scaled

    def times(self, matrix: Tensor) -> Tensor:
        """Return N⁻¹ M (n, k)."""
        scaled = matrix * self.weight.sqrt()[:, None]
        for rows, factor in self.cells:
            scaled[rows] = torch.cholesky_solve(scaled[rows], factor)
        return scaled * self.weight.sqrt()[:, None]

    @property
    def diagonal(self) -> Tensor:
        """The diagonal (n,) of N⁻¹."""
        diagonal = self.weight.clone()
        for rows, factor in self.cells:
            diagonal[rows] *= torch.cholesky_inverse(factor).diagonal()
        return diagonal


class _Posterior(NamedTuple):
    """Columns (n, P), mean (P,) and a root (P, Q) of the covariance of the coefficients."""

    columns: Tensor
    mean: Tensor
    root: Tensor
    precision: _Precision


class _Process:
    """The posterior of the coefficients at the variances that maximize the marginal likelihood."""

    def __init__(
        self,
        rows: Observations,
        noise: Noise,
        generator: torch.Generator,
        settings: GaussianProcessSettings,
    ) -> None:
        self.rows, self.noise, self.settings = rows, noise, settings
        self.generator = generator
        exact = rows.exact
        self.exact = torch.from_numpy(exact)
        self.unit = _size(rows.value[exact], noise.scale)
        wide = _WIDE * max(self.unit, noise.scale if rows.chosen.any() else 0.0)
        self.effect_variance = torch.from_numpy(
            np.where(np.isnan(rows.effect_sd), wide, rows.effect_sd) ** 2
        )
        self.effects = torch.from_numpy(rows.effects)
        # The size of a difference of utility (S,) in each source's log-odds, nats; choices are
        # decided by a few times their noise.
        units = [
            _size(rows.value[exact & (rows.source == source)], self.unit)
            if not choices
            else 2.0 * noise.scale
            for source, choices in enumerate(rows.choices)
        ]
        self.hyper = Hyperparameters(rows, np.array(units))
        self.theta, self.log_evidence = self.hyper.centre.copy(), -math.inf
        self.target = torch.from_numpy(np.where(exact, rows.value, 0.0))
        self.fixed_variance = torch.full((len(rows),), math.inf, dtype=torch.float64)
        self.interaction: Interaction | None = None
        self.shares = np.zeros(0)

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

    def find_ridge(self) -> None:
        """Give the products with the form's outermost direction a variance, if evidence rises."""
        rows, theta, evidence = self.rows, self.theta, self.log_evidence
        form = rows.terms.forms(self.mean[None, : len(rows.terms)])[1][0]
        curvature, axes = torch.linalg.eigh(form.double())
        outermost = (curvature - curvature.median()).abs().argmax()
        self.rows = replace(rows, direction=axes[:, outermost])
        self.maximize()
        if self.log_evidence < evidence + _CLEARLY:
            self.rows, self.theta, self.log_evidence = rows, theta, evidence
            self._solve()

    def measure_interaction(self, presentations: int) -> None:
        """Set ρ² to its posterior mean, if there are several presentations."""
        place = self.hyper.interaction
        if place is None:
            return
        theta, profile = self.theta.copy(), []
        for share in _SHARES:
            theta[place] = math.log(share / (1.0 - share))
            theta, value = self.likelihood.maximize(theta, self.settings.iterations, fixed=place)
            profile.append(value)
        self.interaction, self.shares = Interaction.of(np.array(profile), presentations)
        share = self.interaction.share
        self.theta[place] = math.log(share / (1.0 - share))
        optimum = self.likelihood.maximize(self.theta, self.settings.iterations, fixed=place)
        self.theta, self.log_evidence = optimum
        self._solve()

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
            measured = self.hyper.terms(torch.from_numpy(self.theta)).measurement
            spread = measured[cut].sqrt()
            u = sign * (eta[cut] - torch.from_numpy(rows.value)[cut]) / spread
            log_density = -0.5 * u * u - 0.5 * math.log(2 * math.pi)
            ratio = torch.exp(log_density - torch.special.log_ndtr(u))
            information = (ratio * (ratio + u)).clamp(min=_LEAST_INFORMATION) / spread**2
            self.target[cut] = eta[cut] + sign * ratio / spread / information
            self.fixed_variance[cut] = 1.0 / information

    def _search(self) -> None:
        """Maximize the marginal likelihood of at most `rows` rows."""
        rows = torch.nonzero(self.exact | self.fixed_variance.isfinite())[:, 0]
        if len(rows) > self.settings.rows:
            mixed = torch.randperm(len(rows), generator=self.generator)
            rows = rows[mixed[: self.settings.rows]]
        self.likelihood = MarginalLikelihood(
            self.rows, self.hyper, self.effect_variance, rows, self.target, self.fixed_variance
        )
        optimum = self.likelihood.maximize(self.theta, self.settings.iterations)
        self.theta, self.log_evidence = optimum

    def _solve(self) -> None:
        """Compute the posterior of all coefficients at the variances found."""
        points = torch.cat([self.rows.first, self.rows.second]).double()
        length, most = math.exp(self.theta[VARIANCES]), self.settings.frequencies
        self.frequencies, self.spectrum = stationary_terms(points, length, most)
        first, second = fourier_features(points, self.frequencies).chunk(2)
        self.plain = torch.cat([self.rows.quadratic, first - second], 1)
        self.columns, self.mean, self.root, self.precision = self._posterior(self.theta)
        self.fitted = self.columns @ self.mean

    def _posterior(self, theta: Array) -> _Posterior:
        """Return the posterior of all coefficients at these variances and gains."""
        terms = self.hyper.terms(torch.from_numpy(theta))
        weight = 1.0 / torch.where(self.exact, terms.measurement, self.fixed_variance)
        columns = torch.cat([self.plain * terms.gain[:, None], self.effects], 1)
        # A root (P, Q) of the coefficients' prior covariance.
        variances, quadratic = terms.variances, self.rows.quadratic.shape[1]
        others = torch.cat([variances[-1] * self.spectrum, self.effect_variance]).sqrt()
        count = quadratic + len(others)
        *blocks, along = (v.sqrt() * b for v, b in zip(variances, self.rows.blocks, strict=False))
        root = torch.zeros(count, count + along.shape[1], dtype=torch.float64)
        root[:quadratic, :quadratic] = sum(blocks)
        root[:quadratic, count:] = along
        root.diagonal()[quadratic:] = others
        half = columns @ root
        precision = _Precision(weight)
        if self.hyper.interaction is not None:
            plain = self.plain.shape[1]
            own = (terms.interaction.sqrt() * columns[:, :plain]) @ root[:plain]
            precision = _Precision(weight, tuple(self._factors(own, weight)))
        scaled = precision.root(half)
        information = scaled.T @ scaled + torch.eye(scaled.shape[1], dtype=torch.float64)
        factor = torch.linalg.cholesky(information)
        pull = scaled.T @ precision.root(self.target[:, None]).nan_to_num(0.0)
        mean = root @ torch.cholesky_solve(pull, factor)[:, 0]
        root = torch.linalg.solve_triangular(factor, root.T, upper=False).T  # cov = root rootᵀ
        return _Posterior(columns, mean, root, precision)

    def _factors(self, own: Tensor, weight: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield rows (m,) and L (m, m) of every cell; ``own`` (n, Q) has the covariance of δ_z."""
        cell = torch.from_numpy(self.rows.cell)
        for number in range(self.rows.cells):
            rows = torch.nonzero(cell == number)[:, 0]
            half = own[rows] * weight[rows].sqrt()[:, None]
            yield rows, torch.linalg.cholesky(half @ half.T + torch.eye(len(rows)).double())

    def result(self) -> GaussianProcessFit:
        """Return the fit."""
        quadratic = self.rows.quadratic.shape[1]
        end = self.plain.shape[1]
        drawn = self._drawn()
        frequencies = self.frequencies.float()
        mean = self.mean.numpy()
        plain = self.rows.terms.utility(mean[:quadratic])
        smooth = FourierStack(frequencies, self.mean[None, quadratic:end].float())
        draws = UtilityDraws(
            *self.rows.terms.forms(drawn[:, :quadratic]),
            fourier=FourierStack(frequencies, drawn[:, quadratic:end].float()),
        )
        return GaussianProcessFit(
            Utility(plain.linear, plain.curvature, fourier=smooth),
            draws,
            self._predicted(),
            mean[end:],
            *self.hyper.of_sources(self.theta),
            *self.hyper.of_cells(self.theta),
            self.interaction,
            math.exp(self.theta[VARIANCES]),
            self.log_evidence,
            self._extension(),
        )

    def _extension(self) -> float:
        """Return how much longer the belief would be under a wider prior; see the fit."""
        terms, theta = self.rows.terms, self.theta.copy()
        products = slice(terms.dimension, len(terms))
        theta[_CURVATURES] += math.log(4.0)
        first, second = torch.from_numpy(terms.first), torch.from_numpy(terms.second)
        form = terms.forms(self.mean[None, : len(terms)])[1][0].double()
        longest = torch.linalg.eigh(form)[1][:, -1]
        along = longest[first] * longest[second]
        curvature = float(along @ self.mean[products])
        wider = float(along @ self._posterior(theta).mean[products])
        doubt = float((along @ self.root[products]).norm())
        if curvature >= 0.0 or wider - curvature < doubt:
            return 1.0
        return math.sqrt(curvature / min(wider, curvature / _LONGEST**2))

    def _drawn(self) -> Tensor:
        """Return draws (S, P) of the coefficients; gains and the share are drawn with them."""
        normal = torch.randn(
            self.root.shape[1], self.settings.draws, generator=self.generator, dtype=torch.float64
        )
        place = self.hyper.interaction
        if not self.hyper.free and place is None:
            return (self.mean[:, None] + self.root @ normal).T
        parts = normal.chunk(_DRAWN_AT, dim=1)
        thetas = np.tile(self.theta, (len(parts), 1))
        if self.hyper.free:
            curvature = self.likelihood.curvature(self.theta)
            thetas = self.hyper.with_gains(self.theta, curvature, len(parts))
        if place is not None:
            # In an order that does not go with that of the gains.
            shares = self.shares[7 * np.arange(len(parts)) % _DRAWN_AT]
            thetas[:, place] = np.log(shares / (1.0 - shares))
        posteriors = [self._posterior(theta) for theta in thetas]
        return torch.cat(
            [p.mean[:, None] + p.root @ z for p, z in zip(posteriors, parts, strict=True)], 1
        ).T

    def _predicted(self) -> Array:
        """Return the prediction of every row without its group, at the same variances."""
        # With C the covariance of all rows, what a group lacks is (C⁻¹)_GG⁻¹ (C⁻¹ y)_G. Rows of one
        # group are of different cells, so that (N⁻¹)_GG is diagonal.
        errors = self.target - self.fitted
        pull = self.precision.times(errors[:, None])[:, 0].nan_to_num(0.0).numpy()
        half = self.precision.times(self.columns @ self.root).numpy()
        own, residual = self.precision.diagonal.numpy(), errors.numpy()
        left = np.maximum(own - np.square(half).sum(1), 1e-9 * own)
        deleted = np.where(own > 0.0, pull / np.where(own > 0.0, left, 1.0), residual)
        alone = np.bincount(self.rows.group)[self.rows.group] == 1
        for group in np.unique(self.rows.group[~alone & (own > 0.0)]):
            at = np.flatnonzero((self.rows.group == group) & (own > 0.0))
            inverse = np.diag(own[at]) - half[at] @ half[at].T
            deleted[at] = np.linalg.lstsq(inverse, pull[at], rcond=None)[0]
        return np.asarray(self.target.numpy() - deleted)


def stationary_terms(points: Tensor, length: float, most: int) -> tuple[Tensor, Tensor]:
    """Return frequencies (d, M) of a process and the spectrum (2M,) of their terms, one on average.

    They are a lattice, or random ones where many features would need a large one.
    """
    dimension = points.shape[1]
    if dimension > _MOST_OF_LATTICES:
        # The same for every seed: which ones are drawn moves the ends of bands.
        drawn = draw_frequencies(most, dimension, torch.Generator().manual_seed(0))
        return drawn / length, torch.ones(2 * most, dtype=torch.float64)
    lowest = lattice(points, range(dimension), most, _HIGHEST / length, _MARGIN * length)
    density = torch.exp(-0.5 * (length * lowest.norm(dim=0)).square())
    # Each stands for its opposite, too; a constant, of frequency zero, has no differences.
    share = 2.0 * density / (1.0 + 2.0 * density.sum())
    return lowest, len(share) * share.repeat(2)


def _size(values: Array, default: float) -> float:
    """Return the root mean square of log-odds (m,)."""
    square = float(np.mean(values**2)) if len(values) else default**2
    # If all log-odds are equal there is no scale; any value will do.
    return math.sqrt(max(square, 1e-24))


_FEWEST = 10  # pairs of which a share is given
_PLACE_SD = 3.0  # of a choice's order bias, in units of the noise's scale


def fit_measured(
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
    rows = _observations(judgments, latent, noise)
    process = _Process(rows, noise, generator, settings)
    process.maximize()
    process.find_ridge()
    process.measure_interaction(len(np.unique(judgments.measured.presentation)))
    fit = process.result()
    return fit, _response(judgments, rows, fit)


def _observations(judgments: Judgments, latent: Latent, noise: Noise) -> Observations:
    pairs = judgments.measured
    judges = list(dict.fromkeys(pairs.judge.tolist()))
    n, m = len(pairs), judgments.size
    context = judgments.context
    of_choices = np.zeros(m, dtype=np.int64) if context is None else context.judge
    choosing = list(dict.fromkeys(of_choices.tolist()))
    source = np.concatenate([
        np.array([judges.index(j) for j in pairs.judge], dtype=np.int64),
        np.array([len(judges) + choosing.index(j) for j in of_choices], dtype=np.int64),
    ])  # fmt: skip
    # Rows about the same two points are left out together.
    measured, compared = (pairs.a, pairs.b), in_order(judgments.winners, judgments.losers)
    points = np.concatenate([np.concatenate(sides, 1) for sides in (measured, compared)])
    groups = np.unique(points, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    first, second = (
        latent.features(torch.from_numpy(latent.to_latent(np.concatenate(sides))))
        for sides in ((pairs.a, judgments.winners), (pairs.b, judgments.losers))
    )
    nothing, ones = np.zeros(m), np.ones(m)
    several = len(pairs.cells) > len(judges)
    cell = pairs.cell if several else np.full(n, UNKNOWN)
    return Observations(
        first,
        second,
        np.concatenate([pairs.value, nothing]),
        np.concatenate([pairs.share, ones]),
        np.concatenate([pairs.extra, nothing]),
        np.concatenate([pairs.censored, np.zeros(m, dtype=np.int64)]),
        np.concatenate([np.ones(n), judgments.weights]),
        source,
        (*[False] * len(judges), *[True] * len(choosing)),
        *_position_columns(pairs, context, m, noise),
        groups,
        np.concatenate([cell, np.full(m, UNKNOWN)]),
        latent.category,
    )


def _position_columns(
    pairs: PairContrasts, context: Context | None, choices: int, noise: Noise
) -> tuple[Array, Array]:
    """Columns (n, B) of position effects and their prior standard deviations (B,)."""
    columns, spread = [], []
    for cell in range(len(pairs.cells)):
        within = pairs.cell == cell
        side = np.where(within, pairs.side, 0.0)
        if side.any():
            effect = pairs.position_effect(within)
            columns.append(np.concatenate([side, np.zeros(choices)]))
            spread.append(effect[1] / np.sqrt(effect[2]) if effect and effect[2] > 1 else np.nan)
    if context is not None:
        for column in context.order.T:
            columns.append(np.concatenate([np.zeros(len(pairs)), column]))
            spread.append(_PLACE_SD * noise.scale)
    size = len(pairs) + choices
    return np.stack(columns, 1) if columns else np.zeros((size, 0)), np.array(spread)


def _response(judgments: Judgments, rows: Observations, fit: GaussianProcessFit) -> dict[str, Any]:
    pairs, names = judgments.measured, judgments.judges
    ids = list(dict.fromkeys(pairs.judge.tolist()))
    cells = _cells(judgments, fit)
    judges = {
        names[judge]: _of_judge(pairs, judge, fit, at, cells[names[judge]])
        for at, judge in enumerate(ids)
    }
    response = {
        "scale": "choices" if any(rows.choices) else "log-odds",
        **judges[names[ids[0]]],
        **_r2(pairs, fit, np.ones(len(pairs), dtype=bool)),
        "pairs": len(pairs),
        "both_orders": int((pairs.side == 0).sum()),
        "judges": judges,
    }
    if fit.interaction is not None:
        response["interaction"] = asdict(fit.interaction)
    return response


def _cells(judgments: Judgments, fit: GaussianProcessFit) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the estimates of every presentation of every judge."""
    pairs, effects = judgments.measured, iter(fit.effects.tolist())
    cells: dict[str, dict[str, dict[str, Any]]] = {}
    for number, (judge, presentation) in enumerate(pairs.cells.tolist()):
        rows = pairs.cell == number
        estimate = pairs.position_effect(rows)
        mean = next(effects) if pairs.side[rows].any() else 0.0
        if estimate is not None:
            # Rows in one order shift the mean of the half sums.
            mean = estimate[0] + (mean if estimate[2] > 1 else 0.0)
        of_cell = {"pairs": int(rows.sum()), "position": mean}
        if fit.interaction is not None:
            of_cell["gain"] = float(fit.cell_gain[number])
            of_cell["dispersion"] = float(fit.cell_dispersion[number])
        name = judgments.presentations[presentation]
        cells.setdefault(judgments.judges[judge], {})[name] = of_cell
    return cells


def _of_judge(
    pairs: PairContrasts,
    judge: int,
    fit: GaussianProcessFit,
    source: int,
    cells: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    rows, dispersion = pairs.judge == judge, float(fit.dispersion[source])
    estimate, spread = pairs.position_effect(rows), None
    if estimate is not None:
        spread = float(np.sqrt(max(estimate[1] ** 2 - 0.5 * dispersion**2, 0.0)))
    counts = [cell["pairs"] for cell in cells.values()]
    mean = float(np.average([cell["position"] for cell in cells.values()], weights=counts))
    response = {
        **_r2(pairs, fit, rows),
        "dispersion": dispersion,
        "gain": float(fit.gain[source]),
        "position": {"mean": mean, "sd": spread},
        "pairs": int(rows.sum()),
        "both_orders": int((pairs.side[rows] == 0).sum()),
    }
    return response if fit.interaction is None else response | {"presentations": cells}


def _r2(pairs: PairContrasts, fit: GaussianProcessFit, chosen: Flags) -> dict[str, Any]:
    """Return R² of uncensored values less the position effect; None where they are all 0.

    The effect is that of the other pairs. The interval is the jackknife's, linearized in the
    logarithm of one minus R², with Student's quantile.
    """
    use = chosen & (pairs.censored == 0) & np.isfinite(pairs.extra)
    value, predicted = pairs.value[use], fit.predicted[: len(pairs)][use]
    plain = value - _left_out_effect(pairs, use)[use]
    squares, errors, n = np.square(plain), np.square(value - predicted), len(value)
    total, missed = float(squares.sum()), float(errors.sum())
    # Half differences of equal numbers are rounding errors, not a preference.
    if n < _FEWEST or total <= 1e-24 * n:
        return {"held_out_r2": None, "held_out_r2_interval": None}
    ratio = missed / total
    influence = errors / missed - squares / total if missed > 0 else np.zeros(n)
    half = stats.t.ppf(0.975, n - 1) * np.sqrt(float(influence @ influence) * n / (n - 1))
    ends = [1.0 - ratio * float(np.exp(sign * half)) for sign in (1.0, -1.0)]
    return {"held_out_r2": 1.0 - ratio, "held_out_r2_interval": ends}


def _left_out_effect(pairs: PairContrasts, use: Flags) -> Array:
    """Return what the mean position effect of a cell's other pairs adds to each value (n,).

    0 where pairs asked in both orders determine it, as it is subtracted there.
    """
    effect = np.zeros(len(pairs))
    for cell in np.unique(pairs.cell[use]):
        within = pairs.cell == cell
        estimate = pairs.position_effect(within)
        alone = use & within & (pairs.side != 0)
        if alone.sum() > 1 and (estimate is None or estimate[2] < 2):
            signed = pairs.side[alone] * pairs.value[alone]
            others = (signed.sum() - signed) / (len(signed) - 1)
            effect[alone] = pairs.side[alone] * others
    return effect
