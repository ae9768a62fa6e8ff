"""An information bound on the error of any estimator with n uniform pairs.

Suppose everything about log p were known except the amounts c of a few smooth changes φ, so that
u = log p + φ·c. The choices carry the Fisher information

    I = n E[(φ(x) − φ(x')) (φ(x) − φ(x'))ᵀ F'(Δ)² / (F(Δ) (1 − F(Δ)))],   Δ = u(x) − u(x'),

about c, and no unbiased estimator of c has a covariance below I⁻¹ (Cramér–Rao). An efficient
estimator's belief is p·exp(φ·c) with c ~ N(0, I⁻¹); its Wasserstein distance to p, less the
floor, is what even that leaves. An estimator that also has to learn the shape does worse; one
with a prior that favours c = 0, as equal weights of modes, may do better on targets that obey it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import softmax

from benchmarks.targets import Target
from llm_elicit.audit.distances import wasserstein
from llm_elicit.density import GaussianMixture, Noise

Array = npt.NDArray[np.float64]
Changes = Callable[[Array], Array]
_PAIRS = 100_000
_POOL = 50_000


class Bound(NamedTuple):
    """Standard deviations (p,) of c in nats, and mean Wasserstein-1 with its floor."""

    deviations: Array
    w1: float
    floor: float


def angular(x: Array) -> Array:
    """Return cos θ, sin θ, cos 2θ and sin 2θ (n, 4) of points (n, 2): smooth in the angle."""
    angle = np.arctan2(x[:, 1], x[:, 0])
    return np.stack([f(k * angle) for k in (1, 2) for f in (np.cos, np.sin)], axis=1)


def mode_weights(law: GaussianMixture) -> Changes:
    """Return changes of the log-weights: probabilities (n, k − 1) of components after the first."""

    def changes(x: Array) -> Array:
        parts = [
            GaussianMixture([1.0], [mean], [covariance]).log_prob(x)
            for mean, covariance in zip(law.means, law.covariances, strict=True)
        ]
        logs = np.stack(parts, axis=1) + np.log(law.weights)
        return np.asarray(softmax(logs, axis=1)[:, 1:])

    return changes


def components(law: GaussianMixture) -> Changes:
    """Return gradients of log p in the parameters of a mixture: (n, k·(1 + d + d(d + 1)/2) − 1).

    Of each component its log-weight, its centre and its shape, in its own standard deviations; the
    first component's log-weight follows from the others'.
    """
    d = law.dimension
    i, j = np.triu_indices(d)
    factors = [np.linalg.inv(np.linalg.cholesky(covariance)) for covariance in law.covariances]
    weights = mode_weights(law)

    def changes(x: Array) -> Array:
        of_components = []
        for mean, factor in zip(law.means, factors, strict=True):
            y = (x - mean) @ factor.T
            shape = np.where(i == j, -1.0, -2.0) * y[:, i] * y[:, j]
            of_components.append(np.concatenate([np.ones((len(x), 1)), y, shape], axis=1))
        others = weights(x)
        shares = np.concatenate([1.0 - others.sum(axis=1, keepdims=True), others], axis=1)
        slopes = shares[:, :, None] * np.stack(of_components, axis=1)
        return np.asarray(slopes.reshape(len(x), -1)[:, 1:])

    return changes


def information(
    target: Target, changes: Changes, n: int, noise: Noise, rng: np.random.Generator
) -> Array:
    """Fisher information (p, p) of n pairs drawn from the target's λ about the amounts c."""
    a, b = target.sampling.sample(_PAIRS, rng), target.sampling.sample(_PAIRS, rng)
    gap = torch.from_numpy(target.log_density(a) - target.log_density(b))
    log_weight = 2.0 * noise.log_pdf(gap) - noise.log_cdf(gap) - noise.log_cdf(-gap)
    weight = np.nan_to_num(log_weight.exp().numpy())
    difference = changes(a) - changes(b)
    return np.asarray(n / _PAIRS * (difference * weight[:, None]).T @ difference)


def efficient_bound(
    target: Target, changes: Changes, rng: np.random.Generator, points: int = 3000, draws: int = 8
) -> Bound:
    """Return the error of an efficient estimator of ``changes`` alone from 1000·d pairs.

    Examples:
        >>> from benchmarks.targets import find
        >>> (ring,) = find(["Ring2D"])
        >>> bound = efficient_bound(ring, angular, np.random.default_rng(0), 300, 2)
        >>> bool((bound.deviations > 0.05).all())
        True
    """
    matrix = information(target, changes, 1000 * target.dimension, Noise(), rng)
    covariance = np.linalg.inv(matrix)
    factor = np.linalg.cholesky(covariance)
    w1, floors = [], []
    for _ in range(draws):
        pool = target.sample(_POOL, rng)
        share = softmax(changes(pool) @ (factor @ rng.standard_normal(len(factor))))
        moved = pool[rng.choice(_POOL, points, p=share)]
        truth = target.sample(points, rng)
        w1.append(wasserstein(moved, truth))
        floors.append(wasserstein(target.sample(points, rng), truth))
    return Bound(np.sqrt(np.diag(covariance)), float(np.mean(w1)), float(np.mean(floors)))
