"""The search for a warp of the features on which a quadratic form makes the choices likelier.

First the end of its range, or both, is found at which each feature is stretched, then how strongly.
All features change at once where that is likelier, so that their order does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter

import numpy as np
import torch
from scipy.special import softmax

from llm_elicit.density.utility.cross_validation import Array, CrossValidation
from llm_elicit.density.utility.quadratic import QuadraticFit, Ridges
from llm_elicit.density.warp import Warp

_ROWS = 2000
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
    chosen = torch.randperm(len(quadratic.rows), generator=generator)[:_ROWS]
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
