"""Fit the utility f by choice likelihood; all decisions are by cross-validated likelihood.

The compared points are drawn from λ independently of the belief p, so the choice likelihood
Π F(f(winner) − f(loser)) of f = log p is sufficient. The forms of f are a constant (random
choices), a quadratic form (a Gaussian belief on the feature scale), the logarithm of a mixture,
averaged over numbers of components, and a quadratic form with a smooth remainder; the last three
are stacked. Of the constant, the quadratic form, the mixtures and the stack, the simplest that is
not clearly beaten on rows it did not see is used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from llm_elicit.density.judgments import Context
from llm_elicit.density.likelihood import Noise, Response
from llm_elicit.density.settings import (
    Progress,
    UtilitySettings,
)
from llm_elicit.density.stacks import ComponentStack
from llm_elicit.density.utility.folds import (
    Array,
    ChoiceData,
    CrossValidation,
    Folds,
    HeldOut,
    calibration,
)
from llm_elicit.density.utility.judges import JudgeTerms
from llm_elicit.density.utility.mixture import MixtureFit, Step, averaging_shares, fit_mixtures
from llm_elicit.density.utility.posterior import draw_posterior
from llm_elicit.density.utility.quadratic import QuadraticFit
from llm_elicit.density.utility.smooth import average_smooth, fit_smooth
from llm_elicit.density.utility.stacking import cross_fitted_stack, stacked
from llm_elicit.density.utility_function import DeferredDraws, Utility

_STANDARD_ERRORS = 2.0
_TURNS = 4


@dataclass(frozen=True)
class UtilityFit:
    """The fitted utility, draws of its posterior, and diagnostics (JSON-able).

    Draws are made when they are asked for. ``predicted`` (n,) is f(winner) − f(loser) of every
    row by fits that did not see it, in nats; NaN of rows that are not validation rows.
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

    The diagnostics are ``form`` ("constant", "quadratic", "mixtures" or "stack"), ``held_out``
    (cross-validated moderated log-likelihood of each form, nats per comparison; random choices have
    −log 2), ``gains`` of the chosen form over the constant and the quadratic form with their
    standard errors, its ``calibration``, ``stack`` (the weights), ``mixtures`` (the share of each
    number of components), ``ridges``, the variances of the smooth remainder's ``length_scales``,
    and ``judging``, the judges' terms; see `JudgeTerms.report`.
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
    found = _describe(CrossValidation(weighted, response, settings.folds, rng), settings, step)
    judging = {"judging": terms.report(data.context, noise)}
    return replace(found, diagnostics={**found.diagnostics, **judging})


def _judge_terms(
    data: ChoiceData,
    context: Context,
    noise: Noise,
    rng: np.random.Generator,
    settings: UtilitySettings,
) -> tuple[JudgeTerms, ChoiceData]:
    """Return the judges' terms, and the judgments weighted by them.

    They are estimated in turns with the quadratic form, which is quickly fitted, then once with
    the best form other than the smooth one, since beside a utility that is too simple position
    effects are underestimated.
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
            predicted = validation.everywhere(quadratic.cross_validate(ridged.ridges)[1])
        else:
            predicted = _describe(validation, quick, None).predicted
        weighted = terms.weigh(data, noise, predicted)
        terms = terms.estimate(weighted, noise, predicted)
    return terms, terms.weigh(data, noise, predicted)


def _describe(
    validation: CrossValidation, settings: UtilitySettings, step: Step | None
) -> UtilityFit:
    """Return the simplest description that is not clearly beaten, with draws and diagnostics."""
    quadratic = QuadraticFit(validation)
    ridged = quadratic.fits()
    by_quadratic = quadratic.cross_validate(ridged[0].ridges)[1]
    smooth = fit_smooth(quadratic, ridged[0].ridges, settings.smooth)
    mixtures = fit_mixtures(validation, settings.mixture, validation.score(by_quadratic), step)
    averaged = _average(mixtures)
    parts = {"quadratic": by_quadratic}
    if smooth:
        of_smooth = averaging_shares([validation.score(s.held_out) for s in smooth])
        parts["smooth"] = stacked([s.held_out for s in smooth], of_smooth)
    if mixtures:
        held_out = [m.held_out for m in mixtures]
        parts["mixtures"] = stacked(held_out, np.array([m.share for m in averaged]))
    shares, by_stack = cross_fitted_stack(validation, list(parts.values()))
    stack = dict(zip(parts, shares.tolist(), strict=True))
    nothing = HeldOut(np.zeros(len(validation.rows)), np.zeros(len(validation.rows)))
    choice = _Choice(validation, {"constant": nothing, **parts, "stack": by_stack})
    if choice.form == "constant":
        utility = Utility.flat(validation.dimension)
    elif choice.form == "quadratic":
        utility = quadratic.terms.utility(ridged[0].coefficients)
    elif choice.form == "mixtures":
        utility = replace(Utility.flat(validation.dimension), components=averaged)
    else:
        plain = quadratic.terms.utility(stack["quadratic"] * ridged[0].coefficients)
        utility = _stacked(plain, averaged, stack)
        if stack.get("smooth"):
            under, process = average_smooth(smooth, stack["smooth"] * of_smooth)
            plain = quadratic.terms.utility(under.numpy())
            utility = replace(
                utility,
                linear=utility.linear + plain.linear,
                curvature=utility.curvature + plain.curvature,
                fourier=process,
            )
    diagnostics = choice.report() | {
        "stack": {k: round(a, 4) for k, a in stack.items()},
        "mixtures": {
            f"mixture of {m.count}": round(c.share, 4)
            for m, c in zip(mixtures, averaged, strict=True)
        },
        "ridges": ridged[0].ridges._asdict(),
        "length_scales": {str(s.length_scale): s.variance for s in smooth},
    }
    seed = int(validation.rng.integers(2**62))
    best = max(smooth, key=lambda s: validation.score(s.held_out), default=None)
    posterior = (quadratic, ridged, by_quadratic, mixtures, best, settings.posterior.draws, seed)
    draws = DeferredDraws(partial(draw_posterior, *posterior), settings.posterior.draws)
    return UtilityFit(utility, draws, validation.everywhere(choice.held_out), diagnostics)


class _Choice:
    """The simplest form that is not clearly beaten on rows it did not see.

    ``forms`` holds every form's predictions of the validation rows, the simplest first.
    """

    def __init__(self, validation: CrossValidation, forms: dict[str, HeldOut]) -> None:
        rows = validation.rows.numpy()
        self.weights, self.groups = validation.data.weights[rows], validation.data.groups[rows]
        self.response = validation.response.at(validation.rows)
        self.scores = {name: of.log_likelihood(self.response) for name, of in forms.items()}
        alone = {name: score for name, score in self.scores.items() if name != "smooth"}
        two_values = _one_pair_of_two_values(validation)
        self.form = "quadratic" if two_values else simplest(alone, self.weights, self.groups)
        self.held_out = forms[self.form]

    def report(self) -> dict[str, Any]:
        """Return the diagnostics of the choice."""
        chosen = self.scores[self.form]
        return {
            "form": self.form,
            "held_out": {
                name: float(np.average(score, weights=self.weights))
                for name, score in self.scores.items()
            },
            "gains": {
                base: _gain(chosen - self.scores[base], self.weights, self.groups)
                for base in ("constant", "quadratic")
            },
            "calibration": calibration(self.held_out, self.weights, self.response),
        }


def _one_pair_of_two_values(validation: CrossValidation) -> bool:
    """Return whether all is about one feature with two values, which are at −1 and 1.

    Held out, the only pair that there is leaves nothing to fit, so that no form could win.
    """
    winners, losers = validation.data.winners, validation.data.losers
    if validation.dimension > 1:
        return False
    differ = winners != losers
    return bool(differ.any() and np.allclose(np.abs([winners, losers]), np.abs(winners[0])))


def _average(mixtures: list[MixtureFit]) -> tuple[ComponentStack, ...]:
    """Return the mixtures of each number of components, with their shares in the average."""
    if not mixtures:
        return ()
    shares = averaging_shares([m.score for m in mixtures])
    pairs = zip(mixtures, shares, strict=True)
    return tuple(replace(m.components, share=float(a)) for m, a in pairs)


def _stacked(
    quadratic: Utility, mixtures: tuple[ComponentStack, ...], stack: dict[str, float]
) -> Utility:
    """Return the sum of the weighted quadratic form and the mixtures by their weight."""
    of_mixtures = stack.get("mixtures", 0.0)
    components = (replace(m, share=of_mixtures * m.share) for m in mixtures if of_mixtures)
    return replace(quadratic, components=tuple(components))


def simplest(scores: dict[str, Array], weights: Array, groups: Folds) -> str:
    """Return the first form that no later one beats by more than two standard errors.

    A richer form must win clearly: held-out choices, most of them between improbable points, hardly
    penalize the variance that needless parameters add where the belief's mass is.

    Parameters
    ----------
    scores : log-likelihood (m,) of every validation row by each form, the simplest form first.
    groups : (m,) numbers of rows that are not independent.
    """
    names = list(scores)
    for at, form in enumerate(names):
        later = (scores[richer] - scores[form] for richer in names[at + 1 :])
        gains = (_gain(more, weights, groups) for more in later)
        if not any(gain["mean"] > _STANDARD_ERRORS * gain["se"] for gain in gains):
            return form
    return names[-1]


def _gain(gain: Array, weights: Array, groups: Folds) -> dict[str, float]:
    """Return the mean of gains (m,), nats per comparison, and its standard error over groups."""
    mean = float(np.average(gain, weights=weights))
    together = np.bincount(groups, weights * (gain - mean))
    return {"mean": mean, "se": float(np.sqrt((together**2).sum()) / weights.sum())}
