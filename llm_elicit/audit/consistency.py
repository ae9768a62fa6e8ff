"""The consistency of a judge's answers: order bias, agreement, transitivity.

A judge with no preference for a position chooses option A half the time over both orders of the
same pairs, and picks the same point whichever is shown first.

*Transitivity.* Three pairs that join the same three points are a *triad*. If a is preferred to b, b
to c and c to a, the choices form a *cycle*, the circular triad of Kendall and Babington Smith
(1940), which no utility explains. Random choices give a cycle in a quarter of all triads, and a
Bradley–Terry judge gives some where the points are close in utility.

*The number of cycles cannot separate cyclic preferences from noise.* Over points drawn from λ the
probability of a cycle is 1/4 − 3/4 E[m²], with m the mean over λ of 2 P(point preferred) − 1: it
depends only on how often each point is preferred overall, and the best-fitting Bradley–Terry judge
has the same m. A judge with cyclic preferences gives the 1/4 of random choices. Repeating the
questions does separate them (Tversky 1969), because independent noise seldom repeats itself. So the
test counts *repeated* cycles, which occur in both presentation orders. If answers are independent
given the points, and a pair's preference averaged over orders is p, both orders agree on it with
probability at most p², whatever the order bias; random choices give a repeated cycle in 1/32 of
triads.

A judge whose noise is the same whenever it sees a pair (a model at temperature 0) gives repeated
cycles too: its preferences are cyclic, though only because its errors are fixed.

*Nonresponse by region.* If answers are missing in some regions only, the belief rests on fewer
comparisons there than their total number suggests.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from scipy import sparse, stats
from scipy.linalg import orth

from llm_elicit import density
from llm_elicit._util.settings import StrictModel
from llm_elicit.audit.inference import (
    Interval,
    holm_adjust,
    share_interval,
    t_interval,
    wilson_interval,
)
from llm_elicit.comparisons.table import Choices, Comparisons
from llm_elicit.comparisons.table_files import VERDICTS
from llm_elicit.errors import InputError
from llm_elicit.spaces.features import FeatureSpace, Floats


class Consistency(StrictModel):
    """One judge's consistency; None if the questions asked do not allow a measurement.

    Attributes:
        answers: number of answers.
        verdict_counts: number of answers by how they were read.
        pairs: number of pairs with at least one choice.
        soft_share: share of the choices that have a probability from token log-probabilities.
        order_bias: P(option A chosen) − 1/2 from the verdicts A and B, in [−1/2, 1/2].
        soft_order_bias: the mean probability of option A, minus 1/2, from soft judgments.
        agreement: share of pairs asked in both orders whose verdicts pick the same point;
            1/2 for random choices, 0 for a judge who always says A.
        retest_agreement: share of pairs of answers to the same question in the same order that pick
            the same point; 1/2 for random choices, 1 for a judge who never varies.
        likelier_letter_share: share of the choices with a probability from token log-probabilities
            in which the reply is the likelier letter.
        swap_difference: mean |P(a preferred | a first) − P(a preferred | b first)|; 0 if the order
            does not matter.
        decisiveness: mean |preference − 1/2| over pairs; 1/2 for a judge who is always certain.
    """

    answers: int
    verdict_counts: dict[str, int]
    pairs: int
    soft_share: float | None
    order_bias: Interval | None
    soft_order_bias: Interval | None
    agreement: Interval | None
    retest_agreement: Interval | None = None
    likelier_letter_share: Interval | None = None
    swap_difference: float | None
    decisiveness: float | None


def measure_consistency(comparisons: Comparisons, judge: str, choices: Choices) -> Consistency:
    """Measure one judge. Order bias and agreement need pairs asked in both orders.

    With one order only, a preference for a point and one for a position cannot be distinguished.
    """
    rows = comparisons.answers_of(judge)
    counts = rows["verdict"].value_counts()
    choice_rows = rows[rows["probability"].notna()]
    first = (choice_rows["order"] == "ab").to_numpy()
    probability = choice_rows["probability"].to_numpy(np.float64)
    table = choice_rows[["pair"]].assign(
        first=first,
        soft=choice_rows["soft"].astype(bool),
        a_preferred=probability,
        option_a=np.where(first, probability, 1.0 - probability),
        said_a=(choice_rows["verdict"] == "A").astype(float),
        hard=choice_rows["verdict"].isin(["A", "B"]),
    )
    balanced = table[table.groupby("pair")["first"].transform("nunique") == 2]
    letters = balanced[balanced["hard"]]
    swap_difference = None
    if len(balanced):
        means = balanced.groupby(["pair", "first"])["a_preferred"].mean().unstack()
        swap_difference = float(np.abs(means[True] - means[False]).mean())
    soft_letters = table[table["hard"] & table["soft"]]
    is_likelier_letter = (soft_letters["option_a"] > 0.5) == (soft_letters["said_a"] == 1)
    return Consistency(
        answers=len(rows),
        verdict_counts={verdict: int(counts.get(verdict, 0)) for verdict in VERDICTS},
        pairs=len(choices),
        soft_share=float(table["soft"].mean()) if len(table) else None,
        order_bias=_measure_order_bias(letters),
        soft_order_bias=_measure_soft_order_bias(balanced[balanced["soft"]]),
        agreement=_measure_order_agreement(letters),
        retest_agreement=_measure_retest_agreement(table[table["hard"]]),
        likelier_letter_share=_share_by_pair(is_likelier_letter, soft_letters["pair"]),
        swap_difference=swap_difference,
        decisiveness=float(np.abs(choices.preference - 0.5).mean()) if len(choices) else None,
    )


def _measure_order_bias(letters: pd.DataFrame) -> Interval | None:
    """Return the order bias of verdicts, with the two orders of a pair weighted equally.

    Answers to one pair are correlated, so the interval is Wilson's for the effective sample size
    share (1 − share) / Var(share), with the variance between pairs. The effective sample size is at
    most the number of answers, because a variance that happens to be 0 does not mean certainty.
    """
    by_pair, answers = _mean_by_pair(letters, "said_a")
    if not answers:
        return None
    share, n = float(by_pair.mean()), len(by_pair)
    variance = float(by_pair.var(ddof=1)) / n if n > 1 else 0.0
    binomial = share * (1 - share)
    effective = min(binomial / variance, float(answers)) if variance else float(answers)
    bias = wilson_interval(share, effective if binomial else float(n))
    return Interval(value=bias.value - 0.5, low=bias.low - 0.5, high=bias.high - 0.5)


def _measure_soft_order_bias(soft: pd.DataFrame) -> Interval | None:
    """Return the order bias of probabilities, with Student's interval over pairs."""
    by_pair, _ = _mean_by_pair(soft, "option_a")
    if len(by_pair) < 2:
        return None
    bias = t_interval(by_pair)
    low, high = max(0.0, bias.low), min(1.0, bias.high)
    return Interval(value=bias.value - 0.5, low=low - 0.5, high=high - 0.5)


def _measure_order_agreement(letters: pd.DataFrame) -> Interval | None:
    """Return the share of pairs where both orders pick the same point, replicates averaged."""
    picked_a = (letters["said_a"] == 1) == letters["first"]
    by_order = picked_a.astype(float).groupby([letters["pair"], letters["first"]]).mean().unstack()
    rates = by_order.reindex(columns=[False, True]).dropna().to_numpy(np.float64)
    return share_interval(rates.prod(axis=1) + (1.0 - rates).prod(axis=1))


def _measure_retest_agreement(letters: pd.DataFrame) -> Interval | None:
    """Return the agreement of repeated answers, questions weighted equally within a pair."""
    repeated = letters.groupby(["pair", "first"])["said_a"].agg(["sum", "count"])
    repeated = repeated[repeated["count"] > 1]
    said_a, count = repeated["sum"], repeated["count"]
    same = (said_a * (said_a - 1) + (count - said_a) * (count - said_a - 1)) / (count * (count - 1))
    return _share_by_pair(same, repeated.index.get_level_values("pair"))


def _share_by_pair(same: pd.Series[Any], pair: Any) -> Interval | None:
    """Return the mean over pairs of the share of answers that are the same; None without any."""
    return share_interval(same.groupby(pair).mean().to_numpy(np.float64))


def _mean_by_pair(table: pd.DataFrame, column: str) -> tuple[Floats, int]:
    """Return the means of `column` of the pairs asked in both orders, weighted equally.

    The second value is the number of answers that the means are taken over.
    """
    table = table[table.groupby("pair")["first"].transform("nunique") == 2]
    by_order = table.groupby(["pair", "first"])[column].mean()
    return by_order.groupby(level="pair").mean().to_numpy(np.float64), len(table)


Index = npt.NDArray[np.int64]
_RANDOM_CYCLE_SHARE = 0.25
"""Share of triads that are cycles if choices are random."""
_ROUNDING = 1e-9
"""Rounding error up to which a sum of probabilities counts as a whole number of cycles."""


class Transitivity(StrictModel):
    """Cycles among a judge's triads; None if the questions or the belief for them are missing.

    Attributes:
        triads: number of triads; no two share a pair.
        cycle_share: the share of triads that are cycles, with one answer drawn for each pair; soft
            judgments and pairs whose answers differ count by the probability of a cycle. 1/4 for
            random choices.
        expected_cycle_share: the share of cycles that the belief predicts.
        p_random: probability that random choices give as few cycles.
        repeated_cycle_share: the share of triads that are cycles in both presentation orders, among
            those whose pairs were all answered in both. At most 1/32 for random choices.
        expected_repeated_share: upper bound of the share of repeated cycles that the belief
            predicts.
        p_value: probability that a Bradley–Terry judge gives as many repeated cycles.
    """

    triads: int
    cycle_share: Interval
    expected_cycle_share: float | None
    p_random: float
    repeated_cycle_share: Interval | None
    expected_repeated_share: float | None
    p_value: float | None


@dataclass(frozen=True)
class Triads:
    """The triads among a judge's answers.

    Attributes:
        corners: the points a, b and c of each triad, `(t, 3, d)`, natural units.
        preference: preferences for a over b, b over c and c over a, averaged over replicates, by
            presentation order, `(t, 3, 2)` in [0, 1]; NaN for an order that was not answered.
    """

    corners: Floats
    preference: Floats

    def __len__(self) -> int:
        return len(self.corners)


def find_triads(comparisons: Comparisons, judge: str) -> Triads:
    """Find triads that share no pair, from the points alone.

    Choices on different pairs are independent given the utility, so cycles of such triads are too.
    If a pair is in several triads, the triad of the earliest pairs counts. If two pairs have the
    same two points, the first one counts.
    """
    choices = comparisons.choices(judge)
    points = np.stack([choices.a, choices.b], axis=1).reshape(-1, len(comparisons.features))
    point_number = pd.DataFrame(points).groupby(list(range(points.shape[1])), sort=False).ngroup()
    pair_points: Index = np.asarray(point_number, dtype=np.int64).reshape(-1, 2)
    corners, pairs = _find_disjoint_triangles(pair_points)
    rows = comparisons.answers_of(judge)
    means = rows.groupby(["pair", "order"])["probability"].mean().unstack()
    by_order = means.reindex(index=choices.pair, columns=["ab", "ba"]).to_numpy(np.float64)
    answers = by_order[pairs]
    _, first = np.unique(pair_points, return_index=True)
    is_reversed = (pair_points[pairs, 0] != corners)[..., None]
    return Triads(points[first][corners], np.where(is_reversed, 1.0 - answers, answers))


def _find_disjoint_triangles(pair_points: Index) -> tuple[Index, Index]:
    """Find triangles in the graph whose edges are pairs of points (n, 2), numbered from 0.

    Returns:
        The three points of each triangle, and the pairs (rows of `pair_points`) that join the first
        to the second, the second to the third and the third to the first; `(t, 3)` each.
    """
    triangles: list[tuple[int, int, int]] = []
    pair_of: dict[tuple[int, int], int] = {}
    neighbours: defaultdict[int, set[int]] = defaultdict(set)
    count = 1 + int(pair_points.max(initial=-1))
    candidate_pairs: list[int] = []
    if count < pair_points.size:  # else no point is in two pairs, as in pairs drawn from λ
        i, j = pair_points.T
        is_edge = i != j
        edges = np.concatenate([pair_points[is_edge], pair_points[is_edge, ::-1]]).T
        adjacency = sparse.csr_array((np.ones(edges.shape[1]), edges), shape=(count, count))
        # Both points of a pair are compared with some third one.
        candidate_pairs = np.flatnonzero(is_edge & ((adjacency @ adjacency)[i, j] > 0)).tolist()
    for pair in candidate_pairs:
        i, j = pair_points[pair].tolist()
        if j not in neighbours[i]:
            pair_of[i, j] = pair_of[j, i] = pair
            neighbours[i].add(j)
            neighbours[j].add(i)
    for i, j in pair_of:
        shared = neighbours[i] & neighbours[j] if j in neighbours[i] else set()
        if shared:
            k = min(shared)
            triangles.append((i, j, k))
            for start, end in ((i, j), (j, k), (k, i)):
                neighbours[start].remove(end)
                neighbours[end].remove(start)
    sides = [(pair_of[i, j], pair_of[j, k], pair_of[k, i]) for i, j, k in triangles]
    corners, pairs = (np.array(t, dtype=np.int64).reshape(-1, 3) for t in (triangles, sides))
    return corners, pairs


def predict_triads(belief: density.BeliefDensity, triads: Triads, seed: int = 0) -> Floats | None:
    """Predict a judge's triads by each draw of its belief's posterior.

    The belief was fitted to the same answers. Its point estimate would predict them too well, and
    so too few cycles; the draws account for posterior uncertainty. A belief without draws (a flow)
    is used as it is.

    Returns:
        Preferences of a over b, b over c and c over a, averaged over both orders, `(S, t, 3)`;
        None without triads.
    """
    if not len(triads):
        return None
    points = triads.corners.reshape(-1, triads.corners.shape[-1])
    predictive = belief.draws(seed=seed) if belief.has_draws else belief
    utility = predictive.log_prob(points) - belief.sampling.log_scale_derivative(points)
    utility = utility.reshape(-1, len(triads), 3)
    difference = torch.from_numpy(utility - np.roll(utility, -1, axis=-1))
    default_judging: dict[str, Any] = {"judges": {}, "ties": None}
    judging = belief.diagnostics.get("utility", {}).get("judging", default_judging)
    positions = [judge["order_bias"].get("2", []) for judge in judging["judges"].values()]
    bias = sum(position["nats"] for judge in positions for position in judge)
    noise = replace(belief.noise, ties=judging["ties"] or 0.0)
    shifted = torch.stack([difference + bias, difference - bias])
    win, lose = (torch.exp(noise.log_cdf(sign * shifted)) for sign in (1.0, -1.0))
    return np.asarray((0.5 + 0.5 * (win - lose)).mean(0).numpy())


def measure_transitivity(triads: Triads, predictions: Floats | None = None) -> Transitivity | None:
    """Count cycles, against random choices and the belief's predictions; None without triads.

    `p_value` is a posterior predictive p-value (Rubin 1984): the Poisson-binomial probability of as
    many repeated cycles by each draw of the belief, averaged. The draws have seen the answers, so
    it is conservative (Meng 1994); so is rounding the number of cycles down where soft judgments
    and ties make it fractional.

    Args:
        triads: from `find_triads`.
        predictions: from `predict_triads`, for the same triads; None without a belief.

    Raises:
        InputError: if `predictions` does not have one entry for each triad.

    Examples:
        >>> corners = np.random.default_rng(0).uniform(size=(40, 3, 2))
        >>> cyclic = Triads(corners, np.ones((40, 3, 2)))   # a before b before c before a
        >>> transitivity = measure_transitivity(cyclic, np.full((1, 40, 3), 0.5))
        >>> transitivity.repeated_cycle_share.value, transitivity.expected_repeated_share
        (1.0, 0.03125)
        >>> transitivity.p_value < 1e-9
        True
    """
    if not len(triads):
        return None
    if predictions is not None and predictions.shape[1:] != (len(triads), 3):
        raise InputError(
            f"transitivity: predictions have shape {predictions.shape}; give "
            f"(draws, {len(triads)}, 3), as `predict_triads` returns them for these triads"
        )
    cycle_probability = _cycle_probability(np.nanmean(triads.preference, axis=2))
    is_complete = ~np.isnan(triads.preference).any(axis=(1, 2))
    repeated_probability = _cycle_probability(triads.preference[is_complete].reshape(-1, 6))
    expected_share = expected_repeated_share = p_value = None
    if predictions is not None:
        expected_share = float(_cycle_probability(predictions).mean())
        if len(repeated_probability):
            predicted = _cycle_probability(np.repeat(predictions[:, is_complete], 2, axis=2))
            expected_repeated_share = float(predicted.mean())
            p_value = poisson_binomial_tail(float(repeated_probability.sum()), predicted)
    count = int(np.ceil(cycle_probability.sum() - _ROUNDING))
    return Transitivity(
        triads=len(triads),
        cycle_share=wilson_interval(float(cycle_probability.mean()), len(cycle_probability)),
        expected_cycle_share=expected_share,
        p_random=float(stats.binom.cdf(count, len(cycle_probability), _RANDOM_CYCLE_SHARE)),
        repeated_cycle_share=share_interval(repeated_probability),
        expected_repeated_share=expected_repeated_share,
        p_value=p_value,
    )


def poisson_binomial_tail(count: float, probabilities: Floats) -> float:
    """Return P(at least `count` of t independent events), averaged over S sets `(S, t)`."""
    min_count = int(np.floor(count + _ROUNDING))
    return float(np.mean([stats.poisson_binom.sf(min_count - 1, draw) for draw in probabilities]))


def _cycle_probability(preference: Floats) -> Floats:
    """Return the probability that answers with probabilities `(..., k)` form a cycle."""
    return np.asarray(preference.prod(axis=-1) + (1.0 - preference).prod(axis=-1))


_THIRDS = ("lowest", "middle", "highest")


class FeatureNonresponse(StrictModel):
    """Nonresponse by one feature.

    Attributes:
        name: the feature.
        thirds: nonresponse rate of pairs with a point in the lowest, middle and highest third of
            the feature's range, on its scale; None if no such pair was asked. None for a
            categorical feature.
        categories: nonresponse rate of pairs with a point in each category; None for a number.
        p_value: p-value of the permutation test that nonresponse does not depend on the feature's
            values in a pair.
        p_holm: this p-value, Holm-adjusted over all features.
    """

    name: str
    thirds: list[float | None] | None
    categories: dict[str, float | None] | None = None
    p_value: float
    p_holm: float


class Nonresponse(StrictModel):
    """A judge's questions without a choice: refused, truncated or unparsable.

    Attributes:
        share: share of all questions, with Wilson's interval over pairs.
        features: nonresponse by each feature, in the order of the space.
    """

    share: Interval
    features: list[FeatureNonresponse]


def measure_nonresponse(
    comparisons: Comparisons,
    judge: str,
    space: FeatureSpace,
    permutations: int,
    rng: np.random.Generator,
) -> Nonresponse | None:
    """Measure nonresponse by region; None if all questions were answered, or none.

    A tie is an answer. Whole pairs are permuted, so that the two orders of a pair do not count as
    independent.
    """
    rows = comparisons.answers_of(judge)
    missing = rows["probability"].isna().to_numpy(np.float64)
    _, first, member = np.unique(rows["pair"], return_index=True, return_inverse=True)
    rates = np.bincount(member, missing) / np.bincount(member)
    if not 0.0 < missing.mean() < 1.0 or len(rates) < 3:
        return None
    sides = [side[first] for side in comparisons.points(rows)]
    low, high = space.to_scale(space.low), space.to_scale(space.high)
    points = np.stack([(space.to_scale(side) - low) / (high - low) for side in sides])
    codes = np.stack(sides).astype(int)
    bases, groups = [], []
    for j, feature in enumerate(space.features):
        if group_names := feature.categories:
            group = codes[:, :, j]
            counts = (group[:, :, None] == np.arange(len(group_names))).sum(axis=0)
            bases.append(np.asarray(orth(counts - counts.mean(axis=0))))
        else:
            group_names, group = _THIRDS, np.clip((points[:, :, j] * 3).astype(int), 0, 2)
            # Sums over a pair of the values and their squares; of a circle, of its unit vectors.
            values = points[:, :, j]
            parts = [values, values**2]
            if feature.periodic:
                angle = 2.0 * np.pi * values * (feature.highest - feature.lowest) / feature.period
                parts = [np.cos(angle), np.sin(angle)]
            columns = [np.ones(len(rates)), *(part.sum(axis=0) for part in parts)]
            bases.append(np.asarray(np.linalg.qr(np.stack(columns, axis=1))[0][:, 1:]))
        pairs_by_group = [(group == k).any(axis=0) for k in range(len(group_names))]
        means = (float(rates[pairs].mean()) if pairs.any() else None for pairs in pairs_by_group)
        groups.append(dict(zip(group_names, means, strict=True)))
    p_values = _permutation_p_values(bases, rates, permutations, rng)
    adjusted = holm_adjust(p_values)
    return Nonresponse(
        share=wilson_interval(float(rates.mean()), len(rates)),
        features=[
            FeatureNonresponse(
                name=feature.name,
                thirds=None if feature.categories else list(by_group.values()),
                categories=by_group if feature.categories else None,
                p_value=float(p_values[j]),
                p_holm=float(adjusted[j]),
            )
            for j, (feature, by_group) in enumerate(zip(space.features, groups, strict=True))
        ],
    )


def _permutation_p_values(
    bases: list[Floats], rates: Floats, permutations: int, rng: np.random.Generator
) -> Floats:
    """Return p `(d,)` of permutation tests of each feature's association with `rates` `(n,)`.

    The statistic is the sum of squares that the feature's basis `(n, r)` explains. A feature that
    is the same in all pairs has an empty basis, and p is 1.
    """
    basis = np.concatenate(bases, axis=1)
    feature_of_column = np.repeat(np.arange(len(bases)), [columns.shape[1] for columns in bases])

    def explain_squares(permuted: Floats) -> Floats:
        squares = np.square(permuted @ basis)
        return np.asarray(np.bincount(feature_of_column, squares, minlength=len(bases)))

    observed = explain_squares(rates) * (1 - 1e-12)
    exceedances = np.zeros(len(observed))
    for _ in range(permutations):  # one at a time: a campaign may hold a million pairs
        exceedances += explain_squares(rng.permutation(rates)) >= observed
    return (1 + exceedances) / (1 + permutations)
