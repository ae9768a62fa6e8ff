"""The likelihood of a belief's power k by each kind of answer.

Comparisons determine f up to a factor, so the belief is one of p_k ∝ exp(k f). Four sources
determine k:

- *points* x_j stated or drawn from the belief: their likelihood Σ k f(x_j) − m log ∫ exp(k f);
- *quantiles* of features: the multinomial likelihood of the shares between them, with an effective
  number of points that fits how well they agree with any k (a quasi-likelihood);
- *ratios*, "how many times as plausible": log-ratios measure k (f(a) − f(b));
- *ranges* compared: log-odds measure c (L_k(R) − L_k(R')) with L_k(R) = log ∫_R exp(k f).
  Differences of log-width are known and determine c, and differences of density then determine k.

f has a posterior. For points and quantiles the likelihood is averaged over the belief's draws
of f. For ratios and ranges the posterior is f̄ + Σ z_s δ_s, z ~ N(0, I), with the draws'
deviations δ_s. Along them a log-ratio is linear, and so is the log-mass of a range to first order,
so that z is integrated out in closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import logsumexp

from llm_elicit.density.belief import BeliefDensity
from llm_elicit.density.errors import DensityError, finite, integer, number, numbers, table_of
from llm_elicit.density.power_path import PowerPath, follow_powers, log_grid, whole
from llm_elicit.density.ranges import RangeLikelihood, Ranges
from llm_elicit.density.uniform import Uniform
from llm_elicit.density.utility_density import utility_at

Array = npt.NDArray[np.float64]
Curve = Callable[[Array], Array]
"""Log-likelihoods (K,) at powers (K,)."""

_SHARPNESS = (0.05, 400.0)  # bounds of the standard deviation of k f over λ, nats
_GRID = 24
_PARTICLES, _MOST_PARTICLES = 2048, 16_384
_FEW, _MANY = 5.0, 200.0  # bounds of the number of points that stated quantiles are worth
_NOISE_GRID = 25
_POOL = 16_384


class PowerLikelihoods:
    """The log-likelihood of the power by each source, for a belief.

    Attributes
    ----------
    powers : (K,) the grid, from a nearly flat density to a very sharp one.
    """

    def __init__(self, belief: BeliefDensity, seed: int) -> None:
        self.belief = belief
        self.model, self.utilities = belief.utility_model("fit_power"), belief.utility_draws()
        self.latent, self.seed = self.model.latent, seed
        self.particles = _PARTICLES
        rng = np.random.default_rng([seed, 0x90])
        spread = float(belief.utility(belief.sampling.sample(4096, rng)).std())
        if not spread > 0.0:
            raise DensityError(
                "fit_power: the belief is flat, so that all its powers are equal; a judge without "
                "preferences has no scale."
            )
        self.powers = log_grid(_SHARPNESS[0] / spread, _SHARPNESS[1] / spread, _GRID)
        self._whole: dict[tuple[float, ...], PowerPath] = {}

    def path(self, boxes: Array, powers: Array, particles: int) -> PowerPath:
        """Return particles within boxes (G, d, 2) along powers (K,)."""
        generator = torch.Generator().manual_seed(self.seed)
        return follow_powers(self.latent, self.model.utility, boxes, powers, particles, generator)

    def whole(self, powers: Array) -> PowerPath:
        """Return particles of the whole space along powers (K,), computed once for equal powers."""
        key = tuple(powers.tolist())
        if key not in self._whole:
            self._whole[key] = self.path(whole(self.belief.dimension), powers, self.particles)
        return self._whole[key]

    def deviations(self, g: torch.Tensor) -> Array:
        """Return δ_s (S, n) at latent points (n, d): draws are f̄ + Σ z_s δ_s, z ~ N(0, I)."""
        values = self.utilities(self.latent.features(g)).double().numpy()
        return np.asarray((values - values.mean(0)) / np.sqrt(len(values) - 1))

    def of_points(self, points: npt.ArrayLike) -> Curve:
        """Return log p(points | k), averaged over the draws of f.

        Each draw has its own log Z(k), by importance sampling from the particles of all powers
        together, since those of flat powers also cover where a draw exceeds the mean utility.
        The expansion in z would be wrong at powers far too high, where z is far from 0.
        """
        x = _inside(self.belief, points, "points")
        m = len(x)
        # The error of means over particles must be less than that of means over the points.
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
        """Return the multinomial log-likelihood of the shares between stated quantiles."""
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
        """Return log-likelihoods (K, S) of stated quantiles, per point of their worth, by draw."""
        path = self.whole(powers)
        x = [self._values(points[0]) for points in path.points]
        return np.array([
            sum(
                self._log_shares(x[at], path.points[at][0], feature, edges, k) @ shares
                for feature, edges, shares in stated
            )
            for at, k in enumerate(powers)
        ])  # fmt: skip

    def _values(self, g: torch.Tensor) -> Array:
        """Return latent points (n, d) in natural units, whole numbers spread over their cells.

        Half of a whole number's mass then lies below a quantile that is this number.
        """
        sampling = self.latent.sampling
        if isinstance(sampling, Uniform):
            return sampling.in_cells(torch.special.ndtr(g).numpy())
        return self.latent.from_latent(g.numpy())

    def _log_shares(
        self, x: Array, g: torch.Tensor, feature: int, edges: Array, power: float
    ) -> Array:
        """Return log shares (S, B) of mass between edges, by draw, to first order."""
        bins = np.searchsorted(edges, x[:, feature])
        member = np.eye(len(edges) + 1)[bins]
        share = member.mean(0)
        delta = self.deviations(g)
        delta = delta * np.sqrt(len(delta) - 1)
        moved = (delta - delta.mean(1, keepdims=True)) @ member / len(member)
        least = 0.5 / len(member)
        # A first-order change of the shares themselves could make them negative.
        logs = np.log(np.maximum(share, least)) + np.clip(
            power * moved / np.maximum(share, least), -5.0, 5.0
        )
        return np.asarray(logs - logsumexp(logs, axis=1, keepdims=True))

    def of_ratios(self, ratios: Sequence[npt.ArrayLike]) -> Curve:
        """Return log p(log-ratios | k), with f and the dispersion integrated out."""
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
                "fit_power: the log-ratios of ratios are all 0, as those of a flat belief are, and "
                "this belief is not flat at any power; leave ratios out."
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
        """Return log p(log-odds of ranges | k), with the test of the reaction to width."""
        return RangeLikelihood(ranges, self.belief, self.path, self.deviations)


def _inside(belief: BeliefDensity, values: npt.ArrayLike, name: str) -> Array:
    """Return points (n, d) of the support, n >= 1."""
    where = f"fit_power: {name}"
    return belief.inside(where, table_of(where, values))


def _stated(
    belief: BeliefDensity, feature: int, said: Mapping[float, float]
) -> tuple[int, Array, Array]:
    """Return (feature, values (B − 1,), shares (B,)) of stated quantiles."""
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
    # Medians of several statements need not be whole where values are.
    low, high = (ends[int(feature)] for ends in belief.as_prior().support())
    outside = values[(values < low) | (values > high)]
    if outside.size:
        raise DensityError(
            f"fit_power: the quantile {outside[0]} of feature {feature} lies outside the support of"
            " the belief; state quantiles inside it."
        )
    if levels[0] <= 0.0 or levels[-1] >= 1.0:
        raise DensityError(
            f"fit_power: quantile levels {levels.tolist()} must lie strictly between 0 and 1."
        )
    return int(feature), values, np.diff(np.concatenate([[0.0], levels, [1.0]]))
