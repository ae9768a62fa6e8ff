"""A panel: many judges over one or several feature spaces, what their beliefs are worth, and pools.

*Worth in rows* (after OpenEstimate, 2025): the number of rows of the table from which a kernel
density predicts other rows as well as the belief does, in mean log density (nats a row). The
kernel density of n rows is that of `learn_rows`. Rows are split in halves at random; the density
learns from the first n of one half, and both are scored at the other. Scores rise with n by
isotonic regression, and a belief is worth the n at which they reach its own. Its 95 % interval is
by bootstrap over rows and splits. It does not count that one set of n rows teaches more than
another: of judges who know the density of 20 rows it holds 20 in 72 to 80 %. The unit of log
densities is relative to a uniform density on the ranges, which has 0. Worth depends on the belief's
power, over which it is given; the AUC does not.

*Pools* of all judges that are no controls (`llm_elicit.density.pool`) have weights fitted to one
half of the rows and are scored at the other, as above; the weights that are reported are fitted to
all rows.

*Ties.* Two judges are compared by their differences at the same rows: of log densities by
Student's paired test; of shares of λ that a row is preferred to, whose mean is the AUC, by a
normal test (DeLong and others, 1988) with the variance over draws of the posterior added. Judges
have different ranks only if they differ at 5 %, Holm-adjusted over the pairs of a space.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field
from scipy import stats
from scipy.interpolate import CubicSpline
from scipy.optimize import isotonic_regression
from scipy.special import logsumexp, ndtr, softmax

from llm_elicit import density
from llm_elicit._util.settings import StrictModel
from llm_elicit.audit.inference import Interval, Worth, interval_columns, t_interval
from llm_elicit.audit.judge_comparison import adjust_orders, rank_ranges
from llm_elicit.audit.record import JudgeAudit
from llm_elicit.density.pool import POOL_KINDS, PoolKind, PoolWeights, fit_pool_weights
from llm_elicit.spaces.features import FeatureSpace, Floats

SIZES = (2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 300, 500, 800, 1000)
"""Numbers of rows that a kernel density learns from."""
MIN_ROWS = 10
"""Fewest rows of a table by which beliefs are scored."""
_MAX_ROWS, _HELD_OUT = 2000, 150  # of a table, and of a split's other half
_SPLITS, _WIDTH_SPLITS = 16, 4
"""Splits of the rows in halves, and those of them that choose the widths of the kernels."""
_RESAMPLES = 200
"""Bootstrap resamples of rows and splits."""
_WIDTHS = (0.5, 0.7, 1.0)
"""Widths of the kernels relative to Scott's rule; for each n the one that predicts best counts."""
_TIE = 1e-9  # differences of log densities, and of shares, that are rounding errors
_POOL_DRAWS = 4096
"""Draws of all beliefs together, over which the normalizing constant of a pool is a mean."""


@dataclass(frozen=True)
class _Axes:
    """The features of points on the scales of the kernels.

    Attributes:
        unit: `(n, d)`, 0 to 1 over the range of each feature's scale.
        low, high: ends of the cell of each whole number, else of the value itself.
        codes: `(n, d)` natural units, which are codes of categories.
    """

    unit: Floats
    low: Floats
    high: Floats
    codes: Floats

    @classmethod
    def of(cls, space: FeatureSpace, points: Floats) -> _Axes:
        """Return the axes of points `(n, d)`, natural units."""
        low, high = space.scale_ends

        def to_unit(values: Floats) -> Floats:
            return np.asarray(np.clip((space.to_scale(values) - low) / (high - low), 0.0, 1.0))

        half = np.where(space.integer, 0.5, 0.0)
        return cls(to_unit(points), to_unit(points - half), to_unit(points + half), points)

    def take(self, rows: npt.NDArray[np.int64]) -> _Axes:
        """Return the points of these numbers."""
        return _Axes(*(part[rows] for part in (self.unit, self.low, self.high, self.codes)))


def learn_rows(space: FeatureSpace, rows: Floats, points: Floats, width: float = 0.7) -> Floats:
    """Return log densities `(m,)` at points by a kernel density of n rows, relative to uniform.

    p(x) = (1 + Σ_i K(x, x_i)) / (n + 1), a product of kernels over features that begins as a
    uniform density and is one on the ranges for every n. Kernels are normal on the features'
    scales, cut off at the ranges; around periodic features they are wrapped, whole numbers have the
    mass of their cell, and K categories keep n/(n + K) of their kernel and spread the rest evenly.
    Standard deviations are by Scott's rule, with the range's own counted as one more row.

    Args:
        space: the feature space.
        rows: `(n, d)`, natural units.
        points: `(m, d)`, natural units.
        width: multiple of Scott's width.

    Examples:
        >>> space, rng = FeatureSpace.load("penguins_kinds"), np.random.default_rng(0)
        >>> rows, uniform = space.table_points(), space.sample(20_000, rng)
        >>> total = np.exp(learn_rows(space, rows[:20], uniform)).mean()
        >>> bool(abs(total - 1.0) < 0.05)
        True
    """
    return _log_kernels(space, _Axes.of(space, rows), _Axes.of(space, points), width)


def _log_kernels(space: FeatureSpace, rows: _Axes, points: _Axes, width: float) -> Floats:
    n, numbers = len(rows.unit), int((~space.categorical).sum())
    log_kernels = np.zeros((len(points.unit), n))
    for j in range(space.dimension):
        if space.categorical[j]:
            count = space.high[j] - space.low[j] + 1.0
            spread = 1.0 / (n + count)
            same = points.codes[:, j, None] == rows.codes[:, j]
            log_kernels += np.log(count * np.where(same, n / (n + count) + spread, spread))
            continue
        centre = rows.unit[:, j]
        if space.periodic[j]:
            angles = 2.0 * np.pi * centre
            resultant = np.hypot(np.cos(angles).sum(), np.sin(angles).sum()) / (n + 1)
            sd = min(math.sqrt(-2.0 * math.log(max(resultant, 1e-9))) / (2.0 * np.pi), 0.3)
        else:
            sd = math.sqrt((n * centre.var() + 1.0 / 12.0) / n)
        h = width * sd * n ** (-1.0 / (numbers + 4))
        turns = (-1.0, 0.0, 1.0) if space.periodic[j] else (0.0,)
        if space.integer[j]:
            low, high = points.low[:, j, None], points.high[:, j, None]
            masses = [ndtr((high - centre + t) / h) - ndtr((low - centre + t) / h) for t in turns]
            logs = np.log(np.maximum(np.sum(masses, axis=0), 1e-300) / (high - low))
        else:
            squares = [np.square((points.unit[:, j, None] - centre + t) / h) for t in turns]
            logs = -0.5 * squares[0] if len(turns) == 1 else logsumexp(-0.5 * np.array(squares), 0)
            logs = logs - math.log(h * math.sqrt(2.0 * math.pi))
        if not space.periodic[j]:
            logs = logs - np.log(ndtr((1.0 - centre) / h) - ndtr(-centre / h))
        log_kernels += logs
    return np.asarray(np.logaddexp(logsumexp(log_kernels, axis=1), 0.0) - math.log(n + 1.0))


@dataclass(frozen=True)
class RowScores:
    """Rows of a table, and how well a kernel density of other rows predicts them.

    Attributes:
        points: the rows `(N, d)`, natural units.
        halves: `(S, N)`, whether a row is in the half that a split learns from.
        sizes, widths: the numbers of rows learned from, and the kernels' width for each.
        weights: `(1 + B, N)`, the weight of each row in a mean score: for all splits, then by
            resample of rows and splits.
        curves: `(1 + B, s)`, the mean score by number of rows, never falling.
    """

    points: Floats
    halves: npt.NDArray[np.bool_]
    sizes: tuple[int, ...]
    widths: tuple[float, ...]
    weights: Floats
    curves: Floats

    @classmethod
    def learn(cls, space: FeatureSpace, rows: Floats, rng: np.random.Generator) -> RowScores:
        """Score kernel densities of more and more rows `(N, d)`, natural units."""
        points = rows[rng.permutation(len(rows))[:_MAX_ROWS]]
        count, axes = len(points), _Axes.of(space, points)
        sizes = tuple(size for size in SIZES if size <= count // 2)
        halves, is_scored = np.zeros((2, _SPLITS, count), dtype=bool)
        scores = np.zeros((len(_WIDTHS), _SPLITS, len(sizes), count))
        order, width_of = np.arange(count), [0] * len(sizes)
        for split in range(_SPLITS):
            # Every second split exchanges the two halves of the split before.
            order = order[::-1] if split % 2 else rng.permutation(count)
            halves[split, order[: count // 2]] = True
            held_out = order[count // 2 :][:_HELD_OUT]
            is_scored[split, held_out] = True
            tested = axes.take(held_out)
            for k, size in enumerate(sizes):
                learned = axes.take(order[:size])
                if split == _WIDTH_SPLITS:
                    width_of[k] = scores[:, :, k].sum(axis=(1, 2)).argmax()
                for w in range(len(_WIDTHS)) if split < _WIDTH_SPLITS else [width_of[k]]:
                    scores[w, split, k, held_out] = _log_kernels(space, learned, tested, _WIDTHS[w])
        best = np.stack([scores[w, :, k] for k, w in enumerate(width_of)], axis=1)
        row_counts, split_counts = (
            np.vstack([np.ones(n), rng.multinomial(n, np.full(n, 1.0 / n), _RESAMPLES)])
            for n in (count, _SPLITS)
        )
        weights = row_counts * (split_counts @ is_scored)
        total = weights.sum(axis=1, keepdims=True)
        curves = np.einsum("bs,skn,bn->bk", split_counts, best, row_counts, optimize=True) / total
        rising = np.array([isotonic_regression(curve).x for curve in curves])
        widths = tuple(_WIDTHS[w] for w in width_of)
        return cls(points, halves, sizes, widths, weights / total, rising)

    def worth(self, log_densities: Floats) -> Worth:
        """Return what a belief with these log densities `(N,)` at the rows is worth."""
        reached = [
            _reached_size(self.sizes, curve, score)
            for curve, score in zip(self.curves, self.weights @ log_densities, strict=True)
        ]
        low, high = np.quantile(reached[1:], [0.025, 0.975]).tolist()
        return Worth(value=reached[0], low=low, high=high, least=self.sizes[0], most=self.sizes[-1])


def _reached_size(sizes: Sequence[int], curve: Floats, score: float) -> float:
    """Return the number of rows at which a rising curve reaches a score, within the sizes."""
    k = int(np.searchsorted(curve, score))
    if k == 0 or k == len(sizes):
        return float(sizes[0 if k == 0 else -1])
    part = (score - curve[k - 1]) / (curve[k] - curve[k - 1])
    return float(sizes[k - 1] * (sizes[k] / sizes[k - 1]) ** part)


class WorthAtPower(StrictModel):
    """What a belief is worth at one power.

    Attributes:
        factor: the power relative to the saved belief's.
        log_density: mean log density, nats a row, relative to a uniform density on the ranges.
        worth: the same in rows.
        source: the evidence that identifies this power; empty for a mere multiple.
    """

    factor: float
    log_density: float
    worth: Worth
    source: str = ""


class PanelEntry(StrictModel):
    """A judge, or a pool of judges, over one feature space.

    Attributes:
        judge: its name; a judge's is `run/judge` if other runs have judges of that name.
        control: whether it is a control, which no pool contains.
        verdict: the verdict of its run's audit, or "pool".
        reliability, generalizability, auc: as in the audit; the AUC of a pool is at held-out rows.
        auc_ranks: first and last rank by AUC that cannot be excluded.
        log_density: mean log density, nats a row, relative to a uniform density on the ranges, at
            the saved power, with its 95 % interval over rows; None without a belief or a table.
        worth: the same in rows.
        worth_ranks: first and last rank by log density that cannot be excluded.
        scale: the source of the saved power; empty if nothing identifies it.
        powers: what the belief is worth at other powers; empty for a pool.
        weights: a pool's weights by judge.
    """

    judge: str
    control: bool = False
    verdict: str
    reliability: Interval | None = None
    generalizability: Interval | None = None
    auc: Interval | None = None
    auc_ranks: tuple[int, int] | None = None
    log_density: Interval | None = None
    worth: Worth | None = None
    worth_ranks: tuple[int, int] | None = None
    scale: str = ""
    powers: tuple[WorthAtPower, ...] = ()
    weights: dict[str, float] = Field(default_factory=dict)


class PanelSpace(StrictModel):
    """The judges and pools of one feature space.

    Attributes:
        name, title: name and title of the feature space.
        rows: rows of the table used; 0 without a table, or with too few.
        sizes, curve: numbers of rows, and the mean log density of a row by a kernel density that
            learned from as many others.
        entries: judges and pools by log density from the highest, then those without.
    """

    name: str
    title: str
    rows: int
    sizes: tuple[int, ...] = ()
    curve: tuple[float, ...] = ()
    entries: tuple[PanelEntry, ...]


class Panel(StrictModel):
    """Judges over one or several feature spaces; see `llm_elicit.audit.panel`."""

    spaces: tuple[PanelSpace, ...]

    def __repr__(self) -> str:
        """Return the sizes; `frame` has the numbers."""
        entries = sum(len(space.entries) for space in self.spaces)
        return f"Panel({len(self.spaces)} spaces, {entries} judges and pools, .frame)"

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each judge and pool of each space."""
        rows = []
        for space in self.spaces:
            for entry in space.entries:
                row: dict[str, Any] = {"space": space.name}
                row |= {name: getattr(entry, name) for name in ("judge", "verdict", "scale")}
                for name in ("reliability", "generalizability", "auc", "log_density", "worth"):
                    row |= interval_columns(name, getattr(entry, name))
                for name in ("auc_ranks", "worth_ranks"):
                    first, last = getattr(entry, name) or (None, None)
                    row |= {f"{name}_first": first, f"{name}_last": last}
                rows.append(row)
        return pd.DataFrame(rows)


@dataclass(frozen=True)
class PanelJudge:
    """A judge to put on a panel.

    Attributes:
        name: a name that no other judge of the space has.
        audit: its audit; None if it gave no answers.
        belief: its belief; None if it has none.
        points: draws of the belief, natural units; None without one.
        control: whether it is a control.
    """

    name: str
    audit: JudgeAudit | None
    belief: density.BeliefDensity | None
    points: Floats | None
    control: bool = False


def measure_panel_space(
    space: FeatureSpace,
    rows: Floats | None,
    sampling: Floats,
    judges: Sequence[PanelJudge],
    seed: int = 0,
) -> tuple[PanelSpace, dict[str, Floats]]:
    """Measure the judges of one feature space and their pools.

    Args:
        space: the feature space.
        rows: rows of its table `(N, d)`, natural units; None without one.
        sampling: draws from λ `(k, d)`, natural units.
        judges: of different names.
        seed: seed of splits and resamples.

    Returns:
        The numbers, and draws of each pool by its name.
    """
    entries = {judge.name: _audited_entry(judge) for judge in judges}
    if rows is None or len(rows) < MIN_ROWS:
        unscored = tuple(entries.values())
        return PanelSpace(name=space.name, title=space.title, rows=0, entries=unscored), {}
    rng = np.random.default_rng([seed, 0x9A7E1])
    learned = RowScores.learn(space, rows, rng)
    scored, pooled = {}, {}
    for judge in judges:
        if judge.belief is not None and judge.points is not None:
            scores = _Scores.of_judge(judge, judge.belief, space, rows, learned, sampling)
            scored[judge.name] = scores
            if not judge.control:
                pooled[judge.name] = judge.belief, judge.points, scores
    pools = {}
    if len(pooled) > 1:
        beliefs, draws, parts = zip(*pooled.values(), strict=True)
        points = np.concatenate([sample[: _POOL_DRAWS // len(draws)] for sample in draws])
        at_points = np.column_stack([_relative(belief, space, points) for belief in beliefs])
        for kind in POOL_KINDS:
            name = f"{kind} pool"
            weights, scored[name] = _pool_scores(kind, learned, parts, at_points)
            by_judge = dict(zip(pooled, weights.weights.tolist(), strict=True))
            entries[name] = PanelEntry(judge=name, verdict="pool", weights=by_judge)
            importance = weights.log_density(at_points) - logsumexp(at_points, axis=1)
            pools[name] = points[rng.choice(len(points), _POOL_DRAWS, p=softmax(importance))]
    for name, scores in scored.items():
        entries[name] = scores.complete(entries[name], learned)
    controls = {judge.name for judge in judges if judge.control}
    return PanelSpace(
        name=space.name,
        title=space.title,
        rows=len(learned.points),
        sizes=learned.sizes,
        curve=tuple(learned.curves[0].tolist()),
        entries=tuple(_rank_entries(entries, scored, controls)),
    ), pools


def _audited_entry(judge: PanelJudge) -> PanelEntry:
    """Return the panel's entry of a judge, with the results of its audit."""
    audit = judge.audit
    if audit is None:
        return PanelEntry(judge=judge.name, control=judge.control, verdict="no answers")
    powers = audit.powers
    return PanelEntry(
        judge=judge.name,
        control=judge.control,
        verdict=audit.verdict,
        reliability=audit.preference.reliability,
        generalizability=getattr(audit.presentations, "generalizability", None),
        auc=audit.auc,
        scale=(powers and powers.scale_sources) or "",
    )


@dataclass(frozen=True)
class _Scores:
    """A belief or a pool at the rows of the table and at draws from λ.

    Attributes:
        log_densities: `(N,)`, relative to a uniform density on the ranges.
        placements: `(N,)`, the share of λ to which each row is preferred; the AUC is their mean.
        sampling_placements: `(k,)`, the share of rows that are preferred to each draw.
        at_sampling: `(k,)`, log densities at these draws.
        posterior_variance: variance of the AUC over draws of the posterior.
        by_power: factors of the saved power, log densities `(N,)` there, and sources of the power.
    """

    log_densities: Floats
    placements: Floats
    sampling_placements: Floats
    at_sampling: Floats
    posterior_variance: float = 0.0
    by_power: tuple[tuple[float, Floats, str], ...] = ()

    @classmethod
    def of_judge(
        cls,
        judge: PanelJudge,
        belief: density.BeliefDensity,
        space: FeatureSpace,
        table: Floats,
        learned: RowScores,
        sampling: Floats,
    ) -> _Scores:
        """Return the scores of a judge's belief at rows of the table `(n, d)`."""
        rows = learned.points
        at_rows, at_sampling = (_relative(belief, space, points) for points in (rows, sampling))
        utilities = at_rows[None], at_sampling[None]
        if belief.has_draws:
            utilities = belief.utilities(rows), belief.utilities(sampling)
        placed = [_placements(*pair) for pair in zip(*utilities, strict=True)]
        by_row, by_sampling = (np.array(side) for side in zip(*placed, strict=True))
        return cls(
            at_rows,
            by_row.mean(axis=0),
            by_sampling.mean(axis=0),
            at_sampling,
            float(by_row.mean(axis=1).var()),
            _evaluate_powers(judge, belief, table, rows, at_rows),
        )

    def complete(self, entry: PanelEntry, learned: RowScores) -> PanelEntry:
        """Return the entry with its scores, and what they are worth in rows."""
        update: dict[str, Any] = {
            "log_density": t_interval(self.log_densities),
            "worth": learned.worth(self.log_densities),
            "powers": tuple(
                WorthAtPower(
                    factor=factor,
                    log_density=float(values.mean()),
                    worth=learned.worth(values),
                    source=source,
                )
                for factor, values, source in self.by_power
            ),
        }
        if entry.weights:  # the AUC of a judge is that of its audit
            update["auc"] = t_interval(self.placements)
        return entry.model_copy(update=update)


def _relative(belief: density.BeliefDensity, space: FeatureSpace, points: Floats) -> Floats:
    """Return log densities `(n,)` of a belief relative to a uniform density on the ranges."""
    low, high = space.scale_ends
    per_scale = belief.log_prob(points) - belief.sampling.log_scale_derivative(points)
    return np.asarray(per_scale + np.log(high - low).sum())


def _placements(rows: Floats, sampling: Floats) -> tuple[Floats, Floats]:
    """Return the share of `sampling` below each of `rows`, and of `rows` above each of `sampling`.

    Equal values count half.
    """

    def share_below(values: Floats, others: Floats) -> Floats:
        ordered = np.sort(others)
        ends = [np.searchsorted(ordered, values, side) for side in ("left", "right")]
        return np.asarray(0.5 * (ends[0] + ends[1]) / len(others))

    return share_below(rows, sampling), 1.0 - share_below(sampling, rows)


def _evaluate_powers(
    judge: PanelJudge, belief: density.BeliefDensity, table: Floats, rows: Floats, at_rows: Floats
) -> tuple[tuple[float, Floats, str], ...]:
    """Return log densities at rows by factor of the saved power, and the source of the power.

    log p_k = log p_1 + (k − 1) u − log Z_k/Z_1. The constant follows from the mean log densities of
    the whole table in the audit, between whose powers they are interpolated.
    """
    powers = None if judge.audit is None else judge.audit.powers
    if powers is None or powers.data_power is None:
        return ()
    factors = [item.factor for item in powers.beliefs]
    means = CubicSpline(np.log(factors), [item.log_density or 0.0 for item in powers.beliefs])
    identified = powers.identified_power
    sourced_powers = [(powers.data_power.value, "the data")]
    if identified is not None:
        powers_of_sources = identified.sources or (identified,)
        sourced_powers += [(power.value, power.source) for power in powers_of_sources]
    sources = dict.fromkeys(factors, "")
    sources |= {value / powers.saved_power: name for value, name in sourced_powers}
    mean_utility = float(belief.utility(table, tapered=False).mean())
    utility = belief.utility(rows, tapered=False) - mean_utility
    return tuple(
        (k, at_rows + (k - 1.0) * utility + float(means(math.log(k)) - means(0.0)), source)
        for k, source in sorted(sources.items())
        if factors[0] <= k <= factors[-1]
    )


def _pool_scores(
    kind: PoolKind, learned: RowScores, scored: Sequence[_Scores], at_points: Floats
) -> tuple[PoolWeights, _Scores]:
    """Return a pool's weights, fitted to all rows, and its scores.

    Each row is scored by weights fitted to the halves that do not have it.

    Args:
        kind: linear or logarithmic.
        learned: the rows and their halves.
        scored: the scores of its judges.
        at_points: log densities `(m, K)` of the judges at draws of all.
    """
    at_rows = np.column_stack([scores.log_densities for scores in scored])
    at_sampling = np.column_stack([scores.at_sampling for scores in scored])
    log_densities, placements = np.zeros((2, len(at_rows)))
    by_sampling = []
    for half in learned.halves:
        weights = fit_pool_weights(kind, at_rows[half], at_points)
        values, at_draws = (weights.log_density(x) for x in (at_rows[~half], at_sampling))
        by_row, by_draw = _placements(values, at_draws)
        log_densities[~half] += values
        placements[~half] += by_row
        by_sampling.append(by_draw)
    counts = (~learned.halves).sum(axis=0)
    weights = fit_pool_weights(kind, at_rows, at_points)
    return weights, _Scores(
        log_densities / counts, placements / counts, np.mean(by_sampling, axis=0),
        weights.log_density(at_sampling),
    )  # fmt: skip


def _test_equal(differences: Floats, variance: float) -> float:
    """Return the p-value that differences `(N,)` have mean 0.

    A variance of the mean that is not over rows makes it a normal test, else it is Student's.
    Differences within rounding errors, as of a pool with one judge, are none.
    """
    if np.abs(differences).max() < _TIE:
        return 1.0
    error = math.sqrt(float(differences.var(ddof=1)) / len(differences) + variance)
    statistic = abs(float(differences.mean())) / max(error, 1e-300)
    freedom = np.inf if variance > 0.0 else len(differences) - 1
    return float(2.0 * stats.t.sf(statistic, freedom))


def _rank_entries(
    entries: Mapping[str, PanelEntry], scored: Mapping[str, _Scores], controls: Set[str]
) -> list[PanelEntry]:
    """Return the entries with their ranks, by log density from the highest; others last."""
    by_density, by_auc = {}, {}
    for a, b in itertools.combinations(scored, 2):
        first, second = scored[a], scored[b]
        by_density[a, b] = _test_equal(first.log_densities - second.log_densities, 0.0)
        by_draw = first.sampling_placements - second.sampling_placements
        variance = first.posterior_variance + second.posterior_variance
        variance += float(by_draw.var()) / len(by_draw)
        by_auc[a, b] = _test_equal(first.placements - second.placements, variance)
    losses = {name: -float(scores.log_densities.mean()) for name, scores in scored.items()}
    areas = {name: -float(scores.placements.mean()) for name, scores in scored.items()}
    worth_ranks = rank_ranges(losses, adjust_orders(by_density, controls))
    auc_ranks = rank_ranges(areas, adjust_orders(by_auc, controls))
    ranked = [
        entries[name].model_copy(
            update={"worth_ranks": worth_ranks[name], "auc_ranks": auc_ranks[name]}
        )
        for name in sorted(scored, key=losses.__getitem__)
    ]
    return [*ranked, *(entry for name, entry in entries.items() if name not in scored)]
