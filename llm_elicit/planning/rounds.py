"""Adaptive designs: the pairs of a round, planned from the answers to the rounds before.

A round's pairs are a pure function of the campaign, its seed and the judgments so far. They are
written into the journal before the first of them is asked, so that a resumed run asks the same
questions on another machine or with another version of a numerical library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from llm_elicit._util.packages import LazyModule
from llm_elicit.comparisons.table import Choices, noise_of, sampling_of
from llm_elicit.config.campaign import Campaign
from llm_elicit.config.design import Stop
from llm_elicit.planning.pairs import Plan
from llm_elicit.planning.presentations import Spread, presentation_count, spread
from llm_elicit.spaces.circles import Circle
from llm_elicit.spaces.features import FeatureSpace, Floats

if TYPE_CHECKING:
    from llm_elicit import density
else:
    density = LazyModule("llm_elicit.density")  # PyTorch, which a first round does not need

ALL_JUDGES = ""
"""The name under which rounds that all judges share are recorded."""

_CLEARLY = 2.0  # standard errors by which answers are predicted better than by a constant


@dataclass(frozen=True)
class Pairs:
    """The pairs of one round: points `a` against points `b`, `(n, d)` each, natural units."""

    a: Floats
    b: Floats


@dataclass(frozen=True)
class Answers(Choices):
    """A judge's choices so far, and what else a round may be planned from.

    Attributes:
        evidence: the same answers as measured log-odds; None if they are choices.
        scale: scales a belief fitted to them to its power; None to leave it unchanged.
    """

    evidence: density.Evidence | None = None
    scale: Callable[[density.BeliefDensity], density.BeliefDensity] | None = None


class RoundDesign(Protocol):
    """A rule that plans the pairs of a round."""

    def plan(self, round: int, judgments: Sequence[Choices], seed: int, size: int) -> Pairs:
        """Return the pairs of a round, a pure function of the arguments.

        Args:
            round: its number, from 2 on; the first round does not depend on answers.
            judgments: the choices so far of each judge of the round; `Answers` in campaigns.
            seed: the campaign's.
            size: the number of pairs.
        """
        ...


@dataclass(frozen=True)
class Informative:
    """The most informative pairs by `llm_elicit.density.suggest_pairs`.

    The belief is fitted to the answers so far and scaled to its power. Every judge of a shared
    round gets a part of its pairs; if no judge has enough choices yet, all pairs are drawn from λ,
    as is a share of every part. Judges that meet the rule `stop` get no part. A round without
    parts has no pairs and is the last.

    The Bradley–Terry model conditions on the pairs, so methods `utility` and `auto` are valid for
    any choice of pairs; `Campaign` refuses the others.
    """

    space: FeatureSpace
    noise: density.Noise
    stop: Stop | None = None

    def plan(self, round: int, judgments: Sequence[Choices], seed: int, size: int) -> Pairs:
        """Return the pairs of a round; see `RoundDesign`."""
        rng = np.random.default_rng([seed, 0xADA97, round])
        answered = [choices for choices in judgments if len(choices) >= self.space.dimension]
        fitted = [self._fit(choices, int(rng.integers(2**32))) for choices in answered]
        open_for: list[density.BeliefDensity | None] = [
            belief
            for choices, belief in zip(answered, fitted, strict=True)
            if not self._enough(belief, len(choices))
        ]
        if fitted and not open_for:
            nothing = np.empty((0, self.space.dimension))
            return Pairs(nothing, nothing)
        beliefs = open_for or [None]
        parts = np.array_split(np.arange(size), len(beliefs))
        # A round's pairs are shuffled, so that a run stopped in its middle serves every judge.
        sides = []
        for belief, part in zip(beliefs, parts, strict=True):
            if belief is None or not len(part):
                pairs = self.space.sample(len(part), rng), self.space.sample(len(part), rng)
            else:
                pairs = density.suggest_pairs(belief, len(part), seed=int(rng.integers(2**32)))
            sides.append(pairs)
        order = rng.permutation(size)
        a, b = (
            self.space.round(np.concatenate(points)[order]) for points in zip(*sides, strict=True)
        )
        while (wrong := self._wrong(a, b)).any():
            # Both are drawn again, since the order within a pair must carry no information.
            a[wrong], b[wrong] = (self.space.sample(int(wrong.sum()), rng) for _ in range(2))
        return Pairs(a, b)

    def _wrong(self, a: Floats, b: Floats) -> NDArray[np.bool_]:
        """Return whether the points of pairs are equal, or break a constraint, after rounding."""
        inside = self.space.contains(a) & self.space.contains(b)
        return np.asarray((a == b).all(axis=1) | ~inside)

    def _fit(self, choices: Choices, seed: int) -> density.BeliefDensity:
        answers = choices if isinstance(choices, Answers) else None
        plain = density.Evidence.comparisons(choices.a, choices.b, choices.preference)
        belief = density.fit_evidence(
            plain if answers is None or answers.evidence is None else answers.evidence,
            sampling=sampling_of(self.space), method="auto", noise=self.noise, seed=seed,
            settings=density.BETWEEN_ROUNDS,
        )  # fmt: skip
        return belief if answers is None or answers.scale is None else answers.scale(belief)

    def _enough(self, belief: density.BeliefDensity, pairs: int) -> bool:
        """Return whether a judge with this belief meets the stopping rule."""
        if self.stop is None:
            return False
        min_pairs = self.stop.no_signal_after
        response = belief.diagnostics.get("response", {})
        flat = (response.get("held_out_r2", 1.0) or 0.0) <= 0.0  # None if the answers do not vary
        if gain := belief.diagnostics["utility"].get("gains", {}).get("constant"):
            flat = gain["mean"] <= _CLEARLY * gain["se"]
        if min_pairs is not None and pairs >= min_pairs and flat:
            return True
        if self.stop.max_band_width is None:
            return False
        draws = belief.draws()
        low, high = density.band(draws.mean())
        width, sd = high - low, np.array([marginal.sd for marginal in belief.marginals])
        for j in np.flatnonzero(self.space.periodic).tolist():
            width[j], sd[j] = _around(draws, Circle.of(self.space.features[j]), j)
        for j in np.flatnonzero(self.space.categorical).tolist():
            shares = draws.shares(j)
            low, high = density.band(shares)
            width[j], sd[j] = (high - low).max(), np.sqrt(1.0 - (shares.mean(0) ** 2).sum())
        return bool((width <= self.stop.max_band_width * sd).all())


def _around(draws: density.BeliefDraws, circle: Circle, feature: int) -> tuple[float, float]:
    """Return the width of the band of a periodic feature's mean, and its standard deviation."""
    weighted = zip(draws.points, draws.weights, strict=True)
    vectors = np.stack([circle.resultant(x[:, feature], w) for x, w in weighted])
    means, middle = circle.direction(vectors), vectors.mean(axis=0)
    low, high = density.band(circle.offsets(means, float(circle.direction(middle))))
    return float(high - low), circle.spread(middle)


def design_of(campaign: Campaign, space: FeatureSpace) -> RoundDesign:
    """Return the design of a campaign's rounds."""
    rounds = campaign.design.rounds
    return Informative(space, noise_of(campaign.fit), None if rounds is None else rounds.stop)


@dataclass(frozen=True)
class Schedule:
    """The rounds of a judge's pairs.

    Attributes:
        pairs: the numbers of the pairs of each round, whether asked or not.
        may_end: whether a stopping rule may leave out later rounds.
    """

    pairs: tuple[range, ...]
    may_end: bool = False


def schedule_of(judge: str, campaign: Campaign) -> Schedule:
    """Return the rounds of a judge, or of `ALL_JUDGES`; a single one for non-adaptive designs.

    The numbers of all rounds of all judges are fixed in advance, so that they do not depend on the
    order in which judges finish.

    Examples:
        >>> campaign = Campaign.model_validate({
        ...     "name": "try", "space": "penguins",
        ...     "design": {"pairs": 8, "rounds": {"count": 2, "shared": False}},
        ...     "judges": [{"name": name, "backend": "simulated"} for name in ("one", "two")]})
        >>> schedule_of("two", campaign).pairs
        (range(0, 4), range(8, 12))
    """
    sizes, rounds = campaign.design.sizes, campaign.design.rounds
    if rounds is None:
        return Schedule((range(sizes[0]),))
    names = [judge] if rounds.shared else sorted(judge.name for judge in campaign.judges)
    judge_number, spans, start = names.index(judge), [range(sizes[0])], sizes[0]
    for size in sizes[1:]:
        spans.append(range(start + judge_number * size, start + (judge_number + 1) * size))
        start += len(names) * size
    return Schedule(tuple(spans), rounds.stop is not None)


Planned = Mapping[tuple[str, int], Pairs]
"""The rounds planned so far, by judge (`ALL_JUDGES` for a shared one) and number."""


def with_rounds(first: Plan, campaign: Campaign, space: FeatureSpace, planned: Planned) -> Plan:
    """Return the plan of the first round, extended by the rounds that were planned since.

    Examples:
        >>> from llm_elicit.planning.pairs import make_plan
        >>> campaign = Campaign.model_validate({
        ...     "name": "try", "space": "penguins", "design": {"pairs": 12, "rounds": {"count": 2}},
        ...     "judges": [{"name": "expert", "backend": "simulated"}]})
        >>> space = campaign.load_space()
        >>> first = make_plan(space, campaign.design, campaign.seed)
        >>> second = Informative(space, density.Noise()).plan(2, [], campaign.seed, 6)
        >>> len(first), len(with_rounds(first, campaign, space, {(ALL_JUDGES, 2): second}))
        (12, 24)
    """
    rounds, sizes = campaign.design.rounds, campaign.design.sizes
    if rounds is None:
        return first
    names = [ALL_JUDGES] if rounds.shared else sorted(judge.name for judge in campaign.judges)
    later_pairs = {name: schedule_of(name, campaign).pairs[1:] for name in names}
    total = sizes[0] + len(names) * sum(sizes[1:])
    a, b = (np.full((total, points.shape[1]), np.nan) for points in (first.a, first.b))
    a[: sizes[0]], b[: sizes[0]] = first.a, first.b
    for name, spans in later_pairs.items():
        for number, span in enumerate(spans, start=2):
            pairs = planned.get((name, number))
            if pairs is not None and len(pairs.a):
                a[span.start : span.stop], b[span.start : span.stop] = pairs.a, pairs.b
    unshared = {name: tuple(chain.from_iterable(spans)) for name, spans in later_pairs.items()}
    presentations = first.presentations
    if presentations is not None:
        later = [span for spans in later_pairs.values() for span in spans]
        numbers = np.zeros(total, dtype=np.int64)
        numbers[: sizes[0]] = presentations
        for span in later:
            numbers[span.start : span.stop] = spread_of(campaign, space, span).presentation
        presentations = numbers
    return replace(
        first, a=a, b=b, unshared={} if rounds.shared else unshared, presentations=presentations
    )


def spread_of(campaign: Campaign, space: FeatureSpace, pairs: range) -> Spread:
    """Return how the pairs of one round after the first are spread over presentations."""
    count = presentation_count(campaign.design, space)
    return spread(len(pairs), count, campaign.seed, pairs.start)


def stopped_round(planned: Planned, name: str) -> int | None:
    """Return the first round that the stopping rule left out, of a judge or of `ALL_JUDGES`."""
    empty = [number for (j, number), pairs in planned.items() if j == name and not len(pairs.a)]
    return min(empty, default=None)


def questions_of(judge: str, campaign: Campaign, planned: Planned) -> int:
    """Return the number of questions to a judge, including later rounds."""
    design = campaign.design
    if design.rounds is None:
        return design.questions
    last = stopped_round(planned, ALL_JUDGES if design.rounds.shared else judge)
    left_out = 0 if last is None else sum(design.sizes[last - 1 :])
    return design.questions * (design.pairs - left_out) // design.pairs
