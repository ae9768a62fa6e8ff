"""The scale of a belief: which power k of exp(f) is the density, told by more than comparisons.

Comparisons tell f up to a factor, so the belief is one of p_k ∝ exp(k f). Four sources say which:

- *points* x_j stated or drawn from the belief: their likelihood Σ k f(x_j) − m log ∫ exp(k f);
- *quantiles* of features: the multinomial likelihood of the shares between them, by an effective
  number of points that suits how well they agree with any k (quasi-likelihood);
- *ratios*, "how many times as plausible": log-ratios measure k (f(a) − f(b));
- *ranges* compared: log-odds measure c (L_k(R) − L_k(R')), L_k(R) = log ∫_R exp(k f). Differences
  of log-width are known and tell c, and with it differences of density tell k.

f is not known exactly. Its posterior is represented by the belief's draws f_s = f̄ + Σ z_s δ_s,
z ~ N(0, I), along whose deviations every quantity above is linear to first order (for points, to
second), so that z is integrated out in closed form for each k of a grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats
from scipy.interpolate import CubicSpline
from scipy.special import logsumexp

from llm_elicit.density.belief import BeliefDensity
from llm_elicit.density.errors import DensityError
from llm_elicit.density.power_path import PowerPath, follow_powers, log_grid, whole
from llm_elicit.density.range_judgments import Coherence, RangeLikelihood, Ranges
from llm_elicit.density.threads import one_thread

Array = npt.NDArray[np.float64]

_SHARPNESS = (0.05, 400.0)  # bounds of the standard deviation of k f over λ, nats
_GRID = 40
_FINE = 4001
_PARTICLES = 2048
_FEW, _MANY = 5.0, 200.0  # bounds of the number of points that stated quantiles are worth
_NOISE_GRID = 25


@dataclass(frozen=True)
class Power:
    """A power k with its 90 % credible interval, under a prior flat in log k.

    ``source`` names where it comes from ("points", "quantiles", "ranges", "ratios", joined by
    " + "); ``log_sd`` is the standard deviation of log k. ``sources`` are the powers by each source
    alone, and ``agreement`` the p-value of a χ² test that they have one k in common, None for one
    source. ``coherence`` is what ranges say of the judge's reaction to width.
    """

    value: float
    low: float
    high: float
    source: str
    log_sd: float
    sources: tuple[Power, ...] = ()
    agreement: float | None = None
    coherence: Coherence | None = None

    def __post_init__(self) -> None:
        if not (np.isfinite([self.value, self.log_sd]).all() and self.value > 0):
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
    with one_thread():
        fitted = _PowerFit(belief, seed)
        found: dict[str, Array] = {}
        coherence = None
        if points is not None:
            found["points"] = fitted.of_points(points)
        if quantiles is not None:
            found["quantiles"] = fitted.of_quantiles(quantiles)
        if ranges is not None:
            found["ranges"], coherence = fitted.of_ranges(ranges)
        if ratios is not None:
            found["ratios"] = fitted.of_ratios(ratios)
    if not found:
        raise DensityError(
            "fit_power: no source was given; pass points, quantiles, ranges or ratios."
        )
    alone = [_summary(fitted.powers, curve, name) for name, curve in found.items()]
    alone = [replace(p, coherence=coherence) if p.source == "ranges" else p for p in alone]
    if len(alone) == 1:
        return replace(alone[0], sources=(alone[0],))
    joint = _summary(fitted.powers, sum(found.values(), np.zeros(_GRID)), " + ".join(found))
    agreement = _agreement(alone)
    return replace(joint, sources=tuple(alone), agreement=agreement, coherence=coherence)


def _summary(powers: Array, curve: Array, source: str) -> Power:
    """Median and central 90 % of the posterior under a prior flat in log k."""
    at = np.linspace(np.log(powers[0]), np.log(powers[-1]), _FINE)
    logs = CubicSpline(np.log(powers), curve - curve.max())(at)
    mass = np.exp(logs - logsumexp(logs))
    reached = np.cumsum(mass) - 0.5 * mass
    low, value, high = np.exp(np.interp([0.05, 0.5, 0.95], reached, at))
    sd = float(np.sqrt(mass @ np.square(at - mass @ at)))
    return Power(float(value), float(low), float(high), source, sd)


def _agreement(alone: Sequence[Power]) -> float:
    """p-value of Cochran's test that all have one log k in common."""
    logs, weight = np.log([p.value for p in alone]), np.array([p.log_sd for p in alone]) ** -2.0
    centre = weight @ logs / weight.sum()
    return float(stats.chi2.sf(weight @ np.square(logs - centre), len(alone) - 1))


class _PowerFit:
    """Log-likelihoods of a grid of powers (K,), by each source."""

    def __init__(self, belief: BeliefDensity, seed: int) -> None:
        self.belief = belief
        self.model, self.utilities = belief.utility_model("fit_power"), belief.utility_draws()
        self.latent, self.seed = self.model.latent, seed
        rng = np.random.default_rng([seed, 0x90])
        spread = float(belief.utility(belief.sampling.sample(4096, rng)).std())
        if not spread > 0.0:
            raise DensityError(
                "fit_power: the belief is flat, so every power of it is the same; a judge without "
                "a preference has no scale."
            )
        self.powers = log_grid(_SHARPNESS[0] / spread, _SHARPNESS[1] / spread, _GRID)
        self._whole: PowerPath | None = None

    def path(self, boxes: Array, particles: int) -> PowerPath:
        """Particles within boxes (G, d, 2) along the grid."""
        generator = torch.Generator().manual_seed(self.seed)
        return follow_powers(
            self.latent, self.model.utility, boxes, self.powers, particles, generator
        )

    @property
    def whole(self) -> PowerPath:
        """Those of the whole space, made once."""
        if self._whole is None:
            self._whole = self.path(whole(self.belief.dimension), _PARTICLES)
        return self._whole

    def deviations(self, g: torch.Tensor) -> Array:
        """δ_s at latent points (n, d): (S, n), so that draws are f̄ + Σ z_s δ_s, z ~ N(0, I)."""
        values = self.utilities(self.latent.features(g)).double().numpy()
        return np.asarray((values - values.mean(0)) / np.sqrt(len(values) - 1))

    def of_points(self, points: npt.ArrayLike) -> Array:
        """log p(points | k), averaged over the draws of f.

        Each draw's log Z is that of the mean utility to second order. The average over z in closed
        form would not do: at powers far too high it finds what fits the points tens of standard
        deviations from the mean, where the expansion does not hold.
        """
        x = _inside(self.belief, points, "points")
        g = torch.from_numpy(self.latent.to_latent(x))
        f, said = self.belief.utility(x).sum(), self.deviations(g).sum(1)
        m, curve, size = len(x), np.empty(_GRID), np.sqrt(len(said) - 1)
        for at, k in enumerate(self.powers):
            drawn = size * self.deviations(self.whole.points[at][0])
            pull = k * (size * said - m * drawn.mean(1)) - 0.5 * m * k**2 * drawn.var(1)
            of_draws = logsumexp(pull) - np.log(len(pull))
            curve[at] = k * f - m * self.whole.log_mass[0, at] + of_draws
        return curve

    def of_quantiles(self, quantiles: Mapping[int, Mapping[float, float]]) -> Array:
        """Multinomial log-likelihood of the shares between stated quantiles."""
        stated = [_stated(self.belief, feature, said) for feature, said in quantiles.items()]
        if not stated:
            raise DensityError("fit_power: quantiles are empty; give levels of one feature.")
        x = [self.latent.from_latent(points[0].numpy()) for points in self.whole.points]
        curves, least, free = [], 0.0, -1
        for feature, edges, shares in stated:
            logs = np.stack(
                [
                    self._log_shares(x[at], self.whole.points[at][0], feature, edges, k)
                    for at, k in enumerate(self.powers)
                ]
            )  # (K, S, B)
            curves.append(logs @ shares)
            free += len(shares) - 1
            least += float(shares @ np.log(shares))
        total = np.sum(curves, axis=0)
        deviance = 2.0 * (least - float(total.mean(1).max()))
        worth = float(np.clip(free / max(deviance, 1e-9), _FEW, _MANY)) if free else 2.0 * _FEW
        return np.asarray(logsumexp(worth * total, axis=1) - np.log(total.shape[1]))

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

    def of_ratios(self, ratios: Sequence[npt.ArrayLike]) -> Array:
        """log p(log-ratios | k), f and the dispersion integrated out."""
        if len(ratios) != 3:
            raise DensityError(
                f"fit_power: ratios has {len(ratios)} parts; pass (a, b, log_ratio)."
            )
        a, b = (_inside(self.belief, side, "ratios") for side in ratios[:2])
        y = np.asarray(ratios[2], dtype=np.float64)
        if not (a.shape == b.shape and y.shape == (len(a),) and np.isfinite(y).all()):
            raise DensityError(
                f"fit_power: ratios have shapes {a.shape}, {b.shape}, {y.shape}; a and b are (n, d)"
                " and log_ratio (n,), finite."
            )
        f = self.belief.utility(a) - self.belief.utility(b)
        sides = [torch.from_numpy(self.latent.to_latent(side)) for side in (a, b)]
        apart = (self.deviations(sides[0]) - self.deviations(sides[1])).T
        values, axes = np.linalg.eigh(apart @ apart.T)
        values, y, f = np.maximum(values, 0.0), axes.T @ y, axes.T @ f
        sizes = np.sqrt(np.mean(y**2)) * log_grid(0.02, 2.0, _NOISE_GRID)
        k = self.powers[:, None, None]
        variance = k**2 * values + np.square(sizes)[:, None]  # (K, noise, n)
        logs = -0.5 * (np.square(y - k * f) / variance + np.log(variance)).sum(-1)
        return np.asarray(logsumexp(logs, axis=1))

    def of_ranges(self, ranges: Ranges) -> tuple[Array, Coherence | None]:
        """log p(log-odds of ranges | k), and the test of the reaction to width."""
        likelihood = RangeLikelihood(ranges, self.belief, self.path, self.deviations, self.powers)
        return likelihood.curve(), likelihood.coherence()


def _inside(belief: BeliefDensity, values: npt.ArrayLike, name: str) -> Array:
    """Points (n, d) of the support."""
    x = np.asarray(values, dtype=np.float64)
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
    if not 0 <= int(feature) < belief.dimension or not said:
        raise DensityError(
            f"fit_power: quantiles of feature {feature!r}; features are numbered from 0 to "
            f"{belief.dimension - 1}, and each has at least one level."
        )
    levels = np.array(sorted(said), dtype=np.float64)
    values = np.array([said[level] for level in sorted(said)], dtype=np.float64)
    if not (np.isfinite(values).all() and (np.diff(values) > 0).all()):
        raise DensityError(
            f"fit_power: quantiles of feature {feature} are {values.tolist()}; they must be "
            "finite and increase with their levels."
        )
    if levels[0] <= 0.0 or levels[-1] >= 1.0:
        raise DensityError(
            f"fit_power: quantile levels {levels.tolist()} must lie strictly between 0 and 1."
        )
    return int(feature), values, np.diff(np.concatenate([[0.0], levels, [1.0]]))
