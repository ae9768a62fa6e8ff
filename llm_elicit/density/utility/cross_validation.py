"""Cross-validation: folds of the comparisons, predictions of held-out rows, and weights of forms.

A *form* is a candidate model of the utility: a constant, a quadratic form, a quadratic form with a
smooth remainder, or a log-mixture (`llm_elicit.density.utility.fit`).

*Weights.* The utility is c Σ_i w_i f_i, a weighted sum of the fitted forms f_i. The weights w_i are
pseudo-BMA weights, computed from the likelihood of held-out choices (`pseudo_bma_weights`), so that
one surprising answer does not decide between forms. The factor c maximizes the likelihood of
held-out choices (`fit_factor`), because forms fitted to few choices are too steep. It is at most
one over the total weight of the forms other than the constant. Posterior draws are divided among
the forms by the same weights and multiplied by the same factor, so that the belief lies within its
bands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from llm_elicit.density.errors import Array, Flags, Index
from llm_elicit.density.likelihood import Context, Response, assign_folds
from llm_elicit.density.torch_utils import minimize

_SEED = 0
_MAX_ROWS = 20_000
_FACTOR_PENALTY = 10.0
_BOOTSTRAPS = 200
# Exponent of each likelihood in the weights: below one, because most choices are between improbable
# points and have little information on the belief's mass.
_LIKELIHOOD_POWER = 0.5
_MIN_WEIGHT = 0.05  # smaller weights of forms become 0: each form costs a Markov chain
_BIN_EDGES = (0.6, 0.7, 0.8, 0.9)  # between bins of probabilities


@dataclass(frozen=True)
class ChoiceData:
    """The comparisons that a utility is fitted to.

    Attributes:
        winners, losers: (n, d) features.
        weights: (n,) number of judgments that each row stands for.
        pairs: (n,) numbers of the pairs.
        context: judges, ties, rankings and positions; None for plain comparisons by one judge.
        category: (d,) the categorical feature that each column belongs to, −1 for numbers; see
            `llm_elicit.density.latent.Latent.category`. None if all are numbers.
    """

    winners: Array
    losers: Array
    weights: Array
    pairs: Index
    context: Context | None = None
    category: Index | None = None

    @property
    def categories(self) -> Index:
        """The categorical feature that each column belongs to (d,), −1 for numbers."""
        return np.full(self.winners.shape[1], -1) if self.category is None else self.category

    @property
    def numbers(self) -> list[int]:
        """The columns that belong to no category."""
        numbers: list[int] = np.flatnonzero(self.categories < 0).tolist()
        return numbers

    @property
    def groups(self) -> Index:
        """Group numbers (n,): rows of one pair or one ranking are kept in the same fold."""
        return self.pairs if self.context is None else self.context.group


@dataclass(frozen=True)
class HeldOutPredictions:
    """Predictions of m rows by fits to other rows.

    Attributes:
        difference: (m,) predicted f(winner) − f(loser), nats.
        sd: (m,) its posterior standard deviation.
    """

    difference: Array
    sd: Array

    def log_likelihood(self, response: Response) -> Array:
        """Return the moderated log-likelihood (m,), nats; see `Noise.moderated_log_cdf`."""
        predictions = torch.from_numpy(self.difference), torch.from_numpy(self.sd)
        return np.asarray(response.moderated_log_cdf(*predictions).numpy())


class CrossValidation:
    """The folds of one fit.

    The folds, and the random frequencies and subsets of rows drawn by ``generator``, are the same
    for every seed, so that bands do not depend on them. ``rng`` depends on the seed.

    Attributes:
        points: (2n, d) float32, winners, then losers.
        weights: (n,) number of judgments that each row stands for.
        fold_of: (n,) the fold of each row.
        rows: (m,) the validation rows, over which held-out likelihoods are taken: all, or as many
            as are needed to rank the forms.
        row_folds, row_groups, row_weights, row_response: (m,) of the validation rows.
    """

    def __init__(
        self, data: ChoiceData, response: Response, folds: int, rng: np.random.Generator
    ) -> None:
        self.data, self.response, self.rng = data, response, rng
        self.folds = max(2, min(folds, int(data.groups.max()) + 1))
        fixed_rng = np.random.default_rng(_SEED)
        self.fold_of = torch.from_numpy(assign_folds(data.groups, self.folds, fixed_rng))
        self.generator = torch.Generator().manual_seed(_SEED)
        self.points = torch.from_numpy(np.concatenate([data.winners, data.losers])).float()
        self.weights = torch.from_numpy(data.weights).float()
        permutation = torch.randperm(self.size, generator=self.generator)
        self.rows = permutation[:_MAX_ROWS].sort().values
        self.row_folds, self.row_response = self.fold_of[self.rows], response.select(self.rows)
        self.row_groups, self.row_weights = (
            values[self.rows.numpy()] for values in (data.groups, data.weights)
        )

    @property
    def informative_rows(self) -> Flags:
        """Which of the validation rows (m,) are of two different points."""
        different: Flags = (self.data.winners != self.data.losers).any(1)[self.rows.numpy()]
        return different

    @property
    def size(self) -> int:
        """Number of comparisons n."""
        return len(self.data.weights)

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return int(self.data.winners.shape[1])

    def winners_and_losers(self, rows: Tensor) -> Tensor:
        """Return the winners of these rows, then their losers: (2m, d)."""
        return torch.cat([self.points[rows], self.points[rows + self.size]])

    def differences_by_row(self, held_out: HeldOutPredictions) -> Array:
        """Return f(winner) − f(loser) of every row (n,); NaN of rows not used for validation."""
        differences = np.full(self.size, np.nan)
        differences[self.rows.numpy()] = held_out.difference
        return differences

    def score(self, held_out: HeldOutPredictions) -> float:
        """Return the mean moderated log-likelihood of the validation rows, nats per comparison."""
        log_likelihoods = held_out.log_likelihood(self.row_response)
        return float(np.average(log_likelihoods, weights=self.row_weights))

    def mean_gain(self, held_out: HeldOutPredictions, base: HeldOutPredictions) -> dict[str, float]:
        """Return by how much predictions have a higher score than others, and its standard error.

        The standard error is over groups; both are in nats per comparison.
        """
        weights, response = self.row_weights, self.row_response
        gains = held_out.log_likelihood(response) - base.log_likelihood(response)
        mean = float(np.average(gains, weights=weights))
        group_sums = np.bincount(self.row_groups, weights * (gains - mean))
        return {"mean": mean, "se": float(np.sqrt((group_sums**2).sum()) / weights.sum())}


def explained_share(unexplained: Array, squares: Array) -> tuple[float, float, float]:
    """Return 1 − Σ unexplained / Σ squares (n,) with the ends of its 95 % interval over rows.

    The interval is by the infinitesimal jackknife of the logarithm of the ratio, so that it stays
    below one, with Student's quantile.

    Examples:
        >>> share = explained_share(np.array([1.0, 2.0, 1.0, 0.5, 1.5]), np.full(5, 4.0))
        >>> [round(value, 2) for value in share]
        [0.7, 0.46, 0.83]
    """
    total, unexplained_sum, n = float(squares.sum()), float(unexplained.sum()), len(squares)
    if unexplained_sum <= 0.0:
        return 1.0, 1.0, 1.0
    influence = unexplained / unexplained_sum - squares / total
    half = stats.t.ppf(0.975, n - 1) * math.sqrt(float(influence @ influence) * n / (n - 1))
    ratio = unexplained_sum / total
    return 1.0 - ratio, 1.0 - ratio * math.exp(half), 1.0 - ratio * math.exp(-half)


def measure_calibration(
    validation: CrossValidation, held_out: HeldOutPredictions
) -> dict[str, Any]:
    """Return how often choices go as predicted, by predicted probability (JSON-able).

    ``bins`` hold the weight (``share``) of the comparisons whose likelier side has a probability in
    0.5–0.6, ..., 0.9–1, its mean (``predicted``), and the share that this side won (``observed``);
    empty bins are left out. ``error`` is the mean absolute difference of the two, weighted by share
    (the expected calibration error of Naeini, Cooper and Hauskrecht, 2015).
    """
    weights, response = validation.row_weights, validation.row_response
    differences = response.linear_predictor(torch.from_numpy(held_out.difference))
    sd = response.scale_sd(torch.from_numpy(held_out.sd))
    win, lose = (
        torch.exp(response.noise.moderated_log_cdf(sign * differences, sd)).numpy()
        for sign in (1.0, -1.0)
    )
    # Given that it is not a tie.
    probability = win / (win + lose)
    confidence = np.maximum(probability, 1.0 - probability)
    correct = np.where(probability == 0.5, 0.5, probability > 0.5)
    bin_of, bins, error = np.digitize(confidence, _BIN_EDGES), [], 0.0
    for k in np.unique(bin_of):
        bin_weights = np.where(bin_of == k, weights, 0.0)
        share = float(bin_weights.sum() / weights.sum())
        predicted, observed = (
            float(np.average(values, weights=bin_weights)) for values in (confidence, correct)
        )
        error += share * abs(observed - predicted)
        bins.append({"share": share, "predicted": predicted, "observed": observed})
    return {"bins": bins, "error": error}


@dataclass(frozen=True)
class FormWeights:
    """The weights of forms, which sum to one, by their names, and the factor of their sum.

    ``held_out`` predicts every fold with weights and a factor chosen on the other folds, so that
    its score is of rows that took no part in it.
    """

    weights: dict[str, float]
    factor: float
    held_out: HeldOutPredictions


def fit_form_weights(
    validation: CrossValidation, forms: Mapping[str, HeldOutPredictions]
) -> FormWeights:
    """Return the weights of forms by their predictions of the validation rows."""
    groups, fold_of = validation.row_groups, validation.row_folds.numpy()
    if len(np.unique(groups[validation.informative_rows])) < 2:
        # If there is only one pair, holding it out leaves nothing to fit the forms to.
        return FormWeights({"quadratic": 1.0}, 1.0, forms["quadratic"])
    response = validation.row_response
    log_likelihoods = np.stack([form.log_likelihood(response) for form in forms.values()])
    difference = np.stack([form.difference for form in forms.values()])
    sd = np.stack([form.sd for form in forms.values()])
    # Laplace's standard deviation of linear predictors is far too large where choices hardly
    # bound the scale.
    factor_sd = sd * ~np.isin(list(forms), ["quadratic", "smooth"])[:, None]
    varies = np.array([name != "constant" for name in forms])

    def fit_weights(training: Flags) -> tuple[Array, float]:
        weights = validation.row_weights[training]
        power = _LIKELIHOOD_POWER * len(weights) / weights.sum()
        generator = torch.Generator().manual_seed(_SEED)
        form_weights = pseudo_bma_weights(
            power * weights * log_likelihoods[:, training], groups[training], generator
        )
        form_weights = np.where(form_weights < _MIN_WEIGHT, 0.0, form_weights)
        form_weights = form_weights / form_weights.sum()
        weighted_sums = (form_weights @ values[:, training] for values in (difference, factor_sd))
        # With few categories the constant has weight however many choices there are.
        max_factor = 1.0 / max(float(form_weights[varies].sum()), _MIN_WEIGHT)
        training_response = response.select(torch.from_numpy(training))
        return form_weights, fit_factor(
            HeldOutPredictions(*weighted_sums), weights, training_response, max_factor
        )

    predicted = np.empty((2, len(groups)))
    for fold in range(validation.folds):
        test = fold_of == fold
        form_weights, factor = fit_weights(~test)
        predicted[0, test] = factor * form_weights @ difference[:, test]
        predicted[1, test] = factor * form_weights @ sd[:, test]
    form_weights, factor = fit_weights(np.ones(len(groups), dtype=bool))
    return FormWeights(
        dict(zip(forms, form_weights.tolist(), strict=True)), factor, HeldOutPredictions(*predicted)
    )


def fit_factor(
    held_out: HeldOutPredictions, weights: Array, response: Response, max_factor: float = 1.0
) -> float:
    """Return the factor, at most ``max_factor``, that makes held-out choices most likely.

    A weak penalty draws it towards one. Where forms are too flat none above one makes the belief
    nearer: most choices are between improbable points, and say little of the peaks that it raises.

    Args:
        held_out: predictions of m rows.
        weights: (m,) of the rows.
        response: what was answered.
        max_factor: the largest factor.

    Examples:
        >>> import numpy as np
        >>> from llm_elicit.density import Noise
        >>> truth = np.random.default_rng(0).normal(0, 3, 4000)
        >>> choices = np.sign(truth + np.random.default_rng(1).logistic(0, 0.78, 4000))
        >>> steep = HeldOutPredictions(2.0 * truth * choices, np.zeros(4000))
        >>> factor = fit_factor(steep, np.ones(4000), Response(Noise()))
        >>> bool(abs(factor - 0.5) < 0.05)                            # the form is twice too steep
        True
    """
    row_weights = torch.from_numpy(weights)
    values, sd = (torch.from_numpy(side) for side in (held_out.difference, held_out.sd))

    def loss(factor: Tensor) -> Tensor:
        fit = response.moderated_log_cdf(factor * values, factor * sd) @ row_weights
        return 0.5 * _FACTOR_PENALTY * (factor[0] - 1.0) ** 2 - fit

    return float(minimize(loss, np.ones(1), [(0.0, max_factor)])[0])


def pseudo_bma_weights(log_likelihoods: Array, groups: Index, generator: torch.Generator) -> Array:
    """Return shares (F,), summing to one, of forms by their log-likelihoods (F, m).

    Each share is exp(total log-likelihood) over the sum of all forms', averaged over Bayesian
    bootstraps of the rows' ``groups`` (m,), so that a form that leads by chance does not take all
    (pseudo-BMA+; Yao, Vehtari, Simpson and Gelman, 2018).

    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> logs = rng.normal(-0.5, 0.3, (2, 400))                     # alike but for chance
        >>> worse = np.vstack([logs, logs[:1] - 0.1])                 # and one clearly behind
        >>> shares = pseudo_bma_weights(worse, np.arange(400), torch.Generator().manual_seed(0))
        >>> bool(shares[:2].min() > 0.1), bool(shares[2] < 0.01)
        (True, True)
    """
    group_logs = np.stack([np.bincount(groups, row) for row in log_likelihoods])
    bootstrap_weights = torch.empty(_BOOTSTRAPS, group_logs.shape[1], dtype=torch.float64)
    bootstrap_weights = bootstrap_weights.exponential_(generator=generator)
    bootstrap_weights /= bootstrap_weights.mean(1, keepdim=True)
    model_weights = torch.softmax(bootstrap_weights @ torch.from_numpy(group_logs).T, 1)
    return np.asarray(model_weights.mean(0).numpy())
