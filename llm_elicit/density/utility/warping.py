"""The search for a warp of the features on which a quadratic form makes the choices likelier.

Strengths are changed by steps, of all features at once where that is likelier and else of the one
that gains most, so that the order of the features does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from llm_elicit.density.utility.cross_validation import Array, CrossValidation
from llm_elicit.density.utility.quadratic import QuadraticFit, Ridges
from llm_elicit.density.warp import Warp

_ROWS = 2000
_FIRST, _STEP, _RANGE = 100.0, 10**0.5, (1.0, 1e5)  # of the strengths
_GAIN, _LEAST_GAIN = 5.0, 0.5  # nats, for which a feature is warped, and its strength changed
_SWEEPS = 12


def choose_warp(quadratic: QuadraticFit, ridges: Ridges) -> Warp | None:
    """Return the warp that makes the choices likeliest; None where no feature gains by one."""
    search = _Search(quadratic, ridges)
    category = quadratic.validation.data.category
    numbers = range(len(search.strengths)) if category is None else np.flatnonzero(category < 0)
    for _ in range(_SWEEPS):
        gains = {int(j): gain for j in numbers if (gain := search.best_step(int(j))) is not None}
        if not gains:
            break
        together = search.strengths.copy()
        for j, (_, strengths) in gains.items():
            together[j] = strengths
        first = max(gains, key=lambda j: gains[j][0])
        alone = search.strengths.copy()
        alone[first] = together[first]
        search.move(together if search.gain(together) >= gains[first][0] else alone)
    return search.warp(search.strengths) if search.strengths.any() else None


def warped(validation: CrossValidation, warp: Warp) -> CrossValidation:
    """Return the same folds and judgments with warped features."""
    data = validation.data
    winners, losers = (warp(torch.from_numpy(side)).numpy() for side in (data.winners, data.losers))
    data = replace(data, winners=winners, losers=losers)
    return CrossValidation(data, validation.response, validation.count, validation.rng)


class _Search:
    """Strengths (p, 2) of the warp, and the log-posterior of the quadratic form on some rows."""

    def __init__(self, quadratic: QuadraticFit, ridges: Ridges) -> None:
        self.quadratic, data = quadratic, quadratic.validation.data
        chosen = torch.randperm(len(quadratic.rows), generator=torch.Generator().manual_seed(0))
        self.regression = quadratic.regression(ridges).subset(chosen[:_ROWS])
        rows = quadratic.rows[chosen[:_ROWS].numpy()]
        self.sides = [torch.from_numpy(side[rows]).double() for side in (data.winners, data.losers)]
        self.points = np.concatenate([data.winners, data.losers])
        self.strengths = np.zeros((self.points.shape[1], 2))
        self.mode, self.value = self._fit(self.strengths)

    def warp(self, strengths: Array) -> Warp:
        """Return the warp of these strengths."""
        return Warp.of(self.points, *strengths.T)

    def best_step(self, feature: int) -> tuple[float, Array] | None:
        """Return the largest gain by a change of one feature's strengths, and these; or None."""
        now = self.strengths[feature]
        least = _LEAST_GAIN if now.any() else _GAIN
        steps = []
        for strengths in _steps(now):
            changed = self.strengths.copy()
            changed[feature] = strengths
            steps.append((self.gain(changed), strengths))
        gain, strengths = max(steps, key=lambda step: step[0])
        return (gain, strengths) if gain > least else None

    def gain(self, strengths: Array) -> float:
        """Return by how much the log-posterior is higher, nats."""
        return self._fit(strengths)[1] - self.value

    def move(self, strengths: Array) -> None:
        """Change the strengths."""
        self.strengths, (self.mode, self.value) = strengths, self._fit(strengths)

    def _fit(self, strengths: Array) -> tuple[Tensor | None, float]:
        warp, terms = self.warp(strengths), self.quadratic.terms
        winners, losers = (terms.columns(warp(side).numpy()) for side in self.sides)
        regression = replace(self.regression, columns=torch.from_numpy(winners - losers))
        mode, _ = regression.maximize(getattr(self, "mode", None))
        return mode, regression.value(mode)


def _steps(strengths: Array) -> Iterator[Array]:
    """Yield the strengths (2,) that are tried instead."""
    if not strengths.any():
        yield from _FIRST * np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        return
    for factor in (_STEP, 1.0 / _STEP):
        yield np.where(strengths > 0.0, np.clip(factor * strengths, *_RANGE), 0.0)
