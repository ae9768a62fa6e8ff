"""Draws of the posterior over beliefs: one density for each draw of the utility."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_elicit.density import errors
from llm_elicit.density.distribution import log_prob_per_unit, weighted_quantiles
from llm_elicit.density.errors import Array, DensityError
from llm_elicit.density.feature_axis import mask_codes
from llm_elicit.density.feature_names import FeatureNames
from llm_elicit.density.latent import Latent
from llm_elicit.density.methods import PotentialDensity, evaluate_utility
from llm_elicit.density.sampling import Uniform
from llm_elicit.density.settings import Progress
from llm_elicit.density.smc import sample_shared_points
from llm_elicit.density.utility_function import ComponentStack, Utility, UtilityDraws

_POINTS_PER_DRAW = 2048
_MIN_EFFECTIVE_SHARE = 0.3
# Effective shared points that are enough for a draw: with three times as many, ends of bands moved
# by .003 of their width, and drawing took three to five times as long.
_MIN_SHARED_POINTS = 200


@dataclass(frozen=True, repr=False)
class BeliefDraws:
    """S equally likely belief densities, made by `BeliefDensity.draws`.

    Results have an axis of length S in front, which `band` turns into a credible band.

    Attributes:
        points: S arrays (m, d), natural units.
        weights: S arrays (m,) that sum to one: each density is represented by weighted points.

    Features are given by number or name, and data frames are matched by name.

    Examples:
        >>> import numpy as np
        >>> from llm_elicit.density import Uniform, band, fit_belief
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.uniform(-3, 3, (2, 40, 1))
        >>> nearer = abs(a - 1) < abs(b - 1)
        >>> belief = fit_belief(np.where(nearer, a, b), np.where(nearer, b, a),
        ...                     sampling=Uniform([-3.0], [3.0]), method="utility")
        >>> low, high = band(belief.draws().mean())
        >>> bool(low < 1 < high)
        True
    """

    points: tuple[Array, ...]
    weights: tuple[Array, ...]
    _latent: Latent
    _utilities: UtilityDraws
    _factors: Tensor
    _log_normalizers: Array
    _feature_names: FeatureNames | None = None

    @property
    def _features(self) -> FeatureNames:
        return self._feature_names or FeatureNames.default(self.points[0].shape[1])

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        return f"BeliefDraws({len(self)} densities of {self._features})"

    def mean(self) -> Array:
        """Return means (S, d); of a category not-a-number, since it has `shares`."""
        means = self._map_draws(lambda x, weights: weights @ x)
        return mask_codes(means, self._latent.sampling, self._features)

    def quantile(self, levels: npt.ArrayLike) -> Array:
        """Return quantiles (S, L, d) of every feature at levels (L,).

        Those of categories without an order are not-a-number.
        """
        probabilities = errors.check_levels("quantile: levels", levels)

        def quantiles(x: Array, weights: Array) -> Array:
            order = np.argsort(x, axis=0)
            return np.stack([weighted_quantiles(x, w, probabilities, order) for w in weights])

        values = self._map_draws(quantiles)
        return mask_codes(values, self._latent.sampling, self._features, ordered=False)

    def sample(self, n: int) -> Array:
        """Return n equally weighted points (S, n, d) of every draw, by systematic resampling."""
        levels = (np.arange(errors.check_integer("sample: n", n, minimum=1)) + 0.5) / n
        points = []
        for x, weights in zip(self.points, self.weights, strict=True):
            indices = np.searchsorted(np.cumsum(weights), levels)
            points.append(x[indices.clip(max=len(weights) - 1)])
        return np.stack(points)

    def cdf(self, values: npt.ArrayLike) -> Array:
        """Return distribution functions (S, V, d) of every feature at values (V, d)."""
        values = self._features.to_array("cdf: values", values)
        points = errors.check_points("cdf: values", values, self.points[0].shape[1])
        return self._map_draws(
            lambda x, weights: np.stack([weights @ (x <= value) for value in points], axis=1)
        )

    def marginal(self, feature: int | str, edges: npt.ArrayLike) -> Array:
        """Return shares of mass (S, B) between edges (B + 1,) of one feature, natural units.

        Mass beyond the edges counts in the first and the last bin.

        Raises:
            DensityError: an unknown feature, or edges that do not increase.
        """
        column = self._features.index("marginal", feature)
        limits = errors.check_finite("marginal: edges", edges)
        if limits.ndim != 1 or limits.size < 2 or not (np.diff(limits) > 0).all():
            raise DensityError(
                "marginal: edges must be two or more numbers that increase; sort them."
            )
        bins = limits.size - 1

        def masses(x: Array, weights: Array) -> Array:
            index = np.searchsorted(limits, x[:, column], side="right") - 1
            return np.stack([np.bincount(index.clip(0, bins - 1), w, bins) for w in weights])

        return self._map_draws(masses)

    def _map_draws(self, function: Callable[[Array, Array], Array]) -> Array:
        """Return a function of points (m, d) and weights (G, m) for every draw, (S, ...).

        ``function`` returns (G, ...) for G draws that share their points.
        """
        draws_by_points: dict[int, list[int]] = {}
        for draw, x in enumerate(self.points):
            draws_by_points.setdefault(id(x), []).append(draw)
        groups = list(draws_by_points.values())
        parts = [
            function(self.points[g[0]], np.stack([self.weights[draw] for draw in g]))
            for g in groups
        ]
        return np.concatenate(parts)[np.argsort(np.concatenate(groups))]

    def shares(self, feature: int | str) -> Array:
        """Return shares of mass (S, K) of the K categories, or whole numbers, of one feature.

        Raises:
            DensityError: the feature has neither.
        """
        index = self._features.index("shares", feature)
        sampling = self._latent.sampling
        if not isinstance(sampling, Uniform) or not sampling.discrete[index]:
            raise DensityError(
                f"shares: feature {feature} has no categories; `marginal` takes edges instead."
            )
        codes = np.arange(sampling.low[index], sampling.high[index] + 1.0)
        return self.marginal(index, np.append(codes, codes[-1] + 1.0) - 0.5)

    def log_prob(self, x: npt.ArrayLike) -> Array:
        """Return log densities (S, n) at points (n, d), nats per natural unit.

        They are −inf outside the support. The columns of a data frame are matched by name.

        Raises:
            DensityError: points of another shape than (n, d), or a frame that lacks a feature.
        """
        log_normalizers = torch.from_numpy(self._log_normalizers)[:, None]

        def log_density(g: Tensor) -> Tensor:
            values = evaluate_utilities(self._latent, self._utilities, g, self._factors)
            return values - log_normalizers

        points = self._features.to_array("log_prob: x", x)
        return log_prob_per_unit(self._latent, log_density, points, (len(self),))


def evaluate_utilities(
    latent: Latent, draws: UtilityDraws, g: Tensor, factors: Tensor | None = None
) -> Tensor:
    """Return u (S, n) by every draw at latent points (n, d), with the taper of `Latent.taper`.

    ``factors`` (S,) multiply the utilities.
    """
    values = draws(latent.features(g))
    if factors is not None:
        values = values * factors.to(values)[:, None]
    return values + latent.taper(g)


def make_draws(
    belief: PotentialDensity,
    utilities: UtilityDraws,
    generator: torch.Generator,
    progress: Progress | None = None,
    log_level_sd: float = 0.0,
) -> BeliefDraws:
    """Return weighted points of every draw of the utility.

    Draws share points where their weights leave enough of them, see `sample_shared_points`. Any
    other draw is sampled for itself: from its mixture components if possible, else by annealing.

    Args:
        belief: the coordinates, and how beliefs are annealed in them.
        utilities: the draws.
        generator: draws the points.
        progress: called as progress("draws", done, total).
        log_level_sd: standard deviation of log factors (normal, mean 0) of the draws' utilities,
            which represent noise levels.
    """
    if errors.check_number("draws: log_level_sd", log_level_sd) < 0.0:
        raise DensityError(
            f"draws: log_level_sd = {log_level_sd}; a standard deviation is finite and >= 0; "
            "0 means that the noise level is known."
        )
    factors = torch.ones(len(utilities))
    if log_level_sd > 0:
        factors = torch.exp(log_level_sd * torch.randn(len(utilities), generator=generator))
    latent = belief.latent
    densities = partial(evaluate_utilities, latent, utilities, factors=factors)
    shared = sample_shared_points(latent, densities, belief.start, generator)
    shared_points = latent.from_latent(shared.points.numpy())
    samples: list[tuple[Array, Array, float]] = []
    for draw, utility in enumerate(utilities):
        if float(shared.effective_size[draw]) >= _MIN_SHARED_POINTS:
            weights, log_z = shared.weights[draw].numpy(), float(shared.log_normalizers[draw])
            samples.append((shared_points, weights, log_z))
        elif sample := sample_components(latent, utility.scaled(float(factors[draw])), generator):
            samples.append(sample)
        else:
            density = replace(belief, utility=utility.scaled(float(factors[draw])))
            annealed = density.anneal(_POINTS_PER_DRAW, generator)
            points_of_draw = latent.from_latent(annealed.draws.points.numpy())
            weights = np.full(_POINTS_PER_DRAW, 1.0 / _POINTS_PER_DRAW)
            samples.append((points_of_draw, weights, annealed.log_normalizer))
        if progress is not None:
            progress("draws", draw + 1, len(utilities))
    points, weights_of, log_normalizers = zip(*samples, strict=True)
    return BeliefDraws(points, weights_of, latent, utilities, factors, np.array(log_normalizers))


def sample_components(
    latent: Latent, utility: Utility, generator: torch.Generator
) -> tuple[Array, Array, float] | None:
    """Return points (m, d), weights (m,) and log Z of a draw; None if too few points would count.

    A component is normal in the features, so that weights only correct for the parts that λ's
    support and the taper cut off. This also samples components too narrow for annealed particles.
    """
    if utility.components:
        # With a share c of its logarithm, (Σ exp q_k)^c is within a factor K^(c−1) of
        # Σ exp(c q_k), which is a mixture again.
        stack = utility.components[0]
        if stack.tail.power != 1.0:
            return None
        share, root = stack.share, math.sqrt(stack.share)
        mixture = ComponentStack(root * stack.whiten, root * stack.offset, share * stack.height)
    else:
        # The quadratic form as a mixture of one, if it has a maximum.
        whiten, failed = torch.linalg.cholesky_ex(-2.0 * utility.curvature)
        if failed:
            return None
        offset = torch.linalg.solve_triangular(whiten, utility.linear[:, None], upper=False).T
        mixture = ComponentStack(whiten[None, None], offset[None], torch.zeros(1, 1))
    if utility.warp is not None:
        return None
    t = mixture.draw(_POINTS_PER_DRAW, generator)
    latent_and_unit = latent.from_features(t)
    if latent_and_unit is None:
        return None
    g, log_unit = latent_and_unit
    inside = g.isfinite().all(1)
    t, g = t[inside], g[inside]
    log_density = mixture(t.to(mixture.height))[0] - mixture.log_mass
    ratio = evaluate_utility(latent, utility, g) - log_density
    weights = torch.softmax(ratio, 0)
    if len(g) == 0 or 1.0 / float(weights.square().sum()) < _MIN_EFFECTIVE_SHARE * _POINTS_PER_DRAW:
        return None
    log_z = float(torch.logsumexp(ratio, 0)) - math.log(_POINTS_PER_DRAW) + log_unit
    return latent.from_latent(g.numpy()), weights.numpy(), log_z
