"""The data and λ that every judge of a run is compared with, and how finely an audit measures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from llm_elicit._util.reprs import brief_repr
from llm_elicit.audit.scales import Standardizer
from llm_elicit.config.base_model import StrictModel
from llm_elicit.errors import InputError
from llm_elicit.spaces.features import FeatureSpace, Floats, TableRows


class AuditSettings(StrictModel):
    """How finely an audit measures. The defaults take about ten seconds per judge.

    Attributes:
        size: points on each side of a Wasserstein distance.
        marginal_size: points on each side of a one-dimensional distance.
        repeats: how often each distance is measured, on fresh subsamples.
        bins: histogram bins per feature, for total variation.
        flips: random sign flips of each randomization test.
        level: size of the tests that verdicts rest on.
    """

    size: Annotated[int, Field(ge=2, le=20_000)] = 1000
    marginal_size: Annotated[int, Field(ge=2)] = 10_000
    repeats: Annotated[int, Field(ge=2, le=1000)] = 5
    bins: Annotated[int, Field(ge=2, le=1000)] = 30
    flips: Annotated[int, Field(ge=99)] = 1999
    level: Annotated[float, Field(gt=0, lt=1)] = 0.05


@dataclass(frozen=True)
class Reference:
    """What every judge of a run is compared with.

    Attributes:
        space: the feature space.
        sampling: draws from the sampling density λ, `(k, d)`, natural units.
        data: the reference table's points, `(n, d)`; None for a space without a table.
        rows: how many rows of the table these are, and why others are not used.

    Raises:
        InputError: if points have the wrong shape, number fewer than two, are NaN, are not
            positive on a logarithmic scale, or are not the code of a category.
    """

    space: FeatureSpace
    sampling: Floats
    data: Floats | None = None
    rows: TableRows | None = None

    __repr__ = brief_repr

    def __post_init__(self) -> None:
        _replace(self, "sampling", checked_points(self.sampling, self.space, "λ samples"))
        if self.data is not None:
            _replace(self, "data", checked_points(self.data, self.space, "reference data"))

    @property
    def standardizer(self) -> Standardizer:
        """Standardization by the data, or by λ if there are none."""
        return Standardizer.of(self.space, self.sampling if self.data is None else self.data)


def checked_points(points: ArrayLike, space: FeatureSpace, what: str) -> Floats:
    """Return `points` as finite `(n, d)` floats that fit the space's scales, n at least 2.

    Categories are given by their codes.

    Raises:
        InputError: if they do not; the message names `what`, the row and the feature.
    """
    array = np.asarray(points, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != space.dimension:
        raise InputError(
            f"{what}: shape {array.shape}, expected (n, {space.dimension}): a column for each of "
            + ", ".join(space.names)
        )
    if len(array) < 2:
        raise InputError(f"{what}: {len(array)} point(s); at least 2 are needed")
    bad = ~np.isfinite(space.to_scale(array))
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        rule = "finite and positive (its scale is log)" if space.log[column] else "finite"
        raise InputError(
            f"{what}: row {row}, {space.names[column]} = {array[row, column]:g}; it must be {rule}"
        )
    codes = (array == np.rint(array)) & (array >= space.low) & (array <= space.high)
    no_code = space.categorical & ~codes
    if no_code.any():
        row, column = (int(i) for i in np.argwhere(no_code)[0])
        raise InputError(
            f"{what}: row {row}, {space.names[column]} = {array[row, column]:g}; it must be the "
            f"code of a category, 0 to {space.high[column]:g}"
        )
    return array


def _replace(instance: Reference, name: str, value: Floats) -> None:
    """Set a field of a frozen dataclass while it is being built."""
    object.__setattr__(instance, name, value)
