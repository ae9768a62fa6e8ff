"""Fit the utility f by choice likelihood; all decisions are by cross-validated likelihood.

The compared points are drawn from λ independently of the belief p, so the choice likelihood Π
F(f(winner) − f(loser)) of f = log p is sufficient. The forms of f are a constant (random choices),
a quadratic form (a Gaussian belief on the feature scale), a quadratic form with a smooth remainder,
and the logarithm of a mixture of each number of components, of the features or of warped ones
(`choose_warp`). f is their sum, weighted by held-out choices (`weigh_forms`).

*Separation.* Where no choice contradicts a rule u, and some agree with it, choices are the likelier
the larger c is in c u: there is no most likely c (Albert and Anderson, 1984). They bound it from
below only, and that of the fit is due to its prior. The rules looked at are linear and quadratic
ones, by a linear program (Konis, 2007), and the fitted utility. No choice of a judge without noise
contradicts its rule, and of a noisy judge none may where answers are few.

*Warps.* First the end of its range, or both, is found at which each feature is stretched, then how
strongly, so that a quadratic form makes the choices likelier. All features change at once where
that is likelier, so that their order does not matter.
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
from llm_elicit.density.judgments import Context
from llm_elicit.density.likelihood import Noise, Response
from llm_elicit.density.settings import Progress, UtilitySettings
from llm_elicit.density.utility.cross_validation import (
    Array,
    ChoiceData,
    CrossValidation,
    HeldOut,
    Index,
    calibration,
    weigh_forms,
)
from llm_elicit.density.utility.judges import JudgeTerms
from llm_elicit.density.utility.mixture import MixtureFit, Step, fit_mixtures, fit_tails
from llm_elicit.density.utility.posterior import draw_posterior
from llm_elicit.density.utility.quadratic import QuadraticFit, Ridges, fit_smooth
from llm_elicit.density.utility_function import DeferredDraws, Utility, Warp

_WARP_ROWS = 2000  # most comparisons that a warp is chosen by
_ENDS = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
_FIRST, _STRENGTHS = 1e2, np.geomspace(1e1, 1e5, 9)
_GAIN = 5.0  # nats, for which a feature is warped
_SWEEPS, _REFINEMENTS = 12, 2


def choose_warp(quadratic: QuadraticFit, ridges: Ridges) -> Warp | None:
    """Return the warp that makes the choices likeliest; None where no feature gains by one.

    Choices say little of strengths beyond some. Each is the mean of its logarithm given the
    choices: the least that is strong enough would make skewed beliefs too wide.
    """
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(quadratic.rows), generator=generator)[:_WARP_ROWS]
    regression, data = quadratic.regression(ridges).subset(chosen), quadratic.validation.data
    rows = quadratic.rows[chosen.numpy()]
    sides = [torch.from_numpy(side[rows]).double() for side in (data.winners, data.losers)]
    points, start = np.concatenate([data.winners, data.losers]), regression.maximize()[0]
    d, category = points.shape[1], data.category
    numbers = range(d) if category is None else np.flatnonzero(category < 0).tolist()

    def evidence(strengths: Array, ridges: Ridges) -> float:
        warp, prior = Warp.of(points, *strengths.T), torch.from_numpy(quadratic.prior(ridges))
        winners, losers = (quadratic.terms.columns(warp(side).numpy()) for side in sides)
        bent = replace(regression, columns=torch.from_numpy(winners - losers), prior=prior)
        mode, root = bent.maximize(start)
        return bent.value(mode) - float(root.diagonal().log().sum())

    strengths = np.zeros((d, 2))
    log_evidence = evidence(strengths, ridges)
    for _ in range(_SWEEPS):
        better = {}
        for j in (j for j in numbers if not strengths[j].any()):
            candidates = [(evidence(s, ridges), s) for s in _changed(strengths, j, _FIRST * _ENDS)]
            likeliest = max(candidates, key=itemgetter(0))
            if likeliest[0] > log_evidence + _GAIN:
                better[j] = likeliest
        if not better:
            break
        together = strengths + sum(changed - strengths for _, changed in better.values())
        joint = evidence(together, ridges), together
        log_evidence, strengths = max([*better.values(), joint], key=itemgetter(0))
    if not strengths.any():
        return None
    for _ in range(_REFINEMENTS):
        suited = QuadraticFit(warped(quadratic.validation, Warp.of(points, *strengths.T))).suited()
        refined = strengths.copy()
        for j in np.flatnonzero(strengths.any(1)).tolist():
            levels = np.outer(_STRENGTHS, strengths[j] > 0)
            values = [evidence(s, suited) for s in _changed(strengths, j, levels)]
            refined[j] = (strengths[j] > 0) * np.exp(softmax(values) @ np.log(_STRENGTHS))
        strengths = refined
    return Warp.of(points, *strengths.T)


def _changed(strengths: Array, feature: int, levels: Array) -> Iterator[Array]:
    """Yield the strengths (p, 2) with each of the ``levels`` (L, 2) of one feature."""
    for level in levels:
        changed = strengths.copy()
        changed[feature] = level
        yield changed


def warped(validation: CrossValidation, warp: Warp) -> CrossValidation:
    """Return the same folds and judgments with warped features."""
    data = validation.data
    winners, losers = (warp(torch.from_numpy(side)).numpy() for side in (data.winners, data.losers))
    data = replace(data, winners=winners, losers=losers)
    return CrossValidation(data, validation.response, validation.count, validation.rng)


_ROWS = 1000  # of the first program; later ones have the rows that its rule contradicts, too
_MORE = 500
_MOST_TERMS = 200
_TOLERANCE = 1e-6
_BY_CHANCE = 0.05
_RULES = {
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
    mixed = np.random.default_rng(0).permutation(count)
    rows = np.sort(mixed[: max(_ROWS, 8 * terms)])
    while terms:
        some = scaled[rows]
        # The most of Σ s with x·β >= s and 0 <= s <= 1.
        rules = np.hstack([-some, np.eye(len(rows))])
        solution = linprog(
            np.concatenate([np.zeros(terms), -np.ones(len(rows))]),
            A_ub=rules,
            b_ub=np.zeros(len(rows)),
            bounds=[(None, None)] * terms + [(0.0, 1.0)] * len(rows),
        )
        if solution.x is None or float(np.sum(solution.x[terms:])) < 0.5:
            break
        sides = scaled @ solution.x[:terms]
        worst = np.argsort(sides)[:_MORE]
        against = np.setdiff1d(worst[sides[worst] < -_TOLERANCE], rows)
        if not len(against):
            return np.asarray(sides > _TOLERANCE)
        rows = np.union1d(rows, against)
    return np.zeros(count, dtype=bool)


def find_separation(
    design: Array, linear: int, order: Array, pairs: Index
) -> dict[str, Any] | None:
    """Return the linear or quadratic rule that no choice contradicts; None if there is none.

    Args:
        design: (n, P) terms of the winners less those of the losers, the linear terms first.
        linear: the number of linear terms.
        order: (n, B) columns of position effects, which may explain choices, too.
        pairs: (n,) their numbers; rows of one pair are one answer.

    Returns what is JSON-able: ``rule`` is "linear", "quadratic" or "fitted"; ``pairs`` are those in
    which it has a preference, and ``complete`` says whether that is all of them; ``chance`` is the
    probability that as many random choices agree with some rule of its kind (Cover, 1965), and
    ``by_chance`` whether it is at least 5 %; ``message`` says so in one line.
    """
    by_position = separated_rows(order).sum()

    def separated(terms: int) -> Flags:
        decided = separated_rows(np.concatenate([design[:, :terms], order], axis=1))
        return decided if decided.sum() > by_position else np.zeros(len(decided), dtype=bool)

    terms = design.shape[1] if design.shape[1] <= _MOST_TERMS else linear
    decided = separated(terms)
    if not decided.any():
        return None
    if terms > linear and separated(linear).sum() == decided.sum():
        terms = linear
    rule = "linear" if terms == linear else "quadratic"
    differ = (design != 0.0).any(axis=1)
    return _report(rule, terms + order.shape[1], pairs[decided], pairs[differ])


def find_agreement(
    differ: Flags, pairs: Index, fitted: Array, parameters: float
) -> dict[str, Any] | None:
    """Return the same of the fitted utility; None if a choice contradicts it.

    Args:
        differ: (n,) whether a row is of two different points.
        pairs: (n,) their numbers; rows of one pair are one answer.
        fitted: (n,) f(winner) − f(loser) by the fitted utility.
        parameters: the number of its parameters that choices determine.
    """
    if not (differ.any() and (fitted[differ] > 0.0).all()):
        return None
    return _report("fitted", max(parameters, 1.0), pairs[differ], pairs[differ])


def _report(rule: str, terms: float, decided: Index, informative: Index) -> dict[str, Any]:
    count, total = len(np.unique(decided)), len(np.unique(informative))
    chance = float(stats.binom.cdf(np.ceil(terms) - 1.0, count - 1, 0.5))
    of_all = "all" if count == total else f"{count:,} of {total:,}"
    message = (
        f"no choice contradicts {_RULES[rule]}, which decides {of_all} pairs, so the choices "
        "give only a lower bound of the sharpness of the belief (the same number of random "
        f"choices agree with such a rule with probability {chance:.2g})"
    )
    return {
        "rule": rule, "complete": count == total, "pairs": count, "chance": chance,
        "by_chance": chance >= _BY_CHANCE, "message": message,
    }  # fmt: skip


WEIGHTED = "weighted sum"
_TURNS = 4
_CLEARLY = 2.0  # standard errors by which a form of warped features must predict better


@dataclass(frozen=True)
class UtilityFit:
    """The fitted utility, draws of its posterior, and diagnostics (JSON-able).

    Draws are made when they are asked for. ``predicted`` (n,) is f(winner) − f(loser) of every
    row by fits to other rows, in nats; NaN of rows that are not validation rows.
    """

    utility: Utility
    draws: DeferredDraws
    predicted: Array
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
    ``judging``, the judges' terms; see `JudgeTerms.report`.
    """
    count = len(settings.mixture.counts)

    def step(done: int) -> None:
        if progress is not None:
            progress("utility", done, count)

    if data.context is None:
        plain = CrossValidation(data, Response(noise), settings.folds, rng)
        return _describe(plain, settings, step)
    terms, weighted = _judge_terms(data, data.context, noise, rng, settings)
    response = terms.response(data.context, noise)
    fitted = _describe(CrossValidation(weighted, response, settings.folds, rng), settings, step)
    judging = {"judging": terms.report(data.context, noise)}
    return replace(fitted, diagnostics={**fitted.diagnostics, **judging})


def _judge_terms(
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
    quick = replace(
        settings,
        smooth=replace(settings.smooth, frequencies=0),
        posterior=replace(settings.posterior, draws=0),
    )
    terms = JudgeTerms.neutral(context)
    weighted = terms.weigh(data, noise)
    for turn in range(_TURNS):
        response = terms.response(context, noise)
        validation = CrossValidation(weighted, response, settings.folds, rng)
        if turn < _TURNS - 1:
            quadratic = QuadraticFit(validation)
            ridged = quadratic.fits()[0]
            predicted = validation.everywhere(quadratic.cross_validate(ridged.ridges))
        else:
            predicted = _describe(validation, quick, None).predicted
        weighted = terms.weigh(data, noise, predicted)
        terms = terms.estimate(weighted, noise, predicted)
    return terms, terms.weigh(data, noise, predicted)


def _describe(
    validation: CrossValidation, settings: UtilitySettings, step: Step | None
) -> UtilityFit:
    """Return the weighted sum of the forms, with draws and diagnostics."""
    forms = _best_forms(validation, settings, step)
    quadratic, data = forms.quadratic, validation.data
    rows = quadratic.rows
    order = np.zeros((len(rows), 0)) if data.context is None else data.context.order[rows]
    linear, groups = quadratic.terms.dimension, data.groups[rows]
    separation = find_separation(quadratic.design, linear, order, groups)
    eligible = dict(forms.held_out)
    if separation is not None and not separation["by_chance"]:
        # The scale of a rule without contradictions is its prior's, and one that is too sharp for a
        # held-out choice says nothing for random ones.
        del eligible["constant"]
    weighed = weigh_forms(validation, eligible)
    by_form = {**forms.held_out, WEIGHTED: weighed.held_out}
    diagnostics = {
        "form": WEIGHTED,
        "weights": {form: round(weight, 4) for form, weight in weighed.weights.items()},
        "factor": weighed.factor,
        **_scores(validation, by_form),
        **forms.report(),
    }
    draws = forms.draws(weighed.weights, weighed.factor, settings)
    utility = forms.utility(weighed.weights).scaled(weighed.factor)
    diagnostics["separation"] = separation or _agreement(validation, utility, weighed.held_out)
    return UtilityFit(utility, draws, validation.everywhere(weighed.held_out), diagnostics)


def _agreement(
    validation: CrossValidation, utility: Utility, held_out: HeldOut
) -> dict[str, Any] | None:
    """Return whether all choices agree with the utility; see `find_agreement`."""
    rows, data = validation.rows.numpy(), validation.data
    response = validation.response.at(validation.rows)
    winners, losers = utility(validation.sides(validation.rows)).double().chunk(2)
    gain = response.log_cdf(winners - losers).numpy() - held_out.log_likelihood(response)
    return find_agreement(
        (data.winners != data.losers).any(1)[rows],
        data.groups[rows],
        response.seen(winners - losers).numpy(),
        float(gain @ data.weights[rows]),
    )


def _best_forms(
    validation: CrossValidation, settings: UtilitySettings, step: Step | None
) -> _Forms:
    """Return the forms of the features as they are, or warped.

    They are warped where the quadratic form or the smooth one then clearly predicts better than
    both of the plain features; mixtures take most of the time and are fitted once.
    """
    forms = _Forms(validation, settings)
    warp = choose_warp(forms.quadratic, forms.ridged[0].ridges)
    if warp is not None:
        bent = _Forms(warped(validation, warp), settings, warp)
        rows = validation.rows.numpy()
        response, weights = validation.response.at(validation.rows), validation.data.weights[rows]
        bent_logs, logs = (
            max((f.log_likelihood(response) for f in some.held_out.values()), key=weights.dot)
            for some in (bent, forms)
        )
        gain = _gain(bent_logs - logs, weights, validation.data.groups[rows])
        if gain["mean"] > _CLEARLY * gain["se"]:
            forms = bent
    forms.add_mixtures(settings, step)
    return forms


class _Forms:
    """The constant, the quadratic form, the smooth one and the mixtures, and their predictions."""

    def __init__(
        self, validation: CrossValidation, settings: UtilitySettings, warp: Warp | None = None
    ) -> None:
        self.validation, self.warp = validation, warp
        self.quadratic = QuadraticFit(validation)
        self.ridged = self.quadratic.fits()
        ridges = self.ridged[0].ridges
        by_quadratic = self.quadratic.cross_validate(ridges)
        nothing = np.zeros(len(validation.rows))
        self.held_out = {"constant": HeldOut(nothing, nothing), "quadratic": by_quadratic}
        self.smooth = fit_smooth(self.quadratic, ridges, settings.smooth)
        if self.smooth is not None:
            self.held_out["smooth"] = self.smooth.held_out
        self.mixtures: dict[str, MixtureFit] = {}

    def add_mixtures(self, settings: UtilitySettings, step: Step | None) -> None:
        """Fit mixtures, until three numbers in a row do not help."""
        first = self.validation.score(self.held_out["quadratic"])
        self.mixtures = fit_tails(self.validation, settings.mixture, first) | {
            f"mixture of {fit.count}": fit
            for fit in fit_mixtures(self.validation, settings.mixture, first, step)
        }
        self.held_out |= {name: fit.held_out for name, fit in self.mixtures.items()}

    def utility(self, weights: Mapping[str, float]) -> Utility:
        """Return the sum of the forms times their weights."""
        terms = self.quadratic.terms
        total = terms.utility(weights.get("quadratic", 0.0) * self.ridged[0].coefficients)
        if self.smooth is not None and (weight := weights.get("smooth")):
            under, process = self.smooth.split(weight * self.smooth.mode[None])
            plain = terms.utility(under[0].numpy())
            linear, curvature = total.linear + plain.linear, total.curvature + plain.curvature
            total = Utility(linear, curvature, fourier=process)
        components = (
            replace(fit.mode.stack(), share=weights[name])
            for name, fit in self.mixtures.items()
            if weights.get(name)
        )
        return replace(total, components=tuple(components), warp=self.warp)

    def draws(
        self, weights: Mapping[str, float], factor: float, settings: UtilitySettings
    ) -> DeferredDraws:
        """Return draws of the posterior, times a factor."""
        seed, count = int(self.validation.rng.integers(2**62)), settings.posterior.draws
        forms = (weights, self.quadratic, self.ridged, self.smooth, self.mixtures)
        make = partial(draw_posterior, *forms, count, seed)
        return DeferredDraws(lambda: replace(make().scaled(factor), warp=self.warp), count)

    def report(self) -> dict[str, Any]:
        """Return the diagnostics of the forms."""
        return {
            "ridges": self.ridged[0].ridges._asdict(),
            "variances": {} if self.smooth is None else self.smooth.variances,
            "warp": None if self.warp is None else self.warp.parameters[2:4].T.tolist(),
        }


def _scores(validation: CrossValidation, forms: Mapping[str, HeldOut]) -> dict[str, Any]:
    """Return the held-out likelihoods of the forms, and gains and calibration of their sum."""
    rows = validation.rows.numpy()
    weights, groups = validation.data.weights[rows], validation.data.groups[rows]
    response = validation.response.at(validation.rows)
    scores = {form: held_out.log_likelihood(response) for form, held_out in forms.items()}
    return {
        "held_out": {
            form: float(np.average(score, weights=weights)) for form, score in scores.items()
        },
        "gains": {
            base: _gain(scores[WEIGHTED] - scores[base], weights, groups)
            for base in ("constant", "quadratic")
        },
        "calibration": calibration(forms[WEIGHTED], weights, response),
    }


def _gain(gain: Array, weights: Array, groups: Index) -> dict[str, float]:
    """Return the mean of gains (m,), nats per comparison, and its standard error over groups."""
    mean = float(np.average(gain, weights=weights))
    together = np.bincount(groups, weights * (gain - mean))
    return {"mean": mean, "se": float(np.sqrt((together**2).sum()) / weights.sum())}
