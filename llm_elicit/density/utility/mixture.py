"""A utility that is the logarithm of a mixture, fitted by choice likelihood.

The likelihood of a mixture has many local maxima. For each number of components several starts
are climbed on part of the comparisons, and the one that best foretells the rest is climbed
again for every fold, under the strength of prior that foretells best: which maximum to climb,
and how strongly it is held, is all that the folds share. More components are tried until two
numbers in a row do not help; the stack settles how much each number counts.

Masses of far-apart components are hardly identified, since few comparisons join them. A
symmetric Dirichlet prior on the masses draws them together unless the data speak against it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from llm_elicit.density.choice import choice_log_likelihood
from llm_elicit.density.components import ComponentStack
from llm_elicit.density.utility.data import CrossValidation, Differences
from llm_elicit.density.utility.scoring import Mixture, MixturePosterior, MixturePrior, climb
from llm_elicit.density.utility.starts import draw_starts

_PATIENCE = 2
Step = Callable[[int], None]


@dataclass(frozen=True)
class MixtureSettings:
    """Settings of the mixtures' fit.

    ``counts`` are the numbers of components tried, each from ``starts`` starts, by at most
    ``search_steps`` steps on at most ``search_rows`` comparisons, then by ``steps`` under a
    prior of each of ``strengths``, and by as many for each fold.
    """

    counts: tuple[int, ...] = (2, 3, 4, 6, 8, 12)
    starts: int = 16
    search_steps: int = 12
    search_rows: int = 20_000
    strengths: tuple[float, ...] = (0.3, 1.0, 3.0, 10.0, 30.0)
    steps: int = 30
    prior: MixturePrior = field(default_factory=MixturePrior)


@dataclass(frozen=True)
class MixtureFit:
    """One mixture a fold, what they predict, and their number of components."""

    components: ComponentStack
    differences: Differences
    count: int


def fit_mixtures(
    validation: CrossValidation, settings: MixtureSettings, on_step: Step | None = None
) -> list[MixtureFit]:
    """Fit mixtures of each number of components, until two numbers in a row do not help.

    Empty where there are too few comparisons for the smallest number.
    """
    fits: list[MixtureFit] = []
    scores: list[float] = []
    for tried, count in enumerate(settings.counts, 1):
        if count * _enough(validation.dimension) > validation.size:
            break
        fits.append(_fit_folds(validation, *_search(validation, settings, count), settings.steps))
        judged = fits[-1].differences.out_of_fold[validation.judged.numpy()]
        scores.append(validation.log_likelihood_of_judged(judged))
        if on_step is not None:
            on_step(tried)
        if len(scores) - 1 - int(np.argmax(scores)) >= _PATIENCE:
            break
    return fits


def _enough(d: int) -> int:
    """Comparisons that one component needs, five for each of its parameters."""
    return 5 * (d * (d + 3) // 2 + 1)


def _search(
    validation: CrossValidation, settings: MixtureSettings, count: int
) -> tuple[Mixture, MixturePrior]:
    """The climbed start, then the prior, that best foretell comparisons they were not given."""
    held = validation.fold_of < max(1, validation.count // 4)
    rows = torch.nonzero(~held)[:, 0]
    rows = rows[torch.randperm(len(rows), generator=validation.generator)[: settings.search_rows]]
    judged = validation.judged[held[validation.judged]]
    sides, weights = validation.sides(judged), validation.weights[judged]

    def foretells(mixture: Mixture) -> float:
        winners, losers = mixture(sides).chunk(2)
        return float(choice_log_likelihood(winners - losers, weights, validation.noise))

    posterior = _posterior(validation, rows, settings.prior)
    starts = draw_starts(validation, count, settings.starts)
    climbed = [climb(posterior, start, settings.search_steps)[0] for start in starts]
    best = max(climbed, key=foretells)
    # Components alike in shape are told so by their own average, and may then be held to it.
    shapes = settings.prior, replace(settings.prior, scatter=best.pooled())
    priors = [replace(shape, strength=s) for shape in shapes for s in settings.strengths]
    refits = [climb(replace(posterior, prior=p), best, settings.steps)[0] for p in priors]
    scores = [foretells(mixture) for mixture in refits]
    chosen = int(np.argmax(scores))
    return refits[chosen], priors[chosen]


def _posterior(validation: CrossValidation, rows: Tensor, prior: MixturePrior) -> MixturePosterior:
    return MixturePosterior(
        validation.sides(rows), validation.weights[rows], validation.noise, prior
    )


def _fit_folds(
    validation: CrossValidation, start: Mixture, prior: MixturePrior, steps: int
) -> MixtureFit:
    members = []
    for fold in range(validation.count):
        rows = torch.nonzero(validation.fold_of != fold)[:, 0]
        members.append(climb(_posterior(validation, rows, prior), start, steps)[0])
    stack = ComponentStack(
        torch.stack([m.whiten for m in members]),
        torch.stack([m.offset for m in members]),
        torch.stack([m.height for m in members]),
    )
    parts = [stack(chunk) for chunk in torch.split(validation.points, 8192)]
    values = torch.cat(parts, 1).double().numpy()
    n = validation.size
    differences = Differences.gather(values[:, :n] - values[:, n:], validation.folds)
    return MixtureFit(stack, differences, len(start.height))
