"""The scale of a belief: which power k makes exp(k f) the judge's density.

Comparisons determine f up to a factor, so the belief is one of p_k ∝ exp(k f). Five sources
determine k:

- *points* x_j stated or drawn from the belief: their likelihood Σ k f(x_j) − m log ∫ exp(k f);
- *quantiles* of features: the multinomial likelihood of the shares between them, with an effective
  number of points that fits how well they agree with any k (a quasi-likelihood);
- *ratios*, "how many times as plausible": log-ratios measure k (f(a) − f(b));
- *likelihood*, the ratio of the densities that a model itself gives two points, likewise;
- *ranges* compared: log-odds measure c (L_k(R) − L_k(R')) with L_k(R) = log ∫_R exp(k f).
  Differences of log-width are known and determine c, and differences of density then determine k.

f has a posterior. For quantiles the likelihood is averaged over the belief's draws of f. For
points it is that of two moments of f̄ over them, since whole likelihoods differ so much between
draws that one alone would count. For ratios and ranges the posterior is f̄ + Σ z_s δ_s, z ~ N(0, I),
with the draws' deviations δ_s. Along them a log-ratio is linear, and so is the log-mass of a range
to first order, so that z is integrated out in closed form.

The likelihoods are evaluated at a grid of powers, and at a finer grid about the most likely ones,
and interpolated by a cubic spline. The prior is flat in log k.

Where few comparisons leave f inexact within the bulk of the belief, p_k is nearest to the judge's
density at a power below the judge's own: 0.2 to 0.8 of it with 15 pairs a feature whose log-odds
were half noise. By points, the value is this power, *at which the fit is nearest to them*, and the
interval is of the judge's own, simulated from the posterior. It can be so wide that points alone do
not identify the sharpness. Quantiles are nearest likewise, and ratios of points from λ give the
judge's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats
from scipy.interpolate import CubicSpline
from scipy.special import logsumexp

from llm_elicit.density.belief import BeliefDensity
from llm_elicit.density.distribution import Power
from llm_elicit.density.errors import (
    Array,
    DensityError,
    check_finite,
    check_instance,
    check_number,
    check_seed,
)
from llm_elicit.density.methods import evaluate_utility
from llm_elicit.density.ranges import (
    PowerPath,
    RangeLikelihood,
    Ranges,
    anneal_powers,
    whole_space,
)
from llm_elicit.density.sampling import Uniform
from llm_elicit.density.torch_utils import one_thread

Curve = Callable[[Array], Array]
"""Log-likelihoods (K,) at powers (K,)."""

_SHARPNESS = (0.05, 400.0)  # bounds of the standard deviation of k f over λ, nats
_GRID_SIZE, _REFINED_SIZE, _INTERPOLATED_SIZE = 24, 16, 4001
_MAX_LOSS = 8.0  # nats below the most likely power, beyond which the coarse grid suffices
_PARTICLES, _MAX_PARTICLES = 2048, 16_384
_EFFECTIVE_SIZES = (5.0, 200.0)  # bounds of the effective number of points of stated quantiles
_NOISE_GRID = 25
_POOL_SIZE, _MAX_DRAWS = 16_384, 64  # particles and draws by which points are judged


def fit_power(
    belief: BeliefDensity,
    *,
    points: npt.ArrayLike | None = None,
    quantiles: Mapping[Any, Mapping[float, float]] | None = None,
    ranges: Ranges | None = None,
    ratios: Sequence[npt.ArrayLike] | None = None,
    likelihood: Sequence[npt.ArrayLike] | None = None,
    seed: int = 0,
) -> Power:
    """Return the power k at which exp(k f) is the judge's density, with f the belief's utility.

    It is estimated from all sources together; ``sources`` has the estimate from each of them. By
    points alone, the value is the power at which *this fit* is nearest to them: where comparisons
    were few it is below the judge's own, of which the interval is.

    Args:
        belief: fitted by "auto" or "utility"; the power is relative to it.
        points: (m, d) points that the judge stated, or draws from its density, natural units.
            Columns of data frames are matched by name, here, in ``ratios`` and in ``likelihood``.
        quantiles: for each feature, by number or name, values of quantiles by level: {0: {0.5:
            3.1}}.
        ranges: `Ranges` that the judge compared.
        ratios: (a, b, log_ratio), (n, d), (n, d) and (n,): the log of how many times as plausible
            a is.
        likelihood: (a, b, log_ratio), the log-ratio of the judge's own densities of a and b, per
            unit of the features' scales.
        seed: seed of the random numbers of integration.

    Raises:
        DensityError: no source, points outside the support, quantiles that do not increase, ranges
            outside the support, values that are not finite, a flat belief, or one by another
            method.

    Examples:
        >>> import numpy as np
        >>> from llm_elicit.density import Uniform, fit_belief
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.uniform(-3, 3, (2, 60, 1))
        >>> log_odds = 0.1 * (b**2 - a**2)[:, 0] + 0.02 * rng.normal(size=60)   # a tenth of N(0, ½)
        >>> belief = fit_belief(a, b, log_odds=log_odds, sampling=Uniform([-3.0], [3.0]))
        >>> power = fit_power(belief, points=rng.normal(0, 0.5**0.5, (100, 1)))
        >>> bool(power.low < 10 < power.high)
        True
    """
    check_instance("fit_power: belief", belief, BeliefDensity, "fit one first")
    check_seed("fit_power: seed", seed)
    if ranges is not None:
        check_instance(
            "fit_power: ranges", ranges, Ranges, "make it by Ranges(first, second, log_odds)"
        )
    with one_thread():
        family = _PowerFamily(belief, seed)
        range_likelihood, fit_curve, curves = None, None, dict[str, Curve]()
        if ranges is not None:
            range_likelihood = RangeLikelihood(ranges, belief, family.path, family.deviations)
        if points is not None:
            curves["points"], fit_curve = family.points_likelihood(points)
        if quantiles is not None:
            curves["quantiles"] = family.quantiles_likelihood(quantiles)
        if range_likelihood is not None:
            curves["ranges"] = range_likelihood.log_likelihood
        for name, ratio in (("ratios", ratios), ("likelihood", likelihood)):
            if ratio is not None:
                curves[name] = family.ratios_likelihood(name, ratio)
        if not curves:
            raise DensityError(
                "fit_power: no source was given; pass points, quantiles, ranges, ratios or "
                "likelihood."
            )
        return _combine_sources(family.powers, curves, range_likelihood, fit_curve)


class _PowerFamily:
    """The family p_k of a belief, at ``powers`` (K,) from nearly flat to very sharp."""

    def __init__(self, belief: BeliefDensity, seed: int) -> None:
        self.belief = belief
        self.model, self.utilities = belief.utility_model("fit_power"), belief.utility_draws()
        self.latent, self.seed = self.model.latent, seed
        self.particles = _PARTICLES
        rng = np.random.default_rng([seed, 0x90])
        sd = float(belief.utility(belief.sampling.sample(4096, rng)).std())
        if not sd > 0.0:
            raise DensityError(
                "fit_power: the belief is flat, so that all its powers are equal; a judge without "
                "preferences has no scale."
            )
        self.powers = np.geomspace(_SHARPNESS[0] / sd, _SHARPNESS[1] / sd, _GRID_SIZE)
        self._whole_space: dict[tuple[float, ...], PowerPath] = {}

    def path(self, boxes: Array, powers: Array, particles: int) -> PowerPath:
        """Return particles within boxes (G, d, 2) along powers (K,)."""
        generator = torch.Generator().manual_seed(self.seed)
        return anneal_powers(self.model, boxes, powers, particles, generator)

    def whole_space(self, powers: Array) -> PowerPath:
        """Return particles of the whole space along powers (K,), computed once for equal powers."""
        key = tuple(powers.tolist())
        if key not in self._whole_space:
            box = whole_space(self.belief.dimension)
            self._whole_space[key] = self.path(box, powers, self.particles)
        return self._whole_space[key]

    def deviations(self, g: torch.Tensor) -> Array:
        """Return δ_s (S, n) at latent points (n, d): draws are f̄ + Σ z_s δ_s, z ~ N(0, I)."""
        values = self.utilities(self.latent.features(g)).double().numpy()
        return np.asarray((values - values.mean(0)) / np.sqrt(len(values) - 1))

    def points_likelihood(self, points: npt.ArrayLike) -> tuple[Curve, Curve]:
        """Return log p(points | k) for k the judge's own power, and of f̄ itself at the power k.

        The former is of the mean of f̄ over the points and the logarithm of its variance, as if
        normal about what these are over p_k of a draw of f, with the covariances of m points and
        over draws. Moments of each draw are by importance sampling from the particles of all powers
        together, since those of flat powers also cover where a draw exceeds f̄.
        """
        x = _check_points(self.belief, points, "points")
        m = len(x)
        # The error of means over particles must be less than that of means over the points.
        self.particles = int(np.clip(4 * m, _PARTICLES, _MAX_PARTICLES))
        path = self.whole_space(self.powers)
        pool = torch.cat([boxes[0] for boxes in path.points])
        pool = pool[:: -(-len(pool) // _POOL_SIZE)]
        f = evaluate_utility(self.latent, self.model.utility, pool).double().numpy()
        logs = self.powers * f[:, None] - path.log_mass[0]
        proposal = logsumexp(logs, axis=1) - np.log(len(self.powers))
        deviations = self.deviations(pool)
        deviations = np.sqrt(len(deviations) - 1) * deviations
        draws = torch.from_numpy(f + deviations[:: -(-len(deviations) // _MAX_DRAWS)])
        log_proposal = torch.from_numpy(proposal)
        at_points, centred = self.belief.utility(x) - f.mean(), f - f.mean()
        mean, variance = at_points.mean(), at_points.var() + 1e-12 * f.var()
        moments_of_points = np.array([mean, np.log(variance)])
        residuals = at_points - mean
        # The covariance of both moments of the points, relative to the deviation of the mean.
        point_covariance = np.cov(residuals / np.sqrt(variance), residuals**2 / variance)

        def judge_curve(powers: Array) -> Array:
            values = np.empty(len(powers))
            for index, k in enumerate(powers):
                weights = torch.softmax(float(k) * draws - log_proposal, 1).numpy()
                means = weights @ centred
                variances = np.maximum(weights @ centred**2 - means**2, 1e-12 * f.var())
                moments = np.stack([means, np.log(variances)])
                scale = np.array([np.sqrt(variances.mean()), 1.0])
                covariance = np.cov(moments) + point_covariance * np.outer(scale, scale) / m
                difference = moments_of_points - moments.mean(1)
                log_determinant = np.linalg.slogdet(covariance)[1]
                values[index] = -0.5 * (
                    difference @ np.linalg.solve(covariance, difference) + log_determinant
                )
            return values

        def fit_curve(powers: Array) -> Array:
            log_z = [logsumexp(k * centred - proposal) for k in powers]
            return np.asarray(m * (powers * mean - log_z))

        return judge_curve, fit_curve

    def quantiles_likelihood(self, quantiles: Mapping[Any, Mapping[float, float]]) -> Curve:
        """Return the multinomial log-likelihood of the shares between stated quantiles."""
        if not isinstance(quantiles, Mapping) or not quantiles:
            raise DensityError(
                f"fit_power: quantiles = {quantiles!r}; pass {{feature: {{level: value}}}}."
            )
        statements = [
            _check_quantiles(self.belief, feature, levels) for feature, levels in quantiles.items()
        ]
        # The log-likelihood of a belief that agrees with all quantiles, and the best of any power.
        saturated = sum(
            float(quantiles.shares @ np.log(quantiles.shares)) for quantiles in statements
        )
        best = float(self._quantile_log_likelihoods(statements, self.powers).mean(1).max())
        degrees_of_freedom = sum(len(quantiles.shares) - 1 for quantiles in statements) - 1
        effective_size = 2.0 * _EFFECTIVE_SIZES[0]
        if degrees_of_freedom:
            deviance = max(2.0 * (saturated - best), 1e-9)
            effective_size = float(np.clip(degrees_of_freedom / deviance, *_EFFECTIVE_SIZES))

        def curve(powers: Array) -> Array:
            total = self._quantile_log_likelihoods(statements, powers)
            return np.asarray(logsumexp(effective_size * total, axis=1) - np.log(total.shape[1]))

        return curve

    def _quantile_log_likelihoods(
        self, statements: Sequence[_StatedQuantiles], powers: Array
    ) -> Array:
        """Return log-likelihoods (K, S) of stated quantiles by draw, per effective point.

        The shares of mass between the quantiles change with the draw to first order.
        """
        path, sampling, rows = self.whole_space(powers), self.latent.sampling, []
        for (g,), power in zip(path.points, powers, strict=True):
            if isinstance(sampling, Uniform):
                # Half of a whole number's mass lies below a quantile that is this number.
                x = sampling.from_cube_unrounded(torch.special.ndtr(g).numpy())
            else:
                x = self.latent.from_latent(g.numpy())
            delta = self.deviations(g)
            delta = delta * np.sqrt(len(delta) - 1)
            centred, row = delta - delta.mean(1, keepdims=True), np.zeros(len(delta))
            for feature, values, shares in statements:
                membership = np.eye(len(shares))[np.searchsorted(values, x[:, feature])]
                share_changes = centred @ membership / len(x)
                share = np.maximum(membership.mean(0), 0.5 / len(x))
                # A first-order change of the shares themselves could make them negative.
                logs = np.log(share) + np.clip(power * share_changes / share, -5.0, 5.0)
                row = row + (logs - logsumexp(logs, axis=1, keepdims=True)) @ shares
            rows.append(row)
        return np.array(rows)

    def ratios_likelihood(self, name: str, ratios: Sequence[npt.ArrayLike]) -> Curve:
        """Return log p(log-ratios | k), with f and the dispersion integrated out."""
        if not isinstance(ratios, list | tuple) or len(ratios) != 3:
            raise DensityError(
                f"fit_power: {name} must be the three arrays (a, b, log_ratio); pass a tuple."
            )
        a, b = (_check_points(self.belief, side, name) for side in ratios[:2])
        y = check_finite(f"fit_power: {name}", ratios[2])
        if not (a.shape == b.shape and y.shape == (len(a),)):
            raise DensityError(
                f"fit_power: {name}: arrays of shapes {a.shape}, {b.shape}, {y.shape}; a and b are "
                "(n, d) and log_ratio (n,)."
            )
        if not y.any():
            raise DensityError(
                f"fit_power: all log-ratios of {name} are 0, which fits only a flat belief, and "
                f"this belief is not flat at any power; leave {name} out."
            )
        f = self.belief.utility(a) - self.belief.utility(b)
        sides = [torch.from_numpy(self.latent.to_latent(side)) for side in (a, b)]
        deviations = (self.deviations(sides[0]) - self.deviations(sides[1])).T
        values, axes = np.linalg.eigh(deviations @ deviations.T)
        values, y, f = np.maximum(values, 0.0), axes.T @ y, axes.T @ f
        noise_levels = np.sqrt(np.mean(y**2)) * np.geomspace(0.02, 2.0, _NOISE_GRID)

        def curve(powers: Array) -> Array:
            k = powers[:, None, None]
            variance = k**2 * values + np.square(noise_levels)[:, None]  # (K, noise, n)
            logs = -0.5 * (np.square(y - k * f) / variance + np.log(variance)).sum(-1)
            return np.asarray(logsumexp(logs, axis=1))

        return curve


def _check_points(belief: BeliefDensity, values: npt.ArrayLike, name: str) -> Array:
    """Return points (n, d) of the support, n >= 1."""
    label = f"fit_power: {name}"
    points = belief.check_inside(label, values)
    if not len(points):
        raise DensityError(f"{label} has no points; give one or more.")
    return points


class _StatedQuantiles(NamedTuple):
    """Values (B − 1,) of a feature's quantiles, and the shares (B,) of mass between them."""

    feature: int
    values: Array
    shares: Array


def _check_quantiles(
    belief: BeliefDensity, feature: int | str, quantiles: Mapping[float, float]
) -> _StatedQuantiles:
    """Return stated quantiles, checked."""
    index = belief._features.index("fit_power: quantiles", feature)
    if not isinstance(quantiles, Mapping) or not quantiles:
        raise DensityError(
            f"fit_power: quantiles of feature {feature}: {quantiles!r}; pass {{level: value}}."
        )
    for level, value in quantiles.items():
        check_number("fit_power: a quantile's level", level)
        check_number("fit_power: a quantile's value", value)
    levels = np.array(sorted(quantiles), dtype=np.float64)
    values = np.array([quantiles[level] for level in sorted(quantiles)], dtype=np.float64)
    if not (np.diff(values) > 0).all():
        raise DensityError(
            f"fit_power: quantiles of feature {feature} are {values.tolist()}; they must "
            "increase with their levels."
        )
    # Medians of several statements need not be whole where values are.
    low, high = (bounds[index] for bounds in belief.as_prior().support())
    outside = values[(values < low) | (values > high)]
    if outside.size:
        raise DensityError(
            f"fit_power: the quantile {outside[0]} of feature {feature} lies outside the support of"
            " the belief; state quantiles inside it."
        )
    if levels[0] <= 0.0 or levels[-1] >= 1.0:
        raise DensityError(
            f"fit_power: quantile levels {levels.tolist()} must lie strictly between 0 "
            "and 1; leave out the ends of the range."
        )
    shares = np.diff(np.concatenate([[0.0], levels, [1.0]]))
    return _StatedQuantiles(index, values, shares)


def _combine_sources(
    powers: Array,
    sources: dict[str, Curve],
    range_likelihood: RangeLikelihood | None,
    fit_curve: Curve | None,
) -> Power:
    """Return the power by the sum of all log-likelihoods, and by each of them."""
    splines = {name: _fit_spline(powers, curve) for name, curve in sources.items()}
    log_powers = np.linspace(np.log(powers[0]), np.log(powers[-1]), _INTERPOLATED_SIZE)
    curves = {name: np.asarray(spline(log_powers)) for name, (spline, _) in splines.items()}
    estimates = {name: _summarize(log_powers, curve, name) for name, curve in curves.items()}
    logs, coherence = np.log([power.value for power in estimates.values()]), None
    if range_likelihood is not None:
        coherence = range_likelihood.coherence(splines["ranges"][1])
        estimates["ranges"] = replace(estimates["ranges"], coherence=coherence)
    if fit_curve is not None:
        best = np.argmax(_fit_spline(powers, fit_curve)[0](log_powers))
        nearest = float(np.exp(log_powers[best]))
        estimates["points"] = replace(estimates["points"], value=nearest)
    powers_of_sources = tuple(estimates.values())
    if len(estimates) == 1:
        return replace(powers_of_sources[0], sources=powers_of_sources)
    # Cochran's test that all have one log k.
    weight = np.array([power.log_sd for power in powers_of_sources]) ** -2
    squared_differences = np.square(logs - weight @ logs / weight.sum())
    agreement = float(stats.chi2.sf(weight @ squared_differences, len(estimates) - 1))
    total = sum(curves.values(), np.zeros(_INTERPOLATED_SIZE))
    joint = _summarize(log_powers, total, " + ".join(sources))
    return replace(joint, sources=powers_of_sources, agreement=agreement, coherence=coherence)


def _fit_spline(powers: Array, curve: Curve) -> tuple[CubicSpline, Array]:
    """Return a log-likelihood by log-powers, through these and closer ones about the most likely.

    Also returns the latter.
    """
    values = curve(powers)
    likely = np.flatnonzero(values > values.max() - _MAX_LOSS)
    first, last = max(likely[0] - 1, 0), min(likely[-1] + 1, len(powers) - 1)
    refined = np.geomspace(powers[first], powers[last], _REFINED_SIZE)
    refined_values = curve(refined)
    # Each grid has particles of its own, so the two curves differ by a constant besides noise.
    refined_range = slice(first, last + 1)
    interpolated = CubicSpline(np.log(refined), refined_values)(np.log(powers[refined_range]))
    shift = float(np.mean(values[likely] - interpolated[likely - first]))
    outside = np.delete(np.arange(len(powers)), np.r_[refined_range])
    merged = np.concatenate([powers[outside], refined])
    heights = np.concatenate([values[outside], refined_values + shift])
    order = np.argsort(merged)
    return CubicSpline(np.log(merged[order]), heights[order]), refined


def _summarize(log_powers: Array, log_likelihoods: Array, source: str) -> Power:
    """Return the median and central 90 % of the posterior under a prior flat in log k."""
    mass = np.exp(log_likelihoods - logsumexp(log_likelihoods))
    cumulative = np.cumsum(mass) - 0.5 * mass
    low, value, high = np.exp(np.interp([0.05, 0.5, 0.95], cumulative, log_powers))
    sd = float(np.sqrt(mass @ np.square(log_powers - mass @ log_powers)))
    above_flat = float(log_likelihoods.max() - log_likelihoods[0])
    return Power(float(value), float(low), float(high), source, sd, above_flat=above_flat)
