"""A judge's answers to direct questions, compared with its belief and the data.

Besides comparisons, a judge may state quantiles, generate points, and complete rows of the
reference table. Answers that cannot be parsed are counted and not used.

*Quantiles*, five of a feature, define a monotone quantile function, linear on the feature's scale
from the lower end of its range through the five to the upper end. Wasserstein-1 between two of them
is ∫|Q − Q'| du, computed exactly. Belief and data are reduced to their five quantiles as well, so
that the reduction itself adds no distance. The power that they give a belief is
`llm_elicit.density.fit_power`'s.

*Points* are asked for one at a time, so they are independent draws of the judge's predictive
distribution, as in Requeima et al. 2024, "LLM Processes: numerical predictive distributions
conditioned on natural language". There are few of them, so every distance from the data and the
belief is compared with those of as many true draws.

*Row completion* tests whether the judge has memorized the table: it is shown beginnings of rows to
complete (Bordt et al. 2024, "Elephants never forget: memorization and learning of tabular data in
large language models"). Agreement of a belief with a table that the judge has memorized is no
evidence of calibration. A judge that knows the subject but not the table is right by chance now and
then, more often the better it knows the subject; so its answers are also compared with the rows
whose beginnings are most similar to the one it was shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.spatial import cKDTree
from scipy.stats import rankdata

from llm_elicit import density
from llm_elicit._util.settings import StrictModel
from llm_elicit.audit.distances import energy_distance, mean_distance
from llm_elicit.audit.inference import Interval, finite_or_none, wilson_interval
from llm_elicit.audit.own_density import OwnDensity, OwnDensityAudit, measure_own_density
from llm_elicit.audit.reference import AuditSettings, Reference, Standardizer, category_shares
from llm_elicit.audit.responses import Response
from llm_elicit.planning.direct_questions import RowCompletion
from llm_elicit.questions.numbers import (
    LEVELS,
    UNREAD,
    RowLikelihood,
    Unread,
    read_numbers,
    read_point,
    read_quantiles,
)
from llm_elicit.spaces.features import FeatureSpace, Floats

MAX_NEIGHBOURS = 20
"""Similar rows that an answer is compared with besides its own."""

_NULL_DRAWS = 99
"""Samples of true draws that give the null distribution of a distance."""
_MAX_COMPARED_POINTS = 1000
"""Largest number of points that represent the data or the belief."""
_MAX_DIGITS = 4
"""Leading digits to which a completed value has to equal the printed one."""
_MEMORIZATION_LEVEL = 0.01
"""Level of the test that the judge has memorized the table."""

_QUANTILE_NODES = np.array([0, *LEVELS, 100]) / 100
"""Levels at which quantile functions are stored."""
_FLOOR_PAIRS = 10
"""Pairs of bootstrap samples over which the floor is averaged."""


class DistanceTest(StrictModel):
    """The distance of generated points from a sample, compared with that of as many true draws.

    Attributes:
        distance: distance of the generated points from the sample.
        floor: mean distance of samples of the same size that are drawn from the density itself.
        p_value: share of these samples that are at least as far away as the generated points.
    """

    distance: float
    floor: float
    p_value: float


class GeneratedFeature(StrictModel):
    """The distances of the generated points in one feature.

    Wasserstein-1 in standard deviations of the data, on the feature's scale; for a categorical
    feature, the total variation between shares.

    Attributes:
        name: the feature.
        data: distance from the data; None without data.
        belief: distance from the belief; None without a belief.
    """

    name: str
    data: DistanceTest | None
    belief: DistanceTest | None


class GeneratedPoints(StrictModel):
    """The points a judge generated.

    Attributes:
        points: number of points in the range asked about; distances are measured on these.
        outside_range: number of points outside this range.
        distinct: number of different points in the range.
        features: distances in each feature, in the order of the space.
        data, belief: the energy distance from the data and from the belief, over all features.
    """

    points: int
    outside_range: int
    distinct: int
    features: list[GeneratedFeature]
    data: DistanceTest | None
    belief: DistanceTest | None


def measure_generated(
    points: Floats,
    reference: Reference,
    belief: Floats | None,
    settings: AuditSettings,
    rng: np.random.Generator,
) -> GeneratedPoints | None:
    """Measure generated points `(n, d)`, natural units; None with fewer than two in the range."""
    space = reference.space
    is_inside = space.contains(points) if len(points) else np.zeros(0, dtype=bool)
    if is_inside.sum() < 2:
        return None
    inside_points = space.round(points[is_inside])
    standardizer = reference.standardizer
    data_tests, belief_tests = (
        [None] * (space.dimension + 1)
        if sample is None
        else _test_distances(inside_points, space.round(sample), standardizer, settings.size, rng)
        for sample in (reference.data, belief)
    )
    by_feature = zip(space.names, data_tests[:-1], belief_tests[:-1], strict=True)
    return GeneratedPoints(
        points=len(inside_points),
        outside_range=int((~is_inside).sum()),
        distinct=len(np.unique(inside_points, axis=0)),
        features=[GeneratedFeature(name=name, data=d, belief=b) for name, d, b in by_feature],
        data=data_tests[-1],
        belief=belief_tests[-1],
    )


def _test_distances(
    x: Floats, y: Floats, standardizer: Standardizer, max_size: int, rng: np.random.Generator
) -> list[DistanceTest]:
    """Return each feature's distance of x from y, and the energy distance last, with floors.

    y is split: one part represents it, and true draws come from the other.
    """
    y = y[rng.permutation(len(y))]
    compared = y[: min(_MAX_COMPARED_POINTS, (len(y) + 1) // 2)]
    null_pool = y[len(compared) :]
    size = min(max_size, len(x), len(null_pool))
    compared_columns, features = standardizer(compared), standardizer.space.features
    mean_distance_compared = mean_distance(compared_columns)
    shares = {j: category_shares(compared[:, j], f) for j, f in enumerate(features) if f.categories}

    def distances(sample: Floats) -> list[float]:
        by_feature = [
            0.5 * float(np.abs(category_shares(sample[:, j], feature) - shares[j]).sum())
            if j in shares
            else standardizer.marginal_distance(j, sample[:, j], compared[:, j])
            for j, feature in enumerate(features)
        ]
        columns = standardizer(sample)
        joint = energy_distance(columns, compared_columns, mean_distance_compared)
        return [*by_feature, joint]

    observed = distances(x[rng.permutation(len(x))[:size]])
    draws = (rng.choice(len(null_pool), size, replace=False) for _ in range(_NULL_DRAWS))
    null_distances = np.array([distances(null_pool[rows]) for rows in draws])
    exceedances = (null_distances >= np.array(observed)).sum(axis=0)
    return [
        DistanceTest(distance=d, floor=float(f), p_value=float((1 + r) / (1 + _NULL_DRAWS)))
        for d, f, r in zip(observed, null_distances.mean(axis=0), exceedances, strict=True)
    ]


class RowCompletionTest(StrictModel):
    """The result of the row-completion test.

    Attributes:
        feature: the index of the feature whose values were asked for.
        rows: number of rows asked for and answered, parsable or not.
        parsed: number of answers that could be parsed.
        exact_share: the share of rows completed exactly, with Wilson's interval: to the digits that
            the table prints, or to four if it prints more.
        chance_share: the share of answers that equal the value of one of the rows with the most
            similar beginnings, averaged over these rows.
        p_value: probability of as many exact completions if the row's own value is exchanged at
            random with the values of its neighbours.
        memorized: whether this probability is below 1 %; a single lucky answer is not enough.
    """

    feature: int
    rows: int
    parsed: int
    exact_share: Interval
    chance_share: float
    p_value: float
    memorized: bool


def measure_row_completion(
    completion: RowCompletion,
    rows: Sequence[int],
    answers: Floats,
    draws: int,
    rng: np.random.Generator,
) -> RowCompletionTest:
    """Test the values `(m,)` with which the judge completed rows; NaN for unparsable ones."""
    cells = completion.hidden
    decimals = max(len(cell.partition(".")[2]) if "." in cell else 0 for cell in cells)
    values = np.array([float(cell) for cell in cells])
    row_numbers = np.array(rows, dtype=np.int64)
    neighbours = _find_neighbours(completion.predictors, row_numbers)
    is_exact = equals_printed(answers, values[row_numbers], decimals)
    neighbour_matches = equals_printed(answers[:, None], values[neighbours], decimals)
    # Under the null hypothesis the row's value is drawn at random from its own and its neighbours'.
    probability = (is_exact + neighbour_matches.sum(axis=1)) / (1 + neighbours.shape[1])
    null_hits = (rng.random((draws, len(row_numbers))) < probability).sum(axis=1)
    p_value = float((1 + (null_hits >= is_exact.sum()).sum()) / (1 + draws))
    return RowCompletionTest(
        feature=completion.feature,
        rows=len(row_numbers),
        parsed=int(np.isfinite(answers).sum()),
        exact_share=wilson_interval(float(is_exact.mean()), len(row_numbers)),
        chance_share=float(neighbour_matches.mean()),
        p_value=p_value,
        memorized=p_value < _MEMORIZATION_LEVEL,
    )


def equals_printed(answers: Floats, printed: Floats, decimals: int) -> npt.NDArray[np.bool_]:
    """Return whether answers equal numbers printed to some decimals, to four digits at most.

    Examples:
        >>> answers = np.array([3.46, 3.5, np.nan, 98761.0])
        >>> equals_printed(answers, np.array([3.5, 3.5, 3.5, 98765.0]), 1)
        array([ True,  True, False,  True])
    """
    leading = np.floor(np.log10(np.maximum(np.abs(printed), 1e-300)))
    grid = 10.0 ** np.minimum(decimals, _MAX_DIGITS - 1 - leading)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.rint(answers * grid) == np.rint(printed * grid))


def _find_neighbours(beginnings: Floats, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the rows with the most similar beginnings, by the ranks of their values, `(m, 20)`."""
    n, columns = beginnings.shape
    count = min(MAX_NEIGHBOURS, n - 1)
    if not columns:
        return np.asarray((rows[:, None] + np.arange(1, count + 1)) % n)
    ranks = rankdata(beginnings, axis=0, nan_policy="omit") / n
    ranks = np.where(np.isfinite(ranks), ranks, 0.5)
    nearest = cKDTree(ranks).query(ranks[rows], k=range(1, count + 2))[1]
    # With identical beginnings, a row is not always its own nearest neighbour.
    row_neighbours = zip(rows, np.atleast_2d(nearest), strict=True)
    return np.array(
        [[j for j in row if j != i][:count] for i, row in row_neighbours], dtype=np.int64
    )


DIRECT_KINDS = ("quantiles", "sample", "row", "range", "ratio", "likelihood")
"""The kinds of direct questions."""


@dataclass(frozen=True)
class DirectEvidence:
    """A judge's parsed answers to direct questions.

    Attributes:
        quantiles: stated quantiles, `(t, d, 5)`, natural units, for each statement and feature;
            NaN if a statement is missing or could not be parsed.
        points: generated points, `(n, d)`, natural units; they may lie outside the range.
        completion: the rows to complete; None if none were asked.
        rows: the numbers of the rows that were asked.
        completed_values: the values given for these rows; NaN if the reply could not be parsed.
        answer_counts: number of answers by kind.
        unparsed_counts: number of answers that could not be parsed, by kind and reason.
        own_density: the model's own density; None if it was not asked for.
        power: the power of the belief by these answers, if it was fitted.
    """

    quantiles: Floats
    points: Floats
    completion: RowCompletion | None
    rows: tuple[int, ...]
    completed_values: Floats
    answer_counts: Mapping[str, int]
    unparsed_counts: Mapping[str, Mapping[Unread, int]]
    own_density: OwnDensity | None = None
    power: density.Power | None = None

    @classmethod
    def from_table(
        cls, table: pd.DataFrame | None, judge: str, space: FeatureSpace, seed: int
    ) -> DirectEvidence | None:
        """Parse a run's table of direct answers; None if it has none by this judge.

        Args:
            table: with the columns judge, kind, number, replicate, reply and finish.
            judge: the judge's name.
            space: the space that was asked about.
            seed: the campaign's seed, which chose the rows to complete.
        """
        if table is None or not (table["judge"] == judge).any():
            return None
        rows = table[table["judge"] == judge]
        unparsed: dict[str, Counter[Unread]] = {kind: Counter() for kind in DIRECT_KINDS}
        for kind in ("range", "ratio"):  # their verdicts are in the table
            if (is_kind := rows["kind"] == kind).any():
                verdicts = rows["verdict"][is_kind]
                unparsed[kind].update(verdicts[~verdicts.isin(["A", "B", "tie"])])
        statements = 1 + max(rows["replicate"][rows["kind"] == "quantiles"], default=-1)
        quantiles = np.full((statements, space.dimension, 5), np.nan)
        points, completed = [], {}
        columns = ("kind", "number", "replicate", "reply", "finish")
        for kind, number, statement, reply, finish in zip(*(rows[c] for c in columns), strict=True):
            reading: list[float] | Unread
            if kind == "quantiles":
                reading = read_quantiles(reply, space.features[number], finish)
                quantiles[statement, number] = np.nan if isinstance(reading, str) else reading
            elif kind == "sample":
                reading = read_point(reply, space.features, finish)
                points += [] if isinstance(reading, str) else [reading]
            elif kind == "row":
                reading = read_numbers(reply, 1, finish)
                completed[number] = np.nan if isinstance(reading, str) else reading[0]
            elif kind == "likelihood":
                reading = [] if RowLikelihood.read(reply) else "unparsable"
            else:
                continue
            if isinstance(reading, str):
                unparsed[kind][reading] += 1
        return cls(
            quantiles=quantiles,
            points=np.array(points, dtype=np.float64).reshape(-1, space.dimension),
            completion=RowCompletion.of(space, seed) if completed else None,
            rows=tuple(completed),
            completed_values=np.array(list(completed.values()), dtype=np.float64),
            answer_counts={kind: int((rows["kind"] == kind).sum()) for kind in DIRECT_KINDS},
            unparsed_counts=unparsed,
        )


class AnswerCounts(StrictModel):
    """How many answers of one kind could be used.

    Attributes:
        kind: "quantiles", "sample", "row", "range", "ratio" or "likelihood".
        answers: number of answers.
        unparsed: number of these that could not be parsed, by reason.
    """

    kind: str
    answers: int
    unparsed: dict[str, int]

    @property
    def parsed(self) -> int:
        """How many were parsed."""
        return self.answers - sum(self.unparsed.values())


class StatedFeature(StrictModel):
    """One feature's stated quantiles. Distances are W1 in standard deviations of the data.

    Attributes:
        name: the feature.
        times: number of statements that could be parsed.
        quantiles: at 5, 25, 50, 75 and 95 %, natural units; medians over statements; None without.
        outside: number of stated values outside the range, which are moved to its ends.
        spread: mean distance of a statement from the median of all statements; None for one.
        data, belief: distances of the stated quantiles from those of the data and of the belief.
        belief_data: distance between the quantiles of the belief and of the data.
        floor: mean distance between the quantiles of two bootstrap samples of the data.
    """

    name: str
    times: int
    quantiles: tuple[float, float, float, float, float] | None
    outside: int
    spread: float | None
    data: float | None = None
    belief: float | None = None
    belief_data: float | None = None
    floor: float | None = None


class DirectAudit(StrictModel):
    """A judge's answers to direct questions.

    Attributes:
        answer_counts: numbers of answers and of unparsed ones, for each kind that was asked.
        stated_quantiles: the quantiles that the judge stated; None if none could be parsed.
        generated_points: the points that it generated; None if fewer than two could be used.
        row_completion: the test of the rows that it completed; None if none were asked.
        own_density: the density of its own probabilities; None if it was not asked for.
    """

    answer_counts: list[AnswerCounts]
    stated_quantiles: list[StatedFeature] | None
    generated_points: GeneratedPoints | None
    row_completion: RowCompletionTest | None
    own_density: OwnDensityAudit | None = None


def measure_direct(
    evidence: DirectEvidence,
    reference: Reference,
    belief: Floats | None,
    settings: AuditSettings,
    rng: np.random.Generator,
    response: Response | None = None,
) -> DirectAudit:
    """Compare a judge's answers with its belief and the data.

    Args:
        evidence: the answers.
        reference: the data and λ.
        belief: the belief's draws, `(m, d)`, natural units; None if none was fitted.
        settings: settings of the audit.
        rng: generator for floors and tests.
        response: its answers about pairs, for its own density.
    """
    row_completion, own_density, own = None, None, evidence.own_density
    if evidence.completion is not None:
        row_completion = measure_row_completion(
            evidence.completion, evidence.rows, evidence.completed_values, settings.flips, rng
        )
    stated_quantiles = measure_stated_quantiles(evidence.quantiles, reference, belief, rng)
    generated_points = measure_generated(evidence.points, reference, belief, settings, rng)
    if own is not None and response is not None:
        own_density = measure_own_density(own, response, evidence.power, reference.space, rng)
    counts = []
    for kind in DIRECT_KINDS:
        if number := evidence.answer_counts.get(kind):
            by_reason = evidence.unparsed_counts[kind]
            unparsed: dict[str, int] = {reason: by_reason.get(reason, 0) for reason in UNREAD}
            counts.append(AnswerCounts(kind=kind, answers=number, unparsed=unparsed))
    return DirectAudit(
        answer_counts=counts,
        stated_quantiles=stated_quantiles,
        generated_points=generated_points,
        row_completion=row_completion,
        own_density=own_density,
    )


def measure_stated_quantiles(
    quantiles: Floats, reference: Reference, belief: Floats | None, rng: np.random.Generator
) -> list[StatedFeature] | None:
    """Compare a judge's quantiles with belief and data; None if none of them is finite.

    The features are those that are numbers and not periodic, in the order of the space.

    Args:
        quantiles: stated quantiles, `(t, d, 5)`, natural units, for each statement and feature.
        reference: the data and λ.
        belief: the belief's draws, `(m, d)`, natural units; None if none was fitted.
        rng: generator for floors.
    """
    if not np.isfinite(quantiles).any():
        return None
    space, data = reference.space, reference.data
    ends = (space.low[:, None], space.high[:, None])
    clipped = np.clip(quantiles, *ends)
    outside = ((quantiles < ends[0]) | (quantiles > ends[1])).sum(axis=(0, 2))
    statements = np.isfinite(quantiles[:, :, 0]).sum(axis=0)
    # The median of monotone sequences is monotone.
    median = np.full(quantiles.shape[1:], np.nan)
    median[statements > 0] = np.nanmedian(clipped[:, statements > 0], axis=0)

    def functions(quantiles: Floats) -> Floats:
        # Standardized quantile functions `(..., d, 7)` at their nodes and the range's ends.
        low, high = (np.broadcast_to(end, (*quantiles.shape[:-1], 1)) for end in ends)
        with_ends = np.swapaxes(np.concatenate([low, quantiles, high], axis=-1), -1, -2)
        return np.swapaxes(reference.standardizer.standardize_numbers(with_ends), -1, -2)

    def functions_of_points(points: Floats) -> Floats:
        # Points are rounded as the questions state them.
        return functions(np.quantile(space.round(points), np.array(LEVELS) / 100, axis=0).T)

    stated, columns = functions(median), {}
    spread = np.nansum(quantile_distance(functions(clipped), stated), axis=0)
    columns["spread"] = np.where(statements > 1, spread / np.maximum(statements, 1), np.nan)
    for name, points in (("data", data), ("belief", belief)):
        if points is not None:
            columns[name] = quantile_distance(stated, functions_of_points(points))
    if data is not None and belief is not None:
        pair = functions_of_points(belief), functions_of_points(data)
        columns["belief_data"] = quantile_distance(*pair)
    if data is not None:  # between pairs of bootstrap samples of rows
        n, count = len(data), 2 * _FLOOR_PAIRS
        resampled = [functions_of_points(data[rng.integers(n, size=n)]) for _ in range(count)]
        first, second = np.array(resampled[::2]), np.array(resampled[1::2])
        columns["floor"] = quantile_distance(first, second).mean(0)
    return [
        StatedFeature(
            name=space.names[j],
            times=int(statements[j]),
            quantiles=tuple(median[j].tolist()) if statements[j] else None,
            outside=int(outside[j]),
            **{name: finite_or_none(values[j]) for name, values in columns.items()},
        )
        for j in space.on_line
    ]


def quantile_distance(x: Floats, y: Floats) -> Floats:
    """Return ∫|x − y| du of functions that are linear between the nodes, `(..., 7)` each.

    Examples:
        >>> up, level = np.array([0, 1, 1, 1, 1, 1, 0.0]), np.zeros(7)
        >>> round(float(quantile_distance(up, level)), 6)   # two triangles of 0.05 / 2, and 0.9
        0.95
    """
    start, end = (x - y)[..., :-1], (x - y)[..., 1:]
    size = np.abs(start) + np.abs(end)
    crosses = start * end < 0
    # Two triangles if the sign changes, a trapezium otherwise.
    triangles = (start**2 + end**2) / np.where(size > 0, size, 1.0)
    mean = np.where(crosses, triangles, size) / 2
    return np.asarray((mean * np.diff(_QUANTILE_NODES)).sum(axis=-1))
