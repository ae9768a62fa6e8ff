"""What judges' answers make of differences of utility, judgment by judgment.

A judge of another noise level than the one that is told of sees the same differences larger or
smaller, and one who prefers a position adds to them: the first of two points is preferred with
probability F(g (u − u') + o), g the ratio of the noise levels and o the order bias in nats.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from llm_elicit.density.choice import Noise


@dataclass(frozen=True)
class Response:
    """A `Noise` for each of n judgments: ``gain`` g (n,) and ``offset`` o (n,), nats, or neither.

    Differences are (..., n). With neither it is the `Noise` itself, bit for bit.

    Examples
    --------
    >>> biased = Response(Noise(), torch.ones(2), torch.tensor([0.0, 1.0]))
    >>> [round(p, 3) for p in biased.log_cdf(torch.zeros(2)).exp().tolist()]
    [0.5, 0.783]
    """

    noise: Noise
    gain: Tensor | None = None
    offset: Tensor | None = None

    def at(self, rows: Tensor | slice) -> Response:
        """That of these judgments alone."""
        if self.gain is None or self.offset is None:
            return self
        return Response(self.noise, self.gain[rows], self.offset[rows])

    def split(self, size: int, count: int) -> list[Response]:
        """That of ``count`` judgments, ``size`` at a time."""
        return [self.at(slice(first, first + size)) for first in range(0, count, size)]

    def seen(self, difference: Tensor) -> Tensor:
        """g (u − u') + o: the difference as it acts on the noise the fit was told."""
        if self.gain is None or self.offset is None:
            return difference
        return self.gain.to(difference) * difference + self.offset.to(difference)

    def log_cdf(self, difference: Tensor) -> Tensor:
        """log F of a win, elementwise."""
        return self.noise.log_cdf(self.seen(difference))

    def expected_score(self, difference: Tensor) -> Tensor:
        """Expected score of an answer, elementwise: 1 for a win, ½ for a tie, 0 for a loss."""
        seen = self.seen(difference)
        win, lose = (torch.exp(self.noise.log_cdf(sign * seen)) for sign in (1.0, -1.0))
        return 0.5 + 0.5 * (win - lose)

    def slope(self, difference: Tensor) -> Tensor:
        """F'/F, the slope of `log_cdf`, from logs so that neither tail overflows."""
        seen = self.seen(difference)
        slope = torch.exp(self.noise.log_pdf(seen) - self.noise.log_cdf(seen))
        return slope if self.gain is None else self.gain.to(slope) * slope

    def information(self, difference: Tensor) -> Tensor:
        """Fisher information of one answer about its difference, elementwise."""
        information = self.noise.information(self.seen(difference))
        return information if self.gain is None else self.gain.to(information) ** 2 * information

    def spread(self, spread: Tensor) -> Tensor:
        """Standard deviations of `seen` from those of the differences."""
        return spread if self.gain is None else self.gain.to(spread) * spread

    def moderated_log_cdf(self, difference: Tensor, spread: Tensor) -> Tensor:
        """`Noise.moderated_log_cdf` of differences known within ``spread``."""
        return self.noise.moderated_log_cdf(self.seen(difference), self.spread(spread))
