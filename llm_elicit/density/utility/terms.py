"""The terms of a quadratic form: its columns, and the form that coefficients of them make."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_elicit.density.utility_function import Utility

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class QuadraticTerms:
    """Linear terms of p columns, and products of the columns ``first`` (m,) and ``second`` (m,).

    Examples
    --------
    >>> terms = QuadraticTerms.of(np.array([-1, 2, 2]))     # a number, and three categories
    >>> terms.columns(np.array([[3.0, 1.0, 5.0]])).tolist()
    [[3.0, 1.0, 5.0, 9.0, 3.0, 15.0]]
    """

    dimension: int
    first: Index
    second: Index

    @classmethod
    def of(cls, category: Index) -> QuadraticTerms:
        """Return all products but those within one feature's categories.

        Any function of a category is linear in the corners of its simplex, so that such products
        add nothing, and K categories would have K(K − 1)/2 of them.

        Parameters
        ----------
        category : (p,) the categorical feature that each column belongs to; −1 of others.
        """
        i, j = np.triu_indices(len(category))
        kept = (category[i] != category[j]) | (category[i] < 0)
        return cls(len(category), i[kept], j[kept])

    def __len__(self) -> int:
        return self.dimension + len(self.first)

    @property
    def squares(self) -> npt.NDArray[np.bool_]:
        """Which of the products (m,) are squares."""
        return np.asarray(self.first == self.second)

    def columns(self, t: Array) -> Array:
        """Return [t_i, t_i t_j] (n, P) at columns (n, p)."""
        return np.concatenate([t, t[:, self.first] * t[:, self.second]], axis=1)

    def forms(self, beta: Tensor) -> tuple[Tensor, Tensor]:
        """Return linear terms (S, p) and symmetric curvatures (S, p, p) of coefficients (S, P)."""
        d = self.dimension
        curvature = torch.zeros(len(beta), d, d)
        curvature[:, self.first, self.second] = beta[:, d:].float()
        return beta[:, :d].float(), 0.5 * (curvature + curvature.mT)

    def utility(self, beta: Array) -> Utility:
        """Return the form of coefficients (P,)."""
        linear, curvature = self.forms(torch.from_numpy(beta)[None])
        return Utility(linear[0], curvature[0])
