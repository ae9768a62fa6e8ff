"""Monotone functions of single features on which a utility is a simpler function than on these."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Warp:
    """Each feature t becomes log(1 + a u) − log(1 + b (1 − u)), with u from 0 to 1 over its range.

    With a > 0 = b this is nearly the logarithm of the distance from the lower end, with b > 0 = a
    from the upper end, with both nearly the log-odds of u. Features with a = b = 0 stay as they
    are, and others are standardized. A utility of warped features is still a function of t, so that
    no Jacobian enters.

    Args:
        parameters: (6, p) lower end, range, a, b, mean and standard deviation of each feature.

    Examples:
        >>> import numpy as np
        >>> grid = np.linspace(0.0, 1.0, 1001)[:, None]
        >>> warp = Warp.of(grid, np.array([1e3]), np.array([0.0]))
        >>> t = torch.tensor([[0.01], [0.1], [1.0]], dtype=torch.float64)
        >>> steps = warp(t).diff(dim=0)[:, 0]                # of a logarithm: nearly equal
        >>> round(float(steps[0] / steps[1]), 2)
        0.94
    """

    parameters: Tensor

    @classmethod
    def of(cls, points: Array, left: Array, right: Array) -> Warp:
        """Return the warp of strengths a and b (p,) over the range of compared points (n, p)."""
        low, high = points.min(0), points.max(0)
        margin = (high - low) / len(points)  # by which the range exceeds that of uniform points
        width = np.maximum(high - low + 2 * margin, 1e-12)
        plain = np.zeros_like(left), np.ones_like(left)
        rows = np.stack([low - margin, width, left, right, *plain])
        values = cls(torch.from_numpy(rows))(torch.from_numpy(points).double()).numpy()
        warped = left + right > 0
        rows[4:, warped] = values.mean(0)[warped], values.std(0)[warped]
        return cls(torch.from_numpy(rows))

    def select(self, columns: Tensor) -> Warp:
        """Return the warp of some columns."""
        return Warp(self.parameters[:, columns])

    def __call__(self, t: Tensor) -> Tensor:
        """Return warped features (n, p)."""
        low, width, left, right, mean, sd = self.parameters.to(t)
        u = ((t - low) / width).clamp(0.0, 1.0)
        warped = (torch.log1p(left * u) - torch.log1p(right * (1.0 - u)) - mean) / sd
        return torch.where(left + right > 0.0, warped, t)

    def slope(self, t: Tensor) -> Tensor:
        """Return the derivative of each warped feature by its own feature, (n, p)."""
        low, width, left, right, _, sd = self.parameters.to(t)
        u = (t - low) / width
        inside = (u > 0.0) & (u < 1.0)
        u = u.clamp(0.0, 1.0)
        slope = (left / (1.0 + left * u) + right / (1.0 + right * (1.0 - u))) / (width * sd)
        return torch.where(left + right > 0.0, slope * inside, 1.0)
