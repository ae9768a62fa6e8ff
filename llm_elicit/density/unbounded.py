"""Sampling densities λ without a box: Gaussian mixtures, and densities learned from data.

One learned from data has smooth marginals and a Gaussian copula.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.interpolate import CubicHermiteSpline
from scipy.special import log_ndtr, logsumexp, ndtr, ndtri
from scipy.stats import rankdata
from torch import Tensor

from llm_elicit.density.errors import (
    Array,
    DensityError,
    Flags,
    abbreviate,
    check_finite,
    check_flags,
    check_numbers,
    match_order,
)
from llm_elicit.density.sampling import LOG_2PI, LOG_SQRT_2PI, SamplingDensity, bisect, check_draw

_MIN_POINTS = 20
_SHRINKAGE = 1e-3
_CUBE_LOW, _CUBE_HIGH = 1e-300, 1.0 - 1e-16
# How near a bound data may come, a share of the width or of the median's distance.
_MIN_BOUND_DISTANCE = 1e-3
_MAX_SCORE = 12.0
_MIN_SLOPE = 1e-3


class Marginals:
    """Quantile functions x_j = T_j(y_j(h)) of d features, with h standard normal.

    y_j is a monotone cubic (Fritsch and Carlson, 1980) through tabulated quantiles. It is linear
    beyond the table, so that tails are normal on the scale of y. T_j keeps the support: the
    identity without bounds, low + eʸ or high − e⁻ʸ with one, low + (high − low)·Φ(y) with both.

    Args:
        knots: (k,) equally spaced normal scores.
        values: (d, k) the increasing y at the knots.
        low: (d,) lower bounds in natural units, −inf where there are none.
        high: (d,) upper bounds in natural units, +inf where there are none.

    Examples:
        >>> import numpy as np, torch
        >>> line = Marginals(np.array([-1.0, 0.0, 1.0]), np.array([[1.0, 3.0, 5.0]]),
        ...                  np.array([-np.inf]), np.array([np.inf]))       # N(3, 2²)
        >>> line.value(torch.tensor([[2.0]], dtype=torch.float64)).tolist()
        [[7.0]]
    """

    def __init__(self, knots: Array, values: Array, low: Array, high: Array) -> None:
        self.knots, self.values, self.low, self.high = knots, values, low, high
        # Harmonic means of neighbouring chords, chords at the ends, from which the tails are
        # extrapolated: there alone SciPy's PCHIP differs.
        chords = np.diff(values, axis=1) / float(knots[1] - knots[0])
        inner = 2.0 * chords[:, 1:] * chords[:, :-1] / (chords[:, 1:] + chords[:, :-1])
        self._slopes = np.concatenate([chords[:, :1], inner, chords[:, -1:]], axis=1)
        spline = CubicHermiteSpline(knots, values.T, self._slopes.T)
        self._coefficients = torch.from_numpy(spline.c)  # (4, k − 1, d), highest power first
        self._below, self._above = np.isfinite(low), np.isfinite(high)
        self._two_sided = torch.from_numpy(self._below & self._above)
        self._log_width = torch.from_numpy(np.log(np.where(self._two_sided, high - low, 1.0)))
        self._tilt = torch.from_numpy(self._below.astype(float) - self._above.astype(float))

    @classmethod
    def fit(cls, points: Array, low: Array, high: Array) -> Marginals:
        """Return the marginals of points (n, d), with about 2.5 n^(1/3) knots."""
        n = len(points)
        count = 2 * int(np.clip(round(1.25 * n ** (1 / 3)), 2, 30)) + 1
        reach = float(np.clip(-ndtri(1.0 / n), 1.0, 3.0))
        knots = np.linspace(-reach, reach, count)
        # Data on a bound would have infinite scores.
        below, above, base, top = _finite_bounds(low, high)
        median = np.median(points, axis=0)
        from_low = _MIN_BOUND_DISTANCE * np.where(above, top - base, median - base)
        from_high = _MIN_BOUND_DISTANCE * np.where(below, top - base, top - median)
        minimum = np.where(below, base + from_low, -np.inf)
        clipped = np.clip(points, minimum, np.where(above, top - from_high, np.inf))
        y = _to_unbounded(clipped, low, high)
        values = np.quantile(y, ndtr(knots), axis=0, method="hazen").T
        # Tied data repeat a quantile; a density needs an increasing one.
        minimum = _MIN_SLOPE * y.std(axis=0) * (knots[1] - knots[0])
        steps = np.maximum(np.diff(values, axis=1), minimum[:, None])
        middle = count // 2
        rise = np.concatenate([np.zeros((len(values), 1)), np.cumsum(steps, axis=1)], axis=1)
        return cls(knots, values[:, [middle]] + rise - rise[:, [middle]], low, high)

    def value(self, h: Tensor) -> Tensor:
        """Return x (n, d), natural units, at normal scores h (n, d)."""
        y = self._evaluate_spline(h)[0]
        low, high = torch.from_numpy(self.low), torch.from_numpy(self.high)
        below, above, base, top = map(torch.from_numpy, _finite_bounds(self.low, self.high))
        one_sided = torch.where(below, base + torch.exp(y), top - torch.exp(-y))
        two_sided = base + (top - base) * torch.special.ndtr(y)
        bounded = torch.where(below & above, two_sided, one_sided)
        x = torch.where(below | above, bounded, y)
        return torch.minimum(torch.maximum(x, low), high)

    def log_derivative(self, h: Tensor) -> Tensor:
        """Return log dx_j/dh_j (n, d)."""
        y, slope, _ = self._evaluate_spline(h)
        normal = self._log_width - 0.5 * y * y - LOG_SQRT_2PI
        of_bounds = torch.where(self._two_sided, normal, self._tilt * y)  # log dT/dy
        return torch.log(slope) + of_bounds

    def log_derivative_gradient(self, h: Tensor) -> Tensor:
        """Return the derivative of `log_derivative` in h (n, d)."""
        y, slope, bend = self._evaluate_spline(h)
        return bend / slope + torch.where(self._two_sided, -y, self._tilt) * slope

    def normal_score(self, x: Array) -> Array:
        """Return normal scores h (n, d) of points (n, d), by bisection within the table."""
        y = _to_unbounded(x, self.low, self.high)
        first, last = self.values[:, 0], self.values[:, -1]
        below = self.knots[0] + (y - first) / self._slopes[:, 0]
        above = self.knots[-1] + (y - last) / self._slopes[:, -1]
        # The interval of the table is looked up, so that only its cubic is solved by bisection.
        pairs = zip(self.values[:, 1:-1], y.T, strict=True)
        k = np.stack([np.searchsorted(table, column, "right") for table, column in pairs], axis=1)
        c3, c2, c1, c0 = self._coefficients.numpy()[:, k, np.arange(y.shape[1])]
        ends = np.zeros_like(y), np.full_like(y, self.knots[1] - self.knots[0])
        inside = self.knots[k] + bisect(lambda s: c0 + s * (c1 + s * (c2 + s * c3)) < y, *ends)
        scores: Array = np.where(y < first, below, np.where(y > last, above, inside))
        # A point on a bound has an infinite score: stop where λ has no mass left.
        capped = np.clip(scores, -_MAX_SCORE, _MAX_SCORE)
        return np.where(self._below | self._above, capped, scores)

    def moments(self, points: int = 4000) -> tuple[Array, Array]:
        """Return the mean and standard deviation (d,) of each feature, by quadrature."""
        h = torch.from_numpy(ndtri((np.arange(points) + 0.5) / points))
        x = self.value(h[:, None].expand(-1, len(self.low))).numpy()
        return x.mean(axis=0), x.std(axis=0)

    def _evaluate_spline(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return y (n, d) with its first and second derivative in h."""
        knots = torch.from_numpy(self.knots)
        inner = h.clamp(knots[0], knots[-1])
        k = torch.searchsorted(knots, inner, right=True).clamp(1, len(knots) - 1) - 1
        c3, c2, c1, c0 = self._coefficients[:, k, torch.arange(h.shape[1])]
        s = inner - knots[k]
        slope = c1 + s * (2.0 * c2 + 3.0 * s * c3)
        y = c0 + s * (c1 + s * (c2 + s * c3)) + (h - inner) * slope
        bend = torch.where(h == inner, 2.0 * c2 + 6.0 * s * c3, torch.zeros_like(h))
        return y, slope, bend


def _finite_bounds(low: Array, high: Array) -> tuple[Flags, Flags, Array, Array]:
    """Return which features have a lower and an upper bound, and these bounds, 0 without one."""
    below, above = np.isfinite(low), np.isfinite(high)
    return below, above, np.where(below, low, 0.0), np.where(above, high, 0.0)


def _to_unbounded(x: Array, low: Array, high: Array) -> Array:
    """Return y = T⁻¹(x), infinite or huge on a bound."""
    below, above, base, top = _finite_bounds(low, high)
    two_sided = below & above
    share = (x - base) / np.where(two_sided, top - base, 1.0)
    probit = ndtri(np.where(two_sided, share, 0.5))
    tiny = np.finfo(float).tiny
    up = np.log(np.maximum(np.where(below, x - base, 1.0), tiny))
    down = -np.log(np.maximum(np.where(above, top - x, 1.0), tiny))
    one_sided = np.where(below, up, down)
    return np.where(two_sided, probit, np.where(below | above, one_sided, x))


class Empirical(SamplingDensity):
    """λ learned from data (n, d): each feature is x_j = Q_j(h_j) with h ~ N(0, C).

    Q_j is the feature's smoothed quantile function (`Marginals`) and C the correlation of the
    data's normal scores, so λ has the marginals and rank correlations of the data (a Gaussian
    copula; Sklar, 1959; Nelsen, 2006). With C = LLᵀ, g = L⁻¹h is N(0, I), and the Rosenblatt map is
    its distribution function.

    Dependence beyond rank correlations (a ring, two clusters) is not modelled. The estimate of the
    belief is nevertheless right if the pairs are drawn from this λ. The quantile functions are
    those of each feature's scale z.

    Args:
        points: (n, d) data in natural units, n >= 20. Ties are smoothed apart. The columns of a
            data frame name the features; bounds and masks with names are matched by them.
        low: (d,) lower bounds of the support, −inf where there are none; ``None`` means no bounds.
            Unbounded features have normal tails.
        high: (d,) upper bounds, +inf where there are none, or ``None``.
        log: (d,) bool mask of features with a logarithmic scale (their data must be > 0);
            ``None`` means all linear.

    Raises:
        DensityError: points that are too few, not finite, constant in a feature or outside the
            bounds; bounds of another shape or crossed; data <= 0 on a logarithmic scale.

    Examples:
        >>> import numpy as np
        >>> data = np.random.default_rng(0).gamma(2.0, size=(2000, 1))
        >>> density = Empirical(data, low=[0.0])
        >>> bool(abs(np.median(density.from_cube([[0.5]])) - 1.678) < 0.1)    # Gamma(2)'s median
        True
        >>> float(density.log_prob([[-1.0]])[0])
        -inf
    """

    marginals: Marginals
    correlation: Array

    def __init__(
        self,
        points: npt.ArrayLike,
        low: npt.ArrayLike | None = None,
        high: npt.ArrayLike | None = None,
        log: npt.ArrayLike | None = None,
    ) -> None:
        points, self.names = match_order("Empirical: points", points, None)
        low, _ = match_order("Empirical: low", low, self.names)
        high, _ = match_order("Empirical: high", high, self.names)
        log, _ = match_order("Empirical: log", log, self.names)
        data = check_numbers("Empirical: points", points)
        if data.ndim != 2 or data.shape[1] == 0 or len(data) < _MIN_POINTS:
            raise DensityError(
                f"Empirical: points have shape {data.shape}; they must be (n, d) with at least "
                f"{_MIN_POINTS} rows; reshape a single feature to (n, 1), or describe λ by "
                "Uniform or GaussianMixture."
            )
        check_finite("Empirical: points", data)
        for j in np.flatnonzero(np.ptp(data, axis=0) == 0):
            raise DensityError(
                f"Empirical: feature {j} is {data[0, j]} in every row; a density needs values that "
                "differ; leave the feature out."
            )
        d = data.shape[1]
        bottom, top = _bounds(low, d, -np.inf, "low"), _bounds(high, d, np.inf, "high")
        for j in np.flatnonzero(bottom >= top):
            raise DensityError(
                f"Empirical: low[{j}] = {bottom[j]} is not below high[{j}] = {top[j]}; every lower "
                "bound must lie below its upper bound; swap or widen the bounds."
            )
        outside = np.argwhere((data < bottom) | (data > top))
        for i, j in outside[:1]:
            raise DensityError(
                f"Empirical: points[{i}, {j}] = {data[i, j]} lies outside [{bottom[j]}, {top[j]}] "
                f"({len(outside)} such values); the support must hold the data; widen the bounds "
                "or drop the rows."
            )
        logs = np.zeros(d, dtype=np.bool_) if log is None else check_flags("Empirical: log", log, d)
        for i, j in np.argwhere((data <= 0) & logs)[:1]:
            raise DensityError(
                f"Empirical: points[{i}, {j}] = {data[i, j]} on a logarithmic scale; such a feature"
                " needs positive data; use a linear scale or drop the row."
            )
        self._set_numbers(np.where(logs, np.maximum(bottom, 0.0), bottom), top, logs)
        data, *ends = (self.to_scale(x) for x in (data, self.low, self.high))
        scores = ndtri((rankdata(data, axis=0) - 0.5) / len(data))
        correlation = np.atleast_2d(np.corrcoef(scores.T))
        # Features that repeat each other would leave no density: keep C invertible.
        self.correlation = (1.0 - _SHRINKAGE) * correlation + _SHRINKAGE * np.eye(d)
        self.marginals = Marginals.fit(data, *ends)

    @classmethod
    def from_tables(
        cls,
        knots: npt.ArrayLike,
        values: npt.ArrayLike,
        correlation: npt.ArrayLike,
        bounds: tuple[list[float | None], list[float | None]],
        log: list[bool] | None = None,
    ) -> Empirical:
        """Return the density that `to_dict` described."""
        joint = cls.__new__(cls)
        low = np.array([-np.inf if v is None else v for v in bounds[0]], dtype=np.float64)
        high = np.array([np.inf if v is None else v for v in bounds[1]], dtype=np.float64)
        logs = np.zeros(len(low), dtype=np.bool_) if log is None else np.asarray(log)
        joint._set_numbers(low, high, logs)
        ends, table = (joint.to_scale(low), joint.to_scale(high)), np.asarray(values, np.float64)
        joint.marginals = Marginals(np.asarray(knots, dtype=np.float64), table, *ends)
        joint.correlation = np.asarray(correlation, dtype=np.float64)
        return joint

    def reorder(self, order: Sequence[int]) -> Empirical:
        """Return λ with the features of these numbers, in this order."""
        indices = list(order)
        values = self.marginals.values[indices]
        correlation = self.correlation[np.ix_(indices, indices)]
        bounds = self.low[indices].tolist(), self.high[indices].tolist()
        joint = Empirical.from_tables(
            self.marginals.knots, values, correlation, bounds, self.log[indices].tolist()
        )
        return joint._set_names(self.names, indices)

    def __repr__(self) -> str:
        middle = self.from_cube(np.full((1, self.dimension), 0.5))[0]
        medians = [float(f"{value:.6g}") for value in middle]
        low, high = self.low.tolist(), self.high.tolist()
        log = f", log={self.log.tolist()}" if self.log.any() else ""
        return abbreviate(f"Empirical(medians={medians}, low={low}, high={high}{log})")

    @cached_property
    def cholesky(self) -> Array:
        """L (d, d) of C = LLᵀ."""
        return np.asarray(np.linalg.cholesky(self.correlation), dtype=np.float64)

    def to_scale(self, x: Array) -> Array:
        """Return values (..., d) on the features' scales; the logarithm of 0 is −∞."""
        with np.errstate(divide="ignore"):
            return np.where(self.log, np.log(np.where(self.log, np.maximum(x, 0.0), 1.0)), x)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Return n random points (n, d) in natural units."""
        check_draw(n, rng)
        return self.from_normal(rng.standard_normal((n, self.dimension)))

    def log_prob(self, x: npt.ArrayLike) -> Array:
        """Return log densities (n,), nats per natural unit; −inf outside the support."""
        points = self._points(x, no_nan=True)
        result = np.full(len(points), -np.inf)
        inside = self.contains(points)
        h = self.marginals.normal_score(self.to_scale(points[inside]))
        g = np.linalg.solve(self.cholesky, h.T).T
        normal = -0.5 * (g * g + LOG_2PI).sum(axis=1)
        slopes = self.marginals.log_derivative(torch.from_numpy(h)).sum(1).numpy()
        per_scale = normal - slopes - np.log(np.diagonal(self.cholesky)).sum()
        result[inside] = per_scale + self.log_scale_derivative(points[inside])
        return result

    def to_normal(self, x: npt.ArrayLike) -> Array:
        """Return g (n, d), in which λ is N(0, I), of points (n, d) in the support."""
        h = self.marginals.normal_score(self.to_scale(self._points(x)))
        return np.asarray(np.linalg.solve(self.cholesky, h.T).T)

    def from_normal(self, g: npt.ArrayLike) -> Array:
        """Return the inverse of `to_normal`."""
        h = self._points(g) @ self.cholesky.T
        x = self.from_scale(self.marginals.value(torch.from_numpy(h)).numpy())
        return np.clip(x, self.low, self.high)

    def to_cube(self, x: npt.ArrayLike) -> Array:
        """Return the distribution function of each feature given those before it, (n, d)."""
        return np.asarray(ndtr(self.to_normal(x)))

    def from_cube(self, y: npt.ArrayLike) -> Array:
        """Return the inverse of `to_cube`."""
        cube = np.clip(self._points(y), _CUBE_LOW, _CUBE_HIGH)
        return self.from_normal(ndtri(cube))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description: the tables, not the data."""
        low, high = self.low.tolist(), self.high.tolist()
        description: dict[str, Any] = {
            "kind": "empirical",
            "knots": self.marginals.knots.tolist(),
            "values": self.marginals.values.tolist(),
            "correlation": self.correlation.tolist(),
            "bounds": [[v if np.isfinite(v) else None for v in ends] for ends in (low, high)],
        }
        if self.log.any():
            description["log"] = self.log.tolist()
        return self._with_names(description)


def _bounds(values: npt.ArrayLike | None, d: int, missing: float, name: str) -> Array:
    bounds = np.full(d, missing) if values is None else check_numbers(f"Empirical: {name}", values)
    if bounds.shape != (d,) or np.isnan(bounds).any():
        raise DensityError(
            f"Empirical: {name} = {bounds.tolist()}; it must be one number for each of the {d} "
            "features, infinite where there is no bound; leave it out for none."
        )
    return bounds


class GaussianMixture(SamplingDensity):
    """λ = Σ_k weights[k] · N(means[k], covariances[k]); one component gives a Gaussian.

    Args:
        weights: (k,) >= 0, summing to one.
        means: (k, d) in natural units. A data frame, or a list of Series, names the features.
        covariances: (k, d, d) variances and covariances, not standard deviations; a list of data
            frames is matched by name.

    Raises:
        DensityError: shapes that do not fit, weights that are not probabilities, or a
            covariance that is not symmetric positive definite.

    Examples:
        >>> import numpy as np
        >>> normal = GaussianMixture([1.0], [[0.0]], [[[4.0]]])     # standard deviation 2
        >>> float(normal.to_cube([[0.0]])[0, 0])
        0.5
    """

    def __init__(
        self, weights: npt.ArrayLike, means: npt.ArrayLike, covariances: npt.ArrayLike
    ) -> None:
        means, self.names = match_order("GaussianMixture: means", means, None)
        label = "GaussianMixture: covariances"
        covariances, self.names = match_order(label, covariances, self.names)
        self.weights = check_numbers("GaussianMixture: weights", weights).copy()
        self.means = check_numbers("GaussianMixture: means", means).copy()
        self.covariances = check_numbers(label, covariances).copy()
        k = max(self.weights.size, 1)
        d = self.means.shape[-1] if self.means.ndim == 2 else 0
        shapes_agree = self.weights.shape == (k,) and self.means.shape == (k, d)
        if not shapes_agree or d == 0 or self.covariances.shape != (k, d, d):
            raise DensityError(
                f"GaussianMixture: weights {self.weights.shape}, means {self.means.shape} and "
                f"covariances {self.covariances.shape} do not fit; the shapes must be (k,), "
                "(k, d), (k, d, d); wrap a single Gaussian as k = 1."
            )
        for name, values in (("means", self.means), ("covariances", self.covariances)):
            check_finite(f"GaussianMixture: {name}", values)
        total = self.weights.sum()
        if not (np.isfinite(total) and (self.weights >= 0).all() and abs(total - 1) < 1e-6):
            raise DensityError(
                f"GaussianMixture: weights {self.weights.tolist()} are not probabilities; they "
                "must be >= 0 and sum to 1; divide them by their sum."
            )
        infinite = np.full(self.means.shape[1], np.inf)
        self._set_numbers(-infinite, infinite, infinite < 0.0)
        factors = []
        for at, covariance in enumerate(self.covariances):
            try:
                close = 1e-10 * np.abs(covariance).max()
                if not np.allclose(covariance, covariance.T, atol=close):
                    raise np.linalg.LinAlgError("not symmetric")
                factors.append(np.linalg.cholesky(covariance))
            except np.linalg.LinAlgError as error:
                raise DensityError(
                    f"GaussianMixture: covariances[{at}] is {error}; a covariance must be symmetric"
                    " and positive definite; check that it holds variances, not correlations or "
                    "deviations."
                ) from error
        self.cholesky = np.stack(factors)
        with np.errstate(divide="ignore"):
            self._log_weights = np.log(self.weights)

    def __repr__(self) -> str:
        return abbreviate(
            f"GaussianMixture({self.weights.tolist()}, {self.means.tolist()}, "
            f"{self.covariances.tolist()})"
        )

    @property
    def mean(self) -> Array:
        """Mean of the mixture (d,)."""
        return np.asarray(self.weights @ self.means)

    @property
    def covariance(self) -> Array:
        """Covariance of the mixture (d, d)."""
        centred = self.means - self.mean
        between = np.einsum("k,ki,kj->ij", self.weights, centred, centred)
        return np.asarray(np.einsum("k,kij->ij", self.weights, self.covariances) + between)

    def reorder(self, order: Sequence[int]) -> GaussianMixture:
        """Return λ with the features of these numbers, in this order."""
        indices = list(order)
        covariances = self.covariances[:, indices][:, :, indices]
        return GaussianMixture(self.weights, self.means[:, indices], covariances)._set_names(
            self.names, indices
        )

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Return n random points (n, d)."""
        check_draw(n, rng)
        k = rng.choice(self.weights.size, size=n, p=self.weights / self.weights.sum())
        white = rng.standard_normal((n, self.dimension))
        return np.asarray(self.means[k] + np.einsum("nij,nj->ni", self.cholesky[k], white))

    def log_prob(self, x: npt.ArrayLike) -> Array:
        """Return log densities (n,), nats per natural unit."""
        points = self._points(x, no_nan=True)
        log_densities = self._log_density_of_first(self._whiten(points), self.dimension)
        log_parts = self._log_weights + log_densities
        return np.where(self.contains(points), logsumexp(log_parts, axis=1), -np.inf)

    def _whiten(self, points: Array) -> Array:
        """Return L_k⁻¹(x − μ_k), (n, k, d)."""
        centred = points.T - self.means[..., None]  # (k, d, n)
        return np.linalg.solve(self.cholesky, centred).transpose(2, 0, 1)

    def _log_density_of_first(self, white: Array, j: int) -> Array:
        """Return the log density (n, k) of the first j features under each component."""
        diagonal = np.diagonal(self.cholesky, axis1=1, axis2=2)[:, :j]
        steps = -0.5 * white[..., :j] ** 2 - 0.5 * LOG_2PI - np.log(diagonal)
        return np.asarray(steps.sum(axis=-1))

    def to_cube(self, x: npt.ArrayLike) -> Array:
        """Return the distribution function of each feature given those before it, (n, d).

        Within a component, feature j given the earlier ones is normal, and its standardized
        residual is entry j of L⁻¹(x − μ). The earlier features reweight the components
        (Rosenblatt, 1952).
        """
        points = self._points(x)
        white = self._whiten(points)
        cube = np.empty_like(points)
        for j in range(self.dimension):
            log_parts = self._log_responsibility(white, j) + log_ndtr(white[..., j])
            cube[:, j] = np.exp(logsumexp(log_parts, axis=1))
        return np.clip(cube, 0.0, 1.0)

    def _log_responsibility(self, white: Array, j: int) -> Array:
        if j == 0:
            return np.broadcast_to(self._log_weights, white.shape[:2])
        logs = self._log_weights + self._log_density_of_first(white, j)
        return np.asarray(logs - logsumexp(logs, axis=1, keepdims=True))

    def from_cube(self, y: npt.ArrayLike) -> Array:
        """Return the inverse of `to_cube`, by bisection if there are several components."""
        cube = np.clip(self._points(y), _CUBE_LOW, _CUBE_HIGH)
        n, d = cube.shape
        white = np.zeros((n, self.weights.size, d))
        x = np.empty((n, d))
        for j in range(d):
            centre = self.means[:, j] + np.einsum(
                "nki,ki->nk", white[..., :j], self.cholesky[:, j, :j]
            )
            sd = self.cholesky[:, j, j]
            responsibilities = np.exp(self._log_responsibility(white, j))
            x[:, j] = _invert(cube[:, j], responsibilities, centre, sd)
            white[..., j] = (x[:, j, None] - centre) / sd
        return x

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description."""
        description = {
            "kind": "gaussian_mixture",
            "weights": self.weights.tolist(),
            "means": self.means.tolist(),
            "covariances": self.covariances.tolist(),
        }
        return self._with_names(description)


def _invert(level: Array, weights: Array, centre: Array, sd: Array) -> Array:
    """Return x (n,) with Σ_k share_k Φ((x − centre_k)/spread_k) = level, all rows at once."""
    quantiles = centre + sd * ndtri(level)[:, None]
    # The mixture's quantile lies between its components' quantiles.
    low, high = quantiles.min(axis=1), quantiles.max(axis=1)
    if weights.shape[1] == 1:
        return np.asarray(low)

    def below(x: Array) -> Flags:
        cdf = (weights * ndtr((x[:, None] - centre) / sd)).sum(axis=1)
        return np.asarray(cdf < level)

    return bisect(below, low, high)
