"""Settings of the score method, and checks of settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llm_elicit.density.errors import DensityError


@dataclass(frozen=True)
class ScoreSettings:
    """Settings of the score method; the defaults serve every target.

    Parameters
    ----------
    networks : number of networks. Each is trained without one fold of the pairs, of as many folds;
        the held-out pairs select the step and the noise level, and the tempering field is fitted
        to them.
    width : units of each of the three hidden layers.
    steps, batch, learning_rate : of Adam. ``batch`` counts pairs; the rate falls along a cosine.
    sigma_min, sigma_max : range of the noise levels of the training, in latent coordinates.
    sigmas : noise levels at which the networks may be evaluated.
    outcome_weight : weight of −log P(outcome | noisy point) beside the denoising loss. Scores do
        not determine the relative weight of separated modes, which this does.
    check_every, patience : steps between evaluations on held-out pairs; training stops after
        ``patience`` evaluations without improvement.
    knots : points of the grid of the tempering field.

    Raises
    ------
    DensityError : a setting out of its range.

    Examples
    --------
    >>> ScoreSettings(networks=2).width
    64
    """

    networks: int = 5
    width: int = 64
    steps: int = 1000
    batch: int = 256
    learning_rate: float = 5e-3
    sigma_min: float = 0.05
    sigma_max: float = 2.0
    sigmas: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4)
    outcome_weight: float = 1.0
    check_every: int = 50
    patience: int = 4
    knots: int = 6

    def __post_init__(self) -> None:
        owner = "ScoreSettings"
        for name in ("width", "steps", "batch", "learning_rate", "check_every", "patience"):
            within(owner, name, getattr(self, name), 0.0)
        for name in ("networks", "knots"):
            within(owner, name, getattr(self, name), 1.0)
        rising(owner, ("sigma_min", self.sigma_min), ("sigma_max", self.sigma_max))
        if not self.sigmas:
            raise DensityError(f"{owner}: sigmas = (); give at least one noise level.")
        for sigma in self.sigmas:
            within(owner, "sigmas", sigma, 0.0)
        if not self.outcome_weight >= 0.0:
            raise DensityError(f"{owner}: outcome_weight = {self.outcome_weight}; it must be >= 0.")


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
