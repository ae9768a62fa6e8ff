"""What an audit is given: points, samples and judgments, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from llm_elicit.audit.replies import DirectEvidence
from llm_elicit.audit.standard import Standard
from llm_elicit.audit.summary import BeliefBands
from llm_elicit.audit.transitivity import Triads
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.config.base_model import StrictModel
from llm_elicit.errors import InputError
from llm_elicit.planning.rounds import Schedule
from llm_elicit.spaces.features import FeatureSpace, Floats

if TYPE_CHECKING:
    from llm_elicit.audit.coverage import DataLevels
    from llm_elicit.audit.powers import PowerEvidence
    from llm_elicit.audit.utility import Utility


class AuditSettings(StrictModel):
    """How finely an audit measures. The defaults take some ten seconds a judge.

    Attributes:
        size: points on each side of a Wasserstein distance.
        marginal_size: points on each side of a one-dimensional distance.
        repeats: how often each distance is measured, on fresh subsamples.
        bins: histogram bins a feature, for total variation.
        flips: sign flips of the randomization test.
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
    """What every judge of a run is set beside.

    Attributes:
        space: the feature space.
        sampling: draws from the sampling density λ, `(k, d)`, natural units.
        data: the reference table's points, `(n, d)`; None for a space without a table.

    Raises:
        InputError: a wrong shape, fewer than two points, NaN, a value not positive on a
            logarithmic scale, or one that is no code of a category.
    """

    space: FeatureSpace
    sampling: Floats
    data: Floats | None = None

    def __post_init__(self) -> None:
        _replace(self, "sampling", checked_points(self.sampling, self.space, "λ samples"))
        if self.data is not None:
            _replace(self, "data", checked_points(self.data, self.space, "reference data"))

    @property
    def standard(self) -> Standard:
        """Standardization by the data, or by λ where there are none."""
        return Standard.of(self.space, self.sampling if self.data is None else self.data)


@dataclass(frozen=True)
class JudgeEvidence:
    """One judge's answers and the belief fitted to them.

    Attributes:
        judge: the judge's name in `comparisons`.
        comparisons: the judgments of the run.
        beliefs: samples by method, each `(m, d)` in natural units. The first method is the
            belief, the others cross-check it. Empty where no belief could be fitted.
        diagnostics: what each fit says of itself, by method; kept in the record as it is.
        bands: the belief's own, where its method has them.
        levels: of the data's rows under the belief, `llm_elicit.audit.coverage.data_levels`.
        utility: of the belief, `llm_elicit.audit.utility.utility_of`.
        powers: the belief at other powers, `llm_elicit.audit.powers.at_powers`; None for one by a
            method that has no utility.
        triads: among the answers, `llm_elicit.audit.transitivity.find_triads`.
        foretold: what the belief foretells of them, `foretell_triads` of the same.
        draws: points of the densities that the answers allow, `(S, m, d)`, natural units; see
            `llm_elicit.audit.bands.read_draws`.
        direct: the answers to direct questions; None where there are none.
        schedule: which pairs belong to which round; None for one round.
    """

    judge: str
    comparisons: Comparisons
    beliefs: Mapping[str, Floats] = field(default_factory=dict)
    diagnostics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    bands: BeliefBands | None = None
    levels: DataLevels | None = None
    utility: Utility | None = None
    powers: PowerEvidence | None = None
    triads: Triads | None = None
    foretold: Floats | None = None
    draws: Floats | None = None
    direct: DirectEvidence | None = None
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        if self.judge not in self.comparisons.judges:
            known = ", ".join(self.comparisons.judges) or "none"
            raise InputError(f"audit: no judgments by {self.judge!r}; there are those of: {known}")

    def belief_samples(self, space: FeatureSpace) -> dict[str, Floats]:
        """The samples by method, checked."""
        return {
            method: checked_points(points, space, f"{self.judge}: {method} samples")
            for method, points in self.beliefs.items()
        }


def checked_points(points: ArrayLike, space: FeatureSpace, what: str) -> Floats:
    """`points` as finite `(n, d)` floats that can be put on the space's scale, n at least 2.

    Categories are given by their codes.

    Raises:
        InputError: they are not; the message names `what`, the row and the feature.
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
