"""The comparisons of a utility fit, their folds, and predictions of held-out rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_elicit.density.judgments import Context, assign_folds
from llm_elicit.density.likelihood import Response

Array = npt.NDArray[np.float64]
Folds = npt.NDArray[np.int64]
_MOST_ROWS = 20_000
_EDGES = np.array([0.5, 0.6, 0.7, 0.8, 0.9, 1.0])


@dataclass(frozen=True)
class ChoiceData:
    """Features of winners and losers (n, d), weights (n,), pair numbers (n,), and their context.

    ``category`` (d,) is the categorical feature that each belongs to, −1 of numbers; see
    `llm_elicit.density.latent.Latent.category`. None if all are numbers.
    """

    winners: Array
    losers: Array
    weights: Array
    pairs: npt.NDArray[np.int64]
    context: Context | None = None
    category: npt.NDArray[np.int64] | None = None

    @property
    def groups(self) -> npt.NDArray[np.int64]:
        """Group numbers (n,): rows of one pair or one ranking are kept in the same fold."""
        return self.pairs if self.context is None else self.context.group


@dataclass(frozen=True)
class HeldOut:
    """Predictions of m rows by fits that did not see them.

    Parameters
    ----------
    difference : (m,) predicted f(winner) − f(loser), nats.
    spread : (m,) its posterior standard deviation.
    """

    difference: Array
    spread: Array

    def log_likelihood(self, response: Response) -> Array:
        """Return the moderated log-likelihood (m,), nats; see `Noise.moderated_log_cdf`."""
        sides = torch.from_numpy(self.difference), torch.from_numpy(self.spread)
        return np.asarray(response.moderated_log_cdf(*sides).numpy())


class CrossValidation:
    """The folds of one fit.

    Attributes
    ----------
    points : (2n, d) float32, winners, then losers.
    weights : (n,) number of judgments that each row stands for.
    fold_of : (n,) the fold of each row.
    rows : (m,) the validation rows, over which held-out likelihoods are taken: all, or as many as
        are needed to rank the forms.
    """

    def __init__(
        self, data: ChoiceData, response: Response, count: int, rng: np.random.Generator
    ) -> None:
        self.data, self.response, self.rng = data, response, rng
        self.count = max(2, min(count, int(data.groups.max()) + 1))
        self.fold_of = torch.from_numpy(assign_folds(data.groups, self.count, rng))
        self.generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        self.points = torch.from_numpy(np.concatenate([data.winners, data.losers])).float()
        self.weights = torch.from_numpy(data.weights).float()
        every = torch.randperm(self.size, generator=self.generator)
        self.rows = every[:_MOST_ROWS].sort().values

    @property
    def size(self) -> int:
        """Number of comparisons n."""
        return len(self.data.weights)

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return int(self.data.winners.shape[1])

    def sides(self, rows: Tensor) -> Tensor:
        """Return the winners of these rows, then their losers: (2m, d)."""
        return torch.cat([self.points[rows], self.points[rows + self.size]])

    def everywhere(self, held_out: HeldOut) -> Array:
        """Return f(winner) − f(loser) of every row (n,); NaN of rows not used for validation."""
        found = np.full(self.size, np.nan)
        found[self.rows.numpy()] = held_out.difference
        return found

    def score(self, held_out: HeldOut) -> float:
        """Return the mean moderated log-likelihood of the validation rows, nats per comparison."""
        weights = self.data.weights[self.rows.numpy()]
        logs = held_out.log_likelihood(self.response.at(self.rows))
        return float(np.average(logs, weights=weights))


def calibration(held_out: HeldOut, weights: Array, response: Response) -> dict[str, Any]:
    """Return how often choices go as predicted, by predicted probability (JSON-able).

    ``bins`` hold the weight (``share``) of the comparisons whose likelier side has a probability in
    0.5–0.6, ..., 0.9–1, its mean (``predicted``), and the share that this side won (``observed``);
    empty bins are left out. ``error`` is the mean absolute difference of the two, weighted by share
    (the expected calibration error of Naeini, Cooper and Hauskrecht, 2015).

    Examples
    --------
    >>> from llm_elicit.density import Noise
    >>> rng = np.random.default_rng(0)
    >>> gap = np.abs(rng.normal(0, 2, 20_000))
    >>> won = np.where(rng.logistic(0, Noise().level, 20_000) < gap, gap, -gap)
    >>> sure = calibration(HeldOut(won, 0 * won), np.ones(20_000), Response(Noise()))
    >>> too_sure = calibration(HeldOut(2 * won, 0 * won), np.ones(20_000), Response(Noise()))
    >>> sure["error"] < 0.02 < too_sure["error"]
    True
    """
    seen = response.seen(torch.from_numpy(held_out.difference))
    spread = response.spread(torch.from_numpy(held_out.spread))
    win, lose = (
        torch.exp(response.noise.moderated_log_cdf(sign * seen, spread)).numpy()
        for sign in (1.0, -1.0)
    )
    # Given that it is not a tie.
    chance = win / (win + lose)
    confidence, hit = np.maximum(chance, 1.0 - chance), np.where(chance == 0.5, 0.5, chance > 0.5)
    place = np.clip(np.searchsorted(_EDGES, confidence, side="right") - 1, 0, len(_EDGES) - 2)
    mass = np.bincount(place, weights, len(_EDGES) - 1)
    bins, error = [], 0.0
    for k in np.flatnonzero(mass > 0):
        here = place == k
        predicted, found = (np.average(v[here], weights=weights[here]) for v in (confidence, hit))
        share = float(mass[k] / mass.sum())
        error += share * abs(float(found - predicted))
        bins.append({"share": share, "predicted": float(predicted), "observed": float(found)})
    return {"bins": bins, "error": error}
