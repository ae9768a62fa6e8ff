"""Fit the utility f by choice likelihood, every decision taken by held-out likelihood.

The compared points are drawn from λ independently of the belief p, so all the data say about
p is in Π F(f(winner) − f(loser)): the choice likelihood of f = log p is sufficient. The judge
is described as a constant (a coin), a quadratic form with ridge (a Gaussian belief on the
feature scale), the logarithm of a mixture, and each of the last two with a residual ensemble
on top; the simplest description that is not clearly beaten on held-out comparisons is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llm_elicit.density.choice import Noise
from llm_elicit.density.ratio import Utility
from llm_elicit.density.utility.data import Array, ChoiceData, CrossValidation
from llm_elicit.density.utility.mixture import MixtureSettings, fit_mixture
from llm_elicit.density.utility.quadratic import QuadraticFit
from llm_elicit.density.utility.residual import ResidualSettings, fit_residual, judged_log_cdf

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class UtilitySettings:
    """Settings of the utility fit.

    ``folds`` is also the size of the ensembles: member k never sees fold k. ``ridges`` is the
    grid of prior precisions of the quadratic's coefficients.
    """

    folds: int = 8
    ridges: tuple[float, ...] = (1e-4, 1e-3, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0)
    mixture: MixtureSettings = field(default_factory=MixtureSettings)
    residual: ResidualSettings = field(default_factory=ResidualSettings)


def fit_utility(
    data: ChoiceData,
    noise: Noise,
    rng: np.random.Generator,
    settings: UtilitySettings,
    progress: Progress | None = None,
) -> tuple[Utility, dict[str, Any]]:
    """Fit f and say how: the fitted `Utility` and its diagnostics (JSON-able).

    Diagnostics: ``form`` ("constant", "quadratic", "mixture" or "ensemble"), ``held_out`` (mean
    held-out log-likelihood of each form, nats per comparison; a coin scores −log 2), the chosen
    ``ridge``, number of ``components``, ``base`` of the ensemble, ``decay`` and ``steps``.
    """
    d = data.winners.shape[1]
    validation = CrossValidation(data, noise, settings.folds, rng)
    judged = validation.judged.numpy()
    quadratic = QuadraticFit(validation)
    ridge, betas, by_quadratic = quadratic.cross_validate(settings.ridges)
    mixture = fit_mixture(validation, settings.mixture)
    weights = data.weights[judged]
    scores = {
        "constant": np.full(len(weights), np.log(0.5)),
        "quadratic": judged_log_cdf(validation, by_quadratic.out_of_fold[judged]),
        "mixture": judged_log_cdf(validation, mixture.differences.out_of_fold[judged]),
    }
    base = simplest(scores, weights)
    differences = mixture.differences if base == "mixture" else by_quadratic
    residual = fit_residual(validation, differences, settings.residual)
    scores["ensemble"] = judged_log_cdf(validation, residual.out_of_fold)
    form = simplest(scores, weights)
    if form == "constant":
        utility = Utility.flat(d)
    elif form == "quadratic":
        utility = Utility.from_coefficients(quadratic.fit(ridge, data.weights), d)
    else:
        plain = Utility.from_coefficients(betas.mean(axis=0), d)
        if base == "mixture":
            plain = Utility.flat(d)
        utility = Utility(
            plain.linear,
            plain.curvature,
            residual.networks if form == "ensemble" else None,
            mixture.components if base == "mixture" else None,
        )
    held_out = {k: float(np.average(v, weights=weights)) for k, v in scores.items()}
    chosen = {
        "ridge": ridge,
        "components": mixture.count,
        "base": base,
        "decay": residual.decay,
        "steps": residual.steps,
    }
    return utility, {"form": form, "held_out": held_out, **chosen}


def simplest(scores: dict[str, Array], weights: Array) -> str:
    """Move to a richer form only when it wins by more than one standard error.

    ``scores`` holds the log-likelihood of every judged row by each form, simplest form first.
    """
    best = next(iter(scores))
    for form in list(scores)[1:]:
        gain = scores[form] - scores[best]
        mean = np.average(gain, weights=weights)
        spread = np.sqrt(np.sum(weights**2 * (gain - mean) ** 2)) / weights.sum()
        if mean > spread:
            best = form
    return best
