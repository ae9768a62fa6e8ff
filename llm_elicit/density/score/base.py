"""What the score methods know before any score is learned: the belief that the utility implies.

With the fitted utility f standing for u, the belief is exp(f); with one constant c in place of
the field it is exp(c·log(w/(1 − w))) or exp(c·log w), w the chance of winning at f.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from llm_elicit.density.tempering import Tempering


class Potential(Protocol):
    """A log-density up to a constant on the features (n, d): what a fitted utility offers."""

    def __call__(self, t: Tensor) -> Tensor:
        """Values (n,)."""
        ...

    def value_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Values (n,) and gradients (n, d)."""
        ...


@dataclass(frozen=True)
class ConstantTempered:
    """``constant`` times the log-odds (side "both") or the log-chance (side "winners") of winning.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from llm_elicit.density.likelihood import Noise
    >>> class Line:
    ...     def __call__(self, t): return t[:, 0]
    ...     def value_and_slope(self, t): return t[:, 0], torch.ones_like(t)
    >>> field = Tempering.tabulate(np.zeros(3), Noise(level=1.0))  # every rival has utility 0
    >>> tempered = ConstantTempered(Line(), field, "both", 2.0)
    >>> round(float(tempered(torch.tensor([[0.7]]).double()).item()), 3)
    1.4
    """

    utility: Potential
    tempering: Tempering
    side: str
    constant: float

    def __call__(self, t: Tensor) -> Tensor:
        """Values (n,) at features (n, d)."""
        return self._value(self.utility(t))

    def value_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Values (n,) and gradients (n, d) at features (n, d)."""
        u, slope = self.utility.value_and_slope(t)
        field = self.tempering.field(u, self.side)
        return self._value(u), self.constant * slope / field[:, None]

    def _value(self, u: Tensor) -> Tensor:
        both = self.side == "both"
        log = self.tempering.log_odds(u) if both else self.tempering.log_win_at(u)
        return self.constant * log
