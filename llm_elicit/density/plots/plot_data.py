"""What a figure of a belief shows: samples in natural units, axes, and bands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llm_elicit.density.feature_axis import FeatureAxis

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Band:
    """The band of one feature's density, per unit of its scale, or of its shares.

    Args:
        at: (B,) where, natural units.
        low, high: (B,) its ends.
    """

    at: Sequence[float] | Array
    low: Sequence[float] | Array
    high: Sequence[float] | Array


@dataclass(frozen=True)
class PlotData:
    """A belief beside λ and data; columns are features.

    Args:
        axes: one for each of d features.
        belief, sampling: (n, d) points of the belief and of λ.
        data: (m, d) points drawn beside them, or None.
        bands: one for each feature, or None.
        draws: (S, k, d) points of S draws of the posterior, or None.
    """

    axes: tuple[FeatureAxis, ...]
    belief: Array
    sampling: Array
    data: Array | None = None
    bands: Sequence[Band] | None = None
    draws: Array | None = None

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return len(self.axes)
