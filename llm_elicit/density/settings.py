"""All settings of a fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from llm_elicit.density.score.settings import ScoreSettings
from llm_elicit.density.smc import AnnealingSettings
from llm_elicit.density.torch_utils import device_named
from llm_elicit.density.utility import UtilitySettings

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class FitSettings:
    """All settings of a fit, a group for each part; the defaults serve every target.

    ``external`` is the settings object of an external method, such as the benchmarks' "flow"; None
    takes that method's defaults. ``device`` is where fitted utilities and score networks are
    evaluated and score networks trained: "cpu", "cuda" or "cuda:0". All else (the fit of the
    utility, random numbers, coordinates in double precision) stays on the CPU, so that seeds mean
    the same on both. A belief read back by `load` is on the CPU.

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
