"""A sampling density λ learned from data: smooth marginals tied by a Gaussian copula."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtr, ndtri
from scipy.stats import rankdata

from llm_elicit.density.checks import finite, no_nan, numbers
from llm_elicit.density.errors import DensityError
from llm_elicit.density.marginals import Marginals
from llm_elicit.density.sampling import _points, check_draw

Array = npt.NDArray[np.float64]
_LEAST_POINTS = 20
_SHRINK = 1e-3
_LOG_2PI = float(np.log(2.0 * np.pi))
_CUBE_LOW, _CUBE_HIGH = 1e-300, 1.0 - 1e-16


class Empirical:
    """λ learned from data (n, d): each feature x_j = Q_j(h_j) with h ~ N(0, C).

    Q_j is the feature's smoothed quantile function (`llm_elicit.density.marginals`) and C the
    correlation of the data's normal scores, so λ has the data's marginals and rank
    correlations (a Gaussian copula; Sklar, 1959; Nelsen, 2006). With C = LLᵀ, g = L⁻¹h is
    N(0, I) and its distribution function is the Rosenblatt map.

    Dependence that ranks do not show (a ring, two clusters) is lost: draw the pairs from this
    λ, not from the data, and the estimate is right all the same. Every feature's scale is
    linear: the belief is a density per natural unit.

    Parameters
    ----------
    points : (n, d) data in natural units, n >= 20. Ties are smoothed apart.
    low, high : (d,) bounds of the support, −inf or +inf where there are none; ``None`` means
        no bounds at all. Unbounded features have normal tails.

    Raises
    ------
    DensityError : points that are too few, not finite, constant in a feature or outside the
        bounds; bounds of another shape or crossed.

    Examples
    --------
    >>> import numpy as np
    >>> data = np.random.default_rng(0).gamma(2.0, size=(2000, 1))
    >>> density = Empirical(data, low=[0.0])
    >>> bool(abs(np.median(density.from_cube([[0.5]])) - 1.678) < 0.1)    # Gamma(2)'s median
    True
    >>> float(density.log_prob([[-1.0]])[0])
    -inf
    """

    def __init__(
        self,
        points: npt.ArrayLike,
        low: npt.ArrayLike | None = None,
        high: npt.ArrayLike | None = None,
    ) -> None:
        data = _data(points)
        d = data.shape[1]
        bottom = _bounds(low, d, -np.inf, "low")
        top = _bounds(high, d, np.inf, "high")
        _check_support(data, bottom, top)
        scores = ndtri((rankdata(data, axis=0) - 0.5) / len(data))
        correlation = np.atleast_2d(np.corrcoef(scores.T))
        # Features that repeat each other would leave no density: keep C invertible.
        correlation = (1.0 - _SHRINK) * correlation + _SHRINK * np.eye(d)
        self._set(Marginals.of(data, bottom, top), correlation)

    def _set(self, marginals: Marginals, correlation: Array) -> None:
        self.marginals, self.correlation = marginals, correlation
        self.cholesky = np.linalg.cholesky(correlation)

    @classmethod
    def from_tables(
        cls,
        knots: npt.ArrayLike,
        values: npt.ArrayLike,
        correlation: npt.ArrayLike,
        bounds: tuple[list[float | None], list[float | None]],
    ) -> Empirical:
        """Rebuild from what `to_dict` wrote."""
        made = cls.__new__(cls)
        low = np.array([-np.inf if v is None else v for v in bounds[0]], dtype=np.float64)
        high = np.array([np.inf if v is None else v for v in bounds[1]], dtype=np.float64)
        table = np.asarray(values, dtype=np.float64)
        made._set(
            Marginals(np.asarray(knots, dtype=np.float64), table, low, high),
            np.asarray(correlation, dtype=np.float64),
        )
        return made

    def __repr__(self) -> str:
        middle = self.from_cube(np.full((1, self.dimension), 0.5))[0]
        medians = [float(f"{value:.6g}") for value in middle]
        low, high = self.marginals.low.tolist(), self.marginals.high.tolist()
        return f"Empirical(medians={medians}, low={low}, high={high})"

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return int(self.correlation.shape[0])

    @property
    def categorical(self) -> npt.NDArray[np.bool_]:
        """No feature has categories, (d,) bools."""
        return np.zeros(self.dimension, dtype=np.bool_)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw (n, d) points in natural units."""
        check_draw(n, rng)
        return self.from_normal(rng.standard_normal((n, self.dimension)))

    def contains(self, x: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether each point is finite and within the closed bounds, shape (n,)."""
        points = _points(x, self.dimension)
        inside = (points >= self.marginals.low) & (points <= self.marginals.high)
        return np.asarray((inside & np.isfinite(points)).all(axis=1))

    def log_prob(self, x: npt.ArrayLike) -> Array:
        """Log density (n,) in nats per natural unit; −inf outside the support."""
        points = no_nan("points", _points(x, self.dimension))
        result = np.full(len(points), -np.inf)
        inside = self.contains(points)
        h = self.marginals.score(points[inside])
        g = np.linalg.solve(self.cholesky, h.T).T
        normal = -0.5 * (g * g + _LOG_2PI).sum(axis=1)
        slopes = self.marginals.log_slope(torch.from_numpy(h)).sum(1).numpy()
        result[inside] = normal - slopes - np.log(np.diagonal(self.cholesky)).sum()
        return result

    def log_scale_slope(self, x: npt.ArrayLike) -> Array:
        """Zero (n,): every feature has a linear scale."""
        return np.zeros(len(_points(x, self.dimension)))

    def to_normal(self, x: npt.ArrayLike) -> Array:
        """g (n, d), which makes λ N(0, I), of points (n, d) in the support."""
        h = self.marginals.score(_points(x, self.dimension))
        return np.asarray(np.linalg.solve(self.cholesky, h.T).T)

    def from_normal(self, g: npt.ArrayLike) -> Array:
        """Inverse of `to_normal`."""
        h = _points(g, self.dimension) @ self.cholesky.T
        return np.asarray(self.marginals.value(torch.from_numpy(h)).numpy())

    def to_cube(self, x: npt.ArrayLike) -> Array:
        """Rosenblatt map: feature j goes to its distribution function given those before it."""
        return np.asarray(ndtr(self.to_normal(x)))

    def from_cube(self, y: npt.ArrayLike) -> Array:
        """Inverse of `to_cube`."""
        cube = np.clip(_points(y, self.dimension), _CUBE_LOW, _CUBE_HIGH)
        return self.from_normal(ndtri(cube))

    def to_dict(self) -> dict[str, Any]:
        """JSON-able description: the tables, not the data."""
        low, high = self.marginals.low.tolist(), self.marginals.high.tolist()
        return {
            "kind": "empirical",
            "knots": self.marginals.knots.tolist(),
            "values": self.marginals.values.tolist(),
            "correlation": self.correlation.tolist(),
            "bounds": [
                [v if np.isfinite(v) else None for v in low],
                [v if np.isfinite(v) else None for v in high],
            ],
        }


def _data(points: npt.ArrayLike) -> Array:
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
    return data


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
