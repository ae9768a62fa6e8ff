"""A probability density in natural units, with its own methods and with those of SciPy.

The density is evaluated and sampled in the latent coordinates of λ by a `DensityModel`. Moments,
quantiles and the mode are those of draws kept with the fit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from torch import Tensor

from llm_elicit.density import errors
from llm_elicit.density.errors import Array, DensityError, Flags
from llm_elicit.density.feature_axis import category_names, mask_codes
from llm_elicit.density.feature_names import FeatureNames
from llm_elicit.density.latent import Latent
from llm_elicit.density.likelihood import Noise
from llm_elicit.density.methods import DensityModel, UtilityDensity
from llm_elicit.density.sampling import SamplingDensity, Uniform, check_inside
from llm_elicit.density.torch_utils import make_generator, one_thread
from llm_elicit.density.utility_function import DeferredDraws

LogProb = Callable[[npt.ArrayLike], Array]
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of the quantiles in summaries."""
_STARTS = 5
_STEP = 1e-4
_MIN_GAIN = 1e-9  # nats


@dataclass(frozen=True)
class Marginal:
    """One feature's mean, standard deviation, and quantiles by level, natural units."""

    mean: float
    sd: float
    quantiles: dict[float, float]


@dataclass(frozen=True)
class Coherence:
    """How a judge reacts to the width of ranges.

    Attributes:
        width: (value, low, high), the coefficient of the difference of log-widths in the log-odds,
            beside that of the mean density within the ranges, with its 95 % interval.
        expected: the coefficient of a judge who has a density and otherwise answers alike.
        p_value: p-value of the hypothesis that the coefficient is the expected one.
    """

    width: tuple[float, float, float]
    expected: float
    p_value: float

    @property
    def coherent(self) -> bool:
        """Whether the answers may come from a density: the test does not reject it at 5 %."""
        return self.p_value >= 0.05


@dataclass(frozen=True)
class Power:
    """A power k with its 90 % credible interval, under a prior flat in log k.

    Attributes:
        value: the posterior median; by points alone, the power at which the fit is nearest to them.
        low: lower end of the 90 % interval; by points alone, of the judge's own power.
        high: upper end of the interval.
        source: what determines it: "points", "quantiles", "ranges", "ratios", joined by " + ".
        log_sd: the standard deviation of log k.
        sources: the powers by each single source.
        agreement: the p-value of a χ² test that all sources have one k; None for one source.
        coherence: the judge's reaction to width, if there are ranges.
        above_flat: by how many nats the maximum of the likelihood exceeds that of the flattest
            power.

    Raises:
        DensityError: a value that is not finite and > 0, or a log_sd that is not finite.
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
        errors.check_number("Power: log_sd", self.log_sd)
        if not errors.check_number("Power: value", self.value) > 0:
            raise DensityError(
                f"Power: value {self.value} with log_sd {self.log_sd}; a power is a finite number "
                "> 0; fit_power makes one."
            )


def band(values: Array, level: float = 0.9) -> tuple[Array, Array]:
    """Return the lower and upper ends of the central credible band of values (S, ...) by draw.

    Raises:
        DensityError: no values, or a level that is not between 0 and 1. Values that are
            not-a-number in every draw, as the means of categories, have such a band.

    Examples:
        >>> import numpy as np
        >>> low, high = band(np.arange(1.0, 100.0), 0.9)
        >>> float(low.round(6)), float(high.round(6))
        (5.0, 95.0)
    """
    errors.check_fraction("band: level", level)
    values = errors.check_numbers("band: values", values)
    all_nan = np.isnan(values).all(axis=0) if values.ndim and values.size else False
    errors.check_finite("band: values", np.where(all_nan, 0.0, values))
    if not values.ndim or not values.size:
        raise DensityError("band: values is empty; it needs one value for each draw.")
    tail = 0.5 - 0.5 * level
    # The truth has each of the S + 1 ranks among the draws equally often, as "weibull" assumes.
    low, high = np.quantile(values, [tail, 1.0 - tail], axis=0, method="weibull")
    return np.asarray(low), np.asarray(high)


def weighted_quantiles(
    x: Array, weights: Array, levels: Array, order: npt.NDArray[np.intp] | None = None
) -> Array:
    """Return quantiles (L, d) at levels (L,) of points (m, d) with weights (m,) that sum to one.

    ``order`` (m, d) sorts each column; it saves time for many weights of the same points.

    Examples:
        >>> import numpy as np
        >>> x, weights = np.array([[1.0], [2.0], [9.0]]), np.array([0.5, 0.5, 0.0])
        >>> weighted_quantiles(x, weights, np.array([0.25, 0.5])).tolist()
        [[1.0], [1.5]]
    """
    order = np.argsort(x, axis=0) if order is None else order
    quantiles = np.empty((len(levels), x.shape[1]))
    for j, sorted_rows in enumerate(order.T):
        cumulative = np.cumsum(weights[sorted_rows]) - 0.5 * weights[sorted_rows]
        quantiles[:, j] = np.interp(levels, cumulative, x[sorted_rows, j])
    return quantiles


def log_prob_per_unit(
    latent: Latent, log_density: Callable[[Tensor], Tensor], x: object, shape: tuple[int, ...] = ()
) -> Array:
    """Return log densities (..., n) per natural unit at points (n, d), −inf outside the support.

    Args:
        latent: the coordinates.
        log_density: of latent points (n, d), (..., n) per scale unit, nats.
        x: the points, natural units.
        shape: the axes before the last: none, or that of S draws.
    """
    sampling = latent.sampling
    points = errors.check_points("log_prob: x", x, sampling.dimension, infinite=True)
    inside = sampling.contains(points)
    result = np.full((*shape, len(points)), -np.inf)
    if inside.any():
        interior = points[inside]
        with one_thread():
            per_scale = log_density(torch.from_numpy(latent.to_latent(interior))).numpy()
        result[..., inside] = per_scale + sampling.log_scale_derivative(interior)
    return result


@dataclass(frozen=True)
class CredibleRegion:
    """The points of log density ``threshold`` or more: the smallest region of mass ``level``.

    Examples:
        >>> import numpy as np
        >>> region = CredibleRegion(0.68, -0.5, lambda x: -0.5 * np.square(x).sum(1))   # of N(0, 1)
        >>> region.contains([[0.5], [2.0]]).tolist()
        [True, False]
    """

    level: float
    threshold: float
    log_prob: LogProb

    def contains(self, x: npt.ArrayLike) -> Flags:
        """Return whether each of points (n, d), natural units, lies in the region: (n,) bools."""
        return np.asarray(self.log_prob(x) >= self.threshold)


def find_mode(log_prob: LogProb, draws: Array, max_change: Array | None = None) -> Array:
    """Return the point (d,) of highest density near ``draws`` (n, d).

    L-BFGS starts from the five draws of highest density, in units of the draws' standard
    deviations. Whole numbers are then changed by powers of two, one feature at a time, in turns
    with L-BFGS, until nothing is higher.

    Args:
        log_prob: the log-density.
        draws: (n, d) points of the distribution.
        max_change: (d,) the largest change of each whole number, 0 of other features; None if
            there are no whole numbers.

    Examples:
        >>> import numpy as np
        >>> peak = np.array([1.0, -2.0])
        >>> draws = np.random.default_rng(0).normal(peak, 1.0, (500, 2))
        >>> find_mode(lambda x: -((np.asarray(x) - peak) ** 2).sum(1), draws).round(2).tolist()
        [1.0, -2.0]
    """
    scale = draws.std(axis=0).clip(min=1e-12)
    starts = draws[np.argsort(log_prob(draws))[::-1][:_STARTS]]
    steps = _STEP * np.eye(draws.shape[1])

    def downhill(z: Array) -> tuple[float, Array]:
        neighbours = np.concatenate([z[None], z + steps, z - steps]) * scale
        value, forward, backward = np.split(log_prob(neighbours), [1, 1 + len(steps)])
        # Outside λ's support the density is 0, and a difference across its bounds has no meaning.
        inside = np.isfinite(forward) & np.isfinite(backward)
        gradient = np.subtract(forward, backward, out=np.zeros_like(forward), where=inside) / (
            2.0 * _STEP
        )
        return (-float(value[0]), -gradient) if np.isfinite(value[0]) else (1e10, 0.0 * gradient)

    def maximize_from(starts: Array) -> tuple[Array, float]:
        optima = [minimize(downhill, x / scale, jac=True, method="L-BFGS-B").x for x in starts]
        points = np.concatenate([starts, np.stack(optima) * scale])
        values = log_prob(points)
        return points[int(np.argmax(values))], float(np.max(values))

    point, value = maximize_from(starts)
    if max_change is None or not max_change.any():
        return point
    changes = np.concatenate([
        np.outer([sign * 2.0**i for i in range(int(np.log2(limit)) + 1) for sign in (1, -1)], unit)
        for unit, limit in zip(np.eye(len(point)), max_change, strict=True)
        if limit >= 1.0
    ])  # fmt: skip
    while True:
        improved, best = point, -1
        while best:
            neighbours = np.concatenate([improved[None], improved + changes])
            values = log_prob(neighbours)
            best = int(np.argmax(values)) if values.max() > values[0] + _MIN_GAIN else 0
            improved = neighbours[best]
        improved, improved_value = maximize_from(improved[None])
        if improved_value <= value + _MIN_GAIN:
            return point
        point, value = improved, improved_value


class Distribution:
    """A density over the features: draws, log densities, moments and quantiles.

    Args:
        latent, model: the coordinates, and the density in them.
        reference: (m, d) latent draws, from which moments and quantiles are computed.
        diagnostics: the JSON-able report of the fit.
        draws: draws of the posterior over utilities; None for a belief without.
        features: names of the features; x0, x1, ... by default.
    """

    def __init__(
        self,
        latent: Latent,
        model: DensityModel,
        reference: Tensor,
        diagnostics: dict[str, Any],
        draws: DeferredDraws | None = None,
        features: FeatureNames | None = None,
    ) -> None:
        self._latent, self._model, self._reference = latent, model, reference
        self.diagnostics, self._draws = diagnostics, draws
        if features is not None:
            self._features = features

    @cached_property
    def _features(self) -> FeatureNames:
        """The names of the features."""
        return FeatureNames.default(self.dimension)

    @property
    def sampling(self) -> SamplingDensity:
        """The sampling density λ of the compared points."""
        return self._latent.sampling

    @property
    def noise(self) -> Noise:
        """The judge's noise that the fit assumed.

        Raises:
            DensityError: a pool, which is not fitted to choices.
        """
        if "noise" not in self.diagnostics:
            raise DensityError(
                f"noise: a {self._model.name} is not fitted to choices; use that of its beliefs."
            )
        return Noise(**self.diagnostics["noise"])

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return self.sampling.dimension

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features, in the order of the columns of points."""
        return self._features.names

    def named(
        self,
        names: Sequence[str],
        categories: Mapping[Any, Sequence[str]] | None = None,
        dates: Collection[Any] = (),
    ) -> Self:
        """Return the same density with names of its features, and words of categories' codes.

        Points may then be data frames, and features be given by name. Categories and dates (days
        since 1 January 1970) are keyed by a feature's name or number.

        Raises:
            DensityError: not one name for each feature, each of its own; no such feature; or
                fewer words than a feature has categories.
        """
        features = FeatureNames(tuple(names))
        if len(features.names) != self.dimension:
            raise DensityError(
                f"named: {len(features.names)} names for {self.dimension} features; give one "
                "name for each."
            )
        words = {features.index("named", f): tuple(w) for f, w in (categories or {}).items()}
        days = frozenset(features.index("named", feature) for feature in dates)
        codes = self.as_prior().support()[1]
        for index, labels in words.items():
            if len(labels) <= codes[index]:
                raise DensityError(
                    f"named: {len(labels)} words for feature {index}, whose values go up to "
                    f"{codes[index]:g}; give one for each of its codes, which count from 0."
                )
        density = copy(self)
        density._features = FeatureNames(features.names, words, days)
        return density

    @property
    def _reference_points(self) -> Array:
        """Draws (m, d) kept with the fit, natural units."""
        return self._latent.from_latent(self._reference.numpy())

    @property
    def marginals(self) -> tuple[Marginal, ...]:
        """Each feature's mean, standard deviation and quantiles, from draws kept with the fit.

        All of a category are not-a-number: its codes mean nothing, and it has `shares`.
        """
        points = mask_codes(self._reference_points, self.sampling, self._features)
        quantiles = np.quantile(points, LEVELS, axis=0).T.tolist()
        summaries = zip(points.mean(0).tolist(), points.std(0).tolist(), quantiles, strict=True)
        return tuple(Marginal(m, sd, dict(zip(LEVELS, q, strict=True))) for m, sd, q in summaries)

    def shares(self, feature: int | str) -> dict[str, float]:
        """Return the share of each category of a feature, from draws kept with the fit.

        Raises:
            DensityError: there is no such feature, or it has no categories.
        """
        index = self._features.index("shares", feature)
        words = category_names(self.sampling, self._features, index)
        if not words:
            raise DensityError(
                f"shares: feature {feature!r} has no categories; `marginal` describes it instead."
            )
        codes = np.rint(
            self._reference_points[:, index] - self.as_prior().support()[0][index]
        ).astype(int)
        shares = np.bincount(codes, minlength=len(words)) / len(codes)
        return dict(zip(words, shares.tolist(), strict=True))

    def marginal(self, feature: int | str) -> Marginal:
        """Return the marginal of one feature, by its number or name.

        Raises:
            DensityError: there is no such feature.
        """
        return self.marginals[self._features.index("marginal", feature)]

    def sd(self) -> Array:
        """Return standard deviations (d,), from draws kept with the fit; see `mean`."""
        return np.array([marginal.sd for marginal in self.marginals])

    def covariance(self) -> Array:
        """Return the covariance (d, d), from draws kept with the fit; see `mean`."""
        points = mask_codes(self._reference_points, self.sampling, self._features)
        return np.cov(points.T).reshape(self.dimension, self.dimension)

    def mean(self) -> Array:
        """Return the features' means (d,), from draws kept with the fit.

        Those of a periodic feature are on the line from its low to its high, and those of dates
        are days since 1 January 1970. A category has no mean but `shares`: it is not-a-number.
        """
        return np.array([marginal.mean for marginal in self.marginals])

    def quantile(self, levels: npt.ArrayLike) -> Array:
        """Return quantiles (L, d) of every feature at levels (L,), from draws kept with the fit.

        Those of categories without an order are not-a-number; see `mean`.
        """
        probabilities = errors.check_levels("quantile: levels", levels)
        points = mask_codes(self._reference_points, self.sampling, self._features, ordered=False)
        return np.asarray(np.quantile(points, probabilities, axis=0))

    def mode(self) -> Array:
        """Return the point (d,) of highest density per natural unit; see `find_mode`."""
        sampling = self.sampling
        if not isinstance(sampling, Uniform):
            return find_mode(self.log_prob, self._reference_points)

        def log_prob(x: npt.ArrayLike) -> Array:
            return self.log_prob(sampling.wrap(np.asarray(x)))

        max_change = np.where(sampling.integer, sampling.high - sampling.low, 0.0)
        return np.asarray(
            sampling.wrap(find_mode(log_prob, self._reference_points, max_change)[None])[0]
        )

    def credible_region(self, level: float = 0.9) -> CredibleRegion:
        """Return the smallest region that holds a share ``level`` of the belief.

        Raises:
            DensityError: the level is not between 0 and 1.
        """
        errors.check_fraction("credible_region: level", level)
        threshold = float(np.quantile(self.log_prob(self._reference_points), 1.0 - level))
        return CredibleRegion(level, threshold, self.log_prob)

    def sample(self, n: int, *, seed: int = 0) -> Array:
        """Return n points (n, d) in natural units, inside the support; equal for equal seeds.

        Raises:
            DensityError: n is negative.
        """
        generator = make_generator(seed)
        if errors.check_integer("sample: n", n) == 0:
            return np.empty((0, self.dimension))
        with one_thread():
            points = self._model.sample_latent(n, generator).points
        return self._latent.from_latent(points.numpy())

    def pdf(self, x: npt.ArrayLike) -> Array:
        """Return densities (n,) at points (n, d), per natural unit; see `log_prob`."""
        return np.asarray(np.exp(self.log_prob(x)))

    def log_prob(self, x: npt.ArrayLike) -> Array:
        """Return log densities (n,) at points (n, d), nats per natural unit.

        They are −inf outside the support. The columns of a data frame are matched by name.

        Raises:
            DensityError: points of another shape than (n, d), or a frame that lacks a feature.
        """
        points = self._features.to_array("log_prob: x", x)
        return log_prob_per_unit(self._latent, self._model.log_density, points)

    def check_inside(self, label: str, x: object) -> Array:
        """Return points (n, d), after a check that all are in the support."""
        points = errors.check_points(label, self._features.to_array(label, x), self.dimension)
        return check_inside(label, points, self.sampling)

    def as_prior(self) -> Prior:
        """Return the density with the methods of SciPy's frozen distributions; see `Prior`."""
        return Prior(self)


class Prior:
    """A belief with the methods of SciPy's frozen multivariate distributions.

    It is made by `BeliefDensity.as_prior`. Densities are per natural unit of every feature. The
    columns of data frames are matched by name.

    Examples:
        >>> import numpy as np
        >>> from llm_elicit.density import Uniform, fit_belief
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.uniform(-3, 3, (2, 40, 1))
        >>> nearer = abs(a - 1) < abs(b - 1)
        >>> belief = fit_belief(np.where(nearer, a, b), np.where(nearer, b, a),
        ...                     sampling=Uniform([-3.0], [3.0]), method="utility")
        >>> prior = belief.as_prior()
        >>> (prior.rvs(5, random_state=1).shape, prior.logpdf([1.0]).shape,
        ...  prior.pdf([[9.0]]).tolist())
        ((5, 1), (), [0.0])
        >>> _, gradient = prior.logpdf_and_gradient([[0.0], [2.0]])
        >>> (gradient[:, 0] > 0).tolist()                # uphill is towards 1
        [True, False]
    """

    def __init__(self, density: Distribution) -> None:
        self._density = density

    @property
    def dim(self) -> int:
        """Number of features d."""
        return self._density.dimension

    def rvs(self, size: int = 1, random_state: int | np.random.Generator | None = None) -> Array:
        """Return (size, d) draws, by a seed, a generator, or fresh entropy."""
        errors.check_integer("rvs: size", size)
        if random_state is not None and not isinstance(random_state, np.random.Generator):
            errors.check_seed("rvs: random_state", random_state)
        rng = np.random.default_rng(random_state)
        return self._density.sample(size, seed=int(rng.integers(2**62)))

    def logpdf(self, x: npt.ArrayLike) -> Array:
        """Return the log density (...) at points (..., d), nats; −inf outside the support."""
        points = self._points("logpdf: x", x)
        flat = self._density.log_prob(points.reshape(-1, self.dim))
        return np.asarray(flat.reshape(points.shape[:-1]))

    def logpdf_and_gradient(self, x: npt.ArrayLike) -> tuple[Array, Array]:
        """Return the log density (...) and its gradient (..., d) at points (..., d).

        The gradient is in nats per natural unit. Outside the support they are −inf and 0.

        Raises:
            DensityError: the method is neither "utility" nor "auto", or a feature has categories or
                whole numbers.
        """
        model, sampling = self._density._model, self._density.sampling
        if not isinstance(model, UtilityDensity):
            raise DensityError(
                'logpdf_and_gradient: only beliefs by "utility" and "auto" have a gradient; fit by '
                "one of them, or use a sampler that needs none."
            )
        discrete = np.flatnonzero(sampling.categorical | sampling.integer)
        if discrete.size:
            raise DensityError(
                f"logpdf_and_gradient: feature {discrete[0]} has categories or whole numbers, "
                "which have no gradient; use a sampler that needs none."
            )
        points = self._points("logpdf_and_gradient: x", x)
        flat = points.reshape(-1, self.dim)
        values, gradients = np.full(len(flat), -np.inf), np.zeros_like(flat)
        inside = sampling.contains(flat)
        if inside.any():
            with one_thread():
                values[inside], gradients[inside] = model.log_prob_and_gradient(flat[inside])
        return values.reshape(points.shape[:-1]), gradients.reshape(points.shape)

    def _points(self, label: str, x: npt.ArrayLike) -> Array:
        points = errors.check_numbers(label, self._density._features.to_array(label, x))
        if not points.ndim or points.shape[-1] != self.dim:
            raise DensityError(f"{label} has shape {points.shape}; it must be (..., {self.dim}).")
        return points

    def pdf(self, x: npt.ArrayLike) -> Array:
        """Return the density (...) at points (..., d)."""
        return np.asarray(np.exp(self.logpdf(x)))

    def mean(self) -> Array:
        """Return the means (d,), from draws kept with the fit; see `BeliefDensity.mean`."""
        return self._density.mean()

    def cov(self) -> Array:
        """Return the covariance (d, d), from draws kept with the fit."""
        return self._density.covariance()

    def support(self) -> tuple[Array, Array]:
        """Return lower and upper bounds (d,); infinite where λ has none."""
        return self._density.sampling.low.copy(), self._density.sampling.high.copy()
