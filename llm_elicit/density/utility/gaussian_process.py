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

Choices and censored answers enter by their local normal approximations, found together with f
(penalized quasi-likelihood; Breslow and Clayton, 1993).

*Scale.* Comparisons know f times κ only. If there are choices, those of the first judge set the
unit of f: nats at the assumed noise level. Otherwise the log-odds of the first judge
do: κ = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from llm_elicit.density.errors import Array, Flags
from llm_elicit.density.evidence import in_order
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
_GAINS = 16  # different gains among the draws
_MOST_OF_LATTICES = 4  # features
_HIGHEST, _MARGIN = 3.0, 2.5  # of lattices, in units of one over the length scale, and of it
_CLEARLY = 2.0  # nats of evidence for a ridge
_CURVATURES = slice(2, 5)  # the variances that shrink a ridge
_EXTENDED = 1.25  # times as long, from which on the prior is said to matter
_LONGEST = 10.0  # times as long that a belief is said to be under another prior


@dataclass(frozen=True)
class GaussianProcessFit:
    """The posterior mean, draws, and the estimated terms of the judges.

    ``predicted`` (n,) is what each row is predicted to be by the others: κ (f(a) − f(b)) with the
    position effect; ``effects`` (B,) are posterior means; ``gain`` and ``dispersion`` are those of
    each source, NaN dispersion for choices. Under a prior whose curvatures have four times their
    variances the belief would be ``extension`` times as long in its longest direction; 1 where that
    is within a standard deviation of its curvature there.
    """

    utility: Utility
    draws: UtilityDraws
    predicted: Array
    effects: Array
    gain: Array
    dispersion: Array
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


class _Posterior(NamedTuple):
    """Columns (n, P), mean (P,) and a root (P, Q) of the covariance of the coefficients.

    ``weight`` (n,) are the precisions of the measurements.
    """

    columns: Tensor
    mean: Tensor
    root: Tensor
    weight: Tensor


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
        self.columns, self.mean, self.root, self.weight = self._posterior(self.theta)
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
        scaled = (columns @ root) * weight.sqrt()[:, None]
        precision = scaled.T @ scaled + torch.eye(scaled.shape[1], dtype=torch.float64)
        factor = torch.linalg.cholesky(precision)
        pull = scaled.T @ (self.target * weight.sqrt()).nan_to_num(0.0)
        mean = root @ torch.cholesky_solve(pull[:, None], factor)[:, 0]
        root = torch.linalg.solve_triangular(factor, root.T, upper=False).T  # cov = root rootᵀ
        return _Posterior(columns, mean, root, weight)

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
        """Return draws (S, P) of the coefficients; the unit of the utility is drawn with them."""
        normal = torch.randn(
            self.root.shape[1], self.settings.draws, generator=self.generator, dtype=torch.float64
        )
        if not self.hyper.free:
            return (self.mean[:, None] + self.root @ normal).T
        parts = normal.chunk(_GAINS, dim=1)
        curvature = self.likelihood.curvature(self.theta)
        thetas = self.hyper.with_gains(self.theta, curvature, len(parts))
        posteriors = [self._posterior(theta) for theta in thetas]
        return torch.cat(
            [p.mean[:, None] + p.root @ z for p, z in zip(posteriors, parts, strict=True)], 1
        ).T

    def _predicted(self) -> Array:
        """Return the prediction of every row without its group, at the same variances."""
        leverage = self.columns @ self.root
        residual, weight = (self.target - self.fitted).numpy(), self.weight.numpy()
        own = (leverage.square().sum(1) * self.weight).numpy().clip(max=1.0 - 1e-9)
        deleted = residual / (1.0 - own)
        alone = np.bincount(self.rows.group)[self.rows.group] == 1
        for group in np.unique(self.rows.group[~alone]):
            at = np.flatnonzero(self.rows.group == group)
            smoother = (leverage[at] @ leverage[at].T).numpy() * weight[at]
            deleted[at] = np.linalg.lstsq(np.eye(len(at)) - smoother, residual[at], rcond=None)[0]
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
    ``dispersion``, the
    residual standard deviation of one log-odds, nats; ``position``, the mean effect of being shown
    first and its standard deviation over pairs beyond the dispersion, None where no pair was asked
    in both orders; ``pairs`` and how many were asked in ``both_orders``; and the same of each of
    the ``judges``, with the gain of its log-odds. Values beside ``judges`` are the first judge's.
    """
    rows = _observations(judgments, latent, noise)
    process = _Process(rows, noise, generator, settings)
    process.maximize()
    process.find_ridge()
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
        *_position_columns(pairs, judges, context, m, noise),
        groups,
        latent.category,
    )


def _position_columns(
    pairs: PairContrasts, judges: list[int], context: Context | None, choices: int, noise: Noise
) -> tuple[Array, Array]:
    """Columns (n, B) of position effects and their prior standard deviations (B,)."""
    columns, spread = [], []
    for judge in judges:
        side = np.where(pairs.judge == judge, pairs.side, 0.0)
        if side.any():
            effect = pairs.position_effect(judge)
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
    effects, judges = iter(fit.effects.tolist()), {}
    for at, judge in enumerate(ids):
        single = pairs.side[pairs.judge == judge].any()
        effect = next(effects) if single else 0.0
        judges[names[judge]] = _of_judge(pairs, judge, fit, at, effect)
    return {
        "scale": "choices" if any(rows.choices) else "log-odds",
        **judges[names[ids[0]]],
        **_r2(pairs, fit, np.ones(len(pairs), dtype=bool)),
        "pairs": len(pairs),
        "both_orders": int((pairs.side == 0).sum()),
        "judges": judges,
    }


def _of_judge(
    pairs: PairContrasts, judge: int, fit: GaussianProcessFit, source: int, effect: float
) -> dict[str, Any]:
    rows, dispersion = pairs.judge == judge, float(fit.dispersion[source])
    estimate = pairs.position_effect(judge)
    mean, spread = effect, None
    if estimate is not None:
        # Rows in one order shift the mean of the half sums.
        mean = estimate[0] + (effect if estimate[2] > 1 else 0.0)
        spread = float(np.sqrt(max(estimate[1] ** 2 - 0.5 * dispersion**2, 0.0)))
    return {
        **_r2(pairs, fit, rows),
        "dispersion": dispersion,
        "gain": float(fit.gain[source]),
        "position": {"mean": mean, "sd": spread},
        "pairs": int(rows.sum()),
        "both_orders": int((pairs.side[rows] == 0).sum()),
    }


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
    """Return what the mean position effect of a judge's other pairs adds to each value (n,).

    0 where pairs asked in both orders determine it, as it is subtracted there.
    """
    effect = np.zeros(len(pairs))
    for judge in np.unique(pairs.judge[use]):
        estimate = pairs.position_effect(judge)
        alone = use & (pairs.judge == judge) & (pairs.side != 0)
        if alone.sum() > 1 and (estimate is None or estimate[2] < 2):
            signed = pairs.side[alone] * pairs.value[alone]
            others = (signed.sum() - signed) / (len(signed) - 1)
            effect[alone] = pairs.side[alone] * others
    return effect
