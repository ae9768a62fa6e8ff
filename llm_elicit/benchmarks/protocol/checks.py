"""Checks of the settings of the published protocol."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llm_elicit.density import DensityError


def one_of(owner: str, name: str, value: object, known: Sequence[object]) -> None:
    """Refuse a value that is not among the known ones.

    Raises
    ------
    DensityError : names the setting, the value and the choices.

    Examples
    --------
    >>> one_of("ScoreSettings", "side", "both", ("both", "winners"))
    """
    if value not in known:
        choices = ", ".join(str(choice) for choice in known)
        raise DensityError(
            f"{owner}: {name} {value!r} is unknown; the choices are {choices}; choose one of them."
        )


def within(owner: str, name: str, value: float, low: float, high: float = math.inf) -> None:
    """Refuse a number that is not finite or lies outside (low, high].

    Raises
    ------
    DensityError : names the setting, the value and the bounds.

    Examples
    --------
    >>> within("HeunSettings", "rho", 7.0, 0.0)
    """
    if not (math.isfinite(value) and low < value <= high):
        bounds = f"above {low:g}" if math.isinf(high) else f"in ({low:g}, {high:g}]"
        raise DensityError(
            f"{owner}: {name} = {value!r}; it must be a finite number {bounds}; "
            "leave it out for the default."
        )


def fraction(owner: str, name: str, value: float) -> None:
    """Refuse a number outside [0, 1].

    Raises
    ------
    DensityError : names the setting and the value.

    Examples
    --------
    >>> fraction("TrainingSettings", "joint", 0.5)
    """
    if not 0.0 <= value <= 1.0:
        raise DensityError(
            f"{owner}: {name} = {value!r}; it must lie in [0, 1]; leave it out for the default."
        )


def rising(owner: str, low: tuple[str, float], high: tuple[str, float]) -> None:
    """Refuse two positive settings that are not in order; each is (name, value).

    Raises
    ------
    DensityError : names both settings and their values.

    Examples
    --------
    >>> rising("HeunSettings", ("sigma_min", 0.1), ("sigma_max", 2.0))
    """
    within(owner, low[0], low[1], 0.0)
    within(owner, high[0], high[1], 0.0)
    if low[1] >= high[1]:
        raise DensityError(
            f"{owner}: {low[0]} = {low[1]} is not below {high[0]} = {high[1]}; "
            "noise levels must be in order; swap or change them."
        )
