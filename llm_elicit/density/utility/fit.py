"""Fit the utility f by choice likelihood, every decision taken by held-out likelihood.

The compared points are drawn from λ independently of the belief p, so all the data say about
p is in Π F(f(winner) − f(loser)): the choice likelihood of f = log p is sufficient. The judge
is described as a constant (a coin), as a quadratic form with ridge (a Gaussian belief on the
feature scale), as the logarithm of a mixture, averaged over numbers of components, and as a
quadratic form with an ensemble of small networks on top; the last three are stacked. Of the
constant, the quadratic form, the mixtures and the stack the simplest that is not clearly beaten
on held-out comparisons is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from llm_elicit.density.judgments import Context
from llm_elicit.density.likelihood import Noise, Response
from llm_elicit.density.utility.calibration import calibration
from llm_elicit.density.utility.data import Array, ChoiceData, CrossValidation, Folds, HeldOut
from llm_elicit.density.utility.gaussian_process import GaussianProcessSettings
from llm_elicit.density.utility.judges import JudgeTerms
from llm_elicit.density.utility.mixture import (
    MixtureFit,
    MixtureSettings,
    averaging_shares,
    fit_mixtures,
)
from llm_elicit.density.utility.posterior import PosteriorSettings, draw_posterior
from llm_elicit.density.utility.quadratic import QuadraticFit
from llm_elicit.density.utility.residual import ResidualFit, ResidualSettings, fit_residual
from llm_elicit.density.utility.stacking import stack_weights, stacked
from llm_elicit.density.utility_draws import UtilityDraws
from llm_elicit.density.utility_function import ComponentStack, Utility

Progress = Callable[[str, int, int], None]
_MIXTURE_STEPS = 200
_STANDARD_ERRORS = 2.0
_TURNS = 4


@dataclass(frozen=True)
class UtilitySettings:
    """Settings of the utility fit.

    ``folds`` is also the size of the ensembles: member k never sees fold k. ``ridge_factors`` is
    what the suited prior precisions of the quadratic's coefficients are multiplied by: by half
    decades, for the draws share them by their evidence, and a coarser grid leaves them between
    two of which one makes the belief too narrow, the other too wide. ``process`` is for evidence
    with log-odds, and the others for choices alone.
    """

    folds: int = 8
    ridge_factors: tuple[float, ...] = tuple(10.0 ** (half / 2) for half in range(-6, 7))
    mixture: MixtureSettings = field(default_factory=MixtureSettings)
    residual: ResidualSettings = field(default_factory=ResidualSettings)
    posterior: PosteriorSettings = field(default_factory=PosteriorSettings)
    process: GaussianProcessSettings = field(default_factory=GaussianProcessSettings)


@dataclass(frozen=True)
class UtilityFit:
    """The fitted utility, draws of what else it could be, and its diagnostics (JSON-able).

    ``foretold`` is what it says of comparisons it never saw, f(winner) − f(loser) of n rows in
    nats; NaN where not asked.
    """

    utility: Utility
    draws: UtilityDraws
    foretold: Array
    notes: dict[str, Any]


def fit_utility(
    data: ChoiceData,
    noise: Noise,
    rng: np.random.Generator,
    settings: UtilitySettings,
    progress: Progress | None = None,
) -> UtilityFit:
    """Fit f, and the judges' terms with it where there are any, and say how.

    Diagnostics: ``form`` ("constant", "quadratic", "mixtures" or "stack"), ``held_out`` (mean
    moderated log-likelihood of each description on comparisons it never saw, nats per comparison;
    a coin scores −log 2), ``gains`` of the chosen one over the constant and the quadratic with
    their standard errors, its ``calibration``, ``stack`` (the weights), ``mixtures``
    (the share of each number of components), the chosen ``ridges``, ``decay`` and ``steps``, and
    the ``judges``' terms, if the judgments have a context; see `JudgeTerms.notes`.
    """
    step = _Steps(settings, progress)
    if data.context is None:
        plain = CrossValidation(data, Response(noise), settings.folds, rng)
        return _describe(plain, settings, step)
    terms, weighted = _judge_terms(data, data.context, noise, rng, settings)
    response = terms.response(data.context, noise)
    found = _describe(CrossValidation(weighted, response, settings.folds, rng), settings, step)
    return replace(found, notes={**found.notes, "judging": terms.notes(data.context, noise)})


def _judge_terms(
    data: ChoiceData,
    context: Context,
    noise: Noise,
    rng: np.random.Generator,
    settings: UtilitySettings,
) -> tuple[JudgeTerms, ChoiceData]:
    """The judges' terms, and the judgments as they weigh under them.

    In turns with the quadratic form, which is quickly fitted, then once with the best description
    but the networks: against a utility that is too simple a bias looks smaller than it is.
    """
    quick = replace(
        settings,
        residual=replace(settings.residual, max_steps=0),
        posterior=replace(settings.posterior, draws=0),
    )
    terms = JudgeTerms.neutral(context)
    weighted = terms.weigh(data, noise)
    for turn in range(_TURNS):
        response = terms.response(context, noise)
        validation = CrossValidation(weighted, response, settings.folds, rng)
        if turn < _TURNS - 1:
            quadratic = QuadraticFit(validation)
            ridged = quadratic.fits(settings.ridge_factors)[0]
            foretold = validation.everywhere(quadratic.cross_validate(ridged.ridges)[1])
        else:
            foretold = _describe(validation, quick, _Steps(quick, None)).foretold
        weighted = terms.weigh(data, noise, foretold)
        terms = terms.estimate(weighted, noise, foretold)
    return terms, terms.weigh(data, noise, foretold)


def _describe(validation: CrossValidation, settings: UtilitySettings, step: _Steps) -> UtilityFit:
    quadratic = QuadraticFit(validation)
    ridged = quadratic.fits(settings.ridge_factors)
    betas, by_quadratic = quadratic.cross_validate(ridged[0].ridges)
    first = validation.score(by_quadratic)
    mixtures = fit_mixtures(validation, settings.mixture, first, step.mixture)
    base = quadratic.differences(betas)
    residual = fit_residual(validation, base, settings.residual, step.residual)
    averaged = _average(mixtures, settings.mixture.tolerance)
    parts = {"quadratic": by_quadratic, "networks": residual.held_out}
    if mixtures:
        held_out = stacked([m.held_out for m in mixtures], np.array([m.share for m in averaged]))
        parts["mixtures"] = held_out
    weights, foretold = validation.data.weights[validation.judged.numpy()], list(parts.values())
    response = validation.response.at(validation.judged)
    shares = stack_weights(foretold, weights, response)
    nothing = HeldOut(np.zeros(len(weights)), np.zeros(len(weights)))
    everything = {"constant": nothing, **parts, "stack": stacked(foretold, shares)}
    scores = {form: held_out.log_likelihood(response) for form, held_out in everything.items()}
    groups = validation.data.groups[validation.judged.numpy()]
    form = simplest({k: v for k, v in scores.items() if k != "networks"}, weights, groups)
    if form == "constant":
        utility = Utility.flat(validation.dimension)
    elif form == "quadratic":
        utility = Utility.from_coefficients(ridged[0].coefficients, validation.dimension)
    elif form == "mixtures":
        utility = replace(Utility.flat(validation.dimension), components=averaged)
    else:
        utility = _stacked(betas, residual, averaged, shares)
    means = {k: float(np.average(v, weights=weights)) for k, v in scores.items()}
    notes = {
        "form": form,
        "held_out": means,
        "gains": {
            base: _gain(scores[form] - scores[base], weights, groups)
            for base in ("constant", "quadratic")
        },
        "calibration": calibration(everything[form], weights, response),
        "stack": {k: round(float(a), 4) for k, a in zip(parts, shares, strict=True)},
        "mixtures": {
            f"mixture of {m.count}": round(c.share, 4)
            for m, c in zip(mixtures, averaged, strict=True)
        },
        "ridges": ridged[0].ridges._asdict(),
        "decay": residual.decay,
        "steps": residual.steps,
    }
    draws = draw_posterior(quadratic, ridged, betas, by_quadratic, mixtures, settings.posterior)
    return UtilityFit(utility, draws, validation.everywhere(everything[form]), notes)


def _average(mixtures: list[MixtureFit], tolerance: float) -> tuple[ComponentStack, ...]:
    """The mixtures of each number of components, with their shares in the average."""
    if not mixtures:
        return ()
    shares = averaging_shares([m.score for m in mixtures], tolerance)
    pairs = zip(mixtures, shares, strict=True)
    return tuple(replace(m.components, share=float(a)) for m, a in pairs)


def _stacked(
    betas: Array, residual: ResidualFit, mixtures: tuple[ComponentStack, ...], shares: Array
) -> Utility:
    """The networks sit on the quadratic, so it counts for its own share and for theirs."""
    quadratic, networks, *rest = (float(a) for a in shares)
    d = residual.networks.dimension
    plain = Utility.from_coefficients((quadratic + networks) * betas.mean(axis=0), d)
    of_mixtures = rest[0] if rest else 0.0
    return replace(
        plain,
        networks=residual.networks.scaled(networks) if networks > 0 and residual.steps else None,
        components=tuple(replace(m, share=of_mixtures * m.share) for m in mixtures if of_mixtures),
    )


class _Steps:
    """Reports the fit's progress in training steps; a number of components counts as many."""

    def __init__(self, settings: UtilitySettings, progress: Progress | None) -> None:
        self.before = len(settings.mixture.counts) * _MIXTURE_STEPS
        self.total = self.before + settings.residual.max_steps
        self.progress = progress

    def mixture(self, done: int) -> None:
        """``done`` numbers of components have been fitted."""
        self._report(done * _MIXTURE_STEPS)

    def residual(self, done: int) -> None:
        """``done`` steps of the networks."""
        self._report(self.before + done)

    def _report(self, done: int) -> None:
        if self.progress is not None:
            self.progress("utility", min(done, self.total), self.total)


def simplest(scores: dict[str, Array], weights: Array, groups: Folds) -> str:
    """The first form that no later one beats by more than two standard errors.

    ``scores`` holds the log-likelihood of every judged row by each form, simplest form first;
    rows of one of ``groups`` hang together. Held-out choices, most of them between improbable
    points, hardly feel the width a needless freedom adds where the belief is: a richer form must
    win clearly.
    """
    names = list(scores)
    for at, form in enumerate(names):
        later = (scores[richer] - scores[form] for richer in names[at + 1 :])
        gains = (_gain(more, weights, groups) for more in later)
        if not any(gain["mean"] > _STANDARD_ERRORS * gain["se"] for gain in gains):
            return form
    return names[-1]


def _gain(gain: Array, weights: Array, groups: Folds) -> dict[str, float]:
    """Mean of what rows gain (m,), nats a comparison, and its standard error over groups.

    Judgments of one pair hang together.
    """
    mean = float(np.average(gain, weights=weights))
    together = np.bincount(groups, weights * (gain - mean))
    return {"mean": mean, "se": float(np.sqrt((together**2).sum()) / weights.sum())}
