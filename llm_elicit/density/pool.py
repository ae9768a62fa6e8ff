"""Pools: several beliefs combined into one, which is a belief like any other.

The *linear* pool is the mixture Σ w_k p_k. The *logarithmic* pool is ∏ p_k^w_k, normalized (Genest
and Zidek, 1986). Weights are at least 0 and sum to 1. They are equal, chosen by the caller, or
fitted to points, such as rows of a table, by maximum likelihood: for the linear pool by expectation
maximization, for the logarithmic one by maximizing Σ_k w_k mean log p_k − log Z(w), which is
concave in w. Z(w) is a
mean of ∏ p_k^w_k / q over draws of q, the linear pool with equal weights; as ∏ p_k^w_k ≤ Σ w_k p_k,
no term exceeds the number of beliefs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import LinearConstraint, minimize
from scipy.special import logsumexp, softmax
from torch import Tensor

from llm_elicit.density import errors, methods
from llm_elicit.density.distribution import Distribution
from llm_elicit.density.errors import Array, DensityError
from llm_elicit.density.latent import Latent, make_latent
from llm_elicit.density.methods import LogNormalizer, PotentialDensity, UtilityDensity
from llm_elicit.density.score import ScoreDensity
from llm_elicit.density.settings import AnnealingSettings
from llm_elicit.density.smc import Draws
from llm_elicit.density.torch_utils import make_generator, one_thread, select_tensors

PoolKind = Literal["linear", "logarithmic"]
POOL_KINDS: tuple[PoolKind, ...] = ("linear", "logarithmic")
AnyBelief = TypeVar("AnyBelief", bound=Distribution)

_DRAWS = 8192  # of a pool for its moments and quantiles, and draws that estimate log Z(w)
_STEPS = 1000  # of expectation maximization
_TOLERANCE = 1e-6  # the change of a weight at which it ends
_MIN_WEIGHT = 1e-6  # below which a belief is left out of a pool


@dataclass(frozen=True)
class PooledPotential:
    """The log-density of a pool, times a power, as a function of features: a `Potential`.

    Attributes:
        models: the normalized densities pooled, of the same coordinates.
        weights: (K,), one for each.
        kind: linear or logarithmic.
        power: k in p ∝ pool^k.
    """

    models: tuple[UtilityDensity | ScoreDensity | PoolDensity, ...]
    weights: tuple[float, ...]
    kind: PoolKind
    power: float = 1.0

    def __call__(self, t: Tensor) -> Tensor:
        """Return values (n,) at features (n, p)."""
        return self.value_and_gradient(t)[0]

    def value_and_gradient(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return values (n,) and gradients (n, p) at features (n, p)."""
        parts = [model.utility.value_and_gradient(t) for model in self.models]
        weights = torch.tensor(self.weights, dtype=t.dtype)[:, None]
        values, slopes = map(torch.stack, zip(*parts, strict=True))
        logs = values - torch.tensor([[model.log_normalizer] for model in self.models]).to(values)
        if self.kind == "linear":
            value = torch.logsumexp(logs + weights.log(), 0)
            weights = weights * torch.exp(logs - value)
        else:
            value = (weights * logs).sum(0)
        return self.power * value, self.power * (weights[..., None] * slopes).sum(0)

    def scaled(self, factor: float) -> PooledPotential:
        """Return the potential times ``factor``."""
        return replace(self, power=factor * self.power)


@dataclass(frozen=True)
class PoolDensity(PotentialDensity):
    """A pool per scale unit, a `llm_elicit.density.methods.DensityModel`."""

    utility: PooledPotential

    @property
    def name(self) -> str:
        """The method's name."""
        return f"{self.utility.kind} pool"

    @property
    def is_mixture(self) -> bool:
        """Whether it is a mixture of its densities, which needs no sampler and no log Z."""
        return self.utility.kind == "linear" and self.utility.power == 1.0

    def sample_latent(self, n: int, generator: torch.Generator) -> Draws:
        """Return any number n of latent draws (n, d), in random order."""
        if not self.is_mixture:
            return super().sample_latent(n, generator)
        weights = torch.tensor(self.utility.weights, dtype=torch.float64)
        model_numbers = torch.multinomial(weights, n, replacement=True, generator=generator)
        counts = model_numbers.bincount(minlength=len(weights)).tolist()
        points, genealogies, first = [], [], 0
        for model, count in zip(self.utility.models, counts, strict=True):
            if count:
                draws = model.sample_latent(count, generator)
                points.append(draws.points)
                genealogies.append(draws.genealogies + first)
                first = int(genealogies[-1].max()) + 1
        order = torch.randperm(n, generator=generator)
        return Draws(torch.cat(points), torch.cat(genealogies)).take(order)

    def normalize(self, generator: torch.Generator) -> tuple[PoolDensity, LogNormalizer]:
        """Return the density with its start and log Z; a mixture has log Z = 0."""
        if not self.is_mixture:
            return super().normalize(generator)
        mixture = replace(self, log_normalizer=0.0, start=None)
        return mixture, LogNormalizer(0.0, 0.0, mixture.sample_latent(_DRAWS, generator))

    def evaluation_error(self, g: Tensor) -> float:
        """Return the weighted mean of the errors of the densities pooled."""
        evaluated = [model.evaluation_error(g) for model in self.utility.models]
        return float(np.average(evaluated, weights=self.utility.weights))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the start and of the densities pooled."""
        return super().tensors() | {
            f"pool.{number}.{name}": tensor
            for number, model in enumerate(self.utility.models)
            for name, tensor in model.tensors().items()
        }

    def config(self) -> dict[str, Any]:
        """Return every number that is not an array."""
        pool = self.utility
        return {
            **super().config(),
            "kind": pool.kind,
            "power": pool.power,
            "weights": list(pool.weights),
            "models": [{"name": model.name, "config": model.config()} for model in pool.models],
        }

    @classmethod
    def restore(
        cls, latent: Latent, tensors: dict[str, Tensor], config: dict[str, Any]
    ) -> PoolDensity:
        """Return the density that `tensors` and `config` describe."""
        models = [
            restore_model(
                model["name"], latent, select_tensors(f"pool.{number}", tensors), model["config"]
            )
            for number, model in enumerate(config["models"])
        ]
        pooled = tuple(model for model in models if isinstance(model, _POOLED))
        utility = PooledPotential(pooled, tuple(config["weights"]), config["kind"], config["power"])
        return cls.from_parts(latent, utility, tensors, config)


_POOLED = (UtilityDensity, ScoreDensity, PoolDensity)
"""Densities with a gradient, which can be pooled."""
_RESTORE: dict[str, Callable[[Latent, dict[str, Tensor], dict[str, Any]], methods.DensityModel]] = {
    "utility": UtilityDensity.restore,
    **dict.fromkeys(("score", "score-constant"), ScoreDensity.restore),
    **dict.fromkeys((f"{kind} pool" for kind in POOL_KINDS), PoolDensity.restore),
}


def restore_model(
    name: str, latent: Latent, tensors: dict[str, Tensor], config: dict[str, Any]
) -> methods.DensityModel:
    """Return the model of a method that its `tensors` and `config` describe."""
    restore = _RESTORE[name] if name in _RESTORE else methods.external_method(name).restore
    return restore(latent, tensors, config)


@dataclass(frozen=True)
class PoolWeights:
    """The weights (K,) of a pool, and log Z, which is 0 for a linear one."""

    kind: PoolKind
    weights: Array
    log_normalizer: float = 0.0

    def log_density(self, log_densities: Array) -> Array:
        """Return the pool's log densities (n,) from those of the beliefs (n, K), nats."""
        if self.kind == "linear":
            return np.asarray(logsumexp(log_densities, axis=1, b=self.weights))
        return np.asarray(log_densities @ self.weights - self.log_normalizer)


def fit_pool_weights(kind: PoolKind, log_densities: Array, draws: Array) -> PoolWeights:
    """Return the weights of a pool that maximize the likelihood of points.

    Args:
        kind: linear or logarithmic.
        log_densities: (n, K) of the beliefs at the points, nats.
        draws: (m, K) of the beliefs at draws from them, equally many of each; a linear pool needs
            none.

    Examples:
        >>> from scipy.stats import norm
        >>> points = np.random.default_rng(0).normal(0.0, 1.0, (500, 1))
        >>> pool = fit_pool_weights("linear", norm.logpdf(points, [0.0, 3.0]), np.empty((0, 2)))
        >>> bool(pool.weights[0] > 0.95)
        True
    """
    count = log_densities.shape[1]
    weights = np.full(count, 1.0 / count)
    if kind == "linear":
        densities = np.exp(log_densities - log_densities.max(axis=1, keepdims=True))
        for _ in range(_STEPS):
            previous, shares = weights, weights * densities
            weights = (shares / shares.sum(axis=1, keepdims=True)).mean(axis=0)
            if np.abs(weights - previous).max() < _TOLERANCE:
                break
        return PoolWeights(kind, _drop_small(weights))
    relative = draws - logsumexp(draws, axis=1, keepdims=True) + math.log(count)
    means = log_densities.mean(axis=0)

    def log_normalizer(weights: Array) -> float:
        return float(logsumexp(relative @ weights)) - math.log(len(relative))

    def loss(weights: Array) -> tuple[float, Array]:
        gradient = softmax(relative @ weights) @ relative - means
        return log_normalizer(weights) - float(means @ weights), gradient

    bounds, total = [(0.0, 1.0)] * count, LinearConstraint(np.ones(count), 1.0, 1.0)
    solution = minimize(loss, weights, jac=True, method="SLSQP", bounds=bounds, constraints=total)
    weights = _drop_small(solution.x)
    return PoolWeights(kind, weights, log_normalizer(weights))


def _drop_small(weights: Array) -> Array:
    """Return weights that sum to 1, with 0 for those below `_MIN_WEIGHT`."""
    large = np.where(weights < _MIN_WEIGHT, 0.0, weights)
    return np.asarray(large / large.sum())


def pool_beliefs(
    beliefs: Sequence[AnyBelief],
    kind: PoolKind = "linear",
    *,
    weights: npt.ArrayLike | None = None,
    points: npt.ArrayLike | None = None,
    seed: int = 0,
) -> AnyBelief:
    """Return the pool of several beliefs as a belief; see `llm_elicit.density.pool`.

    Args:
        beliefs: two or more with the same λ, fitted by "auto", "utility" or "score", or pools.
        kind: "linear", a mixture, or "logarithmic", a product.
        weights: one for each belief, at least 0; divided by their sum. Equal by default.
        points: (n, d) points, such as rows of a table, whose likelihood the weights maximize; in
            place of weights. Score the pool on other points.
        seed: seed of draws and normalizing constants.

    Raises:
        DensityError: fewer than two beliefs, beliefs under different λ or by a method without a
            gradient, weights that are not of that form, or points outside the support.

    Examples:
        >>> from llm_elicit.density import Uniform, fit_belief
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.uniform(-3, 3, (2, 60, 1))
        >>> beliefs = []
        >>> for centre in (-1.5, 1.5):
        ...     nearer = abs(a - centre) < abs(b - centre)
        ...     beliefs.append(fit_belief(np.where(nearer, a, b), np.where(nearer, b, a),
        ...                               sampling=Uniform([-3.0], [3.0]), method="utility"))
        >>> pool = pool_beliefs(beliefs, weights=[3, 1])
        >>> pool.diagnostics["pool"]["weights"]
        [0.75, 0.25]
        >>> density = 0.75 * beliefs[0].pdf([[0.5]]) + 0.25 * beliefs[1].pdf([[0.5]])
        >>> bool(np.allclose(pool.pdf([[0.5]]), density))
        True
    """
    if kind not in POOL_KINDS:
        raise DensityError(f"pool_beliefs: kind = {kind!r}; it must be one of {POOL_KINDS}.")
    if len(beliefs) < 2 or (weights is not None and points is not None):
        raise DensityError(
            f"pool_beliefs: {len(beliefs)} belief(s); give two or more, and weights, points or "
            "neither."
        )
    first, descriptions = beliefs[0], [belief.sampling.to_dict() for belief in beliefs]
    for description in descriptions:
        if {**description, "names": None} != {**descriptions[0], "names": None}:
            raise DensityError(
                "pool_beliefs: the beliefs are under different λ; pool those whose points were "
                "drawn from the same one."
            )
    latent, generator = make_latent(first.sampling), make_generator(seed)
    latent.radius = min(belief._latent.radius for belief in beliefs)
    models = []
    for belief in beliefs:
        model = belief._model
        if not isinstance(model, _POOLED):
            raise DensityError(
                f"pool_beliefs: a belief by {model.name!r} has no gradient; fit by score or auto."
            )
        # Nothing is known beyond the points that all judges compared.
        member = replace(model, latent=latent)
        with one_thread():
            models.append(
                member if belief._latent.radius == latent.radius else member.normalize(generator)[0]
            )
    values = np.full(len(beliefs), 1.0)
    if weights is not None:
        values = errors.check_column("pool_beliefs: weights", weights, len(beliefs))
        if (values < 0.0).any() or not 0.0 < values.sum() < math.inf:
            raise DensityError(
                f"pool_beliefs: weights = {values.tolist()}; they must be at least 0 and not all 0."
            )
    if points is not None:
        inside = first.check_inside("pool_beliefs: points", points)
        size = -(-_DRAWS // len(beliefs))
        draws = np.concatenate([belief.sample(size, seed=seed) for belief in beliefs])
        at_points, at_draws = (
            np.column_stack([belief.log_prob(x) for belief in beliefs]) for x in (inside, draws)
        )
        values = fit_pool_weights(kind, at_points, at_draws).weights
    normalized = tuple((values / values.sum()).tolist())
    with one_thread():
        density = PoolDensity(
            latent, PooledPotential(tuple(models), normalized, kind), AnnealingSettings()
        )
        model, normalizer = density.normalize(generator)
        if model.is_mixture:  # its densities have log Z of their own
            parts = [belief.diagnostics["log_normalizer_se"] for belief in beliefs]
            error = float(np.linalg.norm(np.multiply(normalized, parts)))
            normalizer = replace(normalizer, standard_error=error)
        report = methods.common_diagnostics(latent, model, normalizer)
    diagnostics = {
        "method": model.name,
        "n": sum(belief.diagnostics["n"] for belief in beliefs),
        "pool": {"weights": list(normalized), "points": 0 if points is None else len(inside)},
        **report,
    }
    return type(first)(latent, model, normalizer.points(_DRAWS), diagnostics, None, first._features)
