"""Beliefs in the formats of other statistical software."""

from __future__ import annotations

from dataclasses import dataclass
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
    """Return a belief as arviz data, for `az.summary`, `az.plot_forest` and other functions.

    There are two groups, whose variables begin with the dimensions chain and draw:

    * ``posterior``: ``x`` (chain, draw, feature), points of the belief, natural units. Each chain
      is sampled separately, so r_hat shows whether the sampler finds the same belief every time.
      The points of a chain are in no particular order, so arviz's effective sample sizes treat
      them as independent; the attribute ``effective_share`` is the share that they are worth.
    * ``beliefs``: the posterior draws of the belief (`BeliefDensity.draws`), in one chain: the
      ``mean`` (chain, draw, feature) and ``quantile`` (chain, draw, level, feature) of each. An
      interval of a mean is its uncertainty given the answers. Omitted if the belief has no draws.

    These variables have the numeric features. A categorical feature NAME is the variable
    ``share_NAME`` (chain, draw, category) in both groups: one-hot categories of the points, whose
    mean is the share of each category, and the shares of each posterior draw.

    The coordinate ``unit`` belongs to ``feature``. The attributes hold the method, the noise, the
    seed and the version of this package.

    Args:
        belief: the belief.
        space: names and units of the features; x0, x1, ... without it.
        chains: number of chains of points.
        draws: points per chain.
        seed: of the points and of the posterior draws.

    Returns:
        `arviz.InferenceData`, or `xarray.DataTree` for arviz 1.0 and later.

    Raises:
        InputError: arviz is not installed, the space has other features than the belief, or
            there is not at least one chain and one point.

    Source: Kumar, Carroll, Hartikainen and Martin, *ArviZ, a unified library for exploratory
    analysis of Bayesian models in Python* (JOSS, 2019).

    Example (`tests/comparisons/test_exports.py` runs one)::

        run = le.Run.open("simulated")
        tree = le.to_arviz(run.beliefs["expert"], run.space)
        az.summary(tree)                       # the belief
        az.summary(tree, group="beliefs")      # its uncertainty given the answers
    """
    if chains < 1 or draws < 1:
        raise InputError(f"to_arviz: {chains} chains of {draws} draws; give at least one of each")
    columns = _columns(belief, space)
    arviz, xarray = _imported("arviz"), _imported("xarray")
    variables = {"posterior": _points(belief, columns, chains, draws, seed)}
    if belief.has_draws:
        variables["beliefs"] = _posterior_draws(belief, columns, seed)
    coordinates, attributes = columns.coordinates(), _attributes(belief, seed)
    groups = {
        name: xarray.Dataset(data, {**coordinates, **_indices(data)}, attributes)
        for name, data in variables.items()
    }
    if arviz.__version__.startswith("0."):
        return arviz.InferenceData(**groups)
    return xarray.DataTree.from_dict(groups)


_Variables = dict[str, tuple[tuple[str, ...], "Floats"]]
"""Dimensions and values by name, as xarray takes them."""


@dataclass(frozen=True)
class _Columns:
    """The features of a belief: their names, their units, and categories by feature index."""

    names: list[str]
    units: list[str]
    categories: dict[int, tuple[str, ...]]

    @property
    def numeric(self) -> list[int]:
        return [j for j in range(len(self.names)) if j not in self.categories]

    def coordinates(self) -> dict[str, Any]:
        categories = {f"{self.names[j]}_category": list(w) for j, w in self.categories.items()}
        return {
            "feature": [self.names[j] for j in self.numeric],
            "unit": ("feature", [self.units[j] for j in self.numeric]),
            **categories,
        }

    def shares(self, values: dict[int, Floats]) -> _Variables:
        """Return variables of shares `(chain, draw, category)`, by feature index."""
        return {
            f"share_{self.names[j]}": (("chain", "draw", f"{self.names[j]}_category"), share)
            for j, share in values.items()
        }


def _points(
    belief: BeliefDensity, columns: _Columns, chains: int, draws: int, seed: int
) -> _Variables:
    """Return points of a belief, one chain for each of several seeds."""
    seeds = np.random.SeedSequence(seed).generate_state(chains)
    points = np.stack([belief.sample(draws, seed=int(each)) for each in seeds])
    one_hot = {
        j: (points[..., j, None] == np.arange(len(words))).astype(float)
        for j, words in columns.categories.items()
    }
    numeric = {"x": (("chain", "draw", "feature"), points[..., columns.numeric])}
    return (numeric if columns.numeric else {}) | columns.shares(one_hot)


def _posterior_draws(belief: BeliefDensity, columns: _Columns, seed: int) -> _Variables:
    """Return the means, quantiles and shares of a belief's posterior draws, as one chain."""
    draws = belief.draws(seed=seed)
    means, quantiles = draws.mean()[None], draws.quantile(_LEVELS)[None]
    numeric = {
        "mean": (("chain", "draw", "feature"), means[..., columns.numeric]),
        "quantile": (("chain", "draw", "level", "feature"), quantiles[..., columns.numeric]),
    }
    shares = columns.shares({j: draws.shares(j)[None] for j in columns.categories})
    return (numeric if columns.numeric else {}) | shares


def _indices(variables: _Variables) -> dict[str, Any]:
    """Return the coordinates of the chains, the draws and, if there are any, the levels."""
    chains, draws = next(iter(variables.values()))[1].shape[:2]
    found: dict[str, Any] = {"chain": np.arange(chains), "draw": np.arange(draws)}
    if any("level" in dimensions for dimensions, _ in variables.values()):
        found["level"] = list(_LEVELS)
    return found


def _columns(belief: BeliefDensity, space: FeatureSpace | None) -> _Columns:
    if space is None:
        names = [f"x{i}" for i in range(belief.dimension)]
        return _Columns(names, [""] * belief.dimension, _codes(belief))
    if space.dimension != belief.dimension:
        raise InputError(
            f"to_arviz: the belief has {belief.dimension} features and the space {space.name!r} "
            f"has {space.dimension}; give the space it was asked in"
        )
    categories = {j: feature.categories for j, feature in enumerate(space.features)}
    return _Columns(
        space.names,
        [_unit(feature) for feature in space.features],
        {j: words for j, words in categories.items() if words},
    )


def _codes(belief: BeliefDensity) -> dict[int, tuple[str, ...]]:
    """Return the codes of categories as text, if their names are unknown."""
    sampling = belief.sampling
    if not isinstance(sampling, density.Uniform):
        return {}
    return {
        j: tuple(f"{code:g}" for code in np.arange(sampling.low[j], sampling.high[j] + 1.0))
        for j in np.flatnonzero(sampling.categorical).tolist()
    }


def _unit(feature: Feature) -> str:
    """Return the unit of the stored values, such as "10,000 USD" if questions are in USD."""
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
    """Return the origin of a belief, under arviz's names if they exist."""
    return {
        "creation_library": "llm_elicit",
        "creation_library_version": package_version(),
        "method": belief.diagnostics["method"],
        "noise_family": belief.noise.family,
        "noise_level": belief.noise.level,
        "effective_share": belief.diagnostics["sampler"]["effective_share"],
        "seed": seed,
    }
