"""Settings of a fit, and of the score method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from llm_elicit.density.errors import DensityError, integer, number
from llm_elicit.density.smc import AnnealingSettings
from llm_elicit.density.torch_utils import device_named
from llm_elicit.density.utility import UtilitySettings

Progress = Callable[[str, int, int], None]


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
    patience: int = 8
    knots: int = 6

    def __post_init__(self) -> None:
        owner = "ScoreSettings"
        for name in ("width", "steps", "batch", "check_every", "patience"):
            integer(f"{owner}: {name}", getattr(self, name), least=1)
        for name in ("networks", "knots"):
            integer(f"{owner}: {name}", getattr(self, name), least=2)
        for name in ("learning_rate", "sigma_min", "sigma_max"):
            number(f"{owner}: {name}", getattr(self, name), above=0.0)
        if self.sigma_min >= self.sigma_max:
            raise DensityError(
                f"{owner}: sigma_min = {self.sigma_min} is not below sigma_max = {self.sigma_max}; "
                "swap or change them."
            )
        if not self.sigmas:
            raise DensityError(f"{owner}: sigmas = (); give at least one noise level.")
        for sigma in self.sigmas:
            number(f"{owner}: sigmas", sigma, above=0.0)
        if number(f"{owner}: outcome_weight", self.outcome_weight) < 0.0:
            raise DensityError(f"{owner}: outcome_weight = {self.outcome_weight}; it must be >= 0.")


@dataclass(frozen=True)
class FitSettings:
    """All settings of a fit, a group for each part; the defaults serve every target.

    Parameters
    ----------
    utility, annealing, score : settings of the utility, of its sampler, and of the score method.
    external : settings of an external method, such as "flow" of the benchmarks; None takes the
        defaults of that method.
    device : where fitted utilities and score networks are evaluated and score networks trained:
        "cpu", "cuda" or "cuda:0". All else (the fit of the utility, random numbers, coordinates in
        double precision) stays on the CPU, so that seeds mean the same on both. A belief read back
        by `load` is on the CPU.

    Raises
    ------
    DensityError : a device of another name, or one that is not there.

    Examples
    --------
    >>> FitSettings().device
    'cpu'
    """

    utility: UtilitySettings = field(default_factory=UtilitySettings)
    annealing: AnnealingSettings = field(default_factory=AnnealingSettings)
    score: ScoreSettings = field(default_factory=ScoreSettings)
    external: object | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        device_named(self.device)
