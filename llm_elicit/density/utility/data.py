"""Comparisons as the utility fit sees them, and what every part of the fit shares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_elicit.density.choice import Noise
from llm_elicit.density.judgments import assign_folds

Array = npt.NDArray[np.float64]
Folds = npt.NDArray[np.int64]
_JUDGED = 20_000


@dataclass(frozen=True)
class ChoiceData:
    """Features of winners and losers (n, d), weights (n,), pair ids (n,)."""

    winners: Array
    losers: Array
    weights: Array
    pairs: npt.NDArray[np.int64]


@dataclass(frozen=True)
class HeldOut:
    """What a form foretells of comparisons it never saw: f(winner) − f(loser) and how surely.

    ``difference`` (m,) is taken from the member that never saw the row's fold, ``spread`` (m,) is
    its posterior standard deviation, nats both.
    """

    difference: Array
    spread: Array

    def log_likelihood(self, noise: Noise) -> Array:
        """Moderated log-likelihood (m,), nats; see `Noise.moderated_log_cdf`."""
        sides = torch.from_numpy(self.difference), torch.from_numpy(self.spread)
        return np.asarray(noise.moderated_log_cdf(*sides).numpy())


class CrossValidation:
    """The folds of one fit: member k of an ensemble never sees fold k.

    ``points`` (2n, d) float32 holds winners, then losers; ``weights`` (n,) has mean one;
    ``judged`` (m,) are the rows held-out likelihoods are taken over: all of them, or as many
    as ranking the candidates needs.
    """

    def __init__(self, data: ChoiceData, noise: Noise, count: int, rng: np.random.Generator):
        self.data, self.noise, self.rng = data, noise, rng
        self.count = max(2, min(count, int(data.pairs.max()) + 1))
        self.folds = assign_folds(data.pairs, self.count, rng)
        self.generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        self.points = torch.from_numpy(np.concatenate([data.winners, data.losers])).float()
        self.weights = torch.from_numpy(data.weights / data.weights.mean()).float()
        self.fold_of = torch.from_numpy(self.folds)
        every = torch.randperm(self.size, generator=self.generator)
        self.judged = every[:_JUDGED].sort().values

    @property
    def size(self) -> int:
        """Number of comparisons n."""
        return len(self.data.weights)

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return int(self.data.winners.shape[1])

    def batch(self, size: int) -> Tensor:
        """Rows of one training step: all of them when they fit, else drawn at random."""
        if self.size <= size:
            return torch.arange(self.size)
        return torch.randint(self.size, (size,), generator=self.generator)

    def sides(self, rows: Tensor) -> Tensor:
        """Winners of these rows, then their losers: (2m, d)."""
        return torch.cat([self.points[rows], self.points[rows + self.size]])

    def score(self, held_out: HeldOut) -> float:
        """Mean moderated log-likelihood of the judged rows, nats a comparison."""
        weights = self.data.weights[self.judged.numpy()]
        return float(np.average(held_out.log_likelihood(self.noise), weights=weights))
