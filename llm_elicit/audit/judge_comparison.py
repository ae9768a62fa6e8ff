"""Comparison of judges: agreement of their preferences, differences of their beliefs, and ranking.

Agreement of preferences does not depend on the power of the utilities; the distances between
beliefs, and from the data, do.

All intervals are over draws of the beliefs' posteriors (`llm_elicit.density.BeliefDraws`), which
are independent between judges: two judges are compared over pairs of draws, one of each. p-values
of several comparisons are Holm-adjusted (1979).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from llm_elicit import density
from llm_elicit.audit.inference import Interval, holm, posterior_interval, wilson
from llm_elicit.audit.reference import Reference
from llm_elicit.audit.two_sample import Marginals, half_distance
from llm_elicit.comparisons.table import Choices
from llm_elicit.config.base_model import StrictModel
from llm_elicit.errors import InputError
from llm_elicit.spaces.features import FeatureSpace, Floats

Progress = Callable[[str, int, int], None]
_LEVEL = 0.9  # of intervals
_ALPHA = 0.05  # of tests
_POINTS = 2000


class Agreement(StrictModel):
    """The agreement of two judges' preferences, which does not depend on the power of a utility.

    Attributes:
        first, second: the judges.
        pairs: number of pairs in which both have a preference.
        share: of these, the share in which both prefer the same point, with Wilson's 95 % interval;
            1/2 for unrelated judges. None without a pair.
        rank_correlation: Spearman's, of the two utilities over draws from λ; 95 % interval.
        rank_ceiling: the same between two posterior draws of one judge's own utility, the smaller
            of the two: what equal utilities with the same uncertainty would have.
    """

    first: str
    second: str
    pairs: int
    share: Interval | None
    rank_correlation: Interval
    rank_ceiling: float


class FeatureDifference(StrictModel):
    """One feature of two beliefs, `first` minus `second`; 90 % intervals.

    Attributes:
        name: the feature.
        mean: difference of means, standard deviations of the reference; None for a categorical
            or periodic feature.
        log_sd: difference of the logarithms of the standard deviations; None likewise.
        shares: differences of a categorical feature's shares, by category; None for a number.
        distance: Wasserstein-1 between the marginals, standard deviations of the reference; for a
            categorical feature, total variation times the distance between any two categories
            (see `llm_elicit.audit.scales`).
        p_holm: that neither mean nor width differs, or no share, or no mean direction, adjusted
            over all features.
    """

    name: str
    mean: Interval | None
    log_sd: Interval | None
    shares: dict[str, Interval] | None = None
    distance: Interval
    p_holm: float


class BeliefDifference(StrictModel):
    """The difference of two beliefs.

    Attributes:
        first, second: the judges.
        distance: Wasserstein-1 between marginals, averaged over features; 90 % interval.
        floor: the same between posterior draws of one judge's own belief, the larger of the two:
            what equal beliefs with the same uncertainty would have.
        features: those that differ most first.
    """

    first: str
    second: str
    distance: Interval
    floor: float
    features: list[FeatureDifference]

    @property
    def differing_features(self) -> list[str]:
        """The features that differ at 5 %."""
        return [feature.name for feature in self.features if feature.p_holm < _ALPHA]


class RankedJudge(StrictModel):
    """A judge's rank by distance from the data, nearest first.

    Attributes:
        judge: the judge.
        distance: Wasserstein-1 of the belief's marginals from the data's, averaged over features.
        best, worst: the ranks that cannot be excluded at 5 %; judges whose ranks overlap are tied.
    """

    judge: str
    distance: Interval
    best: int
    worst: int


class JudgeComparison(StrictModel):
    """Several judges compared.

    Attributes:
        judges: their names.
        sampling: distance of λ from the data; a judge must be nearer to be informative.
        data_floor: distance between halves of the data.
        agreements, differences: one per pair of judges.
        ranking: by distance from the data; None without data.
    """

    judges: list[str]
    sampling: float | None
    data_floor: float | None
    agreements: list[Agreement]
    differences: list[BeliefDifference]
    ranking: list[RankedJudge] | None


@dataclass(frozen=True)
class JudgeBelief:
    """One judge's name, choices and belief."""

    name: str
    choices: Choices
    belief: density.BeliefDensity


def compare_judges(
    judges: Sequence[JudgeBelief],
    reference: Reference,
    seed: int = 0,
    progress: Progress | None = None,
) -> JudgeComparison:
    """Compare judges of one feature space.

    Args:
        judges: at least two, of different names.
        reference: the feature space, λ and the data.
        seed: of the beliefs' draws.
        progress: called as progress(judge, done, total) while beliefs are drawn.

    Raises:
        InputError: if there are fewer than two judges, or two of one name.
        DensityError: if a belief has no posterior draws.
    """
    names = [judge.name for judge in judges]
    if len(names) < 2 or len(set(names)) < len(names):
        raise InputError(f"compare: {', '.join(names) or 'no judge'}; name two or more judges")
    standardizer, data = reference.standardizer, reference.data
    marginals = {
        judge.name: Marginals.of_draws(_draws(judge, [seed, number], progress), standardizer)
        for number, judge in enumerate(judges)
    }
    ranks = {judge.name: _ranks(judge.belief, reference) for judge in judges}
    pairs = list(itertools.combinations(judges, 2))
    of_sampling = Marginals.of_points(reference.sampling, standardizer)
    of_data = None if data is None else Marginals.of_points(data, standardizer)
    return JudgeComparison(
        judges=names,
        sampling=None if of_data is None else float(of_sampling.distance(of_data).mean()),
        data_floor=None if data is None else half_distance(data, standardizer, seed),
        agreements=[
            agreement(one, other, ranks[one.name], ranks[other.name]) for one, other in pairs
        ],
        differences=[
            _difference(one.name, other.name, marginals, reference.space) for one, other in pairs
        ],
        ranking=None if of_data is None else _ranking(marginals, of_data),
    )


def _draws(
    judge: JudgeBelief, seed: Sequence[int], progress: Progress | None
) -> density.BeliefDraws:
    def report(_: str, done: int, total: int) -> None:
        if progress is not None:
            progress(judge.name, done, total)

    number = int(np.random.default_rng(seed).integers(2**32))
    return judge.belief.draws(seed=number, progress=report)


def agreement(one: JudgeBelief, other: JudgeBelief, ranks: Floats, others: Floats) -> Agreement:
    """Measure agreement over the pairs that both judges were asked, and over draws from λ.

    Args:
        one, other: the judges.
        ranks, others: of their utilities at draws from λ, `(S, k)`, from `_ranks`.
    """
    preferences = {_key(a, b): q for a, b, q in _ordered_pairs(one.choices)}
    same = [
        (q > 0.5) == (preferences[key] > 0.5)
        for a, b, q in _ordered_pairs(other.choices)
        if (key := _key(a, b)) in preferences and q != 0.5 and preferences[key] != 0.5
    ]
    count = min(len(ranks), len(others))
    correlations = (ranks[:count] * others[:count]).sum(axis=1)
    return Agreement(
        first=one.name,
        second=other.name,
        pairs=len(same),
        share=wilson(float(np.mean(same)), len(same)) if same else None,
        rank_correlation=posterior_interval(correlations, 0.95),
        rank_ceiling=min(
            float((each[1:] * each[:-1]).sum(axis=1).mean()) for each in (ranks, others)
        ),
    )


def _ranks(belief: density.BeliefDensity, reference: Reference) -> Floats:
    """Return centred ranks `(S, k)`, of length one, of every draw of a utility at draws from λ."""
    ranks = rankdata(belief.utilities(reference.sampling[:_POINTS]), axis=1)
    ranks -= ranks.mean(axis=1, keepdims=True)
    length = np.sqrt(np.square(ranks).sum(axis=1, keepdims=True))
    return np.asarray(ranks / np.where(length > 0, length, 1.0))


def _ordered_pairs(choices: Choices) -> list[tuple[Floats, Floats, float]]:
    """Return pairs in an order that does not depend on which point was called a."""
    rows = []
    for a, b, q in zip(choices.a, choices.b, choices.preference, strict=True):
        rows.append((a, b, float(q)) if tuple(a) <= tuple(b) else (b, a, 1.0 - float(q)))
    return rows


def _key(a: Floats, b: Floats) -> bytes:
    return a.tobytes() + b.tobytes()


def _difference(
    first: str, second: str, marginals: Mapping[str, Marginals], space: FeatureSpace
) -> BeliefDifference:
    one, other = marginals[first], marginals[second]
    count = min(len(one), len(other))
    between = one[:count].distance(other[:count])
    mean, log_sd = _all_pairs(one.mean, other.mean), _all_pairs(one.log_sd, other.log_sd)
    shares = {j: _all_pairs(one.shares[j], other.shares[j]) for j in one.shares}
    turned = {j: _all_pairs(one.resultant(j), other.resultant(j)) for j in one.circles}
    adjusted = holm(_feature_p_values(mean, log_sd, shares, turned))
    apart = shares.keys() | turned.keys()
    features = []
    for j, feature in enumerate(space.features):
        categories = None
        if j in shares:
            columns = zip(feature.categories, shares[j].T, strict=True)
            categories = {name: posterior_interval(each, _LEVEL) for name, each in columns}
        features.append(
            FeatureDifference(
                name=feature.name,
                mean=None if j in apart else posterior_interval(mean[:, j], _LEVEL),
                log_sd=None if j in apart else posterior_interval(log_sd[:, j], _LEVEL),
                shares=categories,
                distance=posterior_interval(between[:, j], _LEVEL),
                p_holm=float(adjusted[j]),
            )
        )
    features.sort(key=lambda difference: -difference.distance.value)
    within = [float(each[1:].distance(each[:-1]).mean()) for each in (one, other)]
    return BeliefDifference(
        first=first,
        second=second,
        distance=posterior_interval(between.mean(1), _LEVEL),
        floor=max(within),
        features=features,
    )


def _feature_p_values(
    mean: Floats, log_sd: Floats, shares: Mapping[int, Floats], circles: Mapping[int, Floats]
) -> Floats:
    """Return a p-value per feature, Bonferroni-adjusted within it.

    A number has two tests, of mean and width; K categories have K, or one if K = 2; a periodic
    feature has two, of the coordinates of its mean unit vector.
    """
    p_values = np.minimum(1.0, 2.0 * np.minimum(_two_sided(mean), _two_sided(log_sd)))
    for j, found in {**shares, **circles}.items():
        tests = found.shape[1] if found.shape[1] > 2 or j in circles else 1
        p_values[j] = min(1.0, tests * float(_two_sided(found).min()))
    return p_values


def _all_pairs(one: Floats, other: Floats) -> Floats:
    """Return the differences of all pairs of draws, one of each (S·T, d)."""
    return np.asarray((one[:, None] - other).reshape(-1, one.shape[1]))


def _two_sided(difference: Floats) -> Floats:
    """Return the two-sided posterior p-value (d,) of differences (S, d) from zero."""
    count = len(difference)
    below = (1 + (difference <= 0).sum(0)) / (1 + count)
    above = (1 + (difference >= 0).sum(0)) / (1 + count)
    return np.asarray(np.minimum(1.0, 2.0 * np.minimum(below, above)))


def _ranking(marginals: Mapping[str, Marginals], data: Marginals) -> list[RankedJudge]:
    """Return ranks with ties: judges are separated if they differ at 5 %, Holm over all pairs."""
    distances = {name: each.distance(data).mean(1) for name, each in marginals.items()}
    pairs = list(itertools.combinations(distances, 2))
    p_values = holm(np.array([_order_p_value(distances[a], distances[b]) for a, b in pairs]))
    nearer = dict.fromkeys(distances, 0)
    farther = dict.fromkeys(distances, 0)
    for (a, b), p in zip(pairs, p_values, strict=True):
        if p < _ALPHA:
            near, far = (a, b) if np.median(distances[a]) < np.median(distances[b]) else (b, a)
            nearer[far] += 1
            farther[near] += 1
    ranked = sorted(distances, key=lambda name: float(np.median(distances[name])))
    return [
        RankedJudge(
            judge=name,
            distance=posterior_interval(distances[name], _LEVEL),
            best=1 + nearer[name],
            worst=len(ranked) - farther[name],
        )
        for name in ranked
    ]


def _order_p_value(one: Floats, other: Floats) -> float:
    """Return the two-sided posterior p-value of the order of two distances (S,) and (T,)."""
    less = float((one[:, None] <= other).mean())
    more = float((one[:, None] >= other).mean())
    return min(1.0, 2.0 * (min(less, more) + 1.0 / (1.0 + one.size * other.size)))
