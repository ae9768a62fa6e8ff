"""Judges against judges: do they prefer alike, believe alike, and which is nearer to the data?

Whether they prefer alike does not depend on the power of their utilities; how far their beliefs are
apart, and from the data, does.

All intervals are over draws of the beliefs' posteriors (`llm_elicit.density.BeliefDraws`), which
are independent between judges: what is said of two judges holds for pairs of draws, one of each.
Where many such things are said at once, p-values are Holm's (1979).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import rankdata

from llm_elicit import density
from llm_elicit.audit.inference import Interval, holm, wilson
from llm_elicit.audit.reference import Reference
from llm_elicit.audit.scales import Standard, shares_of
from llm_elicit.comparisons.table import Choices
from llm_elicit.config.base_model import StrictModel
from llm_elicit.errors import InputError
from llm_elicit.spaces.features import FeatureSpace, Floats

Progress = Callable[[str, int, int], None]
_LEVEL = 0.9
_ALPHA = 0.05
_LEVELS = (np.arange(200) + 0.5) / 200
_POINTS = 2000


class Agreement(StrictModel):
    """How alike two judges prefer, whatever the power of either's utility.

    Attributes:
        first, second: the judges.
        pairs: how many pairs both have a preference in.
        share: of these in which both prefer the same point, with Wilson's 95 % interval; 1/2 for
            judges with nothing in common. None without a pair.
        rank_correlation: Spearman's, of the two utilities over draws from λ; 95 % interval.
        rank_ceiling: the same between two draws of one judge's own utility, the smaller of the two:
            what equal utilities would have that are known no better.
    """

    first: str
    second: str
    pairs: int
    share: Interval | None
    rank_correlation: Interval
    rank_ceiling: float


class FeatureGap(StrictModel):
    """One feature of two beliefs, `first` less `second`; 90 % intervals.

    Attributes:
        name: the feature.
        mean: difference of means, standard deviations of the reference; None of a categorical
            feature.
        log_sd: difference of the logarithms of the standard deviations; None of one, too.
        shares: differences of a categorical feature's shares, by the words; None of a number.
        distance: Wasserstein-1 between the marginals, standard deviations of the reference; of a
            categorical feature, whose categories are all as far from each other (see
            `llm_elicit.audit.scales`), the total variation times how far.
        p_holm: that neither mean nor width differs, or no share, for looking at all features of
            these two.
    """

    name: str
    mean: Interval | None
    log_sd: Interval | None
    shares: dict[str, Interval] | None = None
    distance: Interval
    p_holm: float


class BeliefGap(StrictModel):
    """Two beliefs.

    Attributes:
        first, second: the judges.
        distance: Wasserstein-1 between marginals, averaged over features; 90 % interval.
        floor: the same between draws of one judge's own belief, the larger of the two: what not
            knowing the beliefs any better makes of equal ones.
        features: those that separate them most first.
    """

    first: str
    second: str
    distance: Interval
    floor: float
    features: list[FeatureGap]

    @property
    def separated_by(self) -> list[str]:
        """The features in which they differ at 5 %."""
        return [feature.name for feature in self.features if feature.p_holm < _ALPHA]


class Standing(StrictModel):
    """A judge's place among the judges by distance to the data, nearest first.

    Attributes:
        judge: the judge.
        distance: Wasserstein-1 of the belief's marginals from the data's, averaged over features.
        best, worst: the places that cannot be excluded at 5 %: judges who share places are tied.
    """

    judge: str
    distance: Interval
    best: int
    worst: int


class Versus(StrictModel):
    """Several judges side by side.

    Attributes:
        judges: their names.
        sampling: distance of λ from the data; a judge no nearer than this has added nothing.
        data_floor: distance between halves of the data.
        agreements, gaps: a record for each two judges.
        standings: the ranking; None without data.
    """

    judges: list[str]
    sampling: float | None
    data_floor: float | None
    agreements: list[Agreement]
    gaps: list[BeliefGap]
    standings: list[Standing] | None


@dataclass(frozen=True)
class Side:
    """One judge: its name, its choices, and its belief."""

    name: str
    choices: Choices
    belief: density.BeliefDensity


def compare_judges(
    sides: Sequence[Side], reference: Reference, seed: int = 0, progress: Progress | None = None
) -> Versus:
    """Set judges of one feature space side by side.

    Args:
        sides: at least two, of different names.
        reference: the feature space, λ and the data.
        seed: of the beliefs' draws.
        progress: called as progress(judge, done, total) while beliefs are drawn.

    Raises:
        InputError: fewer than two judges, or two of one name.
        DensityError: a belief without draws.
    """
    names = [side.name for side in sides]
    if len(names) < 2 or len(set(names)) < len(names):
        raise InputError(f"compare: {', '.join(names) or 'no judge'}; name two or more judges")
    standard, data = reference.standard, reference.data
    marginals = {
        side.name: _Marginals.of(side, standard, [seed, at], progress)
        for at, side in enumerate(sides)
    }
    ranks = {side.name: _ranks(side.belief, reference) for side in sides}
    both = list(itertools.combinations(sides, 2))
    sampling = _Marginals.of_points(reference.sampling, standard)
    to_data = None if data is None else _Marginals.of_points(data, standard)
    return Versus(
        judges=names,
        sampling=None if to_data is None else float(sampling.apart(to_data).mean()),
        data_floor=None if data is None else _halves(data, standard, seed),
        agreements=[
            agreement(one, other, ranks[one.name], ranks[other.name]) for one, other in both
        ],
        gaps=[_gap(one.name, other.name, marginals, reference.space) for one, other in both],
        standings=None if to_data is None else _standings(marginals, to_data),
    )


def agreement(one: Side, other: Side, ranks: Floats, others: Floats) -> Agreement:
    """Over the pairs that both were asked, whichever point was called a, and over draws from λ.

    `ranks` and `others` `(S, k)` are of the utilities there, see `_ranks`.
    """
    said = {_key(a, b): q for a, b, q in _rows(one.choices)}
    alike = [
        (q > 0.5) == (said[key] > 0.5)
        for a, b, q in _rows(other.choices)
        if (key := _key(a, b)) in said and q != 0.5 and said[key] != 0.5
    ]
    share = wilson(float(np.mean(alike)), len(alike)) if alike else None
    count = min(len(ranks), len(others))
    found = (ranks[:count] * others[:count]).sum(axis=1)
    low, high = density.band(found, 0.95)
    return Agreement(
        first=one.name,
        second=other.name,
        pairs=len(alike),
        share=share,
        rank_correlation=Interval(value=float(np.median(found)), low=float(low), high=float(high)),
        rank_ceiling=min(
            float((each[1:] * each[:-1]).sum(axis=1).mean()) for each in (ranks, others)
        ),
    )


def _ranks(belief: density.BeliefDensity, reference: Reference) -> Floats:
    """Centred ranks `(S, k)`, of length one, of every draw of a utility at draws from λ."""
    found = rankdata(belief.utilities(reference.sampling[:_POINTS]), axis=1)
    found -= found.mean(axis=1, keepdims=True)
    length = np.sqrt(np.square(found).sum(axis=1, keepdims=True))
    return np.asarray(found / np.where(length > 0, length, 1.0))


def _rows(choices: Choices) -> list[tuple[Floats, Floats, float]]:
    """Pairs in an order that does not depend on which point was called a."""
    rows = []
    for a, b, q in zip(choices.a, choices.b, choices.preference, strict=True):
        rows.append((a, b, float(q)) if tuple(a) <= tuple(b) else (b, a, 1.0 - float(q)))
    return rows


def _key(a: Floats, b: Floats) -> bytes:
    return a.tobytes() + b.tobytes()


@dataclass(frozen=True)
class _Marginals:
    """Marginals of a sample, or of every draw of a belief (S, ...), standardized.

    Attributes:
        quantiles: at even levels (..., L, d); NaN where a feature is categorical.
        shares: of each categorical feature's categories (..., K), by its place.
        edges: how far its categories are from each other.
    """

    quantiles: Floats
    shares: Mapping[int, Floats]
    edges: Mapping[int, float]

    @classmethod
    def of(
        cls, side: Side, standard: Standard, seed: Sequence[int], progress: Progress | None
    ) -> _Marginals:
        """Of every draw of a judge's belief."""

        def told(_: str, done: int, total: int) -> None:
            if progress is not None:
                progress(side.name, done, total)

        number = int(np.random.default_rng(seed).integers(2**32))
        draws = side.belief.draws(seed=number, progress=told)
        natural = draws.quantile(_LEVELS)
        quantiles = np.stack([standard.numbers(each) for each in natural])
        shares = {j: draws.shares(j) for j in standard.corners}
        return cls(quantiles, shares, {j: standard.edge(j) for j in shares})

    @classmethod
    def of_points(cls, points: Floats, standard: Standard) -> _Marginals:
        """Of a sample (n, d), natural units."""
        features = standard.space.features
        shares = {j: shares_of(points[:, j], features[j]) for j in standard.corners}
        quantiles = np.asarray(np.quantile(standard.numbers(points), _LEVELS, axis=0))
        return cls(quantiles, shares, {j: standard.edge(j) for j in shares})

    def __getitem__(self, some: slice) -> _Marginals:
        """Some of the draws."""
        shares = {j: each[some] for j, each in self.shares.items()}
        return replace(self, quantiles=self.quantiles[some], shares=shares)

    def __len__(self) -> int:
        return len(self.quantiles)

    @property
    def mean(self) -> Floats:
        """Of every draw (S, d)."""
        return np.asarray(self.quantiles.mean(-2))

    @property
    def log_sd(self) -> Floats:
        """Of every draw (S, d)."""
        return np.asarray(np.log(self.quantiles.std(-2).clip(min=1e-12)))

    def apart(self, other: _Marginals) -> Floats:
        """Wasserstein-1 of each feature's marginals (..., d).

        In one dimension it is the mean absolute difference of quantiles.
        """
        found = np.abs(self.quantiles - other.quantiles).mean(-2)
        for j, edge in self.edges.items():
            found[..., j] = 0.5 * edge * np.abs(self.shares[j] - other.shares[j]).sum(-1)
        return np.asarray(found)


def _halves(data: Floats, standard: Standard, seed: int) -> float:
    order = np.random.default_rng([seed, 0xDA7A]).permutation(len(data))
    half = len(data) // 2
    one, other = (
        _Marginals.of_points(data[rows], standard) for rows in (order[:half], order[half:])
    )
    return float(one.apart(other).mean())


def _gap(
    first: str, second: str, marginals: Mapping[str, _Marginals], space: FeatureSpace
) -> BeliefGap:
    one, other = marginals[first], marginals[second]
    count = min(len(one), len(other))
    between = one[:count].apart(other[:count])
    mean, log_sd = (
        _differences(getattr(one, what), getattr(other, what)) for what in ("mean", "log_sd")
    )
    shares = {j: _differences(one.shares[j], other.shares[j]) for j in one.shares}
    # Two things are said of each number, and one of each category, of two of which it is the same.
    each = np.minimum(1.0, 2.0 * np.minimum(_doubt(mean), _doubt(log_sd)))
    for j, found in shares.items():
        said = found.shape[1] if found.shape[1] > 2 else 1
        each[j] = min(1.0, said * float(_doubt(found).min()))
    adjusted = holm(each)
    features = [
        FeatureGap(
            name=feature.name,
            mean=None if j in shares else _interval(mean[:, j]),
            log_sd=None if j in shares else _interval(log_sd[:, j]),
            shares={
                word: _interval(column)
                for word, column in zip(feature.categories, shares[j].T, strict=True)
            }
            if j in shares
            else None,
            distance=_interval(between[:, j]),
            p_holm=float(adjusted[j]),
        )
        for j, feature in enumerate(space.features)
    ]
    features.sort(key=lambda gap: -gap.distance.value)
    within = [float(side[1:].apart(side[:-1]).mean()) for side in (one, other)]
    return BeliefGap(
        first=first,
        second=second,
        distance=_interval(between.mean(1)),
        floor=max(within),
        features=features,
    )


def _differences(one: Floats, other: Floats) -> Floats:
    """Of all pairs of draws, one of each (S·T, d)."""
    return np.asarray((one[:, None] - other).reshape(-1, one.shape[1]))


def _doubt(difference: Floats) -> Floats:
    """Two-sided share (d,) of differences (S, d) on the other side of zero."""
    count = len(difference)
    below = (1 + (difference <= 0).sum(0)) / (1 + count)
    above = (1 + (difference >= 0).sum(0)) / (1 + count)
    return np.asarray(np.minimum(1.0, 2.0 * np.minimum(below, above)))


def _standings(marginals: Mapping[str, _Marginals], data: _Marginals) -> list[Standing]:
    """Ranks with ties: a judge is before another where draws say so at 5 %, Holm over all pairs."""
    distances = {name: each.apart(data).mean(1) for name, each in marginals.items()}
    pairs = list(itertools.combinations(distances, 2))
    p_values = holm(np.array([_nearer(distances[a], distances[b]) for a, b in pairs]))
    before = dict.fromkeys(distances, 0)
    behind = dict.fromkeys(distances, 0)
    for (a, b), p in zip(pairs, p_values, strict=True):
        if p < _ALPHA:
            near, far = (a, b) if np.median(distances[a]) < np.median(distances[b]) else (b, a)
            before[far] += 1
            behind[near] += 1
    ranked = sorted(distances, key=lambda name: float(np.median(distances[name])))
    return [
        Standing(
            judge=name,
            distance=_interval(distances[name]),
            best=1 + before[name],
            worst=len(ranked) - behind[name],
        )
        for name in ranked
    ]


def _nearer(one: Floats, other: Floats) -> float:
    """Two-sided share of all pairs of draws in which the nearer judge is the farther."""
    less = float((one[:, None] <= other).mean())
    more = float((one[:, None] >= other).mean())
    return min(1.0, 2.0 * (min(less, more) + 1.0 / (1.0 + one.size * other.size)))


def _interval(values: Floats) -> Interval:
    """Median and 90 % band of values (S,)."""
    low, high = density.band(values, _LEVEL)
    return Interval(value=float(np.median(values)), low=float(low), high=float(high))
