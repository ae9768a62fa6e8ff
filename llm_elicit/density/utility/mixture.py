"""A utility that is the logarithm of a mixture, fitted by choice likelihood.

The likelihood of a mixture has many local maxima. For each number of components several starts
are climbed on part of the comparisons, and the one that best foretells the rest is climbed
again for every fold, under the strength of prior that foretells best: which maximum to climb,
and how strongly it is held, is all that the folds share. More components are tried until three
numbers in a row do not help, and mixtures of all numbers are averaged (`averaging_shares`).

What a mixture foretells is moderated by how well its posterior knows it. Judged by its summit
alone, a mixture is faulted for being sure in the tails, where most comparisons lie and nothing
depends on it, and a prior that blurs the belief itself seems to foretell better.

Masses of far-apart components are hardly identified, since few comparisons join them. A
symmetric Dirichlet prior on the masses draws them together unless the data speak against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from llm_elicit.density.utility.data import Array, CrossValidation, HeldOut
from llm_elicit.density.utility.scoring import Mixture, MixturePosterior, MixturePrior, climb
from llm_elicit.density.utility.spiked import SpikedMixture
from llm_elicit.density.utility.starts import draw_starts
from llm_elicit.density.utility_function import ComponentStack

_PATIENCE = 3
Step = Callable[[int], None]


@dataclass(frozen=True)
class MixtureSettings:
    """Settings of the mixtures' fit.

    ``counts`` are the numbers of components tried, each from ``starts`` starts, by at most
    ``search_steps`` steps on at most ``search_rows`` comparisons, then by ``steps`` under a
    prior of each of ``strengths``, and by as many for each fold. ``tolerance`` (nats a comparison)
    is what a number of components may foretell worse and still count; see `averaging_shares`.
    """

    counts: tuple[int, ...] = (2, 3, 4, 6, 8, 12)
    starts: int = 16
    search_steps: int = 12
    search_rows: int = 20_000
    strengths: tuple[float, ...] = (0.3, 1.0, 3.0)
    steps: int = 30
    tolerance: float = 0.02
    prior: MixturePrior = field(default_factory=MixturePrior)


@dataclass(frozen=True)
class MixtureFit:
    """One mixture a fold, the first as it was climbed, what they foretell of the judged rows and
    how well, their number of components and their prior.
    """

    components: ComponentStack
    first: Mixture
    held_out: HeldOut
    score: float
    count: int
    prior: MixturePrior

    def differences(self, validation: CrossValidation) -> Array:
        """f(winner) − f(loser) of the judged rows by every fold's mixture: (K, m)."""
        of_winners, of_losers = self.components(validation.sides(validation.judged)).chunk(2, 1)
        return np.asarray((of_winners - of_losers).detach().double().numpy())


def fit_mixtures(
    validation: CrossValidation,
    settings: MixtureSettings,
    first: float,
    on_step: Step | None = None,
) -> list[MixtureFit]:
    """Fit mixtures of each number of components, until three numbers in a row do not help.

    Components too many for the comparisons to tell their shapes are spiked (`SpikedMixture`).
    ``first`` is the score of one component, the quadratic form. Empty where there are too few
    comparisons for the smallest number.
    """
    fits: list[MixtureFit] = []
    scores = [first]
    for tried, count in enumerate(settings.counts, 1):
        spiked = not _enough(validation, count * _free(validation.dimension))
        if spiked and not _enough(validation, count * _spiked(validation.dimension)):
            break
        starts = draw_starts(validation, count, settings.starts)
        if spiked:
            starts = [SpikedMixture.nearest(start) for start in starts]
        fits.append(_fit_folds(validation, *_search(validation, settings, starts), settings.steps))
        scores.append(fits[-1].score)
        if on_step is not None:
            on_step(tried)
        if len(scores) - 1 - int(np.argmax(scores)) >= _PATIENCE:
            break
    return fits


def averaging_shares(scores: Sequence[float], tolerance: float) -> Array:
    """Shares (F,), summing to one, of forms that foretell so well (nats a comparison).

    Proportional to exp(score / ``tolerance``). Most comparisons lie where the belief is not, and
    too few components, blurred and cheap, may foretell those best while they miss a bump. A small
    difference of scores therefore says little about the belief. Bumps that one number misses and
    another invents are both milder in the average of log f.

    Examples
    --------
    >>> averaging_shares([-0.07, -0.08, -0.40], 0.02).round(2).tolist()
    [0.62, 0.38, 0.0]
    """
    shares = np.exp((np.asarray(scores) - max(scores)) / tolerance)
    return np.asarray(shares / shares.sum())


def _free(d: int) -> int:
    """Numbers of a component: its height, each coordinate, each entry."""
    return 1 + d + d * (d + 1) // 2


def _spiked(d: int) -> int:
    """The same where the shape is round but for one direction."""
    return 2 * d + 2


def _enough(validation: CrossValidation, numbers: int) -> bool:
    """Whether there are five comparisons for each number."""
    return validation.size >= 5 * numbers


def _search(
    validation: CrossValidation, settings: MixtureSettings, starts: Sequence[Mixture]
) -> tuple[Mixture, MixturePrior]:
    """The climbed start, then the prior, that best foretell comparisons they were not given."""
    held = validation.fold_of < max(1, validation.count // 4)
    rows = torch.nonzero(~held)[:, 0]
    rows = rows[torch.randperm(len(rows), generator=validation.generator)[: settings.search_rows]]
    judged = validation.judged[held[validation.judged]]
    sides, weights = validation.sides(judged), validation.weights[judged]
    response = validation.response.at(judged)

    def foretells(mixture: Mixture, posterior: MixturePosterior) -> float:
        expected = response.moderated_log_cdf(*posterior.foretell(mixture, sides))
        return float((expected * weights).sum() / weights.sum())

    posterior = _posterior(validation, rows, settings.prior)
    climbed = [climb(posterior, start, settings.search_steps)[0] for start in starts]
    best = max(climbed, key=lambda mixture: foretells(mixture, posterior))
    priors = [replace(settings.prior, strength=strength) for strength in settings.strengths]
    posteriors = [replace(posterior, prior=prior) for prior in priors]
    refits = [climb(held, best, settings.steps)[0] for held in posteriors]
    scores = [foretells(*refit) for refit in zip(refits, posteriors, strict=True)]
    chosen = int(np.argmax(scores))
    return refits[chosen], priors[chosen]


def _posterior(validation: CrossValidation, rows: Tensor, prior: MixturePrior) -> MixturePosterior:
    response = validation.response.at(rows)
    return MixturePosterior(validation.sides(rows), validation.weights[rows], response, prior)


def _fit_folds(
    validation: CrossValidation, start: Mixture, prior: MixturePrior, steps: int
) -> MixtureFit:
    members, rows = [], validation.judged
    difference, spread = torch.empty(len(rows)), torch.empty(len(rows))
    for fold in range(validation.count):
        seen = torch.nonzero(validation.fold_of != fold)[:, 0]
        posterior = _posterior(validation, seen, prior)
        members.append(climb(posterior, start, steps)[0])
        unseen = validation.fold_of[rows] == fold
        sides = validation.sides(rows[unseen])
        difference[unseen], spread[unseen] = posterior.foretell(members[-1], sides)
    stack = ComponentStack(
        torch.stack([m.whiten for m in members]),
        torch.stack([m.offset for m in members]),
        torch.stack([m.height for m in members]),
    )
    held_out = HeldOut(difference.double().numpy(), spread.double().numpy())
    score, count = validation.score(held_out), len(start.height)
    return MixtureFit(stack, members[0], held_out, score, count, prior)
