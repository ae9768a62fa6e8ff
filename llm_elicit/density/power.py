"""The scale of a belief: which power k of exp(f) is the density, told by more than comparisons.

Comparisons tell f up to a factor, so the belief is one of p_k ∝ exp(k f). Four sources say which:

- *points* x_j stated or drawn from the belief: their likelihood Σ k f(x_j) − m log ∫ exp(k f);
- *quantiles* of features: the multinomial likelihood of the shares between them, by an effective
  number of points that suits how well they agree with any k (quasi-likelihood);
- *ratios*, "how many times as plausible": log-ratios measure k (f(a) − f(b));
- *ranges* compared: log-odds measure c (L_k(R) − L_k(R')), L_k(R) = log ∫_R exp(k f). Differences
  of log-width are known and tell c, and with it differences of density tell k.

f is not known exactly. For points and quantiles the likelihood is averaged over the belief's draws
of f. For ratios and ranges the posterior is f̄ + Σ z_s δ_s, z ~ N(0, I), with the draws'
deviations δ_s; along them a log-ratio is linear, and the log-mass of a range to first order, so
that z is integrated out in closed form.

A likelihood is known at a grid of powers, and at a finer one about the likeliest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats
from scipy.interpolate import CubicSpline
from scipy.special import logsumexp

from llm_elicit.density.belief import BeliefDensity
from llm_elicit.density.errors import (
    DensityError,
    finite,
    instance,
    integer,
    number,
    numbers,
    seed_of,
)
from llm_elicit.density.power_path import PowerPath, follow_powers, log_grid, whole
from llm_elicit.density.ranges import Coherence, RangeLikelihood, Ranges
from llm_elicit.density.torch_utils import one_thread
from llm_elicit.density.utility_density import utility_at

Array = npt.NDArray[np.float64]
Curve = Callable[[Array], Array]
"""Log-likelihoods (K,) at powers (K,)."""

_SHARPNESS = (0.05, 400.0)  # bounds of the standard deviation of k f over λ, nats
_GRID, _FINER = 24, 16
_LIKELY = 8.0  # nats below the most likely power, beyond which nothing is looked at closely
_FINE = 4001
_PARTICLES, _MOST_PARTICLES = 2048, 16_384
_FEW, _MANY = 5.0, 200.0  # bounds of the number of points that stated quantiles are worth
_NOISE_GRID = 25
_POOL = 16_384


@dataclass(frozen=True)
class Power:
    """A power k with its 90 % credible interval, under a prior flat in log k.

    ``source`` names where it comes from ("points", "quantiles", "ranges", "ratios", joined by
    " + "); ``log_sd`` is the standard deviation of log k. ``sources`` are the powers by each source
    alone, and ``agreement`` the p-value of a χ² test that they have one k in common, None for one
    source. ``coherence`` is what ranges say of the judge's reaction to width. ``above_flat`` is by
    how many nats the likelihood at its maximum exceeds that at the flattest power looked at.
    """

    value: float
    low: float
    high: float
    source: str
    log_sd: float
    sources: tuple[Power, ...] = ()
    agreement: float | None = None
    coherence: Coherence | None = None
    above_flat: float = 0.0

    def __post_init__(self) -> None:
        values = [number("Power: value", self.value), number("Power: log_sd", self.log_sd)]
        if not (np.isfinite(values).all() and self.value > 0):
            raise DensityError(
                f"Power: value {self.value} with log_sd {self.log_sd}; a power is a finite number "
                "> 0; fit_power makes one."
            )


def fit_power(
    belief: BeliefDensity,
    *,
    points: npt.ArrayLike | None = None,
    quantiles: Mapping[int, Mapping[float, float]] | None = None,
    ranges: Ranges | None = None,
    ratios: Sequence[npt.ArrayLike] | None = None,
    seed: int = 0,
) -> Power:
    """The power k at which exp(k f) is the judge's density, f the belief's utility.

    Parameters
    ----------
    belief : fitted by "auto" or "utility"; the power is relative to it.
    points : (m, d) that the judge stated, or that were drawn from its density, natural units.
    quantiles : for each feature, by number, values of its quantiles by level: {0: {0.5: 3.1}}.
    ranges : `Ranges` compared by the judge.
    ratios : (a, b, log_ratio), (n, d), (n, d) and (n,): log of how many times as plausible a is.
    seed : of the random numbers of integration.

    Returns
    -------
    The `Power` by all sources given, each also alone in ``sources``.

    Raises
    ------
    DensityError : no source, points outside the support, quantiles that do not increase, ranges
        outside the support, values that are not finite, a flat belief, or one by another method.

    Examples
    --------
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
    instance("fit_power: belief", belief, BeliefDensity, "fit one first")
    if ranges is not None:
        instance("fit_power: ranges", ranges, Ranges, "make it by Ranges(first, second, log_odds)")
    if quantiles is not None and not isinstance(quantiles, Mapping):
        raise DensityError(
            f"fit_power: quantiles = {quantiles!r}; pass {{feature: {{level: value}}}}."
        )
    seed_of("fit_power: seed", seed)
    with one_thread():
        fitted = _PowerFit(belief, seed)
        found: dict[str, Curve] = {}
        coherence = None
        if points is not None:
            found["points"] = fitted.of_points(points)
        if quantiles is not None:
            found["quantiles"] = fitted.of_quantiles(quantiles)
        if ranges is not None:
            likelihood = fitted.of_ranges(ranges)
            found["ranges"] = likelihood.curve
        if ratios is not None:
            found["ratios"] = fitted.of_ratios(ratios)
        if not found:
            raise DensityError(
                "fit_power: no source was given; pass points, quantiles, ranges or ratios."
            )
        nodes = {name: _nodes(fitted.powers, curve) for name, curve in found.items()}
        if ranges is not None:
            coherence = likelihood.coherence(nodes["ranges"].likely)
    at = np.linspace(np.log(fitted.powers[0]), np.log(fitted.powers[-1]), _FINE)
    curves = {name: each.curve(at) for name, each in nodes.items()}
    alone = [_summary(at, curve, name) for name, curve in curves.items()]
    alone = [replace(p, coherence=coherence) if p.source == "ranges" else p for p in alone]
    if len(alone) == 1:
        return replace(alone[0], sources=(alone[0],))
    joint = _summary(at, sum(curves.values(), np.zeros(_FINE)), " + ".join(found))
    agreement = _agreement(alone)
    return replace(joint, sources=tuple(alone), agreement=agreement, coherence=coherence)


@dataclass(frozen=True)
class _Nodes:
    """A log-likelihood at powers (K,), those of them that are ``likely`` (L,), and its spline."""

    powers: Array
    values: Array
    likely: Array

    def curve(self, at: Array) -> Array:
        """Values (n,) at log-powers (n,)."""
        return np.asarray(CubicSpline(np.log(self.powers), self.values)(at))


def _nodes(powers: Array, curve: Curve) -> _Nodes:
    """A log-likelihood at these powers, and at closer ones about the likeliest."""
    values = curve(powers)
    near = np.flatnonzero(values > values.max() - _LIKELY)
    first, last = max(near[0] - 1, 0), min(near[-1] + 1, len(powers) - 1)
    finer = log_grid(powers[first], powers[last], _FINER)
    closer = curve(finer)
    # Both are by particles of their own: what they have in common is taken for alike.
    within = slice(first, last + 1)
    matched = CubicSpline(np.log(finer), closer)(np.log(powers[within]))
    shift = float(np.mean(values[near] - matched[near - first]))
    outside = np.delete(np.arange(len(powers)), np.r_[within])
    merged = np.concatenate([powers[outside], finer])
    both = np.concatenate([values[outside], closer + shift])
    order = np.argsort(merged)
    return _Nodes(merged[order], both[order], finer)


def _summary(at: Array, logs: Array, source: str) -> Power:
    """Median and central 90 % of the posterior under a prior flat in log k."""
    mass = np.exp(logs - logsumexp(logs))
    reached = np.cumsum(mass) - 0.5 * mass
    low, value, high = np.exp(np.interp([0.05, 0.5, 0.95], reached, at))
    sd = float(np.sqrt(mass @ np.square(at - mass @ at)))
    above_flat = float(logs.max() - logs[0])
    return Power(float(value), float(low), float(high), source, sd, above_flat=above_flat)


def _agreement(alone: Sequence[Power]) -> float:
    """p-value of Cochran's test that all have one log k in common."""
    logs, weight = np.log([p.value for p in alone]), np.array([p.log_sd for p in alone]) ** -2.0
    centre = weight @ logs / weight.sum()
    return float(stats.chi2.sf(weight @ np.square(logs - centre), len(alone) - 1))


class _PowerFit:
    """The log-likelihood of each source; ``powers`` (K,) are all that come into question."""

    def __init__(self, belief: BeliefDensity, seed: int) -> None:
        self.belief = belief
        self.model, self.utilities = belief.utility_model("fit_power"), belief.utility_draws()
        self.latent, self.seed = self.model.latent, seed
        self.particles = _PARTICLES
        rng = np.random.default_rng([seed, 0x90])
        spread = float(belief.utility(belief.sampling.sample(4096, rng)).std())
        if not spread > 0.0:
            raise DensityError(
                "fit_power: the belief is flat, so every power of it is the same; a judge without "
                "a preference has no scale."
            )
        self.powers = log_grid(_SHARPNESS[0] / spread, _SHARPNESS[1] / spread, _GRID)
        self._whole: dict[tuple[float, ...], PowerPath] = {}

    def path(self, boxes: Array, powers: Array, particles: int) -> PowerPath:
        """Particles within boxes (G, d, 2) along powers (K,)."""
        generator = torch.Generator().manual_seed(self.seed)
        return follow_powers(self.latent, self.model.utility, boxes, powers, particles, generator)

    def whole(self, powers: Array) -> PowerPath:
        """Those of the whole space, made once for the same powers."""
        key = tuple(powers.tolist())
        if key not in self._whole:
            self._whole[key] = self.path(whole(self.belief.dimension), powers, self.particles)
        return self._whole[key]

    def deviations(self, g: torch.Tensor) -> Array:
        """δ_s at latent points (n, d): (S, n), so that draws are f̄ + Σ z_s δ_s, z ~ N(0, I)."""
        values = self.utilities(self.latent.features(g)).double().numpy()
        return np.asarray((values - values.mean(0)) / np.sqrt(len(values) - 1))

    def of_points(self, points: npt.ArrayLike) -> Curve:
        """log p(points | k), averaged over the draws of f.

        Each draw has its own log Z(k), by importance sampling from the particles of all powers
        together: those of the flat ones are also where a draw, and not the mean utility, is high.
        The average over z in closed form would not do: at powers far too high it finds what fits
        the points tens of standard deviations from the mean, where the expansion does not hold.
        """
        x = _inside(self.belief, points, "points")
        m = len(x)
        # Means over particles must be better known than those over the points.
        self.particles = int(np.clip(4 * m, _PARTICLES, _MOST_PARTICLES))
        path = self.whole(self.powers)
        pool = torch.cat([each[0] for each in path.points])
        pool = pool[:: -(-len(pool) // _POOL)]
        f = utility_at(self.latent, self.model.utility, pool).double().numpy()
        logs = self.powers * f[:, None] - path.log_mass[0]
        proposal = logsumexp(logs, axis=1) - np.log(len(self.powers))
        size = np.sqrt(len(self.deviations(pool[:1])) - 1)
        draws = f + size * self.deviations(pool)
        g = torch.from_numpy(self.latent.to_latent(x))
        said = self.belief.utility(x).sum() + size * self.deviations(g).sum(1)

        def curve(powers: Array) -> Array:
            values = np.empty(len(powers))
            for at, k in enumerate(powers):
                log_z = logsumexp(k * draws - proposal, axis=1) - np.log(len(pool))
                values[at] = logsumexp(k * said - m * log_z) - np.log(len(said))
            return values

        return curve

    def of_quantiles(self, quantiles: Mapping[int, Mapping[float, float]]) -> Curve:
        """Multinomial log-likelihood of the shares between stated quantiles."""
        stated = [_stated(self.belief, feature, said) for feature, said in quantiles.items()]
        if not stated:
            raise DensityError("fit_power: quantiles are empty; give levels of one feature.")
        least = sum(float(shares @ np.log(shares)) for _, _, shares in stated)
        free = sum(len(shares) - 1 for _, _, shares in stated) - 1
        deviance = 2.0 * (least - float(self._agreement(stated, self.powers).mean(1).max()))
        worth = float(np.clip(free / max(deviance, 1e-9), _FEW, _MANY)) if free else 2.0 * _FEW

        def curve(powers: Array) -> Array:
            total = self._agreement(stated, powers)
            return np.asarray(logsumexp(worth * total, axis=1) - np.log(total.shape[1]))

        return curve

    def _agreement(self, stated: Sequence[tuple[int, Array, Array]], powers: Array) -> Array:
        """Log-likelihoods (K, S) of one point's worth of stated quantiles, by every draw."""
        path = self.whole(powers)
        x = [self.latent.from_latent(points[0].numpy()) for points in path.points]
        return np.array([
            sum(
                self._log_shares(x[at], path.points[at][0], feature, edges, k) @ shares
                for feature, edges, shares in stated
            )
            for at, k in enumerate(powers)
        ])  # fmt: skip

    def _log_shares(
        self, x: Array, g: torch.Tensor, feature: int, edges: Array, power: float
    ) -> Array:
        """Log shares (S, B) of mass between edges, by every draw to first order."""
        bins = np.searchsorted(edges, x[:, feature])
        member = np.eye(len(edges) + 1)[bins]
        share = member.mean(0)
        delta = self.deviations(g)
        delta = delta * np.sqrt(len(delta) - 1)
        moved = (delta - delta.mean(1, keepdims=True)) @ member / len(member)
        least = 0.5 / len(member)
        # A first-order change of log odds keeps shares positive where one of shares would not.
        logs = np.log(np.maximum(share, least)) + np.clip(
            power * moved / np.maximum(share, least), -5.0, 5.0
        )
        return np.asarray(logs - logsumexp(logs, axis=1, keepdims=True))

    def of_ratios(self, ratios: Sequence[npt.ArrayLike]) -> Curve:
        """log p(log-ratios | k), f and the dispersion integrated out."""
        if not isinstance(ratios, list | tuple) or len(ratios) != 3:
            raise DensityError("fit_power: ratios must be the three arrays (a, b, log_ratio).")
        a, b = (_inside(self.belief, side, "ratios") for side in ratios[:2])
        y = finite("fit_power: ratios", numbers("fit_power: ratios", ratios[2]))
        if not (a.shape == b.shape and y.shape == (len(a),) and np.isfinite(y).all()):
            raise DensityError(
                f"fit_power: ratios have shapes {a.shape}, {b.shape}, {y.shape}; a and b are (n, d)"
                " and log_ratio (n,), finite."
            )
        if not y.any():
            raise DensityError(
                "fit_power: the log-ratios of ratios are all 0: every point is said to be as "
                "plausible as every other, which no power of a belief that is not flat says."
            )
        f = self.belief.utility(a) - self.belief.utility(b)
        sides = [torch.from_numpy(self.latent.to_latent(side)) for side in (a, b)]
        apart = (self.deviations(sides[0]) - self.deviations(sides[1])).T
        values, axes = np.linalg.eigh(apart @ apart.T)
        values, y, f = np.maximum(values, 0.0), axes.T @ y, axes.T @ f
        sizes = np.sqrt(np.mean(y**2)) * log_grid(0.02, 2.0, _NOISE_GRID)

        def curve(powers: Array) -> Array:
            k = powers[:, None, None]
            variance = k**2 * values + np.square(sizes)[:, None]  # (K, noise, n)
            logs = -0.5 * (np.square(y - k * f) / variance + np.log(variance)).sum(-1)
            return np.asarray(logsumexp(logs, axis=1))

        return curve

    def of_ranges(self, ranges: Ranges) -> RangeLikelihood:
        """log p(log-odds of ranges | k), and the test of the reaction to width."""
        return RangeLikelihood(ranges, self.belief, self.path, self.deviations)


def _inside(belief: BeliefDensity, values: npt.ArrayLike, name: str) -> Array:
    """Points (n, d) of the support."""
    x = numbers(f"fit_power: {name}", values)
    if x.ndim != 2 or x.shape[1] != belief.dimension or not len(x):
        raise DensityError(
            f"fit_power: {name} has shape {x.shape}; points are (m, {belief.dimension}), m >= 1."
        )
    outside = np.flatnonzero(~belief.sampling.contains(x))
    if outside.size:
        raise DensityError(
            f"fit_power: {name}[{outside[0]}] = {x[outside[0]].tolist()} lies outside the support "
            f"of the belief ({outside.size} such rows); leave those out."
        )
    return x


def _stated(
    belief: BeliefDensity, feature: int, said: Mapping[float, float]
) -> tuple[int, Array, Array]:
    """(feature, values (B − 1,), shares (B,)) of stated quantiles."""
    integer("fit_power: quantiles, a feature's number", feature, most=belief.dimension - 1)
    if not isinstance(said, Mapping) or not said:
        raise DensityError(
            f"fit_power: quantiles of feature {feature}: {said!r}; pass {{level: value}}."
        )
    for level, value in said.items():
        number("fit_power: a quantile's level", level)
        number("fit_power: a quantile's value", value)
    levels = np.array(sorted(said), dtype=np.float64)
    values = np.array([said[level] for level in sorted(said)], dtype=np.float64)
    if not (np.isfinite(values).all() and (np.diff(values) > 0).all()):
        raise DensityError(
            f"fit_power: quantiles of feature {feature} are {values.tolist()}; they must be "
            "finite and increase with their levels."
        )
    point = np.repeat(belief.sample(1), len(values), axis=0)
    point[:, int(feature)] = values
    outside = values[~belief.sampling.contains(point)]
    if outside.size:
        raise DensityError(
            f"fit_power: the quantile {outside[0]} of feature {feature} lies outside the support of"
            " the belief; state those of values that were asked about."
        )
    if levels[0] <= 0.0 or levels[-1] >= 1.0:
        raise DensityError(
            f"fit_power: quantile levels {levels.tolist()} must lie strictly between 0 and 1."
        )
    return int(feature), values, np.diff(np.concatenate([[0.0], levels, [1.0]]))
