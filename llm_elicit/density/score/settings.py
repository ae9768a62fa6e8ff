"""All settings of the score methods."""

from __future__ import annotations

from dataclasses import dataclass, field

from llm_elicit.density.errors import DensityError
from llm_elicit.density.score.langevin import LangevinSettings
from llm_elicit.density.score.likelihood import LikelihoodSettings
from llm_elicit.density.score.training import TrainingSettings

SIDES = ("both", "winners")


@dataclass(frozen=True)
class ScoreSettings:
    """Settings of the score methods; the defaults serve every target.

    ``side`` chooses what is de-tempered: ``"both"``, the odds of winning, from the scores of
    winners and losers; ``"winners"``, the winners' density alone, as the paper does.
    ``smoothing`` is the noise level, in latent units, where sampling and likelihood end given
    1000 comparisons a feature or more. With fewer it grows like √(d/n): the score learned from
    n pairs has a variance of the order d/(n σ²) and would otherwise be noise.
    ``cap_quantile`` bounds the tempering field at that quantile of its values under λ.

    Raises
    ------
    DensityError : an unknown side, or a quantile outside (0, 1].
    """

    training: TrainingSettings = field(default_factory=TrainingSettings)
    langevin: LangevinSettings = field(default_factory=LangevinSettings)
    likelihood: LikelihoodSettings = field(default_factory=LikelihoodSettings)
    side: str = "both"
    cap_quantile: float = 0.99
    smoothing: float = 0.05

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            raise DensityError(
                f"ScoreSettings: side {self.side!r} is unknown; the sides are {', '.join(SIDES)}; "
                "choose one of them."
            )
        if not 0.0 < self.cap_quantile <= 1.0:
            raise DensityError(
                f"ScoreSettings: cap_quantile = {self.cap_quantile}; it must lie in (0, 1]; "
                "leave it out for the default 0.99."
            )
