"""Held-out choice likelihood decides when training stops, the last noise level, and how much
of what the network adds is used.

A learned score field has no likelihood of its own, but the utility difference it implies for a
pair is its integral along the straight line from the loser to the winner, and that
difference has the likelihood of a choice. The network never saw the held-out pairs; the utility
did (they are a tenth of its data), so the comparison with it leans towards using less.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from llm_elicit.density.likelihood import Noise
from llm_elicit.density.score.network import ScoreNetwork
from llm_elicit.density.score.parts import ScoreParts, path_integral

SHARES = (0.25, 0.5, 1.0)
_LIMIT = 1000
_ERRORS = 2.0


@dataclass(frozen=True)
class Choice:
    """The share of the network's addition used, the last noise level (latent units), the mean
    held-out log-likelihood (nats per comparison) and its gain over using nothing."""

    share: float
    sigma: float
    log_likelihood: float
    gain: float


@dataclass(frozen=True)
class HeldOut:
    """Held-out pairs: latent winners and losers (m, d), weights (m,), and the judge's noise."""

    winners: Tensor
    losers: Tensor
    weights: Tensor
    noise: Noise

    def limited(self) -> HeldOut:
        """At most 1000 of them: more would cost time and decide nothing else."""
        cut = slice(0, _LIMIT)
        return HeldOut(self.winners[cut], self.losers[cut], self.weights[cut], self.noise)


class ChoiceJudge:
    """Scores networks by the choices their field predicts on held-out pairs.

    With a control, using nothing of the network is the first candidate, and another must beat
    it by more than two standard errors of the paired difference: two, not one, since the best
    of some dozens (shares, noise levels, stopping steps) is looked for.
    """

    def __init__(self, parts: ScoreParts, held: HeldOut, sigmas: tuple[float, ...]) -> None:
        self._parts, self._held, self._sigmas = parts, held.limited(), sigmas
        start = torch.zeros_like(self._held.weights)
        if parts.mode.controlled:
            features = parts.latent.features
            start = parts.utility(features(self._held.winners))
            start = start - parts.utility(features(self._held.losers))
        self._start = start

    def __call__(self, network: ScoreNetwork) -> tuple[float, Choice]:
        """The mean log-likelihood, and the `Choice` that reaches it."""
        held, mode = self._held, self._parts.mode
        parts = replace(self._parts, network=network, mode=replace(mode, constant=None))
        shares = SHARES if mode.controlled else (1.0,)
        nothing = held.noise.log_cdf(self._start)
        best = Choice(0.0 if mode.controlled else 1.0, self._sigmas[0], -torch.inf, 0.0)
        if mode.controlled:
            best = replace(best, log_likelihood=self._mean(nothing))
        for sigma in self._sigmas:
            added = path_integral(parts.still(sigma), held.losers, held.winners)
            for share in shares:
                logs = held.noise.log_cdf(self._start + share * added)
                mean, gain = self._mean(logs), logs - nothing
                if mode.controlled and self._mean(gain) <= _ERRORS * self._standard_error(gain):
                    continue
                if mean > best.log_likelihood:
                    best = Choice(share, sigma, mean, self._mean(gain))
        return best.log_likelihood, best

    def _mean(self, values: Tensor) -> float:
        return float((values * self._held.weights).sum() / self._held.weights.sum())

    def _standard_error(self, values: Tensor) -> float:
        weights = self._held.weights
        spread = (weights.square() * (values - self._mean(values)).square()).sum().sqrt()
        return float(spread / weights.sum())
