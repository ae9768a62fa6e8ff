"""Beliefs in the formats of other statistical software."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llm_elicit._util.packages import LazyModule
from llm_elicit.errors import InputError

if TYPE_CHECKING:
    from llm_elicit import density
    from llm_elicit.density import BeliefDensity
    from llm_elicit.spaces.features import Feature, FeatureSpace
else:
    density = LazyModule("llm_elicit.density")


def to_arviz(
    belief: BeliefDensity,
    space: FeatureSpace | None = None,
    *,
    chains: int = 4,
    draws: int = 1000,
    seed: int = 0,
) -> Any:
    """Return a belief as arviz data, with the names, units and categories of its feature space.

    It is `llm_elicit.density.BeliefDensity.to_arviz`, which describes the groups and variables.

    Args:
        belief: the belief.
        space: the feature space it was asked in; the belief's own names without it.
        chains: number of chains of points.
        draws: points per chain.
        seed: of the points and of the posterior draws.

    Returns:
        `arviz.InferenceData`, or `xarray.DataTree` for arviz 1.0 and later.

    Raises:
        InputError: arviz is not installed, the space has other features than the belief, or
            there is not at least one chain and one point.

    Example (`tests/comparisons/test_exports.py` runs one)::

        run = le.Run.open("simulated")
        tree = le.to_arviz(run.beliefs["expert"], run.space)
        az.summary(tree)                       # the belief
        az.summary(tree, group="beliefs")      # its uncertainty given the answers
    """
    units = None
    if space is not None:
        belief, units = _named(belief, space), [_unit(feature) for feature in space.features]
    try:
        return belief.to_arviz(chains=chains, draws=draws, seed=seed, units=units)
    except density.DensityError as error:
        raise InputError(str(error)) from None


def _named(belief: BeliefDensity, space: FeatureSpace) -> BeliefDensity:
    """Return the belief with the names of the space's features and categories."""
    if space.dimension != belief.dimension:
        raise InputError(
            f"to_arviz: the belief has {belief.dimension} features and the space {space.name!r} "
            f"has {space.dimension}; give the space it was asked in"
        )
    words = {j: feature.categories for j, feature in enumerate(space.features)}
    return belief.named(space.names, {j: each for j, each in words.items() if each})


def _unit(feature: Feature) -> str:
    """Return the unit of the stored values, such as "10,000 USD" if questions are in USD."""
    unit = feature.unit or feature.prefix.strip()
    return unit if feature.factor == 1.0 else f"{feature.factor:,g} {unit}".rstrip()
