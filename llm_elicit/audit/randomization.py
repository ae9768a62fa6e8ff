"""Do a judge's answers depend on the points? An exact randomization test of its responses.

If they do not, exchanging the points of any pair leaves the joint law of points and answers as it
was: because both presentation orders were asked, or, where one was, because the two points of a
pair are exchangeable. That turns the sign of the pair's response (`llm_elicit.audit.responses`), so
the observed statistic is one of equally likely values under random sign flips, whatever the
position effect and the noise.

The statistic is the largest leave-one-out gain, over a fixed grid of ridge penalties, of a
linear prediction of the responses from differences of linear and quadratic features: the log
density of a Gaussian belief is such a function. Taking the largest inside the statistic makes the
choice of penalty part of what is randomized. A gain is a share of the responses' mean square, so
multiplying all of them by a constant changes neither it nor p. A judge whose utility has no linear
or quadratic trend at all over the range asked (two equal modes placed symmetrically, say) can
escape the test.

*Rounds.* Pairs that were chosen from earlier answers carry these with them: exchanging the points
of all rounds at once does not leave the joint law of points and answers as it was. Exchanging those
of one round does, given all that was asked and answered before it. So there is a test a round. Its
statistic is the same, learned from the answers up to the round's end, on columns scaled by these
alone, and measured on the round's own pairs, whose signs are flipped. With ties among flips broken
at random, p is uniform if the answers ignore the points, whatever was said before, so the p of
several rounds are independent.

Their normal scores are added (Stouffer and others 1949), weighted by w_r² = E_r² - E_(r-1)², where
E_r is the sum of squared responses up to round r: if the answers ignore the points, how decided
they are says nothing about which side they take, so weights may depend on it. A quadratic form in
all answers, which the plain test's statistic about is, has these variances round by round, and no
sum of scores comes nearer to it. Where the plain test finds a weak judge in 44, 84, 43 and 88 of
100 studies (five rounds of 40 pairs of two features, of 100 pairs of five, two strengths each, all
pairs from λ), this finds it in 44, 82, 43 and 85, Fisher's sum of logarithms in 38, 76, 38 and 81
(400 simulated judges each). Of coins asked so as to keep what trend chance has made, the plain test
finds a preference in 25 of 100, this in 5 (800 coins, `tests/audit/test_audit_rounds.py`).

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
import numpy.typing as npt
from scipy.stats import norm

from llm_elicit.audit.responses import Response
from llm_elicit.audit.scales import Standard
from llm_elicit.planning.rounds import Schedule
from llm_elicit.spaces.features import FeatureSpace, Floats

Index = npt.NDArray[np.int64]

# Ridge penalty a column: noise variance over the variance that all columns together explain.
_PENALTIES = (0.3, 1.0, 3.0, 10.0, 30.0)
_CHUNK = 256
_ENOUGH = 3  # pairs a column of the other features, to take these out


@dataclass(frozen=True)
class Exchanges:
    """A randomization test.

    Attributes:
        gain: leave-one-out share of the mean square of the responses that is predicted.
        by_chance: the same after points were exchanged at random, `(flips,)`.

    Example:
        >>> test = Exchanges(0.1, np.array([-0.2, 0.1, 0.3]))
        >>> test.p_value, 0.25 < test.exact_p_value(np.random.default_rng(0)) < 0.75
        (0.75, True)
    """

    gain: float
    by_chance: Floats

    @property
    def p_value(self) -> float:
        """(1 + number of flips with at least the observed gain) / (1 + flips)."""
        return (1 + int(np.sum(self.by_chance >= self.gain - self._rounding))) / (
            1 + len(self.by_chance)
        )

    def exact_p_value(self, rng: np.random.Generator) -> float:
        """The same, ties with the observed gain broken at random: uniform if answers are chance."""
        above = int(np.sum(self.by_chance > self.gain + self._rounding))
        alike = 1 + int(np.sum(np.abs(self.by_chance - self.gain) <= self._rounding))
        return float((above + alike * (1.0 - rng.random())) / (1 + len(self.by_chance)))

    @property
    def _rounding(self) -> float:
        """A flip that repeats the observed pattern must count as reached despite rounding."""
        return 1e-9 * max(1.0, abs(self.gain))


def exchange(
    design: Floats, response: Floats, flips: int, rng: np.random.Generator, start: int = 0
) -> Exchanges:
    """The test of columns `(n, p)` that should predict responses `(n,)`.

    Only the rows from `start` on are exchanged and measured; those before it stay as they were
    answered, and the prediction learns from them.
    """
    before, own = np.split(response, [start])
    if not own.any():
        return Exchanges(0.0, np.zeros(flips))
    left, singular, _ = np.linalg.svd(design, full_matrices=False)
    known, left = left[:start].T @ before, left[start:]
    observed = float(_gains(left, singular, own[:, None], known)[0])
    by_chance = np.empty(flips)
    for first in range(0, flips, _CHUNK):
        count = min(_CHUNK, flips - first)
        signs = rng.choice((-1.0, 1.0), size=(len(own), count))
        flipped = own[:, None] * signs
        by_chance[first : first + count] = _gains(left, singular, flipped, known)
    return Exchanges(observed, by_chance)


@dataclass(frozen=True)
class Significance:
    """What a randomization test found.

    Attributes:
        p_value: with one round at least `floor`; 1 where nothing was preferred.
        gain: leave-one-out gain over all responses; 0 where nothing was preferred.
        floor: the smallest p that this many flips of one round can show.
        by_chance: the gain after random exchanges, `(flips,)`; None with rounds.
    """

    p_value: float
    gain: float
    floor: float
    by_chance: Floats | None = None

    @property
    def at_floor(self) -> bool:
        """Whether p may be smaller than the number of flips can show."""
        return self.p_value <= self.floor * (1.0 + 1e-12)


@dataclass(frozen=True)
class RandomizationTest:
    """The test of a judge's responses, by all features or by one.

    Attributes:
        response: by rising numbers of pairs.
        space: the feature space.
        schedule: which pairs belong to which round; None for one round.

    Example:
        >>> from llm_elicit.comparisons.table import Choices
        >>> space = FeatureSpace.load("penguins")
        >>> rng = np.random.default_rng(0)
        >>> a, b = space.sample(80, rng), space.sample(80, rng)
        >>> heavier = (a[:, 3] > b[:, 3]).astype(float)
        >>> schedule = Schedule((range(40), range(40, 60), range(60, 80)))
        >>> told = Response.of_choices(Choices(a, b, heavier, np.arange(80)))
        >>> RandomizationTest(told, space, schedule).run(199, rng).p_value < 1e-4
        True
    """

    response: Response
    space: FeatureSpace
    schedule: Schedule | None = None

    def beside(self, flips: int, rng: np.random.Generator, feature: int) -> Significance:
        """One feature beside the others; alone with rounds, or where pairs are few for the others.

        What a judge weighs up against other features is not noise then. The columns are linear and
        square, without products of features.
        """
        n = len(self.response)
        if self._rounds or n < 2:
            return self.run(flips, rng, feature=feature)
        design, owners = self.designs[n]
        others = design[:, (owners >= 0) & (owners != feature)]
        if n < _ENOUGH * others.shape[1]:
            return self.run(flips, rng, feature=feature)
        own = design[:, owners == feature]
        found = exchange_beside(own, others, self.response.value, flips, rng)
        gain = exchange(own, self.response.value, 0, rng).gain
        return Significance(found.p_value, gain, 1.0 / (1 + flips))

    @property
    def _rounds(self) -> bool:
        """Whether pairs were chosen in rounds."""
        return self.schedule is not None and len(self.schedule.pairs) > 1

    def run(self, flips: int, rng: np.random.Generator, feature: int | None = None) -> Significance:
        """By all features, or by one alone; `flips` are of each round."""
        if len(self.response) < 2:
            return Significance(1.0, 0.0, 1.0 / (1 + flips), np.zeros(flips))
        tests = [self._exchange(span, flips, rng, feature) for span in self.spans]
        whole = 0, len(self.response)
        alone = tests[0] if self.spans == [whole] else self._exchange(whole, 0, rng, feature)
        if len(tests) < 2:
            p_value = tests[0].p_value if tests else 1.0
        else:
            p_value = combine([test.exact_p_value(rng) for test in tests], self._squares)
        by_chance = alone.by_chance if self.spans == [whole] and self.share == 1.0 else None
        floor = min(1.0, 1.0 / (1 + flips) / self.share)
        return Significance(min(1.0, p_value / self.share), alone.gain, floor, by_chance)

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """First row and end of each round; those in which nothing is preferred join the next.

        Such rounds at the end are left out: their points depend on the answers before, which are
        exchanged, and they have none themselves.
        """
        ends = self._ends
        if len(ends) < 2:
            return [(0, len(self.response))]
        spans: list[tuple[int, int]] = []
        start = 0
        for end in ends:
            if self.response.value[start:end].any():
                spans.append((start, end))
                start = end
        return spans

    @property
    def share(self) -> float:
        """The share of the level that the rounds' end has; 1 where no rule ends them."""
        ends = self._ends
        if self.schedule is None or not self.schedule.may_end or len(ends) < 2:
            return 1.0
        whole = ends[-1] > ends[-2]
        return 0.5 if whole else 0.5 / (len(ends) - 1)

    @cached_property
    def designs(self) -> dict[int, tuple[Floats, Index]]:
        """`feature_differences` of the rows up to each round's end, and of all, by that end."""
        ends = {len(self.response), *(end for _, end in self.spans)}
        return {end: feature_differences(self.response.head(end), self.space) for end in ends}

    @property
    def _ends(self) -> list[int]:
        """The end of each planned round among the rows."""
        stops = [] if self.schedule is None else [each.stop for each in self.schedule.pairs]
        ends: list[int] = np.searchsorted(self.response.pair, stops).tolist()
        return ends

    def _exchange(
        self, span: tuple[int, int], flips: int, rng: np.random.Generator, feature: int | None
    ) -> Exchanges:
        start, end = span
        columns, owners = self.designs[end]
        if feature is not None:
            columns = columns[:, owners == feature]
        return exchange(columns, self.response.value[:end], flips, rng, start)

    @property
    def _squares(self) -> Floats:
        """w_r² of each span, of responses with a mean square of one."""
        energy = np.square(self.response.value).cumsum() / np.square(self.response.value).sum()
        return np.diff([energy[end - 1] ** 2 for _, end in self.spans], prepend=0.0)


def combine(p_values: Sequence[float], squares: Floats) -> float:
    """One p from independent ones, their normal scores weighted by the roots of `squares` `(R,)`.

    Example:
        >>> round(combine([0.05, 0.05], np.ones(2)), 3), round(combine([0.3], np.ones(1)), 9)
        (0.01, 0.3)
    """
    scores = norm.isf(np.asarray(p_values))
    return float(norm.sf(np.sqrt(squares) @ scores / np.sqrt(squares.sum())))


def feature_differences(pairs: Response, space: FeatureSpace) -> tuple[Floats, Index]:
    """φ(a) - φ(b), `(n, p)`, columns scaled to unit mean square, and the feature of each, `(p,)`.

    φ is the linear terms, which of a categorical feature are its corners' coordinates, the squares
    of numbers, then products of two features (-1) where there are pairs enough for them (n at least
    twice the number of columns).
    """
    standard = Standard.of(space, np.concatenate([pairs.a, pairs.b]))
    a, b = standard(pairs.a), standard(pairs.b)
    owner = standard.owners
    number = ~space.categorical[owner]
    columns, owners = [a - b, (a**2 - b**2)[:, number]], [owner, owner[number]]
    i, j = np.triu_indices(a.shape[1], k=1)
    i, j = i[owner[i] != owner[j]], j[owner[i] != owner[j]]
    if len(a) >= 2 * (len(owner) + int(number.sum()) + len(i)):
        columns.append(a[:, i] * a[:, j] - b[:, i] * b[:, j])
        owners.append(np.full(len(i), -1))
    design = np.concatenate(columns, axis=1)
    scale = np.sqrt((design**2).mean(axis=0))
    return design / np.where(scale > 0, scale, 1.0), np.concatenate(owners)


def _gains(left: Floats, singular: Floats, responses: Floats, known: Floats) -> Floats:
    """Largest leave-one-out gain over the ridge penalties, for each column of `responses`."""
    total = (responses**2).sum(axis=0)
    best = np.full(responses.shape[1], -np.inf)
    for penalty in _PENALTIES:
        residual = _residuals(left, singular, responses, known, penalty)
        best = np.maximum(best, 1.0 - (residual**2).sum(axis=0) / total)
    return best


def _residuals(
    left: Floats, singular: Floats, responses: Floats, known: Floats, penalty: float
) -> Floats:
    """Leave-one-out residuals of each column of `responses`.

    That of a linear smoother H is (z - Hz)_i / (1 - H_ii); H depends on the points alone, so the
    columns share it. `known` `(p,)` is what rows that are not measured add to the rotated
    responses.
    """
    shrink = singular**2 / (singular**2 + penalty * len(singular))
    fitted = left @ (shrink[:, None] * (left.T @ responses + known[:, None]))
    leverage = (left**2) @ shrink
    return np.asarray((responses - fitted) / (1.0 - leverage)[:, None])


def exchange_beside(
    own: Floats, others: Floats, response: Floats, flips: int, rng: np.random.Generator
) -> Exchanges:
    """Whether columns `(n, p)` predict responses `(n,)` beside other columns `(n, q)`.

    The statistic is the share of what the others leave that `own` explains in the least-squares
    fit. Signs of the residuals by the others are flipped, and the others taken out again (Freedman
    and Lane 1983; with signs: Winkler and others 2014): exact but for the error of the others'
    coefficients.
    """
    basis = _basis(others)
    residual = response - basis @ (basis.T @ response)
    directions = _basis(own - basis @ (basis.T @ own))
    if not directions.size or float(residual @ residual) <= 1e-18 * float(response @ response):
        return Exchanges(0.0, np.zeros(flips))
    signs = rng.choice((-1.0, 1.0), size=(len(residual), flips))
    drawn = np.column_stack([residual, residual[:, None] * signs])
    explained = np.square(directions.T @ drawn).sum(axis=0)
    left = np.square(drawn).sum(axis=0) - np.square(basis.T @ drawn).sum(axis=0)
    shares = explained / np.maximum(left, 1e-12 * float(residual @ residual))
    return Exchanges(float(shares[0]), shares[1:])


def _basis(columns: Floats) -> Floats:
    """An orthonormal basis `(n, r)` of what columns `(n, p)` span."""
    left, singular, _ = np.linalg.svd(columns, full_matrices=False)
    least = 1e-9 * max(1.0, float(singular.max(initial=0.0)))
    return np.asarray(left[:, singular > least])


def left_out(design: Floats, response: Floats) -> Floats:
    """Leave-one-out residuals `(n,)` of the rule whose penalty predicts best."""
    left, singular, _ = np.linalg.svd(design, full_matrices=False)
    known = np.zeros(left.shape[1])
    found = [_residuals(left, singular, response[:, None], known, p)[:, 0] for p in _PENALTIES]
    return min(found, key=lambda each: float(each @ each))


def permute(
    design: Floats, response: Floats, permutations: int, rng: np.random.Generator
) -> Exchanges:
    """Whether columns `(n, p)` predict a response that is the same of both points of a pair.

    Both are centred, and responses are permuted over pairs.
    """
    design, own = design - design.mean(axis=0), response - response.mean()
    if float(own @ own) <= 1e-18 * float(response @ response):
        return Exchanges(0.0, np.zeros(permutations))
    left, singular, _ = np.linalg.svd(design, full_matrices=False)
    nothing = np.zeros(left.shape[1])
    shuffled = np.stack([rng.permutation(own) for _ in range(permutations)], axis=1)
    gains = _gains(left, singular, np.column_stack([own, shuffled]), nothing)
    return Exchanges(float(gains[0]), gains[1:])
