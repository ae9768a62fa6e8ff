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
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from scipy import stats
from scipy.optimize import linprog
from scipy.special import softmax

from llm_elicit.density.errors import Array, Flags, Index
from llm_elicit.density.likelihood import Context, Noise, Response
from llm_elicit.density.settings import Progress, UtilitySettings
from llm_elicit.density.utility.cross_validation import (
    ChoiceData,
    CrossValidation,
    HeldOutPredictions,
    fit_form_weights,
    measure_calibration,
)
from llm_elicit.density.utility.interaction import PresentedChoices
from llm_elicit.density.utility.judges import JudgeTerms
from llm_elicit.density.utility.mixture import MixtureFit, StepCallback, fit_mixtures, fit_tails
from llm_elicit.density.utility.posterior import draw_linear, draw_mixtures
from llm_elicit.density.utility.quadratic import QuadraticFit, Ridges, fit_smooth
from llm_elicit.density.utility_function import DeferredDraws, Utility, UtilityDraws, Warp

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
    validation, data = quadratic.validation, quadratic.validation.data
    subset = torch.randperm(len(validation.rows), generator=generator)[:_MAX_WARP_ROWS]
    regression, rows = quadratic.regression(ridges).subset(subset), validation.rows[subset].numpy()
    sides = [torch.from_numpy(side[rows]).double() for side in (data.winners, data.losers)]
    points, start = np.concatenate([data.winners, data.losers]), regression.maximize()[0]

    def evidence(strengths: Array, ridges: Ridges) -> float:
        warp, prior = Warp.of(points, *strengths.T), torch.from_numpy(quadratic.prior(ridges))
        winners, losers = (quadratic.terms.columns(warp(side).numpy()) for side in sides)
        columns = torch.from_numpy(winners - losers)
        warped_regression = replace(regression, columns=columns, prior=prior)
        mode, root = warped_regression.maximize(start)
        return warped_regression.value(mode) - float(root.diagonal().log().sum())

    strengths = np.zeros((points.shape[1], 2))
    log_evidence = evidence(strengths, ridges)
    for _ in range(_MAX_SWEEPS):
        improvements = []
        for j in (j for j in data.numbers if not strengths[j].any()):
            levels = _FIRST_STRENGTH * _WARPED_ENDS
            candidates = [(evidence(s, ridges), s) for s in _vary_strengths(strengths, j, levels)]
            best = max(candidates, key=itemgetter(0))
            if best[0] > log_evidence + _MIN_WARP_GAIN:
                improvements.append(best)
        if not improvements:
            break
        joint = strengths + sum(changed - strengths for _, changed in improvements)
        improvements.append((evidence(joint, ridges), joint))
        log_evidence, strengths = max(improvements, key=itemgetter(0))
    if not strengths.any():
        return None
    for _ in range(_REFINEMENTS):
        warped = warp_features(validation, Warp.of(points, *strengths.T))
        refined_ridges = QuadraticFit(warped).estimate_ridges()
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
        rules, zeros = np.hstack([-chosen, np.eye(len(rows))]), np.zeros(len(rows))
        bounds = [(None, None)] * terms + [(0.0, 1.0)] * len(rows)
        objective = np.concatenate([np.zeros(terms), zeros - 1.0])
        solution = linprog(objective, A_ub=rules, b_ub=zeros, bounds=bounds)
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
    count = terms + position_columns.shape[1]
    return _describe_separation(rule, count, pairs[separated], pairs[informative])


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
    separated = pairs[informative]
    return _describe_separation("fitted", max(parameter_count, 1.0), separated, separated)


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
    validation = CrossValidation(weighted, response, settings.folds, rng)
    fit = _fit_weighted_sum(validation, settings, on_step)
    judging = {"judging": terms.report(data.context, noise)}
    fit = replace(fit, diagnostics={**fit.diagnostics, **judging})
    if len(data.context.presentations) < 2:
        return fit
    interaction = PresentedChoices(weighted, terms, noise, fit.utility.warp).estimate()
    return replace(
        fit,
        draws=fit.draws.map(interaction.widen),
        diagnostics={**fit.diagnostics, "presentations": interaction.report(data.context)},
    )


def _estimate_judge_terms(
    data: ChoiceData, context: Context, noise: Noise, rng: np.random.Generator,
    settings: UtilitySettings,
) -> tuple[JudgeTerms, ChoiceData]:  # fmt: skip
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
    context, rows, groups = validation.data.context, validation.rows, validation.row_groups
    position_columns = np.zeros((len(rows), 0))
    if context is not None:
        position_columns = context.position_columns[rows.numpy()]
    linear_count = forms.quadratic.terms.dimension
    separation = find_separation(forms.quadratic.design, linear_count, position_columns, groups)
    eligible = dict(forms.held_out)
    if separation is not None and not separation["by_chance"]:
        # The scale of a rule without contradictions is its prior's, and one that is too sharp for a
        # held-out choice says nothing for random ones.
        del eligible["constant"]
    form_weights = fit_form_weights(validation, eligible)
    weights, factor, held_out = form_weights.weights, form_weights.factor, form_weights.held_out
    draws = forms.posterior_draws(weights, factor, settings.posterior.draws)
    utility = forms.weighted_utility(weights).scaled(factor)
    if separation is None:
        winners, losers = utility(validation.winners_and_losers(rows)).double().chunk(2)
        response = validation.row_response
        gains = response.log_cdf(winners - losers).numpy() - held_out.log_likelihood(response)
        differences = response.linear_predictor(winners - losers).numpy()
        informative, count = validation.informative_rows, float(gains @ validation.row_weights)
        separation = find_fitted_separation(informative, groups, differences, count)
    predictions = {**forms.held_out, WEIGHTED_SUM: held_out}
    diagnostics = {
        "form": WEIGHTED_SUM,
        "weights": {form: round(weight, 4) for form, weight in weights.items()},
        "factor": factor,
        "held_out": {form: validation.score(values) for form, values in predictions.items()},
        "gains": {
            base: validation.mean_gain(held_out, forms.held_out[base])
            for base in ("constant", "quadratic")
        },
        "calibration": measure_calibration(validation, held_out),
        "ridges": forms.ridge_fits[0].ridges._asdict(),
        "variances": {} if forms.smooth is None else forms.smooth.variances,
        "warp": None if forms.warp is None else forms.warp.parameters[2:4].T.tolist(),
        "separation": separation,
    }
    return UtilityFit(utility, draws, validation.differences_by_row(held_out), diagnostics)


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
        form = terms.utility(weights.get("quadratic", 0.0) * self.ridge_fits[0].coefficients)
        if self.smooth is not None and (weight := weights.get("smooth")):
            coefficients, process = self.smooth.split(weight * self.smooth.mode[None])
            smooth = terms.utility(coefficients[0].numpy())
            linear, curvature = form.linear + smooth.linear, form.curvature + smooth.curvature
            form = Utility(linear, curvature, fourier=process)
        components = tuple(
            replace(fit.mode.stack(), share=weights[name])
            for name, fit in self.mixtures.items()
            if weights.get(name)
        )
        return replace(form, components=components, warp=self.warp)

    def posterior_draws(
        self, weights: Mapping[str, float], factor: float, count: int
    ) -> DeferredDraws:
        """Return draws of the posterior over all forms, times a factor."""
        seed = int(self.validation.rng.integers(2**62))

        def draw() -> UtilityDraws:
            draws = self._draw(weights, count, torch.Generator().manual_seed(seed))
            return replace(draws.scaled(factor), warp=self.warp)

        return DeferredDraws(draw, count)

    def _draw(
        self, weights: Mapping[str, float], count: int, generator: torch.Generator
    ) -> UtilityDraws:
        """Return ``count`` draws, divided among the forms by their weights, which sum to one."""
        log_posteriors = np.array([fit.posterior for fit in self.ridge_fits])
        quadratic_weights = weights.get("quadratic", 0.0) * softmax(log_posteriors)
        other_weights = [weights.get(name, 0.0) for name in ("smooth", *self.mixtures)]
        shares = np.concatenate([[weights.get("constant", 0.0)], quadratic_weights, other_weights])
        # Rounding the cumulated shares once makes the parts add up.
        edges = np.floor(np.cumsum(shares) * count + 0.5).astype(int)
        sizes = np.diff(edges, prepend=0).tolist()
        terms = self.quadratic.terms
        quadratic_draws = [torch.zeros(sizes.pop(0), len(terms), dtype=torch.float64)]
        for fit in self.ridge_fits:
            regression = self.quadratic.regression(fit.ridges)
            mode = torch.from_numpy(fit.coefficients)
            quadratic_draws.append(draw_linear(regression, mode, sizes.pop(0), generator))
        beta, fourier, size = torch.cat(quadratic_draws), None, sizes.pop(0)
        if self.smooth is not None and size:
            smooth_draws = draw_linear(self.smooth.regression, self.smooth.mode, size, generator)
            coefficients, process = self.smooth.split(smooth_draws)
            zeros = torch.zeros(len(beta), process.weights.shape[1])
            fourier = replace(process, weights=torch.cat([zeros, process.weights]))
            beta = torch.cat([beta, coefficients])
        stacks = tuple(
            draw_mixtures(self.validation, mixture_fit, size, generator)
            for mixture_fit, size in zip(self.mixtures.values(), sizes, strict=True)
            if size
        )
        beta = torch.cat([beta, beta.new_zeros(sum(s.count for s in stacks), beta.shape[1])])
        return UtilityDraws(*terms.linear_and_curvature(beta), stacks, fourier)
