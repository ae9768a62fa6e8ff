"""A utility that is the logarithm of a mixture, fitted by choice likelihood.

The likelihood of a mixture has many local maxima. For each number of components K several
starts are tried, each the clusters that k-means finds among the winners; the three that best
foretell held-out comparisons are trained again from their starts, in turn for every fold. More
components are tried until two numbers in a row do not help.

Masses of far-apart components are hardly identified, since few comparisons join them. A
symmetric Dirichlet prior on the masses draws them together unless the data speak against it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor

from llm_elicit.density.components import ComponentStack
from llm_elicit.density.utility.data import Array, CrossValidation, Differences

_CLUSTERED = 3000
_KEPT = 3
_PATIENCE = 2
Step = Callable[[int], None]


@dataclass(frozen=True)
class MixtureSettings:
    """Settings of the mixture's fit; ``starts`` and ``counts`` (numbers of components) are tried.

    ``concentration`` is the Dirichlet prior's parameter minus one, for every component.
    """

    counts: tuple[int, ...] = (2, 3, 4, 6, 8)
    starts: int = 8
    search_steps: int = 400
    steps: int = 2000
    batch: int = 1024
    learning_rate: float = 0.06
    concentration: float = 3.0
    check_every: int = 50


@dataclass(frozen=True)
class MixtureFit:
    """One mixture a fold, what they predict, and their number of components."""

    components: ComponentStack
    differences: Differences
    count: int


def fit_mixtures(
    validation: CrossValidation, settings: MixtureSettings, on_step: Step | None = None
) -> list[MixtureFit]:
    """Fit mixtures of the number of components that foretells best, and of the next number.

    The search's verdict is uncertain by about one component; the stack of both settles it.
    Empty where there are too few comparisons for the smallest number.
    """
    candidates: list[tuple[float, ComponentStack]] = []
    held = validation.fold_of < max(1, validation.count // 4)
    for tried, count in enumerate(settings.counts, 1):
        if count * _enough(validation.dimension) > validation.size:
            break
        candidates.append(_search(validation, settings, count, held))
        if on_step is not None:
            on_step(tried * settings.search_steps)
        if len(candidates) - _best(candidates) > _PATIENCE:
            break
    first = _best(candidates) if candidates else 0
    return [_fit_folds(validation, starts, settings) for _, starts in candidates[first : first + 2]]


def _enough(d: int) -> int:
    """Comparisons that one component needs, five for each of its parameters."""
    return 5 * (d * (d + 3) // 2 + 1)


def _best(candidates: list[tuple[float, ComponentStack]]) -> int:
    return int(np.argmax([score for score, _ in candidates]))


def _search(
    validation: CrossValidation, settings: MixtureSettings, count: int, held: Tensor
) -> tuple[float, ComponentStack]:
    """The best start and what is as good by two standard errors, and their mean held-out score.

    A start that ended in a worse maximum would spoil the average of the members it led to.
    """
    starts = _starts(validation, count, settings.starts)
    trainer = _Trainer(validation, starts, settings, ~held.expand(settings.starts, -1))
    for step in range(settings.search_steps):
        trainer.step(step / settings.search_steps)
    logs = trainer.held_rows(held)
    order = logs.mean(1).argsort(descending=True)[:_KEPT]
    gap = logs[order[0]] - logs[order]
    kept = order[gap.mean(1) <= 2.0 * gap.std(1) / gap.shape[1] ** 0.5]
    return float(logs[kept].mean()), starts.select(kept.tolist())


def _fit_folds(
    validation: CrossValidation, start: ComponentStack, settings: MixtureSettings
) -> MixtureFit:
    members = validation.count
    starts = start.select([k % start.count for k in range(members)])
    seen = validation.fold_of != torch.arange(members)[:, None]
    trainer = _Trainer(validation, starts, settings, seen)
    best = -np.inf, starts
    for step in range(1, settings.steps + 1):
        trainer.step(step / settings.steps)
        if step % settings.check_every == 0:
            score = trainer.held_out()
            if score > best[0]:
                best = score, trainer.components().select(range(members))
    n = validation.size
    with torch.no_grad():
        parts = [best[1](chunk) for chunk in torch.split(validation.points, 8192)]
    values = torch.cat(parts, 1).double().numpy()
    differences = Differences.gather(values[:, :n] - values[:, n:], validation.folds)
    return MixtureFit(best[1], differences, int(start.height.shape[1]))


class _Trainer:
    """Adam on changes relative to the start, W = W₀(I + Δ), so steps suit every scale."""

    def __init__(
        self,
        validation: CrossValidation,
        start: ComponentStack,
        settings: MixtureSettings,
        seen: Tensor,
    ) -> None:
        self.validation, self.start, self.settings = validation, start, settings
        self.seen = seen.float() * validation.weights
        self.change = torch.zeros_like(start.whiten).requires_grad_()
        self.shift = torch.zeros_like(start.offset).requires_grad_()
        self.height = start.height.clone().requires_grad_()
        parameters = [self.change, self.shift, self.height]
        self.adam = torch.optim.Adam(parameters, settings.learning_rate, betas=(0.9, 0.99))
        self.unit = torch.eye(validation.dimension)

    def components(self) -> ComponentStack:
        """The mixtures as they stand."""
        factor = self.unit + self.change
        whiten = self.start.whiten @ factor
        offset = ((self.start.offset + self.shift)[:, :, None] @ factor).squeeze(2)
        return ComponentStack(whiten, offset, self.height)

    def step(self, progress: float) -> None:
        """One step; the learning rate falls linearly over the second half."""
        validation, settings = self.validation, self.settings
        rows = validation.batch(settings.batch)
        components = self.components()
        loss = -(self._log_cdf(components, rows) * self.seen[:, rows]).sum() / len(rows)
        log_mass = components.height - torch.linalg.slogdet(components.whiten).logabsdet
        prior = torch.log_softmax(log_mass, 1).sum()
        loss = loss - settings.concentration * prior / validation.size
        self.adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for group in self.adam.param_groups:
            group["lr"] = settings.learning_rate * min(1.0, 2.0 * (1.0 - progress) + 1e-3)
        self.adam.step()

    def _log_cdf(self, components: ComponentStack, rows: Tensor) -> Tensor:
        values = components(self.validation.sides(rows))
        return self.validation.noise.log_cdf(values[:, : len(rows)] - values[:, len(rows) :])

    @torch.no_grad()
    def held_rows(self, held: Tensor) -> Tensor:
        """Weighted log-likelihood (S, m) of each judged row among ``held``."""
        rows = self.validation.judged[held[self.validation.judged]]
        components, weights = self.components(), self.validation.weights
        chunks = torch.split(rows, 4096)
        return torch.cat([self._log_cdf(components, c) * weights[c] for c in chunks], 1)

    @torch.no_grad()
    def held_out(self) -> float:
        """Mean log-likelihood of the judged rows, each by the member that never saw it."""
        validation, components = self.validation, self.components()
        total = 0.0
        for chunk in torch.split(validation.judged, 4096):
            logs = self._log_cdf(components, chunk)
            own = logs[validation.fold_of[chunk], torch.arange(len(chunk))]
            total += float((own * validation.weights[chunk]).sum())
        return total / float(validation.weights[validation.judged].sum())


def _starts(validation: CrossValidation, count: int, starts: int) -> ComponentStack:
    """Clusters of the winners, by k-means from several random seeds."""
    data, rng, d = validation.data, validation.rng, validation.dimension
    share = data.weights / data.weights.sum()
    size = min(_CLUSTERED, validation.size)
    whiten, offset = np.empty((starts, count, d, d)), np.empty((starts, count, d))
    for s in range(starts):
        sample = data.winners[rng.choice(validation.size, size, p=share)]
        centres, labels = kmeans2(sample, count, minit="++", rng=rng)
        for k in range(count):
            whiten[s, k] = _whitening(sample[labels == k], sample, count)
            offset[s, k] = centres[k] @ whiten[s, k]
    height = torch.zeros(starts, count)
    return ComponentStack(
        torch.from_numpy(whiten).float(), torch.from_numpy(offset).float(), height
    )


def _whitening(cluster: Array, sample: Array, count: int) -> Array:
    """W with W Wᵀ the inverse covariance of the cluster, or of its share of the whole cloud."""
    d = sample.shape[1]
    if len(cluster) > 2 * d:
        covariance = np.cov(cluster.T).reshape(d, d)
    else:
        covariance = np.cov(sample.T).reshape(d, d) / count ** (2.0 / d)
    round_part = np.trace(covariance) / d * np.eye(d)
    factor = np.linalg.cholesky(0.9 * covariance + 0.1 * round_part + 1e-9 * np.eye(d))
    return np.asarray(np.linalg.inv(factor).T)
