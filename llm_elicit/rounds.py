"""Adaptive designs: the pairs of a round, planned from the answers to the rounds before.

A round's pairs are a pure function of the campaign, its seed and the judgments so far. They are
written into the journal before the first of them is asked, so that a resumed run asks the same
whatever has changed meanwhile (another machine, another version of a numerical library).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from llm_elicit.campaign import Campaign
from llm_elicit.comparisons import Choices
from llm_elicit.features import FeatureSpace, Floats
from llm_elicit.later import Later
from llm_elicit.plan import Plan

if TYPE_CHECKING:
    from llm_elicit import density
else:
    density = Later("llm_elicit.density")  # PyTorch, which a first round does without

EVERYONE = ""
"""Stands where a judge's name would, for a round that all judges share."""


@dataclass(frozen=True)
class Pairs:
    """The pairs of one round: points `a` against points `b`, `(n, d)` each, natural units."""

    a: Floats
    b: Floats


class RoundDesign(Protocol):
    """Which pairs a round asks."""

    def plan(self, round: int, judgments: Sequence[Choices], seed: int, size: int) -> Pairs:
        """The pairs of a round: a pure function of its arguments.

        Args:
            round: its number; the first is 1, and is not planned here.
            judgments: the choices so far of each judge who shares the round.
            seed: the campaign's.
            size: how many pairs.
        """
        ...


@dataclass(frozen=True)
class Contested:
    """Points drawn from λ and joined so that the answer is in doubt.

    All points drawn are asked about, once each, so λ stays their density; what adapts is who
    meets whom. The Bradley–Terry utility is fitted to the answers so far, noise of the judge's
    size is added to it, and neighbours in that order are joined: such pairs are neither foregone
    nor always equal, and with no preference at all they are joined at random.

    Bradley–Terry conditions on the pairs, so methods `utility` and `auto` are right whichever
    were joined; the others are refused by `Campaign`.
    """

    space: FeatureSpace
    noise: density.Noise

    def plan(self, round: int, judgments: Sequence[Choices], seed: int, size: int) -> Pairs:
        """The pairs of a round; see `RoundDesign`."""
        rng = np.random.default_rng([seed, 0xADA97, round])
        points = self.space.sample(2 * size, rng)
        order = np.argsort(self._utility(points, judgments, seed) + self._doubt(2 * size, rng))
        joined = order.reshape(size, 2)
        # Which of two neighbours stands first must say nothing.
        joined = rng.permuted(joined[rng.permutation(size)], axis=1)
        return Pairs(points[joined[:, 0]], points[joined[:, 1]])

    def _doubt(self, count: int, rng: np.random.Generator) -> Floats:
        return self.noise.draw((count,), rng)

    def _utility(self, points: Floats, judgments: Sequence[Choices], seed: int) -> Floats:
        """The judges' mean utility; that of judges with too few choices is left out."""
        told = [one for one in judgments if len(one) >= self.space.dimension]
        fitted = [self._fitted(points, one, seed) for one in told]
        return np.mean(fitted, axis=0) if fitted else np.zeros(len(points))

    def _fitted(self, points: Floats, choices: Choices, seed: int) -> Floats:
        winners, losers, weights = choices.weighted()
        sampling = density.Uniform(self.space.low, self.space.high, log=self.space.log)
        belief = density.fit_belief(
            winners, losers, sampling=sampling, method="utility", noise=self.noise,
            weights=weights, seed=seed,
        )  # fmt: skip
        return belief.log_prob(points) - sampling.log_scale_slope(points)


def design_of(campaign: Campaign, space: FeatureSpace) -> RoundDesign:
    """The design that a campaign's rounds are planned by."""
    fit = campaign.fit
    noise = density.Noise(fit.noise) if fit.level is None else density.Noise(fit.noise, fit.level)
    return Contested(space, noise)


Planned = Mapping[tuple[str, int], Pairs]
"""The rounds planned so far, by judge (`EVERYONE` for a shared one) and number."""


def with_rounds(first: Plan, campaign: Campaign, planned: Planned) -> Plan:
    """The plan of the first round, with those that have been planned since.

    Every round of every judge has its place from the start, so that a pair's number does not
    depend on who came first.

    Example:
        >>> from llm_elicit.plan import make_plan
        >>> campaign = Campaign.model_validate({
        ...     "name": "try", "space": "penguins", "design": {"pairs": 12, "rounds": {"count": 2}},
        ...     "judges": [{"name": "expert", "backend": "simulated"}]})
        >>> space = campaign.load_space()
        >>> first = make_plan(space, campaign.design, campaign.seed)
        >>> second = Contested(space, density.Noise()).plan(2, [], campaign.seed, 6)
        >>> len(first), len(with_rounds(first, campaign, {(EVERYONE, 2): second}))
        (12, 24)
    """
    rounds, sizes = campaign.design.rounds, campaign.design.sizes
    if rounds is None:
        return first
    names = [EVERYONE] if rounds.shared else sorted(judge.name for judge in campaign.judges)
    own: dict[str, list[int]] = {name: [] for name in names}
    start = sizes[0]
    total = start + len(names) * sum(sizes[1:])
    a, b = (np.full((total, points.shape[1]), np.nan) for points in (first.a, first.b))
    a[:start], b[:start] = first.a, first.b
    for number, size in enumerate(sizes[1:], start=2):
        for name in names:
            pairs = planned.get((name, number))
            if pairs is not None:
                a[start : start + size], b[start : start + size] = pairs.a, pairs.b
            own[name].extend(range(start, start + size))
            start += size
    apart = {} if rounds.shared else {name: tuple(some) for name, some in own.items()}
    return replace(first, a=a, b=b, own=apart)
