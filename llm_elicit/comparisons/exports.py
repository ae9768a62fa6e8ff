"""Beliefs in the forms that other statistical software reads."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_elicit._util.packages import LazyModule, package_version
from llm_elicit.errors import InputError

if TYPE_CHECKING:
    from llm_elicit import density
    from llm_elicit.density import BeliefDensity
    from llm_elicit.spaces.features import Feature, FeatureSpace, Floats
else:
    density = LazyModule("llm_elicit.density")

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

    Features of these are numbers. A categorical one, NAME, is ``share_NAME`` (chain, draw,
    category) in both: 1 for the category of a point and 0 for the others, so that the mean is the
    share; and the shares of each belief that the answers allow.

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

    Example (`tests/comparisons/test_exports.py` runs one)::

        run = le.Run.open("simulated")
        tree = le.to_arviz(run.beliefs["expert"], run.space)
        az.summary(tree)                       # the belief
        az.summary(tree, group="beliefs")      # how well the answers tell it
    """
    if chains < 1 or draws < 1:
        raise InputError(f"to_arviz: {chains} chains of {draws} draws; give at least one of each")
    names, units, words = _columns(belief, space)
    kept = [j for j in range(belief.dimension) if j not in words]
    arviz, xarray = _imported("arviz"), _imported("xarray")
    about = (
        {
            "feature": [names[j] for j in kept],
            "unit": ("feature", [units[j] for j in kept]),
            **{f"{names[j]}_category": list(each) for j, each in words.items()},
        },
        _attributes(belief, seed),
    )
    seeds = np.random.SeedSequence(seed).generate_state(chains)
    points = np.stack([belief.sample(draws, seed=int(each)) for each in seeds])
    shares = {
        names[j]: (points[..., j, None] == np.arange(len(each))).astype(float)
        for j, each in words.items()
    }
    groups = {"posterior": _group(xarray, {"x": points[..., kept]}, shares, *about)}
    if belief.has_draws:
        found = belief.draws(seed=seed)
        summaries = {
            "mean": found.mean()[None][..., kept],
            "quantile": found.quantile(_LEVELS)[None][..., kept],
        }
        shares = {names[j]: found.shares(j)[None] for j in words}
        groups["beliefs"] = _group(xarray, summaries, shares, *about)
    if arviz.__version__.startswith("0."):
        return arviz.InferenceData(**groups)
    return xarray.DataTree.from_dict(groups)


def _group(
    xarray: Any,
    values: dict[str, Floats],
    shares: dict[str, Floats],
    about: dict[str, Any],
    attributes: dict[str, Any],
) -> Any:
    """Variables (chain, draw, feature) or (chain, draw, level, feature) with their coordinates.

    ``shares`` (chain, draw, category) are by the feature's name.
    """
    middle = {3: (), 4: ("level",)}
    data = {n: (("chain", "draw", *middle[v.ndim], "feature"), v) for n, v in values.items()}
    chains, draws = next(iter(values.values())).shape[:2]
    if not about["feature"]:
        data = {}
    for name, each in shares.items():
        data[f"share_{name}"] = ("chain", "draw", f"{name}_category"), each
    coordinates = {"chain": np.arange(chains), "draw": np.arange(draws), **about}
    if any(array.ndim == 4 for array in values.values()):
        coordinates["level"] = list(_LEVELS)
    return xarray.Dataset(data, coordinates, attributes)


def _columns(
    belief: BeliefDensity, space: FeatureSpace | None
) -> tuple[list[str], list[str], dict[int, tuple[str, ...]]]:
    """The features' names and units, and the categories' words of those that have any."""
    if space is None:
        names = [f"x{i}" for i in range(belief.dimension)]
        return names, [""] * belief.dimension, _codes(belief)
    if space.dimension != belief.dimension:
        raise InputError(
            f"to_arviz: the belief has {belief.dimension} features and the space {space.name!r} "
            f"has {space.dimension}; give the space it was asked in"
        )
    words = {j: feature.categories for j, feature in enumerate(space.features)}
    words = {j: each for j, each in words.items() if each}
    return space.names, [_unit(feature) for feature in space.features], words


def _codes(belief: BeliefDensity) -> dict[int, tuple[str, ...]]:
    """The codes of categories, for want of their words."""
    sampling = belief.sampling
    if not isinstance(sampling, density.Uniform):
        return {}
    return {
        j: tuple(f"{code:g}" for code in np.arange(sampling.low[j], sampling.high[j] + 1.0))
        for j in np.flatnonzero(sampling.categorical).tolist()
    }


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
        "creation_library_version": package_version(),
        "method": belief.diagnostics["method"],
        "noise_family": belief.noise.family,
        "noise_level": belief.noise.level,
        "effective_share": belief.diagnostics["sampler"]["effective_share"],
        "seed": seed,
    }
