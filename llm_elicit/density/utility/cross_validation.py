"""Cross-validation: folds of the comparisons, predictions of held-out rows, and weights of forms.

*Weights.* The utility is c Σ_i w_i f_i. The weights of the forms f_i, of which one is a constant,
are probabilities by the likelihood of held-out choices (`bootstrapped_shares`), so that one
surprising answer does not decide between forms. The factor c makes held-out choices most likely
(`best_factor`), since of few choices the forms are too steep; it is at most what undoes the weight
of the constant. The posterior's draws are
divided among the same forms by the same weights, times the same factor, so that the belief lies
within its bands.
"""

from __future__ import annotations

from collections.abc import Mapping
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
_FACTOR_PENALTY = 10.0
_BOOTSTRAPS = 200
# Of the forms' likelihoods in their weights; below one, because most choices are between improbable
# points and say little about the belief's mass.
_LIKELIHOOD_POWER = 0.5
_LEAST_WEIGHT = 0.05  # of a form: a chain costs the same for few draws as for many
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

    Args:
        difference: (m,) predicted f(winner) − f(loser), nats.
        spread: (m,) its posterior standard deviation.
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

    Attributes:
        points: (2n, d) float32, winners, then losers.
        weights: (n,) number of judgments that each row stands for.
        fold_of: (n,) the fold of each row.
        rows: (m,) the validation rows, over which held-out likelihoods are taken: all, or as many
            as are needed to rank the forms.
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
        differences = np.full(self.size, np.nan)
        differences[self.rows.numpy()] = held_out.difference
        return differences

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
    scaled = response.seen(torch.from_numpy(held_out.difference))
    spread = response.spread(torch.from_numpy(held_out.spread))
    win, lose = (
        torch.exp(response.noise.moderated_log_cdf(sign * scaled, spread)).numpy()
        for sign in (1.0, -1.0)
    )
    # Given that it is not a tie.
    chance = win / (win + lose)
    confidence, hit = np.maximum(chance, 1.0 - chance), np.where(chance == 0.5, 0.5, chance > 0.5)
    place = np.clip(np.searchsorted(_EDGES, confidence, side="right") - 1, 0, len(_EDGES) - 2)
    mass = np.bincount(place, weights, len(_EDGES) - 1)
    bins, error = [], 0.0
    for k in np.flatnonzero(mass > 0):
        at = place == k
        predicted, observed = (np.average(v[at], weights=weights[at]) for v in (confidence, hit))
        share = float(mass[k] / mass.sum())
        error += share * abs(float(observed - predicted))
        bins.append({"share": share, "predicted": float(predicted), "observed": float(observed)})
    return {"bins": bins, "error": error}


@dataclass(frozen=True)
class FormWeights:
    """The weights of forms, which sum to one, by their names, and the factor of their sum.

    ``held_out`` predicts every fold with weights and a factor chosen on the other folds, so that
    its score is of rows that took no part in it.
    """

    weights: dict[str, float]
    factor: float
    held_out: HeldOut


def weigh_forms(validation: CrossValidation, forms: Mapping[str, HeldOut]) -> FormWeights:
    """Return the weights of forms by their predictions of the validation rows."""
    rows = validation.rows.numpy()
    groups, fold_of = validation.data.groups[rows], validation.fold_of[validation.rows].numpy()
    differ = (validation.data.winners != validation.data.losers).any(1)[rows]
    if len(np.unique(groups[differ])) < 2:
        # Held out, the only pair that there is leaves nothing to fit, so that no form could win.
        return FormWeights({"quadratic": 1.0}, 1.0, forms["quadratic"])
    logs = np.stack(
        [form.log_likelihood(validation.response.at(validation.rows)) for form in forms.values()]
    )
    difference, spread = (
        np.stack([getattr(form, name) for form in forms.values()])
        for name in ("difference", "spread")
    )
    # Laplace's spread of linear predictors is far too large where choices hardly bound the scale.
    doubt = spread * ~np.isin(list(forms), ["quadratic", "smooth"])[:, None]
    varying = np.array([name != "constant" for name in forms])

    def weigh(train: npt.NDArray[np.bool_]) -> tuple[Array, float]:
        weights = validation.data.weights[rows[train]]
        power = _LIKELIHOOD_POWER * len(weights) / weights.sum()
        generator = torch.Generator().manual_seed(_SEED)
        shares = bootstrapped_shares(power * weights * logs[:, train], groups[train], generator)
        shares = np.where(shares < _LEAST_WEIGHT, 0.0, shares)
        shares = shares / shares.sum()
        response = validation.response.at(validation.rows[torch.from_numpy(train)])
        sums = (shares @ values[:, train] for values in (difference, doubt))
        # Of a few categories the constant keeps a weight however many choices there are.
        most = 1.0 / max(float(shares[varying].sum()), _LEAST_WEIGHT)
        return shares, best_factor(HeldOut(*sums), weights, response, most)

    predicted = np.empty((2, len(rows)))
    for fold in range(validation.count):
        unseen = fold_of == fold
        shares, factor = weigh(~unseen)
        predicted[:, unseen] = (
            factor * shares @ difference[:, unseen],
            factor * shares @ spread[:, unseen],
        )
    shares, factor = weigh(np.ones(len(rows), dtype=bool))
    return FormWeights(dict(zip(forms, shares.tolist(), strict=True)), factor, HeldOut(*predicted))


def best_factor(held_out: HeldOut, weights: Array, response: Response, most: float = 1.0) -> float:
    """Return the factor of a utility, at most ``most``, that makes held-out choices most likely.

    A weak penalty draws it towards one. Where forms are too flat none above one makes the belief
    nearer: most choices are between improbable points, and say little of the peaks that it raises.

    Args:
        held_out: predictions of m rows.
        weights: (m,) of the rows.
        response: what was answered.
        most: the largest factor.

    Examples:
        >>> import numpy as np
        >>> from llm_elicit.density import Noise
        >>> truth = np.random.default_rng(0).normal(0, 3, 4000)
        >>> choices = np.sign(truth + np.random.default_rng(1).logistic(0, 0.78, 4000))
        >>> steep = HeldOut(2.0 * truth * choices, np.zeros(4000))
        >>> found = best_factor(steep, np.ones(4000), Response(Noise()))
        >>> bool(abs(found - 0.5) < 0.05)                              # the form is twice too steep
        True
    """
    mass = torch.from_numpy(weights)
    values, spread = (torch.from_numpy(side) for side in (held_out.difference, held_out.spread))

    def loss(factor: Tensor) -> Tensor:
        fit = response.moderated_log_cdf(factor * values, factor * spread) @ mass
        return 0.5 * _FACTOR_PENALTY * (factor[0] - 1.0) ** 2 - fit

    return float(minimize(loss, np.ones(1), [(0.0, most)])[0])


def bootstrapped_shares(logs: Array, groups: Index, generator: torch.Generator) -> Array:
    """Return shares (F,), summing to one, of forms by their log-likelihoods (F, m).

    Each share is exp(total log-likelihood) over the sum of all forms', averaged over Bayesian
    bootstraps of the rows' ``groups`` (m,), so that a form that leads by chance does not take all
    (pseudo-BMA+; Yao, Vehtari, Simpson and Gelman, 2018).

    Examples:
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
