"""Tests of whether a judge changed between runs with the same pairs.

With a pair's two log-odds in a run, half their difference measures the preference, half their sum
the position effect. If nothing changed, the runs' answers to a pair are exchangeable, so that
permuting the runs within each pair, independently for every pair, gives an exact test; with
replicates, single repeats of the pair are permuted. For two runs without replicates this is a
sign-flip test of the paired differences.

A change may be of several kinds: of strength (it follows the mean preference), along a direction of
the features, by one feature, by the product of two, by a smooth function of all (random Fourier
features, Rahimi and Recht, 2007), or different in each pair, which tells if there are replicates or
more than two runs. It may last from some run on, or be of one run. Each of these is a Gaussian
hypothesis: the differences have the covariance s²(I + γK), with the kernel K of the kind and
several γ. The statistic is their mean likelihood ratio to γ = 0, which no other test exceeds in
mean power over these hypotheses (Neyman and Pearson), and its distribution is that under the
permutations, so that the size is exact whatever the noise is.

The preference of *choices* is tested among pairs in which the first option was chosen equally often
in every run. Given that number, a choice with logistic noise does not depend on the position
effect, so that a change of the position effect alone is no change of the preference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import logit, logsumexp

from llm_elicit._util.settings import StrictModel
from llm_elicit.audit.inference import Interval, holm_adjust
from llm_elicit.audit.record import JudgeAudit
from llm_elicit.comparisons.table import Comparisons, version_of
from llm_elicit.errors import InputError
from llm_elicit.spaces.features import FeatureSpace, Floats

_FLIPS = 4_999
_ALPHA = 0.05
_MIN_PROBABILITY = 1e-9
"""The least distance of a probability from 0 and 1 in log-odds, as in `Judgments`."""

_AT_ONCE = 2_000_000
"""Number of values that are permuted at a time."""

_WAVES = 64
"""Number of random Fourier features for each scale."""

_SCALES = (1.0, 0.5)
"""Scales of smooth functions, as multiples of the median distance of points."""

_COSINES = 5
"""Number of cosines in a function of one feature; variances fall with the squared frequency."""

_MAX_PRODUCTS = 500
"""Largest number of products of two features that are tested."""

_SIGNALS = np.array([0.03, 0.1, 0.3, 1.0, 3.0])
"""Values of γ, the mean variance of a change relative to that of the noise."""

Measure = Literal["log-odds", "choices"]


@dataclass(frozen=True)
class Kind:
    """A kind of change, made of one or several hypotheses.

    Attributes:
        columns: eigenvectors of the kernels, `(n, c)`, side by side.
        weights: their eigenvalues, `(c,)`; those of a kernel sum to n.
        starts: the first column of each kernel.
    """

    columns: Floats
    weights: Floats
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, *features: Floats) -> Self:
        """Return the kind with a kernel for each matrix of features `(n, k)`."""
        vectors, weights = [], []  # eigenvectors and eigenvalues of the kernels
        for columns in features:
            basis, lengths, _ = np.linalg.svd(columns, full_matrices=False)
            squares = np.square(lengths)
            large = squares > 1e-9 * max(float(squares.max(initial=0.0)), 1e-300)
            if large.any():
                vectors.append(basis[:, large])
                weights.append(squares[large] * len(columns) / squares[large].sum())
        starts = np.cumsum([0, *(len(part) for part in weights[:-1])])
        return cls(np.concatenate(vectors, axis=1), np.concatenate(weights), starts)

    def log_ratios(self, differences: Floats) -> Floats:
        """Return log likelihood ratios `(B, h)` of standardized differences `(B, n)`."""
        squares = np.square(differences @ self.columns)
        ratios = []
        for signal in _SIGNALS:
            gain = signal * self.weights
            terms = squares * (gain / (1.0 + gain)) - np.log1p(gain)
            ratios.append(0.5 * np.add.reduceat(terms, self.starts, axis=1))
        return np.concatenate(ratios, axis=1)


@dataclass(frozen=True)
class Block:
    """Values of one sort, and the kinds of change that the test considers.

    Attributes:
        values: by pair, run and replicate, `(n, R, m)`.
        kinds: the kinds.
    """

    values: Floats
    kinds: tuple[Kind, ...]

    def log_ratio(self, order: NDArray[np.int64]) -> Floats:
        """Return the log mean likelihood ratio `(B,)` under permutations `(B, n, R·m)`."""
        n, runs, repeats = self.values.shape
        flat = self.values.reshape(n, runs * repeats)
        noise = flat.var(axis=1, ddof=1).mean() / repeats
        if not noise or not self.kinds:
            return np.zeros(len(order))
        means = np.take_along_axis(flat[None], order, axis=-1).reshape(-1, n, runs, repeats)
        means = means.mean(axis=-1) / np.sqrt(noise)
        contrasts = [means @ pattern for pattern in _patterns(runs)]
        parts = [kind.log_ratios(values) for kind in self.kinds for values in contrasts]
        if runs > 2 or repeats > 1:
            gain = _SIGNALS / (1.0 + _SIGNALS)
            for values in contrasts:
                energy = np.square(values).sum(axis=1)[:, None]
                parts.append(0.5 * (energy * gain - n * np.log1p(_SIGNALS)))
        means_of_parts = [logsumexp(part, axis=1) - np.log(part.shape[1]) for part in parts]
        return np.asarray(logsumexp(means_of_parts, axis=0))


def _patterns(runs: int) -> Floats:
    """Return contrasts of runs, unit rows: one from some run on, or of one run.

    Examples:
        >>> len(_patterns(2)), len(_patterns(3)), len(_patterns(4))
        (1, 3, 5)
    """
    steps = [np.arange(runs) >= run for run in range(1, runs)]
    single = [np.arange(runs) == run for run in range(1, runs - 1)]
    patterns = np.array([*steps, *single], dtype=np.float64)
    patterns -= patterns.mean(axis=1, keepdims=True)
    return np.asarray(patterns / np.linalg.norm(patterns, axis=1, keepdims=True))


def permutation_p(blocks: Sequence[Block], seed: int = 0, flips: int = _FLIPS) -> float:
    """Return the p-value that runs are exchangeable within each pair, by all blocks together.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> content = rng.normal(size=100)
        >>> noise = 0.1 * rng.normal(size=(2, 100, 2, 1))
        >>> same, stronger = content[:, None, None], content[:, None, None] * [[[1.0], [1.1]]]
        >>> kinds = (Kind.of(content[:, None]),)
        >>> permutation_p([Block(same + noise[0], kinds)]) > 0.05
        True
        >>> permutation_p([Block(stronger + noise[1], kinds)]) < 0.05
        True
    """
    rng = np.random.default_rng(seed)
    n, runs, repeats = blocks[0].values.shape
    if not n:
        return 1.0
    count = runs * repeats
    widest = max([n, *(kind.columns.shape[1] for block in blocks for kind in block.kinds)])
    size = max(1, _AT_ONCE // (widest * count))

    def statistics(order: NDArray[np.int64]) -> Floats:
        return np.asarray(logsumexp([block.log_ratio(order) for block in blocks], axis=0))

    parts = [statistics(np.broadcast_to(np.arange(count), (1, n, count)))]
    for start in range(0, flips, size):
        shape = (min(size, flips - start), n, count)
        parts.append(statistics(rng.random(shape).argsort(axis=-1)))
    values = np.concatenate(parts)
    # Values that differ by rounding alone are equal.
    return float((values >= values[0] - 1e-9 * (1.0 + abs(values[0]))).mean())


def kinds_of(a: Floats, b: Floats, preference: Floats, seed: int = 0) -> tuple[Kind, ...]:
    """Return the kinds of change of a preference that the test considers.

    Args:
        a, b: the points of each pair, `(n, d)`, on scales from 0 to 1.
        preference: the mean preference of each pair over all runs, `(n,)`.
        seed: seed of the Fourier features.
    """
    rng = np.random.default_rng([seed, 0xF0])
    together = np.concatenate([a, b])
    sample = together[rng.permutation(len(together))[:200]]
    apart = np.linalg.norm(sample[:, None] - sample[None], axis=-1)
    scale = float(np.median(apart[apart > 0])) if (apart > 0).any() else 1.0

    def cosines(values: Floats) -> Floats:
        frequencies = np.arange(1, _COSINES + 1)
        return np.asarray(np.cos(np.pi * values * frequencies) / frequencies)

    first, second = (rows[:_MAX_PRODUCTS] for rows in np.triu_indices(a.shape[1], 1))
    products = [(x[:, first] - 0.5) * (x[:, second] - 0.5) for x in (a, b)]
    kinds = [
        [preference[:, None]],
        [a - b],
        [cosines(a[:, [j]]) - cosines(b[:, [j]]) for j in range(a.shape[1])],
        list((products[0] - products[1]).T[:, :, None]),
    ]
    for factor in _SCALES:
        waves = rng.standard_normal((a.shape[1], _WAVES)) / (factor * scale)
        smooth = [np.cos(a @ waves) - np.cos(b @ waves), np.sin(a @ waves) - np.sin(b @ waves)]
        kinds.append([np.concatenate(smooth, axis=1)])
    varied = ([part for part in kind if np.abs(part).max() > 1e-9] for kind in kinds)
    return tuple(Kind.of(*features) for features in varied if features)


class ChangeTest(StrictModel):
    """Whether a judge's answers changed between runs.

    Attributes:
        runs: the runs compared.
        pairs: the pairs answered in all of them, in all orders and replicates.
        measure: what was compared.
        anything: p-value that nothing changed: neither preference nor position effect.
        preference: p-value that the preference did not change.
        position: p-value that the position effect did not change; None with one order.
        informative: pairs that the test of the preference uses.
        difference: root mean square, over pairs, of the change of the half difference from the
            first to the last run, in nats or in shares of choices.
        noise: what of it replicates of one run differ by; None without replicates.
        identical: whether no answer differs.
    """

    runs: tuple[str, ...]
    pairs: int
    measure: Measure
    anything: float
    preference: float
    position: float | None
    informative: int
    difference: float
    noise: float | None = None
    identical: bool = False

    @property
    def sentence(self) -> str:
        """The result in words."""
        if self.identical:
            return (
                "No answer differs between the runs: these answers repeat exactly, and nothing "
                "changed (p = 1)."
            )
        tests = [("preference", self.preference), ("position effect", self.position)]
        changed = [f"the {name} (p = {p:.2g})" for name, p in tests if p is not None and p < _ALPHA]
        if changed:
            names = " and ".join(changed)
            return f"Changed: {names}. This is more than the noise of the answers explains."
        if self.anything < _ALPHA:
            return (
                f"Something changed (p = {self.anything:.2g}), but it is not known whether the "
                "preference or the position effect did."
            )
        parts = ", ".join(f"{name} p = {p:.2g}" for name, p in tests if p is not None)
        return (
            f"No change was found ({parts}): the differences are not larger than the noise of the "
            "answers."
        )


@dataclass(frozen=True)
class Answers:
    """The answers that several runs have in common.

    Attributes:
        a, b: the points of each pair, `(n, d)`, on the features' scales from 0 to 1.
        preference: half differences, `(n, R, m)`, in nats, or in shares of choices from −1 to 1.
        position: half sums, likewise; None with one order.
        measure: which of the two.
    """

    a: Floats
    b: Floats
    preference: Floats
    position: Floats | None
    measure: Measure


def common_answers(runs: Sequence[tuple[Comparisons, str]], space: FeatureSpace) -> Answers:
    """Return the answers of a judge to the questions that all runs share.

    Args:
        runs: the table of each run, and the judge's name in it.
        space: the feature space.

    Raises:
        InputError: no question was answered in all runs.
    """
    rows = [table.judgments(judge) for table, judge in runs]
    soft = all(judgments.measured for judgments in rows)
    key = ["pair", "order", "replicate", "prompt_hash"]
    columns = []
    for table, judge in runs:
        frame = table.of(judge)
        frame = frame[frame["probability"].notna() & (frame["soft"] | (not soft))]
        p = frame["probability"].to_numpy(np.float64)
        value = np.sign(p - 0.5)
        if soft:
            value = logit(np.clip(p, _MIN_PROBABILITY, 1.0 - _MIN_PROBABILITY))
        columns.append(frame[key].assign(value=value).set_index(key)["value"])
    joined = pd.concat(columns, axis=1, join="inner", keys=range(len(runs)))
    wide = joined.reset_index("prompt_hash", drop=True).unstack(["order", "replicate"]).dropna()
    if wide.empty:
        names = " and ".join(dict.fromkeys(judge for _, judge in runs))
        raise InputError(
            f"compare: no question to {names} was answered in all runs; leave out runs that share "
            "no question with the others, or complete them with llm-elicit run"
        )
    orders = sorted(set(wide.columns.get_level_values("order")))
    by_order = {
        order: np.stack([wide[run][order].to_numpy(np.float64) for run in range(len(runs))], 1)
        for order in orders
    }
    first = runs[0][0].of(runs[0][1]).groupby("pair").first().loc[wide.index]
    a, b = (_coordinates(points, space) for points in runs[0][0].points(first))
    preference, position = by_order[orders[0]], None
    if len(orders) > 1:
        ab, ba = by_order["ab"], by_order["ba"]
        preference, position = (ab + ba) / 2, (ab - ba) / 2
    return Answers(a, b, preference, position, "log-odds" if soft else "choices")


def _coordinates(points: Floats, space: FeatureSpace) -> Floats:
    """Return points on the features' scales from 0 to 1; a column for each category."""
    low, high = space.scale_ends
    unit = (space.to_scale(points) - low) / np.where(high > low, high - low, 1.0)
    columns = []
    for j, feature in enumerate(space.features):
        if space.categorical[j]:
            codes = np.arange(len(feature.categories))
            columns.append((points[:, j, None] == codes).astype(np.float64))
        else:
            columns.append(unit[:, j, None])
    return np.concatenate(columns, axis=1)


def measure_change(answers: Answers, names: Sequence[str], seed: int = 0) -> ChangeTest:
    """Test whether anything changed between runs.

    Args:
        answers: of all runs.
        names: the runs, in time.
        seed: seed of the permutations.
    """
    preference, position = answers.preference, answers.position
    mean = preference.mean(axis=(1, 2))
    blocks = [Block(preference, kinds_of(answers.a, answers.b, mean, seed))]
    p_position = None
    if position is not None:
        level = Block(position, (Kind.of(np.ones((len(mean), 1))),))
        p_position = permutation_p([level], seed)
        blocks.append(level)
    p_preference, informative = _test_preference(answers, seed, _FLIPS)
    runs = preference.mean(axis=2)
    noise = None
    if preference.shape[2] > 1:
        within = preference.var(axis=2, ddof=1).mean()
        noise = float(np.sqrt(2.0 * within / preference.shape[2]))
    still = [preference] if position is None else [preference, position]
    return ChangeTest(
        runs=tuple(names),
        pairs=len(mean),
        measure=answers.measure,
        anything=permutation_p(blocks, seed),
        preference=p_preference,
        position=p_position,
        informative=informative,
        difference=float(np.sqrt(np.square(runs[:, -1] - runs[:, 0]).mean())),
        noise=noise,
        identical=all(bool((part == part[:, :1]).all()) for part in still),
    )


def _test_preference(answers: Answers, seed: int, flips: int) -> tuple[float, int]:
    """Return the p-value that the preference did not change, and the pairs that it uses."""
    preference, position = answers.preference, answers.position
    a, b = answers.a, answers.b
    if answers.measure == "choices" and position is not None:
        # Runs are permuted as a whole: only they have equal numbers of first choices.
        totals = np.round(position.mean(axis=2) * 4 * position.shape[2])
        alike = np.ptp(totals, axis=1) == 0
        preference = preference[alike].mean(axis=2, keepdims=True)
        a, b = a[alike], b[alike]
    kinds = kinds_of(a, b, preference.mean(axis=(1, 2)), seed) if len(a) else ()
    return permutation_p([Block(preference, kinds)], seed, flips), len(a)


def judges_differ(
    judges: Sequence[tuple[Comparisons, str]], space: FeatureSpace, seed: int = 0, flips: int = 999
) -> float:
    """Return the p-value that judges answer the same questions alike, by exchanges within pairs.

    Log-odds are divided by each judge's root mean square, because their unit is arbitrary.

    Args:
        judges: the table of answers and the name of each judge.
        space: the feature space.
        seed: seed of the permutations.
        flips: their number.

    Raises:
        InputError: no question was answered by all of them.
    """
    answers = common_answers(judges, space)
    preference = answers.preference
    if answers.measure == "log-odds":
        size = np.sqrt(np.square(preference.mean(axis=2)).mean(axis=0))[None, :, None]
        preference = preference / np.where(size > 0.0, size, 1.0)
    return _test_preference(replace(answers, preference=preference), seed, flips)[0]


class RepeatedRun(StrictModel):
    """A judge's results in one run of a series, with 95 % intervals; None where unavailable.

    Attributes:
        run: the run.
        first, last: the UTC times of its first and last answer, ISO 8601.
        versions: its answers by the version that gave them.
        verdict: the kind of judge.
        effects: effect of each feature on the utility, log-odds over the middle half of its range.
        auc: probability that the judge prefers a row of the data to a draw from λ.
        position: the mean position effect.
    """

    run: str
    first: str
    last: str
    versions: dict[str, int]
    verdict: str
    effects: dict[str, Interval]
    auc: Interval | None
    position: Interval | None


class JudgeRepeats(StrictModel):
    """A judge over the runs of a series.

    Attributes:
        judge: the judge.
        runs: in time.
        change: the test over all runs.
        ends: the test of the first against the last run, if there are more than two.
        p_holm: of `change.anything`, adjusted over the judges.
    """

    judge: str
    runs: list[RepeatedRun]
    change: ChangeTest
    ends: ChangeTest | None
    p_holm: float

    @property
    def sentences(self) -> list[str]:
        """The results in words."""
        lines = [self.change.sentence]
        if self.ends is not None:
            lines.append(f"First and last run compared: {self.ends.sentence}")
        if self.change.anything < _ALPHA <= self.p_holm:
            lines.append(
                f"Adjusted for the number of judges, no change is shown (p = {self.p_holm:.2g})."
            )
        return lines


class RepeatComparison(StrictModel):
    """The runs of a series of repeats, compared; judges in the campaign's order."""

    runs: tuple[str, ...]
    judges: list[JudgeRepeats]

    def __repr__(self) -> str:
        """Return the runs and the results for each judge."""
        lines = [f"{judge.judge}: {' '.join(judge.sentences)}" for judge in self.judges]
        return "\n".join([f"RepeatComparison({', '.join(self.runs)})", *lines])

    __str__ = __repr__


@dataclass(frozen=True)
class RepeatedJudge:
    """A judge in one run: the table of answers, and its audit, if it has one."""

    run: str
    table: Comparisons
    audit: JudgeAudit | None


def measure_repeats(
    judge: str, runs: Sequence[RepeatedJudge], space: FeatureSpace, seed: int = 0
) -> JudgeRepeats:
    """Compare the runs of one judge, in time.

    Raises:
        InputError: no question was answered in all runs.
    """

    def compare(compared: Sequence[RepeatedJudge]) -> ChangeTest:
        answers = common_answers([(run.table, judge) for run in compared], space)
        return measure_change(answers, [run.run for run in compared], seed)

    change = compare(runs)
    ends = compare([runs[0], runs[-1]]) if len(runs) > 2 else None
    repeated_runs = [_repeated_run(judge, run) for run in runs]
    p = change.anything
    return JudgeRepeats(judge=judge, runs=repeated_runs, change=change, ends=ends, p_holm=p)


def _repeated_run(judge: str, run: RepeatedJudge) -> RepeatedRun:
    rows, audit = run.table.of(judge), run.audit
    prints = rows["fingerprint"].fillna("") if "fingerprint" in rows else [""] * len(rows)
    models = zip(rows["model_answered"].fillna(""), prints, strict=True)
    versions = Counter(version_of(str(model), str(print_)) for model, print_ in models)
    effects = {
        effect.name: Interval(value=effect.value, low=effect.low, high=effect.high)
        for effect in (() if audit is None else audit.effects)
        if effect.value is not None and effect.low is not None and effect.high is not None
    }
    position = None if audit is None else audit.preference.position
    return RepeatedRun(
        run=run.run,
        first=str(rows["asked_at"].min()),
        last=str(rows["asked_at"].max()),
        versions={name: count for name, count in sorted(versions.items()) if name},
        verdict="no answers" if audit is None else audit.verdict,
        effects=effects,
        auc=None if audit is None else audit.auc,
        position=None if position is None else position.mean,
    )


def adjust(judges: Sequence[JudgeRepeats], controls: Container[str] = ()) -> list[JudgeRepeats]:
    """Return the judges with p-values adjusted over all but the controls (Holm, 1979)."""
    family = [judge.judge not in controls for judge in judges]
    p_values = holm_adjust(np.array([judge.change.anything for judge in judges]), family)
    pairs = zip(judges, p_values.tolist(), strict=True)
    return [judge.model_copy(update={"p_holm": p}) for judge, p in pairs]
