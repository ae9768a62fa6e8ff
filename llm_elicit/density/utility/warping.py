"""The search for a warp of the features on which a quadratic form makes the choices likelier.

Strengths are changed by steps, of all features at once where that is likelier and else of the one
that gains most, so that the order of the features does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter

import numpy as np
import torch

from llm_elicit.density.utility.cross_validation import Array, CrossValidation
from llm_elicit.density.utility.quadratic import QuadraticFit, Ridges
from llm_elicit.density.warp import Warp

_ROWS = 2000
_FIRST, _STEP, _STRONGEST = 100.0, 10**0.5, 1e5  # of the strengths
_GAIN, _LEAST_GAIN = 5.0, 0.5  # nats, for which a feature is warped, and its strength changed
_SWEEPS = 12


def choose_warp(quadratic: QuadraticFit, ridges: Ridges) -> Warp | None:
    """Return the warp that makes the choices likeliest; None where no feature gains by one."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(quadratic.rows), generator=generator)[:_ROWS]
    plain, data = quadratic.regression(ridges).subset(chosen), quadratic.validation.data
    rows = quadratic.rows[chosen.numpy()]
    sides = [torch.from_numpy(side[rows]).double() for side in (data.winners, data.losers)]
    points, start = np.concatenate([data.winners, data.losers]), plain.maximize()[0]
    d, category = points.shape[1], data.category
    numbers = range(d) if category is None else np.flatnonzero(category < 0).tolist()

    def value(strengths: Array) -> float:
        warp = Warp.of(points, *strengths.T)
        winners, losers = (quadratic.terms.columns(warp(side).numpy()) for side in sides)
        regression = replace(plain, columns=torch.from_numpy(winners - losers))
        return regression.value(regression.maximize(start)[0])

    strengths, now = np.zeros((d, 2)), plain.value(start)
    for _ in range(_SWEEPS):
        better = {}
        for j in numbers:
            tried = max(((value(s), s) for s in _changed(strengths, j)), key=itemgetter(0))
            if tried[0] > now + (_LEAST_GAIN if strengths[j].any() else _GAIN):
                better[j] = tried
        if not better:
            break
        together = strengths.copy()
        for j, (_, changed) in better.items():
            together[j] = changed[j]
        now, strengths = max([*better.values(), (value(together), together)], key=itemgetter(0))
    return Warp.of(points, *strengths.T) if strengths.any() else None


def _changed(strengths: Array, feature: int) -> Iterator[Array]:
    """Yield the strengths (p, 2) that are tried instead, of which one feature's differ."""
    now = strengths[feature]
    factors = [[_STEP], [1.0 / _STEP]] if now.any() else [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    for factor in np.array(factors):
        changed = strengths.copy()
        changed[feature] = np.minimum(factor * (now if now.any() else _FIRST), _STRONGEST)
        yield changed


def warped(validation: CrossValidation, warp: Warp) -> CrossValidation:
    """Return the same folds and judgments with warped features."""
    data = validation.data
    winners, losers = (warp(torch.from_numpy(side)).numpy() for side in (data.winners, data.losers))
    data = replace(data, winners=winners, losers=losers)
    return CrossValidation(data, validation.response, validation.count, validation.rng)
