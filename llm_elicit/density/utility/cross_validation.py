"""Cross-validation: folds of the comparisons, predictions of held-out rows, and stacks of forms.

*Stacking* (Wolpert, 1992). The weighted sum f = Σ_i a_i f_i of several forms, a_i >= 0, maximizes
the likelihood of held-out choices. The weights need not sum to one: a sum above one sharpens a
belief whose forms are too flat, a sum below one flattens one whose forms are too steep. The forms'
spreads do not enter the weights, because the stack is not averaged over its posterior; with them
the sum is too large. The stack's own predictions are moderated like those of any other form.

Draws of a posterior are divided among forms by `bootstrapped_shares` instead, which are
probabilities that a form is the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_elicit.density.judgments import Context, assign_folds
from llm_elicit.density.likelihood import Response
from llm_elicit.density.torch_utils import minimize

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
_SEED = 0
_MOST_ROWS = 20_000
_SUM_PENALTY = 10.0
_BOOTSTRAPS = 200
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
    pairs: Index
    context: Context | None = None
    category: Index | None = None

    @property
    def groups(self) -> Index:
        """Group numbers (n,): rows of one pair or one ranking are kept in the same fold."""
        return self.pairs if self.context is None else self.context.group


@dataclass(frozen=True)
class HeldOut:
    """Predictions of m rows by fits to other rows.

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

    Folds and what ``generator`` decides (frequencies, subsets of the rows) are the same for every
    seed, so that bands do not depend on them; ``rng`` is the seed's.

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
        fixed = np.random.default_rng(_SEED)
        self.fold_of = torch.from_numpy(assign_folds(data.groups, self.count, fixed))
        self.generator = torch.Generator().manual_seed(_SEED)
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


def stacked(parts: Sequence[HeldOut], shares: Array) -> HeldOut:
    """Return the predictions of Σ_i a_i f_i, shares a (F,), for perfectly correlated errors."""
    return HeldOut(
        shares @ np.stack([p.difference for p in parts]),
        shares @ np.stack([p.spread for p in parts]),
    )


def stack_weights(parts: Sequence[HeldOut], weights: Array, response: Response) -> Array:
    """Return stacking weights a (F,) of F forms' predictions of the same rows.

    A weak penalty draws the sum of the weights towards one, which keeps them finite when every
    held-out choice is predicted.

    Parameters
    ----------
    weights : (m,) of the rows.

    Examples
    --------
    >>> import numpy as np
    >>> from llm_elicit.density import Noise
    >>> truth = np.random.default_rng(0).normal(0, 3, 4000)
    >>> choices = np.sign(truth + np.random.default_rng(1).logistic(0, 0.78, 4000))
    >>> nothing = np.zeros(4000)
    >>> half = HeldOut(0.5 * truth * choices, nothing)             # one part, twice too flat
    >>> found = stack_weights([half, HeldOut(nothing, nothing)], np.ones(4000), Response(Noise()))
    >>> bool(abs(found[0] - 2.0) < 0.2)
    True
    """
    difference = torch.from_numpy(np.stack([p.difference for p in parts]))
    mass = torch.from_numpy(weights)

    def loss(shares: Tensor) -> Tensor:
        fit = response.log_cdf(shares @ difference) @ mass
        return 0.5 * _SUM_PENALTY * (shares.sum() - 1.0) ** 2 - fit

    count = len(parts)
    return minimize(loss, np.full(count, 1.0 / count), [(0.0, None)] * count)


def cross_fitted_stack(
    validation: CrossValidation, parts: Sequence[HeldOut]
) -> tuple[Array, HeldOut]:
    """Return the stack's weights, and its predictions of the validation rows.

    Every fold is predicted with weights chosen on the other folds, so that the score of the stack
    is of rows that took no part in it.
    """
    weights = validation.data.weights[validation.rows.numpy()]
    response = validation.response.at(validation.rows)
    fold_of = validation.fold_of[validation.rows].numpy()
    difference, spread = np.empty(len(weights)), np.empty(len(weights))
    for fold in range(validation.count):
        unseen = fold_of == fold
        seen = [HeldOut(p.difference[~unseen], p.spread[~unseen]) for p in parts]
        at = response.at(torch.from_numpy(np.flatnonzero(~unseen)))
        predicted = stacked(parts, stack_weights(seen, weights[~unseen], at))
        difference[unseen], spread[unseen] = predicted.difference[unseen], predicted.spread[unseen]
    return stack_weights(parts, weights, response), HeldOut(difference, spread)


def halfway(validation: CrossValidation, held_out: HeldOut, fitted: Array) -> Array:
    """Return about the log-likelihood (m,) of the validation rows by the best a form could be.

    Halfway between the held-out prediction of a row and that by the fit to all rows, ``fitted``
    (m,) f(winner) − f(loser). With P parameters to learn the first falls ½P nats
    short of the best in all and the second exceeds it by as many (Akaike, 1974).
    """
    response = validation.response.at(validation.rows)
    seen = response.log_cdf(torch.from_numpy(fitted))
    return np.asarray(0.5 * (held_out.log_likelihood(response) + seen.numpy()))


def bootstrapped_shares(logs: Array, groups: Index, generator: torch.Generator) -> Array:
    """Return shares (F,), summing to one, of forms by their log-likelihoods (F, m).

    Each share is exp(total log-likelihood) over the sum of all forms', averaged over Bayesian
    bootstraps of the rows' ``groups`` (m,), so that a form that leads by chance does not take all
    (pseudo-BMA+; Yao, Vehtari, Simpson and Gelman, 2018).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> logs = rng.normal(-0.5, 0.3, (2, 400))                     # alike but for chance
    >>> worse = np.vstack([logs, logs[:1] - 0.1])                 # and one clearly behind
    >>> shares = bootstrapped_shares(worse, np.arange(400), torch.Generator().manual_seed(0))
    >>> bool(shares[:2].min() > 0.1), bool(shares[2] < 0.01)
    (True, True)
    """
    of_group = np.stack([np.bincount(groups, row) for row in logs])
    multiples = torch.empty(_BOOTSTRAPS, of_group.shape[1], dtype=torch.float64)
    multiples = multiples.exponential_(generator=generator)
    multiples = multiples * (multiples.shape[1] / multiples.sum(1, keepdim=True))
    shares = torch.softmax(multiples @ torch.from_numpy(of_group).T, 1)
    return np.asarray(shares.mean(0).numpy())
