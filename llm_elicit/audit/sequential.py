"""The randomization test of answers to pairs that were chosen in rounds.

Pairs that were chosen from earlier answers carry these with them: exchanging winners and losers of
all rounds at once, the pairs held fixed, does not leave the joint law of points and answers as it
was. Exchanging those of one round does, given all that was asked and answered before it. So there
is a test a round. Its statistic is that of `llm_elicit.audit.signal`, learned from the answers up
to the round's end, on columns scaled by these alone, and measured on the round's own pairs, whose
signs are flipped. With ties among flips broken at random, p is uniform if the answers ignore the
points, whatever was said before, so the p of several rounds are independent.

Their normal scores are added (Stouffer and others 1949), weighted by w_r² = E_r² - E_(r-1)², where
E_r is the sum of (preference - 1/2)² up to round r: if the answers ignore the points, how decided
they are says nothing about which side they take, so weights may depend on it. A quadratic form in
all answers, which the plain test's statistic about is, has these variances round by round, and no
sum of scores comes nearer to it. Where the plain test finds a weak judge in 44, 84, 43 and 88 of
100 studies (five rounds of 40 pairs of two features, of 100 pairs of five, two strengths each, all
pairs from λ), this finds it in 44, 82, 43 and 85, Fisher's sum of logarithms in 38, 76, 38 and 81
(400 simulated judges each). Of coins asked so as to keep what trend chance has made, the plain test
calls 25 of 100 a signal, this 5 (800 coins, `tests/audit/test_audit_sequential.py`).

Where a rule may end the rounds early, when they end depends on the answers. Half of the level is
then for a judge who is asked all rounds, the other half is divided among the earlier ends:
Bonferroni's bound over the ends there might have been. It costs: of the judges above 31, 71, 32
and 76 are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.stats import norm

from llm_elicit.audit.signal import Exchanges, Index, exchange, feature_differences
from llm_elicit.comparisons import Choices
from llm_elicit.features import FeatureSpace, Floats
from llm_elicit.rounds import Schedule

_ROUNDING = 1e-10


@dataclass(frozen=True)
class Telling:
    """A judge's choices, round by round.

    Attributes:
        choices: by rising numbers of pairs.
        space: their feature space.
        schedule: which pairs belong to which round; None for one round.
    """

    choices: Choices
    space: FeatureSpace
    schedule: Schedule | None = None

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """First row and end of each round; those in which nothing is preferred join the next.

        Such rounds at the end are left out: their points depend on the answers before, which are
        exchanged, and they have none themselves.
        """
        ends = self._ends
        if len(ends) < 2:
            return [(0, len(self.choices))]
        moved = np.abs(self.choices.preference - 0.5) > _ROUNDING
        spans: list[tuple[int, int]] = []
        start = 0
        for end in ends:
            if moved[start:end].any():
                spans.append((start, end))
                start = end
        return spans

    @property
    def _ends(self) -> list[int]:
        """The end of each planned round among the rows."""
        stops = [] if self.schedule is None else [each.stop for each in self.schedule.pairs]
        ends: list[int] = np.searchsorted(self.choices.pair, stops).tolist()
        return ends

    @property
    def share(self) -> float:
        """The share of the level that the rounds' end has; 1 where no rule ends them."""
        ends = self._ends
        if self.schedule is None or not self.schedule.may_end or len(ends) < 2:
            return 1.0
        whole = ends[-1] > ends[-2]
        return 0.5 if whole else 0.5 / (len(ends) - 1)

    def test(
        self, flips: int, rng: np.random.Generator, feature: int | None = None
    ) -> tuple[float, float]:
        """(p, leave-one-out gain over all choices), by all features or by one alone.

        `flips` are of each round. Without a preference p is 1.
        """
        tests = [self._exchange(span, flips, rng, feature) for span in self.spans]
        whole = 0, len(self.choices)
        alone = tests[0] if self.spans == [whole] else self._exchange(whole, 0, rng, feature)
        if len(tests) < 2:
            p_value = tests[0].p_value if tests else 1.0
        else:
            p_value = combine([test.exact_p_value(rng) for test in tests], self._squares)
        return min(1.0, p_value / self.share), alone.gain

    @cached_property
    def designs(self) -> dict[int, tuple[Floats, Index]]:
        """`feature_differences` of the rows up to each round's end, and of all, by that end."""
        told, ends = self.choices, {len(self.choices), *(end for _, end in self.spans)}
        return {
            end: feature_differences(
                Choices(told.a[:end], told.b[:end], told.preference[:end], told.pair[:end]),
                self.space,
            )
            for end in ends
        }

    def _exchange(
        self, span: tuple[int, int], flips: int, rng: np.random.Generator, feature: int | None
    ) -> Exchanges:
        start, end = span
        columns, owners = self.designs[end]
        if feature is not None:
            columns = columns[:, owners == feature]
        return exchange(columns, self.choices.preference[:end], flips, rng, start)

    @property
    def _squares(self) -> Floats:
        """w_r² of each span."""
        energy = np.square(self.choices.preference - 0.5).cumsum()
        return np.diff([energy[end - 1] ** 2 for _, end in self.spans], prepend=0.0)


def randomization_test_in_rounds(
    choices: Choices,
    space: FeatureSpace,
    flips: int,
    rng: np.random.Generator,
    schedule: Schedule | None,
) -> tuple[float, float]:
    """The randomization test of choices asked in rounds: its p-value, and the leave-one-out gain.

    Args:
        choices: the judge's choices, by rising numbers of pairs.
        space: their feature space.
        flips: how many sign patterns to draw, of each round.
        rng: draws them.
        schedule: which pairs belong to which round; None for one round, of which it is
            `llm_elicit.audit.signal.randomization_test`.

    Returns:
        p, and the gain over all choices. Without a single preference p is 1 and the gain 0.

    Example:
        >>> space = FeatureSpace.load("penguins")
        >>> rng = np.random.default_rng(0)
        >>> a, b = space.sample(80, rng), space.sample(80, rng)
        >>> heavier = (a[:, 3] > b[:, 3]).astype(float)
        >>> schedule = Schedule((range(40), range(40, 60), range(60, 80)))
        >>> told = Choices(a, b, heavier, np.arange(80))
        >>> randomization_test_in_rounds(told, space, 199, rng, schedule)[0] < 1e-4
        True
    """
    if len(choices) < 2:
        return 1.0, 0.0
    return Telling(choices, space, schedule).test(flips, rng)


def combine(p_values: Sequence[float], squares: Floats) -> float:
    """One p from independent ones, their normal scores weighted by the roots of `squares` `(R,)`.

    Example:
        >>> round(combine([0.05, 0.05], np.ones(2)), 3), round(combine([0.3], np.ones(1)), 9)
        (0.01, 0.3)
    """
    scores = norm.isf(np.asarray(p_values))
    return float(norm.sf(np.sqrt(squares) @ scores / np.sqrt(squares.sum())))
