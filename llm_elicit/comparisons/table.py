"""The typed table of judgments, one row per judgment.

The orchestrator writes it; fits and the audit read it. Columns:

======================  ==========================================================================
judge                   the judge's name in the campaign
pair, order, replicate  the question: pair number, "ab" or "ba" (which point was option A), 0...
a_<feature>, b_<...>    the two points: numbers in natural units, words of categories, dates
template, prompt_hash   the template's id; SHA-256 of the rendered messages
presentation            how the pair was presented: the levels of the facets that vary, such as
                        "v2/typical, labels 1/2"; missing or empty in a campaign of one presentation
model_asked             the model the campaign named
model_answered          the model that answered, as the provider reports it
fingerprint             the version of the system around it, if the provider reports one
reply                   the raw text of the answer
verdict                 "A", "B", "tie", "refusal", "truncated" or "unparsable"
probability             P(a preferred to b) in either order of presentation; empty without a choice
soft                    whether probability comes from log-probabilities or a stated probability
format                  the answer asked for, "letter" (also if missing), "probability" or "ratio"
letter_mass             the probability that the model gave to the two letters (soft only)
censored                1 if the log-odds of a over b are known only to be at least those of
                        probability, -1 if at most (a letter was not listed), 0 (also if missing)
prompt_tokens, ...      completion_tokens, cached_tokens; cost (USD; empty if the price is unknown)
latency, attempts       seconds of the answering request; requests sent for this answer
cached                  served from an earlier run's answer, at no cost
asked_at                UTC time of the answer, ISO 8601
thinking                the thinking that a reasoning model returned; only if it was asked for
======================  ==========================================================================

A pair that is asked in two presentations has two numbers, and the same points.

A *version* of a model is its name as the provider reports it, with the fingerprint of the system
around it if there is one. Judges that ask the same model at the same address share an alias
(`BaseJudge.alias`), behind which one version is expected.
"""

from __future__ import annotations

import reprlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_elicit._util.packages import LazyModule, pd
from llm_elicit._util.text import brief_repr, visible
from llm_elicit.comparisons.table_files import (
    COLUMNS,
    OPTIONAL,
    TYPES,
    check_columns,
    is_worded,
    read_frame,
    write_frames,
)
from llm_elicit.config.campaign import Fit
from llm_elicit.errors import InputError, UnknownNameError
from llm_elicit.spaces.feature import column_values
from llm_elicit.spaces.features import FeatureSpace, Floats

if TYPE_CHECKING:
    from llm_elicit import density
else:
    density = LazyModule("llm_elicit.density")  # PyTorch, which most commands do not need

_POINT_TYPES = {**dict.fromkeys("iuf", "float64"), "M": "datetime64[s]"}
"""The types of the points' columns of numbers and dates."""

_MIN_PROBABILITY = 1e-9
"""Smallest distance of a probability from 0 and 1, for its log-odds."""


@dataclass(frozen=True)
class Choices:
    """One judge's answers, one row per pair with at least one choice.

    Attributes:
        a, b: the two points of each pair, `(n, d)` each, natural units.
        preference: P(a preferred), averaged over orders and replicates, `(n,)` in [0, 1].
            Averaging over both orders removes a position effect that is equal for all options, but
            not one that depends on the option.
        pair: the pairs' numbers, `(n,)`.
    """

    a: Floats
    b: Floats
    preference: Floats
    pair: np.ndarray[tuple[int], np.dtype[np.int64]]

    __repr__ = brief_repr

    def __len__(self) -> int:
        return len(self.preference)


@dataclass(frozen=True)
class Judgments:
    """One judge's choices, one row per answer, and how each question was asked.

    Attributes:
        a, b: the two points of each pair, `(n, d)` each, natural units.
        preference: P(a preferred), `(n,)`; 1/2 for a tie.
        first: whether a was shown first, `(n,)`.
        tie: whether the answer was a tie, `(n,)`.
        soft: whether the preference is a measured probability, `(n,)`.
        pair: the pairs' numbers, `(n,)`.
        format: the answer asked for, "letter", "probability" or "ratio", `(n,)`.
        censored: 1 if the log-odds of the first shown are known only to be at least `log_odds`, −1
            if at most, else 0, `(n,)`.
        presentation: the labels of the pairs' presentations, `(n,)`; empty if there is one.
        replicate: the numbers of the replicates, `(n,)`.
        asked_at: the times of the answers as text, empty if unknown, `(n,)`.
    """

    a: Floats
    b: Floats
    preference: Floats
    first: np.ndarray[tuple[int], np.dtype[np.bool_]]
    tie: np.ndarray[tuple[int], np.dtype[np.bool_]]
    soft: np.ndarray[tuple[int], np.dtype[np.bool_]]
    pair: np.ndarray[tuple[int], np.dtype[np.int64]]
    format: np.ndarray[tuple[int], np.dtype[np.str_]]
    censored: np.ndarray[tuple[int], np.dtype[np.int64]]
    presentation: np.ndarray[tuple[int], np.dtype[np.str_]]
    replicate: np.ndarray[tuple[int], np.dtype[np.int64]]
    asked_at: np.ndarray[tuple[int], np.dtype[np.str_]]

    __repr__ = brief_repr

    @property
    def measured(self) -> bool:
        """Whether log-odds are used instead of choices, because most answers have them."""
        return bool(self.soft.sum() * 2 > len(self.soft))

    @property
    def sign(self) -> Floats:
        """1 if a was shown first, −1 if b was, `(n,)`."""
        return np.where(self.first, 1.0, -1.0)

    @property
    def first_preference(self) -> Floats:
        """P(the point shown first is preferred), `(n,)`."""
        return np.where(self.first, self.preference, 1.0 - self.preference)

    @property
    def log_odds(self) -> Floats:
        """log P(first shown) / P(second shown), `(n,)` nats, finite."""
        p = np.clip(self.preference, _MIN_PROBABILITY, 1.0 - _MIN_PROBABILITY)
        return self.sign * np.log(p / (1.0 - p))


class Comparisons:
    """The judgments of a run.

    Attributes:
        frame: the table, with the columns described at the top of this module.
        features: the feature names, in the order of the points' columns.
    """

    def __init__(self, frame: pd.DataFrame, features: list[str]) -> None:
        points = check_columns(frame, features, "comparisons")
        optional = [name for name in OPTIONAL if name in frame]
        frame = frame[[*COLUMNS, *points, *optional]].reset_index(drop=True)
        types = {}  # of the columns whose type is another; a conversion to the same type is slow
        for name, dtype in frame.dtypes.items():
            kind = TYPES.get(str(name), _POINT_TYPES.get(dtype.kind))
            if kind and dtype != (pd.StringDtype() if kind == "string" else kind):
                types[name] = kind
        frame = frame.astype(types) if types else frame
        # Providers whose log-probabilities were NaN: the letter that was chosen remains.
        bare = frame["probability"].isna() & frame["verdict"].isin(("A", "B"))
        if bare.any():
            a_won = (frame["verdict"] == "A") == (frame["order"] == "ab")
            probability = frame["probability"].mask(bare, a_won.astype(float))
            frame = frame.assign(probability=probability, soft=frame["soft"] & ~bare)
        self.frame = frame
        self.features = features

    def __len__(self) -> int:
        return len(self.frame)

    def __repr__(self) -> str:
        return f"Comparisons({len(self)} judgments by {reprlib.repr(self.judges)})"

    @property
    def judges(self) -> list[str]:
        """The judges' names, in order of first appearance."""
        return self.frame["judge"].unique().tolist()

    def of(self, judge: str) -> pd.DataFrame:
        """Return the rows of one judge.

        Raises:
            UnknownNameError: it has none.
        """
        if judge not in self.judges:
            raise UnknownNameError.of("comparisons", "judge", judge, self.judges)
        return self.answers_of(judge)

    def answers_of(self, judge: str) -> pd.DataFrame:
        """Return the rows of one judge; none if it has not answered yet."""
        return self.frame[self.frame["judge"] == judge]

    def choices(self, judge: str) -> Choices:
        """Return a judge's choices, averaged over both orders and all replicates of a pair.

        Both orders have equal weight, whatever their numbers of replicates.
        """
        rows = self._chosen(judge)
        pair, row, number = np.unique(
            rows["pair"].to_numpy(), return_index=True, return_inverse=True
        )
        question, shape = 2 * number + (rows["order"] == "ab").to_numpy(bool), (len(pair), 2)
        count, total = (
            np.bincount(question, weights, 2 * len(pair)).reshape(shape)
            for weights in (None, rows["probability"])
        )
        means = total / np.maximum(count, 1)
        preference = means.sum(axis=1) / (count > 0).sum(axis=1)
        a, b = self.points(rows)
        return Choices(a[row], b[row], preference, pair)

    def judgments(self, judge: str) -> Judgments:
        """Return a judge's choices, one row per order and replicate."""
        rows = self._chosen(judge)
        preference = rows["probability"].to_numpy(np.float64)
        first, soft = (rows["order"] == "ab").to_numpy(bool), rows["soft"].to_numpy(bool)
        texts = {"asked_at": "", "format": "letter", "presentation": ""}
        asked_at, formats, presentations = (
            rows[name].fillna(missing).to_numpy(np.str_)
            if name in rows
            else np.full(len(rows), missing)
            for name, missing in texts.items()
        )
        # A probability of 0 or 1 is a bound as well.
        above, below = preference >= 1.0 - _MIN_PROBABILITY, preference <= _MIN_PROBABILITY
        ends = above.astype(np.int64) - below
        if "censored" in rows.columns:
            ends = np.where(ends == 0, rows["censored"].to_numpy(np.int64), ends)
        return Judgments(
            *self.points(rows),
            preference,
            first,
            (rows["verdict"] == "tie").to_numpy(bool),
            soft,
            rows["pair"].to_numpy(np.int64),
            formats,
            np.where(first, 1, -1) * np.where(soft, ends, 0),
            presentations,
            rows["replicate"].to_numpy(np.int64),
            asked_at,
        )

    def _chosen(self, judge: str) -> pd.DataFrame:
        return self.frame[(self.frame["judge"] == judge) & self.frame["probability"].notna()]

    def points(self, rows: pd.DataFrame) -> tuple[Floats, Floats]:
        """Return the two points of rows of the table, `(n, d)` each.

        Words of categories become their codes, and dates days since 1970.

        Raises:
            InputError: words without a feature space, which tells their codes.
        """
        return points_of(rows, self.features)

    @classmethod
    def empty(cls, features: list[str]) -> Comparisons:
        """Return the table before the first judgment."""
        points = {f"{side}_{name}": "float64" for side in "ab" for name in features}
        columns = {name: pd.Series(dtype=kind) for name, kind in {**COLUMNS, **points}.items()}
        return cls(pd.DataFrame(columns), features)

    def write(self, path: Path) -> Path:
        """Write as Parquet, JSONL or CSV, by the path's suffix.

        Every number has all its digits. In a CSV, a text that a spreadsheet would run as a formula
        is prefixed with an apostrophe, which `read` removes; an empty text has quotes, and a
        missing one none. Read with the feature space, each format gives the same table again.

        Raises:
            InputError: another suffix.
        """
        return write_frames([self.frame], path)

    @classmethod
    def read(cls, path: Path, space: FeatureSpace | None = None) -> Comparisons:
        """Return the table in a file that `write` wrote.

        Args:
            path: the file.
            space: the feature space, whose features tell the codes of words. JSONL and CSV do not
                hold these: without it their words stay text, and have no `points`.

        Raises:
            InputError: no such file, another suffix, not a comparison log, or not of this space.
        """
        return cls(*read_frame(path, space))


def points_of(rows: pd.DataFrame, features: Sequence[str]) -> tuple[Floats, Floats]:
    """Return the two points of rows of a table of judgments; see `Comparisons.points`."""
    a, b = (
        np.stack([_codes(rows[f"{side}_{name}"]) for name in features], axis=1) for side in "ab"
    )
    return a, b


def _codes(column: pd.Series[Any]) -> Floats:
    """Return the values of a point's column `(n,)`."""
    coded = isinstance(column.dtype, pd.CategoricalDtype) or column.dtype.kind == "M"
    if not coded and is_worded(column) and len(column):
        raise InputError(
            f"comparisons: column {column.name!r} holds category names, whose codes are in the "
            "feature space; read the table with Comparisons.read(path, space)"
        )
    return column_values(column)


def version_of(model: str, fingerprint: str) -> str:
    """Return the name of a version; empty if the provider reports no model.

    Examples:
        >>> version_of("m-2026-01-01", "fp_1"), version_of("m", "")
        ('m-2026-01-01 (fp_1)', 'm')
    """
    return f"{model} ({fingerprint})" if model and fingerprint else model


@dataclass(frozen=True)
class VersionSpan:
    """The answers of one version: their number, and the UTC times of the first and the last."""

    version: str
    answers: int
    first: str
    last: str


JudgeSpan = tuple[str, VersionSpan]
"""A judge's name, and its answers of one version."""


@dataclass(frozen=True)
class VersionChange:
    """Several versions that answered for one alias.

    Attributes:
        judges: the judges that share the alias.
        versions: in the order of their first answers.
    """

    judges: tuple[str, ...]
    versions: tuple[VersionSpan, ...]

    @property
    def line(self) -> str:
        """The versions and the times of the change in one line.

        Examples:
            >>> old = VersionSpan("m-1", 7, "2026-01-01T10:00:00.5", "2026-01-01T10:00:09.7")
            >>> new = VersionSpan("m-2", 1, "2026-01-02T09:00:00.1", "2026-01-02T09:00:00.1")
            >>> VersionChange(("gpt",), (old, new)).line.partition(", then ")[2]
            'm-2 (1 answer, 2026-01-02 09:00:00 to 2026-01-02 09:00:00)'
        """
        parts = [
            f"{visible(span.version, 80)} ({span.answers:,} answer{'s'[: span.answers != 1]}, "
            f"{to_the_second(span.first)} to {to_the_second(span.last)})"
            for span in self.versions
        ]
        return f"the model version changed during the run: {', then '.join(parts)}"


def to_the_second(moment: str) -> str:
    """Return an ISO 8601 time as it is printed, without fractions of a second."""
    return moment[:19].replace("T", " ")


class VersionLog:
    """The versions that answered in a run, by alias.

    Args:
        aliases: the alias of each judge that is a model.
        counts: the answers so far, by judge and version.

    Examples:
        >>> log = VersionLog({"low": "gpt", "high": "gpt"})
        >>> log.add("low", "m-1", "2026-01-01"), log.add("high", "m-1", "2026-01-02")
        (None, None)
        >>> log.add("high", "m-2", "2026-01-03").judges
        ('low', 'high')
    """

    def __init__(self, aliases: Mapping[str, str], counts: Iterable[JudgeSpan] = ()) -> None:
        self._aliases = dict(aliases)
        self._spans: dict[str, dict[str, VersionSpan]] = defaultdict(dict)
        for judge, span in counts:
            if judge in aliases and span.version:
                self._merge(aliases[judge], span)

    def _merge(self, alias: str, span: VersionSpan) -> None:
        spans = self._spans[alias]
        if (earlier := spans.get(span.version)) is not None:
            first, last = min(earlier.first, span.first), max(earlier.last, span.last)
            span = VersionSpan(span.version, earlier.answers + span.answers, first, last)
        spans[span.version] = span

    def add(self, judge: str, version: str, asked_at: str) -> VersionChange | None:
        """Count an answer; return the change if it is the first of another version."""
        alias = self._aliases[judge]
        if not version:
            return None  # such as a refusal by a filter
        is_change = bool(self._spans[alias]) and version not in self._spans[alias]
        self._merge(alias, VersionSpan(version, 1, asked_at, asked_at))
        return self.change(judge) if is_change else None

    def has(self, judge: str, model: str) -> bool:
        """Return whether a model has answered behind a judge's alias, whatever its fingerprint."""
        spans = self._spans[self._aliases[judge]]
        return any(name == model or name.startswith(f"{model} (") for name in spans)

    def change(self, judge: str) -> VersionChange | None:
        """Return the versions behind a judge's alias; None if there are not several."""
        return self._change(self._aliases[judge])

    @property
    def changes(self) -> list[VersionChange]:
        """The aliases behind which there are several versions."""
        changes = map(self._change, dict.fromkeys(self._aliases.values()))
        return [change for change in changes if change is not None]

    def _change(self, alias: str) -> VersionChange | None:
        if len(self._spans[alias]) < 2:
            return None
        spans = sorted(self._spans[alias].values(), key=lambda span: (span.first, span.version))
        judges = tuple(name for name, judge_alias in self._aliases.items() if judge_alias == alias)
        return VersionChange(judges, tuple(spans))


PROBABILITY_ROUNDING = 0.01
"""The rounding of stated probabilities."""

_DENSE = 100
"""Number of values from which `Empirical` treats whole numbers as real ones."""


def sampling_of(space: FeatureSpace) -> density.SamplingDensity:
    """Return λ, in whose coordinates beliefs are fitted.

    It is uniform on each feature's scale, or has the marginals and rank correlations of the table
    if `follows_table`.
    """
    if follows_table(space):
        return density.Empirical(space.table_points(), space.low, space.high, log=space.log)
    kinds = {name: getattr(space, name) for name in ("log", "categorical", "integer", "periodic")}
    return density.Uniform(space.low, space.high, **kinds, constraints=space.density_constraints)


def follows_table(space: FeatureSpace) -> bool:
    """Return whether beliefs are fitted in coordinates with the table's rank correlations.

    This is so if points are drawn from the table, without constraints, and all features are real
    numbers or whole ones of a wide range.

    Examples:
        >>> cars, penguins = (FeatureSpace.load(name) for name in ("cars", "penguins_kinds"))
        >>> [follows_table(space.with_sampling("empirical")) for space in (cars, penguins)]
        [True, False]
    """
    is_narrow = space.integer & (space.high - space.low < _DENSE)
    kinds = space.categorical | space.periodic | is_narrow
    return space.sampling == "empirical" and not space.constraints and not bool(kinds.any())


def noise_of(fit: Fit) -> density.Noise:
    """Return the noise that the campaign assumes."""
    if fit.noise_level is None:
        return density.Noise(fit.noise)
    return density.Noise(fit.noise, fit.noise_level)


def evidence_of(comparisons: Comparisons, judge: str, fit: Fit) -> density.Evidence:
    """Return a judge's answers as evidence: log-odds if most answers have them, else choices.

    If most answers have log-odds, those without are left out, since they add little information.
    Stated probabilities count as rounded to a per cent. How choices enter is set by
    `Fit.position_effect`. If pairs were asked in several presentations, the belief is what these
    have in common.
    """
    judgments = comparisons.judgments(judge)
    if judgments.measured:
        return _evidence_of_odds(judgments, judge)
    if fit.position_effect == "averaged":
        choices = comparisons.choices(judge)
        of_pair = dict(zip(judgments.pair, judgments.presentation, strict=True))
        names = [str(of_pair[pair]) for pair in choices.pair]
        return density.Evidence.comparisons(
            choices.a, choices.b, choices.preference, presentation=names, judge=judge
        )
    columns: dict[str, Any] = {"first": judgments.first, "presentation": judgments.presentation}
    columns["tie"] = judgments.tie & (fit.noise == "gumbel")  # others count it as half a win
    return density.Evidence.comparisons(
        judgments.a, judgments.b, judgments.preference, **columns, judge=judge
    )


def _evidence_of_odds(judgments: Judgments, judge: str) -> density.Evidence:
    """Return a judge's answers that have log-odds or stated probabilities as evidence."""
    columns = {
        "first": np.where(judgments.first[:, None], judgments.a, judgments.b),
        "second": np.where(judgments.first[:, None], judgments.b, judgments.a),
        "presentation": judgments.presentation,
    }
    is_stated = judgments.soft & (judgments.format == "probability")
    measured = judgments.soft & ~is_stated
    parts = []
    if measured.any():
        rows: dict[str, Any] = {name: column[measured] for name, column in columns.items()}
        log_odds, cut = judgments.log_odds[measured], judgments.censored[measured]
        rows["lower"] = np.where(cut < 0, -np.inf, log_odds)
        rows["upper"] = np.where(cut > 0, np.inf, log_odds)
        parts.append(density.Evidence.log_odds(**rows, judge=judge))
    if is_stated.any():
        rows = {name: column[is_stated] for name, column in columns.items()}
        rows["probability"] = judgments.first_preference[is_stated]
        rows["rounding"] = PROBABILITY_ROUNDING
        parts.append(density.Evidence.probabilities(**rows, judge=judge))
    return reduce(add, parts)
