"""Beliefs in the forms that other statistical software reads."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_elicit import provenance
from llm_elicit.errors import InputError

if TYPE_CHECKING:
    from llm_elicit.density import BeliefDensity
    from llm_elicit.features import Feature, FeatureSpace, Floats

_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


def to_arviz(
    belief: BeliefDensity,
    space: FeatureSpace | None = None,
    *,
    chains: int = 4,
    draws: int = 1000,
    seed: int = 0,
) -> Any:
    """A belief as arviz holds draws: what `az.summary`, `az.plot_forest` and the others take.

    Two groups, whose variables have the dimensions chain and draw first:

    * ``posterior``: ``x`` (chain, draw, feature), points of the belief, natural units. A chain is
      drawn on its own, so r_hat says whether the sampler found the same belief every time. Points
      of one chain are in no order: arviz's effective sizes take them for independent, and what
      they are worth is the attribute ``effective_share``.
    * ``beliefs``: the beliefs that the same answers allow (`BeliefDensity.draws`), a draw each, in
      one chain: their ``mean`` (chain, draw, feature) and ``quantile`` (chain, draw, level,
      feature), so that an interval of a mean says how well that mean is known. Left out for
      a belief without draws.

    The coordinate ``unit`` goes with ``feature``. Attributes say the method, the noise, the seed
    and the version that made it.

    Args:
        belief: the belief.
        space: names and units of the features; without it they are x0, x1, ...
        chains: chains of points.
        draws: points in a chain.
        seed: of the points and of the draws of beliefs.

    Returns:
        `arviz.InferenceData`; an `xarray.DataTree` from arviz 1.0 on, which reads those.

    Raises:
        InputError: arviz is not installed, the space has other features than the belief, or
            fewer than one chain or point.

    Source: Kumar, Carroll, Hartikainen and Martin, *ArviZ, a unified library for exploratory
    analysis of Bayesian models in Python* (JOSS, 2019).

    Example (`tests/test_exports.py` runs one)::

        run = le.Run.open("simulated")
        tree = le.to_arviz(run.beliefs["expert"], run.space)
        az.summary(tree)                       # the belief
        az.summary(tree, group="beliefs")      # how well the answers tell it
    """
    if chains < 1 or draws < 1:
        raise InputError(f"to_arviz: {chains} chains of {draws} draws; give at least one of each")
    names, units = _columns(belief, space)
    arviz, xarray = _imported("arviz"), _imported("xarray")
    about = {"feature": names, "unit": ("feature", units)}, _attributes(belief, seed)
    seeds = np.random.SeedSequence(seed).generate_state(chains)
    points = np.stack([belief.sample(draws, seed=int(each)) for each in seeds])
    groups = {"posterior": _group(xarray, {"x": points}, *about)}
    if belief.has_draws:
        found = belief.draws(seed=seed)
        summaries = {"mean": found.mean()[None], "quantile": found.quantile(_LEVELS)[None]}
        groups["beliefs"] = _group(xarray, summaries, *about)
    if arviz.__version__.startswith("0."):
        return arviz.InferenceData(**groups)
    return xarray.DataTree.from_dict(groups)


def _group(
    xarray: Any, values: dict[str, Floats], about: dict[str, Any], attributes: dict[str, Any]
) -> Any:
    """Variables (chain, draw, feature) or (chain, draw, level, feature) with their coordinates."""
    middle = {3: (), 4: ("level",)}
    data = {n: (("chain", "draw", *middle[v.ndim], "feature"), v) for n, v in values.items()}
    chains, draws = next(iter(values.values())).shape[:2]
    coordinates = {"chain": np.arange(chains), "draw": np.arange(draws), **about}
    if any(array.ndim == 4 for array in values.values()):
        coordinates["level"] = list(_LEVELS)
    return xarray.Dataset(data, coordinates, attributes)


def _columns(belief: BeliefDensity, space: FeatureSpace | None) -> tuple[list[str], list[str]]:
    """The features' names and units."""
    if space is None:
        return [f"x{i}" for i in range(belief.dimension)], [""] * belief.dimension
    if space.dimension != belief.dimension:
        raise InputError(
            f"to_arviz: the belief has {belief.dimension} features and the space {space.name!r} "
            f"has {space.dimension}; give the space it was asked in"
        )
    return space.names, [_unit(feature) for feature in space.features]


def _unit(feature: Feature) -> str:
    """What one in the table is: of incomes in 10,000 USD, worded in USD, "10,000 USD"."""
    unit = feature.unit or feature.prefix.strip()
    return unit if feature.factor == 1.0 else f"{feature.factor:,g} {unit}".rstrip()


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"to_arviz: {error.name} is not installed; run: pip install 'llm-elicit[arviz]'"
        ) from None


def _attributes(belief: BeliefDensity, seed: int) -> dict[str, Any]:
    """Where a belief comes from, under arviz's names where it has one."""
    return {
        "creation_library": "llm_elicit",
        "creation_library_version": provenance.version(),
        "method": belief.diagnostics["method"],
        "noise_family": belief.noise.family,
        "noise_level": belief.noise.level,
        "effective_share": belief.diagnostics["sampler"]["effective_share"],
        "seed": seed,
    }
