"""Estimation methods beyond the core's own, found by their entry points.

A package adds a method by an entry point of the group `GROUP`, whose name is the method's and
whose object is an `ExternalMethod`. This package's own benchmarks add ``"flow"`` so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, TypeVar

from torch import Tensor

from llm_elicit.density.density_model import DensityModel, Fitted
from llm_elicit.density.errors import DensityError
from llm_elicit.density.problem import Problem
from llm_elicit.density.transforms import Latent

GROUP = "llm_elicit.density_methods"
OWN = ("auto", "score", "score-constant", "utility")
"""The core's own methods."""

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class ExternalMethod:
    """How to fit a method, and how to rebuild its model from what `BeliefDensity.save` wrote."""

    fit: Callable[[Problem], Fitted]
    restore: Callable[[Latent, dict[str, Tensor], dict[str, Any]], DensityModel]


def known_methods() -> tuple[str, ...]:
    """Return the names of the core's own methods and of the external ones installed.

    Examples
    --------
    >>> known_methods()[:2]
    ('auto', 'score')
    """
    return (*OWN, *sorted(entry_points(group=GROUP).names))


def external_method(name: str) -> ExternalMethod:
    """Return the external method of this name.

    Raises
    ------
    DensityError : no installed package has it, or it cannot be imported.
    """
    found = entry_points(group=GROUP, name=name)
    if not found:
        raise DensityError(
            f"method {name!r} is not installed; the methods are {', '.join(known_methods())}; "
            f"install the package that adds it by an entry point of {GROUP}."
        )
    try:
        method = next(iter(found)).load()
    except (ImportError, AttributeError) as error:
        raise DensityError(
            f"method {name!r} cannot be imported ({error}); install its package again."
        ) from error
    if not isinstance(method, ExternalMethod):
        raise DensityError(
            f"method {name!r} is a {type(method).__name__}; its entry point must be an "
            "ExternalMethod of llm_elicit.density.methods."
        )
    return method


def external_settings(problem: Problem, kind: type[Settings], method: str) -> Settings:
    """Return the settings that `FitSettings.external` gives a method, or that method's defaults.

    Raises
    ------
    DensityError : they are settings of another kind.
    """
    found = problem.settings.external
    if found is None:
        return kind()
    if not isinstance(found, kind):
        raise DensityError(
            f"FitSettings: external is a {type(found).__name__}; the {method} takes "
            f"{kind.__name__}."
        )
    return found
