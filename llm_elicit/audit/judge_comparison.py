"""Comparison of judges: agreement of their preferences, differences of their beliefs, and ranking.

Agreement of preferences does not depend on the power of the utilities; the distances between
beliefs, and from the data, do.

All intervals are over draws of the beliefs' posteriors (`llm_elicit.density.BeliefDraws`): two
judges are compared over all pairs of draws, one of each. p-values of several comparisons are
Holm-adjusted (1979). An exact test, which needs no beliefs, compares the answers of two judges to
the questions that both were asked; its p-value is not adjusted.

Every judge is compared with the data of its own run, in standard deviations of these data. Beliefs
are compared with each other in standard deviations of the data of all runs together. The result
does not depend on the order of the judges.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
from pydantic import computed_field
from scipy.stats import rankdata

from llm_elicit import density
from llm_elicit._util.settings import StrictModel
from llm_elicit.audit.distances import Marginals, distance_between_halves
from llm_elicit.audit.inference import (
    Interval,
    holm_adjust,
    interval_columns,
    posterior_interval,
    share_interval,
)
from llm_elicit.audit.people import PairAnswers, PeoplePreference, estimate_people_preference
from llm_elicit.audit.preference import CONSISTENT_VERDICTS
from llm_elicit.audit.reference import Reference
from llm_elicit.audit.repeats import judges_differ
from llm_elicit.comparisons.table import Choices, Comparisons
from llm_elicit.errors import InputError
from llm_elicit.planning.presentations import name_facets
from llm_elicit.spaces.features import FeatureSpace, Floats

Progress = Callable[[str, int, int], None]
_CREDIBLE_LEVEL = 0.9
"""Probability of the credible intervals of distances and differences."""
_TEST_LEVEL = 0.05  # not `AuditSettings.level`, in which the runs may differ
"""Level of the tests of features and ranks."""
_SAMPLING_POINTS = 2000
"""Number of draws from λ at which utilities are ranked."""


class JudgeAgreement(StrictModel):
    """The agreement of two judges' preferences, which does not depend on the power of a utility.

    Attributes:
        first, second: the judges.
        pairs: number of pairs in which both have a preference.
        same_choice_share: share of these pairs in which both prefer the same point, with Wilson's
            95 % interval; 1/2 for unrelated judges. None without a pair.
        rank_correlation: Spearman's correlation of the two utilities over draws from λ: the mean
            over pairs of posterior draws, and their central 95 %.
        self_correlation: the same correlation between posterior draws of one judge's own utility,
            as the geometric mean over the two judges. It is the highest mean correlation that the
            posterior uncertainty allows, and equal utilities reach it.
        p_alike: exact p-value of the hypothesis that the two answer alike the questions that both
            were asked, by exchanges of their answers within pairs
            (`llm_elicit.audit.repeats.judges_differ`); None if they share no question.
    """

    first: str
    second: str
    pairs: int
    same_choice_share: Interval | None
    rank_correlation: Interval
    self_correlation: float
    p_alike: float | None = None


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
            (see `llm_elicit.audit.reference`).
        p_holm: p-value that mean and width are equal (for a categorical feature all shares, for a
            periodic one the mean direction), Holm-adjusted over all features.
    """

    name: str
    mean: Interval | None = None
    log_sd: Interval | None = None
    shares: dict[str, Interval] | None = None
    distance: Interval
    p_holm: float


class BeliefDifference(StrictModel):
    """The difference of two beliefs.

    Attributes:
        first, second: the judges.
        distance: Wasserstein-1 between marginals, averaged over features: the mean over pairs of
            posterior draws, and their central 90 %.
        floor: the same distance between posterior draws of one judge's own belief, as the mean over
            the two judges. It is the smallest mean distance that the posterior uncertainty allows,
            and equal beliefs reach it.
        features: differences in each feature, the largest first.
        asked_in_different: the facets in which the questions to the two differ, such as "wordings",
            which may be why; empty if none do.
    """

    first: str
    second: str
    distance: Interval
    floor: float
    features: list[FeatureDifference]
    asked_in_different: str = ""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def differing_features(self) -> list[str]:
        """The features that differ at 5 %."""
        return [feature.name for feature in self.features if feature.p_holm < _TEST_LEVEL]


class RankedJudge(StrictModel):
    """A judge and its distance from the data of its run.

    Attributes:
        judge: the judge.
        verdict: the kind of judge, as in the report of its run.
        distance: Wasserstein-1 of the belief's marginals from the data's, averaged over features,
            in standard deviations of the data; None without a belief or data.
        sampling_distance: the distance of λ from the data.
        floor: the distance between two halves of the data.
        best_rank, worst_rank: the ranks that cannot be excluded at 5 %; judges whose ranks overlap
            are tied. None for a judge that is not ranked.
        reason: why the judge is below the ranking; empty in it.
    """

    judge: str
    verdict: str
    distance: Interval | None = None
    sampling_distance: float | None = None
    floor: float | None = None
    best_rank: int | None = None
    worst_rank: int | None = None
    reason: str = ""

    @property
    def remark(self) -> str:
        """Why the judge is not ranked, or that it is not shown to be nearer to the data than λ."""
        if self.reason or self.distance is None or self.sampling_distance is None:
            return self.reason
        is_nearer = self.distance.high < self.sampling_distance
        return "" if is_nearer else "not shown to be nearer to the data than λ"


class JudgeComparison(StrictModel):
    """Several judges compared.

    Attributes:
        judges: names of the judges.
        agreements, differences: one per pair of judges with beliefs.
        ranking: judges with a preference whose belief is nearer to the data than λ, the nearest
            first. None if no run has data.
        unranked: the judges that are not ranked.
        people: the preference of every judge of people, with the answers of every other judge.
    """

    judges: list[str]
    agreements: list[JudgeAgreement]
    differences: list[BeliefDifference]
    ranking: list[RankedJudge] | None
    unranked: list[RankedJudge]
    people: tuple[PeoplePreference, ...] = ()

    def __repr__(self) -> str:
        """Return the judges; `frame` has the numbers."""
        return f"JudgeComparison({', '.join(self.judges)}; .frame has a row for each two)"

    __str__ = __repr__

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each pair of judges with beliefs: agreement and distance, with intervals."""
        rows = [
            {
                "first": pair.first,
                "second": pair.second,
                "pairs": pair.pairs,
                **interval_columns("choose_alike", pair.same_choice_share),
                **interval_columns("rank_correlation", pair.rank_correlation),
                "self_correlation": pair.self_correlation,
                "p_alike": pair.p_alike,
                **interval_columns("distance", difference.distance),
                "floor": difference.floor,
                "differ_in": ", ".join(difference.differing_features),
            }
            for pair, difference in zip(self.agreements, self.differences, strict=True)
        ]
        return pd.DataFrame(rows)


@dataclass(frozen=True)
class JudgeBelief:
    """One judge to compare.

    Attributes:
        name: the judge's name, which no other judge has.
        verdict: the kind of judge, as in the report of its run.
        choices: the judge's choices.
        belief: the judge's belief; None if it answered too few pairs for one.
        reference: the feature space, λ and the data of its run.
        control: whether the judge is a simulated one beside real judges, see `Campaign.controls`.
        presentations: templates and labels of presentations in which it was asked.
        answers: the table of its answers, and its name there; None if they are not tested.
        people: whether the judge is people.
        random_pairs: the number of its pairs that were drawn from λ; see `PairAnswers`.
    """

    name: str
    verdict: str
    choices: Choices
    belief: density.BeliefDensity | None
    reference: Reference
    control: bool = False
    presentations: frozenset[tuple[str, str]] = frozenset()
    answers: tuple[Comparisons, str] | None = None
    people: bool = False
    random_pairs: int | None = None


def compare_judges(
    judges: Sequence[JudgeBelief], seed: int = 0, progress: Progress | None = None
) -> JudgeComparison:
    """Compare judges of one feature space, in one or several runs.

    Args:
        judges: at least two, of different names, over the same features.
        seed: seed of the posterior draws.
        progress: called as progress(judge, done, total) while beliefs are drawn.

    Raises:
        InputError: if there are fewer than two judges, or two have the same name.
        DensityError: if a belief has no posterior draws.
    """
    judges = sorted(judges, key=lambda judge: judge.name)
    names = [judge.name for judge in judges]
    if len(names) < 2 or len(set(names)) < len(names):
        raise InputError(
            f"compare: {', '.join(names) or 'no judge'}; name at least two different judges"
        )
    # Judges are compared over the data of all runs together and over draws from the λ of every run
    # that lie in the support of all. Runs with the same data, or the same λ, count once.
    references = [judge.reference for judge in judges]
    tables = [reference.data for reference in references if reference.data is not None]
    data = _drop_duplicates(tables)
    samples = _drop_duplicates([reference.sampling for reference in references])
    points_per_run = -(-_SAMPLING_POINTS // len(samples))
    points = np.concatenate([sample[:points_per_run] for sample in samples])
    is_supported = np.all([reference.space.contains(points) for reference in references], axis=0)
    pooled_data = np.concatenate(data) if data else None
    pooled = Reference(references[0].space, points[is_supported], pooled_data)
    draws, marginals, ranks = {}, {}, {}
    for judge in judges:
        if judge.belief is not None:
            name, belief = judge.name, judge.belief
            draws[name] = _sample_posterior(name, belief, seed, progress)
            marginals[name] = Marginals.from_draws(draws[name], pooled.standardizer)
            ranks[name] = _centred_ranks(belief, pooled)
    ranking, unranked = _rank_judges(judges, draws, seed)
    pairs = list(itertools.combinations((judge for judge in judges if judge.name in draws), 2))
    return JudgeComparison(
        judges=names,
        agreements=[
            measure_agreement(left, right, ranks[left.name], ranks[right.name], seed)
            for left, right in pairs
        ],
        differences=[
            _measure_difference(left, right, marginals, pooled.space) for left, right in pairs
        ],
        ranking=None if all(judge.reference.data is None for judge in judges) else ranking,
        unranked=unranked,
        people=_correct_people(judges, seed),
    )


def _correct_people(judges: Sequence[JudgeBelief], seed: int) -> tuple[PeoplePreference, ...]:
    """Return the preference of each judge of people, corrected by the answers of each model."""
    sides = {
        judge.name: PairAnswers(judge.name, judge.answers, judge.random_pairs)
        for judge in judges
        if judge.answers is not None and judge.answers[1] in judge.answers[0].judges
    }
    return tuple(
        estimate_people_preference(sides[person.name], sides[model.name], model.reference, seed)
        for person, model in itertools.product(judges, judges)
        if person.people and not model.people and person.name in sides and model.name in sides
    )


def _different_facets(first: frozenset[tuple[str, str]], second: frozenset[tuple[str, str]]) -> str:
    """Return the facets in which two judges were asked differently; empty if in none."""
    levels = [
        {level for template, label in presented for level in (template, *label.split(", "))}
        for presented in (first, second)
    ]
    return name_facets(levels[0] ^ levels[1]) or ("presentations" if first != second else "")


def _drop_duplicates(arrays: Sequence[Floats]) -> list[Floats]:
    """Return the different arrays, sorted by their bytes."""
    by_content = {array.tobytes(): array for array in arrays}
    return [by_content[content] for content in sorted(by_content)]


def _sample_posterior(
    name: str, belief: density.BeliefDensity, seed: int, progress: Progress | None
) -> density.BeliefDraws:
    number = int(np.random.default_rng([seed, crc32(name.encode())]).integers(2**32))
    if progress is None:
        return belief.draws(seed=number)
    return belief.draws(seed=number, progress=lambda _, done, total: progress(name, done, total))


def measure_agreement(
    first: JudgeBelief,
    second: JudgeBelief,
    first_ranks: Floats,
    second_ranks: Floats,
    seed: int = 0,
) -> JudgeAgreement:
    """Measure agreement over the pairs that both judges were asked, and over draws from λ.

    Args:
        first, second: the judges.
        first_ranks, second_ranks: ranks of their utilities at draws from λ, `(S, k)`, from
            `_centred_ranks`.
        seed: seed of the exchanges of their answers.
    """
    preferences = dict(_canonical_pairs(first.choices))
    same = [
        (q > 0.5) == (preferences[pair] > 0.5)
        for pair, q in _canonical_pairs(second.choices)
        if q != 0.5 and preferences.get(pair, 0.5) != 0.5
    ]
    means = first_ranks.mean(axis=0), second_ranks.mean(axis=0)
    return JudgeAgreement(
        first=first.name,
        second=second.name,
        pairs=len(same),
        same_choice_share=share_interval(np.array(same)),
        rank_correlation=_mean_interval((first_ranks @ second_ranks.T).ravel(), 0.95),
        self_correlation=float(np.linalg.norm(means[0])) * float(np.linalg.norm(means[1])),
        p_alike=_test_alike(first, second, seed),
    )


def _test_alike(first: JudgeBelief, second: JudgeBelief, seed: int) -> float | None:
    """Return the p-value of equal answers by two judges; None if they share no question."""
    if first.answers is None or second.answers is None:
        return None
    with suppress(InputError):
        return judges_differ([first.answers, second.answers], first.reference.space, seed)
    return None


def _mean_interval(values: Floats, level: float) -> Interval:
    """Return the mean of values `(S,)` with their central interval of this level."""
    central = posterior_interval(values, level)
    return central.model_copy(update={"value": float(values.mean())})


def _centred_ranks(belief: density.BeliefDensity, reference: Reference) -> Floats:
    """Return the ranks `(S, k)` of k draws from λ by S posterior draws of the utility.

    Each row has mean 0 and length 1, so that a product of two rows is Spearman's correlation.
    """
    ranks = rankdata(belief.utilities(reference.sampling), axis=1)
    ranks -= ranks.mean(axis=1, keepdims=True)
    length = np.sqrt(np.square(ranks).sum(axis=1, keepdims=True))
    return np.asarray(ranks / np.where(length > 0, length, 1.0))


def _canonical_pairs(choices: Choices) -> list[tuple[bytes, float]]:
    """Return pairs in an order that does not depend on which point was called a."""
    rows = []
    for a, b, q in zip(choices.a, choices.b, choices.preference.tolist(), strict=True):
        forward = tuple(a) <= tuple(b)
        first, second = (a, b) if forward else (b, a)
        rows.append((first.tobytes() + second.tobytes(), q if forward else 1.0 - q))
    return rows


def _measure_difference(
    first: JudgeBelief, second: JudgeBelief, marginals: Mapping[str, Marginals], space: FeatureSpace
) -> BeliefDifference:
    left, right = marginals[first.name], marginals[second.name]
    distances = left.pairwise_distances(right)
    mean = _pairwise_differences(left.mean, right.mean)
    log_sd = _pairwise_differences(left.log_sd, right.log_sd)
    shares = {j: _pairwise_differences(left.shares[j], right.shares[j]) for j in left.shares}
    resultants = {
        j: _pairwise_differences(left.resultant(j), right.resultant(j))
        for j in left.periodic_shares
    }
    # Bonferroni-adjusted within a feature: a number has two tests, of mean and width; K categories
    # have K, or one if K = 2; a circle has two, of the coordinates of its mean unit vector.
    smaller = np.minimum(_two_sided_p_values(mean), _two_sided_p_values(log_sd))
    p_values = np.minimum(1.0, 2.0 * smaller)
    for j, draws in {**shares, **resultants}.items():
        tests = draws.shape[1] if draws.shape[1] > 2 or j in resultants else 1
        p_values[j] = min(1.0, tests * float(_two_sided_p_values(draws).min()))
    features, adjusted = [], holm_adjust(p_values).tolist()
    for j, feature in enumerate(space.features):
        measured: dict[str, Any] = {"name": feature.name, "p_holm": adjusted[j]}
        measured["distance"] = _mean_interval(distances[:, j], _CREDIBLE_LEVEL)
        if j in shares:
            intervals = [posterior_interval(share, _CREDIBLE_LEVEL) for share in shares[j].T]
            measured["shares"] = dict(zip(feature.categories, intervals, strict=True))
        elif j not in resultants:
            measured["mean"] = posterior_interval(mean[:, j], _CREDIBLE_LEVEL)
            measured["log_sd"] = posterior_interval(log_sd[:, j], _CREDIBLE_LEVEL)
        features.append(FeatureDifference(**measured))
    features.sort(key=lambda difference: -difference.distance.value)
    own_distances = [float(side.pairwise_distances(side).mean()) for side in (left, right)]
    return BeliefDifference(
        first=first.name,
        second=second.name,
        distance=_mean_interval(distances.mean(1), _CREDIBLE_LEVEL),
        floor=0.5 * sum(own_distances),
        features=features,
        asked_in_different=_different_facets(first.presentations, second.presentations),
    )


def _pairwise_differences(first: Floats, second: Floats) -> Floats:
    """Return the differences of all pairs of draws, one of each (S·T, d)."""
    return np.asarray((first[:, None] - second).reshape(-1, first.shape[1]))


def _two_sided_p_values(difference: Floats) -> Floats:
    """Return the two-sided posterior p-value (d,) of differences (S, d) from zero."""
    count = len(difference)
    below = (1 + (difference <= 0).sum(0)) / (1 + count)
    above = (1 + (difference >= 0).sum(0)) / (1 + count)
    return np.asarray(np.minimum(1.0, 2.0 * np.minimum(below, above)))


def _rank_judges(
    judges: Sequence[JudgeBelief], draws: Mapping[str, density.BeliefDraws], seed: int
) -> tuple[list[RankedJudge], list[RankedJudge]]:
    """Return the ranked and the unranked judges, each from the nearest to the farthest.

    Judges are separated if they differ at 5 %, adjusted as by `order_p_values`.
    """
    distances: dict[str, Floats] = {}
    entries = []
    for judge in judges:
        entry, distance = _measure_data_distance(judge, draws.get(judge.name), seed)
        entries.append(entry)
        if distance is not None and not entry.reason:
            distances[judge.name] = distance
    p_values = order_p_values(distances, {judge.name for judge in judges if judge.control})
    medians = {name: float(np.median(distance)) for name, distance in distances.items()}
    ranges = rank_ranges(medians, p_values)
    entries.sort(key=lambda entry: math.inf if entry.distance is None else entry.distance.value)
    ranked = []
    for entry in entries:
        if not entry.reason:
            best, worst = ranges[entry.judge]
            ranked.append(entry.model_copy(update={"best_rank": best, "worst_rank": worst}))
    return ranked, [entry for entry in entries if entry.reason]


def order_p_values(
    distances: Mapping[str, Floats], controls: Set[str]
) -> dict[tuple[str, str], float]:
    """Return the p-value of the order of every two distances, adjusted as by `adjust_orders`."""
    p_values = {}  # two-sided, of the posterior
    for a, b in itertools.combinations(distances, 2):
        differences = distances[a][:, None] - distances[b]
        smaller_tail = min((differences <= 0.0).mean(), (differences >= 0.0).mean())
        p_values[a, b] = min(1.0, 2.0 * (smaller_tail + 1.0 / (1.0 + differences.size)))
    return adjust_orders(p_values, controls)


def adjust_orders(
    p_values: Mapping[tuple[str, str], float], controls: Set[str]
) -> dict[tuple[str, str], float]:
    """Return the Holm-adjusted p-values of pairs of judges.

    A pair with a control is adjusted over all pairs; a pair of real judges over these alone.
    """
    values = np.array(list(p_values.values()))
    real = np.array([controls.isdisjoint(pair) for pair in p_values], dtype=bool)
    adjusted = np.where(real, holm_adjust(values, real.tolist()), holm_adjust(values))
    return dict(zip(p_values, adjusted.tolist(), strict=True))


def rank_ranges(
    scores: Mapping[str, float], p_values: Mapping[tuple[str, str], float]
) -> dict[str, tuple[int, int]]:
    """Return the best and the worst rank, lowest score first, that cannot be excluded at 5 %.

    Examples:
        >>> p_values = {("a", "b"): 0.4, ("a", "c"): 0.01, ("b", "c"): 0.02}
        >>> rank_ranges({"a": 0.1, "b": 0.2, "c": 0.9}, p_values)
        {'a': (1, 2), 'b': (1, 2), 'c': (3, 3)}
    """
    best_rank, worst_rank = dict.fromkeys(scores, 1), dict.fromkeys(scores, len(scores))
    for pair, p in p_values.items():
        if p < _TEST_LEVEL:
            lower, higher = sorted(pair, key=scores.__getitem__)
            best_rank[higher] += 1
            worst_rank[lower] -= 1
    return {name: (best_rank[name], worst_rank[name]) for name in scores}


def _measure_data_distance(
    judge: JudgeBelief, draws: density.BeliefDraws | None, seed: int
) -> tuple[RankedJudge, Floats | None]:
    """Return a judge's entry without its rank, and the distance of every draw from its data."""
    reference, data, distance = judge.reference, judge.reference.data, None
    fields: dict[str, Any] = {"judge": judge.name, "verdict": judge.verdict}
    if data is not None:
        standardizer = reference.standardizer
        data_marginals = Marginals.from_points(data, standardizer)
        sampling_marginals = Marginals.from_points(reference.sampling, standardizer)
        fields["sampling_distance"] = float(sampling_marginals.distance(data_marginals).mean())
        fields["floor"] = distance_between_halves(data, standardizer, seed)
        if draws is not None:
            distance = Marginals.from_draws(draws, standardizer).distance(data_marginals).mean(1)
            fields["distance"] = posterior_interval(distance, _CREDIBLE_LEVEL)
    if judge.verdict not in CONSISTENT_VERDICTS:
        fields["reason"] = judge.verdict
    elif judge.belief is None:
        fields["reason"] = "no belief: fewer answered pairs than features"
    elif "distance" not in fields:
        fields["reason"] = "its run has no data"
    elif fields["distance"].value >= fields["sampling_distance"]:
        fields["reason"] = "no nearer to the data than λ"
    return RankedJudge(**fields), distance
