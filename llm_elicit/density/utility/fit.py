"""Fit the utility f by choice likelihood; all decisions are by cross-validated likelihood.

The compared points are drawn from λ independently of the belief p, so the choice likelihood
Π F(f(winner) − f(loser)) of f = log p is sufficient. The forms of f are a constant (random
choices), a quadratic form (a Gaussian belief on the feature scale), the logarithm of a mixture,
averaged over numbers of components, and a quadratic form with a smooth remainder; the last three
are stacked. Of the constant, the quadratic form, the mixtures and the stack, the simplest is used
that no other clearly exceeds in held-out likelihood.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from llm_elicit.density.utility.cross_validation import (
    Array,
    ChoiceData,
    CrossValidation,
    HeldOut,
    Index,
    calibration,
    cross_fitted_stack,
    stacked,
)
from llm_elicit.density.utility.judges import JudgeTerms
from llm_elicit.density.utility.mixture import Step, averaging_shares, fit_mixtures
from llm_elicit.density.utility.posterior import draw_posterior
from llm_elicit.density.utility.quadratic import QuadraticFit
from llm_elicit.density.utility.smooth import average_smooth, fit_smooth
from llm_elicit.density.utility_function import DeferredDraws, Utility

_STANDARD_ERRORS = 2.0
_TURNS = 4


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
    """Return the simplest form that no other clearly exceeds, with draws and diagnostics."""
    forms = _Forms(validation, settings, step)
    shares, by_stack = cross_fitted_stack(validation, list(forms.held_out.values()))
    stack = dict(zip(forms.held_out, shares.tolist(), strict=True))
    nothing = HeldOut(np.zeros(len(validation.rows)), np.zeros(len(validation.rows)))
    choice = _Choice(validation, {"constant": nothing, **forms.held_out, "stack": by_stack})
    weights = {"constant": {}, "stack": stack}.get(choice.form, {choice.form: 1.0})
    rounded = {form: round(weight, 4) for form, weight in stack.items()}
    diagnostics = {**choice.report(), "stack": rounded, **forms.report()}
    predicted = validation.everywhere(choice.held_out)
    return UtilityFit(forms.utility(weights), forms.draws(settings), predicted, diagnostics)


class _Forms:
    """The quadratic form, the smooth one and the mixtures, with their held-out predictions."""

    def __init__(
        self, validation: CrossValidation, settings: UtilitySettings, step: Step | None
    ) -> None:
        self.validation = validation
        self.quadratic = QuadraticFit(validation)
        self.ridged = self.quadratic.fits()
        ridges = self.ridged[0].ridges
        by_quadratic = self.quadratic.cross_validate(ridges)[1]
        self.held_out = {"quadratic": by_quadratic}
        self.smooth = fit_smooth(self.quadratic, ridges, settings.smooth)
        if self.smooth:
            by_smooth = [s.held_out for s in self.smooth]
            self.shares = averaging_shares([validation.score(each) for each in by_smooth])
            self.held_out["smooth"] = stacked(by_smooth, self.shares)
        first = validation.score(by_quadratic)
        self.mixtures = fit_mixtures(validation, settings.mixture, first, step)
        self.components: tuple[ComponentStack, ...] = ()
        if self.mixtures:
            shares = averaging_shares([m.score for m in self.mixtures])
            self.held_out["mixtures"] = stacked([m.held_out for m in self.mixtures], shares)
            self.components = tuple(
                replace(m.components, share=float(a))
                for m, a in zip(self.mixtures, shares, strict=True)
            )

    def utility(self, weights: Mapping[str, float]) -> Utility:
        """Return the sum of the forms times their weights."""
        terms, total = self.quadratic.terms, Utility.flat(self.validation.dimension)
        if weight := weights.get("quadratic"):
            total = terms.utility(weight * self.ridged[0].coefficients)
        if weight := weights.get("smooth"):
            under, process = average_smooth(self.smooth, weight * self.shares)
            plain = terms.utility(under.numpy())
            linear, curvature = total.linear + plain.linear, total.curvature + plain.curvature
            total = Utility(linear, curvature, fourier=process)
        if weight := weights.get("mixtures"):
            scaled = (each.scaled(weight) for each in self.components)
            total = replace(total, components=tuple(scaled))
        return total

    def draws(self, settings: UtilitySettings) -> DeferredDraws:
        """Return draws of the posterior, of the smooth forms by the one that predicts best."""
        seed = int(self.validation.rng.integers(2**62))
        score, count = self.validation.score, settings.posterior.draws
        best = max(self.smooth, key=lambda s: score(s.held_out), default=None)
        predicted = self.held_out["quadratic"]
        forms = (self.quadratic, self.ridged, predicted, self.mixtures, best)
        return DeferredDraws(partial(draw_posterior, *forms, count, seed), count)

    def report(self) -> dict[str, Any]:
        """Return the diagnostics of the forms."""
        counts = [f"mixture of {m.count}" for m in self.mixtures]
        shares = [round(each.share, 4) for each in self.components]
        return {
            "mixtures": dict(zip(counts, shares, strict=True)),
            "ridges": self.ridged[0].ridges._asdict(),
            "length_scales": {str(s.length_scale): s.variance for s in self.smooth},
        }


class _Choice:
    """The simplest form that no other clearly exceeds in held-out likelihood.

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


def simplest(scores: dict[str, Array], weights: Array, groups: Index) -> str:
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


def _gain(gain: Array, weights: Array, groups: Index) -> dict[str, float]:
    """Return the mean of gains (m,), nats per comparison, and its standard error over groups."""
    mean = float(np.average(gain, weights=weights))
    together = np.bincount(groups, weights * (gain - mean))
    return {"mean": mean, "se": float(np.sqrt((together**2).sum()) / weights.sum())}
