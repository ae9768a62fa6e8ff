"""The plan of a campaign: its pairs and direct questions, a pure function of campaign and seed.

A resumed run therefore asks the same questions. Rounds after the first also depend on answers
(`planning.rounds`); they are recorded when they are planned.

*What a number of pairs can detect.* The points of every pair may be exchanged, in 2ⁿ ways for n
pairs, and exchanging all of them changes no statistic, so no p-value is below 2/2ⁿ
(`llm_elicit.audit.randomization`).

*Replicates* (`design.replicates: auto`). A choice about a pair is Bernoulli with a probability that
varies between pairs: with the utility, and with what the utility does not explain. Let ρ be the
correlation of two choices about one pair (the intraclass correlation of the beta-binomial
distribution; each order has a mean of its own, so that a position effect is no part of it), and u
the share of ρ that the utility does not explain. In units of the variance of a choice, the mean of
k choices about a pair varies around its expectation by u ρ + (1 − ρ) / k, so m pairs with k choices
each carry the information

    m / (u ρ + (1 − ρ) / k) = n / (u ρ k + 1 − ρ)

about the utility, with n = m k choices to pay for. It falls with k, and stays the same if u = 0:
**a choice about another pair costs the same and tells at least as much.** So the number is 1, and
no rule that gives some pairs more replicates than others does better; rounds (`design.rounds`)
choose pairs that tell more. A log-odds needs no replicate, since it repeats.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from llm_elicit._util.packages import pd
from llm_elicit._util.text import brief_repr
from llm_elicit.config.campaign import Campaign
from llm_elicit.config.design import Design, Direct
from llm_elicit.errors import InputError
from llm_elicit.planning.direct_questions import (
    RowCompletion,
    likelihood_rows,
    range_pairs,
    ratio_pairs,
)
from llm_elicit.planning.presentations import presentation_count, spread
from llm_elicit.spaces.features import FeatureSpace, Floats

Order = Literal["ab", "ba"]
DirectKind = Literal["quantiles", "sample", "row", "range", "ratio", "likelihood"]
DirectForm = Literal[
    "quantiles", "sample", "row", "range-ab", "range-ba", "ratio", "likelihood-a", "likelihood-b",
    "likelihood-row",
]  # fmt: skip
Form = Order | DirectForm

FORMS: Mapping[DirectKind, tuple[DirectForm, ...]] = {
    "quantiles": ("quantiles",), "sample": ("sample",), "row": ("row",),
    "range": ("range-ab", "range-ba"), "ratio": ("ratio",),
    "likelihood": ("likelihood-a", "likelihood-b", "likelihood-row"),
}  # fmt: skip
"""The forms of the direct questions of each kind."""


@dataclass(frozen=True)
class Query:
    """One question: the number of a pair, the order of its points and the replicate.

    In order "ab" point a is shown first, as option A; in order "ba" point b is. For a direct
    question, `order` is its form and `pair` the number of its subject: the feature for
    "quantiles", the row for "row", the pair for "ratio" (a is shown first), the pair of ranges for
    "range-ab" and "range-ba", the pair for "likelihood-a" and "likelihood-b" and the row for
    "likelihood-row", whose replicate 1 has the features in reverse order. For "sample" it is 0, and
    every sample is a replicate.
    """

    pair: int
    order: Form
    replicate: int

    @property
    def direct(self) -> bool:
        """Whether this is a direct question, not a comparison of two points."""
        return self.order not in ("ab", "ba")

    @property
    def kind(self) -> DirectKind | None:
        """The kind of a direct question; None for a pair."""
        kinds = (kind for kind, orders in FORMS.items() if self.order in orders)
        return next(kinds, None)


@dataclass(frozen=True)
class Plan:
    """The pairs of a campaign, how each is asked, and its direct questions.

    Attributes:
        a: the first points, `(n, d)`, natural units, as they are worded; NaN for the pairs of a
            round that is not planned yet.
        b: the second points, `(n, d)`.
        orders, replicates: how each pair is asked.
        fixed: how many pairs follow from the seed alone, before those of later rounds; None for
            all.
        unshared: pairs that only one judge is asked, by judge; all others are shared.
        direct: the direct questions to every judge; `len` does not count them.
        presentations: the number `(n,)` of every pair's presentation; None if there is one.
    """

    a: Floats
    b: Floats
    orders: tuple[Order, ...]
    replicates: int
    fixed: int | None = None
    unshared: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    direct: tuple[Query, ...] = ()
    presentations: NDArray[np.int64] | None = None

    __repr__ = brief_repr

    def __len__(self) -> int:
        return len(self._known()) * len(self.orders) * self.replicates

    def __iter__(self) -> Iterator[Query]:
        """Yield queries pair by pair, so that an interrupted run has complete pairs."""
        return self._queries(self._known())

    def _known(self) -> Sequence[int]:
        if self.fixed is None:
            return range(len(self.a))
        pairs: list[int] = np.flatnonzero(~np.isnan(self.a[:, 0])).tolist()
        return pairs

    def _queries(self, pairs: Iterable[int]) -> Iterator[Query]:
        for pair in pairs:
            for replicate in range(self.replicates):
                for order in self.orders:
                    yield Query(pair, order, replicate)

    def _pairs_of(self, judge: str) -> Sequence[int]:
        others_pairs = {
            pair for name, assigned in self.unshared.items() if name != judge for pair in assigned
        }
        pairs = self._known()
        return [pair for pair in pairs if pair not in others_pairs] if others_pairs else pairs

    def count(self, judge: str) -> int:
        """Return the number of planned questions to a judge."""
        of_pairs = len(self._pairs_of(judge)) * len(self.orders) * self.replicates
        return of_pairs + len(self.direct)

    def end(self, judge: str) -> int:
        """Return the number that follows the last planned pair of a judge."""
        return max(self._pairs_of(judge), default=-1) + 1

    def of(self, judge: str) -> Iterator[Query]:
        """Yield a judge's queries: those about pairs, then the direct ones."""
        return chain(self._queries(self._pairs_of(judge)), self.direct)

    @property
    def repeated(self) -> frozenset[int]:
        """The pairs that ask about an earlier pair again, in another presentation."""
        if self.presentations is None:
            return frozenset()
        points = np.hstack([self.a, self.b])
        first = np.unique(points, axis=0, return_index=True)[1]
        return frozenset(range(len(points))) - frozenset(first.tolist())

    def by_presentation(self, judge: str) -> Iterator[Query]:
        """Yield a judge's queries about pairs, those of one presentation in groups of ten pairs.

        A model that has read the beginning of a question reads it faster the next time.
        """
        pairs = np.asarray(self._pairs_of(judge), dtype=np.int64)
        if self.presentations is not None:
            of_pair, count = self.presentations[pairs], int(self.presentations.max(initial=0)) + 1
            pairs = pairs[np.lexsort((pairs, of_pair, np.arange(len(pairs)) // (10 * count)))]
        return self._queries(pairs.tolist())

    def spans(self, judge: str) -> list[range]:
        """Return a judge's pairs as ranges of successive numbers."""
        pairs = np.asarray(self._pairs_of(judge), dtype=np.int64)
        parts = np.split(pairs, np.flatnonzero(np.diff(pairs) != 1) + 1)
        return [range(int(part[0]), int(part[-1]) + 1) for part in parts if len(part)]

    def asked_before(self, query: Query) -> int:
        """Return how many earlier pairs ask the same question: the same points in the same order.

        And in the same presentation.

        Numeric points practically never repeat. Pairs of other judges' own rounds are not
        counted, so that the result does not depend on the order in which judges finish.
        """
        return self._earlier.get((query.pair, query.order), 0)

    @cached_property
    def _earlier(self) -> dict[tuple[int, Form], int]:
        owner = {pair: name for name, pairs in self.unshared.items() for pair in pairs}
        counts: Counter[tuple[str, int, bytes]] = Counter()
        earlier: dict[tuple[int, Form], int] = {}
        for pair in self._known():
            for order in self.orders:
                judge, presentation = owner.get(pair, ""), self.presentation(pair)
                points = b"".join(
                    point.tobytes() for point in self.points_in_order(Query(pair, order, 0))
                )
                count = sum(counts[name, presentation, points] for name in {"", judge})
                if count:
                    earlier[pair, order] = count
                counts[judge, presentation, points] += 1
        return earlier

    def presentation(self, pair: int) -> int:
        """Return the number of the presentation in which a pair is asked, in both orders."""
        return 0 if self.presentations is None else int(self.presentations[pair])

    def points_in_order(self, query: Query) -> tuple[Floats, Floats]:
        """Return the two points of a query in the order they are shown: option A, option B."""
        a, b = self.a[query.pair], self.b[query.pair]
        return (a, b) if query.order == "ab" else (b, a)


def make_plan(space: FeatureSpace, design: Design, seed: int) -> Plan:
    """Draw the pairs of a campaign, or of its first round, from λ; pairs of triads come last.

    Pairs are spread over the presentations of the design, if there are several; each triad has one.
    With `both_orders` each pair is asked as (a, b) and as (b, a), otherwise as (a, b), since the
    draw is exchangeable. Triads have a random stream of their own, so that a change of their
    number leaves the other pairs unchanged.

    Raises:
        InputError: fewer pairs than features, or triads of a space with two different points.

    Examples:
        >>> space = FeatureSpace.load("california_housing")
        >>> plan = make_plan(space, Design(pairs=50), seed=1)
        >>> len(plan), next(iter(plan))
        (100, Query(pair=0, order='ab', replicate=0))
    """
    size = design.sizes[0]
    if size < space.dimension:
        setting = "design.pairs" if design.rounds is None else "design.rounds: the first round's"
        raise InputError(
            f"{setting}: {size} is fewer than the {space.dimension} features of {space.name}; "
            f"ask at least {space.dimension}, and about 25 per feature for a belief"
        )
    pair_count, presentations = size - 3 * design.triads, presentation_count(design, space)
    order = spread(pair_count, presentations, seed)
    points = _draw(space, order.pairs, 2, np.random.default_rng([seed, 0x9A125]))[order.content]
    corners = _draw(space, design.triads, 3, np.random.default_rng([seed, 0x721AD5]))
    others = np.roll(corners, -1, axis=1)
    # The first point of a triad's pair is random. Otherwise, if pairs are asked in one order only,
    # a judge who always chooses the first option would make every triad a cycle.
    turned = np.random.default_rng([seed, 0x7055ED]).random((design.triads, 3, 1)) < 0.5
    sides = np.where(turned, others, corners), np.where(turned, corners, others)
    a, b = (
        np.concatenate([points[:, side], pairs.reshape(-1, space.dimension)])
        for side, pairs in enumerate(sides)
    )
    orders: tuple[Order, ...] = ("ab", "ba") if design.both_orders else ("ab",)
    fixed = None if design.rounds is None else size
    if presentations == 1:
        return Plan(a, b, orders, design.times, fixed)
    of_triads = np.random.default_rng([seed, 0x7A15ED]).permutation(presentations)
    triads = np.repeat(np.resize(of_triads, design.triads), 3)
    numbers = np.concatenate([order.presentation, triads])
    return Plan(a, b, orders, design.times, fixed, presentations=numbers)


def _draw(space: FeatureSpace, count: int, size: int, rng: np.random.Generator) -> Floats:
    """Draw groups of distinct points from λ, `(count, size, d)`.

    Real numbers practically never coincide, so they need no check.
    """
    groups = space.sample(size * count, rng).reshape(count, size, space.dimension)
    discrete = space.categorical | space.integer
    if not discrete.any():
        return groups
    kinds = math.prod(np.where(discrete, space.high - space.low + 1.0, size).tolist())
    if count and kinds < size:
        raise InputError(
            f"design.triads: {space.name} has only {kinds:g} different points, too few for a triad "
            "of three; remove `triads`"
        )
    distinct = groups[_are_distinct(groups)]
    while len(distinct) < count:  # one stream: a larger count starts with the same groups
        further = space.sample(size * count, rng).reshape(groups.shape)
        distinct = np.concatenate([distinct, further[_are_distinct(further)]])
    return distinct[:count]


def _are_distinct(groups: Floats) -> NDArray[np.bool_]:
    """Return whether the points of each group are distinct, `(count,)`."""
    return np.asarray(~(groups == np.roll(groups, 1, axis=1)).all(axis=2).any(axis=1))


def direct_queries(
    direct: Direct | None,
    space: FeatureSpace,
    seed: int,
    pairs: int,
    repeated: Collection[int] = (),
) -> tuple[Query, ...]:
    """Return the direct questions of a campaign, kind by kind.

    At most every row of the table, and every pair, is asked about once.

    Args:
        direct: the campaign's section; None for no questions.
        space: the feature space.
        seed: the campaign's.
        pairs: the number of pairs of the first round, for ratios and likelihoods.
        repeated: those that ask about an earlier pair again, which are left out of these.

    Raises:
        InputError: rows are asked for without a suitable table, or quantiles or ranges if no
            feature has any.

    Examples:
        >>> space = FeatureSpace.load("penguins")
        >>> len(direct_queries(Direct(quantiles=2, samples=5, ranges=3), space, 1, pairs=20))
        19
    """
    if direct is None:
        return ()
    if direct.quantiles and not len(space.on_line):
        raise InputError(
            f"direct.quantiles: every feature of {space.name} is categorical or periodic, and "
            "neither kind has quantiles; remove `quantiles`"
        )
    rows = min(direct.rows, len(RowCompletion.of(space, seed))) if direct.rows else 0
    if direct.ranges:
        range_pairs(space, direct.ranges, seed)  # raises an error if there are no such ranges
    quantiles = (
        Query(feature, "quantiles", time)
        for feature in space.on_line.tolist()
        for time in range(direct.quantiles)
    )
    samples = (Query(0, "sample", number) for number in range(direct.samples))
    ranges = (
        Query(number, order, 0) for number in range(direct.ranges) for order in FORMS["range"]
    )
    distinct = [pair for pair in ratio_pairs(pairs, pairs, seed).tolist() if pair not in repeated]
    ratios = (Query(pair, "ratio", 0) for pair in distinct[: direct.ratios])
    completions = (Query(row, "row", 0) for row in range(rows))
    scored_rows = len(likelihood_rows(space, seed)) if direct.likelihood and space.table else 0
    # One order of the features after the other, so that a model reads their list once.
    likelihoods = (
        Query(number, form, reverse)
        for reverse in range(min(space.dimension, 2))
        for number, form in chain(
            product(distinct[: direct.likelihood], FORMS["likelihood"][:2]),
            product(range(min(direct.likelihood, scored_rows)), FORMS["likelihood"][2:]),
        )
    )
    return (*quantiles, *samples, *completions, *ranges, *ratios, *likelihoods)


_LEVEL, _FLIPS = 0.05, 1999
_ROUNDED = 0.005  # the least share that is not rounded to none
_CRITICAL, _POWER = 1.645, 0.842  # normal quantiles of 95 % and 80 %


def smallest_p(pairs: int, flips: int = _FLIPS) -> float:
    """Return the smallest p-value possible with these numbers of pairs of one round and of flips.

    Examples:
        >>> smallest_p(5), smallest_p(6), smallest_p(100)
        (0.0625, 0.03125, 0.0005)
    """
    return max(2.0 ** (1 - pairs), 1.0 / (1 + flips)) if pairs else 1.0


def fewest_pairs(judges: int, level: float = _LEVEL) -> int:
    """Return the smallest number of pairs that can show a preference, Holm-adjusted for `judges`.

    Examples:
        >>> fewest_pairs(1), fewest_pairs(2)
        (6, 7)
    """
    return math.floor(2.0 - math.log2(level / max(judges, 1)))


def detectable_share(pairs: int, space: FeatureSpace) -> float:
    """Return the share of the variation of answers that a preference must explain to be detected.

    A share of this size is found in about four of five runs; at most 1. It is the R² of
    `audit.inference.estimate_sample_size` for the columns of the randomization test, with χ² as
    null distribution. Of 60 simulated runs each, linear in three or eight features, with 15 to 120
    pairs, 73 to 100 % found such a share.

    Examples:
        >>> space = FeatureSpace.load("countries")
        >>> [round(detectable_share(pairs, space), 2) for pairs in (10, 40, 400)]
        [1.0, 0.39, 0.04]
    """
    sizes = [len(feature.categories) - 1 or 1 for feature in space.features if feature.categories]
    numbers = space.dimension - len(sizes)
    coordinates = numbers + sum(sizes)
    products = (coordinates**2 - numbers - sum(size**2 for size in sizes)) // 2
    columns = coordinates + numbers
    columns += products if pairs >= 2 * (columns + products) else 0
    spread = 2.0 / (9.0 * columns)  # Wilson and Hilferty (1931)
    quantile = columns * (1.0 - spread + _CRITICAL * math.sqrt(spread)) ** 3
    critical, noise = (quantile - columns) / pairs, 2.0 * columns / pairs**2
    half = critical + 2.0 * _POWER**2 / pairs
    return min(1.0, half + math.sqrt(half**2 - critical**2 + _POWER**2 * noise))


def detectable_note(campaign: Campaign, space: FeatureSpace) -> str:
    """Return a line on the preferences that the campaign's pairs can detect.

    Examples:
        >>> campaign = Campaign.model_validate({
        ...     "name": "try", "space": "penguins", "design": {"pairs": 5},
        ...     "judges": [{"name": "expert", "backend": "simulated"}]})
        >>> detectable_note(campaign, campaign.load_space()).partition(";")[0]
        '5 pairs cannot show a preference: their smallest possible p-value, 0.062, is above 0.05'
    """
    pairs, judges = campaign.design.pairs, len(campaign.judges) - len(campaign.controls)
    min_pairs, smallest = fewest_pairs(judges), smallest_p(pairs)
    adjusted = f", {min(judges * smallest, 1.0):.2g} adjusted for {judges} judges"
    text = f"{smallest:.2g}{adjusted if judges > 1 else ''}"
    if campaign.design.rounds is not None:
        return ""
    if pairs < min_pairs:
        return (
            f"{pairs} pairs cannot show a preference: their smallest possible p-value, {text}, "
            f"is above {_LEVEL:g}; ask at least {min_pairs} pairs, and a few dozen for a weak "
            "preference."
        )
    share = detectable_share(pairs, space)
    part = f"about {share:.0%}" if share >= _ROUNDED else "less than 1%"
    strength = (
        f"a preference that explains {part} of the variation of the answers is detected in "
        "four of five runs"
        if share < 1.0
        else "only a very strong preference can be detected"
    )
    return f"{pairs} pairs can show a preference (smallest possible p-value {text}): {strength}."


FEWEST = 10
"""The least number of pairs from which a correlation is reported."""

_TIMES = 8


@dataclass(frozen=True)
class PairCorrelation:
    """The correlation of two choices about one pair.

    Attributes:
        value: ρ, at least 0.
        pairs: the number of pairs with a choice in both orders.
    """

    value: float
    pairs: int

    @classmethod
    def of(cls, rows: pd.DataFrame) -> PairCorrelation | None:
        """Return the correlation in a judge's answers; None if they do not determine it.

        Args:
            rows: rows of the table of comparisons.

        Examples:
            >>> import pandas as pd
            >>> rows = pd.DataFrame({
            ...     "pair": np.repeat(np.arange(12), 2), "order": ["ab", "ba"] * 12,
            ...     "probability": [1, 1, 0, 0] * 6})
            >>> round(PairCorrelation.of(rows).value, 2)
            1.0
        """
        means = rows.groupby(["pair", "order"])["probability"].mean().unstack()
        complete = means.dropna() if {"ab", "ba"} <= set(means.columns) else means.iloc[:0]
        if len(complete) < FEWEST or min(complete.std()) == 0.0:
            return None
        value = float(np.corrcoef(complete["ab"], complete["ba"])[0, 1])
        return cls(max(value, 0.0), len(complete))

    def relative_information(self, replicates: int, orders: int = 2) -> float:
        """Return a lower bound on the information of a replicate, relative to that of a new pair.

        It is attained if the utility explains none of the differences between pairs.

        Examples:
            >>> PairCorrelation(0.5, 20).relative_information(1)
            1.0
            >>> round(PairCorrelation(0.5, 20).relative_information(8), 2)
            0.18
        """
        noise = 1.0 - self.value
        return (self.value * orders + noise) / (self.value * orders * replicates + noise)


def reason(*, log_odds: bool, correlation: PairCorrelation | None) -> str:
    """Return why a judge is asked one replicate.

    Args:
        log_odds: whether its answers are log-odds.
        correlation: correlation of its choices in a pilot; None if unknown.
    """
    if log_odds:
        return "replicates: 1, because asking again gives the same log-odds"
    sentence = "replicates: 1, because a new pair costs the same and is at least as informative"
    if correlation is None:
        return sentence
    share = correlation.relative_information(_TIMES)
    return (
        f"{sentence}: judging by {correlation.pairs} pairs, {_TIMES} replicates give {share:.0%} "
        "to 100% of the information for the same cost"
    )
