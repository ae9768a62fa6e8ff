"""The utility's inputs under a `Uniform` λ: one column or more for each feature.

Columns have mean 0 and variance 1 under λ:

* a number has one, linear in the feature on its scale;
* a whole number too, with the value of its cell's centre throughout the cell, so that the utility
  is a step function of the latent point and the belief a probability per whole number;
* a periodic feature has √2 cos and √2 sin of its angle, so that the utility is periodic;
* a category has one of the K corners of a regular simplex in K − 1 columns, all equally far from
  each other, so that categories have no order.

Numbers come first, then periodic features, then categories.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from scipy.linalg import helmert
from torch import Tensor

from llm_elicit.density.uniform import Uniform

Index = npt.NDArray[np.int64]
_SQRT_2, _SQRT_3 = math.sqrt(2.0), math.sqrt(3.0)
_SQRT_2PI = math.sqrt(2.0 * math.pi)
_FEW = 8  # with fewer whole numbers the slope does not help a sampler
_CELLS = 10_000  # whose widths are summed; narrower ones add nothing


class Columns:
    """The columns (n, p) of latent points g = Φ⁻¹(cube), (n, d).

    Examples
    --------
    >>> import torch
    >>> columns = Columns(Uniform([0.0, 0.0], [1.0, 23.0], integer=[True, True],
    ...                           periodic=[False, True]))
    >>> columns(torch.tensor([[-1.0, 0.1], [-2.0, 0.1]]).double()).numpy().round(2).tolist()
    [[-1.0, -1.4, -0.18], [-1.0, -1.4, -0.18]]
    """

    def __init__(self, sampling: Uniform) -> None:
        self._sampling = sampling
        self._lines = np.flatnonzero(~(sampling.categorical | sampling.periodic)).tolist()
        self._circles = np.flatnonzero(sampling.periodic).tolist()
        self._corners = {
            int(j): _simplex(round(sampling.high[j] - sampling.low[j]) + 1)
            for j in np.flatnonzero(sampling.categorical)
        }
        self._unit = torch.ones(len(self._lines), dtype=torch.float64)
        self._moves = torch.ones(sampling.dimension, dtype=torch.float64)
        for at, j in enumerate(self._lines):
            if sampling.integer[j]:
                self._unit[at] = 1.0 / math.sqrt(1.0 - _within_cells(sampling, j))
        few = sampling.integer & (sampling.high - sampling.low < _FEW)
        self._moves[torch.from_numpy(few | sampling.categorical)] = 0.0

    @property
    def owners(self) -> Index:
        """The feature that each column belongs to, (p,)."""
        words = [j for j, corners in self._corners.items() for _ in range(corners.shape[1])]
        return np.array(self._lines + 2 * self._circles + words, dtype=np.int64)

    @property
    def invertible(self) -> bool:
        """Whether all columns are those of numbers, and linear in them."""
        s = self._sampling
        return not (s.discrete | s.periodic).any()

    def __call__(self, g: Tensor) -> Tensor:
        """Return the columns (n, p) of latent points (n, d)."""
        if self.invertible:
            return _SQRT_3 * torch.erf(g / _SQRT_2)
        lines = _SQRT_3 * torch.erf(g[:, self._lines] / _SQRT_2)
        for at, j in enumerate(self._lines):
            if self._sampling.integer[j]:
                middle = self._middle(torch.special.ndtr(g[:, j]), j)
                lines[:, at] = self._unit[at] * _SQRT_3 * (2.0 * middle - 1.0)
        angles = self._angles(g)
        columns = [lines, _SQRT_2 * torch.cos(angles), _SQRT_2 * torch.sin(angles)]
        for j, corners in self._corners.items():
            category = (torch.special.ndtr(g[:, j]) * len(corners)).long()
            columns.append(corners.to(g)[category.clamp(0, len(corners) - 1)])
        return torch.cat(columns, 1)

    def slope(self, g: Tensor, v: Tensor) -> Tensor:
        """Return the gradient (n, d) in g of a function with gradient v (n, p) in the columns.

        Of whole numbers it is that of the smooth map through the cells' centres, and 0 of a few;
        of categories it is 0.
        """
        if self.invertible:
            return v * (2.0 * _SQRT_3 / _SQRT_2PI) * torch.exp(-0.5 * g * g)
        m, c = len(self._lines), len(self._circles)
        by_cube = torch.zeros_like(g)
        by_cube[:, self._lines] = 2.0 * _SQRT_3 * v[:, :m] * self._unit.to(g)
        angles = self._angles(g)
        turned = v[:, m + c : m + 2 * c] * torch.cos(angles) - v[:, m : m + c] * torch.sin(angles)
        by_cube[:, self._circles] = 2.0 * math.pi * _SQRT_2 * turned
        return by_cube * self._moves.to(g) / _SQRT_2PI * torch.exp(-0.5 * g * g)

    def _angles(self, g: Tensor) -> Tensor:
        """Return the angles (n, c) of the periodic features."""
        cube = torch.special.ndtr(g[:, self._circles])
        for at, j in enumerate(self._circles):
            if self._sampling.integer[j]:
                cube[:, at] = self._middle(cube[:, at], j)
        angles: Tensor = 2.0 * math.pi * cube
        return angles

    def _middle(self, cube: Tensor, j: int) -> Tensor:
        """Return the middles (n,) of the cells of whole numbers that cube coordinates lie in."""
        s = self._sampling
        low, width = float(s.scale_low[j]), float(s.scale_high[j] - s.scale_low[j])
        z = low + cube * width
        if not s.log[j]:
            return (z.round().clamp(float(s.low[j]), float(s.high[j])) - low) / width
        k = torch.exp(z).round().clamp(float(s.low[j]), float(s.high[j]))
        return (0.5 * (torch.log(k - 0.5) + torch.log(k + 0.5)) - low) / width


def _within_cells(sampling: Uniform, j: int) -> float:
    """Return Σ_k w_k³ of the cells' shares of the scale: the share of variance within cells."""
    if not sampling.log[j]:
        return float((sampling.high[j] - sampling.low[j] + 1.0) ** -2)
    last = min(sampling.high[j], sampling.low[j] + _CELLS)
    edges = np.log(np.arange(sampling.low[j] - 0.5, last + 1.0))
    return float(np.sum((np.diff(edges) / (sampling.scale_high[j] - sampling.scale_low[j])) ** 3))


def _simplex(count: int) -> Tensor:
    """Return the corners (K, K − 1) of a regular simplex around 0, columns of unit variance.

    Any rotation of them would do for a fit. A saved belief needs the same ones, which a singular
    value decomposition does not give on every processor.
    """
    return torch.from_numpy(math.sqrt(count) * helmert(count)[:, ::-1].T.copy())
