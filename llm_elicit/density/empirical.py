"""A sampling density λ learned from data: smooth marginals with a Gaussian copula."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.interpolate import CubicHermiteSpline
from scipy.special import ndtr, ndtri
from scipy.stats import rankdata
from torch import Tensor

from llm_elicit.density.errors import Array, DensityError, brief, finite, flags, numbers
from llm_elicit.density.feature_names import in_order
from llm_elicit.density.sampling import LOG_2PI, SamplingDensity, bisect, check_draw

_LEAST_POINTS = 20
_SHRINK = 1e-3
_CUBE_LOW, _CUBE_HIGH = 1e-300, 1.0 - 1e-16
_LOG_SQRT_2PI = 0.5 * LOG_2PI
_NEAREST = 1e-3  # how near a bound data may come, a share of the width or of the median's distance
_FARTHEST_SCORE = 12.0
_LEAST_SLOPE = 1e-3


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

    @classmethod
    def of(cls, points: Array, low: Array, high: Array) -> Marginals:
        """Return the marginals of points (n, d), with about 2.5 n^(1/3) knots."""
        n = len(points)
        count = 2 * int(np.clip(round(1.25 * n ** (1 / 3)), 2, 30)) + 1
        reach = float(np.clip(-ndtri(1.0 / n), 1.0, 3.0))
        knots = np.linspace(-reach, reach, count)
        y = _to_line(_off_the_bounds(points, low, high), low, high)
        values = np.quantile(y, ndtr(knots), axis=0, method="hazen").T
        # Tied data repeat a quantile; a density needs an increasing one.
        least = _LEAST_SLOPE * y.std(axis=0) * (knots[1] - knots[0])
        steps = np.maximum(np.diff(values, axis=1), least[:, None])
        middle = count // 2
        rise = np.concatenate([np.zeros((len(values), 1)), np.cumsum(steps, axis=1)], axis=1)
        return cls(knots, values[:, [middle]] + rise - rise[:, [middle]], low, high)

    def value(self, h: Tensor) -> Tensor:
        """Return x (n, d), natural units, at normal scores h (n, d)."""
        y, low, high = self._curve(h)[0], torch.from_numpy(self.low), torch.from_numpy(self.high)
        below, above = torch.from_numpy(self._below), torch.from_numpy(self._above)
        zero = torch.zeros_like(low)
        base, top = torch.where(below, low, zero), torch.where(above, high, zero)
        one_sided = torch.where(below, base + torch.exp(y), top - torch.exp(-y))
        two_sided = base + (top - base) * torch.special.ndtr(y)
        bounded = torch.where(below & above, two_sided, one_sided)
        x = torch.where(below | above, bounded, y)
        return torch.minimum(torch.maximum(x, low), high)

    def log_slope(self, h: Tensor) -> Tensor:
        """Return log dx_j/dh_j (n, d)."""
        y, slope, _ = self._curve(h)
        two_sided = self._below & self._above
        width = np.log(np.where(two_sided, self.high - self.low, 1.0))
        normal = torch.from_numpy(width) - 0.5 * y * y - _LOG_SQRT_2PI
        tilt = torch.from_numpy(self._below.astype(float) - self._above.astype(float))
        of_line = torch.where(torch.from_numpy(two_sided), normal, tilt * y)  # log dT/dy
        return torch.log(slope) + of_line

    def log_slope_slope(self, h: Tensor) -> Tensor:
        """Return the derivative of `log_slope` in h (n, d)."""
        y, slope, bend = self._curve(h)
        bounded = torch.from_numpy(self._below & self._above)
        tilt = torch.from_numpy(self._below.astype(float) - self._above.astype(float))
        return bend / slope + torch.where(bounded, -y, tilt.expand_as(y)) * slope

    def score(self, x: Array) -> Array:
        """Return normal scores h (n, d) of points (n, d), by bisection within the table."""
        y = _to_line(x, self.low, self.high)
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
        capped = np.clip(scores, -_FARTHEST_SCORE, _FARTHEST_SCORE)
        return np.where(self._below | self._above, capped, scores)

    def moments(self, points: int = 4000) -> tuple[Array, Array]:
        """Return the mean and standard deviation (d,) of each feature, by quadrature."""
        h = torch.from_numpy(ndtri((np.arange(points) + 0.5) / points))
        x = self.value(h[:, None].expand(-1, len(self.low))).numpy()
        return x.mean(axis=0), x.std(axis=0)

    def _curve(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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


def _to_line(x: Array, low: Array, high: Array) -> Array:
    """Return y = T⁻¹(x), infinite or huge on a bound."""
    below, above = np.isfinite(low), np.isfinite(high)
    base, top = np.where(below, low, 0.0), np.where(above, high, 0.0)
    two_sided = below & above
    share = (x - base) / np.where(two_sided, top - base, 1.0)
    probit = ndtri(np.where(two_sided, share, 0.5))
    tiny = np.finfo(float).tiny
    up = np.log(np.maximum(np.where(below, x - base, 1.0), tiny))
    down = -np.log(np.maximum(np.where(above, top - x, 1.0), tiny))
    one_sided = np.where(below, up, down)
    return np.where(two_sided, probit, np.where(below | above, one_sided, x))


def _off_the_bounds(points: Array, low: Array, high: Array) -> Array:
    """Return data (n, d) moved inside finite bounds, where their scores are finite."""
    below, above = np.isfinite(low), np.isfinite(high)
    base, top = np.where(below, low, 0.0), np.where(above, high, 0.0)
    median = np.median(points, axis=0)
    from_low = _NEAREST * np.where(above, top - base, median - base)
    from_high = _NEAREST * np.where(below, top - base, top - median)
    least = np.where(below, base + from_low, -np.inf)
    return np.clip(points, least, np.where(above, top - from_high, np.inf))


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
        points, self.names = in_order("Empirical: points", points, None)
        low, _ = in_order("Empirical: low", low, self.names)
        high, _ = in_order("Empirical: high", high, self.names)
        log, _ = in_order("Empirical: log", log, self.names)
        data = numbers("Empirical: points", points)
        if data.ndim != 2 or data.shape[1] == 0 or len(data) < _LEAST_POINTS:
            raise DensityError(
                f"Empirical: points have shape {data.shape}; they must be (n, d) with at least "
                f"{_LEAST_POINTS} rows; reshape a single feature to (n, 1), or describe λ by "
                "Uniform or GaussianMixture."
            )
        finite("Empirical: points", data)
        for j in np.flatnonzero(np.ptp(data, axis=0) == 0):
            raise DensityError(
                f"Empirical: feature {j} is {data[0, j]} in every row; a density needs values that "
                "differ; leave the feature out."
            )
        d = data.shape[1]
        bottom, top = _bounds(low, d, -np.inf, "low"), _bounds(high, d, np.inf, "high")
        _check_support(data, bottom, top)
        logs = np.zeros(d, dtype=np.bool_) if log is None else flags("Empirical: log", log, d)
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
        self.correlation = (1.0 - _SHRINK) * correlation + _SHRINK * np.eye(d)
        self.marginals = Marginals.of(data, *ends)

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

    def reordered(self, order: Sequence[int]) -> Empirical:
        """Return λ with the features of these numbers, in this order."""
        at = list(order)
        values, correlation = self.marginals.values[at], self.correlation[np.ix_(at, at)]
        bounds = self.low[at].tolist(), self.high[at].tolist()
        joint = Empirical.from_tables(
            self.marginals.knots, values, correlation, bounds, self.log[at].tolist()
        )
        return joint._name(self.names, at)

    def __repr__(self) -> str:
        middle = self.from_cube(np.full((1, self.dimension), 0.5))[0]
        medians = [float(f"{value:.6g}") for value in middle]
        low, high = self.low.tolist(), self.high.tolist()
        log = f", log={self.log.tolist()}" if self.log.any() else ""
        return brief(f"Empirical(medians={medians}, low={low}, high={high}{log})")

    @cached_property
    def cholesky(self) -> Array:
        """L (d, d) of C = LLᵀ."""
        return np.asarray(np.linalg.cholesky(self.correlation), dtype=np.float64)

    def to_scale(self, x: Array) -> Array:
        """Return values (..., d) on the features' scales; the logarithm of 0 is −∞."""
        with np.errstate(divide="ignore"):
            return np.where(self.log, np.log(np.where(self.log, np.maximum(x, 0.0), 1.0)), x)

    def from_scale(self, z: Array) -> Array:
        """Return the inverse of `to_scale`."""
        return np.where(self.log, np.exp(np.where(self.log, z, 0.0)), z)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Return n random points (n, d) in natural units."""
        check_draw(n, rng)
        return self.from_normal(rng.standard_normal((n, self.dimension)))

    def log_prob(self, x: npt.ArrayLike) -> Array:
        """Return log densities (n,), nats per natural unit; −inf outside the support."""
        points = self._points(x, no_nan=True)
        result = np.full(len(points), -np.inf)
        inside = self.contains(points)
        h = self.marginals.score(self.to_scale(points[inside]))
        g = np.linalg.solve(self.cholesky, h.T).T
        normal = -0.5 * (g * g + LOG_2PI).sum(axis=1)
        slopes = self.marginals.log_slope(torch.from_numpy(h)).sum(1).numpy()
        per_scale = normal - slopes - np.log(np.diagonal(self.cholesky)).sum()
        result[inside] = per_scale + self.log_scale_slope(points[inside])
        return result

    def to_normal(self, x: npt.ArrayLike) -> Array:
        """Return g (n, d), in which λ is N(0, I), of points (n, d) in the support."""
        h = self.marginals.score(self.to_scale(self._points(x)))
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
        text = {
            "kind": "empirical",
            "knots": self.marginals.knots.tolist(),
            "values": self.marginals.values.tolist(),
            "correlation": self.correlation.tolist(),
            "bounds": [
                [v if np.isfinite(v) else None for v in low],
                [v if np.isfinite(v) else None for v in high],
            ],
        }
        return self._text(text | ({"log": self.log.tolist()} if self.log.any() else {}))


def _bounds(values: npt.ArrayLike | None, d: int, missing: float, name: str) -> Array:
    bounds = np.full(d, missing) if values is None else numbers(f"Empirical: {name}", values)
    if bounds.shape != (d,) or np.isnan(bounds).any():
        raise DensityError(
            f"Empirical: {name} = {bounds.tolist()}; it must be one number for each of the {d} "
            "features, infinite where there is no bound; leave it out for none."
        )
    return bounds


def _check_support(data: Array, low: Array, high: Array) -> None:
    for j in np.flatnonzero(low >= high):
        raise DensityError(
            f"Empirical: low[{j}] = {low[j]} is not below high[{j}] = {high[j]}; every lower "
            "bound must lie below its upper bound; swap or widen the bounds."
        )
    outside = np.argwhere((data < low) | (data > high))
    if outside.size:
        i, j = outside[0]
        raise DensityError(
            f"Empirical: points[{i}, {j}] = {data[i, j]} lies outside [{low[j]}, {high[j]}] "
            f"({len(outside)} such values); the support must hold the data; widen the bounds or "
            "drop the rows."
        )
