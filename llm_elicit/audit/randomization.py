"""Randomization tests of whether a judge's answers depend on the points.

*One round.* Under the null hypothesis, exchanging the points of any pair leaves the joint
distribution of points and answers unchanged: because both presentation orders were asked, or,
where only one was, because the two points of a pair are exchangeable. An exchange flips the sign of
the pair's response (`llm_elicit.audit.responses`), so the observed statistic is one of equally
likely values under random sign flips, whatever the position effect and the noise.

If few pairs were asked, all exchanges are tried. Exchanging the points of every pair changes no
statistic here, so p is at least 2/2ⁿ with n pairs (`llm_elicit.planning.pairs`): five pairs
cannot show a preference.

The statistic is the largest leave-one-out gain, over a fixed grid of ridge penalties, of a linear
prediction of the responses from differences of linear and quadratic features: the log density of a
Gaussian belief is such a function. Maximizing within the statistic makes the choice of penalty part
of what is randomized. A gain is a share of the responses' mean square, so multiplying all of them
by a constant changes neither it nor p. The same statistic of `Response.robust`, less a handicap,
takes its place where it is larger, in the data as under every flip: a tenth of the answers flipped
at four times the size hide a preference from the first in half of the campaigns and from both in
none of forty. A utility with no linear or quadratic trend at all over the range asked (two equal,
symmetric modes, for example) can escape the test; see `Response.agreement`.

*Several rounds.* Pairs that were chosen from earlier answers depend on them, so the points of all
rounds cannot be exchanged at once. Those of one round can, given all that was asked and answered
before. Hence one test per round, with the same statistic: the prediction is fitted to the answers
up to the round's end, on columns scaled by these, and evaluated on the round's own pairs, whose
signs are flipped. With ties among flips broken at random, p is uniform under the null hypothesis
given the earlier answers, so the p-values of several rounds are independent.

Their normal scores are added (Stouffer et al. 1949), with weights w_r² = E_r² − E_(r−1)², where E_r
is the sum of squared responses up to round r. The weights may depend on these sums because under
the null hypothesis they are independent of the signs. Power in 400 simulated judges each (five
rounds of 40 pairs of two features or 100 pairs of five, two strengths, all pairs from λ): 44, 82,
43 and 85 %, where the test of all rounds at once has 44, 84, 43 and 88 % and Fisher's sum of
logarithms 38, 76, 38 and 81 %. Of judges that choose at random, with pairs chosen to keep a chance
trend, the test of all rounds at once finds a preference in 25 %, this one in 5 % (800 judges,
`tests/audit/test_audit_rounds.py`).

*Early stopping.* Where a rule may end the rounds early, the number of rounds depends on the
answers. Half of the level is then used for a judge who is asked all rounds; the other half is
divided among the earlier ends (Bonferroni). Power of the judges above: 31, 71, 32 and 76 %.

*Presentations.* Answers in several presentations are regressed on their points (`PresentedRows`).

*Nothing depends on the presentation*, but gains, dispersions and position effects: then labels can
be permuted over pairs. The statistic is the score of ρ² at 0 of a ridge regression on linear and
square terms, Σ_z Σ_(i≠j) p_i K_ij p_j over rows of one presentation, with p the residuals over
their variance, less what a gain of each label explains of them by the predictions from other rows.
Labels of pairs in several presentations are permuted among these.

*No preference in common*, with presentations as random: then a presentation's responses could have
the opposite signs. The statistic is the sum of p_i K_ij p_j over pairs of different presentations;
exact, with p at least 2^(1−W), so that six presentations can show it at 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import stats

from llm_elicit.audit.reference import Standardizer
from llm_elicit.audit.responses import Response
from llm_elicit.planning.rounds import Schedule
from llm_elicit.spaces.features import FeatureSpace, Floats

Index = npt.NDArray[np.int64]
Responses = Sequence[Floats]

# Ridge penalties per column: noise variance divided by the variance that all columns explain.
_PENALTIES = (0.3, 1.0, 3.0, 10.0, 30.0)
# Sign flips evaluated at once, which limits memory.
_FLIPS_PER_CHUNK = 256
# The statistic of robust responses is reduced by this number divided by the number of pairs, so
# that the test loses no power without outliers. Of 120 judges with weak preferences and normal
# errors it finds 77; 77 without robust responses, 71 without a handicap.
_HANDICAP = 2.0
_MAX_ENUMERATED_PAIRS = 20
"""Largest number of pairs for which all exchanges are tried, if there are no more than flips."""
_PAIRS_PER_COLUMN = 3
"""Smallest number of pairs per column of the other features for a partial test."""


@dataclass(frozen=True)
class RandomizationResult:
    """An observed statistic and its values under randomization.

    Attributes:
        statistic: the observed statistic.
        null_statistics: the statistic after each randomization, `(flips,)`.

    Examples:
        >>> test = RandomizationResult(0.1, np.array([-0.2, 0.1, 0.3]))
        >>> test.p_value, 0.25 < test.p_value_breaking_ties(np.random.default_rng(0)) < 0.75
        (0.75, True)
    """

    statistic: float
    null_statistics: Floats

    @property
    def p_value(self) -> float:
        """(1 + number of randomizations with at least the observed gain) / (1 + their number)."""
        exceedances = int(np.sum(self.null_statistics >= self.statistic - self._tolerance))
        return (1 + exceedances) / (1 + len(self.null_statistics))

    def p_value_breaking_ties(self, rng: np.random.Generator) -> float:
        """Return p with ties broken at random, which is uniform under the null hypothesis."""
        above = int(np.sum(self.null_statistics > self.statistic + self._tolerance))
        tied = 1 + int(np.sum(np.abs(self.null_statistics - self.statistic) <= self._tolerance))
        return float((above + tied * (1.0 - rng.random())) / (1 + len(self.null_statistics)))

    @property
    def _tolerance(self) -> float:
        """Rounding error up to which a randomized statistic counts as equal to the observed one."""
        return 1e-9 * max(1.0, abs(self.statistic))


def draw_signs(count: int, flips: int, rng: np.random.Generator) -> Floats:
    """Return `(count, flips)` random signs, or all patterns but the observed one if fewer."""
    if count < _MAX_ENUMERATED_PAIRS and 2**count <= flips + 1:
        patterns = np.arange(1, 2**count)
        return np.asarray(1.0 - 2.0 * (patterns >> np.arange(count)[:, None] & 1))
    return np.asarray(rng.choice((-1.0, 1.0), size=(count, flips)))


def sign_flip_test(
    design: Floats, responses: Responses, flips: int, rng: np.random.Generator, start: int = 0
) -> RandomizationResult:
    """Test whether columns `(n, p)` predict responses `(n,)`.

    The statistic is the larger one of the responses and, less a handicap, of the robust responses.
    Only rows from `start` on are flipped and evaluated; earlier rows keep their signs, and the
    prediction is fitted to them, too.
    """
    if not responses[0][start:].any():
        return RandomizationResult(0.0, np.zeros(flips))
    vectors, singular, _ = np.linalg.svd(design, full_matrices=False)
    count, fixed_vectors = len(vectors) - start, vectors[:start].T

    def evaluate_signs(signs: Floats) -> Floats:
        """Return the statistic for each column of signs."""
        statistics = []
        for response in responses:
            flipped = response[start:, None] * signs
            offset = fixed_vectors @ response[:start]
            statistics.append(_best_loo_r2(vectors[start:], singular, flipped, offset))
        return _combine_statistics(statistics, count)

    observed = float(evaluate_signs(np.ones((count, 1)))[0])
    if 2 ** min(count, _MAX_ENUMERATED_PAIRS) <= flips + 1:
        return RandomizationResult(observed, evaluate_signs(draw_signs(count, flips, rng)))
    chunks = [
        evaluate_signs(draw_signs(count, min(_FLIPS_PER_CHUNK, flips - first), rng))
        for first in range(0, flips, _FLIPS_PER_CHUNK)
    ]
    return RandomizationResult(observed, np.concatenate([np.empty(0), *chunks]))


def _combine_statistics(statistics: list[Floats], count: int) -> Floats:
    """Return the larger of the statistics of the responses and of the robust ones."""
    statistic, *robust_statistics = statistics
    robust_statistics = [values - _HANDICAP / count for values in robust_statistics]
    return np.asarray(np.max([statistic, *robust_statistics], axis=0))


def sign_test(
    values: Floats, flips: int, rng: np.random.Generator, *, positive: bool = False
) -> tuple[float, bool]:
    """Return p of the mean of values `(n,)` under random signs, and whether p is only a bound.

    The test is two-sided, or of a mean above 0 if `positive`.
    """
    if not values.any():
        return 1.0, False
    means = values @ draw_signs(len(values), flips, rng)
    observed = float(values.sum())
    if not positive:
        means, observed = np.abs(means), abs(observed)
    exceedances = int((means >= observed - 1e-9 * abs(observed)).sum())
    return (1 + exceedances) / (1 + len(means)), exceedances == 0


def partial_sign_flip_test(
    columns: Floats,
    other_columns: Floats,
    responses: Responses,
    flips: int,
    rng: np.random.Generator,
) -> RandomizationResult:
    """Test whether columns `(n, p)` predict responses `(n,)` given other columns `(n, q)`.

    The statistic is the partial R² of `columns` in the least-squares fit, of the responses or, less
    a handicap, of robust ones. The signs of the residuals given the other columns are flipped, and
    these columns are projected out again (Freedman and Lane 1983; with signs: Winkler et al. 2014).
    The test is exact up to the error of the other columns' coefficients.
    """
    basis = _orthonormal_basis(other_columns)
    residuals = [row - basis @ (basis.T @ row) for row in responses]
    directions = _orthonormal_basis(columns - basis @ (basis.T @ columns))
    total = float(residuals[0] @ residuals[0])
    if not directions.size or total <= 1e-18 * float(responses[0] @ responses[0]):
        return RandomizationResult(0.0, np.zeros(flips))
    signs = rng.choice((-1.0, 1.0), size=(len(columns), flips))

    def partial_r2(residual: Floats) -> Floats:
        """Return the partial R² of the residual, and of it under all signs."""
        flipped = np.column_stack([residual, residual[:, None] * signs])
        explained = np.square(directions.T @ flipped).sum(axis=0)
        remainder = np.square(flipped).sum(axis=0) - np.square(basis.T @ flipped).sum(axis=0)
        return np.asarray(explained / np.maximum(remainder, 1e-12 * float(residual @ residual)))

    shares = _combine_statistics([partial_r2(residual) for residual in residuals], len(columns))
    return RandomizationResult(float(shares[0]), shares[1:])


def permutation_test(
    design: Floats, response: Floats, permutations: int, rng: np.random.Generator
) -> RandomizationResult:
    """Test whether columns `(n, p)` predict a response that is symmetric in a pair's points.

    Columns and responses are centred, and responses are permuted over pairs.
    """
    design, centred = design - design.mean(axis=0), response - response.mean()
    if float(centred @ centred) <= 1e-18 * float(response @ response):
        return RandomizationResult(0.0, np.zeros(permutations))
    vectors, singular, _ = np.linalg.svd(design, full_matrices=False)
    no_offset = np.zeros(vectors.shape[1])
    shuffled = np.stack([rng.permutation(centred) for _ in range(permutations)], axis=1)
    gains = _best_loo_r2(vectors, singular, np.column_stack([centred, shuffled]), no_offset)
    return RandomizationResult(float(gains[0]), gains[1:])


@dataclass(frozen=True)
class Significance:
    """The result of a randomization test of a judge.

    Attributes:
        p_value: p-value; with one round at least `smallest_p`, 1 if the judge preferred nothing.
        loo_r2: leave-one-out R² over all responses; 0 if the judge preferred nothing.
        smallest_p: smallest p that this number of flips of one round can give.
        null_r2: this R² after random exchanges, `(flips,)`; None with several rounds.
    """

    p_value: float
    loo_r2: float
    smallest_p: float
    null_r2: Floats | None = None

    @property
    def p_is_bound(self) -> bool:
        """Whether p is only an upper bound: the smallest that this number of flips can give."""
        return self.p_value <= self.smallest_p * (1.0 + 1e-12)


@dataclass(frozen=True)
class RandomizationTest:
    """The test of a judge's responses, by all features or by one.

    Attributes:
        response: the judge's responses, in the order of the pairs' numbers.
        space: the feature space.
        schedule: the pairs of each round; None for one round.

    Examples:
        >>> from llm_elicit.comparisons.table import Choices
        >>> space = FeatureSpace.load("penguins")
        >>> rng = np.random.default_rng(0)
        >>> a, b = space.sample(80, rng), space.sample(80, rng)
        >>> heavier = (a[:, 3] > b[:, 3]).astype(float)
        >>> schedule = Schedule((range(40), range(40, 60), range(60, 80)))
        >>> response = Response.from_choices(Choices(a, b, heavier, np.arange(80)))
        >>> RandomizationTest(response, space, schedule).run(199, rng).p_value < 1e-4
        True
    """

    response: Response
    space: FeatureSpace
    schedule: Schedule | None = None

    def run(self, flips: int, rng: np.random.Generator, feature: int | None = None) -> Significance:
        """Test all features, or one alone; `flips` is the number for each round."""
        if len(self.response) < 2:
            return Significance(1.0, 0.0, 1.0 / (1 + flips), np.zeros(flips))
        tests = [self._test_span(span, flips, rng, feature) for span in self.spans]
        full_span = 0, len(self.response)
        is_whole = self.spans == [full_span]
        overall = tests[0] if is_whole else self._test_span(full_span, 0, rng, feature)
        p_value = tests[0].p_value if tests else 1.0
        if len(tests) > 1:
            p_values = [test.p_value_breaking_ties(rng) for test in tests]
            squares = np.square(self.response.value).cumsum()
            energy = squares / squares[-1]  # for responses with a mean square of one
            ends = [energy[end - 1] ** 2 for _, end in self.spans]
            weights = np.sqrt(np.diff(ends, prepend=0.0))
            p_value = float(stats.combine_pvalues(p_values, "stouffer", weights).pvalue)
        level_share = self.level_share
        null = overall.null_statistics if is_whole and level_share == 1.0 else None
        floor = min(1.0, 1.0 / (1 + flips) / level_share)
        return Significance(min(1.0, p_value / level_share), overall.statistic, floor, null)

    def run_partial(self, flips: int, rng: np.random.Generator, feature: int) -> Significance:
        """Test one feature given the others, by linear and quadratic columns without products.

        With several rounds, or too few pairs for the columns of the other features, the feature is
        tested alone.
        """
        n = len(self.response)
        several_rounds = self.schedule is not None and len(self.schedule.pairs) > 1
        if several_rounds or n < 2:
            return self.run(flips, rng, feature=feature)
        design, owners = self.designs[n]
        other_columns = design[:, (owners >= 0) & (owners != feature)]
        if n < _PAIRS_PER_COLUMN * other_columns.shape[1]:
            return self.run(flips, rng, feature=feature)
        columns = design[:, owners == feature]
        test = partial_sign_flip_test(columns, other_columns, self.response.variants, flips, rng)
        gain = sign_flip_test(columns, [self.response.value], 0, rng).statistic
        return Significance(test.p_value, gain, 1.0 / (1 + flips))

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """First row and end of each round; a round in which nothing is preferred joins the next.

        If the last rounds have no preference, they are not tested: there is nothing to test in
        them, and their points depend on answers that are exchanged.
        """
        ends = self._round_ends
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
    def level_share(self) -> float:
        """The share of the level available for this number of rounds; 1 without a stopping rule."""
        ends = self._round_ends
        if self.schedule is None or not self.schedule.may_end or len(ends) < 2:
            return 1.0
        complete = ends[-1] > ends[-2]
        return 0.5 if complete else 0.5 / (len(ends) - 1)

    @cached_property
    def designs(self) -> dict[int, tuple[Floats, Index]]:
        """`feature_differences` of the rows up to each round's end, and of all, by that end."""
        ends = {len(self.response), *(end for _, end in self.spans)}
        return {end: feature_differences(self.response.head(end), self.space) for end in ends}

    @property
    def _round_ends(self) -> list[int]:
        """The end of each planned round among the rows."""
        rounds = () if self.schedule is None else self.schedule.pairs
        ends: list[int] = np.searchsorted(self.response.pair, [r.stop for r in rounds]).tolist()
        return ends

    def _test_span(
        self, span: tuple[int, int], flips: int, rng: np.random.Generator, feature: int | None
    ) -> RandomizationResult:
        start, end = span
        columns, owners = self.designs[end]
        if feature is not None:
            columns = columns[:, owners == feature]
        return sign_flip_test(columns, self.response.head(end).variants, flips, rng, start)


def feature_differences(pairs: Response, space: FeatureSpace) -> tuple[Floats, Index]:
    """Return φ(a) − φ(b), `(n, p)`, scaled to unit mean square, and each column's feature, `(p,)`.

    φ consists of the linear terms (for a categorical feature, the coordinates of its simplex), the
    squares of numbers, and products of two features (−1) if n is at least twice the number of
    columns.
    """
    standardizer = Standardizer.of(space, np.concatenate([pairs.a, pairs.b]))
    a, b = standardizer(pairs.a), standardizer(pairs.b)
    column_features = standardizer.column_features
    is_number = ~space.categorical[column_features]
    columns = [a - b, (a**2 - b**2)[:, is_number]]
    owners = [column_features, column_features[is_number]]
    i, j = np.triu_indices(a.shape[1], k=1)
    i, j = i[column_features[i] != column_features[j]], j[column_features[i] != column_features[j]]
    if len(a) >= 2 * (len(column_features) + int(is_number.sum()) + len(i)):
        columns.append(a[:, i] * a[:, j] - b[:, i] * b[:, j])
        owners.append(np.full(len(i), -1))
    design = np.concatenate(columns, axis=1)
    scale = np.sqrt((design**2).mean(axis=0))
    return design / np.where(scale > 0, scale, 1.0), np.concatenate(owners)


def leave_one_out_residuals(design: Floats, response: Floats, side: Floats) -> Floats:
    """Return leave-one-out residuals `(n,)` of the ridge regression with the best penalty.

    The coefficient of `side` `(n,)`, a position effect, is estimated beside it without a penalty.
    """
    direction = side / max(float(np.linalg.norm(side)), 1.0)
    design = design - np.outer(direction, direction @ design)
    response = response - direction * (direction @ response)
    vectors, singular, _ = np.linalg.svd(design, full_matrices=False)
    candidates = []
    for penalty in _PENALTIES:
        fitted, leverage = _fit_ridge(vectors, singular, vectors.T @ response, penalty)
        candidates.append((response - fitted) / (1.0 - leverage - direction**2))
    return min(candidates, key=lambda residual: float(residual @ residual))


def _best_loo_r2(vectors: Floats, singular: Floats, responses: Floats, offset: Floats) -> Floats:
    """Return the largest leave-one-out gain over penalties, for each column of `responses`.

    For a linear smoother H leave-one-out residuals are (z − Hz)_i / (1 − H_ii); H depends on the
    points only, so the columns share it. `offset` `(p,)` is the contribution of rows that are not
    evaluated to the rotated responses.
    """
    total, rotated = (responses**2).sum(axis=0), vectors.T @ responses + offset[:, None]
    best = np.full(responses.shape[1], -np.inf)
    for penalty in _PENALTIES:
        fitted, leverage = _fit_ridge(vectors, singular, rotated, penalty)
        residual = (responses - fitted) / (1.0 - leverage)[:, None]
        best = np.maximum(best, 1.0 - (residual**2).sum(axis=0) / total)
    return best


def _fit_ridge(
    vectors: Floats, singular: Floats, rotated: Floats, penalty: float
) -> tuple[Floats, Floats]:
    """Return fitted values of rotated responses `(p, ...)`, and each row's leverage `(n,)`."""
    shrink = singular**2 / (singular**2 + penalty * len(singular))
    return vectors @ (shrink * rotated.T).T, (vectors**2) @ shrink


def _orthonormal_basis(columns: Floats) -> Floats:
    """Return an orthonormal basis `(n, r)` of the span of columns `(n, p)`."""
    vectors, singular, _ = np.linalg.svd(columns, full_matrices=False)
    tolerance = 1e-9 * max(1.0, float(singular.max(initial=0.0)))
    return np.asarray(vectors[:, singular > tolerance])


_PERMUTATIONS_PER_CHUNK = 500  # permutations at a time
_MIN_VARIANCE = 1e-3  # of the mean square of the values
_TURNS = 6
_GAIN_SD, _MIN_GAIN = 0.5, 0.1  # of the logarithms of gains


@dataclass(frozen=True)
class PresentedRows:
    """A ridge regression of measurements by the linear and square terms of their points.

    Attributes:
        columns: (n, p) differences of the points' terms, of mean square one.
        value: (n,) measurements over the gains of their presentations.
        noise: (n,) their variances.
        label: (n,) numbers of the presentations.
        pair: (n,) numbers of the pairs.
        variance: variance of a coefficient.
    """

    columns: Floats
    value: Floats
    noise: Floats
    label: Index
    pair: Index
    variance: float

    @classmethod
    def of(
        cls, columns: Floats, value: Floats, noise: Floats, label: Index, pair: Index
    ) -> PresentedRows:
        """Return the regression of values with the gains of presentations still in them."""
        total = float(np.square(value).mean())
        noise = np.maximum(noise, _MIN_VARIANCE * total + 1e-300)
        content = max(total - float(noise.mean()), _MIN_VARIANCE * total + 1e-300)
        variance, gain = content / columns.shape[1], np.ones(len(value))
        for _ in range(_TURNS):
            rows = cls(columns, value / gain, noise / np.square(gain), label, pair, variance)
            gain = gain * rows.gains()[label]
        return rows

    @property
    def count(self) -> int:
        """The number of presentations."""
        return int(self.label.max()) + 1

    def residuals(self) -> tuple[Floats, Floats]:
        """Return residuals over their variance, and predictions from the other rows (n,)."""
        weighted, diagonal = self._solve(math.sqrt(self.variance) * self.columns)
        return weighted, self.value - weighted / diagonal

    def _solve(self, root: Floats) -> tuple[Floats, Floats]:
        """Return C⁻¹ y and the diagonal of C⁻¹ (n,), with C = R Rᵀ + noise of a root R (n, q)."""
        scaled = root / self.noise[:, None]
        inner = np.linalg.inv(root.T @ scaled + np.eye(root.shape[1]))
        weighted = self.value / self.noise - scaled @ (inner @ (scaled.T @ self.value))
        return weighted, 1.0 / self.noise - np.einsum("nq,qr,nr->n", scaled, inner, scaled)

    def gains(self) -> Floats:
        """Return the presentations' gains over those assumed (W,), of geometric mean one.

        Their logarithms are shrunk as under a normal prior.
        """
        predicted = self.residuals()[1]
        squares = np.bincount(self.label, predicted**2 / self.noise, self.count)
        products = np.bincount(self.label, predicted * self.value / self.noise, self.count)
        is_identified = squares > 0.0
        ratio = np.where(is_identified, products, 1.0) / np.where(is_identified, squares, 1.0)
        ratio = np.maximum(ratio, _MIN_GAIN)
        precision = squares * np.square(ratio)
        logs = np.log(ratio) * precision / (precision + _GAIN_SD**-2.0)
        return np.asarray(np.exp(logs - logs.mean()))

    def interaction_p_value(self, rng: np.random.Generator, permutations: int) -> float:
        """Return p of the test that nothing depends on the presentation."""
        scores = [self.interaction_scores(self.label[:, None])]
        for start in range(0, permutations, _PERMUTATIONS_PER_CHUNK):
            labels = self._permuted_labels(min(_PERMUTATIONS_PER_CHUNK, permutations - start), rng)
            scores.append(self.interaction_scores(labels))
        return share_reached(np.concatenate(scores))

    def _permuted_labels(self, count: int, rng: np.random.Generator) -> Index:
        """Return labels (n, count) permuted over pairs that have as many presentations."""
        labels = np.repeat(self.label[:, None], count, axis=1)
        numbers = np.unique(self.pair, return_inverse=True)[1].reshape(-1)
        multiplicity = np.bincount(numbers)[numbers]
        for times in np.unique(multiplicity):
            rows = np.flatnonzero(multiplicity == times)
            sets = rows[np.argsort(numbers[rows], kind="stable")].reshape(-1, times)
            for column in range(count):
                labels[sets, column] = self.label[rng.permutation(sets)]
        return labels

    def interaction_scores(self, labels: Index) -> Floats:
        """Return the score of ρ² at 0 for each column of labels (n, k)."""
        weighted, predicted = (values[:, None] for values in self.residuals())
        precision = 1.0 / self.noise[:, None]
        squares, total = np.square(self.columns).sum(axis=1), np.zeros(labels.shape[1])
        for number in range(self.count):
            within = labels == number
            size = (within * precision * predicted**2).sum(axis=0)
            slope = (within * weighted * predicted).sum(axis=0) / np.where(size > 0.0, size, 1.0)
            deviations = within * (weighted - precision * predicted * slope)
            total += np.square(self.columns.T @ deviations).sum(axis=0)
            total -= squares @ np.square(deviations)
        return total

    def common_scores(self, signs: Floats) -> Floats:
        """Return what presentations have in common, for each row of their signs (k, W)."""
        labels = np.arange(self.count)[:, None] == self.label
        sums = (labels * (self.value / self.noise)) @ self.columns
        products = sums @ sums.T
        np.fill_diagonal(products, 0.0)
        return np.asarray((signs @ products * signs).sum(axis=1))

    def coefficients(self, interaction: float) -> Floats:
        """Return posterior means (1 + W, p) of coefficients, first of those in common.

        ``interaction`` is ρ². Those of a presentation are the sum of the common and its own.
        """
        within = [(self.label == number)[:, None] for number in range(self.count)]
        particular = [math.sqrt(interaction) * self.columns * rows for rows in within]
        root = np.concatenate([self.columns, *particular], axis=1)
        weighted = self._solve(math.sqrt(self.variance) * root)[0]
        by_presentation = (np.arange(self.count)[:, None] == self.label) * weighted
        slopes = np.concatenate([weighted[None], interaction * by_presentation]) @ self.columns
        slopes[1:] += slopes[0]
        return np.asarray(self.variance * slopes)


def share_reached(scores: Floats) -> float:
    """Return the share of scores (1 + k,) that are at least the first.

    Examples:
        >>> share_reached(np.array([2.0, 1.0, 3.0, 0.0]))
        0.5
    """
    return float((scores >= scores[0] - 1e-9 * abs(scores[0])).mean())
