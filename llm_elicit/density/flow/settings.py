"""All settings of the flow method."""

from __future__ import annotations

from dataclasses import dataclass

from llm_elicit.density.errors import DensityError


@dataclass(frozen=True)
class FlowSettings:
    """Settings of the preferential normalizing flow; the defaults serve every target.

    Parameters
    ----------
    members : flows in the mixture; each holds out its own fold of the pairs, of ``folds``.
    transforms, bins, width : spline layers, bins of each spline, hidden units of each network.
    batch : comparisons a step.
    affine_steps, short_steps, steps : steps of the linear layer alone, of all layers from the
        other start, and of all layers from the better of the two.
    affine_rate, learning_rate : Adam's rates for the linear layer and for the splines.
    prior_weight : weight α of the functional prior, first and last; see
        `llm_elicit.density.flow.training`.
    averaging : rate of the moving average over the parameters that is kept.
    check_every : steps between looks at the held-out comparisons.

    Raises
    ------
    DensityError : a count below one, a rate or a prior weight that is not positive, fewer
        than two folds, or more members than folds.

    Examples
    --------
    >>> FlowSettings(members=1).folds
    5
    """

    members: int = 3
    folds: int = 5
    transforms: int = 2
    bins: int = 5
    width: int = 32
    batch: int = 256
    affine_steps: int = 800
    short_steps: int = 150
    steps: int = 600
    affine_rate: float = 5e-2
    learning_rate: float = 4e-3
    prior_weight: tuple[float, float] = (0.05, 1e-4)
    averaging: float = 0.98
    check_every: int = 25

    def __post_init__(self) -> None:
        counts = ("members", "transforms", "bins", "width", "batch", "check_every")
        for name in counts:
            if getattr(self, name) < 1:
                raise DensityError(
                    f"FlowSettings: {name} = {getattr(self, name)}; it must be at least 1; "
                    "leave it out for the default."
                )
        if not 2 <= self.folds >= self.members:
            raise DensityError(
                f"FlowSettings: folds = {self.folds} with members = {self.members}; there must be "
                "at least two folds and one for each member; raise folds."
            )
        if min(self.affine_rate, self.learning_rate, *self.prior_weight) <= 0:
            raise DensityError(
                f"FlowSettings: affine_rate = {self.affine_rate}, learning_rate = "
                f"{self.learning_rate}, prior_weight = {self.prior_weight}; all must be positive; "
                "leave them out for the defaults."
            )
