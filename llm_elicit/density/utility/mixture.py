"""Fit of log-mixture utilities by choice likelihood, one number of components at a time.

The likelihood of a mixture has many local maxima. For each number of components several starts,
Gaussian mixtures of the winners, compete by successive halving on part of the comparisons. The
two remaining starts are maximized, and the one that best predicts the validation rows is kept, with
the prior strength that predicts them best. From there the mixture is fitted to all comparisons, and
once without each fold for its cross-validated score. More components are tried until three numbers
in a row do not improve it.

Starts are clusters of the winners, which are dense where the belief is. Clusters by k-means find
separate components; clusters by the nearest of several lines through the mean find components that
cross. Every second start is refined by expectation maximization.

Predictions are moderated by the posterior's uncertainty. Those of the mode are overconfident in the
tails, where most comparisons lie, so that its score would favour priors that make the belief too
wide.

Relative masses of distant components are hardly identified, since few comparisons are between
them. A symmetric Dirichlet prior shrinks them towards each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor

from llm_elicit.density.errors import Array, Index
from llm_elicit.density.settings import MixturePrior, MixtureSettings
from llm_elicit.density.utility.cross_validation import CrossValidation, HeldOutPredictions
from llm_elicit.density.utility.model import FactorMixture, Mixture, MixturePosterior, maximize
from llm_elicit.density.utility_function import Tail

_PATIENCE = 3
_MAX_SEARCH_ROWS = 6000  # most comparisons that the starts are compared on
_PRIOR_STRENGTHS = (0.3, 1.0, 3.0)  # of the prior, of which the one that predicts best is kept
_HALVINGS = ((3, 3), (4, 2))  # steps, then the divisor of the number of starts kept
_MIN_TAIL_GAIN_SE = 2.0  # standard errors by which a tail must predict better
_TAILS = ("exponential", 1.0, 1 / 2), ("stretched exponential", 0.1, 1 / 3)
_MAX_CLUSTERED_ROWS = 1500
_EM_SWEEPS = 10
_MIN_ROWS_PER_PARAMETER = 5  # fewest comparisons of each parameter
# Share of an isotropic covariance in each cluster's, so that none is singular.
_ISOTROPIC_SHARE = 0.05
StepCallback = Callable[[int], None]


@dataclass(frozen=True)
class MixtureFit:
    """The posterior mode given all comparisons, and how well it predicts.

    Attributes:
        mode: the mixture.
        held_out: predictions of the validation rows by fits to the other folds.
        score: their mean moderated log-likelihood, nats per comparison.
        prior: with the strength that was chosen.
    """

    mode: Mixture
    held_out: HeldOutPredictions
    score: float
    prior: MixturePrior

    @property
    def count(self) -> int:
        """Number of components."""
        return len(self.mode.height)


def fit_mixtures(
    validation: CrossValidation,
    settings: MixtureSettings,
    quadratic_score: float,
    on_step: StepCallback | None = None,
) -> list[MixtureFit]:
    """Fit mixtures of each number of components, until three numbers in a row do not help.

    Components have free covariances, or one factor (`FactorMixture`) where comparisons are too few
    for free ones. Where that halves the parameters, both are tried until one factor predicts
    better. The list is empty where comparisons are too few for the smallest number, or where there
    are more columns of categories than `MixtureSettings.max_categories`.

    Args:
        validation: the data and their folds.
        settings: settings of the mixtures.
        quadratic_score: the score of one component, the quadratic form.
        on_step: called with the number of counts that are done.
    """
    fits: list[MixtureFit] = []
    scores = [quadratic_score]
    if (validation.data.categories >= 0).sum() > settings.max_categories:
        return fits
    d = validation.dimension
    free, one_factor = 1.0 + d + d * (d + 1) // 2, 2 * d + 2  # parameters of a component
    for step, count in enumerate(settings.counts, 1):
        if fits and isinstance(fits[-1].mode, FactorMixture):
            free = math.inf
        if validation.size < _MIN_ROWS_PER_PARAMETER * count * min(free, one_factor):
            break
        starts, candidates = draw_starts(validation, count, settings.starts), []
        if validation.size >= _MIN_ROWS_PER_PARAMETER * count * free:
            candidates.append(_MixtureFitter(validation, settings).fit(starts))
            starts = [candidates[0].mode]
        if not candidates or 2 * one_factor <= free:
            nearest = [FactorMixture.approximate(start) for start in starts]
            candidates.append(_MixtureFitter(validation, settings).fit(nearest))
        fits.append(max(candidates, key=lambda fit: fit.score))
        scores.append(fits[-1].score)
        if on_step is not None:
            on_step(step)
        if len(scores) - 1 - int(np.argmax(scores)) >= _PATIENCE:
            break
    return fits


def fit_tails(
    validation: CrossValidation, settings: MixtureSettings, quadratic: HeldOutPredictions
) -> dict[str, MixtureFit]:
    """Fit one component with each kind of tail, if the lightest of them clearly helps.

    They are many forms that are alike, and by chance would take most of the weight of a normal
    belief. None is tried where mixtures are left out, or a feature has categories. The width is in
    doubt (`MixturePrior`), since the core of a belief with heavy tails may be a hundredth as wide
    as λ.

    Args:
        validation: the data and their folds.
        settings: settings of the mixtures.
        quadratic: predictions of the quadratic form.
    """
    d, fits = validation.dimension, dict[str, MixtureFit]()
    min_size = _MIN_ROWS_PER_PARAMETER * (1 + d + d * (d + 1) // 2)
    has_categories = len(validation.data.numbers) < d
    if not settings.counts or has_categories or validation.size < min_size:
        return fits
    prior = replace(settings.prior, width_uncertainty=2.0 / (d * (d + 1)))  # as for the draws
    fitter = _MixtureFitter(validation, replace(settings, prior=prior), strengths=(1.0,))
    mode = _fit_gaussian_mixture(validation.data.winners, np.ones((validation.size, 1)), 1)
    for name, size, power in (*_TAILS, *((f"Student t of {v}", d + v, 0.0) for v in (8, 4, 2))):
        tail_fit = fitter.refine(replace(mode, tail=Tail(size, power)))
        gain = validation.mean_gain(tail_fit.held_out, quadratic)
        if not fits and gain["mean"] < _MIN_TAIL_GAIN_SE * gain["se"]:
            break
        fits[name], mode = tail_fit, tail_fit.mode
    return fits


class _MixtureFitter:
    """The fit of one number of components; the first fold chooses the start and the prior."""

    def __init__(
        self,
        validation: CrossValidation,
        settings: MixtureSettings,
        strengths: Sequence[float] = _PRIOR_STRENGTHS,
    ) -> None:
        self.validation, self.settings, self.strengths = validation, settings, strengths
        self.training_rows = torch.nonzero(validation.fold_of != 0)[:, 0]
        self.test_rows = validation.rows[validation.row_folds == 0]
        self.test_points = validation.winners_and_losers(self.test_rows)

    def fit(self, starts: Sequence[Mixture]) -> MixtureFit:
        """Return the fit from the best of several starts.

        Successive halving leaves two, of which the one that best predicts the first fold is best.
        """
        permutation = torch.randperm(len(self.training_rows), generator=self.validation.generator)
        rows = self.training_rows[permutation[:_MAX_SEARCH_ROWS]]
        posterior = self._posterior(rows, self.settings.prior)
        candidates = list(starts)
        for steps, divisor in _HALVINGS:
            maximized = [maximize(posterior, start, steps) for start in candidates]
            maximized.sort(key=lambda fit: -fit[1])
            candidates = [mixture for mixture, _ in maximized[: max(2, len(maximized) // divisor)]]
        steps = self.settings.search_steps
        candidates = [maximize(posterior, start, steps)[0] for start in candidates]
        score = lambda m: self._score(posterior.predict(m, self.test_points))  # noqa: E731
        return self.refine(max(candidates, key=score))

    def refine(self, mode: Mixture) -> MixtureFit:
        """Return the mode given all comparisons, and its cross-validated predictions."""
        validation, settings = self.validation, self.settings
        training_posterior = self._posterior(self.training_rows, settings.prior)
        candidates = []
        for strength in self.strengths:
            prior = replace(settings.prior, strength=strength)
            posterior = replace(training_posterior, prior=prior)
            mode = maximize(posterior, mode, settings.steps)[0]
            candidates.append((mode, prior, posterior.predict(mode, self.test_points)))
        best, prior, predicted = max(candidates, key=lambda fitted: self._score(fitted[2]))
        mode = maximize(self._posterior(slice(None), prior), best, settings.steps)[0]
        held_out = self._cross_validate(mode, prior, predicted)
        return MixtureFit(mode, held_out, validation.score(held_out), prior)

    def _posterior(self, rows: Tensor | slice, prior: MixturePrior) -> MixturePosterior:
        """Return the posterior given some of the comparisons."""
        row_numbers = torch.arange(self.validation.size)[rows]
        points = self.validation.winners_and_losers(row_numbers)
        response = self.validation.response.select(row_numbers)
        return MixturePosterior(points, self.validation.weights[row_numbers], response, prior)

    def _score(self, predicted: tuple[Tensor, Tensor]) -> float:
        """Return the mean moderated log-likelihood of the first fold's rows."""
        response = self.validation.response.select(self.test_rows)
        log_likelihoods = response.moderated_log_cdf(*predicted)
        weights = self.validation.weights[self.test_rows]
        return float((log_likelihoods * weights).sum() / weights.sum())

    def _cross_validate(
        self, mode: Mixture, prior: MixturePrior, predicted: tuple[Tensor, Tensor]
    ) -> HeldOutPredictions:
        """Return predictions of every validation row; ``predicted`` are those of the first fold."""
        validation, rows = self.validation, self.validation.rows
        difference, sd = torch.empty(2, len(rows))
        for fold in range(validation.folds):
            in_fold = validation.row_folds == fold
            if fold:
                posterior = self._posterior(torch.nonzero(validation.fold_of != fold)[:, 0], prior)
                fold_mode = maximize(posterior, mode, self.settings.steps)[0]
                points = validation.winners_and_losers(rows[in_fold])
                predicted = posterior.predict(fold_mode, points)
            difference[in_fold], sd[in_fold] = predicted
        return HeldOutPredictions(difference.double().numpy(), sd.double().numpy())


def draw_starts(validation: CrossValidation, count: int, starts: int) -> list[Mixture]:
    """Return ``starts`` mixtures of ``count`` components, of all kinds in turn."""
    data, rng = validation.data, validation.rng
    probabilities = data.weights / data.weights.sum()
    size = min(_MAX_CLUSTERED_ROWS, validation.size)
    mixtures = []
    for start in range(starts):
        winners = data.winners[rng.choice(validation.size, size, p=probabilities)]
        if start % 4 == 3:
            labels = _cluster_by_lines(winners, count, rng)
        else:
            labels = kmeans2(winners, count, minit="++", rng=rng)[1].astype(np.int64)
        iterations = _EM_SWEEPS if start % 2 else 1
        mixtures.append(_fit_gaussian_mixture(winners, np.eye(count)[labels], iterations))
    return mixtures


def _cluster_by_lines(points: Array, count: int, rng: np.random.Generator) -> Index:
    """Return each point's nearest of ``count`` lines through the mean: (n,)."""
    centred = points - points.mean(0)
    lines = rng.normal(size=(count, points.shape[1]))
    labels = np.zeros(len(points), dtype=np.int64)
    for _ in range(_EM_SWEEPS):
        lines /= np.linalg.norm(lines, axis=1, keepdims=True)
        labels = np.abs(centred @ lines.T).argmax(1)
        for k in range(count):
            members = centred[labels == k]
            if len(members) > 1:
                lines[k] = np.linalg.eigh(members.T @ members)[1][:, -1]
    return labels


def _fit_gaussian_mixture(points: Array, responsibilities: Array, iterations: int) -> Mixture:
    """Return a Gaussian mixture by expectation-maximization from responsibilities (n, K)."""
    n, d = points.shape
    covariance_of_all = np.cov(points.T).reshape(d, d)
    for _ in range(iterations):
        mass = responsibilities.sum(0) + 1e-9
        centres = responsibilities.T @ points / mass[:, None]
        centred = points - centres[:, None]
        weighted = responsibilities.T[..., None] * centred
        scatter = np.swapaxes(weighted, 1, 2) @ centred / mass[:, None, None]
        # A nearly empty component is given its part of the whole cloud.
        shrinkage = (2.0 * d / (2.0 * d + mass))[:, None, None]
        part = shrinkage * covariance_of_all / len(mass) ** (2.0 / d)
        covariance = (1 - shrinkage) * scatter + part
        floor = _ISOTROPIC_SHARE * np.trace(covariance, axis1=1, axis2=2) / d + 1e-9
        covariance = (1 - _ISOTROPIC_SHARE) * covariance + floor[:, None, None] * np.eye(d)
        whiten = np.swapaxes(np.linalg.inv(np.linalg.cholesky(covariance)), 1, 2)
        distance = np.square(centred @ whiten).sum(-1)
        log_terms = np.log(mass / n) + np.linalg.slogdet(whiten)[1] - 0.5 * distance.T
        responsibilities = np.exp(log_terms - log_terms.max(1, keepdims=True))
        responsibilities /= responsibilities.sum(1, keepdims=True)
    return Mixture(
        torch.from_numpy(whiten).float(),
        torch.from_numpy((centres[:, None] @ whiten).squeeze(1)).float(),
        torch.zeros(len(mass)),
    )
