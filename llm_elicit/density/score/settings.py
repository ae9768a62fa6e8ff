"""All settings of the score methods."""

from __future__ import annotations

from dataclasses import dataclass, field

from llm_elicit.density.errors import DensityError
from llm_elicit.density.score.checks import one_of, within
from llm_elicit.density.score.expectation import EXPECTATIONS
from llm_elicit.density.score.heun import HeunSettings
from llm_elicit.density.score.langevin import LangevinSettings
from llm_elicit.density.score.likelihood import LikelihoodSettings
from llm_elicit.density.score.training import TrainingSettings

SIDES = ("both", "winners")
CONTROLS = ("utility", None)
DENSITIES = ("auto", "rays", "flow")
RESAMPLERS = ("heun", None)


@dataclass(frozen=True)
class ScoreSettings:
    """Settings of the score methods; the defaults serve every target.

    What is learned. ``side`` is what is de-tempered: ``"both"``, the odds of winning, from
    the scores of winners and losers; ``"winners"``, the winners' density alone, as the paper
    does. ``control="utility"`` lets the network learn what the fitted utility misses of the scores,
    and held-out choices decide how much of that is used; ``None`` learns them from nothing.

    The last noise level, in latent units, is chosen among ``sigmas`` by held-out choice
    likelihood; None takes ``smoothing`` times √(1000 d/n), between ``smoothing`` and 0.5.

    The field. ``expectation`` says under which draws its integrals are taken: ``"sampling"``,
    ``"winners"`` (the paper's) or ``"mixture"``; ``clip`` are the quantiles the winners'
    weights are clipped to, None for none; ``winner_draws`` of them are drawn a feature.
    ``cap_quantile`` bounds the field from above at that quantile of its values under λ, ``floor``
    from below.

    The belief. ``density="rays"`` sums the force along rays from the middle of λ,
    ``"flow"`` integrates the probability flow; ``"auto"`` is rays with a control, the flow
    without, where errors would pile up along a ray. ``resample="heun"`` trains a second network on
    the belief's draws and samples and evaluates that one. ``jacobian=False`` leaves out the
    Jacobian of the coordinates and returns p·λ; ``cube`` works in the paper's coordinates, a
    cube of this side on which λ is uniform.

    Raises
    ------
    DensityError : an unknown choice, a number out of range, or choices that exclude each other.

    Examples
    --------
    >>> ScoreSettings(control=None, side="winners").expectation
    'sampling'
    """

    training: TrainingSettings = field(default_factory=TrainingSettings)
    langevin: LangevinSettings = field(default_factory=LangevinSettings)
    likelihood: LikelihoodSettings = field(default_factory=LikelihoodSettings)
    heun: HeunSettings = field(default_factory=HeunSettings)
    side: str = "both"
    control: str | None = "utility"
    sigmas: tuple[float, ...] | None = (0.05, 0.1, 0.2)
    smoothing: float = 0.05
    expectation: str = "sampling"
    clip: tuple[float, float] | None = (0.01, 0.9)
    winner_draws: int = 2000
    cap_quantile: float = 0.99
    floor: float = 0.0
    density: str = "auto"
    resample: str | None = None
    jacobian: bool = True
    cube: float | None = None

    def __post_init__(self) -> None:
        owner = "ScoreSettings"
        one_of(owner, "side", self.side, SIDES)
        one_of(owner, "control", self.control, CONTROLS)
        one_of(owner, "expectation", self.expectation, EXPECTATIONS)
        one_of(owner, "density", self.density, DENSITIES)
        one_of(owner, "resample", self.resample, RESAMPLERS)
        within(owner, "cap_quantile", self.cap_quantile, 0.0, 1.0)
        within(owner, "smoothing", self.smoothing, 0.0)
        within(owner, "winner_draws", self.winner_draws, 0.0)
        for sigma in self.sigmas or ():
            within(owner, "sigmas", sigma, 0.0)
        if not self.floor >= 0.0:
            raise DensityError(
                f"ScoreSettings: floor = {self.floor}; the field is positive, so its lower bound "
                "must be >= 0; leave it out for none."
            )
        if self.clip is not None and not 0.0 <= self.clip[0] < self.clip[1] <= 1.0:
            raise DensityError(
                f"ScoreSettings: clip = {self.clip}; it must be two rising quantiles in [0, 1]; "
                "leave it out for (0.01, 0.9), or pass None for no clipping."
            )
        self._check_together()

    def _check_together(self) -> None:
        if self.cube is not None:
            within("ScoreSettings", "cube", self.cube, 0.0)
        if self.cube is not None and self.control is not None:
            raise DensityError(
                f"ScoreSettings: cube = {self.cube} with control {self.control!r}; the control "
                "needs coordinates without edges; pass control=None, or leave cube out."
            )
        blind = self.training.alone == "winner" or self.training.joint == 1.0
        if self.side == "both" and blind:
            raise DensityError(
                "ScoreSettings: side 'both' with a training that never sees a loser alone; its "
                "score is then not learned; pass side='winners', or alone='either' and joint < 1."
            )
