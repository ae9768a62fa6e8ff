"""Fit the utility f by choice likelihood; all decisions are by cross-validated likelihood.

The compared points are drawn from λ independently of the belief p, so the choice likelihood Π
F(f(winner) − f(loser)) of f = log p is sufficient. The forms of f are a constant (random choices),
a quadratic form (a Gaussian belief on the feature scale), a quadratic form with a smooth remainder,
and the logarithm of a mixture of each number of components, of the features or of warped ones
(`choose_warp`). f is their sum, weighted by held-out choices (`fit_form_weights`).

*Separation.* If no choice contradicts a rule u, and some agree with it, the likelihood of c u
increases with c and has no maximum (Albert and Anderson, 1984). The choices then bound c only from
below, and the fitted c depends on the prior. Linear and quadratic rules are found by a linear
program (Konis, 2007); the fitted utility is checked, too. Choices of a judge without noise never
contradict its rule, and few choices of a noisy judge may agree with it by chance.

*Warps* stretch a feature at the lower end of its range, at the upper end, or at both, where a
quadratic form of the stretched features makes the choices more likely. First the ends are chosen,
then the strengths. Features are changed all at once where that is more likely, so that their order
does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from scipy import stats
from scipy.optimize import linprog
from scipy.special import softmax

from llm_elicit.density.errors import Flags
from llm_elicit.density.likelihood import Context, Noise, Response
from llm_elicit.density.settings import Progress, UtilitySettings
from llm_elicit.density.utility.cross_validation import (
    Array,
    ChoiceData,
    CrossValidation,
    HeldOutPredictions,
    Index,
    fit_form_weights,
    measure_calibration,
)
from llm_elicit.density.utility.interaction import estimate_choice_interaction
from llm_elicit.density.utility.judges import JudgeTerms
from llm_elicit.density.utility.mixture import MixtureFit, StepCallback, fit_mixtures, fit_tails
from llm_elicit.density.utility.posterior import draw_posterior
from llm_elicit.density.utility.quadratic import QuadraticFit, Ridges, fit_smooth
from llm_elicit.density.utility_function import DeferredDraws, Utility, Warp

_MAX_WARP_ROWS = 2000  # most comparisons that a warp is chosen by
_WARPED_ENDS = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
_FIRST_STRENGTH, _STRENGTHS = 1e2, np.geomspace(1e1, 1e5, 9)
_MIN_WARP_GAIN = 5.0  # nats, for which a feature is warped
_MAX_SWEEPS, _REFINEMENTS = 12, 2


def choose_warp(quadratic: QuadraticFit, ridges: Ridges) -> Warp | None:
    """Return the warp that makes the choices likeliest; None if no feature gains by one.

    Choices hardly distinguish large strengths. The logarithm of each strength is therefore its
    posterior mean: the smallest sufficient strength would make skewed beliefs too wide.
    """
    generator = torch.Generator().manual_seed(0)
    subset = torch.randperm(len(quadratic.rows), generator=generator)[:_MAX_WARP_ROWS]
    regression, data = quadratic.regression(ridges).subset(subset), quadratic.validation.data
    rows = quadratic.rows[subset.numpy()]
    points_of_sides = [
        torch.from_numpy(side[rows]).double() for side in (data.winners, data.losers)
    ]
    points, start = np.concatenate([data.winners, data.losers]), regression.maximize()[0]

    def evidence(strengths: Array, ridges: Ridges) -> float:
        warp, prior = Warp.of(points, *strengths.T), torch.from_numpy(quadratic.prior(ridges))
        winners, losers = (quadratic.terms.columns(warp(side).numpy()) for side in points_of_sides)
        warped_regression = replace(
            regression, columns=torch.from_numpy(winners - losers), prior=prior
        )
        mode, root = warped_regression.maximize(start)
        return warped_regression.value(mode) - float(root.diagonal().log().sum())

    strengths = np.zeros((points.shape[1], 2))
    log_evidence = evidence(strengths, ridges)
    for _ in range(_MAX_SWEEPS):
        candidates_by_feature = {}
        for j in (j for j in data.numbers if not strengths[j].any()):
            candidates = [
                (evidence(s, ridges), s)
                for s in _vary_strengths(strengths, j, _FIRST_STRENGTH * _WARPED_ENDS)
            ]
            best = max(candidates, key=itemgetter(0))
            if best[0] > log_evidence + _MIN_WARP_GAIN:
                candidates_by_feature[j] = best
        if not candidates_by_feature:
            break
        joint_strengths = strengths + sum(
            changed - strengths for _, changed in candidates_by_feature.values()
        )
        joint_candidate = evidence(joint_strengths, ridges), joint_strengths
        log_evidence, strengths = max(
            [*candidates_by_feature.values(), joint_candidate], key=itemgetter(0)
        )
    if not strengths.any():
        return None
    for _ in range(_REFINEMENTS):
        refined_ridges = QuadraticFit(
            warp_features(quadratic.validation, Warp.of(points, *strengths.T))
        ).estimate_ridges()
        refined = strengths.copy()
        for j in np.flatnonzero(strengths.any(1)).tolist():
            levels = np.outer(_STRENGTHS, strengths[j] > 0)
            values = [evidence(s, refined_ridges) for s in _vary_strengths(strengths, j, levels)]
            refined[j] = (strengths[j] > 0) * np.exp(softmax(values) @ np.log(_STRENGTHS))
        strengths = refined
    return Warp.of(points, *strengths.T)


def _vary_strengths(strengths: Array, feature: int, levels: Array) -> Iterator[Array]:
    """Yield the strengths (p, 2) with each of the ``levels`` (L, 2) of one feature."""
    for level in levels:
        varied = strengths.copy()
        varied[feature] = level
        yield varied


def warp_features(validation: CrossValidation, warp: Warp) -> CrossValidation:
    """Return the same folds and judgments with warped features."""
    data = validation.data
    winners, losers = (warp(torch.from_numpy(side)).numpy() for side in (data.winners, data.losers))
    data = replace(data, winners=winners, losers=losers)
    return CrossValidation(data, validation.response, validation.folds, validation.rng)


_FIRST_ROWS = 1000  # of the first program; later ones have the rows that its rule contradicts, too
_ADDED_ROWS = 500
_MAX_TERMS = 200
_TOLERANCE = 1e-6
_CHANCE_LEVEL = 0.05
_RULE_NAMES = {
    "linear": "a linear rule",
    "quadratic": "a quadratic rule",
    "fitted": "the fitted utility",
}


def separated_rows(columns: Array) -> Flags:
    """Return which rows x (n, P) have x·β > 0, for the β with the most of them and x·β >= 0 of all.

    Examples:
        >>> separated_rows(np.array([[1.0], [2.0], [0.0]])).tolist()
        [True, True, False]
        >>> bool(separated_rows(np.array([[1.0], [-2.0]])).any())
        False
    """
    sizes = np.abs(columns).max(axis=0, initial=0.0)
    scaled = columns[:, sizes > 0.0] / sizes[sizes > 0.0]
    count, terms = scaled.shape
    permutation = np.random.default_rng(0).permutation(count)
    rows = np.sort(permutation[: max(_FIRST_ROWS, 8 * terms)])
    while terms:
        chosen = scaled[rows]
        # The most of Σ s with x·β >= s and 0 <= s <= 1.
        rules = np.hstack([-chosen, np.eye(len(rows))])
        solution = linprog(
            np.concatenate([np.zeros(terms), -np.ones(len(rows))]),
            A_ub=rules,
            b_ub=np.zeros(len(rows)),
            bounds=[(None, None)] * terms + [(0.0, 1.0)] * len(rows),
        )
        if solution.x is None or float(np.sum(solution.x[terms:])) < 0.5:
            break
        predictor = scaled @ solution.x[:terms]
        lowest = np.argsort(predictor)[:_ADDED_ROWS]
        contradicted = np.setdiff1d(lowest[predictor[lowest] < -_TOLERANCE], rows)
        if not len(contradicted):
            return np.asarray(predictor > _TOLERANCE)
        rows = np.union1d(rows, contradicted)
    return np.zeros(count, dtype=bool)


def find_separation(
    design: Array, linear_count: int, position_columns: Array, pairs: Index
) -> dict[str, Any] | None:
    """Return the linear or quadratic rule that no choice contradicts; None if there is none.

    Args:
        design: (n, P) terms of the winners less those of the losers, the linear terms first.
        linear_count: the number of linear terms.
        position_columns: (n, B) columns of position effects, which may explain choices, too.
        pairs: (n,) their numbers; rows of one pair are one answer.

    Returns what is JSON-able: ``rule`` is "linear", "quadratic" or "fitted"; ``pairs`` are those in
    which it has a preference, and ``complete`` says whether that is all of them; ``chance`` is the
    probability that as many random choices agree with some rule of its kind (Cover, 1965), and
    ``by_chance`` whether it is at least 5 %; ``message`` says so in one line.
    """
    explained_by_position = separated_rows(position_columns).sum()

    def find_rows(terms: int) -> Flags:
        separated = separated_rows(np.concatenate([design[:, :terms], position_columns], axis=1))
        enough = separated.sum() > explained_by_position
        return separated if enough else np.zeros_like(separated)

    terms = design.shape[1] if design.shape[1] <= _MAX_TERMS else linear_count
    separated = find_rows(terms)
    if not separated.any():
        return None
    if terms > linear_count and find_rows(linear_count).sum() == separated.sum():
        terms = linear_count
    rule = "linear" if terms == linear_count else "quadratic"
    informative = (design != 0.0).any(axis=1)
    return _describe_separation(
        rule, terms + position_columns.shape[1], pairs[separated], pairs[informative]
    )


def find_fitted_separation(
    informative: Flags, pairs: Index, differences: Array, parameter_count: float
) -> dict[str, Any] | None:
    """Return the separation by the fitted utility; None if a choice contradicts it.

    The result is that of `find_separation`.

    Args:
        informative: (n,) whether a row is of two different points.
        pairs: (n,) their numbers; rows of one pair are one answer.
        differences: (n,) f(winner) − f(loser) by the fitted utility.
        parameter_count: the number of its parameters that choices determine.
    """
    if not (informative.any() and (differences[informative] > 0.0).all()):
        return None
    return _describe_separation(
        "fitted", max(parameter_count, 1.0), pairs[informative], pairs[informative]
    )


def _describe_separation(
    rule: str, term_count: float, separated: Index, informative: Index
) -> dict[str, Any]:
    count, total = len(np.unique(separated)), len(np.unique(informative))
    chance = float(stats.binom.cdf(np.ceil(term_count) - 1.0, count - 1, 0.5))
    extent = "all" if count == total else f"{count:,} of {total:,}"
    message = (
        f"no choice contradicts {_RULE_NAMES[rule]}, which decides {extent} pairs, so the choices "
        "give only a lower bound of the sharpness of the belief (the same number of random "
        f"choices agree with such a rule with probability {chance:.2g})"
    )
    return {
        "rule": rule, "complete": count == total, "pairs": count, "chance": chance,
        "by_chance": chance >= _CHANCE_LEVEL, "message": message,
    }  # fmt: skip


WEIGHTED_SUM = "weighted sum"
_JUDGE_TURNS = 4
_MIN_WARP_GAIN_SE = 2.0  # standard errors by which a form of warped features must predict better


@dataclass(frozen=True)
class UtilityFit:
    """The fitted utility, draws of its posterior, and diagnostics (JSON-able).

    Draws are made when they are first needed. ``held_out_differences`` (n,) is f(winner) − f(loser)
    of every row by fits to other rows, in nats; NaN of rows that are not validation rows.
    """

    utility: Utility
    draws: DeferredDraws
    held_out_differences: Array
    diagnostics: dict[str, Any]


def fit_utility(
    data: ChoiceData,
    noise: Noise,
    rng: np.random.Generator,
    settings: UtilitySettings,
    progress: Progress | None = None,
) -> UtilityFit:
    """Fit f, and the judges' terms where the judgments have a context.

    The diagnostics are ``form`` ("weighted sum"), the ``weights`` of the forms, which sum to one,
    the ``factor`` of their sum, ``held_out`` (cross-validated moderated log-likelihood of each form
    and of the weighted sum, nats per comparison; random choices have −log 2), ``gains`` of the
    weighted sum over the constant and the quadratic form with their standard errors, its
    ``calibration``, ``ridges``, the ``variances`` of the smooth remainder's processes, ``warp``,
    the strengths of each feature or None, ``separation`` (see `find_separation`), and
    ``judging``, the judges' terms; see `JudgeTerms.report`. With several presentations, there are
    also ``presentations``; see `ChoiceInteraction.report`.
    """
    count = len(settings.mixture.counts)

    def on_step(done: int) -> None:
        if progress is not None:
            progress("utility", done, count)

    if data.context is None:
        validation = CrossValidation(data, Response(noise), settings.folds, rng)
        return _fit_weighted_sum(validation, settings, on_step)
    terms, weighted = _estimate_judge_terms(data, data.context, noise, rng, settings)
    response = terms.response(data.context, noise)
    fit = _fit_weighted_sum(
        CrossValidation(weighted, response, settings.folds, rng), settings, on_step
    )
    judging = {"judging": terms.report(data.context, noise)}
    fit = replace(fit, diagnostics={**fit.diagnostics, **judging})
    if len(data.context.presentations) < 2:
        return fit
    interaction = estimate_choice_interaction(weighted, terms, noise, fit.utility.warp)
    return replace(
        fit,
        draws=fit.draws.map(interaction.widen),
        diagnostics={**fit.diagnostics, "presentations": interaction.report(data.context)},
    )


def _estimate_judge_terms(
    data: ChoiceData,
    context: Context,
    noise: Noise,
    rng: np.random.Generator,
    settings: UtilitySettings,
) -> tuple[JudgeTerms, ChoiceData]:
    """Return the judges' terms, and the judgments weighted by them.

    They are estimated in turns with the quadratic form, which is quickly fitted, then once with
    all forms but the smooth one, since beside a utility that is too simple position effects are
    underestimated.
    """
    quick_settings = replace(
        settings,
        smooth=replace(settings.smooth, frequencies=0),
        posterior=replace(settings.posterior, draws=0),
    )
    terms = JudgeTerms.neutral(context)
    weighted = terms.weight_rankings(data, noise)
    for turn in range(_JUDGE_TURNS):
        response = terms.response(context, noise)
        validation = CrossValidation(weighted, response, settings.folds, rng)
        if turn < _JUDGE_TURNS - 1:
            quadratic = QuadraticFit(validation)
            ridges = quadratic.fit_multiples()[0]
            predicted = validation.differences_by_row(quadratic.cross_validate(ridges.ridges))
        else:
            predicted = _fit_weighted_sum(validation, quick_settings, None).held_out_differences
        weighted = terms.weight_rankings(data, noise, predicted)
        terms = terms.estimate(weighted, noise, predicted)
    return terms, terms.weight_rankings(data, noise, predicted)


def _fit_weighted_sum(
    validation: CrossValidation, settings: UtilitySettings, on_step: StepCallback | None
) -> UtilityFit:
    """Return the weighted sum of the forms, with draws and diagnostics."""
    forms = _fit_forms(validation, settings, on_step)
    quadratic, data = forms.quadratic, validation.data
    rows = quadratic.rows
    position_columns = (
        np.zeros((len(rows), 0)) if data.context is None else data.context.position_columns[rows]
    )
    linear_count, groups = quadratic.terms.dimension, data.groups[rows]
    separation = find_separation(quadratic.design, linear_count, position_columns, groups)
    eligible = dict(forms.held_out)
    if separation is not None and not separation["by_chance"]:
        # The scale of a rule without contradictions is its prior's, and one that is too sharp for a
        # held-out choice says nothing for random ones.
        del eligible["constant"]
    form_weights = fit_form_weights(validation, eligible)
    held_out = {**forms.held_out, WEIGHTED_SUM: form_weights.held_out}
    diagnostics = {
        "form": WEIGHTED_SUM,
        "weights": {form: round(weight, 4) for form, weight in form_weights.weights.items()},
        "factor": form_weights.factor,
        **_scores(validation, held_out),
        **forms.diagnostics(),
    }
    draws = forms.posterior_draws(form_weights.weights, form_weights.factor, settings)
    utility = forms.weighted_utility(form_weights.weights).scaled(form_weights.factor)
    diagnostics["separation"] = separation or _find_fitted_separation(
        validation, utility, form_weights.held_out
    )
    return UtilityFit(
        utility, draws, validation.differences_by_row(form_weights.held_out), diagnostics
    )


def _find_fitted_separation(
    validation: CrossValidation, utility: Utility, held_out: HeldOutPredictions
) -> dict[str, Any] | None:
    """Return whether all choices agree with the utility; see `find_fitted_separation`."""
    rows, data = validation.rows.numpy(), validation.data
    response = validation.response.select(validation.rows)
    winners, losers = utility(validation.winners_and_losers(validation.rows)).double().chunk(2)
    gains = response.log_cdf(winners - losers).numpy() - held_out.log_likelihood(response)
    return find_fitted_separation(
        (data.winners != data.losers).any(1)[rows],
        data.groups[rows],
        response.linear_predictor(winners - losers).numpy(),
        float(gains @ data.weights[rows]),
    )


def _fit_forms(
    validation: CrossValidation, settings: UtilitySettings, on_step: StepCallback | None
) -> _FormFits:
    """Return the forms of the features as they are, or warped.

    They are warped where the quadratic form or the smooth one then clearly predicts better than
    both of the plain features; mixtures take most of the time and are fitted once.
    """
    forms = _FormFits(validation, settings)
    warp = choose_warp(forms.quadratic, forms.ridge_fits[0].ridges)
    if warp is not None:
        warped = _FormFits(warp_features(validation, warp), settings, warp)
        best_warped, best = (
            max(fits.held_out.values(), key=validation.score) for fits in (warped, forms)
        )
        gain = validation.mean_gain(best_warped, best)
        if gain["mean"] > _MIN_WARP_GAIN_SE * gain["se"]:
            forms = warped
    forms.fit_mixtures(settings, on_step)
    return forms


class _FormFits:
    """The constant, the quadratic form, the smooth one and the mixtures, and their predictions."""

    def __init__(
        self, validation: CrossValidation, settings: UtilitySettings, warp: Warp | None = None
    ) -> None:
        self.validation, self.warp = validation, warp
        self.quadratic = QuadraticFit(validation)
        self.ridge_fits = self.quadratic.fit_multiples()
        ridges = self.ridge_fits[0].ridges
        quadratic_predictions = self.quadratic.cross_validate(ridges)
        zeros = np.zeros(len(validation.rows))
        self.held_out = {
            "constant": HeldOutPredictions(zeros, zeros),
            "quadratic": quadratic_predictions,
        }
        self.smooth = fit_smooth(self.quadratic, ridges, settings.smooth)
        if self.smooth is not None:
            self.held_out["smooth"] = self.smooth.held_out
        self.mixtures: dict[str, MixtureFit] = {}

    def fit_mixtures(self, settings: UtilitySettings, on_step: StepCallback | None) -> None:
        """Fit mixtures, until three numbers in a row do not help."""
        quadratic = self.held_out["quadratic"]
        quadratic_score = self.validation.score(quadratic)
        self.mixtures = fit_tails(self.validation, settings.mixture, quadratic) | {
            f"mixture of {fit.count}": fit
            for fit in fit_mixtures(self.validation, settings.mixture, quadratic_score, on_step)
        }
        self.held_out |= {name: fit.held_out for name, fit in self.mixtures.items()}

    def weighted_utility(self, weights: Mapping[str, float]) -> Utility:
        """Return the sum of the forms times their weights."""
        terms = self.quadratic.terms
        total = terms.utility(weights.get("quadratic", 0.0) * self.ridge_fits[0].coefficients)
        if self.smooth is not None and (weight := weights.get("smooth")):
            quadratic, process = self.smooth.split(weight * self.smooth.mode[None])
            parametric = terms.utility(quadratic[0].numpy())
            linear, curvature = (
                total.linear + parametric.linear,
                total.curvature + parametric.curvature,
            )
            total = Utility(linear, curvature, fourier=process)
        components = (
            replace(fit.mode.stack(), share=weights[name])
            for name, fit in self.mixtures.items()
            if weights.get(name)
        )
        return replace(total, components=tuple(components), warp=self.warp)

    def posterior_draws(
        self, weights: Mapping[str, float], factor: float, settings: UtilitySettings
    ) -> DeferredDraws:
        """Return draws of the posterior, times a factor."""
        seed, count = int(self.validation.rng.integers(2**62)), settings.posterior.draws
        forms = (weights, self.quadratic, self.ridge_fits, self.smooth, self.mixtures)
        draw = partial(draw_posterior, *forms, count, seed)
        return DeferredDraws(lambda: replace(draw().scaled(factor), warp=self.warp), count)

    def diagnostics(self) -> dict[str, Any]:
        """Return the diagnostics of the forms."""
        return {
            "ridges": self.ridge_fits[0].ridges._asdict(),
            "variances": {} if self.smooth is None else self.smooth.variances,
            "warp": None if self.warp is None else self.warp.parameters[2:4].T.tolist(),
        }


def _scores(validation: CrossValidation, forms: Mapping[str, HeldOutPredictions]) -> dict[str, Any]:
    """Return the held-out likelihoods of the forms, and gains and calibration of their sum."""
    rows = validation.rows.numpy()
    weights, response = validation.data.weights[rows], validation.response.select(validation.rows)
    return {
        "held_out": {form: validation.score(held_out) for form, held_out in forms.items()},
        "gains": {
            base: validation.mean_gain(forms[WEIGHTED_SUM], forms[base])
            for base in ("constant", "quadratic")
        },
        "calibration": measure_calibration(forms[WEIGHTED_SUM], weights, response),
    }
