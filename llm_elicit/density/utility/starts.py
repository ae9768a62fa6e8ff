"""Where the fit of a mixture starts: Gaussian mixtures of the winners themselves.

Winners gather where the belief is high, so their clusters resemble the belief's bumps. They
are clustered by k-means, which finds bumps apart from each other, and by the lines through
their mean they lie nearest, which finds bumps that cross; some starts are these clusters, some
are run through expectation-maximization first.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.cluster.vq import kmeans2

from llm_elicit.density.utility.data import Array, CrossValidation, Folds
from llm_elicit.density.utility.scoring import Mixture

_CLUSTERED = 3000
_SWEEPS = 20
_ROUND = 0.05  # share of a round covariance in each cluster's, so that none is singular


def draw_starts(validation: CrossValidation, count: int, starts: int) -> list[Mixture]:
    """``starts`` mixtures of ``count`` components, of all kinds in turn."""
    data, rng = validation.data, validation.rng
    share = data.weights / data.weights.sum()
    size = min(_CLUSTERED, validation.size)
    found = []
    for start in range(starts):
        winners = data.winners[rng.choice(validation.size, size, p=share)]
        if start % 4 == 3:
            labels = _lines(winners, count, rng)
        else:
            labels = kmeans2(winners, count, minit="++", rng=rng)[1].astype(np.int64)
        sweeps = _SWEEPS if start % 2 else 1
        found.append(_gaussians(winners, np.eye(count)[labels], sweeps))
    return found


def _lines(points: Array, count: int, rng: np.random.Generator) -> Folds:
    """Each point's nearest of ``count`` lines through the mean: (n,)."""
    centred = points - points.mean(0)
    lines = rng.normal(size=(count, points.shape[1]))
    labels = np.zeros(len(points), dtype=np.int64)
    for _ in range(_SWEEPS):
        lines /= np.linalg.norm(lines, axis=1, keepdims=True)
        labels = np.abs(centred @ lines.T).argmax(1)
        for k in range(count):
            along = centred[labels == k]
            if len(along) > 1:
                lines[k] = np.linalg.eigh(along.T @ along)[1][:, -1]
    return labels


def _gaussians(points: Array, shares: Array, sweeps: int) -> Mixture:
    """Expectation-maximization from responsibilities (n, K), ``sweeps`` times."""
    n, d = points.shape
    whole = np.cov(points.T).reshape(d, d)
    for _ in range(sweeps):
        mass = shares.sum(0) + 1e-9
        centres = shares.T @ points / mass[:, None]
        whiten = []
        for k, m in enumerate(mass):
            centred = points - centres[k]
            # A nearly empty component is given its part of the whole cloud.
            empty = (2.0 * d) / (2.0 * d + m)
            scatter = (shares[:, k, None] * centred).T @ centred / m
            covariance = (1 - empty) * scatter + empty * whole / len(mass) ** (2.0 / d)
            floor = _ROUND * np.trace(covariance) / d + 1e-9
            factor = np.linalg.cholesky((1 - _ROUND) * covariance + floor * np.eye(d))
            whiten.append(np.linalg.inv(factor).T)
        forms = np.stack([
            np.log(m / n) + np.linalg.slogdet(w)[1] - 0.5 * np.square((points - c) @ w).sum(1)
            for m, w, c in zip(mass, whiten, centres, strict=True)
        ], axis=1)  # fmt: skip
        shares = np.exp(forms - forms.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
    stacked = np.stack(whiten)
    return Mixture(
        torch.from_numpy(stacked).float(),
        torch.from_numpy(np.einsum("kd,kde->ke", centres, stacked)).float(),
        torch.zeros(len(mass)),
    )
