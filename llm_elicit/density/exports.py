"""Points and posterior draws of a belief as arviz data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_elicit.density.belief_draws import BeliefDraws
from llm_elicit.density.errors import DensityError

Array = npt.NDArray[np.float64]
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
Variables = dict[str, tuple[tuple[str, ...], Array]]
"""Dimensions and values by name, as xarray takes them."""


@dataclass(frozen=True)
class ExportedFeatures:
    """The features of a belief.

    Parameters
    ----------
    names, units : one for each feature; a unit may be empty.
    categories : the words of categories, by the feature's number.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    categories: Mapping[int, tuple[str, ...]]

    @property
    def numeric(self) -> list[int]:
        """The numbers of the features that have no categories."""
        return [j for j in range(len(self.names)) if j not in self.categories]

    def coordinates(self) -> dict[str, Any]:
        """Return the coordinates of the numeric features and of the categories."""
        categories = {f"{self.names[j]}_category": list(w) for j, w in self.categories.items()}
        return {
            "feature": [self.names[j] for j in self.numeric],
            "unit": ("feature", [self.units[j] for j in self.numeric]),
            **categories,
        }

    def shares(self, values: Mapping[int, Array]) -> Variables:
        """Return variables of shares (chain, draw, category), by the feature's number."""
        return {
            f"share_{self.names[j]}": (("chain", "draw", f"{self.names[j]}_category"), share)
            for j, share in values.items()
        }


def arviz_data(
    points: Array,
    drawn: BeliefDraws | None,
    features: ExportedFeatures,
    attributes: Mapping[str, Any],
) -> Any:
    """Return chains of points and the posterior's draws; see `BeliefDensity.to_arviz`.

    Parameters
    ----------
    points : (chain, draw, d), natural units; codes of categories count from 0.
    drawn : the posterior's draws, or None.
    features : their names, units and categories.
    attributes : of every group.

    Raises
    ------
    DensityError : arviz is not installed.
    """
    arviz, xarray = _imported("arviz"), _imported("xarray")
    variables = {"posterior": _points(points, features)}
    if drawn is not None:
        variables["beliefs"] = _posterior_draws(drawn, features)
    coordinates = features.coordinates()
    stated = {**attributes, **_origin()}
    groups = {
        name: xarray.Dataset(data, {**coordinates, **_indices(data)}, stated)
        for name, data in variables.items()
    }
    if arviz.__version__.startswith("0."):
        return arviz.InferenceData(**groups)
    return xarray.DataTree.from_dict(groups)


def _points(points: Array, features: ExportedFeatures) -> Variables:
    """Return the points, categories one-hot."""
    one_hot = {
        j: (points[..., j, None] == np.arange(len(words))).astype(float)
        for j, words in features.categories.items()
    }
    numeric = {"x": (("chain", "draw", "feature"), points[..., features.numeric])}
    return (numeric if features.numeric else {}) | features.shares(one_hot)


def _posterior_draws(drawn: BeliefDraws, features: ExportedFeatures) -> Variables:
    """Return the means, quantiles and shares of the posterior's draws, as one chain."""
    means, quantiles = drawn.mean()[None], drawn.quantile(LEVELS)[None]
    numeric = {
        "mean": (("chain", "draw", "feature"), means[..., features.numeric]),
        "quantile": (("chain", "draw", "level", "feature"), quantiles[..., features.numeric]),
    }
    shares = features.shares({j: drawn.shares(j)[None] for j in features.categories})
    return (numeric if features.numeric else {}) | shares


def _indices(variables: Variables) -> dict[str, Any]:
    """Return the coordinates of the chains, the draws and, if there are any, the levels."""
    chains, draws = next(iter(variables.values()))[1].shape[:2]
    found: dict[str, Any] = {"chain": np.arange(chains), "draw": np.arange(draws)}
    if any("level" in dimensions for dimensions, _ in variables.values()):
        found["level"] = list(LEVELS)
    return found


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise DensityError(
            f"to_arviz: {error.name} is not installed; run: pip install 'llm-elicit[arviz]'"
        ) from None


def _origin() -> dict[str, str]:
    """Return this package's name and version, under arviz's names."""
    try:
        version = metadata.version("llm-elicit")
    except metadata.PackageNotFoundError:
        version = "unknown"
    return {"creation_library": "llm_elicit", "creation_library_version": version}
