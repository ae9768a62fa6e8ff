"""Smooth marginals of a table: quantile functions of normal scores."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from scipy.interpolate import CubicHermiteSpline
from scipy.special import ndtr, ndtri
from torch import Tensor

from llm_elicit.density.sampling import bisect

Array = npt.NDArray[np.float64]
_LOG_SQRT_2PI = 0.5 * float(np.log(2.0 * np.pi))
_NEAREST = 1e-3  # how near a bound data may come, a share of the width or of the median's distance
_FARTHEST_SCORE = 12.0
_LEAST_SLOPE = 1e-3


class Marginals:
    """Quantile functions x_j = T_j(y_j(h)) of d features, with h standard normal.

    y_j is a monotone cubic (Fritsch and Carlson, 1980) through tabulated quantiles. It is linear
    beyond the table, so that tails are normal on the scale of y. T_j keeps the support: the
    identity without bounds, low + eʸ or high − e⁻ʸ with one, low + (high − low)·Φ(y) with both.

    Parameters
    ----------
    knots : (k,) equally spaced normal scores.
    values : (d, k) the increasing y at the knots.
    low, high : (d,) bounds in natural units, −inf and +inf where there are none.

    Examples
    --------
    >>> import numpy as np, torch
    >>> line = Marginals(np.array([-1.0, 0.0, 1.0]), np.array([[1.0, 3.0, 5.0]]),
    ...                  np.array([-np.inf]), np.array([np.inf]))       # N(3, 2²)
    >>> line.value(torch.tensor([[2.0]], dtype=torch.float64)).tolist()
    [[7.0]]
    """

    def __init__(self, knots: Array, values: Array, low: Array, high: Array) -> None:
        self.knots, self.values, self.low, self.high = knots, values, low, high
        self._slopes = _monotone_slopes(values, float(knots[1] - knots[0]))
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
        return self._from_line(self._curve(h)[0])

    def log_slope(self, h: Tensor) -> Tensor:
        """Return log dx_j/dh_j (n, d)."""
        y, slope, _ = self._curve(h)
        return torch.log(slope) + self._log_line_slope(y)

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
        k = np.stack([np.searchsorted(table, each, "right") for table, each in pairs], axis=1)
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

    def _from_line(self, y: Tensor) -> Tensor:
        low, high = torch.from_numpy(self.low), torch.from_numpy(self.high)
        below, above = torch.from_numpy(self._below), torch.from_numpy(self._above)
        zero = torch.zeros_like(low)
        base, top = torch.where(below, low, zero), torch.where(above, high, zero)
        one_sided = torch.where(below, base + torch.exp(y), top - torch.exp(-y))
        both = base + (top - base) * torch.special.ndtr(y)
        bounded = torch.where(below & above, both, one_sided)
        x = torch.where(below | above, bounded, y)
        return torch.minimum(torch.maximum(x, low), high)

    def _log_line_slope(self, y: Tensor) -> Tensor:
        """Return log dT/dy (n, d)."""
        both = self._below & self._above
        width = np.log(np.where(both, self.high - self.low, 1.0))
        normal = torch.from_numpy(width) - 0.5 * y * y - _LOG_SQRT_2PI
        tilt = torch.from_numpy(self._below.astype(float) - self._above.astype(float))
        return torch.where(torch.from_numpy(both), normal, tilt * y)


def _monotone_slopes(values: Array, step: float) -> Array:
    """Return slopes (d, k) at the knots: harmonic means of neighbouring chords, chords at the ends.

    SciPy's PCHIP differs only at the ends, from which the tails are extrapolated.
    """
    chords = np.diff(values, axis=1) / step
    inner = 2.0 * chords[:, 1:] * chords[:, :-1] / (chords[:, 1:] + chords[:, :-1])
    return np.concatenate([chords[:, :1], inner, chords[:, -1:]], axis=1)


def _to_line(x: Array, low: Array, high: Array) -> Array:
    """Return y = T⁻¹(x), infinite or huge on a bound."""
    below, above = np.isfinite(low), np.isfinite(high)
    base, top = np.where(below, low, 0.0), np.where(above, high, 0.0)
    both = below & above
    share = (x - base) / np.where(both, top - base, 1.0)
    probit = ndtri(np.where(both, share, 0.5))
    tiny = np.finfo(float).tiny
    up = np.log(np.maximum(np.where(below, x - base, 1.0), tiny))
    down = -np.log(np.maximum(np.where(above, top - x, 1.0), tiny))
    one_sided = np.where(below, up, down)
    return np.where(both, probit, np.where(below | above, one_sided, x))


def _off_the_bounds(points: Array, low: Array, high: Array) -> Array:
    """Return data (n, d) moved inside finite bounds, where their scores are finite."""
    below, above = np.isfinite(low), np.isfinite(high)
    base, top = np.where(below, low, 0.0), np.where(above, high, 0.0)
    median = np.median(points, axis=0)
    from_low = _NEAREST * np.where(above, top - base, median - base)
    from_high = _NEAREST * np.where(below, top - base, top - median)
    least = np.where(below, base + from_low, -np.inf)
    return np.clip(points, least, np.where(above, top - from_high, np.inf))
