"""Comparisons as the utility fit sees them, and what every part of the fit shares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_elicit.density.judgments import Context, assign_folds
from llm_elicit.density.likelihood import Response

Array = npt.NDArray[np.float64]
Folds = npt.NDArray[np.int64]
_JUDGED = 20_000


@dataclass(frozen=True)
class ChoiceData:
    """Features of winners and losers (n, d), weights (n,), pair ids (n,), and their context."""

    winners: Array
    losers: Array
    weights: Array
    pairs: npt.NDArray[np.int64]
    context: Context | None = None

    @property
    def groups(self) -> npt.NDArray[np.int64]:
        """Numbers (n,) of rows that belong together: those of one pair, or of one ranking."""
        return self.pairs if self.context is None else self.context.group


@dataclass(frozen=True)
class HeldOut:
    """What a form foretells of comparisons it never saw: f(winner) − f(loser) and how surely.

    ``difference`` (m,) is taken from the member that never saw the row's fold, ``spread`` (m,) is
    its posterior standard deviation, nats both.
    """

    difference: Array
    spread: Array

    def log_likelihood(self, response: Response) -> Array:
        """Moderated log-likelihood (m,), nats; see `Noise.moderated_log_cdf`."""
        sides = torch.from_numpy(self.difference), torch.from_numpy(self.spread)
        return np.asarray(response.moderated_log_cdf(*sides).numpy())


class CrossValidation:
    """The folds of one fit: member k of an ensemble never sees fold k.

    ``points`` (2n, d) float32 holds winners, then losers; ``weights`` (n,) are how many judgments
    each row stands for;
    ``judged`` (m,) are the rows held-out likelihoods are taken over: all of them, or as many
    as ranking the candidates needs.
    """

    def __init__(
        self, data: ChoiceData, response: Response, count: int, rng: np.random.Generator
    ) -> None:
        self.data, self.response, self.rng = data, response, rng
        self.count = max(2, min(count, int(data.groups.max()) + 1))
        self.folds = assign_folds(data.groups, self.count, rng)
        self.generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        self.points = torch.from_numpy(np.concatenate([data.winners, data.losers])).float()
        self.weights = torch.from_numpy(data.weights).float()
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

    def everywhere(self, held_out: HeldOut) -> Array:
        """f(winner) − f(loser) of every row (n,); NaN at those that are not judged."""
        found = np.full(self.size, np.nan)
        found[self.judged.numpy()] = held_out.difference
        return found

    def score(self, held_out: HeldOut) -> float:
        """Mean moderated log-likelihood of the judged rows, nats a comparison."""
        weights = self.data.weights[self.judged.numpy()]
        logs = held_out.log_likelihood(self.response.at(self.judged))
        return float(np.average(logs, weights=weights))
